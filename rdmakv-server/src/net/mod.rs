//! Sessions on real sockets: TCP, TLS, Unix and UDP.

mod conn;
mod datagrams;
pub(crate) mod listen;
pub(crate) mod membership;
pub(crate) mod tls;
pub(crate) mod worker;
