//! Windows, and what is put into them, got out of them and accumulated in them.
//!
//! A window is acquired with all rights for as long as it lives. The buffers on this side of an operation count as released at once,
//! unless it has a request.

use super::{call, each, handle_at};
use crate::buffers::{Buffer, NOTHING, READ, WRITE};
use crate::list::List;
use crate::recording::Call;
use crate::windows;

/// Returns a word at an address: a pointer that MPI wrote.
fn word_at(address: usize) -> usize {
    List::counts(address, true).get(0) as usize
}

fn acquire(call: &Call, piece: Option<Buffer>) {
    call.acquire([piece.unwrap_or(NOTHING), NOTHING]);
}

fn release(call: &Call, piece: Option<Buffer>) {
    call.release([piece.unwrap_or(NOTHING), NOTHING]);
}

macro_rules! created {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (base, bytes, unit, info, comm, window) |call, behind| {
            let result = behind();
            if result == 0 {
                acquire(&call, windows::add(handle_at(window), base, bytes as i64));
            }
            result
        }}
    };
}

each! { created: MPI_Win_create PMPI_Win_create c"PMPI_Win_create", MPI_Win_create_c PMPI_Win_create_c c"PMPI_Win_create_c" }

macro_rules! allocated {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (bytes, unit, info, comm, base, window) |call, behind| {
            let result = behind();
            if result == 0 {
                acquire(&call, windows::add(handle_at(window), word_at(base), bytes as i64));
            }
            result
        }}
    };
}

each! { allocated:
    MPI_Win_allocate PMPI_Win_allocate c"PMPI_Win_allocate",
    MPI_Win_allocate_c PMPI_Win_allocate_c c"PMPI_Win_allocate_c",
    MPI_Win_allocate_shared PMPI_Win_allocate_shared c"PMPI_Win_allocate_shared",
    MPI_Win_allocate_shared_c PMPI_Win_allocate_shared_c c"PMPI_Win_allocate_shared_c",
}

call! { MPI_Win_attach, PMPI_Win_attach, c"PMPI_Win_attach" (window, base, bytes) |call, behind| {
    let result = behind();
    if result == 0 {
        acquire(&call, windows::add(crate::abi::Abi::of_process().handle(window), base, bytes as i64));
    }
    result
}}

call! { MPI_Win_detach, PMPI_Win_detach, c"PMPI_Win_detach" (window, base) |call, behind| {
    let result = behind();
    if result == 0 {
        release(&call, windows::remove(crate::abi::Abi::of_process().handle(window), base));
    }
    result
}}

call! { MPI_Win_free, PMPI_Win_free, c"PMPI_Win_free" (window) |call, behind| {
    let handle = handle_at(window);
    let result = behind();
    if result == 0 {
        while let Some(piece) = windows::free(handle) {
            release(&call, Some(piece));
        }
    }
    result
}}

macro_rules! put {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, rank, at, target_count, target_kind, window) |call, behind| {
            call.blocking([call.message([rank], buffer, count, kind, READ), NOTHING], &behind)
        }}
    };
}

each! { put: MPI_Put PMPI_Put c"PMPI_Put", MPI_Put_c PMPI_Put_c c"PMPI_Put_c" }

macro_rules! get {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, rank, at, target_count, target_kind, window) |call, behind| {
            call.blocking([NOTHING, call.message([rank], buffer, count, kind, WRITE)], &behind)
        }}
    };
}

each! { get: MPI_Get PMPI_Get c"PMPI_Get", MPI_Get_c PMPI_Get_c c"PMPI_Get_c" }

macro_rules! accumulate {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (
            buffer, count, kind, rank, at, target_count, target_kind, operation, window
        ) |call, behind| {
            call.blocking([call.message([rank], buffer, count, kind, READ), NOTHING], &behind)
        }}
    };
}

each! { accumulate:
    MPI_Accumulate PMPI_Accumulate c"PMPI_Accumulate", MPI_Accumulate_c PMPI_Accumulate_c c"PMPI_Accumulate_c",
}

macro_rules! get_accumulate {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (
            buffer, count, kind, result, result_count, result_kind, rank, at, target_count, target_kind, operation, window
        ) |call, behind| {
            let sent = call.message([rank], buffer, count, kind, READ);
            let received = call.message([rank], result, result_count, result_kind, WRITE);
            call.blocking([sent, received], &behind)
        }}
    };
}

each! { get_accumulate:
    MPI_Get_accumulate PMPI_Get_accumulate c"PMPI_Get_accumulate",
    MPI_Get_accumulate_c PMPI_Get_accumulate_c c"PMPI_Get_accumulate_c",
}

call! { MPI_Fetch_and_op, PMPI_Fetch_and_op, c"PMPI_Fetch_and_op" (
    buffer, result, kind, rank, at, operation, window
) |call, behind| {
    let used = [call.message([rank], buffer, 1, kind, READ), call.message([rank], result, 1, kind, WRITE)];
    call.blocking(used, &behind)
}}

call! { MPI_Compare_and_swap, PMPI_Compare_and_swap, c"PMPI_Compare_and_swap" (
    buffer, compared, result, kind, rank, at, window
) |call, behind| {
    let used = [call.message([rank], buffer, 1, kind, READ), call.message([rank], result, 1, kind, WRITE)];
    call.blocking(used, &behind)
}}

macro_rules! started_put {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (
            buffer, count, kind, rank, at, target_count, target_kind, window, request
        ) |call, behind| {
            let used = [call.message([rank], buffer, count, kind, READ), NOTHING];
            call.immediate(used, &behind, &|| handle_at(request))
        }}
    };
}

each! { started_put: MPI_Rput PMPI_Rput c"PMPI_Rput", MPI_Rput_c PMPI_Rput_c c"PMPI_Rput_c" }

macro_rules! started_get {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (
            buffer, count, kind, rank, at, target_count, target_kind, window, request
        ) |call, behind| {
            let used = [NOTHING, call.message([rank], buffer, count, kind, WRITE)];
            call.immediate(used, &behind, &|| handle_at(request))
        }}
    };
}

each! { started_get: MPI_Rget PMPI_Rget c"PMPI_Rget", MPI_Rget_c PMPI_Rget_c c"PMPI_Rget_c" }

macro_rules! started_accumulate {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (
            buffer, count, kind, rank, at, target_count, target_kind, operation, window, request
        ) |call, behind| {
            let used = [call.message([rank], buffer, count, kind, READ), NOTHING];
            call.immediate(used, &behind, &|| handle_at(request))
        }}
    };
}

each! { started_accumulate:
    MPI_Raccumulate PMPI_Raccumulate c"PMPI_Raccumulate", MPI_Raccumulate_c PMPI_Raccumulate_c c"PMPI_Raccumulate_c",
}

macro_rules! started_get_accumulate {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (
            buffer, count, kind, result, result_count, result_kind, rank, at, target_count, target_kind, operation, window, request
        ) |call, behind| {
            let sent = call.message([rank], buffer, count, kind, READ);
            let received = call.message([rank], result, result_count, result_kind, WRITE);
            call.immediate([sent, received], &behind, &|| handle_at(request))
        }}
    };
}

each! { started_get_accumulate:
    MPI_Rget_accumulate PMPI_Rget_accumulate c"PMPI_Rget_accumulate",
    MPI_Rget_accumulate_c PMPI_Rget_accumulate_c c"PMPI_Rget_accumulate_c",
}
