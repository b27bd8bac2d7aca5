//! Arrays of numbers in the memory of the program.

use crate::abi::Abi;

/// Numbers that the program passed as an array: counts, displacements, handles.
#[derive(Clone, Copy)]
pub(crate) struct List {
    at: usize,
    width: usize,
}

impl List {
    /// Counts: of 64 bits, or `int`.
    pub(crate) fn counts(at: usize, wide: bool) -> Self {
        Self { at, width: if wide { 8 } else { 4 } }
    }

    /// Types or requests.
    pub(crate) fn handles(at: usize) -> Self {
        Self { at, width: Abi::of_process().handle_bytes() }
    }

    /// Returns the number of that place. Handles of 32 bits are without a sign.
    #[expect(unsafe_code, reason = "memory of the program")]
    pub(crate) fn get(self, at: usize) -> i64 {
        if self.at == 0 {
            return 0;
        }
        // SAFETY: the program passed an array of numbers of this width, one for each place that is asked for, by the standard.
        unsafe {
            match self.width {
                4 => i64::from((self.at as *const i32).add(at).read_unaligned()),
                _ => (self.at as *const i64).add(at).read_unaligned(),
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn of_ints(numbers: &[i32]) -> Self {
        Self { at: numbers.as_ptr() as usize, width: 4 }
    }
}
