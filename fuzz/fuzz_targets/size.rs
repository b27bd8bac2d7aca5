//! Fuzzes the target `size`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("size").decode(bytes);
});
