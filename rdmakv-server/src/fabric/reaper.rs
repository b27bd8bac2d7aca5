//! Looks after ended leases and tags, and registrations that are not needed any more.
//!
//! A thread for each fabric, which sleeps while no client has a tag. Its drops may wait for peers, so it holds no
//! lock then.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::grants::count_reads;
use super::providers::Fabric;
use super::state::FabricState;
use crate::metrics::Counts;
use rdmakv_proto::clock;

/// Rounds in the time of a lease.
const ROUNDS: u32 = 8;
/// Between rounds at least, whatever the lease.
const LEAST: Duration = Duration::from_millis(5);
/// Leases, tags and records that are looked at with a lock held.
const PIECE: usize = 1024;
/// And in a round.
const A_ROUND: usize = 1 << 20;

/// Starts it. It publishes its counts at this seat, and ends when the state's bell says so.
///
/// # Errors
///
/// No thread.
pub(super) fn start<F: Fabric>(state: Arc<FabricState<F>>, seat: usize) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name(format!("{}-reaper", F::NAME)).spawn(move || {
        let round = (state.terms.lease / ROUNDS).max(LEAST);
        let mut counts = Counts::default();
        let mut idle = false;
        while !state.bell.wait(round, idle) {
            idle = reap(&state, &mut counts);
            if let Ok(mut published) = state.shared.counts[seat].lock() {
                *published = counts;
            }
        }
        reap(&state, &mut counts);
    })
}

/// A round; returns whether nothing is left to look after.
fn reap<F: Fabric>(state: &FabricState<F>, counts: &mut Counts) -> bool {
    // First, as what follows may take a while.
    let held = state.fabric.hold_table();
    let now = clock::nanos();
    let shards = &state.shared.shards;
    for shard in 0..shards.count() {
        let mut swept = 0;
        while swept < A_ROUND && shards.at(shard).sweep(now, PIECE) == PIECE {
            swept += PIECE;
        }
    }
    let (mut read, mut looked, mut records) = (Vec::new(), 0, 1);
    while looked < records.min(A_ROUND) {
        let mut tags = state.tags();
        tags.counted(PIECE, |address, reads| read.push((address, reads)));
        records = tags.counts().records;
        drop(tags);
        looked += PIECE;
        for (address, reads) in read.drain(..) {
            counts.cmd_get += reads;
            count_reads(state, address, reads, now, &mut counts.get_hits);
        }
    }
    let mut rounds = 0;
    loop {
        let mut tags = state.tags();
        tags.sweep(now, PIECE);
        let ended = tags.take_ended();
        let more = (ended.tags.len() >= PIECE / 2 || tags.is_behind(now)) && rounds < A_ROUND / PIECE;
        drop(tags);
        rounds += 1;
        drop(ended.tags);
        ended.registrations.into_iter().for_each(|registration| state.fabric.release(registration));
        drop(ended.records);
        if !more {
            break;
        }
    }
    let buried = state.fabric.bury() && !held;
    let now = state.tags().counts();
    buried && now.tags == 0 && now.pins == 0 && now.left == 0
}
