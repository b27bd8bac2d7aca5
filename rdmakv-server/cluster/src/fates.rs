//! The fates of writes: which ended, and how, and which never happen.
//!
//! A server keeps them for each client at or above the lowest write whose outcome the client may ask for, as RIFL does. All lower writes
//! have outcomes that the client knows.

use std::collections::BTreeMap;

use crate::messages::{Fate, WriteId};

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
    /// Returns what is known of a write.
    pub(crate) fn of(&self, id: WriteId) -> Known {
        let Some(client) = self.clients.get(&id.client) else { return Known::Open };
        match client.known.get(&id.sequence) {
            Some(&fate) => Known::Fate(fate),
            None if id.sequence < client.lowest => Known::Closed,
            None => Known::Open,
        }
    }

    /// Records the fate of a write. One that is done stays so.
    ///
    /// A refused write may still be done: a member refused it, its primary died before all had, and the next one completes it.
    pub(crate) fn record(&mut self, id: WriteId, fate: Fate) {
        let client = self.clients.entry(id.client).or_default();
        if id.sequence >= client.lowest {
            let known = client.known.entry(id.sequence).or_insert(fate);
            if *known == Fate::Refused {
                *known = fate;
            }
        }
    }

    /// Notes the lowest open write of a client, which closes all before it.
    pub(crate) fn close_below(&mut self, client: u64, lowest: u64) {
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

    /// Returns all fates, for a member that is repaired.
    pub fn all(&self) -> Vec<(WriteId, Fate)> {
        let of = |(&client, fates): (&u64, &Client)| {
            let with_id = move |(&sequence, &fate): (&u64, &Fate)| (WriteId { client, sequence }, fate);
            fates.known.iter().map(with_id).collect::<Vec<_>>()
        };
        self.clients.iter().flat_map(of).collect()
    }
}
