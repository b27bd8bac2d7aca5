//! Fixed-buffer transfers, and a page of a file as the other end, whose bytes are seen without the cache.

use crate::ring_error;
use io_uring::{IoUring, opcode, squeue, types};
use mrrc::registrar::io_uring::FixedBuffer;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Mutex, PoisonError};

/// Bytes of one transfer. A page has room for [`LANES`], so transfers of one batch never meet in a page.
pub(crate) const LANE: usize = 256;
/// Lanes of a page.
pub(crate) const LANES: usize = 4096 / LANE;

/// What a transfer moves: no two are the same, in a run.
pub(crate) type Stamp = [u64; LANE / 8];

/// The stamp of this number, by this thread.
pub(crate) fn stamp(thread: usize, number: u64) -> Stamp {
    std::array::from_fn(|word| (thread as u64 + 1) << 56 | number << 8 | word as u64)
}

/// Bytes in which two stamps differ.
pub(crate) fn difference(a: &Stamp, b: &Stamp) -> u64 {
    let bytes = a.iter().zip(b).map(|(a, b)| (a ^ b).to_ne_bytes().iter().filter(|&&byte| byte != 0).count() as u64);
    bytes.sum()
}

/// Puts a stamp at an address, by the processor.
///
/// # Safety
/// [`LANE`] bytes are mapped there for writing, aligned to 8, and no other thread uses them.
pub(crate) unsafe fn put(address: usize, stamp: &Stamp) {
    // SAFETY: by the contract.
    unsafe { (address as *mut Stamp).write_volatile(*stamp) }
}

/// What stands at an address, by the processor.
///
/// # Safety
/// As [`put`], for reading.
pub(crate) unsafe fn get(address: usize) -> Stamp {
    // SAFETY: by the contract.
    unsafe { (address as *const Stamp).read_volatile() }
}

/// The ring, for one batch at a time: who submits on it also takes the answers.
pub(crate) struct Ring(Mutex<IoUring>);

impl Ring {
    /// The largest batch.
    pub(crate) const BATCH: usize = LANES;

    /// A ring, or why there is none.
    pub(crate) fn new() -> Result<Self, String> {
        Ok(Self(Mutex::new(IoUring::new(2 * Self::BATCH as u32).map_err(ring_error)?)))
    }

    /// For the table of buffers.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&IoUring) -> T) -> T {
        f(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
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
            // SAFETY: by the contract; the loop below waits for all of them.
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
    pub(crate) fn new() -> Self {
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

    /// Where a lane lies.
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
