//! CRC32C of bytes that were summed in parts.
//!
//! A sum is a polynomial over bits. To append n bytes multiplies it by x^(8n). So the sums of two parts make that of the whole. It takes a
//! product for each bit of n that is 1. crc-fast squares matrices instead. For 256 KiB that takes 23 µs, and this 0.06 to 1 µs.

/// The polynomial of CRC32C without x^32, the highest power in the lowest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// x^(2^k), by k.
const POWERS: [u32; 64] = {
    // x.
    let mut powers = [1 << 30; 64];
    let mut k = 1;
    while k < powers.len() {
        powers[k] = product(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
};

/// Multiplies two polynomials, modulo that of CRC32C.
const fn product(a: u32, mut b: u32) -> u32 {
    let (mut bit, mut sum) = (ONE, 0);
    while bit != 0 {
        if a & bit != 0 {
            sum ^= b;
        }
        b = if b & 1 == 0 { b >> 1 } else { (b >> 1) ^ POLYNOMIAL };
        bit >>= 1;
    }
    sum
}

/// Returns the sum of bytes that are followed by `length` others, of which the sum is `after`.
pub(crate) fn joined(before: u32, (after, length): (u32, u32)) -> u32 {
    // Eight bits a byte. 2^32 bytes need powers up to 2^35.
    let (mut left, mut shift) = (u64::from(length) << 3, ONE);
    while left != 0 {
        shift = product(POWERS[left.trailing_zeros() as usize], shift);
        left &= left - 1;
    }
    product(shift, before) ^ after
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::value_sum;
    use crc_fast::{CrcAlgorithm, checksum_combine};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_make_the_sum_of_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..5000), at in any::<usize>()) {
            let (before, after) = bytes.split_at(at % (bytes.len() + 1));
            let joined = joined(value_sum(before), (value_sum(after), after.len() as u32));
            prop_assert_eq!(joined, value_sum(&bytes));
        }

        #[test]
        fn long_parts_have_the_sum_of_the_crate(before: u32, after: u32, length: u32) {
            let whole = checksum_combine(CrcAlgorithm::Crc32Iscsi, before.into(), after.into(), length.into());
            prop_assert_eq!(u64::from(joined(before, (after, length))), whole);
        }
    }
}
