//! An unwatch of another user's range makes a monitor deaf, so calling a monitor is a promise.

use mrrc::PageRange;
use mrrc::invalidation::{Monitor, Userfaultfd};

fn deafen(monitor: &Userfaultfd, range: PageRange) {
    monitor.unwatch(range);
}

fn main() {
    let range = PageRange::new(16, 4).unwrap();
    deafen(&Userfaultfd::of_process().unwrap(), range);
}
