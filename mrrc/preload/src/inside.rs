//! Whether this thread is inside the shim already.
//!
//! libibverbs calls itself through the dynamic linker (`ibv_reg_mr` calls `ibv_reg_mr_iova2`), so what the shim calls comes
//! back to the shim. A program's `malloc` may register what it hands out, and the shim allocates. In either case the inner
//! call goes straight on.

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// As long as this lives, calls of this thread go straight on.
pub(crate) struct Inside {
    was: bool,
    errno: i32,
}

impl Inside {
    /// None where this thread is inside already.
    pub(crate) fn enter() -> Option<Self> {
        (!INSIDE.get()).then(Self::again)
    }

    /// Whether it is inside or not.
    pub(crate) fn again() -> Self {
        Self { was: INSIDE.replace(true), errno: errno() }
    }

    /// What was done is of no concern to the program: `errno` is what it was.
    pub(crate) fn keep_errno(&self) {
        set_errno(self.errno);
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.was);
    }
}

#[expect(unsafe_code, reason = "the C library's errno")]
pub(crate) fn errno() -> i32 {
    // SAFETY: it points to this thread's own.
    unsafe { *libc::__errno_location() }
}

#[expect(unsafe_code, reason = "the C library's errno")]
pub(crate) fn set_errno(value: i32) {
    // SAFETY: it points to this thread's own.
    unsafe { *libc::__errno_location() = value };
}
