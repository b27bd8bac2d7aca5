//! Watching the server: an overview for people, metrics for Prometheus, a word on health; on a thread of its own.
//!
//! Monitoring never costs a worker anything: this thread reads the counters that are there anyway, once a second and when
//! asked. Its clients are bounded in number, in the length of what they ask and in time. Where too many come, the one that
//! has waited longest goes.

mod answer;
mod history;
mod hosts;
mod metrics;
mod overview;
mod peer;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::log;
use crate::session::Shared;
use history::History;
pub(crate) use hosts::Hosts;
use peer::{Next, Peer};

const LISTENER: Token = Token(0);
const WAKE: Token = Token(1);
/// Clients at a time.
const PEERS: usize = 64;
/// Between two points of the history.
const TICK: Duration = Duration::from_secs(1);

/// The thread, and how to end it.
pub(crate) struct Watch {
    thread: JoinHandle<()>,
    waker: Waker,
    stop: Arc<AtomicBool>,
}

impl Watch {
    /// Ends it; a client that waits for an answer gets none.
    pub(crate) fn end(self) {
        self.stop.store(true, Relaxed);
        let _ = self.waker.wake();
        let _ = self.thread.join();
    }
}

/// The sources of answers.
pub(crate) struct Scene {
    shared: Arc<Shared>,
    /// The server's addresses.
    said: Vec<String>,
    /// Names by which requests may ask for it.
    hosts: Hosts,
    history: History,
}

struct Watcher {
    poll: Poll,
    listener: TcpListener,
    peers: HashMap<usize, Peer>,
    next: usize,
    /// The clients that go on once others had their turn.
    again: Vec<usize>,
    scene: Scene,
}

/// Starts to answer.
///
/// # Errors
///
/// No descriptor for an event loop, or no thread.
pub(crate) fn start(
    mut listener: TcpListener,
    shared: Arc<Shared>,
    said: Vec<String>,
    hosts: Hosts,
) -> io::Result<Watch> {
    let poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let waker = Waker::new(poll.registry(), WAKE)?;
    let stop = Arc::new(AtomicBool::new(false));
    let history = History::begin(&shared);
    let scene = Scene { shared, said, hosts, history };
    let mut watcher = Watcher { poll, listener, peers: HashMap::new(), next: 2, again: Vec::new(), scene };
    let thread = std::thread::Builder::new().name("http".into()).spawn({
        let stop = stop.clone();
        move || watcher.run(&stop)
    })?;
    Ok(Watch { thread, waker, stop })
}

impl Watcher {
    fn run(&mut self, stop: &AtomicBool) {
        let mut events = Events::with_capacity(64);
        let mut tick = Instant::now() + TICK;
        while !stop.load(Relaxed) {
            let waits = self.again.is_empty();
            let wait = if waits { tick.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            if let Err(error) = self.poll.poll(&mut events, Some(wait))
                && error.kind() != io::ErrorKind::Interrupted
            {
                log::print(format_args!("--http: waiting for events: {error}: no request is answered any more"));
                return;
            }
            for event in &events {
                let Token(at) = event.token();
                self.serve(at);
            }
            for at in std::mem::take(&mut self.again) {
                self.serve(at);
            }
            let now = Instant::now();
            if now >= tick {
                self.scene.history.note(&self.scene.shared);
                // After a pause no point is made up for what was missed.
                tick = (tick + TICK).max(now);
            }
            self.peers.retain(|_, peer| peer.deadline() > now);
            // Every time: the event of connections that could not be accepted once has been used up.
            self.welcome();
        }
    }

    fn welcome(&mut self) {
        while let Ok((mut socket, _)) = self.listener.accept() {
            if self.peers.len() >= PEERS
                && let Some(&longest) = self.peers.iter().min_by_key(|(_, peer)| peer.since()).map(|(at, _)| at)
            {
                self.peers.remove(&longest);
            }
            let at = self.next;
            self.next += 1;
            let both = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(&mut socket, Token(at), both).is_ok() {
                self.peers.insert(at, Peer::new(socket));
                self.serve(at);
            }
        }
    }

    fn serve(&mut self, at: usize) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        match peer.serve(|request| answer::to(request, &self.scene)) {
            Next::Wait => {}
            Next::Again if self.again.contains(&at) => {}
            Next::Again => self.again.push(at),
            Next::Go => drop(self.peers.remove(&at)),
        }
    }
}
