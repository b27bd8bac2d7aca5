//! Our cache beside its peers, in one run: what `side-by-side cache` measures; and our simulator beside its peer: [`sim`]; the fabrics
//! beside what they stand on: [`fabric`]; the handshake beside the traditional process: [`handshake`]; the server beside memcached: [`kv`].
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

pub mod bad_address;
pub mod churn;
pub mod fabric;
pub mod far;
pub mod field;
pub mod figure;
pub mod handshake;
pub mod hit;
pub mod host;
pub mod kv;
pub mod machine;
mod names;
pub mod ours;
pub mod part;
pub mod race;
pub mod report;
pub mod results;
mod share;
pub mod sim;
pub mod stall;
pub mod subject;

use crate::Layout;
use crate::peer::Ucx;
use crate::pin::Places;
use ours::Ours;
use race::Length;
use report::Row;
use std::time::Duration;
use subject::Subject;

/// How a run is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where threads are put.
    pub places: Places,
    /// Numbers of threads that share the work, ascending from 1.
    pub threads: Vec<usize>,
    /// How long the races are.
    pub length: Length,
}

impl Options {
    /// Laps of 2.5 ms, 25 turns of some laps at least, `seconds` for each measurement; or all of it as short as can be.
    pub fn new(places: Places, most_threads: usize, seconds: f64, quick: bool) -> Self {
        let length = if quick {
            Length { lap: Duration::from_micros(250), rounds: 4, whole: Duration::ZERO, warm: 0 }
        } else {
            Length { lap: Duration::from_micros(2500), rounds: 25, whole: Duration::from_secs_f64(seconds), warm: 0 }
        };
        Self { places, threads: thread_counts(most_threads), length }
    }

    /// Laps of one thread.
    fn alone(&self) -> [usize; 1] {
        [1]
    }
}

/// Measures one thing.
type Measure = Box<dyn Fn(&Options) -> Result<Vec<Row>, String>>;

/// One measurement: a name, and rows.
pub struct Subtest {
    /// What `--only` names.
    pub name: String,
    /// Which table it goes into.
    pub group: &'static str,
    measure: Measure,
}

impl Subtest {
    fn new(
        name: impl Into<String>,
        group: &'static str,
        measure: impl Fn(&Options) -> Result<Vec<Row>, String> + 'static,
    ) -> Self {
        Self { name: name.into(), group, measure: Box::new(measure) }
    }

    /// Whether a name means this one: its own, or some whole parts of it from the left.
    pub fn is_named(&self, name: &str) -> bool {
        self.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The names of the rows that it has with so many threads at most.
    pub fn row_names(&self, most_threads: usize) -> Vec<String> {
        names::of(self, &thread_counts(most_threads))
    }

    /// Measures it.
    ///
    /// # Errors
    /// What kept it from being measured.
    pub fn measure(&self, options: &Options) -> Result<Vec<Row>, String> {
        (self.measure)(options).map_err(|error| format!("{}: {error}", self.name))
    }
}

/// Everything there is to measure of a cache, in order.
pub fn cache() -> Vec<Subtest> {
    let mut tests = vec![Subtest::new("machine", machine::TITLE, machine::measure)];
    for layout in [Layout::Stride, Layout::Irregular] {
        for regions in [1, 1_000, 100_000] {
            tests.push(Subtest::new(hit::name(layout, regions), hit::TITLE, move |options| {
                hit::measure::<Ours, Ucx>(options, layout, regions)
            }));
        }
    }
    tests.push(Subtest::new("churn", churn::TITLE, churn::measure::<Ours, Ucx>));
    tests.push(Subtest::new("stall", stall::TITLE, stall::measure::<Ours, Ucx>));
    tests.push(Subtest::new("bad-address", bad_address::TITLE, bad_address::measure::<Ours, Ucx>));
    tests
}

/// Who takes part, a line each.
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

/// `1-thread`, `2-threads`.
fn threads_name(threads: usize) -> String {
    if threads == 1 { "1-thread".into() } else { format!("{threads}-threads") }
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
        let threads = |most| Options::new(Places::look().unwrap(), most, 0.0, true).threads;
        assert_eq!(threads(1), [1]);
        assert_eq!(threads(2), [1, 2]);
        assert_eq!(threads(12), [1, 2, 4, 8, 12]);
    }

    #[test]
    fn a_test_is_named_by_whole_parts() {
        let named = |name| cache().iter().filter(|test| test.is_named(name)).count();
        assert_eq!((named("hit"), named("hit/stride"), named("hit/stride/1")), (6, 3, 1));
        assert_eq!((named("h"), named("hit/"), named("")), (0, 0, 0));
    }

    #[test]
    fn names_are_one_of_a_kind() {
        let tests = cache();
        for (index, test) in tests.iter().enumerate() {
            assert!(tests[..index].iter().all(|other| other.name != test.name), "{}", test.name);
        }
    }
}
