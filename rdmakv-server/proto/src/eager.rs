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
//! Which is faster depends on the machine too: on what it takes to wake the other side. A request by message, and by transfer, on two
//! machines of two hyperthreads, in µs; one at a time, and with eight under way at a time on a connection:
//!
//! | 64 KiB | EPYC, one | EPYC, eight | Xeon, one | Xeon, eight |
//! | --- | ---: | ---: | ---: | ---: |
//! | GET, `iwarp` | 169, 183 | 1135, 932 | 97, 104 | 431, 257 |
//! | SET, `iwarp` | 180, 188 | 921, 969 | 107, 145 | 497, 639 |
//! | GET, `shm` | 42, 101 | 274, 285 | 87, 57 | 109, 63 |
//! | SET, `shm` | 44, 112 | 287, 298 | 89, 80 | 108, 62 |
//!
//! So no limit is right everywhere. Between [two limits](transfers_from) a client chooses by the times that it sees. A GET of a value of
//! unknown size takes a message, because it would have to be told first. Devices move transfers without a copy by either CPU, and were not
//! measured, as under emulation times say nothing: they keep one smaller limit.

/// Returns the limit on a fabric, by its name in addresses, where `--eager` gives no other.
///
/// ```
/// assert!(rdmakv_proto::eager::limit("shm") <= rdmakv_proto::eager::MOST);
/// ```
pub fn limit(fabric: &str) -> usize {
    match fabric {
        "shm" | "iwarp" => 64 << 10,
        _ if is_datagrams(fabric) => DATAGRAMS,
        _ => 8 << 10,
    }
}

/// Returns the bytes from which on a value may go by a transfer, if the client finds that faster: whole KiB.
///
/// ```
/// assert!(rdmakv_proto::eager::transfers_from("iwarp") <= rdmakv_proto::eager::limit("iwarp"));
/// ```
pub fn transfers_from(fabric: &str) -> usize {
    if is_datagrams(fabric) { DATAGRAMS } else { limit(fabric).min(8 << 10) }
}

/// Returns whether this fabric is one of datagrams.
///
/// ```
/// assert!(rdmakv_proto::eager::is_datagrams("verbs-ud") && !rdmakv_proto::eager::is_datagrams("verbs"));
/// ```
pub fn is_datagrams(fabric: &str) -> bool {
    matches!(fabric, "udp" | "verbs-ud")
}

/// The largest that may be chosen: what a connection holds of one message is bounded by it.
pub const MOST: usize = 64 << 10;

/// The limit over datagrams, where there are no transfers: longer values take another way. `--eager` does not change it.
pub const DATAGRAMS: usize = 1 << 20;
