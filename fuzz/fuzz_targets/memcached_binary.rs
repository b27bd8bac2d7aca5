//! Fuzzes the target `memcached_binary`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("memcached_binary").decode(bytes);
});
