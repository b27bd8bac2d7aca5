//! Tags that follow what they name: a tag stays, and what is read by it changes with one store.
//!
//! A [`Binding`] is an address that changes: of the current version of an item, say. Any number of [`Handle`](super::Handle)s are bound to it,
//! each the tag of one connection, of a length of its own. Such a tag opens offsets from 0 to that length, for reading alone.
//!
//! # What a read sees
//!
//! A read resolves its binding once, when its first answer is made: all its bytes are of one version or zeros. Without CRCs
//! they are sent from where they lie. Each call that sends checks first that the same is bound still; what was not sent
//! before another version was bound is zeros. With CRCs the read is copied as a whole when its first answer is made, as
//! what is summed up must not change. Either way no peer keeps this side at memory by not receiving. A handle's [length is
//! bounded](super::Handle::LONGEST), because so much may be copied for a connection at a time. A reader checks the bytes,
//! as with any one-sided read: an owner that changes the bytes of a version while they are bound tears it.
//!
//! # What quiescence promises
//!
//! [`Binding::bind`] waits for no reader: a read that began before may still copy the old bytes. Once [`Binding::is_idle`]
//! has returned true, in the same thread or otherwise after `bind`, none does, nor ever will: what was bound before may be
//! changed, unmapped or lent to others. A copy is a system call or a few, at most a few hundred microseconds of one thread,
//! and is never in the hands of a peer. Reads of what is bound now are not waited for, however many there are.
//!
//! Address and *phase* are one word. A read counts itself in the phase that it finds, and looks again: unless both are as
//! they were, it begins anew. Binding changes the phase, so that the reads before it are all in the other one, which no
//! read enters any more.
//!
//! ```text
//!   a read                              the binder
//!   word                                word = new address, other phase
//!   copying[phase] += 1                 copying[phase before] == 0?
//!   the same word? else anew                then no read is at the earlier bytes
//!   copies
//!   copying[phase] -= 1
//! ```
//!
//! While reads of still earlier bindings are in the other phase, it is not free. The phase stays, and is *mixed*, until the
//! other one is empty.
#![expect(unsafe_code, reason = "lets peers read by address")]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The memory that the keys of several connections name, until another is bound: see [`handle`](super::IwarpDomain::handle).
///
/// ```
/// use frrwp::fabric::iwarp::Binding;
/// use std::sync::Arc;
///
/// let versions = [[1_u8; 100], [2; 100]];
/// // The versions outlive the binding, and are not changed.
/// let item = Arc::new(unsafe { Binding::new(versions[0].as_ptr()) });
/// unsafe { item.bind(versions[1].as_ptr()) };
/// assert!(item.is_idle(), "the first has no reader any more");
/// assert_eq!(item.reads(), 0);
/// ```
pub struct Binding {
    /// An address, and in the bits that none has the phase and whether it is mixed.
    word: AtomicU64,
    /// Reads that copy, by phase.
    copying: [AtomicU32; 2],
    /// Reads that ever began.
    reads: AtomicU64,
}

/// Addresses of a process have 56 bits at most, wherever Linux runs.
const ADDRESS: u64 = (1 << 56) - 1;
const PHASE: u64 = 1 << 63;
const MIXED: u64 = 1 << 62;

fn phase(word: u64) -> usize {
    usize::from(word & PHASE != 0)
}

/// Lets tests come between.
#[inline(always)]
fn step() {
    #[cfg(test)]
    tests::step();
}

impl Binding {
    /// Bound to the bytes there.
    ///
    /// # Safety
    /// As [`Binding::bind`].
    pub unsafe fn new(address: *const u8) -> Self {
        let word = AtomicU64::new(address as u64 & ADDRESS);
        Self { word, copying: Default::default(), reads: AtomicU64::new(0) }
    }

    /// Reads that begin from now on are of the bytes there: one exchange of a word. By one thread at a time.
    ///
    /// # Safety
    /// As many bytes as the longest [`Handle`](super::Handle) of this binding has stay mapped there and may be read by its
    /// peers. That ends when something else was bound and the binding [was idle](Self::is_idle) after that, or when all
    /// handles are gone. The caller does not rely on peers' reads of bytes that are written meanwhile.
    pub unsafe fn bind(&self, address: *const u8) {
        let mut word = self.word.load(SeqCst);
        loop {
            let other = phase(word) ^ 1;
            step();
            let is_free = self.copying[other].load(SeqCst) == 0;
            let bits = if is_free { (word & PHASE) ^ PHASE } else { (word & PHASE) | MIXED };
            step();
            match self.word.compare_exchange(word, address as u64 & ADDRESS | bits, SeqCst, SeqCst) {
                Ok(_) => return,
                // The phase has been sorted out meanwhile.
                Err(now) => word = now,
            }
        }
    }

    /// Returns the bound address.
    pub fn address(&self) -> *const u8 {
        (self.word.load(SeqCst) & ADDRESS) as *const u8
    }

    /// Returns the number of reads by all handles so far with a decided version, of which the owner's application knows
    /// nothing else.
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// Returns whether no read copies any more from what was bound before the last [`Binding::bind`] that this call
    /// comes after.
    pub fn is_idle(&self) -> bool {
        let word = self.word.load(SeqCst);
        let (now, other) = (phase(word), phase(word) ^ 1);
        step();
        if self.copying[other].load(SeqCst) != 0 {
            return false;
        }
        if word & MIXED == 0 {
            return true;
        }
        // Reads of what is bound now go to the other phase from here on, so that this one empties.
        let sorted = (word ^ PHASE) & !MIXED;
        step();
        if self.word.compare_exchange(word, sorted, SeqCst, SeqCst).is_err() {
            return false;
        }
        step();
        self.copying[now].load(SeqCst) == 0
    }

    /// A read begins.
    pub(super) fn count(&self) {
        self.reads.fetch_add(1, Relaxed);
    }

    /// Lets a system call at what is bound.
    pub(super) fn enter(self: &Arc<Self>) -> Entered {
        loop {
            let word = self.word.load(SeqCst);
            step();
            self.copying[phase(word)].fetch_add(1, SeqCst);
            let address = (word & ADDRESS) as *const u8;
            let entered = Entered { address, binding: Arc::clone(self), phase: phase(word) };
            step();
            // No read that looked at the phase before it was counted missed it.
            if self.word.load(SeqCst) == word {
                step();
                return entered;
            }
        }
    }
}

/// A read of the bound memory, until this is dropped: for one system call that does not block, or a few.
pub(super) struct Entered {
    /// The bound address.
    pub(super) address: *const u8,
    binding: Arc<Binding>,
    phase: usize,
}

impl Drop for Entered {
    /// Also where what is done meanwhile unwinds.
    fn drop(&mut self) {
        self.binding.copying[self.phase].fetch_sub(1, SeqCst);
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding").field("address", &self.address()).field("reads", &self.reads()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    /// A thread between two looks may have to wait there for long.
    pub(super) fn step() {
        if rand::rng().random_ratio(1, 4) {
            thread::yield_now();
        }
    }

    /// Versions of an item, one bound after another, and taken back in their turn once the binding was idle: 0. Reads overlap
    /// without end.
    #[test]
    fn taken_back_version_is_not_read_once_idle() {
        const VERSIONS: usize = 6;
        const ROUNDS: usize = 3_000;
        let versions: Vec<AtomicUsize> = (0..VERSIONS).map(|_| AtomicUsize::new(0)).collect();
        versions[0].store(1, SeqCst);
        let at = |version: usize| std::ptr::from_ref(&versions[version % VERSIONS]).cast::<u8>();
        // SAFETY: the versions live longer than the binding.
        let binding = Arc::new(unsafe { Binding::new(at(0)) });
        let ends = AtomicU32::new(0);
        let (reads, mixed) = thread::scope(|scope| {
            let reader = || {
                let mut reads = 0_u64;
                while ends.load(SeqCst) == 0 {
                    binding.count();
                    let entered = binding.enter();
                    // SAFETY: the address is that of one of the versions, which outlive the binding.
                    let version = unsafe { &*entered.address.cast::<AtomicUsize>() };
                    let first = version.load(SeqCst);
                    (0..4).for_each(|_| step());
                    let last = version.load(SeqCst);
                    if first == 0 || last != first {
                        ends.store(1, SeqCst);
                        panic!("a version that was taken back is read: {first}, {last}");
                    }
                    drop(entered);
                    reads += 1;
                }
                reads
            };
            let readers = [(); 3].map(|()| scope.spawn(reader));
            let (mut oldest, mut mixed) = (0, 0);
            for round in 1..ROUNDS {
                versions[round % VERSIONS].store(round + 1, SeqCst);
                // SAFETY: `bind` requires bytes that live while they are bound: the versions outlive the binding.
                unsafe { binding.bind(at(round)) };
                mixed += u32::from(binding.word.load(SeqCst) & MIXED != 0);
                // Some are bound in between without being waited for.
                if round % 3 != 0 && round - oldest < VERSIONS - 1 {
                    continue;
                }
                while !binding.is_idle() && ends.load(SeqCst) == 0 {
                    thread::yield_now();
                }
                for version in oldest..round {
                    versions[version % VERSIONS].store(0, SeqCst);
                }
                oldest = round;
            }
            ends.store(1, SeqCst);
            (readers.map(|reader| reader.join().expect("no reader saw what it must not")).iter().sum::<u64>(), mixed)
        });
        assert_eq!(binding.reads(), reads);
        assert!(binding.is_idle());
        assert!(mixed > 0, "phases were mixed, so that this was tried too");
    }

    #[test]
    fn a_copy_that_unwinds_is_over() {
        // SAFETY: no read uses this binding, so its address is never followed.
        let binding = Arc::new(unsafe { Binding::new(std::ptr::null()) });
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _entered = binding.enter();
            panic!("it unwinds");
        }));
        // SAFETY: no read uses this binding, so its address is never followed.
        unsafe { binding.bind(std::ptr::null()) };
        assert!(unwound.is_err() && binding.is_idle());
    }
}
