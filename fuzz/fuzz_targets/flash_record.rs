//! Fuzzes the target `flash_record`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("flash_record").decode(bytes);
});
