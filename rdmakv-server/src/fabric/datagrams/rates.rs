//! How often clients ask: which are worth a place in the ranking, and what they did since the last one.
//!
//! An idle client has nothing here: the count of its requests is in the note of its record. It gets an entry with
//! [`NOTED`] requests within a ranking's interval, until the next ranking.

use super::super::promotion::{Host, INTERVAL};
use std::collections::HashMap;

/// Requests within an interval from which on a client is ranked: 50 a second.
const NOTED: u64 = 5;
/// Clients at most that are noted within an interval.
const MOST: usize = 4096;

/// A note has these bits of flags, then a count, then the interval of that.
const COUNT: u32 = 8;
const COUNTED: u64 = 0xffff;
const WHEN: u32 = 24;
const FLAGS: u64 = (1 << COUNT) - 1;

/// Counts a request in a client's note. Returns the note, and the requests that are to be noted for the ranking.
fn count(note: u64, now: u64) -> (u64, u64) {
    let when = now / INTERVAL % (1 << (64 - WHEN));
    let before = if note >> WHEN == when { note >> COUNT & COUNTED } else { 0 };
    let after = (before + 1).min(COUNTED);
    let noted = match after {
        0..NOTED => 0,
        NOTED => NOTED,
        _ => 1,
    };
    (note & FLAGS | after << COUNT | when << WHEN, noted)
}

/// The requests of busy clients since the last ranking.
#[derive(Debug, Default)]
pub(super) struct Rates(HashMap<u64, (Host, u64)>);

impl Rates {
    /// Counts a request of a client of this host, with this note. Returns the next note.
    pub(super) fn count(&mut self, (client, host): (u64, Host), note: u64, now: u64) -> u64 {
        let (note, noted) = count(note, now);
        if noted > 0 && (self.0.len() < MOST || self.0.contains_key(&client)) {
            self.0.entry(client).or_insert((host, 0)).1 += noted;
        }
        note
    }

    /// Takes what was counted.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (u64, (Host, u64))> + '_ {
        self.0.drain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Host = [1; 16];

    #[test]
    fn slow_clients_have_no_entry() {
        let (mut rates, mut note) = (Rates::default(), 3);
        for number in 0..1000 {
            note = rates.count((7, HERE), note, number * INTERVAL / (NOTED - 1));
        }
        assert!(rates.0.is_empty() && note & FLAGS == 3, "the flags stay");
    }

    #[test]
    fn busy_clients_have_each_request_counted() {
        let (mut rates, mut note) = (Rates::default(), 0);
        for _ in 0..100_000 {
            note = rates.count((7, HERE), note, 5 * INTERVAL);
        }
        assert_eq!(rates.drain().collect::<Vec<_>>(), [(7, (HERE, 100_000))]);
        rates.count((7, HERE), note, 6 * INTERVAL);
        assert!(rates.0.is_empty(), "an interval begins at nothing");
    }

    #[test]
    fn entries_are_bounded() {
        let mut rates = Rates::default();
        for client in 0..2 * MOST as u64 {
            (0..NOTED).fold(0, |note, _| rates.count((client, HERE), note, 0));
        }
        assert_eq!(rates.0.len(), MOST);
    }
}
