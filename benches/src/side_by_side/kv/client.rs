//! A client that asks one thing at a time, in memcached's text protocol.

use super::transport::{Address, Stream};
use crate::side_by_side::remote::Outcome;
use std::io::{BufRead, BufReader, Read, Write};

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    stream: BufReader<Box<dyn Stream>>,
    line: Vec<u8>,
    request: Vec<u8>,
}

impl Client {
    pub(super) fn connect(address: &Address) -> Outcome<Self> {
        let stream = BufReader::with_capacity(256 << 10, address.connect()?);
        Ok(Self { stream, line: Vec::new(), request: Vec::new() })
    }

    fn line(&mut self) -> Outcome<&[u8]> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        self.line.strip_suffix(b"\r\n").ok_or_else(|| "the server ended the connection".into())
    }

    /// Returns whether the key is there; its value is read and dropped.
    pub(super) fn get(&mut self, key: &str) -> Outcome<bool> {
        self.request.clear();
        write!(self.request, "get {key}\r\n")?;
        self.stream.get_mut().write_all(&self.request)?;
        let line = self.line()?;
        if line == b"END" {
            return Ok(false);
        }
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let [b"VALUE", _, _, length] = words[..] else {
            return Err(format!("get {key}: {}", String::from_utf8_lossy(line)).into());
        };
        let length: u64 = std::str::from_utf8(length)?.parse()?;
        let value = length + 2;
        let read = std::io::copy(&mut self.stream.by_ref().take(value), &mut std::io::sink())?;
        if read != value || self.line()? != b"END" {
            return Err(format!("get {key}: the value is cut").into());
        }
        Ok(true)
    }

    /// Returns whether the server took it.
    pub(super) fn set(&mut self, key: &str, value: &[u8]) -> Outcome<bool> {
        self.request.clear();
        write!(self.request, "set {key} 0 0 {}\r\n", value.len())?;
        self.request.extend_from_slice(value);
        self.request.extend_from_slice(b"\r\n");
        self.stream.get_mut().write_all(&self.request)?;
        Ok(self.line()? == b"STORED")
    }

    /// Sends requests whose answers do not come.
    pub(super) fn send(&mut self, requests: &[u8]) -> Outcome<()> {
        Ok(self.stream.get_mut().write_all(requests)?)
    }

    /// Returns a number of `stats`.
    pub(super) fn stat(&mut self, name: &str) -> Outcome<u64> {
        self.stream.get_mut().write_all(b"stats\r\n")?;
        let mut found = None;
        loop {
            let line = String::from_utf8_lossy(self.line()?).into_owned();
            if line == "END" {
                break;
            }
            if let Some(rest) = line.strip_prefix("STAT ")
                && let Some((key, value)) = rest.split_once(' ')
                && key == name
            {
                found = Some(value.parse()?);
            }
        }
        found.ok_or_else(|| format!("stats has no {name}").into())
    }
}
