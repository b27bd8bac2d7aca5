//! The duties of a server's agent, as a state machine without input, output or clock: it repairs, and ends what clients left behind.
//!
//! In each epoch that is not whole it reads the keys whose primary its server is, and has the other members get what they lack. Then it tells
//! all servers the fates of writes, and then reports the server as repaired. All of that begins again in a later epoch, and may be done by
//! two agents at once.
//!
//! From time to time it looks for what is *unsettled* at its server: writes that were not published, staged pieces that were not ordered,
//! tombstones. Each is ended once it was there for long.

mod events;
#[cfg(test)]
mod tests;

use super::buffer::Part;
use super::caller::{Caller, Came, Outgoing};
use super::ending::Ending;
use super::erasure::{Fragments, Parts};
use super::membership::Layout;
use rdmakv_cluster::config::{ServerId, State};
use rdmakv_cluster::helper::{Calls, Target};
use rdmakv_cluster::messages::{
    Answer, Call, Chunk, Fate, Form, Piece, Place, Report, Request, Select, Stored, Verdict, Version, WriteId,
};
use rdmakv_cluster::repair::Repair;
use rdmakv_cluster::wire::{About, Attributes, Entry, ReplyFrame, RequestFrame, carries_piece};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub use events::AgentEvent;

const SECOND: u64 = 1_000_000_000;
/// Keys that are worked on at once, and the bytes of their values.
const KEYS: usize = 256;
const BYTES: u64 = 32 << 20;
/// Nanoseconds before a call is repeated, at first and at most.
const PAUSE: (u64, u64) = (5_000_000, SECOND);
/// Nanoseconds between two looks for what is unsettled, and between two reports.
const LOOK: u64 = 10 * SECOND;
const REPORT: u64 = SECOND / 2;
/// Nanoseconds for which the cluster may lack the server before that is told: an agent begins before its server has joined.
const ABSENT: u64 = 10 * SECOND;
/// Nanoseconds before keys are repaired again that could not be, at first and at most.
const AGAIN: (u64, u64) = (10 * SECOND, 80 * SECOND);
/// Attempts to send a member what it lacks.
const ATTEMPTS: u32 = 12;
/// Unsettled keys that are remembered from one look to the next.
const SEEN: usize = 1 << 18;
/// Bytes that may be sent at once, though the rate is kept in the long run, in nanoseconds of the rate.
const BURST: u64 = SECOND / 20;

/// The duties of the agent of one server.
#[derive(Debug)]
pub(super) struct Duties {
    /// The server's name.
    name: String,
    /// Bytes a second.
    rate: u64,
    layout: Option<Arc<Layout>>,
    me: Option<ServerId>,
    began: u64,
    phase: Phase,
    /// When the phase asks again, if it waits for no reply.
    phase_at: u64,
    phase_call: Option<u64>,
    pauses: u32,
    entries: VecDeque<Entry>,
    jobs: BTreeMap<u64, Job>,
    keys: HashSet<Vec<u8>>,
    bytes: u64,
    calls: HashMap<u64, Sent>,
    last: u64,
    report: Report,
    reported_at: u64,
    /// Servers that did not take what they lack.
    refusing: BTreeSet<ServerId>,
    /// When keys are repaired again that could not be, and the pause before that.
    again: Option<(u64, u64)>,
    /// When it is told that the cluster lacks the server; not again before it has been there.
    absent_at: u64,
    /// Unsettled writes, and when each was first seen; whether the present look saw it.
    seen: HashMap<(About, WriteId), (u64, bool)>,
    events: Vec<AgentEvent>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// Keys are repaired. The place is where the next page begins; None after the last one.
    Repairing(Option<Place>),
    /// The fates of a shard are asked for.
    Fates(u32, Option<WriteId>),
    /// Fates are told to these servers; then more are asked for.
    Telling { shard: u32, list: Vec<(WriteId, Fate)>, to: Vec<ServerId> },
    /// The end is reported.
    Reporting,
    /// Nothing is to be repaired. The place is that of the present look for what is unsettled.
    Looking(Option<Place>),
}

#[derive(Debug)]
struct Sent {
    /// The job that waits for it.
    job: Option<u64>,
    to: ServerId,
}

/// The work on one key.
#[derive(Debug)]
struct Job {
    key: Vec<u8>,
    target: Target,
    kind: Kind,
    /// Calls without an answer. It begins again after the last one only, so no reply is to a call of before.
    waiting: u32,
    retry_at: Option<u64>,
    pauses: u32,
    length: u64,
    /// The bytes that calls carry, by the numbers of their chunks. The first ones came with the last reply.
    bodies: Vec<(Part, Attributes)>,
    /// The fragments that were read of the value.
    parts: Parts,
    /// A member did not answer: it may have a fragment.
    is_silent: bool,
    /// The version of which all members together had too few fragments at the last attempt.
    lacked: Option<Version>,
    /// A member that does not take what it lacks.
    refusing: Option<ServerId>,
    /// Attempts to send it that.
    attempts: u32,
    /// The backing directory of a file system has it, too.
    is_clean: bool,
}

#[derive(Debug)]
enum Kind {
    Repair(Repair),
    /// A write is ended that something was left of at this agent's server.
    End(Ending),
    /// A tombstone is forgotten: by these members, then by the primary.
    Forget(Version, Vec<ServerId>),
    /// Its last calls are under way.
    Ending,
}

impl Duties {
    /// Returns the agent of the server with this name, which sends so many bytes a second.
    pub(super) fn new(name: &str, rate: u64) -> Self {
        Self {
            name: name.to_owned(),
            rate: rate.max(1),
            layout: None,
            me: None,
            began: 0,
            phase: Phase::Looking(None),
            phase_at: 0,
            phase_call: None,
            pauses: 0,
            entries: VecDeque::new(),
            jobs: BTreeMap::new(),
            keys: HashSet::new(),
            bytes: 0,
            calls: HashMap::new(),
            last: 0,
            report: Report::default(),
            reported_at: 0,
            refusing: BTreeSet::new(),
            again: None,
            absent_at: u64::MAX,
            seen: HashMap::new(),
            events: Vec::new(),
        }
    }

    /// Returns what happened since the last time.
    pub(super) fn take_events(&mut self) -> Vec<AgentEvent> {
        std::mem::take(&mut self.events)
    }
}

impl Caller for Duties {
    fn progress(&mut self, layout: &Arc<Layout>, now: u64) -> Vec<Outgoing> {
        if self.layout.as_ref().is_none_or(|own| own.epoch() != layout.epoch()) {
            self.adopt(layout, now);
        }
        let Some(me) = self.me else {
            if now >= self.absent_at {
                self.absent_at = u64::MAX;
                self.events.push(AgentEvent::Absent { epoch: layout.epoch().0 });
            }
            return Vec::new();
        };
        let mut out = Vec::new();
        let due: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.retry_at.is_some_and(|at| now >= at)).map(|(&n, _)| n).collect();
        due.into_iter().for_each(|number| self.restart(number, now, &mut out));
        self.admit(now, &mut out);
        if matches!(self.phase, Phase::Repairing(_)) && now >= self.reported_at.saturating_add(REPORT) {
            self.reported_at = now;
            self.report.millis = (now - self.began) / 1_000_000;
            let left = self.report.left + self.jobs.len() as u64;
            self.send(me, Call::Report(Report { left, ..self.report }), &mut out);
        }
        if self.phase_call.is_none() && now >= self.phase_at {
            self.go_on(me, now, &mut out);
        }
        out
    }

    fn rests_until(&self) -> Option<u64> {
        let is_idle = self.calls.is_empty() && self.entries.is_empty() && self.jobs.is_empty();
        // Without its server there is nothing to do in this epoch.
        is_idle.then_some(if self.me.is_some() { self.phase_at } else { self.absent_at })
    }

    fn take(&mut self, number: u64, came: Option<Came>, now: u64) -> Vec<Outgoing> {
        let Some(Sent { job, to }) = self.calls.remove(&number) else { return Vec::new() };
        let mut out = Vec::new();
        match job {
            Some(job) => self.take_for(job, to, came, now, &mut out),
            None if self.phase_call == Some(number) => {
                self.phase_call = None;
                self.phase_at = match self.take_for_phase(to, came, now) {
                    Some(rest) => {
                        self.pauses = 0;
                        now + rest
                    }
                    None => now + pause(&mut self.pauses),
                };
            }
            None => {}
        }
        out.extend(self.layout.clone().map(|layout| self.progress(&layout, now)).unwrap_or_default());
        out
    }
}

impl Duties {
    fn adopt(&mut self, layout: &Arc<Layout>, now: u64) {
        let config = layout.config();
        let before = self.layout.as_ref().zip(self.me).and_then(|(layout, me)| layout.config().server(me));
        let drained = before.is_some_and(|server| server.state == State::Draining);
        let was_absent = self.layout.is_some() && self.me.is_none();
        self.me = config.servers().iter().find(|server| server.name == self.name).map(|server| server.id);
        self.layout = Some(Arc::clone(layout));
        self.phase = if config.is_whole() { Phase::Looking(None) } else { Phase::Repairing(Some(Place::FIRST)) };
        (self.began, self.phase_at, self.phase_call, self.pauses) = (now, now, None, 0);
        (self.report, self.reported_at, self.bytes, self.again) = (Report::default(), now, 0, None);
        self.refusing.clear();
        self.entries.clear();
        self.jobs.clear();
        self.keys.clear();
        self.calls.clear();
        if self.me.is_some() || drained {
            self.absent_at = u64::MAX;
        }
        let epoch = config.epoch().0;
        if self.me.is_none() && drained {
            self.events.push(AgentEvent::Drained { epoch });
        } else if self.me.is_none() {
            if !was_absent {
                self.absent_at = now + ABSENT;
            }
        } else if config.is_whole() {
            self.phase_at = now + LOOK;
        } else {
            self.events.push(AgentEvent::Began { epoch });
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Sends a call that is for no key.
    fn send(&mut self, to: ServerId, call: Call, out: &mut Vec<Outgoing>) -> u64 {
        let number = self.number();
        let Some(layout) = &self.layout else { return number };
        let request = Request { cluster: layout.config().uuid(), epoch: layout.epoch(), call };
        self.calls.insert(number, Sent { job: None, to });
        let frame = RequestFrame::new(request);
        out.push(Outgoing { number, to, key: b"agent".to_vec(), frame, body: Part::default() });
        number
    }

    // ---- The phases -----------------------------------------------------------------------------------------------

    /// Makes the next call of the phase.
    fn go_on(&mut self, me: ServerId, now: u64, out: &mut Vec<Outgoing>) {
        self.report.millis = (now - self.began) / 1_000_000;
        let call = match &self.phase {
            Phase::Repairing(Some(from)) if self.entries.is_empty() => {
                Some((me, Call::Keys { select: Select::Primary, from: *from }))
            }
            Phase::Repairing(None) if self.entries.is_empty() && self.jobs.is_empty() => {
                if self.report.short + self.report.refused > 0 {
                    return self.put_off(me, now, out);
                }
                self.phase = Phase::Fates(0, None);
                return self.go_on(me, now, out);
            }
            Phase::Repairing(_) => None,
            &Phase::Fates(shard, after) => Some((me, Call::FatesAfter { shard, after })),
            Phase::Telling { list, to, .. } => to.first().map(|&to| (to, Call::Fates(list.clone()))),
            Phase::Reporting => Some((me, Call::Report(Report { is_done: true, left: 0, ..self.report }))),
            // What the last look found is ended first.
            Phase::Looking(None) if !self.entries.is_empty() => None,
            Phase::Looking(None) if self.again.is_some_and(|(at, _)| now >= at) && self.jobs.is_empty() => {
                self.report = Report { bytes: self.report.bytes, ..Report::default() };
                self.phase = Phase::Repairing(Some(Place::FIRST));
                return self.go_on(me, now, out);
            }
            Phase::Looking(None) => {
                self.seen.retain(|_, (_, is_there)| std::mem::take(is_there));
                self.phase = Phase::Looking(Some(Place::FIRST));
                return self.go_on(me, now, out);
            }
            Phase::Looking(Some(from)) => Some((me, Call::Keys { select: Select::Unsettled, from: *from })),
        };
        if let Some((to, call)) = call {
            self.phase_call = Some(self.send(to, call, out));
        }
    }

    /// Leaves keys that cannot be repaired for later, and tells it the first time. The epoch does not become whole meanwhile.
    fn put_off(&mut self, me: ServerId, now: u64, out: &mut Vec<Outgoing>) {
        let pause = self.again.map_or(AGAIN.0, |(_, pause)| (2 * pause).min(AGAIN.1));
        if let (None, Some(layout)) = (self.again, &self.layout) {
            let server = |&id: &ServerId| layout.config().server(id).map(|server| server.name.clone());
            let Report { short, refused, .. } = self.report;
            let servers = self.refusing.iter().filter_map(server).collect();
            self.events.push(AgentEvent::Unrepaired { epoch: layout.epoch().0, short, refused, servers });
        }
        self.again = Some((now + pause, pause));
        (self.phase, self.phase_at) = (Phase::Looking(None), now + LOOK);
        self.send(me, Call::Report(self.report), out);
    }

    /// Takes the reply to the phase's call. Returns the time until the next one; None if this one has to be made again.
    fn take_for_phase(&mut self, from: ServerId, came: Option<Came>, now: u64) -> Option<u64> {
        let (Some((frame, bytes)), Some(layout)) = (came, &self.layout) else { return None };
        if frame.reply.epoch != layout.epoch() {
            return None;
        }
        match (&mut self.phase, frame.reply.answer) {
            (Phase::Repairing(_), Answer::Keys { next, left }) => {
                let entries = Entry::decode_all(&bytes).ok()?;
                self.report.left = left + entries.len() as u64;
                self.entries.extend(entries);
                self.phase = Phase::Repairing(next);
            }
            (Phase::Fates(..), Answer::Fates(None)) => self.phase = Phase::Reporting,
            (Phase::Fates(shard, _), Answer::Fates(Some(list))) if list.is_empty() => {
                self.phase = Phase::Fates(*shard + 1, None);
            }
            (&mut Phase::Fates(shard, _), Answer::Fates(Some(list))) => {
                let others = layout.config().servers().iter().map(|server| server.id);
                let to: Vec<ServerId> = others.filter(|&other| Some(other) != self.me).collect();
                self.phase = Phase::Telling { shard, list, to };
                self.told();
            }
            (Phase::Telling { to, .. }, Answer::Taken) => {
                to.retain(|&server| server != from);
                self.told();
            }
            (Phase::Reporting, Answer::Taken) => {
                let (epoch, Report { keys, bytes, lost, .. }) = (layout.epoch().0, self.report);
                let time = Duration::from_nanos(now - self.began);
                self.events.push(AgentEvent::Repaired { epoch, keys, bytes, lost, time });
                (self.phase, self.again) = (Phase::Looking(None), None);
            }
            (Phase::Looking(place), Answer::Keys { next, .. }) => {
                let entries = Entry::decode_all(&bytes).ok()?;
                *place = next;
                self.look_at(entries, now);
                if next.is_none() {
                    return Some(LOOK);
                }
            }
            _ => return None,
        }
        Some(0)
    }

    /// Goes on after all servers were told some fates.
    fn told(&mut self) {
        if let Phase::Telling { shard, list, to } = &self.phase
            && to.is_empty()
        {
            self.phase = Phase::Fates(*shard, list.last().map(|&(id, _)| id));
        }
    }

    /// Notes what is unsettled, and begins to end what has been so for long.
    fn look_at(&mut self, entries: Vec<Entry>, now: u64) {
        let Some(layout) = &self.layout else { return };
        let lease = u64::from(layout.config().lease_ms()) * 1_000_000;
        for entry in entries {
            let about = entry.about;
            let patience = match about {
                About::Next => SECOND,
                About::Sealed => 10 * SECOND,
                About::Staged => 30 * SECOND,
                About::Tombstone if layout.config().is_whole() => 2 * lease,
                About::Tombstone | About::Value => continue,
            };
            let is_full = self.seen.len() >= SEEN;
            let name = (about, entry.id);
            let since = match self.seen.get_mut(&name) {
                Some((since, is_there)) => {
                    *is_there = true;
                    *since
                }
                None if is_full => continue,
                None => {
                    self.seen.insert(name, (now, true));
                    now
                }
            };
            if now >= since.saturating_add(patience) {
                // Its place is for another: a full list would keep those of this look until the one after the next.
                self.seen.remove(&name);
                self.entries.push_back(entry);
            }
        }
    }

    // ---- The work on keys -----------------------------------------------------------------------------------------

    /// Begins the work on keys, as far as there is room.
    fn admit(&mut self, now: u64, out: &mut Vec<Outgoing>) {
        let Some(layout) = self.layout.clone() else { return };
        let allowed = u128::from(self.rate) * u128::from((now - self.began).saturating_add(BURST)) / u128::from(SECOND);
        while let Some(entry) = self.entries.front() {
            let is_full = self.jobs.len() >= KEYS || self.bytes.saturating_add(entry.length) > BYTES;
            if is_full && !self.jobs.is_empty() || u128::from(self.report.bytes) > allowed {
                return;
            }
            let Some(entry) = self.entries.pop_front() else { return };
            self.report.left = self.report.left.saturating_sub(1);
            let target = layout.target(&entry.key);
            if self.keys.contains(&entry.key) || !target.members.iter().any(|&member| Some(member) == self.me) {
                continue;
            }
            self.begin(entry, target, now, out);
        }
    }

    fn begin(&mut self, entry: Entry, target: Target, now: u64, out: &mut Vec<Outgoing>) {
        let kind = match entry.about {
            About::Value => {
                let may_lose = self.layout.as_ref().map_or(0, |layout| layout.policy(&entry.key).may_lose());
                Kind::Repair(Repair::begin(target.clone(), may_lose).0)
            }
            About::Tombstone => Kind::Forget(entry.version, Vec::new()),
            about @ (About::Next | About::Staged | About::Sealed) => {
                let Some(me) = self.me else { return };
                Kind::End(Ending::of((entry.id, about), target.clone(), me))
            }
        };
        let number = self.number();
        self.bytes += entry.length;
        self.keys.insert(entry.key.clone());
        let (key, length) = (entry.key, entry.length);
        let bodies = vec![(Part::default(), Attributes::default())];
        let (waiting, retry_at, pauses) = (0, None, 0);
        self.jobs.insert(
            number,
            Job {
                key,
                target,
                kind,
                waiting,
                retry_at,
                pauses,
                length,
                bodies,
                parts: Parts::default(),
                is_silent: false,
                lacked: None,
                refusing: None,
                attempts: 0,
                is_clean: false,
            },
        );
        self.restart(number, now, out);
    }

    /// Begins the work on a key again.
    fn restart(&mut self, number: u64, now: u64, out: &mut Vec<Outgoing>) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        job.retry_at = None;
        job.bodies.truncate(1);
        let calls = match &mut job.kind {
            Kind::Repair(repair) => repair.lost(),
            Kind::End(ending) => ending.restart(),
            Kind::Forget(version, waiting) => {
                *waiting = job.target.others().to_vec();
                let forget = Call::Forget { version: *version };
                if waiting.is_empty() { job.target.primary(forget) } else { job.target.each(waiting, &forget) }
            }
            Kind::Ending => Calls::new(),
        };
        self.post(number, calls, out);
        self.settle(number, now);
    }

    /// Sends calls of a job.
    fn post(&mut self, number: u64, calls: Calls, out: &mut Vec<Outgoing>) {
        for (to, request) in calls {
            let call = self.number();
            let Some(job) = self.jobs.get_mut(&number) else { return };
            job.waiting += 1;
            let mut frame = RequestFrame::new(request);
            let mut body = Part::default();
            if carries_piece(&frame.request.call) {
                let chunk = frame.request.call.piece().map_or(0, |piece| piece.chunk.0);
                let carried = job.bodies.get(chunk as usize).or(job.bodies.first());
                (body, frame.attributes) = carried.cloned().unwrap_or_default();
            }
            if matches!(frame.request.call, Call::Repair { .. }) {
                self.report.bytes += body.bytes().len() as u64;
            }
            self.calls.insert(call, Sent { job: Some(number), to });
            out.push(Outgoing { number: call, to, key: job.key.clone(), frame, body });
        }
    }

    /// Takes the reply to a call of a job.
    fn take_for(&mut self, number: u64, from: ServerId, came: Option<Came>, now: u64, out: &mut Vec<Outgoing>) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        job.waiting = job.waiting.saturating_sub(1);
        let calls = match came {
            Some((frame, bytes)) if frame.reply.epoch == job.target.epoch => job.take(from, &frame, bytes),
            _ => {
                job.is_silent = true;
                job.not_taken(from);
                Calls::new()
            }
        };
        self.post(number, calls, out);
        self.settle(number, now);
    }

    /// Ends a job that is done. One that waits for nothing begins again after a pause.
    fn settle(&mut self, number: u64, now: u64) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let is_repaired = matches!(&job.kind, Kind::Repair(repair) if repair.is_done());
        let is_lost = job.waiting == 0 && job.retry_at.is_none() && job.is_lost();
        let is_short = matches!(&job.kind, Kind::Repair(repair) if !repair.is_whole());
        let refusing = job.refusing.filter(|_| job.waiting == 0);
        if is_repaired || is_lost || refusing.is_some() || matches!(job.kind, Kind::Ending) && job.waiting == 0 {
            self.report.keys += u64::from(is_repaired && !is_short);
            self.report.short += u64::from(is_repaired && is_short);
            // A clean one is on the backing directory, and servers evict its fragments one by one.
            self.report.lost += u64::from(is_lost && !job.is_clean);
            self.report.refused += u64::from(!is_repaired && !is_lost);
            self.refusing.extend(refusing);
            self.bytes = self.bytes.saturating_sub(job.length);
            if let Some(job) = self.jobs.remove(&number) {
                self.keys.remove(&job.key);
            }
        } else if job.waiting == 0 && job.retry_at.is_none() {
            job.retry_at = Some(now + pause(&mut job.pauses));
        }
    }
}

impl Job {
    /// Takes a reply of this epoch.
    fn take(&mut self, from: ServerId, frame: &ReplyFrame, bytes: Vec<u8>) -> Calls {
        let reply = &frame.reply;
        self.is_clean |= frame.attributes.is_clean;
        match &mut self.kind {
            Kind::Repair(repair) => {
                if let Answer::Done(Verdict::Declined(_)) = reply.answer {
                    self.refusing = Some(from);
                    return Calls::new();
                }
                if let (Some((wanted, lacking)), Answer::Value(Some(found))) = (repair.wants(), &reply.answer)
                    && found.version == wanted.version
                {
                    if matches!(found.piece.form, Form::Fragment { .. }) {
                        self.parts.take(&found.piece, bytes);
                        return self.rebuild(frame.attributes);
                    }
                    let piece = Piece { chunk: Chunk(1), ..found.piece };
                    let pieces = vec![piece; lacking.len()];
                    self.bodies.truncate(1);
                    self.bodies.push((bytes.into(), frame.attributes));
                    return repair.fetched(&pieces);
                }
                if matches!(reply.answer, Answer::Help(_)) {
                    self.bodies[0] = (bytes.into(), frame.attributes);
                }
                let is_fetching = repair.wants().is_some();
                self.is_silent |= !matches!(reply.answer, Answer::Value(_));
                let mut calls = repair.take(from, reply);
                if !is_fetching {
                    calls.extend(self.fetch());
                }
                calls
            }
            Kind::End(ending) => {
                if matches!(reply.answer, Answer::Help(_)) {
                    self.bodies[0] = (bytes.into(), frame.attributes);
                }
                let calls = ending.take(from, reply);
                if ending.is_over() {
                    self.kind = Kind::Ending;
                }
                calls
            }
            Kind::Forget(version, waiting) if reply.answer == Answer::Taken => {
                let forget = Call::Forget { version: *version };
                if self.target.is_primary(from) {
                    self.kind = Kind::Ending;
                    return Calls::new();
                }
                waiting.retain(|&server| server != from);
                if waiting.is_empty() { self.target.primary(forget) } else { Calls::new() }
            }
            Kind::Forget(..) | Kind::Ending => Calls::new(),
        }
    }

    /// Notes that a member did not take what it lacks, and gave no reason.
    fn not_taken(&mut self, from: ServerId) {
        if matches!(&self.kind, Kind::Repair(repair) if repair.is_sending()) {
            self.attempts += 1;
            self.refusing = (self.attempts >= ATTEMPTS).then_some(from);
        }
    }

    /// Asks for the bytes that members lack. A tombstone has none.
    fn fetch(&mut self) -> Calls {
        let Kind::Repair(repair) = &mut self.kind else { return Calls::new() };
        let Some((Stored { version, piece, .. }, lacking)) = repair.wants() else { return Calls::new() };
        match piece.form {
            Form::Copy => self.target.primary(Call::Fetch { version: *version }),
            Form::Tombstone => {
                let pieces = vec![Piece { chunk: Chunk(1), ..*piece }; lacking.len()];
                self.bodies.truncate(1);
                self.bodies.push((Part::default(), Attributes::default()));
                repair.fetched(&pieces)
            }
            Form::Fragment { .. } => {
                self.parts.clear();
                self.is_silent = false;
                self.target.each(&self.target.members, &Call::Fetch { version: *version })
            }
        }
    }

    /// Returns whether all members together have too few sound fragments of the value, and had at the attempt before.
    ///
    /// Between two attempts a later write could have followed. Servers bring nothing back, so a lost value is not waited for.
    fn is_lost(&mut self) -> bool {
        let Kind::Repair(repair) = &self.kind else { return false };
        let Some((Stored { version, piece, .. }, _)) = repair.wants().filter(|_| !self.is_silent) else { return false };
        let lacked = piece.is_fragment().then_some(*version);
        let before = std::mem::replace(&mut self.lacked, lacked);
        lacked.is_some() && before == lacked
    }

    /// Makes the fragments that members lack, once enough others were read and their value has the right sum.
    fn rebuild(&mut self, attributes: Attributes) -> Calls {
        let Kind::Repair(repair) = &mut self.kind else { return Calls::new() };
        let Some((Stored { piece, .. }, lacking)) = repair.wants() else { return Calls::new() };
        let index = |form: &Form| if let Form::Fragment { index, .. } = form { *index } else { 0 };
        let indices: Vec<u8> = lacking.iter().map(|(_, form)| index(form)).collect();
        let (Form::Fragment { k, .. }, Some(value)) = (piece.form, self.parts.value(piece)) else {
            return Calls::new();
        };
        let members = indices.iter().map(|&index| usize::from(index) + 1).max().unwrap_or(0);
        let mut made = Fragments::of(&Arc::new(value.into()), k, members);
        let chunk = |at: usize| Chunk(at as u64 + 1);
        let pieces: Vec<Piece> =
            lacking.iter().enumerate().map(|(at, &(_, form))| Piece { chunk: chunk(at), form, ..*piece }).collect();
        self.bodies.truncate(1);
        self.bodies.extend(indices.iter().map(|&index| (made.get(index, None), attributes)));
        repair.fetched(&pieces)
    }
}

/// Returns the next pause, each twice as long as the one before.
fn pause(pauses: &mut u32) -> u64 {
    let pause = (PAUSE.0 << (*pauses).min(20)).min(PAUSE.1);
    *pauses += 1;
    pause
}
