//! One thread's share of bursty load: which connection begins a block when, and what chunk comes next. No sockets, no clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::{Rng, RngExt};

use crate::protocol::{Ask, Op};
use crate::traffic::Bursts;

/// The state of a thread's connections.
#[derive(Debug)]
pub(crate) struct Clients {
    plan: Bursts,
    clients: Vec<Client>,
    /// The times and connections of the next blocks.
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

#[derive(Debug)]
struct Client {
    /// The first of its keys.
    base: u64,
    /// Blocks begun.
    begun: u64,
    op: Op,
    /// Chunks to be asked for, and chunks in all that are not done.
    left: u64,
    undone: u64,
    /// When the block was to begin.
    scheduled: u64,
    /// When the one before ended.
    free: u64,
}

/// A block that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) conn: usize,
    /// When it was to.
    pub(crate) scheduled: u64,
    /// How late that is, whatever the server did.
    pub(crate) late: u64,
    /// Whether the block before was still under way.
    pub(crate) overrun: bool,
}

impl Clients {
    /// Connections `first` and after it, so many, of all there are.
    pub(crate) fn new(plan: &Bursts, first: usize, count: usize, all: usize) -> Self {
        let mut next = BinaryHeap::new();
        let clients = (0..count).map(|at| {
            let global = first + at;
            let part = if plan.staggered { global as f64 / all.max(1) as f64 } else { 0.0 };
            let start = plan.period.map_or(0.0, |period| period.as_nanos() as f64 * part) as u64;
            next.push(Reverse((start, at)));
            let base = global as u64 * plan.blocks * plan.chunks();
            Client { base, begun: 0, op: Op::Set, left: 0, undone: 0, scheduled: start, free: 0 }
        });
        let clients = clients.collect();
        Self { plan: plan.clone(), clients, next }
    }

    /// When the next block is to begin, if one waits.
    pub(crate) fn next_time(&self) -> Option<u64> {
        self.next.peek().map(|Reverse((time, _))| *time)
    }

    /// How many blocks are to begin before this time and have not.
    pub(crate) fn left_before(&self, to: u64) -> u64 {
        let Some(period) = self.plan.period.map(|period| (period.as_nanos() as u64).max(1)) else { return 0 };
        let waiting = self.next.iter().map(|Reverse((time, _))| *time);
        let busy = self.clients.iter().filter(|client| client.undone > 0).map(|client| client.scheduled + period);
        waiting.chain(busy).map(|next| to.saturating_sub(next).div_ceil(period)).sum()
    }

    /// Begins the next block that is due, if it was to begin before the end.
    pub(crate) fn begin(&mut self, now: u64, end: u64, random: &mut impl Rng) -> Option<Begun> {
        let &Reverse((time, conn)) = self.next.peek()?;
        if time > now || time >= end {
            return None;
        }
        self.next.pop();
        let client = &mut self.clients[conn];
        client.op = if self.plan.reads > 0.0 && random.random_bool(self.plan.reads) { Op::Get } else { Op::Set };
        client.begun += 1;
        client.left = self.plan.chunks();
        client.undone = client.left;
        client.scheduled = time;
        let overrun = client.free > time;
        Some(Begun { conn, scheduled: time, late: now - time.max(client.free), overrun })
    }

    /// Returns the next chunk of a connection's block.
    pub(crate) fn chunk(&mut self, conn: usize) -> Option<Ask> {
        let client = &mut self.clients[conn];
        if client.left == 0 {
            return None;
        }
        let chunks = self.plan.chunks();
        let block = (client.begun - 1) % self.plan.blocks;
        let key = client.base + block * chunks + (chunks - client.left);
        client.left -= 1;
        Some(Ask::new(client.op, key))
    }

    /// So many chunks of its block are done; returns when the block was to begin if that was the last.
    pub(crate) fn done(&mut self, conn: usize, chunks: u64, now: u64) -> Option<u64> {
        let client = &mut self.clients[conn];
        client.undone = client.undone.saturating_sub(chunks);
        if client.undone > 0 || chunks == 0 {
            return None;
        }
        client.free = now;
        let after_pause = now + self.plan.pause.as_nanos() as u64;
        let next = self.plan.period.map_or(after_pause, |period| client.scheduled + period.as_nanos() as u64);
        self.next.push(Reverse((next, conn)));
        Some(client.scheduled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64;
    use std::time::Duration;

    fn plan() -> Bursts {
        let (period, pause) = (Some(Duration::from_nanos(1000)), Duration::ZERO);
        Bursts { block: 40, chunk: 10, blocks: 2, reads: 0.0, period, pause, staggered: false }
    }

    #[test]
    fn connections_write_own_blocks_by_chunks() {
        let mut random = Pcg64::seed_from_u64(1);
        let mut clients = Clients::new(&plan(), 3, 2, 5);
        for (time, blocks) in [(0, [24, 32]), (1000, [28, 36]), (2000, [24, 32])] {
            assert_eq!(clients.next_time(), Some(time));
            for first in blocks {
                let begun = clients.begin(time, u64::MAX, &mut random).unwrap();
                let keys: Vec<u64> = std::iter::from_fn(|| Some(clients.chunk(begun.conn)?.key)).collect();
                assert_eq!(keys, [first, first + 1, first + 2, first + 3]);
                assert_eq!(clients.done(begun.conn, 3, time + 500), None);
                assert_eq!(clients.done(begun.conn, 1, time + 600), Some(time));
            }
            assert_eq!(clients.begin(time + 600, u64::MAX, &mut random), None, "it is off");
        }
    }

    #[test]
    fn late_block_counts_from_its_schedule() {
        let mut random = Pcg64::seed_from_u64(1);
        let mut clients = Clients::new(&plan(), 0, 1, 1);
        clients.begin(10, u64::MAX, &mut random).unwrap();
        clients.done(0, 4, 2500);
        let begun = clients.begin(2510, u64::MAX, &mut random).unwrap();
        assert_eq!(begun, Begun { conn: 0, scheduled: 1000, late: 10, overrun: true });
        // Those of 2,000 and 3,000 are due before 3,500.
        assert_eq!((clients.left_before(3500), clients.left_before(2000)), (2, 0));
        assert_eq!(clients.done(0, 4, 2600), Some(1000));
        assert_eq!(clients.left_before(3500), 2);
        assert_eq!(clients.begin(2700, 2000, &mut random), None, "the end was before it");
    }

    #[test]
    fn blocks_are_read_as_often_as_the_mix_says() {
        let mut random = Pcg64::seed_from_u64(1);
        let mut clients = Clients::new(&Bursts { reads: 0.3, period: None, ..plan() }, 0, 1, 1);
        let mut seen = [0, 0];
        for turn in 0..10_000 {
            clients.begin(turn, u64::MAX, &mut random).unwrap();
            seen[usize::from(clients.chunk(0).unwrap().op == Op::Get)] += 1;
            clients.done(0, 4, turn + 1);
        }
        crate::theory::fits(&seen, &[0.7, 0.3]);
    }

    #[test]
    fn staggered_connections_begin_evenly_over_the_period() {
        let clients = Clients::new(&Bursts { staggered: true, ..plan() }, 0, 4, 4);
        let times: Vec<u64> = clients.next.into_sorted_vec().into_iter().map(|Reverse((time, _))| time).rev().collect();
        assert_eq!(times, [0, 250, 500, 750]);
    }
}
