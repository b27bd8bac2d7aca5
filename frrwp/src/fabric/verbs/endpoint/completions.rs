//! Completions: messages that came, posts that have ended, and their errors.

#![expect(unsafe_code, reason = "a union of libibverbs")]

use super::super::error::{VerbsEnd, status_text};
use super::super::ib;
use super::super::pair::{Pair, RECEIVE};
use super::{Arrival, PATIENCE, Posted, Queued, State, TICK, VerbsEndpoint};
use crate::fabric::traits::Completion;
use crate::wire::{MESSAGE, Segment};
use ib::ibv_wc_status as status;
use std::time::Instant;

impl VerbsEndpoint {
    /// Takes what has completed.
    pub(super) fn harvest(&mut self) {
        loop {
            let came = self.pair.as_ref().map(Pair::poll).unwrap_or_default();
            if came.is_empty() {
                break;
            }
            for completion in came {
                match completion.wr_id & RECEIVE {
                    0 => self.sent(&completion),
                    _ => self.received(&completion),
                }
            }
        }
        if let Some(why) = self.failed.take() {
            self.lose(why);
        }
        // Those for which there is no room wait.
        let _ = self.post_windows();
    }

    /// Returns whether anything came over a connection that is being set up.
    pub(in super::super) fn has_heard(&mut self) -> bool {
        self.harvest();
        self.heard
    }

    pub(super) fn received(&mut self, completion: &ib::ibv_wc) {
        let slot = (completion.wr_id & !RECEIVE) as u32;
        if completion.status != status::IBV_WC_SUCCESS {
            self.released(slot);
            return self.fails(completion.status, "message", None);
        }
        self.heard = true;
        let stands = self.state == State::Stands;
        if completion.opcode == ib::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
            self.released(slot);
            // SAFETY: the opcode says that there is one.
            let immediate = u32::from_be(unsafe { completion.imm_data_invalidated_rkey_union.imm_data });
            if stands {
                self.arrivals.push_back(Arrival::Told(Completion::Immediate(immediate)));
            }
        } else if stands {
            let length = (completion.byte_len as usize).min(MESSAGE);
            self.arrivals.push_back(Arrival::Message { slot, length });
        } else {
            self.released(slot);
        }
    }

    /// Something posted has ended: it is told when all before it have. siw ends a message or a write when it has left, though a read
    /// before it is still on its way.
    pub(super) fn sent(&mut self, completion: &ib::ibv_wc) {
        let at = completion.wr_id.wrapping_sub(self.first);
        let Some(queued) = usize::try_from(at).ok().and_then(|at| self.posted.get_mut(at)) else { return };
        queued.ended = Some(completion.status);
        while let Some(status) = self.posted.front().and_then(|first| first.ended) {
            let Some(Queued { what, .. }) = self.posted.pop_front() else { return };
            self.first += 1;
            self.ended(what, status);
        }
    }

    fn ended(&mut self, posted: Posted, said: status::Type) {
        let now = Instant::now();
        self.first_since = now;
        if now.saturating_duration_since(self.ticked) >= TICK {
            self.polls = PATIENCE;
        }
        let succeeded = said == status::IBV_WC_SUCCESS;
        let (name, mut to) = (posted.name(), None);
        match posted {
            Posted::Message(slot) => slot.into_iter().for_each(|slot| self.out.give(slot)),
            Posted::Part { id, is_last, reads, to: segment } => {
                self.heard |= succeeded && reads;
                to = Some(segment);
                if is_last {
                    self.arrivals.push_back(Arrival::Told(Completion::Done { id, succeeded }));
                }
            }
            Posted::Probe | Posted::Bind => {}
            Posted::Invalidate(number) => {
                if succeeded && let Some(windows) = &self.windows {
                    windows.closed(number);
                }
            }
        }
        if !succeeded {
            self.fails(said, name, to);
        }
    }

    /// Something has completed badly. The first that did says why; the rest is flushed.
    pub(super) fn fails(&mut self, said: status::Type, operation: &'static str, to: Option<Segment>) {
        let what = status_text(said);
        let iwarp = self.domain.0.able.iwarp;
        let end = match (said, to) {
            (status::IBV_WC_WR_FLUSH_ERR, _) => {
                let flushed = VerbsEnd::Broken { what };
                self.failed.get_or_insert(flushed);
                return;
            }
            (status::IBV_WC_REM_ACCESS_ERR, Some(Segment { address, length, key })) => {
                VerbsEnd::KeyRefused { operation, address, length, key }
            }
            // The status that siw gives all posts when the peer terminates the connection.
            (status::IBV_WC_LOC_QP_OP_ERR, _) if iwarp => VerbsEnd::Broken { what: "the peer's device ended it" },
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
        if !matches!(self.failed, Some(VerbsEnd::KeyRefused { .. } | VerbsEnd::Silent { .. })) {
            self.failed = Some(end);
        }
    }
}
