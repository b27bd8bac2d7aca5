//! libfabric's structures for imported monitors, as `rdma/fabric.h` and `rdma/fi_ext.h` have them since libfabric 1.13.
//!
//! They are written by hand: the library is built without libfabric's headers, and finds libfabric when it runs.

use std::ffi::{c_char, c_int, c_void};

/// `FI_CLASS_MEM_MONITOR`.
pub(crate) const CLASS_MEM_MONITOR: usize = 23;

/// `FI_VERSION(1, 13)`: the first with monitors that are imported.
pub(crate) const VERSION: u32 = 1 << 16 | 13;

/// `fi_open`.
pub(crate) type Open = unsafe extern "C" fn(
    version: u32,
    name: *const c_char,
    attributes: *mut c_void,
    length: usize,
    flags: u64,
    fid: *mut *mut Fid,
    context: *mut c_void,
) -> c_int;

/// `struct fid`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Fid {
    pub(crate) class: usize,
    pub(crate) context: *mut c_void,
    pub(crate) ops: *mut Ops,
}

/// The beginning of `struct fi_ops`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ops {
    pub(crate) size: usize,
    pub(crate) close: Option<unsafe extern "C" fn(*mut Fid) -> c_int>,
    pub(crate) bind: Option<unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int>,
}

/// `struct fi_ops_mem_monitor`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MonitorOps {
    pub(crate) size: usize,
    pub(crate) start: unsafe extern "C" fn(*mut FidMemMonitor) -> c_int,
    pub(crate) stop: unsafe extern "C" fn(*mut FidMemMonitor),
    pub(crate) subscribe: unsafe extern "C" fn(*mut FidMemMonitor, *const c_void, usize) -> c_int,
    pub(crate) unsubscribe: unsafe extern "C" fn(*mut FidMemMonitor, *const c_void, usize),
    pub(crate) valid: unsafe extern "C" fn(*mut FidMemMonitor, *const c_void, usize) -> bool,
}

/// `notify`, of `struct fi_ops_mem_notify`.
pub(crate) type Notify = unsafe extern "C" fn(*mut FidMemMonitor, *const c_void, usize);

/// `struct fi_ops_mem_notify`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct NotifyOps {
    pub(crate) size: usize,
    pub(crate) notify: Option<Notify>,
}

/// `struct fid_mem_monitor`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct FidMemMonitor {
    pub(crate) fid: Fid,
    pub(crate) exported: *const MonitorOps,
    pub(crate) imported: *const NotifyOps,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_header() {
        assert_eq!([size_of::<Fid>(), size_of::<MonitorOps>(), size_of::<FidMemMonitor>()], [24, 48, 40]);
    }
}
