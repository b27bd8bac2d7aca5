//! libibverbs as Rust sees it: the one module that names the crate behind it.
//!
//! Feature `verbs` takes `rdma-mummy-sys`, which opens libibverbs when the program starts. The binary runs where
//! there is no libibverbs as well, and a call reports that. Feature `verbs-linked` takes `rdma-sys`, which links with
//! it. **Where both are on, `verbs` wins**, and nothing is linked. Both are made by bindgen from the same headers,
//! and have the same names but for those that are macros in C. These are here by the name that C has.
//!
//! For programs that set up queue pairs beside a [`Domain`](super::Domain). This module changes with the crates behind
//! it.
//!
//! ```no_run
//! use mrrc::registrar::verbs::{Domain, binding as ib};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let domain = Domain::open("rxe0")?;
//! let context = domain.context().cast::<ib::ibv_context>().as_ptr();
//! // SAFETY: the context is open as long as the domain.
//! let completions = unsafe { ib::ibv_create_cq(context, 16, std::ptr::null_mut(), std::ptr::null_mut(), 0) };
//! assert!(!completions.is_null(), "ibv_create_cq: {}", std::io::Error::last_os_error());
//! // … queue pairs with `ibv_create_qp`, in `domain.protection_domain().cast::<ib::ibv_pd>()` …
//! // SAFETY: it has no user any more; it goes before the domain.
//! unsafe { ib::ibv_destroy_cq(completions) };
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "verbs")]
pub use rdma_mummy_sys::*;
#[cfg(not(feature = "verbs"))]
pub use rdma_sys::*;

#[cfg(feature = "verbs")]
pub use rdma_mummy_sys::ibv_query_port as query_port;
#[cfg(not(feature = "verbs"))]
pub use rdma_sys::___ibv_query_port as query_port;

/// The crate behind it.
pub const NAME: &str = if cfg!(feature = "verbs") { "rdma-mummy-sys" } else { "rdma-sys" };

/// Whether libibverbs may be missing at run time.
pub const OPENS_AT_RUN_TIME: bool = cfg!(feature = "verbs");
