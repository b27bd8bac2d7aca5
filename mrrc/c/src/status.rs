//! Status codes and error messages.

use std::ffi::{CStr, c_char};

/// The outcome of a call. Others may be added.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum mrrc_status_t {
    /// Done.
    MRRC_OK = 0,
    /// An argument makes no sense: NULL where something is needed, no bytes, a right that there is not.
    MRRC_ERROR_ARGUMENT = 1,
    /// A setting, of the options or of the environment, makes no sense.
    MRRC_ERROR_SETTING = 2,
    /// The lease is none: it was released, or never acquired, or it is a copy of one.
    MRRC_ERROR_LEASE = 3,
    /// The registrar does not grant such rights.
    MRRC_ERROR_RIGHTS = 4,
    /// The request alone is more than the cache may ever register. Acquire it in pieces, or raise the capacity.
    MRRC_ERROR_TOO_LARGE = 5,
    /// All that could make room is in use by leases: release some, or set capacity_timeout.
    MRRC_ERROR_ALL_IN_USE = 6,
    /// The registrar refused to register the memory: `system` has its error, EFAULT for memory that is not there.
    MRRC_ERROR_REGISTER = 7,
    /// Evicted regions that could not be deregistered take the room.
    MRRC_ERROR_DEREGISTRATION_FAILED = 8,
    /// Another thread took too long to register a part of this request, or retired regions take the room and were not
    /// deregistered in time. The message has the reason. Try again, or set wait_timeout.
    MRRC_ERROR_TIMED_OUT = 9,
    /// The range is not inside of the arena.
    MRRC_ERROR_OUTSIDE = 10,
    /// This process was forked from the one that made the cache: make one here.
    MRRC_ERROR_FORKED = 11,
    /// The cache was freed, and what is left of it is an arena.
    MRRC_ERROR_CLOSED = 12,
    /// A monitor does not come to an end with a change of memory: try again.
    MRRC_ERROR_DRAINING = 13,
    /// The cache is in doubt after a panic: make a new one.
    MRRC_ERROR_BROKEN = 14,
    /// The ring or the device cannot be registered with.
    MRRC_ERROR_DEVICE = 15,
    /// The system refused something else: `system` has its error.
    MRRC_ERROR_SYSTEM = 16,
    /// This library was built without that, or the cache made without it.
    MRRC_ERROR_UNSUPPORTED = 17,
    /// A fault of the library, which went no further than this call. Please report it, with what was printed to stderr.
    MRRC_ERROR_PANIC = 18,
    /// The place for the new lease has one that is held, and keeps it: release that first, or give another place.
    MRRC_ERROR_HELD = 19,
    /// Several registrations have these bytes of a lease together: the segment that was written is the part that the first has.
    MRRC_ERROR_STRADDLES = 20,
}

/// Why a call failed: memory of the caller's, written when a call fails, and only then. It needs no initialisation and is
/// not to be freed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mrrc_error_t {
    /// The result of the call.
    pub status: mrrc_status_t,
    /// The errno of the system or of a callback, where there was one; else 0.
    pub system: i32,
    /// The operation, its object, the cause and the remedy: UTF-8, one line that ends with 0. A longer text is cut.
    pub message: [c_char; 1016],
}

/// Returns a status in a few words. Never NULL, never freed; for any number.
#[expect(unsafe_code, reason = "a symbol of the C interface")]
#[unsafe(no_mangle)]
pub extern "C" fn mrrc_status_text(status: i32) -> *const c_char {
    use mrrc_status_t::*;
    let text = |known: mrrc_status_t, text: &'static CStr| (known as i32 == status).then_some(text);
    let found = text(MRRC_OK, c"done")
        .or(text(MRRC_ERROR_ARGUMENT, c"an argument makes no sense"))
        .or(text(MRRC_ERROR_SETTING, c"a setting makes no sense"))
        .or(text(MRRC_ERROR_LEASE, c"not a lease: released already, never acquired, or a copy"))
        .or(text(MRRC_ERROR_RIGHTS, c"the registrar does not grant such rights"))
        .or(text(MRRC_ERROR_TOO_LARGE, c"larger than the capacity of the cache"))
        .or(text(MRRC_ERROR_ALL_IN_USE, c"everything that could make room is in use"))
        .or(text(MRRC_ERROR_REGISTER, c"the registrar refused the memory"))
        .or(text(MRRC_ERROR_DEREGISTRATION_FAILED, c"what left the cache could not be deregistered"))
        .or(text(MRRC_ERROR_TIMED_OUT, c"another thread took too long"))
        .or(text(MRRC_ERROR_OUTSIDE, c"outside of the arena"))
        .or(text(MRRC_ERROR_FORKED, c"the cache is that of the parent process"))
        .or(text(MRRC_ERROR_CLOSED, c"the cache was freed"))
        .or(text(MRRC_ERROR_DRAINING, c"a change of memory is not dealt with"))
        .or(text(MRRC_ERROR_BROKEN, c"the cache is in doubt after a panic"))
        .or(text(MRRC_ERROR_DEVICE, c"the ring or the device cannot be registered with"))
        .or(text(MRRC_ERROR_SYSTEM, c"the system refused"))
        .or(text(MRRC_ERROR_UNSUPPORTED, c"the library or the cache was made without that"))
        .or(text(MRRC_ERROR_PANIC, c"a fault of the library"))
        .or(text(MRRC_ERROR_HELD, c"a lease is held in the place of the new one"))
        .or(text(MRRC_ERROR_STRADDLES, c"several registrations have these bytes together"));
    found.unwrap_or(c"not a status of mrrc").as_ptr()
}

/// The version of this header.
pub const MRRC_VERSION_MAJOR: i32 = 0;
/// The version of this header.
pub const MRRC_VERSION_MINOR: i32 = 1;
/// The version of this header.
pub const MRRC_VERSION_PATCH: i32 = 0;

/// The version of the library, as "0.1.0". Never freed.
#[expect(unsafe_code, reason = "a symbol of the C interface")]
#[unsafe(no_mangle)]
pub extern "C" fn mrrc_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
