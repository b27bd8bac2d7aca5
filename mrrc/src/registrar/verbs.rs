//! Pins memory for a network card: memory regions of a protection domain, by libibverbs.
//!
//! [`Verbs`] registers with `ibv_reg_mr` in a [`Domain`], which is opened by the name of its device or lent by the
//! program. The keys of a registration are those of the card: [`MemoryRegion::lkey`] for the program's own work requests,
//! [`MemoryRegion::rkey`] for peers.
//!
//! ```no_run
//! use mrrc::registrar::verbs::{Domain, Verbs};
//! use mrrc::{Access, Cache};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let buffer = vec![0_u8; 8192];
//! let domain = Domain::open("rxe0")?;
//! let cache = Cache::builder(Verbs::new(&domain)?).build()?;
//! // SAFETY: the buffer outlives the lease, and has no other user meanwhile.
//! let lease = unsafe { cache.acquire(buffer.as_ptr(), buffer.len(), Access::LOCAL | Access::REMOTE_READ) }?;
//! for part in lease.segments() {
//!     let (_at, _bytes) = (part.address(), part.len());
//!     let (_for_us, _for_peers) = (part.registration().lkey(), part.registration().rkey());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # To build it
//!
//! Feature `verbs` opens libibverbs at run time: one binary for every machine. Its build needs cmake and libclang (Debian:
//! cmake, libclang-dev), and no rdma-core; machines with a device need libibverbs and its drivers (libibverbs1,
//! ibverbs-providers). Feature `verbs-linked` links with libibverbs. [`binding`] is the one module that tells them apart;
//! where both are on, `verbs` wins.
//!
//! Any Linux can have a device in software, to try this with: `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`.
//!
//! # What users rely on
//!
//! * **The lease outlives the transfer**: keep it until the completion of the work request was seen. The rights of a
//!   *peer* with a key that it was sent end when the region is deregistered. That is later than the end of the lease:
//!   at its eviction, or at [`Cache::reap`](crate::Cache::reap) after an invalidation. Where a right must end
//!   with the lease, build the cache with [`Remote::Windows`](super::windows::Remote::Windows), and send peers the key of
//!   the lease's [window](crate::Segment::window).
//! * **Rights are as asked.** A peer that may write or run atomic operations needs [`Access::LOCAL_WRITE`] besides.
//!   Verbs ask for it, and a request without it is refused here with a message. On iWARP the memory that a *read*
//!   fills needs [`Access::REMOTE_WRITE`] ([`Transport::Iwarp`]).
//! * siw, the kernel's iWARP in software, looks at no right when a peer *reads* (seen with Linux 6.1). There a peer
//!   that guesses a key reads memory that was registered for this side alone. It is for trying things out.
//! * **The domain lives as long as any clone of it**, the registrar's included; so queue pairs may outlive the cache.
//!
//! # What the system refuses
//!
//! * `EFAULT`: something in the range is not mapped, or not writable and to be written.
//! * `ENOMEM`: `RLIMIT_MEMLOCK` of this *process* (`ulimit -l`), unless it has `CAP_IPC_LOCK`; siw holds every process to
//!   it. Or the device's table is full. The cache makes room and tries again, in either case.
//! * [`VerbsError::Gone`], in the error's [`get_ref`](io::Error::get_ref): the device went. Registrations went with it, and
//!   deregistering them is done with at once. [`VerbsError::Failing`] before that: what could not be deregistered then,
//!   the cache tries again. Drivers of cards let a device go under its users; `rxe` and `siw` have `rdma link delete` wait for
//!   them.
//!
//! A port that goes down refuses nothing here: transfers fail, and memory is registered and deregistered as before.
//!
//! The default capacity is what the process may pin, and no more than half of its memory. Limits of regions are the
//! device's (`max_mr`), which all its users share.
//!
//! # After a fork
//!
//! Linux copies pinned pages for a child since 5.12, so the parent keeps those that its card knows ([`Forks::Copied`]). On older kernels, and only
//! there, opening a domain calls `ibv_fork_init`. A child has the device's file in common with its parent, so nothing is registered, deregistered
//! or closed there.
//!
//! # Memory of other devices
//!
//! A dma-buf (the memory of a graphics card, say) has a file descriptor and an offset in the place of an address.
//! `ibv_reg_dmabuf_mr` takes the place of `ibv_reg_mr`. A cache for it takes no more than a [`Registrar`] whose
//! ranges are pages of such a buffer's offsets, and that calls it. [`Domain::protection_domain`] and [`binding`] have
//! the parts.
#![expect(unsafe_code, reason = "the calls of libibverbs")]

pub mod binding;
mod device;
mod domain;
mod error;
mod region;

pub use device::{Attributes, Transport};
pub use domain::{Domain, DomainBuilder, Forks};
pub use error::VerbsError;
pub use region::MemoryRegion;

use super::windows::{Calls, DomainWindows, PeerWindows, Verdict, try_windows};
use super::{Limits, Registered, Registrar, WRITES_OF_PEERS, budget};
use crate::access::Access;
use crate::mapped;
use crate::range::{PAGE, PageRange};
use crate::units::Count;
use binding as ib;
use std::io;
use std::sync::Arc;

/// The memory regions of a protection domain: a [`Registrar`].
///
/// Holds no lock; libibverbs and the kernel have theirs.
#[derive(Debug)]
pub struct Verbs {
    domain: Domain,
    limits: Limits,
    rights: Access,
    on_demand: bool,
    windows: bool,
    /// The windows that a cache gives peers their rights by.
    for_peers: Option<Arc<DomainWindows>>,
}

impl Verbs {
    /// Registers in this domain.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] if the device went since the domain was opened.
    pub fn new(domain: &Domain) -> Result<Self, VerbsError> {
        if domain.is_gone() {
            return Err(VerbsError::Gone { device: domain.device().to_owned() });
        }
        let device = domain.attributes();
        let limits = Limits {
            regions: Some(device.most_regions.max(1)),
            pages: budget::pages(0),
            region_pages: Some((device.largest_region / PAGE).max(1)),
            page_size: device.page_size.max(budget::page_size()),
        };
        let rights = if device.atomics { Access::all() } else { Access::all() - Access::REMOTE_ATOMIC };
        Ok(Self { domain: domain.clone(), limits, rights, on_demand: false, windows: false, for_peers: None })
    }

    /// Registers without pinning, if the device has on-demand paging; if not, changes nothing ([`Verbs::is_on_demand`]).
    /// The device then asks for pages as it needs them, at the price of a fault at the first use. No limit of pinned
    /// memory applies, so set a capacity.
    ///
    /// # Safety
    /// A registration then means *whatever is mapped* at its addresses, and not the pages of its time. That is less
    /// than [`Registrar`] promises: until it is deregistered, peers with its key reach memory that is mapped there
    /// later. So let its registration go before memory that was ever acquired for peers is unmapped, and mapped for
    /// something that they must not reach. [`Cache::invalidate`](crate::Cache::invalidate) and
    /// [`Cache::reap`](crate::Cache::reap) do that.
    pub unsafe fn on_demand(mut self) -> Self {
        if self.domain.attributes().on_demand {
            self.on_demand = true;
            self.limits.pages = None;
        }
        self
    }

    /// Returns whether pages are registered without being pinned.
    pub fn is_on_demand(&self) -> bool {
        self.on_demand
    }

    /// Registers so that the program can bind memory windows of its own to parts of what is registered ([`MemoryRegion::raw`]). A cache of
    /// [`Remote::Windows`](super::windows::Remote::Windows) does without. Devices without windows may refuse that, and the kernel refuses memory
    /// that is mapped read-only.
    pub fn windows(mut self) -> Self {
        self.windows = true;
        self
    }

    /// Returns the domain of its registrations.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Returns the card's flags for these rights, and for windows.
    fn flags(&self, access: Access, windows: bool) -> libc::c_int {
        let flags = [
            (Access::LOCAL_WRITE, ib::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
            (Access::REMOTE_READ, ib::ibv_access_flags::IBV_ACCESS_REMOTE_READ),
            (Access::REMOTE_WRITE, ib::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
            (Access::REMOTE_ATOMIC, ib::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC),
        ];
        let of_rights = flags.into_iter().filter(|(right, _)| access.contains(*right)).map(|(_, flag)| flag.0);
        let on_demand = self.on_demand.then_some(ib::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0);
        let windows = windows.then_some(ib::ibv_access_flags::IBV_ACCESS_MW_BIND.0);
        of_rights.chain(on_demand).chain(windows).fold(0, |all, flag| all | flag as libc::c_int)
    }

    /// Explains the refusal of a range. On kernels that need `ibv_fork_init`, libibverbs reports of memory that is
    /// not mapped that there is too little of it. The cache would make room in vain.
    fn refused(&self, error: io::Error, range: PageRange) -> io::Error {
        match mapped::mapped(range) {
            Err(bad) if error.raw_os_error() == Some(libc::ENOMEM) => bad,
            _ => self.told(error),
        }
    }

    /// Explains an error: a lost device is reported as such. The kernel answers `EIO` a little before it takes the name
    /// away.
    fn told(&self, error: io::Error) -> io::Error {
        if !matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODEV | libc::ENXIO | libc::EBADF)) {
            return error;
        }
        let device = self.domain.device().to_owned();
        io::Error::other(match self.domain.is_gone() {
            true => VerbsError::Gone { device },
            false => VerbsError::Failing { device, source: error },
        })
    }

    fn in_this_process(&self) -> io::Result<()> {
        if self.domain.is_ours() {
            return Ok(());
        }
        Err(refusal("the protection domain is of the process that this one was forked from: open one here".into()))
    }

    fn take_back(&self, region: &MemoryRegion) -> io::Result<()> {
        if let Some(windows) = &self.for_peers {
            windows.region_ends(region.raw());
        }
        // SAFETY: it was registered in this domain, which is open as long as this registrar, and a caller that
        // gives a registration away to be taken back has no other: it is no `Clone`, and only `deregister` calls
        // this.
        let failed = unsafe { ib::ibv_dereg_mr(region.raw().cast().as_ptr()) };
        if failed == 0 {
            return Ok(());
        }
        // Mostly it is the error itself, and where it is not, errno has it.
        let error = if failed > 0 { io::Error::from_raw_os_error(failed) } else { domain::last_error() };
        let error = self.told(error);
        // The kernel took its registrations back when the device went.
        if is_gone(&error) { Ok(()) } else { Err(error) }
    }
}

/// Returns the functions that windows take.
#[expect(clippy::missing_transmute_annotations, reason = "`Calls` has the types")]
fn calls() -> Calls {
    // SAFETY: these are libibverbs' functions, and each has the type that C has declared, in other words: pointers to structures
    // that are declared once more, by hand.
    unsafe {
        use std::mem::transmute as as_declared;
        Calls {
            reg_mr: as_declared(ib::ibv_reg_mr as *const ()),
            dereg_mr: as_declared(ib::ibv_dereg_mr as *const ()),
            alloc_pd: as_declared(ib::ibv_alloc_pd as *const ()),
            dealloc_pd: as_declared(ib::ibv_dealloc_pd as *const ()),
            close_device: as_declared(ib::ibv_close_device as *const ()),
            create_qp: as_declared(ib::ibv_create_qp as *const ()),
            create_cq: as_declared(ib::ibv_create_cq as *const ()),
            destroy_cq: as_declared(ib::ibv_destroy_cq as *const ()),
            destroy_qp: as_declared(ib::ibv_destroy_qp as *const ()),
            modify_qp: as_declared(ib::ibv_modify_qp as *const ()),
            query_port: as_declared(ib::query_port as *const ()),
            query_gid: as_declared(ib::ibv_query_gid as *const ()),
            open_device: as_declared(ib::ibv_open_device as *const ()),
            query_device: as_declared(ib::ibv_query_device as *const ()),
        }
    }
}

// SAFETY: the trial found that the device's windows hold: exact bytes, exact rights, and ended keys open nothing. Windows are replaced
// before a key of theirs comes again.
unsafe impl PeerWindows<MemoryRegion> for DomainWindows {
    fn rights(&self) -> Access {
        self.rights()
    }

    fn bind(&self, region: &MemoryRegion, address: usize, length: usize, rights: Access) -> io::Result<u32> {
        if !region.takes_windows() {
            return Err(takes_no_windows());
        }
        // SAFETY: the registrar that gave the windows away registered it in their domain, and tells them before it deregisters it.
        unsafe { self.bind(region.raw(), address, length, rights) }
    }

    fn unbind(&self, key: u32) -> io::Result<()> {
        self.unbind(key)
    }

    fn trouble(&self) -> Option<String> {
        self.trouble()
    }
}

fn is_gone(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(VerbsError::Gone { .. }))
}

// SAFETY: a memory region holds its pages, whatever becomes of the mapping, until `ibv_dereg_mr` (`on_demand` is unsafe
// for what it takes from this). Keys are unique in a domain as long as they are valid, by the rules of verbs. When
// `ibv_dereg_mr` returns, the card has forgotten the keys and touches the pages no more. Flags for peers are those asked.
unsafe impl Registrar for Verbs {
    type Registration = MemoryRegion;

    fn register(&self, range: PageRange, access: Access) -> io::Result<MemoryRegion> {
        self.in_this_process()?;
        if access.intersects(WRITES_OF_PEERS) && !access.contains(Access::LOCAL_WRITE) {
            return Err(refusal(format!(
                "{access}: verbs grant peers to write only where this side may, ask for local-write too"
            )));
        }
        let most = self.limits.region_pages.unwrap_or(u64::MAX);
        let (address, bytes) = (range.start().checked_mul(PAGE), range.pages().checked_mul(PAGE));
        let (Some(address), Some(bytes), true) = (address, bytes, range.pages() <= most) else {
            return Err(refusal(format!("{range}: {} registers at most {most} pages at once", self.domain.device())));
        };
        let register = |takes_windows| {
            let (address, flags) = (address as *mut libc::c_void, self.flags(access, takes_windows));
            // SAFETY: the domain is open. Memory that the range names is pinned, not touched: any address may be there.
            let region = unsafe { ib::ibv_reg_mr(self.domain.raw(), address, bytes as usize, flags as _) };
            // SAFETY: either null, or of this domain and new.
            unsafe { MemoryRegion::new(region, range, self.domain.id(), takes_windows) }.ok_or_else(domain::last_error)
        };
        let region = register(self.windows).or_else(|error| {
            // The kernel pins for writing where windows can be bound. Memory that is mapped read-only can be registered without them.
            let is_read_only = error.raw_os_error() == Some(libc::EFAULT) && !access.contains(Access::LOCAL_WRITE);
            if is_read_only && self.for_peers.is_some() { register(false) } else { Err(error) }
        });
        region.map_err(|error| self.refused(error, range))
    }

    /// One call of libibverbs for each, which is all that verbs have.
    fn deregister(&self, batch: &mut Vec<Registered<MemoryRegion>>) -> io::Result<()> {
        self.in_this_process()?;
        let (mut first, mut strangers) = (None, 0);
        batch.retain(|Registered { registration, .. }| {
            if registration.domain() != self.domain.id() {
                strangers += 1;
                return true;
            }
            let failed = self.take_back(registration).err();
            let stays = failed.is_some();
            first = first.take().or(failed);
            stays
        });
        match first {
            Some(error) => Err(error),
            None if strangers > 0 => Err(refusal(format!("{} of another domain", Count(strangers, "memory regions")))),
            None => Ok(()),
        }
    }

    /// Whether all of the range is mapped.
    fn probe(&self, range: PageRange, _: Access) -> io::Result<()> {
        mapped::mapped(range)
    }

    /// Whether all of the range is mapped, and writable if it is to be written or shown by windows: the list of mappings is read.
    fn examine(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.probe(range, access)?;
        let writes = access.intersects(Access::LOCAL_WRITE | WRITES_OF_PEERS);
        let has_windows = self.for_peers.is_some() && access.is_remote();
        match mapped::fault(range) {
            None | Some(mapped::Fault::Other | mapped::Fault::SharedFile(_)) => Ok(()),
            Some(mapped::Fault::ReadOnly(_)) if !writes && has_windows => Err(takes_no_windows()),
            Some(mapped::Fault::ReadOnly(_)) if !writes => Ok(()),
            Some(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    /// Tries the device: it is opened once more, and read and written by windows.
    fn ready_windows(&mut self) -> io::Result<Arc<dyn PeerWindows<MemoryRegion>>> {
        self.in_this_process()?;
        if let Some(windows) = &self.for_peers {
            return Ok(windows.clone());
        }
        if self.on_demand {
            let why = "windows are tried over pinned memory alone: register without `on_demand`";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let calls = calls();
        // SAFETY: the context is open as long as the domain, and these are libibverbs' functions.
        let verdict = unsafe { try_windows(calls, self.domain.context()) };
        let Verdict::Hold { atomics } = verdict else {
            let why = verdict.refusal(self.domain.device()).unwrap_or_default();
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        };
        let (pd, keeps) = (self.domain.protection_domain(), Box::new(self.domain.clone()));
        // SAFETY: the clone of the domain keeps it open until these are dropped.
        let windows = Arc::new(unsafe { DomainWindows::new(calls, pd, atomics, keeps) }?);
        (self.windows, self.for_peers) = (true, Some(windows.clone()));
        Ok(windows)
    }

    /// All, less atomic operations where the device has none.
    fn rights(&self) -> Access {
        self.rights
    }

    fn is_gone(&self) -> bool {
        self.domain.is_gone()
    }

    fn name(&self) -> &'static str {
        "verbs"
    }
}

/// Returns the error where windows were asked for over memory that cannot be written.
fn takes_no_windows() -> io::Error {
    let message = "it is mapped read-only, and peers get windows only over memory that can be written: copy it, or make it writable and \
                   `invalidate` it";
    refusal(message.into())
}

fn refusal(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
