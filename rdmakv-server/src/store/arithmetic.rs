//! Values that are decimal numbers: incremented and decremented, always into a chunk of their own.

use super::{Handle, Refused, Store};

/// What became of an addition.
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

/// The number that these digits are: as strtoull has it, blanks at the end allowed.
fn number(digits: &[u8]) -> Option<u64> {
    let end = digits.iter().rposition(|&byte| byte != b' ')? + 1;
    if end > 64 {
        return None;
    }
    std::str::from_utf8(&digits[..end]).ok().filter(|text| !text.starts_with('+'))?.parse().ok()
}

impl Store {
    /// Adds to the number (it wraps), or takes away (it stops at zero); `expiry` replaces the item's if it is given.
    pub fn add(
        &mut self,
        key: &[u8],
        (up, delta): (bool, u64),
        cas: Option<u64>,
        expiry: Option<u64>,
        now: u64,
    ) -> Sum {
        let hash = self.hash(key);
        let Some(id) = self.live(hash, key, now) else { return Sum::NotFound };
        let chunk = self.chunk(id);
        if cas.is_some_and(|cas| cas != chunk.version()) {
            return Sum::Exists;
        }
        let Some(old) = number(chunk.value()) else { return Sum::NoNumber };
        let new = if up { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
        let (class, flags, until) = (chunk.class(), chunk.flags(), expiry.unwrap_or(chunk.expiry()));
        *(if up { &mut self.classes[class].incrs } else { &mut self.classes[class].decrs }) += 1;
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(new).as_bytes();
        // Held, so that making room does not evict it; where it can be held no more, the others' holds do that.
        let held = self.hold(Handle(id));
        let sum = match self.reserve(key, digits.len(), flags, until, now) {
            Ok(mut filling) => {
                filling.value().copy_from_slice(digits);
                let version = self.install(filling.id, hash, Some(id), false, now);
                Sum::Done { number: new, version, expiry: until }
            }
            Err(refused) => Sum::Refused(refused),
        };
        if let Some(held) = held {
            self.release(held);
        }
        sum
    }
}
