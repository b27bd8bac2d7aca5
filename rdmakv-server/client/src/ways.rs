//! The ways to one server, best first: which is tried when, which are given up for now, and which stand.
//!
//! Decisions alone: no sockets, no threads, no clock. The server (`server.rs`) does what [`Ways::start`] returns, and tells what comes of it.
//!
//! * Ways are tried at the same time. The best one begins; each next one begins when the one before has failed, or has not answered for
//!   [`GAP`]. So a way that is silent delays an operation by that much, and by no more.
//! * An attempt is never called off: one that answers late is taken up late. So a way has at most one attempt under way.
//! * After a failure the next attempt waits, each time twice as long, up to a bound. A way that stood is tried again at once.
//! * While a fabric stands, worse ways are not tried. Better fabrics are, and take its place.
//! * A fabric that the server offers is better than all others, until it fails, is lost or is withdrawn ([`Ways::offered`]).
//! * Sockets are tried when an operation needs one.

use std::time::{Duration, Instant};

/// How long an attempt may be silent before the next way is tried too.
pub(super) const GAP: Duration = Duration::from_millis(30);
/// The same for datagrams before a connection is tried, which costs the server more. A crowd that comes back to a busy server is answered late,
/// and is not to connect for that. It is the delay of RFC 8305.
pub(super) const DATAGRAMS_GAP: Duration = Duration::from_millis(250);

/// How attempts follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) connect: Duration,
    pub(super) least: Duration,
    pub(super) most: Duration,
}

/// The demand of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Demand {
    /// Nothing.
    None,
    /// Any way.
    Any,
    /// Some of them a socket, whatever fabric stands.
    Socket,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Down { failures: u32, not_before: Instant },
    Trying { failures: u32, since: Instant },
    Up,
}

#[derive(Clone, Debug)]
struct ConnectionState {
    state: State,
    /// How long it may be silent before the next fabric is tried.
    gap: Duration,
    /// The last failure's message.
    why: Option<String>,
}

/// The ways to one server. Those over fabrics come first.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    ways: Vec<ConnectionState>,
    fabrics: usize,
    /// The fabric that the server offers.
    offered: Option<usize>,
    patience: Patience,
}

impl Ways {
    /// The first of these ways are fabrics. Each has the time that it may be silent before the next fabric is tried.
    pub(super) fn new(gaps: &[Duration], fabrics: usize, patience: Patience, now: Instant) -> Self {
        let state = State::Down { failures: 0, not_before: now };
        let ways = gaps.iter().map(|&gap| ConnectionState { state, gap, why: None }).collect();
        Self { ways, fabrics, offered: None, patience }
    }

    /// The server offers a connection over this fabric. After a failure it is tried when that is due.
    pub(super) fn offer(&mut self, at: usize) {
        self.offered = Some(at);
    }

    /// The server wants the connection back that it offered.
    pub(super) fn withdraw(&mut self) {
        self.offered = None;
    }

    /// Returns the fabric that the server offers.
    pub(super) fn offered(&self) -> Option<usize> {
        self.offered
    }

    /// Returns whether a fabric is better than another one.
    pub(super) fn is_better(&self, at: usize, other: usize) -> bool {
        let rank = |at: usize| (self.offered != Some(at), at);
        rank(at) < rank(other)
    }

    /// Returns a way that is to be tried now, if there is one; it counts as begun.
    pub(super) fn start(&mut self, now: Instant, demand: Demand) -> Option<usize> {
        let at = (0..self.ways.len()).find(|&at| self.due(at, demand).is_some_and(|due| due <= now))?;
        if let State::Down { failures, .. } = self.ways[at].state {
            self.ways[at].state = State::Trying { failures, since: now };
        }
        Some(at)
    }

    /// Returns when [`Ways::start`] will have something, if nothing else happens.
    pub(super) fn next_start(&self, demand: Demand) -> Option<Instant> {
        (0..self.ways.len()).filter_map(|at| self.due(at, demand)).min()
    }

    /// When a way may be tried.
    fn due(&self, at: usize, demand: Demand) -> Option<Instant> {
        let State::Down { not_before, .. } = self.ways[at].state else { return None };
        let is_socket = at >= self.fabrics;
        // Sockets do not replace each other, and fabrics are no help to what needs a socket.
        let (rivals, before) = match (is_socket, demand) {
            (true, Demand::None) => return None,
            (true, Demand::Any) => (0..self.ways.len(), 0..at),
            (true, Demand::Socket) => (self.fabrics..self.ways.len(), self.fabrics..at),
            (false, _) if self.offered == Some(at) => (0..0, 0..0),
            (false, _) => (0..at, 0..at),
        };
        let offered = self.offered.filter(|offered| !is_socket && *offered != at);
        if self.ways[rivals].iter().chain(offered.map(|at| &self.ways[at])).any(|way| way.state == State::Up) {
            return None;
        }
        // An earlier failure delays nothing when it is tried again.
        let silent = |way: &ConnectionState| match way.state {
            State::Trying { since, failures: 0 } => Some(since + if is_socket { GAP } else { way.gap }),
            _ => None,
        };
        Some(self.ways[before].iter().filter_map(silent).fold(not_before, Instant::max))
    }

    /// The way stands.
    pub(super) fn came_up(&mut self, at: usize) {
        self.ways[at].state = State::Up;
        self.ways[at].why = None;
    }

    /// An attempt failed, or what came of it did not last until the server answered.
    pub(super) fn failed(&mut self, at: usize, now: Instant, why: String) {
        let before = match self.ways[at].state {
            State::Down { failures, .. } | State::Trying { failures, .. } => failures,
            State::Up => 0,
        };
        self.offered.take_if(|offered| *offered == at);
        let wait = self.patience.least.saturating_mul(1 << before.min(16)).min(self.patience.most);
        self.ways[at].state = State::Down { failures: before.saturating_add(1), not_before: now + wait };
        self.ways[at].why = Some(why);
    }

    /// A way that stood does not any more.
    pub(super) fn lost(&mut self, at: usize, now: Instant, why: String) {
        self.offered.take_if(|offered| *offered == at);
        self.ways[at].state = State::Down { failures: 0, not_before: now };
        self.ways[at].why = Some(why);
    }

    /// Its connection was closed because a better one came.
    pub(super) fn replaced(&mut self, at: usize, now: Instant) {
        self.ways[at].state = State::Down { failures: 0, not_before: now };
    }

    /// Returns whether attempts are under way.
    pub(super) fn is_trying(&self) -> bool {
        self.ways.iter().any(|way| matches!(way.state, State::Trying { .. }))
    }

    /// Returns whether one of the ways that serve the demand stands or may come up, without waiting for another attempt.
    pub(super) fn has_hope(&self, now: Instant, demand: Demand) -> bool {
        let first = if demand == Demand::Socket { self.fabrics } else { 0 };
        self.ways[first..].iter().any(|way| match way.state {
            State::Up => true,
            State::Trying { since, .. } => now < since + self.patience.connect,
            State::Down { not_before, .. } => not_before <= now,
        })
    }

    /// Returns why each way does not stand.
    pub(super) fn reasons(&self, now: Instant) -> impl Iterator<Item = (usize, String)> {
        self.ways.iter().enumerate().filter_map(move |(at, way)| {
            let why = match way.state {
                State::Up => return None,
                State::Trying { since, .. } => {
                    let waited = now.saturating_duration_since(since).as_millis();
                    match &way.why {
                        Some(before) => format!("no answer for {waited} ms; before that: {before}"),
                        None => format!("no answer for {waited} ms"),
                    }
                }
                State::Down { .. } => way.why.clone().unwrap_or_else(|| "not tried yet".to_owned()),
            };
            Some((at, why))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENCE: Patience = Patience {
        connect: Duration::from_secs(1),
        least: Duration::from_millis(20),
        most: Duration::from_millis(640),
    };

    fn ways(fabrics: usize, sockets: usize, now: Instant) -> Ways {
        Ways::new(&vec![GAP; fabrics + sockets], fabrics, PATIENCE, now)
    }
    const MS: Duration = Duration::from_millis(1);

    fn started(ways: &mut Ways, now: Instant, demand: Demand) -> Vec<usize> {
        std::iter::from_fn(|| ways.start(now, demand)).collect()
    }

    #[test]
    fn silent_ways_delay_each_other_by_a_gap() {
        let zero = Instant::now();
        let mut ways = ways(2, 1, zero);
        assert_eq!(started(&mut ways, zero, Demand::Any), [0]);
        assert_eq!(ways.next_start(Demand::Any), Some(zero + GAP));
        assert!(started(&mut ways, zero + GAP - MS, Demand::Any).is_empty());
        assert_eq!(started(&mut ways, zero + GAP, Demand::Any), [1]);
        assert_eq!(started(&mut ways, zero + GAP * 2, Demand::Any), [2]);
        assert!(ways.has_hope(zero + GAP * 2, Demand::Any));
        let late = zero + PATIENCE.connect + GAP * 2;
        assert!(!ways.has_hope(late, Demand::Any), "nothing answered within the time to connect");
        assert_eq!(ways.reasons(late).count(), 3);
        // A way that answers late is not lost.
        ways.came_up(0);
        assert!(ways.has_hope(late, Demand::Any));
    }

    #[test]
    fn a_failure_starts_the_next_way_at_once() {
        let zero = Instant::now();
        let mut ways = ways(1, 1, zero);
        assert_eq!(started(&mut ways, zero, Demand::Any), [0]);
        ways.failed(0, zero + MS, "refused".into());
        assert_eq!(started(&mut ways, zero + MS, Demand::Any), [1]);
        ways.failed(1, zero + MS * 2, "refused, too".into());
        assert!(!ways.has_hope(zero + MS * 2, Demand::Any));
        let reasons: Vec<_> = ways.reasons(zero + MS * 2).collect();
        assert_eq!(reasons, [(0, "refused".to_owned()), (1, "refused, too".to_owned())]);
    }

    #[test]
    fn each_failure_is_waited_for_longer_up_to_a_bound() {
        let mut now = Instant::now();
        let mut ways = ways(1, 0, now);
        for wait in [20, 40, 80, 160, 320, 640, 640] {
            assert_eq!(started(&mut ways, now, Demand::None), [0]);
            ways.failed(0, now, "no".into());
            assert_eq!(ways.next_start(Demand::None), Some(now + MS * wait));
            now += MS * wait;
        }
        assert_eq!(started(&mut ways, now, Demand::None), [0]);
        ways.came_up(0);
        ways.lost(0, now, "gone".into());
        assert_eq!(started(&mut ways, now, Demand::None), [0], "at once");
    }

    #[test]
    fn a_standing_fabric_keeps_worse_ways_down() {
        let zero = Instant::now();
        let mut ways = ways(2, 1, zero);
        ways.failed(0, zero, "no".into());
        assert_eq!(started(&mut ways, zero, Demand::Any), [1]);
        ways.came_up(1);
        let later = zero + Duration::from_secs(9);
        assert_eq!(started(&mut ways, later, Demand::Any), [0], "the better fabric alone");
        // It may be silent: that is no reason to keep what needs a socket waiting.
        assert_eq!(started(&mut ways, later, Demand::Socket), [2]);
    }

    #[test]
    fn a_connection_waits_longer_for_datagrams() {
        let zero = Instant::now();
        let mut ways = Ways::new(&[DATAGRAMS_GAP, GAP, GAP], 2, PATIENCE, zero);
        assert_eq!(started(&mut ways, zero, Demand::Any), [0]);
        assert_eq!(started(&mut ways, zero + GAP, Demand::Any), [2], "a socket does not");
        assert!(started(&mut ways, zero + DATAGRAMS_GAP - MS, Demand::Any).is_empty());
        assert_eq!(started(&mut ways, zero + DATAGRAMS_GAP, Demand::Any), [1]);
    }

    #[test]
    fn an_offered_fabric_is_better_until_it_is_withdrawn() {
        let zero = Instant::now();
        let mut ways = ways(3, 1, zero);
        assert_eq!(started(&mut ways, zero, Demand::Any), [0]);
        ways.came_up(0);
        assert!(started(&mut ways, zero, Demand::Any).is_empty());
        ways.offer(2);
        assert_eq!(started(&mut ways, zero, Demand::Any), [2], "the one between is no better");
        assert!(ways.is_better(2, 0) && ways.is_better(0, 1) && !ways.is_better(1, 0));
        ways.came_up(2);
        ways.replaced(0, zero);
        assert!(started(&mut ways, zero + GAP * 9, Demand::Any).is_empty());
        ways.withdraw();
        assert_eq!(started(&mut ways, zero, Demand::None), [0], "it goes back");
        assert!(ways.is_better(0, 2));
    }

    #[test]
    fn an_offer_ends_with_its_connection() {
        let zero = Instant::now();
        let mut ways = ways(2, 0, zero);
        assert_eq!(started(&mut ways, zero, Demand::Any), [0]);
        ways.came_up(0);
        ways.offer(1);
        assert_eq!(started(&mut ways, zero, Demand::Any), [1]);
        ways.failed(1, zero, "no".into());
        assert_eq!(ways.offered(), None);
        assert!(started(&mut ways, zero + MS * 90, Demand::Any).is_empty());
        // The next offer waits for the time after a failure.
        ways.offer(1);
        assert!(started(&mut ways, zero, Demand::Any).is_empty());
        assert_eq!(started(&mut ways, zero + MS * 20, Demand::Any), [1]);
        ways.came_up(1);
        ways.lost(1, zero, "gone".into());
        assert_eq!(ways.offered(), None);
    }

    /// The fate of an attempt on a transport's other side.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Silent,
        Fails(u32),
        Comes(u32),
        /// It comes up, and dies after so long.
        Dies(u32, u32),
    }

    fn fate() -> impl Strategy<Value = Fate> {
        prop_oneof![
            Just(Fate::Silent),
            (0..200_u32).prop_map(Fate::Fails),
            (0..200_u32).prop_map(Fate::Comes),
            (0..200_u32, 1..200_u32).prop_map(|(comes, dies)| Fate::Dies(comes, dies)),
        ]
    }

    fn span(ms: u32) -> Duration {
        MS * ms
    }

    proptest! {
        /// Steps of a millisecond, against ways that do as they like.
        #[test]
        fn uses_any_way_that_answers_and_bounds_attempts(
            fabrics in 0..3_usize,
            fates in prop::collection::vec(fate(), 1..5),
        ) {
            let fabrics = fabrics.min(fates.len());
            let zero = Instant::now();
            let mut ways = ways(fabrics, fates.len() - fabrics, zero);
            // When the attempt, or the connection, of each way began.
            let mut trying = vec![None; fates.len()];
            let mut up: Vec<Option<Instant>> = vec![None; fates.len()];
            let mut attempts = vec![0_u32; fates.len()];
            let mut first_up = None;
            for ms in 0..3000 {
                let now = zero + MS * ms;
                for (at, &fate) in fates.iter().enumerate() {
                    if let Some(since) = trying[at] {
                        match fate {
                            Fate::Fails(after) if now >= since + span(after) => {
                                trying[at] = None;
                                ways.failed(at, now, "no".into());
                            }
                            Fate::Comes(after) | Fate::Dies(after, _) if now >= since + span(after) => {
                                trying[at] = None;
                                up[at] = Some(now);
                                first_up.get_or_insert(now);
                                ways.came_up(at);
                            }
                            _ => {}
                        }
                    }
                    if let (Some(since), Fate::Dies(_, after)) = (up[at], fate)
                        && now >= since + span(after)
                    {
                        up[at] = None;
                        ways.lost(at, now, "dead".into());
                    }
                }
                for at in started(&mut ways, now, Demand::Any) {
                    prop_assert!(trying[at].is_none() && up[at].is_none(), "one attempt at a time");
                    prop_assert!(up[..at.min(fabrics)].iter().all(Option::is_none), "a better fabric stands");
                    trying[at] = Some(now);
                    attempts[at] += 1;
                }
                prop_assert!(ways.next_start(Demand::Any).is_none_or(|next| next > now));
                // Whatever does not stand has its reason.
                prop_assert_eq!(ways.reasons(now).count(), up.iter().filter(|up| up.is_none()).count());
                let hopeful = up.iter().any(Option::is_some)
                    || trying.iter().any(|since| since.is_some_and(|since| now < since + PATIENCE.connect));
                prop_assert_eq!(ways.has_hope(now, Demand::Any), hopeful);
            }
            // The way that answers first among all, tried as late as it can be.
            let soonest = fates.iter().zip(0..).filter_map(|(&fate, at)| match fate {
                Fate::Comes(after) | Fate::Dies(after, _) => Some(GAP * at + span(after) + MS * (at + 1)),
                _ => None,
            }).min();
            if let Some(soonest) = soonest {
                let came = first_up.map(|first| first - zero);
                prop_assert!(came.is_some_and(|came| came <= soonest), "{:?} instead of {:?}", came, soonest);
            }
            for (&fate, &attempts) in fates.iter().zip(&attempts) {
                let most = match fate {
                    Fate::Silent | Fate::Comes(_) => 1,
                    // 20, 40, … 640 ms, and 640 from then on.
                    Fate::Fails(_) => 10,
                    Fate::Dies(..) => 3000,
                };
                prop_assert!(attempts <= most, "{} attempts of {:?}", attempts, fate);
            }
            // A fabric that answers, however late, is used if no better one is.
            for (at, fate) in fates[..fabrics].iter().enumerate() {
                let better = fates[..at].iter().any(|fate| matches!(fate, Fate::Comes(_) | Fate::Dies(..)));
                prop_assert!(better || !matches!(fate, Fate::Comes(_)) || up[at].is_some());
            }
        }
    }
}
