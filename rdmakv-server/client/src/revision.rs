//! Values that the client makes of the one that is there: it reads that, and stores the new one if the key still has it.
//!
//! It is so for a new end of a value, and for appends and prepends to one in fragments: no server has all of that.

use super::buffer::Data;
use super::replication::{End, Found};
use rdmakv_cluster::messages::{Refusal, Verdict, Version};
use rdmakv_cluster::wire::Attributes;
use std::sync::Arc;

/// Attempts before other writes were first too often.
pub(super) const ATTEMPTS: u32 = 8;

/// The difference between a value and the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Bytes follow it.
    Append,
    /// Bytes go before it.
    Prepend,
    /// It ends at this second since 1970; 0 is never.
    End(u64),
}

/// A change that the client carries out.
#[derive(Debug)]
pub(super) struct Revision {
    change: Change,
    attempts: u32,
    value: Arc<Data>,
    attributes: Attributes,
}

/// The next part of a revision.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Read the value.
    Read,
    /// Store [`Revision::value`] if the key still has this version.
    Write(Version, Attributes),
    /// It ends so.
    End(End),
    /// It ends: other writes were first each time.
    Contended,
}

impl Revision {
    /// Returns a revision that begins with a read.
    pub(super) fn new(change: Change) -> Self {
        Self { change, attempts: 0, value: Arc::default(), attributes: Attributes::default() }
    }

    /// Returns the revision that an addition is to begin again as, if it ended because the value is in fragments.
    pub(super) fn after(end: &End, change: Change) -> Option<Self> {
        let is_refused = matches!(end, End::Done(Verdict::Declined(Refusal::Invalid)));
        is_refused.then(|| Self::new(change))
    }

    /// Returns the new value.
    pub(super) fn value(&self) -> &Arc<Data> {
        &self.value
    }

    /// Returns the value that was stored, if it was.
    pub(super) fn found(&self, verdict: Verdict) -> Option<Found> {
        let Verdict::Stored(version) = verdict else { return None };
        Some(Found { version, attributes: self.attributes, bytes: self.value.bytes().to_vec() })
    }

    /// Goes on after a read or a write of it ended.
    pub(super) fn next(&mut self, end: End, added: &[u8]) -> Next {
        match end {
            End::Value(Some(Found { version, attributes, bytes })) => {
                self.attempts += 1;
                let (value, expiry) = match self.change {
                    Change::Append => ([&bytes, added].concat(), attributes.expiry),
                    Change::Prepend => ([added, &bytes].concat(), attributes.expiry),
                    Change::End(expiry) => (bytes, expiry),
                };
                self.value = Arc::new(Data::Vec(value));
                self.attributes = Attributes { expiry, ..attributes };
                Next::Write(version, self.attributes)
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
        let attributes = Attributes { flags: 5, expiry: 77, ..Attributes::default() };
        End::Value(Some(Found { version: Version(count), attributes, bytes: b"value".to_vec() }))
    }

    fn begin(change: Change) -> Revision {
        let refused = End::Done(Verdict::Declined(Refusal::Invalid));
        Revision::after(&refused, change).expect("a value in fragments")
    }

    #[test]
    fn the_new_value_replaces_the_one_that_was_read() {
        // What does not change stays.
        let cases: [(_, &[u8], &[u8], _); 3] = [
            (Change::Append, b"!", b"value!", 77),
            (Change::Prepend, b"!", b"!value", 77),
            (Change::End(99), b"", b"value", 99),
        ];
        for (change, added, value, expiry) in cases {
            let mut revision = begin(change);
            let write = Next::Write(Version(3), Attributes { flags: 5, expiry, ..Attributes::default() });
            assert_eq!((revision.next(found(3), added), revision.value().bytes()), (write, value));
            let stored = End::Done(Verdict::Stored(Version(4)));
            assert_eq!(revision.next(stored.clone(), added), Next::End(stored));
        }
    }

    #[test]
    fn eight_writes_may_come_first() {
        let (mut revision, exists) = (begin(Change::Append), End::Done(Verdict::Declined(Refusal::Exists)));
        for attempt in 1..=8 {
            assert!(matches!(revision.next(found(attempt), b"!"), Next::Write(version, _) if version.0 == attempt));
            let next = revision.next(exists.clone(), b"!");
            assert_eq!(next, if attempt < 8 { Next::Read } else { Next::Contended });
        }
    }

    #[test]
    fn what_is_absent_stays_so() {
        let none = End::Done(Verdict::Declined(Refusal::NotStored));
        assert_eq!(begin(Change::Append).next(End::Value(None), b"!"), Next::End(none.clone()));
        assert!(Revision::after(&none, Change::Append).is_none());
    }
}
