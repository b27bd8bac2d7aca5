//! A procedure that a client follows from server to server.
//!
//! Pure: the [`Runner`](super::Runner) sends it, and passes the answers on.

use super::table::AccessError;
use rdmakv_proto::far::messages::{Ran, Run, RunStatus};
use rdmakv_proto::far::procedures::Procedure;
use std::time::Duration;

/// How a procedure ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunEnd {
    /// It is done.
    Done,
    /// It came to the servers' limit of hops from one to another.
    Hops,
    /// It came to their limit of bytes that it reads.
    Bytes,
    /// It came to their limit of time.
    Time,
    /// The next part of its reply does not fit.
    Full,
    /// A step of its module took too long.
    Fuel,
    /// A step of its module did what it must not: it trapped, read outside of its memory, or went on after it had written.
    Trap,
}

/// The outcome of a procedure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: RunEnd,
    /// The address that it found, or 0. Not done: the address at which it goes on.
    pub at: u64,
    /// Its reply.
    pub reply: Vec<u8>,
    /// The procedure that goes on where this one ended, if it is not done.
    pub rest: Option<Procedure>,
    /// Hops from one server to another.
    pub hops: u32,
    /// Bytes that it read; each read counts as 64 at least.
    pub bytes: u32,
    /// How long it ran, without what it waited.
    pub time: Duration,
}

/// A procedure that came to nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunError {
    /// It is not under way any more, or it came to bytes that are not accessed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The runner cannot connect to a server that is not lost: it refuses connections, or as many use the memory there as may be.
    #[error(
        "run {procedure} on far memory: {server} takes no connection of the runner: {why}: drop lanes or runners, and try again"
    )]
    Unreachable {
        /// The procedure.
        procedure: &'static str,
        /// The server, as it was given.
        server: String,
        /// The reason.
        why: String,
    },
    /// It cannot have these arguments.
    #[error("run {procedure} on far memory: {what}: change its arguments")]
    Arguments {
        /// The procedure.
        procedure: &'static str,
        /// The bounds of arguments.
        what: &'static str,
    },
    /// A server runs none.
    #[error("run {procedure} on far memory: {server} runs no such procedure: raise its --far-threads, or update it")]
    Unable {
        /// The procedure.
        procedure: &'static str,
        /// The server, as it was given.
        server: String,
    },
    /// A server runs no modules.
    #[error(
        "run {procedure} on far memory: {server} runs no modules: start it with --far-wasm; it has to be built with --features wasm"
    )]
    NoModules {
        /// The procedure.
        procedure: &'static str,
        /// The server, as it was given.
        server: String,
    },
    /// A server has no such module.
    #[error(
        "run module {name:?} on far memory: {server} has none of that name: store it there, by `rdmakv far module add`"
    )]
    NoModule {
        /// Its name.
        name: String,
        /// The server, as it was given.
        server: String,
    },
    /// It reads bytes at a time that lie on two servers.
    #[error(
        "run {procedure} on far memory: the bytes at {at} lie on two servers: let nothing that is read at a time cross regions"
    )]
    Apart {
        /// The procedure.
        procedure: &'static str,
        /// The first byte.
        at: u64,
    },
}

/// The step after an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It goes on at the server that has this address.
    At(u64),
    /// It goes on at the same address once the region there takes writes.
    Again(u64),
    /// It has ended.
    Over(Result<Outcome, RunError>),
}

/// A procedure under way.
#[derive(Clone, Debug)]
pub(super) struct Running {
    procedure: Procedure,
    hops: u32,
    bytes: u32,
    micros: u32,
    reply: Vec<u8>,
}

impl Running {
    /// Returns a procedure that has not begun.
    ///
    /// # Errors
    /// [`RunError::Arguments`].
    pub(super) fn new(procedure: Procedure) -> Result<Self, RunError> {
        match procedure.check() {
            Ok(()) => Ok(Self { procedure, hops: 0, bytes: 0, micros: 0, reply: Vec::new() }),
            Err(malformed) => Err(RunError::Arguments { procedure: procedure.name(), what: malformed.0 }),
        }
    }

    pub(super) fn procedure(&self) -> &Procedure {
        &self.procedure
    }

    /// Returns the name of its module, or nothing.
    pub(super) fn module(&self) -> String {
        match &self.procedure {
            Procedure::Module(module) => String::from_utf8_lossy(&module.name).into_owned(),
            _ => String::new(),
        }
    }

    /// Returns the request by which it begins or goes on, with its arguments in `arguments`.
    pub(super) fn request<'a>(&self, request: u64, arguments: &'a mut Vec<u8>) -> Run<'a> {
        self.procedure.encode(arguments);
        let &Self { hops, bytes, micros, .. } = self;
        let replied = self.reply.len() as u32;
        Run { request, procedure: self.procedure.number(), hops, bytes, micros, replied, arguments }
    }

    /// Takes the answer of a server. It is not asked again after the end.
    pub(super) fn take(&mut self, ran: &Ran<'_>) -> Next {
        (self.bytes, self.micros) = (ran.bytes, ran.micros);
        self.reply.extend_from_slice(ran.reply);
        let procedure = self.procedure.name();
        let end = match ran.status {
            RunStatus::Done => return self.over(RunEnd::Done, ran.at, None),
            RunStatus::Failed => return Next::Over(Err(RunError::Apart { procedure, at: ran.at })),
            RunStatus::Frozen | RunStatus::Elsewhere => None,
            RunStatus::Hops => Some(RunEnd::Hops),
            RunStatus::Bytes => Some(RunEnd::Bytes),
            RunStatus::Time => Some(RunEnd::Time),
            RunStatus::Full => Some(RunEnd::Full),
            RunStatus::Fuel => Some(RunEnd::Fuel),
            RunStatus::Trap => Some(RunEnd::Trap),
        };
        match (Procedure::decode(self.procedure.number(), ran.arguments), end) {
            (Ok(rest), Some(end)) => self.over(end, ran.at, Some(rest)),
            (Ok(rest), None) if ran.status == RunStatus::Frozen => {
                self.procedure = rest;
                Next::Again(ran.at)
            }
            (Ok(rest), None) => {
                self.procedure = rest;
                self.hops = self.hops.saturating_add(1);
                Next::At(ran.at)
            }
            (Err(malformed), _) => Next::Over(Err(RunError::Arguments { procedure, what: malformed.0 })),
        }
    }

    fn over(&mut self, end: RunEnd, at: u64, rest: Option<Procedure>) -> Next {
        let (reply, time) = (std::mem::take(&mut self.reply), Duration::from_micros(self.micros.into()));
        Next::Over(Ok(Outcome { end, at, reply, rest, hops: self.hops, bytes: self.bytes, time }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmakv_proto::far::procedures::Walk;

    fn walk(at: u64) -> Procedure {
        Procedure::Walk(Walk { at, next: 0, key_at: 8, nodes: 9, length: 16, key: vec![1] })
    }

    fn arguments(of: &Procedure) -> Vec<u8> {
        let mut bytes = Vec::new();
        of.encode(&mut bytes);
        bytes
    }

    #[test]
    fn parts_at_servers_add_up() {
        let mut running = Running::new(walk(64)).unwrap();
        let rest = arguments(&walk(4096));
        let elsewhere = Ran {
            request: 7,
            status: RunStatus::Elsewhere,
            bytes: 100,
            micros: 20,
            at: 5000,
            arguments: &rest,
            reply: b"one",
        };
        assert_eq!(running.take(&elsewhere), Next::At(5000));
        let mut again = Vec::new();
        let request = running.request(7, &mut again);
        assert_eq!((request.hops, request.bytes, request.micros, request.replied), (1, 100, 20, 3));
        assert_eq!(again, rest);
        let done = Ran {
            status: RunStatus::Done,
            bytes: 150,
            micros: 30,
            at: 4096,
            arguments: b"",
            reply: b"two",
            ..elsewhere
        };
        let time = Duration::from_micros(30);
        let outcome =
            Outcome { end: RunEnd::Done, at: 4096, reply: b"onetwo".to_vec(), rest: None, hops: 1, bytes: 150, time };
        assert_eq!(running.take(&done), Next::Over(Ok(outcome)));
    }

    #[test]
    fn limits_return_the_rest() {
        let rest = arguments(&walk(4096));
        for (status, end) in [
            (RunStatus::Hops, RunEnd::Hops),
            (RunStatus::Bytes, RunEnd::Bytes),
            (RunStatus::Time, RunEnd::Time),
            (RunStatus::Full, RunEnd::Full),
            (RunStatus::Fuel, RunEnd::Fuel),
            (RunStatus::Trap, RunEnd::Trap),
        ] {
            let mut running = Running::new(walk(64)).unwrap();
            let ran = Ran { request: 7, status, bytes: 1, micros: 2, at: 4096, arguments: &rest, reply: b"" };
            let Next::Over(Ok(outcome)) = running.take(&ran) else { panic!("it has ended") };
            assert_eq!((outcome.end, outcome.rest), (end, Some(walk(4096))));
        }
    }

    #[test]
    fn frozen_regions_are_no_hop() {
        let mut running = Running::new(walk(64)).unwrap();
        let rest = arguments(&walk(4096));
        let status = RunStatus::Frozen;
        let ran = Ran { request: 7, status, bytes: 1, micros: 2, at: 4100, arguments: &rest, reply: b"" };
        assert_eq!(running.take(&ran), Next::Again(4100));
        assert_eq!((running.hops, running.procedure()), (0, &walk(4096)));
    }

    #[test]
    fn failures_say_what_to_do() {
        let of = |status, arguments| {
            let mut running = Running::new(walk(64)).unwrap();
            let ran = Ran { request: 7, status, bytes: 1, micros: 2, at: 4100, arguments, reply: b"" };
            let Next::Over(Err(error)) = running.take(&ran) else { panic!("it has ended") };
            error
        };
        assert_eq!(of(RunStatus::Failed, b""), RunError::Apart { procedure: "walk", at: 4100 });
        assert!(matches!(of(RunStatus::Elsewhere, b"short"), RunError::Arguments { .. }));
        let error = Running::new(Procedure::Walk(Walk { at: 0, next: 0, key_at: 0, nodes: 0, length: 0, key: vec![] }));
        assert!(error.unwrap_err().to_string().contains("change its arguments"));
    }
}
