//! The bytes of an answer, and the header that a device puts before a datagram. Pure.

/// The answer's first bytes, and its version.
const MAGIC: [u8; 4] = *b"frUD";
const VERSION: u16 = 1;
/// Bytes of an answer.
pub(super) const ANSWER: usize = 16;

/// Bytes before each datagram that is received: a global route header, or unused bytes and an IPv4 header.
pub(super) const HEADER: usize = 40;
/// The IPv4 header's place in it.
const IPV4: usize = 20;

/// The place of a server's datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    /// The queue pair of one of its threads.
    pub(super) queue_pair: u32,
    /// Datagrams with another key are dropped: those for an earlier run of the server.
    pub(super) key: u32,
    /// The most bytes of a datagram.
    pub(super) part: u16,
}

impl Answer {
    pub(super) fn to_bytes(self) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.part.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.queue_pair.to_le_bytes());
        bytes[12..].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    /// Bytes behind it are of no account: the connection manager adds some.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ANSWER] = bytes.first_chunk()?;
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let is_ours = bytes[..4] == MAGIC && short(4) == VERSION;
        is_ours.then(|| Self { part: short(6), queue_pair: word(8), key: word(12) })
    }
}

/// Returns the sender's GID by the header before a datagram of so many bytes.
///
/// Over IPv4 the first 20 bytes may be anything, so they do not tell which header it is. The IPv4 header's checksum does. Within one host
/// rxe leaves the checksum out: then protocol and length do.
pub(super) fn sender(header: &[u8; HEADER], bytes: usize) -> [u8; 16] {
    let mut gid = [0; 16];
    if is_ipv4(header) || is_unsummed_ipv4(header, bytes) {
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&header[IPV4 + 12..IPV4 + 16]);
    } else {
        gid.copy_from_slice(&header[8..24]);
    }
    gid
}

const VERSION_AND_LENGTH: u8 = 0x45;

/// Returns whether it is an IPv4 header without a checksum, before the datagram and the headers of UDP and RoCE.
fn is_unsummed_ipv4(header: &[u8; HEADER], bytes: usize) -> bool {
    /// The headers of IPv4, UDP, RoCE and its datagrams, and the sum at the end.
    const AROUND: usize = 20 + 8 + 12 + 8 + 4;
    const UDP: u8 = 17;
    let ipv4 = &header[IPV4..];
    let total = usize::from(u16::from_be_bytes([ipv4[2], ipv4[3]]));
    let is_right = ipv4[0] == VERSION_AND_LENGTH && ipv4[9] == UDP && ipv4[10..12] == [0, 0];
    is_right && total == AROUND + bytes.next_multiple_of(4)
}

fn is_ipv4(header: &[u8; HEADER]) -> bool {
    let words = header[IPV4..].chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    header[IPV4] == VERSION_AND_LENGTH && (folded & 0xffff) + (folded >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As rxe gave it: from 10.9.0.2 to 10.9.0.1.
    const OVER_IPV4: [u8; IPV4] =
        [0x45, 0, 0, 0x98, 0x40, 0x8c, 0x40, 0, 0x40, 0x11, 0xe5, 0xb4, 10, 9, 0, 2, 10, 9, 0, 1];

    #[test]
    fn answers_are_the_same_there_and_back() {
        let answer = Answer { queue_pair: 0x00ab_cdef, key: 0x7fff_0001, part: 4096 };
        let mut bytes = answer.to_bytes().to_vec();
        bytes.resize(136, 0);
        assert_eq!(Answer::parse(&bytes), Some(answer));
        assert_eq!(Answer::parse(&bytes[..ANSWER - 1]), None);
        for at in [0, 3, 4] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(Answer::parse(&other), None, "byte {at}");
        }
    }

    #[test]
    fn senders_over_ipv4_are_mapped_addresses() {
        for before in [0, 0x60, 0x66, 0xff] {
            let mut header = [before; HEADER];
            header[IPV4..].copy_from_slice(&OVER_IPV4);
            let gid = std::net::Ipv6Addr::from(sender(&header, 100));
            assert_eq!(gid.to_ipv4_mapped(), Some([10, 9, 0, 2].into()));
        }
    }

    #[test]
    fn senders_of_this_host_have_no_checksum() {
        let mut header = [0; HEADER];
        header[IPV4..].copy_from_slice(&OVER_IPV4);
        header[IPV4 + 10..IPV4 + 12].fill(0);
        for bytes in 97..=100 {
            let gid = std::net::Ipv6Addr::from(sender(&header, bytes));
            assert_eq!(gid.to_ipv4_mapped(), Some([10, 9, 0, 2].into()));
        }
        assert_eq!(std::net::Ipv6Addr::from(sender(&header, 101)).to_ipv4_mapped(), None);
        header[IPV4 + 9] = 6;
        assert_eq!(std::net::Ipv6Addr::from(sender(&header, 100)).to_ipv4_mapped(), None);
    }

    #[test]
    fn senders_over_ipv6_are_their_addresses() {
        let mut header = [0x60; HEADER];
        // Bytes at the place of an IPv4 header's first one are the end of an address.
        let own: [u8; 16] = "fe80::1:4500:1:2".parse::<std::net::Ipv6Addr>().unwrap().octets();
        header[8..24].copy_from_slice(&own);
        header[IPV4] = 0x45;
        let expected: [u8; 16] = header[8..24].try_into().unwrap();
        assert_eq!(sender(&header, 100), expected);
    }
}
