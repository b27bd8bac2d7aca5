//! A client's own calls to servers of a cluster, beside the operations on keys.

use super::buffer::Part;
use super::membership::Layout;
use rdmakv_cluster::config::ServerId;
use rdmakv_cluster::wire::{ReplyFrame, RequestFrame};
use std::sync::Arc;

/// A reply with the bytes that follow it.
pub(super) type Came = (ReplyFrame, Vec<u8>);

/// A call to send.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The call's number, which its reply is given with.
    pub(super) number: u64,
    pub(super) to: ServerId,
    pub(super) key: Vec<u8>,
    pub(super) frame: RequestFrame,
    /// The bytes that follow it.
    pub(super) body: Part,
}

/// A state machine that makes calls. Its driver sends them, and gives it the replies.
pub(super) trait Caller {
    /// Does what is due, in the epoch of this layout.
    fn progress(&mut self, layout: &Arc<Layout>, now: u64) -> Vec<Outgoing>;

    /// Takes the reply to a call with the bytes that follow it; None if none comes.
    fn take(&mut self, number: u64, came: Option<Came>, now: u64) -> Vec<Outgoing>;

    /// Returns when it makes its next call, if it has none to make now and waits for no reply.
    fn rests_until(&self) -> Option<u64>;
}
