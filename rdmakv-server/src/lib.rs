//! A memcached that stands on its own: any memcached client can use it unchanged.
//!
//! Decisions are pure and effects live at the edge. [`store`] is the cache: no sockets, no clocks. [`protocol`]
//! turns bytes into requests and never fails on noise otherwise than with memcached's own error line. [`session`]
//! is one conversation: bytes in, bytes out. [`server`] drives sessions over TCP, Unix sockets and UDP.

pub mod protocol;
pub mod server;
pub mod session;
pub mod store;
