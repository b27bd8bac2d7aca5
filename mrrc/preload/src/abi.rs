//! The few structures of libibverbs that the shim reads or makes, declared by hand.
//!
//! A binding would be made from headers by libclang, and link or open libibverbs. The shim must build without either,
//! and has no business in programs that do not load libibverbs. This part has been the same in every libibverbs since
//! version 1.1 of its interface (2007), because programs are compiled against it. All of them read `struct ibv_mr`.
//! Of `struct ibv_pd` only its address and first field are needed here. Memory windows take the table of calls in
//! `struct ibv_context`, which libibverbs' own header calls by their places, and some structures of queue pairs.

use std::ffi::{c_int, c_void};

/// `struct ibv_context`, as far as it is read.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Opaque,
    pub(crate) calls: Calls,
}

/// `struct ibv_context_ops`, as far as it is called. The others are named by their number.
#[repr(C)]
pub(crate) struct Calls {
    _0: [*mut c_void; 7],
    pub(crate) alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_int) -> *mut Mw>,
    pub(crate) bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
    pub(crate) dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    _10: *mut c_void,
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut Opaque, c_int, *mut Wc) -> c_int>,
    _12: [*mut c_void; 13],
    pub(crate) post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    _26: [*mut c_void; 6],
}

/// `IBV_MW_TYPE_1`: a window that belongs to a domain, and to no queue pair.
pub(crate) const TYPE_1: c_int = 1;

/// `struct ibv_mw`.
#[repr(C)]
pub(crate) struct Mw {
    _context: *mut Context,
    _pd: *mut Pd,
    pub(crate) rkey: u32,
    _handle: u32,
    _kind: c_int,
}

/// `struct ibv_mw_bind`, with `struct ibv_mw_bind_info` in it.
#[repr(C)]
pub(crate) struct MwBind {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: u32,
    pub(crate) mr: *mut Mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
}

/// `struct ibv_qp`, as far as it is read.
#[repr(C)]
pub(crate) struct Qp {
    _context: *mut Context,
    _of_program: *mut c_void,
    _pd: *mut Pd,
    _queues: [*mut Opaque; 3],
    _handle: u32,
    pub(crate) qp_num: u32,
}

/// `struct ibv_qp_init_attr`, with `struct ibv_qp_cap` in it.
#[repr(C)]
pub(crate) struct QpInit {
    pub(crate) of_program: *mut c_void,
    pub(crate) send_cq: *mut Opaque,
    pub(crate) recv_cq: *mut Opaque,
    pub(crate) srq: *mut Opaque,
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
    pub(crate) kind: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// `IBV_QPT_RC`.
pub(crate) const RC: c_int = 2;

/// `struct ibv_ah_attr`, with `struct ibv_global_route` in it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct AhAttr {
    pub(crate) gid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_qp_attr`, with room for what may follow.
#[repr(C)]
pub(crate) struct QpAttr {
    pub(crate) state: c_int,
    _cur_state: c_int,
    pub(crate) path_mtu: c_int,
    _path_mig_state: c_int,
    _qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) access: u32,
    _cap: [u32; 5],
    pub(crate) ah_attr: AhAttr,
    _alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    _alt_pkey_index: u16,
    _en_sqd_async_notify: u8,
    _sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    _alt: [u8; 2],
    _rest: [u32; 16],
}

/// States of queue pairs (`enum ibv_qp_state`).
pub(crate) mod state {
    use std::ffi::c_int;
    pub(crate) const INIT: c_int = 1;
    pub(crate) const RTR: c_int = 2;
    pub(crate) const RTS: c_int = 3;
}

/// `enum ibv_qp_attr_mask`: what each step of connecting a queue pair sets.
pub(crate) mod step {
    use std::ffi::c_int;
    /// The state, the rights of peers, the partition and the port.
    pub(crate) const INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
    /// The state, the path, its packets, the other end, the first number, and how much is read at once.
    pub(crate) const RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
    /// The state, the time-out and the retries, how much is read at once, and the first number.
    pub(crate) const RTS: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
}

/// `struct ibv_port_attr`, as far as it is read, with room for what may follow.
#[repr(C)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    _max_mtu: c_int,
    _active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    _numbers: [u32; 4],
    _pkey_tbl_len: u16,
    pub(crate) lid: u16,
    _sm_lid: u16,
    _bytes: [u8; 8],
    pub(crate) link_layer: u8,
    _rest: [u32; 32],
}

/// `IBV_PORT_ACTIVE`.
pub(crate) const PORT_ACTIVE: c_int = 4;
/// `IBV_LINK_LAYER_INFINIBAND`.
pub(crate) const LINK_INFINIBAND: u8 = 1;

/// `struct ibv_wc`.
#[repr(C)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    _rest: [u32; 9],
}

/// Statuses of completions (`enum ibv_wc_status`).
pub(crate) mod status {
    use std::ffi::c_int;
    pub(crate) const SUCCESS: c_int = 0;
    pub(crate) const REM_ACCESS_ERR: c_int = 10;
}

/// `struct ibv_sge`.
#[repr(C)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_send_wr` of an access to a peer's memory, with room for all of it.
#[repr(C)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: u32,
    _imm_data: u32,
    pub(crate) remote_addr: u64,
    /// `rkey` of reads and writes, and half of an atomic operation's first operand.
    pub(crate) rkey: u32,
    _operand: u32,
    _swap: u64,
    pub(crate) atomic_rkey: u32,
    _rest: [u32; 15],
}

/// Operations of [`SendWr`] (`enum ibv_wr_opcode`).
pub(crate) mod opcode {
    use std::ffi::c_int;
    pub(crate) const WRITE: c_int = 0;
    pub(crate) const READ: c_int = 4;
    pub(crate) const FETCH_AND_ADD: c_int = 6;
}

/// `IBV_SEND_SIGNALED`.
pub(crate) const SIGNALED: u32 = 1 << 1;

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
    _resources: [u32; 6],
    /// `IBV_ATOMIC_NONE` is 0.
    pub(crate) atomic_cap: c_int,
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
    assert!(size_of::<usize>() != 8 || std::mem::offset_of!(Context, calls.post_send) == 8 * 26);
    assert!(size_of::<usize>() != 8 || (size_of::<QpInit>() == 64 && std::mem::offset_of!(Qp, qp_num) == 52));
    assert!(size_of::<usize>() != 8 || (size_of::<SendWr>() == 128 && std::mem::offset_of!(SendWr, rkey) == 48));
    assert!(size_of::<Wc>() == 48 && (size_of::<usize>() != 8 || std::mem::offset_of!(MwBind, access) == 40));
};

/// `enum ibv_access_flags`.
pub(crate) mod flag {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    pub(crate) const REMOTE_READ: u32 = 1 << 2;
    pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(crate) const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
    pub(crate) const MW_BIND: u32 = 1 << 4;
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
