//! Many requests on a simulated network that loses, repeats, delays and changes datagrams, with slow executions and restarts.
//!
//! Each client has keys of its own, and a mutation counts one up. So a read shows how many of the mutations before it were
//! executed: all that were answered, and perhaps those that ended as unknown.

use super::super::limits::{MILLISECOND, SECOND};
use super::super::{Client, ClientLimits, Event, Failure, RequestKind, Scope, Server, ServerFault, ServerLimits, Work};
use super::{parse, parse_reply, peer, reply, request, server, server_peer};
use crate::fabric::sim::{Bottleneck, DatagramNetwork, Impairments, SimPort};
use crate::fabric::traits::DatagramPort;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, HashMap};

const READ: RequestKind = RequestKind::Read;
const MUTATION: RequestKind = RequestKind::Mutation;
/// Keys of each client.
const KEYS: u32 = 8;

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    clients: u16,
    requests: u32,
    /// Calls that each client has open.
    depth: usize,
    impairments: Impairments,
    /// The chance of a mutation, of a long request or reply, and of a slow execution.
    mutations: f64,
    long: f64,
    slow: f64,
    /// Bytes of all replies, or of random ones.
    reply: Option<u32>,
    restart_every: Option<u64>,
    call_time: u64,
    /// The shortest time-out of a datagram.
    least_timeout: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            clients: 4,
            requests: 0,
            depth: 16,
            impairments: Impairments { latency: MILLISECOND / 10, ..Impairments::default() },
            mutations: 0.4,
            long: 0.005,
            slow: 0.01,
            reply: None,
            restart_every: None,
            call_time: 5 * SECOND,
            least_timeout: ClientLimits::default().least_timeout,
        }
    }
}

/// A call that has not ended.
struct Asked {
    operation: u32,
    kind: RequestKind,
    reply: u32,
    key: u32,
}

#[derive(Default)]
struct Key {
    answered: u32,
    unknown: u32,
}

struct Side {
    client: Client,
    port: SimPort,
    asked: HashMap<u64, Asked>,
    keys: [Key; KEYS as usize],
    /// When the client has something to do.
    timer: Option<u64>,
    bytes: u64,
    ended: u64,
}

/// The run of a plan, and what it found.
struct Run {
    plan: Plan,
    network: DatagramNetwork,
    server: Server<Vec<u8>>,
    port: SimPort,
    sides: Vec<Side>,
    random: StdRng,
    /// Requests that are being executed, by when they end.
    works: BTreeMap<(u64, u32), (Work, u32, u32, usize)>,
    executed: HashMap<u32, u32>,
    values: HashMap<u32, u32>,
    keys_of: Vec<u32>,
    executions: u32,
    asked: u32,
    restarts: u64,
    /// When a call last ended.
    last_end: u64,
    findings: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
}

impl Run {
    fn new(plan: Plan, seed: u64) -> Self {
        let network = DatagramNetwork::new(seed, plan.impairments);
        let limits =
            ClientLimits { call_time: plan.call_time, least_timeout: plan.least_timeout, ..ClientLimits::default() };
        let sides = (0..plan.clients)
            .map(|at| Side {
                client: Client::new(limits, server_peer(), seed ^ u64::from(at) << 32),
                port: network.port(peer(1 + at, 9)),
                asked: HashMap::new(),
                keys: Default::default(),
                timer: None,
                bytes: 0,
                ended: 0,
            })
            .collect();
        Self {
            plan,
            port: network.port(server_peer()),
            network,
            server: server(ServerLimits::default(), 1),
            sides,
            random: StdRng::seed_from_u64(seed),
            works: BTreeMap::new(),
            executed: HashMap::new(),
            values: HashMap::new(),
            keys_of: Vec::new(),
            executions: 0,
            asked: 0,
            restarts: 0,
            last_end: 0,
            findings: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    fn ask(&mut self, at: usize) {
        while self.sides[at].client.unanswered() < self.plan.depth && self.asked < self.plan.requests {
            let kind = if self.random.random_bool(self.plan.mutations) { MUTATION } else { READ };
            let is_long = |random: &mut StdRng| random.random_bool(self.plan.long);
            let length = if is_long(&mut self.random) { self.random.random_range(9..40_000) } else { 9 };
            let reply = if is_long(&mut self.random) { self.random.random_range(8..40_000) } else { 8 };
            let reply = self.plan.reply.unwrap_or(reply);
            let kind = if kind == MUTATION && reply > 1024 { RequestKind::LongMutation } else { kind };
            let operation = self.asked;
            let key = self.random.random_range(0..KEYS);
            let global = at as u32 * KEYS + key;
            self.keys_of.push(global);
            let now = self.network.now();
            let side = &mut self.sides[at];
            let message = request(kind, operation, reply, length);
            let call = side.client.call(now, kind, Scope::Key(key.into()), message).expect("there is room");
            side.asked.insert(call, Asked { operation, kind, reply, key });
            self.asked += 1;
        }
    }

    fn find(&mut self, finding: String) {
        if self.findings.len() < 10 {
            self.findings.push(finding);
        }
    }

    /// Has a client send, and takes the ends of its calls.
    fn drain(&mut self, at: usize) {
        while let Some(event) = self.sides[at].client.next_event() {
            let side = &mut self.sides[at];
            side.ended += 1;
            self.last_end = self.network.now();
            let (call, end) = match event {
                Event::Reply { call, message } => (call, Ok(message)),
                Event::Failed { call, why } => (call, Err(why)),
            };
            let Some(asked) = side.asked.remove(&call) else {
                self.find(format!("call {call} ended twice"));
                continue;
            };
            let executed = self.executed.get(&asked.operation).copied().unwrap_or(0);
            let key = &mut side.keys[asked.key as usize];
            match end {
                Ok(message) => {
                    side.bytes += message.len() as u64;
                    *self.counts.entry("answered").or_default() += 1;
                    // This is the only call on its key, or all on it are reads.
                    let range = key.answered..=key.answered + key.unknown;
                    if asked.kind.is_mutation() {
                        key.answered += 1;
                    }
                    let parsed = parse_reply(&message);
                    if parsed.is_none() || message.len() != asked.reply as usize || executed == 0 {
                        self.find(format!("operation {}: a reply of several executions, or of none", asked.operation));
                    } else if let Some((_, value)) = parsed.filter(|(_, value)| !range.contains(value)) {
                        self.find(format!("operation {}: {value} is not in {range:?}", asked.operation));
                    }
                }
                Err(why) => {
                    *self.counts.entry(if why == Failure::Unknown { "unknown" } else { "timed out" }).or_default() += 1;
                    if why == Failure::Unknown {
                        key.unknown += 1;
                    } else if asked.kind.is_mutation() && executed > 0 {
                        self.find(format!("operation {}: it was executed, and reported as not", asked.operation));
                    }
                }
            }
        }
        self.ask(at);
        let Side { client, port, .. } = &mut self.sides[at];
        for (to, bytes) in client.outbox().iter() {
            port.send(to, bytes).expect("a simulated port");
        }
        client.outbox().clear();
        self.sides[at].timer = self.sides[at].client.timer();
    }

    fn serve(&mut self) {
        let now = self.network.now();
        while let Some((from, bytes)) = self.port.poll() {
            let Some(request) = self.server.receive(now, from, bytes) else { continue };
            let (operation, length) = parse(request.message);
            let work = request.work;
            let is_mutation = super::classify(request.message).is_mutation();
            let slow = self.random.random_bool(self.plan.slow);
            let time = if slow { self.random.random_range(0..20 * MILLISECOND) } else { 0 };
            self.executions += 1;
            let value = self.values.entry(self.keys_of[operation as usize]).or_default();
            let before = *value;
            *value += u32::from(is_mutation);
            let executed = self.executed.entry(operation).or_default();
            *executed += 1;
            if is_mutation && *executed > 1 {
                self.findings.push(format!("operation {operation}: executed twice"));
            }
            self.works.insert((now + time, self.executions), (work, self.executions, before, length));
        }
        while let Some(entry) = self.works.first_entry().filter(|entry| entry.key().0 <= now) {
            let (work, execution, value, length) = entry.remove();
            let reply = reply(execution, value, length);
            match length > 1024 {
                true => self.server.complete(now, work, b"", Some(reply)),
                false => self.server.complete(now, work, &reply, None),
            }
        }
        for (to, bytes) in self.server.outbox().iter() {
            self.port.send(to, bytes).expect("a simulated port");
        }
        self.server.outbox().clear();
    }

    /// Runs until all calls have ended, or this time has come.
    fn run(&mut self, until: u64) {
        (0..self.sides.len()).for_each(|at| self.drain(at));
        loop {
            let now = self.network.now();
            let timers = self.sides.iter().filter_map(|side| side.timer);
            let works = self.works.keys().next().map(|(time, _)| *time);
            let next = timers.chain(works).min();
            let is_over = self.asked == self.plan.requests && self.sides.iter().all(|side| side.asked.is_empty());
            let Some(next) = next.into_iter().chain(self.network.next_time()).min().filter(|next| *next < until) else {
                if now < until && until < u64::MAX {
                    self.network.step(until);
                }
                return;
            };
            if is_over && self.works.is_empty() && self.network.next_time().is_none() && next > now + 10 * SECOND {
                return;
            }
            if self.plan.restart_every.is_some_and(|every| now / every > self.restarts) {
                self.restarts += 1;
                self.works.clear();
                self.server = server(ServerLimits::default(), 1 + self.restarts);
            }
            match self.network.step(next) {
                Some(to) if to == server_peer() => self.serve(),
                Some(to) => {
                    let at = usize::from(u16::from_be_bytes([to.to_bytes()[14], to.to_bytes()[15]])) - 1;
                    let now = self.network.now();
                    let side = &mut self.sides[at];
                    while let Some((from, bytes)) = side.port.poll() {
                        side.client.receive(now, from, bytes);
                    }
                    self.drain(at);
                }
                None => {
                    let now = self.network.now();
                    self.serve();
                    for at in 0..self.sides.len() {
                        if self.sides[at].timer.is_some_and(|timer| timer <= now) {
                            self.sides[at].client.tick(now);
                            self.drain(at);
                        }
                    }
                }
            }
        }
    }

    fn report(&self, name: &str) {
        let now = self.network.now() as f64 / SECOND as f64;
        let network = self.network.counts();
        println!(
            "{name}: {:?} of {} requests in {now:.1} s; {network:?}; {:?}",
            self.counts,
            self.asked,
            self.server.counters()
        );
    }
}

/// Impairments with this loss.
fn rough(loss: f64) -> Impairments {
    Impairments {
        latency: MILLISECOND / 10,
        jitter: MILLISECOND / 50,
        loss,
        duplication: 0.02,
        delay: 0.02,
        corruption: 0.005,
        bottleneck: None,
    }
}

/// Runs a number of requests at each loss. Returns what was found.
fn check(name: &str, plan: Plan, seed: u64, fault: Option<ServerFault>, mixes: bool) -> Vec<String> {
    let mut run = Run::new(plan, seed);
    if let Some(fault) = fault {
        run.server.inject(fault);
    }
    if mixes {
        run.sides.iter_mut().for_each(|side| side.client.mix_executions());
    }
    run.run(u64::MAX);
    run.report(name);
    let ended: u64 = run.sides.iter().map(|side| side.ended).sum();
    if ended != u64::from(plan.requests) {
        run.find(format!("{ended} of {} calls ended", plan.requests));
    }
    if plan.restart_every.is_none() && fault.is_none() {
        let now = run.network.now();
        run.server.sweep(now + 3 * SECOND);
        if (run.server.unfinished(), run.server.kept_replies()) != (0, 0) {
            run.find(format!(
                "{} unfinished requests, {} kept replies",
                run.server.unfinished(),
                run.server.kept_replies()
            ));
        }
    }
    run.findings
}

fn at_every_loss(requests: u32) {
    for (seed, percent) in [0, 1, 5, 15, 30].into_iter().enumerate() {
        let plan = Plan { requests: requests / 5, impairments: rough(f64::from(percent) / 100.0), ..Plan::default() };
        assert_eq!(check(&format!("{percent} % loss"), plan, seed as u64, None, false), [""; 0], "{percent} %");
    }
}

#[test]
fn requests_are_answered_once_at_any_loss() {
    at_every_loss(50_000);
}

/// 200,000 requests at each loss. All are answered up to 15 % loss, in 5, 5, 8 and 30 s of the network's time. At 30 % it is 226 s: 51
/// calls are out of time then, and the outcome of 5 mutations is unknown.
#[test]
#[ignore = "long: cargo test --release -p frrwp --lib reliability::tests::simulation -- --ignored --nocapture"]
fn a_million_requests_are_answered_once() {
    at_every_loss(1_000_000);
}

#[test]
fn one_percent_loss_leaves_half_of_the_throughput() {
    // Each call of a client is on a key of its own at most times, as with many keys.
    let time = |loss| {
        let impairments = Impairments { latency: MILLISECOND / 10, loss, ..Impairments::default() };
        let plan = Plan { requests: 40_000, depth: 4, mutations: 0.1, slow: 0.0, impairments, ..Plan::default() };
        let mut run = Run::new(plan, 1);
        run.run(u64::MAX);
        run.report(&format!("{loss} lost"));
        assert_eq!(run.findings, [""; 0]);
        run.last_end
    };
    let (lossless, lossy) = (time(0.0), time(0.01));
    assert!(lossy <= 2 * lossless, "{lossy} ns instead of {lossless}");
}

#[test]
fn one_percent_loss_leaves_half_to_one_call_at_a_time() {
    // With 1 % lost each way, one in 50 calls waits for a datagram that nothing follows.
    let time = |trip: u64, least_timeout, loss| {
        let impairments = Impairments { latency: trip / 2, jitter: trip / 20, loss, ..Impairments::default() };
        let plan = Plan {
            clients: 1,
            depth: 1,
            requests: 20_000,
            mutations: 0.1,
            long: 0.0,
            slow: 0.0,
            impairments,
            least_timeout,
            ..Plan::default()
        };
        let mut run = Run::new(plan, trip);
        run.run(u64::MAX);
        assert_eq!(run.findings, [""; 0]);
        (run.last_end as f64, run.sides[0].client.counters())
    };
    // Over devices and over sockets.
    for least_timeout in [MILLISECOND, 5 * MILLISECOND] {
        for trip in [50, 200, 1000, 5000, 20_000].map(|trip| trip * MILLISECOND / 1000) {
            let (lossless, _) = time(trip, least_timeout, 0.0);
            let (lossy, counts) = time(trip, least_timeout, 0.01);
            let share = lossless / lossy;
            println!(
                "round trip {trip} ns, time-out from {least_timeout} ns: {:.0} % of the throughput; {counts:?}",
                share * 100.0
            );
            assert!(share >= 0.5, "round trip {trip} ns, time-out from {least_timeout} ns: {share}");
        }
    }
}

#[test]
fn restarts_lose_no_read_and_repeat_no_mutation() {
    let plan = Plan { requests: 10_000, impairments: rough(0.05), restart_every: Some(SECOND / 2), ..Plan::default() };
    assert_eq!(check("restarts", plan, 1, None, false), [""; 0]);
}

#[test]
fn injected_faults_are_found() {
    let impairments = Impairments { duplication: 0.2, delay: 0.2, ..rough(0.05) };
    let plan = Plan { requests: 4000, impairments, long: 0.05, slow: 0.1, ..Plan::default() };
    for fault in [ServerFault::NoReplies, ServerFault::FloorBack, ServerFault::NoExecuting] {
        let found = check(&format!("{fault:?}"), plan, 1, Some(fault), false);
        assert!(found.iter().any(|finding| finding.contains("executed twice")), "{fault:?}: {found:?}");
    }
    let found = check("mixed executions", plan, 1, None, true);
    assert!(found.iter().any(|finding| finding.contains("several executions")), "{found:?}");
}

#[test]
fn clients_share_a_bottleneck() {
    // 10 MB/s, and room for 20 ms of datagrams: 100 clients with two datagrams each fill it.
    let bottleneck = Bottleneck { peer: server_peer(), byte: 100.0, queue: 200_000 };
    let impairments = Impairments { latency: MILLISECOND, bottleneck: Some(bottleneck), ..Impairments::default() };
    let plan = Plan {
        clients: 100,
        requests: u32::MAX,
        depth: 64,
        impairments,
        mutations: 0.0,
        long: 0.0,
        slow: 0.0,
        reply: Some(1000),
        ..Plan::default()
    };
    let mut run = Run::new(plan, 1);
    let (warm, end) = (SECOND, 3 * SECOND);
    run.run(warm);
    let before: Vec<u64> = run.sides.iter().map(|side| side.bytes).collect();
    run.run(end);
    run.report("100 clients at a bottleneck");
    let got: Vec<f64> = run.sides.iter().zip(before).map(|(side, before)| (side.bytes - before) as f64).collect();
    let (sum, squares) = (got.iter().sum::<f64>(), got.iter().map(|got| got * got).sum::<f64>());
    let jain = sum * sum / (got.len() as f64 * squares);
    // Of the bytes that pass, 1,000 of 1,048 are replies'.
    let goodput = sum * 1048.0 / 1000.0 * 100.0 / (end - warm) as f64;
    println!("goodput {goodput:.3}, Jain's index {jain:.3}");
    assert_eq!(run.findings, [""; 0]);
    assert!(goodput >= 0.8 && jain >= 0.9, "goodput {goodput:.3}, Jain's index {jain:.3}");
}

#[test]
fn black_holes_get_a_datagram_a_second() {
    let impairments = Impairments { latency: 10 * MILLISECOND, ..Impairments::default() };
    let plan =
        Plan { clients: 1, requests: u32::MAX, depth: 64, call_time: 1000 * SECOND, impairments, ..Plan::default() };
    let mut run = Run::new(plan, 1);
    run.run(SECOND);
    assert!(run.counts["answered"] > 100);
    run.network.set_impairments(Impairments { loss: 1.0, ..plan.impairments });
    run.run(10 * SECOND);
    let before = run.network.counts().sent;
    run.run(110 * SECOND);
    let sent = run.network.counts().sent - before;
    assert!((90..=101).contains(&sent), "{sent} datagrams in 100 s");
    run.network.set_impairments(plan.impairments);
    let before = run.counts["answered"];
    run.run(113 * SECOND);
    assert!(run.counts["answered"] > before + 100, "it goes on");
    assert_eq!(run.findings, [""; 0]);
}
