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

/// Fates of one client after which a server orders none of its writes. A client raises its lowest open write before.
pub const MAX_WINDOW: usize = 1 << 16;

/// Clients with fates, after which a server orders no write of another: that waits until some have closed theirs.
const MAX_CLIENTS: usize = 1 << 17;

/// Fates that each client with some may have in any case, and those of all beyond which none has more.
const SHARE: usize = 16;
const MAX_KEPT: usize = 1 << 20;

/// Clients with fates, and fates, after which none are taken that others know: four times those of one server's own writes.
const MAX_TOLD: (usize, usize) = (4 * MAX_CLIENTS, 4 * MAX_KEPT);

/// Nanoseconds of silence, and between two looks, while no other client finds a place. Each client gave up its writes before.
const SILENCE_WHEN_FULL: u64 = GIVE_UP_AFTER + GIVE_UP_AFTER / 8;
const LOOK_WHEN_FULL: u64 = 1_000_000_000;

/// Silent clients whose lowest open write is remembered.
const MAX_SILENT: usize = 1 << 16;

/// The writes of all clients that are done or refused at one server.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Fates {
    clients: BTreeMap<u64, Client>,
    /// Clients that have fates, and the fates of all.
    open: usize,
    kept: usize,
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
        self.kept == 0
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
        let is_full = self.open >= MAX_CLIENTS;
        let (pause, silence) = if is_full { (LOOK_WHEN_FULL, SILENCE_WHEN_FULL) } else { (LOOK, SILENCE) };
        if now < self.looked.saturating_add(pause) {
            return;
        }
        self.looked = now;
        for client in self.clients.values_mut().filter(|client| now >= client.heard.saturating_add(silence)) {
            let last = client.known.last_key_value().map_or(0, |(&sequence, _)| sequence);
            client.lowest = client.lowest.max(last.saturating_add(1));
            self.open -= usize::from(!client.known.is_empty());
            self.kept -= client.known.len();
            client.known.clear();
        }
        self.forget_silent();
    }

    /// Forgets the clients without fates that were silent for the longest time, but for the last ones.
    fn forget_silent(&mut self) {
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

    /// Returns whether the fate of another write of a client has a place, so that the write may be ordered.
    ///
    /// A client that has fates may have a few in any case, and more if the places for those of all are not taken. What was ordered can be
    /// refused: for that there are `twice` as many places.
    pub(crate) fn has_place(&self, client: u64, twice: bool) -> bool {
        let times = 1 + usize::from(twice);
        match self.count(client) {
            0 => self.open < times * MAX_CLIENTS,
            own => own < SHARE || own < times * MAX_WINDOW && self.kept < times * MAX_KEPT,
        }
    }

    /// Returns whether there is room for fates that another server knows. An agent tells them again until silent clients left room.
    pub(crate) fn takes_more(&self) -> bool {
        self.open < MAX_TOLD.0 && self.kept < MAX_TOLD.1
    }

    /// Records the fate of a write. One that is done stays so; one that was flushed may turn out to have been published before.
    ///
    /// A refused write may still be done: a member refused it, its primary died before all had, and the next one completes it.
    pub(crate) fn record(&mut self, id: WriteId, fate: Fate) {
        let client = self.client(id.client);
        if id.sequence < client.lowest {
            return;
        }
        let before = client.known.len();
        let known = client.known.entry(id.sequence).or_insert(fate);
        let is_open = *known == Fate::Refused || *known == Fate::Done(Verdict::Flushed) && fate != Fate::Refused;
        if is_open {
            *known = fate;
        }
        let is_new = client.known.len() > before;
        self.open += usize::from(is_new && before == 0);
        self.kept += usize::from(is_new);
    }

    fn client(&mut self, client: u64) -> &mut Client {
        if self.clients.len() > self.open + 2 * MAX_SILENT && !self.clients.contains_key(&client) {
            self.forget_silent();
        }
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
            let left = client.known.split_off(&lowest);
            let closed = std::mem::replace(&mut client.known, left);
            let has_none = client.known.is_empty();
            self.open -= usize::from(!closed.is_empty() && has_none);
            self.kept -= closed.len();
        }
    }

    /// Forgets a client that was silent for long and whose connections are closed.
    pub fn forget_client(&mut self, client: u64) {
        let known = self.clients.remove(&client).map_or(0, |client| client.known.len());
        self.open -= usize::from(known > 0);
        self.kept -= known;
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
    fn a_burst_of_clients_leaves_places_to_those_there() {
        let id = |client, sequence| WriteId { client, sequence };
        let mut fates = Fates::default();
        for client in 0..MAX_CLIENTS as u64 {
            assert!(fates.has_place(client, false));
            fates.record(id(client, 1), Fate::Refused);
        }
        let other = MAX_CLIENTS as u64;
        assert!(!fates.has_place(other, false) && fates.has_place(other, true) && fates.has_place(7, false));
        // One that closes its writes leaves its place.
        fates.close_below(3, 2);
        assert!(fates.has_place(other, false));
        fates.record(id(other, 1), Fate::Refused);
        assert!(!fates.has_place(3, false));
        // Clients that gave up leave theirs earlier than else, and their late orders are refused.
        fates.hear(Some(7), SILENCE_WHEN_FULL - 1);
        fates.hear(None, SILENCE_WHEN_FULL + LOOK_WHEN_FULL);
        assert!(fates.has_place(3, false) && fates.of(id(other, 1)) == Known::Closed && fates.count(7) == 1);
        assert_eq!((fates.open, fates.kept), (1, 1));
        fates.forget_client(7);
        assert!(fates.is_empty() && fates.open == 0);
    }

    #[test]
    fn a_client_with_many_fates_leaves_places() {
        let mut fates = Fates::default();
        let per_client = MAX_WINDOW as u64 - 1;
        for client in 0..=MAX_KEPT as u64 / per_client {
            (1..=per_client).for_each(|sequence| fates.record(WriteId { client, sequence }, Fate::Refused));
        }
        assert!(!fates.has_place(0, false) && fates.has_place(0, true));
        for sequence in 1..SHARE as u64 {
            fates.record(WriteId { client: 99, sequence }, Fate::Refused);
            assert!(fates.has_place(99, false));
        }
        fates.record(WriteId { client: 99, sequence: SHARE as u64 }, Fate::Refused);
        assert!(!fates.has_place(99, false));
    }

    #[test]
    fn fates_of_other_servers_have_bounded_room() {
        let mut fates = Fates::default();
        let mut told = 0;
        while fates.takes_more() {
            assert!(told < MAX_TOLD.0 as u64, "{told}");
            fates.record(WriteId { client: told, sequence: 1 }, Fate::Refused);
            told += 1;
        }
        // Those of clients that gave up make room.
        fates.hear(None, SILENCE_WHEN_FULL + LOOK_WHEN_FULL);
        assert!(fates.takes_more() && fates.is_empty());
        let mut fates = Fates::default();
        for sequence in 1..=MAX_TOLD.1 as u64 {
            assert!(fates.takes_more());
            fates.record(WriteId { client: sequence % 9, sequence }, Fate::Refused);
        }
        assert!(!fates.takes_more());
    }

    #[test]
    fn clients_without_fates_are_bounded_at_any_time() {
        let mut fates = Fates::default();
        for client in 0..3 * MAX_SILENT as u64 {
            fates.now = client;
            fates.close_below(client, 1);
            assert!(fates.clients.len() <= 2 * MAX_SILENT + 1);
        }
        assert_eq!(fates.of(WriteId { client: 3 * MAX_SILENT as u64 - 1, sequence: 0 }), Known::Closed);
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
