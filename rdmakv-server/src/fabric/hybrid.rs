//! Connections for the busiest clients, datagrams for the others (`--connections`).
//!
//! [`Hybrid`] is what the threads of both share: the [ranking](super::promotion), the tokens of its offers, and which holders were told to
//! leave. A thread of datagrams reports its busy clients and gives tokens to those with an offer. A connection takes its slot by
//! [`Hybrid::enter`], and its drop frees that.
//!
//! | the client | the server |
//! | --- | --- |
//! | is busy, by datagrams | reserves a slot; each reply ends with a token until that is used or over |
//! | connects, and says HELLO with the token | the slot is the client's |
//! | moves when nothing of its own is under way by datagrams; leaves these by BYE | counts its requests and one-sided reads |
//! | is outranked, or idle | says DEMOTE, and gives no tags |
//! | comes by datagrams, moves when nothing is under way on the connection, closes it | the slot is free |
//!
//! So no operation is under way on both paths, and none is sent on a second one. A reservation ends after 2 s.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::promotion::{Decision, Host, INTERVAL, Promotion};
use crate::metrics::{DatagramCounts, count};

/// Clients at most that are ranked.
const RANKED: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct Hybrid {
    state: Mutex<State>,
    /// When the next ranking is due.
    due: AtomicU64,
    /// How often offers changed.
    offers: AtomicU64,
    /// Silence after which a client that was told to leave is disconnected.
    pub(super) timeout: Duration,
}

/// The offers of connections, and their tokens. Decisions alone: the caller has the clock, the lock and the random numbers.
#[derive(Clone, Debug)]
struct Offers {
    promotion: Promotion,
    /// The token of each offer, by client.
    tokens: HashMap<u64, u64>,
}

impl Offers {
    fn new(slots: usize, ranked: usize, now: u64) -> Self {
        Self { promotion: Promotion::new(slots, ranked, now), tokens: HashMap::default() }
    }

    /// Ranks the clients. `token` makes one that no client can guess.
    fn rank(&mut self, now: u64, mut token: impl FnMut() -> u64) -> Vec<Decision> {
        let decisions = self.promotion.rank(now);
        for decision in &decisions {
            match *decision {
                Decision::Offer(client) => drop(self.tokens.insert(client, token())),
                Decision::Withdraw(client) => drop(self.tokens.remove(&client)),
                Decision::Demote(_) => {}
            }
        }
        decisions
    }

    /// Lets a client in that connected. Returns which one it is, if it was offered the connection.
    fn enter(&mut self, token: Option<u64>, host: Host, now: u64) -> Result<Option<u64>, NoSlot> {
        let Some(token) = token else {
            return if self.promotion.occupy(host) { Ok(None) } else { Err(NoSlot::Taken) };
        };
        let offered = self.tokens.iter().find(|(_, of)| **of == token).map(|(&client, _)| client);
        let client = offered.filter(|client| self.promotion.claim(*client, now)).ok_or(NoSlot::Over)?;
        self.tokens.remove(&client);
        Ok(Some(client))
    }

    /// The connection has ended of a client that was offered it, or of one of this host that was not.
    fn leave(&mut self, client: Option<u64>, host: Host) {
        match client {
            Some(client) => self.promotion.freed(client),
            None => self.promotion.vacate(host),
        }
    }
}

#[cfg(test)]
impl std::hash::Hash for Offers {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let tokens: std::collections::BTreeMap<_, _> = self.tokens.iter().collect();
        (&self.promotion, tokens).hash(state);
    }
}

#[derive(Debug)]
struct State {
    offers: Offers,
    /// Whether each client with a slot was told to leave.
    holders: HashMap<u64, Arc<AtomicBool>>,
}

/// Why a client gets no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoSlot {
    /// Its offer is over, or there was none.
    Over,
    /// It had no token, and all slots are taken.
    Taken,
}

impl NoSlot {
    /// Returns the text for the client.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Over => "the connection that was offered is another client's now: go on by datagrams",
            Self::Taken => {
                "connections are for the busiest clients (--connections): use udp: first, as in -s udp:HOST:PORT,iwarp:HOST:PORT"
            }
        }
    }
}

/// When a thread reports its clients' requests: each interval, whatever other threads do. Were it asked only when a ranking is due,
/// threads with longer turns would never be the first to see that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reports {
    due: u64,
}

impl Reports {
    /// Returns whether it is time for a report. If it is, the next one is due an interval later.
    pub(super) fn is_due(&mut self, now: u64) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.due = now + INTERVAL;
        }
        is_due
    }
}

impl Hybrid {
    /// Returns the state with so many slots.
    pub(super) fn new(slots: usize, timeout: Duration, now: u64) -> Arc<Self> {
        let state = State { offers: Offers::new(slots, RANKED, now), holders: HashMap::new() };
        Arc::new(Self { state: Mutex::new(state), due: AtomicU64::new(now), offers: AtomicU64::new(0), timeout })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic within is a bug of the ranking's. It may lose slots, and no operation.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a thread may report and rank now.
    fn is_due(&self, now: u64) -> bool {
        now >= self.due.load(Relaxed)
    }

    /// Takes the requests of busy clients that one thread has counted, and ranks if it is time. Decisions are counted.
    pub(super) fn rank(&self, busy: impl Iterator<Item = (u64, (Host, u64))>, now: u64, counts: &DatagramCounts) {
        let mut state = self.state();
        for (client, (host, requests)) in busy {
            state.offers.promotion.record(client, host, requests, now);
        }
        if !self.is_due(now) {
            return;
        }
        self.due.store(now + INTERVAL, Relaxed);
        let decisions = state.offers.rank(now, rand::random);
        for decision in &decisions {
            match *decision {
                Decision::Offer(_) => count(&counts.offers),
                Decision::Withdraw(_) => count(&counts.unused_offers),
                Decision::Demote(client) => {
                    state.holders.get(&client).inspect(|is_demoted| is_demoted.store(true, Relaxed));
                    count(&counts.demoted);
                }
            }
        }
        drop(state);
        if !decisions.is_empty() {
            self.offers.fetch_add(1, Relaxed);
        }
    }

    /// Brings a thread's copy of the offers up to date. `seen` is how often they had changed before.
    pub(super) fn copy_offers(&self, seen: &mut u64, offers: &mut HashMap<u64, u64>) {
        let changes = self.offers.load(Relaxed);
        if std::mem::replace(seen, changes) != changes {
            offers.clone_from(&self.state().offers.tokens);
        }
    }

    /// Lets a client of this host in that connected, with the token that it got if it had one.
    ///
    /// # Errors
    /// There is no slot for it.
    pub(super) fn enter(self: &Arc<Self>, token: Option<u64>, host: Host, now: u64) -> Result<Slot, NoSlot> {
        let mut state = self.state();
        let Some(client) = state.offers.enter(token, host, now)? else {
            return Ok(Slot::new(self, (host, None), now));
        };
        let is_demoted = Arc::new(AtomicBool::new(false));
        state.holders.insert(client, is_demoted.clone());
        drop(state);
        self.offers.fetch_add(1, Relaxed);
        Ok(Slot::new(self, (host, Some((client, is_demoted))), now))
    }
}

/// The slot of a connection, until this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    of: Arc<Hybrid>,
    host: Host,
    /// The client that it was offered to, and whether that was told to leave.
    client: Option<(u64, Arc<AtomicBool>)>,
    /// Requests since the last report, and when that was.
    requests: u64,
    reads: u64,
    reported_at: u64,
}

impl Slot {
    fn new(of: &Arc<Hybrid>, (host, client): (Host, Option<(u64, Arc<AtomicBool>)>), now: u64) -> Self {
        Self { of: of.clone(), host, client, requests: 0, reads: 0, reported_at: now }
    }

    /// Returns whether the client had an offer: then it can be told to leave.
    pub(super) fn was_offered(&self) -> bool {
        self.client.is_some()
    }

    /// Returns whether the client is to leave.
    pub(super) fn is_demoted(&self) -> bool {
        self.client.as_ref().is_some_and(|(_, is_demoted)| is_demoted.load(Relaxed))
    }

    /// Returns the silence after which a client that is to leave is disconnected.
    pub(super) fn timeout(&self) -> Duration {
        self.of.timeout
    }

    /// Counts requests, or reads that the client reports.
    pub(super) fn count(&mut self, requests: u64) {
        self.requests += requests;
    }

    /// Reports the client's rate, if it is time. `reads` returns how many one-sided reads there were ever.
    pub(super) fn report(&mut self, now: u64, reads: impl FnOnce() -> u64) {
        let Some((client, _)) = &self.client else { return };
        let since = now.saturating_sub(self.reported_at);
        if since < INTERVAL {
            return;
        }
        let reads = reads();
        let events = std::mem::take(&mut self.requests) + reads.saturating_sub(self.reads);
        (self.reads, self.reported_at) = (reads, now);
        self.of.state().offers.promotion.report(*client, events as f64 * 1e9 / since as f64);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.of.state();
        let client = self.client.as_ref().map(|(client, _)| *client);
        client.inspect(|client| drop(state.holders.remove(client)));
        state.offers.leave(client, self.host);
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Host = [1; 16];

    fn rank(hybrid: &Hybrid, now: &mut u64, rounds: u32, busy: &[(u64, u64)]) {
        for _ in 0..rounds {
            *now += INTERVAL;
            hybrid.rank(
                busy.iter().map(|&(client, requests)| (client, (HERE, requests))),
                *now,
                &DatagramCounts::default(),
            );
        }
    }

    fn offers(hybrid: &Hybrid) -> HashMap<u64, u64> {
        let (mut seen, mut offers) = (u64::MAX, HashMap::default());
        hybrid.copy_offers(&mut seen, &mut offers);
        offers
    }

    #[test]
    fn a_token_is_good_once() {
        let mut now = 0;
        let hybrid = Hybrid::new(1, Duration::ZERO, now);
        rank(&hybrid, &mut now, 2, &[(1, 100)]);
        let token = offers(&hybrid)[&1];
        assert_eq!(hybrid.enter(Some(!token), HERE, now).unwrap_err(), NoSlot::Over);
        assert_eq!(hybrid.enter(None, HERE, now).unwrap_err(), NoSlot::Taken, "it is reserved");
        let slot = hybrid.enter(Some(token), HERE, now).unwrap();
        assert_eq!(hybrid.enter(Some(token), HERE, now).unwrap_err(), NoSlot::Over);
        assert!(offers(&hybrid).is_empty() && slot.was_offered() && !slot.is_demoted());
        drop(slot);
        assert!(hybrid.enter(None, HERE, now).is_ok(), "it is free, and free again");
        assert!(hybrid.enter(None, HERE, now).is_ok());
    }

    #[test]
    fn offers_that_are_not_used_end() {
        let mut now = 0;
        let hybrid = Hybrid::new(1, Duration::ZERO, now);
        rank(&hybrid, &mut now, 2, &[(1, 100)]);
        let token = offers(&hybrid)[&1];
        rank(&hybrid, &mut now, 20, &[(1, 100)]);
        assert_eq!(hybrid.enter(Some(token), HERE, now).unwrap_err(), NoSlot::Over);
        assert!(offers(&hybrid).is_empty());
    }

    #[test]
    fn idle_holders_are_told_to_leave_and_readers_are_not() {
        let mut now = 0;
        let hybrid = Hybrid::new(2, Duration::ZERO, now);
        rank(&hybrid, &mut now, 2, &[(1, 100), (2, 100)]);
        let of = offers(&hybrid);
        let [mut reads, mut idle] = [1, 2].map(|client| hybrid.enter(Some(of[&client]), HERE, now).unwrap());
        for round in 1..=50 {
            rank(&hybrid, &mut now, 1, &[]);
            reads.report(now, || round * 50);
            idle.report(now, || 0);
        }
        assert_eq!((reads.is_demoted(), idle.is_demoted()), (false, true));
        rank(&hybrid, &mut now, 5, &[(3, 1000)]);
        assert!(offers(&hybrid).is_empty(), "its slot is not free yet");
        drop(idle);
        rank(&hybrid, &mut now, 1, &[(3, 1000)]);
        assert_eq!(offers(&hybrid).keys().collect::<Vec<_>>(), [&3]);
    }

    /// The first looks every millisecond, the second every 5 ms.
    #[test]
    fn busy_clients_of_each_thread_are_offered_slots() {
        const MS: u64 = 1_000_000;
        let (hybrid, counts) = (Hybrid::new(2, Duration::ZERO, 0), DatagramCounts::default());
        let mut reports = [Reports::default(); 2];
        let (mut rates, mut now, mut offered_at) = ([0_u64; 2], 0, None);
        for step in 0..5000 {
            for thread in 0..2 {
                rates[thread] += 1;
                if (thread == 0 || step % 5 == 0) && reports[thread].is_due(now) {
                    let counted = (thread as u64 + 1, (HERE, std::mem::take(&mut rates[thread])));
                    hybrid.rank(std::iter::once(counted), now, &counts);
                }
                now += MS / 2;
            }
            offered_at = offered_at.or_else(|| offers(&hybrid).contains_key(&2).then_some(step));
        }
        assert!(offered_at.is_some_and(|ms| ms <= 1000), "1000 requests a second, 2 slots, 5 s: {offered_at:?}");
    }
}
