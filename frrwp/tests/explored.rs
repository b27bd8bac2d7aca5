//! Every interleaving of two sides and up to two transfers: messages and writes that are delayed, registrations
//! that come late, in pieces or not at all, transfers that are given up, time that runs out, a connection that goes.
//!
//! The model is a driver like any other: it runs the shipped [`Handshake`]s and obeys the four rules of their module. It
//! adds choice: whichever thing can happen next happens, in every order.
//!
//! ```text
//! cargo test --release -p frrwp --test explored                                     # under a minute
//! cargo test --release -p frrwp --test explored -- --ignored --nocapture            # the large spaces: name one
//! ```

use frrwp::handshake::{Action, Handshake, Limits, Process, Side, Tag};
use frrwp::wire::{MESSAGE, Reason, Segment};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of every buffer: two pieces of one byte.
const LENGTH: u64 = 2;

/// The messages on their way to one side, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Passing {
    Message(Vec<u8>),
    /// A byte for the buffer of this transfer; its sender is told when it is placed.
    Write {
        tag: Tag,
        address: u64,
        length: u64,
        immediate: Option<u32>,
    },
}

/// The knowledge of a transfer in one side's application.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Held {
    writer: bool,
    /// Answered, where the peer opened it.
    answered: bool,
    /// Pieces registered, of two; which come one after the other.
    registered: u64,
    /// The lease was released.
    released: bool,
    ended: Option<Result<u64, ()>>,
    wants_submit: bool,
    /// Target: which bytes were placed.
    placed: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    sides: [Handshake; 2],
    held: [BTreeMap<Tag, Held>; 2],
    /// To each side.
    passing: [VecDeque<Passing>; 2],
    /// To each side: its writes that were placed and that it has not heard of.
    placed: [VecDeque<Tag>; 2],
    /// Each side's writes that are not posted, where the driver posts them late.
    unposted: [VecDeque<Passing>; 2],
    /// Time of each side, in leaps.
    now: [u64; 2],
    to_open: Vec<(usize, bool)>,
    faults: Faults,
    torn: bool,
    flushed: [bool; 2],
    /// The first rule that was seen broken.
    broken: Option<&'static str>,
}

/// How many of each may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Faults {
    registrations: u8,
    cancels: u8,
    /// Time-outs while something else could happen too.
    timeouts: u8,
    tears: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    Open(usize),
    /// The first write that waits is posted, or left out.
    Post(usize),
    Deliver(usize),
    Complete(usize),
    /// The next piece of a buffer is registered, or cannot be.
    Register(usize, Tag, bool),
    Submit(usize, Tag),
    Cancel(usize, Tag),
    Expire(usize),
    Tear,
    Flush(usize),
}

/// A driver that breaks a rule, to see that it is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Break {
    Nothing,
    /// Messages go out before the writes that they speak of.
    MessagesFirst,
    /// The target's lease goes when it gives up, not when it may.
    ReleaseOnCancel,
    /// DONE does not wait for writes that are posted late.
    DoneFirst,
    /// Deaf to revocation: nothing is flushed before leases go.
    ReleaseOnLost,
}

struct Exploration {
    opens: Vec<(usize, bool)>,
    faults: Faults,
    limits: Limits,
    breaks: Break,
    /// Whether the driver posts writes late, one at a time.
    late: bool,
}

impl Exploration {
    fn new(opens: &[(usize, bool)], faults: Faults) -> Self {
        Self { opens: opens.to_vec(), faults, limits: Limits::default(), breaks: Break::Nothing, late: false }
    }
}

impl World {
    /// Carries out what a side wants, as a driver does: actions, then messages.
    fn drive(&mut self, side: usize, breaks: Break, late: bool) {
        if breaks == Break::MessagesFirst {
            self.send(side, breaks);
        }
        while let Some(action) = self.sides[side].next_action() {
            self.act(side, action, breaks);
        }
        while self.sides[side].next_expired().is_some() {}
        while !late && self.post(side) {}
        self.send(side, breaks);
    }

    /// Posts the first write that waits, or leaves it out. False if there is none.
    fn post(&mut self, side: usize) -> bool {
        let Some(write) = self.unposted[side].pop_front() else { return false };
        let Passing::Write { tag, .. } = write else { unreachable!("only writes wait") };
        if self.torn {
            return true;
        }
        match self.sides[side].gives_up(tag) {
            true => self.sides[side].written(tag, true),
            false => self.passing[1 - side].push_back(write),
        }
        true
    }

    fn send(&mut self, side: usize, breaks: Break) {
        let mut message = [0; MESSAGE];
        let unposted = &self.unposted[side];
        let of = |write: &Passing, of| matches!(write, Passing::Write { tag, .. } if *tag == of);
        let posted = |tag| breaks == Break::DoneFirst || !unposted.iter().any(|write| of(write, tag));
        while let Some(length) = self.sides[side].take_message_where(self.now[side], &mut message, posted) {
            if !self.torn {
                self.passing[1 - side].push_back(Passing::Message(message[..length].to_vec()));
            }
        }
    }

    fn act(&mut self, side: usize, action: Action, breaks: Break) {
        match action {
            Action::Requested { tag, read, .. } => {
                let held = Held { writer: read, ..held(false) };
                self.held[side].insert(tag, held);
            }
            Action::Write { tag, remote, immediate, .. } => {
                if remote.key != 7 || remote.address + remote.length > LENGTH {
                    self.broken = Some("a write with a key that nobody gave");
                }
                if self.held[side][&tag].registered < remote.address + remote.length {
                    self.broken = Some("a write from memory that is not registered");
                }
                if !self.torn {
                    let Segment { address, length, .. } = remote;
                    self.unposted[side].push_back(Passing::Write { tag, address, length, immediate });
                }
            }
            Action::KeysCame { tag } => self.of(side, tag).wants_submit = true,
            Action::Completed { tag, result } => {
                let held = self.of(side, tag);
                let again = held.ended.replace(result.map_err(|_| ())).is_some();
                held.released |= breaks == Break::ReleaseOnLost;
                let false_success = !held.writer && result == Ok(LENGTH) && held.placed != 0b11;
                self.breaks_if(again, "an end that is told twice");
                self.breaks_if(false_success, "a success of which not every byte was placed");
            }
            Action::Release { tag } => {
                let held = self.of(side, tag);
                let out_of_turn = held.ended.is_none() || (held.released && breaks == Break::Nothing);
                held.released = true;
                let is_writer = held.writer;
                let mine = |write: &Passing| matches!(write, Passing::Write { tag: other, .. } if *other == tag);
                let mut on_its_way = self.passing[1 - side].iter().chain(&self.unposted[side]);
                let on_its_way = is_writer && on_its_way.any(mine);
                self.breaks_if(out_of_turn, "a release before the end, or a second one");
                self.breaks_if(on_its_way, "the writer let go of its lease with a write on its way");
            }
            Action::Disconnect { .. } => self.tear(),
            Action::PeerTooOld { .. } => self.broken = Some("a peer of the same version is deaf"),
        }
    }

    fn breaks_if(&mut self, broken: bool, what: &'static str) {
        if broken {
            self.broken.get_or_insert(what);
        }
    }

    fn of(&mut self, side: usize, tag: Tag) -> &mut Held {
        self.held[side].get_mut(&tag).expect("an action for a transfer that the application knows")
    }

    /// The connection goes down: messages are lost, writes may still be placed until the flush.
    fn tear(&mut self) {
        if std::mem::replace(&mut self.torn, true) {
            return;
        }
        for passing in &mut self.passing {
            passing.retain(|passing| matches!(passing, Passing::Write { .. }));
        }
        for side in 0..2 {
            self.unposted[side].clear();
            self.sides[side].lost();
        }
    }

    fn deliver(&mut self, side: usize) {
        match self.passing[side].pop_front() {
            Some(Passing::Message(bytes)) => {
                self.sides[side].received(self.now[side], &bytes);
            }
            Some(Passing::Write { tag, address, length, immediate }) => {
                let bytes = (address..address + length).fold(0, |bytes, at| bytes | 1_u8 << at);
                match self.held[side].get_mut(&tag) {
                    Some(held) if held.placed & bytes != 0 => self.broken = Some("a byte that was written twice"),
                    Some(held) if held.released => {
                        self.broken = Some("a write was placed after the target released its lease");
                    }
                    Some(held) if held.registered < address + length => {
                        self.broken = Some("a write was placed in memory that is not registered");
                    }
                    Some(held) => held.placed |= bytes,
                    None => self.broken = Some("a write for a transfer that nobody knows"),
                }
                self.placed[1 - side].push_back(tag);
                if let Some(immediate) = immediate.filter(|_| !self.torn) {
                    self.sides[side].received_immediate(self.now[side], immediate);
                }
            }
            None => {}
        }
    }

    fn register(&mut self, side: usize, tag: Tag, succeeds: bool) {
        let now = self.now[side];
        let Held { writer, answered, registered, .. } = *self.of(side, tag);
        let handshake = &mut self.sides[side];
        // Refused where the transfer has ended meanwhile: its end is told.
        let _ = if !succeeds {
            self.faults.registrations -= 1;
            handshake.fail(now, tag, Reason::Registration)
        } else {
            if !answered && writer {
                let _ = handshake.crw(now, tag, LENGTH);
            } else if !answered {
                let _ = handshake.accept(now, tag, LENGTH);
            }
            let more = registered + 1 < LENGTH;
            if writer {
                handshake.ready(now, tag, registered, 1)
            } else {
                let segment = Segment { address: registered, length: 1, key: 7 };
                handshake.offer(now, tag, registered, &[segment], more)
            }
        };
        let held = self.of(side, tag);
        held.answered = true;
        held.registered = if succeeds { registered + 1 } else { LENGTH };
    }

    /// Lists the steps that happen by themselves.
    fn progress(&self, steps: &mut Vec<Step>) {
        steps.extend((0..2).filter(|&side| !self.passing[side].is_empty()).map(Step::Deliver));
        steps.extend((0..2).filter(|&side| !self.placed[side].is_empty()).map(Step::Complete));
        steps.extend((0..2).filter(|&side| !self.unposted[side].is_empty()).map(Step::Post));
        if let Some(&(side, _)) = self.to_open.first().filter(|_| !self.torn) {
            steps.push(Step::Open(side));
        }
        for side in 0..2 {
            for (&tag, held) in &self.held[side] {
                if held.registered < LENGTH && held.ended.is_none() {
                    steps.push(Step::Register(side, tag, true));
                }
                if held.wants_submit && held.ended.is_none() {
                    steps.push(Step::Submit(side, tag));
                }
            }
        }
        if self.torn {
            steps.extend((0..2).filter(|&side| !self.flushed[side]).map(Step::Flush));
        }
    }
}

fn held(writer: bool) -> Held {
    Held { writer, answered: false, registered: 0, released: false, ended: None, wants_submit: false, placed: 0 }
}

impl Model for Exploration {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let sides = [Side::Connecting, Side::Accepting].map(|side| Handshake::new(side, self.limits));
        vec![World {
            sides,
            held: Default::default(),
            passing: Default::default(),
            placed: Default::default(),
            unposted: Default::default(),
            now: [0; 2],
            to_open: self.opens.clone(),
            faults: self.faults,
            torn: false,
            flushed: [false; 2],
            broken: None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        world.progress(steps);
        let quiet = steps.is_empty();
        for side in 0..2 {
            let open = world.held[side].iter().filter(|(_, held)| held.ended.is_none());
            for (&tag, held) in open {
                if held.registered < LENGTH && world.faults.registrations > 0 {
                    steps.push(Step::Register(side, tag, false));
                }
                if world.faults.cancels > 0 && !world.torn {
                    steps.push(Step::Cancel(side, tag));
                }
            }
            // Where nothing else happens, time goes on.
            let due = world.sides[side].next_deadline().is_some();
            if due && (quiet || world.faults.timeouts > 0) {
                steps.push(Step::Expire(side));
            }
        }
        if world.faults.tears > 0 && !world.torn {
            steps.push(Step::Tear);
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Open(side) => {
                let (_, read) = world.to_open.remove(0);
                let now = world.now[side];
                let handshake = &mut world.sides[side];
                let tag = if read { handshake.read(now, LENGTH, b"") } else { handshake.write(now, LENGTH, b"") };
                world.held[side].insert(tag.ok()?, Held { answered: true, ..held(!read) });
            }
            Step::Post(side) => drop(world.post(side)),
            Step::Deliver(side) => world.deliver(side),
            Step::Complete(side) => {
                let tag = world.placed[side].pop_front()?;
                world.sides[side].written(tag, true);
            }
            Step::Register(side, tag, succeeds) => world.register(side, tag, succeeds),
            Step::Submit(side, tag) => {
                let now = world.now[side];
                world.of(side, tag).wants_submit = false;
                let _ = world.sides[side].submit(now, tag);
            }
            Step::Cancel(side, tag) => {
                world.faults.cancels -= 1;
                let now = world.now[side];
                let _ = world.sides[side].cancel(now, tag);
                if self.breaks == Break::ReleaseOnCancel {
                    world.of(side, tag).released = true;
                }
            }
            Step::Expire(side) => {
                let mut quiet = Vec::new();
                world.progress(&mut quiet);
                world.faults.timeouts -= u8::from(!quiet.is_empty());
                world.now[side] = world.sides[side].next_deadline()?;
                let now = world.now[side];
                world.sides[side].expire(now);
            }
            Step::Tear => {
                world.faults.tears -= 1;
                world.tear();
            }
            Step::Flush(side) => {
                // Bytes that have not been placed by now never are; and the peer's writes are known to have failed or
                // not.
                world.flushed[side] = true;
                world.passing[side].clear();
                if world.flushed[1 - side] {
                    for side in 0..2 {
                        world.sides[side].flushed();
                    }
                }
            }
        }
        for side in 0..2 {
            world.drive(side, self.breaks, self.late);
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no rule is broken", |_, world: &World| world.broken.is_none()),
            Property::always("what stops has ended well on both sides, or badly on both", |model: &Self, world| {
                let mut steps = Vec::new();
                model.actions(world, &mut steps);
                !steps.is_empty() || world.is_settled()
            }),
            Property::sometimes("a transfer succeeds", |_, world: &World| {
                world.held.iter().flat_map(|held| held.values()).any(|held| held.ended == Some(Ok(LENGTH)))
            }),
        ]
    }
}

impl World {
    fn is_settled(&self) -> bool {
        let mut tags: Vec<Tag> = self.held.iter().flat_map(|held| held.keys().copied()).collect();
        tags.sort();
        tags.dedup();
        let nothing_left = self.sides.iter().all(|side| side.open_transfers() == 0);
        nothing_left
            && tags.iter().all(|tag| {
                let [here, there] = [0, 1].map(|side| self.held[side].get(tag));
                let released = [here, there].into_iter().flatten().all(|held| held.released && held.ended.is_some());
                let ends = [here, there].map(|held| held.and_then(|held| held.ended));
                released
                    && match ends {
                        // One side may not have heard of the other's success when the connection went.
                        _ if self.torn => true,
                        [Some(Ok(a)), Some(Ok(b))] => a == b,
                        [Some(Err(())), Some(Err(()))] => true,
                        // Given up before the peer heard of it.
                        [Some(Err(())), None] | [None, Some(Err(()))] => true,
                        _ => false,
                    }
            })
    }
}

/// Explores all of it, and prints how much that was.
fn explore(name: &str, exploration: Exploration) {
    let checker = exploration.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{name}: {} states, {} of them different", checker.state_count(), checker.unique_state_count());
    for (property, path) in checker.discoveries() {
        assert!(property == "a transfer succeeds", "{name}: not so: {property}\n{path:#?}");
    }
    assert!(checker.is_done(), "{name}: all was explored");
}

/// A break that has to be noticed.
fn notices(name: &str, mut exploration: Exploration, breaks: Break) {
    exploration.breaks = breaks;
    let checker = exploration.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries().into_keys().find(|&property| property != "a transfer succeeds");
    println!("{name}: noticed after {} states: {found:?}", checker.state_count());
    assert!(found.is_some(), "{name}: {breaks:?} goes unnoticed");
}

const WRITE: bool = false;
const READ: bool = true;

fn faults(registrations: u8, cancels: u8, timeouts: u8, tears: u8) -> Faults {
    Faults { registrations, cancels, timeouts, tears }
}

#[test]
fn one_transfer_with_faults_ends_on_both_sides() {
    for (name, read) in [("a write", WRITE), ("a read", READ)] {
        explore(name, Exploration::new(&[(0, read)], faults(1, 1, 1, 1)));
        let immediate = Limits { immediate: true, ..Limits::default() };
        let exploration = Exploration::new(&[(0, read)], faults(1, 1, 1, 1));
        explore(&format!("{name}, with immediates"), Exploration { limits: immediate, ..exploration });
        let traditional = Limits { process: Process::Traditional, ..Limits::default() };
        let exploration = Exploration::new(&[(0, read)], faults(1, 1, 1, 1));
        explore(&format!("{name}, traditional"), Exploration { limits: traditional, ..exploration });
    }
}

#[test]
fn late_writes_are_followed_by_their_done() {
    for (name, read) in [("a write", WRITE), ("a read", READ)] {
        for immediate in [false, true] {
            let limits = Limits { immediate, ..Limits::default() };
            let exploration = Exploration::new(&[(0, read)], faults(1, 1, 1, 1));
            let name = format!("{name}, posted late, with immediates: {immediate}");
            explore(&name, Exploration { late: true, limits, ..exploration });
        }
    }
    let two = Exploration::new(&[(0, WRITE), (0, WRITE)], faults(0, 1, 0, 0));
    explore("two writes, posted late", Exploration { late: true, ..two });
}

#[test]
fn two_transfers_do_not_disturb_each_other() {
    explore("two writes", Exploration::new(&[(0, WRITE), (0, WRITE)], faults(0, 0, 0, 0)));
    explore("a write each way", Exploration::new(&[(0, WRITE), (1, WRITE)], faults(0, 0, 0, 0)));
    explore("a write and a read", Exploration::new(&[(0, WRITE), (1, READ)], faults(0, 0, 0, 0)));
}

/// Every two kinds of faults together.
const PAIRS_OF_FAULTS: [[u8; 4]; 6] =
    [[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]];

fn explore_with_faults(first: (usize, bool), second: (usize, bool), limits: Limits) {
    let what = |(side, read)| format!("a {} by {side}", if read { "read" } else { "write" });
    for [registrations, cancels, timeouts, tears] in PAIRS_OF_FAULTS {
        let faults = faults(registrations, cancels, timeouts, tears);
        let with = if limits.immediate { ", with immediates" } else { "" };
        let name = format!("{}, {}{with}, {faults:?}", what(first), what(second));
        explore(&name, Exploration { limits, ..Exploration::new(&[first, second], faults) });
    }
}

#[test]
#[ignore = "ten minutes"]
fn two_transfers_with_faults() {
    // The others are these with the sides exchanged.
    for (first, second) in [(WRITE, WRITE), (WRITE, READ), (READ, READ)] {
        for side in [0, 1] {
            explore_with_faults((0, first), (side, second), Limits::default());
        }
    }
    explore_with_faults((0, WRITE), (1, WRITE), Limits { immediate: true, ..Limits::default() });
}

#[test]
#[ignore = "ten minutes, and some memory"]
fn two_transfers_with_every_fault() {
    for (name, second) in [("two writes", (0, WRITE)), ("a write and a read", (1, READ))] {
        explore(name, Exploration::new(&[(0, WRITE), second], faults(1, 1, 1, 1)));
    }
}

#[test]
fn a_driver_that_breaks_a_rule_is_noticed() {
    let one = |faults| Exploration::new(&[(0, WRITE)], faults);
    notices("messages before writes", one(faults(0, 0, 0, 0)), Break::MessagesFirst);
    let late = |faults| Exploration { late: true, ..one(faults) };
    notices("a DONE before writes that are posted late", late(faults(0, 0, 0, 0)), Break::DoneFirst);
    notices("a lease that goes with its transfer's cancelling", one(faults(0, 1, 0, 0)), Break::ReleaseOnCancel);
    notices("a lease that goes with the connection", one(faults(0, 0, 0, 1)), Break::ReleaseOnLost);
}
