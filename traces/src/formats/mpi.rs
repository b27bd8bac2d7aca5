//! `mpi`: `t_us,op,peer,addr_hex,bytes` without a header: the buffers that one rank of an MPI program used.

use crate::layout::NO_BYTES;
use crate::number::{decimal, fields, hex, time};
use crate::parser::{self, Outcome, Parser};
use crate::{Event, Span};
use mrrc_core::Access;
use std::collections::VecDeque;

pub(crate) struct Mpi;

impl Parser for Mpi {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        if line.is_empty() {
            return Outcome::Other;
        }
        let Some(([at, op, _, address, bytes], false)) = fields(line) else {
            return Outcome::Bad("it has not five fields");
        };
        let Some(access) = access(op) else { return Outcome::Bad("the operation is none of MPI's") };
        let Some(at) = time(at, 1000) else { return Outcome::Bad("the time is no number") };
        let Some(address) = hex(address) else { return Outcome::Bad("the address is no hexadecimal number") };
        match decimal(bytes) {
            // MPI sends empty messages, too: nothing is registered for them.
            Some(0) => Outcome::LeftOut(NO_BYTES),
            Some(length) => parser::request(at, 0, access, Span { address, length }),
            None => Outcome::Bad("the length is no number"),
        }
    }

    fn understood(&self) -> String {
        "times in microseconds; sends are read from, receives written to, collectives both".into()
    }
}

/// Returns the access of an operation to its buffer.
fn access(op: &[u8]) -> Option<Access> {
    const SENDS: [&[u8]; 11] = [
        b"send",
        b"isend",
        b"bsend",
        b"ibsend",
        b"ssend",
        b"issend",
        b"rsend",
        b"irsend",
        b"put",
        b"rput",
        b"send_init",
    ];
    const RECEIVES: [&[u8]; 6] = [b"recv", b"irecv", b"mrecv", b"get", b"rget", b"recv_init"];
    const COLLECTIVES: [&[u8]; 12] = [
        b"bcast",
        b"reduce",
        b"scan",
        b"exscan",
        b"gather",
        b"scatter",
        b"alltoall",
        b"allgather",
        b"allreduce",
        b"reduce_scatter",
        b"sendrecv",
        b"accumulate",
    ];
    if SENDS.contains(&op) {
        return Some(Access::LOCAL_READ);
    }
    if RECEIVES.contains(&op) {
        return Some(Access::LOCAL_WRITE);
    }
    // Their variants: `ibcast`, `alltoallv`, `reduce_scatter_block`.
    let plain = op.strip_prefix(b"i").unwrap_or(op);
    COLLECTIVES.iter().any(|known| plain.starts_with(known)).then_some(Access::LOCAL)
}
