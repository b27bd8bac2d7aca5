//! Errors, with the operation, the key, the server, and the remedy.

use std::fmt;
use std::time::Duration;

/// The requested operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the client's methods say what they are")]
pub enum Operation {
    Get,
    Gat,
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
    Delete,
    Touch,
    Incr,
    Decr,
    Stats,
    Version,
    Flush,
    /// A call of the replication protocol, which is a part of another operation.
    #[doc(hidden)]
    Call,
}

impl Operation {
    /// Returns whether it changes nothing that another client could see, so that it may be done twice.
    pub fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::Stats | Self::Version)
    }

    /// Returns whether it is of one key.
    pub fn has_key(self) -> bool {
        !matches!(self, Self::Stats | Self::Version | Self::Flush)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Gat => "gat",
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Append => "append",
            Self::Prepend => "prepend",
            Self::Cas => "cas",
            Self::Delete => "delete",
            Self::Touch => "touch",
            Self::Incr => "incr",
            Self::Decr => "decr",
            Self::Stats => "stats",
            Self::Version => "version",
            Self::Flush => "flush",
            Self::Call => "call",
        }
    }
}

/// Which operation, on what, where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    /// The requested operation.
    pub operation: Operation,
    /// The key; empty where the operation has none.
    pub key: Vec<u8>,
    /// The server, as it was given.
    pub server: String,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation.name())?;
        if !self.key.is_empty() {
            write!(f, " \"{}\"", self.key.escape_ascii())?;
        }
        write!(f, " at {}", self.server)
    }
}

/// A way to a server that does not stand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WayDown {
    /// Its address, as it was given.
    pub address: String,
    /// The reason.
    pub why: String,
}

impl fmt::Display for WayDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Most reasons name what they are about.
        if self.why.contains(&self.address) {
            f.write_str(&self.why)
        } else {
            write!(f, "{}: {}", self.address, self.why)
        }
    }
}

fn list(ways: &[WayDown]) -> String {
    ways.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Returns what so few servers mean.
fn few(servers: usize) -> String {
    match servers {
        0 => "no server is up".to_owned(),
        1 => "1 server is up, so the value would not survive its loss".to_owned(),
        _ => format!("{servers} servers are up, so the value would not survive the loss of one"),
    }
}

/// Why an operation came to nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text names no server.
    #[error("`{text}` is no server: {what}")]
    Address {
        /// The given text.
        text: String,
        /// The fault and the right form.
        what: &'static str,
    },
    /// No server was named.
    #[error("no server was named: name at least one, such as tcp:127.0.0.1:11211")]
    NoServer,
    /// The key is none.
    #[error("{} \"{}\": {what}", operation.name(), key.escape_ascii())]
    Key {
        /// The requested operation.
        operation: Operation,
        /// The key.
        key: Vec<u8>,
        /// The fault and the remedy.
        what: &'static str,
    },
    /// No way to the server stands.
    #[error(
        "{about}: no connection: {}: see that the server runs and listens there, or name another address",
        list(ways)
    )]
    Unreachable {
        /// Which operation.
        about: About,
        /// Each way that does not stand, and why, the best one first.
        ways: Vec<WayDown>,
    },
    /// The answer did not come in time. Nothing was changed.
    #[error(
        "{about}: no answer within {} ms: see whether the server is busy or stopped, or raise Options::timeout",
        after.as_millis()
    )]
    TimedOut {
        /// Which operation.
        about: About,
        /// How long it was waited for.
        after: Duration,
    },
    /// The request was sent and its answer is lost: the server may have carried it out, may do so yet, or never will. Read, and
    /// decide.
    #[error("{about}: the outcome is unknown, it may or may not have been done: {why}: get the key to see")]
    OutcomeUnknown {
        /// Which operation.
        about: About,
        /// The fate of the answer.
        why: String,
    },
    /// The server says no.
    #[error("{about}: the server says: {said}")]
    Refused {
        /// Which operation.
        about: About,
        /// In its words.
        said: String,
    },
    /// The server's answer makes no sense. The connection was closed.
    #[error("{about}: the answer makes no sense ({what}): see whether it is memcached 1.6 or later, or rdmakv-server")]
    Nonsense {
        /// Which operation.
        about: About,
        /// The fault.
        what: &'static str,
    },
    /// As many operations as may be are under way or have ended without their results being taken.
    #[error("{}: {most} operations are open: wait for one of them, or raise Options::window", operation.name())]
    Full {
        /// The requested operation.
        operation: Operation,
        /// The window.
        most: usize,
    },
    /// The ticket is another client's.
    #[error("the ticket is another client's: wait for it at the one that gave it")]
    OtherClient,
    /// The configuration of the cluster could not be read.
    #[error("{why}")]
    Configuration {
        /// The operation, the cause and the remedy.
        why: String,
    },
    /// Too few servers are left for a write that is to survive the loss of one, or none for a read. Nothing was changed.
    #[error(
        "{about}: {}: start another server, or wait until it has joined",
        few(*servers)
    )]
    TooFew {
        /// Which operation.
        about: About,
        /// How many servers are up.
        servers: usize,
    },
    /// Fewer fragments of the value are left than make it: more servers of the key were lost than its policy allows.
    #[error(
        "{about}: {found} {} left and {needed} make the value: it is lost: store it again, and give its prefix a policy with more parity",
        if *found == 1 { "fragment is" } else { "fragments are" }
    )]
    Lost {
        /// Which operation.
        about: About,
        /// Fragments that are left.
        found: usize,
        /// Fragments that make the value.
        needed: usize,
    },
    /// Other writes of the key came first each time. Bytes are added to a value in fragments only if nothing changed it since it was read.
    /// Nothing was changed.
    #[error(
        "{about}: other writes came first {attempts} times: try again, or add to the key from fewer clients at once"
    )]
    Contended {
        /// Which operation.
        about: About,
        /// How often it was tried.
        attempts: u32,
    },
    /// No server could answer for the key in time. Nothing was changed.
    #[error(
        "{about}: not served within {} ms: {why}: see `rdmakv cluster status`, or raise Cluster::give_up_after",
        after.as_millis()
    )]
    NotServed {
        /// Which operation.
        about: About,
        /// How long it was tried.
        after: Duration,
        /// The last obstacle.
        why: String,
    },
    /// Some servers of a cluster did not take a call that all have to take. Others may have taken it.
    #[error(
        "{operation} generation {generation} of inode {inode:x}: {} did not take it within {} ms: see `rdmakv cluster status`, and try again",
        if servers.is_empty() { "a cluster without servers".to_owned() } else { servers.join(", ") },
        after.as_millis()
    )]
    NotEverywhere {
        /// The operation.
        operation: &'static str,
        /// The file's inode.
        inode: u64,
        /// Its generation.
        generation: u64,
        /// The names of these servers.
        servers: Vec<String>,
        /// How long it was tried.
        after: Duration,
    },
    /// The operation is not possible on a key of which several servers have copies.
    #[error("{about}: {why}")]
    Unsupported {
        /// Which operation.
        about: About,
        /// The reason and the remedy.
        why: &'static str,
    },
    /// No memory for fabrics.
    #[error("memory for fabrics: {why}: see Options::value_memory and Options::transfer_memory")]
    Memory {
        /// The refusal.
        why: String,
    },
}

impl Error {
    /// Which operation it is about, if it came so far.
    pub fn about(&self) -> Option<&About> {
        match self {
            Self::Unreachable { about, .. }
            | Self::TimedOut { about, .. }
            | Self::OutcomeUnknown { about, .. }
            | Self::Refused { about, .. }
            | Self::TooFew { about, .. }
            | Self::Lost { about, .. }
            | Self::Contended { about, .. }
            | Self::NotServed { about, .. }
            | Self::Unsupported { about, .. }
            | Self::Nonsense { about, .. } => Some(about),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_count_servers_and_fragments() {
        let about = About { operation: Operation::Set, key: b"k".into(), server: "cluster main".to_owned() };
        for (servers, says) in
            [(0, ": no server is up: start"), (1, ": 1 server is up, so"), (2, ": 2 servers are up, so")]
        {
            let why = Error::TooFew { about: about.clone(), servers }.to_string();
            assert!(why.contains(says), "{why}");
        }
        for (found, says) in [(0, ": 0 fragments are left and 2"), (1, ": 1 fragment is left and 2")] {
            let why = Error::Lost { about: about.clone(), found, needed: 2 }.to_string();
            assert!(why.contains(says), "{why}");
        }
    }
}
