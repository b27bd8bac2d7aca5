//! The structures of libibverbs that windows take, declared by hand.
//!
//! A binding would be made from headers by libclang, and link or open libibverbs. The shim that is preloaded must build without
//! either. This part has been the same in every libibverbs since version 1.1 of its interface (2007), because programs are compiled
//! against it. Memory windows take the table of calls in `struct ibv_context`, which libibverbs' own header calls by their places,
//! and some structures of queue pairs.

#![allow(missing_debug_implementations, reason = "plain structures of C")]

use std::ffi::{c_int, c_void};

/// `struct ibv_context`, as far as it is read.
#[repr(C)]
pub struct Context {
    pub device: *mut Opaque,
    pub ops: Ops,
}

/// `struct ibv_context_ops`, as far as it is called. The others are named by their number.
#[repr(C)]
pub struct Ops {
    _0: [*mut c_void; 7],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_int) -> *mut Mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    _10: *mut c_void,
    pub poll_cq: Option<unsafe extern "C" fn(*mut Opaque, c_int, *mut Wc) -> c_int>,
    _12: [*mut c_void; 13],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    _26: [*mut c_void; 6],
}

/// `IBV_MW_TYPE_1`: a window that belongs to a domain, and to no queue pair.
pub const TYPE_1: c_int = 1;

/// `struct ibv_mw`.
#[repr(C)]
pub struct Mw {
    _context: *mut Context,
    _pd: *mut Pd,
    pub rkey: u32,
    _handle: u32,
    _kind: c_int,
}

/// `struct ibv_mw_bind`, with `struct ibv_mw_bind_info` in it.
#[repr(C)]
pub struct MwBind {
    pub wr_id: u64,
    pub send_flags: u32,
    pub mr: *mut Mr,
    pub addr: u64,
    pub length: u64,
    pub access: u32,
}

/// `struct ibv_qp`, as far as it is read.
#[repr(C)]
pub struct Qp {
    _context: *mut Context,
    _of_program: *mut c_void,
    _pd: *mut Pd,
    _queues: [*mut Opaque; 3],
    _handle: u32,
    pub qp_num: u32,
}

/// `struct ibv_qp_init_attr`, with `struct ibv_qp_cap` in it.
#[repr(C)]
pub struct QpInit {
    pub of_program: *mut c_void,
    pub send_cq: *mut Opaque,
    pub recv_cq: *mut Opaque,
    pub srq: *mut Opaque,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub kind: c_int,
    pub sq_sig_all: c_int,
}

/// `IBV_QPT_RC`.
pub const RC: c_int = 2;

/// `struct ibv_ah_attr`, with `struct ibv_global_route` in it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct AhAttr {
    pub gid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`, with room for what may follow.
#[repr(C)]
pub struct QpAttr {
    pub state: c_int,
    _cur_state: c_int,
    pub path_mtu: c_int,
    _path_mig_state: c_int,
    _qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub access: u32,
    _cap: [u32; 5],
    pub ah_attr: AhAttr,
    _alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    _alt_pkey_index: u16,
    _en_sqd_async_notify: u8,
    _sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    _alt: [u8; 2],
    _rest: [u32; 16],
}

/// States of queue pairs (`enum ibv_qp_state`).
pub mod state {
    use std::ffi::c_int;
    pub const INIT: c_int = 1;
    pub const RTR: c_int = 2;
    pub const RTS: c_int = 3;
}

/// `enum ibv_qp_attr_mask`: what each step of connecting a queue pair sets.
pub mod step {
    use std::ffi::c_int;
    /// The state, the rights of peers, the partition and the port.
    pub const INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
    /// The state, the path, its packets, the other end, the first number, and how much is read at once.
    pub const RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
    /// The state, the time-out and the retries, how much is read at once, and the first number.
    pub const RTS: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
}

/// `struct ibv_port_attr`, as far as it is read, with room for what may follow.
#[repr(C)]
pub struct PortAttr {
    pub state: c_int,
    _max_mtu: c_int,
    _active_mtu: c_int,
    pub gid_tbl_len: c_int,
    _numbers: [u32; 4],
    _pkey_tbl_len: u16,
    pub lid: u16,
    _sm_lid: u16,
    _bytes: [u8; 8],
    pub link_layer: u8,
    _rest: [u32; 32],
}

/// `IBV_PORT_ACTIVE`.
pub const PORT_ACTIVE: c_int = 4;
/// `IBV_LINK_LAYER_INFINIBAND`.
pub const LINK_INFINIBAND: u8 = 1;

/// `struct ibv_wc`.
#[repr(C)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    _rest: [u32; 9],
}

/// Statuses of completions (`enum ibv_wc_status`).
pub mod status {
    use std::ffi::c_int;
    pub const SUCCESS: c_int = 0;
    pub const REM_ACCESS_ERR: c_int = 10;
}

/// `struct ibv_sge`.
#[repr(C)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_send_wr` of an access to a peer's memory, with room for all of it.
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: u32,
    _imm_data: u32,
    pub remote_addr: u64,
    /// `rkey` of reads and writes, and half of an atomic operation's first operand.
    pub rkey: u32,
    _operand: u32,
    _swap: u64,
    pub atomic_rkey: u32,
    _rest: [u32; 15],
}

/// Operations of [`SendWr`] (`enum ibv_wr_opcode`).
pub mod opcode {
    use std::ffi::c_int;
    pub const WRITE: c_int = 0;
    pub const READ: c_int = 4;
    pub const FETCH_AND_ADD: c_int = 6;
}

/// `IBV_SEND_SIGNALED`.
pub const SIGNALED: u32 = 1 << 1;

/// Structures of libibverbs that are only passed on.
pub enum Opaque {}

/// `struct ibv_pd`, as far as it is read.
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
}

/// `struct ibv_mr`: all of it, because programs read all of it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_device_attr`, as far as it is read, with room for all of it and for what may follow.
#[repr(C)]
pub struct DeviceAttr {
    _firmware: [u8; 64],
    _guids: [u64; 2],
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    _numbers: [u32; 10],
    pub max_mr: c_int,
    _resources: [u32; 6],
    /// `IBV_ATOMIC_NONE` is 0.
    pub atomic_cap: c_int,
    _rest: [u32; 121],
}

const _: () = {
    assert!(size_of::<Mr>() == 5 * size_of::<usize>() + 8 || size_of::<usize>() != 8);
    assert!(size_of::<usize>() != 8 || (std::mem::offset_of!(Mr, lkey) == 36 && size_of::<Mr>() == 48));
    assert!(std::mem::offset_of!(DeviceAttr, max_mr_size) == 80);
    assert!(std::mem::offset_of!(DeviceAttr, max_mr) == 136);
    assert!(std::mem::offset_of!(DeviceAttr, atomic_cap) == 164);
    assert!(std::mem::offset_of!(PortAttr, lid) == 34 && std::mem::offset_of!(PortAttr, link_layer) == 46);
    assert!(std::mem::offset_of!(QpAttr, port_num) == 129 && size_of::<AhAttr>() == 32);
    assert!(size_of::<usize>() != 8 || std::mem::offset_of!(Context, ops.post_send) == 8 * 26);
    assert!(size_of::<usize>() != 8 || (size_of::<QpInit>() == 64 && std::mem::offset_of!(Qp, qp_num) == 52));
    assert!(size_of::<usize>() != 8 || (size_of::<SendWr>() == 128 && std::mem::offset_of!(SendWr, rkey) == 48));
    assert!(size_of::<Wc>() == 48 && (size_of::<usize>() != 8 || std::mem::offset_of!(MwBind, access) == 40));
};

/// `enum ibv_access_flags`.
pub mod flag {
    pub const LOCAL_WRITE: u32 = 1;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    pub const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
    pub const MW_BIND: u32 = 1 << 4;
    /// The first of the optional ones, which libibverbs drops where the kernel does not know them.
    pub const RELAXED_ORDERING: u32 = 1 << 20;
}
