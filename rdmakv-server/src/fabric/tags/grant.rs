//! Grants of tags and their leases.

use std::cmp::Reverse;

use super::super::pages::Span;
use super::{Client, Pin, Tag, TagKind, Tags};
use crate::store::Extent;

/// Tags that clients share out among themselves, and how many each may have whatever the others have.
const TAGS: usize = 1 << 20;
const LEAST_TAGS: usize = 1 << 12;

/// Why there is no tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Half of the budget is leased.
    Full,
    /// Others are read more often.
    Seldom,
    /// The client has its share, or its peer has them by clients that have gone.
    Share,
    /// The client has all the tags that it may have, or the fabric has no more.
    Tags,
    /// The client has left.
    Left,
    /// The chunk is registered no more, so a registration has to be brought.
    Unregistered,
}

/// The needs of a grant.
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
pub struct Granted<'a, K: TagKind> {
    /// The client's own.
    pub tag: &'a K::Tag,
    /// The chunk's registration.
    pub registration: &'a K::Registration,
    /// How many bytes the tag reaches.
    pub bound: u64,
}

impl<K: TagKind> Tags<K> {
    /// How many bytes a new tag of this chunk reaches: a little more than the item, so that the key's next values fit
    /// under it too.
    fn bound(extent: Extent) -> u64 {
        if !K::REBINDS {
            return extent.used;
        }
        (extent.used + (extent.used / 8).max(64)).next_multiple_of(8).min(extent.slot)
    }

    /// Returns whether the client may have a tag of this chunk, and what it takes. Asked before the chunk is leased.
    ///
    /// # Errors
    ///
    /// See [`Refused`].
    pub fn admits(&mut self, client: Client, extent: Extent) -> Result<Admitted, Refused> {
        // A client that asks for a tag reads the item now.
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
        let record = self.records.of(extent);
        let bound = record.and_then(|number| self.records.get(number)).map(|record| record.bound);
        let pin = self.pins.get(&extent.address);
        let span = Span::of(extent.address, bound.unwrap_or_else(|| Self::bound(extent)));
        let has_share =
            self.limits.divides && self.accounts.pages_with(of.peer, extent.address, span) > self.fair_share();
        // Renewals too: what the peer has more than its share is to come back.
        if has_share && self.latest < self.short_until {
            return Err(Refused::Share);
        }
        if pin.is_none() {
            let (leased, most) = (self.pages.count(), self.limits.pages);
            let fresh = self.pages.count_with(span) - leased;
            let within = self.limits.divides && !has_share;
            let wanted = self.admission.wants(span.edges(), fresh, leased, most, self.latest);
            if leased + fresh > most {
                if within {
                    // Until what others have more than their shares has come back.
                    self.short_until = self.latest.saturating_add(2 * self.limits.lease);
                }
                return Err(Refused::Full);
            }
            if !wanted && !within {
                return Err(Refused::Seldom);
            }
        }
        let charged = pin.is_some_and(|pin| pin.charged.contains(&client));
        let (span, most) = (pin.map_or(span, |pin| pin.span), self.limits.client_pages);
        let room = || of.pages.count_with(span) <= most && self.accounts.has_room(of.peer, extent.address, span, most);
        if !charged && !room() {
            return Err(Refused::Share);
        }
        let has = record.is_some_and(|number| of.has(number));
        let fair = (TAGS / self.clients.len()).max(LEAST_TAGS).min(self.limits.client_tags);
        if !has && of.tags.len() >= fair {
            return Err(Refused::Tags);
        }
        Ok(Admitted {
            registers: pin.is_none(),
            bound: bound.unwrap_or_else(|| Self::bound(extent)),
            // An item that was on flash comes back with its version, perhaps to its place, where others were meanwhile.
            clears: K::REBINDS && (record.is_none() || pin.is_none()),
        })
    }

    /// Returns a tag of a chunk that is leased until then, or the one that the client has already. `promised` is what [`admits`](Self::admits)
    /// said it takes, and was done: `registration` is of so many bytes, if it asked for one. Where the last tag of the chunk closed meanwhile,
    /// it may take more: then there is none. `record` makes a record, which is bound then; `tag` makes the client's tag of a record and its
    /// chunk's registration, with this bound, or nothing if there are no more.
    ///
    /// # Errors
    ///
    /// See [`Refused`]. The registration that was brought is put aside.
    pub fn grant(
        &mut self,
        client: Client,
        extent: Extent,
        until: u64,
        (promised, registration): (Admitted, Option<K::Registration>),
        record: impl FnOnce() -> K::Record,
        tag: impl FnOnce(&K::Record, &K::Registration, u64) -> Option<K::Tag>,
    ) -> Result<Granted<'_, K>, Refused> {
        let admitted = match self.weigh(client, extent) {
            Ok(admitted) if admitted.registers && registration.is_none() => Err(Refused::Unregistered),
            // Memory beyond was neither registered nor cleared, and may be others'.
            Ok(Admitted { bound, clears, .. }) if bound > promised.bound || (clears && !promised.clears) => {
                Err(Refused::Unregistered)
            }
            other => other,
        };
        let Admitted { registers, bound, .. } = match admitted {
            Ok(admitted) => admitted,
            Err(refused) => {
                self.ended.registrations.extend(registration);
                return Err(refused);
            }
        };
        let (number, fresh) = match self.records.of(extent) {
            Some(number) => (number, false),
            None => (self.records.enter(record(), extent, bound), true),
        };
        let made = if self.clients.get(&client).is_some_and(|of| of.has(number)) {
            None
        } else {
            let pinned = self.pins.get(&extent.address).map(|pin| &pin.registration);
            let made = match (self.records.get(number), registration.as_ref().filter(|_| registers).or(pinned)) {
                (Some(known), Some(registration)) => tag(&known.record, registration, bound),
                _ => None,
            };
            if made.is_none() {
                self.counts.too_many += 1;
                self.ended.registrations.extend(registration);
                self.leave_empty(number);
                return Err(Refused::Tags);
            }
            made
        };
        let (Some(known), Some(of)) = (self.records.get_mut(number), self.clients.get_mut(&client)) else {
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
                let pin = Pin { registration, span, record: number, charged: Vec::new() };
                self.pins.insert(extent.address, pin);
            }
            other => self.ended.registrations.extend(other),
        }
        if fresh || registers {
            K::bind(&known.record, Some(extent.address));
        }
        let (Some(had), Some(pin)) = (of.tags.get_mut(&number), self.pins.get_mut(&extent.address)) else {
            return Err(Refused::Unregistered);
        };
        pin.record = number;
        had.until = had.until.max(until);
        if std::mem::take(&mut had.lapsed) {
            // The remains of its earlier life in the heap are told apart by the serial.
            self.serial += 1;
            had.serial = self.serial;
            self.ends.push(Reverse((had.until, client, number, had.serial)));
        }
        if !pin.charged.contains(&client) {
            pin.charged.push(client);
            of.pages.add(pin.span);
            self.accounts.charge(of.peer, extent.address, pin.span);
        }
        self.counts.granted += 1;
        Ok(Granted { tag: &had.tag, registration: &pin.registration, bound })
    }
}
