use mrrc::invalidation::Explicit;
use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Arena, Cache, Lease};

fn moves<T: Send + Sync + 'static>(_: &T) {}

fn main() {
    let cache: Cache<NoopRegistrar> = Cache::builder(NoopRegistrar::default()).monitor(Explicit).build().unwrap();
    let arena: Arena<NoopRegistrar> = cache.arena(4096).unwrap();
    let lease: Lease<NoopRegistrar> = arena.acquire(.., Access::LOCAL).unwrap();
    moves(&cache);
    moves(&arena);
    moves(&lease);
    // A lease needs neither to live.
    drop((arena, cache));
    std::thread::spawn(move || assert_eq!(lease.segments().count(), 1)).join().unwrap();
    // A scope gives back what is no part of the lease.
    let cache = Cache::builder(NoopRegistrar::default()).monitor(Explicit).build().unwrap();
    let key = cache.with_slice(b"sent", |lease| lease.segments().next().map(|segment| segment.registration().key()));
    assert!(key.unwrap().is_some());
}
