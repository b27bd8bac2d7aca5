//! UCX's registration cache, `ucs_rcache`, as its own C callers use it.
//!
//! Every call takes its lock (a `pthread_rwlock` in 1.13), so it may be used from any thread. Its memory hooks
//! are off, which is its best case.
#![expect(unsafe_code, reason = "calls into a C library")]

use crate::subject::{Behaviour, Setup, Subject};
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::ptr::{self, NonNull};

/// `ucs_rcache_t`, of which only pointers are held.
#[repr(C)]
struct Rcache {
    _private: [u8; 0],
}

/// `ucs_rcache_region_t`, of which only pointers are held.
#[repr(C)]
struct Region {
    _private: [u8; 0],
}

// In the shim.
unsafe extern "C" {
    fn peer_ucx_create(behaviour: *const Behaviour, most_regions: c_ulong, created: *mut *mut Rcache) -> c_int;
}

// In libucs. The shim asserts the size of the status.
unsafe extern "C" {
    fn ucs_rcache_destroy(rcache: *mut Rcache);
    fn ucs_rcache_get(
        rcache: *mut Rcache,
        address: *mut c_void,
        length: usize,
        prot: c_int,
        arg: *mut c_void,
        region: *mut *mut Region,
    ) -> i8;
    fn ucs_rcache_region_put(rcache: *mut Rcache, region: *mut Region);
    fn ucs_status_string(status: i8) -> *const c_char;
}

/// One cache of UCX.
pub struct Ucx {
    rcache: NonNull<Rcache>,
    /// Boxed: the cache holds its address.
    behaviour: Box<Behaviour>,
}

// SAFETY: ucs_rcache is thread safe ("This data structure is thread safe", rcache.h); the rest is a box of
// atomics and plain numbers that do not change.
unsafe impl Send for Ucx {}
// SAFETY: ucs_rcache is thread safe (rcache.h), and the rest is atomics and numbers that do not change.
unsafe impl Sync for Ucx {}

impl Subject for Ucx {
    fn create(setup: &Setup) -> Result<Option<Self>, String> {
        let behaviour = Box::new(setup.behaviour());
        let mut created = ptr::null_mut();
        // SAFETY: `behaviour` has the layout that the shim declares, and lives in its box until the cache is
        // destroyed; `created` is written by the call.
        let status = unsafe { peer_ucx_create(&raw const *behaviour, setup.most_regions as c_ulong, &raw mut created) };
        match NonNull::new(created) {
            Some(rcache) if status == 0 => Ok(Some(Self { rcache, behaviour })),
            _ => Err(format!("ucs_rcache_create: {}", status_text(status as i8))),
        }
    }

    fn about() -> String {
        format!("UCX {}: ucs_rcache_get and ucs_rcache_region_put, memory hooks off", env!("PEER_UCX_VERSION"))
    }

    #[inline(always)]
    fn touch(&self, address: usize, length: usize) -> bool {
        let rcache = self.rcache.as_ptr();
        let address = ptr::without_provenance_mut(address);
        let mut region = ptr::null_mut();
        // SAFETY: the cache lives; the address is only registered, by callbacks that do not follow it.
        let status = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            ucs_rcache_get(rcache, address, length, rights, ptr::null_mut(), &raw mut region)
        };
        if status != 0 {
            return false;
        }
        // SAFETY: the region came from the call above, and is put once.
        unsafe { ucs_rcache_region_put(rcache, std::hint::black_box(region)) };
        true
    }

    fn behaviour(&self) -> &Behaviour {
        &self.behaviour
    }
}

impl Drop for Ucx {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; no region of it is held, since `touch` puts back each one that it gets.
        unsafe { ucs_rcache_destroy(self.rcache.as_ptr()) };
    }
}

fn status_text(status: i8) -> String {
    // SAFETY: the call returns a string that lives as long as the library, or for unknown codes a buffer of
    // the thread.
    unsafe { CStr::from_ptr(ucs_status_string(status)) }.to_string_lossy().into_owned()
}
