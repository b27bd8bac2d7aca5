//! One connection of a fabric: what comes is carried out in turn, and answered in the same order.
//!
//! It has a thread of its own, blocked in [`Engine::wait`] while nothing happens. One request is under way at a time: what a
//! client asks meanwhile, in messages and by transfers, waits in its order, and holds the client back when there is too much of it. So
//! the memory of a connection is bounded: one received message, one answer on its way, the chunks that transfers lend, a chunk
//! that is filled.
//!
//! | part     | file          | owns                                                              |
//! |----------|---------------|-------------------------------------------------------------------|
//! | Commands | `commands.rs` | the session, its output and its counts                            |
//! | Inbox    | `messages.rs` | the message that is being received                                |
//! | Outbox   | `messages.rs` | the message that is being sent, and the step after it             |
//! | FarRequests | `far_requests.rs` | the client's regions of far memory                         |
//! | Gets     | `gets.rs`     | the chunks that transfers read                                    |
//! | Puts     | `puts.rs`     | the value that is read out of the client's memory                 |
//! | Reader   | `grants.rs`   | the client's tags, and its use of the GET table                   |
//! | Turns    | `turns.rs`    | which requests are measured                                       |
//! | Slot     | `hybrid.rs`   | its place among connections that are for the busiest clients      |

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use frrwp::engine::{Engine, Event, TransferError};
use frrwp::handshake::{Expired, Limits, Operation, Side, Tag};

use super::commands::{Announced, Commands};
use super::far_requests::FarRequests;
use super::gets::{Found, Get, Gets, check_key};
use super::grants::Reader;
use super::hybrid::Slot;
use super::messages::{Inbox, Outbox, Sent, Then};
use super::origin::Origin;
use super::pinned::{End, ROUND};
use super::providers::{Fabric, Offer};
use super::puts::{Pulled, Put, Puts, length_of, line_of};
use super::state::FabricState;
use super::turns::Turns;
use crate::log;
use crate::metrics::{add, count};
use crate::session::{Follows, is_accepting, is_stopping};
use rdmakv_proto::clock;
use rdmakv_proto::far::messages::verb;
use rdmakv_proto::horizon::Horizon;
use rdmakv_proto::messages::{
    Kind, Malformed, Refusal, Reply, Request, Segments, Table, VERSION, Welcome, Whole, Wishes,
};

/// Receives that are posted: messages of a client that may wait.
pub(super) const RECEIVES: u16 = 32;
/// Transfers that a client may have open.
const TRANSFERS: usize = 64;
/// Bytes of a request at most, without a value that travels in it.
const REQUEST: usize = 128 << 10;
/// How long what is under way may take when the server stops.
const DRAIN: Duration = Duration::from_secs(5);
/// How long a client has to be silent before its connection ends when the server finishes, in seconds.
const SILENCE: u64 = 1;
/// How long a client may take to make room for a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to send HELLO.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection and its thread's. The parts are dropped in this order.
pub(super) struct Connection<'f, F: Fabric> {
    state: &'f FabricState<F>,
    reader: Reader<'f, F>,
    /// Dropped before the stores' memory goes back: then no peer reads that memory any more.
    engine: Engine<'f, End<F::Endpoint>>,
    /// Dropped after the engine, so that nothing of the client's arrives after its far memory is another's.
    far: FarRequests<'f, F>,
    gets: Gets<'f>,
    outbox: Outbox<'f>,
    puts: Puts,
    commands: Commands<'f>,
    inbox: Inbox,
    /// The client's requests that were not looked at yet, in their order.
    asked: VecDeque<Asked>,
    turns: Turns,
    activity: Activity,
    /// Whether the publication of a write is waited for awake, and the next write.
    publication: Horizon,
    write: Horizon,
    /// Whether the next batch or procedure of far memory is.
    batch: Horizon,
    /// Whether a batch or a procedure was carried out, and another one may follow.
    is_batching: bool,
    /// Its place, where connections are for the busiest clients.
    slot: Option<Slot>,
    /// Whether the client was told to leave.
    demoted: bool,
    /// Whether the client sent HELLO.
    greeted: bool,
    closed: bool,
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// A message or part of one: the next that the engine has.
    Message,
    /// By a transfer into so many bytes.
    Transfer(Tag, u64),
}

/// The times by which a connection ends.
#[derive(Debug)]
struct Activity {
    began: Instant,
    /// When something last came, in seconds.
    last_event: u64,
    /// When the connection learned that the server stops.
    stopped: Option<Instant>,
}

impl<'f, F: Fabric> Connection<'f, F> {
    /// Returns a connection on an endpoint at which [`RECEIVES`] are posted.
    pub(super) fn new(state: &'f FabricState<F>, endpoint: F::Endpoint, seat: usize) -> Self {
        let limits = Limits { receives: RECEIVES, open: TRANSFERS, ..Limits::default() };
        Self {
            state,
            reader: Reader::new(state, &endpoint),
            engine: Engine::new(&state.cache, End(endpoint), Side::Accepting, limits),
            far: FarRequests::new(state),
            gets: Gets::default(),
            outbox: Outbox::default(),
            puts: Puts::default(),
            commands: Commands::new(&state.shared, seat),
            inbox: Inbox::default(),
            asked: VecDeque::new(),
            turns: Turns::new(state.counts.total_connections.load(Relaxed) as u32),
            activity: Activity { began: Instant::now(), last_event: clock::now(), stopped: None },
            publication: Horizon::default(),
            write: Horizon::default(),
            batch: Horizon::default(),
            is_batching: false,
            slot: None,
            demoted: false,
            greeted: false,
            closed: false,
        }
    }

    /// Serves it until it ends.
    pub(super) fn run(&mut self) {
        while !self.closed {
            self.engine.progress();
            while let Some(event) = self.engine.next_event() {
                self.on_event(event);
            }
            if !self.closed {
                self.work();
            }
            if self.closed {
                self.take_last_reports();
            }
            if let Some(slot) = &mut self.slot {
                slot.report(clock::nanos(), || self.engine.endpoint().0.reads());
            }
            self.commands.publish();
            if self.closed || self.is_over() {
                return;
            }
            self.wait();
            self.turns.wake();
        }
    }

    /// Sleeps until something comes. Between the steps of a write, and after a batch or a procedure of far memory, it stays awake at first.
    fn wait(&mut self) {
        self.engine.endpoint().0.expect_message(self.is_batching);
        let horizon = match self.commands.take_follows() {
            Some(Follows::Publication) => &mut self.publication,
            Some(Follows::Write) => &mut self.write,
            None if std::mem::take(&mut self.is_batching) => &mut self.batch,
            None => return self.engine.wait(),
        };
        let engine = &mut self.engine;
        horizon.wait(ROUND, || {
            engine.progress();
            engine.has_events()
        });
        self.engine.wait();
    }

    fn on_event(&mut self, event: Event) {
        // Whatever happens, the client has a part in it.
        self.activity.last_event = clock::now();
        match event {
            Event::Message => self.asked.push_back(Asked::Message),
            Event::Requested { tag, read: true, length } => self.asked.push_back(Asked::Transfer(tag, length)),
            // No peer writes here unasked.
            Event::Requested { tag, .. } => drop(self.engine.refuse(tag)),
            Event::Completed { tag, result } => self.end_transfer(tag, result),
            Event::ReadCompleted { succeeded, .. } => self.puts.end_read(succeeded),
            Event::Closed { .. } => self.closed = true,
            // A message that was not sent is missing from what the client puts together.
            Event::PeerTooOld { .. } | Event::Expired(Expired { operation: Operation::Message(_), .. }) => self.close(),
            // That there is room again: work is done in any case.
            _ => {}
        }
    }

    /// Counts the reads that a client reported before it went. Its other requests are dropped.
    fn take_last_reports(&mut self) {
        while self.greeted && self.inbox.receive(&mut self.engine).is_some() {
            if let Ok(Some((_, kind @ Kind::Seen, bytes))) = self.inbox.take(REQUEST)
                && let Ok(Request::Seen(seen)) = Request::decode(kind, bytes)
            {
                self.reader.seen(seen, self.commands.counts());
            }
        }
    }

    /// Does what can be done: sends what waits, goes on with what is under way, then takes what is new.
    fn work(&mut self) {
        while !self.closed {
            match self.outbox.send(&mut self.engine, &mut self.commands) {
                Sent::Nothing => {}
                Sent::Blocked => return,
                Sent::All(then) => {
                    self.go_on(then);
                    continue;
                }
                Sent::Failed => return self.close(),
            }
            if self.reader.wants_table() && self.offer_table() {
                continue;
            }
            if !self.demoted && self.slot.as_ref().is_some_and(Slot::is_demoted) {
                self.demoted = true;
                self.outbox.reply(0, &Reply::Demote);
                continue;
            }
            if let Some(notice) = self.far.take_notice() {
                self.outbox.reply(0, &Reply::Far(&notice));
                continue;
            }
            if !self.puts.is_empty() {
                match self.puts.pull(&mut self.engine) {
                    Some(pulled) => self.end_put(pulled),
                    None => return,
                }
                continue;
            }
            let Some(asked) = self.asked.pop_front() else { return };
            if self.greeted && !self.inbox.is_within() {
                self.turns.begin(self.commands.counts());
            }
            match asked {
                Asked::Transfer(tag, length) => self.get_by_transfer(tag, length),
                Asked::Message => self.take_message(),
            }
        }
    }

    /// Takes the step after a message that was sent, which ended a request.
    fn go_on(&mut self, then: Then<'f>) {
        match then {
            Then::Nothing => {}
            Then::Accept(tag, lent) => self.gets.accept(&mut self.engine, tag, lent),
            Then::Refuse(tag) => drop(self.engine.refuse(tag)),
            Then::End => return self.close(),
        }
        if let Some((kind, time)) = self.turns.end(self.commands.counts()) {
            self.state.latencies.record(kind, time);
        }
    }

    /// Ends the connection at once: nothing that it has can go on.
    fn close(&mut self) {
        self.engine.disconnect();
        self.closed = true;
    }

    /// Returns whether nothing is under way.
    fn is_quiet(&self) -> bool {
        self.outbox.is_empty() && self.puts.is_empty() && self.gets.is_empty()
    }

    /// Returns whether it has to end though the client does not want it.
    fn is_over(&mut self) -> bool {
        let shared = self.commands.shared();
        let silent = clock::now().saturating_sub(self.activity.last_event);
        let limit = shared.settings.idle_timeout;
        if !self.greeted && self.activity.began.elapsed() > HELLO_TIMEOUT {
            // A silent client takes no place from others.
            return true;
        }
        if limit > 0 && silent > limit && self.is_quiet() {
            self.commands.counts().idle_kicks += 1;
            return true;
        }
        let leaves_by = self.slot.as_ref().filter(|_| self.demoted).map(|slot| slot.timeout().as_secs().max(1));
        if leaves_by.is_some_and(|limit| silent > limit && self.is_quiet()) {
            // It was told to leave, and is not there: its place is another client's.
            return true;
        }
        if is_stopping(shared) {
            let stopped = *self.activity.stopped.get_or_insert_with(Instant::now);
            return self.is_quiet() || stopped.elapsed() > DRAIN;
        }
        let late = self.outbox.blocked_since().is_some_and(|since| since.elapsed() > SEND_TIMEOUT);
        late || self.puts.is_late() || (!is_accepting(shared) && silent > SILENCE && self.is_quiet())
    }

    /// Takes the next fragment, and carries out the request that it completes.
    fn take_message(&mut self) {
        let Some(received) = self.inbox.receive(&mut self.engine) else { return };
        self.commands.counts().bytes_read += received as u64;
        let most = REQUEST + self.state.terms.eager;
        // The message lies in the inbox while it is carried out.
        let mut inbox = std::mem::take(&mut self.inbox);
        let done = match inbox.take(most) {
            Ok(None) => Ok(()),
            Ok(Some(message)) => self.request(message).map_err(|malformed| (message.0, malformed)),
            Err(malformed) => Err((0, malformed)),
        };
        self.inbox = inbox;
        if let Err((id, Malformed(what))) = done {
            self.refuse_malformed(id, what);
        }
    }

    /// Tells the client that its message was malformed; its connection ends.
    fn refuse_malformed(&mut self, id: u32, what: &str) {
        count(&self.state.counts.malformed);
        self.state.shared.log.warn(format_args!("{}: a client's message: {what}", F::NAME));
        self.refuse_and_end(id, Refusal::NotUnderstood, what);
    }

    fn request(&mut self, (id, kind, bytes): Whole<'_>) -> Result<(), Malformed> {
        let request = Request::decode(kind, bytes)?;
        self.count_for_slot(&request);
        if !self.greeted && !matches!(request, Request::Hello { .. }) {
            return Err(Malformed("something before HELLO"));
        }
        match request {
            Request::Hello { version, wishes } => self.greet(id, version, wishes),
            Request::Run { wish, key, command } => self.run_command(id, wish.then_some(key), command)?,
            Request::Get { wish, key } => {
                check_key(key)?;
                self.get(Get { id, wish, key });
            }
            Request::Put { wish, key, line, segments } => self.put(id, wish.then_some(key), line, segments)?,
            Request::Far(request) => self.far_request(id, request)?,
            Request::Seen(seen) => {
                // It is not answered: the next request is measured.
                self.turns.pass();
                self.reader.seen(seen, self.commands.counts());
            }
        }
        Ok(())
    }

    /// Counts a request of a client that may have to leave: a wish for a tag twice, and reads that it reports.
    fn count_for_slot(&mut self, request: &Request<'_>) {
        let Some(slot) = &mut self.slot else { return };
        slot.count(match request {
            Request::Run { wish: true, .. } | Request::Get { wish: true, .. } | Request::Put { wish: true, .. } => 2,
            Request::Seen(seen) => seen.iter().map(|(_, _, reads)| u64::from(reads)).sum(),
            _ => 1,
        });
    }

    /// Carries out a request for far memory.
    fn far_request(&mut self, id: u32, request: &[u8]) -> Result<(), Malformed> {
        if !FarRequests::<F>::needs_no_login(request) && !self.may_ask(id) {
            return Ok(());
        }
        let mut reply = Vec::new();
        let login = self.commands.login();
        self.far.answer(&self.engine.endpoint().0, login, request, &mut reply)?;
        self.is_batching = matches!(request.first(), Some(&(verb::BATCH | verb::RUN)));
        self.outbox.reply(id, &Reply::Far(&reply));
        Ok(())
    }

    fn greet(&mut self, id: u32, version: u16, wishes: Wishes) {
        if version != VERSION {
            let text = format!("version {version} is not spoken here; version {VERSION} is");
            return self.refuse_and_end(id, Refusal::NotUnderstood, &text);
        }
        if let Some(hybrid) = self.state.hybrid.as_ref().filter(|_| self.slot.is_none()) {
            let host = self.engine.endpoint().0.peer().host();
            match hybrid.enter(wishes.token, host, clock::nanos()) {
                Ok(slot) => {
                    if slot.was_offered() {
                        count(&self.state.counts.promoted);
                    }
                    self.slot = Some(slot);
                }
                Err(why) => {
                    count(&self.state.counts.rejected_connections);
                    return self.refuse_and_end(id, Refusal::NotNow, why.text());
                }
            }
        }
        self.reader.want_table(wishes.table);
        self.greeted = true;
        let terms = &self.state.terms;
        let welcome = Welcome {
            version: VERSION,
            incarnation: terms.incarnation,
            lease_ms: terms.lease.as_millis() as u32,
            eager: terms.eager as u32,
            transfers_from: terms.transfers_from as u32,
            largest: self.state.shared.settings.item_max as u64,
        };
        self.outbox.reply(id, &Reply::Welcome(welcome));
    }

    /// Tells the client of the GET table, once it may ask for items; returns whether there is something to send.
    fn offer_table(&mut self) -> bool {
        if !self.commands.is_authorised() {
            return false;
        }
        let Some(Offer { now, secret, segments }) = self.reader.join_table() else { return false };
        let mut written = Vec::new();
        let segments = Segments::write(segments, &mut written);
        self.outbox.reply(0, &Reply::Table(Table { now, secret, segments }));
        true
    }

    /// Returns whether the client may ask for items; it is refused if not.
    fn may_ask(&mut self, id: u32) -> bool {
        let may = self.commands.is_authorised();
        if !may {
            self.refuse(id, Refusal::NotNow, "CLIENT_ERROR unauthenticated");
        }
        may
    }

    fn refuse(&mut self, id: u32, why: Refusal, text: &str) {
        if why == Refusal::Busy {
            count(&self.state.counts.busy);
        }
        self.outbox.reply(id, &Reply::Refused { why, text });
    }

    fn refuse_and_end(&mut self, id: u32, why: Refusal, text: &str) {
        self.outbox.reply(id, &Reply::Refused { why, text });
        self.outbox.then(Then::End);
    }

    /// Runs a command of the text or meta protocol, as over TCP.
    fn run_command(&mut self, id: u32, wish: Option<&[u8]>, command: &[u8]) -> Result<(), Malformed> {
        if self.state.shared.log.shows_requests() {
            log::request(command);
        }
        let over = self.commands.run(command)?;
        // A client that has not logged in may be told of no item, for any request.
        let may = self.commands.is_authorised();
        let tag = wish.filter(|_| may && !self.demoted).and_then(|key| self.reader.grant(key));
        self.outbox.answer(id, tag);
        if over {
            self.outbox.then(Then::End);
        }
        Ok(())
    }

    /// Answers a GET in a message.
    fn get(&mut self, get: Get<'_>) {
        if self.may_ask(get.id) {
            let found = self.gets.find(self.state, &mut self.commands, get.key, None);
            self.reply_item(get, found, None);
        }
    }

    /// Answers a GET that came with a transfer into so many bytes.
    fn get_by_transfer(&mut self, transfer: Tag, room: u64) {
        // It may have ended while it waited.
        let Some(header) = self.engine.header(transfer).map(<[u8]>::to_vec) else { return };
        let get = match Get::of_transfer(&header) {
            Ok(get) if self.greeted => get,
            Ok(get) => {
                let _ = self.engine.refuse(transfer);
                return self.refuse_malformed(get.id, "a transfer before HELLO");
            }
            Err(Malformed(what)) => {
                let _ = self.engine.refuse(transfer);
                return self.refuse_malformed(0, what);
            }
        };
        if !self.may_ask(get.id) {
            return self.outbox.then(Then::Refuse(transfer));
        }
        let found = self.gets.find(self.state, &mut self.commands, get.key, Some(room));
        self.reply_item(get, found, Some(transfer));
    }

    /// Replies with what was found, and ends or feeds the transfer that asked for it.
    fn reply_item(&mut self, Get { id, wish, key }: Get<'_>, found: Found<'f>, transfer: Option<Tag>) {
        let there = !matches!(found, Found::Nothing | Found::Busy | Found::Refused(_));
        let tag = if wish && there && !self.demoted { self.reader.grant(key) } else { None };
        let mut then = transfer.map_or(Then::Nothing, Then::Refuse);
        match (found, transfer) {
            (Found::Image, _) => {
                count(&self.state.counts.gets_by_message);
                self.outbox.reply(id, &Reply::Item { tag, image: self.gets.image() });
            }
            (Found::Long(size), _) => self.outbox.reply(id, &Reply::Large { tag, size }),
            (Found::Lent(lent), Some(transfer)) => {
                self.outbox.reply(id, &Reply::Tag(tag));
                then = Then::Accept(transfer, lent);
            }
            (Found::Busy, _) => {
                self.refuse(id, Refusal::Busy, "too many large items are on their way; ask again");
            }
            (Found::Refused(line), _) => self.refuse(id, Refusal::NotNow, line),
            _ => self.outbox.reply(id, &Reply::None),
        }
        self.outbox.then(then);
    }

    fn end_transfer(&mut self, transfer: Tag, result: Result<u64, TransferError>) {
        // It may have ended before it was looked at.
        self.asked.retain(|asked| !matches!(asked, Asked::Transfer(tag, _) if *tag == transfer));
        if !self.gets.end(transfer) {
            return;
        }
        let counts = &self.state.counts;
        match result {
            Ok(bytes) => {
                count(&counts.gets_by_transfer);
                add(&counts.transferred_bytes, bytes);
                self.commands.counts().bytes_written += bytes;
            }
            Err(_) => count(&counts.failed_transfers),
        }
    }

    /// Takes a PUT: its line makes room for the value, which is read then. Of a call the piece is read; its other bytes follow the line.
    fn put(&mut self, id: u32, wish: Option<&[u8]>, line: &[u8], segments: Segments<'_>) -> Result<(), Malformed> {
        if !self.may_ask(id) {
            return Ok(());
        }
        let (line, length) = (line_of(line), length_of(segments)?);
        let Some(room) = self.state.under_way.take(length) else {
            self.refuse(id, Refusal::Busy, "too many large values are on their way; ask again");
            return Ok(());
        };
        match self.commands.announce(line, length)? {
            Announced::Memory(memory, length) => {
                self.puts.begin(Put::new(id, wish, segments, (memory, length), room));
            }
            Announced::Answered => self.outbox.answer(id, None),
            Announced::NoMemory => self.refuse(id, Refusal::Busy, "no memory to read the piece into; ask again"),
        }
        Ok(())
    }

    /// Stores the value that was read, or gives it up.
    fn end_put(&mut self, Pulled { id, wish, result }: Pulled) {
        let counts = &self.state.counts;
        match result {
            Ok(length) => {
                self.commands.end_value(length);
                count(&counts.sets_pulled);
                add(&counts.pulled_bytes, length as u64);
                let tag = wish.filter(|_| !self.demoted).and_then(|key| self.reader.grant(&key));
                self.outbox.answer(id, tag);
            }
            Err((why, text)) => {
                self.commands.give_up();
                count(&counts.failed_pulls);
                self.refuse(id, why, text);
            }
        }
    }
}
