//! The *eager limit*: values of at most so many bytes travel in messages, longer ones by transfers. A server has one on each fabric, and tells
//! its clients.
//!
//! A message is copied several times, and cut into fragments of 6 KiB; a transfer is copied once or not at all, and costs a handshake. Where
//! the one gets better than the other is measured by
//!
//! ```text
//! side-by-side kv --only crossover
//! ```
//!
//! Of a message and of a transfer, µs for a request, eight under way at a time on a connection, and the server's CPU in brackets; 5 rounds on
//! two hyperthreads of an AMD EPYC under Linux 6.18:
//!
//! | | 8 KiB | 16 KiB | 32 KiB | 64 KiB |
//! | --- | ---: | ---: | ---: | ---: |
//! | GET, `iwarp` | 222 (28), 436 (54) | 330 (41), 508 (63) | 638 (79), 708 (87) | 1132 (140), 930 (114) |
//! | SET, `iwarp` | 172 (22), 682 (51) | 253 (32), 716 (53) | 334 (42), 626 (54) | overlap |
//! | GET, `shm` | 37 (5), 48 (6) | 71 (9), 79 (10) | 140 (18), 149 (19) | 278 (35), 284 (36) |
//! | SET, `shm` | overlap | 76 (10), 80 (5) | 146 (18), 148 (12) | 287 (36), 297 (20) |
//!
//! One request at a time says the same, with more of it for messages, as most of that is waking; so does a GET whose size the client does
//! not know, which has to be told first. Over `iwarp` messages are better up to 32 KiB, and transfers from 64 KiB on. Over shared memory
//! messages are the faster ones up to 64 KiB, but by 2 % there, and a SET by transfer takes a third less of the server's CPU from 16 KiB on:
//! 32 KiB lies between. Devices move transfers without a copy by either CPU, and were not measured: under emulation times say nothing.

/// The limit on a fabric, by its name in addresses, where `--eager` says no other.
///
/// ```
/// assert!(rdmakv_server::rdma::eager::limit("shm") <= rdmakv_server::rdma::eager::MOST);
/// ```
pub fn limit(fabric: &str) -> usize {
    match fabric {
        "shm" | "iwarp" => 32 << 10,
        _ => 8 << 10,
    }
}

/// The largest that may be chosen: what a connection holds of one message is bounded by it.
pub const MOST: usize = 64 << 10;
