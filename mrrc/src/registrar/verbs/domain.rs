//! A protection domain: a device that is open, and the scope in which its keys are good.
//!
//! Queue pairs and registrations work together only within one domain, so a program has one for both. It is opened
//! here, or lent by the program that has one already. All clones of a [`Domain`] are the same; the last that goes
//! closes it.
#![expect(unsafe_code, reason = "the calls of libibverbs")]

use super::binding as ib;
use super::device::{Attributes, attributes, some_port_is_up};
use super::error::VerbsError;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::fs::{DirEntry, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A protection domain of a device.
///
/// ```no_run
/// use mrrc::registrar::verbs::{Domain, Verbs};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let domain = Domain::first()?; // or Domain::open("mlx5_0")?
/// let cache = mrrc::Cache::builder(Verbs::new(&domain)?).build()?;
/// // … queue pairs in domain.protection_domain() …
/// # Ok(())
/// # }
/// ```
///
/// It must outlive queue pairs and whatever else the program makes in it by pointer.
#[derive(Clone)]
pub struct Domain(Arc<Inner>);

struct Inner {
    context: NonNull<ib::ibv_context>,
    domain: NonNull<ib::ibv_pd>,
    device: String,
    attributes: Attributes,
    /// Whether the context and the domain are to be closed here.
    owned: bool,
    /// The process that opened it: only there is it closed.
    process: u32,
    id: u64,
}

/// Tells domains apart, so that a registration is never taken back from a domain that is not its own.
static DOMAINS: AtomicU64 = AtomicU64::new(0);

// SAFETY: calls on contexts and domains may be made from any thread (libibverbs' own rule), and what is here besides is
// never changed.
unsafe impl Send for Inner {}
// SAFETY: its fields are pointers that do not change, and libibverbs allows calls on them from any thread.
unsafe impl Sync for Inner {}

/// The fate of pinned pages when the process forks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Forks {
    /// The child gets copies of pinned pages at once, and the parent keeps the pinned ones: Linux since 5.12. Unless
    /// something called `ibv_fork_init` all the same (RDMAV_FORK_SAFE in the environment does).
    Copied,
    /// The child does not get pinned pages at all: older kernels, after `ibv_fork_init`.
    Withheld,
    /// The first of the two to write gets a copy: after a fork, a parent may no longer see what its device writes.
    Unsafe,
}

/// The device to open, and how. From [`Domain::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "a builder opens a domain when `open` is called"]
pub struct DomainBuilder {
    device: Option<String>,
    may_be_down: bool,
}

impl DomainBuilder {
    /// Sets the device, by its name, as `rdma link show` lists them. Default: the first that has a port that is up.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Sets whether it is opened though no port is up. Default: no.
    pub fn port_may_be_down(mut self, may: bool) -> Self {
        self.may_be_down = may;
        self
    }

    /// Opens the device and allocates a protection domain.
    ///
    /// Calls `ibv_fork_init` if the kernel does not copy pinned pages for a child (before Linux 5.12), and only then.
    /// On others libibverbs obeys as well, and takes all memory that is registered from every child.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn open(self) -> Result<Domain, VerbsError> {
        let list = List::get()?;
        let names = list.names();
        let Some(asked) = &self.device else {
            let mut first = None;
            for &(ref name, device) in &names {
                match self.open_one(name, device) {
                    Ok(domain) => return Ok(domain),
                    Err(error) => _ = first.get_or_insert(error),
                }
            }
            return Err(first.unwrap_or_else(none_listed));
        };
        match names.iter().find(|(name, _)| name == asked) {
            Some(&(ref name, device)) => self.open_one(name, device),
            None if in_kernel(asked) => Err(VerbsError::NoDriver { device: asked.clone() }),
            None if names.is_empty() => Err(none_listed()),
            None => {
                let found = names.into_iter().map(|(name, _)| name).collect();
                Err(VerbsError::Unknown { asked: asked.clone(), found })
            }
        }
    }

    fn open_one(&self, name: &str, device: NonNull<ib::ibv_device>) -> Result<Domain, VerbsError> {
        prepare_for_forks(name)?;
        // SAFETY: a device of a list that is alive.
        let context = NonNull::new(unsafe { ib::ibv_open_device(device.as_ptr()) }).ok_or_else(|| {
            let source = last_error();
            cannot_open(name, source)
        })?;
        let opened = Opened(context);
        let attributes = attributes(context, name)?;
        if !self.may_be_down {
            some_port_is_up(context, name, attributes.ports)?;
        }
        // SAFETY: `ibv_alloc_pd` requires an open context; `opened` keeps it open.
        let domain =
            NonNull::new(unsafe { ib::ibv_alloc_pd(context.as_ptr()) }).ok_or_else(|| VerbsError::Refused {
                operation: "allocate a protection domain",
                device: name.to_owned(),
                source: last_error(),
            })?;
        std::mem::forget(opened);
        Ok(Domain::of(context, domain, name.to_owned(), attributes, true))
    }
}

impl Domain {
    /// For more than [`Domain::first`] and [`Domain::open`] can say.
    pub fn builder() -> DomainBuilder {
        DomainBuilder::default()
    }

    /// Returns a domain of the first device that has a port that is up.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn first() -> Result<Self, VerbsError> {
        Self::builder().open()
    }

    /// Returns a domain of the device of this name.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn open(device: &str) -> Result<Self, VerbsError> {
        Self::builder().device(device).open()
    }

    /// Returns the domain of a program that has one already: a `struct ibv_pd *`, by whatever binding it came. It is not
    /// closed here, its port is not looked at, and `ibv_fork_init` is the program's to call ([`Domain::forks`] says whether
    /// it did).
    ///
    /// # Errors
    /// See [`VerbsError`]: the device is asked for its limits.
    ///
    /// # Safety
    /// It points to a domain that libibverbs allocated in this process. The domain stays open until all clones of
    /// this and all registrars over it are dropped.
    pub unsafe fn borrow(domain: NonNull<c_void>) -> Result<Self, VerbsError> {
        let domain = domain.cast::<ib::ibv_pd>();
        // SAFETY: the caller promises an open domain; a domain knows its context, and that its device, for as long as
        // it is open.
        let (context, name) = unsafe {
            let context = (*domain.as_ptr()).context;
            let name = CStr::from_ptr(ib::ibv_get_device_name((*context).device));
            (context, name.to_string_lossy().into_owned())
        };
        let Some(context) = NonNull::new(context) else {
            let source = io::Error::from_raw_os_error(libc::EINVAL);
            return Err(VerbsError::Refused { operation: "borrow a protection domain", device: name, source });
        };
        let attributes = attributes(context, &name)?;
        Ok(Self::of(context, domain, name, attributes, false))
    }

    fn of(
        context: NonNull<ib::ibv_context>,
        domain: NonNull<ib::ibv_pd>,
        device: String,
        attributes: Attributes,
        owned: bool,
    ) -> Self {
        let (process, id) = (std::process::id(), DOMAINS.fetch_add(1, Ordering::Relaxed));
        Self(Arc::new(Inner { context, domain, device, attributes, owned, process, id }))
    }

    /// Returns the `struct ibv_pd *`, for queue pairs and memory windows. Alive as long as this or a clone of it.
    pub fn protection_domain(&self) -> NonNull<c_void> {
        self.0.domain.cast()
    }

    /// Returns the `struct ibv_context *`, for completion queues. Alive as long as this or a clone of it.
    pub fn context(&self) -> NonNull<c_void> {
        self.0.context.cast()
    }

    /// Returns the device's name.
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// Returns the capabilities of the device.
    pub fn attributes(&self) -> Attributes {
        self.0.attributes
    }

    /// Returns the fate of pinned pages when this process forks.
    pub fn forks(&self) -> Forks {
        forks()
    }

    /// Returns whether the device went away. Asks the kernel, so it is for when a call has failed.
    pub fn is_gone(&self) -> bool {
        !in_kernel(&self.0.device)
    }

    /// Returns whether this process opened or borrowed it, and not one that it was forked from.
    pub(super) fn is_ours(&self) -> bool {
        self.0.process == std::process::id()
    }

    pub(super) fn raw(&self) -> *mut ib::ibv_pd {
        self.0.domain.as_ptr()
    }

    /// No other has had it.
    pub(super) fn id(&self) -> u64 {
        self.0.id
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({}{})", self.0.device, if self.0.owned { "" } else { ", borrowed" })
    }
}

/// Closes what was opened. Objects still in the domain, queue pairs or registrations of others, keep libibverbs from
/// freeing it. They do not keep the kernel from taking all of it back with the context. In a child of the process
/// that opened it: does nothing, because the device's file is the parent's as well.
impl Drop for Inner {
    fn drop(&mut self) {
        if !self.owned || self.process != std::process::id() {
            return;
        }
        // SAFETY: both are open, and were opened here; no clone is left, so they have no user.
        unsafe {
            ib::ibv_dealloc_pd(self.domain.as_ptr());
            ib::ibv_close_device(self.context.as_ptr());
        }
    }
}

fn forks() -> Forks {
    // SAFETY: `ibv_is_fork_initialized` takes no arguments and passes no memory.
    match unsafe { ib::ibv_is_fork_initialized() } {
        ib::IBV_FORK_UNNEEDED => Forks::Copied,
        ib::IBV_FORK_ENABLED => Forks::Withheld,
        _ => Forks::Unsafe,
    }
}

fn prepare_for_forks(device: &str) -> Result<(), VerbsError> {
    if forks() != Forks::Unsafe {
        return Ok(());
    }
    // SAFETY: `ibv_fork_init` takes no arguments and passes no memory.
    match unsafe { ib::ibv_fork_init() } {
        0 => Ok(()),
        code => {
            let source = io::Error::from_raw_os_error(code);
            Err(VerbsError::Fork { device: device.to_owned(), source })
        }
    }
}

/// A context that is closed unless it is forgotten.
struct Opened(NonNull<ib::ibv_context>);

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it was opened, and nothing was made in it.
        unsafe { ib::ibv_close_device(self.0.as_ptr()) };
    }
}

/// libibverbs' list of devices.
struct List {
    first: NonNull<*mut ib::ibv_device>,
    count: usize,
}

impl List {
    fn get() -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: `count` is a local integer that the call may write.
        let first = NonNull::new(unsafe { ib::ibv_get_device_list(&mut count) });
        if let Some(first) = first {
            return Ok(Self { first, count: count.max(0) as usize });
        }
        let source = last_error();
        Err(match source.raw_os_error() {
            Some(libc::EOPNOTSUPP) if ib::OPENS_AT_RUN_TIME => VerbsError::NoLibrary,
            Some(libc::ENOSYS | libc::ENOENT) => none_listed(),
            _ => VerbsError::Refused { operation: "list the devices, to open one", device: "any".into(), source },
        })
    }

    /// Returns the devices, valid as long as the list.
    fn names(&self) -> Vec<(String, NonNull<ib::ibv_device>)> {
        // SAFETY: libibverbs returned so many pointers, and they are freed with the list.
        let devices = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) };
        let devices = devices.iter().filter_map(|&device| NonNull::new(device));
        // SAFETY: devices of a list that is alive have names that end.
        let name = |device: NonNull<_>| unsafe { CStr::from_ptr(ib::ibv_get_device_name(device.as_ptr())) };
        devices.map(|device| (name(device).to_string_lossy().into_owned(), device)).collect()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it came from libibverbs, and is freed once.
        unsafe { ib::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// Returns the error where libibverbs lists nothing.
fn none_listed() -> VerbsError {
    let in_kernel = std::fs::read_dir(CLASS).ok().and_then(|mut entries| entries.next()?.ok());
    match in_kernel {
        Some(device) => VerbsError::NoDriver { device: device.file_name().to_string_lossy().into_owned() },
        None => VerbsError::NoDevice,
    }
}

const CLASS: &str = "/sys/class/infiniband";

/// Returns whether the kernel has a device of this name.
fn in_kernel(name: &str) -> bool {
    Path::new(CLASS).join(name).exists()
}

/// Why a context does not open. libibverbs looks for other names of a file that it may not open, and says that there are none.
fn cannot_open(name: &str, source: io::Error) -> VerbsError {
    let device = name.to_owned();
    let Some(file) = device_file(name) else {
        return VerbsError::Refused { operation: "open the context", device, source };
    };
    match OpenOptions::new().read(true).write(true).open(&file) {
        Err(source) if matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) => {
            VerbsError::Permission { device, file, source }
        }
        _ => VerbsError::Refused { operation: "open the context", device, source },
    }
}

/// Returns the file by which programs reach a device.
fn device_file(name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir("/sys/class/infiniband_verbs").ok()?.filter_map(Result::ok);
    let named =
        |entry: &DirEntry| std::fs::read_to_string(entry.path().join("ibdev")).is_ok_and(|text| text.trim() == name);
    Some(Path::new("/dev/infiniband").join(entries.into_iter().find(named)?.file_name()))
}

/// Returns the error that libibverbs left in `errno`. Where it left nothing, that the kernel has nothing of the kind.
pub(super) fn last_error() -> io::Error {
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(0) { io::Error::from_raw_os_error(libc::ENODEV) } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_device_error_names_remedy() {
        let error = Domain::open("no such device").unwrap_err();
        let text = error.to_string();
        assert!(["rdma link add", "libibverbs1"].iter().any(|remedy| text.contains(remedy)), "{text}");
    }
}
