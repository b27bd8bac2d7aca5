//! Tests of a member: staged bytes, orders that wait, counts of an epoch, and flushes.

use std::collections::BTreeSet;

use crate::ids::{Epoch, Version, WriteId};
use crate::member::{CallId, Chunks, HELP_AFTER, MAX_STAGED, MAX_WINDOW, Member, Replica, Replies, Role, Standing};
use crate::messages::{Answer, Call, Change, Chunk, Condition, Fate, Form, Piece, Refusal, Request, Stored, Verdict};
use crate::writer::GIVE_UP_AFTER;

const CLUSTER: u128 = 7;

/// Chunks that were made and not freed.
#[derive(Default)]
struct Kept(BTreeSet<Chunk>, bool);

impl Chunks for Kept {
    fn is_final(&self, _: Option<&Stored>) -> bool {
        self.1
    }

    fn end_early(&mut self, _: Piece) {}

    fn compute(&mut self, _: Option<&Stored>, _: u64) -> Result<Piece, Refusal> {
        Err(Refusal::Invalid)
    }

    fn publish(&mut self, _: Piece) {}

    fn free(&mut self, piece: Piece) {
        assert!(self.0.remove(&piece.chunk), "{piece:?} is freed once");
    }
}

/// A server with one key, and calls to it.
struct Server {
    member: Member,
    replica: Replica,
    standing: Standing,
    chunks: Kept,
    now: u64,
    calls: u64,
}

fn id(client: u64, sequence: u64) -> WriteId {
    WriteId { client, sequence }
}

fn put(piece: Piece) -> (Condition, Change) {
    (Condition::Always, Change::Put(piece))
}

impl Server {
    fn new(role: Role) -> Self {
        let (has_right, is_fenced, is_whole) = (true, false, true);
        let standing = Standing { epoch: Epoch(3), role, has_right, is_fenced, is_whole, flushed: Epoch(0) };
        let (member, replica, chunks) = (Member::new(CLUSTER), Replica::default(), Kept::default());
        Self { member, replica, standing, chunks, now: 1, calls: 0 }
    }

    fn piece(&mut self, length: u64) -> Piece {
        self.calls += 1;
        let chunk = Chunk(self.calls);
        self.chunks.0.insert(chunk);
        Piece { chunk, form: Form::Copy, length, sum: 0 }
    }

    fn call(&mut self, call: Call) -> Vec<(CallId, Answer)> {
        self.calls += 1;
        let request = (CallId(self.calls), Request { cluster: CLUSTER, epoch: self.standing.epoch, call });
        let replies = self.member.take(&mut self.replica, &self.standing, request, self.now, &mut self.chunks);
        self.answers(replies)
    }

    /// Checks that the chunks that are kept are those that are named.
    fn answers(&mut self, replies: Replies) -> Vec<(CallId, Answer)> {
        let named: BTreeSet<Chunk> = self.replica.pieces().iter().map(|piece| piece.chunk).collect();
        assert_eq!(named, self.chunks.0);
        replies.into_iter().map(|(call, reply)| (call, reply.answer)).collect()
    }

    fn answer(&mut self, call: Call) -> Answer {
        let answers = self.call(call);
        let last = answers.into_iter().last().expect("the call has an answer");
        last.1
    }

    fn stage(&mut self, id: WriteId, length: u64) -> Answer {
        let piece = self.piece(length);
        self.answer(Call::Stage { id, piece })
    }

    fn order(&mut self, id: WriteId) -> Vec<(CallId, Answer)> {
        let (condition, change) = put(self.piece(1));
        self.call(Call::Order { id, lowest: 1, condition, change })
    }

    /// Takes the key into the next epoch.
    fn adopt(&mut self, role: Role, flushed: Epoch) -> Vec<(CallId, Answer)> {
        let before = self.standing.role;
        self.standing = Standing { epoch: Epoch(self.standing.epoch.0 + 1), role, flushed, ..self.standing };
        let stayed = (before == Role::Primary && role == Role::Primary, role == Role::Outside);
        let replies = self.member.adopt(&mut self.replica, before, &self.standing, stayed, &mut self.chunks);
        self.answers(replies)
    }
}

#[test]
fn a_greedy_client_leaves_room_for_others() {
    let mut server = Server::new(Role::Backup);
    let (size, mut count) = (MAX_STAGED / 64, 0);
    while count < 100 && server.stage(id(1, count + 1), size) == Answer::Staged {
        count += 1;
    }
    assert!((30..=33).contains(&count), "half of the room: {count}");
    assert_eq!(server.stage(id(2, 1), size), Answer::Staged);
    // A value larger than the rest has its turn, and then nothing more.
    assert_eq!(server.stage(id(3, 1), MAX_STAGED), Answer::Staged);
    assert_eq!(server.stage(id(4, 1), 1), Answer::Busy);
    for (client, sequences) in [(1, count), (2, 1), (3, 1)] {
        for sequence in 1..=sequences {
            assert_eq!(server.answer(Call::Refuse { id: id(client, sequence) }), Answer::Refused);
        }
    }
    assert_eq!(server.member.staged_bytes(), 0);
    assert!(server.replica.is_idle());
}

#[test]
fn a_whole_epoch_takes_no_repair() {
    for is_whole in [true, false] {
        let mut server = Server::new(Role::Backup);
        let version = Version::new(Epoch(3), 5);
        let piece = server.piece(1);
        let seal = Call::Seal { id: id(1, 1), version, base: Version::ABSENT, piece: Some(piece) };
        assert_eq!(server.answer(seal), Answer::Sealed(version));
        server.answer(Call::Note { id: id(1, 1), version, lowest: 0 });
        server.standing.is_whole = is_whole;
        server.adopt(Role::Backup, Epoch(0));
        // A stranger may know all of this from a read.
        let fates = server.answer(Call::Fates(vec![(id(9, 9), Fate::Refused)]));
        let list = server.answer(Call::List { version: Version::ABSENT });
        let piece = server.piece(1);
        let repair = server.answer(Call::Repair { id: id(2, 1), version: Version::new(Epoch(4), 1), piece });
        if is_whole {
            assert_eq!([fates, list, repair], [Answer::NotServing, Answer::NotServing, Answer::NotServing]);
            assert_eq!(server.replica.current().map(|current| current.version), Some(version));
        } else {
            assert_eq!([fates, list], [Answer::Taken, Answer::Has(Some(0))]);
            assert_eq!(repair, Answer::Repaired(Version::new(Epoch(4), 1)));
        }
    }
}

#[test]
fn a_connection_of_many_clients_leaves_room() {
    let mut server = Server::new(Role::Backup);
    let (size, mut count) = (MAX_STAGED / 64, 0);
    server.member.set_connection(1);
    while count < 100 && server.stage(id(count + 1, 1), size) == Answer::Staged {
        count += 1;
    }
    assert!((30..=33).contains(&count), "half of the room: {count}");
    server.member.set_connection(2);
    for sequence in 1..9 {
        assert_eq!(server.stage(id(1000, sequence), size), Answer::Staged);
    }
    // Room comes back to the connections that took it, whichever one ends the writes.
    server.member.set_connection(3);
    (1..=count).for_each(|client| assert_eq!(server.answer(Call::Refuse { id: id(client, 1) }), Answer::Refused));
    (1..9).for_each(|at| assert_eq!(server.answer(Call::Refuse { id: id(1000, at) }), Answer::Refused));
    assert_eq!(server.member.staged_bytes(), 0);
    server.member.set_connection(1);
    assert_eq!(server.stage(id(1, 2), MAX_STAGED), Answer::Staged);
}

#[test]
fn staged_bytes_belong_to_their_key() {
    let mut server = Server::new(Role::Primary);
    assert_eq!(server.stage(id(1, 1), 5), Answer::Staged);
    let mut other = Replica::default();
    std::mem::swap(&mut server.replica, &mut other);
    let order = Call::Order { id: id(1, 1), lowest: 1, condition: Condition::Always, change: Change::Staged };
    let request = Request { cluster: CLUSTER, epoch: Epoch(3), call: order.clone() };
    let replies =
        server.member.take(&mut server.replica, &server.standing, (CallId(0), request), 1, &mut server.chunks);
    assert_eq!(replies[0].1.answer, Answer::Lacks);
    std::mem::swap(&mut server.replica, &mut other);
    assert!(matches!(server.answer(order), Answer::Ordered { .. }));
}

#[test]
fn each_call_has_one_answer() {
    let mut server = Server::new(Role::Primary);
    assert!(matches!(server.order(id(1, 1))[..], [(_, Answer::Ordered { .. })]));
    assert_eq!(server.order(id(2, 1)), []);
    let waited = CallId(server.calls);
    // The same order again, over another connection.
    assert_eq!(server.order(id(2, 1)), [(waited, Answer::Unknown)]);
    let waited = CallId(server.calls);
    let answers = server.call(Call::Resolve { id: id(2, 1) });
    assert_eq!(answers, [(waited, Answer::Refused), (CallId(server.calls), Answer::Refused)]);
    assert_eq!(server.order(id(3, 1)), []);
    let waited = CallId(server.calls);
    assert_eq!(server.adopt(Role::Primary, Epoch(0)), [(waited, Answer::OtherEpoch)]);
    assert_eq!(server.order(id(3, 1)), []);
    let replies = server.member.dismiss(&mut server.replica, &server.standing, &mut server.chunks);
    assert!(matches!(server.answers(replies)[..], [(_, Answer::Help(_))]));
}

#[test]
fn one_client_at_a_time_is_asked_to_help() {
    let mut server = Server::new(Role::Primary);
    server.order(id(1, 1));
    let waiting: Vec<CallId> = (2..5)
        .map(|client| {
            assert_eq!(server.order(id(client, 1)), []);
            CallId(server.calls)
        })
        .collect();
    for &call in &waiting {
        let early = server.member.overdue(&mut server.replica, &server.standing, server.now, &mut server.chunks);
        assert_eq!(early, []);
        server.now += HELP_AFTER + 1;
        let replies = server.member.overdue(&mut server.replica, &server.standing, server.now, &mut server.chunks);
        let answers = server.answers(replies);
        assert!(matches!(answers[..], [(helps, Answer::Help(_))] if helps == call), "{answers:?}");
    }
    // One that comes late helps, and one that comes at the same time waits.
    server.now += HELP_AFTER + 1;
    assert!(matches!(server.order(id(5, 1))[..], [(_, Answer::Help(_))]));
    assert_eq!(server.order(id(6, 1)), []);
}

#[test]
fn calls_of_other_epochs_leave_no_bytes() {
    let mut server = Server::new(Role::Backup);
    let piece = server.piece(9);
    server.standing.epoch = Epoch(4);
    let call = Call::Repair { id: id(1, 1), version: Version(9), piece };
    let request = Request { cluster: CLUSTER, epoch: Epoch(3), call };
    let replies =
        server.member.take(&mut server.replica, &server.standing, (CallId(0), request), 1, &mut server.chunks);
    assert_eq!(server.answers(replies), [(CallId(0), Answer::OtherEpoch)]);
}

#[test]
fn an_epoch_without_versions_orders_nothing() {
    let mut server = Server::new(Role::Primary);
    let publish = |server: &mut Server, sequence| {
        let answers = server.order(id(1, sequence));
        let [(_, Answer::Ordered { version, .. })] = answers[..] else { return Err(answers) };
        assert_eq!(
            server.answer(Call::Publish { id: id(1, sequence), version }),
            Answer::Done(Verdict::Stored(version))
        );
        Ok(version)
    };
    let first = publish(&mut server, 1).unwrap();
    assert!(!server.member.needs_epoch(Epoch(3)));
    server.member.skip_to(Version::MAX_COUNT - 1);
    assert!(server.member.needs_epoch(Epoch(3)) && !server.member.needs_epoch(Epoch(4)));
    let last = publish(&mut server, 2).unwrap();
    assert!(first < last && last.epoch() == Epoch(3));
    assert!(matches!(publish(&mut server, 3).unwrap_err()[..], [(_, Answer::Busy)]));
    server.adopt(Role::Primary, Epoch(0));
    assert_eq!(publish(&mut server, 4).unwrap(), Version::new(Epoch(4), 1));
}

#[test]
fn fates_of_a_client_are_bounded() {
    let mut server = Server::new(Role::Primary);
    server.standing.is_whole = false;
    let fates: Vec<_> = (1..=MAX_WINDOW as u64).map(|at| (id(1, at), Fate::Refused)).collect();
    assert_eq!(server.answer(Call::Fates(fates)), Answer::Taken);
    let next = MAX_WINDOW as u64 + 1;
    assert!(matches!(server.order(id(1, next))[..], [(_, Answer::Busy)]));
    assert!(matches!(server.order(id(2, 1))[..], [(_, Answer::Ordered { .. })]));
    // It can still learn that the write never happens, and goes on when it closed others.
    assert_eq!(server.answer(Call::Resolve { id: id(1, next) }), Answer::Refused);
    let (condition, change) = put(server.piece(1));
    let answers = server.call(Call::Order { id: id(1, next + 1), lowest: next, condition, change });
    assert_eq!(answers, []);
}

#[test]
fn notes_close_the_writes_before() {
    let mut server = Server::new(Role::Backup);
    let seal = |server: &mut Server, at: u64| {
        let piece = Some(server.piece(1));
        let (version, base) = (Version(at), Version(at - 1));
        server.answer(Call::Seal { id: id(1, at), version, base, piece })
    };
    for at in 1..=3 {
        assert_eq!(seal(&mut server, at), Answer::Sealed(Version(at)));
    }
    server.answer(Call::Note { id: id(1, 3), version: Version(3), lowest: 3 });
    assert_eq!(server.member.fates().after(None), [(id(1, 3), Fate::Done(Verdict::Stored(Version(3))))]);
}

#[test]
fn a_forgotten_write_does_not_begin_again() {
    let mut server = Server::new(Role::Primary);
    let late = id(1, 1);
    // Its client sleeps, so another one completes it, and writes after it.
    for write in [late, id(2, 1)] {
        let [(_, Answer::Ordered { version, .. })] = server.order(write)[..] else { panic!("it is ordered") };
        assert_eq!(server.answer(Call::Publish { id: write, version }), Answer::Done(Verdict::Stored(version)));
    }
    server.now += 2 * GIVE_UP_AFTER;
    server.answer(Call::Read);
    assert!(server.member.fates().is_empty());
    // Refused would let it happen a second time, under another number.
    assert_eq!(server.answer(Call::Resolve { id: late }), Answer::Done(Verdict::Flushed));
    assert_eq!(server.answer(Call::Resolve { id: id(1, 2) }), Answer::Refused);
}

#[test]
fn a_flush_takes_values_and_writes_of_before() {
    for (role, verdict) in [(Role::Primary, Verdict::Stored(Version(2))), (Role::Backup, Verdict::Flushed)] {
        let mut server = Server::new(Role::Backup);
        for at in 1..=2 {
            let piece = Some(server.piece(1));
            server.answer(Call::Seal { id: id(1, at), version: Version(at), base: Version(at - 1), piece });
        }
        assert!(server.replica.current().is_some() && server.replica.next().is_some());
        server.adopt(role, Epoch(4));
        assert!(server.replica.current().is_none() && server.replica.is_idle());
        let known = [Verdict::Stored(Version(1)), verdict].map(Fate::Done);
        assert_eq!(server.member.fates().after(None), [(id(1, 1), known[0]), (id(1, 2), known[1])]);
    }
}

#[test]
fn a_final_value_is_deleted_and_not_changed() {
    let mut server = Server::new(Role::Primary);
    let (first, second, third) = (id(1, 1), id(1, 2), id(1, 3));
    assert_eq!(server.stage(first, 100), Answer::Staged);
    server.chunks.1 = true;
    let declined = Answer::Done(Verdict::Declined(Refusal::Final));
    // The first came before the generation was frozen. Its piece goes, and the answer stays.
    for _ in 0..2 {
        let order = Call::Order { id: first, lowest: 1, condition: Condition::Always, change: Change::Staged };
        assert_eq!(server.answer(order), declined);
    }
    assert_eq!(server.stage(second, 100), declined);
    assert_eq!(server.member.staged_bytes(), 0);
    let piece = server.piece(0);
    let change = Change::Put(Piece { form: Form::Tombstone, ..piece });
    let delete = Call::Order { id: third, lowest: 1, condition: Condition::Always, change };
    assert!(matches!(server.answer(delete), Answer::Ordered { .. }));
}
