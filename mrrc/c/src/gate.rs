//! The gate between C and Rust: null pointers, panics and errors end here.
#![expect(unsafe_code, reason = "what C passes is pointers")]

use crate::status::mrrc_error_t;
use crate::status::mrrc_status_t::{self, *};
use mrrc::cache::{ChangeError, NoKey, OutsideArena, Unusable, WarmError};
use mrrc::{AcquireError, ArenaError, BuildError};
use std::any::Any;
use std::ffi::{CStr, c_char};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Why a call fails.
pub(crate) struct Failure {
    status: mrrc_status_t,
    system: i32,
    message: String,
}

impl Failure {
    #[cold]
    pub(crate) fn new(status: mrrc_status_t, message: impl Into<String>) -> Box<Self> {
        Box::new(Self { status, system: 0, message: message.into() })
    }

    #[cold]
    pub(crate) fn argument(message: impl Into<String>) -> Box<Self> {
        Self::new(MRRC_ERROR_ARGUMENT, message)
    }

    /// As `new`, with what the system said.
    #[cold]
    pub(crate) fn by(status: mrrc_status_t, source: &io::Error, message: impl Into<String>) -> Box<Self> {
        Box::new(Self { status, system: source.raw_os_error().unwrap_or(0), message: message.into() })
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    #[cold]
    fn panic(panic: Box<dyn Any + Send>) -> Box<Self> {
        let message = format!("the library panicked: {}: this is a fault of it", said(&*panic));
        // Its own end could panic.
        std::mem::forget(panic);
        Self::new(MRRC_ERROR_PANIC, message)
    }

    /// Tells the caller, if he wants to know more than the status.
    ///
    /// # Safety
    /// Null, or to be written to.
    #[cold]
    unsafe fn tell(&self, error: *mut mrrc_error_t) -> mrrc_status_t {
        if !error.is_null() {
            // SAFETY: the caller promises that `error` can be written if it is not null. Nothing is read there, and no
            // reference is made: it need not be initialised.
            unsafe {
                (&raw mut (*error).status).write(self.status);
                (&raw mut (*error).system).write(self.system);
                let room = (&raw mut (*error).message).cast::<c_char>();
                _ = write_text(&one_line(&self.message), room, size_of::<mrrc_error_t>() - 8);
            }
        }
        self.status
    }
}

const _: () = assert!(size_of::<mrrc_error_t>() == 1024 && std::mem::offset_of!(mrrc_error_t, message) == 8);

/// Returns the message of a panic.
pub(crate) fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}

fn one_line(message: &str) -> String {
    message.replace('\n', "; ")
}

/// Runs what a function does. Whatever happens there, C sees a status.
///
/// # Safety
/// `error` is null or can be written to.
#[inline]
pub(crate) unsafe fn guarded(
    error: *mut mrrc_error_t,
    call: impl FnOnce() -> Result<(), Box<Failure>>,
) -> mrrc_status_t {
    // Whatever a panic leaves half done is the cache's to know, and it does.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => MRRC_OK,
        // SAFETY: the caller promises that `error` is null or can be written, as `tell` requires.
        Ok(Err(failure)) => unsafe { failure.tell(error) },
        // SAFETY: the caller promises that `error` is null or can be written, as `tell` requires.
        Err(panic) => unsafe { Failure::panic(panic).tell(error) },
    }
}

/// As [`guarded`], for what returns nothing that could be wrong.
pub(crate) fn quietly<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        std::mem::forget(panic);
        otherwise
    })
}

/// Returns the value behind a pointer from C.
///
/// # Safety
/// It is null, or leads to what this library made, which is not freed before the answer was used.
#[inline]
pub(crate) unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Box<Failure>> {
    // SAFETY: the caller promises that it is null or leads to a live value of this library.
    match unsafe { pointer.as_ref() } {
        Some(value) => Ok(value),
        None => Err(null(name)),
    }
}

#[cold]
pub(crate) fn null(name: &str) -> Box<Failure> {
    Failure::argument(format!("{name} is NULL"))
}

/// Makes the pointer that a new thing is given by NULL, until there is one.
///
/// # Safety
/// It is null, or can be written to.
pub(crate) unsafe fn emptied<T>(place: *mut *mut T, name: &str) -> Result<*mut *mut T, Box<Failure>> {
    if place.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller promises that a place that is not null can be written.
    unsafe { place.write(ptr::null_mut()) };
    Ok(place)
}

/// A text of C's.
///
/// # Safety
/// It is null, or ends with 0, and does not change meanwhile.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Box<Failure>> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller promises a text that ends with 0; it is not null here.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|_| Failure::argument(format!("{name} is no UTF-8: {bytes:?}")))
}

/// Writes as much of a text as there is room for, always with a 0 behind it, and says how long it is.
///
/// # Safety
/// So many bytes can be written there.
pub(crate) unsafe fn write_text(text: &str, place: *mut c_char, room: usize) -> usize {
    // The text of a message has no 0 of its own, unless a caller put one in: the rest is lost then.
    if !place.is_null() && room > 0 {
        let fits = text.floor_char_boundary_of(room - 1);
        // SAFETY: the caller promises `room` writable bytes at `place`; `fits` and the 0 behind it are no more.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), place.cast::<u8>(), fits);
            place.add(fits).write(0);
        }
    }
    text.len()
}

/// `str::floor_char_boundary` is newer than the oldest compiler.
trait Boundary {
    fn floor_char_boundary_of(&self, most: usize) -> usize;
}

impl Boundary for str {
    fn floor_char_boundary_of(&self, most: usize) -> usize {
        if most >= self.len() {
            return self.len();
        }
        (0..=most).rev().find(|&at| self.is_char_boundary(at)).unwrap_or(0)
    }
}

impl From<WarmError> for Box<Failure> {
    #[cold]
    fn from(error: WarmError) -> Self {
        let message = error.to_string();
        match error {
            WarmError::Acquire(error) => Self::from(error),
            WarmError::Page { source, .. } => Failure::by(MRRC_ERROR_SYSTEM, &source, message),
            _ => Failure::new(MRRC_ERROR_SYSTEM, message),
        }
    }
}

impl From<Unusable> for Box<Failure> {
    #[cold]
    fn from(error: Unusable) -> Self {
        let status = match error {
            Unusable::Forked => MRRC_ERROR_FORKED,
            Unusable::Closed => MRRC_ERROR_CLOSED,
            Unusable::Draining(_) => MRRC_ERROR_DRAINING,
            _ => MRRC_ERROR_BROKEN,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<AcquireError> for Box<Failure> {
    #[cold]
    fn from(error: AcquireError) -> Self {
        let status = match &error {
            AcquireError::Range(_) | AcquireError::Finished { .. } | AcquireError::Blocks { .. } => MRRC_ERROR_ARGUMENT,
            AcquireError::Rights { .. } => MRRC_ERROR_RIGHTS,
            AcquireError::TooLarge { .. } => MRRC_ERROR_TOO_LARGE,
            // Both: release leases.
            AcquireError::AllInUse { .. } | AcquireError::TooManyLeases { .. } => MRRC_ERROR_ALL_IN_USE,
            AcquireError::DeregistrationFailed { .. } => MRRC_ERROR_DEREGISTRATION_FAILED,
            AcquireError::Register { source, .. } => {
                return Failure::by(MRRC_ERROR_REGISTER, source, error.to_string());
            }
            AcquireError::TimedOut { .. } => MRRC_ERROR_TIMED_OUT,
            AcquireError::Outside(_) => MRRC_ERROR_OUTSIDE,
            AcquireError::Unusable(unusable) => Self::from(*unusable).status,
            _ => MRRC_ERROR_SYSTEM,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<NoKey> for Box<Failure> {
    fn from(error: NoKey) -> Self {
        let status = match error {
            NoKey::Straddles { .. } => MRRC_ERROR_STRADDLES,
            NoKey::Forked => MRRC_ERROR_FORKED,
            _ => MRRC_ERROR_OUTSIDE,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<ChangeError> for Box<Failure> {
    fn from(error: ChangeError) -> Self {
        let status = match &error {
            ChangeError::Unusable(unusable) => Self::from(*unusable).status,
            _ => MRRC_ERROR_ARGUMENT,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<ArenaError> for Box<Failure> {
    fn from(error: ArenaError) -> Self {
        match &error {
            ArenaError::Memory { source, .. } => Failure::by(MRRC_ERROR_SYSTEM, source, error.to_string()),
            ArenaError::Unusable(unusable) => Failure::new(Self::from(*unusable).status, error.to_string()),
            _ => Failure::argument(error.to_string()),
        }
    }
}

impl From<OutsideArena> for Box<Failure> {
    fn from(error: OutsideArena) -> Self {
        Failure::new(MRRC_ERROR_OUTSIDE, error.to_string())
    }
}

impl From<BuildError> for Box<Failure> {
    fn from(error: BuildError) -> Self {
        let text = error.to_string();
        match &error {
            BuildError::Monitor { source, .. } | BuildError::System { source, .. } => {
                Failure::by(MRRC_ERROR_SYSTEM, source, text)
            }
            BuildError::Registrar { .. } => Failure::argument(text),
            _ => Failure::new(MRRC_ERROR_SETTING, text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(message: &str, room: usize) -> (String, usize) {
        let mut bytes = vec![0x7f as c_char; room + 1];
        // SAFETY: `bytes` has `room` writable bytes.
        let length = unsafe { write_text(message, bytes.as_mut_ptr(), room) };
        assert_eq!(bytes[room], 0x7f, "one past the end");
        // SAFETY: `write_text` ends every text with 0 if there is room for one.
        let text = if room > 0 { unsafe { CStr::from_ptr(bytes.as_ptr()) }.to_str().unwrap() } else { "" };
        (text.to_owned(), length)
    }

    #[test]
    fn texts_are_cut_at_character_ends() {
        assert_eq!(told("pages", 6), ("pages".into(), 5));
        assert_eq!(told("pages", 5), ("page".into(), 5));
        assert_eq!(told("pages", 1), (String::new(), 5));
        assert_eq!(told("pages", 0), (String::new(), 5));
        assert_eq!(told("5 µs", 4), ("5 ".into(), 5));
        // SAFETY: nothing is written to no place.
        assert_eq!(unsafe { write_text("pages", ptr::null_mut(), 9) }, 5);
    }

    #[test]
    fn a_panic_is_a_status_with_what_was_said() {
        let mut error = std::mem::MaybeUninit::<mrrc_error_t>::uninit();
        // SAFETY: `error` is a place of this test that can be written.
        let status = unsafe { guarded(error.as_mut_ptr(), || panic!("on purpose, {}", 7)) };
        // SAFETY: after a failure it is written.
        let error = unsafe { error.assume_init() };
        assert_eq!((status, error.status, error.system), (MRRC_ERROR_PANIC, MRRC_ERROR_PANIC, 0));
        // SAFETY: `tell` wrote a message that ends with 0.
        let message = unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_str().unwrap();
        assert!(message.contains("on purpose, 7"), "{message}");
        assert_eq!(quietly(3, || panic!("on purpose")), 3);
    }

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(one_line("first\nsecond"), "first; second");
    }
}
