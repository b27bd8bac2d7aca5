//! Fuzzes the target `warm_items`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("warm_items").decode(bytes);
});
