//! Moves regions of a memory between its servers, while lanes go on.
//!
//! The decisions are those of [`migration`](super::migration). This sends their requests over the memory's connections, one at a time.

use super::SourceServer;
use super::connection::{Connection, Trouble};
use super::memory::{Asked, Memory, ask, millis};
use super::migration::{Ask, Call, Leftover, Outcome, Step};
use super::shared::{Place, over};
use super::steps::{Event, Left, StepParts, request_step};
use super::table::{MemoryError, ServerId};
use crate::address::Fabric;

use rdmakv_proto::clock;
use rdmakv_proto::far::messages::{Answer, Refusal, Request, Token, Verb};
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// How long a step waits for accesses that began before it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at these accesses.
const LOOK: Duration = Duration::from_micros(50);

/// The outcome of moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Regions that moved.
    pub regions: u32,
    /// Regions that were lost.
    pub lost: u32,
    /// Bytes of the regions that moved.
    pub bytes: u64,
    /// The longest time for which writes to a region were paused.
    pub longest_pause: Duration,
}

/// A move of one region, step by step. From [`Memory::begin_move`].
///
/// Dropped before its end, it is given up if it can be, and carried out otherwise.
pub struct Moving<'m> {
    memory: &'m mut Memory,
    region: u32,
    /// The server that had it, as it was given.
    from: String,
    to: Place,
    /// Addresses of the source that the other server was not asked to read at yet.
    addresses: VecDeque<String>,
    token: Token,
    /// The sum of the copy, once all of it was read.
    sum: u32,
    /// Whether the copy has other bytes than its source had.
    differs: bool,
    patience: Patience,
    paused: Option<Instant>,
    pause: Duration,
    has_ended: bool,
}

/// How long the same step has been waited for, or was refused.
#[derive(Debug, Default)]
struct Patience(Option<(Step, Instant)>);

impl Patience {
    /// Returns whether this step has been the next one for [`PATIENCE`].
    fn is_over(&mut self, step: &Step, now: Instant) -> bool {
        match &self.0 {
            Some((same, since)) if same == step => now.saturating_duration_since(*since) >= PATIENCE,
            _ => {
                self.0 = Some((step.clone(), now));
                false
            }
        }
    }
}

impl fmt::Debug for Moving<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moving").field("region", &self.region).field("to", &self.to.name()).finish_non_exhaustive()
    }
}

/// The effect of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stepped {
    /// It waited for accesses that are under way.
    Waited,
    /// It asked a server for this, and has its answer, or knows that it is gone.
    Asked(Call),
    /// The move has ended.
    Ended(Outcome),
}

impl Moving<'_> {
    /// Takes the next step.
    pub fn step(&mut self) -> Stepped {
        let step = self.memory.shared.next_step();
        let is_over = step.as_ref().is_some_and(|step| self.patience.is_over(step, Instant::now()));
        match step {
            Some(Step::Wait) => {
                self.wait(is_over);
                Stepped::Waited
            }
            Some(Step::Ask(ask)) => {
                self.ask(&ask, is_over);
                Stepped::Asked(ask.call)
            }
            Some(Step::Done(outcome)) => {
                let outcome = if self.differs { Outcome::Lost } else { outcome };
                self.end(outcome);
                Stepped::Ended(outcome)
            }
            None => Stepped::Ended(self.outcome()),
        }
    }

    /// Takes all steps that are left.
    pub fn run(&mut self) -> Outcome {
        loop {
            if let Stepped::Ended(outcome) = self.step() {
                return outcome;
            }
        }
    }

    /// Returns whether writes to the region are paused now.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Returns how long writes to the region were paused.
    pub fn paused(&self) -> Duration {
        self.pause
    }

    /// Returns where the region is.
    fn outcome(&self) -> Outcome {
        self.memory.shared.table().target(self.region).map_or(Outcome::Lost, |target| Outcome::At(target.server))
    }

    /// Waits for accesses of lanes, or for procedures at the source, unless that took too long: then it gives up.
    fn wait(&mut self, is_over: bool) {
        if !is_over {
            return std::thread::sleep(LOOK);
        }
        if self.memory.shared.give_up() {
            return;
        }
        // The region is where it is to be. A server has a part of it that it is to forget: it is asked again later.
        let Some((part, outcome)) = self.memory.shared.leave_part() else { return self.end(self.outcome()) };
        if let Outcome::At(_) = outcome {
            self.memory.events.push(Event::Left { region: self.region, at: self.from.clone() });
        }
        self.memory.left.push(Left { part, sum: self.sum });
        self.end(outcome);
    }

    fn ask(&mut self, ask: &Ask, is_over: bool) {
        let memory = &mut *self.memory;
        let shared = memory.shared.clone();
        let (name, marks) = (*shared.name(), shared.marks());
        let (table, address) = (shared.table(), self.addresses.front().cloned().unwrap_or_default());
        let parts = StepParts {
            owner: name.owner,
            secret: name.secret.bytes(),
            label: &memory.label,
            millis: millis(shared.left()),
            token: self.token,
            address: address.as_bytes(),
            marks: &marks,
            region_bytes: table.region_bytes(),
            regions: table.len(),
        };
        let connection = memory.connections.iter_mut().find(|(place, _)| place.server() == ask.server);
        let connection = connection.map(|(_, connection)| connection).filter(|_| !shared.is_gone(ask.server));
        match connection.map(|connection| request_step(connection, name.memory, ask, &parts)) {
            Some(Ok(answer)) => {
                self.token = answer.token.unwrap_or(self.token);
                if let Call::Take { .. } = ask.call {
                    shared.add_server(&self.to);
                    self.shorten(ask.server);
                }
                shared.answered(ask, Ok(&answer.marks));
                self.compare(ask.call, answer.sum);
                self.time(ask.call);
            }
            // The other server does not read there: perhaps at another address.
            Some(Err(Trouble::Refused(Refusal::Unable, _)))
                if matches!(ask.call, Call::Take { .. }) && self.addresses.len() > 1 =>
            {
                self.addresses.pop_front();
            }
            Some(Err(Trouble::Refused(why, _))) => {
                // Procedures are there: it is asked again.
                if matches!(ask.call, Call::Drop { .. }) && why == Refusal::State {
                    self.wait(is_over);
                }
                shared.answered(ask, Err(why));
            }
            Some(Err(Trouble::Broken(_))) | None => shared.lose(ask.server),
        }
    }

    /// Notes how long the new server keeps its part: that may be less than was asked for.
    fn shorten(&mut self, server: ServerId) {
        let shared = &self.memory.shared;
        let of = |(place, _): &&mut (Place, Connection)| place.server() == server;
        let Some((_, connection)) = self.memory.connections.iter_mut().find(of) else { return };
        let sent = clock::boot();
        let request = Request { memory: shared.name().memory, region: 0, epoch: 0, verb: Verb::Renew { millis: 0 } };
        let left = connection.ask(&request, |reply| match reply.answer {
            Answer::Renew { left_millis } => Some(left_millis),
            _ => None,
        });
        // A server that does not answer is found out by the next step.
        if let Ok(left) = left {
            shared.ends_by(over(sent, left));
        }
    }

    /// Compares the sum of the copy with that of its source, which answers DROP. Both are known after the pause. A region that differs is
    /// lost: its bytes are not believed.
    fn compare(&mut self, call: Call, sum: u32) {
        match call {
            Call::Pull { is_last: true } => self.sum = sum,
            Call::Drop { to } if to != 0 && differs(sum, self.sum) => {
                self.differs = true;
                self.memory.shared.lose_region(self.region);
            }
            _ => {}
        }
    }

    /// Takes the time for which writes are paused.
    fn time(&mut self, call: Call) {
        match call {
            Call::Pull { is_last: false } => self.paused = Some(Instant::now()),
            Call::Commit | Call::Thaw => self.pause = self.paused.take().map_or(self.pause, |since| since.elapsed()),
            _ => {}
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.memory.shared.end_move();
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let region = self.region;
        let event = match outcome {
            Outcome::At(_) => Event::Moved { region, to: self.to.name().to_owned(), paused: self.pause },
            Outcome::Stayed(why) => Event::Stayed { region, why: stays(why) },
            Outcome::Lost => Event::Lost { region },
        };
        self.memory.events.push(event);
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.memory.shared.give_up();
            self.run();
        }
    }
}

/// Returns whether a source had other bytes than the copy. Without a sum, which is 0 then, that is not known: false.
fn differs(source: u32, copy: u32) -> bool {
    source != 0 && source != copy
}

/// Returns why a region stays.
fn stays(why: Option<Refusal>) -> String {
    let known = match why {
        None => "the other server is gone, or an access of a lane did not end: wait for its ticket",
        Some(Refusal::NoRoom) => "the other server has no room: raise its --far",
        Some(Refusal::Unable) => "the other server reads from no such server: name it in its --far-peers",
        Some(Refusal::SourceGone) => "the other server cannot read from the first one: look at its log",
        Some(Refusal::Taken) => "the other server has a memory of this name: delete that one",
        Some(why) => return format!("a server refuses ({why:?}): try again, and look at the servers' logs"),
    };
    known.to_owned()
}

impl Memory {
    /// Returns the names of the servers that have regions, each with how many.
    pub fn servers(&self) -> Vec<(String, u32)> {
        let (table, servers) = (self.shared.table(), self.shared.servers());
        let count =
            |server| (0..table.len()).filter(|&at| table.target(at).is_some_and(|at| at.server == server)).count();
        let all = servers.iter().map(|place| (place.name().to_owned(), count(place.server()) as u32));
        all.filter(|(_, regions)| *regions > 0).collect()
    }

    /// Takes the events since the last call, the oldest first.
    pub fn events(&mut self) -> Vec<Event> {
        self.events.take()
    }

    /// Begins to move a region to a server of the client. Lanes go on meanwhile.
    ///
    /// # Errors
    /// [`MemoryError`]: the region is lost or there already, or the server does not answer.
    pub fn begin_move(&mut self, region: u32, to: &str) -> Result<Moving<'_>, MemoryError> {
        self.drop_left();
        let (to, _) = self.reach(to)?;
        let target = self.shared.table().target(region);
        let servers = self.shared.servers();
        let from = target.and_then(|target| servers.iter().find(|place| place.server() == target.server));
        let none = || MemoryError::NotMoved { region, why: "it is lost, or there already".to_owned() };
        let from = from.ok_or_else(none)?;
        if !self.shared.begin_move(region, to.server()) {
            return Err(none());
        }
        let addresses = self.addresses(from.name());
        self.events.push(Event::Moving { region, from: from.name().to_owned(), to: to.name().to_owned() });
        let moving = Moving {
            memory: self,
            region,
            from: from.name().to_owned(),
            to,
            addresses,
            token: Token::default(),
            sum: 0,
            differs: false,
            patience: Patience::default(),
            paused: None,
            pause: Duration::ZERO,
            has_ended: false,
        };
        Ok(moving)
    }

    /// Moves all regions from a server of the client to another one, or, without one, to those that have most room. Lanes go on
    /// meanwhile: writes to a region are paused for milliseconds.
    ///
    /// # Errors
    /// [`MemoryError`]: the first region that stays. Those before it have moved.
    pub fn migrate(&mut self, from: &str, to: Option<&str>) -> Result<Moved, MemoryError> {
        let servers = self.shared.servers();
        let unknown = || MemoryError::UnknownServer { server: from.to_owned() };
        let from = servers.iter().find(|place| place.has_name(from)).ok_or_else(unknown)?.server();
        let mut targets = match to {
            Some(to) => vec![to.to_owned()],
            None => self.targets(from),
        };
        let (table, mut moved) = (self.shared.table(), Moved::default());
        for region in (0..table.len()).filter(|&at| table.target(at).is_some_and(|at| at.server == from)) {
            loop {
                let Some(to) = targets.first().cloned() else {
                    let why = "no other server of the client has room for it: raise the --far of one".to_owned();
                    return Err(MemoryError::NotMoved { region, why });
                };
                let mut moving = self.begin_move(region, &to)?;
                let (outcome, pause) = (moving.run(), moving.paused());
                drop(moving);
                moved.longest_pause = moved.longest_pause.max(pause);
                match outcome {
                    Outcome::At(_) => {
                        moved.regions += 1;
                        moved.bytes += table.region_bytes();
                    }
                    Outcome::Lost => moved.lost += 1,
                    Outcome::Stayed(Some(Refusal::NoRoom)) if targets.len() > 1 => {
                        targets.remove(0);
                        continue;
                    }
                    Outcome::Stayed(why) => {
                        return Err(MemoryError::NotMoved { region, why: stays(why) });
                    }
                }
                break;
            }
        }
        Ok(moved)
    }

    /// Asks servers again to forget parts that moves left there. Those stay left whose accesses have not ended.
    pub(super) fn drop_left(&mut self) {
        let shared = self.shared.clone();
        for left in std::mem::take(&mut self.left) {
            let Left { part: Leftover { ask, change }, sum } = left;
            let connection = self.connections.iter_mut().find(|(place, _)| place.server() == ask.server);
            // A server that is gone has none of it.
            let Some((_, connection)) = connection.filter(|_| !shared.is_gone(ask.server)) else { continue };
            if !shared.counts(change) {
                self.left.push(left);
                continue;
            }
            match request_step(connection, shared.name().memory, &ask, &StepParts::default()) {
                Ok(answer) if matches!(ask.call, Call::Drop { to: 1.. }) && differs(answer.sum, sum) => {
                    shared.lose_region(ask.region);
                    self.events.push(Event::Lost { region: ask.region });
                }
                Err(Trouble::Refused(Refusal::State, _)) => self.left.push(left),
                _ => {}
            }
        }
    }

    /// Moves regions away from servers that said that they stop. Call it about once a second, and take the [events](Memory::events). It
    /// takes as long as the moves. Servers that [kept](Event::Left) the old part of a region are asked again to forget it.
    ///
    /// # Errors
    /// As [`Memory::migrate`].
    pub fn tend(&mut self) -> Result<Moved, MemoryError> {
        self.drop_left();
        let gone = self.lost_servers();
        let mut stopping = Vec::new();
        for (place, connection) in &self.connections {
            if let Some(stops) = connection.stops().filter(|_| !gone.contains(&place.server())) {
                stopping.push((place.clone(), stops.saturating_duration_since(Instant::now())));
            }
        }
        let mut all = Moved::default();
        for (place, within) in stopping {
            if !self.shared.has_regions(place.server()) {
                continue;
            }
            self.events.push(Event::Stopping { server: place.name().to_owned(), within });
            let moved = self.migrate(place.name(), None)?;
            all.regions += moved.regions;
            all.lost += moved.lost;
            all.bytes += moved.bytes;
            all.longest_pause = all.longest_pause.max(moved.longest_pause);
        }
        Ok(all)
    }

    /// Returns the names of servers that may take regions from this one, that with most room first.
    fn targets(&mut self, from: ServerId) -> Vec<String> {
        let source = self.shared.source();
        let names: Vec<String> = source.servers.iter().map(|server| server.name.clone()).collect();
        let mut targets = Vec::new();
        for name in names {
            if let Ok((place, room)) = self.reach(&name)
                && place.server() != from
                && room > 0
                && self
                    .connections
                    .iter()
                    .all(|(known, connection)| known.server() != place.server() || connection.stops().is_none())
            {
                targets.push((room, name));
            }
        }
        targets.sort_by_key(|(room, _)| std::cmp::Reverse(*room));
        targets.into_iter().map(|(_, name)| name).collect()
    }

    /// Returns a server of the client and for how many regions it has room, and connects to it first where needed.
    fn reach(&mut self, name: &str) -> Result<(Place, u32), MemoryError> {
        let shared = self.shared.clone();
        let unknown = || MemoryError::UnknownServer { server: name.to_owned() };
        let source = shared.source();
        let server = source.servers.iter().find(|server| server.has_name(name)).ok_or_else(unknown)?;
        if let Some((place, connection)) = self.connections.iter_mut().find(|(place, _)| place.has_name(name))
            && connection.broken().is_none()
        {
            let request = Request { memory: 0, region: 0, epoch: 0, verb: Verb::Offer };
            let room = connection.ask(&request, |reply| match reply.answer {
                Answer::Offer { regions, .. } => Some(regions),
                _ => None,
            });
            if let Ok(room) = room {
                return Ok((place.clone(), room));
            }
        }
        let Asked { place, connection, region_bytes, room } = ask(server, &mut shared.fabrics(), source)?;
        if region_bytes != shared.table().region_bytes() {
            let why = format!("{name} has regions of {region_bytes} bytes: give it the same --far-region");
            return Err(MemoryError::NotMoved { region: 0, why });
        }
        self.connections.push((place.clone(), connection));
        Ok((place, room))
    }

    /// Returns the addresses at which other servers may read from this one.
    fn addresses(&self, name: &str) -> VecDeque<String> {
        let server = self.shared.source().servers.iter().find(|server| server.has_name(name));
        let has_far = |fabric: &&Fabric| matches!(fabric, Fabric::Shm(_) | Fabric::Iwarp(_));
        let of = |server: &SourceServer| server.fabrics.iter().filter(has_far).map(ToString::to_string).collect();
        server.map_or_else(VecDeque::new, of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_request_ends_the_patience() {
        let ask = |region| Step::Ask(Ask { server: 1, region, epoch: 7, call: Call::Drop { to: 2 } });
        let (mut patience, begun) = (Patience::default(), Instant::now());
        assert!(!patience.is_over(&ask(0), begun));
        assert!(!patience.is_over(&ask(0), begun + PATIENCE / 2), "asked again");
        assert!(patience.is_over(&ask(0), begun + PATIENCE), "refused since");
        assert!(!patience.is_over(&ask(1), begun + PATIENCE), "another one has its own");
        assert!(!patience.is_over(&Step::Wait, begun + 3 * PATIENCE));
        assert!(patience.is_over(&Step::Wait, begun + 4 * PATIENCE));
    }
}
