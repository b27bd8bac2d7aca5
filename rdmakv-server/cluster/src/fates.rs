//! The fates of writes: which ended, and how, and which never happen.
//!
//! A server keeps them for each client at or above the lowest write whose outcome the client may ask for, as RIFL does. All lower writes
//! have outcomes that the client knows.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::messages::{Fate, Verdict, WriteId};

/// The most fates of one message.
pub const MAX_FATES: usize = 1024;

/// The writes of all clients that are done or refused at one server.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Fates {
    clients: BTreeMap<u64, Client>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Client {
    lowest: u64,
    known: BTreeMap<u64, Fate>,
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

    /// Returns how many writes of a client have fates.
    pub(crate) fn count(&self, client: u64) -> usize {
        self.clients.get(&client).map_or(0, |client| client.known.len())
    }

    /// Records the fate of a write. One that is done stays so; one that was flushed may turn out to have been published before.
    ///
    /// A refused write may still be done: a member refused it, its primary died before all had, and the next one completes it.
    pub(crate) fn record(&mut self, id: WriteId, fate: Fate) {
        let client = self.clients.entry(id.client).or_default();
        if id.sequence >= client.lowest {
            let known = client.known.entry(id.sequence).or_insert(fate);
            let is_open = *known == Fate::Refused || *known == Fate::Done(Verdict::Flushed) && fate != Fate::Refused;
            if is_open {
                *known = fate;
            }
        }
    }

    /// Notes the lowest open write of a client, which closes all before it.
    pub(crate) fn close_below(&mut self, client: u64, lowest: u64) {
        if lowest == 0 {
            return;
        }
        let client = self.clients.entry(client).or_default();
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
