//! Calls that start, complete and free requests, and the start of MPI.
//!
//! MPI overwrites the handles of what it completes, so they are read before the call.

use super::{call, handle_at};
use crate::abi::Abi;
use crate::list::List;
use crate::recording::{Call, int};
use crate::requests;

/// Handles of a list that need no memory from the heap.
const FEW: usize = 64;

/// Lends the handles of a list, as they are now.
fn with_handles<T>(count: usize, at: usize, then: impl FnOnce(&[usize]) -> T) -> T {
    let count = usize::try_from(int(count)).unwrap_or(0);
    let (list, abi) = (List::handles(at), Abi::of_process());
    let handle = |nth| abi.handle(list.get(nth) as usize);
    if count <= FEW {
        let mut few = [0; FEW];
        few[..count].iter_mut().enumerate().for_each(|(nth, place)| *place = handle(nth));
        return then(&few[..count]);
    }
    then(&(0..count).map(handle).collect::<Vec<_>>())
}

/// These are completed.
fn complete(call: &Call, handles: impl IntoIterator<Item = usize>) {
    handles.into_iter().for_each(|handle| call.release(requests::complete(handle)));
}

/// Returns the `int` at an address.
fn int_at(address: usize) -> i64 {
    List::counts(address, false).get(0)
}

/// Returns those of a list whose handles were overwritten by a call that failed.
fn overwritten(before: &[usize], at: usize) -> impl Iterator<Item = usize> {
    let (list, abi) = (List::handles(at), Abi::of_process());
    before
        .iter()
        .enumerate()
        .filter(move |&(nth, &handle)| abi.handle(list.get(nth) as usize) != handle)
        .map(|(_, &h)| h)
}

call! { MPI_Wait, PMPI_Wait, c"PMPI_Wait" (request, status) |call, behind| {
    let handle = handle_at(request);
    let result = behind();
    if result == 0 {
        complete(&call, [handle]);
    }
    result
}}

call! { MPI_Test, PMPI_Test, c"PMPI_Test" (request, flag, status) |call, behind| {
    let handle = handle_at(request);
    let result = behind();
    if result == 0 && int_at(flag) != 0 {
        complete(&call, [handle]);
    }
    result
}}

call! { MPI_Waitall, PMPI_Waitall, c"PMPI_Waitall" (count, requests, statuses) |call, behind| {
    with_handles(count, requests, |handles| {
        let result = behind();
        if result == 0 {
            complete(&call, handles.iter().copied());
        } else {
            complete(&call, overwritten(handles, requests));
        }
        result
    })
}}

call! { MPI_Testall, PMPI_Testall, c"PMPI_Testall" (count, requests, flag, statuses) |call, behind| {
    with_handles(count, requests, |handles| {
        let result = behind();
        if result == 0 && int_at(flag) != 0 {
            complete(&call, handles.iter().copied());
        }
        result
    })
}}

/// Returns the one that an index names, unless it is `MPI_UNDEFINED`.
fn indexed(handles: &[usize], index: i64) -> Option<usize> {
    usize::try_from(index).ok().and_then(|index| handles.get(index)).copied()
}

call! { MPI_Waitany, PMPI_Waitany, c"PMPI_Waitany" (count, requests, index, status) |call, behind| {
    with_handles(count, requests, |handles| {
        let result = behind();
        if result == 0 {
            complete(&call, indexed(handles, int_at(index)));
        }
        result
    })
}}

call! { MPI_Testany, PMPI_Testany, c"PMPI_Testany" (count, requests, index, flag, status) |call, behind| {
    with_handles(count, requests, |handles| {
        let result = behind();
        if result == 0 && int_at(flag) != 0 {
            complete(&call, indexed(handles, int_at(index)));
        }
        result
    })
}}

/// Those that a list of indices names.
fn some(call: &Call, handles: &[usize], done: i64, indices: usize) {
    let indices = List::counts(indices, false);
    complete(call, (0..usize::try_from(done).unwrap_or(0)).filter_map(|nth| indexed(handles, indices.get(nth))));
}

call! { MPI_Waitsome, PMPI_Waitsome, c"PMPI_Waitsome" (count, requests, done, indices, statuses) |call, behind| {
    with_handles(count, requests, |handles| {
        let result = behind();
        if result == 0 {
            some(&call, handles, int_at(done), indices);
        }
        result
    })
}}

call! { MPI_Testsome, PMPI_Testsome, c"PMPI_Testsome" (count, requests, done, indices, statuses) |call, behind| {
    with_handles(count, requests, |handles| {
        let result = behind();
        if result == 0 {
            some(&call, handles, int_at(done), indices);
        }
        result
    })
}}

call! { MPI_Request_free, PMPI_Request_free, c"PMPI_Request_free" (request) |call, behind| {
    let handle = handle_at(request);
    let result = behind();
    if result == 0 {
        call.release(requests::free(handle));
    }
    result
}}

call! { MPI_Start, PMPI_Start, c"PMPI_Start" (request) |call, behind| {
    call.acquire(requests::start(handle_at(request)));
    behind()
}}

call! { MPI_Startall, PMPI_Startall, c"PMPI_Startall" (count, requests) |call, behind| {
    let (list, abi) = (List::handles(requests), Abi::of_process());
    for nth in 0..usize::try_from(int(count)).unwrap_or(0) {
        call.acquire(requests::start(abi.handle(list.get(nth) as usize)));
    }
    behind()
}}

// The recording is begun before MPI is, which may register memory of its own.
call! { MPI_Init, PMPI_Init, c"PMPI_Init" (argc, argv) |_call, behind| behind() }

call! { MPI_Init_thread, PMPI_Init_thread, c"PMPI_Init_thread" (argc, argv, required, provided) |_call, behind| behind() }
