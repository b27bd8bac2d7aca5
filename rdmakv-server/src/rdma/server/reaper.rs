//! Looks after what is over: leases and tags that have ended, registrations that nobody needs any more.
//!
//! A thread for each fabric, which sleeps while nobody has a tag. What it drops may wait for peers, so it holds no lock
//! then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::fabrics::Fabric;
use super::face::Face;
use crate::server::{clock, trace};
use crate::session::Counts;

/// Rounds in the time of a lease.
const ROUNDS: u32 = 8;
/// Between rounds at least, whatever the lease.
const LEAST: Duration = Duration::from_millis(5);
/// Leases, tags and records that are looked at with a lock held.
const PIECE: usize = 1024;
/// How often things are done that have time.
const A_WHILE: Duration = Duration::from_secs(1);
/// And in a round.
const A_ROUND: usize = 1 << 20;

/// Wakes the reaper.
#[derive(Debug, Default)]
pub(super) struct Bell {
    /// Whether the reaper sleeps until somebody has a tag.
    sleeps: AtomicBool,
    ends: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    /// Somebody has a tag.
    pub(super) fn ring(&self) {
        if self.sleeps.load(Relaxed) {
            let _ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
            self.sleeps.store(false, Relaxed);
            self.rung.notify_all();
        }
    }

    /// The end.
    pub(super) fn end(&self) {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rung.notify_all();
    }

    /// Waits for the next round, or, if nobody has a tag, until somebody does; says whether it is the end.
    fn wait(&self, round: Duration, idle: bool) -> bool {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if *ends {
            return true;
        }
        if idle {
            // Looked at again after a while all the same: a tag may just have been given.
            self.sleeps.store(true, Relaxed);
            *self.rung.wait_timeout(ends, Duration::from_secs(1)).unwrap_or_else(PoisonError::into_inner).0
        } else {
            *self.rung.wait_timeout(ends, round).unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

/// Starts it. It publishes its counts at this seat, and does what else is to be done now and then. It ends when the face's bell
/// says so.
///
/// # Errors
///
/// No thread.
pub(super) fn start<F: Fabric, E: std::fmt::Display>(
    face: Arc<Face<F>>,
    seat: usize,
    tend: impl Fn() -> Result<(), E> + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name(format!("{}-reaper", F::NAME)).spawn(move || {
        let round = (face.terms.lease / ROUNDS).max(LEAST);
        let mut counts = Counts::default();
        let (mut idle, mut tended, mut said) = (false, Instant::now(), false);
        while !face.bell.wait(round, idle) {
            idle = reap(&face, &mut counts);
            if tended.elapsed() >= A_WHILE {
                tended = Instant::now();
                if let Err(error) = tend()
                    && !std::mem::replace(&mut said, true)
                {
                    trace::say(error);
                }
            }
            if let Ok(mut published) = face.shared.counts[seat].lock() {
                *published = counts;
            }
        }
        reap(&face, &mut counts);
    })
}

/// A round; says whether nothing is left to look after.
fn reap<F: Fabric>(face: &Face<F>, counts: &mut Counts) -> bool {
    // First, as what follows may take a while.
    let held = face.fabric.hold_table();
    let now = clock::nanos();
    let shards = &face.shared.shards;
    for shard in 0..shards.count() {
        let mut swept = 0;
        while swept < A_ROUND && shards.at(shard).sweep(now, PIECE) == PIECE {
            swept += PIECE;
        }
    }
    let (mut read, mut looked, mut records) = (Vec::new(), 0, 1);
    while looked < records.min(A_ROUND) {
        let mut tags = face.tags();
        tags.counted(PIECE, |address, reads| read.push((address, reads)));
        records = tags.counts().records;
        drop(tags);
        looked += PIECE;
        for (address, reads) in read.drain(..) {
            counts.cmd_get += reads;
            face.read_by_tag(address, reads, now, &mut counts.get_hits);
        }
    }
    let mut rounds = 0;
    loop {
        let mut tags = face.tags();
        tags.sweep(now, PIECE);
        let over = tags.take_over();
        let more = (over.tags.len() >= PIECE / 2 || tags.is_behind(now)) && rounds < A_ROUND / PIECE;
        drop(tags);
        rounds += 1;
        drop(over.tags);
        over.registrations.into_iter().for_each(|registration| face.fabric.over(registration));
        drop(over.records);
        if !more {
            break;
        }
    }
    let buried = face.fabric.bury() && !held;
    let now = face.tags().counts();
    buried && now.tags == 0 && now.pins == 0 && now.left == 0
}
