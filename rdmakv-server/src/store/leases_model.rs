//! A store with leases against readers that rely on them.
//!
//! A client with a lease looks at the chunk by itself after every step, until its time is over, and the store has to keep
//! the promise of leases. The chunk is still the same item's, whole. It is alive only while it is the key's value. Once a
//! client was told that the key is gone or has another value, it is dead. When all leases have ended, nothing is left.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::leases::nanos;
use super::*;
use rdmakv_proto::item::State;

const START: u64 = 1_000_000;
const D: u64 = 1_000_000_000;
/// An expiry that is over already.
const PAST: u64 = u64::MAX;

#[derive(Clone, Debug)]
enum Op {
    Put { key: u8, len: usize, ttl: u64 },
    Append(u8),
    Get(u8),
    Delete(u8),
    Touch(u8, u64),
    Invalidate(u8),
    Lease(u8),
    Register(u8),
    Expose,
    Hold(u8),
    Release(usize),
    Later(u64),
    Tick,
    Sweep(usize),
    Flush(Option<u64>),
    Crawl,
    Walk,
    Reassign(usize, usize),
    Limit(usize),
}

fn op(largest: usize) -> impl Strategy<Value = Op> {
    let key = 0..12_u8;
    let ttl = prop_oneof![3 => Just(0), 1 => 1..4_u64, 1 => Just(PAST)];
    let len = prop_oneof![0..300_usize, 0..largest];
    prop_oneof![
        8 => (key.clone(), len, ttl.clone()).prop_map(|(key, len, ttl)| Op::Put { key, len, ttl }),
        1 => key.clone().prop_map(Op::Append),
        4 => key.clone().prop_map(Op::Get),
        2 => key.clone().prop_map(Op::Delete),
        1 => (key.clone(), ttl).prop_map(|(key, ttl)| Op::Touch(key, ttl)),
        1 => key.clone().prop_map(Op::Invalidate),
        10 => key.clone().prop_map(Op::Lease),
        1 => key.clone().prop_map(Op::Register),
        1 => Just(Op::Expose),
        1 => key.prop_map(Op::Hold),
        1 => any::<usize>().prop_map(Op::Release),
        6 => prop_oneof![0..D / 4, 0..3 * D].prop_map(Op::Later),
        2 => Just(Op::Tick),
        1 => (0..4_usize).prop_map(Op::Sweep),
        1 => prop_oneof![Just(None), (1..3_u64).prop_map(Some)].prop_map(Op::Flush),
        1 => Just(Op::Crawl),
        1 => Just(Op::Walk),
        1 => (0..45_usize, 0..45_usize).prop_map(|(from, to)| Op::Reassign(from, to)),
        1 => (1..9_usize).prop_map(Op::Limit),
    ]
}

fn until(ttl: u64, now: u64) -> u64 {
    match ttl {
        0 => 0,
        PAST => 1,
        _ => now + ttl,
    }
}

/// A reader's view: what it was granted, and what it found there.
#[derive(Clone, Debug)]
struct Reader {
    key: u8,
    extent: Extent,
    until: u64,
    /// Key and value.
    body: Vec<u8>,
}

/// The notices to the fabric. It is called in the middle of the store's steps.
#[derive(Debug, Default)]
struct Heard {
    /// Until when each chunk is leased, as granted.
    leases: HashMap<u64, (Extent, u64)>,
    /// Old and new chunks of tags that went over, and until when.
    moved: Vec<(Extent, Extent, u64)>,
    wrong: Option<String>,
}

struct Fabric {
    rebinds: bool,
    heard: Arc<Mutex<Heard>>,
}

impl Exposure for Fabric {
    fn replaced(&mut self, replacement: &Replacement<'_>) -> bool {
        let heard = &mut *self.heard.lock().unwrap();
        if replacement.states() != (State::Dead, State::Unpublished) {
            heard.wrong = Some(format!("{:?} when tags go over", replacement.states()));
        }
        match heard.leases.get(&replacement.old.address) {
            Some(&(extent, until)) if extent == replacement.old => {
                if self.rebinds {
                    heard.moved.push((extent, replacement.new, until));
                    heard.leases.insert(replacement.new.address, (replacement.new, until));
                }
            }
            other => heard.wrong = Some(format!("{:?} replaced, {other:?} leased", replacement.old)),
        }
        self.rebinds
    }

    fn ended(&mut self, chunk: Extent, now: u64) {
        let heard = &mut *self.heard.lock().unwrap();
        match heard.leases.remove(&chunk.address) {
            Some((extent, until)) if extent == chunk && until <= now => {}
            other => heard.wrong = Some(format!("{chunk:?} ended at {now}, {other:?} leased")),
        }
    }
}

/// The store, and its readers.
struct World {
    store: Store,
    heard: Arc<Mutex<Heard>>,
    readers: Vec<Reader>,
    held: Vec<(ChunkRef, Vec<u8>)>,
    registering: Option<(u8, ChunkRef)>,
    now: u64,
    stamp: u8,
}

impl World {
    fn new(memory: usize, rebinds: bool) -> Self {
        let mut store =
            Store::new(&Config { memory, memory_max: 8 << 20, extra: 0, huge: false, ..Config::default() }).unwrap();
        let heard = Arc::new(Mutex::new(Heard::default()));
        store.attach(Box::new(Fabric { rebinds, heard: heard.clone() }));
        Self { store, heard, readers: Vec::new(), held: Vec::new(), registering: None, now: nanos(START), stamp: 0 }
    }

    fn seconds(&self) -> u64 {
        self.now / 1_000_000_000
    }

    fn image(&self, extent: Extent) -> (State, u64, Vec<u8>) {
        let chunk = self.store.slabs.chunk(self.store.slabs.chunk_at(extent.address).unwrap());
        (chunk.state(), chunk.version(), [chunk.key(), chunk.value()].concat())
    }

    /// Checks that no one-sided reader takes this key for alive, but for a reader of this version.
    fn is_gone(&self, key: u8, but: Option<u64>) -> Result<(), String> {
        for reader in self.readers.iter().filter(|reader| reader.key == key && Some(reader.extent.version) != but) {
            if self.image(reader.extent).0 == State::Alive {
                return Err(format!("version {} of key {key} is alive, {but:?} was told", reader.extent.version));
            }
        }
        Ok(())
    }

    fn granted(&mut self, key: u8, extent: Extent, until: u64) {
        let body = self.image(extent).2;
        self.readers.push(Reader { key, extent, until, body });
        let mut heard = self.heard.lock().unwrap();
        let leased = heard.leases.entry(extent.address).or_insert((extent, until));
        assert_eq!(leased.0, extent);
        leased.1 = leased.1.max(until);
    }

    fn act(&mut self, op: Op) -> Result<(), String> {
        let now = self.seconds();
        match op {
            Op::Put { key, len, ttl } => {
                let Ok(mut writer) = self.store.reserve(&[key], len, 0, until(ttl, now), now) else {
                    return Ok(());
                };
                self.stamp = self.stamp.wrapping_add(1);
                writer.value().fill(self.stamp);
                if let Outcome::Stored(version) = self.store.publish(writer, Terms::default(), now) {
                    self.is_gone(key, Some(version).filter(|_| ttl != PAST))?;
                }
            }
            Op::Append(key) => {
                let Ok(mut writer) = self.store.reserve(&[key], 10, 0, 0, now) else { return Ok(()) };
                writer.value().fill(1);
                match self.store.publish(writer, Terms { mode: Mode::Append, ..Terms::default() }, now) {
                    Outcome::Stored(version) => self.is_gone(key, Some(version))?,
                    Outcome::NotStored => self.is_gone(key, None)?,
                    _ => {}
                }
            }
            Op::Get(key) => {
                let version = self.store.get(&[key], true, now).map(|view| view.version);
                self.is_gone(key, version)?;
            }
            Op::Delete(key) => {
                self.store.delete(&[key], None, now);
                self.is_gone(key, None)?;
            }
            Op::Touch(key, ttl) => {
                let version = self.store.touch(&[key], until(ttl, now), now).map(|view| view.version);
                self.is_gone(key, version.filter(|_| ttl != PAST))?;
            }
            Op::Invalidate(key) => {
                if self.store.invalidate(&[key], None, Keep { stale: true, ..Keep::default() }, now)
                    == Deleted::NotFound
                {
                    self.is_gone(key, None)?;
                }
            }
            Op::Lease(key) => {
                let Some(view) = self.store.get(&[key], true, now) else { return self.is_gone(key, None) };
                let handle = view.handle();
                let extent = self.store.extent(handle);
                if let Ok(until) = self.store.lease(handle, self.now) {
                    self.granted(key, extent, until);
                }
            }
            Op::Register(key) => {
                let Some(handle) = self.store.get(&[key], false, now).map(|view| view.handle()) else { return Ok(()) };
                if self.registering.is_none() {
                    self.registering = self.store.hold(handle).map(|held| (key, held));
                }
            }
            Op::Expose => {
                let Some((key, held)) = self.registering.take() else { return Ok(()) };
                let granted = self.store.expose(&held, self.now);
                if let Ok(until) = granted {
                    let extent = self.store.extent(Handle(self.store.slabs.lent(&held)));
                    self.granted(key, extent, until);
                }
                self.store.release(held);
            }
            Op::Hold(key) => {
                let Some(handle) = self.store.get(&[key], false, now).map(|view| view.handle()) else { return Ok(()) };
                if let Some(held) = self.store.hold(handle) {
                    let value = held.value().to_vec();
                    self.held.push((held, value));
                }
            }
            Op::Release(which) => {
                if !self.held.is_empty() {
                    let (held, value) = self.held.swap_remove(which % self.held.len());
                    assert_eq!(held.value(), value);
                    self.store.release(held);
                }
            }
            Op::Later(more) => self.now += more,
            Op::Tick => self.store.tick(now),
            Op::Sweep(most) => drop(self.store.sweep(self.now, most)),
            Op::Flush(after) => {
                self.store.flush(after.map(|after| now + after), now);
                if after.is_none() {
                    (0..12).try_for_each(|key| self.is_gone(key, None))?;
                }
            }
            Op::Crawl => while !self.store.crawl(1000, now) {},
            Op::Walk => {
                let mut shown = HashMap::new();
                self.store.walk(None, now, |item| shown.insert(item.key[0], item.version).is_none());
                (0..12).try_for_each(|key| self.is_gone(key, shown.get(&key).copied()))?;
            }
            Op::Reassign(from, to) => drop(self.store.reassign(Some(from), to, now)),
            Op::Limit(pages) => self.store.set_limit(pages << 20),
        }
        Ok(())
    }

    /// Checks the findings of all one-sided readers.
    fn look(&mut self) -> Result<(), String> {
        let moved = std::mem::take(&mut self.heard.lock().unwrap().moved);
        for (old, new, until) in moved {
            // A client with a tag of the old chunk reads the new one by it.
            let body = self.image(new).2;
            let tags: Vec<u8> =
                self.readers.iter().filter(|reader| reader.extent == old).map(|reader| reader.key).collect();
            if let Some(&key) = tags.first() {
                self.readers.push(Reader { key, extent: new, until, body });
            }
        }
        if let Some(wrong) = self.heard.lock().unwrap().wrong.take() {
            return Err(wrong);
        }
        self.readers.retain(|reader| reader.until > self.now);
        for reader in &self.readers {
            let (state, version, body) = self.image(reader.extent);
            if version != reader.extent.version || body != reader.body || !matches!(state, State::Alive | State::Dead) {
                let was = reader.extent.version;
                return Err(format!("key {}: {state:?}, version {version} where version {was} is leased", reader.key));
            }
        }
        let leased = self.heard.lock().unwrap().leases.len() as u64;
        if self.store.report(START).leased != leased {
            return Err(format!("{} leased, {leased} granted", self.store.report(START).leased));
        }
        self.store.check()
    }

    /// Ends all leases, and time passes.
    fn end(&mut self) -> Result<(), String> {
        for (held, value) in std::mem::take(&mut self.held) {
            assert_eq!(held.value(), value);
            self.store.release(held);
        }
        if let Some((_, held)) = self.registering.take() {
            self.store.release(held);
        }
        self.now += 10 * D;
        self.store.tick(self.seconds());
        self.look()?;
        let report = self.store.report(START);
        let used: u64 = report.classes.iter().map(|class| class.used).sum();
        if (report.leased, report.leased_dead_bytes, used) != (0, 0, report.items) {
            return Err(format!("{used} chunks for {} items, {} leased", report.items, report.leased));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn leased_chunks_stay_and_only_values_are_alive(
        ops in prop::collection::vec(op(400_000), 1..200), rebinds in any::<bool>(), pages in 2..6_usize,
    ) {
        let mut world = World::new(pages << 20, rebinds);
        for (turn, op) in ops.into_iter().enumerate() {
            let said = format!("{turn}: {op:?}");
            world.act(op).and_then(|()| world.look()).map_err(|wrong| TestCaseError::fail(format!("{said}: {wrong}")))?;
        }
        world.end().map_err(TestCaseError::fail)?;
    }
}
