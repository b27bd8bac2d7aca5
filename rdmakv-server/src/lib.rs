//! A memcached that any memcached client can use unchanged, and that RDMA clients read without its CPU.
//!
//! The server is a command, `rdmakv-server`; the README says how it is run. Programs use [`rdmakv-client`].
//!
//! # From inside
//!
//! Decisions are pure and effects live at the edge. [`store`] is the cache: no sockets, no clocks. [`commands`](rdmakv_proto::commands)
//! turns bytes into requests and never fails on noise otherwise than with memcached's own error line. [`session`]
//! is one conversation: bytes in, bytes out. `net` drives sessions over TCP, Unix sockets and UDP. [`fabric`] is the
//! transport of RDMA clients, and an [item](rdmakv_proto::item) what they see of the store's memory.
//!
//! Semantic versions are about the command and the features. The modules are public for rdmakv's other crates and the benches, and may
//! change with any release; what goes over the wire has [versions of its own](rdmakv_proto::messages).
//!
//! # Features
//!
//! * `tls`, by default: TLS by rustls over ring; a C compiler builds it.
//! * `bpf`: GETs over UDP answered in the kernel (`--xdp`); see [`rdmakv-bpf`]. Linux, with clang, libelf and zlib to build it.
//! * `verbs`, `verbs-linked`: RDMA devices; see [`frrwp`]'s features of these names.
//!
//! # Beside this crate
//!
//! [`rdmakv-client`] is its client, [`rdmakv-bench`] makes load for it, [`rdmakv-check`] proves its answers, [`benches`] measures it beside memcached.
//! Memory is registered through [`mrrc`], and the fabrics are [`frrwp`]'s.
//!
//! [`rdmakv-bpf`]: ../rdmakv_bpf/index.html
//! [`rdmakv-client`]: ../rdmakv_client/index.html
//! [`rdmakv-bench`]: ../rdmakv_bench/index.html
//! [`rdmakv-check`]: ../rdmakv_check/index.html
//! [`benches`]: ../benches/index.html
//! [`mrrc`]: ../mrrc/index.html
//! [`frrwp`]: ../frrwp/index.html

pub mod disk;
pub mod fabric;
mod http;
mod kernel;
pub mod log;
pub mod metrics;
mod net;
pub mod session;
pub mod startup;
pub mod store;

/// The version of this crate and of its programs. The memcached that the server speaks like has another, `session::VERSION`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns how many times as much noise as usual is wanted: `NOISE=1000`.
#[cfg(test)]
pub(crate) fn noise_times() -> u64 {
    std::env::var("NOISE").map_or(1, |times| times.parse().expect("NOISE is a number"))
}
