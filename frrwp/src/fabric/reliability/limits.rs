//! The bounds of both sides, and the shares that hosts have of what the server keeps.

use super::wire::{HEADER, MAX_DATAGRAM, MIN_DATAGRAM};
use rustc_hash::FxHashMap;

pub(super) const MILLISECOND: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000_000_000;
/// Requests that a client may have open, and bits of its record.
pub(super) const OPEN: u64 = 64;
/// Parts of a reply that the server sends unasked, and of a request that it takes before it grants more.
pub(super) const UNASKED: u16 = 8;
/// The most bytes of a reply that are copied for a mutation that is asked again.
pub(super) const KEPT_REPLY: usize = 1024;

/// The bytes of datagrams, the same for both sides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Format {
    /// The most bytes of a datagram: 1,400. It is at least [`MIN_DATAGRAM`] and at most [`MAX_DATAGRAM`].
    pub datagram: usize,
    /// Whether datagrams carry their CRC32C: yes, but over fabrics that check by themselves.
    pub check: bool,
}

impl Default for Format {
    fn default() -> Self {
        Self { datagram: 1400, check: true }
    }
}

impl Format {
    /// Returns the most bytes of a message in one datagram.
    pub(super) fn fragment(self) -> usize {
        self.datagram.clamp(MIN_DATAGRAM, MAX_DATAGRAM) - HEADER
    }
}

/// Bounds of a server's thread. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ServerLimits {
    /// The bytes of datagrams.
    pub format: Format,
    /// Clients that are known at a time: 65,536. As many that have left are remembered for a while.
    pub clients: usize,
    /// Silence after which a client is forgotten: 10 minutes, at least one.
    pub idle: u64,
    /// Bytes of requests that are not whole yet: 16 MiB; of one client an eighth.
    pub buffers: usize,
    /// Bytes of replies that are kept in case they are lost: 16 MiB. A client's mutations take at most 70 KiB of them.
    pub replies: usize,
    /// Bytes of values that kept replies refer to: 16 MiB.
    pub references: usize,
    /// RETRYs a second, and as many RESETs: 50,000.
    pub unknown_rate: u64,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            format: Format::default(),
            clients: 65_536,
            idle: 600 * SECOND,
            buffers: 16 << 20,
            replies: 16 << 20,
            references: 16 << 20,
            unknown_rate: 50_000,
        }
    }
}

/// Bounds of a client. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClientLimits {
    /// The bytes of datagrams.
    pub format: Format,
    /// How long a call may take: 5 s.
    pub call_time: u64,
    /// The shortest time-out of a datagram: 5 ms over sockets, 1 ms over a device.
    pub least_timeout: u64,
    /// Calls that are not answered, those included that wait: 1,024.
    pub calls: usize,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self { format: Format::default(), call_time: 5 * SECOND, least_timeout: 5 * MILLISECOND, calls: 1024 }
    }
}

/// The share that a host has while there is room, as a divisor.
const BASIC: usize = 1024;

/// How many pools there are.
const POOLS: usize = 5;

/// A thing that the server keeps for clients, and that hosts share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Pool {
    Clients,
    Left,
    Buffers,
    Replies,
    References,
}

/// Why a host may not have more of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lack {
    /// All hosts together have too much of it: this much.
    Room(usize),
    /// The host has its share.
    Share,
}

/// The use of each pool, in total and by host.
///
/// While half of a pool is free there is no limit. Then a host gets nothing above an eighth of what is left, so a few hosts
/// cannot take all. Each host may have a 1/[`BASIC`] of the pool, and one thing in any case, as long as there is room.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    totals: [usize; POOLS],
    used: [usize; POOLS],
    hosts: FxHashMap<u64, [u32; POOLS]>,
}

impl Shares {
    pub(super) fn new(limits: &ServerLimits) -> Self {
        let totals = [limits.clients, limits.clients, limits.buffers, limits.replies, limits.references];
        Self { totals: totals.map(|total| total.min(u32::MAX as usize)), used: [0; POOLS], hosts: FxHashMap::default() }
    }

    /// Takes an amount for a host, if it may have that.
    pub(super) fn take(&mut self, pool: Pool, host: u64, amount: usize) -> bool {
        self.try_take(pool, host, amount).is_ok()
    }

    /// Takes an amount for a host.
    ///
    /// # Errors
    /// It may not have that.
    pub(super) fn try_take(&mut self, pool: Pool, host: u64, amount: usize) -> Result<(), Lack> {
        self.take_if(pool, host, amount, amount)
    }

    /// Takes room for a reply whose length is not known yet. Most of it is given back soon, so the host's share bounds only what it
    /// has before. A client's oldest request needs no share, but leaves room for a host that has nothing.
    ///
    /// # Errors
    /// The host may not have that.
    pub(super) fn take_reference(&mut self, host: u64, most: usize, is_oldest: bool) -> Result<(), Lack> {
        if is_oldest {
            let own = self.hosts.get(&host).map_or(0, |used| used[Pool::References as usize]);
            let left = if own == 0 { most } else { 2 * most };
            self.look_for_room(Pool::References, left)?;
            self.add(Pool::References, host, most);
            return Ok(());
        }
        self.take_if(Pool::References, host, most, 0)
    }

    /// Takes an amount for a host, if there is room, and the host's use with what is `counted` is within its share.
    fn take_if(&mut self, pool: Pool, host: u64, amount: usize, counted: usize) -> Result<(), Lack> {
        if amount == 0 {
            return Ok(());
        }
        let (total, used) = (self.totals[pool as usize], self.used[pool as usize]);
        let own = self.hosts.get(&host).map_or(0, |used| used[pool as usize] as usize);
        let share = (total.saturating_sub(used) / 8).max(total / BASIC);
        let is_above = used > total / 2 && own > 0 && own + counted > share;
        if is_above {
            return Err(Lack::Share);
        }
        self.look_for_room(pool, amount)?;
        self.add(pool, host, amount);
        Ok(())
    }

    /// Returns whether nothing but clients is taken.
    #[cfg(test)]
    pub(super) fn has_clients_alone(&self) -> bool {
        self.used[1..] == [0; POOLS - 1] && self.hosts.values().all(|used| used[1..] == [0; POOLS - 1])
    }

    fn look_for_room(&self, pool: Pool, amount: usize) -> Result<(), Lack> {
        let short = (self.used[pool as usize] + amount).saturating_sub(self.totals[pool as usize]);
        if short == 0 { Ok(()) } else { Err(Lack::Room(short)) }
    }

    fn add(&mut self, pool: Pool, host: u64, amount: usize) {
        if amount == 0 {
            return;
        }
        self.used[pool as usize] += amount;
        self.hosts.entry(host).or_default()[pool as usize] += amount as u32;
    }

    /// Gives back what a host took.
    pub(super) fn give(&mut self, pool: Pool, host: u64, amount: usize) {
        self.used[pool as usize] -= amount;
        if let Some(used) = self.hosts.get_mut(&host) {
            used[pool as usize] -= amount as u32;
            if *used == [0; POOLS] {
                self.hosts.remove(&host);
            }
        }
    }

    /// One host's use becomes another's: a client has moved.
    pub(super) fn pass(&mut self, pool: Pool, from: u64, to: u64, amount: usize) {
        if from != to && amount > 0 {
            self.hosts.entry(to).or_default()[pool as usize] += amount as u32;
            self.used[pool as usize] += amount;
            self.give(pool, from, amount);
        }
    }
}

impl std::hash::Hash for Shares {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.used, self.hosts.iter().collect::<std::collections::BTreeMap<_, _>>()).hash(state);
    }
}

/// Permits for answers to unknown senders: at most one second's worth at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Permits {
    rate: u64,
    left: u64,
    refilled: u64,
}

impl Permits {
    pub(super) fn new(rate: u64) -> Self {
        Self { rate, left: rate, refilled: 0 }
    }

    pub(super) fn take(&mut self, now: u64) -> bool {
        let passed = now.saturating_sub(self.refilled);
        let more = (u128::from(passed) * u128::from(self.rate) / u128::from(SECOND)) as u64;
        if more > 0 {
            self.left = self.left.saturating_add(more).min(self.rate);
            self.refilled = now;
        }
        let is_one = self.left > 0;
        self.left -= u64::from(is_one);
        is_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_share_what_is_left() {
        let limits = ServerLimits { clients: 1000, ..ServerLimits::default() };
        let mut shares = Shares::new(&limits);
        let greedy = (0..1000).take_while(|_| shares.take(Pool::Clients, 1, 1)).count();
        assert_eq!(greedy, 501, "one host has no limit until half is used");
        // Every later host gets an eighth of what is left at its turn: there is always some left for the next.
        for host in 2..20 {
            let got = (0..1000).take_while(|_| shares.take(Pool::Clients, host, 1)).count();
            assert!(got >= 5, "host {host} got {got}");
        }
        // The last of the room is for those that have nothing.
        let small = (20..1000).take_while(|host| shares.take(Pool::Clients, *host, 1)).count();
        assert!(small > 20, "{small}");
        assert_eq!(shares.used[Pool::Clients as usize], 1000);
        shares.give(Pool::Clients, 1, 501);
        assert!(shares.take(Pool::Clients, 1, 300));
    }

    #[test]
    fn oldest_requests_leave_room_for_another_host() {
        let limits = ServerLimits { references: 16, ..ServerLimits::default() };
        let mut shares = Shares::new(&limits);
        assert_eq!((0..32).take_while(|_| shares.take_reference(1, 1, true).is_ok()).count(), 15);
        assert_eq!(shares.take_reference(2, 1, true), Ok(()), "one that has nothing");
        assert_eq!(shares.take_reference(3, 2, true), Err(Lack::Room(2)));
        assert_eq!(shares.take_reference(1, 1, false), Err(Lack::Share));
    }

    #[test]
    fn permits_come_at_their_rate() {
        let mut permits = Permits::new(100);
        let count = |permits: &mut Permits, now| (0..1000).filter(|_| permits.take(now)).count();
        assert_eq!(count(&mut permits, 0), 100);
        assert_eq!(count(&mut permits, SECOND / 2), 50);
        assert_eq!(count(&mut permits, 100 * SECOND), 100);
    }
}
