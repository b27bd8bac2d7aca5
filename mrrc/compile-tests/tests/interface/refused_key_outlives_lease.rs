use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache};

fn main() {
    let cache = Cache::builder(NoopRegistrar::default()).build().unwrap();
    let arena = cache.arena(4096).unwrap();
    let lease = arena.acquire(.., Access::LOCAL).unwrap();
    let registration = lease.segments().next().unwrap().registration();
    drop(lease);
    println!("{}", registration.key());
}
