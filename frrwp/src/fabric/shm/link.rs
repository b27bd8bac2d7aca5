//! One end of a connection, as its endpoint and its domain see it: the two outboxes, the peer's tags, the socket, and the
//! peer's process.
//!
//! Each end has an *outbox*: a memory file that it alone can write, and that the other maps for reading. So whatever a peer
//! scribbles over is its own. Words that change at different times have cache lines of their own:
//!
//! ```text
//!    0  u64  closed     1: this end does nothing any more
//!   64  u64  at         1 << 32 and the key by which this end is at the peer's memory; 0 while it is not
//!  128  u64  written    bytes of the ring that were ever written
//!  192  u64  taken      bytes of the peer's ring that were ever taken
//!  256  u64  receives   receives that were ever posted
//!  320  u64  asleep     0 awake; else a number that differs each time, odd if there was no room for what it wants to say
//! 4096       the ring, of 64 KiB: messages to the peer (ring.rs)
//! ```
//!
//! A peer is at one registration at a time, because it carries out what is posted at once, so a word says what a count would,
//! and says it of the one registration: others are deregistered meanwhile.

use super::memory::Mapping;
use super::packets::{self, Packet};
use super::table::PeerTable;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

const CLOSED: usize = 0;
const AT: usize = 64;
pub(super) const WRITTEN: usize = 128;
pub(super) const TAKEN: usize = 192;
pub(super) const RECEIVES: usize = 256;
const ASLEEP: usize = 320;
pub(super) const RING: usize = 4096;
/// Bytes of a ring.
pub(super) const ROOM: usize = 64 << 10;
/// Bytes of an outbox.
pub(super) const OUTBOX: usize = RING + ROOM;

const ACTIVE: u64 = 1 << 32;

pub(super) struct Link {
    /// Ours to write.
    pub(super) own: Mapping,
    /// The peer's to write.
    pub(super) peer: Mapping,
    pub(super) tags: PeerTable,
    pub(super) socket: OwnedFd,
    process: OwnedFd,
    dead: AtomicBool,
    /// The peer was waited for, in vain.
    stalled: AtomicBool,
    /// The number of the peer's sleep that was ended last.
    woken: AtomicU64,
}

impl Link {
    pub(super) fn new(own: Mapping, peer: Mapping, tags: PeerTable, socket: OwnedFd, process: OwnedFd) -> Self {
        let [dead, stalled] = [const { AtomicBool::new(false) }; 2];
        Self { own, peer, tags, socket, process, dead, stalled, woken: AtomicU64::new(0) }
    }

    /// Announces that this end is at memory of the peer's by this key. Later looks see nothing older.
    #[inline(always)]
    pub(super) fn enter(&self, key: u32) {
        self.own.word(AT).store(ACTIVE | u64::from(key), Relaxed);
        fence(SeqCst);
    }

    /// Not any more; what was copied is before this.
    #[inline(always)]
    pub(super) fn leave(&self) {
        self.own.word(AT).store(0, Release);
    }

    /// Returns whether the peer is at memory by this key. [`fence`] before, if the answer is to be about what was
    /// revoked.
    pub(super) fn peer_is_at(&self, key: u32) -> bool {
        self.peer_at() == Some(key) && !self.is_dead()
    }

    /// Returns the key by which the peer is at memory of ours.
    pub(super) fn peer_at(&self) -> Option<u32> {
        let at = self.peer.word(AT).load(Relaxed);
        fence(Acquire);
        (at != 0).then_some(at as u32)
    }

    /// Returns whether either end has closed.
    #[inline(always)]
    pub(super) fn is_closed(&self) -> bool {
        (self.peer.word(CLOSED).load(Relaxed) | self.own.word(CLOSED).load(Relaxed)) != 0
    }

    pub(super) fn is_closed_here(&self) -> bool {
        self.own.word(CLOSED).load(Relaxed) != 0
    }

    /// Returns whether the peer has closed; what it wrote before is seen.
    pub(super) fn is_closed_there(&self) -> bool {
        let closed = self.peer.word(CLOSED).load(Relaxed) != 0;
        fence(Acquire);
        closed
    }

    /// From now on neither end begins anything. The next query for the peer's accesses gets a lasting answer.
    pub(super) fn close(&self) {
        self.own.word(CLOSED).store(1, Release);
        fence(SeqCst);
        // Wakes the peer, and the threads that sleep here.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Returns whether the peer's process is dead.
    pub(super) fn is_dead(&self) -> bool {
        if self.dead.load(Acquire) {
            return true;
        }
        let dead = packets::is_ready(&[self.process.as_fd()], PollFlags::IN);
        if dead {
            self.dead.store(true, Release);
        }
        dead
    }

    /// Notes that the peer was waited for in vain: it is not waited for again.
    pub(super) fn set_stalled(&self) {
        self.stalled.store(true, Relaxed);
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Relaxed)
    }

    /// Returns the descriptor that becomes readable when the peer's process dies.
    pub(super) fn process(&self) -> &OwnedFd {
        &self.process
    }

    /// Says that this end sleeps, or not; what is looked at afterwards is no older.
    pub(super) fn sleeps(&self, number: u64) {
        self.own.word(ASLEEP).store(number, Relaxed);
        fence(SeqCst);
    }

    /// Wakes the peer if it sleeps, after something was written. If it is only room that came, a thread that does not
    /// wait for it sleeps on.
    pub(super) fn wake(&self, only_room: bool) {
        fence(SeqCst);
        let asleep = self.peer.word(ASLEEP).load(Relaxed);
        if asleep == 0 || (only_room && asleep & 1 == 0) || self.woken.swap(asleep, Relaxed) == asleep {
            return;
        }
        // If the queue is full, there is enough in it to wake up for.
        let _ = packets::send(&self.socket, Packet::Wake, &[]);
    }
}
