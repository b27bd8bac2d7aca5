//! The C interface of [`mrrc`]: what `include/mrrc.h` declares.
//!
//! For programs in C and C++, and whatever else calls C. This crate is built as a shared and a static library. `mrrc/c/install`
//! puts them where C programs look, as `libmrrc.so.0` and `libmrrc.a`, with the header and a file for pkg-config. Rust programs
//! use [`mrrc`] itself. The README beside this crate teaches the interface; the header says of each function what it promises.
//! It is generated from the documentation here, which is therefore written for C programmers.
//!
//! ```c
//! mrrc_cache_t *cache;
//! mrrc_error_t error;
//! if (mrrc_cache_new_io_uring(NULL, ring_fd, 1024, &cache, &error) != MRRC_OK)
//!     errx(1, "%s", error.message);
//! mrrc_lease_t lease;
//! if (mrrc_acquire(cache, buffer, length, MRRC_LOCAL, &lease, &error) != MRRC_OK)
//!     errx(1, "%s", error.message);
//! mrrc_segment_t part;
//! mrrc_segments(&lease, &part, 1); /* part.lkey is the index of the fixed buffer */
//! mrrc_release(&lease);
//! mrrc_cache_free(cache);
//! ```
//!
//! # How it is made
//!
//! A cache in Rust has its registrar as a type. Here all have one, the *edge*, which is a table of callbacks, a ring or a
//! protection domain. Every function goes through one gate, where panics end and errors become a status and a message. A
//! lease is written into the caller's own memory, so a hit allocates nothing. Its seal is the address where it lies: so a
//! lease that was released, copied or never acquired is told apart from a held one.
//!
//! | | |
//! | --- | --- |
//! | `status.rs`, `gate.rs` | what a call returns; where panics and null pointers end |
//! | `access.rs` | rights |
//! | `options.rs` | settings |
//! | `callbacks.rs`, `edge.rs` | registrars: the program's own, and all kinds as one |
//! | `cache.rs` | caches |
//! | `lease.rs` | acquire, segments, release |
//! | `begun.rs` | acquiring in two steps |
//! | `changes.rs` | memory that changes: invalidate, reap, flush |
//! | `arena.rs` | memory of the cache's own |
//! | `report.rs` | counters, latencies, explain |
//!
//! # Beside this crate
//!
//! [`mrrc-preload`] is for programs that cannot be changed; [`frrwp`] has peers register at once, from Rust.
//!
//! [`mrrc-preload`]: ../mrrc_preload/index.html
//! [`frrwp`]: ../frrwp/index.html

#![allow(missing_debug_implementations, reason = "these are C's: opaque there, or plain fields")]
#![allow(non_camel_case_types, reason = "types have the names by which C knows them")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header's comment states what callers have to keep, and each function the rest"
)]

mod access;
mod arena;
mod begun;
mod cache;
mod callbacks;
mod changes;
mod edge;
mod gate;
mod lease;
mod options;
mod report;
mod status;

pub use access::*;
pub use arena::*;
pub use begun::*;
pub use cache::*;
pub use callbacks::*;
pub use changes::*;
pub use lease::*;
pub use options::*;
pub use report::*;
pub use status::*;
