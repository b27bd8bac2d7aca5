//! Schedules that lead to the faults which walks at random do not meet. Each is a short story of [`crate::model`]: without its fault
//! nothing is wrong, and with it a rule is broken.

use crate::config::Policy;
use crate::faults;
use crate::ids::ServerId;
use crate::messages::{Answer, Call, Reply};
use crate::model::{Action, Packet, Peer, Shape, World};

/// Steps after which a schedule does not end.
const STEPS: usize = 10_000;

const SHAPE: Shape = Shape {
    servers: 3,
    joining: 0,
    policy: Policy::Copies(3),
    keys: 1,
    clients: 2,
    operations: 2,
    deletes: false,
    staged: false,
    epochs: 100,
    timeouts: 1,
    duplicates: 1,
    losses: 2,
    repairs: true,
    flushes: 1,
    tags: false,
};

/// A world that a schedule takes step by step. After a violation nothing more happens.
struct Schedule {
    shape: Shape,
    world: World,
}

fn call(packet: &Packet) -> Option<(ServerId, &Call)> {
    match packet {
        Packet::Ask { to, request, .. } => Some((*to, &request.call)),
        Packet::Tell { .. } => None,
    }
}

fn is_repair(packet: &Packet) -> bool {
    matches!(call(packet), Some((_, Call::Repair { .. })))
}

fn is_note(packet: &Packet) -> bool {
    matches!(call(packet), Some((_, Call::Note { .. })))
}

fn is_last_answer(packet: &Packet) -> bool {
    matches!(packet, Packet::Tell { to: Peer::Client(0), reply: Reply { answer: Answer::Done(_), .. }, .. })
}

impl Schedule {
    fn new(shape: Shape) -> Self {
        Self { world: World::new(&shape), shape }
    }

    /// Lets something happen that may.
    fn step(&mut self, action: Action) {
        if self.world.violation().is_none() {
            assert!(self.world.actions(&self.shape).contains(&action), "{action:?} cannot happen");
            self.world.step(&self.shape, action);
        }
    }

    /// Lets the first thing happen that is wanted. Returns whether there was one.
    fn step_if(&mut self, is_wanted: impl Fn(&World, &Action) -> bool) -> bool {
        let actions = self.world.actions(&self.shape);
        let Some(&action) = actions.iter().find(|action| is_wanted(&self.world, action)) else { return false };
        self.world.step(&self.shape, action);
        true
    }

    /// Delivers messages, and those that follow from them, as long as there are any.
    fn deliver(&mut self, is_wanted: impl Fn(&Packet) -> bool) {
        let is_wanted =
            |world: &World, action: &Action| matches!(action, Action::Deliver(at) if is_wanted(&world.network()[*at]));
        assert!((0..STEPS).any(|_| !self.step_if(is_wanted)), "messages without an end");
    }

    fn deliver_all(&mut self) {
        self.deliver(|_| true);
    }

    /// Writes and delivers all.
    fn write(&mut self, client: u8) {
        self.step(Action::Begin(client, 0));
        self.deliver_all();
    }

    /// All servers adopt the latest epoch. Rights of those that left end.
    fn adopt(&mut self) {
        while self.step_if(|_, action| matches!(action, Action::Adopt(_))) {}
        while self.step_if(|_, action| matches!(action, Action::Expire(_))) {}
    }

    fn crash(&mut self, server: u8) {
        self.step(Action::Crash(server));
        self.step(Action::Remove(server));
        self.adopt();
    }

    /// A server leaves, and joins again with a new run.
    fn rejoin(&mut self, server: u8) {
        self.step(Action::Remove(server));
        self.adopt();
        self.step(Action::Return(server));
        self.adopt();
    }

    /// Agents repair all. Messages that are held stay on their way.
    fn repair(&mut self, is_held: impl Fn(&Packet) -> bool) {
        let is_repair = |_: &World, action: &Action| matches!(action, Action::Repair(_) | Action::SendFates(_));
        let mut repairs = 0;
        while self.step_if(is_repair) {
            self.deliver(|packet| !is_held(packet));
            repairs += 1;
            assert!(repairs < STEPS, "repairs without an end");
        }
    }

    fn become_whole(&mut self) {
        self.step(Action::Whole);
        self.adopt();
    }

    /// A client learns the latest epoch, and all goes on.
    fn learn(&mut self, client: u8) {
        self.step(Action::Learn(client));
        self.deliver_all();
    }
}

/// A seal of epoch 1 comes late: its client was told meanwhile that the write never happens.
fn late_seal() -> Schedule {
    let is_seal = |packet: &Packet| matches!(call(packet), Some((_, Call::Seal { .. })));
    let mut schedule = Schedule::new(SHAPE);
    schedule.step(Action::Begin(0, 0));
    schedule.deliver(|packet| !is_seal(packet));
    schedule.crash(0);
    // Server 1 does not know the write, and all refuse it. So the client orders it anew; server 2 does not seal that.
    schedule.step(Action::Learn(0));
    schedule.deliver(|packet| !is_seal(packet));
    // Only the seal of epoch 1 comes to server 2.
    schedule.deliver(|packet| match packet {
        Packet::Ask { to, request, .. } => to.0 == 2 && request.epoch.0 == 1,
        Packet::Tell { .. } => false,
    });
    schedule.crash(1);
    schedule.learn(0);
    schedule
}

/// A repair comes late: the member took a newer value meanwhile.
fn repair_after_a_write() -> Schedule {
    let mut schedule = Schedule::new(SHAPE);
    schedule.write(0);
    schedule.rejoin(0);
    schedule.repair(is_repair);
    schedule.step(Action::Learn(1));
    schedule.step(Action::Begin(1, 0));
    schedule.deliver(|packet| !is_repair(packet));
    schedule.deliver_all();
    schedule.repair(|_| false);
    schedule.become_whole();
    schedule
}

/// A new primary does not know yet that its last write was published, and is repaired.
fn repair_of_an_ambiguous_key() -> Schedule {
    let mut schedule = Schedule::new(SHAPE);
    schedule.write(0);
    schedule.step(Action::Begin(1, 0));
    schedule.deliver(|packet| !is_note(packet));
    schedule.crash(0);
    schedule.repair(|_| false);
    schedule.become_whole();
    schedule.crash(1);
    schedule
}

/// A repair comes in a later epoch, after the value was deleted and forgotten.
fn repair_of_an_earlier_epoch() -> Schedule {
    let mut schedule = Schedule::new(Shape { deletes: true, ..SHAPE });
    schedule.write(0);
    schedule.rejoin(1);
    // It comes twice.
    schedule.repair(is_repair);
    let repairs =
        |world: &World, action: &Action| matches!(action, Action::Duplicate(at) if is_repair(&world.network()[*at]));
    assert!(schedule.step_if(repairs), "server 1 is repaired");
    schedule.deliver(|packet| !is_repair(packet));
    schedule.repair(is_repair);
    schedule.become_whole();
    schedule.step(Action::Learn(0));
    schedule.step(Action::Begin(0, 0));
    schedule.deliver(|packet| !is_repair(packet));
    schedule.step(Action::Forget(0, 0));
    schedule.deliver(|packet| !is_repair(packet));
    schedule.deliver_all();
    schedule.crash(0);
    schedule
}

/// A client lost its answer, another wrote over its value, and none is left of those that took its write.
fn answer_lost_for_long() -> Schedule {
    let mut schedule = Schedule::new(Shape { servers: 2, policy: Policy::Copies(2), losses: 1, ..SHAPE });
    schedule.step(Action::Begin(0, 0));
    schedule.deliver(|packet| !is_last_answer(packet));
    schedule.step(Action::Begin(1, 0));
    schedule.deliver(|packet| !is_last_answer(packet));
    for server in [0, 1] {
        schedule.rejoin(server);
        schedule.repair(is_last_answer);
        schedule.become_whole();
    }
    schedule.learn(0);
    schedule
}

/// A server returns with the memory of its run before, in which a key is that was deleted and forgotten.
fn return_with_memory() -> Schedule {
    let mut schedule = Schedule::new(Shape { deletes: true, ..SHAPE });
    schedule.write(0);
    schedule.step(Action::Remove(0));
    schedule.adopt();
    schedule.repair(|_| false);
    schedule.become_whole();
    schedule.step(Action::Learn(0));
    schedule.write(0);
    schedule.step(Action::Forget(1, 0));
    schedule.deliver_all();
    schedule.step(Action::Return(0));
    schedule.adopt();
    schedule.repair(|_| false);
    schedule.become_whole();
    schedule
}

/// A fault, its schedule, and the rule that it breaks.
type Planted = (&'static str, fn() -> Schedule, &'static str);

#[test]
fn schedules_find_planted_faults() {
    let (twice, older) = ("a write ran twice", "a read returned an older value");
    let schedules: [Planted; 6] = [
        ("other-epoch", late_seal, twice),
        ("repair-over-newer", repair_after_a_write, older),
        ("repair-before-completion", repair_of_an_ambiguous_key, older),
        ("late-repair", repair_of_an_earlier_epoch, older),
        ("repair-without-fates", answer_lost_for_long, twice),
        ("return-not-emptied", return_with_memory, older),
    ];
    for (fault, schedule, expected) in schedules {
        faults::plant("");
        assert_eq!(schedule().world.violation(), None, "without {fault}");
        faults::plant(fault);
        let found = schedule().world.violation();
        faults::plant("");
        assert_eq!(found, Some(expected), "{fault}");
    }
}
