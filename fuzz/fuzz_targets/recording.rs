//! Fuzzes the target `recording`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("recording").decode(bytes);
});
