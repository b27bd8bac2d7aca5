//! The fabrics: what is different between them.

pub(super) mod iwarp;
pub(super) mod shm;
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
pub(super) mod verbs;
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
pub(super) mod windows;
