//! Fuzzes the target `shard`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("shard").decode(bytes);
});
