//! A worker: a thread with an event loop, and the connections that were given to it.
//!
//! It owns its connections; nobody else touches them. New ones come through a channel, with a wake-up. Per round of
//! the loop it reads the clock once and publishes its counts once.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token, Waker};

use super::conn::{Conn, Next, Stream};
use super::datagrams::Datagrams;
use crate::session::{Context, Counts, Out, Session, Shared, is_stopping};

/// Bytes read at once at most.
const BUFFER: usize = 128 << 10;
const WAKE: Token = Token(usize::MAX);
/// Datagram sockets have the tokens above this.
const DATAGRAMS: usize = usize::MAX - 1024;
/// How long connections may take to end what is under way when the server stops, in seconds.
const DRAIN: u64 = 5;

/// Unix seconds.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

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
            let wait = if self.again.is_empty() { Duration::from_secs(1) } else { Duration::ZERO };
            if let Err(error) = self.poll.poll(&mut events, Some(wait))
                && error.kind() != io::ErrorKind::Interrupted
            {
                eprintln!("worker {}: waiting for events: {error}; its connections end", self.number);
                break;
            }
            self.now = now();
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
                    self.drive(at);
                }
            }
            for _ in 0..self.again.len() {
                if let Some(at) = self.again.pop_front() {
                    self.drive(at);
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
            Next::Again => self.again.push_back(at),
            Next::Close => self.close(at),
        }
    }

    fn close(&mut self, at: usize) {
        if let Some(mut conn) = self.conns[at].take() {
            conn.close(&self.shared.shards);
            let _ = self.poll.registry().deregister(conn.stream.source());
            self.vacant.push(at);
            self.shared.connections.fetch_sub(1, Relaxed);
        }
    }

    /// Ends connections that were silent for too long.
    fn sweep(&mut self) {
        let limit = self.shared.settings.idle_timeout;
        if limit == 0 {
            return;
        }
        for at in 0..self.conns.len() {
            if self.conns[at].as_ref().is_some_and(|conn| self.now.saturating_sub(conn.heard) > limit) {
                self.counts.idle_kicks += 1;
                // Who sees the connection end finds it counted.
                self.publish();
                self.close(at);
            }
        }
    }

    fn datagram(&mut self, at: usize) {
        let cx = &mut Context { shared: &self.shared, now: self.now, counts: &mut self.counts, worker: self.number };
        self.datagrams[at].serve(&mut self.buffer, cx);
    }
}
