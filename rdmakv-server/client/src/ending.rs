//! The end of a write that its client left: it is completed, or refused everywhere. Then the server that had something of it drops that.

use rdmakv_cluster::config::ServerId;
use rdmakv_cluster::helper::{Calls, Target};
use rdmakv_cluster::messages::{Call, Condition, Reply, Verdict, Version, WriteId};
use rdmakv_cluster::wire::About;
use rdmakv_cluster::writer::{Bytes, Outcome, Writer};

/// The end of one write, which any client may bring about.
#[derive(Debug)]
pub(super) struct Ending {
    writer: Writer,
    about: About,
    /// The server that has something of the write.
    at: ServerId,
    is_over: bool,
}

impl Ending {
    /// Returns the end of a write that this server has a next or a staged piece of. [`Self::restart`] begins it.
    pub(super) fn of((id, about): (WriteId, About), target: Target, at: ServerId) -> Self {
        let (writer, _) = Writer::begin(target, (id, 0), Condition::Always, Bytes::Staged(Vec::new()));
        Self { writer, about, at, is_over: false }
    }

    /// Returns whether it has no more calls to make.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Asks what became of the write, at first and after a lost answer.
    pub(super) fn restart(&mut self) -> Calls {
        self.writer.lost()
    }

    /// Takes a reply of this epoch.
    pub(super) fn take(&mut self, from: ServerId, reply: &Reply) -> Calls {
        let mut calls = self.writer.take(from, reply);
        if let Some(outcome) = self.writer.outcome().filter(|_| !self.is_over) {
            self.is_over = true;
            calls.extend(self.leave_nothing(outcome));
        }
        calls
    }

    /// Returns calls that end what the server has left of the write.
    fn leave_nothing(&self, outcome: Outcome) -> Calls {
        let (id, at, target) = (self.writer.id(), self.at, self.writer.target());
        if self.about == About::Next || target.is_primary(at) {
            return Calls::new();
        }
        match outcome {
            Outcome::Known(Verdict::Stored(version)) => {
                // A piece that is staged is dropped, as the write is known or as a later one is here.
                let (base, lowest) = (Version::ABSENT, 0);
                let seal = Call::Seal { id, version, base, piece: None };
                let mut calls = target.each(&[at], &seal);
                calls.extend(target.each(&[at], &Call::Note { id, version, lowest }));
                calls
            }
            Outcome::Known(_) => target.each(&[at], &Call::Refuse { id }),
            Outcome::Again | Outcome::Unknown => Calls::new(),
        }
    }
}
