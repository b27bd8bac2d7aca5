//! The TLS state of sessions: how certificates are read again, and the outcomes of handshakes. The connections are the
//! server's.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The TLS state of sessions.
pub struct Tls {
    /// How certificates and keys are read again.
    pub read_again: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// When they were last read, in Unix seconds.
    pub refreshed: AtomicU64,
    /// Handshakes that failed.
    pub handshake_errors: AtomicU64,
    /// Handshakes that were done.
    pub handshakes: AtomicU64,
}

impl Tls {
    /// No handshake was made yet.
    pub fn new(read_again: Box<dyn Fn() -> Result<(), String> + Send + Sync>, now: u64) -> Self {
        let [handshake_errors, handshakes] = [0; 2].map(AtomicU64::new);
        Self { read_again, refreshed: AtomicU64::new(now), handshake_errors, handshakes }
    }

    /// Reads certificates and keys again.
    ///
    /// # Errors
    ///
    /// The fault of them; the old ones stay in use.
    pub fn refresh(&self, now: u64) -> Result<(), String> {
        (self.read_again)()?;
        self.refreshed.store(now, Relaxed);
        Ok(())
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("refreshed", &self.refreshed).finish_non_exhaustive()
    }
}
