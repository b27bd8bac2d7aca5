//! `LD_PRELOAD=libmrrc_preload.so program` gives a verbs program a cache of its memory registrations.
//!
//! The program calls `ibv_reg_mr` and `ibv_dereg_mr` as ever. This library stands between it and libibverbs, keeps
//! what the program deregisters registered, and gives it back when it registers the same memory again. `README.md` is
//! the manual: what is cached and what is not, the variables, and what to know about security.
//!
//! # The files
//!
//! A module imports only modules below its line; `.ci/imports.txt` has the order.
//!
//! | | |
//! | --- | --- |
//! | `dlsym.rs` | lookups of libibverbs' functions at run time |
//! | `exports.rs` | the functions that programs call, and the beginning and end of a process |
//! | `recording.rs`, `unmapped.rs` | a recording of the program's registrations, and of what becomes of their memory |
//! | `reregister.rs` | registrations that are changed |
//! | `summary.rs`, `output.rs` | the summary at the end, and its file |
//! | `metrics.rs` | the counters as a file for Prometheus |
//! | `process.rs` | the state of a process: settings, protection domains, counters |
//! | `domain.rs` | a protection domain and its caches |
//! | `shadow.rs` | the `ibv_mr` that a program gets |
//! | `devices.rs` | whether a device's memory windows hold |
//! | `pinner.rs` | the registrar of the caches: libibverbs |
//! | `stats.rs` | counters, and the budget of all caches |
//! | `settings.rs`, `lineage.rs` | variables; whether the parent process reported the wrong ones |
//! | `eligibility.rs` | the registrations that can be cached: a pure decision |
//! | `benefit.rs` | when a cache stands aside: a pure decision |
//! | `reentrancy.rs`, `fork.rs`, `stack.rs` | calls from the shim itself, child processes, threads with little stack |
//! | `real.rs`, `symbols.rs`, `abi.rs` | libibverbs' functions, found at run time, and its structures |
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
mod benefit;
mod devices;
mod dlsym;
mod domain;
mod eligibility;
mod exports;
mod fork;
mod lineage;
mod metrics;
mod output;
mod pinner;
mod process;
mod real;
mod recording;
mod reentrancy;
mod reregister;
mod settings;
mod shadow;
mod stack;
mod stats;
mod summary;
mod symbols;
mod unmapped;
