//! The functions of libibverbs that windows take.

use super::abi::{Context, DeviceAttr, Mr, Opaque, Pd, PortAttr, Qp, QpAttr};
use std::ffi::{c_int, c_void};

/// Functions of libibverbs, as the caller found them: linked, opened at run time, or the next behind an interposer.
///
/// Those that older versions lack may be missing. Without them there are no windows.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "each is libibverbs' function of that name")]
pub struct Calls {
    pub reg_mr: unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr,
    pub dereg_mr: unsafe extern "C" fn(*mut Mr) -> c_int,
    pub alloc_pd: unsafe extern "C" fn(*mut Context) -> *mut Pd,
    pub dealloc_pd: unsafe extern "C" fn(*mut Pd) -> c_int,
    pub close_device: unsafe extern "C" fn(*mut Context) -> c_int,
    pub create_qp: Option<unsafe extern "C" fn(*mut Pd, *mut Opaque) -> *mut Opaque>,
    pub create_cq: Option<unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut Opaque, c_int) -> *mut Opaque>,
    pub destroy_cq: Option<unsafe extern "C" fn(*mut Opaque) -> c_int>,
    pub destroy_qp: Option<unsafe extern "C" fn(*mut Qp) -> c_int>,
    pub modify_qp: Option<unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int>,
    pub query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int>,
    pub query_gid: Option<unsafe extern "C" fn(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int>,
    pub open_device: Option<unsafe extern "C" fn(*mut Opaque) -> *mut Context>,
    pub query_device: Option<unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int>,
}
