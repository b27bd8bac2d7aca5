use mrrc::testing::NoopRegistrar;
use mrrc::{Cache, Lease};

fn main() {
    let cache = Cache::builder(NoopRegistrar::default()).build().unwrap();
    let mut kept: Option<&Lease<NoopRegistrar>> = None;
    cache.with_slice(&[1, 2, 3], |lease| kept = Some(lease)).unwrap();
    println!("{kept:?}");
}
