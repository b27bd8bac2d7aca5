//! Moves of regions between servers, and what is left of a memory when it is opened.
//!
//! A driver asks [`Migration::poll`] for the next step: it sends the request, again after a connection broke, and
//! passes the answer to [`Migration::answered`]. It reports a server that it gives up by [`Migration::gone`]. Requests are idempotent,
//! so the driver keeps nothing but which one is under way. [`Recovery`] is called in the same way.
//!
//! Region r in epoch e moves from server A to server B:
//!
//! | step | request | meanwhile |
//! | --- | --- | --- |
//! | 1 | writes are marked, and this counts; TAGS to A; TAKE to B, epoch e + 1; PULL to B ends when r is copied | all goes to A |
//! | 2 | writes are paused, and this counts; FREEZE to A | reads go to A |
//! | 3 | the last PULL to B: the pages that were marked here and at A | reads go to A |
//! | 4 | COMMIT to B | reads go to A |
//! | 5 | MAP to B | all goes to B |
//! | 6 | accesses of before step 5 end; DROP to A | all goes to B |
//!
//! B may be gone before its COMMIT is answered, or the move is given up. Then THAW to A in epoch e + 2 comes first, and writes go on there,
//! and B forgets its copy. If B is gone later, r is lost: it may have been written there. If A is gone, r is lost until the last PULL is
//! answered; from then on B has all of it.
//!
//! **After an open.** The live region of the highest epoch counts. A region that is frozen, or committed without a map, names
//! another server. It counts only if that one still has its part: otherwise the other part may have been written later.
//! `migration/model.rs` explores this with the server's own state machine.
//!
//! **Limit.** A server that only cannot be reached is taken for one that is gone. Its region may be replaced on another server.
//! If the next open reaches the first one and not the other, it finds the older bytes.

use super::faults::is_planted;
use super::table::{ServerId, Table, Target};
pub use rdmakv_proto::far::marks::Marks;
use rdmakv_proto::far::messages::{Entry, Refusal, State};
use std::time::Duration;

/// Epochs of a region from one loss to the next.
const EPOCHS: u32 = 1 << 16;

/// A request to a server about the region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ask {
    /// The server.
    pub server: ServerId,
    /// The region.
    pub region: u32,
    /// The epoch that the request names.
    pub epoch: u32,
    /// The request.
    pub call: Call,
}

/// The verb of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// TAGS, of a move.
    Tags,
    /// TAKE, of a copy.
    Take {
        /// The server that is copied from.
        source: ServerId,
    },
    /// PULL. The last one carries the [marks](Migration::marks), and others carry none.
    Pull {
        /// Whether it is the last one.
        is_last: bool,
    },
    /// FREEZE.
    Freeze {
        /// The server that takes over.
        to: ServerId,
    },
    /// COMMIT.
    Commit,
    /// MAP, with this region at the server.
    Map,
    /// THAW.
    Thaw,
    /// DROP.
    Drop {
        /// The server that has the region now, or 0.
        to: ServerId,
    },
}

/// A part of a region that is of no use any more. Its server could not be asked yet to forget it, or refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leftover {
    /// The request by which the server forgets it.
    pub ask: Ask,
    /// The number of the table's change that has to count before.
    pub change: u64,
}

/// The next step of a driver.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// It sends this, unless it is under way already.
    Ask(Ask),
    /// It polls again when an access has ended.
    Wait,
    /// It drops the machine.
    Done(Outcome),
}

/// How a move or a recovery ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The region is at this server.
    At(ServerId),
    /// The move failed, and the region is where it was. The refusal is None if the target is gone or the move was given up.
    Stayed(Option<Refusal>),
    /// The region is lost.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Marking { change: u64 },
    Tagging,
    Taking,
    Copying,
    Pausing { change: u64 },
    Freezing,
    Pulling,
    Committing,
    Mapping { change: u64 },
    Draining { change: u64 },
    Dropping,
    Thawing { why: Option<Refusal> },
    Clearing { server: ServerId, epoch: u32, outcome: Outcome, change: u64 },
    Done(Outcome),
}

/// The move of a region to another server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Migration {
    region: u32,
    from: Target,
    to: ServerId,
    phase: Phase,
    marks: Marks,
    is_from_gone: bool,
    is_to_gone: bool,
}

impl Migration {
    /// Begins to move a region to server `to`, and has its writes marked from now on.
    ///
    /// Returns None if the region is lost, is there already, or has no epochs left.
    pub fn new(table: &mut Table, region: u32, to: ServerId) -> Option<Self> {
        let from = table.target(region).filter(|from| from.server != to && to != 0)?;
        from.epoch.checked_add(2)?;
        let phase = Phase::Marking { change: table.mark(region) };
        let marks = Marks::new(table.region_bytes());
        Some(Self { region, from, to, phase, marks, is_from_gone: false, is_to_gone: false })
    }

    /// Marks pages that are about to be written.
    pub fn mark(&mut self, offset: u64, length: u64) {
        self.marks.set(offset, length);
    }

    /// Returns the pages that the last PULL names.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Returns the region.
    pub fn region(&self) -> u32 {
        self.region
    }

    /// Returns whether no step is left.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Done(_))
    }

    /// Returns the next step. `oldest` is the lowest number of the accesses under way, [of all lanes](super::table::Accesses::oldest).
    pub fn poll(&mut self, oldest: u64) -> Step {
        loop {
            let counts = |change| oldest >= change;
            self.phase = match self.phase {
                Phase::Marking { change } if counts(change) || is_planted("copies before marks count") => {
                    Phase::Tagging
                }
                Phase::Pausing { change } if counts(change) || is_planted("freezes before writes end") => {
                    Phase::Freezing
                }
                Phase::Draining { .. } if self.is_from_gone => Phase::Done(Outcome::At(self.to)),
                Phase::Draining { change } if counts(change) || is_planted("drops before reads end") => Phase::Dropping,
                Phase::Marking { .. } | Phase::Pausing { .. } | Phase::Draining { .. } => return Step::Wait,
                Phase::Clearing { change, .. } if !counts(change) && !is_planted("drops before reads end") => {
                    return Step::Wait;
                }
                Phase::Done(outcome) => return Step::Done(outcome),
                _ => return self.ask().map_or(Step::Wait, Step::Ask),
            };
        }
    }

    /// Returns the request that an answer is awaited to.
    fn ask(&self) -> Option<Ask> {
        let (from, to) = (self.from.server, self.to);
        let thawed = if is_planted("thaws in the same epoch") { self.from.epoch } else { self.from.epoch + 2 };
        let (server, epoch, call) = match self.phase {
            Phase::Tagging => (from, self.from.epoch, Call::Tags),
            Phase::Taking => (to, self.from.epoch + 1, Call::Take { source: from }),
            Phase::Copying => (to, self.from.epoch + 1, Call::Pull { is_last: false }),
            Phase::Freezing => (from, self.from.epoch, Call::Freeze { to }),
            Phase::Pulling => (to, self.from.epoch + 1, Call::Pull { is_last: true }),
            Phase::Committing => (to, self.from.epoch + 1, Call::Commit),
            Phase::Mapping { .. } => (to, self.from.epoch + 1, Call::Map),
            Phase::Dropping => (from, self.from.epoch, Call::Drop { to }),
            Phase::Thawing { .. } => (from, thawed, Call::Thaw),
            Phase::Clearing { server, epoch, .. } => (server, epoch, Call::Drop { to: 0 }),
            Phase::Marking { .. } | Phase::Pausing { .. } | Phase::Draining { .. } | Phase::Done(_) => return None,
        };
        Some(Ask { server, region: self.region, epoch, call })
    }

    /// Takes the answer to a request: the pages that the server marked, of a FREEZE, and otherwise none. An answer to another request than
    /// the present one changes nothing.
    pub fn answered(&mut self, table: &mut Table, now: Duration, ask: &Ask, answer: Result<&[u8], Refusal>) {
        if self.ask().as_ref() != Some(ask) {
            return;
        }
        let marks = match answer {
            Ok(marks) => marks,
            Err(why) => return self.refused(table, now, why),
        };
        let copy = Target { server: self.to, epoch: self.from.epoch + 1 };
        self.phase = match self.phase {
            Phase::Tagging => Phase::Taking,
            Phase::Taking => Phase::Copying,
            Phase::Copying => Phase::Pausing { change: self.pause(table) },
            Phase::Freezing => {
                if !is_planted("forgets the server's marks") {
                    self.marks.merge(marks);
                }
                Phase::Pulling
            }
            Phase::Pulling => Phase::Committing,
            Phase::Committing => Phase::Mapping { change: table.place(self.region, copy) },
            Phase::Mapping { change } => Phase::Draining { change },
            Phase::Dropping => Phase::Done(Outcome::At(self.to)),
            Phase::Thawing { why } => {
                table.place(self.region, Target { server: self.from.server, epoch: ask.epoch });
                self.clear(self.to, copy.epoch, Outcome::Stayed(why), 0)
            }
            Phase::Clearing { outcome, .. } => Phase::Done(outcome),
            other => other,
        };
    }

    fn pause(&self, table: &mut Table) -> u64 {
        if is_planted("writes while frozen") { table.change() } else { table.pause(self.region) }
    }

    fn refused(&mut self, table: &mut Table, now: Duration, why: Refusal) {
        match self.phase {
            // Procedures are there: it is asked again.
            Phase::Dropping | Phase::Clearing { .. } if why == Refusal::State => {}
            Phase::Dropping => self.phase = Phase::Done(Outcome::At(self.to)),
            Phase::Tagging if why != Refusal::Unknown => self.stay(table, Some(why)),
            Phase::Tagging | Phase::Freezing | Phase::Thawing { .. } => self.gone(table, now, self.from.server),
            Phase::Taking | Phase::Copying | Phase::Pulling | Phase::Committing => self.stay(table, Some(why)),
            Phase::Mapping { .. } => self.gone(table, now, self.to),
            Phase::Clearing { outcome, .. } => self.phase = Phase::Done(outcome),
            Phase::Marking { .. } | Phase::Pausing { .. } | Phase::Draining { .. } | Phase::Done(_) => {}
        }
    }

    /// Gives the move up, if COMMIT was not sent. Returns whether it is given up.
    pub fn give_up(&mut self, table: &mut Table) -> bool {
        let may = matches!(
            self.phase,
            Phase::Marking { .. }
                | Phase::Tagging
                | Phase::Taking
                | Phase::Copying
                | Phase::Pausing { .. }
                | Phase::Freezing
                | Phase::Pulling
        );
        if may {
            self.stay(table, None);
        }
        may
    }

    /// Ends the move although a server has a part that it is to forget. Returns that part and the outcome, or None in other phases.
    pub fn leave(&mut self) -> Option<(Leftover, Outcome)> {
        let (server, epoch) = (self.from.server, self.from.epoch);
        let moved = (server, epoch, Call::Drop { to: self.to });
        let ((server, epoch, call), change, outcome) = match self.phase {
            Phase::Draining { change } => (moved, change, Outcome::At(self.to)),
            Phase::Dropping => (moved, 0, Outcome::At(self.to)),
            Phase::Clearing { server, epoch, outcome, change } => {
                ((server, epoch, Call::Drop { to: 0 }), change, outcome)
            }
            _ => return None,
        };
        self.phase = Phase::Done(outcome);
        Some((Leftover { ask: Ask { server, region: self.region, epoch, call }, change }, outcome))
    }

    /// Goes back to A: at once if it was not asked to freeze, and otherwise by THAW.
    fn stay(&mut self, table: &mut Table, why: Option<Refusal>) {
        let is_committing = matches!(self.phase, Phase::Committing);
        let is_unfrozen = is_committing && is_planted("takes a lost answer for not done");
        self.phase = match self.phase {
            Phase::Freezing | Phase::Pulling | Phase::Committing if !is_unfrozen => Phase::Thawing { why },
            _ => {
                table.place(self.region, self.from);
                self.clear(self.to, self.from.epoch + 1, Outcome::Stayed(why), 0)
            }
        };
    }

    /// Returns the phase in which a server forgets its part once this change counts, or the end if it is gone.
    fn clear(&self, server: ServerId, epoch: u32, outcome: Outcome, change: u64) -> Phase {
        let is_gone = if server == self.to { self.is_to_gone } else { self.is_from_gone };
        if is_gone { Phase::Done(outcome) } else { Phase::Clearing { server, epoch, outcome, change } }
    }

    fn lose(&mut self, table: &mut Table, now: Duration, at: ServerId) {
        // Reads that began at A may be under way still.
        let change = table.lose(self.region, now);
        let (other, epoch) =
            if at == self.to { (self.from.server, self.from.epoch) } else { (self.to, self.from.epoch + 1) };
        self.phase = self.clear(other, epoch, Outcome::Lost, change);
    }

    /// Takes that a server is given up: its connection broke, and did not come back in time. It is not asked any more.
    pub fn gone(&mut self, table: &mut Table, now: Duration, server: ServerId) {
        if server == self.from.server {
            self.is_from_gone = true;
            match self.phase {
                // B has all of it.
                Phase::Committing if self.is_to_gone => self.lose(table, now, server),
                Phase::Committing | Phase::Mapping { .. } | Phase::Draining { .. } => {}
                Phase::Dropping => self.phase = Phase::Done(Outcome::At(self.to)),
                Phase::Clearing { server: at, outcome: Outcome::Lost, .. } if at == server => {
                    self.phase = Phase::Done(Outcome::Lost);
                }
                Phase::Clearing { outcome: Outcome::Lost, .. } | Phase::Done(_) => {}
                _ => self.lose(table, now, server),
            }
        } else if server == self.to {
            self.is_to_gone = true;
            match self.phase {
                Phase::Committing if self.is_from_gone => self.lose(table, now, server),
                Phase::Mapping { .. } if is_planted("goes back after commit") => {
                    self.phase = Phase::Thawing { why: None }
                }
                Phase::Mapping { .. } | Phase::Draining { .. } | Phase::Dropping => self.lose(table, now, server),
                Phase::Thawing { .. } | Phase::Done(_) => {}
                Phase::Clearing { server: at, outcome, .. } if at == server => self.phase = Phase::Done(outcome),
                Phase::Clearing { .. } => {}
                _ => self.stay(table, None),
            }
        }
    }
}

/// The place of a region, as an open finds it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Found {
    /// It is here. If it is frozen there, it is to be thawed in this epoch first.
    At {
        /// The server and the epoch.
        target: Target,
        /// The epoch of the THAW.
        thaw: Option<u32>,
        /// Whether it was committed, and its map has not come.
        is_unmapped: bool,
    },
    /// It is lost.
    Lost,
}

/// Returns where a region is, by the entries of the servers that answered.
pub fn find(entries: &[(ServerId, Entry)]) -> Found {
    let has = |server: ServerId, fits: &dyn Fn(&Entry) -> bool| {
        is_planted("believes the frozen") || entries.iter().any(|(at, entry)| *at == server && fits(entry))
    };
    let counts = |entry: &Entry| matches!(entry.state, State::Live | State::Committed | State::Frozen);
    let found = entries.iter().filter(|(_, entry)| counts(entry));
    let highest = if is_planted("takes the lowest epoch") {
        found.min_by_key(|(_, entry)| entry.epoch)
    } else {
        found.max_by_key(|(_, entry)| entry.epoch)
    };
    let Some(&(server, entry)) = highest else { return Found::Lost };
    let target = Target { server, epoch: entry.epoch };
    match entry.state {
        State::Committed => {
            let is_before = |other: &Entry| {
                other.epoch < entry.epoch
                    && matches!(other.state, State::Frozen | State::Moved)
                    && other.other == server
            };
            let is_sure = is_planted("believes the committed") || has(entry.other, &is_before);
            if is_sure { Found::At { target, thaw: None, is_unmapped: true } } else { Found::Lost }
        }
        State::Frozen => {
            let is_copy = |other: &Entry| other.epoch > entry.epoch && other.state == State::Copying;
            match entry.epoch.checked_add(2) {
                Some(epoch) if has(entry.other, &is_copy) => {
                    Found::At { target: Target { server, epoch }, thaw: Some(epoch), is_unmapped: false }
                }
                _ => Found::Lost,
            }
        }
        _ => Found::At { target, thaw: None, is_unmapped: false },
    }
}

/// Returns the epoch in which a lost region is made anew; None if there are no more. It is above those of servers that did not answer.
pub fn epoch_after_loss(highest: u32) -> Option<u32> {
    (highest / EPOCHS).checked_add(1)?.checked_mul(EPOCHS)
}

/// Makes one region of an opened memory usable: it is thawed or mapped, then other servers forget their parts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recovery {
    region: u32,
    found: Found,
    asks: Vec<Ask>,
}

impl Recovery {
    /// Begins with what the servers that answered have of a region. The table has it there, paused if it is to be thawed first.
    pub fn new(table: &mut Table, now: Duration, region: u32, entries: &[(ServerId, Entry)]) -> Self {
        let found = find(entries);
        let mut asks = Vec::new();
        let mut keeper = 0;
        match found {
            Found::At { target, thaw, is_unmapped } => {
                keeper = target.server;
                table.place(region, target);
                if thaw.is_some() {
                    table.pause(region);
                }
                let ask = |call| Ask { server: keeper, region, epoch: target.epoch, call };
                asks.extend(thaw.map(|_| ask(Call::Thaw)));
                asks.extend(is_unmapped.then(|| ask(Call::Map)));
            }
            Found::Lost => _ = table.lose(region, now),
        }
        let others = entries.iter().filter(|(server, _)| *server != keeper);
        asks.extend(others.map(|&(server, Entry { epoch, .. })| Ask {
            server,
            region,
            epoch,
            call: Call::Drop { to: keeper },
        }));
        asks.reverse();
        Self { region, found, asks }
    }

    /// Returns the next step. It never waits for accesses.
    pub fn poll(&self) -> Step {
        match (self.asks.last(), self.found) {
            (Some(ask), _) => Step::Ask(*ask),
            (None, Found::At { target, .. }) => Step::Done(Outcome::At(target.server)),
            (None, Found::Lost) => Step::Done(Outcome::Lost),
        }
    }

    /// Takes the answer to a request. An answer to another request than the present one changes nothing.
    pub fn answered(&mut self, table: &mut Table, now: Duration, ask: &Ask, answer: Result<&[u8], Refusal>) {
        if self.asks.last() != Some(ask) {
            return;
        }
        match (ask.call, self.found) {
            (Call::Drop { .. }, _) => {}
            (Call::Thaw, Found::At { target, .. }) if answer.is_ok() => _ = table.place(self.region, target),
            _ if answer.is_ok() => {}
            _ => return self.gone(table, now, ask.server),
        }
        self.asks.pop();
    }

    /// Takes that a server is given up. If it had the region, that is lost.
    pub fn gone(&mut self, table: &mut Table, now: Duration, server: ServerId) {
        self.asks.retain(|ask| ask.server != server);
        if matches!(self.found, Found::At { target, .. } if target.server == server) {
            table.lose(self.region, now);
            self.found = Found::Lost;
            // The others do not name it, so that it is not believed if it comes back.
            self.asks.iter_mut().for_each(|ask| ask.call = Call::Drop { to: 0 });
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
