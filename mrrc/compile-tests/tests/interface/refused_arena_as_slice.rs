use mrrc::Cache;
use mrrc::testing::NoopRegistrar;

fn main() {
    let cache = Cache::builder(NoopRegistrar::default()).build().unwrap();
    let mut arena = cache.arena(4096).unwrap();
    let written: &mut [u8] = &mut arena[..];
    written[0] = 1;
    let _read: &[u8] = arena.as_ref();
    let _written: &mut [u8] = arena.as_mut();
}
