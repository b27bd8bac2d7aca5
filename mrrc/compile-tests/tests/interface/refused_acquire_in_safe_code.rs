use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache};

fn main() {
    let cache = Cache::builder(NoopRegistrar::default()).build().unwrap();
    let buffer = [0_u8; 100];
    let _one = cache.acquire(buffer.as_ptr(), 100, Access::LOCAL);
    let _begun = cache.begin(buffer.as_ptr(), 100, Access::LOCAL);
    let _several = cache.acquire_list(&[(buffer.as_ptr(), 100)], Access::LOCAL);
}
