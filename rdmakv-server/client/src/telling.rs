//! A call that all servers of one epoch have to take, as a state machine without input, output or clock.
//!
//! It ends once each server has taken it in the same epoch. In a later epoch it begins again, because a server that joined has to take it, too.
//!
//! A server takes [`Call::Freeze`] once no write of these chunks is under way there, and names those that are. Their clients end them soon, unless
//! they died, or a server that knew the outcome did. So writes that were named for a second are [ended](Ending) here.

use super::buffer::Part;
use super::caller::{Caller, Came, Outgoing};
use super::ending::Ending;
use super::membership::Layout;
use rdmakv_cluster::config::{Epoch, ServerId, State};
use rdmakv_cluster::helper::Calls;
use rdmakv_cluster::messages::{Answer, Call, Request, WriteId};
use rdmakv_cluster::wire::{About, Attributes, Entry, RequestFrame, carries_piece};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Nanoseconds before a server is asked again, at first and at most.
const PAUSE: (u64, u64) = (5_000_000, 1_000_000_000);

/// The same at most for one that writes chunks: its disk should not rest until it is asked for the next ones.
const CARRIES: u64 = 20_000_000;

/// Nanoseconds that a write is under way before it is ended here.
const PATIENCE: u64 = 1_000_000_000;

/// Writes that are ended at once.
const ENDINGS: usize = 64;

/// A call on its way to all servers.
#[derive(Debug)]
pub(super) struct Telling {
    call: Call,
    layout: Option<Arc<Layout>>,
    epoch: Option<Epoch>,
    waiting: BTreeMap<ServerId, Waiting>,
    /// The calls under way, by their numbers.
    calls: HashMap<u64, Sent>,
    last: u64,
    /// The chunks that some server carried, a bit each.
    carried: Vec<u64>,
    /// The writes that are ended, by their keys.
    endings: BTreeMap<Vec<u8>, Job>,
}

/// A server that has not taken the call.
#[derive(Debug)]
struct Waiting {
    name: String,
    /// When it is asked; None while a call is under way.
    due: Option<u64>,
    pause: u64,
    /// The writes that it named last, and when it named each first.
    named: BTreeMap<WriteId, u64>,
}

/// The purpose of a call under way.
#[derive(Debug)]
enum Sent {
    /// The call, at this server.
    Told(ServerId),
    /// The write of this key that is ended. The call went to this server.
    Ending(Vec<u8>, ServerId),
}

/// A write that is ended.
#[derive(Debug)]
struct Job {
    ending: Ending,
    /// The server that named it.
    at: ServerId,
    /// Its bytes, if they came with an answer.
    body: (Part, Attributes),
    /// Calls without an answer.
    waiting: u32,
}

impl Telling {
    /// Begins. Calls have numbers after `last`: replies to calls of before have others.
    pub(super) fn new(call: Call, last: u64) -> Self {
        Self {
            call,
            layout: None,
            epoch: None,
            waiting: BTreeMap::new(),
            calls: HashMap::new(),
            last,
            carried: Vec::new(),
            endings: BTreeMap::new(),
        }
    }

    /// Returns the epoch in which all servers took the call, once they have.
    pub(super) fn done(&self) -> Option<Epoch> {
        self.epoch.filter(|_| self.waiting.is_empty())
    }

    /// Returns the names of the servers that have not taken it.
    pub(super) fn missing(&self) -> Vec<String> {
        self.waiting.values().map(|server| server.name.clone()).collect()
    }

    /// Returns the chunks that some server carried, a bit each, after a [`Call::Carry`].
    pub(super) fn carried(self) -> Vec<u64> {
        self.carried
    }

    /// Returns the number of its last call.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    fn adopt(&mut self, layout: &Arc<Layout>, now: u64) {
        let serves = |server: &&rdmakv_cluster::config::Server| server.state != State::Joining;
        let servers = layout.config().servers().iter().filter(serves);
        let waiting =
            |name: &String| Waiting { name: name.clone(), due: Some(now), pause: PAUSE.0, named: BTreeMap::new() };
        self.waiting = servers.map(|server| (server.id, waiting(&server.name))).collect();
        // Without a server there is nothing that a later write would find.
        self.epoch = (!self.waiting.is_empty()).then_some(layout.epoch());
        self.layout = Some(Arc::clone(layout));
        self.calls.clear();
        self.endings.clear();
    }

    /// Takes the answer of a server that was told; None if none came.
    fn told(&mut self, from: ServerId, answer: Option<(Answer, Vec<u8>)>, now: u64) -> Vec<Outgoing> {
        let carries = matches!(self.call, Call::Carry { .. });
        match answer {
            Some((Answer::Taken, _)) if !carries => _ = self.waiting.remove(&from),
            Some((Answer::Carried(bits), _)) if carries => {
                self.carried.resize(self.carried.len().max(bits.len()), 0);
                self.carried.iter_mut().zip(bits).for_each(|(all, bits)| *all |= bits);
                self.waiting.remove(&from);
            }
            answer => {
                let Some(server) = self.waiting.get_mut(&from) else { return Vec::new() };
                server.due = Some(now.saturating_add(server.pause));
                server.pause = (2 * server.pause).min(if carries { CARRIES } else { PAUSE.1 });
                if let (Call::Freeze(_), Some((Answer::Busy, page))) = (&self.call, answer) {
                    return self.end_late(from, &page, now);
                }
            }
        }
        Vec::new()
    }

    /// Begins to end writes that a server names for long.
    fn end_late(&mut self, at: ServerId, page: &[u8], now: u64) -> Vec<Outgoing> {
        let (Some(server), Some(layout)) = (self.waiting.get_mut(&at), self.layout.clone()) else { return Vec::new() };
        let is_under_way = |entry: &Entry| matches!(entry.about, About::Next | About::Sealed);
        let entries: Vec<Entry> =
            Entry::decode_all(page).unwrap_or_default().into_iter().filter(is_under_way).collect();
        let since = |id: &WriteId| server.named.get(id).copied().unwrap_or(now);
        let named: BTreeMap<WriteId, u64> = entries.iter().map(|entry| (entry.id, since(&entry.id))).collect();
        server.named = named.clone();
        let mut out = Vec::new();
        for entry in entries {
            let is_late = named.get(&entry.id).is_some_and(|since| now >= since.saturating_add(PATIENCE));
            if !is_late || self.endings.len() >= ENDINGS || self.endings.contains_key(&entry.key) {
                continue;
            }
            let mut ending = Ending::of((entry.id, entry.about), layout.target(&entry.key), at);
            let calls = ending.restart();
            self.endings.insert(entry.key.clone(), Job { ending, at, body: Default::default(), waiting: 0 });
            self.post(&entry.key, calls, &mut out);
        }
        out
    }

    /// Takes the answer to a call for a write that is ended; None if none came.
    fn take_for(&mut self, key: &[u8], from: ServerId, came: Option<Came>, now: u64) -> Vec<Outgoing> {
        let mut out = Vec::new();
        let Some(job) = self.endings.get_mut(key) else { return out };
        job.waiting -= 1;
        if let Some((frame, bytes)) = came {
            if matches!(frame.reply.answer, Answer::Help(_)) {
                job.body = (bytes.into(), frame.attributes);
            }
            let calls = job.ending.take(from, &frame.reply);
            self.post(key, calls, &mut out);
        }
        // One that came to nothing is named again.
        if let Some(job) = self.endings.get(key).filter(|job| job.waiting == 0) {
            let server = self.waiting.get_mut(&job.at).filter(|server| job.ending.is_over() && server.due.is_some());
            server.into_iter().for_each(|server| server.due = Some(now));
            self.endings.remove(key);
        }
        out
    }

    /// Sends calls for a write that is ended.
    fn post(&mut self, key: &[u8], calls: Calls, out: &mut Vec<Outgoing>) {
        let Some(job) = self.endings.get_mut(key) else { return };
        for (to, request) in calls {
            self.last += 1;
            job.waiting += 1;
            self.calls.insert(self.last, Sent::Ending(key.to_vec(), to));
            let (mut frame, mut body) = (RequestFrame::new(request), Part::default());
            if carries_piece(&frame.request.call) {
                (body, frame.attributes) = job.body.clone();
            }
            out.push(Outgoing { number: self.last, to, key: key.to_vec(), frame, body });
        }
    }
}

impl Caller for Telling {
    fn progress(&mut self, layout: &Arc<Layout>, now: u64) -> Vec<Outgoing> {
        if self.epoch != Some(layout.epoch()) {
            self.adopt(layout, now);
        }
        let mut out = Vec::new();
        for (&to, server) in &mut self.waiting {
            if server.due.is_none_or(|due| now < due) {
                continue;
            }
            server.due = None;
            self.last += 1;
            self.calls.insert(self.last, Sent::Told(to));
            let request = Request { cluster: layout.config().uuid(), epoch: layout.epoch(), call: self.call.clone() };
            let (key, frame) = (b"agent".to_vec(), RequestFrame::new(request));
            out.push(Outgoing { number: self.last, to, key, frame, body: Part::default() });
        }
        out
    }

    fn take(&mut self, number: u64, came: Option<Came>, now: u64) -> Vec<Outgoing> {
        let came = came.filter(|(frame, _)| Some(frame.reply.epoch) == self.epoch);
        match self.calls.remove(&number) {
            Some(Sent::Told(from)) => self.told(from, came.map(|(frame, bytes)| (frame.reply.answer, bytes)), now),
            Some(Sent::Ending(key, from)) => self.take_for(&key, from, came, now),
            None => Vec::new(),
        }
    }

    fn rests_until(&self) -> Option<u64> {
        let is_idle = self.calls.is_empty();
        is_idle.then(|| self.waiting.values().filter_map(|server| server.due).min().unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmakv_cluster::config::{Config, Incarnation};
    use rdmakv_cluster::messages::{Chunk, Form, Frozen, Pending, Piece, Reply, Stored, Verdict, Version};
    use rdmakv_cluster::wire::ReplyFrame;

    fn config(servers: u64) -> Config {
        let join = |config: Config, run| {
            let addresses = vec![format!("tcp:127.0.0.1:{}", 11211 + run)];
            config.with_server(&format!("s{run}"), addresses, 1, Incarnation(run)).unwrap()
        };
        (0..servers).fold(Config::new(7), join).whole().unwrap()
    }

    fn telling() -> Telling {
        let frozen = Frozen { ino: 5, generation: 1, size: 1, chunk_bits: 16, runs: vec![(0, 1)] };
        Telling::new(Call::Freeze(frozen), 40)
    }

    fn came(epoch: Epoch, answer: Answer) -> Option<Came> {
        Some((ReplyFrame::new(Reply { epoch, id: None, answer }), Vec::new()))
    }

    #[test]
    fn ends_once_all_servers_took_it() {
        let layout = Arc::new(Layout::of(&config(3)));
        let epoch = layout.epoch();
        let mut telling = telling();
        assert_eq!(telling.done(), None);
        let out = telling.progress(&layout, 0);
        assert_eq!(out.iter().map(|call| call.number).collect::<Vec<_>>(), [41, 42, 43]);
        assert!(telling.progress(&layout, 1).is_empty(), "each is asked once");
        telling.take(41, came(epoch, Answer::Taken), 1);
        telling.take(42, came(epoch, Answer::Busy), 1);
        telling.take(43, None, 1);
        assert_eq!((telling.done(), telling.missing().len()), (None, 2));
        // Those are asked again after a pause.
        assert!(telling.progress(&layout, PAUSE.0).is_empty());
        assert_eq!(telling.rests_until(), Some(1 + PAUSE.0));
        let again = telling.progress(&layout, 1 + PAUSE.0);
        again.iter().for_each(|call| _ = telling.take(call.number, came(epoch, Answer::Taken), 9));
        assert_eq!((again.len(), telling.done(), telling.last()), (2, Some(epoch), 45));
    }

    #[test]
    fn begins_again_in_a_later_epoch() {
        let first = config(2);
        let joined = first.with_server("s9", vec!["tcp:127.0.0.1:9".to_owned()], 1, Incarnation(9)).unwrap();
        let (layout, later) = (Arc::new(Layout::of(&first)), Arc::new(Layout::of(&joined.whole().unwrap())));
        let mut telling = telling();
        let out = telling.progress(&layout, 0);
        telling.take(out[0].number, came(layout.epoch(), Answer::Taken), 1);
        let again = telling.progress(&later, 2);
        assert_eq!(again.len(), 3);
        // An answer to a call of before counts no more, and neither does one of another epoch.
        telling.take(out[1].number, came(layout.epoch(), Answer::Taken), 3);
        again.iter().for_each(|call| _ = telling.take(call.number, came(layout.epoch(), Answer::Taken), 3));
        assert_eq!((telling.done(), telling.missing()), (None, ["s0", "s1", "s9"].map(str::to_owned).to_vec()));
        let last = telling.progress(&later, 3 + PAUSE.0);
        last.iter().for_each(|call| _ = telling.take(call.number, came(later.epoch(), Answer::Taken), 9));
        assert_eq!(telling.done(), Some(later.epoch()));
    }

    #[test]
    fn what_servers_carried_is_put_together() {
        let layout = Arc::new(Layout::of(&config(3)));
        let epoch = layout.epoch();
        let frozen = Frozen { ino: 5, generation: 1, size: 1, chunk_bits: 16, runs: vec![(0, 1)] };
        let mut telling = Telling::new(Call::Carry { file: 3, frozen }, 0);
        telling.progress(&layout, 0);
        for (number, answer) in [(1, Answer::Carried(vec![1])), (2, Answer::Busy), (3, Answer::Carried(vec![4, 8]))] {
            telling.take(number, came(epoch, answer), 1);
        }
        assert_eq!(telling.done(), None);
        // It is asked often, and one that wrote nothing has nothing to say.
        let mut now = 1;
        for number in 4..10 {
            now += CARRIES;
            assert_eq!(telling.progress(&layout, now).len(), 1);
            telling.take(number, came(epoch, Answer::Taken), now);
        }
        assert_eq!(telling.progress(&layout, now + CARRIES).len(), 1);
        telling.take(10, came(epoch, Answer::Carried(Vec::new())), now);
        assert_eq!((telling.done(), telling.carried()), (Some(epoch), vec![5, 8]));
    }

    #[test]
    fn a_cluster_without_servers_takes_nothing() {
        let layout = Arc::new(Layout::of(&Config::new(7)));
        let mut telling = telling();
        assert!(telling.progress(&layout, 0).is_empty());
        assert_eq!(telling.done(), None);
    }

    #[test]
    fn a_write_that_stays_under_way_is_ended() {
        let config = config(3).with_policy(b"c/", rdmakv_cluster::config::Policy::Copies(3)).unwrap();
        let layout = Arc::new(Layout::of(&config));
        let epoch = layout.epoch();
        let (key, id, version) = ("c/5/1/0", WriteId { client: 9, sequence: 4 }, Version::new(epoch, 7));
        let target = layout.target(key.as_bytes());
        let backup = target.members[1];
        let mut telling = telling();
        let mut page = Vec::new();
        let about = About::Sealed;
        Entry { key: key.into(), about, id, version, length: 9 }.encode(&mut page);
        let busy = |page: &[u8]| {
            let frame = ReplyFrame::new(Reply { epoch, id: None, answer: Answer::Busy });
            Some((frame, page.to_vec()))
        };
        // Until then its client may end it.
        let (mut now, mut asked) = (0, telling.progress(&layout, 0));
        let ask = loop {
            let mut more = Vec::new();
            for call in asked {
                let answer = if call.to == backup { busy(&page) } else { came(epoch, Answer::Taken) };
                more.extend(telling.take(call.number, answer, now));
            }
            if !more.is_empty() {
                break more;
            }
            assert!(now < 3 * PATIENCE, "it is ended");
            now = telling.rests_until().unwrap();
            asked = telling.progress(&layout, now);
        };
        assert!(now >= PATIENCE);
        let call = |out: &[Outgoing]| (out[0].number, out[0].to, out[0].frame.request.call.clone());
        let (number, to, resolve) = call(&ask);
        assert_eq!((to, resolve), (target.members[0], Call::Resolve { id }));
        let reply = |answer| Some((ReplyFrame::new(Reply { epoch, id: Some(id), answer }), Vec::new()));
        let told = telling.take(number, reply(Answer::Done(Verdict::Stored(version))), now);
        let calls: Vec<_> = told.iter().map(|out| (out.to, out.frame.request.call.clone())).collect();
        let (seal, note) =
            (Call::Seal { id, version, base: Version::ABSENT, piece: None }, Call::Note { id, version, lowest: 0 });
        assert_eq!(calls, [(backup, seal), (backup, note)]);
        assert!(telling.progress(&layout, now).is_empty(), "it is asked after that");
        let answers = [Answer::Sealed(version), Answer::Taken];
        told.iter().zip(answers).for_each(|(out, answer)| _ = telling.take(out.number, reply(answer), now));
        let last = telling.progress(&layout, now);
        assert_eq!(last.len(), 1);
        telling.take(last[0].number, came(epoch, Answer::Taken), now);
        assert_eq!(telling.done(), Some(epoch));
    }

    #[test]
    fn bytes_of_an_ended_write_go_to_its_backups() {
        let config = config(2).with_policy(b"c/", rdmakv_cluster::config::Policy::Copies(2)).unwrap();
        let layout = Arc::new(Layout::of(&config));
        let epoch = layout.epoch();
        let (key, id, version) = ("c/5/1/0", WriteId { client: 9, sequence: 4 }, Version::new(epoch, 7));
        let target = layout.target(key.as_bytes());
        let mut telling = telling();
        let mut page = Vec::new();
        Entry { key: key.into(), about: About::Next, id, version, length: 9 }.encode(&mut page);
        let answer_all = |telling: &mut Telling, now| -> Vec<Outgoing> {
            let asked = telling.progress(&layout, now);
            let take = |call: Outgoing| {
                let is_primary = call.to == target.members[0];
                let answer = if is_primary { Answer::Busy } else { Answer::Taken };
                let frame = ReplyFrame::new(Reply { epoch, id: None, answer });
                telling.take(call.number, Some((frame, if is_primary { page.clone() } else { Vec::new() })), now)
            };
            asked.into_iter().flat_map(take).collect()
        };
        assert!(answer_all(&mut telling, 0).is_empty());
        let ask = answer_all(&mut telling, PATIENCE);
        let piece = Piece { chunk: Chunk(0), form: Form::Copy, length: 9, sum: 3 };
        let stored = Stored { id, version, confirmed: epoch, piece, is_staged: false };
        let answer = Answer::Help(Pending { stored, base: Version::ABSENT });
        let frame = ReplyFrame::new(Reply { epoch, id: Some(id), answer });
        let seals = telling.take(ask[0].number, Some((frame, b"the bytes".to_vec())), PATIENCE);
        assert_eq!((seals.len(), seals[0].to), (1, target.members[1]));
        assert_eq!(seals[0].body.bytes(), b"the bytes");
        let frame = ReplyFrame::new(Reply { epoch, id: Some(id), answer: Answer::Sealed(version) });
        let publish = telling.take(seals[0].number, Some((frame, Vec::new())), PATIENCE);
        assert_eq!(publish[0].frame.request.call, Call::Publish { id, version });
    }
}
