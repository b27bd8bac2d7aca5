//! A memcached that any memcached client can use unchanged, and that RDMA clients read without its CPU.
//!
//! Decisions are pure and effects live at the edge. [`store`] is the cache: no sockets, no clocks. [`protocol`]
//! turns bytes into requests and never fails on noise otherwise than with memcached's own error line. [`session`]
//! is one conversation: bytes in, bytes out. [`server`] drives sessions over TCP, Unix sockets and UDP. [`rdma`] is the
//! face for RDMA clients, and [`item`] what they see of the store's memory. [`client`] is the other side of all that.
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
