//! The recorder: records go into mapped memory, in the order of one counter.
//!
//! A writer takes a number from the counter in the head, which all processes share, and writes the record of that
//! number. No other thread writes there, so no lock is needed; the first word, stored last, marks it as whole. Once in
//! [`STEP`] records a writer finds that the file ends, and makes it longer: several may do so at once, to the same end.
//!
//! All words are atomic, because processes and readers share them, and relaxed but for the last: a record is ordered before
//! its first word, and nothing else by it.

use crate::Source;
use crate::file::{OpenError, Recording, now};
use crate::layout::{HEAD, Head, Operation, RECORD, Record, at};
use crate::thread_id;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Records by which the file becomes longer: 256 KiB.
const STEP: u64 = 8192;
/// Bytes of that.
const STEP_BYTES: u64 = STEP * RECORD as u64;

/// Writes events into a file that other processes may write to as well.
///
/// `Sync`, and used through `&self` by any thread; it has no lock. A child of a fork goes on writing to its parent's file under
/// a number of its own.
#[derive(Debug)]
pub struct Recorder {
    file: Recording,
    /// The file, mapped as long as it may become.
    base: *mut u8,
    bytes: usize,
    limit: u64,
    start: u64,
    /// Records below this have a place in the file, as far as this process knows.
    ready: AtomicU64,
    /// Bytes of the mapping whose pages were given back.
    given_back: AtomicU64,
}

#[expect(unsafe_code, reason = "a pointer to shared memory")]
// SAFETY: what it points at is mapped until it is dropped, and is read and written by atomic operations alone.
unsafe impl Send for Recorder {}
#[expect(unsafe_code, reason = "a pointer to shared memory")]
// SAFETY: shared access to the mapping is atomic, word by word.
unsafe impl Sync for Recorder {}

impl Recorder {
    /// Makes the file, of at most this many bytes, or joins the processes that write to it already.
    ///
    /// # Errors
    /// [`OpenError`]: the file cannot be made or mapped, or is something else.
    pub fn open(path: &Path, limit: u64, source: Source) -> Result<Self, OpenError> {
        static FORKS: Once = Once::new();
        let (file, head) = Recording::open(path, limit)?;
        let bytes = HEAD + head.limit as usize * RECORD;
        let base = file.map(bytes).map_err(|error| OpenError::System { file: path.to_owned(), doing: "map", error })?;
        let Head { limit, start, .. } = head;
        let [ready, given_back] = [AtomicU64::new(0), AtomicU64::new(0)];
        let recorder = Self { file, base, bytes, limit, start, ready, given_back };
        FORKS.call_once(who_forgets);
        recorder.half(at::ATTACHED).fetch_add(1, Ordering::Relaxed);
        let claimed =
            recorder.half(at::SOURCE).compare_exchange(0, source as u32, Ordering::Relaxed, Ordering::Relaxed);
        // The first source of a file is the one.
        if claimed.is_err_and(|first| first != source as u32) {
            recorder.half(at::OTHERS).fetch_or(1 << source as u32, Ordering::Relaxed);
        }
        Ok(recorder)
    }

    /// Returns whether this is the source whose events the file takes.
    pub fn takes(&self, source: Source) -> bool {
        self.half(at::SOURCE).load(Ordering::Relaxed) == source as u32
    }

    /// Records an event, unless it has no bytes. An event without room is counted. `access` has the rights: 1 local read, 2 local
    /// write, 4 remote read, 8 remote write, 16 remote atomic.
    #[inline]
    pub fn record(&self, operation: Operation, access: u8, address: u64, length: u64) {
        self.record_in(0, operation, access, address, length);
    }

    /// As [`Recorder::record`], in one of the process's domains.
    #[inline]
    pub fn record_in(&self, domain: u8, operation: Operation, access: u8, address: u64, length: u64) {
        if length == 0 {
            return;
        }
        let time = now().saturating_sub(self.start);
        let slot = self.word(at::CLAIMED).fetch_add(1, Ordering::Relaxed);
        if slot >= self.ready.load(Ordering::Relaxed) && !self.make_room(slot) {
            return;
        }
        let (process, thread) = (thread_id::process().unwrap_or_else(|| self.begins()), thread_id::thread());
        let record = Record { operation, access, process, thread, time, address, length, domain };
        let [first, rest @ ..] = record.words();
        let place = HEAD + slot as usize * RECORD;
        for (nth, word) in rest.into_iter().enumerate() {
            self.word(place + 8 * (nth + 1)).store(word.to_le(), Ordering::Relaxed);
        }
        self.word(place).store(first.to_le(), Ordering::Release);
    }

    /// Memory was registered that is not watched, because too much is: if it is unmapped, that will be missing.
    pub fn is_unwatched(&self) {
        let one_more = |count: u32| count.checked_add(1);
        // At the most that can be counted it stays.
        _ = self.half(at::UNWATCHED).fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
    }

    /// Returns the current head.
    pub fn state(&self) -> Head {
        Head {
            start: self.start,
            boot: [0; 16],
            limit: self.limit,
            claimed: self.word(at::CLAIMED).load(Ordering::Relaxed),
            ready: self.word(at::READY).load(Ordering::Relaxed),
            attached: self.half(at::ATTACHED).load(Ordering::Relaxed),
            ended: self.half(at::ENDED).load(Ordering::Relaxed),
            stopped: self.half(at::STOPPED).load(Ordering::Relaxed),
            source: self.half(at::SOURCE).load(Ordering::Relaxed),
            others: self.half(at::OTHERS).load(Ordering::Relaxed),
            unwatched: self.half(at::UNWATCHED).load(Ordering::Relaxed),
        }
    }

    /// Returns the first event of this process, which counts as one more if it is a child.
    #[cold]
    fn begins(&self) -> u32 {
        let (process, is_child) = thread_id::read_process();
        if is_child {
            self.half(at::ATTACHED).fetch_add(1, Ordering::Relaxed);
        }
        process
    }

    /// This process ends by itself.
    pub(crate) fn ends(&self) {
        if !thread_id::is_silent_child() {
            self.half(at::ENDED).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sees to it that the file has a place for this record, unless it may not.
    #[cold]
    fn make_room(&self, slot: u64) -> bool {
        if slot >= self.limit {
            return false;
        }
        let ready = self.word(at::READY);
        if slot >= ready.load(Ordering::Acquire) {
            let stopped = self.half(at::STOPPED);
            if stopped.load(Ordering::Relaxed) != 0 {
                return false;
            }
            let room = ((slot / STEP + 1) * STEP).min(self.limit);
            if let Err(number) = self.file.make_room(HEAD as u64 + room * RECORD as u64) {
                stopped.store(number as u32, Ordering::Relaxed);
                return false;
            }
            ready.fetch_max(room, Ordering::Release);
        }
        // A damaged head is no reason to write where nothing is mapped.
        self.ready.fetch_max(ready.load(Ordering::Acquire).min(self.limit), Ordering::Relaxed);
        self.give_back(slot);
        true
    }

    /// Removes pages more than a step behind from this process's memory: the file has them. A late writer finds them again.
    fn give_back(&self, slot: u64) {
        let until = (slot / STEP).saturating_sub(1) * STEP_BYTES;
        let from = self.given_back.fetch_max(until, Ordering::Relaxed);
        if from < until {
            #[expect(unsafe_code, reason = "a system call")]
            // SAFETY: the range lies in the mapping, which begins at a page as every step does; it is shared with the file, so its pages are dropped
            // and not their content. If it fails, the pages stay.
            unsafe {
                libc::madvise(self.base.add(from as usize).cast(), (until - from) as usize, libc::MADV_DONTNEED);
            }
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + 8 <= self.bytes && at.is_multiple_of(8));
        #[expect(unsafe_code, reason = "memory shared with other processes")]
        // SAFETY: the mapping is that long and begins at a page, so the word is aligned; its place is in the head or in a record below
        // `ready`, which the file has. It is used by atomic operations alone.
        unsafe {
            AtomicU64::from_ptr(self.base.add(at).cast())
        }
    }

    fn half(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at + 4 <= HEAD && at.is_multiple_of(4));
        #[expect(unsafe_code, reason = "memory shared with other processes")]
        // SAFETY: the offset is in the mapping and aligned; no word is used by halves and whole.
        unsafe {
            AtomicU32::from_ptr(self.base.add(at).cast())
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.ends();
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: the range is that of the mapping, and no reference into it outlives the recorder.
        unsafe {
            libc::munmap(self.base.cast(), self.bytes);
        }
    }
}

/// A child of a fork asks anew for its numbers.
fn who_forgets() {
    extern "C" fn in_child() {
        thread_id::forget();
    }
    #[expect(unsafe_code, reason = "a function of the system's library")]
    // SAFETY: the function does nothing that a child of a fork must not: three stores. If it cannot be registered, children
    // record under their parent's number.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    }
}
