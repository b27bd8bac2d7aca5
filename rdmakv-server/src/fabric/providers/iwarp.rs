//! iWARP in user space: each connection is let at exactly the items that it was told of.
//!
//! A tag is one connection's and names a record, which is bound to the item's chunk: when the key has another value the tag
//! goes with it by one store. When the leases of a chunk have ended, its binding is replaced by zeros, which are no item, so
//! that a late read finds nothing instead of ending its connection.

use std::fmt;
use std::io;
use std::sync::Arc;

use frrwp::fabric::iwarp::{Binding, Exact, Handle, IwarpDomain, IwarpEndpoint};
use frrwp::wire::Segment;
use mrrc::{Access, Cache};

use crate::fabric::far::Part;
use crate::fabric::pinned::Pinned;
use crate::fabric::providers::{Fabric, FarOpened, Leased};
use crate::fabric::tags::{Granted, TagKind};

/// Looks at a read that is just being copied before other threads have their turn.
const LOOKS: u32 = 1_000;

/// The fabric.
pub(crate) struct Iwarp {
    domain: IwarpDomain,
    /// A chunk that is dead for good, as long as any tag reaches.
    dead: Arc<[u8]>,
}

impl Iwarp {
    /// Returns a fabric of this domain, for items of so many bytes at most.
    pub(crate) fn new(domain: IwarpDomain, largest: usize) -> Self {
        // A tag may reach a little farther than its item.
        let longest = (largest + largest / 4 + 8192).min(Handle::LONGEST);
        Self { domain, dead: vec![0; longest].into() }
    }
}

/// Keeps a chunk registered.
pub(crate) struct Kept(#[expect(dead_code, reason = "kept until it is dropped")] Leased<Iwarp>);

/// Opens a region of far memory.
pub(crate) struct FarTag {
    /// Dropped before the lease: then no peer is at the region.
    exact: Exact,
    _leased: Leased<Iwarp>,
}

impl fmt::Debug for FarTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.exact, f)
    }
}

/// The binding that the tags of an item name.
pub(crate) struct Record {
    binding: Arc<Binding>,
    dead: Arc<[u8]>,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.binding, f)
    }
}

impl TagKind for Iwarp {
    type Registration = Kept;
    type Record = Record;
    type Tag = Handle;
    const REBINDS: bool = true;

    #[expect(unsafe_code, reason = "clients read chunks by their addresses")]
    fn bind(record: &Record, to: Option<u64>) {
        let address = to.map_or(record.dead.as_ptr(), |address| address as *const u8);
        // SAFETY: a chunk is leased as long as it is bound, and as long as every tag of the record reaches; the store's memory is
        // never unmapped while connections stand. The zeros live as long as the record, and it longer than its tags. Clients
        // believe nothing that they read of a chunk that is written meanwhile.
        unsafe { record.binding.bind(address) };
    }

    fn settle(record: &Record) {
        // A copy takes microseconds and waits for no peer; but the thread that makes it may have to wait for its turn.
        let mut looks = 0_u32;
        while !record.binding.is_idle() {
            looks = looks.saturating_add(1);
            if looks < LOOKS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    fn reads(record: &Record) -> u64 {
        record.binding.reads()
    }
}

impl Fabric for Iwarp {
    const NAME: &'static str = "iwarp";
    const RIGHTS: Access = Access::LOCAL;
    type Provider = IwarpDomain;
    type Endpoint = IwarpEndpoint;
    type Own = IwarpDomain;

    fn provider(&self) -> IwarpDomain {
        self.domain.clone()
    }

    fn own(endpoint: &IwarpEndpoint) -> IwarpDomain {
        endpoint.own_domain()
    }

    fn registration(&self, leased: Leased<Self>) -> io::Result<Kept> {
        Ok(Kept(leased))
    }

    fn record(&self) -> Record {
        #[expect(unsafe_code, reason = "clients read by address")]
        // SAFETY: the zeros live as long as the record.
        let binding = unsafe { Binding::new(self.dead.as_ptr()) };
        Record { binding: Arc::new(binding), dead: self.dead.clone() }
    }

    fn tag(&self, own: &IwarpDomain, record: &Record, _: &Kept, _: u64, bound: u64) -> Option<Handle> {
        let bound = usize::try_from(bound).ok().filter(|&bound| bound <= self.dead.len())?;
        own.handle(&record.binding, bound).ok()
    }

    fn segment(&self, _: &Cache<Pinned<IwarpDomain>>, granted: &Granted<'_, Self>, _: u64) -> Segment {
        granted.tag.segment()
    }

    fn address(&self, _: u64) -> Option<u64> {
        // Reads are counted by the records, whatever clients say.
        None
    }

    fn release(&self, registration: Kept) {
        drop(registration);
    }

    const HAS_FAR: bool = true;
    type FarTag = FarTag;

    #[expect(unsafe_code, reason = "clients access regions by their addresses")]
    fn open_far(
        &self,
        endpoint: &IwarpEndpoint,
        leased: Leased<Self>,
        part: &Part,
        access: Access,
    ) -> io::Result<FarOpened<FarTag>> {
        // SAFETY: `open` requires that the memory stays mapped until the registration is dropped. A region's memory goes after all tags of
        // its place were closed, and this process does not rely on its bytes.
        let exact = unsafe { endpoint.own_domain().open(part.address(), part.bytes(), access) }?;
        let segment = exact.segment();
        Ok(FarOpened { tag: FarTag { exact, _leased: leased }, segment })
    }

    fn close_far(&self, tag: FarTag) -> Option<FarTag> {
        drop(tag);
        None
    }

    fn tag_guesses(&self) -> (u64, u64) {
        let counts = self.domain.tag_guesses();
        (counts.guesses, counts.activations)
    }

    fn throttled(&self) -> Option<String> {
        self.domain.next_throttled().map(|source| source.to_string())
    }
}
