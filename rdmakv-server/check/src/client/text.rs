//! memcached's text protocol over TCP, a request at a time.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{Client, Outcome};
use crate::place::Place;
use crate::record::Transport;

/// The limit on an answer: a server that starts answers no client for a while.
const PATIENCE: Duration = Duration::from_secs(10);
const CONNECTING: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Text {
    place: Place,
    stream: Option<TcpStream>,
    connections: u64,
    request: Vec<u8>,
    input: Vec<u8>,
    /// How much of the input is done with.
    used: usize,
}

impl Text {
    /// Returns a client of the server that is at that place.
    pub fn new(place: Place) -> Self {
        Self { place, stream: None, connections: 0, request: Vec::new(), input: Vec::new(), used: 0 }
    }

    fn connect(&self) -> Option<TcpStream> {
        let address: SocketAddr = self.place.tcp()?.parse().ok()?;
        let stream = TcpStream::connect_timeout(&address, CONNECTING).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        Some(stream)
    }

    /// Returns the server's counters; none if it does not answer.
    pub fn statistics(&mut self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        self.line("stats\r\n");
        if self.is_ready() {
            self.ask(|client, first| {
                let mut line = first.to_owned();
                while line != "END" {
                    let mut words = line.split(' ').skip(1);
                    if let (Some(name), Some(Ok(count))) = (words.next(), words.next().map(str::parse)) {
                        all.push((name.to_owned(), count));
                    }
                    let end = client.find_line()?;
                    line = String::from_utf8_lossy(&client.input[client.used..end]).into_owned();
                    client.used = end + 2;
                }
                Ok(Outcome::Done)
            });
        }
        all
    }

    /// Sends the request and hands the answer's first line, without its end, to `understand`.
    fn ask(&mut self, understand: impl FnOnce(&mut Self, &str) -> io::Result<Outcome>) -> Outcome {
        self.input.drain(..self.used);
        self.used = 0;
        let done = self.exchange(understand);
        if done.is_err() || matches!(done, Ok(Outcome::Nonsense(_))) {
            self.stream = None;
            self.input.clear();
            self.used = 0;
        }
        done.unwrap_or(Outcome::Unknown)
    }

    fn exchange(&mut self, understand: impl FnOnce(&mut Self, &str) -> io::Result<Outcome>) -> io::Result<Outcome> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        stream.write_all(&self.request)?;
        let end = self.find_line()?;
        let line = String::from_utf8_lossy(&self.input[self.used..end]).into_owned();
        self.used = end + 2;
        understand(self, &line)
    }

    fn find_line(&mut self) -> io::Result<usize> {
        let mut from = self.used;
        loop {
            if let Some(at) = self.input[from..].windows(2).position(|pair| pair == b"\r\n") {
                return Ok(from + at);
            }
            from = self.input.len().saturating_sub(1).max(self.used);
            self.more()?;
        }
    }

    fn more(&mut self) -> io::Result<()> {
        const PIECE: usize = 128 << 10;
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let before = self.input.len();
        self.input.resize(before + PIECE, 0);
        let read = stream.read(&mut self.input[before..]);
        self.input.truncate(before + *read.as_ref().unwrap_or(&0));
        if read? == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn store(&mut self, command: &str, key: &[u8], value: &[u8], expiry: u8, token: Option<u64>) -> Outcome {
        let key = String::from_utf8_lossy(key);
        let token = token.map_or_else(String::new, |token| format!(" {token}"));
        self.request.clear();
        self.request.extend_from_slice(format!("{command} {key} 0 {expiry} {}{token}\r\n", value.len()).as_bytes());
        self.request.extend_from_slice(value);
        self.request.extend_from_slice(b"\r\n");
        self.ask(|_, line| Ok(plain(line)))
    }

    fn line(&mut self, text: &str) {
        self.request.clear();
        self.request.extend_from_slice(text.as_bytes());
    }

    /// After `VALUE key flags length token`.
    fn value(&mut self, line: &str, value: &mut Vec<u8>) -> io::Result<Outcome> {
        let nonsense = || Ok(Outcome::Nonsense(line.chars().take(200).collect()));
        let mut words = line.split(' ').skip(3);
        let mut number = || words.next()?.parse::<u64>().ok();
        let (Some(length), Some(token)) = (number(), number()) else { return nonsense() };
        let end = self.used + length as usize;
        while self.input.len() < end + 7 {
            self.more()?;
        }
        value.clear();
        value.extend_from_slice(&self.input[self.used..end]);
        let is_whole = &self.input[end..end + 7] == b"\r\nEND\r\n";
        self.used = end + 7;
        if is_whole { Ok(Outcome::Found { token }) } else { nonsense() }
    }
}

/// Returns the outcome of a one-line answer.
fn plain(line: &str) -> Outcome {
    match line {
        "STORED" | "DELETED" | "TOUCHED" | "OK" => Outcome::Done,
        "NOT_STORED" | "EXISTS" => Outcome::Refused,
        "NOT_FOUND" => Outcome::Absent,
        _ if line.starts_with("SERVER_ERROR out of memory") => Outcome::NotDone,
        _ => match line.parse() {
            Ok(number) => Outcome::Number(number),
            Err(_) => Outcome::Nonsense(line.chars().take(200).collect()),
        },
    }
}

impl Client for Text {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn is_ready(&mut self) -> bool {
        if self.stream.is_none() {
            self.stream = self.connect();
            self.connections += u64::from(self.stream.is_some());
        }
        self.stream.is_some()
    }

    fn connections(&self) -> u64 {
        self.connections
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Outcome {
        self.line(&format!("gets {}\r\n", String::from_utf8_lossy(key)));
        self.ask(|client, line| match line {
            "END" => Ok(Outcome::Absent),
            _ if line.starts_with("SERVER_ERROR out of memory") => Ok(Outcome::NotDone),
            _ => client.value(line, value),
        })
    }

    fn set(&mut self, key: &[u8], value: &[u8], expiry: u8) -> Outcome {
        self.store("set", key, value, expiry, None)
    }

    fn add(&mut self, key: &[u8], value: &[u8], expiry: u8) -> Outcome {
        self.store("add", key, value, expiry, None)
    }

    fn cas(&mut self, key: &[u8], value: &[u8], expiry: u8, token: u64) -> Outcome {
        self.store("cas", key, value, expiry, Some(token))
    }

    fn incr(&mut self, key: &[u8]) -> Outcome {
        self.line(&format!("incr {} 1\r\n", String::from_utf8_lossy(key)));
        self.ask(|_, line| Ok(plain(line)))
    }

    fn delete(&mut self, key: &[u8]) -> Outcome {
        self.line(&format!("delete {}\r\n", String::from_utf8_lossy(key)));
        self.ask(|_, line| Ok(plain(line)))
    }

    fn touch(&mut self, key: &[u8], expiry: u8) -> Outcome {
        self.line(&format!("touch {} {expiry}\r\n", String::from_utf8_lossy(key)));
        self.ask(|_, line| Ok(plain(line)))
    }

    fn flush(&mut self) -> Outcome {
        self.line("flush_all\r\n");
        self.ask(|_, line| Ok(plain(line)))
    }
}
