//! From a call of MPI to events: nesting, and the records written.
//!
//! MPI calls MPI: a Fortran wrapper its C function, a file operation a broadcast. Only the outermost call of a thread is
//! recorded.

use crate::abi::Abi;
use crate::buffers::{Buffer, Look, NOTHING, Used};
use crate::queries::Mpi;
use crate::requests::{self, of};
use std::cell::Cell;
use traces_record::layout::Operation;
use traces_record::{Recorder, Source};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A call of the program that is recorded.
pub(crate) struct Call {
    recorder: &'static Recorder,
    /// Counts are 64 bits wide.
    pub(crate) wide: bool,
}

/// Begins a call: none if nothing is recorded, or it is MPI that calls.
#[inline]
pub(crate) fn enter(wide: bool) -> Option<Call> {
    let recorder = traces_record::of_process(Source::Mpi)?;
    // A thread that is ending is not recorded any more.
    (!INSIDE.try_with(|inside| inside.replace(true)).ok()?).then_some(Call { recorder, wide })
}

impl Drop for Call {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }
}

/// Returns whether the name of a function ends with `_c`: its counts are `MPI_Count`.
pub(crate) const fn is_wide(name: &str) -> bool {
    let name = name.as_bytes();
    matches!(name, [.., b'_', b'c'])
}

impl Call {
    /// Returns the lookup of used buffers.
    pub(crate) fn look(&self) -> Look<'static, Mpi> {
        Look { ask: &Mpi }
    }

    /// Returns a number that was passed where the function has a count.
    pub(crate) fn count(&self, passed: usize) -> i64 {
        if self.wide { passed as i64 } else { int(passed) }
    }

    /// Returns the buffer of a message that one of these ranks sends or gets. `MPI_PROC_NULL` does neither: beyond the edge of a
    /// grid, say.
    pub(crate) fn message<const N: usize>(
        &self,
        peers: [usize; N],
        base: usize,
        count: usize,
        kind: usize,
        access: u8,
    ) -> Buffer {
        let nobody = Abi::of_process().nobody();
        if peers.into_iter().all(|peer| int(peer) == nobody) {
            return NOTHING;
        }
        self.look().message(base, self.count(count), kind, access)
    }

    fn tell(&self, operation: Operation, used: Used) {
        for buffer in of(used) {
            self.recorder.record(operation, buffer.access, buffer.address, buffer.length);
        }
    }

    /// A call that returns when the buffers are free again.
    pub(crate) fn blocking(&self, used: Used, call: &dyn Fn() -> i32) -> i32 {
        self.tell(Operation::Request, used);
        call()
    }

    /// A call that starts something. `handle` reads the request that it has written.
    pub(crate) fn immediate(&self, used: Used, call: &dyn Fn() -> i32, handle: &dyn Fn() -> usize) -> i32 {
        self.tell(Operation::Acquire, used);
        let result = call();
        let over = if result == 0 { requests::begin(handle(), used, false) } else { used };
        self.tell(Operation::Release, over);
        result
    }

    /// A call that makes a persistent request.
    pub(crate) fn persistent(&self, used: Used, call: &dyn Fn() -> i32, handle: &dyn Fn() -> usize) -> i32 {
        let result = call();
        if result == 0 {
            self.tell(Operation::Release, requests::begin(handle(), used, true));
        }
        result
    }

    /// Memory is in use from now on.
    pub(crate) fn acquire(&self, used: Used) {
        self.tell(Operation::Acquire, used);
    }

    /// Memory is in use no more.
    pub(crate) fn release(&self, used: Used) {
        self.tell(Operation::Release, used);
    }
}

/// Returns a number that was passed where the function has an `int`: what stands beside it in its register is not its.
#[inline]
pub(crate) fn int(passed: usize) -> i64 {
    i64::from(passed as i32)
}
