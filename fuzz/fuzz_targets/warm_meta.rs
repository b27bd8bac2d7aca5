//! Fuzzes the target `warm_meta`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("warm_meta").decode(bytes);
});
