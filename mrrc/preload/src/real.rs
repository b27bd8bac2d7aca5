//! The functions that are interposed, as libibverbs has them.
//!
//! They are found at the first call, not at load: many programs never make one. The next function in the order of loading is
//! asked first, so that other interposers go on to see the real calls. But a program may load libibverbs late and for a
//! plug-in of its own (`RTLD_LOCAL`). Then it is in no search order, and is asked by name. A reference to it is kept for
//! good: registrations that are cached are taken back by its code, also after the program has closed it.
#![expect(unsafe_code, reason = "the dynamic linker is asked for functions")]

use crate::abi::{Context, DeviceAttr, Mr, Opaque, Pd, PortAttr, Qp, QpAttr};
use crate::symbols;
use mrrc::registrar::windows::Calls;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

type RegMr = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
type RegMrIova = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, u64, c_int) -> *mut Mr;
type RegMrIova2 = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr;
type ReregMr = unsafe extern "C" fn(*mut Mr, c_int, *mut Pd, *mut c_void, usize, c_int) -> c_int;

type CreateQp = unsafe extern "C" fn(*mut Pd, *mut Opaque) -> *mut Opaque;
type CreateCq = unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut Opaque, c_int) -> *mut Opaque;

/// libibverbs' functions. Older ones lack some.
pub(crate) struct Real {
    pub(crate) reg_mr: RegMr,
    pub(crate) reg_mr_iova: Option<RegMrIova>,
    pub(crate) reg_mr_iova2: Option<RegMrIova2>,
    pub(crate) rereg_mr: Option<ReregMr>,
    pub(crate) dereg_mr: unsafe extern "C" fn(*mut Mr) -> c_int,
    pub(crate) alloc_pd: unsafe extern "C" fn(*mut Context) -> *mut Pd,
    pub(crate) dealloc_pd: unsafe extern "C" fn(*mut Pd) -> c_int,
    pub(crate) close_device: unsafe extern "C" fn(*mut Context) -> c_int,
    pub(crate) create_qp: Option<CreateQp>,
    pub(crate) create_cq: Option<CreateCq>,
    pub(crate) destroy_cq: Option<unsafe extern "C" fn(*mut Opaque) -> c_int>,
    pub(crate) destroy_qp: Option<unsafe extern "C" fn(*mut Qp) -> c_int>,
    pub(crate) modify_qp: Option<unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int>,
    pub(crate) query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int>,
    pub(crate) query_gid: Option<unsafe extern "C" fn(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int>,
    pub(crate) open_device: Option<unsafe extern "C" fn(*mut Opaque) -> *mut Context>,
    pub(crate) device_name: Option<unsafe extern "C" fn(*mut Opaque) -> *const c_char>,
    pub(crate) query_device: Option<unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int>,
    pub(crate) fork_init: Option<unsafe extern "C" fn() -> c_int>,
    pub(crate) is_fork_initialized: Option<unsafe extern "C" fn() -> c_int>,
}

impl Real {
    /// Returns the functions that windows take.
    pub(crate) fn of_windows(&self) -> Calls {
        Calls {
            reg_mr: self.reg_mr,
            dereg_mr: self.dereg_mr,
            alloc_pd: self.alloc_pd,
            dealloc_pd: self.dealloc_pd,
            close_device: self.close_device,
            create_qp: self.create_qp,
            create_cq: self.create_cq,
            destroy_cq: self.destroy_cq,
            destroy_qp: self.destroy_qp,
            modify_qp: self.modify_qp,
            query_port: self.query_port,
            query_gid: self.query_gid,
            open_device: self.open_device,
            query_device: self.query_device,
        }
    }
}

/// Two threads may look at once: then one finding is leaked. No lock, which a fork could leave taken.
static FOUND: AtomicPtr<Real> = AtomicPtr::new(std::ptr::null_mut());

/// None as long as no libibverbs is loaded.
pub(crate) fn real() -> Option<&'static Real> {
    // SAFETY: null, or leaked below and never changed.
    if let Some(found) = unsafe { FOUND.load(Ordering::Acquire).as_ref() } {
        return Some(found);
    }
    let found = Box::leak(Box::new(find()?));
    FOUND.store(found, Ordering::Release);
    Some(found)
}

fn find() -> Option<Real> {
    let library = library();
    macro_rules! function {
        ($name:literal, $version:literal) => {
            // SAFETY: libibverbs' function of this name and version has the type of the field that it goes to.
            unsafe { std::mem::transmute_copy(&symbol(library, $name, $version)) }
        };
    }
    // All of those have been there since version 1.1.
    for name in [c"ibv_reg_mr", c"ibv_dereg_mr", c"ibv_alloc_pd", c"ibv_dealloc_pd", c"ibv_close_device"] {
        if symbol(library, name, c"IBVERBS_1.1").is_null() {
            return None;
        }
    }
    Some(Real {
        reg_mr: function!(c"ibv_reg_mr", c"IBVERBS_1.1"),
        reg_mr_iova: function!(c"ibv_reg_mr_iova", c"IBVERBS_1.7"),
        reg_mr_iova2: function!(c"ibv_reg_mr_iova2", c"IBVERBS_1.8"),
        rereg_mr: function!(c"ibv_rereg_mr", c"IBVERBS_1.1"),
        dereg_mr: function!(c"ibv_dereg_mr", c"IBVERBS_1.1"),
        alloc_pd: function!(c"ibv_alloc_pd", c"IBVERBS_1.1"),
        dealloc_pd: function!(c"ibv_dealloc_pd", c"IBVERBS_1.1"),
        close_device: function!(c"ibv_close_device", c"IBVERBS_1.1"),
        create_qp: function!(c"ibv_create_qp", c"IBVERBS_1.1"),
        create_cq: function!(c"ibv_create_cq", c"IBVERBS_1.1"),
        destroy_cq: function!(c"ibv_destroy_cq", c"IBVERBS_1.1"),
        destroy_qp: function!(c"ibv_destroy_qp", c"IBVERBS_1.1"),
        modify_qp: function!(c"ibv_modify_qp", c"IBVERBS_1.1"),
        query_port: function!(c"ibv_query_port", c"IBVERBS_1.1"),
        query_gid: function!(c"ibv_query_gid", c"IBVERBS_1.1"),
        open_device: function!(c"ibv_open_device", c"IBVERBS_1.1"),
        device_name: function!(c"ibv_get_device_name", c"IBVERBS_1.1"),
        query_device: function!(c"ibv_query_device", c"IBVERBS_1.1"),
        fork_init: function!(c"ibv_fork_init", c"IBVERBS_1.1"),
        is_fork_initialized: function!(c"ibv_is_fork_initialized", c"IBVERBS_1.13"),
    })
}

/// libibverbs, if it is loaded: by its name, or by that under which a package has brought it along.
fn library() -> *mut c_void {
    // SAFETY: a name that ends; nothing is loaded that is not loaded already. Never closed: that is the reference.
    let open = |name: &CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    let library = open(c"libibverbs.so.1");
    if !library.is_null() {
        return library;
    }
    unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: the dynamic linker's, for this call: a text that ends, if there is one; and what is passed below.
        unsafe {
            let name = (*object).dlpi_name;
            if name.is_null() || !symbols::names_libibverbs(CStr::from_ptr(name)) {
                return 0;
            }
            *found.cast::<Option<CString>>() = Some(CStr::from_ptr(name).to_owned());
            1
        }
    }
    let mut found: Option<CString> = None;
    // SAFETY: the callback takes what is passed. It is opened afterwards: in there a lock is held that opening takes second.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found.map_or(std::ptr::null_mut(), |name| open(&name))
}

/// Returns the next symbol in the order of loading, without a version: libibverbs answers with its newest, and other
/// interposers have none. If there is none, libibverbs is asked for `version`.
fn symbol(library: *mut c_void, name: &CStr, version: &CStr) -> *mut c_void {
    let ask = |handle: *mut c_void, version: *const c_char| {
        // SAFETY: a handle of the dynamic linker's, and texts that end.
        unsafe { symbols::ask(handle, name.as_ptr(), version) }
    };
    let mut found = ask(libc::RTLD_NEXT, std::ptr::null());
    if found.is_null() && !library.is_null() {
        found = ask(library, version.as_ptr());
    }
    if found.is_null() && !library.is_null() {
        // One without versions.
        found = ask(library, std::ptr::null());
    }
    found
}
