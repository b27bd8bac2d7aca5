//! Values in fragments that the client reads by itself: it learns where the fragments are, and reads them at once.

use super::super::fabric::parts::{Begun, Outcome};
use super::super::fragment_tags::{Located, Look};
use super::super::gathering::HEDGE;
use super::super::slots::Slot;
use super::*;
use rdmakv_cluster::messages::Answer as Told;

/// Bytes of a value that is looked for, and read one-sidedly when it is first asked for: that takes two round trips, and a message one, but
/// with less work for both sides.
const LOOK_FROM: usize = 128 << 10;

/// A one-sided read of a value, as far as it is.
pub(super) enum OneSided {
    /// The members are asked where the fragments are, until then at most.
    Looking(Look, u64),
    /// The fragments are being read.
    Reading(FragmentRead),
}

impl OneSided {
    /// Returns when members that did not tell are not waited for any longer; None if nothing is asked.
    pub(super) fn looks_until(&self) -> Option<u64> {
        if let Self::Looking(_, until) = self { Some(*until) } else { None }
    }

    /// Returns when the value is asked for by calls.
    pub(super) fn gives_up_at(&self) -> u64 {
        match self {
            Self::Looking(_, until) => *until,
            Self::Reading(read) => read.gives_up_at,
        }
    }

    /// Returns the place of a server whose fragment did not come yet.
    pub(super) fn waits_for(&self) -> Option<usize> {
        if let Self::Reading(read) = self { read.waits_for() } else { None }
    }

    fn is_over(&self, now: u64) -> bool {
        matches!(self, Self::Reading(read) if read.is_done() || read.gives_up_at <= now)
    }
}

/// A one-sided read of fragments.
pub(super) struct FragmentRead {
    located: Arc<Located>,
    slot: Arc<Slot>,
    /// Those under way, by the places of their servers.
    outcomes: Vec<(usize, Arc<Outcome>)>,
    /// When the servers are asked, whatever is under way.
    gives_up_at: u64,
}

impl FragmentRead {
    pub(super) fn is_done(&self) -> bool {
        self.outcomes.iter().all(|(_, outcome)| outcome.get().is_some())
    }

    /// Returns the place of a server whose fragment did not come yet.
    fn waits_for(&self) -> Option<usize> {
        self.outcomes.iter().find(|(_, outcome)| outcome.get().is_none()).map(|&(at, _)| at)
    }

    /// Returns the value, if all was read and may be believed.
    fn value(self, key: &[u8]) -> Option<Value> {
        let Self { located, slot, outcomes, .. } = self;
        let is_read = outcomes.iter().all(|(_, outcome)| outcome.get() == Some(true));
        let mut slot = Arc::try_unwrap(slot).ok().filter(|_| is_read)?;
        let flags = located.believe(key, slot.bytes_mut(), clock::unix())?;
        // After the last byte: what was read within the leases was not used for another item meanwhile.
        if !located.is_leased(clock::boot()) {
            return None;
        }
        let (length, version) = located.value();
        Some(Value::new(Bytes::Slot(slot), 0, length, (flags, version), Source::OneSided))
    }
}

impl Resilient {
    /// Reads the fragments of a key's value, if it is known where they are.
    pub(super) fn read_fragments(&mut self, key: &[u8], hands: &mut Hands<'_>) -> Option<FragmentRead> {
        let located = self.fragment_tags.get(key)?;
        let read = self.read_located(Arc::clone(&located), key, hands);
        // Without a slot or room to post it the places are good all the same.
        if read.is_none() && !located.is_leased(clock::boot()) {
            self.fragment_tags.forget(key);
        }
        read
    }

    fn read_located(&self, located: Arc<Located>, key: &[u8], hands: &mut Hands<'_>) -> Option<FragmentRead> {
        // A read by a tag that is closed would take the connection along.
        if !located.is_leased(clock::boot()) {
            return None;
        }
        let slot = Arc::new(hands.common.fabrics.slots()?.take(located.size(key)?)?);
        let mut outcomes = Vec::new();
        for (number, fragment) in located.fragments().iter().enumerate() {
            let at = self.places.get(&fragment.server)?.at;
            match hands.servers[at].read_part(&fragment.tag, &slot, &located.place(number, key)) {
                Begun::Done => {}
                Begun::UnderWay(outcome) => outcomes.push((at, outcome)),
                Begun::Failed => return None,
            }
        }
        Some(FragmentRead { located, slot, outcomes, gives_up_at: self.now() + HEDGE })
    }

    /// Returns the value of fragments that were read. Without one, the servers are to be asked where it is.
    pub(super) fn take_fragments(&mut self, read: FragmentRead, key: &[u8], hands: &mut Hands<'_>) -> Option<Value> {
        let value = read.value(key);
        match value {
            Some(_) => hands.common.counters.one_sided += 1,
            None => {
                hands.common.counters.distrusted += 1;
                self.fragment_tags.forget(key);
            }
        }
        value
    }

    /// Takes the ends of reads of fragments. Those that bring no value, or take too long, go on by calls.
    pub(super) fn end_reads(&mut self, hands: &mut Hands<'_>) {
        if self.readers.is_empty() {
            return;
        }
        let now = self.now();
        for name in std::mem::take(&mut self.readers) {
            let Some(running) = self.running.get_mut(&name) else { continue };
            let Some(OneSided::Reading(read)) = running.reads.take_if(|read| read.is_over(now)) else {
                if running.reads.is_some() {
                    self.readers.push(name);
                }
                continue;
            };
            let key = running.key.clone();
            let value = self.take_fragments(read, &key, hands);
            self.end_read(name, value, hands);
        }
    }

    /// Ends an operation with the value that was read one-sidedly. Without one it goes on by calls.
    fn end_read(&mut self, name: Name, value: Option<Value>, hands: &mut Hands<'_>) {
        match value {
            Some(value) => {
                self.stop(name);
                hands.common.end(name, Ok(Answer::Value(Some(value))));
            }
            None => {
                self.running.get_mut(&name).into_iter().for_each(|running| running.is_waiting = false);
                self.go_on(name, hands);
            }
        }
    }

    /// Asks the members where the fragments of a large value are. Returns the last call.
    pub(super) fn look(&mut self, name: Name, key: &[u8], hands: &mut Hands<'_>) -> Option<(OneSided, Name)> {
        let Policy::Code { data, .. } = self.layout.policy(key) else { return None };
        let target = self.layout.target(key);
        let members = target.members.get(..usize::from(data))?;
        let places: Vec<usize> = members.iter().map(|id| Some(self.places.get(id)?.at)).collect::<Option<_>>()?;
        let (&primary, &first) = (members.first()?, places.first()?);
        let is_large = hands.servers[first].size(key).is_some_and(|bytes| bytes >= LOOK_FROM);
        let may = hands.common.one_sided && hands.common.fabrics.slots().is_some();
        if !(is_large && may && places.iter().all(|&at| hands.servers[at].fabric_in_use().is_some())) {
            return None;
        }
        let (look, mut last) = (Look::new(primary, members.len()), None);
        for ((to, request), at) in target.each(members, &Call::Locate).into_iter().zip(places) {
            let message = Message::new(&RequestFrame::new(request), Part::default());
            let sent = Sent { parent: Parent::Looker(name), to, round: None, wishes: true };
            last = Some(self.issue(key, message, at, sent, hands));
        }
        Some((OneSided::Looking(look, self.now() + HEDGE), last?))
    }

    /// Takes a member's answer to the question where its fragment is. The fragments are read once all have told. If one has none to tell, or
    /// another version, the value is asked for by calls.
    pub(super) fn take_place(
        &mut self,
        name: Name,
        from: ServerId,
        answer: Result<Answer, Error>,
        hands: &mut Hands<'_>,
    ) {
        let Some(running) = self.running.get_mut(&name) else { return };
        let Some(OneSided::Looking(look, _)) = &mut running.reads else { return };
        let told = match answer {
            Ok(Answer::Called(reply, _)) => ReplyFrame::decode(&reply).ok().map(|frame| frame.reply.answer),
            _ => None,
        };
        let tag = running.tags.iter().find(|(server, _)| *server == from).map(|&(_, tag)| tag);
        let is_there = match (told, tag) {
            (Some(Told::Value(Some(stored))), Some(tag)) => look.take(from, (stored.version, stored.piece), tag),
            _ => false,
        };
        if is_there && !look.is_done() {
            return;
        }
        let located = if is_there { look.located() } else { None };
        let key = running.key.clone();
        running.reads = None;
        let read = located.and_then(|located| {
            self.fragment_tags.learn(&key, located);
            self.read_fragments(&key, hands)
        });
        match read {
            Some(read) if read.is_done() => {
                let value = self.take_fragments(read, &key, hands);
                self.end_read(name, value, hands);
            }
            Some(read) => {
                let Some(running) = self.running.get_mut(&name) else { return };
                running.reads = Some(OneSided::Reading(read));
                self.readers.push(name);
                self.settle(name, hands);
            }
            None => self.end_read(name, None, hands),
        }
    }

    /// Learns where the fragments of the value are that an operation has read.
    pub(super) fn learn_fragments(&mut self, running: &mut Running) {
        if let Some(primary) = self.layout.primary(&running.key)
            && let Some(made_of) = running.operation.take_made_of()
            && let Some(located) = Located::new(made_of, primary, &running.tags)
        {
            self.fragment_tags.learn(&running.key, located);
        }
    }
}
