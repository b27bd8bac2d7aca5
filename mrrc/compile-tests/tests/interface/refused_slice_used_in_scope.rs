use mrrc::Cache;
use mrrc::testing::NoopRegistrar;

fn main() {
    let cache = Cache::builder(NoopRegistrar::default()).build().unwrap();
    let mut buffer = [0; 100];
    cache.with_slice_mut(&mut buffer, |_| println!("a device may be writing {:?}", buffer)).unwrap();
}
