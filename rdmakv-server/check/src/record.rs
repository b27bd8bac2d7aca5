//! Requests of a client and their answers: operations as they are written down, and the step that each amounts to.

use crate::history::{Operation, Step, Value};

/// The path that an operation took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// The text protocol over TCP.
    Tcp,
    /// Our client library over TCP.
    Socket,
    /// Our client library, by shared memory.
    Shm,
    /// Our client library, over iWARP.
    Iwarp,
    /// GETs in datagrams, and the rest over TCP.
    Udp,
    /// Our client library, by datagrams.
    Datagrams,
    /// Our client library, by datagrams, and over iWARP while it is among the busiest.
    Hybrid,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Tcp, Self::Socket, Self::Shm, Self::Iwarp, Self::Udp, Self::Datagrams, Self::Hybrid];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Socket => "socket",
            Self::Shm => "shm",
            Self::Iwarp => "iwarp",
            Self::Udp => "udp",
            Self::Datagrams => "datagrams",
            Self::Hybrid => "hybrid",
        }
    }
}

impl std::str::FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let transport = Self::ALL.into_iter().find(|transport| transport.name() == text);
        transport.ok_or_else(|| {
            format!("{text}: no such transport; there are udp, tcp, socket, shm, iwarp, datagrams and hybrid")
        })
    }
}

/// The request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// The value.
    Get,
    /// This value from now on.
    Set(Value),
    /// This value, if there is none.
    Add(Value),
    /// This value, if the other is still there.
    Cas {
        /// The one that should be there.
        from: Value,
        /// The one that should be there from now on.
        to: Value,
    },
    /// One more.
    Incr,
    /// Nothing from now on.
    Delete,
    /// Another expiry.
    Touch,
    /// Nothing under any key from now on.
    Flush,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// No answer came: it may have taken effect, or may yet.
    Unknown,
    /// This value was there (GET), or is there now (INCR).
    Value(Value),
    /// It was done.
    Done,
    /// ADD: there was a value. CAS: there was another.
    Refused,
    /// There was none.
    Absent,
    /// It was not done: there was no memory (the value may have gone), or no server to ask.
    NotDone,
    /// The value was of two versions, or not as long as its version is.
    Torn(Value, Value),
}

/// One line of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was asked for, in nanoseconds since the machine started.
    pub begin: u64,
    /// When the answer was there. If there was none: when it could take effect no longer, [`NEVER`](crate::history::NEVER) if that is unknown.
    pub end: u64,
    /// The key, by its number.
    pub key: u32,
    /// See [`Request`].
    pub request: Request,
    /// See [`Answer`].
    pub answer: Answer,
    /// The expiry that was asked for, in seconds; 0 is none.
    pub expiry: u8,
    /// The path.
    pub transport: Transport,
    /// Whether the server had no part in it.
    pub one_sided: bool,
}

impl Record {
    /// Returns the expiry that it gave, or may have given, to the value: in seconds, 0 is none.
    pub fn given_expiry(&self) -> Option<u8> {
        let writes = matches!(self.request, Request::Set(_) | Request::Add(_) | Request::Cas { .. } | Request::Touch);
        (writes && matches!(self.answer, Answer::Done | Answer::Unknown)).then_some(self.expiry)
    }

    /// Returns its meaning for its key; `None` if it has none.
    pub fn operation(&self) -> Option<Operation> {
        let at = |certain, step| Some(Operation { begin: self.begin, end: self.end, certain, step });
        let sure = |step| at(true, step);
        match (self.request, self.answer) {
            (_, Answer::NotDone | Answer::Torn(..)) => None,
            (Request::Get, Answer::Value(value)) => sure(Step::Read(value)),
            (Request::Set(value) | Request::Add(value), Answer::Done) => sure(Step::Write(value)),
            (Request::Add(_), Answer::Refused) => sure(Step::Present { not: None }),
            (Request::Cas { from, to }, Answer::Done) => sure(Step::Swap { from, to }),
            (Request::Cas { from, .. }, Answer::Refused) => sure(Step::Present { not: Some(from) }),
            (Request::Incr, Answer::Value(value)) => sure(Step::Swap { from: value.wrapping_sub(1), to: value }),
            (Request::Delete, Answer::Done) => sure(Step::Take),
            (Request::Touch, Answer::Done) => sure(Step::Present { not: None }),
            (Request::Flush, Answer::Done) | (_, Answer::Absent) => sure(Step::Gone),
            (Request::Set(value) | Request::Add(value), Answer::Unknown) => at(false, Step::Write(value)),
            (Request::Cas { from, to }, Answer::Unknown) => at(false, Step::Swap { from, to }),
            (Request::Incr, Answer::Unknown) => at(false, Step::Count),
            (Request::Touch, Answer::Unknown) => at(false, Step::Present { not: None }),
            _ => None,
        }
    }
}
