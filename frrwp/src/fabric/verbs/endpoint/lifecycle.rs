//! The states of a connection, and why it ended.

use super::super::error::{VerbsEnd, status_text};
use super::super::ib;
use crate::wire::Segment;
use ib::ibv_wc_status as status;
use std::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Connected,
    /// This side disconnects; what was posted may leave until then.
    Closing(Instant),
    Flushed,
}

/// The state of a connection, and the first reason for its end.
pub(super) struct Lifecycle {
    state: State,
    why: Option<VerbsEnd>,
    /// The device's reason for a bad completion.
    failure: Option<VerbsEnd>,
}

impl Lifecycle {
    pub(super) fn new() -> Self {
        Self { state: State::Connected, why: None, failure: None }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.state == State::Flushed
    }

    pub(super) fn why(&self) -> Option<&VerbsEnd> {
        self.why.as_ref()
    }

    /// Returns until when what was posted may leave, if this side disconnects.
    pub(super) fn closes_at(&self) -> Option<Instant> {
        match self.state {
            State::Closing(until) => Some(until),
            _ => None,
        }
    }

    /// Ends the connected state, for this reason if there is none yet. Returns false if it had ended before.
    pub(super) fn close(&mut self, why: VerbsEnd, until: Instant) -> bool {
        self.why.get_or_insert(why);
        let was_connected = self.is_connected();
        if was_connected {
            self.state = State::Closing(until);
        }
        was_connected
    }

    /// Notes that nothing that was posted will be carried out any more.
    pub(super) fn flush(&mut self) {
        self.state = State::Flushed;
    }

    /// Notes a bad completion. The first that is not a consequence of others gives the reason.
    pub(super) fn fail(&mut self, said: status::Type, operation: &'static str, to: Option<Segment>, is_iwarp: bool) {
        let what = status_text(said);
        let end = match (said, to) {
            (status::IBV_WC_WR_FLUSH_ERR, _) => {
                self.failure.get_or_insert(VerbsEnd::Broken { what });
                return;
            }
            (status::IBV_WC_REM_ACCESS_ERR, Some(Segment { address, length, key })) => {
                VerbsEnd::KeyRefused { operation, address, length, key }
            }
            // The status that siw gives all posts when the peer terminates the connection.
            (status::IBV_WC_LOC_QP_OP_ERR, _) if is_iwarp => VerbsEnd::Broken { what: "the peer's device ended it" },
            (status::IBV_WC_RETRY_EXC_ERR, _) => VerbsEnd::Silent { operation },
            (status::IBV_WC_RNR_RETRY_EXC_ERR, _) => VerbsEnd::NotReceiving { operation },
            (
                status::IBV_WC_LOC_LEN_ERR
                | status::IBV_WC_LOC_QP_OP_ERR
                | status::IBV_WC_LOC_PROT_ERR
                | status::IBV_WC_LOC_ACCESS_ERR
                | status::IBV_WC_MW_BIND_ERR,
                _,
            ) => VerbsEnd::Local { operation, what },
            _ => VerbsEnd::Broken { what },
        };
        if !matches!(self.failure, Some(VerbsEnd::KeyRefused { .. } | VerbsEnd::Silent { .. })) {
            self.failure = Some(end);
        }
    }

    /// Returns the reason for a bad completion, once.
    pub(super) fn take_failure(&mut self) -> Option<VerbsEnd> {
        self.failure.take()
    }
}
