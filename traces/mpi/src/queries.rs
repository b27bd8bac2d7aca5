//! Queries to MPI: the size of a type, the size of a group, the rank of this process.

use crate::abi::Abi;
use crate::buffers::{Group, Query, Shape};
use crate::real::Real;

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
