//! Fuzzes the target `trace_option`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("trace_option").decode(bytes);
});
