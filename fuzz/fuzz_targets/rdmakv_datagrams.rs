//! Fuzzes the target `rdmakv_datagrams`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("rdmakv_datagrams").decode(bytes);
});
