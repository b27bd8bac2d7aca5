//! Which clients of datagrams get one of the few connections: a ranking by their rates.
//!
//! Decisions alone: no clock, lock or socket. The caller reports requests and reads, and asks for a [`decision`](Promotion::rank) every
//! 100 ms.
//!
//! * A *score* is requests and reads a second, averaged with a half-life of 250 ms.
//! * *Up*: a client whose score is among the highest N gets a slot, if one is free. Else it takes that of a client with at most half of its
//!   score. Each client keeps its slot for 2 s at least.
//!   One that was told to leave has 10 s. If it has not left by then, another one is told to, too.
//! * *Hosts*: the N slots are divided by the hosts that are busy, and each has a share of at least one. The busiest clients of a host, up to its
//!   share, come before all others. They also take slots of other hosts' clients beyond their shares, whatever the scores. So one host
//!   has all slots only while no other wants one.
//! * *Down*: a client whose score was below 25 for 2 s loses its slot. It keeps the slot until it has left ([`Promotion::freed`]).
//! * A reservation that is not used within 2 s ends. Its client gets no other for 60 s: perhaps it cannot connect.
//! * A client that connects without an offer takes a free slot ([`Promotion::occupy`]), and keeps it until it leaves by itself. One host has
//!   at most half of the slots in this way.

use std::collections::HashMap;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// The interval of rankings.
pub const INTERVAL: u64 = 100 * MS;
/// The half-life of scores.
const HALF_LIFE: f64 = 0.25;
/// The least score of a client that is promoted, and of one that stays.
const UP: f64 = 100.0;
const DOWN: f64 = 25.0;
/// How long a reservation lasts, a slot is had at least, and a low score is borne.
const HOLD: u64 = 2 * SECOND;
/// How long a client that was told to leave is waited for. Then the slot of another one is asked for.
const LEAVE: u64 = 10 * SECOND;
/// How long a client gets no offer after it used none.
const PAUSE: u64 = 60 * SECOND;
/// The score below which a client without a slot is forgotten.
const FORGOTTEN: f64 = 1.0;

/// The host of clients, as its address says.
pub type Host = [u8; 16];

/// The state of a client's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    None,
    /// Offered, until then.
    Reserved(u64),
    /// Used, since then.
    Held(u64),
    /// Its client was told to leave, then.
    Leaving(u64),
}

#[derive(Clone, Debug)]
struct Client {
    host: Host,
    score: f64,
    /// Events since the last ranking.
    events: u64,
    /// The rate that was last reported, besides.
    rate: f64,
    slot: Slot,
    /// When its score was last high enough to stay.
    busy_at: u64,
    /// No offer before.
    not_before: u64,
}

/// A client in the order of the ranking.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    id: u64,
    host: Host,
    score: f64,
    /// Whether it is one of the busiest of its host, up to the share.
    is_in_share: bool,
}

impl Ranked {
    /// Returns whether this client may have the slot of that holder.
    fn outranks(&self, holder: &Self) -> bool {
        match (self.is_in_share, holder.is_in_share) {
            (true, false) if self.host != holder.host => true,
            (false, true) => false,
            _ => holder.score * 2.0 <= self.score,
        }
    }
}

/// A change that the caller makes known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// This client may connect: its replies carry a token until it does.
    Offer(u64),
    /// The offer of this client has ended.
    Withdraw(u64),
    /// This client is to leave its connection.
    Demote(u64),
}

/// The clients that were active of late, and the slots.
#[derive(Clone, Debug)]
pub struct Promotion {
    slots: usize,
    clients: HashMap<u64, Client>,
    /// Slots of clients that had no offer, by host.
    occupied: HashMap<Host, usize>,
    /// The most clients that are ranked.
    most: usize,
    ranked_at: u64,
}

impl Promotion {
    /// Returns a ranking for so many slots. It remembers at most `most` clients.
    pub fn new(slots: usize, most: usize, now: u64) -> Self {
        Self { slots, clients: HashMap::default(), occupied: HashMap::default(), most: most.max(slots), ranked_at: now }
    }

    /// Notes so many requests or reads of a client. A wish for a tag counts twice.
    pub fn record(&mut self, client: u64, host: Host, events: u64, now: u64) {
        if let Some(known) = self.clients.get_mut(&client) {
            known.events += events;
            known.host = host;
        } else if self.clients.len() < self.most {
            let new = Client { host, score: 0.0, events, rate: 0.0, slot: Slot::None, busy_at: now, not_before: 0 };
            self.clients.insert(client, new);
        }
    }

    /// Notes the rate of a client with a slot. It holds until the next report.
    pub fn report(&mut self, client: u64, rate: f64) {
        if let Some(known) = self.clients.get_mut(&client).filter(|known| matches!(known.slot, Slot::Held(_))) {
            known.rate = rate;
        }
    }

    /// A client has come without an offer. Returns whether there is a slot for it.
    pub fn occupy(&mut self, host: Host) -> bool {
        let own = self.occupied.get(&host).copied().unwrap_or(0);
        let is_free = self.taken() < self.slots && (own == 0 || 2 * own < self.slots);
        if is_free {
            self.occupied.insert(host, own + 1);
        }
        is_free
    }

    /// A client of this host that came without an offer has gone.
    pub fn vacate(&mut self, host: Host) {
        if let Some(own) = self.occupied.get_mut(&host) {
            *own -= 1;
            if *own == 0 {
                self.occupied.remove(&host);
            }
        }
    }

    /// Returns how many slots clients without an offer have.
    fn occupied(&self) -> usize {
        self.occupied.values().sum()
    }

    /// A client has come with its token. Returns whether it had a reservation; the slot is its own then.
    pub fn claim(&mut self, client: u64, now: u64) -> bool {
        match self.clients.get_mut(&client) {
            Some(known) if matches!(known.slot, Slot::Reserved(until) if now < until) => {
                (known.slot, known.busy_at) = (Slot::Held(now), now);
                true
            }
            _ => false,
        }
    }

    /// The connection of a client has ended.
    pub fn freed(&mut self, client: u64) {
        if let Some(known) = self.clients.get_mut(&client)
            && matches!(known.slot, Slot::Held(_) | Slot::Leaving(_))
        {
            // With its score: a client that has ended would be offered its own slot. One that goes on is ranked anew.
            self.clients.remove(&client);
        }
    }

    /// Returns how many slots are reserved or used.
    pub fn taken(&self) -> usize {
        self.occupied() + self.clients.values().filter(|client| client.slot != Slot::None).count()
    }

    /// Ranks the clients, if the interval is over.
    pub fn rank(&mut self, now: u64) -> Vec<Decision> {
        let since = now.saturating_sub(self.ranked_at);
        if since < INTERVAL {
            return Vec::new();
        }
        self.ranked_at = now;
        let mut decisions = Vec::new();
        self.score(now, since as f64 / SECOND as f64, &mut decisions);
        self.clients
            .retain(|_, client| client.slot != Slot::None || client.score >= FORGOTTEN || client.not_before > now);
        self.promote(now, &mut decisions);
        self.forget();
        decisions
    }

    /// Forgets the slower half of those without a slot, if no other client would be noted. A busy one is soon noted again.
    fn forget(&mut self) {
        if self.clients.len() < self.most {
            return;
        }
        let idle = self.clients.iter().filter(|(_, client)| client.slot == Slot::None);
        let mut idle: Vec<(f64, u64)> = idle.map(|(&id, client)| (client.score, id)).collect();
        let half = idle.len() / 2;
        if half > 0 {
            idle.select_nth_unstable_by(half, |one, other| one.0.total_cmp(&other.0));
            for (_, id) in &idle[..half] {
                self.clients.remove(id);
            }
        }
    }

    /// Brings the scores up to date, and ends what time ends.
    fn score(&mut self, now: u64, seconds: f64, decisions: &mut Vec<Decision>) {
        let kept = 0.5_f64.powf(seconds / HALF_LIFE);
        for (&id, client) in &mut self.clients {
            let rate = std::mem::take(&mut client.events) as f64 / seconds + client.rate;
            client.score = client.score * kept + rate * (1.0 - kept);
            if client.score >= DOWN {
                client.busy_at = now;
            }
            match client.slot {
                Slot::Reserved(until) if until <= now => {
                    (client.slot, client.not_before) = (Slot::None, now + PAUSE);
                    decisions.push(Decision::Withdraw(id));
                }
                Slot::Held(_) if client.busy_at + HOLD <= now => {
                    client.slot = Slot::Leaving(now);
                    decisions.push(Decision::Demote(id));
                }
                _ => {}
            }
        }
    }

    /// Returns the clients in the order in which they get slots. One that gets no offer now is not among them.
    fn ranking(&self, now: u64) -> Vec<Ranked> {
        let takes_part = |client: &Client| client.slot != Slot::None || client.not_before <= now;
        let ranked =
            |(&id, client): (&u64, &Client)| Ranked { id, host: client.host, score: client.score, is_in_share: false };
        let mut ranking: Vec<Ranked> = self.clients.iter().filter(|(_, of)| takes_part(of)).map(ranked).collect();
        ranking.sort_unstable_by(|one, other| other.score.total_cmp(&one.score).then(one.id.cmp(&other.id)));
        let busy = self.clients.values().filter(|of| takes_part(of) && (of.score >= UP || of.slot != Slot::None));
        let mut hosts: HashMap<Host, usize> = busy.map(|client| (client.host, 0)).collect();
        let share = (self.slots.saturating_sub(self.occupied()) / hosts.len().max(1)).max(1);
        for client in &mut ranking {
            let before = hosts.entry(client.host).or_default();
            client.is_in_share = *before < share;
            *before += 1;
        }
        ranking.sort_by_key(|client| !client.is_in_share);
        ranking
    }

    /// Offers slots to the first clients of the ranking. Where none is free, holders that are outranked are told to leave: one for each client
    /// that waits, the last of the ranking first.
    fn promote(&mut self, now: u64, decisions: &mut Vec<Decision>) {
        let ranking = self.ranking(now);
        let mut holders: Vec<Ranked> = ranking
            .iter()
            .filter(|of| matches!(self.clients[&of.id].slot, Slot::Held(since) if since + HOLD <= now))
            .copied()
            .collect();
        let mut free = self.slots.saturating_sub(self.taken());
        // Slots that become free soon, and not those whose clients do not leave, wait for the first of those that are outside.
        let is_soon = |client: &&Client| matches!(client.slot, Slot::Leaving(since) if now < since + LEAVE);
        let mut leaving = self.clients.values().filter(is_soon).count();
        let room = self.slots.saturating_sub(self.occupied());
        for wishes in ranking.into_iter().take(room).filter(|client| client.score >= UP) {
            let Some(client) = self.clients.get_mut(&wishes.id) else { continue };
            if client.slot != Slot::None {
                continue;
            }
            if free > 0 {
                free -= 1;
                client.slot = Slot::Reserved(now + HOLD);
                decisions.push(Decision::Offer(wishes.id));
            } else if leaving > 0 {
                leaving -= 1;
            } else if let Some(last) = holders.iter().rposition(|holder| wishes.outranks(holder))
                && let Some(holding) = self.clients.get_mut(&holders[last].id)
            {
                holding.slot = Slot::Leaving(now);
                decisions.push(Decision::Demote(holders.remove(last).id));
            }
        }
    }
}

#[cfg(test)]
impl std::hash::Hash for Promotion {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let clients: std::collections::BTreeMap<_, _> = self.clients.iter().collect();
        let occupied: std::collections::BTreeMap<_, _> = self.occupied.iter().collect();
        // Scores have no hash of their own.
        (format!("{clients:?}"), occupied, self.ranked_at).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: Host = [1; 16];
    const THERE: Host = [2; 16];

    /// Lets clients have these rates for so many rankings, those from 100 on of another host; returns all decisions.
    fn pass(promotion: &mut Promotion, now: &mut u64, rankings: u32, rates: &[(u64, u64)]) -> Vec<Decision> {
        let mut all = Vec::new();
        for _ in 0..rankings {
            for &(client, rate) in rates {
                promotion.record(client, if client < 100 { HERE } else { THERE }, rate / 10, *now);
            }
            *now += INTERVAL;
            all.extend(promotion.rank(*now));
        }
        all
    }

    #[test]
    fn a_hot_client_is_offered_a_free_slot_soon() {
        let (mut promotion, mut now) = (Promotion::new(1, 100, 0), 0);
        let decisions = pass(&mut promotion, &mut now, 3, &[(1, 1000), (2, 90)]);
        assert_eq!(decisions, [Decision::Offer(1)], "within 300 ms, and the slow one gets none");
        assert!(promotion.claim(1, now) && !promotion.claim(1, now) && !promotion.claim(2, now));
    }

    #[test]
    fn a_client_gets_hot_within_ten_rankings() {
        for busy in [150, 200, 1000, 100_000] {
            let (mut promotion, mut now) = (Promotion::new(1, 100, 0), 0);
            // It had been slow, and the holder of the only slot is slow from now on.
            pass(&mut promotion, &mut now, 15, &[(1, 40), (2, 120)]);
            assert!(promotion.claim(2, now));
            pass(&mut promotion, &mut now, 30, &[(1, 40), (2, 60)]);
            let rates = [(1, busy), (2, 60)];
            let demoted = (1..=10).find(|_| pass(&mut promotion, &mut now, 1, &rates) == [Decision::Demote(2)]);
            promotion.freed(2);
            let offered = (1..=10).find(|_| pass(&mut promotion, &mut now, 1, &rates) == [Decision::Offer(1)]);
            let rankings = demoted.zip(offered).map(|(demoted, offered)| demoted + offered);
            assert!(rankings.is_some_and(|rankings| rankings <= 10), "{busy} a second: {demoted:?}, {offered:?}");
        }
    }

    #[test]
    fn twice_the_score_takes_a_slot_after_its_time() {
        let (mut promotion, mut now) = (Promotion::new(1, 100, 0), 0);
        pass(&mut promotion, &mut now, 3, &[(1, 1000)]);
        assert!(promotion.claim(1, now));
        assert_eq!(pass(&mut promotion, &mut now, 40, &[(1, 1000), (2, 1900)]), [], "less than twice");
        assert_eq!(pass(&mut promotion, &mut now, 10, &[(1, 1000), (2, 9000)]), [Decision::Demote(1)], "once");
        assert!(!promotion.claim(2, now));
        promotion.freed(1);
        assert_eq!(pass(&mut promotion, &mut now, 1, &[(2, 9000)]), [Decision::Offer(2)], "only now");
    }

    #[test]
    fn one_hot_client_drives_out_one_holder() {
        let (mut promotion, mut now) = (Promotion::new(2, 100, 0), 0);
        pass(&mut promotion, &mut now, 5, &[(1, 200), (2, 400)]);
        assert!(promotion.claim(1, now) && promotion.claim(2, now));
        let rates = [(1, 200), (2, 400), (3, 9000)];
        assert_eq!(pass(&mut promotion, &mut now, 19, &rates), [], "they have had their slots for 1.9 s");
        let decisions = pass(&mut promotion, &mut now, 40, &rates);
        assert_eq!(decisions, [Decision::Demote(1)], "the one of the lowest score");
    }

    #[test]
    fn idle_clients_lose_their_slots() {
        let (mut promotion, mut now) = (Promotion::new(2, 100, 0), 0);
        pass(&mut promotion, &mut now, 5, &[(1, 1000)]);
        assert!(promotion.claim(1, now));
        assert_eq!(pass(&mut promotion, &mut now, 20, &[]), [], "its score fades, and 2 s pass");
        assert_eq!(pass(&mut promotion, &mut now, 20, &[]), [Decision::Demote(1)]);
        promotion.freed(1);
        pass(&mut promotion, &mut now, 10, &[]);
        assert_eq!((promotion.taken(), promotion.clients.len()), (0, 0), "it is forgotten");
    }

    #[test]
    fn unused_offers_go_to_the_next_in_rank() {
        let (mut promotion, mut now) = (Promotion::new(1, 100, 0), 0);
        let rates = [(1, 9000), (2, 8000)];
        let mut decisions = pass(&mut promotion, &mut now, 30, &rates);
        assert_eq!(decisions[..2], [Decision::Offer(1), Decision::Withdraw(1)]);
        assert!(!promotion.claim(1, now), "too late");
        decisions.extend(pass(&mut promotion, &mut now, 560, &rates));
        assert_eq!(decisions.iter().filter(|decision| **decision == Decision::Offer(1)).count(), 1, "for 60 s");
    }

    #[test]
    fn reported_rates_keep_a_slot() {
        let (mut promotion, mut now) = (Promotion::new(1, 100, 0), 0);
        pass(&mut promotion, &mut now, 5, &[(1, 1000)]);
        promotion.report(1, 900.0);
        assert!(promotion.claim(1, now));
        promotion.report(1, 900.0);
        assert_eq!(pass(&mut promotion, &mut now, 100, &[(2, 1000)]), [], "it reads, and sends no requests");
        promotion.report(1, 0.0);
        assert_eq!(pass(&mut promotion, &mut now, 30, &[(2, 1000)]), [Decision::Demote(1)]);
    }

    #[test]
    fn clients_without_an_offer_take_free_slots() {
        let (mut promotion, mut now) = (Promotion::new(2, 100, 0), 0);
        assert!(promotion.occupy(HERE));
        let rates = [(1, 9000), (2, 8000)];
        assert_eq!(pass(&mut promotion, &mut now, 5, &rates), [Decision::Offer(1)], "one is left");
        assert!(!promotion.occupy(HERE), "it is reserved");
        assert!(promotion.claim(1, now));
        assert_eq!(pass(&mut promotion, &mut now, 5, &rates), [], "no client is asked to leave that cannot be");
        promotion.vacate(HERE);
        assert_eq!(pass(&mut promotion, &mut now, 1, &rates), [Decision::Offer(2)]);
    }

    #[test]
    fn one_host_has_all_slots_only_alone() {
        let (mut promotion, mut now) = (Promotion::new(4, 100, 0), 0);
        let mut rates: Vec<(u64, u64)> = (1..=8).map(|client| (client, 9000 + 100 * client)).collect();
        let offered = pass(&mut promotion, &mut now, 5, &rates);
        assert_eq!(offered, [8, 7, 6, 5].map(Decision::Offer), "it is alone");
        assert!((5..=8).all(|client| promotion.claim(client, now)));
        rates.extend([(100, 150), (101, 140), (102, 130)]);
        let decisions = pass(&mut promotion, &mut now, 40, &rates);
        assert_eq!(decisions, [5, 6].map(Decision::Demote), "its last two, for the half of the other host");
        [5, 6].iter().for_each(|client| promotion.freed(*client));
        assert_eq!(pass(&mut promotion, &mut now, 1, &rates), [100, 101].map(Decision::Offer));
        assert!(promotion.claim(100, now) && promotion.claim(101, now));
        assert_eq!(pass(&mut promotion, &mut now, 100, &rates), [], "no host takes a share back");
        let alone = &rates[..8];
        let decisions = pass(&mut promotion, &mut now, 50, alone);
        assert!([100, 101].iter().all(|idle| decisions.contains(&Decision::Demote(*idle))) && decisions.len() == 2);
    }

    #[test]
    fn one_host_takes_half_of_the_slots_unasked() {
        let mut promotion = Promotion::new(5, 100, 0);
        assert_eq!((0..9).filter(|_| promotion.occupy(HERE)).count(), 3);
        assert_eq!((0..9).filter(|_| promotion.occupy(THERE)).count(), 2, "all are taken");
        promotion.vacate(HERE);
        assert!(!promotion.occupy([3; 16]) || promotion.taken() == 5);
    }

    /// The first one cannot connect.
    #[test]
    fn a_slot_that_is_not_used_goes_to_the_second() {
        let (mut promotion, mut now) = (Promotion::new(1, 100, 0), 0);
        let decisions = pass(&mut promotion, &mut now, 200, &[(1, 9000), (100, 8000)]);
        assert!(decisions.contains(&Decision::Offer(100)), "20 s, a free slot, and 8000 a second: {decisions:?}");
    }

    #[test]
    fn a_client_that_has_gone_is_offered_nothing() {
        let (mut promotion, mut now) = (Promotion::new(1, 100, 0), 0);
        pass(&mut promotion, &mut now, 5, &[(1, 9000)]);
        assert!(promotion.claim(1, now));
        pass(&mut promotion, &mut now, 5, &[(1, 9000)]);
        // Its process ends.
        promotion.freed(1);
        let decisions = pass(&mut promotion, &mut now, 10, &[(100, 1000)]);
        assert_eq!(decisions, [Decision::Offer(100)], "within a second");
    }

    /// They ask six times a second.
    #[test]
    fn slow_clients_do_not_fill_the_ranking() {
        let most = 4096;
        let (mut promotion, mut now) = (Promotion::new(4, most, 0), 0);
        let mut all = Vec::new();
        for ranking in 0..100_u64 {
            // 5 requests at once, every 0.8 s: what `rates.rs` notes.
            if ranking % 8 == 0 {
                (1000..1000 + most as u64).for_each(|client| promotion.record(client, THERE, 5, now));
            }
            promotion.record(1, HERE, 10_000, now);
            now += INTERVAL;
            all.extend(promotion.rank(now));
        }
        assert!(all.contains(&Decision::Offer(1)), "100,000 requests a second for 10 s, and 4 free slots: {all:?}");
    }

    /// It was told to leave, and does not.
    #[test]
    fn a_client_that_stays_shields_no_other_slot() {
        let (mut promotion, mut now) = (Promotion::new(2, 100, 0), 0);
        pass(&mut promotion, &mut now, 5, &[(1, 300), (2, 300)]);
        assert!(promotion.claim(1, now) && promotion.claim(2, now));
        // The first does nothing that counts, and answers: it stays. The second one is slow.
        let mut decisions = Vec::new();
        for _ in 0..600 {
            promotion.report(2, 60.0);
            decisions.extend(pass(&mut promotion, &mut now, 1, &[(100, 9000)]));
        }
        assert_eq!(
            decisions,
            [1, 2].map(Decision::Demote),
            "a minute, and a client of another host that is 150 times as busy"
        );
    }

    proptest! {
        #[test]
        fn slots_are_never_exceeded(
            slots in 0..4_usize,
            steps in prop::collection::vec((0..8_u64, 0..3000_u64, 0..6_u8), 1..400),
        ) {
            let (mut promotion, mut now) = (Promotion::new(slots, 6, 0), 0);
            let (mut held, mut others) = (std::collections::BTreeSet::new(), 0);
            for (client, events, what) in steps {
                match what {
                    0 => held.extend(promotion.claim(client, now).then_some(client)),
                    1 => {
                        held.remove(&client);
                        promotion.freed(client);
                    }
                    2 => others += usize::from(promotion.occupy(HERE)),
                    3 if others > 0 => {
                        others -= 1;
                        promotion.vacate(HERE);
                    }
                    _ => promotion.record(client, [client as u8 % 3; 16], events, now),
                }
                now += INTERVAL / 2;
                for decision in promotion.rank(now) {
                    if let Decision::Demote(client) = decision {
                        prop_assert!(held.contains(&client), "only who has a slot is told to leave");
                    }
                }
                prop_assert!(promotion.taken() <= slots && held.len() + others <= promotion.taken());
                prop_assert!(promotion.clients.len() <= 6.max(slots), "memory is bounded");
            }
        }
    }
}
