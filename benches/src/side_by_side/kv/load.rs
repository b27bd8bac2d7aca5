//! A load: connections that each ask for one thing at a time, and the answers' times.
//!
//! One thread, so that it fits onto one CPU: it sends on every connection, then takes the answers in the same order and
//! sends the next request as soon as it has one. Answers have known lengths, and each is compared to what it has to be
//! where it begins and ends.

use super::client::Client;
use super::transport::{Address, Stream};
use crate::side_by_side::remote::Outcome;
use hdrhistogram::Histogram;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// The mix of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mix {
    /// Bytes of a value.
    pub(super) value: usize,
    /// A SET after so many GETs; none if 0.
    pub(super) gets_a_set: u64,
    /// Values; as many as are useful, unless it is said.
    pub(super) pairs: Option<u32>,
    /// Keys that are asked for at once; 1 for the usual load.
    pub(super) at_once: usize,
    /// Connections; 1 where several keys are asked for at once.
    pub(super) connections: usize,
}

impl Mix {
    /// The paper's: so many values, which are only read.
    pub(super) fn reading(value: usize, pairs: u32) -> Self {
        Self { value, gets_a_set: 0, pairs: Some(pairs), at_once: 1, connections: CONNECTIONS }
    }

    pub(super) fn keys(&self) -> u32 {
        self.pairs.unwrap_or((WORKING_SET.0 / self.value.max(1)).clamp(1, WORKING_SET.1) as u32)
    }
}

/// Connections at once.
pub(super) const CONNECTIONS: usize = 32;
/// Bytes of all values together at most, and their number at most.
const WORKING_SET: (usize, usize) = (48 << 20, 20_000);

/// One turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Requests of both kinds.
    pub(super) requests: u64,
    /// A request's time in nanoseconds: the median, one in a hundred, one in a thousand.
    pub(super) quantiles: [u64; 3],
    /// The turn's length.
    pub(super) nanos: u64,
}

/// Connections to a server that has all the values.
#[derive(Debug)]
pub(super) struct Load {
    streams: Vec<Box<dyn Stream>>,
    mix: Mix,
    keys: u32,
    random: u64,
    set: Vec<u8>,
    answer: Vec<u8>,
    sent: u64,
}

pub(super) fn key(number: u32) -> String {
    format!("key:{number:012}")
}

impl Load {
    /// Stores the values and connects.
    pub(super) fn begin(address: &Address, mix: Mix) -> Outcome<Self> {
        let keys = mix.keys();
        let mut client = Client::connect(address)?;
        let value = vec![b'v'; mix.value];
        for number in 0..keys {
            if !client.set(&key(number), &value)? {
                return Err(format!("a value of {} bytes was not stored", mix.value).into());
            }
        }
        let streams = (0..mix.connections).map(|_| address.connect()).collect::<Outcome<_>>()?;
        let mut set = format!("set {} 0 0 {}\r\n", key(0), mix.value).into_bytes();
        set.extend_from_slice(&value);
        set.extend_from_slice(b"\r\n");
        Ok(Self { streams, mix, keys, random: 1, set, answer: vec![0; (mix.value + 100) * mix.at_once], sent: 0 })
    }

    fn key(&mut self) -> String {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        key(((self.random >> 33) % u64::from(self.keys)) as u32)
    }

    /// Sends the next request on a connection; says how long its answer is, and whether it is a GET.
    fn send(&mut self, to: usize) -> Outcome<(usize, bool)> {
        let key = self.key();
        self.sent += 1;
        if self.mix.gets_a_set > 0 && self.sent.is_multiple_of(self.mix.gets_a_set + 1) {
            self.set[4..4 + key.len()].copy_from_slice(key.as_bytes());
            self.streams[to].write_all(&self.set)?;
            return Ok((b"STORED\r\n".len(), false));
        }
        let mut request = [0; 32];
        let length = {
            let mut rest = &mut request[..];
            write!(rest, "get {key}\r\n")?;
            32 - rest.len()
        };
        self.streams[to].write_all(&request[..length])?;
        let head = format!("VALUE {key} 0 {}\r\n", self.mix.value).len();
        Ok((head + self.mix.value + b"\r\nEND\r\n".len(), true))
    }

    /// Asks for several keys in one request, and takes the answer.
    fn many(&mut self) -> Outcome<()> {
        let mut request = b"get".to_vec();
        for _ in 0..self.mix.at_once {
            write!(request, " {}", self.key())?;
        }
        request.extend_from_slice(b"\r\n");
        self.streams[0].write_all(&request)?;
        let one = format!("VALUE {} 0 {}\r\n", key(0), self.mix.value).len() + self.mix.value + 2;
        let length = one * self.mix.at_once + b"END\r\n".len();
        self.streams[0].read_exact(&mut self.answer[..length])?;
        let good = self.answer[..length].chunks(one).take(self.mix.at_once).all(|one| one.starts_with(b"VALUE "));
        if good && self.answer[..length].ends_with(b"\r\nEND\r\n") {
            return Ok(());
        }
        Err(format!("answered {:?}", String::from_utf8_lossy(&self.answer[..length.min(60)])).into())
    }

    /// Asks so often, on one connection.
    pub(super) fn one_by_one(&mut self, count: usize) -> Outcome<()> {
        if self.mix.at_once > 1 {
            return (0..count / self.mix.at_once).try_for_each(|_| self.many());
        }
        for _ in 0..count {
            let (length, _) = self.send(0)?;
            self.streams[0].read_exact(&mut self.answer[..length])?;
        }
        Ok(())
    }

    /// Asks for so long.
    pub(super) fn turn(&mut self, whole: Duration) -> Outcome<Turn> {
        let mut times = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
        let mut requests = 0;
        let begun = Instant::now();
        while self.mix.at_once > 1 && begun.elapsed() < whole {
            let at = Instant::now();
            self.many()?;
            times.saturating_record(at.elapsed().as_nanos() as u64);
            requests += self.mix.at_once as u64;
        }
        let mut waiting = Vec::new();
        for to in 0..if self.mix.at_once > 1 { 0 } else { self.streams.len() } {
            let at = Instant::now();
            waiting.push((at, self.send(to)?));
        }
        let mut more = !waiting.is_empty();
        while more {
            more = begun.elapsed() < whole;
            for (to, asked) in waiting.iter_mut().enumerate() {
                let (at, (length, is_get)) = *asked;
                self.streams[to].read_exact(&mut self.answer[..length])?;
                let good = if is_get {
                    self.answer.starts_with(b"VALUE ") && self.answer[..length].ends_with(b"\r\nEND\r\n")
                } else {
                    self.answer.starts_with(b"STORED")
                };
                if !good {
                    return Err(
                        format!("answered {:?}", String::from_utf8_lossy(&self.answer[..length.min(60)])).into()
                    );
                }
                let now = Instant::now();
                times.saturating_record((now - at).as_nanos() as u64);
                requests += 1;
                if more {
                    *asked = (now, self.send(to)?);
                }
            }
        }
        let quantiles = [0.5, 0.99, 0.999].map(|quantile| times.value_at_quantile(quantile));
        Ok(Turn { requests, quantiles, nanos: begun.elapsed().as_nanos() as u64 })
    }
}
