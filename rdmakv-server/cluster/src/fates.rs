//! The fates of writes: which ended, and how, and which never happen.
//!
//! A server keeps them for each client at or above the lowest write whose outcome the client may ask for, as RIFL does. All lower writes
//! have outcomes that the client knows.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::messages::{Fate, Verdict, WriteId};
use crate::writer::GIVE_UP_AFTER;

/// The most fates of one message.
pub const MAX_FATES: usize = 1024;

/// Nanoseconds of silence after which all writes of a client are closed: it gives up each of them in half of that.
const SILENCE: u64 = 2 * GIVE_UP_AFTER;

/// Nanoseconds between two looks for silent clients.
const LOOK: u64 = 10_000_000_000;

/// Silent clients whose lowest open write is remembered.
const MAX_SILENT: usize = 1 << 16;

/// The writes of all clients that are done or refused at one server.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Fates {
    clients: BTreeMap<u64, Client>,
    now: u64,
    looked: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Client {
    lowest: u64,
    known: BTreeMap<u64, Fate>,
    /// When a call for one of its writes came last.
    heard: u64,
}

/// The knowledge of one write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// Nothing.
    Open,
    /// Its fate.
    Fate(Fate),
    /// The client knew its outcome before.
    Closed,
}

impl Fates {
    /// Returns whether no fate is known.
    pub fn is_empty(&self) -> bool {
        self.clients.values().all(|client| client.known.is_empty())
    }

    /// Returns what is known of a write.
    pub(crate) fn of(&self, id: WriteId) -> Known {
        let Some(client) = self.clients.get(&id.client) else { return Known::Open };
        match client.known.get(&id.sequence) {
            Some(&fate) => Known::Fate(fate),
            None if id.sequence < client.lowest => Known::Closed,
            None => Known::Open,
        }
    }

    /// Notes a call for a write of a client. Now and then this closes the writes of clients that are silent.
    ///
    /// A late order of a silent client is refused, and a new one is not.
    pub(crate) fn hear(&mut self, client: Option<u64>, now: u64) {
        self.now = now;
        if let Some(client) = client.and_then(|client| self.clients.get_mut(&client)) {
            client.heard = now;
        }
        if now < self.looked.saturating_add(LOOK) {
            return;
        }
        self.looked = now;
        for client in self.clients.values_mut().filter(|client| now >= client.heard.saturating_add(SILENCE)) {
            let last = client.known.last_key_value().map_or(0, |(&sequence, _)| sequence);
            client.lowest = client.lowest.max(last.saturating_add(1));
            client.known.clear();
        }
        let silent = self.clients.iter().filter(|(_, client)| client.known.is_empty());
        let mut silent: Vec<(u64, u64)> = silent.map(|(&number, client)| (client.heard, number)).collect();
        let excess = silent.len().saturating_sub(MAX_SILENT);
        silent.sort_unstable();
        silent[..excess].iter().for_each(|(_, number)| drop(self.clients.remove(number)));
    }

    /// Returns how many writes of a client have fates.
    pub(crate) fn count(&self, client: u64) -> usize {
        self.clients.get(&client).map_or(0, |client| client.known.len())
    }

    /// Records the fate of a write. One that is done stays so; one that was flushed may turn out to have been published before.
    ///
    /// A refused write may still be done: a member refused it, its primary died before all had, and the next one completes it.
    pub(crate) fn record(&mut self, id: WriteId, fate: Fate) {
        let client = self.client(id.client);
        if id.sequence >= client.lowest {
            let known = client.known.entry(id.sequence).or_insert(fate);
            let is_open = *known == Fate::Refused || *known == Fate::Done(Verdict::Flushed) && fate != Fate::Refused;
            if is_open {
                *known = fate;
            }
        }
    }

    fn client(&mut self, client: u64) -> &mut Client {
        let new = || Client { heard: self.now, ..Client::default() };
        self.clients.entry(client).or_insert_with(new)
    }

    /// Notes the lowest open write of a client, which closes all before it.
    pub(crate) fn close_below(&mut self, client: u64, lowest: u64) {
        if lowest == 0 {
            return;
        }
        let client = self.client(client);
        if lowest > client.lowest {
            client.lowest = lowest;
            client.known = client.known.split_off(&lowest);
        }
    }

    /// Forgets a client that was silent for long and whose connections are closed.
    pub fn forget_client(&mut self, client: u64) {
        self.clients.remove(&client);
    }

    /// Returns the first fates of writes above this one, or of all: one message for a member that is repaired, at most [`MAX_FATES`].
    pub fn after(&self, last: Option<WriteId>) -> Vec<(WriteId, Fate)> {
        let clients = self.clients.range(last.map_or(0, |last| last.client)..);
        let of = |(&client, fates): (&u64, &'_ Client)| {
            let from = last
                .filter(|last| last.client == client)
                .map_or(Bound::Unbounded, |last| Bound::Excluded(last.sequence));
            let of = fates.known.range((from, Bound::Unbounded)).take(MAX_FATES);
            of.map(|(&sequence, &fate)| (WriteId { client, sequence }, fate)).collect::<Vec<_>>()
        };
        clients.flat_map(of).take(MAX_FATES).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Version;

    #[test]
    fn writes_of_silent_clients_are_closed() {
        let id = |client, sequence| WriteId { client, sequence };
        let mut fates = Fates::default();
        for client in 0..3 {
            fates.record(id(client, 7), Fate::Refused);
        }
        fates.hear(Some(1), SILENCE / 2);
        fates.record(id(3, 1), Fate::Refused);
        fates.hear(None, SILENCE);
        assert_eq!((fates.of(id(0, 7)), fates.of(id(0, 8))), (Known::Closed, Known::Open));
        assert_eq!((fates.of(id(1, 7)), fates.of(id(3, 1))), (Known::Fate(Fate::Refused), Known::Fate(Fate::Refused)));
        assert_eq!((fates.count(0), fates.count(1)), (0, 1));
    }

    #[test]
    fn silent_clients_are_bounded() {
        let mut fates = Fates::default();
        for client in 0..MAX_SILENT as u64 + 10 {
            fates.now = client;
            fates.record(WriteId { client, sequence: 1 }, Fate::Refused);
        }
        fates.hear(None, 2 * SILENCE);
        assert_eq!(fates.clients.len(), MAX_SILENT);
        assert_eq!(fates.of(WriteId { client: 9, sequence: 1 }), Known::Open);
        assert_eq!(fates.of(WriteId { client: 10, sequence: 1 }), Known::Closed);
    }

    #[test]
    fn messages_have_all_fates_once() {
        let mut fates = Fates::default();
        let ids = (0..3).flat_map(|client| (1..=900).map(move |sequence| WriteId { client, sequence }));
        let all: Vec<_> = ids.map(|id| (id, Fate::Done(Verdict::Stored(Version(id.sequence))))).collect();
        all.iter().for_each(|&(id, fate)| fates.record(id, fate));
        let (mut sent, mut last) = (Vec::new(), None);
        loop {
            let part = fates.after(last);
            let Some(&(id, _)) = part.last() else { break };
            assert!(part.len() <= MAX_FATES);
            last = Some(id);
            sent.extend(part);
        }
        assert_eq!(sent, all);
    }
}
