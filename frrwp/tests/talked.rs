//! Every interleaving of two applications that say things, take them when they like, or never, and open transfers beside.
//!
//! The test looks for a side that stands still: one with a message for a peer that has taken all, a transfer that waits for an
//! application that does not listen, a message without a receive. It takes more messages than there are credits to see that,
//! so what is said and asked is the simplest there is: a number, and a write that is refused.
//!
//! ```text
//! cargo test --release -p frrwp --test talked                                       # seconds
//! cargo test --release -p frrwp --test talked -- --ignored --nocapture              # the large space
//! ```

use frrwp::handshake::{Action, Handshake, Limits, RECEIVES, SendError, Side};
use frrwp::wire::{MESSAGE, Reason};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::VecDeque;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    sides: [Handshake; 2],
    /// To each side, in order.
    passing: [VecDeque<Vec<u8>>; 2],
    /// Each side's state: the messages sent so far, those received, and those that the application has taken.
    said: [u8; 2],
    came: [u8; 2],
    taken: [u8; 2],
    to_say: [u8; 2],
    to_open: [u8; 2],
    asked: [u8; 2],
    ended: [u8; 2],
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    Say(usize),
    Take(usize),
    Open(usize),
    Deliver(usize),
}

/// How many things each side says and opens; whether the second takes what the first says, and whether they answer what they
/// are asked.
#[derive(Clone, Copy)]
struct Talk {
    says: [u8; 2],
    opens: [u8; 2],
    listens: bool,
    answers: bool,
}

impl World {
    fn drive(&mut self, answers: bool) {
        for side in 0..2 {
            let handshake = &mut self.sides[side];
            while let Some(action) = handshake.next_action() {
                match action {
                    Action::Requested { tag, .. } => {
                        self.asked[side] += 1;
                        if answers {
                            handshake.fail(0, tag, Reason::Refused).expect("it was just asked");
                        }
                    }
                    Action::Release { .. } => self.ended[side] += 1,
                    Action::Completed { .. } => {}
                    _ => self.broken = Some("an action that nobody expects"),
                }
            }
            self.send(side);
        }
    }

    fn send(&mut self, side: usize) {
        let mut message = [0; MESSAGE];
        while let Some(length) = self.sides[side].take_message(0, &mut message) {
            self.passing[1 - side].push_back(message[..length].to_vec());
        }
    }

    fn untaken(&self, side: usize) -> u8 {
        self.came[side] - self.taken[side]
    }
}

impl Model for Talk {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            sides: [Side::Connecting, Side::Accepting].map(|side| Handshake::new(side, Limits::default())),
            passing: Default::default(),
            said: [0; 2],
            came: [0; 2],
            taken: [0; 2],
            to_say: self.says,
            to_open: self.opens,
            asked: [0; 2],
            ended: [0; 2],
            broken: None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for side in 0..2 {
            if world.to_say[side] > 0 && world.sides[side].may_send() {
                steps.push(Step::Say(side));
            }
            if world.untaken(side) > 0 && (self.listens || side == 0) {
                steps.push(Step::Take(side));
            }
            if world.to_open[side] > 0 {
                steps.push(Step::Open(side));
            }
            if !world.passing[side].is_empty() {
                steps.push(Step::Deliver(side));
            }
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Say(side) => {
                let mut message = [0; MESSAGE];
                let length = world.sides[side].send_message(&[world.said[side]], &mut message).ok()?;
                world.passing[1 - side].push_back(message[..length].to_vec());
                world.to_say[side] -= 1;
                world.said[side] += 1;
            }
            Step::Take(side) => {
                world.taken[side] += 1;
                world.sides[side].message_taken();
            }
            Step::Open(side) => {
                world.to_open[side] -= 1;
                world.sides[side].write(0, 1, b"").expect("there is room");
            }
            Step::Deliver(side) => {
                let message = world.passing[side].pop_front()?;
                if let Some(said) = world.sides[side].received(0, &message) {
                    if said != [world.came[side]] {
                        world.broken = Some("what was said came out of order");
                    }
                    world.came[side] += 1;
                }
            }
        }
        world.drive(self.answers);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no rule is broken", |_, world: &World| world.broken.is_none()),
            Property::always("nothing stands still", |model: &Self, world: &World| {
                let mut steps = Vec::new();
                model.actions(world, &mut steps);
                let opened = model.opens[0] + model.opens[1];
                let all_asked = world.asked == [model.opens[1], model.opens[0]];
                let all_ended = !model.answers || world.ended == [opened; 2];
                let all_said = world.to_say[1] == 0 && (world.to_say[0] == 0 || !model.listens);
                !steps.is_empty() || (all_asked && all_ended && all_said)
            }),
            Property::always("no more is kept than may be said", |_, world: &World| {
                (0..2).all(|side| u16::from(world.untaken(side)) <= RECEIVES / 2)
            }),
            Property::sometimes("there is no room", |_, world: &World| {
                let mut side = world.sides[0].clone();
                side.send_message(b"", &mut [0; MESSAGE]) == Err(SendError::Full)
            }),
        ]
    }
}

fn explore(talk: Talk) {
    let Talk { says, opens, listens, answers } = talk;
    let checker = talk.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{says:?} said, {opens:?} opened, listened to: {listens}, answered: {answers}: {states} different states");
    let found = checker.discoveries();
    assert!(found.contains_key("there is no room"), "it was talked until there was no room");
    for (property, path) in found {
        assert!(property == "there is no room", "not so: {property}\n{path:#?}");
    }
    assert!(checker.is_done());
}

const TALK: Talk = Talk { says: [10, 0], opens: [0, 0], listens: true, answers: true };

#[test]
fn who_is_listened_to_says_all_and_transfers_end() {
    explore(Talk { opens: [2, 0], ..TALK });
    explore(Talk { opens: [0, 2], ..TALK });
}

#[test]
fn who_is_not_listened_to_says_half_and_transfers_end() {
    explore(Talk { says: [9, 1], opens: [1, 1], listens: false, ..TALK });
    explore(Talk { opens: [9, 0], listens: false, answers: false, ..TALK });
}

#[test]
#[ignore = "minutes"]
fn two_who_talk_and_open_transfers() {
    explore(Talk { says: [10, 2], opens: [2, 1], ..TALK });
    explore(Talk { says: [9, 1], opens: [6, 2], listens: false, ..TALK });
    explore(Talk { says: [9, 2], opens: [12, 1], listens: false, answers: false });
}
