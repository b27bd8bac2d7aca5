//! The engine: what a transfer of one page costs both ends together, over a simulated network, with the cache of each end.
//!
//! `cargo bench -p benches --bench engine`. The clocks are simulated, so what is measured is work alone: handshake, cache, the
//! engine between them, and the simulation itself. `cold` has both ends register and give up what they registered before.
#![expect(unsafe_code, reason = "buffers are lent to engines by address")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use frrwp::engine::{Engine, Event};
use frrwp::fabric::sim::{Costs, Faults, Network, SimDomain, SimEndpoint};
use frrwp::handshake::{Limits, RECEIVES, Side};
use mrrc::invalidation::Explicit;
use mrrc::{Cache, PAGE};

/// Buffers that take turns.
const BUFFERS: usize = 64;

struct Two<'a> {
    network: Network,
    engines: [Engine<'a, SimEndpoint>; 2],
    memory: [*mut u8; 2],
    next: usize,
}

impl Two<'_> {
    /// One transfer, until both ends have heard of its end.
    fn transfer(&mut self, read: bool) {
        let at = self.next % BUFFERS * PAGE as usize;
        self.next += 1;
        let buffers = self.memory.map(|memory| memory.wrapping_add(at));
        // SAFETY: the memory outlives the caches, and only the engines use it.
        let opened = unsafe {
            match read {
                true => self.engines[0].open_read(buffers[0], PAGE as usize, b""),
                false => self.engines[0].open_write(buffers[0], PAGE as usize, b""),
            }
        };
        opened.expect("there is room");
        let mut ended = 0;
        while ended < 2 {
            let stepped = self.network.step(u64::MAX);
            for (engine, buffer) in self.engines.iter_mut().zip(buffers) {
                engine.progress();
                while let Some(event) = engine.next_event() {
                    let told = match event {
                        // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                        Event::Requested { tag, read: true, .. } => unsafe {
                            engine.accept_read(tag, buffer, PAGE as usize)
                        },
                        // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                        Event::Requested { tag, read: false, .. } => unsafe {
                            engine.accept_write(tag, buffer, PAGE as usize)
                        },
                        Event::Completed { result, .. } => {
                            result.expect("nothing goes wrong");
                            ended += 1;
                            Ok(())
                        }
                        _ => Ok(()),
                    };
                    told.expect("it is open");
                }
            }
            let news = self.engines.iter().any(|engine| engine.endpoint().has_news());
            assert!(stepped || news || ended == 2, "the transfer came to a stop");
        }
    }
}

fn cache(domain: SimDomain, pages: u64) -> Cache<SimDomain> {
    let builder = Cache::builder(domain).ignore_environment().monitor(Explicit).background(false);
    builder.capacity_pages(pages).build().expect("the settings are good")
}

fn transfers(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine, a transfer of a page");
    group.throughput(Throughput::Elements(1));
    // A cold cache holds half of the buffers, which come round one after the other.
    for (warmth, pages) in [("warm", 2 * BUFFERS), ("cold", BUFFERS / 2)] {
        for read in [false, true] {
            let network = Network::new(0, Costs::default(), Faults::default());
            let nodes = [network.node(), network.node()];
            let caches = nodes.each_ref().map(|node| cache(node.domain(), pages as u64));
            let mut memory = [(); 2].map(|()| vec![0_u8; (BUFFERS + 1) * PAGE as usize]);
            let memory = memory.each_mut().map(|memory| {
                let skip = memory.as_ptr().align_offset(PAGE as usize);
                memory[skip..].as_mut_ptr()
            });
            let [one, other] = network.connect(&nodes[0], &nodes[1], RECEIVES);
            let engines = [
                Engine::new(&caches[0], one, Side::Connecting, Limits::default()),
                Engine::new(&caches[1], other, Side::Accepting, Limits::default()),
            ];
            let mut two = Two { network, engines, memory, next: 0 };
            let name = format!("{} {warmth}", if read { "read" } else { "write" });
            group.bench_function(name, |b| b.iter(|| two.transfer(read)));
        }
    }
    group.finish();
}

criterion_group! {
    name = engine;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = transfers
}
criterion_main!(engine);
