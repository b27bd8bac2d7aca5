//! One server: the ways to it, and what is to be done there.
//!
//! Which way is tried when is decided in `ways.rs`; here it is done. An operation goes by the best fabric that stands, else over a socket, else it
//! waits until one of them comes up or all have failed. When a connection is lost, its operations divide: reads are done again, and mutations end
//! as of unknown outcome.

use super::address::{Fabric, ServerAddress, Socket};
use super::answer::{Answer, is_store};
use super::command::line;
use super::common::Common;
use super::end::End;
use super::error::{About, Error, WayDown};
use super::fabric::link::{Elsewhere, Link};
use super::fabric::parts::Begun;
use super::fragment_tags::Place;
use super::ops::{Name, On, Op};
use super::options::Options;
use super::slots::Slot;
use super::stream::{self, Lost, Stream};
use super::tags::{CallTag, Tags};
use super::value::Value;
use super::ways::{DATAGRAMS_GAP, Demand, GAP, Ways};
use frrwp::fabric::reliability::Departure;
use rdmakv_proto::item::HEADER;
use rdmakv_proto::messages::Wishes;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How often a read is sent before it is given up.
const ATTEMPTS: u8 = 4;
/// The longest sleep while several things are waited for.
const MOMENT: Duration = Duration::from_millis(1);
/// No fabric is in use.
const NOTHING: usize = usize::MAX;

/// A server.
pub(super) struct Server {
    /// As it was given.
    pub(super) text: String,
    fabrics: Vec<Fabric>,
    sockets: Vec<Socket>,
    ways: Ways,
    /// Connections over fabrics that still wait for their server, or for the one in use to have nothing in flight.
    candidates: Vec<(usize, Link)>,
    /// The fabric that is in use, and its place among the ways.
    link: Option<(usize, Link)>,
    stream: Option<(usize, Stream)>,
    /// The end of a fabric that was lost while mutations were under way.
    settling: Option<Settling>,
    /// The place of that fabric, or [`NOTHING`], for threads that connect.
    standing: Arc<AtomicUsize>,
    /// The server's token for the connection that it offers.
    token: Option<u64>,
    /// The results of threads that connect: at most one for each transport.
    tell: Sender<Arrival>,
    told: Receiver<Arrival>,
    /// The arrivals taken while something was waited for.
    arrived: VecDeque<Arrival>,
    /// The process that owns the connections and threads.
    process: u32,
    tags: Tags,
    /// The operations that wait for a connection.
    queue: VecDeque<Name>,
    /// Reads that were sent, the first one first, if there is another way.
    sent: VecDeque<Sent>,
    /// When the first request was sent over the fabric that was asked another way too.
    silent_since: Option<Instant>,
}

/// A fabric that was lost. A mutation of unknown outcome could be carried out after later ones. So no mutation is begun by another way until
/// the server confirms that it drops late copies, or the time is over. Reads that overtake nothing go by a socket.
struct Settling {
    end: Box<dyn End>,
    until: Instant,
}

/// A read that was sent.
#[derive(Clone, Copy)]
struct Sent {
    name: Name,
    at: Instant,
    on: On,
}

/// The result of an attempt.
struct Arrival {
    at: usize,
    outcome: Result<Connection, String>,
}

/// Returns how long each way may be silent before the next one is tried.
fn gaps(fabrics: &[Fabric], sockets: &[Socket]) -> Vec<Duration> {
    let fabrics = fabrics.iter().map(|fabric| if fabric.is_datagrams() { DATAGRAMS_GAP } else { GAP });
    fabrics.chain(sockets.iter().map(|_| GAP)).collect()
}

enum Connection {
    Fabric(Box<dyn End>),
    Socket(Stream),
    /// One that a better fabric in use made needless. It is closed.
    Needless,
}

impl Server {
    pub(super) fn new(address: &ServerAddress, options: &Options) -> Self {
        let (fabrics, sockets) = (address.fabrics().to_vec(), address.sockets().to_vec());
        let (tell, told) = channel();
        Self {
            text: address.to_string(),
            ways: Ways::new(&gaps(&fabrics, &sockets), fabrics.len(), options.patience(), Instant::now()),
            fabrics,
            sockets,
            candidates: Vec::new(),
            link: None,
            stream: None,
            settling: None,
            standing: Arc::new(AtomicUsize::new(NOTHING)),
            token: None,
            tell,
            told,
            arrived: VecDeque::new(),
            process: std::process::id(),
            tags: Tags::new(options.tags),
            queue: VecDeque::new(),
            sent: VecDeque::new(),
            silent_since: None,
        }
    }

    /// Returns the server as it was named, and its fabrics.
    pub(super) fn fabrics(&self) -> (&str, &[Fabric]) {
        (&self.text, &self.fabrics)
    }

    /// Returns the value, if it is to be had one-sidedly: out of the server's table, if that may list the key, or by a tag.
    #[inline]
    pub(super) fn get_now(&mut self, common: &mut Common, (key, may_be_listed): (&[u8], bool)) -> Option<Value> {
        let (_, link) = self.link.as_mut()?;
        link.get_now(common, &mut self.tags, (key, may_be_listed))
    }

    /// Returns the bytes of a key's value when it was last seen, if that is known.
    pub(super) fn size(&self, key: &[u8]) -> Option<usize> {
        self.tags.size(key).map(|size| (size as usize).saturating_sub(HEADER + key.len()))
    }

    /// Notes the bytes of a key's value, of which no tag is known.
    pub(super) fn learn_size(&mut self, key: &[u8], bytes: usize) {
        self.tags.learn(key, None, Some(u32::try_from(HEADER + key.len() + bytes).unwrap_or(u32::MAX)));
    }

    /// Reads a fragment to its place in a slot, if the connection that its tag came by stands. The lease is not over.
    pub(super) fn read_part(&mut self, tag: &CallTag, slot: &Arc<Slot>, to: &Place) -> Begun {
        match (&mut self.link, self.tags.bound(tag)) {
            (Some((_, link)), Some(leased)) => link.read_part(&leased, slot, to),
            _ => Begun::Failed,
        }
    }

    /// Begins an operation.
    pub(super) fn issue(&mut self, common: &mut Common, name: Name) {
        self.enqueue(common, name);
        self.go_on(common);
    }

    /// Begins an operation whose request leaves with that of the next one.
    pub(super) fn enqueue(&mut self, common: &mut Common, name: Name) {
        // First, as what is issued here is no parent's.
        self.look_for_a_fork(common);
        if let Some(op) = common.ops.get(name)
            && !op.operation.is_read()
        {
            // A later operation, on any transport, finds its effect.
            if op.operation.has_key() { self.tags.forget(&op.key) } else { self.tags.forget_tags() }
        }
        self.queue.push_back(name);
    }

    /// Whether what is asked from now on may wait until it leaves together. A connection that is made meanwhile holds nothing.
    pub(super) fn hold(&mut self, requests: bool) {
        if let Some((_, link)) = &mut self.link {
            link.hold(requests);
        }
    }

    /// Does what can be done now.
    pub(super) fn progress(&mut self, common: &mut Common) {
        self.look_for_a_fork(common);
        self.go_on(common);
    }

    fn look_for_a_fork(&mut self, common: &mut Common) {
        if self.process != common.this_process.id() {
            self.begin_anew(common);
        }
    }

    fn go_on(&mut self, common: &mut Common) {
        self.take_arrivals(common);
        self.progress_fabric(common);
        self.progress_settling();
        self.progress_candidates(common);
        self.progress_stream(common);
        self.turn_from_silence(common);
        self.connect(common);
        self.dispatch(common);
    }

    /// In a child of a fork: connections are the parent's, and threads that connect are not here. Mutations that were begun and are not
    /// answered, sent or not, stay with the parent too: it carries them out, and they are not done twice.
    fn begin_anew(&mut self, common: &mut Common) {
        const WHY: &str = "it was begun by the process that this one was forked from";
        self.process = common.this_process.id();
        common.begin_anew(self.process);
        // The state of a parent's thread may be half done, and so may the channel that it reports by.
        let (tell, told) = channel();
        std::mem::forget(std::mem::replace(&mut self.tell, tell));
        std::mem::forget(std::mem::replace(&mut self.told, told));
        self.arrived.drain(..).for_each(std::mem::forget);
        self.candidates.drain(..).for_each(|(_, link)| drop(link.abandon()));
        std::mem::forget(self.settling.take());
        self.tags.forget_all();
        let link = self.link.take().into_iter().flat_map(|(_, link)| link.abandon());
        let stream = self.stream.take().into_iter().flat_map(|(_, stream)| stream.into_waiting());
        let begun: Vec<_> = link.chain(stream).map(|(name, _)| name).chain(self.queue.drain(..)).collect();
        for name in begun {
            self.was_lost(common, name, true, WHY);
        }
        self.sent.clear();
        self.silent_since = None;
        self.token = None;
        self.standing = Arc::new(AtomicUsize::new(NOTHING));
        let gaps = gaps(&self.fabrics, &self.sockets);
        self.ways = Ways::new(&gaps, self.fabrics.len(), common.patience, Instant::now());
    }

    /// Returns the demand of the waiting operations.
    fn demand(&self, common: &Common) -> Demand {
        let only_stream = |&name: &Name| common.ops.get(name).is_some_and(|op| op.only_stream);
        match self.queue.is_empty() {
            true => Demand::None,
            false if self.silent_since.is_some() || self.queue.iter().any(only_stream) => Demand::Socket,
            false => Demand::Any,
        }
    }

    /// Begins attempts that are due, each in a thread of its own that ends with the attempt.
    fn connect(&mut self, common: &mut Common) {
        let demand = self.demand(common);
        // The clock is read only where a way may be tried.
        while self.ways.next_start(demand).is_some()
            && let Some(at) = self.ways.start(Instant::now(), demand)
        {
            let within = common.patience.connect;
            let attempt: Box<dyn FnOnce() -> Result<Connection, String> + Send> = match self.fabrics.get(at) {
                Some(fabric) => {
                    let attempt = common.fabrics.attempt(fabric, within);
                    Box::new(move || attempt().map(Connection::Fabric).map_err(|error| error.why))
                }
                None => {
                    let (to, login) = (self.sockets[at - self.fabrics.len()].clone(), common.login.clone());
                    Box::new(move || stream::connect(&to, login.as_deref(), within).map(Connection::Socket))
                }
            };
            let (tell, standing) = (self.tell.clone(), self.standing.clone());
            let is_fabric = at < self.fabrics.len();
            let is_offered = self.ways.offered() == Some(at);
            let work = move || {
                let outcome = std::panic::catch_unwind(AssertUnwindSafe(attempt));
                let mut outcome = outcome.unwrap_or_else(|_| Err("the attempt broke off".to_owned()));
                // An idle client does not look for what arrives, and the server would keep the connection.
                if outcome.is_ok() && is_fabric && !is_offered && standing.load(Relaxed) < at {
                    outcome = Ok(Connection::Needless);
                }
                // The receiver may be gone.
                let _ = tell.send(Arrival { at, outcome });
            };
            if let Err(error) = std::thread::Builder::new().name("rdmakv-connect".to_owned()).spawn(work) {
                self.failed(common, at, format!("no thread to connect in: {error}"));
            }
        }
    }

    fn failed(&mut self, common: &mut Common, at: usize, why: String) {
        common.counters.failed_connections += 1;
        self.ways.failed(at, Instant::now(), why);
    }

    /// Takes what attempts came to.
    fn take_arrivals(&mut self, common: &mut Common) {
        while let Some(Arrival { at, outcome }) = self.arrived.pop_front().or_else(|| self.told.try_recv().ok()) {
            match outcome {
                Ok(Connection::Fabric(end)) => {
                    let counts = self.fabrics[at].counts_reads();
                    let wishes = Wishes {
                        table: common.one_sided,
                        may_connect: self.connection_beside(at).is_some(),
                        token: self.token.take_if(|_| self.ways.offered() == Some(at)),
                    };
                    let link = Link::new(end, counts, common.login.clone(), wishes);
                    self.candidates.push((at, link));
                }
                Ok(Connection::Needless) => self.ways.replaced(at, Instant::now()),
                // One socket is as good as another while it has something under way.
                Ok(Connection::Socket(stream)) => match &self.stream {
                    Some((other, before)) if *other < at || before.is_busy() => {
                        self.ways.replaced(at, Instant::now());
                    }
                    _ => {
                        if let Some((before, _)) = self.stream.replace((at, stream)) {
                            self.ways.replaced(before, Instant::now());
                        }
                        self.ways.came_up(at);
                    }
                },
                Err(why) => self.failed(common, at, why),
            }
        }
    }

    /// Sees which connections the server has answered, and takes the best one into use.
    fn progress_candidates(&mut self, common: &mut Common) {
        for (at, mut link) in std::mem::take(&mut self.candidates) {
            link.progress(common, &mut self.tags, &self.text, &mut Vec::new());
            let silent = !link.is_greeted() && link.age() > common.patience.connect;
            if silent {
                let waited = common.patience.connect.as_millis();
                link.give_up(&format!("connected, and the server did not say within {waited} ms that it is there"));
            }
            match (link.broken().map(str::to_owned), &self.link) {
                (Some(why), _) => {
                    link.close();
                    self.failed(common, at, why);
                }
                (None, Some((other, _))) if self.ways.is_better(*other, at) => {
                    link.close();
                    self.ways.replaced(at, Instant::now());
                }
                (None, _) if !link.is_ready() || self.settling.is_some() => self.candidates.push((at, link)),
                (None, Some((_, before))) if before.departure() != Departure::Leave && !resends() => {
                    self.candidates.push((at, link));
                }
                (None, _) => {
                    if let Some((before, mut old)) = self.link.replace((at, link)) {
                        old.tell_last_reads(&mut self.tags);
                        // Nothing is under way there, so nothing is sent by a second path.
                        self.queue.extend(old.close().into_iter().map(|(name, _)| name));
                        self.ways.replaced(before, Instant::now());
                    }
                    // Tags are the connection's.
                    self.tags.forget_all();
                    self.silent_since = None;
                    self.standing.store(at, Relaxed);
                    self.ways.came_up(at);
                }
            }
        }
    }

    /// Sees whether late copies of what was sent by a lost fabric are dropped by now, or were waited for long enough.
    fn progress_settling(&mut self) {
        let Some(Settling { end, until }) = &mut self.settling else { return };
        end.progress();
        if end.is_settled() || Instant::now() >= *until {
            self.settling = None;
        }
    }

    /// Returns whether a better fabric is there, and nothing is begun by the one in use.
    fn is_leaving(&self) -> bool {
        let drains = self.link.as_ref().is_some_and(|(_, link)| link.departure() != Departure::Stay);
        drains && self.candidates.iter().any(|(_, link)| link.is_ready())
    }

    /// Returns the fabric behind this one of datagrams over which a server may offer a connection.
    fn connection_beside(&self, at: usize) -> Option<usize> {
        let is_beside = self.fabrics[at].is_datagrams();
        is_beside.then(|| (at..self.fabrics.len()).find(|&at| self.fabrics[at].is_offered())).flatten()
    }

    /// Takes the server's offer of a connection, or its wish to have one back.
    fn take_offer(&mut self) {
        let Some((at, link)) = &mut self.link else { return };
        let (at, token) = (*at, link.take_token());
        if link.is_demoted() && self.ways.offered() == Some(at) {
            self.ways.withdraw();
        }
        if let (Some(token), Some(to)) = (token, self.connection_beside(at)) {
            self.token = Some(token);
            self.ways.offer(to);
        }
    }

    fn progress_fabric(&mut self, common: &mut Common) {
        let Some((_, link)) = &mut self.link else { return };
        let mut elsewhere = Vec::new();
        link.progress(common, &mut self.tags, &self.text, &mut elsewhere);
        self.take_offer();
        let Some((_, link)) = &self.link else { return };
        for Elsewhere { op: name, busy } in elsewhere {
            if let Some(op) = common.ops.unanswered(name).filter(|op| op.on == On::Fabric) {
                // Nothing of it is under way any more, so that its end is not the connection's.
                op.on = On::Queue;
                // Where there is no other way, what the server is too busy for is asked again, as long as there is time.
                op.only_stream &= !(busy && self.sockets.is_empty());
                self.queue.push_back(name);
            }
        }
        if let Some(why) = link.broken() {
            let why = why.to_owned();
            self.lose_fabric(common, why, None);
        }
    }

    /// Asks reads another way as well that were not answered for half of their time. Whichever way answers first has the last word; a fabric
    /// that says nothing for all of that time is lost, and is asked nothing meanwhile.
    fn turn_from_silence(&mut self, common: &mut Common) {
        while let Some(&Sent { name, at, on }) = self.sent.front() {
            let other = match on {
                On::Fabric => !self.sockets.is_empty(),
                _ => self.link.is_some(),
            };
            let op = common.ops.unanswered(name).filter(|op| op.on == on && (on == On::Fabric || !op.only_stream));
            if op.is_some() && at.elapsed() < common.timeout / 2 {
                break;
            }
            self.sent.pop_front();
            let Some(op) = op.filter(|_| other) else { continue };
            op.on = On::Queue;
            if on == On::Fabric {
                op.only_stream = true;
                self.silent_since.get_or_insert(at);
            }
            self.queue.push_back(name);
        }
        if let (Some(since), Some((_, link))) = (self.silent_since, &self.link) {
            if link.heard_at() > since {
                self.silent_since = None;
            } else if since.elapsed() >= common.timeout {
                self.silent_since = None;
                self.lose_fabric(common, format!("no answer within {} ms", common.timeout.as_millis()), None);
            }
        }
    }

    fn progress_stream(&mut self, common: &mut Common) {
        let Some((_, stream)) = &mut self.stream else { return };
        let (ops, counters) = (&mut common.ops, &mut common.counters);
        let result = stream.progress(|name, answer| {
            let answer = match answer {
                Answer::Refused(said) => match ops.about(name, &self.text) {
                    Some(about) => Err(Error::Refused { about, said }),
                    None => return,
                },
                answer => Ok(answer),
            };
            // Another way may have been first.
            if ops.unanswered(name).is_some() {
                counters.answered(&answer);
                ops.end(name, answer);
            }
        });
        if let Err(lost) = result {
            self.lose_stream(common, &lost, None);
        }
    }

    /// Sends what waits, if there is a way.
    fn dispatch(&mut self, common: &mut Common) {
        if self.queue.is_empty() {
            return;
        }
        let mut waiting = VecDeque::new();
        while let Some(name) = self.queue.pop_front() {
            // Operations out of time meanwhile have their ends.
            let Some(op) = common.ops.unanswered(name) else { continue };
            let is_silent = self.silent_since.is_some() && !self.sockets.is_empty();
            let (only_stream, is_read) = (op.only_stream || is_silent, op.operation.is_read());
            // A read may go by a socket, unless it would overtake.
            let may_pass = is_read && self.stream.is_some() && waiting.is_empty();
            if self.settling.is_some() && !may_pass || !only_stream && self.is_leaving() {
                waiting.push_back(name);
            } else if let Some((_, link)) = self.link.as_mut().filter(|(_, link)| link.is_ready() && !only_stream) {
                if link.issue(common, &mut self.tags, name).is_err() {
                    self.not_by_fabric(common, name);
                } else if is_read {
                    self.note(common, name, On::Fabric);
                }
            } else if self.stream.is_some() {
                self.send_by_stream(common, name);
                if is_read {
                    self.note(common, name, On::Stream);
                }
            } else if self.ways.has_hope(Instant::now(), if only_stream { Demand::Socket } else { Demand::Any }) {
                waiting.push_back(name);
            } else if let Some(said) = common.ops.unanswered(name).and_then(|op| op.refused.take()) {
                self.end(common, name, |about| Error::Refused { about, said });
            } else {
                let ways = self.ways_down();
                self.end(common, name, |about| Error::Unreachable { about, ways });
            }
        }
        self.queue = waiting;
        // Waiting operations may need a transport that was not needed before.
        self.connect(common);
        self.progress_fabric(common);
        // Requests sent just now leave just now.
        self.progress_stream(common);
    }

    /// Remembers when a read was sent, if it can be asked another way.
    fn note(&mut self, common: &Common, name: Name, on: On) {
        if self.fabrics.len() + self.sockets.len() > 1 && self.sent.len() < common.ops.most() {
            self.sent.push_back(Sent { name, at: Instant::now(), on });
        }
    }

    /// Each way that does not stand, and why.
    fn ways_down(&self) -> Vec<WayDown> {
        let address = |at: usize| match self.fabrics.get(at) {
            Some(fabric) => fabric.to_string(),
            None => self.sockets[at - self.fabrics.len()].to_string(),
        };
        self.ways.reasons(Instant::now()).map(|(at, why)| WayDown { address: address(at), why }).collect()
    }

    /// The fabric has no room for it, or cannot do it.
    fn not_by_fabric(&mut self, common: &mut Common, name: Name) {
        if self.sockets.is_empty() {
            let what =
                "its data is larger than what Options::transfer_memory leaves free, or than datagrams carry".to_owned();
            common.end(name, Err(Error::Memory { why: what }));
        } else if let Some(op) = common.ops.unanswered(name) {
            (op.on, op.only_stream) = (On::Queue, true);
            self.queue.push_back(name);
        }
    }

    /// The connection over the fabric is of no use any more.
    fn lose_fabric(&mut self, common: &mut Common, why: String, late: Option<Name>) {
        let Some((at, link)) = self.link.take() else { return };
        self.standing.store(NOTHING, Relaxed);
        common.counters.lost_connections += 1;
        // Tags are the connection's.
        self.tags.forget_all();
        self.ways.lost(at, Instant::now(), why.clone());
        let (open, end) = link.lose();
        // An operation that is begun now has half of its time left then.
        let until = Instant::now() + common.timeout / 2;
        self.settling = end.map(|end| Settling { end, until });
        // What waits was begun later.
        let later = std::mem::take(&mut self.queue);
        for (name, sent) in open {
            // A read may be under way by a socket as well.
            if Some(name) != late && common.ops.get(name).is_some_and(|op| op.on == On::Fabric) {
                self.was_lost(common, name, sent, &why);
            }
        }
        self.queue.extend(later);
    }

    fn send_by_stream(&mut self, common: &mut Common, name: Name) {
        let (Some((_, stream)), Some(op)) = (&mut self.stream, common.ops.unanswered(name)) else { return };
        (op.on, op.attempts) = (On::Stream, op.attempts.saturating_add(1));
        stream.send(name, op.operation, |into| write(op, into));
    }

    /// The connection is of no use any more. An operation out of time, if there is one, ends with that.
    fn lose_stream(&mut self, common: &mut Common, lost: &Lost, late: Option<Name>) {
        let Some((at, stream)) = self.stream.take() else { return };
        common.counters.lost_connections += 1;
        let why = lost.to_string();
        self.ways.lost(at, Instant::now(), why.clone());
        let nonsense = match lost {
            Lost::Nonsense(what) => Some(*what),
            _ => None,
        };
        for (at, (name, sent)) in stream.into_waiting().enumerate() {
            if Some(name) == late || common.ops.get(name).is_none_or(|op| op.on != On::Stream) {
                continue;
            }
            // The first one is the answered one.
            match nonsense.filter(|_| at == 0) {
                Some(what) if common.ops.get(name).is_some_and(|op| op.operation.is_read()) => {
                    self.end(common, name, |about| Error::Nonsense { about, what });
                }
                _ => self.was_lost(common, name, sent, &why),
            }
        }
    }

    /// The connection that it was sent by is gone.
    fn was_lost(&mut self, common: &mut Common, name: Name, sent: bool, why: &str) {
        let Some(op) = common.ops.unanswered(name) else { return };
        let why = why.to_owned();
        if sent && !op.operation.is_read() {
            self.end(common, name, |about| Error::OutcomeUnknown { about, why });
        } else if op.attempts >= ATTEMPTS {
            let ways = vec![WayDown {
                address: self.text.clone(),
                why: format!("lost {ATTEMPTS} times, the last time because {why}"),
            }];
            self.end(common, name, |about| Error::Unreachable { about, ways });
        } else {
            op.on = On::Queue;
            self.queue.push_back(name);
        }
    }

    fn end(&self, common: &mut Common, name: Name, error: impl FnOnce(About) -> Error) {
        if let Some(about) = common.ops.about(name, &self.text) {
            common.counters.errors += u64::from(!common.ops.is_part(name));
            common.ops.end(name, Err(error(about)));
        }
    }

    /// An operation has run out of time: its connection goes with it, because the next bytes there are unknown. Over datagrams it ends alone.
    pub(super) fn expire(&mut self, common: &mut Common, name: Name) {
        let Some(op) = common.ops.unanswered(name) else { return };
        let (on, attempts, is_read, after) = (op.on, op.attempts, op.operation.is_read(), common.timeout);
        common.counters.timeouts += 1;
        let why = format!("no answer within {} ms", after.as_millis());
        let was_sent = on != On::Fabric || self.link.as_ref().is_none_or(|(_, link)| link.was_sent(name));
        match on {
            On::Queue if attempts == 0 || !is_read => {
                let ways = self.ways_down();
                self.end(common, name, |about| Error::Unreachable { about, ways });
            }
            _ if is_read || !was_sent => self.end(common, name, |about| Error::TimedOut { about, after }),
            _ => self.end(common, name, |about| Error::OutcomeUnknown { about, why: why.clone() }),
        }
        match on {
            On::Stream => {
                let late = std::io::Error::new(std::io::ErrorKind::TimedOut, why);
                self.lose_stream(common, &Lost::System(late), Some(name));
            }
            On::Fabric if self.cancel(common, name) => {}
            On::Fabric => self.lose_fabric(common, why, Some(name)),
            On::Queue | On::Group => {}
        }
    }

    /// Ends an operation alone, where that is possible and the server has answered another one since it began. A silent server is lost.
    fn cancel(&mut self, common: &Common, name: Name) -> bool {
        let Some((_, link)) = &mut self.link else { return false };
        link.heard_at().elapsed() < common.timeout && link.cancel(name)
    }

    /// Sleeps until something may have happened to an operation there, or so long.
    pub(super) fn wait(&mut self, common: &Common, on: On, longest: Duration) {
        let turns = self.sent.front().map(|sent| sent.at + common.timeout / 2);
        let next = self.ways.next_start(self.demand(common)).into_iter().chain(turns).min();
        let longest = next.map_or(longest, |next| longest.min(next.saturating_duration_since(Instant::now())));
        // With several events, it sleeps for one at a time.
        let connects = self.ways.is_trying() || !self.candidates.is_empty() || self.settling.is_some();
        let moment = if connects { longest.min(MOMENT) } else { longest };
        match (on, &mut self.link, &mut self.stream) {
            (On::Fabric, Some((_, link)), _) if link.is_busy() => link.wait(moment),
            (On::Stream, _, Some((_, stream))) if stream.is_busy() => stream.wait(moment),
            (On::Queue, Some((_, link)), _) if link.is_busy() => link.wait(moment),
            (On::Queue, _, _) if !self.arrived.is_empty() => {}
            (On::Queue, None, _) if self.settling.is_some() => {
                self.settling.iter_mut().for_each(|settling| settling.end.wait(moment));
            }
            (On::Queue, _, _) if connects => {
                let trying = self.ways.is_trying();
                match self.candidates.first_mut() {
                    Some((_, link)) if !trying => link.wait(longest.min(common.patience.connect)),
                    Some((_, link)) => link.wait(moment),
                    None => self.arrived.extend(self.told.recv_timeout(longest).ok()),
                }
            }
            _ => std::thread::sleep(longest.min(MOMENT)),
        }
    }

    /// How many ways there are on which something is waited for.
    pub(super) fn busy(&self) -> usize {
        let fabric = self.link.as_ref().is_some_and(|(_, link)| link.is_busy());
        let stream = self.stream.as_ref().is_some_and(|(_, stream)| stream.is_busy());
        usize::from(!self.queue.is_empty()) + usize::from(fabric) + usize::from(stream)
    }

    /// Tells the server what was read, before its connection is closed.
    pub(super) fn close(&mut self) {
        if let Some((_, link)) = self.link.as_mut().filter(|_| self.process == std::process::id()) {
            link.tell_last_reads(&mut self.tags);
        }
    }

    /// Ends all that is under way there, because the server has left its cluster.
    pub(super) fn leave(&mut self, common: &mut Common) {
        const WHY: &str = "the server has left the cluster";
        self.lose_fabric(common, WHY.to_owned(), None);
        self.settling = None;
        self.lose_stream(common, &Lost::Closed, None);
        for name in std::mem::take(&mut self.queue) {
            let ways = vec![WayDown { address: self.text.clone(), why: WHY.to_owned() }];
            self.end(common, name, |about| Error::Unreachable { about, ways });
        }
    }

    /// Returns whether there is no way to it, because it left its cluster.
    pub(super) fn is_nowhere(&self) -> bool {
        self.fabrics.is_empty() && self.sockets.is_empty()
    }

    /// Returns the fabric that is in use.
    pub(super) fn fabric_in_use(&self) -> Option<&Fabric> {
        let (at, _) = self.link.as_ref().filter(|(_, link)| link.is_ready())?;
        self.fabrics.get(*at)
    }

    /// Bytes that are registered for this server alone.
    pub(super) fn registered(&self) -> u64 {
        match &self.link {
            Some((at, link)) if self.fabrics[*at].is_apart() => link.registered(),
            _ => 0,
        }
    }

    /// Keys of which something is known.
    pub(super) fn known(&self) -> usize {
        self.tags.len()
    }
}

/// Returns whether the fault was chosen that a client moves while requests are under way, and sends these again.
fn resends() -> bool {
    rdmakv_proto::faults::injected(rdmakv_proto::faults::Fault::ResendOnSwitch)
}

/// The request as it goes over a socket.
fn write(op: &Op, into: &mut Vec<u8>) {
    line(op.operation, &op.key, &op.arguments, op.length(), into);
    if is_store(op.operation) {
        into.extend_from_slice(op.data.bytes());
        into.extend_from_slice(op.piece.bytes());
        into.extend_from_slice(b"\r\n");
    }
}
