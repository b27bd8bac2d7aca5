//! The registrar, in which a registration takes long now and then: there is time for memory to change
//! between the pinning of its pages and the publication of the region.

use crate::ring::{Key, Table};
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, PageRange};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// See the [module](self).
pub(crate) struct Tardy {
    table: Table,
    delay: Duration,
    count: AtomicU32,
}

impl Tardy {
    pub(crate) fn new(table: Table, delay: Duration) -> Self {
        Self { table, delay, count: AtomicU32::new(0) }
    }
}

/// Lets others work for a while.
pub(crate) fn linger(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::thread::yield_now();
    }
}

// SAFETY: it passes on what the table answers, later.
unsafe impl Registrar for Tardy {
    type Registration = Key;

    fn register(&self, range: PageRange, access: Access) -> io::Result<Key> {
        let turn = self.count.fetch_add(1, Ordering::Relaxed) % 8;
        if turn == 3 {
            linger(self.delay);
        }
        let registered = self.table.register(range, access);
        if turn.is_multiple_of(4) {
            linger(self.delay);
        }
        registered
    }

    fn deregister(&self, batch: &mut Vec<Registered<Key>>) -> io::Result<()> {
        self.table.deregister(batch)
    }

    fn limits(&self) -> Limits {
        self.table.limits()
    }

    fn rights(&self) -> Access {
        self.table.rights()
    }

    fn name(&self) -> &'static str {
        self.table.name()
    }
}
