//! Calibrates the fixed buffers of an io_uring: a ring of its own, with a small table.

use super::{Calibration, Failure};

#[cfg(target_os = "linux")]
pub(super) fn measure(rounds: u32) -> Result<Calibration, Failure> {
    use mrrc::registrar::io_uring::IoUringBuffers;
    use std::io;

    // One of them is used at a time.
    const SLOTS: u32 = 8;
    let refused = |error: &io::Error| {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "; see that kernel.io_uring_disabled is 0 and that no seccomp filter (a container's) keeps the call out"
            }
            io::ErrorKind::Unsupported => "; that takes Linux 5.19 or later",
            _ => "",
        };
        Failure::work(format_args!("calibrate: setting up an io_uring: {error}{remedy}"))
    };
    let ring = io_uring::IoUring::new(4).map_err(|error| match error.raw_os_error() {
        // No such system call.
        Some(38) => refused(&io::ErrorKind::Unsupported.into()),
        _ => refused(&error),
    })?;
    let table = IoUringBuffers::new(&ring, SLOTS).map_err(|error| Failure::work(format_args!("calibrate: {error}")))?;
    super::measure_one(&table, rounds)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn measure(_: u32) -> Result<Calibration, Failure> {
    Err(Failure::work("calibrate: there is no io_uring here: run it on Linux, 5.19 or later"))
}
