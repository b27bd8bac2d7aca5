//! The engine over each provider: the same transfers, the same storms.
#![allow(unsafe_code, reason = "buffers are lent to engines by address")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
#[path = "common/device.rs"]
mod device;
#[path = "common/engines.rs"]
mod engines;
#[path = "common/flooded.rs"]
mod flooded;
#[path = "common/queued.rs"]
mod queued;

use engines::{Fabric, Memory, fetched, one, storm, written};
use flooded::flooded;
use frrwp::fabric::iwarp::{self, IwarpDomain, IwarpEndpoint, IwarpListener, IwarpOptions};
use frrwp::fabric::shm::{Sharing, ShmArena, ShmBuffer, ShmDomain, ShmEndpoint, ShmListener, ShmOptions, connect};
use frrwp::fabric::sim::{Costs, Faults, Network, Node, SimDomain, SimEndpoint};
use frrwp::handshake::{Limits, Process, RECEIVES};
use queued::queued;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

struct Sim {
    network: Network,
    nodes: [Node; 2],
}

impl Sim {
    fn new() -> Self {
        let costs = Costs { latency: 1_000, byte: 0.1, jitter: 500, ..Costs::default() };
        let network = Network::new(1, costs, Faults::default());
        Self { nodes: [network.node(), network.node()], network }
    }
}

impl Fabric for Sim {
    type Endpoint = SimEndpoint;

    fn name(&self) -> String {
        "sim".to_owned()
    }

    fn domain(&self, side: usize) -> SimDomain {
        self.nodes[side].domain()
    }

    fn connect(&self) -> [SimEndpoint; 2] {
        self.network.connect(&self.nodes[0], &self.nodes[1], RECEIVES)
    }

    fn idle(&self) {
        self.network.step(u64::MAX);
    }

    fn registrations(&self, side: usize) -> usize {
        self.nodes[side].registrations()
    }
}

struct Shm {
    domains: [ShmDomain; 2],
}

impl Shm {
    fn new() -> Self {
        Self { domains: [0, 1].map(|_| ShmDomain::new(ShmOptions::default()).unwrap()) }
    }
}

/// Peers map what is shared with them: the arena stays as long as the buffer.
struct Shared {
    buffer: ShmBuffer,
    _arena: ShmArena,
}

impl Memory for Shared {
    fn start(&self) -> *mut u8 {
        self.buffer.as_ptr()
    }

    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read_at(at, &mut bytes).unwrap();
        bytes
    }
}

impl Fabric for Shm {
    type Endpoint = ShmEndpoint;

    fn name(&self) -> String {
        "shm".to_owned()
    }

    fn memory(&self, side: usize, bytes: Vec<u8>) -> Box<dyn Memory> {
        let room = bytes.len().max(1);
        let arena = self.domains[side].arena(room, Sharing::Writable).unwrap();
        let buffer = arena.buffer(room).unwrap();
        buffer.write_at(0, &bytes).unwrap();
        Box::new(Shared { buffer, _arena: arena })
    }

    fn domain(&self, side: usize) -> ShmDomain {
        self.domains[side].clone()
    }

    fn connect(&self) -> [ShmEndpoint; 2] {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let within = Duration::from_secs(20);
        let name = format!("shm:@frrwp-providers-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let listener = ShmListener::bind(&self.domains[1], &name.parse().unwrap()).unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept(RECEIVES, within).unwrap());
            let connected = connect(&self.domains[0], listener.address(), RECEIVES, within).unwrap();
            [connected, accepting.join().unwrap()]
        })
    }

    fn idle(&self) {
        std::thread::yield_now();
    }

    fn registrations(&self, side: usize) -> usize {
        self.domains[side].keys()
    }
}

struct Iwarp {
    options: IwarpOptions,
    domains: [IwarpDomain; 2],
}

impl Iwarp {
    fn new(options: IwarpOptions) -> Self {
        Self { options, domains: [0, 1].map(|_| IwarpDomain::new(options).unwrap()) }
    }
}

impl Fabric for Iwarp {
    type Endpoint = IwarpEndpoint;

    fn name(&self) -> String {
        format!("iwarp, checksums {}", self.options.checksums)
    }

    fn domain(&self, side: usize) -> IwarpDomain {
        self.domains[side].clone()
    }

    fn connect(&self) -> [IwarpEndpoint; 2] {
        let mut listener = IwarpListener::bind(&self.domains[1], "iwarp:127.0.0.1:0").unwrap();
        let address = format!("iwarp:{}", listener.address().unwrap());
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept(RECEIVES, None).unwrap());
            let connected = iwarp::connect(&self.domains[0], &address, RECEIVES).unwrap();
            [connected, accepting.join().unwrap()]
        })
    }

    fn idle(&self) {
        std::thread::yield_now();
    }

    fn registrations(&self, side: usize) -> usize {
        self.domains[side].registrations()
    }
}

#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
mod verbs {
    use super::device::Device;
    use super::*;
    use frrwp::fabric::verbs::{VerbsDomain, VerbsEndpoint, VerbsListener, VerbsOptions, connect};

    struct Verbs {
        address: String,
        domains: [VerbsDomain; 2],
        spins: bool,
    }

    impl Verbs {
        fn new(device: &Device, spin: Duration) -> Self {
            let options = VerbsOptions { spin, ..VerbsOptions::default() };
            let domains = [0, 1].map(|_| VerbsDomain::reaching(&device.at(0), options).unwrap());
            Self { address: device.at(0), domains, spins: !spin.is_zero() }
        }
    }

    impl Fabric for Verbs {
        type Endpoint = VerbsEndpoint;

        fn name(&self) -> String {
            let attributes = self.domains[0].attributes();
            let waits = if self.spins { "polling" } else { "sleeping" };
            format!("verbs, {}, {:?}, {waits}", self.domains[0].device(), attributes.transport)
        }

        fn domain(&self, side: usize) -> VerbsDomain {
            self.domains[side].clone()
        }

        fn connect(&self) -> [VerbsEndpoint; 2] {
            let mut listener = VerbsListener::bind(&self.domains[1], &self.address).unwrap();
            let address = format!("verbs:{}", listener.address().unwrap());
            std::thread::scope(|scope| {
                let accepting = scope.spawn(|| listener.accept(RECEIVES, Some(Duration::from_secs(20))).unwrap());
                let connected = connect(&self.domains[0], &address, RECEIVES).unwrap();
                [connected, accepting.join().unwrap()]
            })
        }

        fn idle(&self) {
            std::thread::yield_now();
        }

        fn registrations(&self, side: usize) -> usize {
            self.domains[side].registrations()
        }
    }

    #[test]
    fn verbs_moves_bytes_both_ways() {
        let Some(device) = Device::get() else { return };
        for spin in [Duration::ZERO, Duration::MAX] {
            bytes_arrive(&Verbs::new(&device, spin));
        }
    }

    #[test]
    fn memory_is_read_by_what_the_peer_says_over_verbs() {
        let Some(device) = Device::get() else { return };
        fetched(&Verbs::new(&device, Duration::ZERO));
    }

    #[test]
    fn storms_end_well_or_badly_on_both_sides_over_verbs() {
        let Some(device) = Device::get() else { return };
        storms(&Verbs::new(&device, Duration::ZERO));
    }

    #[test]
    fn one_queue_serves_many_over_verbs() {
        let Some(device) = Device::get() else { return };
        queued(&Verbs::new(&device, Duration::ZERO));
    }
}

fn iwarps() -> [Iwarp; 2] {
    [true, false].map(|checksums| Iwarp::new(IwarpOptions { checksums, ..IwarpOptions::default() }))
}

fn bytes_arrive(fabric: &impl Fabric) {
    for process in [Process::Frrwp, Process::Traditional] {
        for read in [false, true] {
            for length in [0, 1, 4096, 100_001, 1_000_000] {
                let limits = Limits { process, ..Limits::default() };
                let (source, sink) = one(fabric, read, limits, length);
                assert!(source == sink, "{}, {process:?}, read {read}, {length} bytes", fabric.name());
            }
        }
    }
}

fn storms(fabric: &impl Fabric) {
    let (mut well, mut badly) = (0, 0);
    for seed in 0..4 {
        let process = if seed % 3 == 0 { Process::Traditional } else { Process::Frrwp };
        let limits = Limits { process, open: 8, ..Limits::default() };
        let (good, bad) = storm(fabric, seed, 60, limits);
        (well, badly) = (well + good, badly + bad);
    }
    println!("{}: {well} transfers ended well, {badly} did not", fabric.name());
    assert!(well > 100 && badly > 4, "{}: {well} and {badly}", fabric.name());
}

#[test]
fn sim_moves_bytes_both_ways() {
    bytes_arrive(&Sim::new());
}

#[test]
fn iwarp_moves_bytes_both_ways() {
    iwarps().iter().for_each(bytes_arrive);
}

#[test]
fn shm_moves_bytes_both_ways() {
    bytes_arrive(&Shm::new());
}

#[test]
fn sim_reads_memory_the_peer_names() {
    fetched(&Sim::new());
}

#[test]
fn shm_reads_memory_the_peer_names() {
    fetched(&Shm::new());
}

#[test]
fn memory_is_read_by_what_the_peer_says_over_iwarp() {
    iwarps().iter().for_each(fetched);
}

#[test]
fn sim_writes_memory_the_peer_names() {
    written(&Sim::new());
}

#[test]
fn shm_writes_memory_the_peer_names() {
    written(&Shm::new());
}

#[test]
fn iwarp_writes_memory_the_peer_names() {
    iwarps().iter().for_each(written);
}

#[test]
fn shm_storms_end_on_both_sides() {
    storms(&Shm::new());
}

#[test]
fn sim_storms_end_on_both_sides() {
    storms(&Sim::new());
}

#[test]
fn storms_end_well_or_badly_on_both_sides_over_iwarp() {
    iwarps().iter().for_each(storms);
}

#[test]
fn messages_are_heard_beside_a_flood_over_shm() {
    flooded(&Shm::new());
}

#[test]
fn messages_are_heard_beside_a_flood_over_iwarp() {
    iwarps().iter().for_each(flooded);
}

#[test]
fn one_queue_serves_many_over_the_simulated_network() {
    queued(&Sim::new());
}

#[test]
fn one_queue_serves_many_over_shm() {
    queued(&Shm::new());
}

#[test]
fn one_queue_serves_many_over_iwarp() {
    iwarps().iter().for_each(queued);
}
