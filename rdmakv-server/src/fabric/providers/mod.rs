//! The fabrics: what each has to say of itself, and what is different between them.

pub(super) mod iwarp;
pub(super) mod shm;
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
pub(super) mod verbs;
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
pub(super) mod windows;

use std::io;

use frrwp::fabric::{Domain, Endpoint};
use frrwp::wire::Segment;
use mrrc::{Access, Cache, Lease};
use rdmakv_proto::messages::RemoteSegment;

use super::far::Part;
use super::origin::Origin;
use super::pinned::Pinned;
use super::tags::{Granted, TagKind};

/// The memory that a fabric has registered, as a cache holds it.
pub(in crate::fabric) type Leased<F> = Lease<Pinned<<F as Fabric>::Provider>>;

/// A GET table, as a client is told of it.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric) struct Offer<'a> {
    /// By the machine's boot clock.
    pub(in crate::fabric) now: u64,
    pub(in crate::fabric) secret: [u64; 2],
    /// The table, then the arenas.
    pub(in crate::fabric) segments: &'a [RemoteSegment],
}

/// A region that was opened to a connection.
#[derive(Debug)]
pub(in crate::fabric) struct FarOpened<T> {
    /// Keeps it open.
    pub(in crate::fabric) tag: T,
    /// The segment that the client is told.
    pub(in crate::fabric) segment: Segment,
}

/// A fabric that clients come over. [`TagKind`] describes the parts of its tags.
pub(in crate::fabric) trait Fabric:
    TagKind<Registration: Send, Record: Send, Tag: Send> + Send + Sync + Sized + 'static
{
    /// Its name in addresses.
    const NAME: &'static str;
    /// The rights that chunks are registered with before a client gets a tag.
    const RIGHTS: Access;
    /// Whether what it registers is pinned in any case.
    const PINS: bool = false;
    /// Registrations at most that a chunk may be in, where a tag is the key of one.
    const SEGMENTS: Option<usize> = None;
    /// The domain that registers memory for it.
    type Provider: Domain;
    /// One end of a connection.
    type Endpoint: Endpoint<Domain = Self::Provider> + Origin + Send;
    /// The maker of tags for one connection.
    type Own;

    /// Returns the domain that registers memory for it.
    fn provider(&self) -> Self::Provider;
    /// Returns the maker of tags for this connection.
    fn own(endpoint: &Self::Endpoint) -> Self::Own;
    /// Returns the registration that keeps a chunk registered, from the cache's lease of it.
    ///
    /// # Errors
    ///
    /// Why it cannot be opened to clients.
    fn registration(&self, leased: Leased<Self>) -> io::Result<Self::Registration>;
    /// Returns the record that the tags of one chunk share.
    fn record(&self) -> Self::Record;
    /// Returns a connection's tag of a record, whose chunk is registered so and begins at this address, if there are
    /// more.
    fn tag(
        &self,
        own: &Self::Own,
        record: &Self::Record,
        registration: &Self::Registration,
        address: u64,
        bound: u64,
    ) -> Option<Self::Tag>;
    /// Returns the segment that the client is told.
    fn segment(&self, cache: &Cache<Pinned<Self::Provider>>, granted: &Granted<'_, Self>, address: u64) -> Segment;
    /// Returns the chunk's address, from the one that clients know it by.
    fn address(&self, told: u64) -> Option<u64>;
    /// Takes a registration back whose chunk is not leased any more. It may be kept for a while; its drop may wait.
    fn release(&self, registration: Self::Registration);
    /// Reads by tags that were never valid on their connection, and the times that the guesses of an address began to be limited.
    fn tag_guesses(&self) -> (u64, u64) {
        (0, 0)
    }
    /// Returns the next address with newly limited guesses, for the log.
    fn throttled(&self) -> Option<String> {
        None
    }
    /// Returns the offer of the GET table to a client, if there is one. It [is held](Self::hold_table) as long as there are such clients.
    fn join_table(&self) -> Option<Offer<'_>> {
        None
    }
    /// Such a client has gone.
    fn leave_table(&self) {}
    /// Sees that the table holds for another lease, if a client reads it; returns whether one does.
    fn hold_table(&self) -> bool {
        false
    }
    /// Whether clients have far memory over it.
    const HAS_FAR: bool = false;
    /// Keeps a region of far memory open to one connection.
    type FarTag: Send + std::fmt::Debug;
    /// Opens a region to the connection of this endpoint, with these rights, and keeps its lease.
    ///
    /// # Errors
    /// The fabric opens no regions, or has no key left.
    fn open_far(
        &self,
        endpoint: &Self::Endpoint,
        leased: Leased<Self>,
        part: &Part,
        access: Access,
    ) -> io::Result<FarOpened<Self::FarTag>>;
    /// Closes a tag: no peer accesses the region by it any more. Returns it if a peer that stalled holds it.
    fn close_far(&self, tag: Self::FarTag) -> Option<Self::FarTag>;
    /// Drops what was over for long enough; returns whether nothing is left of it.
    fn bury(&self) -> bool {
        true
    }
}
