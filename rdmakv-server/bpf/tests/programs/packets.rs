//! Packets: requests as clients send them, answers as they should be.

use std::net::IpAddr;

pub(crate) const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const PORT: u16 = 11211;

/// A checksum, as a packet may carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    Whole,
    Absent,
    /// That of the pseudo-header alone: not summed yet.
    Partial,
    Wrong,
}

/// A request in a datagram.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) port: u16,
    pub(crate) frame: [u8; 8],
    pub(crate) text: Vec<u8>,
    pub(crate) sum: Sum,
}

impl Request {
    pub(crate) fn new(text: impl AsRef<[u8]>) -> Self {
        Self {
            from: "10.77.0.2".parse().unwrap(),
            to: "10.77.0.1".parse().unwrap(),
            port: PORT,
            frame: [0x12, 0x34, 0, 0, 0, 1, 0, 0],
            text: text.as_ref().to_vec(),
            sum: Sum::Whole,
        }
    }

    pub(crate) fn v6(text: impl AsRef<[u8]>) -> Self {
        let (from, to) = ("fd77::2".parse().unwrap(), "fd77::1".parse().unwrap());
        Self { from, to, ..Self::new(text) }
    }

    /// Returns the Ethernet frame.
    pub(crate) fn packet(&self) -> Vec<u8> {
        let payload = [&self.frame[..], &self.text].concat();
        packet((CLIENT_MAC, SERVER_MAC), (self.from, self.to), (40_000, self.port), &payload, self.sum, [0, 0])
    }

    /// Returns the packet that answers it with this text.
    pub(crate) fn answer(&self, text: &[u8], sum: Sum) -> Vec<u8> {
        let mut frame = self.frame;
        frame[4..].copy_from_slice(&[0, 1, 0, 0]);
        let payload = [&frame[..], text].concat();
        let mut packet =
            packet((SERVER_MAC, CLIENT_MAC), (self.to, self.from), (self.port, 40_000), &payload, sum, [0x40, 0]);
        packet.resize(packet.len().max(60), 0);
        packet
    }
}

fn packet(
    macs: ([u8; 6], [u8; 6]),
    (from, to): (IpAddr, IpAddr),
    ports: (u16, u16),
    payload: &[u8],
    sum: Sum,
    fragment: [u8; 2],
) -> Vec<u8> {
    let length = (payload.len() + 8) as u16;
    let mut udp = [ports.0.to_be_bytes(), ports.1.to_be_bytes(), length.to_be_bytes(), [0, 0]].concat();
    udp.extend_from_slice(payload);
    let mut pseudo = Vec::new();
    for address in [from, to] {
        match address {
            IpAddr::V4(address) => pseudo.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => pseudo.extend_from_slice(&address.octets()),
        }
    }
    let addresses = pseudo.clone();
    pseudo.extend_from_slice(&[0, 17]);
    pseudo.extend_from_slice(&length.to_be_bytes());
    let whole = match !ones(&[&pseudo[..], &udp].concat()) {
        0 => 0xffff,
        sum => sum,
    };
    let field = match sum {
        Sum::Whole => whole,
        Sum::Absent => 0,
        Sum::Partial => ones(&pseudo),
        Sum::Wrong => whole ^ 0x0100,
    };
    udp[6..8].copy_from_slice(&field.to_be_bytes());
    let mut packet = [macs.1, macs.0].concat();
    if from.is_ipv4() {
        let mut ip = vec![0x45, 0];
        ip.extend_from_slice(&(20 + length).to_be_bytes());
        ip.extend_from_slice(&[0, 0, fragment[0], fragment[1], 64, 17, 0, 0]);
        ip.extend_from_slice(&addresses);
        let check = !ones(&ip);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        packet.extend_from_slice(&[8, 0]);
        packet.extend_from_slice(&ip);
    } else {
        packet.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        packet.extend_from_slice(&length.to_be_bytes());
        packet.extend_from_slice(&[17, 64]);
        packet.extend_from_slice(&addresses);
    }
    packet.extend_from_slice(&udp);
    packet
}

/// Sets the checksum of a packet's IPv4 header, after a change.
pub(crate) fn sum_header(packet: &mut [u8]) {
    packet[24..26].fill(0);
    let sum = !ones(&packet[14..34]);
    packet[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the sum of big-endian words in ones' complement.
pub(crate) fn ones(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u32::from(low)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
