//! Records what a program does with its buffers while it runs: a `registrations` trace, written through mapped memory.
//!
//! A preloaded library (the shim for verbs, the recorder for MPI) asks for the [recorder of its process](of_process) and
//! tells it of each event. The file is mapped and shared, so an event is in it as soon as the last of its four words is
//! stored. Nothing is buffered: a kill of the program, `kill -9` included, loses only the event that was just being
//! stored. All processes of a run may write one file: they number their records by one counter in it.
//!
//! * **An event** costs a reading of the clock, which is no system call where the kernel has a vDSO, one atomic addition, and
//!   four stores. No lock, no allocation.
//! * **8,192 events** cost up to three system calls, to make the file longer, to see that it is still the file, and to give its
//!   pages back, so that the program's memory does not grow with the file.
//! * **The file** has a limit (`MRRC_RECORD_LIMIT`, 256 MiB or 8 million events). Later events are counted, and left out.
//!
//! [`layout`] is the format, without effects: the crate `traces` reads it.
//!
//! ```
//! # #[cfg(target_os = "linux")] {
//! use traces_record::layout::Operation;
//! use traces_record::{DEFAULT_LIMIT, Recorder, Source};
//! # let folder = tempfile::tempdir().unwrap();
//! # let file = folder.path().join("recording.reg");
//! let recorder = Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs)?;
//! let buffer = [0_u8; 100];
//! recorder.record(Operation::Acquire, 0b11, buffer.as_ptr() as u64, 100);
//! assert_eq!(recorder.state().claimed, 1);
//! # }
//! # Ok::<(), traces_record::OpenError>(())
//! ```
//!
//! # Beside this crate
//!
//! [`mrrc-preload`] and [`traces-mpi`] record with it, `tracesim record` of [`tracesim`] runs programs under them, and
//! [`traces`] reads what was recorded.
//!
//! [`mrrc-preload`]: ../mrrc_preload/index.html
//! [`traces-mpi`]: ../traces_mpi/index.html
//! [`tracesim`]: ../tracesim/index.html
//! [`traces`]: ../traces/index.html

mod bytes;
pub mod layout;

#[cfg(target_os = "linux")]
mod environment;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod recorder;
#[cfg(target_os = "linux")]
mod thread_id;

pub use bytes::bytes;

#[cfg(target_os = "linux")]
pub use environment::{FILE_VARIABLE, LIMIT_VARIABLE, of_process};
#[cfg(target_os = "linux")]
pub use file::{OpenError, create, state};
#[cfg(target_os = "linux")]
pub use recorder::Recorder;

/// Bytes of a recording, at most, where nothing else is said.
pub const DEFAULT_LIMIT: u64 = 256 << 20;

/// The source of the events: one of the two, because a recording of both would have the same buffers twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Registrations of verbs.
    Verbs = 1,
    /// Messages of MPI.
    Mpi = 2,
}

/// The README's example is one that runs.
#[cfg(all(doctest, target_os = "linux"))]
#[doc = include_str!("../README.md")]
struct Readme;
