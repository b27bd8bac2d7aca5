//! Connections as `stats conns` lists them and `watch` names them, and the sockets that they come to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The address of a socket, or of its peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP, encrypted or not.
    Tcp(SocketAddr),
    /// UDP.
    Udp(SocketAddr),
    /// A Unix socket: its path, empty for a client's.
    Local(String),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address @ SocketAddr::V4(_)) => write!(f, "tcp:{address}"),
            Self::Tcp(address) => write!(f, "tcp6:{address}"),
            Self::Udp(address @ SocketAddr::V4(_)) => write!(f, "udp:{address}"),
            Self::Udp(address) => write!(f, "udp6:{address}"),
            Self::Local(path) => write!(f, "unix:{path}"),
        }
    }
}

impl Address {
    /// Writes host, port and transport as events name them.
    pub(super) fn describe(&self, line: &mut Vec<u8>) {
        use std::io::Write;
        // Writing to memory does not fail.
        let _ = match self {
            Self::Tcp(address) => write!(line, "rip={} rport={} transport=tcp", address.ip(), address.port()),
            Self::Udp(address) => write!(line, "rip={} rport={} transport=udp", address.ip(), address.port()),
            Self::Local(_) => write!(line, "rip=unix rport=0 transport=local"),
        };
    }
}

/// The activity of a connection, by memcached's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Doing {
    /// It is a socket that connections come to.
    Listening,
    /// It waits for a request.
    Reading,
    /// It waits for the rest of a value.
    Filling,
    /// It waits until its client takes the answer.
    Writing,
    /// It watches.
    Watching,
}

impl Doing {
    fn name(of: u8) -> &'static str {
        match of {
            of if of == Self::Listening as u8 => "conn_listening",
            of if of == Self::Filling as u8 => "conn_nread",
            of if of == Self::Writing as u8 => "conn_mwrite",
            of if of == Self::Watching as u8 => "conn_watch",
            _ => "conn_read",
        }
    }
}

/// A connection or a listening socket.
#[derive(Debug)]
pub struct Peer {
    /// Its file descriptor, which is its name.
    pub number: i32,
    /// The client's address; of a listening socket, its own.
    pub address: Address,
    /// The address that the client came to.
    pub listener: Option<Arc<Address>>,
    doing: AtomicU8,
    heard: AtomicU64,
}

impl Peer {
    /// Returns a client that came to that listener.
    pub fn client(number: i32, address: Address, listener: Arc<Address>, now: u64) -> Self {
        let doing = AtomicU8::new(Doing::Reading as u8);
        Self { number, address, listener: Some(listener), doing, heard: AtomicU64::new(now) }
    }

    /// Returns a listening socket.
    pub fn listener(number: i32, address: Address, now: u64) -> Self {
        let doing = if matches!(address, Address::Udp(_)) { Doing::Reading } else { Doing::Listening };
        Self { number, address, listener: None, doing: AtomicU8::new(doing as u8), heard: AtomicU64::new(now) }
    }

    /// Notes what it does, and when it was last heard.
    pub fn note(&self, doing: Doing, heard: u64) {
        // Nothing is written where nothing changes: the line stays the worker's.
        if self.doing.load(Relaxed) != doing as u8 {
            self.doing.store(doing as u8, Relaxed);
        }
        if self.heard.load(Relaxed) != heard {
            self.heard.store(heard, Relaxed);
        }
    }
}

/// All of them, by number. The lock is held for an insertion, a removal or a copy of the list; no other lock is taken under it.
#[derive(Debug, Default)]
pub struct Peers(Mutex<BTreeMap<i32, Arc<Peer>>>);

impl Peers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<Peer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    pub fn add(&self, peer: Arc<Peer>) {
        self.lock().insert(peer.number, peer);
    }

    /// One less. It has to be called before the descriptor is closed, because another connection may get its number.
    pub fn remove(&self, peer: &Peer) {
        self.lock().remove(&peer.number);
    }

    /// Names and values of `stats conns`; `asks` is the number of the connection that asks.
    pub(super) fn list(&self, asks: i32, now: u64, emit: &mut dyn FnMut(&str, &str)) {
        let peers: Vec<_> = self.lock().values().cloned().collect();
        for peer in peers {
            let number = peer.number;
            if matches!(peer.address, Address::Udp(_)) {
                emit(&format!("{number}:UDP"), "UDP");
            }
            emit(&format!("{number}:addr"), &peer.address.to_string());
            if let Some(listener) = &peer.listener {
                emit(&format!("{number}:listen_addr"), &listener.to_string());
            }
            let doing = if number == asks { "conn_parse_cmd" } else { Doing::name(peer.doing.load(Relaxed)) };
            emit(&format!("{number}:state"), doing);
            let silent = now.saturating_sub(peer.heard.load(Relaxed));
            emit(&format!("{number}:secs_since_last_cmd"), &silent.to_string());
        }
    }
}
