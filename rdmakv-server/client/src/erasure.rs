//! Values in fragments: which a write makes, and how a read puts them together.

use super::buffer::{Buffer, Data, Part};
use super::memory::Memory;
use rdmakv_cluster::codec::{Code, data_fragments, fragment_length, piece_length};
use rdmakv_cluster::messages::{Form, Piece};
use rdmakv_proto::item::value_sum;
use std::sync::Arc;

/// Values of fewer bytes are copies at all members: they are read from one server, and take more memory.
pub(super) const CODE_FROM: usize = 4 << 10;

/// Choices among fragments at most, some of which are damaged. There are 15 with 4+2, and each takes the time of a read.
const MAX_CHOICES: u32 = 256;

/// The fragments of a value that is written. Those of the data are parts of the value itself.
#[derive(Debug)]
pub(super) struct Fragments {
    k: u8,
    members: usize,
    value: Arc<Data>,
    /// Those beyond the k of the data, one after the other, once they are needed: servers read the first meanwhile.
    parity: Option<Arc<Data>>,
}

impl Fragments {
    /// Returns the fragments of a value for a group of so many members.
    pub(super) fn of(value: &Arc<Data>, k: u8, members: usize) -> Self {
        Self { k, members, value: Arc::clone(value), parity: None }
    }

    /// Returns whether they are of this code and for so many members.
    pub(super) fn are_for(&self, k: u8, members: usize) -> bool {
        self.k == k && self.members == members
    }

    /// Returns the fragment of a member. Those of the parity are computed into memory that servers can read, if there is any.
    pub(super) fn get(&mut self, index: u8, memory: Option<&Memory>) -> Part {
        let (k, at, whole) = (usize::from(self.k), usize::from(index), self.value.bytes().len());
        let length = fragment_length(whole, k);
        let Some(at) = at.checked_sub(k) else {
            return Part::of(&self.value, at * length..at * length + piece_length(whole, k, at));
        };
        let parity = match self.parity.take() {
            Some(parity) => parity,
            None => Arc::new(self.compute(length, memory)),
        };
        Part::of(self.parity.insert(parity), at * length..(at + 1) * length)
    }

    fn compute(&self, length: usize, memory: Option<&Memory>) -> Data {
        let k = usize::from(self.k);
        let count = self.members.saturating_sub(k);
        let mut parity = match memory.and_then(|memory| memory.sending(count * length).ok()) {
            Some(sending) => Data::Buffer(Buffer(sending)),
            None => Data::Vec(vec![0; count * length]),
        };
        if let Ok(code) = Code::new(k, count) {
            let mut buffers: Vec<&mut [u8]> = parity.bytes_mut().chunks_mut(length.max(1)).collect();
            // The lengths are those of this value, so the code takes them.
            let _ = code.encode(&data_fragments(self.value.bytes(), k), &mut buffers);
        }
        parity
    }
}

/// The fragments of one version that were read.
#[derive(Debug, Default)]
pub(super) struct Parts {
    parts: Vec<(u8, Vec<u8>)>,
    /// All choices among so many of them have failed.
    tried: usize,
    /// Choices that have failed.
    choices: u32,
}

impl Parts {
    /// Takes a fragment of a piece, if its length is right and no other has its number. Returns whether it did.
    pub(super) fn take(&mut self, piece: &Piece, bytes: Vec<u8>) -> bool {
        let Form::Fragment { k, index } = piece.form else { return false };
        let is_whole = usize::try_from(piece.length)
            .is_ok_and(|whole| piece_length(whole, usize::from(k), usize::from(index)) == bytes.len());
        let is_new = is_whole && !self.parts.iter().any(|&(other, _)| other == index);
        if is_new {
            self.parts.push((index, bytes));
        }
        is_new
    }

    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Forgets them.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the value that a piece is of; None if too few fragments were read, or no k of them are the value's.
    ///
    /// One that is damaged makes the sum of the value another. So each choice of k is tried once, up to [`MAX_CHOICES`] of them.
    pub(super) fn value(&mut self, piece: &Piece) -> Option<Vec<u8>> {
        let Form::Fragment { k, .. } = piece.form else { return None };
        let others = usize::from(k).checked_sub(1)?;
        while self.tried < self.parts.len() {
            // Choices without the newest were tried before.
            let newest = self.tried;
            self.tried += 1;
            let mut choice: Vec<usize> = (0..others).collect();
            let mut is_left = others <= newest;
            while is_left && self.choices < MAX_CHOICES {
                let chosen: Vec<(usize, &[u8])> = choice
                    .iter()
                    .chain([&newest])
                    .map(|&at| (usize::from(self.parts[at].0), &self.parts[at].1[..]))
                    .collect();
                let value = join(piece, &chosen).filter(|value| value_sum(value) == piece.sum);
                if value.is_some() {
                    return value;
                }
                self.choices += 1;
                is_left = next_choice(&mut choice, newest);
            }
        }
        None
    }
}

/// Makes a choice of numbers below a bound the next one; false if it was the last.
fn next_choice(choice: &mut [usize], bound: usize) -> bool {
    let count = choice.len();
    let Some(at) = (0..count).rev().find(|&at| choice[at] < bound - (count - at)) else { return false };
    choice[at] += 1;
    for later in at + 1..count {
        choice[later] = choice[later - 1] + 1;
    }
    true
}

/// Puts k fragments together, and rebuilds those of the data that are not among them.
fn join(piece: &Piece, chosen: &[(usize, &[u8])]) -> Option<Vec<u8>> {
    let Form::Fragment { k, .. } = piece.form else { return None };
    let (k, whole) = (usize::from(k), usize::try_from(piece.length).ok()?);
    let mut value = Vec::with_capacity(whole);
    let mut is_lost = vec![false; k];
    for (index, is_lost) in is_lost.iter_mut().enumerate() {
        match chosen.iter().find(|(other, _)| *other == index) {
            Some((_, bytes)) => value.extend_from_slice(bytes),
            None => {
                *is_lost = true;
                value.resize(value.len() + piece_length(whole, k, index), 0);
            }
        }
    }
    if is_lost.contains(&true) {
        let length = fragment_length(whole, k);
        let fragments = value.chunks_mut(length.max(1)).enumerate();
        let mut lost: Vec<(usize, &mut [u8])> = fragments.filter(|(index, _)| is_lost[*index]).collect();
        // A fragment is the same in each code of k.
        let parity = chosen.iter().map(|(index, _)| (index + 1).saturating_sub(k)).max()?;
        Code::new(k, parity).ok()?.rebuild(length, chosen, &mut lost).ok()?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rdmakv_cluster::messages::Chunk;

    fn piece(value: &[u8], k: u8, index: u8) -> Piece {
        let (length, sum) = (value.len() as u64, value_sum(value));
        Piece { chunk: Chunk(0), form: Form::Fragment { k, index }, length, sum }
    }

    proptest! {
        #[test]
        fn any_k_fragments_make_the_value(
            (k, m) in (1_u8..9, 1_u8..5),
            more in 0_usize..2000,
            order in any::<[prop::sample::Index; 16]>(),
            seed: u8,
        ) {
            let value: Vec<u8> = (0..more).map(|at| (at * 7 + at / 251) as u8 ^ seed).collect();
            let members = usize::from(k + m);
            let mut fragments = Fragments::of(&Arc::new(value.clone().into()), k, members);
            prop_assert!(fragments.are_for(k, members) && !fragments.are_for(k, members + 1));
            let mut left: Vec<u8> = (0..k + m).collect();
            let mut parts = Parts::default();
            for pick in order.iter().take(usize::from(k)) {
                prop_assert!(parts.value(&piece(&value, k, 0)).is_none());
                let index = left.remove(pick.index(left.len()));
                prop_assert!(parts.take(&piece(&value, k, index), fragments.get(index, None).bytes().to_vec()));
                // One that comes twice is no other.
                prop_assert!(!parts.take(&piece(&value, k, index), fragments.get(index, None).bytes().to_vec()));
            }
            let found = parts.value(&piece(&value, k, 0));
            prop_assert_eq!(found.as_deref(), Some(&value[..]));
        }

        #[test]
        fn values_are_made_around_damaged_fragments(
            (k, m) in (1_u8..6, 1_u8..4),
            damaged in any::<[prop::sample::Index; 3]>(),
            more in 1_usize..2000,
        ) {
            let value: Vec<u8> = (0..more).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut fragments = Fragments::of(&Arc::new(value.clone().into()), k, usize::from(k + m));
            let damaged: Vec<usize> =
                damaged.iter().take(usize::from(m)).map(|at| at.index(usize::from(k + m))).collect();
            let mut parts = Parts::default();
            let mut sound = 0;
            for index in 0..k + m {
                let mut bytes = fragments.get(index, None).bytes().to_vec();
                let is_damaged = damaged.contains(&usize::from(index)) && !bytes.is_empty();
                bytes.iter_mut().take(usize::from(is_damaged)).for_each(|byte| *byte ^= 1);
                sound += u8::from(!is_damaged);
                prop_assert!(parts.take(&piece(&value, k, index), bytes));
                let found = parts.value(&piece(&value, k, 0));
                if sound >= k {
                    prop_assert_eq!(found.as_deref(), Some(&value[..]));
                    break;
                }
                // The first bytes of fragments may be enough, where the value's end is short.
                prop_assert!(found.is_none_or(|found| found == value));
            }
            prop_assert!(sound >= k);
        }
    }

    #[test]
    fn other_bytes_are_no_value() {
        let value = vec![7; 5000];
        let mut fragments = Fragments::of(&Arc::new(value.clone().into()), 2, 4);
        let mut parts = Parts::default();
        parts.take(&piece(&value, 2, 0), fragments.get(0, None).bytes().to_vec());
        // Of another length.
        parts.take(&piece(&value, 2, 3), vec![1; 5]);
        assert_eq!(parts.len(), 1);
        let mut wrong = fragments.get(2, None).bytes().to_vec();
        wrong[9] ^= 1;
        assert!(parts.take(&piece(&value, 2, 2), wrong));
        assert_eq!(parts.value(&piece(&value, 2, 0)), None);
        // Each choice is tried once.
        assert_eq!((parts.choices, parts.value(&piece(&value, 2, 0))), (1, None));
    }
}
