//! A worker: a thread with an event loop, and the connections that were given to it.
//!
//! It owns its connections; nobody else touches them. New ones come through a channel, with a wake-up. Per round of
//! the loop it reads the clock once and publishes its counts once.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token, Waker};

use super::clock::now;
use super::conn::{Conn, Next, Stream};
use super::datagrams::Datagrams;
use super::trace;
use crate::session::{Asked, Context, Counts, Out, Session, Shared, is_accepting, is_stopping};

/// Bytes read at once at most.
const BUFFER: usize = 128 << 10;
const WAKE: Token = Token(usize::MAX);
/// Datagram sockets have the tokens above this.
const DATAGRAMS: usize = usize::MAX - 1024;
/// How long connections may take to end what is under way when the server stops, in seconds.
const DRAIN: u64 = 5;
/// How long a handshake may take at most, in seconds; not longer than a client may be silent.
const HANDSHAKE: u64 = 10;
/// How long connections have to be silent before they end when the server finishes, in seconds.
const SILENCE: u64 = 1;
/// Of so many turns one is measured, about.
const SAMPLE: u32 = 64;

/// How the listener reaches a worker.
pub(super) struct Reach {
    pub(super) sender: Sender<Stream>,
    pub(super) waker: Arc<Waker>,
    pub(super) thread: std::thread::JoinHandle<()>,
}

struct Worker {
    number: usize,
    shared: Arc<Shared>,
    poll: Poll,
    incoming: Receiver<Stream>,
    conns: Vec<Option<Conn>>,
    vacant: Vec<usize>,
    again: VecDeque<usize>,
    datagrams: Vec<Datagrams>,
    counts: Counts,
    now: u64,
    buffer: Vec<u8>,
    spare: Out,
    /// Turns until one is measured; not always as many, so that no rhythm of the clients hides from it.
    until_sample: u32,
    random: u32,
}

/// Starts a worker.
///
/// # Errors
///
/// No descriptor for its event loop, or no thread.
pub(super) fn start(number: usize, shared: Arc<Shared>, sockets: Vec<UdpSocket>) -> io::Result<Reach> {
    let poll = Poll::new()?;
    let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
    let (sender, incoming) = channel();
    let mut datagrams = Vec::new();
    for (at, mut socket) in sockets.into_iter().enumerate() {
        poll.registry().register(&mut socket, Token(DATAGRAMS + at), Interest::READABLE)?;
        datagrams.push(Datagrams::new(socket));
    }
    let mut worker = Worker {
        number,
        shared,
        poll,
        incoming,
        conns: Vec::new(),
        vacant: Vec::new(),
        again: VecDeque::new(),
        datagrams,
        counts: Counts::default(),
        now: now(),
        buffer: vec![0; BUFFER],
        spare: Out::default(),
        until_sample: SAMPLE,
        random: 0x9e37_79b9 ^ number as u32,
    };
    let thread = std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || worker.run())?;
    Ok(Reach { sender, waker, thread })
}

impl Worker {
    fn run(&mut self) {
        let mut events = Events::with_capacity(1024);
        let mut swept = self.now;
        let mut stop_at = None;
        loop {
            let waits = !self.again.is_empty() || self.datagrams.iter().any(|datagrams| datagrams.waits);
            let wait = if waits { Duration::ZERO } else { Duration::from_secs(1) };
            if let Err(error) = self.poll.poll(&mut events, Some(wait))
                && error.kind() != io::ErrorKind::Interrupted
            {
                trace::say(format_args!("worker {}: waiting for events: {error}; its connections end", self.number));
                break;
            }
            self.now = now();
            self.shared.rounds[self.number].store(self.now, Relaxed);
            // Of most rounds nothing is measured, and these do not ask the clock.
            let begun = (self.until_sample as usize <= events.iter().count()).then(Instant::now);
            for event in &events {
                let Token(at) = event.token();
                if event.token() == WAKE {
                    self.welcome();
                } else if at >= DATAGRAMS {
                    self.datagram(at - DATAGRAMS);
                } else if let Some(Some(conn)) = self.conns.get_mut(at) {
                    conn.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                    conn.writable |= event.is_writable() || event.is_error();
                    conn.hung_up |= event.is_read_closed() || event.is_error();
                    // Who floods has his turn with the others, not one more for each piece that arrives.
                    if conn.queued {
                        continue;
                    }
                    self.until_sample = self.until_sample.saturating_sub(1);
                    match begun {
                        Some(begun) if self.until_sample == 0 => self.measure(at, begun),
                        _ => self.drive(at),
                    }
                }
            }
            for _ in 0..self.again.len() {
                if let Some(at) = self.again.pop_front() {
                    if let Some(Some(conn)) = self.conns.get_mut(at) {
                        conn.queued = false;
                    }
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
                    let quiet = self.conns[at].as_ref().is_some_and(Conn::is_quiet);
                    if quiet || self.now >= deadline {
                        self.close(at);
                    }
                }
                if self.conns.iter().all(Option::is_none) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        for at in 0..self.conns.len() {
            self.close(at);
        }
        self.publish();
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
        let asked = match (gets, sets) {
            (true, false) => Asked::Get,
            (false, true) => Asked::Set,
            _ => Asked::Other,
        };
        self.shared.latencies[self.number].record(asked, begun.elapsed());
        for shift in [13, -17, 5_i32] {
            self.random ^= if shift > 0 { self.random << shift } else { self.random >> -shift };
        }
        self.until_sample = SAMPLE / 2 + self.random % SAMPLE;
    }

    fn publish(&self) {
        if let Ok(mut counts) = self.shared.counts[self.number].lock() {
            *counts = self.counts;
        }
    }

    fn welcome(&mut self) {
        while let Ok(mut stream) = self.incoming.try_recv() {
            let at = self.vacant.pop().unwrap_or_else(|| {
                self.conns.push(None);
                self.conns.len() - 1
            });
            trace::tell(&self.shared, || format!("worker {}: connection {at} comes", self.number));
            let both = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(stream.source(), Token(at), both).is_err() {
                self.vacant.push(at);
                self.shared.connections.fetch_sub(1, Relaxed);
                continue;
            }
            self.conns[at] = Some(Conn::new(stream, Session::new(self.shared.settings.speaks), self.now));
            self.drive(at);
        }
    }

    fn drive(&mut self, at: usize) {
        let Some(Some(conn)) = self.conns.get_mut(at) else { return };
        let cx = &mut Context { shared: &self.shared, now: self.now, counts: &mut self.counts, worker: self.number };
        match conn.drive(&mut self.buffer, &mut self.spare, cx) {
            Next::Wait => {}
            Next::Again if conn.queued => {}
            Next::Again => {
                conn.queued = true;
                self.again.push_back(at);
            }
            Next::Close => self.close(at),
        }
    }

    fn close(&mut self, at: usize) {
        if let Some(mut conn) = self.conns[at].take() {
            trace::tell(&self.shared, || format!("worker {}: connection {at} goes", self.number));
            if let Some(tls) = self.shared.tls.as_ref().filter(|_| conn.stream.has_failed()) {
                tls.handshake_errors.fetch_add(1, Relaxed);
                trace::warn(&self.shared, "a TLS handshake failed, or its client broke the protocol");
            }
            conn.close(&self.shared.shards);
            let _ = self.poll.registry().deregister(conn.stream.source());
            self.vacant.push(at);
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
                    self.close(at);
                }
            } else if limit > 0 && silent > limit {
                self.counts.idle_kicks += 1;
                // Who sees the connection end finds it counted.
                self.publish();
                self.close(at);
            } else if finishing && silent > SILENCE && conn.is_quiet() {
                self.close(at);
            }
        }
    }

    fn datagram(&mut self, at: usize) {
        let cx = &mut Context { shared: &self.shared, now: self.now, counts: &mut self.counts, worker: self.number };
        self.datagrams[at].serve(&mut self.buffer, cx);
    }
}
