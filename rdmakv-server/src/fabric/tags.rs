//! The rights to read chunks of a fabric by tags, their ends, and the registrations that they keep.
//!
//! Three things with three lives:
//!
//! * A **pin** is a leased chunk's registration. It begins with a grant and ends when the store says that the chunk's last
//!   lease has ended. Its pages count once for all, and once for each client that has a share in it.
//! * A **record** is what the tags of one chunk share. Where tags can be bound to another chunk, the record follows its
//!   key from chunk to chunk, and when its chunk's leases have ended it is bound to a permanent dead chunk. A record is
//!   taken up again only for the very item that it was for: same place, same version.
//! * A **tag** is one client's, of one record. Its lease ends, then the client's share is free. After the afterlife it is
//!   closed, as a late read of it must not end the client's connection. Only a grant of that tag renews it.
//!
//! The share of a client that goes while its leases last counts for its [peer](Peer) until they have ended.
//!
//! Nothing here waits, but for reads that are on their way when their chunk is to be free ([`TagKind::settle`]). Ended
//! registrations and tags are put aside, and dropped by the caller of [`Tags::take_ended`], outside of all locks.
//!
//! Locks: a table is behind a lock of its own, which is taken inside of a store's lock ([`Exposure`] is called under that
//! one) and never around it. Between [`Tags::admits`] and [`Tags::grant`] a grant goes through the store: the table's
//! lock is released meanwhile, and the store's is not.
//!
//! [`Exposure`]: crate::store::Exposure

mod end;
mod follow;
mod grant;
#[cfg(test)]
mod model;
mod peers;
mod read_counts;
mod records;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use foldhash::fast::FixedState;

use super::admission::Admission;
use super::pages::{Pages, Span};

pub use grant::{Admitted, Granted, Refused};
pub use peers::Peer;
use records::{Number, Records};

/// Pages with counted reads, for each that may be leased.
const ADMISSION: u64 = 64;

/// The parts of tags on a fabric.
pub trait TagKind {
    /// Keeps a chunk registered as long as it lives.
    type Registration;
    /// The record that the tags of one chunk share.
    type Record;
    /// One client's, and closed when it is dropped.
    type Tag;
    /// Whether records can be bound to another chunk.
    const REBINDS: bool;

    /// From now on the record's tags lead to the chunk at this address, or to the permanent dead one. A store, no more.
    fn bind(record: &Self::Record, to: Option<u64>);

    /// When this returns, no peer reads the memory that the record's tags led to before: a chunk is reusable after it.
    fn settle(_record: &Self::Record) {}

    /// Returns whether a client that has a tag no more may still be at the chunk.
    fn is_open(_registration: &Self::Registration) -> bool {
        false
    }

    /// Reads of the record so far, where the fabric counts them.
    fn reads(_record: &Self::Record) -> u64 {
        0
    }
}

/// A client: a connection. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client(u64);

/// How much there may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Leased pages of all.
    pub pages: u64,
    /// Leased pages of one client; and of a peer's, present and gone, for each that is present.
    pub client_pages: u64,
    /// Whether peers share the pages evenly while there are too few for all, however many clients each has.
    pub divides: bool,
    /// Tags of one client, those in their afterlife too.
    pub client_tags: usize,
    /// How long a tag whose lease has ended stays open, in nanoseconds.
    pub afterlife: u64,
    /// Reads that a client may report in a second.
    pub reports: u64,
    /// How long a lease lasts, in nanoseconds.
    pub lease: u64,
}

impl Limits {
    /// Pinned memory takes half of the budget, and an eighth of it for one client. Fabrics that do not pin take all but the `reserve`, which
    /// stays for transfers in flight and for new items, and clients share it when it is short. Where tags can be bound to a dead chunk, they are
    /// for eight D.
    pub fn of(budget: u64, pins: bool, reserve: u64, duration: std::time::Duration, rebinds: bool) -> Self {
        let afterlife = if rebinds { duration.as_nanos() as u64 * 8 } else { 0 };
        let unpinned = budget - reserve.min(budget / 2);
        Self {
            pages: if pins { budget / 2 } else { unpinned },
            client_pages: if pins { budget / 8 } else { unpinned },
            divides: !pins,
            client_tags: 1 << 16,
            afterlife,
            reports: read_counts::REPORTS,
            lease: duration.as_nanos() as u64,
        }
    }
}

/// Ended objects to be dropped.
#[derive(Debug)]
pub struct Ended<K: TagKind> {
    /// To be closed.
    pub tags: Vec<K::Tag>,
    /// To be let go, after the tags.
    pub registrations: Vec<K::Registration>,
    /// Records without tags.
    pub records: Vec<K::Record>,
}

impl<K: TagKind> Default for Ended<K> {
    fn default() -> Self {
        Self { tags: Vec::new(), registrations: Vec::new(), records: Vec::new() }
    }
}

#[derive(Debug)]
struct Pin<R> {
    registration: R,
    span: Span,
    /// The record that leads there, or has until its key went on to another chunk.
    record: Number,
    /// The clients that share in it.
    charged: Vec<Client>,
}

#[derive(Debug)]
struct Tag<T> {
    tag: T,
    until: u64,
    /// Its lease has ended.
    lapsed: bool,
    serial: u64,
}

#[derive(Debug)]
struct Of<T> {
    peer: Peer,
    pages: Pages,
    /// Chunks that its tags have left to follow their keys, and until when it may still be at them.
    former: HashMap<u64, u64, FixedState>,
    tags: HashMap<Number, Tag<T>, FixedState>,
    reports: read_counts::Allowance,
}

impl<T> Of<T> {
    fn has(&self, record: Number) -> bool {
        self.tags.contains_key(&record)
    }
}

/// The counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leased pages.
    pub pages: u64,
    /// Leased chunks.
    pub pins: usize,
    /// Records.
    pub records: usize,
    /// Tags.
    pub tags: usize,
    /// Clients.
    pub clients: usize,
    /// Leases of clients that have gone.
    pub left: usize,
    /// Tags that were granted or renewed.
    pub granted: u64,
    /// Grants refused, as half of the budget was leased.
    pub full: u64,
    /// Grants refused, as what others read more often is to have the pages.
    pub seldom: u64,
    /// Grants refused, as the client had its share.
    pub share: u64,
    /// Grants refused, as there were too many tags.
    pub too_many: u64,
    /// Records that followed their key to another chunk.
    pub followed: u64,
}

/// The table.
#[derive(Debug)]
pub struct Tags<K: TagKind> {
    limits: Limits,
    pages: Pages,
    pins: HashMap<u64, Pin<K::Registration>, FixedState>,
    records: Records<K::Record>,
    clients: HashMap<Client, Of<K::Tag>, FixedState>,
    /// The shares of clients from one place together, those that have gone too.
    accounts: peers::Accounts,
    /// One entry for each tag, with its serial; where it was renewed, the entry comes too early.
    ends: BinaryHeap<Reverse<(u64, Client, Number, u64)>>,
    ended: Ended<K>,
    serial: u64,
    counts: Counts,
    /// The choice of clients that are worth a tag.
    admission: Admission,
    /// The latest moment known.
    latest: u64,
    /// Until when pages count as short: a peer with less than its share was refused some.
    short_until: u64,
}

impl<K: TagKind> Tags<K> {
    /// Returns an empty table.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            pages: Pages::default(),
            pins: HashMap::default(),
            records: Records::default(),
            clients: HashMap::default(),
            accounts: peers::Accounts::default(),
            ends: BinaryHeap::new(),
            ended: Ended::default(),
            serial: 0,
            counts: Counts::default(),
            admission: Admission::new(limits.pages.saturating_mul(ADMISSION), limits.lease),
            latest: 0,
            short_until: 0,
        }
    }

    /// A client comes from there.
    pub fn join(&mut self, peer: Peer) -> Client {
        self.serial += 1;
        let peer = self.accounts.come(peer);
        let reports = read_counts::Allowance::new(self.limits.reports);
        let of = Of { peer, pages: Pages::default(), former: HashMap::default(), tags: HashMap::default(), reports };
        self.clients.insert(Client(self.serial), of);
        Client(self.serial)
    }

    /// A client goes: its tags close. Its leases stay until their ends, and count for its peer.
    pub fn leave(&mut self, client: Client) {
        let Some(of) = self.clients.remove(&client) else { return };
        for (number, tag) in of.tags {
            if let Some(chunk) = self.records.chunk_of(number) {
                self.leave_behind(client, of.peer, chunk, tag.until);
            }
            self.ended.tags.push(tag.tag);
            self.detach(client, number);
        }
        for (chunk, until) in of.former {
            self.leave_behind(client, of.peer, chunk, until);
        }
        self.accounts.go(of.peer);
        self.ends.retain(|Reverse((_, whose, ..))| *whose != client);
    }

    /// A client that goes has a lease of this chunk, if it is charged for it.
    fn leave_behind(&mut self, client: Client, peer: Peer, chunk: u64, until: u64) {
        if let Some(pin) = self.pins.get_mut(&chunk)
            && let Some(at) = pin.charged.iter().position(|&other| other == client)
        {
            pin.charged.swap_remove(at);
            self.accounts.leave(peer, chunk, until);
        }
    }

    /// Returns the counts.
    pub fn counts(&self) -> Counts {
        Counts {
            pages: self.pages.count(),
            pins: self.pins.len(),
            records: self.records.len(),
            tags: self.clients.values().map(|of| of.tags.len()).sum(),
            clients: self.clients.len(),
            left: self.accounts.left(),
            ..self.counts
        }
    }

    /// Pages of each peer, where all that are there want more than that.
    fn fair_share(&self) -> u64 {
        self.limits.pages / self.accounts.peers().max(1)
    }

    /// Leased pages of a client.
    pub fn share(&self, client: Client) -> u64 {
        self.clients.get(&client).map_or(0, |of| of.pages.count())
    }

    /// Leased pages of a peer's clients, those included that have gone.
    pub fn share_of_peer(&self, peer: Peer) -> u64 {
        self.accounts.pages(peer)
    }

    /// A client's tag of this record is gone.
    fn detach(&mut self, client: Client, number: Number) {
        if let Some(record) = self.records.get_mut(number) {
            record.clients.retain(|&other| other != client);
        }
        self.leave_empty(number);
    }

    /// A record without tags goes, unless its chunk is still leased: then the next tag is of it.
    fn leave_empty(&mut self, number: Number) {
        let is_leased = self.records.chunk_of(number).is_some_and(|chunk| self.pins.contains_key(&chunk));
        if !is_leased && self.records.get(number).is_some_and(|record| record.clients.is_empty()) {
            self.ended.records.extend(self.records.remove(number));
        }
    }

    /// Returns the ended objects, to be dropped outside of all locks: tags first, then registrations.
    #[must_use = "the caller drops them outside of all locks"]
    pub fn take_ended(&mut self) -> Ended<K> {
        std::mem::take(&mut self.ended)
    }
}
