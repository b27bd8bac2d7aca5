//! The application's end of a connection.
#![expect(unsafe_code, reason = "posting lets the kernel at memory")]

use super::connection::{Arrival, Connection, Core, NAP, QUEUE};
use super::ddp::ReadRequest;
use super::inbound::Reading;
use super::memory::Buffer;
use super::outbound::{GATHER, Post};
use super::provider::Provider;
use super::socket::{self, Piece};
use super::{IwarpDomain, IwarpEnd, IwarpKey, since_start};
use crate::fabric::poller::Bell;
use crate::fabric::siw;
use crate::fabric::traits::{Armed, Capabilities, Completion, Endpoint, Local};
use crate::wire::{MESSAGE, Segment};
use mrrc::Access;
use smallvec::SmallVec;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Polls that find nothing before they look at the socket themselves: a caller that waits in between does not need it.
const EMPTY: u32 = 8;

/// One end of an iWARP connection.
///
/// Reads are not fenced, as with any iWARP device. A write that is posted after a read may be placed before the bytes that
/// are read are sent. A program that needs the order waits for the read.
pub struct IwarpEndpoint {
    pub(super) connection: Arc<Connection>,
    pub(super) provider: Arc<Provider>,
    pub(super) empty_polls: u32,
    /// Completions that a child of a fork was told of its copy.
    pub(super) told: u8,
}

impl IwarpEndpoint {
    /// Why the connection ended.
    pub fn why(&self) -> Option<IwarpEnd> {
        self.connection.lock().why
    }

    /// How often the peer that was connected to was probed, with an empty write, because nothing came of it at first. Some peers
    /// overlook what comes while they are still accepting: Linux's siw does.
    pub fn probes_sent(&self) -> u32 {
        self.connection.lock().probes_sent()
    }

    /// Returns whether frames carry CRCs: at least one side asked for them.
    pub fn checksums(&self) -> bool {
        self.connection.lock().checksums()
    }

    /// Returns the peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.connection.peer
    }

    /// Returns how many reads of the peer were taken, those included that are not answered yet.
    pub fn reads_taken(&self) -> u64 {
        self.connection.lock().outbound.taken
    }

    /// Returns a domain with registrations for this connection alone: for peers that are not to try the keys of others. The
    /// peer may end each of them by sending with invalidate.
    pub fn own_domain(&self) -> IwarpDomain {
        IwarpDomain::of_connection(Arc::clone(&self.provider), self.connection.number)
    }

    /// Sets whether a waiting application leaves this connection to the domain's thread, whatever
    /// [its options](super::IwarpOptions::passive) say. Otherwise messages reach the application without a switch between threads,
    /// and its waits answer the peer's reads. A [bell](Endpoint::attach) is served by the domain's thread in any case.
    pub fn set_passive(&self, passive: bool) {
        if !self.provider.is_here() {
            return;
        }
        let mut core = self.connection.lock();
        if core.passive == passive {
            return;
        }
        core.passive = passive;
        let shared = &self.provider.shared;
        if passive {
            shared.release(&self.connection, &mut core);
        } else if core.bell.is_none() && core.is_open() && !core.claim.held && !core.claim.stayed {
            shared.claim(&self.connection, &mut core);
        }
    }

    /// Posts a message that ends a key of the peer's that is this connection's own.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub fn send_invalidating(&mut self, message: &[u8], key: u32) -> io::Result<()> {
        self.send_or_invalidate(message, Some(key))
    }

    fn send_or_invalidate(&mut self, message: &[u8], invalidate: Option<u32>) -> io::Result<()> {
        if message.len() > MESSAGE {
            let text = format!("a message of {} bytes is longer than {MESSAGE}: send it in parts", message.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.post(|core| {
            if core.outbound.waiting() >= QUEUE {
                return core.blocks();
            }
            let mut bytes = core.outbound.buffer();
            bytes.clear();
            bytes.extend_from_slice(message);
            core.outbound.post(Post::Send { bytes, invalidate });
            Ok(())
        })
    }

    fn post(&self, post: impl FnOnce(&mut Core) -> io::Result<()>) -> io::Result<()> {
        self.post_and(post, |core| self.provider.shared.arm(&self.connection, core))
    }

    /// As [`post`](Self::post), of an operation that the application will wait for: it begins to serve its connection now. A
    /// program with many connections would find else that the provider's thread was woken for each answer, before the program
    /// waited for it.
    fn post_and_expect(&self, post: impl FnOnce(&mut Core) -> io::Result<()>) -> io::Result<()> {
        let shared = &self.provider.shared;
        self.post_and(post, |core| {
            let claim = core.claim;
            if core.passive || core.bell.is_some() || claim.held || claim.stayed || !core.is_open() {
                shared.arm(&self.connection, core);
            } else {
                shared.claim(&self.connection, core);
            }
        })
    }

    fn post_and(&self, post: impl FnOnce(&mut Core) -> io::Result<()>, then: impl FnOnce(&mut Core)) -> io::Result<()> {
        if !self.provider.is_here() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let connection = &*self.connection;
        let mut core = connection.lock();
        if !core.is_open() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        core.claim.active = true;
        post(&mut core)?;
        if !core.corked {
            core.flush(connection);
        }
        then(&mut core);
        // A post that has left at once has its end.
        connection.tell(&mut core);
        Ok(())
    }

    /// Returns the completions of a forked child's copy: the connection is its parent's.
    #[cold]
    fn next_of_copy(&mut self) -> Option<Completion> {
        self.told = self.told.saturating_add(1);
        match self.told {
            1 => Some(Completion::Lost),
            2 => Some(Completion::Flushed),
            _ => None,
        }
    }

    /// Sends what was held.
    fn let_go(&self, core: &mut Core) {
        if std::mem::take(&mut core.corked) && core.is_open() {
            core.flush(&self.connection);
            self.provider.shared.arm(&self.connection, core);
        }
    }
}

// SAFETY: a write is done when all of its bytes were handed to the system, a read when its last frame has come; `Flushed` is
// queued under the lock under which everything is placed and sent, by the thread that ends the open phase, and after it
// neither is done any more: what last words leave of a write is copied before.
unsafe impl Endpoint for IwarpEndpoint {
    type Domain = IwarpDomain;

    fn capabilities(&self) -> Capabilities {
        Capabilities { gather: GATHER, immediate: false, sink: Access::LOCAL_WRITE }
    }

    fn now(&self) -> u64 {
        since_start(Instant::now())
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.send_or_invalidate(message, None)
    }

    fn receive(&mut self, more: u16) -> io::Result<()> {
        if !self.provider.is_here() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let mut core = self.connection.lock();
        core.add_receives(more.into());
        Ok(())
    }

    unsafe fn write(
        &mut self,
        id: u64,
        from: &[Local<'_, IwarpKey>],
        to: Segment,
        immediate: Option<u32>,
    ) -> io::Result<()> {
        if immediate.is_some() || from.len() > GATHER {
            let text = format!("iwarp writes carry no immediate, and at most {GATHER} pieces");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        self.post(|core| {
            if core.outbound.waiting() >= QUEUE || core.completions.pending() >= QUEUE {
                return core.blocks();
            }
            let mut left = usize::try_from(to.length).unwrap_or(usize::MAX);
            let pieces = from.iter().map(|local| {
                let length = local.length.min(left);
                left -= length;
                Piece { address: local.address, length }
            });
            let pieces = pieces.filter(|piece| piece.length > 0).collect();
            let sequence = core.begin(id, 1);
            core.outbound.post(Post::Write { sequence, pieces, tag: to.key, at: to.address });
            Ok(())
        })
    }

    unsafe fn read(&mut self, id: u64, into: &[Local<'_, IwarpKey>], from: Segment) -> io::Result<()> {
        self.post_and_expect(|core| {
            let mut left = from.length;
            let sink_tag = self.connection.sink();
            let mut requests: SmallVec<[(ReadRequest, usize); GATHER]> = SmallVec::new();
            // For any registrations: adjacent pieces are one request, and so of one version if their tag is bound.
            let mut pieces: SmallVec<[Piece; GATHER]> = SmallVec::new();
            for local in into {
                match pieces.last_mut().filter(|last| last.address.wrapping_add(last.length) == local.address) {
                    Some(last) => last.length += local.length,
                    None => pieces.push(Piece { address: local.address, length: local.length }),
                }
            }
            for local in &pieces {
                let mut done = 0;
                while done < local.length && left > 0 {
                    // A request's length has 32 bits.
                    let most = (local.length - done).min(1 << 30).min(usize::try_from(left).unwrap_or(usize::MAX));
                    let source_offset = from.address.wrapping_add(from.length - left);
                    let length = siw::one_request(source_offset, most as u64) as usize;
                    let request = ReadRequest {
                        sink_tag,
                        sink_offset: 0,
                        length: length as u32,
                        source_tag: from.key,
                        source_offset,
                    };
                    requests.push((request, local.address as usize + done));
                    done += length;
                    left -= length as u64;
                }
            }
            if requests.is_empty() {
                // Nothing is read by an empty request, so that its end comes in its turn.
                let (source_tag, source_offset) = (from.key, from.address);
                requests.push((ReadRequest { sink_tag, sink_offset: 0, length: 0, source_tag, source_offset }, 0));
            }
            if core.outbound.waiting() + requests.len() > QUEUE || core.completions.pending() >= QUEUE {
                return core.blocks();
            }
            let sequence = core.begin(id, requests.len() as u32);
            for (request, address) in requests {
                let ReadRequest { sink_tag, sink_offset, length, .. } = request;
                let reading = Reading { sequence, tag: sink_tag, at: sink_offset, address, left: length };
                core.outbound.post(Post::Read(request, reading));
            }
            Ok(())
        })
    }

    fn cork(&mut self, corked: bool) {
        if !self.provider.is_here() {
            return;
        }
        let mut core = self.connection.lock();
        if corked {
            core.corked = true;
        } else {
            self.let_go(&mut core);
        }
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE]) -> Option<Completion> {
        if !self.provider.is_here() {
            return self.next_of_copy();
        }
        let connection = &*self.connection;
        let mut core = connection.lock();
        core.claim.active = true;
        if core.completions.is_empty() {
            self.empty_polls += 1;
            if !core.claim.held || core.corked || self.empty_polls < EMPTY {
                return None;
            }
            // A program that only polls serves its connection too; but corked posts would leave with that.
            core.serve(connection);
            self.provider.shared.arm(connection, &mut core);
        }
        let arrival = core.completions.next()?;
        self.empty_polls = 0;
        Some(match arrival {
            Arrival::Message(bytes) => {
                let length = bytes.len();
                message[..length].copy_from_slice(&bytes);
                core.outbound.give_back(bytes);
                Completion::Message { length }
            }
            Arrival::Done { id, succeeded } => Completion::Done { id, succeeded },
            Arrival::Lost => Completion::Lost,
            Arrival::Flushed => Completion::Flushed,
        })
    }

    fn wait(&mut self, until: Option<u64>) {
        if !self.provider.is_here() {
            return;
        }
        self.empty_polls = 0;
        let connection = &self.connection;
        let shared = &self.provider.shared;
        let stall = shared.common.options.stall;
        let until = until.map(Duration::from_nanos);
        // Whether it has slept for as long as a receiving call may: then nothing is under way, and it sleeps until something is.
        let mut is_idle = false;
        let mut core = connection.lock();
        self.let_go(&mut core);
        while core.completions.is_empty() && core.is_open() && !core.room_came() {
            let now = Instant::now();
            if core.stalls_at(stall).is_some_and(|at| at <= now) {
                core.expire(connection);
                break;
            }
            let for_caller = until.map(|until| until.saturating_sub(Duration::from_nanos(since_start(now))));
            if for_caller == Some(Duration::ZERO) {
                break;
            }
            core.send_probe(connection);
            let for_peer = [core.stalls_at(stall), core.nudges_at()].into_iter().flatten();
            let for_peer = for_peer.map(|at| at.saturating_duration_since(now));
            let held = core.held_until().map(|at| at.saturating_sub(Duration::from_nanos(since_start(now))));
            let time = for_caller.into_iter().chain(for_peer).chain(held).min();
            if core.passive || core.bell.is_some() {
                // Should the probe have found no room.
                shared.arm(connection, &mut core);
                core = wait_passively(connection, core, time);
                continue;
            }
            core.claim.active = true;
            if core.claim.stayed {
                core = wait_for_provider(connection, core, time);
                continue;
            }
            if !core.claim.held {
                shared.claim(connection, &mut core);
            }
            core = sleep(connection, core, time, &mut is_idle);
        }
        core.wants_room &= !core.room_came();
        // Last words may wait for room: that is the provider's business, whichever thread held the claim.
        if (core.claim.held && core.claim.parked) || !core.is_open() {
            shared.release(connection, &mut core);
        }
    }

    fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        if !self.provider.is_here() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let connection = &*self.connection;
        let mut core = connection.lock();
        core.bell = Some(bell.clone());
        // From now on the provider's thread serves it.
        self.provider.shared.release(connection, &mut core);
        Ok(())
    }

    fn arm(&mut self) -> Armed {
        if !self.provider.is_here() {
            return if self.told < 2 { Armed::News } else { Armed::Quiet { until: None } };
        }
        self.empty_polls = 0;
        let mut core = self.connection.lock();
        self.let_go(&mut core);
        core.armed = core.completions.is_empty() && !core.room_came();
        core.wants_room &= !core.room_came();
        if core.armed { Armed::Quiet { until: None } } else { Armed::News }
    }

    fn disconnect(&mut self) {
        if !self.provider.is_here() {
            return;
        }
        let connection = &*self.connection;
        let mut core = connection.lock();
        if core.is_open() {
            // Posts leave if that is possible at once.
            core.flush(connection);
            core.lose(connection, IwarpEnd::Disconnected);
        }
        self.provider.shared.release(connection, &mut core);
        connection.tell(&mut core);
    }
}

/// Sleeps until something comes or the time is over, and does what it says.
fn sleep<'a>(
    connection: &'a Connection,
    mut core: MutexGuard<'a, Core>,
    time: Option<Duration>,
    is_idle: &mut bool,
) -> MutexGuard<'a, Core> {
    core.claim.waiting = true;
    let mut core = if !*is_idle && core.may_sleep() && time.is_none_or(|time| time > NAP) {
        drop(core);
        let (core, came) = connection.sleep();
        *is_idle = !came;
        core
    } else {
        let mut watched = [socket::watched_for(&connection.socket, core.interest())];
        let is_held = core.is_held();
        drop(core);
        if *is_idle {
            Buffer::give_back();
        }
        let slept = socket::sleep(&mut watched, time);
        let mut core = connection.lock();
        if socket::hung_up(&watched[0]) {
            core.hung_up(connection);
        }
        if is_held || slept.is_ok_and(|ready| ready > 0) {
            core.serve(connection);
        }
        core
    };
    core.claim.waiting = false;
    core.claim.active = true;
    core
}

/// Waits until something is told, or the time is over. Others serve the connection.
fn wait_passively<'a>(
    connection: &'a Connection,
    mut core: MutexGuard<'a, Core>,
    time: Option<Duration>,
) -> MutexGuard<'a, Core> {
    core.claim.passive = true;
    let mut core = wait(&connection.news, core, time);
    core.claim.passive = false;
    core
}

/// Waits until the provider's thread has left the connection, or the time is over.
fn wait_for_provider<'a>(
    connection: &'a Connection,
    core: MutexGuard<'a, Core>,
    time: Option<Duration>,
) -> MutexGuard<'a, Core> {
    wait(&connection.left, core, time)
}

fn wait<'a>(told: &Condvar, core: MutexGuard<'a, Core>, time: Option<Duration>) -> MutexGuard<'a, Core> {
    match time {
        Some(time) => told.wait_timeout(core, time).unwrap_or_else(PoisonError::into_inner).0,
        None => told.wait(core).unwrap_or_else(PoisonError::into_inner),
    }
}

impl Drop for IwarpEndpoint {
    /// Ends the connection. The provider's thread forgets it.
    fn drop(&mut self) {
        if self.provider.is_here() {
            self.disconnect();
            self.connection.lock().bell = None;
            self.provider.shared.forget(&self.connection);
        }
    }
}

impl fmt::Debug for IwarpEndpoint {
    // Without the connection's lock: the printing thread may hold it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connection { number, peer, .. } = &*self.connection;
        f.debug_struct("IwarpEndpoint").field("number", number).field("peer", peer).finish_non_exhaustive()
    }
}
