//! Memory of other kinds than the process's own, such as dma-bufs and the memory of GPUs.
//!
//! No monitor hears of its changes. But each buffer there has an identity that no other ever has. So each request asks for the
//! identity of the buffer at its address. If that is another one than the last time, the regions of the former buffer are hidden
//! before the request is served. The path of all other requests knows nothing of it.

use crate::access::Access;
use crate::error::{AcquireError, Unusable};
use crate::lease::{self, Lease};
use crate::range::{PageRange, RangeError};
use crate::registrar::Registrar;
use crate::state::shared::Shared;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
mod dma_buf;
#[cfg(target_os = "linux")]
pub use dma_buf::DmaBuf;

/// Buffers that a cache knows, at most. Beyond that the one that was used least recently is forgotten, with its regions.
const MOST: usize = 1024;

/// A kind of memory whose buffers have identities.
///
/// For CUDA it takes a few lines: `cuPointerGetAttribute` has the buffer's identity (`CU_POINTER_ATTRIBUTE_BUFFER_ID`), which the process never
/// sees again, and `cuMemGetAddressRange` its bounds.
pub trait MemoryKind {
    /// Its name, in messages. Buffers of kinds with the same name are compared by their identities.
    fn name(&self) -> &'static str;

    /// Returns the buffer at this address. Asked for each request, so it has to be quick.
    ///
    /// # Errors
    /// No buffer is at the address, or the system does not say which.
    fn identify(&self, address: *const u8) -> io::Result<Identity>;

    /// Returns whether the range of an identity may be a part of the buffer, another one for each request. The parts of a buffer share its
    /// regions then. Default: no, it is all of the buffer, and one with another range is another buffer.
    fn tells_parts(&self) -> bool {
        false
    }

    /// Returns a value that keeps the identity from being given to another buffer, as long as it lives. Asked when the cache sees
    /// the buffer for the first time. The identity is asked for once more after it, since it may have been given away just before.
    /// Default: nothing, for identities that never come again.
    ///
    /// # Errors
    /// The system refuses, or the buffer is gone.
    fn keep(&self, identity: &Identity) -> io::Result<Box<dyn Send>> {
        let _ = identity;
        Ok(Box::new(()))
    }
}

/// The identity of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The buffer's number. No other buffer of its kind has it as long as it is [kept](MemoryKind::keep).
    pub buffer: u64,
    /// Another number, where one is not enough; else 0.
    pub generation: u64,
    /// The pages that it has.
    pub range: PageRange,
}

/// Why memory of a kind could not be acquired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KindError {
    /// The kind does not tell the buffer.
    #[error("acquire {address:#x}: {kind} does not tell the buffer there: {source}")]
    Identify {
        /// The requested address.
        address: u64,
        /// The kind's name.
        kind: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The request leaves the buffer.
    #[error("acquire {range}: the buffer of {kind} there has {buffer} only: acquire each buffer by itself")]
    Outside {
        /// The requested range.
        range: PageRange,
        /// The kind's name.
        kind: &'static str,
        /// The buffer's pages.
        buffer: PageRange,
    },
    /// See [`AcquireError`].
    #[error(transparent)]
    Acquire(#[from] AcquireError),
}

impl From<RangeError> for KindError {
    fn from(error: RangeError) -> Self {
        Self::Acquire(error.into())
    }
}

/// The buffers that a cache knows, by the page where they begin. They do not overlap.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<Table>);

#[derive(Default)]
struct Table {
    known: BTreeMap<u64, Known>,
}

struct Known {
    kind: &'static str,
    identity: Identity,
    used: Instant,
    /// Dropped with the rest.
    _keep: Box<dyn Send>,
}

impl Known {
    /// Returns whether it is of the same buffer, whatever its range.
    fn is_of(&self, kind: &'static str, identity: Identity) -> bool {
        let Identity { buffer, generation, .. } = self.identity;
        self.kind == kind && (buffer, generation) == (identity.buffer, identity.generation)
    }
}

impl Table {
    /// Returns whether the buffer is known, and marks it as used. `in_parts`: the part of it.
    fn is_known(&mut self, kind: &'static str, identity: Identity, in_parts: bool, now: Instant) -> bool {
        let before = self.known.range_mut(..=identity.range.start()).next_back();
        let is_it = |known: &Known| {
            let has = known.identity.range;
            known.is_of(kind, identity) && if in_parts { has.contains(identity.range) } else { has == identity.range }
        };
        before.filter(|(_, known)| is_it(known)).map(|(_, known)| known.used = now).is_some()
    }

    /// Takes out the buffers that this one replaces, those that were not used for so long, and one where there is no room.
    fn take_replaced(&mut self, range: PageRange, unused: Option<Duration>, now: Instant) -> Vec<Known> {
        let is_over = |known: &Known| {
            known.identity.range.overlaps(range)
                || unused.is_some_and(|longest| now.duration_since(known.used) > longest)
        };
        let mut starts: Vec<u64> =
            self.known.iter().filter(|(_, known)| is_over(known)).map(|(&start, _)| start).collect();
        if self.known.len() - starts.len() >= MOST {
            let oldest =
                self.known.iter().filter(|(start, _)| !starts.contains(start)).min_by_key(|(_, known)| known.used);
            starts.extend(oldest.map(|(&start, _)| start));
        }
        starts.iter().filter_map(|start| self.known.remove(start)).collect()
    }
}

impl Buffers {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`Cache::acquire_kind`](crate::Cache::acquire_kind).
    pub(crate) fn acquire<R: Registrar>(
        &self,
        shared: &Shared<R>,
        kind: &dyn MemoryKind,
        address: usize,
        length: usize,
        access: Access,
    ) -> Result<Lease<R>, KindError> {
        let range = PageRange::of_bytes(address as u64, length as u64)?;
        let untold = |source| KindError::Identify { address: address as u64, kind: kind.name(), source };
        let identity = kind.identify(address as *const u8).map_err(untold)?;
        if !identity.range.contains(range) {
            return Err(KindError::Outside { range, kind: kind.name(), buffer: identity.range });
        }
        // In a forked child the lock may be held by a thread that is not there; and nothing is served there.
        if !shared.tables.gate.is_forked() {
            let is_known = self.table().is_known(kind.name(), identity, kind.tells_parts(), Instant::now());
            if !is_known {
                let keep = kind.keep(&identity).map_err(untold)?;
                if kind.identify(address as *const u8).map_err(untold)? != identity {
                    return Err(untold(io::Error::other("another buffer took its place meanwhile: try again")));
                }
                self.learn(shared, kind, identity, keep)?;
            }
        }
        Ok(lease::acquire(shared, address, length, access, Some(identity.range))?)
    }

    /// Comes to know a buffer, and forgets those that it replaces, with their regions. What keeps these is dropped without the lock: it
    /// is the kind's code, which may come back here.
    fn learn<R: Registrar>(
        &self,
        shared: &Shared<R>,
        kind: &dyn MemoryKind,
        identity: Identity,
        keep: Box<dyn Send>,
    ) -> Result<(), Unusable> {
        let (kind, in_parts) = (kind.name(), kind.tells_parts());
        let replaced;
        let (mut table, now) = (self.table(), Instant::now());
        // Another thread may have been faster.
        if table.is_known(kind, identity, in_parts, now) {
            return Ok(());
        }
        let unused = shared.settings.max_unheld.map(|limit| limit.time);
        replaced = table.take_replaced(identity.range, unused, now);
        let is_part = |former: &&Known| {
            in_parts && former.is_of(kind, identity) && former.identity.range.overlaps(identity.range)
        };
        let parts: Vec<PageRange> = replaced.iter().filter(is_part).map(|former| former.identity.range).collect();
        for range in gaps(identity.range, &parts) {
            hide(shared, range)?;
        }
        for former in replaced.iter().filter(|former| !is_part(former)) {
            hide(shared, former.identity.range)?;
        }
        let range = parts.iter().fold(identity.range, |whole, &part| whole.hull(part));
        let identity = Identity { range, ..identity };
        table.known.insert(range.start(), Known { kind, identity, used: now, _keep: keep });
        Ok(())
    }

    /// Forgets the buffers that have a part of the range, and hides their regions.
    pub(crate) fn forget<R: Registrar>(&self, shared: &Shared<R>, range: PageRange) -> Result<(), Unusable> {
        if shared.tables.gate.is_forked() {
            return Ok(());
        }
        // Dropped without the lock, as in `learn`.
        let mut forgotten = Vec::new();
        let mut table = self.table();
        let gone: Vec<Identity> =
            table.known.values().map(|known| known.identity).filter(|known| known.range.overlaps(range)).collect();
        for identity in gone {
            hide(shared, identity.range)?;
            forgotten.extend(table.known.remove(&identity.range.start()));
        }
        Ok(())
    }
}

/// Returns the pages of a range that no part has. The parts are in order, and do not overlap.
fn gaps(range: PageRange, parts: &[PageRange]) -> Vec<PageRange> {
    let mut gaps = Vec::new();
    let mut at = range.start();
    for part in parts {
        if at < part.start() {
            gaps.push(PageRange::between(at, part.start()));
        }
        at = at.max(part.end());
    }
    if at < range.end() {
        gaps.push(PageRange::between(at, range.end()));
    }
    gaps
}

/// No request that begins from now on is served by a region there.
fn hide<R: Registrar>(shared: &Shared<R>, range: PageRange) -> Result<(), Unusable> {
    let mut state = shared.lock()?;
    state.invalidate(&shared.tables, range);
    let wakes = state.in_flight.take_all_waiters();
    drop(state);
    shared.wake(wakes);
    shared.wake_background();
    Ok(())
}

impl From<Unusable> for KindError {
    fn from(error: Unusable) -> Self {
        Self::Acquire(error.into())
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("known", &self.table().known.len()).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts the values that keep identities.
    struct Keep(Arc<AtomicUsize>);

    impl Drop for Keep {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn insert(table: &mut Table, keeps: &Arc<AtomicUsize>, start: u64, pages: u64, buffer: u64, used: Instant) {
        keeps.fetch_add(1, Ordering::Relaxed);
        let identity = Identity { buffer, generation: 0, range: PageRange::new(start, pages).unwrap() };
        let known = Known { kind: "test", identity, used, _keep: Box::new(Keep(keeps.clone())) };
        table.known.insert(start, known);
    }

    #[test]
    fn only_the_same_buffer_is_known() {
        let (mut table, keeps, now) = (Table::default(), Arc::default(), Instant::now());
        insert(&mut table, &keeps, 100, 10, 7, now);
        let same = Identity { buffer: 7, generation: 0, range: PageRange::new(100, 10).unwrap() };
        assert!(table.is_known("test", same, false, now));
        assert!(!table.is_known("other", same, false, now));
        for other in [
            Identity { buffer: 8, ..same },
            Identity { generation: 1, ..same },
            Identity { range: PageRange::new(100, 11).unwrap(), ..same },
            Identity { range: PageRange::new(101, 9).unwrap(), ..same },
        ] {
            assert!(!table.is_known("test", other, false, now), "{other:?}");
        }
    }

    #[test]
    fn gaps_are_what_no_part_has() {
        let range = |start, pages| PageRange::new(start, pages).unwrap();
        assert_eq!(gaps(range(10, 10), &[]), [range(10, 10)]);
        assert_eq!(gaps(range(10, 10), &[range(0, 12), range(14, 2), range(18, 9)]), [range(12, 2), range(16, 2)]);
        assert_eq!(gaps(range(10, 10), &[range(5, 30)]), []);
    }

    #[test]
    fn overlapping_and_unused_buffers_are_replaced() {
        let (mut table, keeps, now) = (Table::default(), Arc::default(), Instant::now());
        let (longest, later) = (Duration::from_secs(60), now + Duration::from_secs(61));
        insert(&mut table, &keeps, 100, 10, 1, later);
        insert(&mut table, &keeps, 110, 10, 2, later);
        insert(&mut table, &keeps, 200, 10, 3, now);
        let buffers = |replaced: Vec<Known>| replaced.iter().map(|known| known.identity.buffer).collect::<Vec<_>>();
        let range = PageRange::new(105, 2).unwrap();
        assert_eq!(buffers(table.take_replaced(range, None, later)), [1]);
        assert_eq!(buffers(table.take_replaced(range, Some(longest), later)), [3]);
        assert_eq!((table.known.len(), keeps.load(Ordering::Relaxed)), (1, 1));
    }

    #[test]
    fn buffers_are_bounded() {
        let (mut table, keeps, now) = (Table::default(), Arc::default(), Instant::now());
        for buffer in 0..MOST as u64 {
            insert(&mut table, &keeps, buffer * 10, 10, buffer, now + Duration::from_secs(MOST as u64 - buffer));
        }
        let range = PageRange::new(1 << 30, 1).unwrap();
        let replaced = table.take_replaced(range, None, now);
        assert_eq!(replaced.iter().map(|known| known.identity.buffer).collect::<Vec<_>>(), [MOST as u64 - 1]);
    }
}
