use mrrc::testing::{NoopRegistrar, Registration};
use mrrc::{Access, Cache};

fn main() {
    let cache = Cache::builder(NoopRegistrar::default()).build().unwrap();
    let arena = cache.arena(4096).unwrap();
    let lease = arena.acquire(.., Access::LOCAL).unwrap();
    let segment = lease.segments().next().unwrap();
    let mine: Registration = segment.registration().clone();
    drop(lease);
    println!("{}", mine.key());
}
