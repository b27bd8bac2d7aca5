//! The domain: registrations of one device, and what its connections have in common.

#![expect(unsafe_code, reason = "the calls of libibverbs")]

use super::address::VerbsAddress;
use super::device::{Able, Device, active_mtu, can_be_opened, device_name};
use super::error::VerbsError;
use super::manager::{Channel, Id, Space, kind, last_error};
use super::{VerbsOptions, ib};
use crate::fabric::attempt::Attempt;
use crate::fabric::traits::Domain;
use crate::wire::Segment;
use mrrc::registrar::verbs::{Attributes, Domain as Opened, MemoryRegion, Verbs};
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, PageRange};
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Registers memory with an RDMA device, and makes connections by it. Clones are the same domain; the last that goes closes it,
/// and each endpoint and listener has one.
#[derive(Clone)]
pub struct VerbsDomain(Arc<Inner>);

struct Inner {
    table: Verbs,
    domain: NonNull<ib::ibv_pd>,
    device: Device,
    able: Able,
    options: VerbsOptions,
    gone: AtomicBool,
    registrations: AtomicUsize,
    process: u32,
}

// SAFETY: calls on domains may be made from any thread (libibverbs' own rule), and what is here besides is as good.
unsafe impl Send for Inner {}
// SAFETY: its fields are pointers that do not change, and libibverbs allows calls on them from any thread.
unsafe impl Sync for Inner {}

impl VerbsDomain {
    /// Returns a domain of the device of this name, as `rdma link show` lists them. Without a name, of the first with a
    /// port that is up.
    ///
    /// # Errors
    /// [`VerbsError`]: no device, none of this name, no port up, no permission.
    pub fn open(device: Option<&str>, options: VerbsOptions) -> Result<Self, VerbsError> {
        // Opened once more than needed, to hear what is wrong with it.
        let builder = Opened::builder();
        let opened = device.map_or(builder.clone(), |name| builder.device(name)).open()?;
        let name = opened.device().to_owned();
        drop(opened);
        Self::of(&name, options)
    }

    /// Returns a domain of the device by which this address is reached, whether it is a peer's or one of this
    /// machine's.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn reaching(address: &str, options: VerbsOptions) -> Result<Self, VerbsError> {
        Self::reached(&address.parse()?, options, &Attempt::new(options.set_up))
    }

    /// The same, as an attempt that can be stopped.
    pub(in crate::fabric) fn reached(
        address: &VerbsAddress,
        options: VerbsOptions,
        attempt: &Attempt,
    ) -> Result<Self, VerbsError> {
        Self::reached_at(address, address.resolve(attempt)?, options, attempt)
    }

    /// The same, of an address that was looked up.
    pub(super) fn reached_at(
        address: &dyn fmt::Display,
        found: Vec<SocketAddr>,
        options: VerbsOptions,
        attempt: &Attempt,
    ) -> Result<Self, VerbsError> {
        if found.iter().any(|found| found.ip().is_unspecified()) {
            return Self::open(None, options);
        }
        let channel = Channel::new().map_err(|error| cannot_manage(address, error))?;
        let mut failed = None;
        let tries = found.len();
        for (nth, found) in found.into_iter().enumerate() {
            match resolved((&channel, Space::Connections), address, found, &attempt.share(tries - nth)) {
                // SAFETY: what an identifier is bound to is open as long as that lives.
                Ok(id) => match NonNull::new(id.context()).map(|context| unsafe { device_name(context) }) {
                    Some(name) => return Self::open(Some(&name), options),
                    None => failed = Some(VerbsError::NoWay { address: address.to_string(), what: "connect" }),
                },
                Err(error) => failed = Some(error),
            }
        }
        // Of a device that may not be opened it says the same as of none.
        Opened::builder().port_may_be_down(true).open()?;
        Err(failed.unwrap_or(VerbsError::NoWay { address: address.to_string(), what: "connect" }))
    }

    fn of(name: &str, options: VerbsOptions) -> Result<Self, VerbsError> {
        let system =
            |what| move |error: io::Error| VerbsError::System { address: format!("the device {name:?}"), what, error };
        let found = Device::find(name).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) if ib::OPENS_AT_RUN_TIME => VerbsError::NoLibrary,
            // It opens all that there are.
            _ => system("have librdmacm open the devices")(error),
        })?;
        let Some(device) = found else {
            return Err(mrrc::registrar::verbs::VerbsError::Gone { device: name.to_owned() }.into());
        };
        // SAFETY: the context is open as long as the device.
        let Some(domain) = NonNull::new(unsafe { ib::ibv_alloc_pd(device.context()) }) else {
            let error = last_error();
            device.give_back(false);
            return Err(system("allocate a protection domain")(error));
        };
        let made = || {
            // SAFETY: it was just allocated, and is freed when nothing is left that uses it.
            let lent = unsafe { Opened::borrow(domain.cast()) }?;
            // SAFETY: `Able::of` requires an open context; the device is held, which keeps it open.
            let able = unsafe { Able::of(device.context(), lent.attributes().transport) };
            let able = able.map_err(system("ask for the limits"))?;
            let table = Verbs::new(&lent)?;
            Ok((if options.windows && able.windows { table.windows() } else { table }, able))
        };
        match made() {
            Ok((table, able)) => {
                let (gone, registrations, process) = (AtomicBool::new(false), AtomicUsize::new(0), std::process::id());
                Ok(Self(Arc::new(Inner { table, domain, device, able, options, gone, registrations, process })))
            }
            Err(error) => {
                // SAFETY: it was allocated above, and nothing is in it.
                unsafe { ib::ibv_dealloc_pd(domain.as_ptr()) };
                device.give_back(false);
                Err(error)
            }
        }
    }

    /// Returns the device's name.
    pub fn device(&self) -> &str {
        self.0.table.domain().device()
    }

    /// Returns the capabilities of the device.
    pub fn attributes(&self) -> Attributes {
        self.0.table.domain().attributes()
    }

    /// Returns the options of its connections.
    pub fn options(&self) -> &VerbsOptions {
        &self.0.options
    }

    /// Returns whether its connections have windows: they were [asked for](VerbsOptions::windows), and the device says that it
    /// has them. [`try_windows`](super::try_windows) finds out their use.
    pub fn has_windows(&self) -> bool {
        self.0.options.windows && self.0.able.windows
    }

    /// Registrations that live, those for the messages of its connections among them.
    pub fn registrations(&self) -> usize {
        self.0.registrations.load(Ordering::Relaxed)
    }

    /// Returns whether the device went away, or is about to and waits for this process. Then what was made over this domain
    /// is to be dropped, the domain as well, and a device opened again.
    pub fn is_gone(&self) -> bool {
        self.0.is_gone()
    }

    /// Returns the limits of the device.
    pub(super) fn able(&self) -> &Able {
        &self.0.able
    }

    /// Returns the most bytes of a datagram through this port.
    pub(super) fn active_mtu(&self, port: u8) -> usize {
        // SAFETY: the context is open as long as the device, which the domain keeps.
        unsafe { active_mtu(self.context(), port) }
    }

    pub(super) fn set_gone(&self) {
        self.0.gone.store(true, Ordering::Relaxed);
    }

    pub(super) fn context(&self) -> *mut ib::ibv_context {
        self.0.device.context()
    }

    pub(super) fn protection_domain(&self) -> *mut ib::ibv_pd {
        self.0.domain.as_ptr()
    }

    /// Returns whether this process, and not its parent, opened it.
    pub(super) fn is_here(&self) -> bool {
        self.0.process == std::process::id()
    }
}

impl Inner {
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed) || !can_be_opened(self.table.domain().device())
    }
}

impl Drop for Inner {
    /// In a child of the process that opened it: does nothing, because the device's file is the parent's as well.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: endpoints and listeners have a clone, so none is left; of what the table may still have registered, the
        // kernel knows.
        unsafe { ib::ibv_dealloc_pd(self.domain.as_ptr()) };
        self.device.give_back(self.is_gone());
    }
}

/// Why librdmacm makes no channel.
pub(super) fn cannot_manage(address: &dyn fmt::Display, error: io::Error) -> VerbsError {
    if let Err(why) = Opened::builder().port_may_be_down(true).open() {
        return why.into();
    }
    if ib::OPENS_AT_RUN_TIME && error.raw_os_error() == Some(libc::EOPNOTSUPP) {
        return VerbsError::NoLibrary;
    }
    let file = PathBuf::from("/dev/infiniband/rdma_cm");
    match OpenOptions::new().read(true).write(true).open(&file) {
        Err(source) => VerbsError::Manager { file, source },
        Ok(_) => VerbsError::System { address: address.to_string(), what: "make an event channel", error },
    }
}

/// Returns an identifier that is bound to the device by which the address is reached.
pub(super) fn resolved(
    (channel, space): (&Channel, Space),
    address: &dyn fmt::Display,
    found: SocketAddr,
    attempt: &Attempt,
) -> Result<Id, VerbsError> {
    let what = "look for the way";
    let failed = |error: io::Error| match error.raw_os_error() {
        // The error of librdmacm for a device that it cannot open.
        Some(libc::ENODEV | libc::EPERM | libc::EADDRNOTAVAIL) => {
            VerbsError::NoWay { address: address.to_string(), what }
        }
        _ => VerbsError::Unreachable { address: address.to_string(), what, error },
    };
    loop {
        let id = Id::new(channel, space).map_err(|error| cannot_manage(address, error))?;
        id.resolve(found, attempt.left().min(ATTEMPT)).map_err(failed)?;
        match channel.wait(attempt) {
            Some(event) if event.kind == kind::RDMA_CM_EVENT_ADDR_RESOLVED => return Ok(id),
            Some(event) if event.status == -libc::ETIMEDOUT && !attempt.is_over() => {}
            Some(event) if event.status != -libc::ETIMEDOUT => return Err(failed(event.error())),
            Some(_) | None => {
                let what = "answer from the network to who has that address";
                return Err(timed_out(address, what, attempt));
            }
        }
    }
}

/// Why there is no connection: nothing came in time.
pub(super) fn timed_out(address: &dyn fmt::Display, what: &'static str, attempt: &Attempt) -> VerbsError {
    VerbsError::TimedOut { doing: "connect to", address: address.to_string(), what, after: attempt.within() }
}

/// How long the kernel is given for one attempt: a question or an answer that is lost is asked again.
const ATTEMPT: Duration = Duration::from_millis(500);

// SAFETY: as mrrc's registrar over the same device, which does everything. The domain outlives it.
unsafe impl Registrar for VerbsDomain {
    type Registration = MemoryRegion;

    fn register(&self, range: PageRange, access: Access) -> io::Result<MemoryRegion> {
        let registration = self.0.table.register(range, access)?;
        self.0.registrations.fetch_add(1, Ordering::Relaxed);
        Ok(registration)
    }

    fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.0.table.probe(range, access)
    }

    fn examine(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.0.table.examine(range, access)
    }

    fn deregister(&self, batch: &mut Vec<Registered<MemoryRegion>>) -> io::Result<()> {
        let before = batch.len();
        let result = self.0.table.deregister(batch);
        self.0.registrations.fetch_sub(before - batch.len(), Ordering::Relaxed);
        result
    }

    fn limits(&self) -> Limits {
        self.0.table.limits()
    }

    fn rights(&self) -> Access {
        self.0.table.rights()
    }

    fn name(&self) -> &'static str {
        self.0.table.name()
    }
}

// SAFETY: the key is the registration's, which opens its bytes and no others.
unsafe impl Domain for VerbsDomain {
    fn remote(&self, registration: &MemoryRegion, address: *const u8, length: usize) -> Segment {
        Segment { address: address as u64, length: length as u64, key: registration.rkey() }
    }
}

impl fmt::Debug for VerbsDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsDomain")
            .field("device", &self.device())
            .field("able", &self.0.able)
            .finish_non_exhaustive()
    }
}
