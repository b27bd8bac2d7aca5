//! The few structures of libibverbs that the shim reads or makes: those of memory windows, which the library has declared, and these.
//!
//! All programs read `struct ibv_mr`. Of `struct ibv_pd` only its address and first field are needed here.

pub(crate) use mrrc::registrar::windows::abi::{Context, DeviceAttr, Mr, Opaque, Pd, PortAttr, Qp, QpAttr, flag};
use std::ffi::c_int;

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
