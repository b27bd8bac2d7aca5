//! MPI's own functions, behind those of this library.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of MPI, looked up when it is first called.
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    /// Of this name.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the address. A program that calls what its MPI does not have is ended, as the linker would have.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look() } else { found }
    }

    #[cold]
    fn look(&self) -> *mut c_void {
        let found = find(self.name);
        if found.is_null() {
            let name = self.name.to_string_lossy();
            let _ = writeln!(
                std::io::stderr(),
                "libtraces_mpi: {name}: no MPI that is loaded has it: is the program linked with another?"
            );
            std::process::exit(127);
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Returns a symbol behind this library's own; null if there is none.
pub(crate) fn find(name: &CStr) -> *mut c_void {
    #[expect(unsafe_code, reason = "the linker's functions")]
    // SAFETY: each name ends with a zero, and the handles are those of the dynamic linker.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if !next.is_null() {
            return next;
        }
        // An extension of Python, for one, brings its MPI along where a search does not go.
        match local_library() {
            Some(library) => libc::dlsym(library.0, name.as_ptr()),
            None => std::ptr::null_mut(),
        }
    }
}

/// An MPI that was loaded for one user alone.
struct Library(*mut c_void);

#[expect(unsafe_code, reason = "a handle")]
// SAFETY: the linker's functions take its handles in any thread.
unsafe impl Send for Library {}
#[expect(unsafe_code, reason = "a handle")]
// SAFETY: handles and addresses of a library belong to no thread.
unsafe impl Sync for Library {}

fn local_library() -> Option<&'static Library> {
    static FOUND: OnceLock<Option<Library>> = OnceLock::new();
    #[expect(unsafe_code, reason = "the linker's functions")]
    let look = || {
        let mut names: Vec<CString> = Vec::new();
        // SAFETY: the function below takes a pointer to a list, which lives through the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut names).cast()) };
        // Opened afterwards: in there a lock is held that opening takes second.
        names.into_iter().find_map(|name| {
            // SAFETY: names end with a zero, and nothing is loaded that is not loaded already.
            unsafe {
                let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
                let has_it = !library.is_null() && !libc::dlsym(library, c"PMPI_Type_size".as_ptr()).is_null();
                has_it.then_some(Library(library))
            }
        })
    };
    FOUND.get_or_init(look).as_ref()
}

/// Notes the names of loaded libraries that may be an MPI.
#[expect(unsafe_code, reason = "called by the linker")]
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: libc::size_t, names: *mut c_void) -> c_int {
    // SAFETY: the linker passes a structure whose name, if it has one, ends with a zero, and the pointer that it was given.
    unsafe {
        let name: *const c_char = (*info).dlpi_name;
        if name.is_null() {
            return 0;
        }
        let name = CStr::from_ptr(name);
        let path = name.to_bytes();
        let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        if file.starts_with(b"libmpi") {
            (*names.cast::<Vec<CString>>()).push(name.to_owned());
        }
        0
    }
}
