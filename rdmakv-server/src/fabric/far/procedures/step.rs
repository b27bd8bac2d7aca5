//! A step of a procedure: what it reads, writes and replies, within limits.

use rdmakv_proto::far::messages::{REPLY_MAX, RunStatus};
use rdmakv_proto::far::procedures::READ_MAX;

use super::End;

/// Bytes that each read costs at least. So a procedure that reads nothing ends, too.
const LEAST: u32 = 64;

/// How much a procedure may spend, on all servers together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fabric::far) struct Limits {
    /// Hops from one server to another.
    pub(in crate::fabric::far) hops: u32,
    /// Bytes that it reads.
    pub(in crate::fabric::far) bytes: u32,
    /// Microseconds for which it runs. The driver looks at them.
    pub(in crate::fabric::far) micros: u32,
    /// Bytes of its reply.
    pub(in crate::fabric::far) reply: u32,
}

/// The limits of a server.
pub(in crate::fabric::far) const LIMITS: Limits =
    Limits { hops: 64, bytes: 1 << 20, micros: 10_000, reply: REPLY_MAX as u32 };

/// How much a procedure has spent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::fabric::far) struct Spent {
    pub(in crate::fabric::far) hops: u32,
    pub(in crate::fabric::far) bytes: u32,
    pub(in crate::fabric::far) replied: u32,
}

/// The reason why bytes are not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fabric::far) enum Miss {
    /// They are not here.
    Elsewhere,
    /// Their region is frozen, or its map has not come.
    Frozen,
}

/// The memory that a procedure runs in.
pub(in crate::fabric::far) trait Space {
    /// Returns how many of these bytes are here, from the first one on.
    fn here(&mut self, at: u64, length: usize) -> usize;
    /// Copies bytes that are here. Returns whether they still are.
    fn read(&mut self, at: u64, into: &mut [u8]) -> bool;
    /// Replaces an aligned number that is as expected, and returns what was there.
    fn cas64(&mut self, at: u64, old: u64, new: u64) -> Result<u64, Miss>;
}

/// The effect of a step on what comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Another step.
    Again,
    /// Nothing: this is the address that was found, or 0.
    Done(u64),
}

/// The reason why a step is not taken here and now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// It would read too much.
    Bytes,
    /// The reply has no room for what it found.
    Full,
    /// Bytes from here on are elsewhere.
    Elsewhere(u64),
    /// It would write to a frozen region.
    Frozen(u64),
    /// Bytes from this address on cannot be read at a time.
    Failed(u64),
}

impl Stop {
    /// Returns the end of a procedure that goes on at `at`.
    pub(super) fn end(self, at: u64) -> End {
        let (status, at) = match self {
            Self::Bytes => (RunStatus::Bytes, at),
            Self::Full => (RunStatus::Full, at),
            Self::Elsewhere(at) => (RunStatus::Elsewhere, at),
            Self::Frozen(at) => (RunStatus::Frozen, at),
            Self::Failed(at) => (RunStatus::Failed, at),
        };
        End { status, at }
    }
}

/// A procedure. Its state is its arguments, which a step changes once it has read all that it needs.
pub(super) trait Run {
    /// Takes a step.
    ///
    /// # Errors
    ///
    /// [`Stop`]: it has changed nothing, and replied nothing.
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, Stop>;
}

/// The memory, limits and reply that a step works with.
pub(super) struct Cx<'a> {
    space: &'a mut dyn Space,
    spent: &'a mut Spent,
    limits: &'a Limits,
    reply: &'a mut Vec<u8>,
    scratch: [u8; READ_MAX],
}

impl<'a> Cx<'a> {
    pub(super) fn new(
        space: &'a mut dyn Space,
        (spent, limits): (&'a mut Spent, &'a Limits),
        reply: &'a mut Vec<u8>,
    ) -> Self {
        Self { space, spent, limits, reply, scratch: [0; READ_MAX] }
    }

    /// Returns how many of these bytes are here, from the first one on.
    pub(super) fn here(&mut self, at: u64, length: usize) -> usize {
        self.space.here(at, length)
    }

    /// Reads bytes, [`READ_MAX`] at most.
    pub(super) fn read(&mut self, at: u64, length: usize) -> Result<&[u8], Stop> {
        let length = length.min(READ_MAX);
        self.look(at, length)?;
        self.spend(length)?;
        let into = &mut self.scratch[..length];
        if self.space.read(at, into) { Ok(into) } else { Err(Stop::Elsewhere(at)) }
    }

    /// Reads bytes, at most so many as a reply has, and puts them behind the reply.
    pub(super) fn reply_from(&mut self, at: u64, length: usize) -> Result<(), Stop> {
        self.look(at, length)?;
        self.make_room(length)?;
        self.spend(length)?;
        let begin = self.reply.len();
        self.reply.resize(begin + length, 0);
        if !self.space.read(at, &mut self.reply[begin..]) {
            self.reply.truncate(begin);
            return Err(Stop::Elsewhere(at));
        }
        self.spent.replied += length as u32;
        Ok(())
    }

    /// Puts bytes behind the reply.
    pub(super) fn reply(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        self.make_room(bytes.len())?;
        self.reply.extend_from_slice(bytes);
        self.spent.replied += bytes.len() as u32;
        Ok(())
    }

    /// Replaces an aligned number that is as expected, and returns what was there.
    pub(super) fn cas64(&mut self, at: u64, old: u64, new: u64) -> Result<u64, Stop> {
        self.spend(8)?;
        self.space.cas64(at, old, new).map_err(|miss| match miss {
            Miss::Elsewhere => Stop::Elsewhere(at),
            Miss::Frozen => Stop::Frozen(at),
        })
    }

    /// Looks whether the reply has room for so many bytes.
    pub(super) fn make_room(&self, length: usize) -> Result<(), Stop> {
        let sum = u64::from(self.spent.replied) + length as u64;
        if sum > self.limits.reply.into() { Err(Stop::Full) } else { Ok(()) }
    }

    /// Looks whether bytes are here. The server that has the first of them has to have them all.
    fn look(&mut self, at: u64, length: usize) -> Result<(), Stop> {
        if at.checked_add(length as u64).is_none() {
            return Err(Stop::Failed(at));
        }
        match self.space.here(at, length) {
            here if here >= length => Ok(()),
            0 => Err(Stop::Elsewhere(at)),
            _ => Err(Stop::Failed(at)),
        }
    }

    fn spend(&mut self, length: usize) -> Result<(), Stop> {
        let sum = self.spent.bytes.saturating_add((length as u32).max(LEAST));
        if sum > self.limits.bytes {
            return Err(Stop::Bytes);
        }
        self.spent.bytes = sum;
        Ok(())
    }
}

/// Returns bytes of what was read. The arguments were checked to lie in it.
pub(super) fn part(bytes: &[u8], first: u32, length: usize) -> &[u8] {
    bytes.get(first as usize..).and_then(|from| from.get(..length)).unwrap_or_default()
}

/// Returns a number in what was read.
pub(super) fn number(bytes: &[u8], first: u32) -> u64 {
    part(bytes, first, 8).try_into().map_or(0, u64::from_le_bytes)
}
