//! Queries to MPI: the size of a type, the size of a group, the rank of this process.

use crate::buffers::{Group, Query, Shape};
use crate::real::{Real, find};
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
    fn root(self) -> i64 {
        match self {
            Self::OpenMpi => -4,
            Self::Mpich => -3,
        }
    }
}

/// The MPI of this process.
pub(crate) struct Mpi;

type Word = usize;

/// Calls a function of MPI that writes numbers, and says whether it succeeded.
macro_rules! query {
    ($name:literal($($argument:expr),*): $($kind:ty),*) => {{
        static REAL: Real = Real::new($name);
        #[expect(unsafe_code, reason = "a function of MPI")]
        // SAFETY: it has these parameters, by the standard; the pointers are to numbers of the kind that it writes, which live
        // through the call, and the handles are those that the program passed.
        unsafe {
            let function: extern "C" fn($($kind),*) -> i32 = std::mem::transmute(REAL.get());
            function($($argument),*) == 0
        }
    }};
}

impl Query for Mpi {
    fn shape(&self, kind: usize) -> Option<Shape> {
        let [mut lower, mut extent, mut true_lower, mut true_extent] = [0_isize; 4];
        let known = query!(c"PMPI_Type_get_extent"(kind, &mut lower, &mut extent): Word, &mut isize, &mut isize)
            && query!(c"PMPI_Type_get_true_extent"(kind, &mut true_lower, &mut true_extent): Word, &mut isize, &mut isize);
        let [extent, lower, bytes] = [extent, true_lower, true_extent].map(|number| number as i64);
        known.then_some(Shape { extent, lower, bytes })
    }

    fn group(&self, comm: usize) -> Option<Group> {
        let [mut inter, mut rank, mut size] = [0_i32; 3];
        let known = query!(c"PMPI_Comm_test_inter"(comm, &mut inter): Word, &mut i32)
            && query!(c"PMPI_Comm_rank"(comm, &mut rank): Word, &mut i32)
            && if inter == 0 {
                query!(c"PMPI_Comm_size"(comm, &mut size): Word, &mut i32)
            } else {
                query!(c"PMPI_Comm_remote_size"(comm, &mut size): Word, &mut i32)
            };
        let root = Abi::of_process().root();
        known.then_some(Group { size: size.into(), rank: rank.into(), inter: (inter != 0).then_some(root) })
    }
}
