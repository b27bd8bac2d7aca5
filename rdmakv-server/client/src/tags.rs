//! The items that this client may read by itself: tags of one server's items, by key, the least recently used leaving
//! first.
//!
//! An entry outlives its tag: the size of the last time says how much to ask for when the tag has been forgotten. All entries lie in
//! one vector and link each other, so that a use neither allocates nor moves anything; the index finds them by hash.
//!
//! One-sided reads do not reach the server, which would take the items for cold. So reads are counted here, and
//! [`Tags::take_seen`] says which were read since the last time.

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use rdmakv_proto::messages::Tag;
use std::hash::BuildHasher;

const NONE: u32 = u32::MAX;
/// Counts of tags that were forgotten, waiting to be told.
const GONE: usize = 256;

/// A tag with its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Leased {
    pub(super) tag: Tag,
    /// When the lease is over, by [`clock::boot`](rdmakv_proto::clock::boot).
    pub(super) until: u64,
}

/// A tag that came with the reply to a call, and is kept elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CallTag {
    leased: Leased,
    /// The number of the connection that it is good for.
    connection: u64,
}

impl CallTag {
    /// Returns when the lease is over.
    pub(super) fn until(&self) -> u64 {
        self.leased.until
    }

    /// Returns the incarnation of the server.
    pub(super) fn incarnation(&self) -> u32 {
        self.leased.tag.incarnation
    }
}

/// The knowledge of a key.
#[derive(Debug)]
struct Entry {
    hash: u64,
    key: Box<[u8]>,
    leased: Option<Leased>,
    /// Bytes of the item when it was last seen; 0 if it never was.
    size: u32,
    reads: u32,
    /// Whether it is among those with reads that were not told.
    listed: bool,
    newer: u32,
    older: u32,
}

/// The place of an entry, as long as nothing is learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At(u32);

/// Tags of one server.
pub(super) struct Tags {
    entries: Vec<Entry>,
    index: HashTable<u32>,
    hasher: RandomState,
    newest: u32,
    oldest: u32,
    most: usize,
    /// Entries with reads that were not told, each once; of some they have gone elsewhere since.
    read: Vec<u32>,
    gone: Vec<(u64, u32, u32)>,
    /// The number of the connection.
    connection: u64,
}

impl Tags {
    pub(super) fn new(most: usize) -> Self {
        let most = most.clamp(1, NONE as usize - 1);
        Self {
            entries: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::default(),
            newest: NONE,
            oldest: NONE,
            most,
            read: Vec::new(),
            gone: Vec::new(),
            connection: 0,
        }
    }

    /// Binds a tag that is kept elsewhere to the connection that it came by.
    pub(super) fn bind(&self, leased: Leased) -> CallTag {
        CallTag { leased, connection: self.connection }
    }

    /// Returns a tag that is kept elsewhere, if its connection stands.
    pub(super) fn bound(&self, tag: &CallTag) -> Option<Leased> {
        (tag.connection == self.connection).then_some(tag.leased)
    }

    #[inline]
    fn find(&self, key: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.index.find(hash, |&at| *self.entries[at as usize].key == *key).copied()
    }

    /// Returns the tag of a key, and bytes of its item when it was last seen. Counts as a use.
    #[inline]
    pub(super) fn get(&mut self, key: &[u8]) -> Option<(At, Leased, u32)> {
        let at = self.find(key)?;
        let Entry { leased, size, .. } = self.entries[at as usize];
        let leased = leased?;
        self.use_now(at);
        Some((At(at), leased, size))
    }

    /// Bytes of the item when it was last seen.
    pub(super) fn size(&self, key: &[u8]) -> Option<u32> {
        self.find(key).map(|at| self.entries[at as usize].size).filter(|&size| size > 0)
    }

    /// Returns whether anything is known of the key.
    pub(super) fn knows(&self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    /// An item was read by this tag.
    #[inline]
    pub(super) fn was_read(&mut self, At(at): At, leased: &Leased, size: u32) {
        // A change in between may have put another tag, or key, in its place: that loses a count, no more.
        let Some(entry) = self.entries.get_mut(at as usize) else { return };
        if entry.leased.is_some_and(|now| now.tag == leased.tag) {
            entry.size = size;
            entry.reads = entry.reads.saturating_add(1);
            if !std::mem::replace(&mut entry.listed, true) {
                self.read.push(at);
            }
        }
    }

    /// Learns from a reply: a tag with its lease, or none; and the item's size, if it is known.
    pub(super) fn learn(&mut self, key: &[u8], leased: Option<Leased>, size: Option<u32>) {
        let at = match self.find(key) {
            Some(at) => {
                self.use_now(at);
                at
            }
            None if leased.is_none() && size.is_none() => return,
            None => self.insert(key),
        };
        self.set(at, leased);
        if let Some(size) = size {
            self.entries[at as usize].size = size;
        }
    }

    /// The item was of this size; of its tag nothing new is known.
    pub(super) fn learn_size(&mut self, key: &[u8], size: u32) {
        if let Some(at) = self.find(key) {
            self.entries[at as usize].size = size;
        }
    }

    /// The key is not to be read by its tag any more.
    pub(super) fn forget(&mut self, key: &[u8]) {
        if let Some(at) = self.find(key) {
            self.set(at, None);
        }
    }

    /// No item is to be read by its tag any more.
    pub(super) fn forget_tags(&mut self) {
        for at in 0..self.entries.len() as u32 {
            self.set(at, None);
        }
    }

    /// No tag holds any more: the connection has gone. Sizes stay, and reads are not reported.
    pub(super) fn forget_all(&mut self) {
        for entry in &mut self.entries {
            entry.leased = None;
            (entry.reads, entry.listed) = (0, false);
        }
        self.read.clear();
        self.gone.clear();
        self.connection += 1;
    }

    fn set(&mut self, at: u32, leased: Option<Leased>) {
        let entry = &mut self.entries[at as usize];
        let before = std::mem::replace(&mut entry.leased, leased);
        if entry.reads > 0
            && let Some(before) = before
            && leased.is_none_or(|now| now.tag != before.tag)
        {
            let reads = std::mem::take(&mut entry.reads);
            self.keep_gone(before, reads);
        }
    }

    fn keep_gone(&mut self, leased: Leased, reads: u32) {
        if self.gone.len() < GONE {
            self.gone.push((leased.tag.segment.address, leased.tag.segment.key, reads));
        }
    }

    fn insert(&mut self, key: &[u8]) -> u32 {
        let hash = self.hasher.hash_one(key);
        let at = if self.entries.len() < self.most {
            self.entries.push(Entry {
                hash,
                key: key.into(),
                leased: None,
                size: 0,
                reads: 0,
                listed: false,
                newer: NONE,
                older: NONE,
            });
            (self.entries.len() - 1) as u32
        } else {
            let at = self.oldest;
            self.set(at, None);
            self.unlink(at);
            let entry = &mut self.entries[at as usize];
            if let Ok(found) = self.index.find_entry(entry.hash, |&other| other == at) {
                found.remove();
            }
            (entry.hash, entry.key, entry.size) = (hash, key.into(), 0);
            at
        };
        let entries = &self.entries;
        self.index.insert_unique(hash, at, |&at| entries[at as usize].hash);
        self.link(at);
        at
    }

    #[inline]
    fn use_now(&mut self, at: u32) {
        if self.newest != at {
            self.unlink(at);
            self.link(at);
        }
    }

    fn link(&mut self, at: u32) {
        let newest = std::mem::replace(&mut self.newest, at);
        let entry = &mut self.entries[at as usize];
        (entry.newer, entry.older) = (NONE, newest);
        match self.entries.get_mut(newest as usize) {
            Some(before) => before.newer = at,
            None => self.oldest = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let Entry { newer, older, .. } = self.entries[at as usize];
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    /// Returns whether anything was read since [`Tags::take_seen`].
    #[inline]
    pub(super) fn has_seen(&self) -> bool {
        !self.read.is_empty() || !self.gone.is_empty()
    }

    /// Addresses, keys and reads since the last time, at most so many tags.
    pub(super) fn take_seen(&mut self, most: usize, mut see: impl FnMut(u64, u32, u32)) {
        for _ in 0..most {
            if let Some((address, key, reads)) = self.gone.pop() {
                see(address, key, reads);
            } else if let Some(at) = self.read.pop() {
                let entry = &mut self.entries[at as usize];
                entry.listed = false;
                let reads = std::mem::take(&mut entry.reads);
                if let Some(Leased { tag, .. }) = entry.leased.filter(|_| reads > 0) {
                    see(tag.segment.address, tag.segment.key, reads);
                }
            } else {
                return;
            }
        }
    }

    /// Keys of which something is known.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmakv_proto::messages::RemoteSegment;

    fn leased(address: u64) -> Leased {
        Leased { tag: Tag { segment: RemoteSegment { address, length: 100, key: 7 }, incarnation: 1 }, until: 5 }
    }

    fn seen(tags: &mut Tags) -> Vec<(u64, u32)> {
        let mut seen = Vec::new();
        tags.take_seen(usize::MAX, |address, _, reads| seen.push((address, reads)));
        seen.sort_unstable();
        seen
    }

    #[test]
    fn the_least_recently_used_leaves_first() {
        let mut tags = Tags::new(3);
        for key in 0..3_u8 {
            tags.learn(&[key], Some(leased(key.into())), Some(50));
        }
        assert!(tags.get(&[0]).is_some());
        tags.learn(&[3], Some(leased(3)), None);
        let there: Vec<bool> = (0..4_u8).map(|key| tags.knows(&[key])).collect();
        assert_eq!((there, tags.len()), (vec![true, false, true, true], 3));
    }

    #[test]
    fn a_forgotten_tag_leaves_the_size() {
        let mut tags = Tags::new(3);
        tags.learn(b"a", Some(leased(1)), Some(50));
        tags.forget(b"a");
        assert_eq!((tags.get(b"a"), tags.size(b"a")), (None, Some(50)));
        tags.learn(b"a", Some(leased(2)), None);
        assert_eq!(tags.get(b"a").map(|(_, leased, size)| (leased.tag.segment.address, size)), Some((2, 50)));
        // Nothing is kept of an unknown key.
        tags.learn(b"b", None, None);
        assert!(!tags.knows(b"b"));
    }

    #[test]
    fn a_tag_is_good_for_one_connection() {
        let mut tags = Tags::new(3);
        let bound = tags.bind(leased(1));
        tags.forget(b"a");
        tags.forget_tags();
        assert_eq!(tags.bound(&bound), Some(leased(1)));
        tags.forget_all();
        assert_eq!(tags.bound(&bound), None);
    }

    #[test]
    fn reads_are_told_once_with_the_tag_that_they_went_by() {
        let mut tags = Tags::new(2);
        for key in [b"a", b"b"] {
            tags.learn(key, Some(leased(key[0].into())), Some(50));
        }
        for key in [b"a", b"a", b"b"] {
            let (at, leased, _) = tags.get(key).unwrap();
            tags.was_read(at, &leased, 60);
        }
        assert_eq!(seen(&mut tags), [(b'a'.into(), 2), (b'b'.into(), 1)]);
        assert!(!tags.has_seen());
        let (at, old, _) = tags.get(b"a").unwrap();
        tags.was_read(at, &old, 60);
        // Another tag, a forgotten one and one that had to leave keep their counts.
        tags.learn(b"a", Some(leased(1)), None);
        tags.was_read(at, &old, 60);
        let (at, new, _) = tags.get(b"a").unwrap();
        tags.was_read(at, &new, 60);
        tags.learn(b"c", Some(leased(3)), None);
        tags.learn(b"d", Some(leased(4)), None);
        assert_eq!(seen(&mut tags), [(1, 1), (b'a'.into(), 1)]);
    }

    #[test]
    fn forgotten_entry_is_reported_once() {
        let mut tags = Tags::new(4);
        for turn in 0..1000 {
            tags.learn(b"a", Some(leased(turn)), Some(50));
            let (at, leased, _) = tags.get(b"a").unwrap();
            tags.was_read(at, &leased, 50);
            tags.forget(b"a");
        }
        assert_eq!((tags.read.len(), tags.gone.len()), (1, GONE));
        assert_eq!(seen(&mut tags).len(), GONE, "what was forgotten is told, and nothing twice");
        assert!(!tags.has_seen());
    }

    #[test]
    fn random_uses_keep_index_and_list_consistent() {
        use rand::{RngExt, SeedableRng};
        let mut random = rand::rngs::StdRng::seed_from_u64(1);
        let (mut tags, mut model) = (Tags::new(50), Vec::<u8>::new());
        for turn in 0..20_000_u64 {
            let key: u8 = random.random_range(0..120);
            if random.random_bool(0.5) {
                let known = tags.get(&[key]).is_some();
                assert_eq!(known, model.contains(&key));
                if known {
                    model.retain(|&other| other != key);
                    model.push(key);
                }
            } else {
                tags.learn(&[key], Some(leased(turn)), None);
                model.retain(|&other| other != key);
                model.push(key);
                if model.len() > 50 {
                    model.remove(0);
                }
            }
        }
        assert_eq!((tags.len(), tags.index.len()), (50, 50));
    }
}
