//! The interface of systemd: sockets that it opened (`LISTEN_FDS`), notices when the server serves and when it ends
//! (`NOTIFY_SOCKET`), and a sign of life (`WATCHDOG_USEC`). Without systemd nothing of this does anything.

use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use sd_notify::NotifyState;
use socket2::Socket;

/// Returns the sockets that were opened for us, each with its `FileDescriptorName=`. To be called once.
///
/// # Errors
///
/// The announced sockets are not there.
pub(super) fn sockets() -> Result<Vec<(Socket, String)>, String> {
    let passed = sd_notify::listen_fds_with_names().map_err(|error| format!("LISTEN_FDS: {error}"))?;
    let mut sockets = Vec::new();
    for (number, name) in passed {
        #[expect(unsafe_code, reason = "descriptors that were inherited belong to nobody yet")]
        // SAFETY: the descriptor is open, or marking it close-on-exec would have failed; it has no other owner, as this
        // is called once.
        let owned = unsafe { OwnedFd::from_raw_fd(number) };
        sockets.push((Socket::from(owned), name));
    }
    Ok(sockets)
}

/// How often a sign of life is wanted, if at all.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Clients are served.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The end has begun.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Every worker comes round.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

fn tell(states: &[NotifyState<'_>]) {
    // A supervisor that does not listen misses it.
    let _ = sd_notify::notify(states);
}
