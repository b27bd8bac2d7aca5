//! The interface of a format to its machinery: pieces in, events out.

use crate::frames::{Framing, Taken};
use crate::{Event, Span, Step};
use mrrc_core::Access;
use std::collections::VecDeque;

/// The result of parsing a piece.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// One event.
    Event(Event),
    /// Events, put into the queue.
    Queued,
    /// Understood, at the first reading of two.
    Noted,
    /// No event and not meant to be one: a header, a comment, a mark.
    Other,
    /// Understood, and of a kind that is not read.
    LeftOut(&'static str),
    /// Not understood.
    Bad(&'static str),
    /// Not understood, and nothing after it can be.
    Broken(String),
}

/// A format. Made anew for each member of an archive.
pub(crate) trait Parser: Send {
    fn framing(&self) -> Framing {
        Framing::Lines
    }

    /// Reads a piece. `queue` takes events, if there can be several.
    fn parse(&mut self, piece: &[u8], queue: &mut VecDeque<Event>) -> Outcome;

    /// Reads whole pieces at the first reading of two, one after the other, and returns those. It stops before one that
    /// [`Parser::parse`] would not [note](Outcome::Noted).
    fn note(&mut self, pieces: &[u8]) -> Taken {
        let _ = pieces;
        Taken::default()
    }

    /// Reads whole pieces at the last reading, one after the other, adds a step for each, and returns those. It stops before one that
    /// [`Parser::parse`] would not make a request of one range of.
    fn requests(&mut self, pieces: &[u8], steps: &mut Vec<Step>) -> Taken {
        let _ = (pieces, steps);
        Taken::default()
    }

    /// Takes the end of the first reading, where the format is read twice. There were so many pieces.
    fn lay_out(&mut self, pieces: u64) {
        let _ = pieces;
    }

    /// At the last reading, adds steps for the next requests if it knows them from the first one, and returns whether it knows more.
    /// It adds some at each call, up to the last piece, or none ever.
    fn recall(&mut self, steps: &mut Vec<Step>) -> bool {
        let _ = steps;
        false
    }

    /// Returns how many events have a time that could not be read.
    fn untimed(&self) -> u64 {
        0
    }

    /// Judges all pieces together, at the end. The error says why they make no sense.
    fn judge(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the assumptions, in a sentence after the format's name.
    fn understood(&self) -> String;
}

/// Returns a request for one range, or what is wrong with it.
pub(crate) fn request(time: u64, client: u32, access: Access, span: Span) -> Outcome {
    if span.length == 0 {
        return Outcome::Bad(crate::layout::NO_BYTES);
    }
    if span.pages().is_err() {
        return Outcome::Bad("the request reaches past the end of the address space");
    }
    Outcome::Event(Event { time, client, ..Event::request(span, access) })
}

/// Blocks of so many bytes each, from this one on.
pub(crate) fn blocks(start: u64, count: u64, size: u64) -> Option<Span> {
    Some(Span { address: start.checked_mul(size)?, length: count.checked_mul(size)? })
}

/// Said of blocks that no address space has.
pub(crate) const PAST_END: &str = "the request reaches past the end of the address space";

/// Returns the access for a word for a read or a write; `None` for any other.
///
/// Besides words, the operation codes of SCSI, as VMware records them.
pub(crate) fn access(word: &[u8]) -> Option<Access> {
    const READS: [&str; 9] = ["r", "read", "rs", "rd", "get", "28", "88", "a8", "local-read"];
    const WRITES: [&str; 10] = ["w", "write", "ws", "wr", "put", "set", "2a", "8a", "aa", "local-write"];
    let is = |known: &&str| word.eq_ignore_ascii_case(known.as_bytes());
    if READS.iter().any(&is) {
        return Some(Access::LOCAL_READ);
    }
    WRITES.iter().any(&is).then_some(Access::LOCAL_WRITE)
}
