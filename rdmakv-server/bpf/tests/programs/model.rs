//! A second reader of packets, written from the rules and not from the program: what is answered, and with which text.

use std::net::IpAddr;

use crate::items::Item;
use crate::packets::{PORT, Request, SERVER_MAC, Sum, ones, sum_header};

/// Returns a request that may be answered.
pub(crate) fn request(next: &mut impl FnMut(usize) -> usize) -> Request {
    let key = ["k", "key", "a-longer-key-of-29-characters", "none"][next(4)];
    let text = match next(4) {
        0 => format!("get {key}\r\n"),
        1 => format!("gets {key}\r\n"),
        2 => format!("mg {key} v{}\r\n", ["", " k", " s f", " O12 q t"][next(4)]),
        _ => format!("mg {key} {}\r\n", ["t", "c s", "v v", "h", "Okv"][next(5)]),
    };
    let sum = [Sum::Whole, Sum::Absent, Sum::Partial, Sum::Wrong][next(8).saturating_sub(4)];
    let base = if next(2) == 0 { Request::new(text) } else { Request::v6(text) };
    Request { sum, ..base }
}

/// Returns the packet of a request with some bytes changed. In half of them the sums are those of the changed packet.
pub(crate) fn changed(request: &Request, next: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
    let mut packet = request.packet();
    for _ in 0..next(3) {
        let at = next(packet.len());
        match next(4) {
            0 => packet[at] ^= 1 << next(8),
            1 => packet[at] = b" \r\n\x7fvkO0"[next(8)],
            2 => packet[at] = next(256) as u8,
            _ => match next(3) {
                0 => packet.truncate(at.max(34)),
                1 => packet.extend_from_slice(&[0xee; 7][..next(8)]),
                _ => {}
            },
        }
    }
    if next(2) == 0 && request.sum == Sum::Whole {
        if packet.len() > 34 && packet[12..14] == [8, 0] {
            sum_header(&mut packet);
        }
        if let Some((_, _, udp)) = datagram(&packet).filter(|(_, _, udp)| udp.len() >= 8) {
            let at = udp.as_ptr() as usize - packet.as_ptr() as usize;
            packet[at + 6..at + 8].fill(0);
            let whole = match !sum_all(&packet) {
                0 => 0xffff,
                sum => sum,
            };
            packet[at + 6..at + 8].copy_from_slice(&whole.to_be_bytes());
        }
    }
    packet
}

/// Returns source, destination and the bytes of the UDP datagram, if it is one that is read.
fn datagram(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let ip = packet.get(14..)?;
    let word = |at: usize| Some(usize::from(u16::from_be_bytes([*ip.get(at)?, *ip.get(at + 1)?])));
    let address = |at: usize, bytes: usize| -> Option<IpAddr> {
        let bytes = ip.get(at..at + bytes)?;
        match bytes.len() {
            4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
            _ => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
        }
    };
    match packet.get(12..14)? {
        [8, 0] => {
            let is_plain = ip.first() == Some(&0x45) && word(6)? & !0x4000 == 0 && *ip.get(9)? == 17;
            let whole = ip.get(20..word(2)?)?;
            (is_plain && ones(&ip[..20]) == 0xffff).then_some((address(12, 4)?, address(16, 4)?, whole))
        }
        [0x86, 0xdd] => {
            let whole = ip.get(40..40 + word(4)?)?;
            (ip[0] >> 4 == 6 && ip[6] == 17).then_some((address(8, 16)?, address(24, 16)?, whole))
        }
        _ => None,
    }
}

fn pseudo(packet: &[u8]) -> Option<Vec<u8>> {
    let (_, _, udp) = datagram(packet)?;
    let addresses = if packet[12] == 8 { &packet[26..34] } else { &packet[22..54] };
    Some([addresses, &[0, 17], udp.get(4..6)?].concat())
}

/// Returns the sum of a datagram with its pseudo-header, as it is.
fn sum_all(packet: &[u8]) -> u16 {
    let (Some(pseudo), Some((_, _, udp))) = (pseudo(packet), datagram(packet)) else { return 0 };
    ones(&[&pseudo[..], udp].concat())
}

/// Returns the sum of an answer: 0xffff if its checksum is right.
pub(crate) fn sum(packet: &[u8]) -> u16 {
    sum_all(packet)
}

/// Returns whether the checksum is that of the pseudo-header alone.
pub(crate) fn is_partial(packet: &[u8]) -> bool {
    let (Some(pseudo), Some((_, _, udp))) = (pseudo(packet), datagram(packet)) else { return false };
    udp[6..8] == ones(&pseudo).to_be_bytes() && sum_all(packet) != 0xffff
}

/// Returns the text that answers a packet, if one does.
pub(crate) fn answer(packet: &[u8], items: &[Item<'_>]) -> Option<Vec<u8>> {
    let (from, to, udp) = datagram(packet)?;
    if packet[..6] != SERVER_MAC || packet[6] & 1 == 1 || packet.len() > 373 {
        return None;
    }
    let asks = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let [a, b, c, last] = from.octets();
            to.octets() == [10, 77, 0, 1] && [a, b, c] == [10, 77, 0] && !matches!(last, 0 | 1 | 255)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let own: [u16; 8] = [0xfd77, 0, 0, 0, 0, 0, 0, 1];
            to.segments() == own && from.segments() != own && from.segments()[..4] == own[..4]
        }
        _ => return None,
    };
    let word = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    let is_whole = udp.len() >= 16 + 7 && usize::from(word(4)) == udp.len();
    if !asks || !is_whole || word(0) == 0 || word(2) != PORT || word(10) != 0 || word(12) > 1 {
        return None;
    }
    let is_summed = if word(6) == 0 { from.is_ipv4() } else { sum_all(packet) == 0xffff || is_partial(packet) };
    // A character a byte.
    let line: String = udp[16..].strip_suffix(b"\r\n")?.iter().map(|&byte| char::from(byte)).collect();
    if !is_summed || line.contains(|byte| byte < ' ') {
        return None;
    }
    let words: Vec<&str> = line.split(' ').collect();
    let item = items.iter().find(|item| words.get(1).is_some_and(|key| key.as_bytes() == item.key))?;
    let text = match words[..] {
        ["get", _] => item.text(false),
        ["gets", _] => item.text(true),
        ["mg", key, ref flags @ ..] => meta(item, key, flags)?,
        _ => return None,
    };
    Some(text)
}

fn meta(item: &Item<'_>, key: &str, flags: &[&str]) -> Option<Vec<u8>> {
    let has_value = flags.contains(&"v");
    let mut line = if has_value { format!("VA {}", item.value.len()) } else { "HD".to_owned() };
    for (at, &flag) in flags.iter().enumerate() {
        let is_twice = flags[..at].iter().any(|before| before.chars().next() == flag.chars().next());
        line += &match flag {
            _ if is_twice => return None,
            "v" | "q" => String::new(),
            "k" => format!(" k{key}"),
            "f" => format!(" f{}", item.flags),
            "c" => format!(" c{}", item.version),
            "s" => format!(" s{}", item.value.len()),
            "t" => " t-1".to_owned(),
            opaque if opaque.starts_with('O') && opaque.chars().count() <= 32 => format!(" {opaque}"),
            _ => return None,
        };
    }
    let value = if has_value { [item.value, b"\r\n"].concat() } else { Vec::new() };
    let line: Vec<u8> = line.chars().map(|byte| byte as u8).collect();
    (!flags.is_empty()).then(|| [&line[..], b"\r\n", &value].concat())
}
