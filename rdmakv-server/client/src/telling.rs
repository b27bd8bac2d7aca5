//! A call that all servers of one epoch have to take, as a state machine without input, output or clock.
//!
//! It ends once each server has taken it in the same epoch. In a later epoch it begins again, because a server that joined has to take it, too.

use super::buffer::Part;
use super::caller::{Caller, Came, Outgoing};
use super::membership::Layout;
use rdmakv_cluster::config::{Epoch, ServerId, State};
use rdmakv_cluster::messages::{Answer, Call, Request};
use rdmakv_cluster::wire::RequestFrame;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Nanoseconds before a server is asked again, at first and at most.
const PAUSE: (u64, u64) = (5_000_000, 1_000_000_000);

/// The same at most for one that writes chunks: its disk should not rest until it is asked for the next ones.
const CARRIES: u64 = 20_000_000;

/// A call on its way to all servers.
#[derive(Debug)]
pub(super) struct Telling {
    call: Call,
    epoch: Option<Epoch>,
    waiting: BTreeMap<ServerId, Waiting>,
    /// The servers that calls went to, by the numbers of the calls.
    calls: HashMap<u64, ServerId>,
    last: u64,
    /// The chunks that some server carried, a bit each.
    carried: Vec<u64>,
}

/// A server that has not taken the call.
#[derive(Debug)]
struct Waiting {
    name: String,
    /// When it is asked; None while a call is under way.
    due: Option<u64>,
    pause: u64,
}

impl Telling {
    /// Begins. Calls have numbers after `last`: replies to calls of before have others.
    pub(super) fn new(call: Call, last: u64) -> Self {
        Self { call, epoch: None, waiting: BTreeMap::new(), calls: HashMap::new(), last, carried: Vec::new() }
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

    fn adopt(&mut self, layout: &Layout, now: u64) {
        let serves = |server: &&rdmakv_cluster::config::Server| server.state != State::Joining;
        let servers = layout.config().servers().iter().filter(serves);
        let waiting = |name: &String| Waiting { name: name.clone(), due: Some(now), pause: PAUSE.0 };
        self.waiting = servers.map(|server| (server.id, waiting(&server.name))).collect();
        // Without a server there is nothing that a later write would find.
        self.epoch = (!self.waiting.is_empty()).then_some(layout.epoch());
        self.calls.clear();
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
            self.calls.insert(self.last, to);
            let request = Request { cluster: layout.config().uuid(), epoch: layout.epoch(), call: self.call.clone() };
            let (key, frame) = (b"agent".to_vec(), RequestFrame::new(request));
            out.push(Outgoing { number: self.last, to, key, frame, body: Part::default() });
        }
        out
    }

    fn take(&mut self, number: u64, came: Option<Came>, now: u64) -> Vec<Outgoing> {
        let Some(from) = self.calls.remove(&number) else { return Vec::new() };
        let reply = came.map(|(frame, _)| frame.reply).filter(|reply| Some(reply.epoch) == self.epoch);
        let carries = matches!(self.call, Call::Carry { .. });
        match reply.map(|reply| reply.answer) {
            Some(Answer::Taken) if !carries => _ = self.waiting.remove(&from),
            Some(Answer::Carried(bits)) if carries => {
                self.carried.resize(self.carried.len().max(bits.len()), 0);
                self.carried.iter_mut().zip(bits).for_each(|(all, bits)| *all |= bits);
                self.waiting.remove(&from);
            }
            _ => {
                let Some(server) = self.waiting.get_mut(&from) else { return Vec::new() };
                server.due = Some(now.saturating_add(server.pause));
                server.pause = (2 * server.pause).min(if carries { CARRIES } else { PAUSE.1 });
            }
        }
        Vec::new()
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
    use rdmakv_cluster::messages::{Frozen, Reply};
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
}
