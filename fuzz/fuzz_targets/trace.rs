//! Fuzzes the target `trace`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("trace").decode(bytes);
});
