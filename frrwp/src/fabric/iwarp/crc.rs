//! CRC32C, which ends a frame (RFC 5044, section 4.4).

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the sum of these bytes.
pub(super) fn of(bytes: &[u8]) -> u32 {
    append(0, bytes)
}

/// Returns the sum of what has this sum and of these bytes after it.
pub(super) fn append(crc: u32, bytes: &[u8]) -> u32 {
    // The algorithm keeps its state upside down.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4.
    #[test]
    fn sums_are_those_of_the_rfc_however_the_bytes_come() {
        let increasing: Vec<u8> = (0..32).collect();
        for (bytes, sum) in [(&[0; 32][..], 0x8a91_36aa), (&[0xff; 32], 0x62a8_ab43), (&increasing, 0x46dd_794e)] {
            assert_eq!(of(bytes), sum);
            for cut in 0..=bytes.len() {
                assert_eq!(append(of(&bytes[..cut]), &bytes[cut..]), sum);
            }
        }
    }

    /// One bit after another, as the polynomial says.
    #[test]
    fn sums_of_all_lengths_are_those_of_the_polynomial() {
        let bytes: Vec<u8> = (0..3000_u32).map(|at| ((at * at) >> 3) as u8).collect();
        let mut slow = !0_u32;
        for (at, byte) in bytes.iter().enumerate() {
            assert_eq!(of(&bytes[..at]), !slow, "{at} bytes");
            slow ^= u32::from(*byte);
            for _ in 0..8 {
                slow = (slow >> 1) ^ (0x82f6_3b78 & (slow & 1).wrapping_neg());
            }
        }
    }
}
