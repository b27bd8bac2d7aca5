//! Who may read which chunk of a fabric by himself, until when, and what that keeps registered.
//!
//! Three things with three lives:
//!
//! * A **pin** is a leased chunk's registration. It begins with a grant and ends when the store says that the chunk's last
//!   lease has ended. Its pages count once for all, and once for each client that has a share in it.
//! * A **record** is what the tags of one chunk share. Where tags can be bound to another chunk, the record follows its
//!   key from chunk to chunk, and when its chunk's leases have ended it is bound to a permanent dead chunk. A record is
//!   taken up again only for the very item that it was for: same place, same version.
//! * A **tag** is one client's, of one record. Its lease ends, then the client's share is free; and after the afterlife it
//!   is closed, as a late read of it must not end the client's connection. Only a grant of that tag renews it.
//!
//! Nothing here waits. Registrations and tags that are over are put aside, and whoever drops them takes them out with
//! [`Tags::take_over`], outside of all locks.
//!
//! Locks: a table is behind a lock of its own, which is taken inside of a store's lock ([`Exposure`] is called under that
//! one) and never around it: between [`Tags::admits`] and [`Tags::grant`] a grant goes through the store, so the table's
//! lock is let go meanwhile, and the store's is not.
//!
//! [`Exposure`]: crate::store::Exposure

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use foldhash::fast::FixedState;

use super::admission::Admission;
use super::pages::{Pages, Span};
use crate::store::{Extent, Replacement};

/// Pages whose reads are counted, for each that may be leased.
const ADMISSION: u64 = 64;

/// What tags are made of on a fabric.
pub trait Fabric {
    /// Keeps a chunk registered as long as it lives.
    type Registration;
    /// What the tags of one chunk share.
    type Record;
    /// One client's, and closed when it is dropped.
    type Tag;
    /// Whether records can be bound to another chunk.
    const REBINDS: bool;

    /// From now on the record's tags lead to the chunk at this address, or to the permanent dead one. A store, no more.
    fn bind(record: &Self::Record, to: Option<u64>);

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
    /// Leased pages of one client.
    pub client_pages: u64,
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
    /// Half of the budget, and an eighth of it for one client; where tags can be bound to a dead chunk, they are for
    /// eight D.
    pub fn of(budget: u64, duration: std::time::Duration, rebinds: bool) -> Self {
        let afterlife = if rebinds { duration.as_nanos() as u64 * 8 } else { 0 };
        Self {
            pages: budget / 2,
            client_pages: budget / 8,
            client_tags: 1 << 16,
            afterlife,
            reports: super::hotness::REPORTS,
            lease: duration.as_nanos() as u64,
        }
    }
}

/// Why there is no tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Half of the budget is leased.
    Full,
    /// Others are read more often.
    Seldom,
    /// The client has its share.
    Share,
    /// The client has all the tags that it may have, or the fabric has no more.
    Tags,
    /// The client has left.
    Left,
    /// The chunk is registered no more, so a registration has to be brought.
    Unregistered,
}

/// What a grant takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Whether a registration has to be brought.
    pub registers: bool,
    /// How many bytes the tag reaches.
    pub bound: u64,
    /// Whether what is beyond the item has to be cleared first, up to the bound.
    pub clears: bool,
}

/// A tag as the client is told of it.
#[derive(Debug)]
pub struct Granted<'a, F: Fabric> {
    /// The client's own.
    pub tag: &'a F::Tag,
    /// The chunk's registration.
    pub registration: &'a F::Registration,
    /// How many bytes the tag reaches.
    pub bound: u64,
}

/// What is over and wants to be dropped.
#[derive(Debug)]
pub struct Over<F: Fabric> {
    /// To be closed.
    pub tags: Vec<F::Tag>,
    /// To be let go, after the tags.
    pub registrations: Vec<F::Registration>,
    /// Nobody's any more.
    pub records: Vec<F::Record>,
}

impl<F: Fabric> Default for Over<F> {
    fn default() -> Self {
        Self { tags: Vec::new(), registrations: Vec::new(), records: Vec::new() }
    }
}

/// A number in the table of records.
type Number = usize;

#[derive(Debug)]
struct Pin<R> {
    registration: R,
    span: Span,
    /// Who has a share in it.
    charged: Vec<Client>,
}

#[derive(Debug)]
pub(super) struct Record<R> {
    pub(super) record: R,
    pub(super) extent: Extent,
    bound: u64,
    clients: Vec<Client>,
    /// Reads that were passed on.
    pub(super) reads: u64,
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
pub(super) struct Of<T> {
    pages: Pages,
    tags: HashMap<Number, Tag<T>, FixedState>,
    pub(super) reports: super::hotness::Allowance,
}

impl<T> Of<T> {
    pub(super) fn has(&self, record: Number) -> bool {
        self.tags.contains_key(&record)
    }
}

/// What there is.
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
pub struct Tags<F: Fabric> {
    limits: Limits,
    pages: Pages,
    pins: HashMap<u64, Pin<F::Registration>, FixedState>,
    pub(super) records: Vec<Option<Record<F::Record>>>,
    vacant: Vec<Number>,
    /// Records by the chunk that they are bound to, or were last.
    pub(super) by_address: HashMap<u64, Number, FixedState>,
    pub(super) clients: HashMap<Client, Of<F::Tag>, FixedState>,
    /// One entry for each tag, with its serial; where it was renewed, the entry comes too early.
    ends: BinaryHeap<Reverse<(u64, Client, Number, u64)>>,
    over: Over<F>,
    serial: u64,
    counts: Counts,
    /// Where the walk over records stands.
    pub(super) cursor: Number,
    /// Who is worth a tag.
    pub(super) admission: Admission,
    /// The latest moment known.
    pub(super) latest: u64,
}

impl<F: Fabric> Tags<F> {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            pages: Pages::default(),
            pins: HashMap::default(),
            records: Vec::new(),
            vacant: Vec::new(),
            by_address: HashMap::default(),
            clients: HashMap::default(),
            ends: BinaryHeap::new(),
            over: Over::default(),
            serial: 0,
            counts: Counts::default(),
            cursor: 0,
            admission: Admission::new(limits.pages.saturating_mul(ADMISSION), limits.lease),
            latest: 0,
        }
    }

    /// A client comes.
    pub fn join(&mut self) -> Client {
        self.serial += 1;
        let reports = super::hotness::Allowance::new(self.limits.reports);
        let of = Of { pages: Pages::default(), tags: HashMap::default(), reports };
        self.clients.insert(Client(self.serial), of);
        Client(self.serial)
    }

    /// A client goes: its tags close and its share is free. What it leased stays leased until that ends.
    pub fn leave(&mut self, client: Client) {
        let Some(of) = self.clients.remove(&client) else { return };
        for (number, tag) in of.tags {
            self.over.tags.push(tag.tag);
            self.detach(client, number);
        }
        self.ends.retain(|Reverse((_, whose, ..))| *whose != client);
    }

    /// What there is.
    pub fn counts(&self) -> Counts {
        Counts {
            pages: self.pages.count(),
            pins: self.pins.len(),
            records: self.records.len() - self.vacant.len(),
            tags: self.clients.values().map(|of| of.tags.len()).sum(),
            clients: self.clients.len(),
            ..self.counts
        }
    }

    /// Leased pages of a client.
    pub fn share(&self, client: Client) -> u64 {
        self.clients.get(&client).map_or(0, |of| of.pages.count())
    }

    /// How many bytes a new tag of this chunk reaches: a little more than the item, so that the key's next values fit
    /// under it too.
    fn bound(extent: Extent) -> u64 {
        if !F::REBINDS {
            return extent.used;
        }
        (extent.used + (extent.used / 8).max(64)).next_multiple_of(8).min(extent.slot)
    }

    /// The record for exactly this item.
    fn record_of(&self, extent: Extent) -> Option<Number> {
        let number = *self.by_address.get(&extent.address)?;
        self.records[number].as_ref().is_some_and(|record| record.extent.version == extent.version).then_some(number)
    }

    /// Whether the client may have a tag of this chunk, and what it takes. Asked before the chunk is leased.
    ///
    /// # Errors
    ///
    /// See [`Refused`].
    pub fn admits(&mut self, client: Client, extent: Extent) -> Result<Admitted, Refused> {
        // Who asks for a tag reads the item now.
        let span = Span::of(extent.address, extent.used);
        self.admission.saw(span.edges(), 1, self.latest);
        let admitted = self.weigh(client, extent);
        match admitted {
            Err(Refused::Full) => self.counts.full += 1,
            Err(Refused::Seldom) => self.counts.seldom += 1,
            Err(Refused::Share) => self.counts.share += 1,
            Err(Refused::Tags) => self.counts.too_many += 1,
            _ => {}
        }
        admitted
    }

    fn weigh(&mut self, client: Client, extent: Extent) -> Result<Admitted, Refused> {
        let of = self.clients.get(&client).ok_or(Refused::Left)?;
        let record = self.record_of(extent);
        let bound = record.and_then(|number| self.records[number].as_ref()).map(|record| record.bound);
        let pin = self.pins.get(&extent.address);
        let span = Span::of(extent.address, bound.unwrap_or_else(|| Self::bound(extent)));
        if pin.is_none() {
            let (leased, most) = (self.pages.count(), self.limits.pages);
            let fresh = self.pages.count_with(span) - leased;
            if !self.admission.wants(span.edges(), fresh, leased, most, self.latest) {
                return Err(if leased + fresh > most { Refused::Full } else { Refused::Seldom });
            }
        }
        let charged = pin.is_some_and(|pin| pin.charged.contains(&client));
        if !charged && of.pages.count_with(pin.map_or(span, |pin| pin.span)) > self.limits.client_pages {
            return Err(Refused::Share);
        }
        let has = record.is_some_and(|number| of.has(number));
        if !has && of.tags.len() >= self.limits.client_tags {
            return Err(Refused::Tags);
        }
        Ok(Admitted {
            registers: pin.is_none(),
            bound: bound.unwrap_or_else(|| Self::bound(extent)),
            clears: F::REBINDS && record.is_none(),
        })
    }

    /// A tag of a chunk that is leased until then, or the one that the client has already. `registration` is of the
    /// bytes that [`admits`](Self::admits) named, if it asked for one; `record` makes a record, which is bound
    /// then; `tag` makes the client's tag of a record, with this bound, or nothing if there are no more.
    ///
    /// # Errors
    ///
    /// See [`Refused`]. What was brought is put aside.
    pub fn grant(
        &mut self,
        client: Client,
        extent: Extent,
        until: u64,
        registration: Option<F::Registration>,
        record: impl FnOnce() -> F::Record,
        tag: impl FnOnce(&F::Record, u64) -> Option<F::Tag>,
    ) -> Result<Granted<'_, F>, Refused> {
        let admitted = match self.weigh(client, extent) {
            Ok(admitted) if admitted.registers && registration.is_none() => Err(Refused::Unregistered),
            other => other,
        };
        let Admitted { registers, bound, .. } = match admitted {
            Ok(admitted) => admitted,
            Err(refused) => {
                self.over.registrations.extend(registration);
                return Err(refused);
            }
        };
        let (number, fresh) = match self.record_of(extent) {
            Some(number) => (number, false),
            None => (self.enter(record(), extent, bound), true),
        };
        let made = if self.clients.get(&client).is_some_and(|of| of.has(number)) {
            None
        } else {
            let made = self.records[number].as_ref().and_then(|known| tag(&known.record, bound));
            if made.is_none() {
                self.counts.too_many += 1;
                self.over.registrations.extend(registration);
                self.leave_empty(number);
                return Err(Refused::Tags);
            }
            made
        };
        let (Some(known), Some(of)) = (self.records[number].as_mut(), self.clients.get_mut(&client)) else {
            return Err(Refused::Left);
        };
        if let Some(tag) = made {
            // Its lease begins below.
            of.tags.insert(number, Tag { tag, until: 0, lapsed: true, serial: 0 });
            known.clients.push(client);
        }
        match registration {
            Some(registration) if registers => {
                let span = Span::of(extent.address, bound);
                self.pages.add(span);
                self.pins.insert(extent.address, Pin { registration, span, charged: Vec::new() });
            }
            other => self.over.registrations.extend(other),
        }
        if fresh || registers {
            F::bind(&known.record, Some(extent.address));
        }
        let (Some(had), Some(pin)) = (of.tags.get_mut(&number), self.pins.get_mut(&extent.address)) else {
            return Err(Refused::Unregistered);
        };
        had.until = had.until.max(until);
        if std::mem::take(&mut had.lapsed) {
            // What is left of its earlier life in the heap is told apart by the serial.
            self.serial += 1;
            had.serial = self.serial;
            self.ends.push(Reverse((had.until, client, number, had.serial)));
        }
        if !pin.charged.contains(&client) {
            pin.charged.push(client);
            of.pages.add(pin.span);
        }
        self.counts.granted += 1;
        Ok(Granted { tag: &had.tag, registration: &pin.registration, bound })
    }

    fn enter(&mut self, record: F::Record, extent: Extent, bound: u64) -> Number {
        let entry = Some(Record { record, extent, bound, clients: Vec::new(), reads: 0 });
        let number = match self.vacant.pop() {
            Some(number) => {
                self.records[number] = entry;
                number
            }
            None => {
                self.records.push(entry);
                self.records.len() - 1
            }
        };
        self.by_address.insert(extent.address, number);
        number
    }

    /// A client's tag of this record is gone.
    fn detach(&mut self, client: Client, number: Number) {
        if let Some(record) = &mut self.records[number] {
            record.clients.retain(|&other| other != client);
        }
        self.leave_empty(number);
    }

    /// A record that nobody has a tag of goes, unless its chunk is still leased: then the next tag is of it.
    fn leave_empty(&mut self, number: Number) {
        let Some(record) = &self.records[number] else { return };
        let (address, named) = (record.extent.address, self.by_address.get(&record.extent.address) == Some(&number));
        if !record.clients.is_empty() || (named && self.pins.contains_key(&address)) {
            return;
        }
        if named {
            self.by_address.remove(&address);
        }
        self.over.records.extend(self.records[number].take().map(|record| record.record));
        self.vacant.push(number);
    }

    /// Ends the leases of tags whose time is over and closes those whose afterlife is, at most so many.
    pub fn sweep(&mut self, now: u64, most: usize) {
        self.latest = self.latest.max(now);
        for _ in 0..most {
            let Some(&Reverse((end, client, number, serial))) = self.ends.peek() else { return };
            if end > now {
                return;
            }
            self.ends.pop();
            let Some(of) = self.clients.get_mut(&client) else { continue };
            let Some(tag) = of.tags.get_mut(&number).filter(|tag| tag.serial == serial) else { continue };
            let until = tag.until;
            if until > now {
                self.ends.push(Reverse((until, client, number, serial)));
                continue;
            }
            tag.lapsed = true;
            if let Some(record) = &self.records[number]
                && let Some(pin) = self.pins.get_mut(&record.extent.address)
                && self.by_address.get(&record.extent.address) == Some(&number)
                && let Some(at) = pin.charged.iter().position(|&other| other == client)
            {
                pin.charged.swap_remove(at);
                of.pages.remove(pin.span);
            }
            let closes = until.saturating_add(self.limits.afterlife);
            if closes > now {
                self.ends.push(Reverse((closes, client, number, serial)));
            } else if let Some(tag) = of.tags.remove(&number) {
                self.over.tags.push(tag.tag);
                self.detach(client, number);
            }
        }
    }

    /// See [`Exposure::replaced`](crate::store::Exposure::replaced). `registered` says whether the bytes of the new chunk
    /// that tags reach are registered already, and keeps them so; it must not wait.
    pub fn replaced(
        &mut self,
        replacement: &Replacement<'_>,
        registered: impl FnOnce(u64, u64) -> Option<F::Registration>,
    ) -> bool {
        self.follow(replacement.old, replacement.new, registered, |bound| replacement.clear_tail(bound))
    }

    pub(super) fn follow(
        &mut self,
        old: Extent,
        new: Extent,
        registered: impl FnOnce(u64, u64) -> Option<F::Registration>,
        clear_tail: impl FnOnce(u64),
    ) -> bool {
        if !F::REBINDS {
            return false;
        }
        let Some(number) = self.by_address.get(&old.address).copied() else { return false };
        let Some(record) = &mut self.records[number] else { return false };
        let Some(pin) = self.pins.get(&old.address) else { return false };
        // The bounds of a tag stay: what it reaches of the new chunk must all be that chunk's, and all of the item.
        if record.extent.version != old.version || new.slot < record.bound || new.used > record.bound {
            return false;
        }
        let span = Span::of(new.address, record.bound);
        let charged = pin.charged.clone();
        let room = |client: &Client| {
            self.clients.get(client).is_none_or(|of| of.pages.count_with(span) <= self.limits.client_pages)
        };
        if self.pages.count_with(span) > self.limits.pages || !charged.iter().all(room) {
            return false;
        }
        let Some(registration) = registered(new.address, record.bound) else { return false };
        clear_tail(record.bound);
        self.pages.add(span);
        for client in &charged {
            if let Some(of) = self.clients.get_mut(client) {
                of.pages.add(span);
            }
        }
        self.pins.insert(new.address, Pin { registration, span, charged });
        F::bind(&record.record, Some(new.address));
        record.extent = new;
        self.by_address.remove(&old.address);
        self.by_address.insert(new.address, number);
        self.counts.followed += 1;
        true
    }

    /// See [`Exposure::ended`](crate::store::Exposure::ended).
    pub fn ended(&mut self, chunk: Extent) {
        let Some(pin) = self.pins.remove(&chunk.address) else { return };
        if let Some(number) = self.record_of(chunk)
            && let Some(record) = &self.records[number]
        {
            F::bind(&record.record, None);
            self.leave_empty(number);
        }
        self.pages.remove(pin.span);
        for client in pin.charged {
            if let Some(of) = self.clients.get_mut(&client) {
                of.pages.remove(pin.span);
            }
        }
        self.over.registrations.push(pin.registration);
    }

    /// What is over, to be dropped outside of all locks: tags first, then registrations.
    #[must_use = "what is over is dropped by who takes it, outside of all locks"]
    pub fn take_over(&mut self) -> Over<F> {
        std::mem::take(&mut self.over)
    }

    /// Whether something is over.
    pub fn has_over(&self) -> bool {
        !(self.over.tags.is_empty() && self.over.registrations.is_empty() && self.over.records.is_empty())
    }
}
