//! The saving by the overlap: the latency analysis of the paper's section 8, by running both processes.
//!
//! [`study`] moves a buffer between two nodes of the simulated network, once by each [`Process`], under the paper's costs: a
//! registration of p pages takes 0.77·p + 7.42 µs, and where the traditional process goes to its application and back, that
//! takes [`APPLICATION`]. Nothing is computed from a formula: the times are those of the simulated clocks, from the
//! opener's call to the moment at which the target knows that its bytes are there.
//!
//! ```
//! use tracesim::reproduce::handshake::{Warmth, study};
//!
//! let row = study(false, &[4], &[0])?.into_iter().find(|row| row.warmth == Warmth::Cold).unwrap();
//! // Two registrations and the way through the application, against one registration.
//! assert_eq!((row.traditional, row.frrwp), (29_000, 10_500));
//! assert_eq!(format!("{:.1} %", 100.0 * row.share()), "63.8 %");
//! # Ok::<(), tracesim::reproduce::handshake::Unfinished>(())
//! ```
#![expect(unsafe_code, reason = "buffers are lent to engines by address")]

use frrwp::engine::{Engine, Event};
use frrwp::fabric::sim::{Costs, Faults, Network, Node, SimDomain, SimEndpoint};
use frrwp::handshake::{Limits, Process, RECEIVES, Side};
use mrrc::invalidation::Explicit;
use mrrc::{Access, Cache};

/// T1 + T2 + T3 of the paper, in nanoseconds: a completion is made, the application sees it, and posts the write.
pub const APPLICATION: u64 = 2_000 + 3_000 + 3_000;

/// Sizes of the paper's discussion, in pages.
pub const PAGES: [usize; 5] = [1, 4, 16, 64, 256];

/// One-way latencies, in nanoseconds: none, as the paper has it, and three networks.
pub const LATENCIES: [u64; 4] = [0, 1_000, 5_000, 50_000];

/// Which sides have their buffers registered already.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Warmth {
    /// Neither.
    Cold,
    /// The one that has the bytes.
    WriterWarm,
    /// The one that wants them.
    TargetWarm,
    /// Both.
    Warm,
}

impl Warmth {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Cold, Self::WriterWarm, Self::TargetWarm, Self::Warm];
}

/// One transfer by both processes. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Pages of the buffer.
    pub pages: usize,
    /// From one side to the other.
    pub latency: u64,
    /// The buffers that were registered before.
    pub warmth: Warmth,
    /// The traditional process.
    pub traditional: u64,
    /// This one.
    pub frrwp: u64,
}

impl Row {
    /// Returns the overlap's saving.
    pub fn saved(&self) -> u64 {
        self.traditional.saturating_sub(self.frrwp)
    }

    /// That, as a share of the traditional process.
    pub fn share(&self) -> f64 {
        if self.traditional == 0 { 0.0 } else { self.saved() as f64 / self.traditional as f64 }
    }
}

/// The paper's claim for two cold sides and a network without latency: 66.4 % at one page, 51.0 % at 256, and
/// 67.5 % (it says 68 %) where the buffer is nothing.
pub fn claimed_share(pages: usize) -> f64 {
    let pages = pages as f64;
    (15.42 + 0.77 * pages) / (22.84 + 1.54 * pages)
}

/// A run that came to no end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the transfer of {pages} pages over {latency} ns did not end: see whether there is memory for it")]
pub struct Unfinished {
    /// Of the buffer.
    pub pages: usize,
    /// In nanoseconds.
    pub latency: u64,
}

/// Runs both processes for each of the sizes, latencies and cases. The opener writes, or reads.
///
/// # Errors
/// [`Unfinished`], for a size for which no cache can be built.
pub fn study(read: bool, pages: &[usize], latencies: &[u64]) -> Result<Vec<Row>, Unfinished> {
    let mut rows = Vec::new();
    for &latency in latencies {
        for warmth in Warmth::ALL {
            for &pages in pages {
                let time = |process| {
                    let run = Run { read, pages, latency, warmth, process };
                    run.time().ok_or(Unfinished { pages, latency })
                };
                let (traditional, frrwp) = (time(Process::Traditional)?, time(Process::Frrwp)?);
                rows.push(Row { pages, latency, warmth, traditional, frrwp });
            }
        }
    }
    Ok(rows)
}

struct Run {
    read: bool,
    pages: usize,
    latency: u64,
    warmth: Warmth,
    process: Process,
}

impl Run {
    /// From the opener's call until the target knows.
    fn time(&self) -> Option<u64> {
        let costs = Costs { latency: self.latency, ..Costs::default() };
        let network = Network::new(0, costs, Faults::default());
        let nodes = [network.node(), network.node()];
        let caches = [cache(&nodes[0], self.pages)?, cache(&nodes[1], self.pages)?];
        // A length that covers this many pages wherever it begins: one byte on the last of them.
        let length = self.pages.checked_sub(1)? * PAGE + 1;
        let mut memory = [vec![0_u8; self.pages * PAGE + PAGE], vec![0_u8; self.pages * PAGE + PAGE]];
        let buffers = memory.each_mut().map(|memory| {
            let skip = memory.as_ptr().align_offset(PAGE);
            memory[skip..].as_mut_ptr()
        });
        let (writer, target) = if self.read { (1, 0) } else { (0, 1) };
        // SAFETY: the memory lives longer than the caches' use of it, and only the engines use it.
        unsafe {
            if matches!(self.warmth, Warmth::WriterWarm | Warmth::Warm) {
                caches[writer].warm(buffers[writer], length, Access::LOCAL_READ).ok()?;
            }
            if matches!(self.warmth, Warmth::TargetWarm | Warmth::Warm) {
                caches[target].warm(buffers[target], length, Access::LOCAL_WRITE | Access::REMOTE_WRITE).ok()?;
            }
        }
        let start = nodes.iter().map(Node::now).max()?;
        nodes.iter().for_each(|node| node.sleep_until(start));
        let limits = Limits { process: self.process, ..Limits::default() };
        let [one, other] = network.connect(&nodes[0], &nodes[1], RECEIVES);
        let mut engines = [
            Engine::new(&caches[0], one, Side::Connecting, limits),
            Engine::new(&caches[1], other, Side::Accepting, limits),
        ];
        // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
        unsafe {
            match self.read {
                true => engines[0].open_read(buffers[0], length, b""),
                false => engines[0].open_write(buffers[0], length, b""),
            }
        }
        .ok()?;
        loop {
            let stepped = network.step(u64::MAX);
            for side in 0..2 {
                if let Some(time) = self.attend(&mut engines[side], &nodes[side], buffers[side], length, side == target)
                {
                    return Some(time - start);
                }
            }
            if !stepped && !engines.iter().any(|engine| engine.endpoint().has_news()) {
                return None;
            }
        }
    }

    /// Runs the application of one side. The time, once the target knows.
    fn attend(
        &self,
        engine: &mut Engine<'_, SimEndpoint>,
        node: &Node,
        buffer: *mut u8,
        length: usize,
        is_target: bool,
    ) -> Option<u64> {
        engine.progress();
        while let Some(event) = engine.next_event() {
            match event {
                // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                Event::Requested { tag, read: true, .. } => unsafe { engine.accept_read(tag, buffer, length) }.ok()?,
                Event::Requested { tag, read: false, .. } => {
                    // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                    unsafe { engine.accept_write(tag, buffer, length) }.ok()?
                }
                Event::KeysCame { tag } => {
                    node.spend(APPLICATION);
                    engine.submit(tag).ok()?;
                }
                Event::Completed { result: Ok(_), .. } if is_target => return Some(node.now()),
                _ => {}
            }
        }
        None
    }
}

const PAGE: usize = 4096;

fn cache(node: &Node, pages: usize) -> Option<Cache<SimDomain>> {
    let builder = Cache::builder(node.domain()).ignore_environment().monitor(Explicit).background(false);
    builder.capacity_pages(2 * pages as u64).build().ok()
}
