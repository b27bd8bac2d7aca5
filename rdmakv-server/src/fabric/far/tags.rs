//! The tags of regions over one fabric: which connection reads and writes which place.
//!
//! A tag ends with its connection, or when its place is freed. Over shared memory a peer that has stopped in the
//! middle of an access keeps its tag until it goes on or dies. That tag is *held*, and is tried again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use frrwp::wire::Segment;

/// A connection and a place.
type Name = (u64, u32);

/// Tags, by connection and place.
#[derive(Debug)]
pub(in crate::fabric) struct FarTags<T>(Mutex<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    open: HashMap<Name, (T, Segment)>,
    held: Vec<(Name, T)>,
    /// Tags that are being closed now, by this thread or another.
    closing: Vec<Name>,
}

impl<T> Default for FarTags<T> {
    fn default() -> Self {
        Self(Mutex::new(Inner { open: HashMap::new(), held: Vec::new(), closing: Vec::new() }))
    }
}

impl<T> FarTags<T> {
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the segment of a tag, if there is one.
    pub(in crate::fabric) fn find(&self, connection: u64, place: u32) -> Option<Segment> {
        self.lock().open.get(&(connection, place)).map(|&(_, segment)| segment)
    }

    /// Adds a tag.
    pub(in crate::fabric) fn add(&self, connection: u64, place: u32, tag: T, segment: Segment) {
        self.lock().open.insert((connection, place), (tag, segment));
    }

    /// Closes the tags of these names by `close`, which returns a tag that is held. Returns whether none of them is left.
    pub(in crate::fabric) fn close(&self, names: impl Fn(u64, u32) -> bool, close: impl Fn(T) -> Option<T>) -> bool {
        let is_meant = |&(connection, place): &Name| names(connection, place);
        let mut inner = self.lock();
        let taken: Vec<(Name, T)> = {
            let Inner { open, held, .. } = &mut *inner;
            let of_open = open.extract_if(|name, _| is_meant(name)).map(|(name, (tag, _))| (name, tag));
            of_open.chain(held.extract_if(.., |(name, _)| is_meant(name))).collect()
        };
        inner.closing.extend(taken.iter().map(|(name, _)| *name));
        // Closing may wait for a peer.
        drop(inner);
        for (name, tag) in taken {
            let left = close(tag);
            let mut inner = self.lock();
            if let Some(at) = inner.closing.iter().position(|closing| *closing == name) {
                inner.closing.swap_remove(at);
            }
            inner.held.extend(left.map(|tag| (name, tag)));
        }
        let inner = self.lock();
        !inner.held.iter().map(|(name, _)| name).chain(&inner.closing).any(is_meant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(key: u32) -> Segment {
        Segment { address: 0, length: 1, key }
    }

    #[test]
    fn tags_end_by_connection_or_place() {
        let tags = FarTags::default();
        for (connection, place) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            tags.add(connection, place, connection * 10 + u64::from(place), segment(place));
        }
        let closed = Mutex::new(Vec::new());
        let close = |tag| {
            closed.lock().unwrap().push(tag);
            None
        };
        assert!(tags.close(|connection, _| connection == 1, close));
        closed.lock().unwrap().sort_unstable();
        assert_eq!(std::mem::take(&mut *closed.lock().unwrap()), [11, 12]);
        assert_eq!((tags.find(1, 1), tags.find(2, 1)), (None, Some(segment(1))));
        assert!(tags.close(|_, place| place == 1, close));
        assert_eq!(*closed.lock().unwrap(), [21]);
        assert_eq!((tags.find(2, 1), tags.find(2, 2)), (None, Some(segment(2))));
    }

    #[test]
    fn held_tags_are_tried_again() {
        let tags = FarTags::default();
        tags.add(1, 7, "tag", segment(3));
        assert!(!tags.close(|_, place| place == 7, Some), "the peer stands still");
        assert_eq!(tags.find(1, 7), None, "it is not given again");
        assert!(tags.close(|connection, _| connection == 2, Some), "another's");
        assert!(!tags.close(|connection, _| connection == 1, Some));
        assert!(tags.close(|_, place| place == 7, |_| None));
        assert!(tags.close(|_, place| place == 7, |_| panic!("it has ended")));
    }
}
