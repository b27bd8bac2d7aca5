//! The stores that the sessions share: each behind a lock of its own, a key always in the same one.
//!
//! Locks: one at a time, never while waiting for the network. A shard's lock orders all commands on its keys.

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;

use crate::store::{Config, Memory, Store};

/// The shards.
#[derive(Debug)]
pub struct Shards {
    stores: Vec<Mutex<Store>>,
    hasher: FixedState,
}

/// Memory for each shard at least, so that none is short of pages for its classes.
const A_SHARD: usize = 512 << 20;

impl Shards {
    /// As many shards as there are threads, but not more than the memory is good for.
    ///
    /// # Errors
    ///
    /// Those of the mapping.
    pub fn new(config: &Config, threads: usize) -> io::Result<Self> {
        Self::build(config, threads, None::<fn(usize) -> io::Result<Memory>>)
    }

    /// The same, in memory that is made elsewhere: `make` is told how many bytes each takes.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub fn with_memory(
        config: &Config,
        threads: usize,
        make: impl FnMut(usize) -> io::Result<Memory>,
    ) -> io::Result<Self> {
        Self::build(config, threads, Some(make))
    }

    fn build(
        config: &Config,
        threads: usize,
        mut make: Option<impl FnMut(usize) -> io::Result<Memory>>,
    ) -> io::Result<Self> {
        let (count, each) = Self::parts(config, threads);
        let stores = (0..count)
            .map(|at| {
                // Another seed, or all keys of a shard would have hashes alike.
                let seed = config.seed.wrapping_add(at as u64 + 1);
                let config = Config { seed, ..each.clone() };
                let store = match &mut make {
                    Some(make) => Store::with_memory(&config, make),
                    None => Store::new(&config),
                };
                store.map(Mutex::new)
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { stores, hasher: FixedState::with_seed(config.seed) })
    }

    /// Returns the number of shards, and the configuration of each.
    fn parts(config: &Config, threads: usize) -> (usize, Config) {
        let count = Self::number(config, threads);
        let each = Config {
            memory: config.memory / count,
            memory_max: config.memory_max / count,
            extra: config.extra / count,
            ..config.clone()
        };
        (count, each)
    }

    /// Returns how many shards a configuration makes, the bytes of their pages, and the bytes of each one's memory.
    #[cfg_attr(not(feature = "bpf"), expect(dead_code, reason = "memory is planned for the kernel's program alone"))]
    pub(crate) fn plan(config: &Config, threads: usize) -> (usize, usize, usize) {
        let (count, each) = Self::parts(config, threads);
        let (page, bytes) = Store::layout(&each);
        (count, page, bytes)
    }

    /// Returns how many a configuration makes.
    pub fn number(config: &Config, threads: usize) -> usize {
        let by_memory = config.memory / A_SHARD.max(config.item_max * 16);
        // A store holds less than 32 GiB.
        let least = (config.memory.max(config.memory_max) >> 30) / 31 + 1;
        by_memory.min(threads * 4).max(least).max(1)
    }

    /// Which shard has this key.
    pub fn of(&self, key: &[u8]) -> usize {
        if self.stores.len() == 1 {
            return 0;
        }
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        (hasher.finish() >> 32) as usize % self.stores.len()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.stores.len()
    }

    /// That shard, locked.
    pub fn at(&self, shard: usize) -> MutexGuard<'_, Store> {
        // A panic in the store is a bug; going on with what is there serves more than ending every worker would.
        self.stores[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the shard that has this key, locked.
    pub fn with(&self, key: &[u8]) -> MutexGuard<'_, Store> {
        self.at(self.of(key))
    }

    /// Each shard in turn.
    pub fn each(&self, mut act: impl FnMut(&mut Store)) {
        for shard in 0..self.count() {
            act(&mut self.at(shard));
        }
    }
}
