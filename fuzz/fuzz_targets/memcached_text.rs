//! Fuzzes the target `memcached_text`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("memcached_text").decode(bytes);
});
