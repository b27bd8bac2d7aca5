//! One connection of a fabric: what comes is carried out in turn, and answered in the same order.
//!
//! It has a thread of its own, blocked in [`Engine::wait`] while nothing happens. One request is under way at a time: what a
//! client asks meanwhile, in messages and by transfers, waits in its order, and holds the client back when there is too much of it. So what a connection takes of
//! memory is bounded: what it is told in one message, one answer on its way, the chunks that transfers lend, a chunk that is
//! filled.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use frrwp::engine::{Engine, Event};
use frrwp::handshake::{Expired, Limits, Operation, Side, Tag};

use super::gets::Lent;
use super::origin::Origin;
use super::pinned::End;
use super::providers::{Fabric, Offer};
use super::puts::Put;
use super::saying::{Said, Saying};
use super::state::FabricState;
use super::tags::Client;
use crate::log;
use crate::metrics::{Asked as Kinds, Counts, Sampler, count};
use crate::session::{Context, Out, Pause, ProtocolMode, Session, Shared, is_accepting, is_stopping};
use rdmakv_proto::clock;
use rdmakv_proto::messages::{Assembly, Kind, Malformed, Refusal, Reply, Request, Segments, Table, VERSION, Welcome};

/// Receives that are posted: what a client may have said that is not looked at.
pub(super) const RECEIVES: u16 = 32;
/// Transfers that a client may have open.
const TRANSFERS: usize = 64;
/// Bytes of a request at most, beside a value that travels in it.
const REQUEST: usize = 128 << 10;
/// How long what is under way may take when the server stops.
const DRAIN: Duration = Duration::from_secs(5);
/// How long a client has to be silent before its connection ends when the server finishes, in seconds.
const SILENCE: u64 = 1;
/// How long a client may take to make room for what it is told.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client may take to say hello.
const GREETING: Duration = Duration::from_secs(10);

/// A connection and its thread's.
pub(super) struct Connection<'f, F: Fabric> {
    pub(super) state: &'f FabricState<F>,
    /// Dropped before the stores' memory goes back: then no peer reads that memory any more.
    pub(super) engine: Engine<'f, End<F::Endpoint>>,
    pub(super) own: Own<'f>,
    /// The client as an owner of tags, and the maker of tags.
    pub(super) client: Client,
    pub(super) makes: F::Own,
    input: Assembly,
    heard: Vec<u8>,
    pub(super) part: Vec<u8>,
    pub(super) image: Vec<u8>,
    /// The client's requests that were not looked at yet, in their order.
    asked: VecDeque<Asked>,
    greeted: bool,
    /// Whether the client wants to read the GET table, and whether it was told of it.
    wants_table: bool,
    reads_table: bool,
    came: Instant,
    closed: bool,
    /// When something last came, in seconds.
    heard_at: u64,
    stopped: Option<Instant>,
    sampler: Sampler,
    /// When something last came, if the next request may be one to measure.
    woken: Option<Instant>,
    measured: Option<MeasuredTurn>,
}

/// A request with a measured answer, from the moment the connection learned that something had come.
#[derive(Clone, Copy, Debug)]
struct MeasuredTurn {
    begun: Instant,
    /// The counts then.
    gets: u64,
    sets: u64,
}

/// Something that a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// By a message, or part of one: the next that the engine has.
    Said,
    /// By a transfer into so many bytes.
    Transfer(Tag, u64),
}

/// The connection's share of the session and the stores. Dropping it gives everything back.
pub(super) struct Own<'f> {
    pub(super) shared: &'f Shared,
    /// The place of its published counts.
    seat: usize,
    pub(super) counts: Counts,
    pub(super) session: Session,
    pub(super) out: Out,
    pub(super) saying: Saying,
    pub(super) lent: HashMap<Tag, Lent>,
    pub(super) put: Option<Put>,
}

impl Own<'_> {
    pub(super) fn context(&mut self) -> (&mut Session, &mut Out, Context<'_>) {
        let Self { shared, seat, counts, session, out, .. } = self;
        (session, out, Context::new(shared, clock::now(), counts, *seat))
    }

    fn publish(&self) {
        if let Ok(mut counts) = self.shared.counts[self.seat].lock() {
            *counts = self.counts;
        }
    }

    fn is_quiet(&self) -> bool {
        !self.saying.is_some() && self.put.is_none() && self.lent.is_empty()
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        let shards = &self.shared.shards;
        self.session.close(shards);
        self.out.clear(shards);
        self.saying.clear(shards);
        for (_, lent) in self.lent.drain() {
            lent.give_back(shards);
        }
        self.publish();
    }
}

impl<F: Fabric> Drop for Connection<'_, F> {
    fn drop(&mut self) {
        self.state.tags().leave(self.client);
        if self.reads_table {
            self.state.fabric.leave_table();
        }
        self.state.bell.ring();
    }
}

impl<'f, F: Fabric> Connection<'f, F> {
    /// On an endpoint at which [`RECEIVES`] are posted.
    pub(super) fn new(state: &'f FabricState<F>, endpoint: F::Endpoint, seat: usize) -> Self {
        let limits = Limits { receives: RECEIVES, open: TRANSFERS, ..Limits::default() };
        let shared = &*state.shared;
        let (makes, peer) = (F::own(&endpoint), Origin::peer(&endpoint));
        let counts = shared.counts[seat].lock().map_or_else(|_| Counts::default(), |counts| *counts);
        Self {
            state,
            engine: Engine::new(&state.cache, End(endpoint), Side::Accepting, limits),
            own: Own {
                shared,
                seat,
                counts,
                session: Session::new(ProtocolMode::Ascii),
                out: Out::default(),
                saying: Saying::default(),
                lent: HashMap::new(),
                put: None,
            },
            client: state.tags().join(peer),
            makes,
            input: Assembly::default(),
            heard: Vec::new(),
            part: Vec::new(),
            image: Vec::new(),
            asked: VecDeque::new(),
            greeted: false,
            wants_table: false,
            reads_table: false,
            came: Instant::now(),
            closed: false,
            heard_at: clock::now(),
            stopped: None,
            sampler: Sampler::new(state.counts.total_connections.load(Relaxed) as u32),
            woken: None,
            measured: None,
        }
    }

    /// Serves it until it ends.
    pub(super) fn run(&mut self) {
        while !self.closed {
            self.engine.progress();
            while let Some(event) = self.engine.next_event() {
                self.told(event);
            }
            if !self.closed {
                self.work();
            }
            if self.closed {
                self.hear_the_rest();
            }
            self.own.publish();
            if self.closed || self.is_over() {
                return;
            }
            self.engine.wait();
            // Most rounds measure nothing, and these do not ask the clock.
            self.woken = self.sampler.is_near(1).then(Instant::now);
        }
    }

    /// A request is taken, or the next part of one. Of few it is measured when they are answered.
    fn begin_turn(&mut self) {
        if self.greeted
            && !self.input.is_within()
            && self.sampler.turn()
            && let Some(begun) = self.woken.take()
        {
            let Counts { cmd_get: gets, cmd_set: sets, .. } = self.own.counts;
            self.measured = Some(MeasuredTurn { begun, gets, sets });
        }
    }

    /// A request is answered: all of the answer is with the fabric.
    pub(super) fn end_turn(&mut self) {
        let Some(MeasuredTurn { begun, gets, sets }) = self.measured.take() else { return };
        let counts = &self.own.counts;
        let asked = Kinds::of(counts.cmd_get > gets, counts.cmd_set > sets);
        self.state.latencies.record(asked, begun.elapsed());
        self.sampler.measured();
    }

    fn told(&mut self, event: Event) {
        // Whatever happens, the client has a part in it.
        self.heard_at = clock::now();
        match event {
            Event::Message => self.asked.push_back(Asked::Said),
            Event::Requested { tag, read: true, length } => self.asked.push_back(Asked::Transfer(tag, length)),
            // No peer writes here unasked.
            Event::Requested { tag, .. } => drop(self.engine.refuse(tag)),
            Event::Completed { tag, result } => self.transferred(tag, result),
            Event::ReadCompleted { succeeded, .. } => self.pulled(succeeded),
            Event::Closed { .. } => self.closed = true,
            // A message that was not sent is missing from what the client puts together.
            Event::PeerTooOld { .. } | Event::Expired(Expired { operation: Operation::Message(_), .. }) => self.close(),
            // That there is room again: work is done in any case.
            _ => {}
        }
    }

    /// A client that has gone may have reported its reads. Whatever else was asked and not begun is dropped.
    fn hear_the_rest(&mut self) {
        while self.greeted && self.engine.recv_message(&mut self.heard) {
            let (mut input, heard) = (std::mem::take(&mut self.input), std::mem::take(&mut self.heard));
            if let Ok(Some((_, kind @ Kind::Seen, bytes))) = input.take(&heard, REQUEST)
                && let Ok(Request::Seen(seen)) = Request::decode(kind, bytes)
            {
                self.seen(seen);
            }
            (self.input, self.heard) = (input, heard);
        }
    }

    /// Does what can be done: first what is to be said, then what is under way, then what is new.
    fn work(&mut self) {
        while !self.closed {
            match self.speak() {
                Said::All => {}
                Said::Part => return,
                Said::Last => return self.close(),
            }
            if self.wants_table && self.offer_table() {
                continue;
            }
            if self.own.put.is_some() {
                if !self.pull() {
                    return;
                }
            } else {
                let asked = self.asked.pop_front();
                if asked.is_some() {
                    self.begin_turn();
                }
                match asked {
                    Some(Asked::Transfer(tag, length)) => self.answer_question(tag, length),
                    Some(Asked::Said) if self.engine.recv_message(&mut self.heard) => self.take(),
                    Some(Asked::Said) => {}
                    None => return,
                }
            }
        }
    }

    /// The connection has to end: nothing that it has can go on.
    pub(super) fn close(&mut self) {
        self.engine.disconnect();
        self.closed = true;
    }

    /// Returns whether it has to end though the client does not want it.
    fn is_over(&mut self) -> bool {
        let now = clock::now();
        let shared = self.own.shared;
        let silent = now.saturating_sub(self.heard_at);
        let limit = shared.settings.idle_timeout;
        let late = self.own.saying.since().is_some_and(|since| since.elapsed() > PATIENCE)
            || self.own.put.as_ref().is_some_and(Put::is_late);
        if !self.greeted && self.came.elapsed() > GREETING {
            // A silent client takes no place from others.
            return true;
        }
        if limit > 0 && silent > limit && self.own.is_quiet() {
            self.own.counts.idle_kicks += 1;
            return true;
        }
        if is_stopping(shared) {
            let stopped = *self.stopped.get_or_insert_with(Instant::now);
            return self.own.is_quiet() || stopped.elapsed() > DRAIN;
        }
        late || (!is_accepting(shared) && silent > SILENCE && self.own.is_quiet())
    }

    /// Takes a fragment that came.
    fn take(&mut self) {
        self.own.counts.bytes_read += self.heard.len() as u64;
        let (mut input, heard) = (std::mem::take(&mut self.input), std::mem::take(&mut self.heard));
        let most = REQUEST + self.state.terms.eager;
        let done = match input.take(&heard, most) {
            Ok(None) => Ok(()),
            Ok(Some((id, kind, bytes))) => self.request(id, kind, bytes).map_err(|malformed| (id, malformed)),
            Err(malformed) => Err((0, malformed)),
        };
        (self.input, self.heard) = (input, heard);
        if let Err((id, Malformed(what))) = done {
            self.makes_no_sense(id, what);
        }
    }

    /// The client is told what was wrong, and its connection ends.
    pub(super) fn makes_no_sense(&mut self, id: u32, what: &str) {
        count(&self.state.counts.malformed);
        self.own.shared.log.warn(format_args!("{}: a client's message: {what}", F::NAME));
        self.refuse_and_end(id, Refusal::NotUnderstood, what);
    }

    pub(super) fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// The transfer has ended before it was looked at.
    pub(super) fn forget_question(&mut self, transfer: Tag) {
        self.asked.retain(|asked| !matches!(asked, Asked::Transfer(tag, _) if *tag == transfer));
    }

    fn request(&mut self, id: u32, kind: Kind, bytes: &[u8]) -> Result<(), Malformed> {
        let request = Request::decode(kind, bytes)?;
        if !self.greeted && !matches!(request, Request::Hello { .. }) {
            return Err(Malformed("something before HELLO"));
        }
        match request {
            Request::Hello { version, table } => {
                self.wants_table = table && !self.reads_table;
                self.greet(id, version);
            }
            Request::Run { wish, key, command } => self.carry_out(id, wish.then_some(key), command)?,
            Request::Get { wish, key } => self.get(id, wish, key)?,
            Request::Put { wish, key, line, segments } => self.put(id, wish.then_some(key), line, segments)?,
            Request::Seen(seen) => {
                // It is not answered: the next request is measured.
                self.woken = self.measured.take().map(|turn| turn.begun);
                self.seen(seen);
            }
        }
        Ok(())
    }

    fn greet(&mut self, id: u32, version: u16) {
        if version != VERSION {
            let text = format!("version {version} is not spoken here; version {VERSION} is");
            return self.refuse_and_end(id, Refusal::NotUnderstood, &text);
        }
        self.greeted = true;
        let terms = &self.state.terms;
        let welcome = Welcome {
            version: VERSION,
            incarnation: terms.incarnation,
            lease_ms: terms.lease.as_millis() as u32,
            eager: terms.eager as u32,
            largest: self.own.shared.settings.item_max as u64,
        };
        self.own.saying.reply(id, &Reply::Welcome(welcome));
    }

    /// Tells the client of the GET table, once it may ask for items; says whether there is something to say.
    fn offer_table(&mut self) -> bool {
        let (session, _, cx) = self.own.context();
        if !session.is_authorised(&cx) {
            return false;
        }
        self.wants_table = false;
        let Some(Offer { now, secret, segments }) = self.state.fabric.join_table() else { return false };
        self.reads_table = true;
        self.state.bell.ring();
        let mut written = Vec::new();
        let segments = Segments::write(segments, &mut written);
        self.own.saying.reply(0, &Reply::Table(Table { now, secret, segments }));
        true
    }

    pub(super) fn reads_table(&self) -> bool {
        self.reads_table
    }

    /// Returns whether the client may ask for items; it is told if not.
    pub(super) fn may_ask(&mut self, id: u32) -> bool {
        let (session, _, cx) = self.own.context();
        let may = session.is_authorised(&cx);
        if !may {
            self.refuse(id, Refusal::NotNow, "CLIENT_ERROR unauthenticated");
        }
        may
    }

    pub(super) fn refuse(&mut self, id: u32, why: Refusal, text: &str) {
        if why == Refusal::Busy {
            count(&self.state.counts.busy);
        }
        self.own.saying.reply(id, &Reply::Refused { why, text });
    }

    fn refuse_and_end(&mut self, id: u32, why: Refusal, text: &str) {
        self.own.saying.reply(id, &Reply::Refused { why, text });
        self.own.saying.last();
    }

    /// A command of the text or meta protocol, as over TCP.
    fn carry_out(&mut self, id: u32, wish: Option<&[u8]>, command: &[u8]) -> Result<(), Malformed> {
        if self.own.shared.log.shows_requests() {
            log::request(command);
        }
        let (session, out, mut cx) = self.own.context();
        let mut turns = 1;
        let (used, pause) = session.advance(command, &mut turns, &mut cx, out);
        let over = pause == Pause::Over;
        if !over && (used < command.len() || !(session.is_quiet() || session.has_more())) {
            session.give_up(&cx.shared.shards);
            out.clear(&cx.shared.shards);
            return Err(Malformed("RUN takes one command, whole, with its data"));
        }
        // A client that has not logged in may be told of no item, for any request.
        let may = session.is_authorised(&cx);
        let tag = wish.filter(|_| may).and_then(|key| self.grant(key));
        self.own.saying.ran(id, tag);
        if over {
            self.own.saying.last();
        }
        Ok(())
    }
}
