//! A lease: memory that is registered for as long as the lease lives.
//!
//! It holds its regions by name, and the core counts the holds. A count keeps the cache's state alive, so a lease may
//! outlive its cache.

use super::State;
use crate::cache::Segment;
use crate::count::Count;
use crate::regions::RegionId;
use crate::registrar::Registrar;
use std::fmt;
use std::rc::Rc;

/// Memory that stays registered until this is dropped. The [`Lease`](crate::Lease) of a [`LocalCache`].
///
/// Dropping it never deregisters, but for the last lease of a cache that is gone. Regions in use are never evicted; one
/// that is invalidated while a lease has it is not found any more, and stays registered until the lease ends.
///
/// It stays on its thread, and the keys that it lends cannot outlive it:
///
/// ```compile_fail,E0505
/// use mrrc::registrar::model::Dummy;
/// use mrrc::{Access, LocalCache};
/// let cache = LocalCache::builder(Dummy::default()).build_local().unwrap();
/// let buffer = vec![0_u8; 4096];
/// let lease = unsafe { cache.acquire(buffer.as_ptr(), buffer.len(), Access::LOCAL) }.unwrap();
/// let segment = lease.segments().next().unwrap();
/// drop(lease);
/// println!("{:?}", segment.registration());
/// ```
///
/// [`LocalCache`]: crate::LocalCache
#[must_use = "the memory may leave when this is dropped"]
pub struct LocalLease<R: Registrar> {
    state: Rc<State<R>>,
    address: usize,
    length: usize,
    first: RegionId,
    /// Those behind the first, if there are any. Boxed twice, so that the usual lease is no larger for it.
    #[expect(clippy::box_collection, reason = "one word, and not two")]
    rest: Option<Box<Vec<RegionId>>>,
}

impl<R: Registrar> LocalLease<R> {
    #[inline(always)]
    pub(super) fn one(state: &Rc<State<R>>, address: usize, length: usize, first: RegionId) -> Self {
        Self { state: state.clone(), address, length, first, rest: None }
    }

    /// The regions are held, in the order of their addresses, and at least one.
    pub(super) fn of(state: &Rc<State<R>>, address: usize, length: usize, regions: impl AsRef<[RegionId]>) -> Self {
        let [first, rest @ ..] = regions.as_ref() else { unreachable!("a range of pages takes a region at least") };
        let rest = (!rest.is_empty()).then(|| Box::new(rest.to_vec()));
        Self { state: state.clone(), address, length, first: *first, rest }
    }

    fn rest(&self) -> &[RegionId] {
        self.rest.as_ref().map_or(&[], |rest| rest.as_slice())
    }

    /// Where the memory is.
    pub fn address(&self) -> *const u8 {
        self.address as *const u8
    }

    /// Bytes that were acquired, at least one.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// The parts of the memory with their registrations, in the order of their addresses. One, unless several
    /// regions cover the memory together. None in a child that was forked meanwhile: the registrations
    /// are its parent's.
    pub fn segments(&self) -> LocalSegments<'_, R> {
        let (first, rest) = if self.state.gate.is_forked() { (None, &[][..]) } else { (Some(self.first), self.rest()) };
        LocalSegments {
            state: &self.state,
            first,
            rest: rest.iter(),
            address: self.address,
            last: self.address + (self.length - 1),
        }
    }
}

impl<R: Registrar> Drop for LocalLease<R> {
    #[inline(always)]
    fn drop(&mut self) {
        // In the order of their addresses: it is the order in which they return to their places.
        self.state.let_go(self.first);
        for &id in self.rest() {
            self.state.let_go(id);
        }
        self.state.leave();
    }
}

impl<R: Registrar> fmt::Debug for LocalLease<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = Count(1 + self.rest().len() as u64, "parts");
        write!(f, "LocalLease({:#x}, {} bytes, {parts})", self.address, self.length)
    }
}

/// See [`LocalLease::segments`].
pub struct LocalSegments<'lease, R: Registrar> {
    state: &'lease State<R>,
    first: Option<RegionId>,
    rest: std::slice::Iter<'lease, RegionId>,
    /// What was not given yet: its first byte and its last one, for the end of the address space has no number.
    address: usize,
    last: usize,
}

impl<R: Registrar> fmt::Debug for LocalSegments<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSegments")
            .field("address", &self.address)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl<'lease, R: Registrar> Iterator for LocalSegments<'lease, R> {
    type Item = Segment<'lease, R::Registration>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let id = self.first.take().or_else(|| self.rest.next().copied())?;
            let record = &self.state.records[id];
            #[expect(unsafe_code, reason = "records are guarded by holds")]
            // SAFETY: the lease is borrowed, and the core lets no region go that it holds; the record of a region is
            // filled before a lease has it, and emptied after the core let it go.
            let registration = unsafe { record.registration() };
            let segment = Segment::next(record.range(), registration, &mut self.address, self.last);
            if segment.is_some() {
                return segment;
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(usize::from(self.first.is_some()) + self.rest.len()))
    }
}
