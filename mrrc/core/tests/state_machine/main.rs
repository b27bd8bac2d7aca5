//! Random requests, leases and invalidations: the core against a naive model of MRRC, and every policy
//! against what must hold for all of them.
//!
//! The number of cases is chosen so that the whole takes seconds. To search for longer:
//!
//! ```text
//! MRRC_CASES=100000 cargo test --release -p mrrc --test state_machine
//! ```
//!
//! A failure is shrunk to its shortest form, printed, and remembered under `proptest-regressions`, from
//! where it is tried first the next time.

mod against_naive;
mod every_policy;
mod ledger;
mod naive;
mod once_failed;
mod world;

/// As many cases as the environment asks for, or a default.
fn cases(default: u32) -> u32 {
    match std::env::var("MRRC_CASES") {
        Ok(text) => text.parse().expect("MRRC_CASES is a number"),
        Err(_) => default,
    }
}
