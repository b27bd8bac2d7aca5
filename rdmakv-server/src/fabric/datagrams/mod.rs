//! Clients over datagrams: many clients, few threads, and no connection.
//!
//! A client is a record of a hundred bytes in a table of one thread, and has no memory of its own between its requests. The state machine
//! of [`frrwp::fabric::reliability`] delivers each request whole, and executes a mutation at most once. Requests and replies are
//! [messages](rdmakv_proto::messages) in one fragment. There are no tags, transfers or PUTs.
//!
//! | part     | file         | owns                                                          |
//! |----------|--------------|---------------------------------------------------------------|
//! | Thread   | `thread.rs`  | a socket and the records of its clients                       |
//! | Executor | `execute.rs` | the session and counts of the request that is carried out     |
//! | Trial    | `trial.rs`   | an executor without a network, for fuzzing                    |
//! | Rates    | `rates.rs`   | the requests of its busy clients since the last ranking       |

mod execute;
mod rates;
mod thread;
mod trial;

pub use trial::try_messages;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use frrwp::fabric::DatagramPort;
use frrwp::fabric::reliability::ServerLimits;

use super::hybrid::Hybrid;
use crate::metrics::{DatagramCounts, FabricCounts, FabricGauges, Latencies, Reported};
use crate::session::Shared;

/// The names in addresses: of sockets, and of RDMA devices.
pub(super) const UDP: &str = "udp";
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
pub(super) const VERBS_UD: &str = "verbs-ud";
/// A thread's stack. Messages are elsewhere.
const STACK: usize = 256 << 10;

/// The terms for clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// The fabric's name in addresses.
    pub(super) name: &'static str,
    /// Which incarnation of the server it is.
    pub(super) incarnation: u32,
    /// Bytes of a value that travels in a message at most.
    pub(super) eager: usize,
    /// The bounds of one thread.
    pub(super) limits: ServerLimits,
}

/// The common state of the threads at one address.
#[derive(Debug)]
pub(super) struct DatagramState {
    shared: Arc<Shared>,
    terms: Terms,
    counts: FabricCounts,
    datagrams: DatagramCounts,
    latencies: Latencies,
    /// Which clients are offered connections, if any are.
    hybrid: Option<Arc<Hybrid>>,
    /// Clients of all threads at present.
    clients: AtomicU64,
}

impl DatagramState {
    /// Returns the state before any client has come.
    pub(super) fn new(shared: Arc<Shared>, terms: Terms, hybrid: Option<Arc<Hybrid>>) -> Self {
        Self {
            shared,
            terms,
            counts: FabricCounts::default(),
            datagrams: DatagramCounts::default(),
            latencies: Latencies::default(),
            hybrid,
            clients: AtomicU64::new(0),
        }
    }
}

/// Starts a thread for each socket. Its counts have the place `first` and those behind it. They end when the server stops or
/// finishes. Clients go on with the server that takes the port then: it tells them that it does not know them.
///
/// No socket is closed before all threads have ended. The kernel would deliver the datagrams of its clients, and those of the last socket's, to
/// threads that do not know them. Such a thread tells a client that the server has forgotten it, while another one executes its requests.
///
/// # Errors
///
/// No thread.
pub(super) fn start(
    state: &Arc<DatagramState>,
    ports: Vec<impl DatagramPort + Send + 'static>,
    first: usize,
    threads: &mut Vec<JoinHandle<()>>,
) -> io::Result<()> {
    let ended = Arc::new(Mutex::new(Vec::with_capacity(ports.len())));
    for (number, mut port) in ports.into_iter().enumerate() {
        let (state, name, ended) = (state.clone(), format!("{}-{number}", state.terms.name), ended.clone());
        let work = move || {
            thread::run(&state, &mut port, number, first + number);
            // The last thread drops all.
            ended.lock().unwrap_or_else(PoisonError::into_inner).push(port);
        };
        threads.push(Builder::new().name(name).stack_size(STACK).spawn(work)?);
    }
    Ok(())
}

impl Reported for DatagramState {
    fn name(&self) -> &'static str {
        self.terms.name
    }

    fn counts(&self) -> &FabricCounts {
        &self.counts
    }

    fn datagrams(&self) -> Option<&DatagramCounts> {
        Some(&self.datagrams)
    }

    fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    fn gauges(&self) -> FabricGauges {
        FabricGauges { connections: self.clients.load(Relaxed), ..FabricGauges::default() }
    }

    /// Its threads end when the server stops.
    fn end(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Settings;
    use frrwp::fabric::Peer;
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    /// A socket of which time stands still. Nonsense comes without end, or nothing.
    struct Port {
        is_busy: Arc<AtomicBool>,
        closed: Arc<AtomicUsize>,
    }

    impl DatagramPort for Port {
        fn part(&self) -> usize {
            1400
        }

        fn now(&self) -> u64 {
            0
        }

        fn send(&mut self, _: Peer, _: &[u8]) -> io::Result<()> {
            Ok(())
        }

        fn poll(&mut self) -> Option<(Peer, &[u8])> {
            let from = Peer::from(SocketAddr::from(([10, 0, 0, 1], 7)));
            self.is_busy.load(Relaxed).then_some((from, b"nonsense"))
        }

        fn wait(&mut self, _: Option<u64>) {
            std::thread::yield_now();
        }
    }

    impl Drop for Port {
        fn drop(&mut self) {
            self.closed.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn sockets_close_once_all_threads_have_ended() {
        let state = Arc::new(trial::state(Settings { threads: 3, ..Settings::default() }));
        let closed = Arc::new(AtomicUsize::new(0));
        let busy = [false, true, false].map(|is_busy| Arc::new(AtomicBool::new(is_busy)));
        let ports = busy.iter().map(|is_busy| Port { is_busy: is_busy.clone(), closed: closed.clone() }).collect();
        let mut threads = Vec::new();
        start(&state, ports, 0, &mut threads).unwrap();
        state.shared.finish.store(true, Relaxed);
        let last = threads.remove(1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(closed.load(Relaxed), 0, "the second thread serves its clients");
        busy[1].store(false, Relaxed);
        last.join().unwrap();
        assert_eq!(closed.load(Relaxed), 3);
    }
}
