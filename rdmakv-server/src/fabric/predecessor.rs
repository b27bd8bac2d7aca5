//! The record that a server with RDMA devices leaves for the next one, and the wait that follows from it.
//!
//! A server that was killed leaves clients with leases, and its device may serve them a moment longer than its ports are taken. So the next
//! server answers no command on keys until every lease that its predecessor can have granted
//! is over. It knows from a file, which is of 128 bytes and written in one piece:
//!
//! ```text
//! rdmakv-life 1
//! incarnation 3735928559
//! lease-ns 00000000001000000000
//! state serving
//! sum 2ec594e4
//! ```
//!
//! and spaces up to the end. `serving` is written before anything is exposed; `clean` only when every item that was leased
//! has been marked dead, and by a first server before it exposes anything. The sum is the CRC32C of what stands before it. Whatever is not so is *unreadable*, and then the
//! longest D is taken.

use std::time::Duration;

use crc_fast::CrcAlgorithm;

use crate::store::{LONGEST, lasting};
use rdmakv_proto::faults::{Fault, injected};

/// Bytes of the file.
pub const LENGTH: usize = 128;

/// A server's record of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncarnationRecord {
    /// Which incarnation of the server it is.
    pub incarnation: u32,
    /// How long a client may rely on a lease: D.
    pub lease: Duration,
    /// Whether nothing that was leased is alive any more.
    pub clean: bool,
}

/// The knowledge of the server before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predecessor {
    /// There was none that exposed anything.
    None,
    /// It said this.
    Known(IncarnationRecord),
    /// There was one, and what it said makes no sense.
    Unreadable,
}

impl IncarnationRecord {
    /// Returns the file's bytes.
    pub fn to_bytes(self) -> [u8; LENGTH] {
        let state = if self.clean { "clean" } else { "serving" };
        let said = format!(
            "rdmakv-life 1\nincarnation {:010}\nlease-ns {:020}\nstate {state}\n",
            self.incarnation,
            self.lease.as_nanos()
        );
        let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, said.as_bytes());
        let mut bytes = [b' '; LENGTH];
        let text = format!("{said}sum {sum:08x}\n");
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() == LENGTH)?.trim_end_matches(' ');
        let (said, sum) = text.strip_suffix('\n')?.rsplit_once("sum ")?;
        let sum = u32::from_str_radix(sum, 16).ok()?;
        if u64::from(sum) != crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, said.as_bytes()) {
            return None;
        }
        let mut lines = said.lines();
        if lines.next()? != "rdmakv-life 1" {
            return None;
        }
        let incarnation = lines.next()?.strip_prefix("incarnation ")?.parse().ok()?;
        let lease = Duration::from_nanos(lines.next()?.strip_prefix("lease-ns ")?.parse().ok()?);
        let clean = match lines.next()? {
            "state clean" => true,
            "state serving" => false,
            _ => return None,
        };
        (lines.next().is_none() && lease <= LONGEST).then_some(Self { incarnation, lease, clean })
    }
}

impl Predecessor {
    /// Returns the meaning of the bytes of an existing file.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        IncarnationRecord::of_bytes(bytes).map_or(Self::Unreadable, Self::Known)
    }

    /// Returns how long no client may be served, from the moment on at which the predecessor is known to be gone.
    pub fn wait(self) -> Duration {
        if injected(Fault::NoRestartWait) {
            return Duration::ZERO;
        }
        match self {
            Self::None | Self::Known(IncarnationRecord { clean: true, .. }) => Duration::ZERO,
            Self::Known(IncarnationRecord { lease, .. }) => lasting(lease),
            Self::Unreadable => lasting(LONGEST),
        }
    }

    /// Returns an incarnation that is not the predecessor's, and not zero, from some random number.
    pub fn next_incarnation(self, random: u32) -> u32 {
        let taken = |number| number == 0 || matches!(self, Self::Known(record) if record.incarnation == number);
        (0..3).map(|more| random.wrapping_add(more)).find(|&number| !taken(number)).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: IncarnationRecord =
        IncarnationRecord { incarnation: 3_735_928_559, lease: Duration::from_secs(1), clean: false };

    #[test]
    fn what_a_server_says_is_read_as_it_was_said() {
        let ends = [Duration::ZERO, Duration::from_nanos(1), LONGEST];
        for record in [RECORD, IncarnationRecord { clean: true, ..RECORD }]
            .into_iter()
            .chain(ends.map(|lease| IncarnationRecord { lease, ..RECORD }))
        {
            assert_eq!(Predecessor::of_bytes(&record.to_bytes()), Predecessor::Known(record));
        }
        let documented = "rdmakv-life 1\nincarnation 3735928559\nlease-ns 00000000001000000000\nstate serving\n";
        let bytes = RECORD.to_bytes();
        assert_eq!(&bytes[..documented.len()], documented.as_bytes());
        let sum = std::str::from_utf8(&bytes[documented.len()..]).unwrap().trim_end();
        assert!(include_str!("predecessor.rs").contains(&format!("//! {sum}\n")), "{sum}");
    }

    #[test]
    fn damaged_incarnation_file_is_unreadable() {
        let bytes = RECORD.to_bytes();
        let text = bytes.iter().rposition(|&byte| byte != b' ').unwrap() + 1;
        for at in 0..text {
            for mask in [1, 0x20, 0x80] {
                let mut broken = bytes;
                broken[at] ^= mask;
                // A sum may be in capitals.
                let same = at > text - 10 && broken[at].eq_ignore_ascii_case(&bytes[at]);
                assert!(same || Predecessor::of_bytes(&broken) == Predecessor::Unreadable, "byte {at}, {mask:#x}");
            }
            assert_eq!(Predecessor::of_bytes(&bytes[..at]), Predecessor::Unreadable, "{at} bytes");
        }
        let mut half = IncarnationRecord { clean: true, ..RECORD }.to_bytes();
        half[76..].copy_from_slice(&bytes[76..]);
        assert_eq!(Predecessor::of_bytes(&half), Predecessor::Unreadable);
        let longer = IncarnationRecord { lease: LONGEST + Duration::from_nanos(1), ..RECORD };
        assert_eq!(Predecessor::of_bytes(&longer.to_bytes()), Predecessor::Unreadable);
    }

    #[test]
    fn a_start_waits_for_every_lease_that_can_be_left() {
        assert_eq!(Predecessor::None.wait(), Duration::ZERO);
        assert_eq!(Predecessor::Known(IncarnationRecord { clean: true, ..RECORD }).wait(), Duration::ZERO);
        assert_eq!(Predecessor::Known(RECORD).wait(), Duration::from_millis(1125));
        assert_eq!(Predecessor::Unreadable.wait(), Duration::from_millis(67_500));
    }

    #[test]
    fn no_incarnation_comes_twice_in_a_row_or_is_zero() {
        let known = |incarnation| Predecessor::Known(IncarnationRecord { incarnation, ..RECORD });
        assert_eq!(known(7).next_incarnation(8), 8);
        assert_eq!(known(7).next_incarnation(7), 8);
        assert_eq!(known(1).next_incarnation(0), 2);
        assert_eq!(known(u32::MAX).next_incarnation(u32::MAX), 1);
        assert_eq!(Predecessor::None.next_incarnation(0), 1);
    }
}
