//! The *eager limit*: values of at most so many bytes travel in messages, longer ones by transfers. A server has one on each fabric, and tells
//! its clients.
//!
//! A message is copied several times, and cut into fragments of 6 KiB. A transfer is copied once or not at all, and costs a handshake. Where
//! the one gets better than the other is measured by
//!
//! ```text
//! side-by-side kv --only crossover
//! ```
//!
//! A request by message, and by transfer: µs with eight under way at a time on a connection, and the server's CPU in brackets; 5 rounds on two
//! hyperthreads of an AMD EPYC under Linux 6.18:
//!
//! | | 8 KiB | 16 KiB | 32 KiB | 64 KiB |
//! | --- | ---: | ---: | ---: | ---: |
//! | GET, `iwarp` | 221 (28), 430 (53) | 333 (41), 542 (67) | 634 (77), 694 (87) | 1127 (140), 929 (115) |
//! | SET, `iwarp` | 172 (22), 685 (52) | 253 (32), 721 (54) | 491 (60), 836 (63) | 919 (111), 1031 (76) |
//! | GET, `shm` | 36 (5), 48 (6) | 70 (9), 80 (10) | 139 (18), 145 (18) | overlap |
//! | SET, `shm` | 41 (5), 39 (5) | 77 (10), 81 (8) | 146 (18), 149 (12) | 287 (36), 298 (20) |
//!
//! With one request at a time most of the time is waking, and messages, which wake less, do better still: over `iwarp` they are ahead in each
//! round up to 32 KiB, and no transfer is at 64. A GET of a value of unknown size has to be told first, which doubles its time.
//!
//! So the limit is 32 KiB on both. Up to there messages are ahead, or cannot be told apart, but for SETs over `shm` that many are under way of
//! (from 4 KiB on, a third of the server's CPU at 32) and for a single GET of 32 KiB there. Above it, where many requests are under way,
//! transfers are ahead in CPU or cannot be told apart. Devices move transfers without a copy by either CPU, and were not measured, as
//! under emulation times say nothing: they keep a smaller one.

/// Returns the limit on a fabric, by its name in addresses, where `--eager` says no other.
///
/// ```
/// assert!(rdmakv_proto::eager::limit("shm") <= rdmakv_proto::eager::MOST);
/// ```
pub fn limit(fabric: &str) -> usize {
    match fabric {
        "shm" | "iwarp" => 32 << 10,
        _ => 8 << 10,
    }
}

/// The largest that may be chosen: what a connection holds of one message is bounded by it.
pub const MOST: usize = 64 << 10;
