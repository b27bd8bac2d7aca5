//! Messages between two ranks: blocking, immediate, persistent, matched and combined.

use super::{call, each, handle_at};
use crate::buffers::{NOTHING, READ, WRITE};

macro_rules! send {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, peer, tag, comm) |call, behind| {
            call.blocking([call.message([peer], buffer, count, kind, READ), NOTHING], &behind)
        }}
    };
}

each! { send:
    MPI_Send PMPI_Send c"PMPI_Send", MPI_Send_c PMPI_Send_c c"PMPI_Send_c",
    MPI_Bsend PMPI_Bsend c"PMPI_Bsend", MPI_Bsend_c PMPI_Bsend_c c"PMPI_Bsend_c",
    MPI_Ssend PMPI_Ssend c"PMPI_Ssend", MPI_Ssend_c PMPI_Ssend_c c"PMPI_Ssend_c",
    MPI_Rsend PMPI_Rsend c"PMPI_Rsend", MPI_Rsend_c PMPI_Rsend_c c"PMPI_Rsend_c",
}

macro_rules! receive {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, peer, tag, comm, status) |call, behind| {
            call.blocking([NOTHING, call.message([peer], buffer, count, kind, WRITE)], &behind)
        }}
    };
}

each! { receive: MPI_Recv PMPI_Recv c"PMPI_Recv", MPI_Recv_c PMPI_Recv_c c"PMPI_Recv_c" }

macro_rules! immediate_send {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, peer, tag, comm, request) |call, behind| {
            let used = [call.message([peer], buffer, count, kind, READ), NOTHING];
            call.immediate(used, &behind, &|| handle_at(request))
        }}
    };
}

each! { immediate_send:
    MPI_Isend PMPI_Isend c"PMPI_Isend", MPI_Isend_c PMPI_Isend_c c"PMPI_Isend_c",
    MPI_Ibsend PMPI_Ibsend c"PMPI_Ibsend", MPI_Ibsend_c PMPI_Ibsend_c c"PMPI_Ibsend_c",
    MPI_Issend PMPI_Issend c"PMPI_Issend", MPI_Issend_c PMPI_Issend_c c"PMPI_Issend_c",
    MPI_Irsend PMPI_Irsend c"PMPI_Irsend", MPI_Irsend_c PMPI_Irsend_c c"PMPI_Irsend_c",
}

macro_rules! immediate_receive {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, peer, tag, comm, request) |call, behind| {
            let used = [NOTHING, call.message([peer], buffer, count, kind, WRITE)];
            call.immediate(used, &behind, &|| handle_at(request))
        }}
    };
}

each! { immediate_receive: MPI_Irecv PMPI_Irecv c"PMPI_Irecv", MPI_Irecv_c PMPI_Irecv_c c"PMPI_Irecv_c" }

macro_rules! persistent_send {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, peer, tag, comm, request) |call, behind| {
            let used = [call.message([peer], buffer, count, kind, READ), NOTHING];
            call.persistent(used, &behind, &|| handle_at(request))
        }}
    };
}

each! { persistent_send:
    MPI_Send_init PMPI_Send_init c"PMPI_Send_init", MPI_Send_init_c PMPI_Send_init_c c"PMPI_Send_init_c",
    MPI_Bsend_init PMPI_Bsend_init c"PMPI_Bsend_init", MPI_Bsend_init_c PMPI_Bsend_init_c c"PMPI_Bsend_init_c",
    MPI_Ssend_init PMPI_Ssend_init c"PMPI_Ssend_init", MPI_Ssend_init_c PMPI_Ssend_init_c c"PMPI_Ssend_init_c",
    MPI_Rsend_init PMPI_Rsend_init c"PMPI_Rsend_init", MPI_Rsend_init_c PMPI_Rsend_init_c c"PMPI_Rsend_init_c",
}

macro_rules! persistent_receive {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, peer, tag, comm, request) |call, behind| {
            let used = [NOTHING, call.message([peer], buffer, count, kind, WRITE)];
            call.persistent(used, &behind, &|| handle_at(request))
        }}
    };
}

each! { persistent_receive:
    MPI_Recv_init PMPI_Recv_init c"PMPI_Recv_init", MPI_Recv_init_c PMPI_Recv_init_c c"PMPI_Recv_init_c",
}

macro_rules! matched {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, message, status) |call, behind| {
            call.blocking([NOTHING, call.look().message(buffer, call.count(count), kind, WRITE)], &behind)
        }}
    };
}

each! { matched: MPI_Mrecv PMPI_Mrecv c"PMPI_Mrecv", MPI_Mrecv_c PMPI_Mrecv_c c"PMPI_Mrecv_c" }

macro_rules! immediate_matched {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, message, request) |call, behind| {
            let used = [NOTHING, call.look().message(buffer, call.count(count), kind, WRITE)];
            call.immediate(used, &behind, &|| handle_at(request))
        }}
    };
}

each! { immediate_matched: MPI_Imrecv PMPI_Imrecv c"PMPI_Imrecv", MPI_Imrecv_c PMPI_Imrecv_c c"PMPI_Imrecv_c" }

macro_rules! combined {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (
            sent, sent_count, sent_kind, to, sent_tag, received, received_count, received_kind, from, received_tag, comm, status
        ) |call, behind| {
            let sent = call.message([to], sent, sent_count, sent_kind, READ);
            let received = call.message([from], received, received_count, received_kind, WRITE);
            call.blocking([sent, received], &behind)
        }}
    };
}

each! { combined: MPI_Sendrecv PMPI_Sendrecv c"PMPI_Sendrecv", MPI_Sendrecv_c PMPI_Sendrecv_c c"PMPI_Sendrecv_c" }

macro_rules! immediate_combined {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (
            sent, sent_count, sent_kind, to, sent_tag, received, received_count, received_kind, from, received_tag, comm, request
        ) |call, behind| {
            let sent = call.message([to], sent, sent_count, sent_kind, READ);
            let received = call.message([from], received, received_count, received_kind, WRITE);
            call.immediate([sent, received], &behind, &|| handle_at(request))
        }}
    };
}

each! { immediate_combined:
    MPI_Isendrecv PMPI_Isendrecv c"PMPI_Isendrecv", MPI_Isendrecv_c PMPI_Isendrecv_c c"PMPI_Isendrecv_c",
}

macro_rules! replaced {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, to, sent_tag, from, received_tag, comm, status) |call, behind| {
            call.blocking([call.message([to, from], buffer, count, kind, READ | WRITE), NOTHING], &behind)
        }}
    };
}

each! { replaced:
    MPI_Sendrecv_replace PMPI_Sendrecv_replace c"PMPI_Sendrecv_replace",
    MPI_Sendrecv_replace_c PMPI_Sendrecv_replace_c c"PMPI_Sendrecv_replace_c",
}

macro_rules! immediate_replaced {
    ($name:ident, $profiled:ident, $real:literal) => {
        call! { $name, $profiled, $real (buffer, count, kind, to, sent_tag, from, received_tag, comm, request) |call, behind| {
            let used = [call.message([to, from], buffer, count, kind, READ | WRITE), NOTHING];
            call.immediate(used, &behind, &|| handle_at(request))
        }}
    };
}

each! { immediate_replaced:
    MPI_Isendrecv_replace PMPI_Isendrecv_replace c"PMPI_Isendrecv_replace",
    MPI_Isendrecv_replace_c PMPI_Isendrecv_replace_c c"PMPI_Isendrecv_replace_c",
}
