//! `LD_PRELOAD=libmrrc_preload.so program` gives a verbs program a cache of its memory registrations.
//!
//! The program calls `ibv_reg_mr` and `ibv_dereg_mr` as ever. This library stands between it and libibverbs, keeps
//! what the program deregisters registered, and gives it back when it registers the same memory again. `README.md` is
//! the manual: what is cached and what is not, the variables, and what to know about security.
//!
//! # The files
//!
//! | | |
//! | --- | --- |
//! | `exports.rs` | the functions that programs call, and the beginning and end of a process |
//! | `treatment.rs` | which registrations can be cached: a decision, and nothing else |
//! | `process.rs`, `domain.rs` | what is known of a process, and of each protection domain in it |
//! | `worth.rs` | when a cache stands aside |
//! | `shadow.rs` | the `ibv_mr` that a program gets |
//! | `pinner.rs` | the registrar of the caches: libibverbs |
//! | `reregister.rs` | registrations that are changed |
//! | `real.rs`, `abi.rs` | libibverbs' functions, found at run time, and its structures |
//! | `dlsym.rs` | for programs that ask libibverbs for its functions |
//! | `inside.rs`, `fork.rs`, `stack.rs` | calls that come from the shim itself, processes that are children, threads with little stack |
//! | `settings.rs`, `lineage.rs`, `tally.rs`, `summary.rs` | variables, and the report of wrong ones; counters, and what is told at the end |
//! | `recording.rs`, `unmapped.rs` | what the program asks for, into a file, and what becomes of that memory |
//!
//! # Beside this crate
//!
//! The cache is [`mrrc`], the recorder [`traces-record`]; [`tracesim`] runs programs under this library and advises on
//! variables. [`mrrc-c`] is for programs that can be changed.
//!
//! [`mrrc`]: ../mrrc/index.html
//! [`traces-record`]: ../traces_record/index.html
//! [`tracesim`]: ../tracesim/index.html
//! [`mrrc-c`]: ../mrrc_c/index.html

#![cfg_attr(test, allow(dead_code, reason = "programs call what is exported, and tests of this library are none"))]

mod abi;
mod dlsym;
mod domain;
mod exports;
mod fork;
mod inside;
mod lineage;
mod pinner;
mod process;
mod real;
mod recording;
mod reregister;
mod settings;
mod shadow;
mod stack;
mod summary;
mod tally;
mod treatment;
mod unmapped;
mod worth;
