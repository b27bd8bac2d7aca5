//! GETs in datagrams, a request at a time, and all else over TCP.
//!
//! A datagram may be lost. A GET without an answer has no effect; a change without one might have it at any time.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::{Client, Outcome, text::Text};
use crate::place::Place;
use crate::record::Transport;

/// How long an answer takes at most: a lost one is not waited for long.
const PATIENCE: Duration = Duration::from_millis(500);
/// Bytes before the text: the request's number, the datagram's, how many there are.
const FRAME: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct Datagrams {
    place: Place,
    text: Text,
    socket: Option<UdpSocket>,
    number: u16,
    /// The path of the operation: a datagram's from when it is sent.
    last: Transport,
}

impl Datagrams {
    /// Returns a client of the server that is at that place.
    pub fn new(place: Place) -> Self {
        let text = Text::new(place.clone());
        Self { place, text, socket: None, number: 0, last: Transport::Tcp }
    }

    /// Returns a socket for datagrams of the server, in the namespace of the clients if they have one.
    fn open(&self) -> io::Result<UdpSocket> {
        let missing = |_| io::ErrorKind::NotConnected;
        let address = self.place.address(Transport::Udp.name()).ok_or(io::ErrorKind::NotConnected)?;
        let address: SocketAddr = address.parse().map_err(missing)?;
        let socket = match self.place.address("namespace") {
            Some(path) => in_namespace(&path)?,
            None => UdpSocket::bind((IpAddr::from(Ipv4Addr::UNSPECIFIED), 0))?,
        };
        socket.connect(address)?;
        Ok(socket)
    }

    /// Sends a request, and returns its answer.
    fn ask(&mut self, text: &str) -> io::Result<Vec<u8>> {
        if self.socket.is_none() {
            self.socket = Some(self.open()?);
        }
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        self.number = self.number.wrapping_add(1);
        let mut request = self.number.to_be_bytes().to_vec();
        request.extend_from_slice(b"\0\0\0\x01\0\0");
        request.extend_from_slice(text.as_bytes());
        socket.send(&request)?;
        let (until, mut parts) = (Instant::now() + PATIENCE, Vec::<Option<Vec<u8>>>::new());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            let mut datagram = [0; 2048];
            let bytes = socket.recv(&mut datagram)?;
            // An answer that comes late is that of an earlier request.
            if bytes < FRAME || datagram[..2] != self.number.to_be_bytes() {
                continue;
            }
            let number = |at: usize| usize::from(u16::from_be_bytes([datagram[at], datagram[at + 1]]));
            parts.resize(number(4).max(1), None);
            if let Some(part) = parts.get_mut(number(2)) {
                *part = Some(datagram[FRAME..bytes].to_vec());
            }
            if parts.iter().all(Option::is_some) {
                return Ok(parts.into_iter().flatten().flatten().collect());
            }
        }
    }
}

#[cfg(feature = "bpf")]
fn in_namespace(path: &str) -> io::Result<UdpSocket> {
    use rdmakv_bpf::pair::{CLIENT, within};
    within(std::fs::File::open(path)?, || UdpSocket::bind((CLIENT, 0)))?
}

#[cfg(not(feature = "bpf"))]
fn in_namespace(_: &str) -> io::Result<UdpSocket> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the outcome of a GET: of `gets`, or of `mg` with `v` and `c`.
fn found(answer: &[u8], value: &mut Vec<u8>) -> Outcome {
    let split = |line: &[u8]| {
        let end = line.windows(2).position(|pair| pair == b"\r\n")?;
        Some((String::from_utf8_lossy(&line[..end]).into_owned(), end + 2))
    };
    let Some((line, begin)) = split(answer) else { return Outcome::Nonsense("no line".into()) };
    if matches!(&line[..], "END" | "EN") && answer.len() == begin {
        return Outcome::Absent;
    }
    if line.starts_with("SERVER_ERROR out of memory") {
        return Outcome::NotDone;
    }
    let words: Vec<&str> = line.split(' ').collect();
    let (length, token, last) = match words[..] {
        ["VALUE", _, _, length, token] => (length, token, &b"\r\nEND\r\n"[..]),
        ["VA", length, token, ..] => (length, token.trim_start_matches('c'), &b"\r\n"[..]),
        _ => return Outcome::Nonsense(line),
    };
    let (Ok(length), Ok(token)) = (length.parse::<usize>(), token.parse()) else { return Outcome::Nonsense(line) };
    let end = begin.saturating_add(length);
    if answer.get(end..) != Some(last) {
        return Outcome::Nonsense(line);
    }
    value.clear();
    value.extend_from_slice(&answer[begin..end]);
    Outcome::Found { token }
}

impl Client for Datagrams {
    fn transport(&self) -> Transport {
        self.last
    }

    fn is_ready(&mut self) -> bool {
        // Whatever comes next. A change goes over TCP.
        self.last = Transport::Tcp;
        self.text.is_ready()
    }

    fn connections(&self) -> u64 {
        self.text.connections()
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Outcome {
        self.last = Transport::Udp;
        let key = String::from_utf8_lossy(key);
        // By turns.
        let text = if self.number.is_multiple_of(2) { format!("gets {key}\r\n") } else { format!("mg {key} v c\r\n") };
        let answer = self.ask(&text);
        answer.map_or(Outcome::Unknown, |answer| found(&answer, value))
    }

    fn set(&mut self, key: &[u8], value: &[u8], expiry: u8) -> Outcome {
        self.text.set(key, value, expiry)
    }

    fn add(&mut self, key: &[u8], value: &[u8], expiry: u8) -> Outcome {
        self.text.add(key, value, expiry)
    }

    fn cas(&mut self, key: &[u8], value: &[u8], expiry: u8, token: u64) -> Outcome {
        self.text.cas(key, value, expiry, token)
    }

    fn incr(&mut self, key: &[u8]) -> Outcome {
        self.text.incr(key)
    }

    fn delete(&mut self, key: &[u8]) -> Outcome {
        self.text.delete(key)
    }

    fn touch(&mut self, key: &[u8], expiry: u8) -> Outcome {
        self.text.touch(key, expiry)
    }

    fn flush(&mut self) -> Outcome {
        self.text.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let mut value = Vec::new();
        assert_eq!(found(b"VALUE k 7 3 99\r\na\r\n\r\nEND\r\n", &mut value), Outcome::Found { token: 99 });
        assert_eq!(value, b"a\r\n");
        assert_eq!(found(b"VA 3 c98 W\r\nb\r\n\r\n", &mut value), Outcome::Found { token: 98 });
        assert_eq!(value, b"b\r\n");
        assert_eq!(found(b"END\r\n", &mut value), Outcome::Absent);
        assert_eq!(found(b"EN\r\n", &mut value), Outcome::Absent);
        assert_eq!(found(b"SERVER_ERROR out of memory writing\r\n", &mut value), Outcome::NotDone);
        for wrong in [
            &b""[..],
            b"VALUE k 7 3\r\nabc\r\nEND\r\n",
            b"VALUE k 7 3 9\r\nab\r\nEND\r\n",
            b"END\r\nx",
            b"VA 3 c9\r\nab\r\n",
            b"HD c9\r\n",
        ] {
            assert!(matches!(found(wrong, &mut value), Outcome::Nonsense(_)));
        }
    }
}
