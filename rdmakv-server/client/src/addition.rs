//! Appends and prepends to a value in fragments. No server has all of it, so the client reads it, and stores the longer one if it is still that.

use super::buffer::Data;
use super::replication::{End, Found};
use rdmakv_cluster::messages::{Refusal, Verdict, Version};
use rdmakv_cluster::wire::Attributes;
use std::sync::Arc;

/// Attempts before other writes were first too often.
pub(super) const ATTEMPTS: u32 = 8;

/// An addition that its key's primary could not compute.
#[derive(Debug)]
pub(super) struct Addition {
    /// The bytes go before the value.
    is_before: bool,
    attempts: u32,
    value: Arc<Data>,
}

/// The next part of an addition.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Read the value.
    Read,
    /// Store [`Addition::value`] if the key still has this version.
    Write(Version, Attributes),
    /// It ends so.
    End(End),
    /// It ends: other writes were first each time.
    Contended,
}

impl Addition {
    /// Returns the addition that a write is to begin again as, if it ended because the value is in fragments.
    pub(super) fn after(end: &End, is_before: bool) -> Option<Self> {
        let is_refused = matches!(end, End::Done(Verdict::Declined(Refusal::Invalid)));
        is_refused.then_some(Self { is_before, attempts: 0, value: Arc::default() })
    }

    /// Returns the longer value.
    pub(super) fn value(&self) -> &Arc<Data> {
        &self.value
    }

    /// Goes on after a read or a write of it ended.
    pub(super) fn next(&mut self, end: End, added: &[u8]) -> Next {
        match end {
            End::Value(Some(Found { version, attributes, bytes })) => {
                self.attempts += 1;
                let value = if self.is_before { [added, &bytes].concat() } else { [&bytes, added].concat() };
                self.value = Arc::new(Data::Vec(value));
                Next::Write(version, attributes)
            }
            End::Value(None) => Next::End(End::Done(Verdict::Declined(Refusal::NotStored))),
            End::Done(Verdict::Declined(Refusal::Exists)) if self.attempts < ATTEMPTS => Next::Read,
            End::Done(Verdict::Declined(Refusal::Exists)) => Next::Contended,
            end => Next::End(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(count: u64) -> End {
        let attributes = Attributes { flags: 5, expiry: 77 };
        End::Value(Some(Found { version: Version(count), attributes, bytes: b"value".to_vec() }))
    }

    fn begin(is_before: bool) -> Addition {
        let refused = End::Done(Verdict::Declined(Refusal::Invalid));
        Addition::after(&refused, is_before).expect("a value in fragments")
    }

    #[test]
    fn the_longer_value_replaces_the_one_that_was_read() {
        for (is_before, value) in [(false, b"value!"), (true, b"!value")] {
            let mut addition = begin(is_before);
            // Flags and expiry stay.
            let write = Next::Write(Version(3), Attributes { flags: 5, expiry: 77 });
            assert_eq!((addition.next(found(3), b"!"), addition.value().bytes()), (write, &value[..]));
            let stored = End::Done(Verdict::Stored(Version(4)));
            assert_eq!(addition.next(stored.clone(), b"!"), Next::End(stored));
        }
    }

    #[test]
    fn eight_writes_may_come_first() {
        let (mut addition, exists) = (begin(false), End::Done(Verdict::Declined(Refusal::Exists)));
        for attempt in 1..=8 {
            assert!(matches!(addition.next(found(attempt), b"!"), Next::Write(version, _) if version.0 == attempt));
            let next = addition.next(exists.clone(), b"!");
            assert_eq!(next, if attempt < 8 { Next::Read } else { Next::Contended });
        }
    }

    #[test]
    fn nothing_is_added_to_nothing() {
        let none = End::Done(Verdict::Declined(Refusal::NotStored));
        assert_eq!(begin(false).next(End::Value(None), b"!"), Next::End(none.clone()));
        assert!(Addition::after(&none, false).is_none());
    }
}
