//! Why a transfer cannot go on, in words and as a number.

use std::fmt;

/// Why a transfer cannot go on, as it is told to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The memory could not be registered.
    Registration,
    /// The buffer is too small; this length would do.
    TooLong {
        /// Bytes.
        needed: u64,
    },
    /// A bound of the peer's was reached: try later.
    Busy,
    /// Given up.
    Cancelled,
    /// Time ran out.
    TimedOut,
    /// No such transfer was ever opened.
    UnknownTag,
    /// The message contradicts itself, this format or what was said before.
    Malformed,
    /// The message is of a version that is not spoken; this one is.
    Version {
        /// The newest version that the peer speaks.
        spoken: u8,
    },
    /// The application does not want it.
    Refused,
    /// A reason that this version does not know.
    Other(u16),
}

impl Reason {
    pub(super) fn code(self) -> (u16, u64) {
        match self {
            Self::Registration => (1, 0),
            Self::TooLong { needed } => (2, needed),
            Self::Busy => (3, 0),
            Self::Cancelled => (4, 0),
            Self::TimedOut => (5, 0),
            Self::UnknownTag => (6, 0),
            Self::Malformed => (7, 0),
            Self::Version { spoken } => (8, u64::from(spoken)),
            Self::Refused => (9, 0),
            Self::Other(code) => (code, 0),
        }
    }

    pub(super) fn of_code(code: u16, needed: u64) -> Self {
        match code {
            1 => Self::Registration,
            2 => Self::TooLong { needed },
            3 => Self::Busy,
            4 => Self::Cancelled,
            5 => Self::TimedOut,
            6 => Self::UnknownTag,
            7 => Self::Malformed,
            8 => Self::Version { spoken: needed as u8 },
            9 => Self::Refused,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registration => f.write_str("its memory could not be registered: see the error there"),
            Self::TooLong { needed } => write!(f, "the buffer is too small, {needed} bytes are needed: lend as many"),
            Self::Busy => {
                f.write_str("a bound of the connection was reached: try again when other transfers have ended")
            }
            Self::Cancelled => f.write_str("cancelled"),
            Self::TimedOut => f.write_str("time ran out on that side"),
            Self::UnknownTag => f.write_str("no such transfer is open"),
            Self::Malformed => f.write_str("a message made no sense: do both sides run the same release?"),
            Self::Version { spoken } => {
                write!(f, "versions differ, version {spoken} is spoken there: run the same release on both sides")
            }
            Self::Refused => f.write_str("refused by the application"),
            Self::Other(code) => write!(f, "reason {code}, which this version does not know"),
        }
    }
}
