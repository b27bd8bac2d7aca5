//! The server's decisions, as it makes them: store, leases, tags, registrations.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use io_uring::IoUring;
use mrrc::cache::AcquireError;
use mrrc::invalidation::Explicit;
use mrrc::policy::PolicyKind;
use mrrc::registrar::Registrar;
use mrrc::registrar::io_uring::IoUringBuffers;
use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache, Lease, PAGE};
use rdmakv_server::fabric::tags::{Limits, Peer, Refused, TagKind, Tags};
use rdmakv_server::store::{Config, Exposure, Extent, Outcome, Replacement, Store, Terms};

use crate::Options;
use crate::bound;
use crate::clients::{Asked, Sizes};

/// The result.
#[derive(Debug)]
pub(crate) struct Served {
    /// The share of GETs by a tag among all.
    pub(crate) one_sided: f64,
    /// Those that were refused a tag because others are read more.
    pub(crate) seldom: f64,
    /// Registrations for a GET.
    pub(crate) registrations: f64,
    /// The most that was pinned, in KiB, where it is for real.
    pub(crate) pinned: Option<u64>,
    /// The place of each key's item.
    extents: Vec<Extent>,
}

/// The best possible result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) one_sided: f64,
    /// GETs that are no first.
    pub(crate) repeated: f64,
}

/// Tags that cannot be bound anew, as over shared memory and plain verbs.
struct Plain<R>(std::marker::PhantomData<R>);

impl<R: Registrar> TagKind for Plain<R> {
    type Registration = Lease<R>;
    type Record = ();
    type Tag = ();
    const REBINDS: bool = false;
    fn bind((): &(), _: Option<u64>) {}
}

/// The table of tags, as the store sees it.
struct Exposed<R: Registrar>(Arc<Mutex<Tags<Plain<R>>>>);

impl<R> Exposure for Exposed<R>
where
    R: Registrar + Send + Sync,
    R::Registration: Send + Sync,
{
    fn replaced(&mut self, replacement: &Replacement<'_>) -> bool {
        lock(&self.0).replaced(replacement, |_, _| None)
    }

    fn is_open(&mut self, chunk: Extent) -> bool {
        lock(&self.0).is_open(chunk)
    }

    fn ended(&mut self, chunk: Extent, _: u64) {
        lock(&self.0).ended(chunk);
    }
}

fn lock<R: Registrar>(tags: &Mutex<Tags<Plain<R>>>) -> MutexGuard<'_, Tags<Plain<R>>> {
    tags.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops what is over, outside of all locks: tags first, then registrations.
fn drop_over<R: Registrar>(tags: &Mutex<Tags<Plain<R>>>) {
    let over = lock(tags).take_ended();
    drop(over.tags);
    drop(over.records);
    drop(over.registrations);
}

fn nanos(rate: u64, nth: usize) -> u64 {
    // A whole second on top, as the store takes 0 for never.
    1_000_000_000 + (nth as u128 * 1_000_000_000 / u128::from(rate.max(1))) as u64
}

/// Buffers that a ring takes at most: each registration is one.
const A_RING: u32 = 1 << 14;

/// Runs the requests under a policy.
pub(crate) fn run(
    options: &Options,
    sizes: &Sizes,
    asked: &Asked,
    rate: u64,
    policy: PolicyKind,
) -> Result<Served, Box<dyn Error>> {
    let _ = sizes;
    if options.pin {
        let ring = IoUring::new(8).map_err(|error| format!("io_uring: {error}"))?;
        let table = IoUringBuffers::new(&ring, A_RING)?;
        let mut served = over(options, asked, rate, policy, table)?;
        served.pinned = served.pinned.or(Some(0));
        return Ok(served);
    }
    over(options, asked, rate, policy, NoopRegistrar::new())
}

fn vm_pin() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

fn over<R: Registrar + Send + Sync + 'static>(
    options: &Options,
    asked: &Asked,
    rate: u64,
    policy: PolicyKind,
    registrar: R,
) -> Result<Served, Box<dyn Error>>
where
    R::Registration: Send + Sync,
{
    let lease = Duration::from_millis(options.lease);
    let cache = Cache::builder(registrar)
        .ignore_environment()
        .capacity_bytes(options.registered << 20)
        .policy(policy)
        .monitor(Explicit)
        .build()?;
    let cache = Arc::new(cache);
    let memory = options.values * 1_500_000;
    let mut store = Store::new(&Config { memory, memory_max: memory, lease, ..Config::default() })?;
    for (key, &length) in asked.lengths.iter().enumerate() {
        let name = (key as u32).to_le_bytes();
        let writer = store.reserve(&name, length, 0, 0, 1).map_err(|refused| format!("a value: {refused:?}"))?;
        let Outcome::Stored(_) = store.publish(writer, Terms::default(), 1) else {
            return Err("a value was not stored".into());
        };
    }
    if store.len() != asked.lengths.len() {
        return Err("the store is too small for its values".into());
    }
    let extents: Vec<Extent> = (0..asked.lengths.len() as u32)
        .map(|key| {
            let handle = store.get(&key.to_le_bytes(), false, 1).map(|view| view.handle());
            handle.map(|handle| store.extent(handle)).ok_or("a value is gone")
        })
        .collect::<Result<_, _>>()?;
    let budget = (options.registered << 20) / PAGE;
    let mut limits = Limits::of(budget, true, 0, lease, false);
    if options.clients == 1 {
        // One client stands for all there are.
        limits.client_pages = limits.pages;
        limits.client_tags = usize::MAX;
    }
    let tags = Arc::new(Mutex::new(Tags::<Plain<R>>::new(limits)));
    store.attach(Box::new(Exposed(tags.clone())));
    let clients: Vec<_> = (0..options.clients.max(1)).map(|_| lock(&tags).join(Peer::Other)).collect();
    // A ring's buffers belong to this process alone.
    let rights = if options.pin { Access::LOCAL } else { Access::REMOTE_READ };
    let before = vm_pin();
    let (mut one_sided, mut seldom, mut pinned) = (0_u64, 0_u64, 0);
    let mut registered = 0;
    let mut held: HashMap<(u32, u16), u64> = HashMap::new();
    let mut seen: HashMap<(u16, u64), u64> = HashMap::new();
    let report_every = (rate * options.lease / 2000).max(1) as usize;
    for (nth, &(key, client)) in asked.requests.iter().enumerate() {
        let now = nanos(rate, nth);
        if nth == asked.counted {
            registered = cache.counters().attempts;
        }
        if nth % report_every == 0 {
            // The clients say what they have read.
            for ((client, address), reads) in seen.drain() {
                let counted = lock(&tags).seen(clients[usize::from(client)], address, reads, now);
                store.seen(address, counted, now / 1_000_000_000);
            }
            store.tick(now / 1_000_000_000);
        }
        if options.pin && nth % 997 == 0 {
            pinned = pinned.max(vm_pin() - before);
        }
        let extent = extents[key as usize];
        if held.get(&(key, client)).is_some_and(|&until| until > now) {
            one_sided += u64::from(nth >= asked.counted);
            *seen.entry((client, extent.address)).or_default() += 1;
            continue;
        }
        store.sweep(now, 64);
        lock(&tags).sweep(now, 64);
        drop_over(&tags);
        let Some(handle) = store.get(&key.to_le_bytes(), true, now / 1_000_000_000).map(|view| view.handle()) else {
            return Err("a value is gone".into());
        };
        let admitted = match lock(&tags).admits(clients[usize::from(client)], extent) {
            Ok(admitted) => admitted,
            Err(refused) => {
                seldom += u64::from(nth >= asked.counted && refused == Refused::Seldom);
                continue;
            }
        };
        let registration = if admitted.registers {
            #[expect(unsafe_code, reason = "registering memory by address")]
            // SAFETY: the store outlives the cache's use of its arena: it is dropped after all leases, below.
            let lease = unsafe { cache.acquire(extent.address as *const u8, extent.used as usize, rights) };
            match lease {
                Ok(lease) => Some(lease),
                // All registered memory is leased.
                Err(AcquireError::AllInUse { .. }) => continue,
                Err(error) => return Err(error.into()),
            }
        } else {
            None
        };
        let Ok(until) = store.lease(handle, now) else { continue };
        let client_number = clients[usize::from(client)];
        if lock(&tags).grant(client_number, extent, until, (admitted, registration), || (), |(), _, _| Some(())).is_ok()
        {
            held.insert((key, client), now + lease.as_nanos() as u64);
        }
    }
    let counted = (asked.requests.len() - asked.counted).max(1) as f64;
    let registrations = (cache.counters().attempts - registered) as f64 / counted;
    // Leases first, then the cache, then the memory.
    store.sweep(u64::MAX, usize::MAX);
    drop_over(&tags);
    drop((tags, cache, store));
    Ok(Served {
        one_sided: one_sided as f64 / counted,
        seldom: seldom as f64 / counted,
        registrations,
        pinned: options.pin.then_some(pinned),
        extents,
    })
}

/// Returns the result of Belady's rule on the same items in the same places.
pub(crate) fn most(options: &Options, asked: &Asked, served: &Served, rate: u64) -> Most {
    let mut numbers: HashMap<u64, u32> = HashMap::new();
    let mut edges: Vec<u64> = served
        .extents
        .iter()
        .flat_map(|extent| extent.address / PAGE..=(extent.address + extent.used - 1) / PAGE)
        .collect::<HashSet<_>>()
        .into_iter()
        .collect();
    edges.sort_unstable();
    // Neighbours stay neighbours, so that an item is a range.
    for (number, page) in edges.into_iter().enumerate() {
        numbers.insert(page, number as u32);
    }
    let pages: Vec<_> = served
        .extents
        .iter()
        .map(|extent| numbers[&(extent.address / PAGE)]..numbers[&((extent.address + extent.used - 1) / PAGE)] + 1)
        .collect();
    let keys: Vec<u32> = asked.requests.iter().map(|&(key, _)| key).collect();
    let hits = bound::hits(&keys, &pages, ((options.registered << 20) / PAGE / 2) as usize);
    let lease = Duration::from_millis(options.lease).as_nanos() as u64;
    let mut firsts: HashMap<(u32, u16), u64> = HashMap::new();
    let (mut one_sided, mut repeated) = (0_u64, 0_u64);
    for (nth, &request) in asked.requests.iter().enumerate() {
        let now = nanos(rate, nth);
        let is_first = firsts.get(&request).is_none_or(|&until| until <= now);
        if is_first {
            firsts.insert(request, now + lease);
        } else if nth >= asked.counted {
            repeated += 1;
            one_sided += u64::from(hits[nth]);
        }
    }
    let counted = (asked.requests.len() - asked.counted).max(1) as f64;
    Most { one_sided: one_sided as f64 / counted, repeated: repeated as f64 / counted }
}
