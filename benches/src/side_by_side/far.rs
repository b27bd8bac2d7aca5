//! The measurements that have a process at the other end, by name.

use super::{fabric, handshake};
use crate::pin;

/// Runs as the process at the other end, until its input ends.
///
/// # Errors
/// Why a far end is missing.
pub fn run(arguments: &[std::ffi::OsString]) -> Result<(), String> {
    let arguments: Vec<_> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    let done = match arguments[..] {
        [cpu, kind, ref rest @ ..] => cpu.parse().map_err(Into::into).and_then(|cpu| {
            pin::pin(cpu)?;
            match kind {
                "shm" => fabric::shm::far(),
                "iwarp" => fabric::iwarp::far(rest),
                "crowd" => fabric::many::far(rest),
                "handshake" => handshake::remote::run(rest),
                _ => Err("nothing of that name".into()),
            }
        }),
        _ => Err("which end?".into()),
    };
    done.map_err(|error| format!("the process at the other end: {error}"))
}
