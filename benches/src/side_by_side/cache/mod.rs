//! Our cache beside its peer: what `side-by-side cache` measures.
//!
//! Ours and the peer take turns in short laps on the same pinned threads, with the same dummy registrar and the
//! same requests ([`race`]). The best lap counts, and ratios are made of the best: what disturbs a
//! lap mostly makes it longer. Medians are printed beside; where they lie far from the best, threads got into
//! each other's way in most laps and luckily not in one.
//!
//! * [`machine`]: how far two threads get here when they share nothing, to read the speed-ups against.
//! * [`hit`]: hits at 1, 1,000 and 100,000 regions, with one thread and more, also with evictions going on.
//! * [`churn`]: misses that evict.
//! * [`stall`]: how long a hit takes while another thread registers slowly.
//! * [`bad_address`]: what one address that cannot be registered costs.
//! * [`memory`]: what a cached region takes.

pub mod bad_address;
pub mod churn;
pub mod field;
pub mod hit;
pub mod machine;
pub mod memory;
mod names;
pub mod ours;
pub mod race;
pub mod stall;

use super::part::{Part, Setting};
use super::report::Row;
use crate::Layout;
use crate::peer::Ucx;
use crate::pin::Places;
use crate::subject::Subject;
use ours::Ours;
use race::Length;
use std::time::Duration;

/// How a measurement is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The CPUs of the threads.
    pub places: Places,
    /// Numbers of threads that share the work, ascending from 1.
    pub threads: Vec<usize>,
    /// How long the races are.
    pub length: Length,
}

impl Options {
    /// Laps of 2.5 ms, a tenth of that in a quick run.
    fn new(places: &Places, threads: &[usize], setting: &Setting) -> Self {
        let lap = Duration::from_micros(if setting.quick { 250 } else { 2500 });
        let length = Length { lap, rounds: setting.rounds, whole: setting.whole, warm: 0 };
        Self { places: places.clone(), threads: threads.into(), length }
    }

    /// Laps of one thread.
    fn alone(&self) -> [usize; 1] {
        [1]
    }
}

/// Measures one thing.
type Measure = Box<dyn Fn(&Options) -> Result<Vec<Row>, String>>;

/// Everything there is to measure, in order, with so many threads at most in these places.
pub fn parts(places: &Places, most_threads: usize) -> Vec<Part> {
    let threads = thread_counts(most_threads);
    let with = |measure: Measure| {
        let (places, threads) = (places.clone(), threads.clone());
        move |setting: &Setting| measure(&Options::new(&places, &threads, setting))
    };
    let machine = with(Box::new(machine::measure));
    let mut parts = vec![Part::named("machine", machine::TITLE, machine::rows(&threads), machine)];
    for layout in [Layout::Stride, Layout::Irregular] {
        for regions in [1, 1_000, 100_000] {
            let hits = with(Box::new(move |options| hit::measure::<Ours, Ucx>(options, layout, regions)));
            let rows = hit::rows(layout, regions, &threads);
            parts.push(Part::named(hit::name(layout, regions), hit::TITLE, rows, hits));
        }
    }
    let churn = with(Box::new(churn::measure::<Ours, Ucx>));
    parts.push(Part::new("churn", churn::TITLE, &churn::ROWS, churn));
    let stall = with(Box::new(stall::measure::<Ours, Ucx>));
    parts.push(Part::new("stall", stall::TITLE, &stall::rows(), stall));
    let bad_address = with(Box::new(bad_address::measure::<Ours, Ucx>));
    parts.push(Part::new("bad-address", bad_address::TITLE, &bad_address::ROWS, bad_address));
    let memory = with(Box::new(memory::measure::<Ours, Ucx>));
    parts.push(Part::new("memory", memory::TITLE, &memory::ROWS, memory));
    parts
}

/// Returns the participants, a line each.
pub fn about() -> [String; 2] {
    [format!("ours: {}", Ours::about()), format!("peer: {}", Ucx::about())]
}

/// Powers of two up to the most, and the most.
fn thread_counts(most: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1_usize), |threads| threads.checked_mul(2));
    let mut threads: Vec<_> = powers.take_while(|&threads| threads < most).collect();
    threads.push(most);
    threads
}

/// Touches places one after the other, each of which has to work.
fn fill<S: Subject>(cache: &S, places: impl IntoIterator<Item = (usize, usize)>) -> Result<(), String> {
    for (address, length) in places {
        if !cache.touch(address, length) {
            return Err(format!("{length} bytes at {address:#x} could not be acquired to fill the cache"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_counts_are_powers_of_two_up_to_the_most() {
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(2), [1, 2]);
        assert_eq!(thread_counts(12), [1, 2, 4, 8, 12]);
    }

    #[test]
    fn a_part_is_named_by_whole_parts_of_its_name() {
        let parts = parts(&Places::look().unwrap(), 1);
        let named = |name| parts.iter().filter(|part| part.is_named(name)).count();
        assert_eq!((named("hit"), named("hit/stride"), named("hit/stride/1")), (6, 3, 1));
        assert_eq!((named("h"), named("hit/"), named("")), (0, 0, 0));
    }

    #[test]
    fn names_are_one_of_a_kind() {
        let names: Vec<_> = parts(&Places::look().unwrap(), 1).into_iter().map(|part| part.name).collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{name}");
        }
    }
}
