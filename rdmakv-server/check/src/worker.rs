//! A client process: threads that ask the server for this and that, each with its journal, until they are told to stop or
//! are killed.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustc_hash::FxHashMap;

use crate::client::datagrams::Datagrams;
use crate::client::library::Library;
use crate::client::{Client, Outcome, text::Text};
use crate::clock;
use crate::history::{NEVER, Value};
use crate::journal::Journal;
use crate::keys::{EVERY, Keys, Kind};
use crate::place::Place;
use crate::record::{Answer, Record, Request, Transport};
use crate::values::{self, Lengths};

/// Answers to GET that a thread remembers for its next CAS.
const REMEMBERED: usize = 256;
/// How long a thread with an uneven load is busy, and which part of the time.
const BUSY: Duration = Duration::from_millis(1500);
const TURNS: u128 = 3;
/// The pause between its operations while it is not.
const IDLE: Duration = Duration::from_millis(50);
/// The pause between reads of a thread that only reads.
const BREATH: Duration = Duration::from_micros(20);

/// The habits of a thread.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Habits {
    /// The keys.
    #[command(flatten)]
    pub keys: Keys,
    /// How many of 100 operations are GETs, but for warm keys
    #[arg(long, default_value_t = 55, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..100))]
    pub gets: u32,
    /// How many of 1000 operations on warm keys are no GETs
    #[arg(long, default_value_t = 5, value_name = "PERMILLE", value_parser = clap::value_parser!(u32).range(0..1000))]
    pub warm_changes: u32,
    /// Threads of each process that do nothing but read warm keys, so that they rely on what they know
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub readers: u32,
    /// Large values only
    #[arg(long, conflicts_with = "small")]
    pub large: bool,
    /// Values of 1 KiB at most
    #[arg(long)]
    pub small: bool,
    /// Values of 20 KiB, all of the same length
    #[arg(long, conflicts_with_all = ["small", "large"])]
    pub equal: bool,
    /// How many operations there are for each flush_all; 0 is none at all
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    pub flush_every: u32,
    /// Seed of random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Habits {
    fn lengths(self) -> Lengths {
        match (self.large, self.small, self.equal) {
            (true, ..) => Lengths::Large,
            (_, true, _) => Lengths::Small,
            (.., true) => Lengths::Equal,
            _ => Lengths::Mixed,
        }
    }

    fn read(self, is_counter: bool, found: &[u8]) -> values::Read {
        if is_counter { values::read_counter(found) } else { values::read(found, self.lengths()) }
    }
}

/// One thread.
struct Worker {
    client: Box<dyn Client + Send>,
    journal: Journal,
    thread: usize,
    only_reads: bool,
    /// Whether it is busy at some times, and not at others.
    is_uneven: bool,
    habits: Habits,
    place: Place,
}

impl Worker {
    /// Works until it is told to stop, or its journal is full.
    fn run(mut self) {
        let mut random = Pcg64Mcg::seed_from_u64(self.habits.seed ^ (self.thread as u64) << 32);
        let (mut versions, mut connections) = (FxHashMap::default(), 0);
        let (mut value, mut found, mut missed) = (Vec::new(), Vec::new(), None);
        let began = Instant::now();
        while !self.place.is_stopping() && !self.journal.is_full() {
            if !self.client.is_ready() {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            if connections != self.client.connections() {
                connections = self.client.connections();
                // A server that was started anew counts its versions from the start.
                versions.clear();
            }
            let turn = began.elapsed().as_nanos() / BUSY.as_nanos() + self.thread as u128;
            if self.is_uneven && !turn.is_multiple_of(TURNS) {
                std::thread::sleep(IDLE);
            }
            let (key, request, expiry) = self.choose(&mut random, &versions, &mut missed);
            let answer = self.carry_out(key, request, expiry, (&mut value, &mut found), &mut versions);
            if self.only_reads {
                // The others' work is to be the larger part.
                std::thread::sleep(BREATH);
                continue;
            }
            let is_warm = self.habits.keys.kind(key) == Kind::Warm;
            missed = (is_warm && request == Request::Get && answer == Answer::Absent).then_some(key);
        }
    }

    fn choose(
        &self,
        random: &mut impl Rng,
        versions: &FxHashMap<u32, (u64, Value)>,
        missed: &mut Option<u32>,
    ) -> (u32, Request, u8) {
        let (habits, keys) = (self.habits, self.habits.keys);
        if self.only_reads {
            return (random.random_range(keys.of(Kind::Warm)), Request::Get, 0);
        }
        if habits.flush_every != 0 && random.random_ratio(1, habits.flush_every) {
            return (EVERY, Request::Flush, 0);
        }
        let kind = match random.random_range(0..100) {
            0..25 => Kind::Hot,
            25..33 => Kind::Counter,
            33..75 => Kind::Warm,
            _ => Kind::Cold,
        };
        let key = random.random_range(keys.of(kind));
        let expiry = if random.random_ratio(1, 8) { random.random_range(1..4) } else { 0 };
        let version = values::version(self.thread, self.journal.lines());
        // As a program does that caches data from elsewhere.
        if let Some(key) = missed.take_if(|_| random.random_ratio(1, 2)) {
            return (key, Request::Add(version), expiry);
        }
        let is_get = match kind {
            Kind::Warm => random.random_range(0..1000) < 1000 - habits.warm_changes,
            _ => random.random_range(0..100) < habits.gets,
        };
        let request = match random.random_range(0..100) {
            _ if is_get => Request::Get,
            chance if kind == Kind::Counter => match chance {
                0..70 => Request::Incr,
                70..80 => Request::Delete,
                80..95 => Request::Add(values::counter(version)),
                _ => Request::Set(values::counter(version)),
            },
            0..45 => Request::Set(version),
            45..65 => match versions.get(&key) {
                Some(&(_, from)) => Request::Cas { from, to: version },
                None => Request::Get,
            },
            65..77 => Request::Add(version),
            77..89 => Request::Delete,
            _ => Request::Touch,
        };
        (key, request, expiry)
    }

    fn carry_out(
        &mut self,
        key: u32,
        request: Request,
        expiry: u8,
        (value, found): (&mut Vec<u8>, &mut Vec<u8>),
        versions: &mut FxHashMap<u32, (u64, Value)>,
    ) -> Answer {
        let is_counter = self.habits.keys.is_counter(key);
        let name = self.habits.keys.name(key);
        let name = name.as_bytes();
        match request {
            Request::Set(new) | Request::Add(new) if is_counter => {
                value.clear();
                value.extend_from_slice(itoa::Buffer::new().format(new).as_bytes());
            }
            Request::Set(new) | Request::Add(new) | Request::Cas { to: new, .. } => {
                values::write(new, self.habits.lengths(), value)
            }
            _ => {}
        }
        let (transport, answer) = (self.client.transport(), Answer::Unknown);
        let mut record = Record { begin: 0, end: NEVER, key, request, answer, expiry, transport, one_sided: false };
        record.begin = clock::now();
        let line = self.journal.begin(&record);
        let client = &mut self.client;
        let outcome = match request {
            Request::Get => client.get(name, found),
            Request::Set(_) => client.set(name, value, expiry),
            Request::Add(_) => client.add(name, value, expiry),
            Request::Cas { .. } => {
                let token = versions.remove(&key).map_or(0, |(token, _)| token);
                client.cas(name, value, expiry, token)
            }
            Request::Incr => client.incr(name),
            Request::Delete => client.delete(name),
            Request::Touch => client.touch(name, expiry),
            Request::Flush => client.flush(),
        };
        record.end = clock::now();
        record.one_sided = request == Request::Get && client.was_one_sided();
        record.transport = client.transport();
        record.answer = match outcome {
            Outcome::Found { token } => match self.habits.read(is_counter, found) {
                values::Read::Whole(seen) => {
                    if versions.len() >= REMEMBERED {
                        versions.clear();
                    }
                    versions.insert(key, (token, seen));
                    Answer::Value(seen)
                }
                values::Read::Torn(one, other) => Answer::Torn(one, other),
            },
            Outcome::Number(number) => Answer::Value(number),
            Outcome::Done => Answer::Done,
            Outcome::Refused => Answer::Refused,
            Outcome::Absent => Answer::Absent,
            Outcome::NotDone => Answer::NotDone,
            Outcome::Unknown => Answer::Unknown,
            Outcome::Nonsense(line) => {
                eprintln!("{request:?} {}: no sense: {line}", self.habits.keys.name(key));
                self.journal.note_nonsense();
                Answer::Unknown
            }
        };
        self.journal.end(line, &record);
        record.answer
    }
}

/// Is a client process: these threads, each with the next of the transports, until all are told to stop.
///
/// # Errors
///
/// A journal cannot be made.
pub fn work(
    directory: &Path,
    threads: Range<usize>,
    lines: usize,
    transports: &[Transport],
    habits: Habits,
) -> io::Result<()> {
    let place = Place::open(directory)?;
    let mut started = Vec::new();
    let first = threads.start;
    for (thread, transport) in threads.zip(transports.iter().cycle()) {
        let only_reads = thread - first < habits.readers as usize;
        let (place, journal) = (place.clone(), place.new_journal(thread, lines)?);
        let client = connect(*transport, &place)?;
        let is_uneven = *transport == Transport::Hybrid;
        let worker = Worker { client, journal, thread, only_reads, is_uneven, habits, place };
        started.push(std::thread::Builder::new().spawn(move || worker.run())?);
    }
    for thread in started {
        thread.join().map_err(|_| io::Error::other("a thread panicked"))?;
    }
    Ok(())
}

fn connect(transport: Transport, place: &Place) -> io::Result<Box<dyn Client + Send>> {
    match transport {
        Transport::Tcp => Ok(Box::new(Text::new(place.clone()))),
        Transport::Udp => Ok(Box::new(Datagrams::new(place.clone()))),
        Transport::Socket | Transport::Shm | Transport::Iwarp | Transport::Datagrams | Transport::Hybrid => {
            Ok(Box::new(Library::new(place.clone(), transport)))
        }
    }
}
