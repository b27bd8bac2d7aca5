//! Fixed-buffer transfers, and a page of a file as the other end, whose bytes are seen without the cache.

use crate::ring_error;
use crate::stamps::{LANE, LANES};
use io_uring::{IoUring, opcode, squeue, types};
use mrrc::Access;
use mrrc::registrar::io_uring::{FixedBuffer, IoUringBuffers, IoUringError};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Mutex, PoisonError};

/// The name of memory in transfers.
pub(crate) type Key = FixedBuffer;
/// The registrar.
pub(crate) type Table = IoUringBuffers;
/// The rights that transfers need.
pub(crate) const ACCESS: Access = Access::LOCAL;
/// More than are cached at once.
const SLOTS: u32 = 256;

/// The ring, for one batch at a time: the submitting thread also takes the answers.
pub(crate) struct Ring(Mutex<IoUring>);

impl Ring {
    /// The largest batch.
    pub(crate) const BATCH: usize = LANES;

    /// Returns a ring, or why there is none.
    pub(crate) fn new() -> Result<Self, String> {
        Ok(Self(Mutex::new(IoUring::new(2 * Self::BATCH as u32).map_err(ring_error)?)))
    }

    /// Its table of buffers, or why there is none.
    pub(crate) fn table(&self) -> Result<Table, String> {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        IoUringBuffers::new(&ring, SLOTS).map_err(|error| match error {
            IoUringError::Refused { source, .. } => ring_error(source),
            error => panic!("{error}"),
        })
    }

    /// Runs the transfers to their ends, and answers what the kernel said of each.
    ///
    /// # Safety
    /// Fixed buffers that the transfers name stay registered, and files open, until this returns.
    pub(crate) unsafe fn run(&self, transfers: impl Iterator<Item = squeue::Entry>) -> [i32; Self::BATCH] {
        let mut results = [i32::MIN; Self::BATCH];
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = 0;
        for (number, transfer) in transfers.enumerate() {
            // SAFETY: the caller promises that the memory stays until `run` returns; the loop below waits for all
            // transfers.
            unsafe { ring.submission().push(&transfer.user_data(number as u64)) }.expect("a ring longer than a batch");
            count += 1;
        }
        let mut left = count;
        while left > 0 {
            match ring.submit_and_wait(left) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => panic!("io_uring_enter: {error}"),
            }
            for answer in ring.completion() {
                results[answer.user_data() as usize] = answer.result();
                left -= 1;
            }
        }
        results
    }
}

/// A page of a file in memory, seen by the processor as well: what was sent, or is to be received.
pub(crate) struct Page {
    file: File,
    address: usize,
}

impl Page {
    pub(crate) fn new(_: &Ring) -> Self {
        // SAFETY: the name is a C string; the descriptor is new, and owned here.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"torture".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(4096).expect("a page of memory");
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, of a file that is never truncated.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(address, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        Self { file, address: address as usize }
    }

    /// Returns the address of a lane.
    pub(crate) fn lane(&self, lane: usize) -> usize {
        self.address + lane * LANE
    }

    /// From this page into memory.
    pub(crate) fn receive(&self, lane: usize, address: usize, buffer: &FixedBuffer) -> squeue::Entry {
        let file = types::Fd(self.file.as_raw_fd());
        let request = opcode::ReadFixed::new(file, address as *mut u8, LANE as u32, buffer.index());
        request.offset((lane * LANE) as u64).build()
    }

    /// From memory into this page.
    pub(crate) fn send(&self, lane: usize, address: usize, buffer: &FixedBuffer) -> squeue::Entry {
        let file = types::Fd(self.file.as_raw_fd());
        let request = opcode::WriteFixed::new(file, address as *const u8, LANE as u32, buffer.index());
        request.offset((lane * LANE) as u64).build()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is this page's own.
        unsafe { libc::munmap(self.address as *mut libc::c_void, 4096) };
    }
}
