//! A client of the run: it does operations one after another, and remembers what came of each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rdmakv_client::{Client, Cluster, Error, Options, Stored};

use super::NAME;
use super::plan::Plan;
use crate::clock;
use crate::history::{NEVER, Operation, Step, Value};
use crate::values::{self, Lengths};

/// Keys that are registers, and keys that are numbers.
pub(super) const KEYS: (usize, usize) = (24, 4);
/// Registers that change seldom, so that clients read them without servers: once in so many operations.
const QUIET: (usize, u32) = (8, 200);

/// The word between the run and its clients.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) stops: AtomicBool,
    /// Operations that were done.
    pub(super) done: AtomicU64,
    /// Reads without a server.
    pub(super) one_sided: AtomicU64,
}

/// An operation of a client.
#[derive(Debug)]
pub(super) struct Did {
    pub(super) key: usize,
    pub(super) name: &'static str,
    /// When it was called, and how long it took.
    pub(super) begin: u64,
    pub(super) time: u64,
    pub(super) end: Outcome,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Effect(Operation),
    /// It changed nothing, and tells nothing.
    Nothing,
    /// The key was absent.
    Lost,
    Strange(String),
}

pub(super) fn name(key: usize) -> String {
    if is_counter(key) { format!("counter-{key}") } else { format!("key-{key}") }
}

pub(super) fn is_counter(key: usize) -> bool {
    key >= KEYS.0
}

/// One client.
pub(super) struct Worker {
    client: Client,
    thread: usize,
    plan: Plan,
    pub(super) did: Vec<Did>,
    /// The versions that were read last.
    versions: BTreeMap<usize, (u64, Value)>,
}

impl Worker {
    pub(super) fn new(plan: &Plan, etcd: &str, thread: usize) -> Result<Self, Error> {
        let mut cluster = Cluster::new(etcd);
        cluster.name = NAME.to_owned();
        let client = Client::of_cluster(&cluster, Options::default())?;
        Ok(Self { client, thread, plan: plan.clone(), did: Vec::new(), versions: BTreeMap::new() })
    }

    pub(super) fn run(mut self, shared: &Shared) -> Vec<Did> {
        let mut random = Pcg64Mcg::seed_from_u64(self.plan.seed ^ (self.thread as u64) << 32);
        while !shared.stops.load(Ordering::Acquire) {
            self.act(&mut random);
            shared.done.fetch_add(1, Ordering::Relaxed);
        }
        shared.one_sided.fetch_add(self.client.counters().one_sided, Ordering::Relaxed);
        self.did
    }

    fn act(&mut self, random: &mut impl Rng) {
        let key = random.random_range(0..KEYS.0 + KEYS.1);
        let is_quiet = key < QUIET.0 && random.random_range(0..QUIET.1) != 0;
        match random.random_range(0..10) {
            _ if is_quiet => self.get(key),
            0..5 => self.get(key),
            _ if is_counter(key) => self.incr(key),
            5..8 => self.set(key),
            _ => match self.versions.remove(&key) {
                Some((version, from)) => self.cas(key, version, from),
                None => self.get(key),
            },
        }
    }

    pub(super) fn get(&mut self, key: usize) {
        let begin = clock::now();
        let got = self.client.get(name(key));
        let end = match got {
            Ok(Some(value)) => {
                let read =
                    if is_counter(key) { values::read_counter(&value) } else { values::read(&value, Lengths::Mixed) };
                match read {
                    values::Read::Whole(seen) => {
                        self.versions.insert(key, (value.version(), seen));
                        effect(begin, Step::Read(seen))
                    }
                    values::Read::Torn(..) => Outcome::Strange(format!("get {}: a torn value", name(key))),
                }
            }
            Ok(None) => Outcome::Lost,
            Err(error) => failed(error, begin, None),
        };
        self.note(key, "reads", begin, end);
    }

    pub(super) fn set(&mut self, key: usize) {
        let value = values::version(self.thread, self.did.len());
        let value = if is_counter(key) { values::counter(value) } else { value };
        let mut bytes = Vec::new();
        match is_counter(key) {
            true => bytes.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
            false => values::write(value, Lengths::Mixed, &mut bytes),
        }
        let begin = clock::now();
        let end = match self.client.set(name(key), &bytes, ()) {
            Ok(Stored::Yes(_)) => effect(begin, Step::Write(value)),
            Ok(other) => Outcome::Strange(format!("set {}: {other:?}", name(key))),
            Err(error) => failed(error, begin, Some(Step::Write(value))),
        };
        self.note(key, "sets", begin, end);
    }

    fn cas(&mut self, key: usize, version: u64, from: Value) {
        let to = values::version(self.thread, self.did.len());
        let mut bytes = Vec::new();
        values::write(to, Lengths::Mixed, &mut bytes);
        let begin = clock::now();
        let end = match self.client.cas(name(key), &bytes, version, ()) {
            Ok(Stored::Yes(_)) => effect(begin, Step::Swap { from, to }),
            Ok(Stored::Exists) => effect(begin, Step::Present { not: Some(from) }),
            Ok(Stored::NotFound) => Outcome::Lost,
            Ok(other) => Outcome::Strange(format!("cas {}: {other:?}", name(key))),
            Err(error) => failed(error, begin, Some(Step::Swap { from, to })),
        };
        self.note(key, "compared", begin, end);
    }

    fn incr(&mut self, key: usize) {
        let begin = clock::now();
        let end = match self.client.incr(name(key), 1) {
            Ok(Some(number)) => effect(begin, Step::Swap { from: number.wrapping_sub(1), to: number }),
            Ok(None) => Outcome::Lost,
            Err(error) => failed(error, begin, Some(Step::Count)),
        };
        self.note(key, "increments", begin, end);
    }

    fn note(&mut self, key: usize, name: &'static str, begin: u64, end: Outcome) {
        self.did.push(Did { key, name, begin, time: clock::now() - begin, end });
    }
}

fn effect(begin: u64, step: Step) -> Outcome {
    Outcome::Effect(Operation { begin, end: clock::now(), certain: true, step })
}

/// Returns the meaning of an error for an operation that changes the key in this way.
fn failed(error: Error, begin: u64, step: Option<Step>) -> Outcome {
    match (error, step) {
        (Error::NotServed { .. } | Error::TooFew { .. }, _) => Outcome::Nothing,
        (Error::OutcomeUnknown { .. }, Some(step)) => {
            Outcome::Effect(Operation { begin, end: NEVER, certain: false, step })
        }
        (error, _) => Outcome::Strange(error.to_string()),
    }
}
