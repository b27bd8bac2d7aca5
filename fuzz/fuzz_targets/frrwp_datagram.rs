//! Fuzzes the target `frrwp_datagram`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("frrwp_datagram").decode(bytes);
});
