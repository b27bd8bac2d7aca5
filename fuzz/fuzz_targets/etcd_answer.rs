//! Fuzzes the target `etcd_answer`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("etcd_answer").decode(bytes);
});
