//! The requests of moves, and the events of regions.

use super::connection::{Connection, Trouble};
use super::migration::{Ask, Call, Leftover};
use rdmakv_proto::far::messages::{Answer, RegionRun, Request, Runs, Secret, Servers, Source, Token, Verb};
use std::collections::VecDeque;
use std::time::Duration;

/// The fewest bytes that a server copies in a second.
const SLOWEST: u64 = 8 << 20;
/// How long a server may take to reach another one.
const REACH: Duration = Duration::from_secs(40);
/// Events that wait to be taken at most. The oldest go.
const EVENTS: usize = 1024;

/// Something that happened to regions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A server said that it stops: its regions have to move within this time.
    Stopping {
        /// The server, as it was given.
        server: String,
        /// The time.
        within: Duration,
    },
    /// A region begins to move.
    Moving {
        /// The region.
        region: u32,
        /// The server that has it.
        from: String,
        /// The server that gets it.
        to: String,
    },
    /// A region has moved.
    Moved {
        /// The region.
        region: u32,
        /// The server that has it.
        to: String,
        /// How long writes to it were paused.
        paused: Duration,
    },
    /// A region has moved, and the server that had it keeps its old part: accesses there did not end. The next move, renewal or
    /// [`Memory::tend`](super::Memory::tend) after their end drops it.
    Left {
        /// The region.
        region: u32,
        /// The server that has the old part.
        at: String,
    },
    /// A region stays where it is.
    Stayed {
        /// The region.
        region: u32,
        /// Why the move failed.
        why: String,
    },
    /// A region was lost while it moved: a server is gone, or the bytes that arrived are not those that left.
    Lost {
        /// The region.
        region: u32,
    },
}

/// A part that a move left at a server.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) part: Leftover,
    /// The sum of the copy that replaced it, or 0.
    pub(super) sum: u32,
}

/// Events that were not taken yet.
#[derive(Debug, Default)]
pub(super) struct Events(VecDeque<Event>);

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        if self.0.len() == EVENTS {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    /// Takes them, the oldest first.
    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.0).into()
    }
}

/// The parts of requests that the decisions do not have.
#[derive(Clone, Debug, Default)]
pub(super) struct StepParts<'a> {
    pub(super) owner: u64,
    pub(super) secret: Secret,
    pub(super) label: &'a [u8],
    pub(super) millis: u64,
    pub(super) token: Token,
    /// The address of the source, as the other server reaches it.
    pub(super) address: &'a [u8],
    pub(super) marks: &'a [u8],
    pub(super) region_bytes: u64,
    /// Regions of the memory.
    pub(super) regions: u32,
}

/// The part of an answer that later steps need.
#[derive(Debug, Default)]
pub(super) struct StepAnswer {
    pub(super) marks: Vec<u8>,
    pub(super) token: Option<Token>,
    /// The sum of the region: that of the copy, or of its source; 0 stands for no sum.
    pub(super) sum: u32,
}

/// Sends the request of a step, and waits for its answer.
pub(super) fn request_step(
    connection: &mut Connection,
    memory: u64,
    ask: &Ask,
    parts: &StepParts<'_>,
) -> Result<StepAnswer, Trouble> {
    let run = RegionRun { first: ask.region, regions: 1, epoch: ask.epoch, server: ask.server };
    let (mut runs, mut servers) = (Vec::new(), Vec::new());
    let (mut more, &StepParts { owner, secret, label: name, millis, token, address, .. }) = (Duration::ZERO, parts);
    let verb = match ask.call {
        Call::Tags => Verb::Tags { moves: true },
        Call::Take { source } => {
            let source = Some(Source { server: source, token, address });
            Verb::Take { regions: 1, of: parts.regions, millis, owner, secret, name, source }
        }
        Call::Pull { is_last } => {
            more = REACH + 2 * Duration::from_secs(parts.region_bytes / SLOWEST);
            Verb::Pull { is_last, marks: if is_last { parts.marks } else { &[] } }
        }
        Call::Freeze { to } => Verb::Freeze { to },
        Call::Commit => Verb::Commit,
        Call::Map => {
            let (runs, servers) = (Runs::write(&[run], &mut runs), Servers::write(&[], &mut servers));
            Verb::Map { number: ask.epoch, runs, servers }
        }
        Call::Thaw => Verb::Thaw,
        Call::Drop { to } => Verb::Drop { to },
    };
    let number = verb.number();
    let request = Request { memory, region: ask.region, epoch: ask.epoch, verb };
    connection.ask_for_long(&request, more, |reply| match reply.answer {
        Answer::Freeze { marks } => Some(StepAnswer { marks: marks.to_vec(), ..StepAnswer::default() }),
        Answer::Tags { token, .. } => Some(StepAnswer { token: Some(token), ..StepAnswer::default() }),
        Answer::Pull { sum } | Answer::Drop { sum } => Some(StepAnswer { sum, ..StepAnswer::default() }),
        ref other => (other.number() == number).then(StepAnswer::default),
    })
}
