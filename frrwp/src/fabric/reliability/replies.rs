//! Replies that the server keeps in case they are lost.

use super::limits::OPEN;
use super::parts::parts;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// A reply: bytes, then those of a value that it refers to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Reply<H, R> {
    pub(super) head: H,
    pub(super) body: Option<R>,
}

impl<H: AsRef<[u8]>, R: AsRef<[u8]>> Reply<H, R> {
    pub(super) fn len(&self) -> usize {
        self.head.as_ref().len() + self.body_len()
    }

    pub(super) fn body_len(&self) -> usize {
        self.body.as_ref().map_or(0, |body| body.as_ref().len())
    }

    pub(super) fn parts(&self, fragment: usize) -> u16 {
        parts(self.len(), fragment)
    }

    /// Returns the bytes of a part, in two pieces.
    pub(super) fn piece(&self, part: u16, fragment: usize) -> [&[u8]; 2] {
        let (head, body) = (self.head.as_ref(), self.body.as_ref().map_or(&[][..], AsRef::as_ref));
        let start = usize::from(part) * fragment;
        let end = (start + fragment).min(head.len() + body.len());
        let cut = |at: usize| at.min(head.len());
        let behind = |at: usize| at.saturating_sub(head.len());
        [&head[cut(start)..cut(end)], &body[behind(start)..behind(end)]]
    }
}

/// A reply that is kept.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Kept<R> {
    pub(super) execution: u32,
    pub(super) reply: Reply<Box<[u8]>, R>,
    /// Bytes that it takes of the replies' pool, and of that of references.
    pub(super) taken: [usize; 2],
    /// When that of a read ends, and when at the latest.
    pub(super) ends: Option<[u64; 2]>,
}

/// The place of a kept reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place {
    pub(super) slot: u32,
    pub(super) request: u64,
}

impl Place {
    /// Returns the key of tables. Clients choose the numbers of requests, but all that are kept of one client have other
    /// remainders: so clients cannot choose keys that collide.
    pub(super) fn key(self) -> u64 {
        u64::from(self.slot) * OPEN + self.request % OPEN
    }

    /// Returns the slot of a key.
    pub(super) fn slot_of(key: u64) -> u32 {
        (key / OPEN) as u32
    }
}

/// The replies that are kept, those of mutations and those of reads.
#[derive(Clone, Debug)]
pub(super) struct Replies<R> {
    /// By the key of their place, with the number of the request.
    kept: FxHashMap<u64, (u64, Kept<R>)>,
    /// Replies of reads, by when they were to end when they were last looked at.
    reads: VecDeque<(u64, Place, u32)>,
    /// Bytes of each pool that replies of reads take.
    of_reads: [usize; 2],
    /// Replies of mutations. A few are looked at with each that is added, so that those that went leave the queue.
    mutations: VecDeque<(Place, u32)>,
}

impl<R> Replies<R> {
    pub(super) fn new() -> Self {
        Self { kept: FxHashMap::default(), reads: VecDeque::new(), of_reads: [0; 2], mutations: VecDeque::new() }
    }

    pub(super) fn get(&self, place: Place) -> Option<&Kept<R>> {
        let (request, kept) = self.kept.get(&place.key())?;
        (*request == place.request).then_some(kept)
    }

    /// The reply of a read is used: it ends at that time at the soonest, but never after its longest time.
    pub(super) fn extend(&mut self, place: Place, ends: u64) {
        if let Some((_, kept)) = self.kept.get_mut(&place.key()).filter(|(request, _)| *request == place.request)
            && let Some([own, longest]) = &mut kept.ends
        {
            *own = (*own).max(ends.min(*longest));
        }
    }

    /// Keeps a reply.
    pub(super) fn keep(&mut self, place: Place, kept: Kept<R>) {
        match kept.ends.map(|[ends, _]| ends) {
            Some(ends) => {
                self.reads.push_back((ends, place, kept.execution));
                self.of_reads = [0, 1].map(|pool| self.of_reads[pool] + kept.taken[pool]);
            }
            None => {
                for _ in 0..2 {
                    self.next_mutation();
                }
                self.mutations.push_back((place, kept.execution));
            }
        }
        self.kept.insert(place.key(), (place.request, kept));
    }

    pub(super) fn remove(&mut self, place: Place) -> Option<Kept<R>> {
        self.get(place)?;
        let (_, kept) = self.kept.remove(&place.key())?;
        if kept.ends.is_some() {
            self.of_reads = [0, 1].map(|pool| self.of_reads[pool] - kept.taken[pool]);
        }
        Some(kept)
    }

    /// Returns what replies of reads take of each pool.
    pub(super) fn of_reads(&self) -> [usize; 2] {
        self.of_reads
    }

    /// Returns the place of a read's reply whose time is over.
    pub(super) fn next_ended(&mut self, now: u64) -> Option<Place> {
        while let Some(&(ends, place, execution)) = self.reads.front() {
            if ends > now {
                break;
            }
            self.reads.pop_front();
            match self.get(place).filter(|kept| kept.execution == execution).and_then(|kept| kept.ends) {
                Some([ends, _]) if ends > now => self.reads.push_back((ends, place, execution)),
                Some(_) => return Some(place),
                None => {}
            }
        }
        None
    }

    /// Returns the place of the read's reply that was last asked for before all others, or nearly so. It is to be dropped, or to be
    /// [spared](Self::spare_read).
    pub(super) fn next_read(&mut self) -> Option<Place> {
        while let Some((ends, place, execution)) = self.reads.pop_front() {
            match self.get(place).filter(|kept| kept.execution == execution).and_then(|kept| kept.ends) {
                // It was asked for since.
                Some([later, _]) if later > ends => self.reads.push_back((later, place, execution)),
                Some(_) => return Some(place),
                None => {}
            }
        }
        None
    }

    /// Returns when a read's reply ends.
    pub(super) fn ends(&self, place: Place) -> Option<u64> {
        self.get(place)?.ends.map(|[ends, _]| ends)
    }

    /// The reply of a read stays.
    pub(super) fn spare_read(&mut self, place: Place) {
        if let Some((execution, [ends, _])) = self.get(place).and_then(|kept| Some((kept.execution, kept.ends?))) {
            self.reads.push_back((ends, place, execution));
        }
    }

    /// Returns the place of some mutation's reply, another one each time.
    pub(super) fn next_mutation(&mut self) -> Option<Place> {
        let (place, execution) = self.mutations.pop_front()?;
        if self.get(place).is_none_or(|kept| kept.execution != execution) {
            return None;
        }
        self.mutations.push_back((place, execution));
        Some(place)
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }
}

impl<R: std::hash::Hash> std::hash::Hash for Replies<R> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let mut kept: Vec<_> = self.kept.iter().collect();
        kept.sort_by_key(|(key, _)| **key);
        kept.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_bytes_of_head_and_body() {
        let reply = Reply { head: b"head".to_vec(), body: Some(b"the body".to_vec()) };
        for fragment in 1..15 {
            let pieces: Vec<u8> =
                (0..reply.parts(fragment)).flat_map(|part| reply.piece(part, fragment).concat()).collect();
            assert_eq!(pieces, b"headthe body", "{fragment}");
        }
        assert_eq!(Reply { head: b"", body: None::<Vec<u8>> }.parts(9), 1);
    }

    #[test]
    fn queue_of_mutations_forgets_replies_that_went() {
        let mut replies = Replies::new();
        let place = |slot| Place { slot, request: 1 };
        for slot in 0..1000 {
            let reply = Reply { head: [].into(), body: None::<Vec<u8>> };
            replies.keep(place(slot), Kept { execution: 1, reply, taken: [0, 0], ends: None });
            if slot > 0 {
                replies.remove(place(slot));
            }
        }
        assert!(replies.mutations.len() < 8, "{}", replies.mutations.len());
        assert!((0..8).any(|_| replies.next_mutation() == Some(place(0))));
    }

    #[test]
    fn replies_of_reads_stay_while_they_are_used() {
        let mut replies = Replies::new();
        let place = |request| Place { slot: 3, request };
        for request in [1, 2] {
            let reply = Reply { head: [].into(), body: None::<Vec<u8>> };
            replies.keep(place(request), Kept { execution: 1, reply, taken: [0, 0], ends: Some([10, 25]) });
        }
        replies.extend(place(1), 15);
        // Of another request with the same key.
        replies.extend(place(2 + OPEN), 15);
        let mut ended = |now| {
            let ended = replies.next_ended(now);
            ended.map(|place| replies.remove(place));
            replies.extend(place(1), now + 10);
            ended
        };
        assert_eq!([9, 10, 10, 18, 24, 25].map(&mut ended), [None, Some(place(2)), None, None, None, Some(place(1))]);
    }
}
