//! The two binary interfaces of MPI.

use crate::real::find;
use std::sync::OnceLock;

/// How handles are passed and stored, and the numbers that differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Abi {
    /// Handles are pointers.
    OpenMpi,
    /// Handles are integers of 32 bits.
    Mpich,
}

impl Abi {
    /// Returns the one that the program uses.
    #[inline]
    pub(crate) fn of_process() -> Self {
        static ABI: OnceLock<Abi> = OnceLock::new();
        let look = || if find(c"ompi_mpi_comm_world").is_null() { Self::Mpich } else { Self::OpenMpi };
        *ABI.get_or_init(look)
    }

    /// Bytes of a handle in an array.
    pub(crate) fn handle_bytes(self) -> usize {
        match self {
            Self::OpenMpi => size_of::<usize>(),
            Self::Mpich => size_of::<i32>(),
        }
    }

    /// Returns a handle as it was passed, without what stands beside it in its register.
    pub(crate) fn handle(self, passed: usize) -> usize {
        match self {
            Self::OpenMpi => passed,
            Self::Mpich => passed as u32 as usize,
        }
    }

    /// `MPI_PROC_NULL`.
    pub(crate) fn nobody(self) -> i64 {
        match self {
            Self::OpenMpi => -2,
            Self::Mpich => -1,
        }
    }

    /// `MPI_ROOT`.
    pub(crate) fn root(self) -> i64 {
        match self {
            Self::OpenMpi => -4,
            Self::Mpich => -3,
        }
    }
}
