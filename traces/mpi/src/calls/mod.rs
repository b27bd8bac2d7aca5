//! The functions that stand before MPI's. Every parameter is a word: what is an `int` or a handle is one half of it, or all.
#![allow(clippy::too_many_arguments, reason = "as many as MPI's have")]

mod collectives;
mod completion;
mod messages;
mod windows;

use crate::abi::Abi;
use crate::list::List;

/// Defines functions of MPI under both of their names, `MPI_` and `PMPI_`. The body has the call of the program to tell of its buffers,
/// and the function behind to call.
macro_rules! call {
    ($name:ident, $profiled:ident, $real:literal ($($argument:ident),*) |$call:ident, $behind:ident| $body:expr) => {
        const _: () = {
            #[expect(unsafe_code, reason = "a function of MPI")]
            #[allow(clippy::undocumented_unsafe_blocks, reason = "it is documented, which is not seen through two macros")]
            fn stand_before($($argument: usize),*) -> i32 {
                static REAL: crate::real::Real = crate::real::Real::new($real);
                let $behind = || {
                    // SAFETY: the function of that name has as many parameters, none of them wider than a word, and gets them
                    // as they came.
                    let function: extern "C" fn($(crate::calls::word!($argument)),*) -> i32 =
                        unsafe { std::mem::transmute(REAL.get()) };
                    function($($argument),*)
                };
                match crate::recording::enter(crate::recording::is_wide(stringify!($name))) {
                    Some($call) => $body,
                    None => $behind(),
                }
            }

            #[unsafe(no_mangle)]
            #[expect(unsafe_code, reason = "a function of MPI")]
            extern "C" fn $name($($argument: usize),*) -> i32 {
                stand_before($($argument),*)
            }

            #[unsafe(no_mangle)]
            #[expect(unsafe_code, reason = "a function of MPI")]
            extern "C" fn $profiled($($argument: usize),*) -> i32 {
                stand_before($($argument),*)
            }
        };
    };
}

/// The type of a parameter, whatever its name.
macro_rules! word {
    ($argument:ident) => {
        usize
    };
}

/// Defines several functions of one shape.
macro_rules! each {
    ($shape:ident: $($name:ident $profiled:ident $real:literal),* $(,)?) => {
        $($shape!($name, $profiled, $real);)*
    };
}

use {call, each, word};

/// Returns the handle at an address.
fn handle_at(address: usize) -> usize {
    Abi::of_process().handle(List::handles(address).get(0) as usize)
}
