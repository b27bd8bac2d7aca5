use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache};

fn main() {
    let cache = Cache::builder(NoopRegistrar::default()).build().unwrap();
    let arena = cache.arena(4096).unwrap();
    let segment = arena.acquire(.., Access::LOCAL).unwrap().segments().next().unwrap();
    println!("{}", segment.registration().key());
}
