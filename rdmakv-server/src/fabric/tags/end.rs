//! How tags and pins end.

use std::cmp::Reverse;

use super::{TagKind, Tags};
use crate::store::Extent;

impl<K: TagKind> Tags<K> {
    /// Ends the leases of tags when their time is over and closes those after their afterlife, at most so many; and as many
    /// of those that were left behind.
    pub fn sweep(&mut self, now: u64, most: usize) {
        self.latest = self.latest.max(now);
        self.accounts.sweep(now, most);
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
            if let Some(chunk) = self.records.chunk_of(number)
                && let Some(pin) = self.pins.get_mut(&chunk)
                && let Some(at) = pin.charged.iter().position(|&other| other == client)
            {
                pin.charged.swap_remove(at);
                of.pages.remove(pin.span);
                self.accounts.release(of.peer, chunk);
            }
            let closes = until.saturating_add(self.limits.afterlife);
            if closes > now {
                self.ends.push(Reverse((closes, client, number, serial)));
            } else if let Some(tag) = of.tags.remove(&number) {
                self.ended.tags.push(tag.tag);
                self.detach(client, number);
            }
        }
    }

    /// See [`Exposure::is_open`](crate::store::Exposure::is_open).
    pub fn is_open(&self, chunk: Extent) -> bool {
        self.pins.get(&chunk.address).is_some_and(|pin| K::is_open(&pin.registration))
    }

    /// Returns whether there is more to let go of that was left behind.
    pub fn is_behind(&self, now: u64) -> bool {
        self.accounts.is_behind(now)
    }

    /// See [`Exposure::ended`](crate::store::Exposure::ended).
    pub fn ended(&mut self, chunk: Extent) {
        let Some(pin) = self.pins.remove(&chunk.address) else { return };
        let bound = self.records.of(chunk);
        if let Some(record) = bound.and_then(|number| self.records.get(number)) {
            K::bind(&record.record, None);
        }
        // Also where it was bound to another chunk a moment ago. A record that is gone has no tags, and no peer reads a closed
        // one's.
        if let Some(record) = self.records.get(pin.record) {
            K::settle(&record.record);
        }
        if let Some(number) = bound {
            self.leave_empty(number);
        }
        self.pages.remove(pin.span);
        for client in pin.charged {
            if let Some(of) = self.clients.get_mut(&client) {
                of.pages.remove(pin.span);
                of.former.remove(&chunk.address);
                self.accounts.release(of.peer, chunk.address);
            }
        }
        self.ended.registrations.push(pin.registration);
    }
}
