//! The import into libfabric, and the calls that libfabric makes.
#![expect(unsafe_code, reason = "functions of C's, and libfabric's structures")]

use crate::abi::{CLASS_MEM_MONITOR, Fid, FidMemMonitor, MonitorOps, Notify, Open, VERSION};
use crate::watch::Watching;
use mrrc::PageRange;
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

/// The name that programs are linked with.
const LIBFABRIC: &CStr = c"libfabric.so.1";

/// The variable that names a libfabric that the program opens later.
const LIBRARY: &str = "MRRC_FABRIC_LIBRARY";

/// libfabric's variable. It overrules a monitor that was imported before libfabric's first call.
const MONITOR: &str = "FI_MR_CACHE_MONITOR";

/// Why nothing was imported, as the number that C gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ImportError {
    /// There is no libfabric in the process.
    NoLibfabric,
    /// It could not be opened.
    Library(String),
    /// It has no `fi_open`.
    TooOld,
    /// libfabric's answer, a negative number of an error.
    Refused(c_int),
}

impl ImportError {
    pub(crate) fn code(&self) -> c_int {
        match self {
            Self::NoLibfabric | Self::Library(_) => -libc::ENOENT,
            Self::TooOld => -libc::ENOSYS,
            Self::Refused(code) => *code,
        }
    }
}

impl std::fmt::Display for ImportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoLibfabric => write!(
                f,
                "import a monitor: libfabric.so.1 is not in the process: set {LIBRARY}=libfabric.so.1 if the program opens it later"
            ),
            Self::Library(why) => write!(f, "import a monitor: {LIBRARY}: {why}: give the name of a libfabric.so.1"),
            Self::TooOld => write!(f, "import a monitor: libfabric has no fi_open: use libfabric 1.13 or later"),
            Self::Refused(code) if *code == -libc::EBUSY => write!(
                f,
                "import a monitor: libfabric has another monitor, imported or in use: nothing is done; import before the first domain is \
                 opened, and once"
            ),
            Self::Refused(code) => {
                write!(f, "import a monitor: libfabric refuses it (error {}): use libfabric 1.13 or later", -code)
            }
        }
    }
}

/// The monitor that libfabric gets. libfabric writes to it, so it stays where it is.
struct Exported(UnsafeCell<FidMemMonitor>);

// SAFETY: only libfabric writes to it, during an import; this library reads what was written in calls that libfabric makes later.
unsafe impl Sync for Exported {}

static OPS: MonitorOps = MonitorOps { size: size_of::<MonitorOps>(), start, stop, subscribe, unsubscribe, valid };

static EXPORTED: Exported = Exported(UnsafeCell::new(FidMemMonitor {
    fid: Fid { class: CLASS_MEM_MONITOR, context: null_mut(), ops: null_mut() },
    exported: &raw const OPS,
    imported: null(),
}));

/// The monitor that was started and not stopped.
static WATCHING: Mutex<Option<Arc<Watching>>> = Mutex::new(None);

fn watching() -> Option<Arc<Watching>> {
    WATCHING.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Prints a line on standard error.
fn complain(what: &dyn std::fmt::Display) {
    // A panic would end the program, which may not be able to print.
    let _ = writeln!(std::io::stderr(), "mrrc-fabric: {what}");
}

/// The library is loaded: imports the monitor if there is a libfabric.
pub(crate) fn at_load() {
    if std::env::var_os(MONITOR).is_some_and(|monitor| !monitor.is_empty()) && find_open().is_ok() {
        return complain(&format_args!(
            "import a monitor: {MONITOR} is set, and libfabric takes that one: nothing is done; unset it for mrrc's"
        ));
    }
    match import() {
        Ok(()) | Err(ImportError::NoLibfabric) => {}
        Err(error) => complain(&error),
    }
}

/// Imports the monitor, which becomes libfabric's default.
///
/// # Errors
/// Why nothing was done.
pub(crate) fn import() -> Result<(), ImportError> {
    let open = find_open()?;
    let mut cache: *mut Fid = null_mut();
    // SAFETY: `fi_open` takes a text that ends with 0, no attributes, and a place for its result.
    let code = unsafe { open(VERSION, c"mr_cache".as_ptr(), null_mut(), 0, 0, &raw mut cache, null_mut()) };
    if code != 0 {
        return Err(ImportError::Refused(code));
    }
    // SAFETY: `fi_open` succeeded, so `cache` is libfabric's, with operations that begin as `Ops` does.
    let code = unsafe {
        let ops = &*(*cache).ops;
        // `fi_import_fid` of the header is this call.
        let code = ops.bind.map_or(-libc::ENOSYS, |bind| bind(cache, EXPORTED.0.get().cast(), 0));
        if let Some(close) = ops.close {
            close(cache);
        }
        code
    };
    if code == 0 { Ok(()) } else { Err(ImportError::Refused(code)) }
}

/// Returns `fi_open` of the process's libfabric.
fn find_open() -> Result<Open, ImportError> {
    let wanted = std::env::var_os(LIBRARY).filter(|name| !name.is_empty());
    // SAFETY: the name ends with 0. With `RTLD_NOLOAD` nothing is loaded; else the user has named a library to be loaded.
    let library = unsafe {
        match &wanted {
            None => libc::dlopen(LIBFABRIC.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD),
            Some(name) => {
                let name = CString::new(name.as_bytes()).unwrap_or_default();
                libc::dlopen(name.as_ptr(), libc::RTLD_LAZY)
            }
        }
    };
    if library.is_null() {
        return Err(if wanted.is_some() { ImportError::Library(last_error()) } else { ImportError::NoLibfabric });
    }
    // SAFETY: the handle is open, and the name ends with 0. The handle is never closed: libfabric keeps our functions.
    let found = unsafe { libc::dlsym(library, c"fi_open".as_ptr()) };
    if found.is_null() {
        return Err(ImportError::TooOld);
    }
    // SAFETY: libfabric's `fi_open` has this type.
    Ok(unsafe { std::mem::transmute::<*mut c_void, Open>(found) })
}

fn last_error() -> String {
    // SAFETY: `dlerror` returns null, or a text that ends with 0 and that lives until this thread's next call of `dl…`.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { "not found".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

/// Returns the pages of a range of libfabric's.
fn pages(address: *const c_void, length: usize) -> Option<PageRange> {
    PageRange::of_bytes(address as u64, length as u64).ok()
}

/// libfabric's `notify`, with its argument.
struct Notification {
    notify: Notify,
    monitor: *mut FidMemMonitor,
}

// SAFETY: libfabric's `notify` is for any thread, and the monitor is the static one.
unsafe impl Send for Notification {}

impl Notification {
    fn send(&self, range: PageRange) {
        let start = range.start().saturating_mul(mrrc::PAGE);
        let length = range.pages().saturating_mul(mrrc::PAGE);
        // SAFETY: libfabric imported this monitor, and asks only that its locks are not held: this thread holds none. It takes the
        // range as numbers.
        unsafe { (self.notify)(self.monitor, start as *const c_void, usize::try_from(length).unwrap_or(usize::MAX)) }
    }
}

/// libfabric's first cache begins.
///
/// # Safety
/// `monitor` is the one that was imported.
unsafe extern "C" fn start(monitor: *mut FidMemMonitor) -> c_int {
    // SAFETY: libfabric set the operations when it imported the monitor, and keeps them.
    let notify = unsafe { (*monitor).imported.as_ref().and_then(|ops| ops.notify) };
    let Some(notify) = notify else { return -libc::ENOSYS };
    let notification = Notification { notify, monitor };
    match Watching::start(move |range| notification.send(range)) {
        Ok(watching) => {
            *WATCHING.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(watching));
            0
        }
        Err(error) => {
            complain(&format_args!("watch memory: {error}; libfabric runs without its cache"));
            -error.raw_os_error().unwrap_or(libc::ENOSYS)
        }
    }
}

/// libfabric's last cache is gone.
unsafe extern "C" fn stop(_: *mut FidMemMonitor) {
    let last = WATCHING.lock().unwrap_or_else(PoisonError::into_inner).take();
    // libfabric has no cache, so no other call is under way.
    if let Some(watching) = last.and_then(Arc::into_inner) {
        watching.stop();
    }
}

unsafe extern "C" fn subscribe(_: *mut FidMemMonitor, address: *const c_void, length: usize) -> c_int {
    let is_watched = watching().zip(pages(address, length)).is_some_and(|(watching, range)| watching.subscribe(range));
    // As libfabric's own monitor: the registration is used once and not cached.
    if is_watched { 0 } else { -libc::EFAULT }
}

/// libfabric does not count the users of a range, so it goes on to be watched until it changes.
unsafe extern "C" fn unsubscribe(_: *mut FidMemMonitor, _: *const c_void, _: usize) {}

unsafe extern "C" fn valid(_: *mut FidMemMonitor, address: *const c_void, length: usize) -> bool {
    watching().zip(pages(address, length)).is_some_and(|(watching, range)| watching.is_valid(range))
}
