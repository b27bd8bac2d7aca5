//! Pins memory through the fixed buffers of an io_uring: real pins, by the kernel, on any Linux since 5.19.
//!
//! A ring has a table of buffers. A buffer in a slot of that table stays pinned, and `READ_FIXED`, `WRITE_FIXED`
//! and zero-copy sends that name the slot skip the page tables. So a slot is a key, and the table is a protection
//! domain. A registration cache does for files and sockets what it does for a network card, with no RDMA device at
//! all. [`IoUringBuffers`] owns the table; the ring stays with the program that submits on it.
//!
//! ```no_run
//! use io_uring::IoUring;
//! use mrrc::registrar::{Registered, Registrar, io_uring::IoUringBuffers};
//! use mrrc::{Access, PageRange};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let buffer = vec![0_u8; 8192];
//! let ring = IoUring::new(8)?;
//! let table = IoUringBuffers::new(&ring, IoUringBuffers::DEFAULT_SLOTS)?;
//! let range = PageRange::of_bytes(buffer.as_ptr() as u64, buffer.len() as u64)?;
//! let pinned = table.register(range, Access::LOCAL)?; // a cache does this
//! assert!(pinned.holds(buffer.as_ptr() as u64, 8192));
//! // … opcode::ReadFixed::new(file, address, length, pinned.index()) …
//! table.deregister(&mut vec![Registered { range, access: Access::LOCAL, registration: pinned }])?;
//! # Ok(())
//! # }
//! ```
//!
//! # What users rely on
//!
//! * **The lease outlives the transfer.** Keep it until the completion of the request was seen; for a zero-copy
//!   send, until the notification after it. The kernel holds a buffer while a request *that it has started* uses it.
//!   So a deregistered buffer is never pulled from under one: pages stay pinned until it ends. But a request that waits
//!   (linked, drained, handed to a worker, not yet seen by the polling thread) finds its buffer when it starts, by the
//!   slot's number. By then the slot can hold another.
//! * **Other threads may submit meanwhile**. But a registration holds the ring's lock in the kernel while it pins,
//!   and submissions to the same ring wait for it.
//! * **The ring may go first.** The table keeps the ring's file open. So registrations stay valid until they are
//!   deregistered or the table is dropped.
//! * **No other code touches the ring's table**: `unregister_buffers` on the ring would pull all pins at once.
//!
//! # What the kernel refuses
//!
//! * `EFAULT`: memory in the range is not mapped, or not writable, or beyond the end of its file. The kernel pins for
//!   writing, whatever the access asked for. Or it is a shared mapping of a file with a file system that must know of
//!   writes. Copy such memory into anonymous memory, or transfer it without a fixed buffer. Private mappings of files
//!   are taken, for one lease at a time: no mapping of a file is ever cached, because its truncation goes unnoticed.
//! * `ENOMEM`: `RLIMIT_MEMLOCK` of the *user*, all processes together; the memory of rings counts there. Not for
//!   processes with `CAP_IPC_LOCK`.
//! * `ENOSPC` (said by the table, not by the kernel): every slot holds a buffer.
//! * `EOPNOTSUPP`: kernels before 6.5, for mappings of files other than memfds and huge pages.
//!
//! The default capacity of a cache is that limit less the pages of the table's own ring, where the limit applies. It
//! is the *whole* limit, for each table. If others draw on it (a second cache of the process, other rings, other
//! processes of the user), set capacities that fit it together. Those are `capacity_bytes` and `MRRC_CAPACITY`. If
//! that is forgotten, a cache that meets `ENOMEM` evicts of its own, tries again, and goes on with what the others
//! leave it. Where they hold everything and it has nothing to evict, the request fails with `ENOMEM`.
//!
//! A page of a huge page counts as the whole huge page against the limit, once. And for each huge page the
//! kernel looks through the whole table for an earlier pin: about 1 ns a slot. A large table makes registrations of
//! huge pages slow (17 µs each 2 MiB with 16,384 slots, 1.4 µs with 1,024). So take no more slots than needed.
//!
//! # When pages are unpinned
//!
//! Since Linux 6.13: when the slot is cleared and no request uses the buffer any more. Earlier kernels let go in
//! order. No pin went while any request on a fixed buffer was in progress that was submitted before the slot was
//! cleared. Kernels as old as 6.1 waited up to a second, too. The slot is free at once all the same, but a user near
//! `RLIMIT_MEMLOCK` can meet `ENOMEM` for pages that were deregistered already.
//!
//! A batch with adjacent slots is cleared by one call for each 256 of them, at a quarter of the cost of one call
//! each. The table gives out slots in turn, so that what is registered together lies together.
//!
//! # After a fork
//!
//! A child shares the ring, not a copy of it: what it deregistered would be gone from the parent. Dropping the
//! table in a child leaves the parent's as it is; register and deregister must not be called there (a cache
//! never does).
//!
//! # After all files were closed
//!
//! A program may close all its files, the table's duplicate of the ring too, and open others by their numbers. The table makes no call
//! through the number of another file. It fails with `EBADF` from then on, and what was registered stays until the ring ends.

mod slots;

use super::{Limits, Registered, Registrar, budget};
use crate::access::Access;
use crate::mapped;
use crate::own_file::OwnFile;
use crate::range::PageRange;
use crate::shim::sync::atomic::{AtomicU64, Ordering};
use crate::shim::sync::{Mutex, MutexGuard};
use crate::units::Count;
use ::io_uring::{IoUring, cqueue, squeue};
use slots::Slots;
use std::cmp::Reverse;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd};
use std::sync::PoisonError;

/// The kernel's limit: `IORING_MAX_REG_BUFFERS`.
const MOST_SLOTS: u32 = 1 << 14;

/// Pages in the largest buffer that the kernel takes: 1 GiB.
const MOST_PAGES: u64 = (1 << 30) / crate::PAGE;

/// The most slots that one call clears: bounds the array of empty buffers that it reads.
const RUN: usize = 256;

/// As many empty buffers as one call can need. Two null words each, as an empty `iovec` has.
static EMPTY: [[usize; 2]; RUN] = [[0; 2]; RUN];
const _: () = assert!(size_of::<[usize; 2]>() == size_of::<libc::iovec>());

const IORING_UNREGISTER_BUFFERS: libc::c_uint = 1;
const IORING_REGISTER_BUFFERS2: libc::c_uint = 15;
const IORING_REGISTER_BUFFERS_UPDATE: libc::c_uint = 16;
const IORING_RSRC_REGISTER_SPARSE: u32 = 1;

/// `struct io_uring_rsrc_register`.
#[repr(C)]
struct Register {
    count: u32,
    flags: u32,
    reserved: u64,
    data: u64,
    tags: u64,
}

/// `struct io_uring_rsrc_update2`.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    data: u64,
    tags: u64,
    count: u32,
    reserved2: u32,
}

/// Tells tables apart, so that a buffer is never cleared in a table that is not its own. Identity only, nothing
/// is ordered by it: not for a checker's eyes.
static TABLES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// The table of fixed buffers of one ring: a [`Registrar`].
///
/// `Sync`: a small mutex guards the list of free slots and is never held across a system call.
#[derive(Debug)]
pub struct IoUringBuffers {
    /// The ring's file, opened once more.
    ring: OwnFile,
    id: u64,
    slots: Mutex<Slots>,
    limits: Limits,
    clearing_calls: AtomicU64,
    /// The process that made the table: only there does dropping it unregister.
    process: u32,
}

/// A buffer in a slot of a ring's table.
///
/// It stays pinned until it is given to [`Registrar::deregister`] or its table is dropped; dropping this value
/// alone only loses the slot.
#[derive(Debug)]
#[must_use = "the pages stay pinned until this is deregistered"]
pub struct FixedBuffer {
    range: PageRange,
    table: u64,
    slot: u16,
}

impl FixedBuffer {
    /// Returns the slot: `buf_index` of `READ_FIXED`, `WRITE_FIXED` and zero-copy sends.
    #[inline]
    pub fn index(&self) -> u16 {
        self.slot
    }

    /// Returns the pages that it means.
    #[inline]
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Returns whether a request on [`FixedBuffer::index`] may name these bytes. The address in a request is
    /// the one in memory, no offset; outside of the buffer the kernel answers `EFAULT`.
    #[inline]
    pub fn holds(&self, address: u64, length: u64) -> bool {
        let (start, bytes) = (self.range.start() * crate::PAGE, self.range.pages() * crate::PAGE);
        address.checked_sub(start).is_some_and(|offset| offset <= bytes && length <= bytes - offset)
    }
}

/// Why a ring can have no table of buffers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IoUringError {
    /// No slots, or more than the kernel takes.
    #[error("a table of {slots} fixed buffers: an io_uring takes 1 to {MOST_SLOTS}: try 1024")]
    Slots {
        /// The number asked for.
        slots: u32,
    },
    /// The ring has a single issuer.
    #[error(
        "the ring was set up with IORING_SETUP_SINGLE_ISSUER, so only one thread may register buffers with it, but \
         a cache calls its registrar from any thread: set the ring up without it (and without DEFER_TASKRUN)"
    )]
    SingleIssuer,
    /// The ring has a table already.
    #[error("the ring has a table of fixed buffers already: one registrar to a ring, and no buffers of one's own")]
    Taken,
    /// The kernel refused the table.
    #[error("registering a table of {slots} fixed buffers with an io_uring (Linux 5.19 or later): {source}")]
    Refused {
        /// The number asked for.
        slots: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file is no ring, or is not open.
    #[error("use an io_uring: {0}: pass the file descriptor of an open ring")]
    NoRing(#[source] io::Error),
    /// The ring's file could not be opened once more.
    #[error("open the ring's file once more: {0}: raise the limit of open files (`ulimit -n`)")]
    File(#[source] io::Error),
}

impl IoUringError {
    /// Returns why a file could not be opened once more.
    fn of_file(error: io::Error) -> Self {
        if error.raw_os_error() == Some(libc::EBADF) { Self::NoRing(error) } else { Self::File(error) }
    }
}

impl IoUringBuffers {
    /// A good number of slots: 16 KiB of the kernel's memory, 1.4 µs for each huge page registered.
    pub const DEFAULT_SLOTS: u32 = 1024;

    /// Gives a ring an empty table of `slots` buffers, 1 to 16,384.
    ///
    /// The ring must have none so far, must stay with this process, and must allow any thread to register: no
    /// `IORING_SETUP_SINGLE_ISSUER`.
    ///
    /// # Errors
    /// See [`IoUringError`].
    pub fn new<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
        ring: &IoUring<S, C>,
        slots: u32,
    ) -> Result<Self, IoUringError> {
        if ring.params().is_setup_single_issuer() {
            return Err(IoUringError::SingleIssuer);
        }
        #[expect(unsafe_code, reason = "the ring does not lend its file descriptor by a safe type")]
        // SAFETY: the ring owns the descriptor and is borrowed for longer than this.
        let file = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        let (sq, cq) = (ring.params().sq_entries(), ring.params().cq_entries());
        Self::over(file, slots, ring_bytes(sq, size_of::<S>(), cq, size_of::<C>()))
    }

    /// As [`IoUringBuffers::new`], for a ring that something else than the `io-uring` crate set up: liburing, or another
    /// language. That a ring has a single issuer shows only by what the kernel says to another thread, so this starts one, for
    /// the one call.
    ///
    /// # Errors
    /// See [`IoUringError`].
    pub fn from_fd(ring: BorrowedFd<'_>, slots: u32) -> Result<Self, IoUringError> {
        let (sq, cq) = entries(ring);
        // Of its entries only the number shows; they are taken to be of the larger kinds.
        let locked = ring_bytes(sq, size_of::<squeue::Entry128>(), cq, size_of::<cqueue::Entry32>());
        let ring = ring.try_clone_to_owned().map_err(IoUringError::of_file)?;
        let (tell, told) = std::sync::mpsc::channel();
        let open = move || _ = tell.send(Self::over(ring.as_fd(), slots, locked));
        let refused = |source| IoUringError::Refused { slots, source };
        let thread = crate::own_thread::spawn("mrrc-ring", open).map_err(refused)?;
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
        told.recv().unwrap_or_else(|closed| Err(refused(std::io::Error::other(closed))))
    }

    /// `locked`: what the ring itself takes of what may be locked.
    fn over(ring: BorrowedFd<'_>, slots: u32, locked: u64) -> Result<Self, IoUringError> {
        if slots == 0 || slots > MOST_SLOTS {
            return Err(IoUringError::Slots { slots });
        }
        let ring = ring.try_clone_to_owned().and_then(|ring| OwnFile::unmarked(File::from(ring)));
        let ring = ring.map_err(IoUringError::of_file)?;
        let table = Register { count: slots, flags: IORING_RSRC_REGISTER_SPARSE, reserved: 0, data: 0, tags: 0 };
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: the structure is the one that the call reads, and lives through it; it names no memory.
        let failed = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                ring.number(),
                IORING_REGISTER_BUFFERS2,
                &raw const table,
                size_of::<Register>() as libc::c_uint,
            )
        } != 0;
        if failed {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                Some(libc::EBUSY) => IoUringError::Taken,
                Some(libc::EEXIST) => IoUringError::SingleIssuer,
                Some(libc::EOPNOTSUPP) => IoUringError::NoRing(source),
                _ => IoUringError::Refused { slots, source },
            });
        }
        let limits = Limits {
            regions: Some(slots.into()),
            pages: budget::pages(locked),
            region_pages: Some(MOST_PAGES),
            page_size: budget::page_size(),
        };
        Ok(Self {
            ring,
            id: TABLES.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            slots: Mutex::new(Slots::new(slots)),
            limits,
            clearing_calls: AtomicU64::new(0),
            process: std::process::id(),
        })
    }

    /// Slots that hold no buffer.
    pub fn free_slots(&self) -> u32 {
        self.slots().free()
    }

    /// System calls made to deregister, so far. A batch with adjacent slots takes one for each 256.
    pub fn clearing_calls(&self) -> u64 {
        self.clearing_calls.load(Ordering::Relaxed)
    }

    /// Nothing panics while it is locked; were it to, the slots would still be in order.
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets slots from `offset` on to buffers, or to none, and returns how many were set. The kernel stops at the
    /// first that it cannot set. The `io-uring` crate has this call, but keeps that number to itself.
    fn update(&self, offset: u16, buffers: &[[usize; 2]]) -> io::Result<usize> {
        let ring = self.ring.get()?.as_raw_fd();
        let update = Update {
            offset: offset.into(),
            reserved: 0,
            data: buffers.as_ptr() as u64,
            tags: 0,
            count: buffers.len() as u32,
            reserved2: 0,
        };
        let size = size_of::<Update>() as libc::c_uint;
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: the structure is the one that the call reads, and names an array of that many `iovec`s; both
        // live through the call, which writes neither. Memory that the array names is pinned, not touched: any
        // address may be there, mapped or not.
        let set = unsafe {
            libc::syscall(libc::SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS_UPDATE, &raw const update, size)
        };
        usize::try_from(set).map_err(|_| io::Error::last_os_error())
    }
}

#[expect(unsafe_code, reason = "promises what the trait asks for")]
// SAFETY: a buffer in a slot holds its pages, whatever becomes of the mapping, until the slot is cleared, and
// slots are cleared by `deregister` and `Drop` alone (the user promises that no other code does, because it
// would break transfers but not memory). A slot is taken by one buffer at a time. After clearing, no request
// that starts finds the buffer; one that had started holds it in the kernel, and leases outlive transfers.
// There are no peers.
unsafe impl Registrar for IoUringBuffers {
    type Registration = FixedBuffer;

    fn register(&self, range: PageRange, access: Access) -> io::Result<FixedBuffer> {
        if access.is_remote() {
            return Err(refusal(format!(
                "{access}: the fixed buffers of an io_uring have no peers, only local rights"
            )));
        }
        let address = usize::try_from(range.start() * crate::PAGE);
        let (Ok(address), true) = (address, range.pages() <= MOST_PAGES) else {
            return Err(refusal(format!("{range}: a fixed buffer of an io_uring holds at most {MOST_PAGES} pages")));
        };
        let bytes = range.pages() as usize * crate::PAGE as usize;
        let Some(slot) = self.slots().take() else {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        };
        match self.update(slot, &[[address, bytes]]) {
            Ok(1..) => Ok(FixedBuffer { range, table: self.id, slot }),
            failed => {
                self.slots().give(slot);
                Err(failed.err().unwrap_or_else(nothing_done))
            }
        }
    }

    fn deregister(&self, batch: &mut Vec<Registered<FixedBuffer>>) -> io::Result<()> {
        clear(batch, self.id, |first, count| {
            self.clearing_calls.fetch_add(1, Ordering::Relaxed);
            let done = self.update(first, &EMPTY[..count])?;
            let mut slots = self.slots();
            (first..).take(done).for_each(|slot| slots.give(slot));
            Ok(done)
        })
    }

    /// Whether all of the range is mapped.
    fn probe(&self, range: PageRange, _: Access) -> io::Result<()> {
        mapped::mapped(range)
    }

    /// Whether all of the range is mapped, writable, and not beyond the end of a file: the list of mappings is read. Whether
    /// shared mappings of files may be pinned depends on the file system: tmpfs yes, disks no.
    fn examine(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.probe(range, access)?;
        match mapped::fault(range) {
            None | Some(mapped::Fault::Other | mapped::Fault::SharedFile(_)) => Ok(()),
            Some(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Regions are the slots, pages what the user may pin besides the ring, but no more than half of the memory. Both as
    /// they were when the table was made. The user's other locked memory (other rings, other processes) is not known.
    fn limits(&self) -> Limits {
        self.limits
    }

    fn rights(&self) -> Access {
        Access::LOCAL
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}

/// Unregisters the table, and with it what is still registered. Kernels before 6.13 wait there for the requests
/// on fixed buffers that are under way. In a child of the process that made it: does nothing.
impl Drop for IoUringBuffers {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        let Ok(ring) = self.ring.get() else { return };
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: no memory is passed. A failure because other code has unregistered the table does not matter.
        unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                ring.as_raw_fd(),
                IORING_UNREGISTER_BUFFERS,
                std::ptr::null::<libc::c_void>(),
                0,
            );
        }
    }
}

/// Clears the slots of a batch, neighbours in one call, and takes out of it what was cleared. `call` clears a
/// number of slots from the first on, at most [`RUN`], and says how many it did.
fn clear<T: AsRef<FixedBuffer>>(
    batch: &mut Vec<T>,
    table: u64,
    mut call: impl FnMut(u16, usize) -> io::Result<usize>,
) -> io::Result<()> {
    // The lowest slot last, to be cut off; what is not of this table first, to be left.
    batch.sort_unstable_by_key(|buffer| Reverse((buffer.as_ref().table != table, buffer.as_ref().slot)));
    while let Some(lowest) = batch.last().map(AsRef::as_ref) {
        if lowest.table != table {
            return Err(refusal(format!(
                "{} of the table of another ring",
                Count(batch.len() as u64, "fixed buffers")
            )));
        }
        let first = lowest.slot;
        let neighbours = batch.iter().map(AsRef::as_ref).rev().zip(first..).take(RUN);
        let run = neighbours.take_while(|(buffer, slot)| buffer.table == table && buffer.slot == *slot).count();
        let done = call(first, run)?.min(run);
        if done == 0 {
            return Err(nothing_done());
        }
        batch.truncate(batch.len() - done);
    }
    Ok(())
}

#[cfg(test)]
impl AsRef<FixedBuffer> for FixedBuffer {
    fn as_ref(&self) -> &FixedBuffer {
        self
    }
}

fn refusal(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn nothing_done() -> io::Error {
    io::Error::other("the kernel set no slot of the io_uring's table, and gave no reason")
}

/// Returns the share of a ring's own memory in `RLIMIT_MEMLOCK`: its two rings and the array of entries, each in whole
/// pages. Kernels from 5.12 to 6.12 do not count it; the difference is a page or two.
fn ring_bytes(sq: u32, sqe: usize, cq: u32, cqe: usize) -> u64 {
    // `struct io_rings`, and more than its padding.
    const HEAD: usize = 512;
    let (sq, cq) = (sq as usize, cq as usize);
    let whole = |bytes: usize| (bytes as u64).next_multiple_of(budget::page_size());
    whole(HEAD + cq * cqe + sq * size_of::<u32>()) + whole(sq * sqe)
}

/// How many entries a ring has, to submit and to complete; none where the system does not tell.
fn entries(ring: BorrowedFd<'_>) -> (u32, u32) {
    let told = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", ring.as_raw_fd())).unwrap_or_default();
    let of = |name: &str| {
        let mask = told.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix("0x"));
        mask.and_then(|mask| u32::from_str_radix(mask, 16).ok()).map_or(0, |mask| mask.min(u32::MAX >> 8) + 1)
    };
    (of("SqMask:"), of("CqMask:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: u64 = 7;

    fn buffers(table: u64, slots: impl IntoIterator<Item = u16>) -> Vec<FixedBuffer> {
        let range = PageRange::new(1, 1).unwrap();
        slots.into_iter().map(|slot| FixedBuffer { range, table, slot }).collect()
    }

    fn left(batch: &[FixedBuffer]) -> Vec<u16> {
        let mut slots: Vec<u16> = batch.iter().map(|buffer| buffer.slot).collect();
        slots.sort_unstable();
        slots
    }

    #[test]
    fn neighbours_are_cleared_in_one_call() {
        let mut batch = buffers(OURS, [9, 3, 5, 4, 12, 8, 1]);
        let mut calls = Vec::new();
        clear(&mut batch, OURS, |first, count| {
            calls.push((first, count));
            Ok(count)
        })
        .unwrap();
        assert_eq!(calls, [(1, 1), (3, 3), (8, 2), (12, 1)]);
        assert!(batch.is_empty());
    }

    #[test]
    fn a_call_clears_no_more_than_its_array_holds() {
        let mut batch = buffers(OURS, 0..600);
        let mut calls = Vec::new();
        clear(&mut batch, OURS, |first, count| {
            calls.push((first, count));
            Ok(count)
        })
        .unwrap();
        assert_eq!(calls, [(0, RUN), (256, RUN), (512, 88)]);
    }

    #[test]
    fn uncleared_slots_are_retried_then_left() {
        let mut batch = buffers(OURS, [1, 2, 3, 4, 9]);
        let mut calls = Vec::new();
        let error = clear(&mut batch, OURS, |first, count| {
            calls.push((first, count));
            if first == 1 { Ok(2) } else { Err(io::Error::from_raw_os_error(libc::ENOMEM)) }
        })
        .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(calls, [(1, 4), (3, 2)]);
        assert_eq!(left(&batch), [3, 4, 9]);
    }

    #[test]
    fn impossible_clear_count_ends_the_batch() {
        let mut batch = buffers(OURS, [1, 2]);
        assert!(clear(&mut batch, OURS, |_, _| Ok(0)).is_err());
        assert_eq!(left(&batch), [1, 2]);
        clear(&mut batch, OURS, |_, _| Ok(usize::MAX)).unwrap();
        assert!(batch.is_empty());
    }

    #[test]
    fn foreign_buffers_stay_in_the_batch() {
        let mut batch = buffers(OURS, [1, 2, 5]);
        batch.extend(buffers(OURS + 1, [3, 4]));
        let mut cleared = Vec::new();
        let error = clear(&mut batch, OURS, |first, count| {
            cleared.push((first, count));
            Ok(count)
        })
        .unwrap_err();
        assert!(error.to_string().contains("another ring"), "{error}");
        assert_eq!(cleared, [(1, 2), (5, 1)]);
        assert_eq!(left(&batch), [3, 4]);
    }

    #[test]
    fn a_request_may_name_the_bytes_of_the_buffer_only() {
        let buffer = FixedBuffer { range: PageRange::new(2, 2).unwrap(), table: OURS, slot: 0 };
        for (address, length) in [(8192, 8192), (8192, 0), (16384, 0), (16383, 1), (10_000, 100)] {
            assert!(buffer.holds(address, length), "{address} {length}");
        }
        for (address, length) in [(8191, 1), (8192, 8193), (16384, 1), (0, u64::MAX), (u64::MAX, 1), (9000, u64::MAX)] {
            assert!(!buffer.holds(address, length), "{address} {length}");
        }
    }
}
