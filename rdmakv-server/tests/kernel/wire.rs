//! A server and clients at the two ends of a pair of interfaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use rdmakv_bpf::pair::{self, Pair};

use crate::common::{PATIENCE, Server};

pub(crate) use rdmakv_bpf::pair::{INTERFACE as HERE, OTHER as THERE, SERVER as ADDRESS};

pub(crate) const PORT: u16 = 11211;
/// How long an answer takes at most. A busy machine loses some.
const ANSWER: Duration = Duration::from_millis(500);
const TRIES: usize = 10;

/// The pair. It ends with this.
#[derive(Debug)]
pub(crate) struct Wire(Pair);

/// Runs a command, which must succeed; returns what it prints.
pub(crate) fn run(line: &str) -> String {
    pair::run(line).unwrap()
}

impl Wire {
    /// Runs a test in the namespace of the server. Without capabilities or tools it reports that it is skipped, and why.
    pub(crate) fn run(test: impl FnOnce(&Self) + Send) {
        match Pair::lacks() {
            Some(why) => println!("SKIPPED: the server's GETs in the kernel: {why}"),
            None => {
                let wire = Self(Pair::new().unwrap());
                wire.0.here(|| test(&wire)).unwrap();
            }
        }
    }

    /// Starts a server that answers in the kernel.
    pub(crate) fn server(&self, more: &[&str]) -> Server {
        let xdp = format!("--xdp={HERE}");
        Server::start(&[&["-l", ADDRESS, "-p", "11211", "-U", "11211", &xdp], more].concat())
    }

    pub(crate) fn client(&self) -> Client {
        self.client_of(PORT)
    }

    pub(crate) fn client_of(&self, port: u16) -> Client {
        self.client_at(ADDRESS, port)
    }

    /// Returns the path of the clients' namespace.
    pub(crate) fn path(&self) -> String {
        self.0.path()
    }

    /// Runs a command, which must succeed, where clients are; returns what it prints.
    pub(crate) fn run_there(&self, line: &str) -> String {
        self.0.there(|| run(line)).unwrap()
    }

    /// Returns a client of the server at this address.
    pub(crate) fn client_at(&self, address: &str, port: u16) -> Client {
        let server: IpAddr = address.parse().unwrap();
        let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let client = self.0.there(|| {
            let socket = UdpSocket::bind((any, 0)).unwrap();
            socket.connect((server, port)).unwrap();
            socket.set_read_timeout(Some(ANSWER)).unwrap();
            Client { socket, number: 0 }
        });
        client.unwrap()
    }
}

/// A client that sends datagrams.
#[derive(Debug)]
pub(crate) struct Client {
    socket: UdpSocket,
    number: u16,
}

impl Client {
    /// Returns the answer, or none if none comes.
    pub(crate) fn ask_once(&mut self, text: &str) -> Option<String> {
        self.number = self.number.wrapping_add(1);
        let mut request = self.number.to_be_bytes().to_vec();
        request.extend_from_slice(b"\0\0\0\x01\0\0");
        request.extend_from_slice(text.as_bytes());
        self.socket.send(&request).unwrap();
        let mut parts = std::collections::BTreeMap::new();
        loop {
            let mut datagram = [0; 2048];
            let bytes = self.socket.recv(&mut datagram).ok()?;
            // An answer that came late is not this one's.
            if datagram[..2] != self.number.to_be_bytes() {
                continue;
            }
            parts.insert(datagram[3], datagram[8..bytes].to_vec());
            if parts.len() >= usize::from(datagram[5]) {
                return Some(String::from_utf8(parts.into_values().flatten().collect()).unwrap());
            }
        }
    }

    /// Returns the answer. A datagram may be lost; not all of them.
    pub(crate) fn ask(&mut self, text: &str) -> String {
        let answer = (0..TRIES).find_map(|_| self.ask_once(text));
        answer.unwrap_or_else(|| panic!("no answer to {text:?} in {:?}", ANSWER * TRIES as u32))
    }

    pub(crate) fn get(&mut self, key: &str) -> String {
        self.ask(&format!("get {key}\r\n"))
    }
}

/// Sends requests over TCP and a last one whose answer is known; returns what comes before that.
pub(crate) fn tcp(server: &Server, request: &[u8]) -> String {
    const LAST: &[u8] = b"MN\r\n";
    let mut stream = server.connect();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = request.to_vec();
    all.extend_from_slice(b"mn\r\n");
    std::io::Write::write_all(&mut stream, &all).unwrap();
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    while !text.ends_with(LAST) {
        let read = std::io::Read::read(&mut stream, &mut piece).unwrap();
        assert!(read > 0, "the connection ends: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&piece[..read]);
    }
    text.truncate(text.len() - LAST.len());
    String::from_utf8(text).unwrap()
}
