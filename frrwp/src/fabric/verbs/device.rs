//! librdmacm's devices: it opens each once for the process, and connections come about in those contexts alone.
//!
//! # A device that goes away
//!
//! Some drivers cannot take a device from a process that has it open, the kernel's `rxe` and `siw` among them. Its removal
//! waits until every such file is closed. librdmacm keeps its own open for as long as the process lives. So its files are
//! released here when the last domain of a device that is going goes. Something else is put in the place of their
//! descriptors, which librdmacm may close later or never.

#![expect(unsafe_code, reason = "the calls of librdmacm and libibverbs")]

use super::ib;
use super::manager::last_error;
use mrrc::registrar::verbs::Transport;
use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Contexts that domains have, as often as they have them. Guards its own list alone; held while the last user releases
/// the device, so that none begins meanwhile.
static USERS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn users() -> MutexGuard<'static, Vec<usize>> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// librdmacm's context of one device, and the list that keeps it.
#[derive(Debug)]
pub(super) struct Device {
    context: NonNull<ib::ibv_context>,
    list: NonNull<*mut ib::ibv_context>,
    process: u32,
}

// SAFETY: calls on contexts may be made from any thread (libibverbs' own rule), and the list is only given back.
unsafe impl Send for Device {}
// SAFETY: librdmacm's devices belong to no thread, and nothing is changed by a shared reference.
unsafe impl Sync for Device {}

impl Device {
    /// Returns the device of this name; none if librdmacm has it not.
    pub(super) fn find(name: &str) -> io::Result<Option<Self>> {
        let mut users = users();
        let mut count = 0;
        // SAFETY: `count` is a local integer that the call may write.
        let list = NonNull::new(unsafe { ib::rdma_get_devices(&mut count) }).ok_or_else(last_error)?;
        // SAFETY: librdmacm returned so many contexts.
        let contexts = unsafe { std::slice::from_raw_parts(list.as_ptr(), count.max(0) as usize) };
        let named = contexts.iter().filter_map(|&context| NonNull::new(context)).find(|&context| {
            // SAFETY: contexts of a list that is kept are open.
            unsafe { device_name(context) == name }
        });
        let Some(context) = named else {
            // SAFETY: it came from librdmacm, and is given back once.
            unsafe { ib::rdma_free_devices(list.as_ptr()) };
            return Ok(None);
        };
        users.push(context.as_ptr() as usize);
        Ok(Some(Self { context, list, process: std::process::id() }))
    }

    pub(super) fn context(&self) -> *mut ib::ibv_context {
        self.context.as_ptr()
    }

    /// Gives it back. The last user of a device that is going releases its files.
    pub(super) fn give_back(&self, is_going: bool) {
        if self.process != std::process::id() {
            return;
        }
        let mut users = users();
        let name = self.context.as_ptr() as usize;
        if let Some(at) = users.iter().position(|&user| user == name) {
            users.swap_remove(at);
        }
        if is_going && !users.contains(&name) {
            // SAFETY: the context is open as long as the list is kept.
            unsafe { let_go(self.context) };
        }
        // SAFETY: it came from librdmacm, and is given back once.
        unsafe { ib::rdma_free_devices(self.list.as_ptr()) };
    }
}

/// # Safety
/// The context is open.
pub(super) unsafe fn device_name(context: NonNull<ib::ibv_context>) -> String {
    // SAFETY: a context that is open has a device, which has a name that ends.
    unsafe { CStr::from_ptr(ib::ibv_get_device_name((*context.as_ptr()).device)).to_string_lossy().into_owned() }
}

/// Returns whether the kernel still lets the device be opened: what it takes away first.
pub(super) fn can_be_opened(name: &str) -> bool {
    let Ok(entries) = std::fs::read_dir("/sys/class/infiniband_verbs") else { return false };
    let named = |entry: std::fs::DirEntry| {
        std::fs::read_to_string(entry.path().join("ibdev")).is_ok_and(|text| text.trim() == name)
    };
    entries.filter_map(Result::ok).any(named)
}

/// Closes a context's files, and keeps their numbers.
///
/// # Safety
/// The context is open, and no domain of this module uses it any more.
unsafe fn let_go(context: NonNull<ib::ibv_context>) {
    let Ok(nothing) = OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
    // SAFETY: descriptors of a context that is open. Calls on it fail from now on, and closing it closes the new ones.
    unsafe {
        for file in [(*context.as_ptr()).cmd_fd, (*context.as_ptr()).async_fd] {
            libc::dup3(nothing.as_raw_fd(), file, libc::O_CLOEXEC);
        }
    }
}

/// The capabilities of a device that connections need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Able {
    /// Things that can be posted to a queue.
    pub(super) posts: u32,
    /// Completions that a queue holds.
    pub(super) completions: u32,
    /// Pieces that one write gathers, and that one read scatters.
    pub(super) gather: usize,
    pub(super) scatter: usize,
    /// Reads that it answers at a time, and that it may have under way.
    pub(super) answered: u8,
    pub(super) under_way: u8,
    pub(super) iwarp: bool,
    /// Memory windows with keys that are good for one connection alone.
    pub(super) windows: bool,
}

/// The capabilities of a device with windows of either kind that is bound on a queue pair, and is good for that one.
const WINDOWS: libc::c_uint = ib::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0
    | ib::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
/// Pieces of one write, at most: more make every entry of the queue larger.
const GATHER: usize = 16;

impl Able {
    /// # Safety
    /// The context is open.
    pub(super) unsafe fn of(context: *mut ib::ibv_context, transport: Transport) -> io::Result<Self> {
        let mut said = MaybeUninit::<ib::ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the structure is the one that the call fills.
        match unsafe { ib::ibv_query_device(context, said.as_mut_ptr()) } {
            0 => {}
            failed => return Err(io::Error::from_raw_os_error(failed.abs())),
        }
        // SAFETY: numbers and characters, which may be anything, and were zero before.
        let said = unsafe { said.assume_init() };
        let iwarp = transport == Transport::Iwarp;
        let gather = usize::try_from(said.max_sge).unwrap_or(1).clamp(1, GATHER);
        let depth = |most: libc::c_int| most.clamp(0, 255) as u8;
        Ok(Self {
            posts: said.max_qp_wr.max(1) as u32,
            completions: said.max_cqe.max(1) as u32,
            gather,
            // An answer over iWARP is one write, to one tag.
            scatter: if iwarp { 1 } else { gather },
            answered: depth(said.max_qp_rd_atom),
            under_way: depth(said.max_qp_init_rd_atom),
            iwarp,
            windows: said.max_mw > 0 && said.device_cap_flags & WINDOWS != 0,
        })
    }
}

/// # Safety
/// The context is open.
unsafe fn port_attributes(context: *mut ib::ibv_context, port: u8) -> Option<ib::ibv_port_attr> {
    let mut said = MaybeUninit::<ib::ibv_port_attr>::zeroed();
    // SAFETY: the context is open, and the structure is the one that the call fills.
    let failed = unsafe { ib::query_port(context, port.max(1), said.as_mut_ptr()) };
    // SAFETY: numbers, which may be anything, and were zero before.
    (failed == 0).then(|| unsafe { said.assume_init() })
}

/// Bytes of one message or write through this port.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn longest(context: *mut ib::ibv_context, port: u8) -> usize {
    const MOST: usize = 1 << 30;
    // SAFETY: the context is open, as the caller promises.
    let said = unsafe { port_attributes(context, port) }.map_or(0, |said| said.max_msg_sz as usize);
    if said == 0 { MOST } else { said.min(MOST) }
}

/// Bytes of one datagram through this port: its MTU.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn active_mtu(context: *mut ib::ibv_context, port: u8) -> usize {
    // SAFETY: the context is open, as the caller promises.
    let said = unsafe { port_attributes(context, port) }.map_or(1, |said| said.active_mtu);
    // 1 is 256 bytes, 5 is 4096.
    128 << said.clamp(1, 5)
}
