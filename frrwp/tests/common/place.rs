//! Futures over a simulated network.
#![allow(unreachable_pub, reason = "shared by tests")]

use frrwp::engine::Engine;
use frrwp::engine::future::Connection;
use frrwp::fabric::Domain;
use frrwp::fabric::sim::{Costs, Faults, Network, Node, SimDomain, SimEndpoint};
use frrwp::handshake::{Limits, RECEIVES, Side};
use frrwp::wire::Segment;
use mrrc::invalidation::Explicit;
use mrrc::{Access, Cache};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

pub const SECOND: u64 = 1_000_000_000;

/// Two nodes of a simulated network, far apart.
pub struct Place {
    pub network: Network,
    pub nodes: [Node; 2],
    pub caches: [Cache<SimDomain>; 2],
}

impl Place {
    pub fn new(latency: u64) -> Self {
        let network = Network::new(1, Costs { latency, ..Costs::default() }, Faults::default());
        let nodes = [network.node(), network.node()];
        let caches = [0, 1].map(|at: usize| {
            let builder = Cache::builder(nodes[at].domain()).ignore_environment().monitor(Explicit).background(false);
            builder.build().unwrap()
        });
        Self { network, nodes, caches }
    }

    pub fn transfers(&self, limits: Limits) -> [Connection<'_, SimEndpoint>; 2] {
        let [one, other] = self.network.connect(&self.nodes[0], &self.nodes[1], RECEIVES);
        let near = Engine::new(&self.caches[0], one, Side::Connecting, limits);
        let far = Engine::new(&self.caches[1], other, Side::Accepting, limits);
        // SAFETY: the simulated network looks at no page before a key of a live transfer names it.
        [near, far].map(|engine| unsafe { Connection::new(engine) })
    }

    /// Returns a key of the far node's, of these bytes.
    pub fn key(&self, source: &[u8]) -> Segment {
        // SAFETY: the caller's bytes live as long as the place is used.
        let lease = unsafe { self.caches[1].acquire(source.as_ptr(), source.len(), Access::REMOTE_READ) }.unwrap();
        let part = lease.segments().next().unwrap();
        self.caches[1].registrar().remote(part.registration(), source.as_ptr(), source.len())
    }
}

/// Polls it, and is woken by nothing.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Counts how often it wakes.
#[derive(Default)]
pub struct Woken(pub AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
