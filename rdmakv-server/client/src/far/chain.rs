//! Measures what a chain of nodes costs: by one-sided reads, one after the other, and by a walk where the memory is.

use super::bench::{Latencies, Measured};
use super::lane::{Buffer, Lane};
use super::memory::Memory;
use super::model::Point;
use super::run::{RunEnd, RunError};
use super::runner::Runner;
use super::table::{AccessError, MemoryError};
use rdmakv_proto::far::procedures::{Procedure, Walk};
use std::time::{Duration, Instant};

/// How often the ways take turns.
const TURNS: u32 = 5;
/// Bytes between the places of nodes: a multiple of these, so that none crosses regions.
const ALIGNED: u64 = 4096;

/// The reason why a chain is not measured.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChainError {
    /// No lane.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A read or a write failed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A walk failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A walk ended at a limit.
    #[error("walk a chain of {nodes} nodes: a server ends it early: take a shorter chain")]
    Limit {
        /// Its nodes.
        nodes: u32,
    },
    /// The nodes do not fit.
    #[error(
        "measure a chain of {nodes} nodes of {record} bytes in {capacity} bytes: a node has 8 to 4096, 4096 apart: shorten it"
    )]
    Shape {
        /// Its nodes.
        nodes: u32,
        /// Bytes of one.
        record: u32,
        /// Bytes of the memory.
        capacity: u64,
    },
}

/// The latencies of a chain.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Chained {
    /// Of one read of a node.
    pub read: Measured,
    /// Of as many reads as the chain has nodes, each at the address that the one before has read.
    pub reads: Measured,
    /// Of a walk over them.
    pub walk: Measured,
}

/// Measures a chain of so many nodes of `record` bytes, each in another part of the memory, by one lane and one runner.
///
/// # Errors
/// [`ChainError`].
pub fn measure(memory: &Memory, nodes: u32, record: u32, time: Duration) -> Result<Chained, ChainError> {
    let capacity = memory.capacity();
    let apart = capacity / (u64::from(nodes) + 1) / ALIGNED * ALIGNED;
    if nodes == 0 || apart == 0 || !(8..=ALIGNED as u32).contains(&record) {
        return Err(ChainError::Shape { nodes, record, capacity });
    }
    let mut chain = Chain { lane: memory.lane()?, runner: memory.runner(), apart, nodes, record };
    for node in 1..=u64::from(nodes) {
        let next = if node == u64::from(nodes) { 0 } else { (node + 1) * apart };
        let mut buffer = chain.lane.buffer(record as usize)?;
        buffer.fill(0);
        buffer[..8].copy_from_slice(&next.to_le_bytes());
        let ticket = chain.lane.write(node * apart, buffer)?;
        chain.lane.wait(ticket)?;
    }
    let mut ways = [Latencies::default(), Latencies::default(), Latencies::default()];
    for turn in 0..=TURNS {
        for (way, latencies) in ways.iter_mut().enumerate() {
            let until = Instant::now() + time / TURNS / 3;
            while Instant::now() < until {
                let begun = Instant::now();
                match way {
                    0 => chain.read(1)?,
                    1 => chain.read(nodes)?,
                    _ => chain.walk()?,
                }
                // The first turn is a warm-up.
                if turn > 0 {
                    latencies.add(begun.elapsed());
                }
            }
        }
    }
    let [read, reads, walk] = ways.map(measured);
    Ok(Chained { read, reads, walk })
}

struct Chain {
    lane: Lane,
    runner: Runner,
    apart: u64,
    nodes: u32,
    record: u32,
}

impl Chain {
    fn read(&mut self, nodes: u32) -> Result<(), AccessError> {
        let (mut at, mut buffer): (u64, Buffer) = (self.apart, self.lane.buffer(self.record as usize)?);
        for _ in 0..nodes {
            let ticket = self.lane.read(at, buffer)?;
            buffer = self.lane.wait(ticket)?;
            at = buffer[..8].try_into().map_or(0, u64::from_le_bytes);
        }
        Ok(())
    }

    fn walk(&mut self) -> Result<(), ChainError> {
        let Self { runner, apart, nodes, record, .. } = self;
        let walk = Walk { at: *apart, next: 0, key_at: 0, nodes: *nodes, length: *record, key: Vec::new() };
        let outcome = runner.call(Procedure::Walk(walk))?;
        let is_last = outcome.end == RunEnd::Done && outcome.at == u64::from(*nodes) * *apart;
        if is_last { Ok(()) } else { Err(ChainError::Limit { nodes: *nodes }) }
    }
}

fn measured(latencies: Latencies) -> Measured {
    let (accesses, mean) = (latencies.count(), latencies.mean());
    let [median, p99] = latencies.shares([0.5, 0.99]);
    Measured { point: Point { throughput: 1e9 / mean.max(1.0), mean, p99 }, median, accesses }
}
