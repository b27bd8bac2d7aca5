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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
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
/// # Errors
///
/// No thread.
pub(super) fn start(
    state: &Arc<DatagramState>,
    ports: Vec<impl DatagramPort + Send + 'static>,
    first: usize,
    threads: &mut Vec<JoinHandle<()>>,
) -> io::Result<()> {
    for (number, port) in ports.into_iter().enumerate() {
        let (state, name) = (state.clone(), format!("{}-{number}", state.terms.name));
        let work = move || thread::run(&state, port, number, first + number);
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
