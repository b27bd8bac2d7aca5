//! In the steady state a GET allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::IoSlice;

use rdmakv_server::metrics::Counts;
use rdmakv_server::session::{Context, Out, SLICES, Session, Settings, Shards, Shared};
use rdmakv_server::store::Config;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[expect(unsafe_code, reason = "an allocator that counts")]
// SAFETY: everything is the system allocator's; counting touches a thread's own cell that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller makes the promises of the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller makes the promises of the system's allocator.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn get_allocates_nothing_in_any_protocol() {
    let config = Config { memory: 8 << 20, huge: false, ..Config::default() };
    let settings = Settings { threads: 1, cas: true, ..Settings::default() };
    let shared = Shared::new(Shards::new(&config, 1).unwrap(), settings, 1);
    let (mut counts, mut out) = (Counts::default(), Out::default());
    let mut run = |input: &[u8]| {
        let (mut session, mut turns) = (Session::default(), usize::MAX);
        let mut cx = Context::new(&shared, 1, &mut counts, 0);
        session.advance(input, &mut turns, &mut cx, &mut out);
        let mut sent = 0;
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = out.slices(&mut slices);
            let some = slices[..count].iter().map(|slice| slice.len()).sum();
            out.advance(some, &shared.shards);
            sent += some;
        }
        sent
    };
    let mut set = b"set small 0 0 5\r\nhello\r\nset large 0 0 50000\r\n".to_vec();
    set.resize(set.len() + 50_000, b'x');
    set.extend_from_slice(b"\r\n");
    run(&set);
    let binary = b"\x80\x00\0\x05\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\0\0\0\0small";
    let requests: [&[u8]; 4] =
        [b"get small none small\r\n", b"gets large\r\nget large\r\n", b"mg small v t f c k Oabc\r\n", binary];
    for request in requests {
        assert!(run(request) > 20);
        let before = ALLOCATIONS.get();
        for _ in 0..1000 {
            run(request);
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "{:?}", String::from_utf8_lossy(request));
    }
}
