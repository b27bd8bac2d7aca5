//! Registrars without hardware, for tests, simulation and benches.
//!
//! * [`NoopRegistrar`] registers at no cost: what is measured over it is the cache's own time.
//! * [`Model`] wraps a registrar (a [`NoopRegistrar`] unless told otherwise) with a cost model on a virtual clock,
//!   exact [`Counts`], enforced limits, [`Fault`]s on demand, and a hook in which a test can hold a call.
//! * [`FakeNic`] is a device without hardware over an [`AddressSpace`], a page table of a process that does
//!   not exist. It pins pages, performs [`Transfer`]s, and reports for every page that a transfer touched
//!   whether it is the one that the address leads to. A stale key, which on real hardware loses data in
//!   silence, is caught and counted. [`FakeMonitor`] reports changes of such an address space as userfaultfd
//!   does.
//!
//! All are handles: a clone is the same object, so a test keeps one and gives one away.
//!
//! ```
//! use mrrc::cost::Linear;
//! use mrrc::registrar::{Registered, Registrar};
//! use mrrc::testing::{AddressSpace, FakeNic, Landing, Model, Transfer};
//! use mrrc::{Access, PAGE, PageRange};
//!
//! let space = AddressSpace::new(1024); // 4 MiB of memory
//! let buffer = PageRange::new(16, 4)?;
//! space.map(buffer)?;
//!
//! let nic = FakeNic::new(&space);
//! let model = Model::over(Linear::PAPER, nic.clone());
//! let access = Access::LOCAL;
//! let registration = model.register(buffer, access)?;
//! assert_eq!((model.clock_us(), nic.pinned_pages()), (Linear::PAPER.register(4), 4));
//!
//! // The memory is given back and taken again: the key leads to the old pages, the address to new ones.
//! space.unmap(buffer);
//! space.map(buffer)?;
//! let send = Transfer::read(registration.key(), 16 * PAGE, 100);
//! let landed = nic.perform(&send, &space.begin())?;
//! assert_eq!(landed[0].landing, Landing::Stale);
//! assert_eq!(nic.findings().stale, 1);
//!
//! model.deregister(&mut vec![Registered { range: buffer, access, registration }])?;
//! assert_eq!(nic.pinned_pages(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod faults;
mod gate;
mod metered;
mod monitor;
mod nic;
mod noop;
mod space;

pub use faults::Fault;
pub use gate::Gate;
pub use metered::{Counts, Event, Model};
pub use monitor::{FakeMonitor, Stage};
pub use nic::{FakeNic, Findings, Refused, Transfer};
pub use noop::NoopRegistrar;
pub use space::{AddressSpace, Announcement, Began, Landed, Landing, ListenerId, Moment, SpaceError};

use crate::shim::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;

/// A registration with a [`NoopRegistrar`] or a [`FakeNic`].
#[derive(PartialEq, Eq, Debug)]
pub struct Registration {
    key: u64,
}

impl Registration {
    /// Its key. A registrar never gives the same one twice.
    #[inline]
    pub fn key(&self) -> u64 {
        self.key
    }
}

/// A panic of a test's thread, in a hook for example, must not hide what the other threads find.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
