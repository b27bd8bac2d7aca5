//! Whether this thread is inside the shim already.
//!
//! libibverbs calls itself through the dynamic linker (`ibv_reg_mr` calls `ibv_reg_mr_iova2`), so what the shim calls comes
//! back to the shim. A program's `malloc` may register what it hands out, and the shim allocates. In either case the inner
//! call goes straight on.
//!
//! A thread that is inside cannot be cancelled (`pthread_cancel`). The shim may pass a point of cancellation, which
//! libibverbs' own function is not, and a cancellation would unwind frames that cannot be unwound.

#![expect(unsafe_code, reason = "the C library's state of this thread")]

use std::cell::Cell;
use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLED: c_int = 1;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// As long as this lives, calls of this thread go straight on.
pub(crate) struct Inside {
    was: bool,
    cancellation: c_int,
    errno: c_int,
}

impl Inside {
    /// None where this thread is inside already.
    pub(crate) fn enter() -> Option<Self> {
        (!INSIDE.get()).then(Self::again)
    }

    /// Returns whether it is inside or not.
    pub(crate) fn again() -> Self {
        let (mut cancellation, errno) = (0, errno());
        // SAFETY: `cancellation` is a local integer that the call may write.
        unsafe { pthread_setcancelstate(DISABLED, &mut cancellation) };
        Self { was: INSIDE.replace(true), cancellation, errno }
    }

    /// Restores `errno`, which is the program's: `errno` is what it was.
    pub(crate) fn keep_errno(&self) {
        set_errno(self.errno);
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.was);
        // SAFETY: it restores the former state, and null is no place for the present one.
        unsafe { pthread_setcancelstate(self.cancellation, std::ptr::null_mut()) };
    }
}

pub(crate) fn errno() -> i32 {
    // SAFETY: it points to this thread's own.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: i32) {
    // SAFETY: it points to this thread's own.
    unsafe { *libc::__errno_location() = value };
}
