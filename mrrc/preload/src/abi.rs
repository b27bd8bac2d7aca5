//! The few structures of libibverbs that the shim reads or makes, declared by hand.
//!
//! A binding would be made from headers by libclang, and link or open libibverbs. The shim must build without either,
//! and has no business in programs that do not load libibverbs. This part has been the same in every libibverbs since
//! version 1.1 of its interface (2007), because programs are compiled against it. All of them read `struct ibv_mr`.
//! Of `struct ibv_pd` and `struct ibv_context` only addresses and the first field are needed here.

use std::ffi::{c_int, c_void};

/// `struct ibv_context`: only its address is used.
#[repr(C)]
pub(crate) struct Context {
    _device: *mut c_void,
}

/// Structures of libibverbs that are only passed on.
pub(crate) enum Opaque {}

/// `struct ibv_pd`, as far as it is read.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) context: *mut Context,
}

/// `struct ibv_mr`: all of it, because programs read all of it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Mr {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// The fields behind an `ibv_mr` that libibverbs' own functions and drivers read (`struct verbs_mr`, since rdma-core
/// 20): `mlx5_bind_mw` reads the first. Drivers' structures go on behind that; zeros there say "nothing special".
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MrTail {
    /// `IBV_MR_TYPE_MR` is 0.
    pub(crate) kind: u32,
    pub(crate) access: c_int,
    pub(crate) drivers: [u64; 12],
}

/// `struct ibv_device_attr`, as far as it is read, with room for all of it and for what may follow.
#[repr(C)]
pub(crate) struct DeviceAttr {
    _firmware: [u8; 64],
    _guids: [u64; 2],
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    _numbers: [u32; 10],
    pub(crate) max_mr: c_int,
    _rest: [u32; 128],
}

const _: () = {
    assert!(size_of::<Mr>() == 5 * size_of::<usize>() + 8 || size_of::<usize>() != 8);
    assert!(size_of::<usize>() != 8 || (std::mem::offset_of!(Mr, lkey) == 36 && size_of::<Mr>() == 48));
    assert!(std::mem::offset_of!(DeviceAttr, max_mr_size) == 80);
    assert!(std::mem::offset_of!(DeviceAttr, max_mr) == 136);
};

/// `enum ibv_access_flags`.
pub(crate) mod flag {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    pub(crate) const REMOTE_READ: u32 = 1 << 2;
    pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(crate) const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
    /// The first of the optional ones, which libibverbs drops where the kernel does not know them.
    pub(crate) const RELAXED_ORDERING: u32 = 1 << 20;
}

/// `enum ibv_rereg_mr_flags`.
pub(crate) mod rereg {
    use std::ffi::c_int;
    pub(crate) const CHANGE_ACCESS: c_int = 1 << 2;
    /// `IBV_REREG_MR_ERR_INPUT`: the old region is valid.
    pub(crate) const ERR_INPUT: c_int = -1;
    /// `IBV_REREG_MR_ERR_DO_FORK_OLD`: the new region is valid.
    pub(crate) const ERR_DO_FORK_OLD: c_int = -3;
    /// `IBV_REREG_MR_ERR_CMD`: the command failed.
    pub(crate) const ERR_CMD: c_int = -4;
}

/// The answer of `ibv_is_fork_initialized` where children find no registered memory.
pub(crate) const FORK_ENABLED: c_int = 1;
