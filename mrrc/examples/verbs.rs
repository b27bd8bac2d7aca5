//! The keys of an RDMA device for memory that the program has: what a work request and a peer are told of it.
//!
//! It needs a device: `rdma link show` lists them, and any Linux can have one in software
//! (`modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`).
//!
//! ```text
//! cargo run -p mrrc --features verbs --example verbs -- rxe0
//! ```
#![expect(unsafe_code, reason = "memory is lent to a device")]

use mrrc::registrar::verbs::{Domain, Verbs, VerbsError};
use mrrc::{Access, Cache};
use std::error::Error;
use std::ffi::c_void;
use std::process::ExitCode;
use std::ptr::NonNull;

fn main() -> ExitCode {
    let domain = match std::env::args().nth(1) {
        Some(name) => Domain::open(&name),
        None => Domain::first(),
    };
    match domain.map_err(Into::into).and_then(|domain| run(&domain)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The errors of the crate say what to do; `{:?}`, which `main` would print, does not.
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(domain: &Domain) -> Result<(), Box<dyn Error>> {
    let cache = Cache::builder(Verbs::new(domain)?).build()?;
    let buffer = vec![7_u8; 64 * 1024];
    println!("device {}", domain.device());
    for what in ["at first", "again"] {
        let attempts = cache.counters().attempts;
        // SAFETY: the buffer outlives the lease, and has no other user meanwhile.
        let lease = unsafe { cache.acquire(buffer.as_ptr(), buffer.len(), Access::LOCAL | Access::REMOTE_READ) }?;
        for part in lease.segments() {
            // An `ibv_sge` takes address, length and lkey; a peer's work request takes address and rkey.
            let (address, length, keys) = (part.address(), part.len(), part.registration());
            println!("{what}: {address:?}, {length} bytes, lkey {:#x}, rkey {:#x}", keys.lkey(), keys.rkey());
        }
        let registered = if cache.counters().attempts > attempts { "registered now" } else { "was registered" };
        println!("{what}: {registered}");
        // The lease lives until the completion of the work request was seen. Dropping it deregisters nothing.
    }
    Ok(())
}

/// For a program that has queue pairs, and so a protection domain, already: its `struct ibv_pd *`, by whatever binding it came.
///
/// # Safety
/// It stays open until the cache over it is dropped, and all clones of the domain.
#[expect(dead_code, reason = "to copy from")]
unsafe fn cache_over(pd: NonNull<c_void>) -> Result<Cache<Verbs>, Box<dyn Error>> {
    // SAFETY: the caller promises an open protection domain that outlives the cache, as `borrow` requires.
    let domain: Result<Domain, VerbsError> = unsafe { Domain::borrow(pd) };
    Ok(Cache::builder(Verbs::new(&domain?)?).build()?)
}
