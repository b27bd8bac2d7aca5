//! One key for some bytes of a lease, or where they have to be divided.

use mrrc::cache::NoKey;
use mrrc::invalidation::Explicit;
use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache};

const PAGE: usize = 4096;

#[test]
fn each_byte_has_one_key_and_bounds_divide() {
    let cache = Cache::builder(NoopRegistrar::default()).monitor(Explicit).ignore_environment().build().unwrap();
    let arena = cache.arena(10 * PAGE).unwrap();
    // Three registrations: pages 2 to 4, those before and those behind.
    drop(arena.acquire(2 * PAGE..5 * PAGE, Access::LOCAL).unwrap());
    // It begins within a page, and ends within one.
    let (begin, end) = (100, 9 * PAGE + 50);
    let lease = arena.acquire(begin..end, Access::LOCAL).unwrap();
    let bytes = end - begin;
    let bounds = [0, 2 * PAGE - begin, 5 * PAGE - begin, bytes];
    assert_eq!((lease.segments().count(), lease.len()), (3, bytes));
    let segments: Vec<_> = lease.segments().map(|segment| std::ptr::from_ref(segment.registration())).collect();
    for (nth, bound) in bounds.windows(2).enumerate() {
        let (from, to) = (bound[0], bound[1]);
        for (offset, length) in [(from, to - from), (from, 1), (to - 1, 1)] {
            assert_eq!(lease.key_for(offset, length).map(std::ptr::from_ref), Ok(segments[nth]), "{offset} {length}");
        }
        if to < bytes {
            let straddles = NoKey::Straddles { offset: from, end: to + 1, at: to };
            assert_eq!(lease.key_for(from, to + 1 - from).unwrap_err(), straddles);
        }
    }
    assert_eq!(lease.key_for(0, bytes).unwrap_err(), NoKey::Straddles { offset: 0, end: bytes, at: bounds[1] });
    for (offset, length) in [(0, 0), (0, bytes + 1), (bytes, 1), (usize::MAX, 2), (1, usize::MAX)] {
        assert_eq!(lease.key_for(offset, length).unwrap_err(), NoKey::Outside { offset, length, bytes });
    }
}
