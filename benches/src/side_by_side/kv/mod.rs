//! Our server beside memcached: what `side-by-side kv` measures.
//!
//! Both are processes of their own, with the same flags, on the same CPU, and take turns. The load comes from this
//! process, on another CPU. Ours is this program under another name, so it is what was built.
//!
//! * `cpu`: a request's cost, at several sizes of values, over TCP, a Unix socket and TLS.
//! * `paper`: the paper's experiment: GETs of 1,000 values by TCP and by one-sided reads, also with a share of a CPU.
//! * `breakdown`: where the cycles of the paper's GETs go.
//! * `crossover`: from which size on a value goes by a transfer rather than in a message.
//! * `datagrams`: GETs of 64 bytes over datagrams, `iwarp:` and TCP.
//! * `overhead`: what an item takes besides its key and value.
//! * `eviction`: how often real traces miss, with the same memory.

mod breakdown;
mod calls;
mod client;
mod contestant;
mod cpu;
mod crossover;
mod datagrams;
mod eviction;
#[cfg(feature = "bpf")]
mod kernel;
mod load;
mod objects;
mod one_sided;
mod overhead;
mod paper;
mod profile;
mod server;
mod share;
mod transport;

use super::part::Part;
pub use server::OURS;
use server::{BOTH, Whose};
use std::process::Command;

/// Everything there is to measure, in order; `traces` are files to replay instead of the usual ones.
///
/// # Errors
/// The fault of a trace's name.
pub fn parts(traces: &[String]) -> Result<Vec<Part>, String> {
    let mut parts = cpu::parts();
    parts.extend(paper::parts());
    parts.extend(breakdown::parts());
    parts.extend(crossover::parts());
    parts.extend(datagrams::parts());
    parts.extend(overhead::parts());
    parts.extend(eviction::parts(traces)?);
    Ok(parts)
}

/// Returns what `side-by-side kernel` measures.
///
/// # Errors
/// This program was built without GETs in the kernel, or this system lacks something.
pub fn kernel_parts() -> Result<Vec<Part>, String> {
    #[cfg(feature = "bpf")]
    return kernel::parts();
    #[cfg(not(feature = "bpf"))]
    Err("this program was built without GETs in the kernel; build it with --features bpf".into())
}

/// Returns the participants, and the missing ones.
pub fn about() -> Vec<String> {
    let peer = server::peer_version();
    let mut lines = vec![
        format!("ours: {OURS} {}", rdmakv_server::VERSION),
        peer.map_or("peer: none, as there is no memcached: apt-get install memcached".into(), |peer| {
            format!("peer: {peer}")
        }),
    ];
    if Command::new("strace").arg("-V").output().is_err() {
        lines.push("System calls are not counted, as there is no strace: apt-get install strace".into());
    }
    if Command::new("perf").arg("--version").output().is_err() {
        lines.push("Cycles have no classes, as there is no perf: apt-get install linux-perf".into());
    }
    if objects::folder().is_none() {
        lines.push("No traces beside the repository at ../shared/traces: --trace names others.".into());
    }
    lines
}

/// Ours, and the peer if it is there.
fn contestants() -> Vec<Whose> {
    let peer = server::peer_version().is_some();
    BOTH.into_iter().filter(|&whose| whose == Whose::Ours || peer).collect()
}

/// `32B`, `10KiB`.
fn size_name(bytes: usize) -> String {
    if bytes < 1024 { format!("{bytes}B") } else { format!("{}KiB", bytes >> 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_own_version() {
        assert_eq!(about()[0], format!("ours: rdmakv-server {}", env!("CARGO_PKG_VERSION")));
    }
}
