//! The completion of an ordered write, by its own client or by any other: seal at all others, then publish.
//!
//! Each step is idempotent by the write's number and version, so several may complete one write at once.

use crate::faults::is_planted;
use crate::ids::{Epoch, ServerId, Version, WriteId};
use crate::messages::{Answer, Call, Pending, Piece, Request, Verdict};

/// Calls to send, each to a server.
pub type Calls = Vec<(ServerId, Request)>;

/// A caller's view of a key: where its calls go.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// The cluster.
    pub cluster: u128,
    /// The epoch of the caller.
    pub epoch: Epoch,
    /// The members of the key: its primary first, then all others that take its writes.
    pub members: Vec<ServerId>,
}

impl Target {
    /// Returns a call to the key's primary; none if no server is left.
    pub fn primary(&self, call: Call) -> Calls {
        self.members.first().map(|&server| (server, self.request(call))).into_iter().collect()
    }

    /// Returns the other members.
    pub fn others(&self) -> &[ServerId] {
        self.members.get(1..).unwrap_or_default()
    }

    /// Returns whether this server is the key's primary.
    pub fn is_primary(&self, server: ServerId) -> bool {
        self.members.first() == Some(&server)
    }

    /// Returns one call for each of these servers.
    pub fn each(&self, servers: &[ServerId], call: &Call) -> Calls {
        servers.iter().map(|&server| (server, self.request(call.clone()))).collect()
    }

    fn request(&self, call: Call) -> Request {
        Request { cluster: self.cluster, epoch: self.epoch, call }
    }
}

/// The completion of one write in one epoch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    id: WriteId,
    version: Version,
    base: Version,
    /// The bytes, if they were not staged.
    carried: Option<Piece>,
    /// For the notes of the write's own client: the lowest of its writes whose outcome it may still ask for.
    lowest: u64,
    /// Those that have not sealed it.
    waiting: Vec<ServerId>,
}

/// How a completion goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// More answers are needed, after these calls.
    Waiting(Calls),
    /// The write ended, and these notes may be sent with later calls.
    Ended(Verdict, Calls),
    /// The primary does not know the write.
    Unknown,
}

impl Completion {
    /// Returns the completion of a write that a primary says is pending.
    pub fn of(pending: &Pending, target: &Target) -> Self {
        let Pending { stored, base } = pending;
        let carried = (!stored.is_staged).then_some(stored.piece);
        let waiting = target.others().to_vec();
        Self { id: stored.id, version: stored.version, base: *base, carried, lowest: 0, waiting }
    }

    /// Returns the completion of a write that was just ordered.
    pub fn ordered(target: &Target, id: WriteId, (version, base): (Version, Version), carried: Option<Piece>) -> Self {
        Self { id, version, base, carried, lowest: 0, waiting: target.others().to_vec() }
    }

    /// Returns it with notes that close the writes of its client below this one, whose outcomes the client knows.
    pub fn closing(self, lowest: u64) -> Self {
        Self { lowest, ..self }
    }

    /// Returns the write.
    pub fn id(&self) -> WriteId {
        self.id
    }

    /// Returns the first calls.
    pub fn start(&self, target: &Target) -> Calls {
        let (id, version, base, piece) = (self.id, self.version, self.base, self.carried);
        let mut calls = target.each(&self.waiting, &Call::Seal { id, version, base, piece });
        if self.waiting.is_empty() || is_planted("publish-before-sealed") {
            calls.extend(self.publish(target));
        }
        calls
    }

    /// Takes an answer of this epoch.
    ///
    /// A member that lacks the bytes of a write from an earlier epoch was no member then. It gets the value by repair.
    pub fn take(&mut self, target: &Target, from: ServerId, answer: &Answer) -> Progress {
        let is_sealed = match answer {
            Answer::Sealed(version) => *version == self.version,
            Answer::Lacks => self.version.epoch() < target.epoch,
            _ => false,
        };
        if is_sealed && self.waiting.contains(&from) {
            self.waiting.retain(|&server| server != from);
            let done = self.waiting.is_empty() && !is_planted("publish-before-sealed");
            return Progress::Waiting(if done { self.publish(target) } else { Calls::new() });
        }
        match answer {
            Answer::Done(verdict) if target.is_primary(from) => {
                let (id, version, lowest) = (self.id, self.version, self.lowest);
                let note = Call::Note { id, version, lowest };
                Progress::Ended(*verdict, target.each(target.others(), &note))
            }
            Answer::Unknown | Answer::Refused if target.is_primary(from) => Progress::Unknown,
            _ => Progress::Waiting(Calls::new()),
        }
    }

    fn publish(&self, target: &Target) -> Calls {
        target.primary(Call::Publish { id: self.id, version: self.version })
    }
}
