//! A device without hardware: pins the pages of an [`AddressSpace`] and checks every transfer against it.
//!
//! The table of registrations has a lock, and a transfer holds it: so deregistering is quiescent, as the
//! contract wants. The lock of the address space is taken inside it.

use super::{AddressSpace, Began, Landed, Landing, Registration, SpaceError, lock};
use crate::access::Access;
use crate::range::{PAGE, PageRange};
use crate::registrar::{Limits, Registered, Registrar};
use crate::shim::sync::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::{fmt, io};

/// A network card that does not exist. See [`model`](super) for an example.
///
/// It has no limits of its own but the memory of the address space: put a [`Model`](super::Model) around it for
/// others, and for faults. Keys are never used again, so a key that outlived its registration is told from all
/// others.
#[derive(Clone)]
pub struct FakeNic {
    shared: Arc<Shared>,
}

struct Shared {
    space: AddressSpace,
    /// The keys from here on are its own.
    first_key: u64,
    table: Mutex<Table>,
}

/// How many keys a device has before they run into those of the next.
const KEYS: u64 = 1 << 40;

#[derive(Default)]
struct Table {
    live: FxHashMap<u64, Pinned>,
    pages: u64,
    /// How many keys were given out.
    keys: u64,
    findings: Findings,
}

struct Pinned {
    range: PageRange,
    access: Access,
    frames: Box<[u64]>,
}

/// A transfer for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// With this registration.
    pub key: u64,
    /// At this address, in bytes.
    pub address: u64,
    /// So many bytes.
    pub length: u64,
    /// On the strength of these rights.
    pub needs: Access,
    /// The word written to every page; nothing if it reads.
    pub writes: Option<u64>,
}

impl Transfer {
    /// The process has the card read: a send.
    pub fn read(key: u64, address: u64, length: u64) -> Self {
        Self { key, address, length, needs: Access::LOCAL_READ, writes: None }
    }

    /// The process has the card write: a receive.
    pub fn write(key: u64, address: u64, length: u64, word: u64) -> Self {
        Self { key, address, length, needs: Access::LOCAL_WRITE, writes: Some(word) }
    }

    /// The same on behalf of a peer.
    pub fn by_peer(self) -> Self {
        let needs = if self.writes.is_some() { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        Self { needs, ..self }
    }
}

/// Why the device refuses a transfer. Nothing was touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The key is of a registration that was deregistered: its user kept it too long.
    #[error("key {key}: deregistered: a lease must outlive the transfers that use its keys")]
    Deregistered {
        /// The key.
        key: u64,
    },
    /// No registration of this device ever had this key.
    #[error("key {key}: not a key of this device")]
    Unknown {
        /// The key.
        key: u64,
    },
    /// Part of the transfer lies outside of the registration.
    #[error("key {key}: {length} bytes at {address:#x} are not inside its {range}")]
    Outside {
        /// The key.
        key: u64,
        /// The address of the transfer.
        address: u64,
        /// The length of the transfer.
        length: u64,
        /// The registered range.
        range: PageRange,
    },
    /// A right is missing.
    #[error("key {key}: registered with {has}, the transfer needs {needs}")]
    Rights {
        /// The key.
        key: u64,
        /// The granted rights.
        has: Access,
        /// The required rights.
        needs: Access,
    },
}

/// The findings of a [`FakeNic`]. All but the first two are bugs, `racing` perhaps not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Findings {
    /// Transfers performed.
    pub transfers: u64,
    /// Pages that they touched.
    pub pages: u64,
    /// Pages touched that are not, or no longer, those of the address, by accesses that began before the change
    /// had returned.
    pub racing: u64,
    /// Pages touched by accesses that began after.
    pub stale: u64,
    /// Transfers with a key that was deregistered.
    pub deregistered: u64,
    /// Transfers with a key that never was.
    pub unknown: u64,
    /// Transfers that went outside of their registration.
    pub outside: u64,
    /// Transfers without the rights.
    pub rights: u64,
    /// Registrations of others that it was told to deregister.
    pub foreign: u64,
}

impl FakeNic {
    /// Returns a card in the machine of this process.
    pub fn new(space: &AddressSpace) -> Self {
        let first_key = space.new_device() * KEYS;
        Self { shared: Arc::new(Shared { space: space.clone(), first_key, table: Mutex::new(Table::default()) }) }
    }

    /// Returns the process that it serves.
    pub fn space(&self) -> &AddressSpace {
        &self.shared.space
    }

    /// Pages of all registrations together: 0 when everything is deregistered.
    pub fn pinned_pages(&self) -> u64 {
        lock(&self.shared.table).pages
    }

    /// Registrations.
    pub fn registrations(&self) -> u64 {
        lock(&self.shared.table).live.len() as u64
    }

    /// Returns the findings so far.
    pub fn findings(&self) -> Findings {
        lock(&self.shared.table).findings
    }

    /// Performs a transfer and says, page by page, what it touched. The access began when [`AddressSpace::begin`]
    /// was called: before the key was looked up, if it is the look-up that is tested.
    ///
    /// # Errors
    /// An access that a card would refuse; it is counted.
    pub fn perform(&self, transfer: &Transfer, began: &Began) -> Result<Vec<Landed>, Refused> {
        let Table { live, findings, keys, .. } = &mut *lock(&self.shared.table);
        let &Transfer { key, address, length, needs, writes } = transfer;
        let Some(pinned) = live.get(&key) else {
            return Err(if key.checked_sub(self.shared.first_key).is_some_and(|nth| nth < *keys) {
                findings.deregistered += 1;
                Refused::Deregistered { key }
            } else {
                findings.unknown += 1;
                Refused::Unknown { key }
            });
        };
        if !pinned.access.contains(needs) {
            findings.rights += 1;
            return Err(Refused::Rights { key, has: pinned.access, needs });
        }
        let Some((touched, frames)) = pinned.within(address, length) else {
            findings.outside += 1;
            return Err(Refused::Outside { key, address, length, range: pinned.range });
        };
        let landed = self.shared.space.land(touched.start(), frames, writes, began);
        let count = |landing| landed.iter().filter(|page| page.landing == landing).count() as u64;
        findings.transfers += 1;
        findings.pages += landed.len() as u64;
        findings.racing += count(Landing::Racing);
        findings.stale += count(Landing::Stale);
        Ok(landed)
    }
}

impl Pinned {
    /// Returns the pages that the bytes touch, and their frames, if the bytes lie within the registration.
    fn within(&self, address: u64, length: u64) -> Option<(PageRange, &[u64])> {
        let last = address.checked_add(length.checked_sub(1)?)?;
        let touched = PageRange::new(address / PAGE, last / PAGE - address / PAGE + 1).ok()?;
        if !self.range.contains(touched) {
            return None;
        }
        let first = (touched.start() - self.range.start()) as usize;
        Some((touched, self.frames.get(first..first + touched.pages() as usize)?))
    }
}

// SAFETY: there is no memory behind it. Within the model it keeps the contract: frames stay pinned until
// deregistered, keys are counted up and never repeat, and no transfer runs while the table is locked to
// deregister.
#[expect(unsafe_code, reason = "the trait of the edge; there is no device behind this one")]
unsafe impl Registrar for FakeNic {
    type Registration = Registration;

    /// Fails with `EFAULT` if part of the range is not mapped, with `ENOMEM` if memory is full.
    fn register(&self, range: PageRange, access: Access) -> io::Result<Registration> {
        let access = access.with_read();
        let frames = self.shared.space.pin(range).map_err(|error| {
            let full = matches!(error, SpaceError::Full { .. });
            io::Error::from_raw_os_error(if full { libc::ENOMEM } else { libc::EFAULT })
        })?;
        let table = &mut *lock(&self.shared.table);
        let key = self.shared.first_key + table.keys;
        table.keys += 1;
        table.pages += range.pages();
        table.live.insert(key, Pinned { range, access, frames });
        Ok(Registration { key })
    }

    /// Whether every page is mapped; a look at the first 4,096 of them.
    fn probe(&self, range: PageRange, _: Access) -> io::Result<()> {
        let pages = range.start()..range.end().min(range.start() + 4096);
        let mapped = { pages }.all(|page| self.shared.space.load(page).is_some());
        if mapped { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
    }

    /// Leaves what is not its own, with `EINVAL`.
    fn deregister(&self, batch: &mut Vec<Registered<Registration>>) -> io::Result<()> {
        let mut unpinned = Vec::with_capacity(batch.len());
        {
            let Table { live, pages, findings, .. } = &mut *lock(&self.shared.table);
            batch.retain(|registered| match live.remove(&registered.registration.key) {
                Some(pinned) => {
                    *pages -= pinned.range.pages();
                    unpinned.push(pinned.frames);
                    false
                }
                None => true,
            });
            findings.foreign += batch.len() as u64;
        }
        for frames in &unpinned {
            self.shared.space.unpin(frames);
        }
        if batch.is_empty() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn name(&self) -> &'static str {
        "fake NIC"
    }
}

impl fmt::Debug for FakeNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = lock(&self.shared.table);
        f.debug_struct("FakeNic")
            .field("registrations", &table.live.len())
            .field("pages", &table.pages)
            .field("findings", &table.findings)
            .finish_non_exhaustive()
    }
}
