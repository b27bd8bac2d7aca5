//! The fabrics beside what they stand on: what `side-by-side fabric` measures.
//!
//! The other end is another process ([`remote`](super::remote)), which sleeps but for what its provider does. Contestants take
//! turns of some milliseconds; the best turn counts, and ratios are made of the best, as in the other parts. CPU is that of
//! the whole process, of all its threads, user and system.
//!
//! * [`shm`]: a read of 1 KiB and 10 KiB of the other process's memory, beside a `memcpy` of the same bytes.
//! * [`iwarp`]: a read of 1 KiB beside a ping-pong of the same bytes over plain TCP, and writes of 1 MiB beside a plain copy
//!   through a socket, with and without CRCs.
//! * [`many`]: what a thousand connections hold.

mod interleave;
pub mod iwarp;
pub mod many;
pub mod shm;

use super::part::Part;

/// Returns what ours and the peer are, a line each.
pub fn about() -> [String; 2] {
    ["ours: frrwp: one-sided reads and writes", "peer: memcpy for shm, plain TCP for iWARP: the same bytes"]
        .map(String::from)
}

/// Everything there is to measure, in order.
pub fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for bytes in shm::SIZES {
        let rows = ["p50", "p99", "cpu/near", "cpu/far"];
        parts.push(Part::new(shm::name(bytes), shm::TITLE, &rows, move |setting| {
            shm::measure(setting, bytes).map_err(|error| error.to_string())
        }));
    }
    for checksums in [false, true] {
        let rows = [
            "read/1KiB",
            "read/1KiB/cpu/near",
            "read/1KiB/cpu/far",
            "write/1MiB",
            "write/1MiB/cpu/near",
            "write/1MiB/cpu/far",
        ];
        parts.push(Part::new(iwarp::name(checksums), iwarp::TITLE, &rows, move |setting| {
            iwarp::measure(setting, checksums).map_err(|error| error.to_string())
        }));
    }
    for kind in many::KINDS {
        parts.push(Part::new(many::name(kind), many::TITLE, &["near", "far"], move |setting| {
            many::measure(setting, kind).map_err(|error| error.to_string())
        }));
    }
    parts
}

/// Returns a goal, and what the median comes to, for the note of a row.
fn goal(goal: &str, value: f64, met: bool) -> String {
    format!("goal {goal}: {} with {value:.2} by medians", if met { "met" } else { "missed" })
}
