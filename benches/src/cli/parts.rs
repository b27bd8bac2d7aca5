//! `side-by-side fabric`, `side-by-side handshake`, `side-by-side kv` and `side-by-side resilience`.

use super::output::Output;
use super::{Stop, seconds};
use crate::pin::Places;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::{fabric, handshake, kv, resilience};
use clap::Args;
use std::io::{self, Write};
use std::time::Duration;

/// The options of all parts.
#[derive(Args)]
struct Common {
    #[command(flatten)]
    output: Output,

    /// As short as can be: whether it runs, not what it takes
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,

    /// Only rows whose name has this in it (`iwarp/crc`, `p50`). Can be given more than once
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// List the names of the rows and measure nothing
    #[arg(long)]
    list: bool,
}

#[derive(Args)]
#[command(after_help = FABRIC)]
pub(super) struct Fabric {
    #[command(flatten)]
    common: Common,

    /// Seconds for each comparison, at least
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds, allow_negative_numbers = true)]
    seconds: f64,

    /// Puts the other process on another CPU. Otherwise both are on one: then the time has all work of both in it, and
    /// no waking of a CPU that sleeps
    #[arg(long)]
    apart: bool,
}

const FABRIC: &str = "\
The other end is another process. Rows:
  shm/read/SIZE/p50, p99        a read of its memory; peer: a memcpy here
  iwarp/CRC/read/1KiB           a read; peer: a ping-pong of the same bytes over plain TCP
  iwarp/CRC/write/1MiB          writes; peer: a plain copy through a socket
  …/cpu/near, …/cpu/far         CPU of an operation, of each process
  FABRIC/connections/near, far  what a thousand connections hold

Units: `ns` and `MiB` are better the lower they are, `GB/s` the higher. Ratios are ours / peer,
of the best turns, and null (`-` in tables) where the turns of both overlap; whether a goal is met is
said of the medians.

Examples:
  side-by-side fabric                            half a minute
  side-by-side fabric --apart --only iwarp/crc
  side-by-side fabric --json > figures.jsonl

Exit status: 0 measured, 1 something could not be measured, 2 wrong usage.";

#[derive(Args)]
#[command(after_help = HANDSHAKE)]
pub(super) struct Handshake {
    #[command(flatten)]
    common: Common,

    /// Seconds for each size, at least
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds, allow_negative_numbers = true)]
    seconds: f64,

    /// The opener writes; otherwise it reads
    #[arg(long)]
    write: bool,
}

const HANDSHAKE: &str = "\
Rows are FABRIC/COST/SIZE/STATE/p50, p99 and hidden:
  COST   nic: the paper's card; io-uring: fixed buffers. The side that registers computes that long
  STATE  cold: nothing is registered; half-warm: half of the buffer at both ends; one-side: the far
         end's buffer; warm: all
  hidden the share of registering that did not make the transfer longer than a warm one; null
         (`-` in tables) where that is not from 0 to 1, or registering a twentieth of the transfer

Units: `ns` is better the lower it is, `part` the higher. Ratios are ours / peer, of the times, and
null (`-` in tables) where the two cannot be told apart in each fifth of the transfers.

Examples:
  side-by-side handshake                         a minute
  side-by-side handshake --only nic/64KiB
  side-by-side handshake --write --only cold --json > figures.jsonl

Exit status: 0 measured, 1 something could not be measured, 2 wrong usage.";

#[derive(Args)]
#[command(after_help = KV)]
pub(super) struct Kv {
    #[command(flatten)]
    common: Common,

    /// Seconds of each turn of a load
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds, allow_negative_numbers = true)]
    seconds: f64,

    /// Turns of each server
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Replays this trace with so many megabytes, not the usual ones. Can be given more than once
    #[arg(long, value_name = "FILE:MB")]
    trace: Vec<String>,
}

const KV: &str = "\
The peer is memcached, on the same CPU with the same flags. Rows:
  get/SIZE/MIX/cpu, cpu/user, cpu/system   the server's CPU for a request; MIX is read-only or 30:1 (GETs to a SET)
  get/SIZE/MIX/calls                       its system calls for a request on one connection, where strace is there
  get/SIZE/MIX/p50, p99, p99.9             how long a client waits
  unix/SIZE/…, tls/SIZE/…                  the same rows over a Unix socket and over TLS, read-only
  paper/SHARE/SIZE/WAY/cpu, waits, …       the paper's GETs; WAY is iwarp (one-sided reads) or tcp; SHARE is full or reduced
                                           (of a CPU), or many, few or one: 32, 8 or 1 values at a time on one connection
  breakdown/SIZE/WAY/user, system          where the CPU of such a GET goes
  breakdown/SIZE/WAY/switches/…, calls/…   how often threads wait and are pushed off; system calls by name
  breakdown/SIZE/WAY/cpu/CLASS             the paper's classes of cycles, where perf may sample
  crossover/FABRIC/OP/SIZE/p50, cpu        a request with its value in a message or by a transfer: ours as server and client
                                           choose, peer the better one of the two
  crossover/FABRIC/OP/COST/messages-to, transfers-from   the sizes up to which, and from which on, all rounds say so
  datagrams/SIZE/CLIENTS/WAY/cpu, time, p50   GETs of short values; WAY is udp, iwarp (one-sided reads) or tcp
  overhead/SIZE/item, items                bytes for an item besides key and value, in a full server of 64 MB
  eviction/TRACE/MB/misses, resident       a trace replayed, what is missing set

Units: `items` is better the higher it is, all others the lower. Ratios are ours / peer, of the best rounds, and are
null (`-` in tables) where the rounds of both overlap.

Examples:
  side-by-side kv                                some fifteen minutes
  side-by-side kv --only get/32B --rounds 9
  side-by-side kv --only crossover/iwarp
  side-by-side kv --only eviction --trace requests.trace.xz:64

Exit status: 0 measured, 1 something could not be measured, 2 wrong usage.";

pub(super) fn kv(kv: &Kv) -> Result<(), Stop> {
    let (near, far) = places(true)?;
    let mut head = vec![format!("The load on CPU {near}, the servers on CPU {far}.")];
    head.extend(kv::about());
    let setting = turns(&kv.common, (kv.seconds, kv.rounds), (near, far));
    run("kv", &kv.common, &setting, kv::parts(&kv.trace).map_err(Stop::Usage)?, &head)
}

#[derive(Args)]
#[command(after_help = RESILIENCE)]
pub(super) struct Resilience {
    #[command(flatten)]
    common: Common,

    /// Seconds of each turn of requests
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = seconds, allow_negative_numbers = true)]
    seconds: f64,

    /// Turns of each kind of keys, and repairs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

const RESILIENCE: &str = "\
It takes etcd. Six servers, their agents and one etcd are started here, and a server without a cluster, the peer. Rows, where KEYS is
copies (copies:3) or code (code:4+2):
  memory/KEYS                chunks that hold values of 1 MiB, as many as fit into half of the free memory
  idle/cpu                   CPU of servers and agents in a second without requests
  set/SIZE/KEYS/p50, cpu     a SET out of registered memory: its median time; CPU of servers, agents and client
  set/SIZE/KEYS/messages     the calls that servers answer for it
  set/SIZE/memcached/...     copies:3; the peer is three memcacheds that the client sends the value to, over TCP
  get/SIZE/KEYS/p50, cpu     a GET
  degraded/SIZE/KEYS/...     a GET after two servers were killed; the peer is the same GET before
  repair/KEYS/rate           bytes that come to a server that was killed and is empty, by the time between the first and the last
  repair/KEYS/whole          the time from its start until no key lacks a piece

Some rows have a limit: so many times the peer, by medians. `met` and `missed` tell whether it holds.
`MB/s` is better the higher it is, all others the lower.

Examples:
  side-by-side resilience                        two minutes
  side-by-side resilience --only set/1MiB --rounds 15
  side-by-side all --only resilience --markdown benches/RESULTS.md

Exit status: 0 measured, 1 something could not be measured, 2 wrong usage.";

pub(super) fn resilience(resilience: &Resilience) -> Result<(), Stop> {
    let (near, far) = places(true)?;
    let cpus = cpus_of_servers(near)?;
    let list: Vec<_> = cpus.iter().map(usize::to_string).collect();
    let mut head = vec![format!("The client on CPU {near}, the servers on {} in turn.", list.join(", "))];
    head.extend(resilience::about());
    let common = &resilience.common;
    let setting = turns(common, (resilience.seconds, resilience.rounds), (near, far));
    run("resilience", common, &setting, resilience::parts(&cpus), &head)
}

/// Returns all other CPUs than the client's, in the order in which they are used; this one where there is no other.
fn cpus_of_servers(near: usize) -> Result<Vec<usize>, Stop> {
    let places = Places::look().map_err(|error| Stop::Measuring(format!("sched_getaffinity: {error}")))?;
    let others: Vec<_> = places.cpus.into_iter().filter(|&cpu| cpu != near).collect();
    Ok(if others.is_empty() { vec![near] } else { others })
}

#[derive(Args)]
#[command(after_help = KERNEL)]
pub(super) struct Kernel {
    #[command(flatten)]
    common: Common,

    /// Seconds of each turn of a load
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = seconds, allow_negative_numbers = true)]
    seconds: f64,

    /// Turns of each server
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

const KERNEL: &str = "\
It takes root, and a build with --features bpf; it is no part of `all`. Each server is at one end of a pair of interfaces (veth) in
namespaces of its own, and the load at the other end. There the kernel handles a packet in its sender's time: the program that answers
runs in the client's. Rows:
  kernel/SIZE/WINDOW/cpu       CPU of a GET: client, server and softirq; WINDOW GETs are in flight
  kernel/SIZE/WINDOW/process   the server process's part
  kernel/SIZE/WINDOW/program   the run time of the kernel's programs, by the kernel's own count
  kernel/SIZE/WINDOW/server    process and program together, as with a network card
  kernel/SIZE/WINDOW/p50       how long a client waits, with one GET in flight
  socket/SIZE/WINDOW/...       the same, answered by our server's socket
  unknown/WINDOW/process       the process's part for an absent key; the peer is ours without --xdp
  busy/SIZE/p50, p99           how long a client waits while the workers have a full load over TCP; the peer is ours without one
  tcp/SIZE/get, set            the server's CPU for a request over TCP, with --xdp; the peer is ours without it

Ratios are ours / peer, of the best rounds, and are null (`-` in tables) where the rounds of both overlap.

Examples:
  side-by-side kernel                            two minutes
  side-by-side kernel --only kernel/1KiB --rounds 9

Exit status: 0 measured, 1 something could not be measured, 2 wrong usage.";

pub(super) fn kernel(kernel: &Kernel) -> Result<(), Stop> {
    let (near, far) = places(true)?;
    let mut head = vec![format!("The load on CPU {near}, the servers on CPU {far}.")];
    head.extend(kv::about());
    let setting = turns(&kernel.common, (kernel.seconds, kernel.rounds), (near, far));
    run("kernel", &kernel.common, &setting, kv::kernel_parts().map_err(Stop::Measuring)?, &head)
}

pub(super) fn fabric(fabric: &Fabric) -> Result<(), Stop> {
    let (near, far) = places(fabric.apart)?;
    let whole = Duration::from_secs_f64(if fabric.common.quick { 0.0 } else { fabric.seconds });
    let rounds = if fabric.common.quick { 1 } else { 11 };
    let place = match (near == far, fabric.apart) {
        (true, true) => "Both processes on one CPU: there is no other.".to_owned(),
        (true, false) => format!("Both processes on CPU {near}."),
        (false, _) => format!("This process on CPU {near}, the other on CPU {far}."),
    };
    let setting = Setting { near, far, rounds, whole, quick: fabric.common.quick };
    run("fabric", &fabric.common, &setting, fabric::parts(), &[&[place], &fabric::about()[..]].concat())
}

pub(super) fn handshake(handshake: &Handshake) -> Result<(), Stop> {
    let (near, far) = places(true)?;
    let whole = Duration::from_secs_f64(if handshake.common.quick { 0.0 } else { handshake.seconds });
    let rounds = if handshake.common.quick { 2 } else { 100 };
    let mut head = vec![format!(
        "The opener {}, on CPU {near}; the other process is on CPU {far}.",
        match handshake.write {
            true => "writes",
            false => "reads",
        }
    )];
    head.extend(handshake::about());
    let setting = Setting { near, far, rounds, whole, quick: handshake.common.quick };
    run("handshake", &handshake.common, &setting, handshake::parts(handshake.write), &head)
}

/// Returns the setting of so many turns of a load, each of so many seconds.
fn turns(common: &Common, (seconds, rounds): (f64, u32), (near, far): (usize, usize)) -> Setting {
    if common.quick {
        return Setting { near, far, rounds: 1, whole: Duration::from_millis(20), quick: true };
    }
    Setting { near, far, rounds: rounds as usize, whole: Duration::from_secs_f64(seconds), quick: false }
}

/// Returns a CPU for this process, and one for the other.
fn places(apart: bool) -> Result<(usize, usize), Stop> {
    let places = Places::look().map_err(|error| Stop::Measuring(format!("sched_getaffinity: {error}")))?;
    let near = *places.cpus.first().ok_or_else(|| Stop::Measuring("this process may use no CPU".into()))?;
    Ok((near, places.cpus.get(1).copied().filter(|_| apart).unwrap_or(near)))
}

fn run(name: &str, common: &Common, setting: &Setting, mut parts: Vec<Part>, about: &[String]) -> Result<(), Stop> {
    choose(&mut parts, &common.only)?;
    if common.list {
        let mut out = io::stdout().lock();
        return Ok(parts.iter().flat_map(|part| &part.rows).try_for_each(|row| writeln!(out, "{row}"))?);
    }
    measure(name, &common.output, setting, &parts, about)
}

/// Measures the parts one after the other and tells the rows that each still has.
pub(super) fn measure(
    name: &str,
    output: &Output,
    setting: &Setting,
    parts: &[Part],
    about: &[String],
) -> Result<(), Stop> {
    let mut teller = output.begin(name, about, setting.quick)?;
    for (nth, part) in parts.iter().enumerate() {
        eprintln!("[{}/{}] {}", nth + 1, parts.len(), part.name);
        let mut rows = part.measure(setting).map_err(Stop::Measuring)?;
        rows.retain(|row| part.rows.contains(&row.name));
        teller.rows(part.title, rows)?;
    }
    teller.end()
}

/// Leaves the rows that one of `only` names, and the parts that have such rows.
fn choose(parts: &mut Vec<Part>, only: &[String]) -> Result<(), Stop> {
    for name in only {
        if name.is_empty() || !parts.iter().any(|part| part.rows.iter().any(|row| row.contains(name))) {
            let names: Vec<_> = parts.iter().map(|part| part.name.as_str()).collect();
            return Err(Stop::Usage(format!(
                "--only {name}: no row has that in its name; `--list` lists them; they begin with {}",
                names.join(", ")
            )));
        }
    }
    if !only.is_empty() {
        for part in parts.iter_mut() {
            part.rows.retain(|row| only.iter().any(|name| row.contains(name)));
        }
        parts.retain(|part| !part.rows.is_empty());
    }
    Ok(())
}
