//! Values in fragments: which a write makes, and how a read puts them together.

use rdmakv_cluster::codec::{Code, data_fragments, fragment_length, piece_length};
use rdmakv_cluster::messages::{Form, Piece};
use rdmakv_proto::item::value_sum;

/// Values of fewer bytes are copies at all members: they are read from one server, and take more memory.
pub(super) const CODE_FROM: usize = 4 << 10;

/// The fragments of a value that is written.
#[derive(Debug)]
pub(super) struct Fragments {
    k: u8,
    parity: Vec<Vec<u8>>,
}

impl Fragments {
    /// Computes the parity fragments of a value for a group of so many members.
    pub(super) fn of(value: &[u8], k: u8, members: usize) -> Self {
        let data = data_fragments(value, usize::from(k));
        let length = fragment_length(value.len(), usize::from(k));
        let mut parity = vec![vec![0; length]; members.saturating_sub(usize::from(k))];
        if let Ok(code) = Code::new(usize::from(k), parity.len()) {
            let mut buffers: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            // The lengths are those of this value, so the code takes them.
            let _ = code.encode(&data, &mut buffers);
        }
        Self { k, parity }
    }

    /// Returns whether they are of this code and for so many members.
    pub(super) fn are_for(&self, k: u8, members: usize) -> bool {
        self.k == k && self.parity.len() == members.saturating_sub(usize::from(k))
    }

    /// Returns the fragment of a member of the value that they were made of.
    pub(super) fn get<'a>(&'a self, value: &'a [u8], index: u8) -> &'a [u8] {
        let (k, at) = (usize::from(self.k), usize::from(index));
        match at.checked_sub(k) {
            Some(parity) => self.parity.get(parity).map(Vec::as_slice).unwrap_or_default(),
            None => {
                let from = (at * fragment_length(value.len(), k)).min(value.len());
                &value[from..from + piece_length(value.len(), k, at)]
            }
        }
    }
}

/// The fragments of one version that were read.
#[derive(Debug, Default)]
pub(super) struct Parts(Vec<(u8, Vec<u8>)>);

impl Parts {
    /// Takes a fragment of a piece, if its length is right and no other has its number.
    pub(super) fn take(&mut self, piece: &Piece, bytes: Vec<u8>) {
        if let Form::Fragment { k, index } = piece.form
            && usize::try_from(piece.length)
                .is_ok_and(|whole| piece_length(whole, usize::from(k), usize::from(index)) == bytes.len())
            && !self.0.iter().any(|&(other, _)| other == index)
        {
            self.0.push((index, bytes));
        }
    }

    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets them.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Makes fragments of these numbers, of the value that a piece is of; None if too few were read.
    pub(super) fn make(&self, piece: &Piece, indices: &[u8]) -> Option<Vec<Vec<u8>>> {
        let Form::Fragment { k, .. } = piece.form else { return None };
        let (k, whole) = (usize::from(k), usize::try_from(piece.length).ok()?);
        let length = fragment_length(whole, k);
        let present: Vec<(usize, &[u8])> =
            self.0.iter().take(k).map(|(index, bytes)| (usize::from(*index), &bytes[..])).collect();
        let mut made: Vec<Vec<u8>> =
            indices.iter().map(|&index| vec![0; piece_length(whole, k, usize::from(index))]).collect();
        let mut lost: Vec<(usize, &mut [u8])> = Vec::new();
        for (&index, bytes) in indices.iter().zip(&mut made) {
            match present.iter().find(|(other, _)| *other == usize::from(index)) {
                Some((_, there)) => bytes.copy_from_slice(there),
                None => lost.push((usize::from(index), bytes)),
            }
        }
        if present.len() < k {
            return None;
        }
        if !lost.is_empty() {
            Code::widest(k).ok()?.rebuild(length, &present, &mut lost).ok()?;
        }
        Some(made)
    }

    /// Returns the value that a piece is of; None if too few fragments were read, or they are not the value's.
    pub(super) fn value(&self, piece: &Piece) -> Option<Vec<u8>> {
        let Form::Fragment { k, .. } = piece.form else { return None };
        let data: Vec<u8> = (0..k).collect();
        let value = self.make(piece, &data)?.concat();
        (value_sum(&value) == piece.sum && value.len() as u64 == piece.length).then_some(value)
    }
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
            let fragments = Fragments::of(&value, k, members);
            prop_assert!(fragments.are_for(k, members) && !fragments.are_for(k, members + 1));
            let mut left: Vec<u8> = (0..k + m).collect();
            let mut parts = Parts::default();
            for pick in order.iter().take(usize::from(k)) {
                prop_assert!(parts.value(&piece(&value, k, 0)).is_none());
                let index = left.remove(pick.index(left.len()));
                parts.take(&piece(&value, k, index), fragments.get(&value, index).to_vec());
                // One that comes twice is no other.
                parts.take(&piece(&value, k, index), fragments.get(&value, index).to_vec());
            }
            let found = parts.value(&piece(&value, k, 0));
            prop_assert_eq!(found.as_deref(), Some(&value[..]));
            // Those that are left are made of the others.
            let made = parts.make(&piece(&value, k, 0), &left).unwrap();
            for (index, made) in left.iter().zip(made) {
                prop_assert_eq!(&made[..], fragments.get(&value, *index));
            }
        }
    }

    #[test]
    fn other_bytes_are_no_value() {
        let value = vec![7; 5000];
        let fragments = Fragments::of(&value, 2, 4);
        let mut parts = Parts::default();
        parts.take(&piece(&value, 2, 0), fragments.get(&value, 0).to_vec());
        // Of another length.
        parts.take(&piece(&value, 2, 3), vec![1; 5]);
        assert_eq!(parts.len(), 1);
        let mut wrong = fragments.get(&value, 2).to_vec();
        wrong[9] ^= 1;
        parts.take(&piece(&value, 2, 2), wrong);
        assert_eq!(parts.value(&piece(&value, 2, 0)), None);
    }
}
