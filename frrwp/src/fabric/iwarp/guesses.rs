//! Addresses that guess tags wait before they are let in again.
//!
//! A wrong guess ends the connection. The next one from the same address is held back for a tenth of a second, and for twice
//! as long after each further guess, up to ten seconds. Who comes with many connections at once gains nothing: they are let
//! in one by one, as far apart. So from connections that are made for it, an address has four guesses in the first second,
//! and one in ten seconds in the long run; and one more for each connection that it has already. Against n live tags a guess
//! hits with a probability of n / 2^32. An address is forgotten when it has not guessed for ten minutes.

use rustc_hash::FxHashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(10);
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Addresses that are remembered.
const ADDRESSES: usize = 4096;

#[derive(Default, Debug)]
pub(super) struct Guesses {
    by_address: Mutex<FxHashMap<IpAddr, Guesser>>,
}

#[derive(Clone, Copy, Debug)]
struct Guesser {
    guesses: u32,
    last: Instant,
    /// From when on it is let in.
    from: Instant,
}

/// How long who has guessed so often waits.
fn delay(guesses: u32) -> Duration {
    FIRST.saturating_mul(1 << guesses.saturating_sub(1).min(16)).min(MOST)
}

impl Guesses {
    /// An address has guessed.
    pub(super) fn note(&self, address: IpAddr) {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if by_address.len() >= ADDRESSES {
            by_address.retain(|_, guesser| guesser.last.elapsed() < FORGOTTEN);
        }
        if by_address.len() >= ADDRESSES && !by_address.contains_key(&address) {
            // The quietest makes room.
            let quietest = by_address.iter().min_by_key(|(_, guesser)| guesser.last).map(|(address, _)| *address);
            if let Some(quietest) = quietest {
                by_address.remove(&quietest);
            }
        }
        let now = Instant::now();
        let guesser = by_address.entry(address).or_insert(Guesser { guesses: 0, last: now, from: now });
        guesser.guesses = guesser.guesses.saturating_add(1);
        guesser.last = now;
        guesser.from = now + delay(guesser.guesses);
    }

    /// A connection of an address is let in: if it has guessed, the next waits as long again.
    pub(super) fn let_in(&self, address: IpAddr) {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(guesser) = by_address.get_mut(&address) {
            guesser.from = Instant::now() + delay(guesser.guesses);
        }
    }

    /// From when on an address is let in.
    pub(super) fn until(&self, address: IpAddr) -> Option<Instant> {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let guesser = by_address.get(&address).copied()?;
        if guesser.last.elapsed() >= FORGOTTEN {
            by_address.remove(&address);
            return None;
        }
        Some(guesser.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guess_doubles_the_wait_up_to_a_bound() {
        let waits: Vec<u64> = (1..=10).map(|guesses| delay(guesses).as_millis() as u64).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000]);
        assert_eq!(delay(u32::MAX), MOST);
        let guesses = Guesses::default();
        let address = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(guesses.until(address), None);
        guesses.note(address);
        assert!(guesses.until(address).is_some_and(|until| until > Instant::now()));
        assert_eq!(guesses.until(IpAddr::from([127, 0, 0, 2])), None);
    }

    #[test]
    fn no_more_addresses_are_remembered_than_there_is_room_for() {
        let guesses = Guesses::default();
        for number in 0..ADDRESSES as u32 + 100 {
            guesses.note(IpAddr::from(number.to_be_bytes()));
        }
        assert_eq!(guesses.by_address.lock().unwrap().len(), ADDRESSES);
    }
}
