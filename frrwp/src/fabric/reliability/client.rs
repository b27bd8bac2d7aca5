//! The client's side: calls, their parts and time-outs.

use super::calls::{CallError, ClientCounters, Event, Failure};
use super::down::{Down, is_before};
use super::limits::{ClientLimits, MILLISECOND, OPEN, SECOND, UNASKED};
use super::open::Open;
use super::order::{Call, Order, Scope};
use super::outbox::Outbox;
use super::parts::Bits;
use super::server::RequestKind;
use super::window::Window;
use super::wire::{Body, Cookie, Datagram, LISTED, List, MAX_MESSAGE, Part, Refused, flags};
use crate::fabric::traits::Peer;
use std::collections::VecDeque;

/// The wait for the answer to a first HELLO; it doubles up to a second.
const HELLO_TIME: u64 = 50 * MILLISECOND;
/// How long a floor may stay untold.
const TELL_TIME: u64 = MILLISECOND;
/// PINGs that tell a floor and are not answered, after which the server's own time ends what it keeps.
const PINGS: u32 = 8;
/// The longest round trip that is believed, in µs.
const LONGEST_TRIP: u32 = 60_000_000;

/// The standing of the client with its server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Hello { nonce: u64, cookie: Option<Cookie>, due: u64, tries: u32 },
    Admitted { id: u64 },
    Closed,
}

/// A client of one thread of a server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    limits: ClientLimits,
    server: Peer,
    seed: u64,
    phase: Phase,
    incarnation: u64,
    window: Window,
    order: Order,
    /// By number.
    open: Vec<Open>,
    flight: u16,
    /// The request that sent something last.
    sent_last: u64,
    next_number: u64,
    /// The call of the first entry, and for each its time and whether it has not ended.
    first_call: u64,
    calls: VecDeque<(u64, bool)>,
    unanswered: usize,
    /// The floor that the server is known to have, and the lowest one that lets it forget all that it keeps.
    confirmed: u64,
    owed: u64,
    /// The lowest floor with which the server drops all late copies of mutations of unknown outcome.
    settles: u64,
    ping: Option<u64>,
    pings: u32,
    /// Until when a PING in the place of requests waits for an answer.
    probe: Option<u64>,
    heard: u64,
    idle: u64,
    events: VecDeque<Event>,
    outbox: Outbox,
    counters: ClientCounters,
    #[cfg(any(test, rdmakv_fault_injection))]
    mixes_executions: bool,
}

fn clock(now: u64) -> u32 {
    (now / 1000) as u32
}

/// Returns one more of a row of numbers that look random to all that do not know the first (splitmix64).
fn next_nonce(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Client {
    /// Returns a client of this server. It says hello with its first call. `seed` comes from a cryptographic generator.
    pub fn new(limits: ClientLimits, server: Peer, seed: u64) -> Self {
        let mut seed = seed;
        let nonce = next_nonce(&mut seed);
        Self {
            limits,
            server,
            seed,
            phase: Phase::Hello { nonce, cookie: None, due: 0, tries: 0 },
            incarnation: 0,
            window: Window::new(UNASKED, limits.least_timeout),
            order: Order::default(),
            open: Vec::new(),
            flight: 0,
            sent_last: 0,
            next_number: 1,
            first_call: 1,
            calls: VecDeque::new(),
            unanswered: 0,
            confirmed: 1,
            owed: 1,
            settles: 1,
            ping: None,
            pings: 0,
            probe: None,
            heard: 0,
            idle: u64::MAX,
            events: VecDeque::new(),
            outbox: Outbox::default(),
            counters: ClientCounters::default(),
            #[cfg(any(test, rdmakv_fault_injection))]
            mixes_executions: false,
        }
    }

    /// Injects a fault: parts of different executions make one reply.
    #[cfg(any(test, rdmakv_fault_injection))]
    pub fn mix_executions(&mut self) {
        self.mixes_executions = true;
    }

    /// Returns the datagrams to send.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Returns the next end of a call.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the counts.
    pub fn counters(&self) -> ClientCounters {
        self.counters
    }

    /// Returns how many calls have not ended.
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Returns the client's id, if it is admitted.
    pub fn id(&self) -> Option<u64> {
        match self.phase {
            Phase::Admitted { id } => Some(id),
            _ => None,
        }
    }

    /// Returns the run of the server that admitted the client last; 0 before.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns when the server last answered; 0 before. A datagram of another sender is no answer.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// Returns whether no mutation of unknown outcome can be executed any more: the server has a floor above each of them, and drops late copies.
    ///
    /// A client that goes on by another path waits for this. It is asked for by a PING when nothing is open, and by later requests otherwise.
    pub fn is_settled(&self) -> bool {
        self.settles <= self.confirmed
    }

    /// Ends a call before its time, as if that were over. Returns whether it had not ended.
    pub fn cancel(&mut self, now: u64, call: u64) -> bool {
        let entry = call.checked_sub(self.first_call).and_then(|at| self.calls.get(at as usize));
        let is_live = entry.is_some_and(|(_, is_live)| *is_live);
        if is_live {
            self.expire(call);
            self.pump(now);
        }
        is_live
    }

    /// Returns whether anything of a call that has not ended was sent. If not, the server has not executed it.
    pub fn was_sent(&self, call: u64) -> bool {
        self.open.iter().any(|open| open.call.call == call && open.is_touched)
    }

    /// Ends all calls before their time, as if that were over. Nothing more is sent of them. Where a mutation may still be executed, PINGs go on
    /// until the client [is settled](Self::is_settled).
    pub fn cancel_all(&mut self, now: u64) {
        self.fail_waiting(Failure::TimedOut);
        while let Some(last) = self.open.last().map(|open| open.call.call) {
            self.expire(last);
        }
        (self.ping, self.pings, self.probe) = (None, 0, None);
        self.pump(now);
    }

    /// Returns how many datagrams may be on their way.
    pub fn window(&self) -> u16 {
        self.window.size()
    }

    /// Sends a message to the server. [`next_event`](Self::next_event) returns the reply of the call with the returned number.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call(&mut self, now: u64, kind: RequestKind, scope: Scope, message: Vec<u8>) -> Result<u64, CallError> {
        if self.phase == Phase::Closed {
            return Err(CallError::Closed);
        }
        if self.unanswered >= self.limits.calls {
            return Err(CallError::Full { calls: self.unanswered });
        }
        if message.len() > MAX_MESSAGE {
            return Err(CallError::TooLarge { length: message.len() });
        }
        let call = self.first_call + self.calls.len() as u64;
        self.calls.push_back((now.saturating_add(self.limits.call_time), true));
        self.unanswered += 1;
        self.order.push(Call { call, kind, scope, message });
        self.pump(now);
        Ok(call)
    }

    /// Leaves the server. All calls end.
    pub fn close(&mut self, now: u64) {
        if let Phase::Admitted { id } = self.phase {
            self.send(now, id, self.next_number, 0, Body::Bye);
        }
        self.phase = Phase::Closed;
        while let Some(open) = self.open.first() {
            let unknown = open.is_touched && open.call.kind.is_mutation();
            self.fail(0, if unknown { Failure::Unknown } else { Failure::Closed });
        }
        self.fail_waiting(Failure::Closed);
        (self.ping, self.probe) = (None, None);
    }

    /// Ends the calls that were not sent.
    fn fail_waiting(&mut self, why: Failure) {
        for call in self.first_call..self.first_call + self.calls.len() as u64 {
            if self.order.cancel(call) {
                self.ended(call);
                self.events.push_back(Event::Failed { call, why });
            }
        }
    }

    /// Returns when [`tick`](Self::tick) has something to do.
    pub fn timer(&self) -> Option<u64> {
        let phase = match self.phase {
            Phase::Hello { due, .. } if self.unanswered > 0 => Some(due),
            Phase::Admitted { .. } => self
                .open
                .iter()
                .map(|open| {
                    open.due.min(open.probe_due).min(if open.not_before > 0 { open.not_before } else { u64::MAX })
                })
                .chain(self.ping)
                .chain(self.probe)
                .min()
                .filter(|due| *due < u64::MAX),
            _ => None,
        };
        phase.into_iter().chain(self.calls.front().map(|(ends, _)| *ends)).min()
    }

    /// Does what is due.
    pub fn tick(&mut self, now: u64) {
        while let Some(&(ends, is_live)) = self.calls.front() {
            if is_live && ends > now {
                break;
            }
            if is_live {
                self.expire(self.first_call);
            } else {
                self.calls.pop_front();
                self.first_call += 1;
            }
        }
        let mut any = false;
        for at in 0..self.open.len() {
            if self.open[at].due <= now {
                any = true;
                self.counters.timeouts += 1;
                self.window.timed_out(now);
                self.open[at].resent = Some(clock(now));
                self.change(at, Open::give_up_flight);
            } else if self.open[at].probe_due <= now {
                self.probe_tail(now, at);
            }
        }
        if let Phase::Admitted { id } = self.phase
            && any
            && self.window.is_to_probe()
        {
            // A request may be too short for the server to answer that it does not know this client, or its address.
            self.send(now, id, self.next_number, 0, Body::Ping);
            self.probe = Some(now + self.window.timeout());
        }
        for open in self.open.iter_mut().filter(|open| open.not_before <= now) {
            open.not_before = 0;
        }
        if self.ping.is_some_and(|due| due <= now) {
            self.ping(now);
        }
        self.pump(now);
    }

    /// Sends the last datagram of a silent request once more, if another answer has come since that was last done.
    fn probe_tail(&mut self, now: u64, at: usize) {
        if self.window.take_probe() {
            self.counters.probes += 1;
            self.open[at].resent = Some(clock(now));
            self.change(at, |open| open.probe_tail(clock(now)));
        } else {
            self.open[at].probe_due = self.window.patience().probe.map_or(u64::MAX, |probe| now + probe);
        }
    }

    /// The time of a call is over.
    fn expire(&mut self, call: u64) {
        if let Some(at) = self.open.iter().position(|open| open.call.call == call) {
            let open = &self.open[at];
            let unknown = open.is_touched && open.call.kind.is_mutation();
            self.fail(at, if unknown { Failure::Unknown } else { Failure::TimedOut });
        } else {
            self.order.cancel(call);
            self.ended(call);
            self.events.push_back(Event::Failed { call, why: Failure::TimedOut });
        }
    }

    /// Changes an open call, and counts what is on its way.
    fn change<T>(&mut self, at: usize, change: impl FnOnce(&mut Open) -> T) -> T {
        let open = &mut self.open[at];
        self.flight -= open.flight();
        let result = change(open);
        self.flight += open.flight();
        result
    }

    fn floor(&self) -> u64 {
        self.open.first().map_or(self.next_number, |open| open.number)
    }

    fn send(&mut self, now: u64, client: u64, request: u64, flags: u8, body: Body<'_>) {
        let floor = match body {
            Body::Hello(_) => 0,
            _ => request.saturating_sub(self.floor()) as u16,
        };
        let datagram = Datagram { client, request, floor, flags, clock: clock(now), echo: 0, body };
        self.counters.sent += 1;
        self.outbox.push(self.server, &datagram, &[], self.limits.format.check);
    }

    /// Marks a call as ended.
    fn ended(&mut self, call: u64) {
        if let Some(entry) = call.checked_sub(self.first_call).and_then(|at| self.calls.get_mut(at as usize)) {
            entry.1 = false;
            self.unanswered -= 1;
        }
        while self.calls.front().is_some_and(|(_, is_live)| !is_live) {
            self.calls.pop_front();
            self.first_call += 1;
        }
    }

    fn close_open(&mut self, at: usize) -> Open {
        let open = self.open.remove(at);
        self.flight -= open.flight();
        self.order.ended(open.call.kind, open.call.scope);
        self.ended(open.call.call);
        open
    }

    fn fail(&mut self, at: usize, why: Failure) {
        let open = self.close_open(at);
        self.owed = self.owed.max(open.number + 1);
        if why == Failure::Unknown {
            self.settles = self.owed;
        }
        self.events.push_back(Event::Failed { call: open.call.call, why });
    }

    fn succeed(&mut self, at: usize, message: Vec<u8>) {
        let open = self.close_open(at);
        if open.call.kind.is_mutation() || open.down.is_some() {
            self.owed = self.owed.max(open.number + 1);
        }
        self.events.push_back(Event::Reply { call: open.call.call, message });
    }

    fn ping(&mut self, now: u64) {
        let Phase::Admitted { id } = self.phase else { return };
        if self.pings > 0 {
            self.window.timed_out(now);
        }
        self.pings += 1;
        self.send(now, id, self.next_number, 0, Body::Ping);
        self.ping = Some(now + self.window.timeout());
    }

    /// Sends what may be sent now.
    fn pump(&mut self, now: u64) {
        let id = match &mut self.phase {
            Phase::Hello { .. } => return self.hello(now),
            Phase::Admitted { id } => *id,
            Phase::Closed => return,
        };
        if self.probe.is_some_and(|until| now < until) {
            return;
        }
        self.probe = None;
        // One that is lost again and again keeps a window of one from no other: it goes behind them each second time.
        let lost = self.open.iter().find(|open| open.number == self.sent_last && open.flight() == 0);
        let lost = lost.map(|open| open.number);
        for at in 0..self.open.len() {
            if self.flight >= self.window.size() {
                break;
            }
            if Some(self.open[at].number) != lost {
                self.send_open(now, id, at);
            }
        }
        let mut is_unsure = false;
        while self.flight < self.window.size() && self.next_number < self.floor() + OPEN {
            let Some(call) = self.order.peek() else { break };
            // The server may have forgotten this client. A PING finds that out, and no mutation is in doubt for it.
            is_unsure = call.kind.is_mutation() && now.saturating_sub(self.heard) > self.idle / 2;
            if is_unsure {
                break;
            }
            let Some(call) = self.order.pop() else { break };
            self.open.push(Open::new(call, self.next_number, self.limits.format.fragment()));
            self.next_number += 1;
            self.send_open(now, id, self.open.len() - 1);
        }
        if let Some(at) = self.open.iter().position(|open| Some(open.number) == lost)
            && self.flight < self.window.size()
        {
            self.send_open(now, id, at);
        }
        let has_news = self.open.is_empty() && self.confirmed < self.owed && self.pings < PINGS;
        if is_unsure && self.ping.is_none() {
            self.ping(now);
        } else if !is_unsure && has_news {
            self.ping.get_or_insert(now + TELL_TIME);
        } else if !is_unsure {
            (self.ping, self.pings) = (None, if self.open.is_empty() { self.pings } else { 0 });
        }
    }

    fn hello(&mut self, now: u64) {
        let Phase::Hello { nonce, cookie, due, tries } = &mut self.phase else { return };
        if self.unanswered == 0 || *due > now {
            return;
        }
        *due = now + self.window.hello_time(HELLO_TIME, *tries);
        *tries += 1;
        let (nonce, cookie) = (*nonce, cookie.unwrap_or_default());
        self.send(now, 0, nonce, 0, Body::Hello(cookie));
    }

    /// Sends parts of a request, or asks for parts of its reply.
    fn send_open(&mut self, now: u64, id: u64, at: usize) {
        let room = self.window.size().saturating_sub(self.flight);
        let (patience, floor) = (self.window.patience(), self.floor());
        let open = &mut self.open[at];
        if room == 0 || open.not_before > now {
            return;
        }
        open.not_before = 0;
        let before = open.flight();
        let header = Datagram {
            client: id,
            request: open.number,
            floor: (open.number - floor) as u16,
            flags: 0,
            clock: clock(now),
            echo: 0,
            body: Body::Ping,
        };
        let sent = match &mut open.down {
            Some(down) => {
                let Some(list) = down.next_list(room, clock(now)) else { return };
                let datagram = Datagram { body: Body::Want(list), ..header };
                self.outbox.push(self.server, &datagram, &[], self.limits.format.check);
                1
            }
            None => {
                let fragment = self.limits.format.fragment();
                let first = open.sent.first_missing();
                let mut lacking: VecDeque<u16> =
                    (first..open.granted).filter(|part| !open.sent.has(*part)).take(usize::from(room)).collect();
                if lacking.is_empty() && open.has_granted() && !open.is_waiting {
                    // All were there, and neither a reply nor a grant came: the last part asks for it.
                    lacking.push_back(open.granted.saturating_sub(1));
                    open.is_waiting = true;
                }
                let count = lacking.len();
                for (index, part) in lacking.into_iter().enumerate() {
                    open.sent.add(part);
                    let start = usize::from(part) * fragment;
                    let bytes = &open.call.message[start..open.call.message.len().min(start + fragment)];
                    let length = open.call.message.len() as u32;
                    let flags = if open.parts > 1 && index + 1 == count { flags::ANSWER_NOW } else { 0 };
                    let body = Body::Part(Part { execution: 0, part, parts: open.parts, length, bytes });
                    let datagram = Datagram { flags, body, ..header };
                    self.outbox.push(self.server, &datagram, &[], self.limits.format.check);
                }
                count
            }
        };
        if sent > 0 {
            self.counters.sent += sent as u64;
            self.sent_last = open.number;
            if !open.is_touched {
                (open.is_touched, open.told) = (true, floor);
            }
            open.expect(now, patience);
        }
        self.flight = self.flight - before + open.flight();
    }

    /// Takes a datagram.
    pub fn receive(&mut self, now: u64, from: Peer, bytes: &[u8]) {
        let Some(datagram) = Datagram::decode(bytes, self.limits.format.check) else {
            self.counters.malformed += 1;
            return;
        };
        if from != self.server || datagram.flags & flags::REPLY == 0 {
            self.counters.stale += 1;
            return;
        }
        match (&mut self.phase, datagram.body) {
            (Phase::Hello { nonce, cookie, due, .. }, Body::Retry(new)) if *nonce == datagram.request => {
                if cookie.replace(new).is_none() {
                    *due = now;
                    self.measure(now, &datagram);
                }
            }
            (Phase::Hello { nonce, .. }, Body::Admit { incarnation, idle, window }) if *nonce == datagram.request => {
                self.phase = Phase::Admitted { id: datagram.client };
                self.incarnation = incarnation;
                self.idle = u64::from(idle) * MILLISECOND;
                self.window = Window::new(window, self.limits.least_timeout);
                self.answered(now, &datagram);
            }
            (Phase::Hello { nonce, due, .. }, Body::Refused { why: Refused::Full, .. })
                if *nonce == datagram.request =>
            {
                *due = now + SECOND;
                self.measure(now, &datagram);
                self.fail_waiting(Failure::Full);
            }
            (Phase::Admitted { id }, body) if *id == datagram.client => match body {
                Body::Retry(cookie) => {
                    // This side's address has changed.
                    let id = *id;
                    self.send(now, id, datagram.request, 0, Body::Hello(cookie));
                }
                Body::Reset { .. } => self.reset(now),
                // It tells nothing of the floor, though its request is that of a HELLO.
                Body::Admit { .. } => self.answered(now, &datagram),
                _ => {
                    self.answered(now, &datagram);
                    self.about_request(now, &datagram);
                }
            },
            _ => self.counters.stale += 1,
        }
        self.pump(now);
    }

    /// An answer came: the server is there, and its echo is a round trip.
    fn answered(&mut self, now: u64, datagram: &Datagram<'_>) {
        self.heard = now;
        self.probe = None;
        self.measure(now, datagram);
        if datagram.flags & flags::SLOW_DOWN != 0 {
            self.counters.slow_down += 1;
            self.window.slow_down(now);
        }
    }

    /// Takes the round trip of an answer.
    fn measure(&mut self, now: u64, datagram: &Datagram<'_>) {
        let trip = clock(now).wrapping_sub(datagram.echo);
        if trip <= LONGEST_TRIP {
            self.window.answered(now, u64::from(trip) * 1000, u64::from(datagram.clock) * 1000);
        }
    }

    /// The server does not know this client: it restarted, or it has forgotten it.
    fn reset(&mut self, now: u64) {
        self.counters.resets += 1;
        let nonce = next_nonce(&mut self.seed);
        self.phase = Phase::Hello { nonce, cookie: None, due: now, tries: 0 };
        while let Some(open) = self.open.last() {
            if open.is_touched && open.call.kind.is_mutation() {
                self.fail(self.open.len() - 1, Failure::Unknown);
            } else if let Some(open) = self.open.pop() {
                self.order.put_back(open.call);
            }
        }
        // No server knows the old id any more, so nothing of it is executed.
        (self.flight, self.next_number, self.confirmed, self.owed, self.settles) = (0, 1, 1, 1, 1);
        self.sent_last = 0;
        (self.ping, self.pings, self.probe) = (None, 0, None);
    }

    fn about_request(&mut self, now: u64, datagram: &Datagram<'_>) {
        if datagram.body == Body::Pong {
            self.confirmed = self.confirmed.max(datagram.request);
            (self.ping, self.pings) = (None, 0);
            return;
        }
        let found = self.open.binary_search_by_key(&datagram.request, |open| open.number);
        let Some(at) = found.ok().filter(|at| self.open[*at].is_touched) else {
            self.counters.stale += 1;
            return;
        };
        self.confirmed = self.confirmed.max(self.open[at].told);
        if let Some(resent) = self.open[at].resent.take() {
            self.window.recovered(now, is_before(datagram.echo, resent));
        }
        match datagram.body {
            Body::Part(part) => self.reply(now, at, datagram.echo, &part),
            Body::Have(list) => self.have(now, at, datagram.echo, &list),
            Body::Refused { execution, why } => self.refused(now, at, execution, why),
            _ => self.counters.stale += 1,
        }
    }

    fn reply(&mut self, now: u64, at: usize, echo: u32, part: &Part<'_>) {
        if part.parts == 1 {
            self.window.arrived(1);
            return self.succeed(at, part.bytes.to_vec());
        }
        let open = &self.open[at];
        let is_other = open.down.as_ref().is_some_and(|down| down.execution() != part.execution);
        #[cfg(any(test, rdmakv_fault_injection))]
        let is_other = is_other && !self.mixes_executions;
        if is_other && open.down.as_ref().is_some_and(|down| is_before(part.execution, down.execution())) {
            self.counters.stale += 1;
            return;
        }
        let patience = self.window.patience();
        let (is_new, lost) = self.change(at, |open| {
            if open.down.is_none() || is_other {
                open.down = Down::of(part);
            }
            let Some(down) = &mut open.down else { return (false, 0) };
            let is_new = down.place(part);
            let lost = down.find_lost(part.part, echo);
            open.is_probed &= !is_new;
            open.expect(now, patience);
            (is_new, lost)
        });
        self.window.arrived(u16::from(is_new));
        (0..lost).for_each(|_| self.window.lost(now));
        if self.open[at].down.as_ref().is_some_and(Down::is_whole) {
            let message = self.change(at, |open| open.down.as_mut().map(Down::take_message));
            self.succeed(at, message.unwrap_or_default());
        }
    }

    fn have(&mut self, now: u64, at: usize, echo: u32, list: &List) {
        let patience = self.window.patience();
        let (arrived, lost) = self.change(at, |open| {
            if open.down.is_some() || list.next > open.parts {
                return (0, 0);
            }
            match open.assembly {
                Some(number) if number == list.execution => {}
                Some(number) if is_before(list.execution, number) => return (0, 0),
                // The server began anew: it has these parts and no others.
                _ => {
                    open.assembly = Some(list.execution);
                    open.acked = Bits::new(open.parts);
                    open.granted = list.upto.min(open.parts);
                    open.recovery = None;
                    open.is_waiting = false;
                }
            }
            let before = open.acked.count();
            let mut highest = 0;
            for part in 0..open.parts.min(list.next.saturating_add(LISTED)) {
                if list.has(part) {
                    open.acked.add(part);
                    open.sent.add(part);
                    highest = part;
                }
            }
            let upto = list.upto.min(open.parts);
            if upto > open.granted {
                (open.granted, open.refusals) = (upto, 0);
            }
            let mut lost = 0;
            if open.recovery.is_none_or(|recovery| !is_before(echo, recovery)) {
                lost = open.find_lost(highest, echo);
                if lost > 0 {
                    open.recovery = Some(clock(now));
                }
            }
            open.is_waiting = open.acked.count() == open.parts;
            if open.has_granted() && !open.is_waiting {
                // The server has no room for more now.
                open.hold_back(now);
            }
            open.is_probed = false;
            open.expect(now, patience);
            (open.acked.count().saturating_sub(before), lost)
        });
        self.window.arrived(arrived);
        (0..lost).for_each(|_| self.window.lost(now));
    }

    fn refused(&mut self, now: u64, at: usize, execution: u32, why: Refused) {
        let open = &self.open[at];
        match why {
            Refused::Busy => {
                self.counters.busy += 1;
                self.change(at, |open| {
                    open.acked = Bits::new(open.parts);
                    open.give_up_flight();
                    open.hold_back(now);
                });
            }
            Refused::ReplyGone if execution != open.down.as_ref().map_or(0, Down::execution) => {
                self.counters.stale += 1;
            }
            Refused::ReplyGone if open.call.kind.is_mutation() => self.fail(at, Failure::Unknown),
            Refused::ReplyGone => self.change(at, |open| {
                // The read is executed again, and all of its reply comes from there.
                open.down = None;
                open.acked = Bits::new(open.parts);
                open.give_up_flight();
                open.hold_back(now);
            }),
            Refused::TooLarge => self.fail(at, Failure::TooLarge),
            Refused::Full => self.counters.stale += 1,
        }
    }
}
