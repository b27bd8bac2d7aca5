//! Fuzzes the target `flash_manifest`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("flash_manifest").decode(bytes);
});
