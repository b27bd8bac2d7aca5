//! Collectives: blocking, immediate and persistent, by the part that this rank has in them.

use super::call;
use crate::buffers::{READ, WRITE};
use crate::list::List;
use crate::recording::{Call, int};

/// Defines the functions of a collective: those that block, those that start, and those that make a persistent request. The
/// latter have more parameters at the end.
macro_rules! collective {
    ($arguments:tt |$call:ident| $used:expr;
     $($name:ident $profiled:ident $real:literal),*;
     $($started:ident $started_profiled:ident $started_real:literal),*;
     $($kept:ident $kept_profiled:ident $kept_real:literal),* $(;)?) => {
        $(blocking!($name $profiled $real, $arguments, |$call| $used);)*
        $(immediate!($started $started_profiled $started_real, $arguments, |$call| $used);)*
        $(persistent!($kept $kept_profiled $kept_real, $arguments, |$call| $used);)*
    };
}

macro_rules! blocking {
    ($name:ident $profiled:ident $real:literal, ($($argument:ident),*), |$call:ident| $used:expr) => {
        call! { $name, $profiled, $real ($($argument),*) |$call, behind| {
            let used = $used;
            $call.blocking(used, &behind)
        }}
    };
}

macro_rules! immediate {
    ($name:ident $profiled:ident $real:literal, ($($argument:ident),*), |$call:ident| $used:expr) => {
        call! { $name, $profiled, $real ($($argument,)* request) |$call, behind| {
            let used = $used;
            $call.immediate(used, &behind, &|| super::handle_at(request))
        }}
    };
}

macro_rules! persistent {
    ($name:ident $profiled:ident $real:literal, ($($argument:ident),*), |$call:ident| $used:expr) => {
        call! { $name, $profiled, $real ($($argument,)* info, request) |$call, behind| {
            let used = $used;
            $call.persistent(used, &behind, &|| super::handle_at(request))
        }}
    };
}

/// Counts and displacements.
fn lists(call: &Call, counts: usize, displacements: usize) -> [List; 2] {
    [counts, displacements].map(|at| List::counts(at, call.wide))
}

/// Counts, displacements and types.
fn with_kinds(call: &Call, counts: usize, displacements: usize, kinds: usize) -> [List; 3] {
    let [counts, displacements] = lists(call, counts, displacements);
    [counts, displacements, List::handles(kinds)]
}

collective! {
    (buffer, count, kind, root, comm) |call| call.look().bcast(buffer, call.count(count), kind, int(root), comm);
    MPI_Bcast PMPI_Bcast c"PMPI_Bcast",
    MPI_Bcast_c PMPI_Bcast_c c"PMPI_Bcast_c";
    MPI_Ibcast PMPI_Ibcast c"PMPI_Ibcast",
    MPI_Ibcast_c PMPI_Ibcast_c c"PMPI_Ibcast_c";
    MPI_Bcast_init PMPI_Bcast_init c"PMPI_Bcast_init",
    MPI_Bcast_init_c PMPI_Bcast_init_c c"PMPI_Bcast_init_c";
}

collective! {
    (sent, sent_count, sent_kind, received, received_count, received_kind, root, comm) |call| call.look().gathering(
        comm,
        int(root),
        |look| look.message(sent, call.count(sent_count), sent_kind, READ),
        |look, group| look.gathered(received, call.count(received_count), received_kind, group, WRITE),
    );
    MPI_Gather PMPI_Gather c"PMPI_Gather",
    MPI_Gather_c PMPI_Gather_c c"PMPI_Gather_c";
    MPI_Igather PMPI_Igather c"PMPI_Igather",
    MPI_Igather_c PMPI_Igather_c c"PMPI_Igather_c";
    MPI_Gather_init PMPI_Gather_init c"PMPI_Gather_init",
    MPI_Gather_init_c PMPI_Gather_init_c c"PMPI_Gather_init_c";
}

collective! {
    (sent, sent_count, sent_kind, received, received_counts, displacements, received_kind, root, comm) |call| call.look().gathering(
        comm,
        int(root),
        |look| look.message(sent, call.count(sent_count), sent_kind, READ),
        |look, group| look.gathered_v(received, lists(&call, received_counts, displacements), received_kind, group, WRITE),
    );
    MPI_Gatherv PMPI_Gatherv c"PMPI_Gatherv",
    MPI_Gatherv_c PMPI_Gatherv_c c"PMPI_Gatherv_c";
    MPI_Igatherv PMPI_Igatherv c"PMPI_Igatherv",
    MPI_Igatherv_c PMPI_Igatherv_c c"PMPI_Igatherv_c";
    MPI_Gatherv_init PMPI_Gatherv_init c"PMPI_Gatherv_init",
    MPI_Gatherv_init_c PMPI_Gatherv_init_c c"PMPI_Gatherv_init_c";
}

collective! {
    (sent, sent_count, sent_kind, received, received_count, received_kind, root, comm) |call| call.look().scattering(
        comm,
        int(root),
        |look, group| look.gathered(sent, call.count(sent_count), sent_kind, group, READ),
        |look| look.message(received, call.count(received_count), received_kind, WRITE),
    );
    MPI_Scatter PMPI_Scatter c"PMPI_Scatter",
    MPI_Scatter_c PMPI_Scatter_c c"PMPI_Scatter_c";
    MPI_Iscatter PMPI_Iscatter c"PMPI_Iscatter",
    MPI_Iscatter_c PMPI_Iscatter_c c"PMPI_Iscatter_c";
    MPI_Scatter_init PMPI_Scatter_init c"PMPI_Scatter_init",
    MPI_Scatter_init_c PMPI_Scatter_init_c c"PMPI_Scatter_init_c";
}

collective! {
    (sent, sent_counts, displacements, sent_kind, received, received_count, received_kind, root, comm) |call| call.look().scattering(
        comm,
        int(root),
        |look, group| look.gathered_v(sent, lists(&call, sent_counts, displacements), sent_kind, group, READ),
        |look| look.message(received, call.count(received_count), received_kind, WRITE),
    );
    MPI_Scatterv PMPI_Scatterv c"PMPI_Scatterv",
    MPI_Scatterv_c PMPI_Scatterv_c c"PMPI_Scatterv_c";
    MPI_Iscatterv PMPI_Iscatterv c"PMPI_Iscatterv",
    MPI_Iscatterv_c PMPI_Iscatterv_c c"PMPI_Iscatterv_c";
    MPI_Scatterv_init PMPI_Scatterv_init c"PMPI_Scatterv_init",
    MPI_Scatterv_init_c PMPI_Scatterv_init_c c"PMPI_Scatterv_init_c";
}

collective! {
    (sent, sent_count, sent_kind, received, received_count, received_kind, comm) |call| call.look().among(
        comm,
        |look, _| look.message(sent, call.count(sent_count), sent_kind, READ),
        |look, group| look.gathered(received, call.count(received_count), received_kind, group, WRITE),
    );
    MPI_Allgather PMPI_Allgather c"PMPI_Allgather",
    MPI_Allgather_c PMPI_Allgather_c c"PMPI_Allgather_c";
    MPI_Iallgather PMPI_Iallgather c"PMPI_Iallgather",
    MPI_Iallgather_c PMPI_Iallgather_c c"PMPI_Iallgather_c";
    MPI_Allgather_init PMPI_Allgather_init c"PMPI_Allgather_init",
    MPI_Allgather_init_c PMPI_Allgather_init_c c"PMPI_Allgather_init_c";
}

collective! {
    (sent, sent_count, sent_kind, received, received_counts, displacements, received_kind, comm) |call| call.look().among(
        comm,
        |look, _| look.message(sent, call.count(sent_count), sent_kind, READ),
        |look, group| look.gathered_v(received, lists(&call, received_counts, displacements), received_kind, group, WRITE),
    );
    MPI_Allgatherv PMPI_Allgatherv c"PMPI_Allgatherv",
    MPI_Allgatherv_c PMPI_Allgatherv_c c"PMPI_Allgatherv_c";
    MPI_Iallgatherv PMPI_Iallgatherv c"PMPI_Iallgatherv",
    MPI_Iallgatherv_c PMPI_Iallgatherv_c c"PMPI_Iallgatherv_c";
    MPI_Allgatherv_init PMPI_Allgatherv_init c"PMPI_Allgatherv_init",
    MPI_Allgatherv_init_c PMPI_Allgatherv_init_c c"PMPI_Allgatherv_init_c";
}

collective! {
    (sent, sent_count, sent_kind, received, received_count, received_kind, comm) |call| call.look().among(
        comm,
        |look, group| look.gathered(sent, call.count(sent_count), sent_kind, group, READ),
        |look, group| look.gathered(received, call.count(received_count), received_kind, group, WRITE),
    );
    MPI_Alltoall PMPI_Alltoall c"PMPI_Alltoall",
    MPI_Alltoall_c PMPI_Alltoall_c c"PMPI_Alltoall_c";
    MPI_Ialltoall PMPI_Ialltoall c"PMPI_Ialltoall",
    MPI_Ialltoall_c PMPI_Ialltoall_c c"PMPI_Ialltoall_c";
    MPI_Alltoall_init PMPI_Alltoall_init c"PMPI_Alltoall_init",
    MPI_Alltoall_init_c PMPI_Alltoall_init_c c"PMPI_Alltoall_init_c";
}

collective! {
    (sent, sent_counts, sent_at, sent_kind, received, received_counts, received_at, received_kind, comm) |call| call.look().among(
        comm,
        |look, group| look.gathered_v(sent, lists(&call, sent_counts, sent_at), sent_kind, group, READ),
        |look, group| look.gathered_v(received, lists(&call, received_counts, received_at), received_kind, group, WRITE),
    );
    MPI_Alltoallv PMPI_Alltoallv c"PMPI_Alltoallv",
    MPI_Alltoallv_c PMPI_Alltoallv_c c"PMPI_Alltoallv_c";
    MPI_Ialltoallv PMPI_Ialltoallv c"PMPI_Ialltoallv",
    MPI_Ialltoallv_c PMPI_Ialltoallv_c c"PMPI_Ialltoallv_c";
    MPI_Alltoallv_init PMPI_Alltoallv_init c"PMPI_Alltoallv_init",
    MPI_Alltoallv_init_c PMPI_Alltoallv_init_c c"PMPI_Alltoallv_init_c";
}

collective! {
    (sent, sent_counts, sent_at, sent_kinds, received, received_counts, received_at, received_kinds, comm) |call| call.look().among(
        comm,
        |look, group| look.gathered_w(sent, with_kinds(&call, sent_counts, sent_at, sent_kinds), group, READ),
        |look, group| look.gathered_w(received, with_kinds(&call, received_counts, received_at, received_kinds), group, WRITE),
    );
    MPI_Alltoallw PMPI_Alltoallw c"PMPI_Alltoallw",
    MPI_Alltoallw_c PMPI_Alltoallw_c c"PMPI_Alltoallw_c";
    MPI_Ialltoallw PMPI_Ialltoallw c"PMPI_Ialltoallw",
    MPI_Ialltoallw_c PMPI_Ialltoallw_c c"PMPI_Ialltoallw_c";
    MPI_Alltoallw_init PMPI_Alltoallw_init c"PMPI_Alltoallw_init",
    MPI_Alltoallw_init_c PMPI_Alltoallw_init_c c"PMPI_Alltoallw_init_c";
}

collective! {
    (sent, received, count, kind, operation, root, comm) |call| call.look().gathering(
        comm,
        int(root),
        |look| look.message(sent, call.count(count), kind, READ),
        |look, _| look.message(received, call.count(count), kind, WRITE),
    );
    MPI_Reduce PMPI_Reduce c"PMPI_Reduce",
    MPI_Reduce_c PMPI_Reduce_c c"PMPI_Reduce_c";
    MPI_Ireduce PMPI_Ireduce c"PMPI_Ireduce",
    MPI_Ireduce_c PMPI_Ireduce_c c"PMPI_Ireduce_c";
    MPI_Reduce_init PMPI_Reduce_init c"PMPI_Reduce_init",
    MPI_Reduce_init_c PMPI_Reduce_init_c c"PMPI_Reduce_init_c";
}

collective! {
    (sent, received, count, kind, operation, comm) |call| [
        call.look().message(sent, call.count(count), kind, READ),
        call.look().message(received, call.count(count), kind, WRITE),
    ];
    MPI_Allreduce PMPI_Allreduce c"PMPI_Allreduce",
    MPI_Allreduce_c PMPI_Allreduce_c c"PMPI_Allreduce_c",
    MPI_Scan PMPI_Scan c"PMPI_Scan",
    MPI_Scan_c PMPI_Scan_c c"PMPI_Scan_c",
    MPI_Exscan PMPI_Exscan c"PMPI_Exscan",
    MPI_Exscan_c PMPI_Exscan_c c"PMPI_Exscan_c";
    MPI_Iallreduce PMPI_Iallreduce c"PMPI_Iallreduce",
    MPI_Iallreduce_c PMPI_Iallreduce_c c"PMPI_Iallreduce_c",
    MPI_Iscan PMPI_Iscan c"PMPI_Iscan",
    MPI_Iscan_c PMPI_Iscan_c c"PMPI_Iscan_c",
    MPI_Iexscan PMPI_Iexscan c"PMPI_Iexscan",
    MPI_Iexscan_c PMPI_Iexscan_c c"PMPI_Iexscan_c";
    MPI_Allreduce_init PMPI_Allreduce_init c"PMPI_Allreduce_init",
    MPI_Allreduce_init_c PMPI_Allreduce_init_c c"PMPI_Allreduce_init_c",
    MPI_Scan_init PMPI_Scan_init c"PMPI_Scan_init",
    MPI_Scan_init_c PMPI_Scan_init_c c"PMPI_Scan_init_c",
    MPI_Exscan_init PMPI_Exscan_init c"PMPI_Exscan_init",
    MPI_Exscan_init_c PMPI_Exscan_init_c c"PMPI_Exscan_init_c";
}

collective! {
    (sent, received, counts, kind, operation, comm) |call| call.look().among(
        comm,
        |look, group| look.summed(sent, List::counts(counts, call.wide), kind, group, READ),
        |look, group| look.message(received, List::counts(counts, call.wide).get(group.rank.max(0) as usize), kind, WRITE),
    );
    MPI_Reduce_scatter PMPI_Reduce_scatter c"PMPI_Reduce_scatter",
    MPI_Reduce_scatter_c PMPI_Reduce_scatter_c c"PMPI_Reduce_scatter_c";
    MPI_Ireduce_scatter PMPI_Ireduce_scatter c"PMPI_Ireduce_scatter",
    MPI_Ireduce_scatter_c PMPI_Ireduce_scatter_c c"PMPI_Ireduce_scatter_c";
    MPI_Reduce_scatter_init PMPI_Reduce_scatter_init c"PMPI_Reduce_scatter_init",
    MPI_Reduce_scatter_init_c PMPI_Reduce_scatter_init_c c"PMPI_Reduce_scatter_init_c";
}

collective! {
    (sent, received, count, kind, operation, comm) |call| call.look().among(
        comm,
        |look, group| look.gathered(sent, call.count(count), kind, group, READ),
        |look, _| look.message(received, call.count(count), kind, WRITE),
    );
    MPI_Reduce_scatter_block PMPI_Reduce_scatter_block c"PMPI_Reduce_scatter_block",
    MPI_Reduce_scatter_block_c PMPI_Reduce_scatter_block_c c"PMPI_Reduce_scatter_block_c";
    MPI_Ireduce_scatter_block PMPI_Ireduce_scatter_block c"PMPI_Ireduce_scatter_block",
    MPI_Ireduce_scatter_block_c PMPI_Ireduce_scatter_block_c c"PMPI_Ireduce_scatter_block_c";
    MPI_Reduce_scatter_block_init PMPI_Reduce_scatter_block_init c"PMPI_Reduce_scatter_block_init",
    MPI_Reduce_scatter_block_init_c PMPI_Reduce_scatter_block_init_c c"PMPI_Reduce_scatter_block_init_c";
}
