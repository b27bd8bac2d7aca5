//! Fuzzes the target `flash_segment`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("flash_segment").decode(bytes);
});
