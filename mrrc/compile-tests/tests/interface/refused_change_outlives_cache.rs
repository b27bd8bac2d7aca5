use mrrc::Cache;
use mrrc::testing::NoopRegistrar;

fn main() {
    let cache = Cache::builder(NoopRegistrar::default()).build().unwrap();
    let change = cache.begin_change(4096 as *const u8, 1).unwrap();
    drop(cache);
    drop(change);
}
