//! Tags that follow their key to another chunk.

use super::super::pages::Span;
use super::{Client, Pin, TagKind, Tags};
use crate::store::{Extent, Replacement};

impl<K: TagKind> Tags<K> {
    /// See [`Exposure::replaced`](crate::store::Exposure::replaced). `registered` returns whether the bytes of the new chunk
    /// that tags reach are registered already, and keeps them so; it must not wait.
    pub fn replaced(
        &mut self,
        replacement: &Replacement<'_>,
        registered: impl FnOnce(u64, u64) -> Option<K::Registration>,
    ) -> bool {
        self.follow(replacement.old, replacement.new, registered, |bound| replacement.clear_tail(bound))
    }

    pub(super) fn follow(
        &mut self,
        old: Extent,
        new: Extent,
        registered: impl FnOnce(u64, u64) -> Option<K::Registration>,
        clear_tail: impl FnOnce(u64),
    ) -> bool {
        if !K::REBINDS {
            return false;
        }
        let Some(number) = self.records.at(old.address) else { return false };
        let Some(record) = self.records.get(number) else { return false };
        let Some(pin) = self.pins.get(&old.address) else { return false };
        // The bounds of a tag stay: what it reaches of the new chunk must all be that chunk's, and all of the item.
        if record.extent.version != old.version || new.slot < record.bound || new.used > record.bound {
            return false;
        }
        let span = Span::of(new.address, record.bound);
        let charged = pin.charged.clone();
        if charged.is_empty() {
            return false;
        }
        let most = self.limits.client_pages;
        let room = |client: &Client| {
            self.clients.get(client).is_none_or(|of| {
                of.pages.count_with(span) <= most && self.accounts.has_room(of.peer, new.address, span, most)
            })
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
                of.former.insert(old.address, of.tags.get(&number).map_or(0, |tag| tag.until));
                self.accounts.charge(of.peer, new.address, span);
            }
        }
        self.pins.insert(new.address, Pin { registration, span, record: number, charged });
        K::bind(&record.record, Some(new.address));
        self.records.move_to(number, new);
        self.counts.followed += 1;
        true
    }
}
