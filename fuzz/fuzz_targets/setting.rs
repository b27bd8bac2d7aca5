//! Fuzzes the target `setting`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("setting").decode(bytes);
});
