//! How iWARP in user space compares with the TCP under it: a read's round trip with a ping-pong of the same bytes, and the
//! throughput of large writes with a plain copy through a socket.
//!
//! ```text
//! cargo run --release -p frrwp --example iwarp-pace
//! ```
//!
//! Both ends are threads of this process, pinned to one core unless `--free`; the two sides of a comparison take turns, and
//! medians of their rounds are printed, with the CPU time of both ends. Throughputs depend on TCP's congestion control: one that
//! paces what it sends (bbr) lets them differ from run to run, on both sides of the comparison; reno does not.
#![allow(unsafe_code, reason = "memory is posted by address, and the process is pinned and asked for its times")]

use clap::Parser;
use frrwp::fabric::iwarp::{IwarpDomain, IwarpEndpoint, IwarpOptions};
use frrwp::fabric::{Completion, Domain, Endpoint, Local};
use frrwp::wire::MESSAGE;
use mrrc::registrar::Registrar;
use mrrc::{Access, PageRange};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const SMALL: usize = 1024;
const LARGE: usize = 1 << 20;
/// A read request on the wire, and its response without the payload.
const REQUEST: usize = 2 + 18 + 28 + 4;
const RESPONSE: usize = 2 + 14 + 4;

/// Measures iWARP against the TCP under it.
#[derive(Parser)]
struct Arguments {
    /// Rounds of each kind.
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Reads of a round.
    #[arg(long, default_value_t = 2000)]
    reads: usize,
    /// Large writes of a round.
    #[arg(long, default_value_t = 64)]
    writes: usize,
    /// Only with CRCs, or only without.
    #[arg(long)]
    checksums: Option<bool>,
    /// Does not pin to one core.
    #[arg(long)]
    free: bool,
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    if !arguments.free {
        pin();
    }
    for checksums in [false, true].into_iter().filter(|which| arguments.checksums.is_none_or(|only| only == *which)) {
        let iwarp = Iwarp::new(checksums)?;
        let mut plain = Plain::new()?;
        let mut iwarp = iwarp;
        let name = if checksums { "with CRCs" } else { "without CRCs" };
        let (one, other) = compare(arguments.rounds, || plain.trips(arguments.reads), || iwarp.reads(arguments.reads))?;
        let per = |sample: &Sample, things: usize| {
            (sample.time.as_secs_f64() * 1e6 / things as f64, sample.cpu.as_secs_f64() * 1e6 / things as f64)
        };
        let (tcp, tcp_cpu) = per(&one, arguments.reads);
        let (read, read_cpu) = per(&other, arguments.reads);
        println!(
            "1 KiB {name}: TCP ping-pong {tcp:.2} us ({tcp_cpu:.2} us CPU), iwarp read {read:.2} us ({read_cpu:.2} us CPU): {:.2} x",
            read / tcp
        );
        let (one, other) =
            compare(arguments.rounds, || plain.copies(arguments.writes), || iwarp.writes(arguments.writes))?;
        let (tcp, tcp_cpu) = per(&one, arguments.writes);
        let (write, write_cpu) = per(&other, arguments.writes);
        let rate = |micros: f64| LARGE as f64 / micros / 1e3;
        println!(
            "1 MiB {name}: socket copy {:.2} GB/s ({tcp_cpu:.0} us CPU each), iwarp write {:.2} GB/s ({write_cpu:.0} us CPU each): {:.2} x",
            rate(tcp),
            rate(write),
            tcp / write
        );
    }
    Ok(())
}

fn pin() {
    // SAFETY: a set of processors is plain bits, and the call takes its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        if libc::sched_setaffinity(0, size_of_val(&set), &set) != 0 {
            eprintln!("not pinned: {}", std::io::Error::last_os_error());
        }
    }
}

fn cpu() -> Duration {
    // SAFETY: the structure is plain numbers, and is written by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

struct Sample {
    time: Duration,
    cpu: Duration,
}

fn sample(work: &mut impl FnMut() -> Outcome<()>) -> Outcome<Sample> {
    let (start, before) = (Instant::now(), cpu());
    work()?;
    Ok(Sample { time: start.elapsed(), cpu: cpu().saturating_sub(before) })
}

/// Medians of rounds that take turns.
fn compare(
    rounds: usize,
    mut one: impl FnMut() -> Outcome<()>,
    mut other: impl FnMut() -> Outcome<()>,
) -> Outcome<(Sample, Sample)> {
    let mut samples = [Vec::new(), Vec::new()];
    one()?;
    other()?;
    for _ in 0..rounds {
        samples[0].push(sample(&mut one)?);
        samples[1].push(sample(&mut other)?);
    }
    let [one, other] = samples.map(|mut samples| {
        samples.sort_by_key(|sample| sample.time);
        samples.swap_remove(samples.len() / 2)
    });
    Ok((one, other))
}

/// Plain sockets: a thread that answers pings and swallows copies.
struct Plain {
    ping: TcpStream,
    copy: TcpStream,
    bytes: Vec<u8>,
}

impl Plain {
    fn new() -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let connect = || -> Outcome<(TcpStream, TcpStream)> {
            let near = TcpStream::connect(listener.local_addr()?)?;
            let far = listener.accept()?.0;
            near.set_nodelay(true)?;
            far.set_nodelay(true)?;
            Ok((near, far))
        };
        let (ping, mut pong) = connect()?;
        let (copy, mut sink) = connect()?;
        std::thread::spawn(move || {
            let mut request = [0; REQUEST];
            let response = vec![1; RESPONSE + SMALL];
            while pong.read_exact(&mut request).is_ok() && pong.write_all(&response).is_ok() {}
        });
        std::thread::spawn(move || {
            let mut bytes = vec![0; LARGE];
            while sink.read_exact(&mut bytes).is_ok() {
                // The last of a round asks for an answer.
                if bytes[0] == 1 && sink.write_all(&[1]).is_err() {
                    break;
                }
            }
        });
        Ok(Self { ping, copy, bytes: vec![0; LARGE] })
    }

    fn trips(&mut self, trips: usize) -> Outcome<()> {
        let mut response = [0; RESPONSE + SMALL];
        for _ in 0..trips {
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
        self.copy.read_exact(&mut [0])?;
        Ok(())
    }
}

struct Iwarp {
    domains: [IwarpDomain; 2],
    near: IwarpEndpoint,
    _far: IwarpEndpoint,
    memory: [Vec<u8>; 2],
    message: Box<[u8; MESSAGE]>,
}

impl Iwarp {
    fn new(checksums: bool) -> Outcome<Self> {
        let options = IwarpOptions { checksums, ..IwarpOptions::default() };
        let domains = [IwarpDomain::new(options)?, IwarpDomain::new(options)?];
        let mut listener = domains[1].listen("iwarp:127.0.0.1:0")?;
        let address = format!("iwarp:{}", listener.address()?);
        let accepting = std::thread::spawn(move || listener.accept(16, None));
        let near = domains[0].connect(&address, 16)?;
        let far = accepting.join().map_err(|_| "the accepting thread panicked")??;
        let memory = [vec![1; LARGE], vec![2; LARGE]];
        Ok(Self { domains, near, _far: far, memory, message: Box::new([0; MESSAGE]) })
    }

    /// Posts so much by the side's memory, and waits for the last.
    fn run(&mut self, count: usize, length: usize, ahead: usize, read: bool) -> Outcome<()> {
        let access = Access::LOCAL | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let [mine, theirs] = [0, 1].map(|side| (self.memory[side].as_mut_ptr(), &self.domains[side]));
        let range = |at: *mut u8| PageRange::of_bytes(at as u64, LARGE as u64);
        let key = mine.1.register(range(mine.0)?, access)?;
        let far = theirs.1.register(range(theirs.0)?, access)?;
        let segment = theirs.1.remote(&far, theirs.0, length);
        let (mut posted, mut done) = (0, 0);
        while done < count {
            while posted < count && posted - done < ahead {
                let local = Local { address: mine.0, length, registration: &key };
                // SAFETY: the memory lives as long as the connection, and nobody else uses it.
                unsafe {
                    if read {
                        self.near.read(0, &[local], segment)?;
                    } else {
                        self.near.write(0, &[local], segment, None)?;
                    }
                }
                posted += 1;
            }
            match self.near.poll(&mut self.message) {
                Some(Completion::Done { succeeded: true, .. }) => done += 1,
                Some(other) => return Err(format!("{other:?}: {:?}", self.near.why()).into()),
                None => self.near.wait(None),
            }
        }
        let registered = |domain: &IwarpDomain, at, registration| -> Outcome<()> {
            let range = range(at)?;
            Ok(domain.deregister(&mut vec![mrrc::registrar::Registered { range, access, registration }])?)
        };
        if !read {
            // The bytes are there when what follows them is answered.
            let local = Local { address: mine.0, length: 1, registration: &key };
            let segment = theirs.1.remote(&far, theirs.0, 1);
            // SAFETY: as above.
            unsafe { self.near.read(1, &[local], segment)? };
            while self.near.poll(&mut self.message).is_none() {
                self.near.wait(None);
            }
        }
        registered(mine.1, mine.0, key)?;
        registered(theirs.1, theirs.0, far)
    }

    fn reads(&mut self, reads: usize) -> Outcome<()> {
        self.run(reads, SMALL, 1, true)
    }

    fn writes(&mut self, writes: usize) -> Outcome<()> {
        self.run(writes, LARGE, 4, false)
    }
}
