//! Fuzzes the target `trace_as`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("trace_as").decode(bytes);
});
