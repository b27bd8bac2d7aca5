//! Values that are decimal numbers: incremented and decremented, always into a chunk of their own.

use super::{Refused, Store, chunk};

/// The outcome of an addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// The new number, its version and its expiry.
    Done {
        /// The number.
        number: u64,
        /// Its version.
        version: u64,
        /// When it ends.
        expiry: u64,
    },
    /// There was none.
    NotFound,
    /// The value is no number.
    NoNumber,
    /// The version was another.
    Exists,
    /// No memory.
    Refused(Refused),
}

/// Returns the number at the beginning of a value, by the rules of memcached, which are those of strtoull: white space may
/// stand before it, and after it anything that white space or a zero byte separates.
pub fn number(value: &[u8]) -> Option<u64> {
    let is_space = |byte: u8| byte == b' ' || (b'\t'..=b'\r').contains(&byte);
    let value = &value[value.iter().position(|&byte| !is_space(byte))?..];
    let (negative, value) = match value {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        value => (false, value),
    };
    let end = value.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(value.len());
    let (digits, rest) = value.split_at(end);
    if rest.first().is_some_and(|&byte| byte != 0 && !is_space(byte)) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    // memcached also takes negative numbers below -2^63, for 2^64 more: no client can rely on that.
    (!negative || number == 0).then_some(number)
}

impl Store {
    /// Adds to the number (it wraps), or takes away (it stops at zero); `expiry` replaces the item's if it is given. With `cas` only
    /// the item of that version is changed; `version` is the one that it gets instead of the next.
    pub fn add(
        &mut self,
        key: &[u8],
        (up, delta): (bool, u64),
        (cas, version): (Option<u64>, Option<u64>),
        expiry: Option<u64>,
        now: u64,
    ) -> Sum {
        let hash = self.index.hash(key);
        let Some(id) = self.live(hash, key, now) else { return Sum::NotFound };
        let chunk = self.slabs.chunk(id);
        if cas.is_some_and(|cas| cas != chunk.version()) {
            return Sum::Exists;
        }
        let Some(old) = number(chunk.value()) else { return Sum::NoNumber };
        let new = if up { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
        let (flags, until) = (chunk.flags(), expiry.unwrap_or(chunk.expiry()));
        let counters = &mut self.counts.classes[chunk.class()];
        *(if up { &mut counters.incrs } else { &mut counters.decrs }) += 1;
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(new).as_bytes();
        // Held, so that making room does not evict it; where it can be held no more, the others' holds do that.
        let held = self.slabs.hold(id);
        let sum = match self.reserve(key, digits.len(), flags, until, now) {
            Ok(mut writer) => {
                writer.value().copy_from_slice(digits);
                writer.chunk().mark(self.slabs.chunk(id).marks(chunk::BINARY));
                let version = self.install(writer.id(), hash, Some(id), (false, version), now);
                Sum::Done { number: new, version, expiry: until }
            }
            Err(refused) => Sum::Refused(refused),
        };
        held.into_iter().for_each(|held| self.slabs.release(held));
        sum
    }
}
