//! From a key to a tag: the chunk is leased, its memory registered, and the client let at it.
//!
//! Registering may take long and happens outside of all locks: the chunk is held, the shard let go, the memory registered, and when
//! the shard is there again the item has to be alive still. A chunk that is registered already, or leased to another client, takes
//! one visit to the shard.
//!
//! The registered chunks are those that the cache of the fabric has, under its budget. At most half of that is leased
//! to clients ([`Limits`](super::tags::Limits)), and while more is wanted those pages are leased that are read most.

use mrrc::AcquireError;

use super::origin::Origin;
use super::providers::{Fabric, Leased, Offer};
use super::state::FabricState;
use super::tags::{Admitted, Client, Refused};
use crate::metrics::{Counts, add, count};
use crate::session::resilient;
use crate::store::{ChunkRef, Exposure, Extent, Handle, NoLease, Replacement, Store};
use frrwp::wire::Segment;
use rdmakv_proto::clock;
use rdmakv_proto::messages::RemoteSegment;
use rdmakv_proto::messages::{Seen, Tag};

/// Leases that a refusal ends at once when there are too many.
const AT_A_REFUSAL: usize = 64;
/// Leases of tags that a grant ends.
const AT_A_GRANT: usize = 8;

/// All of a chunk that a tag reaches, if it is registered or can be.
fn lease<F: Fabric>(state: &FabricState<F>, address: u64, bound: u64) -> Result<Leased<F>, AcquireError> {
    // Where a tag is the key of one registration, that is made large enough to be others' too.
    let (address, bytes) = if F::SEGMENTS.is_some() { state.arenas.block(address, bound) } else { (address, bound) };
    #[expect(unsafe_code, reason = "the chunk is lent to the fabric by its address")]
    // SAFETY: the stores' memory outlives the cache. Peers that read a chunk while it is written read words of its header. A
    // late reader, which has no lease any more, believes nothing, and no peer writes it.
    unsafe {
        state.cache.acquire(address as *const u8, bytes as usize, F::RIGHTS)
    }
}

fn count_refused<F: Fabric>(state: &FabricState<F>, refused: Refused) {
    let counts = &state.counts;
    count(match refused {
        Refused::Full => &counts.refused_budget,
        Refused::Seldom => &counts.refused_seldom,
        Refused::Share | Refused::Tags => &counts.refused_share,
        Refused::Left | Refused::Unregistered => &counts.refused_gone,
    });
}

fn count_unleased<F: Fabric>(state: &FabricState<F>, why: NoLease) {
    let counts = &state.counts;
    count(match why {
        NoLease::Churn => &counts.refused_churn,
        NoLease::Gone | NoLease::Closed => &counts.refused_gone,
    });
}

/// A grant of which the first look at the item has been taken.
enum Begun {
    Done(Option<Tag>),
    /// The chunk is held until its memory is registered, or the bytes behind the item are zeros.
    Held(ChunkRef, Extent, Admitted),
}

/// Returns a tag of the key's item for this client, if it can have one.
fn grant<F: Fabric>(state: &FabricState<F>, client: Client, own: &F::Own, key: &[u8]) -> Option<Tag> {
    let shards = &state.shared.shards;
    let (shard, now) = (shards.of(key), clock::nanos());
    let cluster = resilient(&state.shared, key).ok()?;
    // Tags of values that several servers keep end while this server may still answer.
    let may_be_read = || cluster.is_none_or(|cluster| cluster.allows_tag(state.terms.lease));
    if !may_be_read() {
        return None;
    }
    let seconds = now / 1_000_000_000;
    let begun = match cluster {
        Some(cluster) => {
            let lent =
                cluster.lend(shards, key, seconds, |store, handle| begin(state, client, own, (store, handle), now));
            lent.ok()?
        }
        None => {
            let mut store = shards.at(shard);
            let handle = store.get(key, false, seconds).map(|view| view.handle());
            begin(state, client, own, (&mut store, handle), now)
        }
    };
    let (held, extent, admitted) = match begun {
        Begun::Done(tag) => return tag,
        Begun::Held(held, extent, admitted) => (held, extent, admitted),
    };
    let mut registration = None;
    if admitted.registers {
        let leased = lease(state, extent.address, admitted.bound).map_err(std::io::Error::other);
        match leased.and_then(|leased| state.fabric.registration(leased)) {
            Ok(registered) => registration = Some(registered),
            Err(_) => {
                shards.at(shard).release(held);
                count(&state.counts.refused_registration);
                return None;
            }
        }
    }
    // The time of the lease is taken first, so that it ends inside the right that is there after that.
    let now = clock::nanos();
    let may_be_read = may_be_read();
    let mut store = shards.at(shard);
    if admitted.clears {
        store.clear_tail(&held, admitted.bound);
    }
    let exposed = if may_be_read { store.expose(&held, now) } else { Err(NoLease::Gone) };
    let (tag, left) = match exposed {
        Ok(until) => (give(state, client, own, extent, until, (admitted, registration)), None),
        Err(why) => {
            count_unleased(state, why);
            (None, registration)
        }
    };
    store.release(held);
    // Dropped without locks.
    drop(store);
    left.into_iter().for_each(|registration| state.fabric.release(registration));
    tag
}

/// Takes the first look at an item, under the store's lock: the tag of one that needs no registration is granted at once.
fn begin<F: Fabric>(
    state: &FabricState<F>,
    client: Client,
    own: &F::Own,
    (store, handle): (&mut Store, Option<Handle>),
    now: u64,
) -> Begun {
    let Some(handle) = handle else { return Begun::Done(None) };
    let extent = store.extent(handle);
    let admitted = match admits(state, store, client, extent, now) {
        Ok(admitted) => admitted,
        Err(refused) => {
            count_refused(state, refused);
            return Begun::Done(None);
        }
    };
    if admitted.registers || admitted.clears {
        return match store.hold(handle) {
            Some(held) => Begun::Held(held, extent, admitted),
            None => Begun::Done(None),
        };
    }
    match store.lease(handle, now) {
        Ok(until) => Begun::Done(give(state, client, own, extent, until, (admitted, None))),
        Err(why) => {
            count_unleased(state, why);
            Begun::Done(None)
        }
    }
}

/// Lists the key's item in the GET table; returns whether it is there.
fn list<F: Fabric>(state: &FabricState<F>, key: &[u8]) -> bool {
    let (mut store, now) = (state.shared.shards.with(key), clock::now());
    let handle = store.get(key, false, now).map(|view| view.handle());
    let listed = handle.is_some_and(|handle| store.list(handle, now));
    if listed {
        count(&state.counts.listed);
    }
    listed
}

fn admits<F: Fabric>(
    state: &FabricState<F>,
    store: &mut Store,
    client: Client,
    extent: Extent,
    now: u64,
) -> Result<Admitted, Refused> {
    let mut tags = state.tags();
    tags.sweep(now, AT_A_GRANT);
    let first = tags.admits(client, extent);
    drop(tags);
    // Leases may have ended that were not looked at since.
    match first {
        Err(Refused::Full) if store.sweep(now, AT_A_REFUSAL) > 0 => state.tags().admits(client, extent),
        other => other,
    }
}

/// Returns the tag of a chunk that is leased until then. Under the shard's lock.
fn give<F: Fabric>(
    state: &FabricState<F>,
    client: Client,
    own: &F::Own,
    extent: Extent,
    until: u64,
    (promised, registration): (Admitted, Option<F::Registration>),
) -> Option<Tag> {
    let mut tags = state.tags();
    let make = |record: &F::Record, registration: &F::Registration, bound| {
        state.fabric.tag(own, record, registration, extent.address, bound)
    };
    let granted = tags.grant(client, extent, until, (promised, registration), || state.fabric.record(), make);
    let granted = granted.map_err(|refused| count_refused(state, refused)).ok()?;
    let Segment { address, length, key } = state.fabric.segment(&state.cache, &granted, extent.address);
    drop(tags);
    state.bell.ring();
    count(&state.counts.grants);
    let segment = RemoteSegment { address, length, key };
    Some(Tag { segment, incarnation: state.terms.incarnation })
}

/// Counts reads without requests like requests.
pub(super) fn count_reads<F: Fabric>(state: &FabricState<F>, address: u64, reads: u64, now: u64, hits: &mut u64) {
    let Some(shard) = state.arenas.shard(address) else { return };
    let shards = &state.shared.shards;
    shards.at(shard).seen(address, reads, now / 1_000_000_000);
    add(&state.counts.seen_reads, reads);
    *hits += reads;
}

/// A fabric as the stores see it.
pub(super) struct Exposed<F: Fabric>(pub(super) std::sync::Weak<FabricState<F>>);

impl<F: Fabric> Exposure for Exposed<F> {
    fn replaced(&mut self, replacement: &Replacement<'_>) -> bool {
        let Some(state) = self.0.upgrade().filter(|_| F::REBINDS) else { return false };
        let registered = |address: u64, bound: u64| {
            // Nothing may wait here: what is not registered yet is not registered for this.
            let there = state.cache.explain(address as *const u8, bound as usize, F::RIGHTS).is_hit();
            let leased = there.then(|| lease(&state, address, bound).ok()).flatten()?;
            state.fabric.registration(leased).ok()
        };
        state.tags().replaced(replacement, registered)
    }

    fn is_open(&mut self, chunk: Extent) -> bool {
        self.0.upgrade().is_some_and(|state| state.tags().is_open(chunk))
    }

    fn ended(&mut self, chunk: Extent, _: u64) {
        if let Some(state) = self.0.upgrade() {
            state.tags().ended(chunk);
        }
    }

    fn discarded(&mut self, address: u64, bytes: u64) {
        if let Some(state) = self.0.upgrade() {
            // It fails only for a cache of no use any more, which serves no request.
            let _ = state.cache.invalidate(address as *const u8, bytes as usize);
        }
    }
}

/// Whether a client looks items up in the GET table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableUse {
    None,
    /// It wants to, and was not told of the table.
    Wanted,
    Reading,
}

/// A client as a reader of items without requests. Dropping it closes its tags.
pub(super) struct Reader<'f, F: Fabric> {
    state: &'f FabricState<F>,
    client: Client,
    maker: F::Own,
    table: TableUse,
}

impl<'f, F: Fabric> Reader<'f, F> {
    /// Returns the client at the other end of this connection; it has no tags yet.
    pub(super) fn new(state: &'f FabricState<F>, endpoint: &F::Endpoint) -> Self {
        let client = state.tags().join(Origin::peer(endpoint));
        Self { state, client, maker: F::own(endpoint), table: TableUse::None }
    }

    /// Notes whether the client wants to read the GET table.
    pub(super) fn want_table(&mut self, wants: bool) {
        if self.table != TableUse::Reading {
            self.table = if wants { TableUse::Wanted } else { TableUse::None };
        }
    }

    /// Returns whether the client wants the GET table and was not told of it.
    pub(super) fn wants_table(&self) -> bool {
        self.table == TableUse::Wanted
    }

    /// Returns the GET table that the client wants, if there is one: it reads that from now on.
    pub(super) fn join_table(&mut self) -> Option<Offer<'f>> {
        self.table = TableUse::None;
        let offer = self.state.fabric.join_table()?;
        self.table = TableUse::Reading;
        self.state.bell.ring();
        Some(offer)
    }

    /// Returns a tag for this client, if it can have one and needs it: a reader of the GET table finds the item there
    /// from now on.
    pub(super) fn grant(&mut self, key: &[u8]) -> Option<Tag> {
        if self.table == TableUse::Reading {
            // A client that asks for a listed item may have found that the table did not hold: the thread that sees to it has not had its
            // turn.
            self.state.fabric.hold_table();
            if list(self.state, key) {
                return None;
            }
        }
        grant(self.state, self.client, &self.maker, key)
    }

    /// Counts the reads that the client reports.
    pub(super) fn seen(&mut self, seen: Seen<'_>, counts: &mut Counts) {
        let (state, now) = (self.state, clock::nanos());
        for (told, _, reads) in seen.iter() {
            let Some(address) = state.fabric.address(told) else { continue };
            let reads = match self.table {
                TableUse::Reading => state.tags().allowed(self.client, reads.into(), now),
                _ => state.tags().seen(self.client, address, reads.into(), now),
            };
            if reads > 0 {
                counts.cmd_get += reads;
                count_reads(state, address, reads, now, &mut counts.get_hits);
            }
        }
    }
}

impl<F: Fabric> Drop for Reader<'_, F> {
    fn drop(&mut self) {
        self.state.tags().leave(self.client);
        if self.table == TableUse::Reading {
            self.state.fabric.leave_table();
        }
        self.state.bell.ring();
    }
}
