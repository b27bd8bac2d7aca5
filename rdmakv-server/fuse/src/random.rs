//! Random numbers.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a random number.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    // Before the kernel has randomness, the standard library's will do.
    match got {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => RandomState::new().build_hasher().finish(),
    }
}
