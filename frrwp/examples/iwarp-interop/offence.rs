//! Rules that are broken on purpose, by this side or, misled by it, by the peer.
//!
//! rping's server reads and writes where its client tells it to, so a client with a wrong key has it offend. This side's
//! output then is this crate's; the peer's log has its view of it.

use crate::exchange::{Exchange, Trouble};
use clap::ValueEnum;
use frrwp::fabric::iwarp::IwarpEnd;
use frrwp::fabric::iwarp::terminate::Terminate;
use frrwp::wire::Segment;
use std::fmt;

/// No implementation gives this key out so early.
const NOBODY_S: u32 = 0xdead_be00;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Offence {
    /// Writes with a key that the peer never gave out
    Write,
    /// Reads with a key that the peer never gave out
    Read,
    /// Has the peer read with a key that this side never gave out
    PeerReads,
    /// Has the peer write with a key that this side never gave out
    PeerWrites,
}

/// The outcome.
pub(crate) enum End {
    Of(Option<IwarpEnd>),
    Trouble(Trouble),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(Some(end)) => write!(f, "{end}"),
            Self::Of(None) => f.write_str("the connection ended for an unknown reason"),
            Self::Trouble(trouble) => write!(f, "{trouble:?}"),
        }
    }
}

impl Offence {
    pub(crate) fn commit(self, mut exchange: Exchange<'_, '_>) -> End {
        match self.begin(&mut exchange).and_then(|()| exchange.end()) {
            Ok(end) => End::Of(end),
            Err(trouble) => End::Trouble(trouble),
        }
    }

    fn begin(self, exchange: &mut Exchange<'_, '_>) -> Result<(), Trouble> {
        // A connection that is not established ends otherwise, and takes Linux's iw_cm with it: where a first frame that comes after
        // a ready-to-receive is an offence, it finds the connection closed before it was established, and says BUG.
        exchange.ping(0)?;
        let nobody_s = Segment { address: 4096, key: NOBODY_S, length: 64 };
        let ours = exchange.segment(0);
        match self {
            Self::Write => exchange.write(nobody_s),
            Self::Read => exchange.read(nobody_s),
            Self::PeerReads => exchange.tell(Segment { key: NOBODY_S, ..ours }),
            Self::PeerWrites => {
                exchange.tell(ours)?;
                exchange.told()?;
                exchange.tell(Segment { key: NOBODY_S, ..ours })
            }
        }
    }

    /// Returns whether the connection ended as it should have.
    pub(crate) fn is_answered_by(self, end: &End) -> bool {
        let End::Of(Some(end)) = end else { return false };
        *end == match self {
            Self::Write => IwarpEnd::Terminated(Some(Terminate::DDP_INVALID_TAG)),
            Self::Read => IwarpEnd::Terminated(Some(Terminate::INVALID_TAG)),
            Self::PeerReads => IwarpEnd::Breach(Terminate::INVALID_TAG),
            Self::PeerWrites => IwarpEnd::Breach(Terminate::DDP_INVALID_TAG),
        }
    }
}
