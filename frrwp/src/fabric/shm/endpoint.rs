//! One end of a connection.
//!
//! Posts are carried out at once, by this process's own CPU, and their completions wait to be polled. So nothing of this
//! end's is under way when a call has returned.
//!
//! The path of a write or read, with what it costs beside the copy: announce the key (a store and the one full fence), look
//! at both ends' `closed` and at the tag (a line of the peer's outbox, one of its table), copy, look at both again, and
//! take the announcement back (a store).
#![expect(unsafe_code, reason = "copies between the application's memory and the peer's")]

use super::arena::ShmArena;
use super::domain::{ShmDomain, ShmKey};
use super::error::ShmError;
use super::failpoints::failpoint;
use super::link::Link;
use super::memory::Mapping;
use super::packets::{self, NoPacket, Packet};
use super::ring::{Broken, Outgoing, Record, Rings};
use super::table::{self, Tag};
use crate::fabric::fork_mark::ForkMark;
use crate::fabric::poller::Bell;
use crate::fabric::traits::{Armed, Capabilities, Completion, Endpoint, Local};
use crate::wire::{MESSAGE, Segment};
use mrrc::Access;
use mrrc::volatile_copy as copy;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Completions that wait to be polled, at most.
const QUEUE: usize = 256;
/// Bytes between two looks at whether the tag still lives.
const CHUNK: usize = 64 << 10;
/// Arenas of a peer's, and bytes of them all, that are mapped at most.
const ARENAS: usize = 1024;
const MAPPED: u64 = 1 << 44;
/// Polls without news between two looks at the socket.
const PATIENCE: u32 = 64;
/// Writes and reads between two looks at the socket: a poll that only fetches their ends does not count as one without news.
const BUSY: u32 = 1 << 16;
/// Looks at the socket in vain between two looks at the peer's process.
const LOOKS: u32 = 16;
/// The longest sleep while a peer's access is waited for: its end wakes no thread.
const NAP: u64 = 500_000;

/// One end of a connection.
pub struct ShmEndpoint {
    domain: ShmDomain,
    link: Arc<Link>,
    arenas: Vec<PeerArena>,
    /// The one that was used last.
    last: usize,
    rings: Rings,
    done: VecDeque<Completion>,
    state: State,
    /// The socket shows that the other end is gone.
    ended: bool,
    /// Something found no room, and is posted again when there is.
    wants_room: bool,
    sleeps: u64,
    /// Whether the peer was told that this end sleeps, and a bell is to ring.
    armed: bool,
    idle: u32,
    posted: u32,
    /// Looks at the socket in vain.
    looks: u32,
    start: Instant,
    broken: Option<&'static str>,
    /// The process that owns it. A child has a copy, and not the peer's memory.
    mark: ForkMark,
}

struct PeerArena {
    number: u64,
    mapping: Mapping,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Stands,
    /// Closed; the peer may be at memory, and counts as stalled from then on.
    Closes {
        until: Instant,
    },
    Flushed,
}

impl ShmEndpoint {
    pub(super) fn new(domain: ShmDomain, link: Arc<Link>, rings: Rings) -> Result<Self, ShmError> {
        let mark = ForkMark::here()
            .map_err(super::error::system("set a connection up", "see why the system has no random numbers"))?;
        let endpoint = Self {
            domain,
            link,
            arenas: Vec::new(),
            last: 0,
            rings,
            done: VecDeque::new(),
            state: State::Stands,
            ended: false,
            wants_room: false,
            sleeps: 0,
            armed: false,
            idle: 0,
            posted: 0,
            looks: 0,
            start: Instant::now(),
            broken: None,
            mark,
        };
        endpoint.domain.join(&endpoint.link)?;
        Ok(endpoint)
    }

    /// Returns the peer's breach, if one ended the connection.
    pub fn fault(&self) -> Option<&'static str> {
        self.broken
    }

    #[cfg(test)]
    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// Passes a [private](ShmDomain::private_arena) arena, of this end's domain, to the peer. A peer that has it is passed nothing.
    ///
    /// # Errors
    /// [`ShmError::System`]: the peer takes nothing, or has gone.
    pub fn pass(&self, arena: &ShmArena) -> Result<(), ShmError> {
        arena.pass_to(&self.link)
    }

    fn stands(&self) -> io::Result<()> {
        if self.state == State::Stands && self.mark.is_here() && !self.link.is_closed_here() {
            Ok(())
        } else {
            Err(io::ErrorKind::NotConnected.into())
        }
    }

    fn blocked<T>(&mut self) -> io::Result<T> {
        self.wants_room = true;
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn refuse<T>(&mut self, what: &'static str) -> io::Result<T> {
        self.lose();
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }

    fn breaks(&mut self, what: &'static str) {
        self.broken.get_or_insert(what);
        self.lose();
    }

    fn has_room(&mut self, bytes: usize) -> io::Result<bool> {
        match self.rings.has_room(&self.link, bytes) {
            Ok(has) => Ok(has),
            Err(Broken) => {
                self.breaks("it counted receives or messages that cannot be");
                Err(io::ErrorKind::NotConnected.into())
            }
        }
    }

    /// The connection ends here.
    fn lose(&mut self) {
        if self.state != State::Stands {
            return;
        }
        failpoint();
        // A child that was forked has a copy, and the connection is its parent's.
        if self.mark.is_here() {
            self.link.close();
        }
        failpoint();
        self.state = State::Closes { until: Instant::now() + self.domain.options().stall };
        self.done.push_back(Completion::Lost);
    }

    /// Returns whether the end of a closed connection has come.
    fn flush(&mut self) -> bool {
        let State::Closes { until } = self.state else { return false };
        if !self.mark.is_here() {
            self.state = State::Flushed;
            return true;
        }
        let is_quiet = self.link.peer_at().is_none() || self.link.is_dead();
        if !is_quiet {
            if Instant::now() < until && !self.link.is_stalled() {
                return false;
            }
            self.link.set_stalled();
        }
        self.state = State::Flushed;
        self.domain.reap();
        true
    }

    /// Takes what came over the socket.
    fn listen(&mut self) {
        self.idle = 0;
        while !self.ended {
            match packets::receive(&self.link.socket) {
                Ok((Packet::Wake, _)) => {}
                Ok((Packet::Arena { number, bytes, writable }, files)) => {
                    let mapped: u64 = self.arenas.iter().map(|arena| arena.mapping.len() as u64).sum();
                    if self.arenas.len() >= ARENAS || mapped.saturating_add(bytes) > MAPPED {
                        return self.breaks("it passed more memory than is mapped");
                    }
                    let admitted = files.first().map(|file| Mapping::admit(file, bytes, writable));
                    let Some(Ok(mapping)) = admitted else {
                        return self.breaks("it passed memory that cannot be shared safely");
                    };
                    self.arenas.push(PeerArena { number, mapping });
                }
                Ok((Packet::Gone { number }, _)) => {
                    self.arenas.retain(|arena| arena.number != number);
                    self.last = 0;
                }
                Ok((Packet::Hello { .. } | Packet::Proof { .. }, _)) => return self.breaks("it said hello again"),
                Err(NoPacket::Nothing) => {
                    // A child that it forked keeps its socket open.
                    self.looks = self.looks.wrapping_add(1);
                    self.ended = self.looks.is_multiple_of(LOOKS) && self.link.is_dead();
                    return;
                }
                Err(NoPacket::End) => self.ended = true,
                Err(NoPacket::Full) => return self.breaks("it passed memory, and no descriptors are left here"),
                Err(NoPacket::Nonsense(_) | NoPacket::Version(_)) => {
                    return self.breaks("it sent a packet without sense");
                }
                Err(NoPacket::Foreign(_)) => return self.breaks("it passed descriptors that do not belong"),
            }
        }
    }

    /// Returns the place in `arenas` of the peer's arena of that number. One that is new may wait at the socket.
    #[inline(always)]
    fn arena(&mut self, number: u64) -> Option<usize> {
        if self.arenas.get(self.last).is_some_and(|arena| arena.number == number) {
            return Some(self.last);
        }
        self.search(number)
    }

    #[cold]
    fn search(&mut self, number: u64) -> Option<usize> {
        let find = |arenas: &[PeerArena]| arenas.iter().position(|arena| arena.number == number);
        let found = find(&self.arenas).or_else(|| {
            self.listen();
            find(&self.arenas)
        });
        self.last = found.unwrap_or(0);
        found
    }

    /// Copies between local memory and the peer's.
    ///
    /// # Safety
    /// As [`Endpoint::write`], or [`Endpoint::read`].
    #[inline(always)]
    unsafe fn place(&mut self, local: &[Local<'_, ShmKey>], remote: Segment, read: bool) -> bool {
        let (right, near) = if read { (table::READ, Access::LOCAL_WRITE) } else { (table::WRITE, Access::LOCAL_READ) };
        let mut bytes = 0_u64;
        for local in local {
            if !local.registration.covers(local.address as usize, local.length, near) {
                return false;
            }
            bytes = bytes.saturating_add(local.length as u64);
        }
        if bytes != remote.length || remote.key == 0 {
            return false;
        }
        // New arenas are mapped before, not while this end is at the peer's memory: that can take a while.
        let Some(arena) = self.arena(remote.address >> table::OFFSET) else { return false };
        failpoint();
        self.link.enter(remote.key);
        failpoint();
        // SAFETY: the caller's promise; the announcement stands until it is taken back below.
        let placed = unsafe { self.copy(arena, local, remote, right, read) };
        failpoint();
        self.link.leave();
        failpoint();
        placed
    }

    /// # Safety
    /// As [`Endpoint::write`] or [`Endpoint::read`]; this end has announced that it is at the peer's memory.
    #[inline(always)]
    unsafe fn copy(&self, arena: usize, local: &[Local<'_, ShmKey>], remote: Segment, right: u64, read: bool) -> bool {
        let Some(tag) = self.link.tags.find(remote.key, remote.address, remote.length, right) else { return false };
        if self.link.is_closed() {
            return false;
        }
        let Some(PeerArena { number, mapping }) = self.arenas.get(arena) else { return false };
        let Some(mut far) = mapping.at(tag.offset, remote.length) else { return false };
        if tag.arena != *number || !(read || mapping.is_writable()) {
            return false;
        }
        for local in local {
            let (mut near, mut left) = (local.address, local.length);
            loop {
                let length = left.min(CHUNK);
                let (from, to) = if read { (far, near) } else { (near, far) };
                if length > 1 {
                    failpoint();
                }
                // SAFETY: `near` is the caller's promise. The peer's bytes are in the mapping, for whose size a seal stands;
                // whatever peers are at them, no reference of this process is.
                unsafe { copy(from.cast_const(), to, length) };
                failpoint();
                (near, far, left) = (near.wrapping_add(length), far.wrapping_add(length), left - length);
                if left == 0 {
                    break;
                }
                // The thread that ends the tag does not wait for the rest.
                if !self.holds(tag) {
                    return false;
                }
            }
        }
        self.holds(tag)
    }

    #[inline(always)]
    fn holds(&self, tag: Tag) -> bool {
        self.link.tags.still(tag) && !self.link.is_closed()
    }

    /// Something was carried out, so this end is busy, and does not look at the socket as often as one that has nothing to do.
    #[inline]
    fn carried_out(&mut self) {
        self.idle = self.idle.saturating_sub(1);
        self.posted += 1;
        if self.posted >= BUSY {
            self.posted = 0;
            self.listen();
        }
    }

    fn news(&self) -> bool {
        !self.done.is_empty()
            || self.rings.has_news(&self.link)
            || self.link.is_closed_there()
            || self.link.is_closed_here()
    }

    /// Tells the peer that this end sleeps. Whether it may: nothing has come.
    fn falls_asleep(&mut self) -> bool {
        self.sleeps += 1;
        // Zero would be awake, and the lowest bit says what is waited for.
        self.link.sleeps(self.sleeps << 1 | u64::from(self.wants_room));
        failpoint();
        let room_came = self.wants_room && self.rings.has_room(&self.link, MESSAGE).unwrap_or(true);
        !self.news() && !room_came
    }

    /// Tells the peer that this end is awake.
    fn wakes_up(&mut self) {
        self.link.sleeps(0);
        self.wants_room = false;
        self.armed = false;
        self.listen();
    }

    /// Is awake again though nothing need have come: a bell has rung, or its owner polls all the same.
    #[cold]
    fn disarm(&mut self) {
        self.wakes_up();
        // Its process is watched too. Only a file that is asked says which of the two rang.
        self.ended |= !self.news() && self.link.is_dead();
    }

    /// Sleeps at most so many nanoseconds, or until something comes.
    fn sleep(&mut self, most: Option<u64>) {
        if self.falls_asleep() {
            let until = most.map(|most| Timespec {
                tv_sec: (most / 1_000_000_000).try_into().unwrap_or(i64::MAX),
                tv_nsec: (most % 1_000_000_000) as _,
            });
            let mut files = [
                PollFd::from_borrowed_fd(self.link.socket.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.link.process().as_fd(), PollFlags::IN),
            ];
            // A signal is as good as news.
            let _ = rustix::event::poll(&mut files, until.as_ref());
            if !files[1].revents().is_empty() {
                self.ended = true;
            }
        }
        self.wakes_up();
    }
}

// SAFETY: what is posted has been carried out, by this thread, when the call returns. `Flushed` is reported when both ends
// have closed, and the peer has left memory or is dead. A stalled peer may still use memory of an arena: its registration
// keeps that mapped, and is not deregistered before the peer has left it or is dead.
unsafe impl Endpoint for ShmEndpoint {
    type Domain = ShmDomain;

    fn capabilities(&self) -> Capabilities {
        Capabilities { gather: 16, immediate: true, sink: Access::LOCAL_WRITE }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.stands()?;
        if message.len() > MESSAGE {
            return self.refuse("a message that is longer than a receive: split it");
        }
        if !self.has_room(message.len())? {
            return self.blocked();
        }
        failpoint();
        self.rings.send(&self.link, Outgoing::Message(message));
        failpoint();
        self.link.wake(false);
        failpoint();
        Ok(())
    }

    fn receive(&mut self, more: u16) -> io::Result<()> {
        self.stands()?;
        self.rings.post(&self.link, more);
        self.link.wake(true);
        Ok(())
    }

    #[inline]
    unsafe fn write(
        &mut self,
        id: u64,
        from: &[Local<'_, ShmKey>],
        to: Segment,
        immediate: Option<u32>,
    ) -> io::Result<()> {
        self.stands()?;
        if self.done.len() >= QUEUE || (immediate.is_some() && !self.has_room(0)?) {
            return self.blocked();
        }
        // SAFETY: the caller promises that the local memory stays, with no other user, until the completion.
        let succeeded = unsafe { self.place(from, to, false) };
        self.done.push_back(Completion::Done { id, succeeded });
        self.carried_out();
        match immediate {
            _ if !succeeded => self.lose(),
            Some(immediate) => {
                self.rings.send(&self.link, Outgoing::Immediate(immediate));
                failpoint();
                self.link.wake(false);
            }
            None => {}
        }
        Ok(())
    }

    #[inline]
    unsafe fn read(&mut self, id: u64, into: &[Local<'_, ShmKey>], from: Segment) -> io::Result<()> {
        self.stands()?;
        if self.done.len() >= QUEUE {
            return self.blocked();
        }
        // SAFETY: the caller promises that the local memory stays, with no other user, until the completion.
        let succeeded = unsafe { self.place(into, from, true) };
        self.done.push_back(Completion::Done { id, succeeded });
        self.carried_out();
        if !succeeded {
            self.lose();
        }
        Ok(())
    }

    #[inline]
    unsafe fn read_now(&mut self, into: &[Local<'_, ShmKey>], from: Segment) -> io::Result<Option<bool>> {
        self.stands()?;
        // SAFETY: the caller promises that the local memory stays, with no other user, until the completion.
        let succeeded = unsafe { self.place(into, from, true) };
        self.carried_out();
        if !succeeded {
            self.lose();
        }
        Ok(Some(succeeded))
    }

    #[inline]
    fn poll(&mut self, message: &mut [u8; MESSAGE]) -> Option<Completion> {
        if let Some(completion) = self.done.pop_front() {
            return Some(completion);
        }
        match self.state {
            State::Stands => {}
            State::Closes { .. } => return self.flush().then_some(Completion::Flushed),
            State::Flushed => return None,
        }
        // The domain may have given the peer up.
        if !self.mark.is_here() || self.link.is_closed_here() {
            self.lose();
            return self.done.pop_front();
        }
        if self.armed {
            self.disarm();
        }
        self.idle += 1;
        if self.idle >= PATIENCE {
            self.listen();
        }
        // Asked before the ring is: what was sent before the end is heard.
        let ends = self.ended || self.link.is_closed_there();
        match self.rings.take(&self.link, message) {
            Ok(Some(record)) => {
                self.idle = 0;
                self.link.wake(true);
                failpoint();
                return Some(match record {
                    Record::Message(length) => Completion::Message { length },
                    Record::Immediate(immediate) => Completion::Immediate(immediate),
                });
            }
            Ok(None) if ends => self.lose(),
            Ok(None) => {}
            Err(Broken) => self.breaks("it wrote a message that cannot be"),
        }
        self.done.pop_front()
    }

    fn wait(&mut self, until: Option<u64>) {
        if !self.mark.is_here() {
            return;
        }
        match self.state {
            State::Flushed => return,
            State::Closes { .. } => {
                if self.done.is_empty() && self.link.peer_at().is_some() {
                    let most = until.map_or(NAP, |until| until.saturating_sub(self.now()).min(NAP));
                    std::thread::sleep(Duration::from_nanos(most));
                }
                return;
            }
            State::Stands => {}
        }
        let spin = self.domain.options().spin;
        let begun = Instant::now();
        while begun.elapsed() < spin {
            if self.news() {
                return;
            }
            std::hint::spin_loop();
        }
        match until.map(|until| until.saturating_sub(self.now())) {
            Some(0) => {}
            most => self.sleep(most),
        }
    }

    fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        self.stands()?;
        bell.watch(self.link.socket.as_fd())?;
        bell.watch(self.link.process().as_fd())
    }

    fn arm(&mut self) -> Armed {
        if !self.done.is_empty() {
            return Armed::News;
        }
        match self.state {
            State::Flushed => Armed::Quiet { until: None },
            _ if !self.mark.is_here() => Armed::News,
            // Its leaving rings nothing.
            State::Closes { .. } if self.link.peer_at().is_some() => Armed::Quiet { until: Some(self.now() + NAP) },
            State::Closes { .. } => Armed::News,
            State::Stands => {
                self.armed = !self.ended && self.falls_asleep();
                if self.armed {
                    return Armed::Quiet { until: None };
                }
                self.wakes_up();
                Armed::News
            }
        }
    }

    fn disconnect(&mut self) {
        self.lose();
    }
}

impl Drop for ShmEndpoint {
    /// The domain keeps the link for as long as the peer may be at memory.
    fn drop(&mut self) {
        if self.mark.is_here() {
            self.lose();
            self.domain.reap();
        }
    }
}

impl fmt::Debug for ShmEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmEndpoint").field("state", &self.state).field("fault", &self.broken).finish_non_exhaustive()
    }
}
