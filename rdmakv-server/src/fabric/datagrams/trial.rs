//! Messages for the executor, without a network: what fuzzing gives it.

use std::sync::Arc;

use super::execute::Executor;
use super::{DatagramState, Terms, UDP};
use crate::session::{Settings, Shards, Shared};
use crate::store::Config;
use frrwp::fabric::reliability::ServerLimits;
use rdmakv_proto::datagrams::effect;
use rdmakv_proto::eager::DATAGRAMS;
use rdmakv_proto::messages::{self, Reply};

const MEMORY: usize = 4 << 20;
const NOW: u64 = 1_000_000;

/// Returns the state of an empty server.
///
/// # Panics
/// There is no memory.
pub(super) fn state(settings: Settings) -> DatagramState {
    let config = Config { memory: MEMORY, extra: 0, huge: false, ..Config::default() };
    let shards = Shards::new(&config, 1).expect("memory");
    let shared = Arc::new(Shared::new(shards, settings, NOW));
    let terms = Terms { name: UDP, incarnation: 1, eager: DATAGRAMS, limits: ServerLimits::default() };
    DatagramState::new(shared, terms, None)
}

/// Has one client's messages carried out on an empty server. Returns whether all of them were understood.
///
/// # Panics
/// A reply is not one, or not of the message's id, or a message that may be carried out twice changes items.
pub fn try_messages<'a>(all: impl Iterator<Item = &'a [u8]>) -> bool {
    let state = state(Settings { threads: 1, ..Settings::default() });
    let shared = &state.shared;
    let mut executor = Executor::new(&state, 0);
    let items = || {
        let mut items = 0;
        shared.shards.each(|store| items += store.len());
        items
    };
    let (mut note, mut reply) = (0, Vec::new());
    for message in all {
        let before = items();
        note = executor.execute(message, note, &mut reply);
        if effect(message).is_read {
            assert!(items() <= before, "a read adds no item");
        }
        let (id, kind, more, bytes) = messages::fragment(&reply).expect("a reply");
        assert!(!more, "a reply is whole");
        assert!(message.first_chunk().is_none_or(|own| id == u32::from_le_bytes(*own)), "of its own request");
        assert!(Reply::decode(kind, bytes).is_ok(), "{kind:?}");
        executor.publish();
    }
    state.counts.malformed.load(std::sync::atomic::Ordering::Relaxed) == 0
}
