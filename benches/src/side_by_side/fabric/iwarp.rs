//! iWARP in user space beside the TCP under it: a read's round trip and the throughput of large writes.
//!
//! A ping of the plain ping-pong is as long as a read request on the wire, and its pong as the response. The plain copy sends
//! 1 MiB after the other to a thread that reads them into memory, and ends with an answer of a byte. The writes keep four on
//! their way, and end with a read of a byte. The application at the other end sleeps in both.
#![expect(unsafe_code, reason = "posts local memory by address")]

use super::goal;
use super::interleave::turns;
use crate::pin;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::Setting;
use crate::side_by_side::remote::{Far, Outcome, serve};
use crate::side_by_side::report::{Row, Unit};
use frrwp::fabric::iwarp::{self, IwarpDomain, IwarpEndpoint, IwarpKey, IwarpListener, IwarpOptions};
use frrwp::fabric::{Completion, Domain, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::registrar::Registrar;
use mrrc::{Access, PageRange};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Above the table.
pub const TITLE: &str = "iwarp: beside plain TCP with the same bytes; CPU is that of a whole process, each operation";

const SMALL: usize = 1 << 10;
const LARGE: usize = 1 << 20;
/// Large writes on their way at a time.
const AHEAD: usize = 4;
/// A read request on the wire, and its response without the payload.
const REQUEST: usize = 2 + 18 + 28 + 4;
const RESPONSE: usize = 2 + 14 + 4;

/// `iwarp/crc`, `iwarp/no-crc`.
pub fn name(checksums: bool) -> &'static str {
    if checksums { "iwarp/crc" } else { "iwarp/no-crc" }
}

/// Measures reads and writes, with or without CRCs.
///
/// # Errors
/// The error of the provider, a socket, or the other process.
pub fn measure(setting: &Setting, checksums: bool) -> Outcome<Vec<Row>> {
    pin::pin(setting.near)?;
    let mut far = Far::start(setting.far, &["iwarp", name(checksums)])?;
    let (iwarp, tcp) = far.address.split_once(' ').ok_or("the other process says no two addresses")?;
    let mut plain = Plain::new(tcp)?;
    let mut iwarp = Iwarp::new(iwarp, checksums)?;
    let (small, large) = if setting.quick { (20, 4) } else { (1000, 64) };
    let [pings, reads] = turns(
        setting,
        &mut far,
        small,
        [&mut |operations| plain.pings(operations), &mut |operations| iwarp.reads(operations)],
    )?;
    let [copies, writes] = turns(
        setting,
        &mut far,
        large,
        [&mut |operations| plain.copies(operations), &mut |operations| iwarp.writes(operations)],
    )?;
    let name = name(checksums);
    let row = |what: &str, ours, peer| Row::new(format!("{name}/{what}"), ours, Some(peer), Unit::Nanos);
    let median = |figure: Figure| figure.median.unwrap_or(f64::NAN);
    let (read, ping) = (reads.figure(|turn| turn.time), pings.figure(|turn| turn.time));
    let trips = median(read) / median(ping);
    let (write, copy) = (writes.figure(|turn| turn.time), copies.figure(|turn| turn.time));
    let pace = median(copy) / median(write);
    Ok(vec![
        row("read/1KiB", read, ping).note(goal("1.3 x", trips, trips <= 1.3)),
        row("read/1KiB/cpu/near", reads.figure(|turn| turn.near), pings.figure(|turn| turn.near)),
        row("read/1KiB/cpu/far", reads.figure(|turn| turn.far), pings.figure(|turn| turn.far)),
        Row::new(
            format!("{name}/write/1MiB"),
            write.rate(LARGE as f64),
            Some(copy.rate(LARGE as f64)),
            Unit::Gigabytes,
        )
        .note(goal("0.8 x", pace, pace >= 0.8)),
        row("write/1MiB/cpu/near", writes.figure(|turn| turn.near), copies.figure(|turn| turn.near)),
        row("write/1MiB/cpu/far", writes.figure(|turn| turn.far), copies.figure(|turn| turn.far)),
    ])
}

/// Plain sockets.
struct Plain {
    ping: TcpStream,
    copy: TcpStream,
    bytes: Vec<u8>,
}

impl Plain {
    fn new(address: &str) -> Outcome<Self> {
        let connect = |kind| -> Outcome<TcpStream> {
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.write_all(&[kind])?;
            Ok(stream)
        };
        Ok(Self { ping: connect(PING)?, copy: connect(COPY)?, bytes: vec![0; LARGE] })
    }

    fn pings(&mut self, pings: usize) -> Outcome<()> {
        let mut response = [0; RESPONSE + SMALL];
        for _ in 0..pings {
            self.ping.write_all(&[0; REQUEST])?;
            self.ping.read_exact(&mut response)?;
        }
        Ok(())
    }

    fn copies(&mut self, copies: usize) -> Outcome<()> {
        for copy in 0..copies {
            self.bytes[0] = u8::from(copy + 1 == copies);
            self.copy.write_all(&self.bytes)?;
        }
        Ok(self.copy.read_exact(&mut [0])?)
    }
}

/// A connection, and memory at both ends.
struct Iwarp {
    domain: IwarpDomain,
    endpoint: IwarpEndpoint,
    memory: Vec<u8>,
    key: IwarpKey,
    /// The other end's memory, [`LARGE`].
    all: Segment,
    message: Box<[u8; MESSAGE]>,
}

impl Iwarp {
    fn new(address: &str, checksums: bool) -> Outcome<Self> {
        let domain = IwarpDomain::new(IwarpOptions { checksums, ..IwarpOptions::default() })?;
        let mut endpoint = iwarp::connect(&domain, address, 16)?;
        let (memory, key) = registered(&domain, Access::LOCAL)?;
        let mut message = Box::new([0; MESSAGE]);
        endpoint.send(b"where?")?;
        let all = loop {
            match endpoint.poll(&mut message) {
                Some(Completion::Message { length: 12 }) => {
                    let address = u64::from_le_bytes(message[..8].try_into()?);
                    let key = u32::from_le_bytes(message[8..12].try_into()?);
                    break Segment { address, length: LARGE as u64, key };
                }
                Some(other) => return Err(format!("the other process: {other:?}").into()),
                None => endpoint.wait(None),
            }
        };
        Ok(Self { domain, endpoint, memory, key, all, message })
    }

    /// Posts so much, so many at a time, and waits for the last.
    fn run(&mut self, count: usize, length: usize, ahead: usize, read: bool) -> Outcome<()> {
        let segment = Segment { length: length as u64, ..self.all };
        let (mut posted, mut done) = (0, 0);
        while done < count {
            while posted < count && posted - done < ahead {
                let local = [Local { address: self.memory.as_mut_ptr(), length, registration: &self.key }];
                // SAFETY: the memory lives as long as the connection, and no reference leads to it.
                unsafe {
                    if read {
                        self.endpoint.read(0, &local, segment)?;
                    } else {
                        self.endpoint.write(0, &local, segment, None)?;
                    }
                }
                posted += 1;
            }
            match self.endpoint.poll(&mut self.message) {
                Some(Completion::Done { succeeded: true, .. }) => done += 1,
                Some(other) => return Err(format!("{other:?}: {:?}", self.endpoint.why()).into()),
                None => self.endpoint.wait(None),
            }
        }
        Ok(())
    }

    fn reads(&mut self, reads: usize) -> Outcome<()> {
        self.run(reads, SMALL, 1, true)
    }

    fn writes(&mut self, writes: usize) -> Outcome<()> {
        self.run(writes, LARGE, AHEAD, false)?;
        // The bytes are there when what follows them is answered.
        self.run(1, 1, 1, true)
    }
}

impl Drop for Iwarp {
    /// The memory is used until the connection has come to its end.
    fn drop(&mut self) {
        self.endpoint.disconnect();
        while self.endpoint.poll(&mut self.message) != Some(Completion::Flushed) {
            self.endpoint.wait(None);
        }
        debug_assert!(self.domain.registrations() > 0);
    }
}

fn registered(domain: &IwarpDomain, access: Access) -> Outcome<(Vec<u8>, IwarpKey)> {
    let memory = vec![1; LARGE];
    let range = PageRange::of_bytes(memory.as_ptr() as u64, LARGE as u64)?;
    let key = domain.register(range, access)?;
    Ok((memory, key))
}

/// The purpose of a plain connection, as its first byte.
const PING: u8 = b'p';
const COPY: u8 = b'c';

/// Runs the process that serves its memory to reads and writes, and the plain sockets' other end.
pub(in crate::side_by_side) fn far(arguments: &[&str]) -> Outcome<()> {
    let checksums = arguments == [name(true)];
    let plain = TcpListener::bind("127.0.0.1:0")?;
    let tcp = plain.local_addr()?;
    let domain = IwarpDomain::new(IwarpOptions { checksums, ..IwarpOptions::default() })?;
    let mut listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0")?;
    let address = format!("iwarp:{} {tcp}", listener.address()?);
    std::thread::spawn(move || {
        for stream in plain.incoming().flatten() {
            // A closed connection is no longer answered.
            std::thread::spawn(move || answer(stream));
        }
    });
    let rights = Access::LOCAL | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let (memory, key) = registered(&domain, rights)?;
    let all = domain.remote(&key, memory.as_ptr(), LARGE);
    // It serves only the process that started it, and ends with it.
    std::thread::spawn(move || {
        let offered = (|| -> Outcome<IwarpEndpoint> {
            let mut endpoint = listener.accept(16, None)?;
            let mut offer = [0; 12];
            offer[..8].copy_from_slice(&all.address.to_le_bytes());
            offer[8..].copy_from_slice(&all.key.to_le_bytes());
            endpoint.send(&offer)?;
            Ok(endpoint)
        })();
        match offered {
            // Its provider serves it from now on.
            Ok(endpoint) => std::mem::forget(endpoint),
            Err(error) => eprintln!("the process at the other end: {error}"),
        }
    });
    serve(&address)
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    if kind[0] == PING {
        let (mut request, response) = ([0; REQUEST], [1; RESPONSE + SMALL]);
        loop {
            stream.read_exact(&mut request)?;
            stream.write_all(&response)?;
        }
    }
    let mut bytes = vec![0; LARGE];
    loop {
        stream.read_exact(&mut bytes)?;
        // The last of a turn asks for an answer.
        if bytes[0] == 1 {
            stream.write_all(&[1])?;
        }
    }
}
