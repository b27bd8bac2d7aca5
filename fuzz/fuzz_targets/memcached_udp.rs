//! Fuzzes the target `memcached_udp`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("memcached_udp").decode(bytes);
});
