//! A worker: a thread with an event loop, and the connections that were given to it.
//!
//! It owns its connections; no other thread touches them. New ones come through a channel, with a wake-up. Per
//! round of the loop it reads the clock once and publishes its counts once.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use mio::net::UdpSocket;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use super::conn::{Conn, Next, Stream};
use super::datagrams::Datagrams;
use crate::disk::WorkerReads;
use crate::log;
use crate::metrics::{Asked, Counts, Sampler};
use crate::session::{Context, Out, Peer, READ_BUFFER, Shared, is_accepting, is_stopping};
use rdmakv_proto::clock::now;

const WAKE: Token = Token(usize::MAX);
/// The eventfd of the reads.
const READS: Token = Token(usize::MAX - 1);
/// Datagram sockets have the tokens above this.
const DATAGRAMS: usize = usize::MAX - 1024;
/// How long connections may take to end what is under way when the server stops, in seconds.
const DRAIN: u64 = 5;
/// How long a handshake may take at most, in seconds; not longer than a client may be silent.
const HANDSHAKE: u64 = 10;
/// How long connections have to be silent before they end when the server finishes, in seconds.
const SILENCE: u64 = 1;

/// How long lines may wait before watchers get them.
const DELIVERY: Duration = Duration::from_millis(20);

/// A connection on its way to a worker.
pub(super) struct Incoming {
    pub(super) stream: Stream,
    pub(super) peer: Arc<Peer>,
}

/// How the listener reaches a worker.
pub(crate) struct Reach {
    pub(super) sender: Sender<Incoming>,
    pub(crate) waker: Arc<Waker>,
    pub(crate) thread: std::thread::JoinHandle<()>,
}

struct Worker {
    number: usize,
    shared: Arc<Shared>,
    poll: Poll,
    incoming: Receiver<Incoming>,
    conns: Vec<Option<Conn>>,
    vacant: Vec<usize>,
    /// Connections that watch.
    watching: Vec<usize>,
    again: VecDeque<usize>,
    datagrams: Vec<Datagrams>,
    /// Connections that wait for flash, by the turn that their reads have.
    parked: HashMap<u64, usize>,
    turn: u64,
    /// Its own reads from flash. Without them the driver reads for it.
    reads: Option<WorkerReads>,
    /// Requests until ends of reads were taken last.
    answered: u64,
    counts: Counts,
    now: u64,
    buffer: Vec<u8>,
    spare: Out,
    sampler: Sampler,
}

/// Starts a worker.
///
/// # Errors
///
/// No descriptor for its event loop, or no thread.
pub(crate) fn start(number: usize, shared: Arc<Shared>, sockets: Vec<UdpSocket>) -> io::Result<Reach> {
    let poll = Poll::new()?;
    let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
    let (sender, incoming) = channel();
    let mut datagrams = Vec::new();
    for (at, mut socket) in sockets.into_iter().enumerate() {
        poll.registry().register(&mut socket, Token(DATAGRAMS + at), Interest::READABLE)?;
        datagrams.push(Datagrams::new(socket));
    }
    let reads = shared.reads.get().and_then(|reads| WorkerReads::new(reads.files().ok()?, reads.kept()).ok());
    if let Some(reads) = &reads {
        poll.registry().register(&mut SourceFd(&reads.event().as_raw_fd()), READS, Interest::READABLE)?;
    }
    let wake = waker.clone();
    shared.bells[number].set_ring(move || {
        // Without it the worker comes round within a second.
        let _ = wake.wake();
    });
    let mut worker = Worker {
        number,
        shared,
        poll,
        incoming,
        conns: Vec::new(),
        vacant: Vec::new(),
        watching: Vec::new(),
        again: VecDeque::new(),
        datagrams,
        parked: HashMap::new(),
        turn: 0,
        reads,
        answered: 0,
        counts: Counts::default(),
        now: now(),
        buffer: vec![0; READ_BUFFER],
        spare: Out::default(),
        sampler: Sampler::new(number as u32),
    };
    let thread = std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || worker.run())?;
    Ok(Reach { sender, waker, thread })
}

impl Worker {
    fn run(&mut self) {
        let mut events = Events::with_capacity(1024);
        let mut swept = self.now;
        let mut stop_at = None;
        let mut delivered = Instant::now();
        loop {
            // All reads of a round together.
            if let Some(Err(error)) = self.reads.as_mut().map(WorkerReads::submit) {
                log::print(format_args!("worker {}: reading flash: {error}; the driver reads for it", self.number));
                self.end_reads();
            }
            let waits = !self.again.is_empty()
                || self.datagrams.iter().any(|datagrams| datagrams.waits)
                || self.reads.as_mut().is_some_and(WorkerReads::has_ended);
            let wait = match waits {
                true => Duration::ZERO,
                false if !self.watching.is_empty() => DELIVERY,
                false => Duration::from_secs(1),
            };
            if let Err(error) = self.poll.poll(&mut events, Some(wait))
                && error.kind() != io::ErrorKind::Interrupted
            {
                log::print(format_args!("worker {}: waiting for events: {error}; its connections end", self.number));
                break;
            }
            self.now = now();
            self.shared.rounds[self.number].store(self.now, Relaxed);
            // Most rounds measure nothing, and these do not ask the clock.
            let begun = self.sampler.is_near(events.iter().count()).then(Instant::now);
            let mut is_signalled = false;
            for event in &events {
                let Token(at) = event.token();
                if event.token() == WAKE {
                    self.welcome();
                    self.go_on();
                } else if event.token() == READS {
                    is_signalled = true;
                } else if at >= DATAGRAMS {
                    self.datagram(at - DATAGRAMS);
                } else if let Some(Some(conn)) = self.conns.get_mut(at) {
                    conn.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                    conn.writable |= event.is_writable() || event.is_error();
                    conn.hung_up |= event.is_read_closed() || event.is_error();
                    // A flooding client has its turn with the others, not one more for each piece that arrives.
                    if conn.queued {
                        continue;
                    }
                    match (self.sampler.turn(), begun) {
                        (true, Some(begun)) => self.measure(at, begun),
                        _ => self.drive(at),
                    }
                }
            }
            // After the requests of the round: more have ended meanwhile. A signal may interrupt the wait before the event is seen.
            if is_signalled || self.reads.as_mut().is_some_and(WorkerReads::has_ended) {
                self.take_reads();
            }
            for _ in 0..self.again.len() {
                if let Some(at) = self.again.pop_front() {
                    if let Some(Some(conn)) = self.conns.get_mut(at) {
                        conn.queued = false;
                    }
                    self.drive(at);
                }
            }
            if !self.watching.is_empty() && delivered.elapsed() >= DELIVERY {
                delivered = Instant::now();
                for at in self.watching.clone() {
                    self.drive(at);
                }
            }
            for at in 0..self.datagrams.len() {
                if self.datagrams[at].waits {
                    self.datagram(at);
                }
            }
            if self.now != swept {
                swept = self.now;
                self.sweep();
            }
            self.publish();
            if is_stopping(&self.shared) {
                let deadline = *stop_at.get_or_insert(self.now + DRAIN);
                let busy: Vec<usize> = (0..self.conns.len()).filter(|&at| self.conns[at].is_some()).collect();
                for at in busy {
                    // Once more: what has arrived is still answered.
                    if let Some(Some(conn)) = self.conns.get_mut(at) {
                        conn.readable = true;
                    }
                    self.drive(at);
                    let quiet = self.conns[at].as_ref().is_some_and(|conn| conn.is_quiet() || conn.is_watching());
                    if quiet || self.now >= deadline {
                        self.close(at, "shutdown");
                    }
                }
                if self.conns.iter().all(Option::is_none) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        for at in 0..self.conns.len() {
            self.close(at, "shutdown");
        }
        self.end_reads();
        self.publish();
    }

    /// Leaves reads to the driver. Those that were begun are begun anew by the requests that wait for them.
    fn end_reads(&mut self) {
        let waiters = self.reads.take().map(|reads| reads.end(&self.shared)).unwrap_or_default();
        self.shared.wake(waiters);
    }

    /// As `drive`, and notes how long it was from the round's begin to the answer.
    fn measure(&mut self, at: usize, begun: Instant) {
        let (gets, sets, all) = (self.counts.cmd_get, self.counts.cmd_set, self.counts.bytes_written);
        self.drive(at);
        let (gets, sets) = (self.counts.cmd_get > gets, self.counts.cmd_set > sets);
        // A connection that came, went or said half of something was answered nothing: the next one then.
        if self.counts.bytes_written == all {
            return;
        }
        self.shared.latencies[self.number].record(Asked::of(gets, sets), begun.elapsed());
        self.sampler.measured();
    }

    fn publish(&self) {
        if let Ok(mut counts) = self.shared.counts[self.number].lock() {
            *counts = self.counts;
        }
    }

    fn welcome(&mut self) {
        while let Ok(Incoming { stream, peer }) = self.incoming.try_recv() {
            let at = self.vacant.pop().unwrap_or_else(|| {
                self.conns.push(None);
                self.conns.len() - 1
            });
            self.shared.log.detail(|| format!("worker {}: connection {at} comes", self.number));
            let mut conn = Conn::new(stream, peer, self.shared.settings.protocol, self.now);
            let interest = conn.interest();
            if self.poll.registry().register(conn.stream.source(), Token(at), interest).is_err() {
                self.vacant.push(at);
                self.shared.peers.remove(&conn.peer);
                self.shared.connections.fetch_sub(1, Relaxed);
                continue;
            }
            self.shared.watchers.came(&conn.peer, self.now);
            self.conns[at] = Some(conn);
            self.drive(at);
        }
    }

    /// Goes on with what waited for flash.
    fn go_on(&mut self) {
        let turns = self.shared.bells[self.number].take();
        self.go_on_with(turns);
    }

    /// Takes ends of reads: as many as requests were answered without them, and all of them at a stop.
    fn take_reads(&mut self) {
        let Some(reads) = &mut self.reads else { return };
        let requests = self.counts.requests().wrapping_sub(self.answered) as usize;
        let requests = if is_stopping(&self.shared) { usize::MAX } else { requests };
        let waiters = reads.take(&self.shared, requests, self.now);
        let turns = self.shared.wake_others(waiters, self.number);
        self.go_on_with(turns);
        self.answered = self.counts.requests();
    }

    fn go_on_with(&mut self, turns: Vec<u64>) {
        for turn in turns {
            let Some(at) = self.parked.remove(&turn) else { continue };
            if at >= DATAGRAMS {
                self.datagrams[at - DATAGRAMS].wake(turn);
                continue;
            }
            if let Some(Some(conn)) = self.conns.get_mut(at)
                && conn.parked == Some(turn)
            {
                conn.parked = None;
                self.drive(at);
            }
        }
    }

    fn drive(&mut self, at: usize) {
        let Some(Some(conn)) = self.conns.get_mut(at) else { return };
        let cx = &mut Context::new(&self.shared, self.now, &mut self.counts, self.number);
        (cx.waits.turn, cx.waits.has_own) = (self.turn, self.reads.is_some());
        let next = conn.drive(&mut self.buffer, &mut self.spare, cx);
        if cx.waits.is_used {
            if let Some(reads) = &mut self.reads {
                reads.add(cx.waits.take_loads());
            }
            if conn.parked == Some(self.turn) {
                self.parked.insert(self.turn, at);
            }
            self.turn += 1;
        }
        match next {
            Next::Wait => {}
            Next::Again if conn.queued => {}
            Next::Again => {
                conn.queued = true;
                self.again.push_back(at);
            }
            Next::Close => {
                let reason = if conn.has_ended() { "normal" } else { "error" };
                return self.close(at, reason);
            }
        }
        if conn.changes_interest() {
            let interest = conn.interest();
            if self.poll.registry().reregister(conn.stream.source(), Token(at), interest).is_err() {
                return self.close(at, "error");
            }
        }
        if conn.is_watching() && !self.watching.contains(&at) {
            self.watching.push(at);
        }
    }

    /// Ends a connection, for this reason by memcached's words.
    fn close(&mut self, at: usize, reason: &str) {
        if let Some(mut conn) = self.conns[at].take() {
            self.shared.log.detail(|| format!("worker {}: connection {at} goes", self.number));
            if let Some(tls) = self.shared.tls.as_ref().filter(|_| conn.stream.has_failed()) {
                tls.handshake_errors.fetch_add(1, Relaxed);
                self.shared.log.warn("a TLS handshake failed, or its client broke the protocol");
            }
            conn.close(&self.shared.shards);
            let _ = self.poll.registry().deregister(conn.stream.source());
            self.vacant.push(at);
            self.watching.retain(|&watching| watching != at);
            if let Some(turn) = conn.parked {
                self.parked.remove(&turn);
            }
            self.shared.peers.remove(&conn.peer);
            self.shared.watchers.went(&conn.peer, reason, self.now);
            self.shared.connections.fetch_sub(1, Relaxed);
        }
    }

    /// Ends connections that were silent for too long, or did not get to speak.
    fn sweep(&mut self) {
        let (limit, finishing) = (self.shared.settings.idle_timeout, !is_accepting(&self.shared));
        if limit == 0 && !finishing && self.shared.tls.is_none() {
            return;
        }
        let handshake = if limit > 0 { limit.min(HANDSHAKE) } else { HANDSHAKE };
        for at in 0..self.conns.len() {
            let Some(conn) = &self.conns[at] else { continue };
            let silent = self.now.saturating_sub(conn.heard);
            if conn.stream.is_handshaking() {
                if finishing || self.now.saturating_sub(conn.came) > handshake {
                    self.close(at, if finishing { "shutdown" } else { "idle_timeout" });
                }
            } else if limit > 0 && silent > limit && !conn.is_watching() {
                self.counts.idle_kicks += 1;
                // A client that sees the connection end finds it counted.
                self.publish();
                self.close(at, "idle_timeout");
            } else if finishing && (conn.is_watching() || silent > SILENCE && conn.is_quiet()) {
                // Its events go on, so that a watcher may never be silent.
                self.close(at, "shutdown");
            }
        }
    }

    fn datagram(&mut self, at: usize) {
        let cx = &mut Context::new(&self.shared, self.now, &mut self.counts, self.number);
        (cx.waits.turn, cx.waits.has_own) = (self.turn, self.reads.is_some());
        self.datagrams[at].serve(&mut self.buffer, cx);
        if let Some(reads) = &mut self.reads {
            reads.add(cx.waits.take_loads());
        }
        for turn in self.turn..cx.waits.turn {
            self.parked.insert(turn, DATAGRAMS + at);
        }
        self.turn = cx.waits.turn;
    }
}
