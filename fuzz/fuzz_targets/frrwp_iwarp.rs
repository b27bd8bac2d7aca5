//! Fuzzes the target `frrwp_iwarp`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("frrwp_iwarp").decode(bytes);
});
