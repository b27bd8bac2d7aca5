//! Fuzzes the target `frrwp_message`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("frrwp_message").decode(bytes);
});
