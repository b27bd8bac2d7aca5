//! Traces of memory use: the requests with their times and clients.
//!
//! A trace comes from a file in one of many formats, from a generator or from a recording, and always as a
//! stream of [`Event`]s with a [`Summary`] of how the source was understood:
//!
//! ```text
//! file, archive, pipe ─► bytes ─► a Reader ─┐
//!                                           ├─► Event, Event, … ─► Trace, to replay many times
//!                            a generator ───┘                  └─► a writer
//! ```
//!
//! * [`Event`]: a request for ranges of bytes, or the acquire, release or invalidation of a recording.
//! * [`Reader`]: events and the summary: what was read, what was skipped and why, and the first requests as parsed, so that
//!   a wrong guess is seen at once.
//! * [`open()`]: a reader of a file in any [`Format`], compressed or not, and [`Cut`] for requests of limited size.
//! * [`Trace`]: events in 8 bytes a range, in pages, one list for each process.
//!
//! # Beside this crate
//!
//! [`tracesim`] replays traces; [`traces-record`] and what stands on it, [`mrrc-preload`] and [`traces-mpi`], record them
//! in running programs. Pages and ranges are those of [`mrrc_core`].
//!
//! [`tracesim`]: ../tracesim/index.html
//! [`traces-record`]: ../traces_record/index.html
//! [`mrrc-preload`]: ../mrrc_preload/index.html
//! [`traces-mpi`]: ../traces_mpi/index.html

mod ahead;
mod archive;
mod block;
mod columns;
mod compress;
mod cut;
mod detect;
mod error;
mod event;
mod file;
mod format;
mod formats;
mod frames;
pub mod generate;
mod layout;
mod number;
mod numbered;
mod open;
mod options;
mod parser;
mod reader;
mod recordings;
pub mod registrations;
mod source;
mod step;
mod step_list;
mod summary;
mod times;
mod trace;
pub mod write;

pub use block::BlockSize;
pub use columns::{Column, Columns, Field, Meaning};
pub use cut::{Cut, Larger};
pub use detect::{Guess, detect};
pub use error::TraceError;
pub use event::{Action, Event, Span, Spans};
pub use format::Format;
pub use open::{open, read};
pub use options::ReadOptions;
pub use reader::Reader;
pub use step::{Kind, Step};
pub use step_list::{Iter as StepIter, StepList};
pub use summary::{Skipped, Summary};
pub use times::TimeUnit;
pub use trace::{Process, Trace};

/// The README's example is one that runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
