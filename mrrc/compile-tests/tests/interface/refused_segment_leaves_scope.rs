use mrrc::Cache;
use mrrc::testing::NoopRegistrar;

fn main() {
    let cache = Cache::builder(NoopRegistrar::default()).build().unwrap();
    let segment = cache.with_slice(&[1, 2, 3], |lease| lease.segments().next().unwrap()).unwrap();
    println!("{:?}", segment.registration());
}
