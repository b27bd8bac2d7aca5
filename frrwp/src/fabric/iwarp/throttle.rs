//! The limit on guessed tags, by source.
//!
//! A *guess* is an access by a tag that was never valid on its connection. Its answer ends the connection, so a connection makes
//! one. The limit holds back the access, and nothing else: connections are accepted at once, and a source is an IPv4 address or
//! an IPv6 /64. It counts as follows:
//!
//! * The first guess of a source begins an *activation*. From then on some accesses of this source take one of its tokens
//!   before the tag is looked up. They are those by a tag that the connection was neither given for itself nor has used
//!   before.
//! * [`BURST`] tokens are there at first, and [`RATE`] come each second, so no second has more than 64 guesses. A right tag
//!   gives its token back.
//! * Without a token an access waits. Accesses wait in the order in which they came; a connection that ends leaves the queue, and
//!   has taken nothing.
//! * An activation ends when the source has been quiet for [`QUIET`].
//!
//! Sources are bounded in number, and the one that was quiet for the longest makes room.
//!
//! # What it achieves
//!
//! A guess hits one of n live tags with a probability of n / 2³². At 64 a second, and 1,024 live tags, the first hit takes 2¹⁶
//! seconds on average, 18 hours; at a million tags one minute. A tag that was made for one connection
//! ([`own_domain`](super::IwarpEndpoint::own_domain), a [`Handle`](super::Handle)) cannot be hit from another at all.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fabric::accept::Source;
use rustc_hash::FxHashMap;

/// Guesses at once, after a second without any.
const BURST: u64 = 8;
/// Guesses a second after these.
const RATE: u64 = 56;
/// Nanoseconds in which a token comes.
const INTERVAL: u64 = 1_000_000_000 / RATE + 1;
/// Nanoseconds after which a source that has been quiet is forgotten.
const QUIET: u64 = 10_000_000_000;
/// Sources that are remembered.
const SOURCES: usize = 4096;
/// Activations that wait to be reported.
const REPORTS: usize = 64;

/// The origin of connections, as far as their guesses are counted together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TagSource(Source);

impl From<IpAddr> for TagSource {
    fn from(address: IpAddr) -> Self {
        Self(Source::of(address))
    }
}

impl fmt::Display for TagSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Source::V4(octets) => Ipv4Addr::from(octets).fmt(f),
            Source::V6(prefix) => write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(u64::from_be_bytes(prefix)) << 64)),
        }
    }
}

/// Counts of wrong tags, of all connections of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct TagGuesses {
    /// Accesses by tags that were never valid on their connection.
    pub guesses: u64,
    /// Accesses by tags that were valid on their connection once. They end it too, and are no guesses.
    pub late: u64,
    /// Times that a source began to be limited.
    pub activations: u64,
    /// Accesses that waited because their source was over its limit.
    pub held: u64,
}

/// The answer to an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leave {
    /// It may look its tag up: its source is not limited.
    Free,
    /// It may look its tag up, and has taken a token for it.
    Paid,
    /// It asks again at this time.
    Later(u64),
}

#[derive(Default, Debug)]
struct Guesser {
    /// When all tokens are there again.
    full: u64,
    /// When it last did something that counts.
    last: u64,
    /// Tickets of accesses that wait.
    queue: BTreeSet<u64>,
}

impl Guesser {
    fn tokens(&self, now: u64) -> u64 {
        BURST.saturating_sub(self.full.saturating_sub(now).div_ceil(INTERVAL))
    }

    fn take(&mut self, now: u64) {
        self.full = self.full.max(now) + INTERVAL;
    }
}

/// The limit itself. Time is an argument, in nanoseconds.
#[derive(Default, Debug)]
struct Limit {
    sources: FxHashMap<TagSource, Guesser>,
    /// The same by the time at which they last did something.
    by_time: BTreeSet<(u64, TagSource)>,
    tickets: u64,
    counts: TagGuesses,
    reports: VecDeque<TagSource>,
}

impl Limit {
    /// Forgets sources that have been quiet for long enough.
    fn tidy(&mut self, now: u64) {
        while let Some(&(last, source)) = self.by_time.first() {
            if now.saturating_sub(last) < QUIET {
                return;
            }
            self.by_time.pop_first();
            self.sources.remove(&source);
        }
    }

    fn touch(&mut self, source: TagSource, now: u64) {
        if let Some(guesser) = self.sources.get_mut(&source) {
            self.by_time.remove(&(guesser.last, source));
            guesser.last = guesser.last.max(now);
            self.by_time.insert((guesser.last, source));
        }
    }

    fn ask(&mut self, source: TagSource, ticket: &mut Option<u64>, now: u64) -> Leave {
        self.tidy(now);
        let Some(guesser) = self.sources.get_mut(&source) else {
            *ticket = None;
            return Leave::Free;
        };
        let own = *ticket.get_or_insert_with(|| {
            self.tickets += 1;
            self.tickets
        });
        // Tokens are for those that came before, as many as there are.
        let before = guesser.queue.range(..own).take(BURST as usize).count() as u64;
        let tokens = guesser.tokens(now);
        if before < tokens {
            guesser.queue.remove(&own);
            guesser.take(now);
            *ticket = None;
            self.touch(source, now);
            return Leave::Paid;
        }
        if guesser.queue.insert(own) {
            self.counts.held += 1;
            self.touch(source, now);
        }
        Leave::Later(now + (before + 1 - tokens) * INTERVAL)
    }

    fn refund(&mut self, source: TagSource) {
        if let Some(guesser) = self.sources.get_mut(&source) {
            guesser.full = guesser.full.saturating_sub(INTERVAL);
        }
    }

    fn leave(&mut self, source: TagSource, ticket: u64) {
        if let Some(guesser) = self.sources.get_mut(&source) {
            guesser.queue.remove(&ticket);
        }
    }

    fn guessed(&mut self, source: TagSource, paid: bool, now: u64) {
        self.tidy(now);
        self.counts.guesses += 1;
        if !self.sources.contains_key(&source) {
            if self.sources.len() >= SOURCES
                && let Some((_, quietest)) = self.by_time.pop_first()
            {
                self.sources.remove(&quietest);
            }
            self.counts.activations += 1;
            if self.reports.len() < REPORTS {
                self.reports.push_back(source);
            }
            self.sources.insert(source, Guesser { full: now, last: now, queue: BTreeSet::new() });
            self.by_time.insert((now, source));
        }
        if let Some(guesser) = self.sources.get_mut(&source).filter(|_| !paid) {
            guesser.take(now);
        }
        self.touch(source, now);
    }
}

/// The limit of a domain, shared by its connections.
#[derive(Default, Debug)]
pub(super) struct TagThrottle {
    limit: Mutex<Limit>,
    /// Sources that are limited: most of the time none is, and nothing needs the lock.
    active: AtomicUsize,
}

impl TagThrottle {
    fn with<T>(&self, work: impl FnOnce(&mut Limit) -> T) -> T {
        let mut limit: MutexGuard<'_, Limit> = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut limit);
        self.active.store(limit.sources.len(), Relaxed);
        result
    }

    /// Returns whether any source is limited.
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Relaxed) > 0
    }

    /// Asks for a token for an access of this source. The ticket is its place in the queue.
    pub(super) fn ask(&self, source: TagSource, ticket: &mut Option<u64>, now: u64) -> Leave {
        self.with(|limit| limit.ask(source, ticket, now))
    }

    /// Gives a token back: the tag was right, or late.
    pub(super) fn refund(&self, source: TagSource) {
        self.with(|limit| limit.refund(source));
    }

    /// Gives up a place in the queue.
    pub(super) fn leave(&self, source: TagSource, ticket: u64) {
        self.with(|limit| limit.leave(source, ticket));
    }

    /// Counts a guess, which has taken a token before or takes one now.
    pub(super) fn guessed(&self, source: TagSource, paid: bool, now: u64) {
        self.with(|limit| limit.guessed(source, paid, now));
    }

    /// Counts a late access.
    pub(super) fn was_late(&self) {
        self.with(|limit| limit.counts.late += 1);
    }

    /// Returns the counts.
    pub(super) fn counts(&self) -> TagGuesses {
        self.with(|limit| limit.counts)
    }

    /// Returns the next source that began to be limited and was not returned before.
    pub(super) fn report(&self) -> Option<TagSource> {
        self.with(|limit| limit.reports.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn v4(last: u8) -> TagSource {
        IpAddr::from([10, 0, 0, last]).into()
    }

    /// Returns the most of these times in any second.
    fn busiest(times: &[u64]) -> usize {
        let within = |at: usize| times[at..].iter().take_while(|&&time| time < times[at] + SECOND).count();
        (0..times.len()).map(within).max().unwrap_or(0)
    }

    /// Guesses of connections that come at these times and stay. When they were answered.
    fn answered(limit: &mut Limit, arrivals: &[(u64, TagSource)]) -> Vec<u64> {
        let mut waiting: Vec<(u64, TagSource, Option<u64>)> =
            arrivals.iter().map(|&(at, source)| (at, source, None)).collect();
        let mut times = Vec::new();
        while !waiting.is_empty() {
            waiting.sort_by_key(|&(at, _, ticket)| (at, ticket));
            let (at, source, mut ticket) = waiting.remove(0);
            match limit.ask(source, &mut ticket, at) {
                Leave::Later(again) => {
                    assert!(again > at, "time goes on");
                    waiting.push((again, source, ticket));
                }
                leave => {
                    limit.guessed(source, leave == Leave::Paid, at);
                    times.push(at);
                }
            }
        }
        times
    }

    #[test]
    fn a_prefix_of_ipv6_is_one_source() {
        let mut limit = Limit::default();
        let (mut tries, mut guesses) = (0, 0);
        // Each from an address of its own, which does not wait.
        for at in (0..5 * SECOND).step_by(750_413) {
            tries += 1;
            let address =
                Ipv6Addr::from_bits(0x2001_0db8_0001_0002_u128 << 64 | u128::from(at).wrapping_mul(0x9e37_79b9));
            let (source, mut ticket) = (TagSource::from(IpAddr::V6(address)), None);
            match limit.ask(source, &mut ticket, at) {
                Leave::Later(_) => limit.leave(source, ticket.unwrap()),
                leave => {
                    limit.guessed(source, leave == Leave::Paid, at);
                    guesses += 1;
                }
            }
        }
        println!("{guesses} guesses of {tries} in 5 s");
        assert!(tries > 6_600 && (56 * 5..=64 * 5).contains(&guesses), "{guesses}");
        assert_eq!((limit.sources.len(), limit.counts.activations), (1, 1));
        assert_eq!(limit.sources.keys().next().unwrap().to_string(), "2001:db8:1:2::/64");
        let mapped = TagSource::from("::ffff:10.0.0.7".parse::<IpAddr>().unwrap());
        assert_eq!((mapped, mapped.to_string()), (v4(7), "10.0.0.7".to_owned()));
    }

    #[test]
    fn abandoned_waits_extend_nothing() {
        let mut limit = Limit::default();
        answered(&mut limit, &[(0, v4(1)); 8]);
        let mut tickets: Vec<Option<u64>> = vec![None; 1000];
        for ticket in &mut tickets {
            assert!(matches!(limit.ask(v4(1), ticket, 0), Leave::Later(_)));
        }
        for ticket in tickets {
            limit.leave(v4(1), ticket.unwrap());
        }
        assert_eq!(limit.ask(v4(1), &mut None, INTERVAL), Leave::Paid, "the first token is there for the next");
    }

    #[test]
    fn right_tags_cost_nothing() {
        let mut limit = Limit::default();
        limit.guessed(v4(1), false, 0);
        for _ in 0..10_000 {
            assert_eq!(limit.ask(v4(1), &mut None, 1), Leave::Paid);
            limit.refund(v4(1));
        }
        assert_eq!(limit.ask(v4(2), &mut None, 1), Leave::Free, "others are not limited");
    }

    #[test]
    fn a_quiet_source_is_forgotten() {
        let mut limit = Limit::default();
        limit.guessed(v4(1), false, 0);
        limit.guessed(v4(1), false, QUIET - 1);
        assert_eq!(limit.ask(v4(1), &mut None, 2 * QUIET - 2), Leave::Paid);
        assert_eq!(limit.ask(v4(1), &mut None, 3 * QUIET), Leave::Free);
        limit.guessed(v4(1), false, 3 * QUIET);
        assert_eq!(limit.counts.activations, 2);
        assert_eq!(limit.reports.len(), 2);
    }

    #[test]
    fn the_quietest_source_makes_room() {
        let mut limit = Limit::default();
        for number in 0..SOURCES as u32 + 100 {
            limit.guessed(IpAddr::from(number.to_be_bytes()).into(), false, u64::from(number));
        }
        assert_eq!((limit.sources.len(), limit.by_time.len()), (SOURCES, SOURCES));
        assert!(!limit.sources.contains_key(&IpAddr::from(99_u32.to_be_bytes()).into()));
        assert!(limit.sources.contains_key(&IpAddr::from(100_u32.to_be_bytes()).into()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Whenever connections come, a source has at most 64 guesses in a second, all are answered, and none waits longer than
        /// those before it need.
        #[test]
        fn no_second_has_more_than_64_guesses(
            arrivals in prop::collection::vec((0..3 * SECOND, 1_u8..4), 1..400)
        ) {
            for source in 1..4 {
                let mut own: Vec<_> = arrivals.iter().filter(|(_, by)| *by == source).map(|&(at, _)| at).collect();
                own.sort_unstable();
                let mut limit = Limit::default();
                let arrivals: Vec<_> = own.iter().map(|&at| (at, v4(source))).collect();
                let times = answered(&mut limit, &arrivals);
                prop_assert!(busiest(&times) <= 64, "{}", busiest(&times));
                prop_assert_eq!(times.len(), own.len());
                for (number, (&came, &answered)) in own.iter().zip(&times).enumerate() {
                    // The order is that of coming, so that the queue is at most those before.
                    prop_assert!(answered >= came && answered - came <= (number as u64 + 1) * INTERVAL);
                }
            }
        }
    }
}
