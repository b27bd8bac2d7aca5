//! The memory that values of 1 MiB take: the chunks of servers, counted whole.

use super::cluster::Watcher;
use super::contestant::Contestant;
use super::{Kind, SERVERS, Shared, with};
use crate::pin;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::remote::Outcome;
use crate::side_by_side::report::{Row, Unit};
use std::fs;

const TITLE: &str = "Memory of values of 1 MiB: chunks that hold them, counted whole, of all servers";
const VALUE: usize = 1 << 20;
/// Values at most.
const VALUES: u64 = 10_000;
/// Values of a short run.
const FEW: u64 = 12;
/// MiB of a server for other values, and of the least server.
const SPARE: u64 = 192;
/// Bytes of memory for a byte of values: of the one server, and of the six. Some of these have more keys than others.
const ROOM: (f64, f64) = (1.3, 1.4);

/// The bytes of chunks for a byte of values, at most.
fn most(kind: Kind) -> f64 {
    match kind {
        Kind::Code => 1.55,
        Kind::Copies | Kind::One | Kind::Memcached => 3.05,
    }
}

pub(super) fn part(shared: &Shared, cpus: &[usize]) -> Part {
    let (shared, cpus) = (shared.clone(), cpus.to_vec());
    Part::new("memory", TITLE, &Kind::RESILIENT.map(Kind::name), move |setting| {
        let start = || start(&cpus, setting);
        with(&shared, start, |contestant| measure(setting, contestant)).map_err(|error| error.to_string())
    })
}

/// Starts servers that have room for the values.
pub(super) fn start(cpus: &[usize], setting: &Setting) -> Outcome<Contestant> {
    pin::pin(setting.near)?;
    Contestant::start(cpus, memory(setting.quick)?)
}

fn measure(setting: &Setting, contestant: &mut Contestant) -> Outcome<Vec<Row>> {
    let values = values(memory(setting.quick)?) as usize;
    let all = contestant.cluster.servers.iter().chain([&contestant.alone]);
    let mut watchers = all.map(|server| server.watcher()).collect::<Outcome<Vec<_>>>()?;
    let mut taken = Vec::new();
    for kind in Kind::OURS {
        let before = chunks(&mut watchers)?;
        contestant.fill(kind, "memory", values, VALUE)?;
        taken.push(chunks(&mut watchers)? - before);
    }
    let of = |kind: Kind| {
        let mebibytes = |bytes: u64| Figure::once(bytes as f64 / f64::from(1 << 20));
        let ours = taken[kind as usize];
        let row =
            Row::new(format!("memory/{}", kind.name()), mebibytes(ours), Some(mebibytes(taken[0])), Unit::Mebibytes);
        row.at_most("x the bytes", ours as f64 / (values * VALUE) as f64, most(kind)).note(format!("{values} values"))
    };
    Ok(Kind::RESILIENT.map(of).into())
}

/// Returns the bytes of chunks in use, of all these servers.
fn chunks(of: &mut [Watcher]) -> Outcome<u64> {
    of.iter_mut().map(|watcher| Ok(in_use(&watcher.stats("slabs")?))).sum()
}

/// Returns the bytes of chunks in use, by `stats slabs`.
fn in_use(stats: &[(String, u64)]) -> u64 {
    let of_class = |name: &str, wanted: &str| {
        let (class, name) = name.split_once(':')?;
        (name == wanted).then(|| class.to_owned())
    };
    let sizes = stats.iter().filter_map(|(name, size)| Some((of_class(name, "chunk_size")?, size)));
    let used = |class: &str| stats.iter().find(|(name, _)| of_class(name, "used_chunks").as_deref() == Some(class));
    sizes.filter_map(|(class, size)| Some(size * used(&class)?.1)).sum()
}

/// Returns the MiB of each server: all of them together have half of the memory that is free.
fn memory(quick: bool) -> Outcome<u64> {
    let of_values = |values: u64| (values as f64 * ROOM.0).ceil() as u64 + SPARE;
    if quick {
        return Ok(of_values(FEW));
    }
    Ok((free()? / 2 / (SERVERS as u64 + 1)).clamp(of_values(FEW), of_values(VALUES)))
}

/// Returns how many values fit into servers of so many MiB.
fn values(memory: u64) -> u64 {
    let room = memory.saturating_sub(SPARE) as f64;
    let resilient = ROOM.1 * Kind::RESILIENT.map(most).iter().sum::<f64>();
    ((room / ROOM.0).min(room * SERVERS as f64 / resilient) as u64).clamp(1, VALUES)
}

/// Returns the MiB that are free here: of the machine, or of this process's control group.
fn free() -> Outcome<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line =
        text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).ok_or("/proc/meminfo: no MemAvailable")?;
    let machine = line.trim().trim_end_matches(" kB").parse::<u64>()? >> 10;
    let group = |file: &str| fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse::<u64>().ok();
    let left = group("memory.max").zip(group("memory.current")).map(|(most, now)| most.saturating_sub(now) >> 20);
    Ok(machine.min(left.unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_counted_whole() {
        let stats = [("1:chunk_size", 96), ("1:used_chunks", 2), ("42:chunk_size", 1000), ("42:used_chunks", 3)];
        let stats: Vec<_> =
            stats.into_iter().chain([("active_slabs", 2)]).map(|(name, n)| (name.to_owned(), n)).collect();
        assert_eq!(in_use(&stats), 2 * 96 + 3 * 1000);
    }

    #[test]
    fn values_fit_into_the_memory() {
        assert_eq!(values(0), 1);
        for memory in [300, 1000, 10_000, 100_000] {
            let values = values(memory) as f64;
            assert!(values <= VALUES as f64 && 1.1 * values <= memory as f64);
            assert!(1.3 * (3.05 + 1.75) * values <= (memory * SERVERS as u64) as f64, "{memory}: {values}");
        }
    }
}
