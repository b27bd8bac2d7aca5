//! Fuzzes the target `flash_superblock`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("flash_superblock").decode(bytes);
});
