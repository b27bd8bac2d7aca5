//! The store as `stats` shows it.

use super::chunk::LEASED;
use super::eviction::{MAIN, SMALL};
use super::{ClassCounters, Counters, Place, Store};
use crate::metrics::{FlashCounts, FlashGauges};
use rdmakv_proto::item::State;

/// The whole.
#[derive(Clone, Debug)]
pub struct Report {
    /// The counters.
    pub counters: Counters,
    /// Items, those on flash included.
    pub items: u64,
    /// Of these, items in memory.
    pub here: u64,
    /// Bytes that items use, headers included.
    pub bytes: u64,
    /// Bytes of the hash table and of the ghosts.
    pub hash_bytes: u64,
    /// Two to this power of buckets.
    pub hash_power: u32,
    /// Whether the table is between two powers.
    pub growing: bool,
    /// Pages without a class.
    pub pool: u64,
    /// Bytes of pages in use.
    pub malloced: u64,
    /// Chunks that one-sided readers may read.
    pub leased: u64,
    /// Of these, those whose item is gone: they are free when their leases have ended.
    pub leased_dead: u64,
    /// Bytes that these use; `bytes` has them too.
    pub leased_dead_bytes: u64,
    /// The second tier, if there is one.
    pub flash: Option<(FlashCounts, FlashGauges)>,
    /// Classes in use; some have no pages, and items on flash only.
    pub classes: Vec<ClassReport>,
}

/// A class.
#[derive(Clone, Debug)]
pub struct ClassReport {
    /// Its number.
    pub class: usize,
    /// Bytes of a chunk.
    pub size: usize,
    /// Chunks in a page.
    pub a_page: u32,
    /// Pages.
    pub pages: u32,
    /// Chunks in use.
    pub used: u64,
    /// Bytes that items use, headers included.
    pub bytes: u64,
    /// Items in the small queue.
    pub small: u64,
    /// Items in the main queue.
    pub main: u64,
    /// Items of that size that are on flash only.
    pub away: u64,
    /// Seconds since the oldest item was asked for.
    pub age: u64,
    /// The same of the small and of the main queue.
    pub ages: [u64; 2],
    /// The counters.
    pub counters: ClassCounters,
}

impl Store {
    /// Returns the numbers at present.
    pub fn report(&self, now: u64) -> Report {
        let (slabs, eviction) = (&self.slabs, &self.eviction);
        let classes = 0..slabs.sizes().len();
        let mut away = vec![0; slabs.sizes().len()];
        for (_, class, items) in self.sizes_on_flash() {
            away[class] += items;
        }
        let here = self.index.len() as u64;
        Report {
            counters: self.counts.whole,
            items: here + away.iter().sum::<u64>(),
            here,
            bytes: classes.clone().map(|class| slabs.bytes_of(class)).sum(),
            hash_bytes: (self.index.bytes() + eviction.bytes()) as u64,
            hash_power: self.index.power(),
            growing: self.index.is_growing(),
            pool: slabs.pooled() as u64,
            malloced: slabs.memory_in_use() as u64,
            leased: self.leases.len() as u64,
            leased_dead: self.leases.dead(),
            leased_dead_bytes: self.leases.dead_bytes(),
            flash: self.flash_report(),
            classes: classes
                .filter(|&class| slabs.pages_of(class) > 0 || away[class] > 0)
                .map(|class| {
                    let ages = eviction.ages(slabs, class, now);
                    ClassReport {
                        class,
                        size: slabs.sizes()[class],
                        a_page: slabs.chunks_a_page(class),
                        pages: slabs.pages_of(class),
                        used: slabs.used_of(class),
                        bytes: slabs.bytes_of(class),
                        small: eviction.len(class, SMALL),
                        main: eviction.len(class, MAIN),
                        away: away[class],
                        age: ages[0].max(ages[1]),
                        ages,
                        counters: self.counts.classes[class],
                    }
                })
                .collect(),
        }
    }

    /// Returns the sum of what the classes counted, those without pages too.
    pub fn class_totals(&self) -> ClassCounters {
        let mut totals = ClassCounters::default();
        for class in &self.counts.classes {
            totals.add(class);
        }
        totals
    }

    /// Returns the classes' sizes.
    pub fn sizes(&self) -> &[usize] {
        self.slabs.sizes()
    }

    /// Whether header and sum of every published chunk are right, and index, queues, pages, leases and the GET table agree; says
    /// what is not.
    pub fn check(&self) -> Result<(), String> {
        let current = |id| self.is_alive(id) && !self.versions.is_flushed(self.slabs.chunk(id));
        self.table.check(&self.slabs, current)?;
        self.slabs.check()?;
        let (mut alive, mut leased, mut leased_dead, mut place) = (0, 0, 0, Place::default());
        while let Some(id) = self.slabs.next_chunk(&mut place, None) {
            let (chunk, lives) = (self.slabs.chunk(id), self.is_alive(id));
            if chunk.state() != State::Free && chunk.marked(LEASED) {
                leased += 1;
                leased_dead += u64::from(chunk.state() == State::Dead);
                if !self.leases.is_leased(id) || chunk.holders() == 0 {
                    return Err(format!("{id:?}: marked as leased, without a lease"));
                }
            }
            if lives {
                alive += 1;
                if chunk.crc() != chunk.sum() {
                    return Err(format!("{id:?}: the sum is wrong"));
                }
                if self.index.find(&self.slabs, self.index.hash(chunk.key()), chunk.key()) != Some(id) {
                    return Err(format!("{id:?}: alive, but not in the index"));
                }
            }
        }
        let counted = (self.leases.len(), self.leases.dead());
        if (leased, leased_dead) != counted {
            return Err(format!("{leased} leased, {leased_dead} dead; {counted:?} counted"));
        }
        let queued: u64 = (0..self.sizes().len()).map(|class| self.eviction.queued(class)).sum();
        if alive != self.index.len() as u64 || alive != queued {
            return Err(format!("{alive} alive, {} in the index, {queued} in queues", self.index.len()));
        }
        Ok(())
    }
}
