//! A memcached that any memcached client can use unchanged, and that RDMA clients read without its CPU.
//!
//! [`client`] is what programs use: a client of one or several servers, over fabrics and sockets. The server is a command,
//! `rdmakv-server`; the README says how it is run.
//!
//! # From inside
//!
//! Decisions are pure and effects live at the edge. [`store`] is the cache: no sockets, no clocks. [`protocol`]
//! turns bytes into requests and never fails on noise otherwise than with memcached's own error line. [`session`]
//! is one conversation: bytes in, bytes out. [`server`] drives sessions over TCP, Unix sockets and UDP. [`rdma`] is the
//! face for RDMA clients, and [`item`] what they see of the store's memory.
//!
//! Semantic versions are about [`client`], the commands and the features. All else is public for the programs, benchmarks and checks
//! beside this crate, and may change with any release; what goes over the wire has [versions of its own](rdma::wire).
//!
//! # Features
//!
//! By default `server`, `tls`, `client` and `cli`. For a program that uses the client alone: `--no-default-features --features client`.
//!
//! * `server`: the server and its command, `rdmakv-server`.
//! * `tls`: TLS for it, by rustls over ring; a C compiler builds it.
//! * `client`: the client library.
//! * `cli`: the command `rdmakv`.
//! * `verbs`, `verbs-linked`: RDMA devices, for server and client; see [`frrwp`]'s features of these names.
//!
//! # Beside this crate
//!
//! [`rdmakv-bench`] makes load for it, [`rdmakv-check`] proves its answers, [`benches`] measures it beside memcached.
//! Memory is registered through [`mrrc`], and the fabrics are [`frrwp`]'s.
//!
//! [`rdmakv-bench`]: ../rdmakv_bench/index.html
//! [`rdmakv-check`]: ../rdmakv_check/index.html
//! [`benches`]: ../benches/index.html
//! [`mrrc`]: ../mrrc/index.html
//! [`frrwp`]: ../frrwp/index.html

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
pub mod get_table;
pub mod item;
#[cfg(feature = "server")]
pub mod protocol;
pub mod rdma;
#[doc(hidden)]
pub mod sabotage;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod session;
#[cfg(feature = "server")]
pub mod store;

/// The version of this crate and of its programs. The memcached that the server speaks like has another, `session::VERSION`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
