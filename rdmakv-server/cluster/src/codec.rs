//! The erasure code of values in k + m fragments: any k of them make the value.
//!
//! Its matrix is the identity above a Cauchy matrix over GF(2^8), the one that ISA-L makes by `gf_gen_cauchy1_matrix`. So the data
//! fragments are the value itself, and every square part of the matrix can be inverted.

use crate::kernel::{Products, inverse, product, sum_products};

/// The number of this code in an item's envelope.
pub const CAUCHY: u8 = 1;

/// Fragments of one value at most: a cluster has no more servers.
pub const MAX_FRAGMENTS: usize = 64;

/// Lengths of fragments are multiples of this.
pub const FRAGMENT_UNIT: usize = 64;

/// A request that no code can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// A code without data fragments or parity fragments, or of too many.
    #[error("make a code {data}+{parity}: it needs at least 1+1 and at most {MAX_FRAGMENTS} fragments")]
    Shape {
        /// Data fragments that were asked for.
        data: usize,
        /// Parity fragments that were asked for.
        parity: usize,
    },
    /// Too few or too many fragments were given.
    #[error("{operation}: {given} fragments were given, and it takes {needed}")]
    Count {
        /// The operation.
        operation: &'static str,
        /// Fragments that were given.
        given: usize,
        /// Fragments that it takes.
        needed: usize,
    },
    /// A fragment's number is not below k + m, or was given twice.
    #[error("rebuild: fragment {index} does not exist or is given twice")]
    Index {
        /// The number.
        index: usize,
    },
    /// A fragment is longer than the others allow, or parity fragments differ in length.
    #[error("fragment {index} has {length} bytes, and whole fragments of this value have {expected}")]
    Length {
        /// The fragment's number.
        index: usize,
        /// Its length in bytes.
        length: usize,
        /// The length of all whole fragments of the value.
        expected: usize,
    },
}

/// Returns the length of each fragment of a value of `whole` bytes: a k-th of it, up to the next multiple of [`FRAGMENT_UNIT`]. The last
/// data fragments may be shorter or empty, and count as followed by zeros.
pub fn fragment_length(whole: usize, k: usize) -> usize {
    // No value is as long as a length from another machine may be.
    whole.div_ceil(k.max(1)).checked_next_multiple_of(FRAGMENT_UNIT).unwrap_or(usize::MAX)
}

/// Returns the bytes of the fragment `index` of a value of `whole` bytes: those of [`fragment_length`], or fewer at the value's end.
pub fn piece_length(whole: usize, k: usize, index: usize) -> usize {
    let length = fragment_length(whole, k);
    if index < k { whole.saturating_sub(index.saturating_mul(length)).min(length) } else { length }
}

/// Returns the k data fragments of a value, which are slices of it.
pub fn data_fragments(whole: &[u8], k: usize) -> Vec<&[u8]> {
    let length = fragment_length(whole.len(), k);
    let edge = |index: usize| (index * length).min(whole.len());
    (0..k).map(|index| &whole[edge(index)..edge(index + 1)]).collect()
}

/// A code of k data fragments and m parity fragments.
#[derive(Clone, Debug)]
pub struct Code {
    k: usize,
    /// The coefficients of each parity fragment.
    parity: Vec<Vec<u8>>,
    products: Vec<Vec<Products>>,
}

impl Code {
    /// Makes the code of `k` data fragments and `m` parity fragments.
    ///
    /// # Errors
    ///
    /// [`CodecError::Shape`] where either is 0 or both are more than [`MAX_FRAGMENTS`].
    pub fn new(k: usize, m: usize) -> Result<Self, CodecError> {
        if k == 0 || m == 0 || k > MAX_FRAGMENTS || m > MAX_FRAGMENTS - k {
            return Err(CodecError::Shape { data: k, parity: m });
        }
        // Fragments are at most 64, so their numbers fit and differ.
        let parity: Vec<Vec<u8>> =
            (k..k + m).map(|row| (0..k).map(|column| inverse((row ^ column) as u8)).collect()).collect();
        Ok(Self { k, products: products(&parity), parity })
    }

    /// Makes the code of `k` data fragments and all parity fragments that a cluster may have.
    ///
    /// A fragment is the same in each code of `k`. While servers join or drain, more members than k + m have one. One that is made for repair
    /// has the lowest number that no member has. So a number may be above those of the key's policy.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn widest(k: usize) -> Result<Self, CodecError> {
        Self::new(k, MAX_FRAGMENTS.saturating_sub(k))
    }

    /// Returns the number of data fragments.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns the number of parity fragments.
    pub fn m(&self) -> usize {
        self.parity.len()
    }

    /// Writes the parity fragments of `data`, or one column of them: a column is the same bytes of each fragment.
    ///
    /// All parity fragments have one length. Data fragments that are shorter count as followed by zeros.
    ///
    /// # Errors
    ///
    /// [`CodecError::Count`] and [`CodecError::Length`]; the parity is then as it was.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), CodecError> {
        let counted = |given, needed| {
            if given == needed { Ok(()) } else { Err(CodecError::Count { operation: "encode", given, needed }) }
        };
        counted(data.len(), self.k)?;
        counted(parity.len(), self.m())?;
        let expected = parity[0].len();
        for (index, length) in parity.iter().enumerate().map(|(index, fragment)| (self.k + index, fragment.len())) {
            if length != expected {
                return Err(CodecError::Length { index, length, expected });
            }
        }
        if let Some(index) = data.iter().position(|fragment| fragment.len() > expected) {
            return Err(CodecError::Length { index, length: data[index].len(), expected });
        }
        sum_short(&self.products, data, parity);
        Ok(())
    }

    /// Rebuilds fragments that are lost from k others, given as their numbers and bytes, or one column of them.
    ///
    /// Numbers count data fragments first, from 0. `length` is that of a whole fragment, or of the column. Parity fragments are whole;
    /// data fragments that are shorter count as followed by zeros, and are rebuilt without these in shorter buffers.
    ///
    /// # Errors
    ///
    /// [`CodecError::Count`], [`CodecError::Index`] and [`CodecError::Length`]; no byte is written then.
    pub fn rebuild(
        &self,
        length: usize,
        present: &[(usize, &[u8])],
        lost: &mut [(usize, &mut [u8])],
    ) -> Result<(), CodecError> {
        if present.len() != self.k {
            return Err(CodecError::Count { operation: "rebuild", given: present.len(), needed: self.k });
        }
        let mut seen = [false; MAX_FRAGMENTS];
        let given = present.iter().map(|(index, fragment)| (*index, fragment.len()));
        for (index, fragment) in given.chain(lost.iter().map(|(index, fragment)| (*index, fragment.len()))) {
            if index >= self.k + self.m() || std::mem::replace(&mut seen[index], true) {
                return Err(CodecError::Index { index });
            }
            if fragment > length || index >= self.k && fragment < length {
                return Err(CodecError::Length { index, length: fragment, expected: length });
            }
        }

        let inverse = inverted(present.iter().map(|(index, _)| self.row(*index)).collect());
        let inputs: Vec<&[u8]> = present.iter().map(|(_, fragment)| *fragment).collect();
        // Fragments of one length are rebuilt in one pass over the others.
        lost.sort_by_key(|(_, fragment)| fragment.len());
        for equal in lost.chunk_by_mut(|a, b| a.1.len() == b.1.len()) {
            let rows: Vec<Vec<u8>> = equal.iter().map(|(index, _)| times(&self.row(*index), &inverse)).collect();
            let mut outputs: Vec<&mut [u8]> = equal.iter_mut().map(|(_, fragment)| &mut **fragment).collect();
            sum_short(&products(&rows), &inputs, &mut outputs);
        }
        Ok(())
    }

    /// The coefficients that make the fragment `index` of the data fragments.
    fn row(&self, index: usize) -> Vec<u8> {
        match index.checked_sub(self.k) {
            Some(parity) => self.parity[parity].clone(),
            None => (0..self.k).map(|column| u8::from(column == index)).collect(),
        }
    }
}

fn products(rows: &[Vec<u8>]) -> Vec<Vec<Products>> {
    rows.iter().map(|row| row.iter().copied().map(Products::of).collect()).collect()
}

/// Sums the products of inputs that may be shorter than the outputs: piece by piece, each of the inputs that reach it.
fn sum_short(rows: &[Vec<Products>], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
    let length = outputs.first().map_or(0, |output| output.len());
    if inputs.iter().all(|input| input.len() == length) {
        return sum_products(rows, inputs, outputs);
    }
    let mut edges: Vec<usize> = inputs.iter().map(|input| input.len().min(length)).chain([length]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut from = 0;
    for to in edges {
        let reach: Vec<usize> = (0..inputs.len()).filter(|&input| inputs[input].len() >= to).collect();
        let rows: Vec<Vec<Products>> = rows.iter().map(|row| reach.iter().map(|&input| row[input]).collect()).collect();
        let inputs: Vec<&[u8]> = reach.iter().map(|&input| &inputs[input][from..to]).collect();
        let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(|output| &mut output[from..to]).collect();
        sum_products(&rows, &inputs, &mut outputs);
        from = to;
    }
}

/// Returns the product of a row and a square matrix.
fn times(row: &[u8], matrix: &[Vec<u8>]) -> Vec<u8> {
    (0..matrix.len())
        .map(|column| row.iter().zip(matrix).fold(0, |sum, (&factor, line)| sum ^ product(factor, line[column])))
        .collect()
}

/// Returns the inverse of a square matrix of distinct rows of a code, which always has one.
fn inverted(mut matrix: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let size = matrix.len();
    let mut result: Vec<Vec<u8>> =
        (0..size).map(|row| (0..size).map(|column| u8::from(row == column)).collect()).collect();
    for column in 0..size {
        let pivot = (column..size)
            .find(|&row| matrix[row][column] != 0)
            .expect("k distinct rows of a Cauchy code are independent");
        matrix.swap(column, pivot);
        result.swap(column, pivot);
        let factor = inverse(matrix[column][column]);
        for value in matrix[column].iter_mut().chain(&mut result[column]) {
            *value = product(*value, factor);
        }
        let (line, made) = (matrix[column].clone(), result[column].clone());
        for row in (0..size).filter(|&row| row != column) {
            let factor = matrix[row][column];
            for (value, &other) in matrix[row].iter_mut().chain(&mut result[row]).zip(line.iter().chain(&made)) {
                *value ^= product(factor, other);
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    #[test]
    fn impossible_lengths_are_no_fragments() {
        assert_eq!(super::fragment_length(usize::MAX, 1), usize::MAX);
        assert_eq!(super::piece_length(usize::MAX, 1, 0), usize::MAX);
        assert_eq!(super::piece_length(usize::MAX, 1, 63), usize::MAX);
        assert_eq!(super::piece_length(usize::MAX, 64, 63), usize::MAX / 64);
    }

    use proptest::prelude::*;

    use super::*;

    fn encoded(code: &Code, data: &[&[u8]], length: usize) -> Vec<Vec<u8>> {
        let mut parity = vec![vec![0xee; length]; code.m()];
        let mut slices: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(data, &mut slices).expect("the shape fits");
        parity
    }

    #[test]
    fn parity_is_that_of_isa_l() {
        // Made by ec_encode_data of ISA-L 2.30, with the matrix of gf_gen_cauchy1_matrix.
        let cases: &[(usize, &[[u8; 16]])] = &[
            (2, &[[0x85, 0x01, 0x6b, 0x0a, 0x3c, 0x2b, 0x96, 0xc3, 0x83, 0x77, 0xf6, 0x9f, 0xe9, 0xbe, 0x2b, 0x95]]),
            (
                4,
                &[
                    [0x2c, 0xd6, 0x48, 0x30, 0x9a, 0xa4, 0x65, 0x69, 0xec, 0xd5, 0xa3, 0x09, 0xd1, 0x85, 0x1a, 0xce],
                    [0x82, 0xcc, 0x35, 0x7b, 0xe8, 0x80, 0x80, 0xd9, 0x6b, 0xcf, 0xde, 0x13, 0x2c, 0x9f, 0x8b, 0x02],
                ],
            ),
            (
                6,
                &[
                    [0x86, 0xe2, 0xb6, 0xbe, 0x20, 0xb6, 0xc2, 0xfe, 0xef, 0x67, 0xe3, 0x1d, 0xfb, 0x11, 0x4d, 0x81],
                    [0x3d, 0x71, 0x36, 0x08, 0x6b, 0x08, 0xf4, 0x19, 0x72, 0x0f, 0x63, 0x8e, 0xf9, 0x82, 0xee, 0xf7],
                    [0x47, 0xe5, 0x82, 0x04, 0xd6, 0x0b, 0xda, 0x69, 0xd4, 0xa4, 0xdc, 0x3a, 0xb3, 0xa1, 0xc6, 0x87],
                ],
            ),
        ];
        for (k, expected) in cases {
            let data: Vec<Vec<u8>> =
                (0..*k).map(|i| (0..16).map(|j| ((17 * i + 29 * j + 7) ^ (j >> 3)) as u8).collect()).collect();
            let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let code = Code::new(*k, expected.len()).expect("a small code");
            assert_eq!(encoded(&code, &data, 16), expected.to_vec(), "{k}+{}", expected.len());
        }
    }

    #[test]
    fn every_allowed_loss_is_rebuilt() {
        let codes = [(1, 1), (2, 1), (4, 2), (5, 3), (3, 4)];
        for ((k, m), bytes) in
            codes.into_iter().flat_map(|(k, m)| [0, 10, k * 64 - 37, k * 64].map(|bytes| ((k, m), bytes)))
        {
            let code = Code::new(k, m).expect("a small code");
            let value: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 50) as u8).collect();
            let length = fragment_length(value.len(), k);
            let data = data_fragments(&value, k);
            let parity = encoded(&code, &data, length);
            let all: Vec<&[u8]> = data.iter().copied().chain(parity.iter().map(Vec::as_slice)).collect();
            for kept in (0..1u32 << (k + m)).filter(|kept| kept.count_ones() as usize == k) {
                let is_kept = |index: usize| kept >> index & 1 != 0;
                let present: Vec<(usize, &[u8])> = (0..k + m).filter(|&i| is_kept(i)).map(|i| (i, all[i])).collect();
                let mut rebuilt: Vec<(usize, Vec<u8>)> =
                    (0..k + m).filter(|&i| !is_kept(i)).map(|i| (i, vec![0x55; all[i].len()])).collect();
                let mut lost: Vec<(usize, &mut [u8])> =
                    rebuilt.iter_mut().map(|(i, bytes)| (*i, bytes.as_mut_slice())).collect();
                code.rebuild(length, &present, &mut lost).expect("k fragments");
                for (index, bytes) in rebuilt {
                    assert_eq!(bytes, all[index], "{k}+{m} of {}, kept {kept:b}, fragment {index}", value.len());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn columns_make_the_same_parity(k in 1..8usize, m in 1..5usize, value in proptest::collection::vec(any::<u8>(), 0..4000), column in 1..700usize) {
            let code = Code::new(k, m).expect("a small code");
            let length = fragment_length(value.len(), k);
            let data = data_fragments(&value, k);
            prop_assert_eq!(data.concat(), value.clone());
            let whole = encoded(&code, &data, length);
            let mut parity = vec![Vec::new(); m];
            for from in (0..length).step_by(column) {
                let to = (from + column).min(length);
                let part: Vec<&[u8]> = data.iter().map(|fragment| &fragment[from.min(fragment.len())..to.min(fragment.len())]).collect();
                for (parity, made) in parity.iter_mut().zip(encoded(&code, &part, to - from)) {
                    parity.extend(made);
                }
            }
            prop_assert_eq!(parity, whole);
        }
    }

    #[test]
    fn impossible_requests_are_refused() {
        for (k, m) in [(0, 1), (1, 0), (64, 1), (1, 64), (usize::MAX, usize::MAX)] {
            assert_eq!(Code::new(k, m).err(), Some(CodecError::Shape { data: k, parity: m }));
        }
        assert!(Code::new(60, 4).is_ok());
        let code = Code::new(2, 1).expect("a small code");
        let (a, b, long) = ([1; 8], [2; 8], [3; 9]);
        let mut out = [7; 8];
        assert_eq!(
            code.encode(&[&a], &mut [&mut out]),
            Err(CodecError::Count { operation: "encode", given: 1, needed: 2 })
        );
        assert_eq!(
            code.encode(&[&a, &b], &mut []),
            Err(CodecError::Count { operation: "encode", given: 0, needed: 1 })
        );
        assert_eq!(
            code.encode(&[&a, &long], &mut [&mut out]),
            Err(CodecError::Length { index: 1, length: 9, expected: 8 })
        );
        assert_eq!(
            code.rebuild(8, &[(0, &a)], &mut []),
            Err(CodecError::Count { operation: "rebuild", given: 1, needed: 2 })
        );
        assert_eq!(code.rebuild(8, &[(0, &a), (0, &b)], &mut []), Err(CodecError::Index { index: 0 }));
        assert_eq!(code.rebuild(8, &[(0, &a), (3, &b)], &mut []), Err(CodecError::Index { index: 3 }));
        assert_eq!(code.rebuild(8, &[(0, &a), (2, &b)], &mut [(2, &mut out)]), Err(CodecError::Index { index: 2 }));
        let mut too_long = [7; 9];
        let error = code.rebuild(8, &[(0, &a), (2, &b)], &mut [(1, &mut too_long)]);
        assert_eq!(error, Err(CodecError::Length { index: 1, length: 9, expected: 8 }));
        let mut short = [7; 7];
        let error = code.rebuild(8, &[(0, &a), (1, &b)], &mut [(2, &mut short)]);
        assert_eq!(error, Err(CodecError::Length { index: 2, length: 7, expected: 8 }));
        assert_eq!((out, too_long), ([7; 8], [7; 9]));
    }
}
