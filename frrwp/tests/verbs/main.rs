//! The provider over RDMA devices: both ends of connections in one process, and a peer in another that is killed.
//!
//! Which device: see `common/device.rs`. The ignored tests are for the lab, where devices can be taken away.
#![cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
#![allow(unsafe_code, reason = "memory is registered and posted by address")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/device.rs"]
mod device;
mod ends;
mod errors;
mod held;
mod killed;
mod leaving;
mod memory;
mod removed;
mod rights;
mod traffic;
mod windows;
