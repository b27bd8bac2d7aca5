//! The devices whose memory windows were tried, and what came out. Each is tried once in a process.

use crate::abi::Context;
use crate::real::Real;
use mrrc::registrar::windows::{Verdict, try_windows};
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// Devices that are remembered.
const MOST: usize = 64;

/// See the [module](self).
pub(crate) struct Devices {
    tried: Mutex<Vec<(String, Verdict)>>,
    /// Writes one line for the user.
    report: fn(&str),
}

impl Devices {
    pub(crate) fn new(report: fn(&str)) -> Self {
        Self { tried: Mutex::default(), report }
    }

    /// Returns whether windows serve registrations on the device of a context, and with atomic operations. The first call for a
    /// device tries it, and reports where they do not.
    ///
    /// # Safety
    /// The context is open.
    #[expect(unsafe_code, reason = "the calls of libibverbs")]
    pub(crate) unsafe fn windows(&self, real: &'static Real, context: NonNull<Context>) -> Option<bool> {
        // SAFETY: the caller promises that the context is open; libibverbs' names of devices are texts that end.
        let name = unsafe {
            let device = context.as_ref().device;
            let name = real.device_name.map_or(std::ptr::null(), |name| name(device));
            if name.is_null() { format!("{device:p}") } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
        };
        // Held through the trial: another thread that asks for the same device waits for its end.
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tried.iter().find(|(of, _)| *of == name).map(|&(_, verdict)| verdict);
        let verdict = known.unwrap_or_else(|| {
            // SAFETY: the caller promises that the context is open.
            let verdict = unsafe { try_windows(real.of_windows(), context.cast()) };
            if let Some(line) = line(&name, verdict) {
                (self.report)(&line);
            }
            if tried.len() < MOST {
                tried.push((name, verdict));
            }
            verdict
        });
        match verdict {
            Verdict::Hold { atomics } => Some(atomics),
            Verdict::Fail(_) | Verdict::Untried(..) => None,
        }
    }
}

/// Returns the line for the user where windows do not serve.
fn line(name: &str, verdict: Verdict) -> Option<String> {
    let why = verdict.refusal(name)?;
    Some(format!("{why}; registrations with rights for peers are passed on (MRRC_PRELOAD_REMOTE=off avoids the trial)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_fails_is_named_with_its_reason() {
        assert_eq!(line("rxe0", Verdict::Hold { atomics: true }), None);
        let failed = line("rxe0", Verdict::Fail("are missing")).unwrap();
        assert!(failed.starts_with("the memory windows of rxe0 are missing; "), "{failed}");
        let untried = line("rxe0", Verdict::Untried("open the device", libc::ENOMEM)).unwrap();
        assert!(untried.contains("could not be tried: open the device: Cannot allocate"), "{untried}");
    }
}
