//! Fuzzes the target `files`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("files").decode(bytes);
});
