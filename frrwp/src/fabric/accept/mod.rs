//! Half-open connections: which a listener keeps, and which it evicts.
//!
//! A connection is *half open* from the time its listener takes it until its set-up ends. A peer that stays silent costs its
//! listener an entry and a descriptor, and delays no other peer:
//!
//! * Set-ups run in parallel. The order in which connections came is not the order in which they are set up.
//! * Half-open connections are bounded, in total and for each source, and by the descriptors that the process may have. A new one is always admitted. At the bound of its source it
//!   evicts the oldest of that source. At the total bound it evicts the oldest of the source that has the most. So a source
//!   that has fewer than its share of the total loses none to others.
//! * A listener without descriptors evicts in the same order until it has some. It reports that once ([`Shortage`]), and tries
//!   again at intervals if it has nothing to evict.
//!
//! [`HalfOpen`] and [`Shortage`] decide, and have neither sockets nor clocks. Each provider's listener drives them: it looks at a
//! connection before it gives that up, so one that can end its set-up is never evicted.

mod shortage;
#[cfg(test)]
mod tests;

pub(in crate::fabric) use shortage::{Shortage, are_free, is_shortage};

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Instant;

/// How many half-open connections a listener keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fabric) struct Limits {
    /// From all sources.
    pub(in crate::fabric) total: usize,
    /// From one source.
    pub(in crate::fabric) by_source: usize,
}

impl Limits {
    /// The most.
    pub(in crate::fabric) const MOST: Self = Self { total: 256, by_source: 64 };

    /// Returns every provider's default: an eighth of the descriptors that this process may have, at most [`MOST`](Self::MOST). So the
    /// half-open connections of one listener leave descriptors for others, and for what else the process does.
    pub(in crate::fabric) fn of_process() -> Self {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Self::of_descriptors(files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX)))
    }

    fn of_descriptors(files: usize) -> Self {
        let total = (files / 8).clamp(8, Self::MOST.total);
        Self { total, by_source: (total / 4).max(4) }
    }
}

/// The origin of a connection over a network: an IPv4 address, or the /64 of an IPv6 address, which is what one user has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(in crate::fabric) enum Source {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl Source {
    /// Returns the source of a peer's address. An IPv4 address that is written as an IPv6 one is the IPv4 address.
    pub(in crate::fabric) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

/// Names a half-open connection of one listener. Later ones have higher numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(in crate::fabric) struct Number(u64);

/// The half-open connections of a listener, each with what the provider keeps of it.
#[derive(Debug)]
pub(in crate::fabric) struct HalfOpen<S, T> {
    limits: Limits,
    /// In the order in which they came.
    entries: BTreeMap<Number, Entry<S, T>>,
    by_source: FxHashMap<S, usize>,
    next: u64,
}

#[derive(Debug)]
struct Entry<S, T> {
    source: S,
    until: Instant,
    item: T,
}

impl<S: Copy + Eq + Hash, T> HalfOpen<S, T> {
    pub(in crate::fabric) fn new(limits: Limits) -> Self {
        let limits = Limits { total: limits.total.max(1), by_source: limits.by_source.clamp(1, limits.total.max(1)) };
        Self { limits, entries: BTreeMap::new(), by_source: FxHashMap::default(), next: 0 }
    }

    /// Admits a connection that may be half open until a time. Returns the one that it evicts, if it has to.
    pub(in crate::fabric) fn admit(&mut self, source: S, until: Instant, item: T) -> Option<T> {
        let of_source = self.by_source.get(&source).copied().unwrap_or(0);
        let evicted = if of_source >= self.limits.by_source {
            self.oldest_of(source).and_then(|number| self.remove(number))
        } else if self.entries.len() >= self.limits.total {
            self.evict(None)
        } else {
            None
        };
        let number = Number(self.next);
        self.next += 1;
        self.entries.insert(number, Entry { source, until, item });
        *self.by_source.entry(source).or_insert(0) += 1;
        evicted
    }

    /// Evicts the oldest connection of the source that has the most, but not the one to keep. Among sources with equally many, the
    /// one with the oldest loses it.
    pub(in crate::fabric) fn evict(&mut self, keep: Option<Number>) -> Option<T> {
        let count = |entry: &Entry<S, T>| self.by_source.get(&entry.source).copied();
        let others = || self.entries.iter().filter(|&(&number, _)| Some(number) != keep);
        let most = others().map(|(_, entry)| count(entry)).max()?;
        let number = others().find(|(_, entry)| count(entry) == most).map(|(&number, _)| number)?;
        self.remove(number)
    }

    /// Removes a connection that is out of time at `now`, the oldest of those first.
    pub(in crate::fabric) fn expire(&mut self, now: Instant) -> Option<T> {
        let number = self.entries.iter().find(|(_, entry)| entry.until <= now).map(|(&number, _)| number)?;
        self.remove(number)
    }

    /// Returns when the next connection's time is over.
    pub(in crate::fabric) fn next_expiry(&self) -> Option<Instant> {
        self.entries.values().map(|entry| entry.until).min()
    }

    /// Removes a connection.
    pub(in crate::fabric) fn remove(&mut self, number: Number) -> Option<T> {
        let Entry { source, item, .. } = self.entries.remove(&number)?;
        if let Some(count) = self.by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&source);
            }
        }
        Some(item)
    }

    /// Returns a connection by its number.
    pub(in crate::fabric) fn get_mut(&mut self, number: Number) -> Option<&mut T> {
        self.entries.get_mut(&number).map(|entry| &mut entry.item)
    }

    /// Returns the numbers of all connections, the oldest first.
    pub(in crate::fabric) fn numbers(&self) -> Vec<Number> {
        self.entries.keys().copied().collect()
    }

    /// Returns what the provider keeps of each connection, the oldest first.
    pub(in crate::fabric) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.values().map(|entry| &entry.item)
    }

    /// Returns how many connections a listener takes before it looks at those that it has: fewer than one source may have.
    pub(in crate::fabric) fn batch(&self) -> usize {
        (self.limits.by_source / 2).max(1)
    }

    pub(in crate::fabric) fn len(&self) -> usize {
        self.entries.len()
    }

    fn oldest_of(&self, source: S) -> Option<Number> {
        self.entries.iter().find(|(_, entry)| entry.source == source).map(|(&number, _)| number)
    }
}
