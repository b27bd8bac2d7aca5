//! A program run under a library that records it.
//!
//! ```text
//! libraries: which are preloaded ─┐
//!                                 ├─► child: the program, with its signals and its end ─► the recording's head
//! traces_record: an empty file ───┘
//! ```

pub mod child;
pub mod libraries;
