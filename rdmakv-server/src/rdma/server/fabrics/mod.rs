//! The fabrics: what is different between them.

pub(super) mod iwarp;
pub(super) mod shm;
