//! A policy of your own takes part in `tracesim`.
//!
//! ```sh
//! cargo run --release -p own-policy -- compare -p second-chance,mrrc requests.csv
//! ```

use mrrc_core::policy::{Policy, PolicyParams};
use mrrc_core::{ListId, RegionId, Regions};
use std::process::ExitCode;
use tracesim::policies::PolicyEntry;

/// Second chance, also known as CLOCK: first in, first out, but a region that was used since it came up goes round once more.
#[derive(Debug, Default)]
struct SecondChance {
    /// Oldest first. The store of regions makes it when the first region enters.
    queue: Option<ListId>,
}

/// The mark of a region that was used.
const USED: u8 = 1;

impl SecondChance {
    fn new(_params: &PolicyParams) -> Self {
        Self::default()
    }

    fn queue(&mut self, regions: &mut Regions) -> ListId {
        *self.queue.get_or_insert_with(|| regions.new_list())
    }
}

impl Policy for SecondChance {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        let queue = self.queue(regions);
        regions.push_back(queue, id);
    }

    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        regions.get(id).set_mark(USED);
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        regions.unlink(id);
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let queue = self.queue(regions);
        // Each step clears a mark or takes a region out of the queue, so this ends.
        loop {
            let id = regions.front(queue)?;
            regions.unlink(id);
            if regions.get(id).mark() == USED {
                regions.get(id).set_mark(0);
                regions.push_back(queue, id);
            } else if regions.get(id).in_use() {
                // A lease holds it. The core gives it back, by `put_back`, when the lease ends.
                regions.get(id).set_aside(true);
            } else {
                return Some(id);
            }
        }
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        let queue = self.queue(regions);
        regions.push_front(queue, id);
    }
}

fn main() -> ExitCode {
    let second_chance = PolicyEntry::of("second-chance", "FIFO that spares what was used.", SecondChance::new);
    tracesim::main_with(&[second_chance])
}
