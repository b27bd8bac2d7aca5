//! The table against a slow model: sets of pages, and a list of clients with their items and times.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use proptest::prelude::*;

use super::{Client, Limits, Peer, Refused, TagKind, Tags};
use crate::store::Extent;

const D: u64 = 1000;
const SLOT: u64 = 3000;
const CHUNKS: u64 = 24;
const PEERS: [Peer; 2] = [Peer::User, Peer::Other];

#[derive(Clone, Debug)]
enum Op {
    Join(bool),
    Leave(usize),
    /// Of a chunk; whether the fabric has a tag left.
    Grant(usize, u64, bool),
    /// A key's value is replaced by one in another chunk, of some length; whether that one is registered.
    Replace(u64, u64, u64, bool),
    /// The item ends.
    Die(u64),
    Later(u64),
    Sweep(usize),
    Drop,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => any::<bool>().prop_map(Op::Join),
        1 => any::<usize>().prop_map(Op::Leave),
        12 => (any::<usize>(), 0..CHUNKS, prop::bool::weighted(0.9)).prop_map(|(who, at, there)| Op::Grant(who, at, there)),
        6 => (0..CHUNKS, 0..CHUNKS, 60..SLOT, prop::bool::weighted(0.8))
            .prop_map(|(old, new, used, there)| Op::Replace(old, new, used, there)),
        2 => (0..CHUNKS).prop_map(Op::Die),
        6 => (0..D).prop_map(Op::Later),
        3 => (0..20_usize).prop_map(Op::Sweep),
        2 => Just(Op::Drop),
    ]
}

/// A registration, a record or a tag that notes when it is dropped.
#[derive(Debug)]
struct Noted(Rc<Cell<i64>>);

impl Noted {
    fn new(alive: &Rc<Cell<i64>>) -> Self {
        alive.set(alive.get() + 1);
        Self(alive.clone())
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[derive(Debug)]
struct Own;

#[derive(Debug)]
struct Bound {
    to: Cell<Option<u64>>,
    _noted: Noted,
}

#[derive(Debug)]
struct Tag {
    record: Rc<Bound>,
    bound: u64,
    _noted: Noted,
}

impl TagKind for Own {
    type Registration = Noted;
    type Record = Rc<Bound>;
    type Tag = Tag;
    const REBINDS: bool = true;
    fn bind(record: &Self::Record, to: Option<u64>) {
        record.to.set(to);
    }
}

/// As the store would have it: what is in each chunk, and until when it is leased.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    extent: Extent,
    alive: bool,
    until: Option<u64>,
}

struct World {
    tags: Tags<Own>,
    limits: Limits,
    chunks: Vec<Chunk>,
    clients: Vec<Client>,
    /// The clients, the items that they may read, and until when.
    may: HashMap<(Client, u64), u64>,
    /// The origins of clients.
    from: HashMap<Client, Peer>,
    /// The leases of departed clients: pages, until when.
    left: Vec<(Peer, HashSet<u64>, u64)>,
    noted: Rc<Cell<i64>>,
    now: u64,
    version: u64,
}

fn place(at: u64, used: u64, version: u64) -> Extent {
    Extent { address: (1 << 20) + at * SLOT, slot: SLOT, used, version }
}

impl World {
    fn new(limits: Limits) -> Self {
        let chunk = |at| Chunk { extent: place(at, 100 + at * 100, at + 1), alive: true, until: None };
        Self {
            tags: Tags::new(limits),
            limits,
            chunks: (0..CHUNKS).map(chunk).collect(),
            clients: Vec::new(),
            may: HashMap::new(),
            from: HashMap::new(),
            left: Vec::new(),
            noted: Rc::default(),
            now: 0,
            version: 1000,
        }
    }

    fn grant(&mut self, who: usize, at: u64, there: bool) -> Result<(), TestCaseError> {
        let Some(&client) = self.clients.get(who % self.clients.len().max(1)) else { return Ok(()) };
        let Chunk { extent, alive, until } = self.chunks[at as usize];
        if !alive {
            return Ok(());
        }
        let Ok(admitted) = self.tags.admits(client, extent) else { return Ok(()) };
        let end = self.now + D;
        self.chunks[at as usize].until = Some(until.unwrap_or(0).max(end));
        let registration = admitted.registers.then(|| Noted::new(&self.noted));
        let (peer, had) = (self.from[&client], self.pages_of(self.from[&client]).len() as u64);
        let noted = &self.noted;
        let record = || Rc::new(Bound { to: Cell::new(Some(7)), _noted: Noted::new(noted) });
        let make = |record: &Rc<Bound>, _: &_, bound| {
            there.then(|| Tag { record: record.clone(), bound, _noted: Noted::new(noted) })
        };
        match self.tags.grant(client, extent, end, (admitted, registration), record, make) {
            Ok(granted) => {
                prop_assert_eq!(granted.tag.record.to.get(), Some(extent.address));
                prop_assert_eq!(granted.bound, granted.tag.bound);
                prop_assert!(granted.bound >= extent.used && granted.bound <= extent.slot);
                self.may.insert((client, extent.version), end);
            }
            Err(refused) => prop_assert!(refused == Refused::Tags && !there, "{:?}", refused),
        }
        let (has, open) =
            (self.pages_of(peer).len() as u64, self.clients.iter().filter(|other| self.from[*other] == peer));
        // A lease that has ended counts for the peer until a sweep: its chunk may be had again at once.
        let within = has <= open.count() as u64 * self.limits.client_pages;
        prop_assert!(has == had || within || self.tags.is_behind(self.now), "{} of {:?}", has, peer);
        Ok(())
    }

    fn replace(&mut self, old: u64, new: u64, used: u64, there: bool) -> Result<(), TestCaseError> {
        let (from, to) = (self.chunks[old as usize], self.chunks[new as usize]);
        // The new chunk has to be free: dead, and not leased.
        if !from.alive || old == new || to.alive || to.until.is_some() {
            return Ok(());
        }
        self.version += 1;
        let extent = place(new, used, self.version);
        self.chunks[old as usize].alive = false;
        self.chunks[new as usize] = Chunk { extent, alive: true, until: None };
        let Some(until) = from.until else { return Ok(()) };
        let cleared = Cell::new(0);
        let noted = self.noted.clone();
        let mut reach = 0;
        let followed = self.tags.follow(
            from.extent,
            extent,
            |address, bytes| {
                assert_eq!((address, cleared.get()), (extent.address, 0));
                reach = bytes;
                there.then(|| Noted::new(&noted))
            },
            |bound| cleared.set(bound),
        );
        if followed {
            prop_assert!(there && reach >= used && reach <= extent.slot && cleared.get() == reach);
            self.chunks[new as usize].until = Some(until);
            let carried: Vec<_> = self.may.iter().filter(|((_, version), _)| *version == from.extent.version).collect();
            let carried: Vec<_> =
                carried.into_iter().map(|(&(client, _), &end)| ((client, extent.version), end)).collect();
            self.may.extend(carried);
        }
        Ok(())
    }

    fn act(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Join(from) if self.clients.len() < 5 => {
                let client = self.tags.join(PEERS[usize::from(from)]);
                self.clients.push(client);
                self.from.insert(client, PEERS[usize::from(from)]);
            }
            Op::Join(_) => {}
            Op::Leave(who) => {
                if !self.clients.is_empty() {
                    let client = self.clients.swap_remove(who % self.clients.len());
                    for (&(_, version), &until) in self.may.iter().filter(|((other, _), _)| *other == client) {
                        let chunk = self.chunks.iter().find(|chunk| chunk.extent.version == version);
                        let pin = chunk.and_then(|chunk| self.tags.pins.get(&chunk.extent.address));
                        if let Some(pin) = pin.filter(|_| until > self.now) {
                            let pages = (pin.span.first..=pin.span.last).collect();
                            self.left.push((self.from[&client], pages, until));
                        }
                    }
                    self.tags.leave(client);
                    self.may.retain(|&(other, _), _| other != client);
                }
            }
            Op::Grant(who, at, there) => self.grant(who, at, there)?,
            Op::Replace(old, new, used, there) => self.replace(old, new, used, there)?,
            Op::Die(at) => self.chunks[at as usize].alive = false,
            Op::Later(more) => {
                self.now += more;
                for chunk in &mut self.chunks {
                    if chunk.until.is_some_and(|until| until <= self.now) {
                        chunk.until = None;
                        self.tags.ended(chunk.extent);
                    }
                }
            }
            Op::Sweep(most) => self.tags.sweep(self.now, most),
            Op::Drop => drop(self.tags.take_ended()),
        }
        Ok(())
    }

    /// Returns the pages that clients from there, or departed ones, may read.
    fn pages_of(&self, peer: Peer) -> HashSet<u64> {
        let present = |pin: &&super::Pin<Noted>| pin.charged.iter().any(|client| self.from[client] == peer);
        let mut pages: HashSet<u64> =
            self.tags.pins.values().filter(present).flat_map(|pin| pin.span.first..=pin.span.last).collect();
        let left = self.left.iter().filter(|&&(whose, _, until)| whose == peer && until > self.now);
        pages.extend(left.flat_map(|(_, pages, _)| pages));
        pages
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let counts = self.tags.counts();
        let pages = |pin: &super::Pin<Noted>| pin.span.first..=pin.span.last;
        let all: HashSet<u64> = self.tags.pins.values().flat_map(pages).collect();
        prop_assert_eq!(counts.pages, all.len() as u64);
        prop_assert!(counts.pages <= self.limits.pages);
        for &client in &self.clients {
            let charged = self.tags.pins.values().filter(|pin| pin.charged.contains(&client));
            let own: HashSet<u64> = charged.flat_map(pages).collect();
            prop_assert_eq!(self.tags.share(client), own.len() as u64);
            prop_assert!(own.len() as u64 <= self.limits.client_pages);
            prop_assert!(self.tags.clients[&client].tags.len() <= self.limits.client_tags);
        }
        for peer in PEERS {
            prop_assert!(self.tags.share_of_peer(peer) >= self.pages_of(peer).len() as u64, "what {peer:?} has leased");
        }
        let leased: HashSet<u64> =
            self.chunks.iter().filter(|chunk| chunk.until.is_some()).map(|chunk| chunk.extent.address).collect();
        for record in self.tags.records.iter() {
            // Tags lead only to what is leased, and so registered; to where they reach.
            let to = record.record.to.get();
            prop_assert!(to.is_none_or(|to| leased.contains(&to) && self.tags.pins.contains_key(&to)), "{:?}", to);
            prop_assert!(to.is_none_or(|to| to == record.extent.address));
            prop_assert!(record.bound <= SLOT);
        }
        for (&(client, version), &until) in &self.may {
            // A client that may read an item has a tag that leads to it, or to where it was when it died.
            if until > self.now {
                let chunk = self.chunks.iter().find(|chunk| chunk.extent.version == version);
                let address = chunk.map(|chunk| chunk.extent.address).filter(|address| leased.contains(address));
                let pin = address.and_then(|address| self.tags.pins.get(&address));
                prop_assert!(pin.is_some_and(|pin| pin.charged.contains(&client)), "version {}", version);
            }
        }
        prop_assert!(self.tags.ends.len() <= 12 * counts.tags.max(1) + 12 * self.limits.client_tags);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn only_leased_is_readable_and_nothing_lingers(
        ops in prop::collection::vec(op(), 1..200), pages in 3..14_u64, client_pages in 2..8_u64, tags in 2..12_usize,
        divides: bool,
    ) {
        let limits = Limits {
            pages,
            client_pages,
            divides,
            client_tags: tags,
            afterlife: 8 * D,
            reports: 1000,
            lease: D,
        };
        let mut world = World::new(limits);
        for (turn, op) in ops.into_iter().enumerate() {
            let said = format!("{turn}: {op:?}");
            world.act(op).and_then(|()| world.check()).map_err(|wrong| TestCaseError::fail(format!("{said}: {wrong}")))?;
        }
        world.act(Op::Later(D)).and_then(|()| world.act(Op::Later(9 * D)))?;
        world.tags.sweep(world.now, usize::MAX);
        let counts = world.tags.counts();
        prop_assert_eq!((counts.pages, counts.pins, counts.tags, counts.records, world.tags.ends.len()), (0, 0, 0, 0, 0));
        drop(world.tags.take_ended());
        prop_assert_eq!(world.noted.get(), 0, "nothing is left over");
        prop_assert_eq!((counts.left, PEERS.map(|peer| world.tags.share_of_peer(peer))), (0, [0, 0]));
    }
}
