//! The leases that clients leave behind count against their origins.
//!
//! A connection that ends does not end its leases: they run out in their own time, and the pages stay registered until then. If they did
//! not count, a client that connects, leases its share and goes, again and again, would hold all that may be leased. So they count for the
//! *peer*, which a new connection does not change: over a network the host's address, over shared memory the user. The rule: a peer has no
//! more pages leased, by those of its connections that are there and those that have gone, than as many shares as it has connections now. A
//! client that never left anything behind is not touched by it, as its own share is the narrower bound. One that comes back to its leased
//! chunks has them at once, as a chunk counts once for a peer.
//!
//! It is bounded: an account has an entry for each chunk that it counts, which are no more than its shares have room for, and accounts
//! with nothing left and no client go. Past [`ACCOUNTS`] of them, all others share one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

use foldhash::fast::FixedState;

use super::super::pages::{Pages, Span};

/// Peers that are told apart at a time.
const ACCOUNTS: usize = 4096;

/// The origin of a client, as far as it cannot choose that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// The server's own user: no other is let in over shared memory. A process costs next to nothing, so they all are one.
    User,
    /// A host.
    Host(IpAddr),
    /// All others together.
    Other,
}

impl Peer {
    /// Returns the peer of this address. Of IPv6 it is the network of 64 bits, in which a host may call itself what it likes.
    pub fn at(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address => address,
        })
    }

    /// Returns the bytes of the host's address, as datagrams have it; those that are no host have numbers that no host has.
    pub fn host(self) -> [u8; 16] {
        match self {
            Self::Host(IpAddr::V4(address)) => address.to_ipv6_mapped().octets(),
            Self::Host(IpAddr::V6(address)) => address.octets(),
            Self::User => [0; 16],
            Self::Other => [0xff; 16],
        }
    }
}

/// A chunk that counts for a peer.
#[derive(Debug)]
struct Held {
    span: Span,
    /// Clients that are there and have a lease of it.
    clients: u32,
    /// Until when one that has gone has; 0 if none.
    left: u64,
}

#[derive(Debug, Default)]
struct Account {
    open: u64,
    pages: Pages,
    chunks: HashMap<u64, Held, FixedState>,
}

impl Account {
    fn drop_unheld(&mut self, chunk: u64) {
        if let Some(held) = self.chunks.get(&chunk)
            && held.clients == 0
            && held.left == 0
        {
            self.pages.remove(held.span);
            self.chunks.remove(&chunk);
        }
    }
}

/// All peers.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    of: HashMap<Peer, Account, FixedState>,
    /// The leases left behind: one entry for each chunk and peer, which may come too early.
    ends: BinaryHeap<Reverse<(u64, Peer, u64)>>,
}

impl Accounts {
    /// Notes a client's arrival, and returns the peer that it counts as.
    pub(super) fn come(&mut self, peer: Peer) -> Peer {
        let known = self.of.len() < ACCOUNTS || self.of.contains_key(&peer);
        let peer = if known { peer } else { Peer::Other };
        self.of.entry(peer).or_default().open += 1;
        peer
    }

    /// A client has gone.
    pub(super) fn go(&mut self, peer: Peer) {
        if let Some(account) = self.of.get_mut(&peer) {
            account.open = account.open.saturating_sub(1);
            self.close_empty(peer);
        }
    }

    fn close_empty(&mut self, peer: Peer) {
        if self.of.get(&peer).is_some_and(|account| account.open == 0 && account.chunks.is_empty()) {
            self.of.remove(&peer);
        }
    }

    /// Returns whether the peer may lease this chunk too, where a client's share is so large. What has ended counts until a
    /// sweep, so a chunk of a client that has gone may be leased again before it.
    pub(super) fn has_room(&self, peer: Peer, chunk: u64, span: Span, share: u64) -> bool {
        self.of.get(&peer).is_some_and(|account| {
            account.chunks.contains_key(&chunk) || account.pages.count_with(span) <= account.open.saturating_mul(share)
        })
    }

    /// A client has a lease of a chunk.
    pub(super) fn charge(&mut self, peer: Peer, chunk: u64, span: Span) {
        let Some(account) = self.of.get_mut(&peer) else { return };
        let held = account.chunks.entry(chunk).or_insert_with(|| {
            account.pages.add(span);
            Held { span, clients: 0, left: 0 }
        });
        held.clients += 1;
        if held.span != span {
            // Leased anew since, and otherwise.
            account.pages.remove(std::mem::replace(&mut held.span, span));
            account.pages.add(span);
        }
    }

    /// A client's lease of a chunk has ended.
    pub(super) fn release(&mut self, peer: Peer, chunk: u64) {
        let Some(account) = self.of.get_mut(&peer) else { return };
        if let Some(held) = account.chunks.get_mut(&chunk) {
            held.clients = held.clients.saturating_sub(1);
            account.drop_unheld(chunk);
        }
    }

    /// A client goes, and its lease of a chunk lasts until then.
    pub(super) fn leave(&mut self, peer: Peer, chunk: u64, until: u64) {
        let Some(account) = self.of.get_mut(&peer) else { return };
        let Some(held) = account.chunks.get_mut(&chunk) else { return };
        held.clients = held.clients.saturating_sub(1);
        if held.left == 0 && until > 0 {
            self.ends.push(Reverse((until, peer, chunk)));
        }
        held.left = held.left.max(until);
        account.drop_unheld(chunk);
    }

    /// Returns whether something has ended and was not let go.
    pub(super) fn is_behind(&self, now: u64) -> bool {
        self.ends.peek().is_some_and(|Reverse((end, ..))| *end <= now)
    }

    /// Lets go of what has ended, at most so much.
    pub(super) fn sweep(&mut self, now: u64, most: usize) {
        for _ in 0..most {
            let Some(&Reverse((_, peer, chunk))) = self.ends.peek().filter(|Reverse((end, ..))| *end <= now) else {
                return;
            };
            self.ends.pop();
            let Some(account) = self.of.get_mut(&peer) else { continue };
            let Some(held) = account.chunks.get_mut(&chunk) else { continue };
            if held.left > now {
                self.ends.push(Reverse((held.left, peer, chunk)));
                continue;
            }
            held.left = 0;
            account.drop_unheld(chunk);
            self.close_empty(peer);
        }
    }

    /// Returns the number of leases that departed clients left behind and that have not ended.
    pub(super) fn left(&self) -> usize {
        self.ends.len()
    }

    /// Peers that are there, or have left something behind.
    pub(super) fn peers(&self) -> u64 {
        self.of.len() as u64
    }

    /// Pages that would count for a peer with this chunk.
    pub(super) fn pages_with(&self, peer: Peer, chunk: u64, span: Span) -> u64 {
        self.of.get(&peer).map_or(0, |account| match account.chunks.contains_key(&chunk) {
            true => account.pages.count(),
            false => account.pages.count_with(span),
        })
    }

    /// Pages that count for a peer.
    pub(super) fn pages(&self, peer: Peer) -> u64 {
        self.of.get(&peer).map_or(0, |account| account.pages.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_apart_by_what_they_cannot_choose() {
        let at = |text: &str| Peer::at(text.parse().unwrap());
        assert_eq!(at("10.0.0.1"), at("::ffff:10.0.0.1"));
        assert_ne!(at("10.0.0.1"), at("10.0.0.2"));
        assert_eq!(at("2001:db8:1:2::1"), at("2001:db8:1:2:ffff::9"));
        assert_ne!(at("2001:db8:1:2::1"), at("2001:db8:1:3::1"));
    }

    #[test]
    fn accounts_are_bounded_and_idle_ones_go() {
        let mut accounts = Accounts::default();
        for host in 0..ACCOUNTS as u32 + 10 {
            let peer = accounts.come(Peer::at(IpAddr::from(host.to_be_bytes())));
            assert_eq!(peer == Peer::Other, host as usize >= ACCOUNTS);
            accounts.charge(peer, host.into(), Span::of(u64::from(host) << 13, 1));
            accounts.leave(peer, host.into(), 100);
            accounts.go(peer);
        }
        assert_eq!((accounts.of.len(), accounts.pages(Peer::Other)), (ACCOUNTS + 1, 10));
        accounts.sweep(99, usize::MAX);
        assert_eq!(accounts.left(), ACCOUNTS + 10);
        accounts.sweep(100, usize::MAX);
        assert_eq!((accounts.of.len(), accounts.left()), (0, 0));
    }
}
