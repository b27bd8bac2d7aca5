//! How many instructions a registration costs over verbs: one that the cache has, and one that it has not.
//!
//! For a guest whose clock counts instructions (`lab/tests/instructions`): its time-stamp counter does as well, and the rest
//! of the machine changes no count. Elsewhere the first thing that is measured, a loop of known length, says that the counter
//! counts something else, and the test fails.
//!
//! One of many counts stands for all: the one that a tenth of them does not exceed. Interrupts fall into some, and the
//! kernel's allocator has now and then more to do. For counts to come out as before, what they depend on is the same each
//! time: where memory lies, that it is one huge page (in how many pieces small ones come to the kernel depends on what lay
//! where before), and that the kernel gets to free what it frees a little later.

#![cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux", target_arch = "x86_64"))]
#![allow(unsafe_code, reason = "memory is registered by address, and a counter is read")]

#[path = "common/loopback.rs"]
mod loopback;

use loopback::pins::{comes_to, pinned};
use loopback::{Memory, RIGHTS, alone, domain, registered};
use mrrc::invalidation::Explicit;
use mrrc::registrar::Registrar;
use mrrc::registrar::verbs::Verbs;
use mrrc::{Cache, PAGE, PageRange};
use std::hint::black_box;
use std::time::Duration;

/// Samples that count. As many before them find things cold, and do not.
const SAMPLES: usize = 301;

/// Between samples: where time is instructions, this costs none.
const PAUSE: Duration = Duration::from_millis(1);

/// Hits in one sample: one alone is little more than reading the counter.
const HITS: u64 = 100;

/// The address of the memory: a hit's way through the index depends on it.
const ADDRESS: usize = 0x2000_0000_0000;

fn counter() -> u64 {
    // SAFETY: reads a counter that every x86-64 has.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[inline(always)]
fn spent(run: impl FnOnce()) -> u64 {
    let before = counter();
    run();
    counter() - before
}

/// Two counts of each run: what a tenth does not exceed, less what an empty one is.
fn count(mut run: impl FnMut() -> [u64; 2]) -> [u64; 2] {
    let mut samples: Vec<[u64; 2]> = (0..2 * SAMPLES)
        .map(|_| {
            std::thread::sleep(PAUSE);
            run()
        })
        .skip(SAMPLES)
        .collect();
    let empty = (0..SAMPLES).map(|_| spent(|| ())).min().unwrap_or(0);
    [0, 1].map(|which| {
        let (_, low, _) = samples.select_nth_unstable_by_key(SAMPLES / 10, |sample| sample[which]);
        low[which] - empty
    })
}

/// A loop of so many turns, of two instructions each.
fn turns(turns: u64) {
    // SAFETY: changes a register, and no memory.
    unsafe { core::arch::asm!("2: dec {0}", "jnz 2b", inout(reg) turns => _, options(nomem, nostack)) };
}

fn say(what: &str, pages: u64, instructions: f64) {
    println!("instructions {what}-{pages} {instructions:.0}");
}

#[test]
#[ignore = "for a guest whose clock counts instructions"]
fn what_registrations_cost() {
    let _alone = alone();
    let [short, long] = count(|| [spent(|| turns(1000)), spent(|| turns(2000))]);
    assert_eq!(
        long.wrapping_sub(short),
        2000,
        "for 2000 instructions: the time-stamp counter counts something else here: boot with -icount shift=0"
    );
    let Some(domain) = domain() else { return };
    let (table, before) = (Verbs::new(&domain).unwrap(), pinned());
    let mut memory = Memory::huge_page_at(ADDRESS);
    memory.fill(1);
    println!();
    for pages in [1, 64] {
        let range = PageRange::new(memory.range().start(), pages).unwrap();
        let [registering, deregistering] = count(|| {
            let mut region = None;
            let registering = spent(|| region = table.register(range, RIGHTS).ok());
            let mut batch = vec![registered(region.expect("the device registers"))];
            [registering, spent(|| table.deregister(&mut batch).expect("the device deregisters"))]
        });
        say("register", pages, registering as f64);
        say("deregister", pages, deregistering as f64);
    }
    let builder = |table| Cache::builder(table).monitor(Explicit).ignore_environment().capacity_pages(64);
    cached(builder(table).build().unwrap(), &memory, "");
    // The same where misses may grow. Each second one takes a page more, which a flush then counts as wasted.
    let table = Verbs::new(&domain).unwrap();
    let growing = builder(table).max_segments(1).widen(true).widen_for_peers(true).build().unwrap();
    cached(growing, &memory, "wide");
    comes_to(before);
}

/// Counts a miss, what takes it out again, and hits.
fn cached(cache: Cache<Verbs>, memory: &Memory, name: &str) {
    let acquire = |pages: u64| {
        // SAFETY: within the mapping, which outlives the cache; no references are made to it.
        let lease = unsafe { cache.acquire(memory.address, (pages * PAGE) as usize, RIGHTS) }.expect("there is room");
        black_box(lease.segments().next().map(|part| part.registration().lkey()));
    };
    let [miss, flush] = count(|| [spent(|| acquire(1)), spent(|| _ = cache.flush().unwrap())]);
    say(&format!("{name}miss"), 1, miss as f64);
    say(&format!("{name}flush"), 1, flush as f64);
    for pages in [1, 64] {
        acquire(pages);
        let [hits, _] = count(|| [spent(|| (0..HITS).for_each(|_| acquire(pages))), 0]);
        say(&format!("{name}hit"), pages, hits as f64 / HITS as f64);
        cache.flush().unwrap();
    }
}
