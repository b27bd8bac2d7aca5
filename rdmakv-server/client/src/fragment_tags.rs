//! Values in fragments that this client may read by itself: which servers have the fragments, and the tags of these, by key.
//!
//! A read by calls tells all that. The next ones read the heads and the bytes of k fragments at once, into one slot. The value is believed if
//! the primary's fragment was its key's value when it was read, and the others are of the same version ([`Reader`]). The heads say that. The
//! sum of the whole value says that the bytes are those that were stored: no other sum is computed.

use super::gathering::MadeOf;
use super::tags::CallTag;
use hashbrown::HashMap;
use rdmakv_cluster::codec::{Code, fragment_length, piece_length};
use rdmakv_cluster::config::ServerId;
use rdmakv_cluster::messages::{Form, Piece, Version};
use rdmakv_cluster::reader::{ChunkState, Reader, Reading, Seen};
use rdmakv_proto::item::{HEADER, State, check_head, value_sum};
use std::ops::Range;
use std::sync::Arc;

/// The places of fragments, by key. Keys that were not used for long leave first.
#[derive(Debug)]
pub(super) struct FragmentTags {
    /// Half of the keys at most. When there are more, they become the older ones.
    recent: HashMap<Box<[u8]>, Arc<Located>>,
    older: HashMap<Box<[u8]>, Arc<Located>>,
    most: usize,
}

impl FragmentTags {
    pub(super) fn new(most: usize) -> Self {
        Self { recent: HashMap::new(), older: HashMap::new(), most }
    }

    /// Returns where the fragments of a key's value are. Counts as a use.
    pub(super) fn get(&mut self, key: &[u8]) -> Option<Arc<Located>> {
        if let Some(located) = self.recent.get(key) {
            return Some(Arc::clone(located));
        }
        let (key, located) = self.older.remove_entry(key)?;
        self.insert(key, Arc::clone(&located));
        Some(located)
    }

    pub(super) fn learn(&mut self, key: &[u8], located: Located) {
        self.older.remove(key);
        self.insert(key.into(), Arc::new(located));
    }

    fn insert(&mut self, key: Box<[u8]>, located: Arc<Located>) {
        if self.recent.len() >= (self.most / 2).max(1) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key, located);
    }

    pub(super) fn forget(&mut self, key: &[u8]) {
        self.recent.remove(key);
        self.older.remove(key);
    }

    /// Forgets all: the servers are in another epoch.
    pub(super) fn clear(&mut self) {
        self.recent.clear();
        self.older.clear();
    }
}

/// A value of which k fragments have known places.
#[derive(Debug)]
pub(super) struct Located {
    of: MadeOf,
    k: usize,
    /// Bytes of the value, and of a fragment.
    whole: usize,
    unit: usize,
    primary: ServerId,
    fragments: Vec<Fragment>,
}

/// A question to the members of a key: which fragments they have. As many are asked as make the value.
#[derive(Debug)]
pub(super) struct Look {
    primary: ServerId,
    k: usize,
    told: Vec<(ServerId, (Version, Piece), CallTag)>,
}

impl Look {
    /// Returns one at this primary and k - 1 others.
    pub(super) fn new(primary: ServerId, k: usize) -> Self {
        Self { primary, k, told: Vec::new() }
    }

    /// Takes a member's fragment. Returns whether it may be one of those that make the value.
    pub(super) fn take(&mut self, from: ServerId, (version, piece): (Version, Piece), tag: CallTag) -> bool {
        let Form::Fragment { k, index } = piece.form else { return false };
        let fits = self.told.iter().all(|(other, (told, first), _)| {
            let is_other = !matches!(first.form, Form::Fragment { index: at, .. } if at == index);
            is_other && *other != from && *told == version && (first.length, first.sum) == (piece.length, piece.sum)
        });
        let fits = fits && usize::from(k) == self.k;
        if fits {
            self.told.push((from, (version, piece), tag));
        }
        fits
    }

    /// Returns whether all have answered.
    pub(super) fn is_done(&self) -> bool {
        self.told.len() >= self.k
    }

    /// Returns the places, once all have answered.
    pub(super) fn located(&self) -> Option<Located> {
        let &(_, (version, piece), _) = self.told.iter().find(|(server, ..)| *server == self.primary)?;
        let index = |&(server, (_, piece), _): &(ServerId, (Version, Piece), CallTag)| match piece.form {
            Form::Fragment { index, .. } => Some((server, index)),
            Form::Copy | Form::Tombstone => None,
        };
        let fragments = self.told.iter().map(index).collect::<Option<_>>()?;
        let tags: Vec<(ServerId, CallTag)> = self.told.iter().map(|&(server, _, tag)| (server, tag)).collect();
        Located::new(MadeOf { version, piece, fragments }, self.primary, &tags)
    }
}

/// A fragment, where it is and where it is read to.
#[derive(Debug)]
pub(super) struct Fragment {
    pub(super) server: ServerId,
    pub(super) tag: CallTag,
    index: u8,
    /// The place of its bytes in the slot, in units.
    place: usize,
}

/// The parts of a slot that a fragment is read to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// For the header and the key.
    pub(super) head: Range<usize>,
    pub(super) bytes: Range<usize>,
}

impl Located {
    /// Returns the places of the fragments that a value was made of; None if a server gave no tag of its fragment.
    pub(super) fn new(of: MadeOf, primary: ServerId, tags: &[(ServerId, CallTag)]) -> Option<Self> {
        let Form::Fragment { k, .. } = of.piece.form else { return None };
        let (k, whole) = (usize::from(k), usize::try_from(of.piece.length).ok()?);
        let mut parity = 0;
        let fragments: Vec<Fragment> = of
            .fragments
            .iter()
            .map(|&(server, index)| {
                let &(_, tag) = tags.iter().find(|(other, _)| *other == server)?;
                let place = if usize::from(index) < k { usize::from(index) } else { k + parity };
                parity += usize::from(usize::from(index) >= k);
                Some(Fragment { server, tag, index, place })
            })
            .collect::<Option<_>>()?;
        let is_there = fragments.iter().any(|fragment| fragment.server == primary);
        (is_there && fragments.len() == k).then(|| {
            let unit = fragment_length(whole, k);
            Self { of, k, whole, unit, primary, fragments }
        })
    }

    pub(super) fn fragments(&self) -> &[Fragment] {
        &self.fragments
    }

    /// Returns the length and the version of the value.
    pub(super) fn value(&self) -> (usize, u64) {
        (self.whole, self.of.version.0)
    }

    /// Returns whether all fragments may be read now.
    pub(super) fn is_leased(&self, now: u64) -> bool {
        self.fragments.iter().all(|fragment| now < fragment.tag.until())
    }

    /// Returns how many units the fragments take, those that are rebuilt among them.
    fn units(&self) -> usize {
        self.fragments.iter().map(|fragment| fragment.place + 1).max().unwrap_or(0).max(self.k)
    }

    /// Returns the bytes of a slot for the value and the heads; None if no slot is as large.
    pub(super) fn size(&self, key: &[u8]) -> Option<usize> {
        let heads = self.fragments.len() * head_length(key);
        self.unit.checked_mul(self.units())?.checked_add(heads)
    }

    /// Returns where a fragment is read to. Data fragments make the value at the slot's begin.
    pub(super) fn place(&self, at: usize, key: &[u8]) -> Place {
        let Fragment { index, place, .. } = self.fragments[at];
        let (head, bytes) = (self.units() * self.unit + at * head_length(key), place * self.unit);
        let length = piece_length(self.whole, self.k, usize::from(index));
        Place { head: head..head + HEADER + key.len(), bytes: bytes..bytes + length }
    }

    /// Returns the flags of the value that was read into this memory, if it is the key's. Fragments of the data that were not read are
    /// rebuilt. `now` is in Unix seconds.
    pub(super) fn believe(&self, key: &[u8], memory: &mut [u8], now: u64) -> Option<u32> {
        let (version, piece) = (self.of.version, self.of.piece);
        let (mut reader, mut reading, mut told) = (Reader::new(self.primary), Reading::More, None);
        for (at, &Fragment { server, index, ref tag, .. }) in self.fragments.iter().enumerate() {
            let Place { head, bytes } = self.place(at, key);
            let about = (bytes.len(), piece.sum);
            let head = check_head(memory.get(head)?, key, tag.incarnation(), version.0, about).ok()?;
            let state = match head.state {
                State::Primary => ChunkState::Alive,
                State::Held => ChunkState::Held,
                State::Dead => ChunkState::Dead,
                State::Free | State::Unpublished | State::Alive => return None,
            };
            if server == self.primary {
                told = (head.expiry == 0 || head.expiry > now).then_some(head.flags);
            }
            let form = Form::Fragment { k: self.k as u8, index };
            reading = reader.take(server, Some(Seen { state, version, piece: Piece { form, ..piece } }));
        }
        if !matches!(reading, Reading::Value(..)) {
            return None;
        }
        self.rebuild(memory)?;
        told.filter(|_| value_sum(&memory[..self.whole]) == piece.sum)
    }

    /// Computes the fragments of the data that were not read.
    fn rebuild(&self, memory: &mut [u8]) -> Option<()> {
        let parity =
            self.fragments.iter().map(|fragment| usize::from(fragment.index) + 1).max()?.checked_sub(self.k)?;
        if parity == 0 {
            return Some(());
        }
        let mut chosen: Vec<(usize, &[u8])> = Vec::new();
        let mut lost: Vec<(usize, &mut [u8])> = Vec::new();
        for (place, unit) in memory.chunks_mut(self.unit.max(1)).take(self.units()).enumerate() {
            match self.fragments.iter().find(|fragment| fragment.place == place) {
                Some(&Fragment { index, .. }) => {
                    let length = piece_length(self.whole, self.k, usize::from(index));
                    chosen.push((index.into(), unit.get(..length)?));
                }
                None => lost.push((place, unit.get_mut(..piece_length(self.whole, self.k, place))?)),
            }
        }
        // A fragment is the same in each code of k.
        Code::new(self.k, parity).ok()?.rebuild(self.unit, &chosen, &mut lost).ok()
    }
}

/// Bytes of a slot for a head.
fn head_length(key: &[u8]) -> usize {
    (HEADER + key.len()).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::super::tags::{Leased, Tags};
    use super::*;
    use proptest::prelude::*;
    use rdmakv_cluster::codec::data_fragments;
    use rdmakv_cluster::messages::Chunk;
    use rdmakv_proto::item::{MAGIC, sum_of};
    use rdmakv_proto::messages::{RemoteSegment, Tag};

    const KEY: &[u8] = b"a key";
    const VERSION: u64 = 3 << 40 | 9;
    const UNTIL: u64 = 50;

    fn tag(incarnation: u32) -> CallTag {
        let segment = RemoteSegment { address: 64, length: 1 << 20, key: 7 };
        Tags::new(1).bind(Leased { tag: Tag { segment, incarnation }, until: UNTIL })
    }

    fn made(value: &[u8], k: u8, indices: &[u8]) -> MadeOf {
        let (form, length) = (Form::Fragment { k, index: 0 }, value.len() as u64);
        let piece = Piece { chunk: Chunk(0), form, length, sum: value_sum(value) };
        let fragments = indices.iter().map(|&index| (ServerId(index), index)).collect();
        MadeOf { version: Version(VERSION), piece, fragments }
    }

    /// Returns all fragments of a value.
    fn encoded(value: &[u8], k: usize, m: usize) -> Vec<Vec<u8>> {
        let data = data_fragments(value, k);
        let mut parity = vec![vec![0; fragment_length(value.len(), k)]; m];
        let mut buffers: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        Code::new(k, m).unwrap().encode(&data, &mut buffers).unwrap();
        data.into_iter().map(<[u8]>::to_vec).chain(parity).collect()
    }

    /// Returns a value of fragments, the first of them the primary's, and the memory after a read of them.
    fn read(value: &[u8], k: u8, m: usize, indices: &[u8]) -> (Located, Vec<u8>) {
        let tags: Vec<_> = indices.iter().map(|&index| (ServerId(index), tag(1))).collect();
        let located = Located::new(made(value, k, indices), ServerId(indices[0]), &tags).unwrap();
        let fragments = encoded(value, k.into(), m);
        let mut memory = vec![0xee; located.size(KEY).unwrap()];
        for (at, &index) in indices.iter().enumerate() {
            let Place { head, bytes } = located.place(at, KEY);
            let length = bytes.len();
            memory[bytes].copy_from_slice(&fragments[usize::from(index)]);
            let state = if at == 0 { State::Primary } else { State::Held };
            memory[head].copy_from_slice(&image(state, VERSION, (length, value_sum(value))));
        }
        (located, memory)
    }

    fn image(state: State, version: u64, (length, whole_sum): (usize, u32)) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[0] = state as u8;
        bytes[2..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&1_u32.to_le_bytes());
        bytes[8..16].copy_from_slice(&100_u64.to_le_bytes());
        bytes[16..24].copy_from_slice(&version.to_le_bytes());
        bytes[24..28].copy_from_slice(&(length as u32).to_le_bytes());
        bytes[28..32].copy_from_slice(&3_u32.to_le_bytes());
        bytes[32..36].copy_from_slice(&sum_of(version, 3, KEY, (length, whole_sum)).to_le_bytes());
        bytes[36] = KEY.len() as u8;
        bytes.extend_from_slice(KEY);
        bytes
    }

    proptest! {
        #[test]
        fn any_fragments_that_were_read_make_the_value(
            (k, m) in (1_u8..7, 1_u8..4),
            length in 1_usize..3000,
            order in any::<[prop::sample::Index; 16]>(),
        ) {
            let value: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut left: Vec<u8> = (0..k + m).collect();
            let chosen: Vec<u8> =
                order.iter().take(k.into()).map(|pick| left.remove(pick.index(left.len()))).collect();
            let (located, mut memory) = read(&value, k, m.into(), &chosen);
            prop_assert_eq!(located.believe(KEY, &mut memory, 99), Some(3));
            prop_assert_eq!(&memory[..length], &value[..]);
        }
    }

    #[test]
    fn only_the_primarys_value_is_believed() {
        let value = vec![7; 5000];
        let states = [State::Free, State::Unpublished, State::Alive, State::Dead, State::Held, State::Primary];
        for (at, state) in (0..3).flat_map(|at| states.map(|state| (at, state))) {
            let (located, mut memory) = read(&value, 3, 2, &[1, 0, 2]);
            memory[located.place(at, KEY).head.start] = state as u8;
            let is_good = match at {
                0 => state == State::Primary,
                _ => matches!(state, State::Dead | State::Held | State::Primary),
            };
            assert_eq!(located.believe(KEY, &mut memory, 99).is_some(), is_good, "{at} {state:?}");
        }
    }

    #[test]
    fn whatever_differs_is_asked_for() {
        let value: Vec<u8> = (0..5000).map(|at| (at / 3) as u8).collect();
        let believed = |change: &dyn Fn(&Located, &mut Vec<u8>)| {
            let (located, mut memory) = read(&value, 2, 2, &[0, 3]);
            change(&located, &mut memory);
            located.believe(KEY, &mut memory, 99).is_some()
        };
        assert!(believed(&|_, _| ()));
        for at in 0..2 {
            // Another version, though of the same bytes.
            assert!(!believed(&|located, memory| {
                let Place { head, bytes } = located.place(at, KEY);
                let state = if at == 0 { State::Primary } else { State::Held };
                memory[head].copy_from_slice(&image(state, VERSION + 1, (bytes.len(), value_sum(&value))));
            }));
            // Bytes of another value.
            assert!(!believed(&|located, memory| memory[located.place(at, KEY).bytes.start] ^= 1));
            // Another incarnation, key, length or sum.
            for byte in [4, 16, 24, 28, 32, 36, HEADER] {
                assert!(!believed(&|located, memory| memory[located.place(at, KEY).head.start + byte] ^= 1), "{byte}");
            }
        }
        let (located, mut memory) = read(&value, 2, 2, &[0, 3]);
        assert!(located.believe(b"a kex", &mut memory, 99).is_none());
        // The primary's end counts.
        assert!(located.believe(KEY, &mut memory, 100).is_none());
        assert!(located.is_leased(UNTIL - 1) && !located.is_leased(UNTIL));
    }

    #[test]
    fn all_fragments_need_a_tag() {
        let (value, tags) = (vec![1; 5000], [(ServerId(0), tag(1)), (ServerId(3), tag(1))]);
        let new = |indices: &[u8], primary| Located::new(made(&value, 2, indices), ServerId(primary), &tags);
        assert!(new(&[0, 3], 0).is_some() && new(&[0, 3], 3).is_some());
        assert!(new(&[0, 1], 0).is_none() && new(&[0], 0).is_none() && new(&[0, 3], 1).is_none());
    }

    #[test]
    fn members_tell_the_places_of_one_value() {
        let value = vec![1; 5000];
        let piece = |index| Piece { form: Form::Fragment { k: 2, index }, ..made(&value, 2, &[0]).piece };
        let look = |told: &[(u8, u64, Piece)]| {
            let mut look = Look::new(ServerId(0), 2);
            let take = |&(from, version, piece): &(u8, u64, Piece)| {
                look.take(ServerId(from), (Version(version), piece), tag(1))
            };
            let fits = told.iter().all(take);
            (fits && look.is_done()).then(|| look.located().unwrap())
        };
        let located = look(&[(3, VERSION, piece(3)), (0, VERSION, piece(0))]).unwrap();
        assert_eq!(located.value(), (5000, VERSION));
        assert_eq!(located.fragments().iter().map(|fragment| fragment.index).collect::<Vec<u8>>(), [3, 0]);
        // Less than all, another version, the same fragment, one member twice, another code, sum or length, a whole value.
        let first = (0, VERSION, piece(0));
        let (k, copy) = (Form::Fragment { k: 3, index: 1 }, Form::Copy);
        for second in [
            None,
            Some((3, VERSION + 1, piece(3))),
            Some((3, VERSION, piece(0))),
            Some((0, VERSION, piece(3))),
            Some((3, VERSION, Piece { form: k, ..piece(1) })),
            Some((3, VERSION, Piece { sum: 0, ..piece(3) })),
            Some((3, VERSION, Piece { length: 5001, ..piece(3) })),
            Some((3, VERSION, Piece { form: copy, ..piece(3) })),
        ] {
            assert!(look(&[Some(first), second].into_iter().flatten().collect::<Vec<_>>()).is_none(), "{second:?}");
        }
        // Not without the primary's.
        let mut others = Look::new(ServerId(0), 2);
        assert!([1, 3].iter().all(|&at| others.take(ServerId(at), (Version(VERSION), piece(at)), tag(1))));
        assert!(others.is_done() && others.located().is_none());
    }

    #[test]
    fn keys_in_use_stay() {
        let mut tags = FragmentTags::new(8);
        for turn in 0..100_u8 {
            tags.learn(&[turn], read(b"value", 1, 1, &[0]).0);
            assert!(tags.get(&[turn]).is_some() && tags.get(&[0]).is_some());
            assert!(tags.recent.len() + tags.older.len() <= 8);
        }
        assert!(tags.get(&[50]).is_none());
        tags.forget(&[0]);
        assert!(tags.get(&[0]).is_none() && tags.get(&[99]).is_some());
        tags.clear();
        assert!(tags.get(&[99]).is_none());
    }
}
