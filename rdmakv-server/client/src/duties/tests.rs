//! Tests of an agent's duties, the reply to each call by hand.

use super::*;
use rdmakv_cluster::config::{Config, Incarnation, Policy};
use rdmakv_cluster::messages::{Epoch, Pending, Refusal, Reply};
use rdmakv_proto::item::value_sum;

const KEY: &[u8] = b"key";
const ID: WriteId = WriteId { client: 7, sequence: 3 };

/// An agent, the reply to each of its calls by hand.
struct Talk {
    duties: Duties,
    layout: Arc<Layout>,
    now: u64,
    calls: VecDeque<Outgoing>,
}

impl Talk {
    /// Begins as the agent of one of the three servers of the key, by its place among them.
    fn begin(place: usize, is_whole: bool) -> Self {
        Self::of(Policy::Copies(3), place, is_whole)
    }

    fn of(policy: Policy, place: usize, is_whole: bool) -> Self {
        let join = |config: Config, run: u64| {
            config.with_server(&format!("s{run}"), vec![format!("tcp:h{run}:1")], 1, Incarnation(run)).unwrap()
        };
        let config = (0..3).fold(Config::new(9), join).with_policy(b"", policy).unwrap().whole().unwrap();
        let config = if is_whole { config } else { config.renewed().unwrap() };
        let layout = Arc::new(Layout::of(&config));
        let name = &config.server(layout.target(KEY).members[place]).unwrap().name;
        let mut talk = Self { duties: Duties::new(name, 1 << 30), layout, now: 1, calls: VecDeque::new() };
        talk.pass(0);
        talk
    }

    fn target(&self) -> Target {
        self.layout.target(KEY)
    }

    fn pass(&mut self, time: u64) {
        self.now += time;
        self.calls.extend(self.duties.progress(&self.layout, self.now));
    }

    /// Returns the next call, after the reports of progress.
    fn call(&mut self) -> (ServerId, Call, u64) {
        loop {
            let Outgoing { number, to, frame, .. } = self.calls.pop_front().expect("it calls");
            match frame.request.call {
                Call::Report(Report { is_done: false, .. }) => self.reply(number, Answer::Taken, &[]),
                call => return (to, call, number),
            }
        }
    }

    fn reply(&mut self, number: u64, answer: Answer, bytes: &[u8]) {
        let frame = ReplyFrame::new(Reply { epoch: self.layout.epoch(), id: Some(ID), answer });
        self.calls.extend(self.duties.take(number, Some((frame, bytes.to_vec())), self.now));
    }

    /// Expects a call, and replies to it.
    fn expect(&mut self, to: ServerId, expected: &Call, answer: Answer) {
        let (at, call, number) = self.call();
        assert_eq!((at, &call), (to, expected));
        self.reply(number, answer, &[]);
    }

    /// Tells what is unsettled, once for each look.
    fn tell(&mut self, about: About, version: Version) {
        let (_, call, number) = self.call();
        assert_eq!(call, Call::Keys { select: Select::Unsettled, from: Place::FIRST });
        let mut page = Vec::new();
        Entry { key: KEY.to_vec(), about, id: ID, version, length: 5 }.encode(&mut page);
        self.reply(number, Answer::Keys { next: None, left: 0 }, &page);
    }
}

fn version(count: u64) -> Version {
    Version::new(Epoch(1), count)
}

fn stored() -> Stored {
    let piece = Piece { chunk: Chunk(0), form: Form::Copy, length: 5, sum: 1 };
    Stored { id: ID, version: version(4), confirmed: Epoch(1), piece, is_staged: true }
}

#[test]
fn a_staged_piece_goes_after_its_client_was_silent() {
    let mut talk = Talk::begin(1, true);
    let target = talk.target();
    for _ in 0..3 {
        talk.pass(LOOK);
        talk.tell(About::Staged, Version::ABSENT);
        assert!(talk.calls.is_empty(), "it is not old");
    }
    talk.pass(LOOK);
    talk.tell(About::Staged, Version::ABSENT);
    talk.expect(target.members[0], &Call::Resolve { id: ID }, Answer::Refused);
    for &other in target.others() {
        talk.expect(other, &Call::Refuse { id: ID }, Answer::Refused);
    }
    assert!(talk.calls.is_empty() && talk.duties.jobs.is_empty());
}

#[test]
fn a_published_write_is_noted_where_it_is_only_sealed() {
    let mut talk = Talk::begin(2, true);
    let (target, me) = (talk.target(), talk.target().members[2]);
    for _ in 0..2 {
        talk.pass(LOOK);
        talk.tell(About::Sealed, version(4));
    }
    talk.expect(target.members[0], &Call::Resolve { id: ID }, Answer::Done(Verdict::Stored(version(4))));
    let (version, lowest) = (version(4), 0);
    let seal = Call::Seal { id: ID, version, base: Version::ABSENT, piece: None };
    talk.expect(me, &seal, Answer::Sealed(version));
    talk.expect(me, &Call::Note { id: ID, version, lowest }, Answer::Taken);
    assert!(talk.calls.is_empty() && talk.duties.jobs.is_empty());
}

#[test]
fn a_write_that_nothing_completes_is_completed() {
    let mut talk = Talk::begin(0, true);
    let target = talk.target();
    for _ in 0..2 {
        talk.pass(LOOK);
        talk.tell(About::Next, version(4));
    }
    let pending = Pending { stored: stored(), base: version(3) };
    talk.expect(target.members[0], &Call::Resolve { id: ID }, Answer::Help(pending));
    let (version, base, lowest) = (version(4), version(3), 0);
    for &other in target.others() {
        talk.expect(other, &Call::Seal { id: ID, version, base, piece: None }, Answer::Sealed(version));
    }
    let publish = Call::Publish { id: ID, version };
    talk.expect(target.members[0], &publish, Answer::Done(Verdict::Stored(version)));
    for &other in target.others() {
        talk.expect(other, &Call::Note { id: ID, version, lowest }, Answer::Taken);
    }
    assert!(talk.calls.is_empty() && talk.duties.jobs.is_empty());
}

#[test]
fn a_tombstone_is_forgotten_at_its_primary_last() {
    let mut talk = Talk::begin(0, true);
    let (target, version) = (talk.target(), version(4));
    talk.pass(LOOK);
    talk.tell(About::Tombstone, version);
    talk.pass(LOOK);
    talk.tell(About::Tombstone, version);
    assert!(talk.duties.seen.is_empty(), "others have its place");
    for &other in target.others() {
        talk.expect(other, &Call::Forget { version }, Answer::Taken);
    }
    talk.expect(target.members[0], &Call::Forget { version }, Answer::Taken);
    assert!(talk.calls.is_empty() && talk.duties.jobs.is_empty());
}

#[test]
fn values_and_fates_go_out_before_the_report() {
    let mut talk = Talk::begin(0, false);
    let (target, me) = (talk.target(), talk.target().members[0]);
    let (_, call, number) = talk.call();
    assert_eq!(call, Call::Keys { select: Select::Primary, from: Place::FIRST });
    let mut page = Vec::new();
    Entry { key: KEY.to_vec(), about: About::Value, id: ID, version: version(4), length: 5 }.encode(&mut page);
    talk.reply(number, Answer::Keys { next: None, left: 0 }, &page);
    let version = version(4);
    talk.expect(me, &Call::Survey, Answer::Value(Some(stored())));
    talk.expect(target.members[1], &Call::List { version }, Answer::Has(Some(0)));
    talk.expect(target.members[2], &Call::List { version }, Answer::Has(None));
    let (to, call, number) = talk.call();
    assert_eq!((to, call), (me, Call::Fetch { version }));
    talk.reply(number, Answer::Value(Some(stored())), b"value");
    let sent = talk.calls.pop_front().unwrap();
    assert!(matches!(sent.frame.request.call, Call::Repair { id: ID, version: of, .. } if of == version));
    assert_eq!((sent.to, sent.body.bytes()), (target.members[2], &b"value"[..]));
    assert!(talk.calls.is_empty(), "nothing is reported before the value is there");
    talk.reply(sent.number, Answer::Repaired(version), &[]);

    let fates = vec![(ID, Fate::Done(Verdict::Stored(version)))];
    talk.expect(me, &Call::FatesAfter { shard: 0, after: None }, Answer::Fates(Some(fates.clone())));
    let others = talk.layout.config().servers().iter().map(|server| server.id).filter(|&other| other != me);
    for other in others.collect::<Vec<_>>() {
        talk.expect(other, &Call::Fates(fates.clone()), Answer::Taken);
    }
    talk.expect(me, &Call::FatesAfter { shard: 0, after: Some(ID) }, Answer::Fates(Some(Vec::new())));
    talk.expect(me, &Call::FatesAfter { shard: 1, after: None }, Answer::Fates(None));
    let report = Report { is_done: true, keys: 1, bytes: 5, ..Report::default() };
    talk.expect(me, &Call::Report(report), Answer::Taken);
    let epoch = talk.layout.epoch().0;
    let repaired = AgentEvent::Repaired { epoch, keys: 1, bytes: 5, lost: 0, time: Duration::ZERO };
    assert_eq!(talk.duties.take_events(), [AgentEvent::Began { epoch }, repaired]);
}

/// Answers for one key until its value is sent to the last member. Returns the number of that call.
fn send_value(talk: &mut Talk) -> u64 {
    let (target, me) = (talk.target(), talk.target().members[0]);
    let (_, call, number) = talk.call();
    assert_eq!(call, Call::Keys { select: Select::Primary, from: Place::FIRST });
    let mut page = Vec::new();
    Entry { key: KEY.to_vec(), about: About::Value, id: ID, version: version(4), length: 5 }.encode(&mut page);
    talk.reply(number, Answer::Keys { next: None, left: 0 }, &page);
    send_again(talk, me, &target)
}

fn send_again(talk: &mut Talk, me: ServerId, target: &Target) -> u64 {
    let version = version(4);
    talk.expect(me, &Call::Survey, Answer::Value(Some(stored())));
    talk.expect(target.members[1], &Call::List { version }, Answer::Has(Some(0)));
    talk.expect(target.members[2], &Call::List { version }, Answer::Has(None));
    let (_, call, number) = talk.call();
    assert_eq!(call, Call::Fetch { version });
    talk.reply(number, Answer::Value(Some(stored())), b"value");
    let (to, call, number) = talk.call();
    assert!(to == target.members[2] && matches!(call, Call::Repair { .. }), "{call:?}");
    number
}

#[test]
fn a_server_without_room_is_told_of_once() {
    let mut talk = Talk::begin(0, false);
    let (epoch, full) = (talk.layout.epoch().0, talk.target().members[2]);
    let name = talk.layout.config().server(full).unwrap().name.clone();
    for pause in [0, AGAIN.0, 2 * AGAIN.0, 4 * AGAIN.0, 8 * AGAIN.0, AGAIN.1] {
        // Meanwhile it looks for what is unsettled, and nothing is sent to the server.
        let until = talk.now + pause;
        while talk.now < until {
            talk.pass(LOOK);
            if talk.now < until {
                let (_, call, number) = talk.call();
                assert!(matches!(call, Call::Keys { select: Select::Unsettled, .. }), "{call:?}");
                talk.reply(number, Answer::Keys { next: None, left: 0 }, &[]);
            }
        }
        let number = send_value(&mut talk);
        talk.reply(number, Answer::Done(Verdict::Declined(Refusal::NoMemory)), &[]);
        assert!(talk.duties.jobs.is_empty() && talk.duties.report.refused == 1, "others have its place");
    }
    let told = AgentEvent::Unrepaired { epoch, short: 0, refused: 1, servers: vec![name] };
    assert_eq!(talk.duties.take_events(), [AgentEvent::Began { epoch }, told]);
    // After it has room the epoch becomes whole.
    while !talk.calls.iter().any(|call| matches!(call.frame.request.call, Call::Keys { select: Select::Primary, .. })) {
        talk.calls.clear();
        let calls: Vec<u64> = talk.duties.calls.keys().copied().collect();
        calls.into_iter().for_each(|number| talk.reply(number, Answer::Keys { next: None, left: 0 }, &[]));
        talk.pass(LOOK);
    }
    let number = send_value(&mut talk);
    talk.reply(number, Answer::Repaired(version(4)), &[]);
    let (_, call, _) = talk.call();
    assert_eq!(call, Call::FatesAfter { shard: 0, after: None });
}

#[test]
fn repair_that_gets_no_answer_is_put_off() {
    let mut talk = Talk::begin(0, false);
    let (target, me) = (talk.target(), talk.target().members[0]);
    let mut number = send_value(&mut talk);
    for attempt in 1..=ATTEMPTS {
        assert_eq!(talk.duties.jobs.len(), 1, "attempt {attempt}");
        talk.calls.extend(talk.duties.take(number, None, talk.now));
        if attempt < ATTEMPTS {
            talk.pass(PAUSE.1);
            number = send_again(&mut talk, me, &target);
        }
    }
    assert!(talk.duties.jobs.is_empty() && talk.duties.report.refused == 1);
}

#[test]
fn fragments_on_too_few_servers_are_not_whole() {
    // Three servers have what four should.
    let mut talk = Talk::of(Policy::Code { data: 2, parity: 2 }, 0, false);
    let (target, version, epoch) = (talk.target(), version(4), talk.layout.epoch().0);
    let (_, _, number) = talk.call();
    let mut page = Vec::new();
    Entry { key: KEY.to_vec(), about: About::Value, id: ID, version, length: 9000 }.encode(&mut page);
    talk.reply(number, Answer::Keys { next: None, left: 0 }, &page);
    let piece = Piece { form: Form::Fragment { k: 2, index: 0 }, length: 9000, ..stored().piece };
    talk.expect(target.members[0], &Call::Survey, Answer::Value(Some(Stored { piece, ..stored() })));
    talk.expect(target.members[1], &Call::List { version }, Answer::Has(Some(1)));
    talk.expect(target.members[2], &Call::List { version }, Answer::Has(Some(3)));
    let told = AgentEvent::Unrepaired { epoch, short: 1, refused: 0, servers: Vec::new() };
    assert_eq!(talk.duties.take_events(), [AgentEvent::Began { epoch }, told]);
    let report = Report { short: 1, ..Report::default() };
    let reported = talk.calls.pop_back().unwrap().frame.request.call;
    assert!(reported == Call::Report(report) && talk.calls.is_empty(), "{reported:?}");
}

#[test]
fn a_value_that_was_replaced_is_asked_for_anew() {
    let mut talk = Talk::begin(0, false);
    let (target, me) = (talk.target(), talk.target().members[0]);
    let (_, _, number) = talk.call();
    let mut page = Vec::new();
    Entry { key: KEY.to_vec(), about: About::Value, id: ID, version: version(4), length: 5 }.encode(&mut page);
    talk.reply(number, Answer::Keys { next: None, left: 0 }, &page);
    let version = version(4);
    talk.expect(me, &Call::Survey, Answer::Value(Some(stored())));
    for &other in target.others() {
        talk.expect(other, &Call::List { version }, Answer::Has(None));
    }
    talk.expect(me, &Call::Fetch { version }, Answer::Value(None));
    assert!(talk.calls.is_empty(), "the same version would be asked for forever");
    talk.pass(PAUSE.1);
    talk.expect(me, &Call::Survey, Answer::Value(None));
}

#[test]
fn a_damaged_value_does_not_hold_up_repair() {
    let mut talk = Talk::of(Policy::Code { data: 2, parity: 1 }, 0, false);
    let (target, version) = (talk.target(), version(4));
    let (_, _, number) = talk.call();
    let mut page = Vec::new();
    Entry { key: KEY.to_vec(), about: About::Value, id: ID, version, length: 9000 }.encode(&mut page);
    talk.reply(number, Answer::Keys { next: None, left: 0 }, &page);
    let value = vec![7; 9000];
    let (mut fragments, sum) = (Fragments::of(&Arc::new(value.to_vec().into()), 2, 3), value_sum(&value));
    let of = |index| Piece { chunk: Chunk(0), form: Form::Fragment { k: 2, index }, length: 9000, sum };
    for _ in 0..2 {
        assert!(!talk.duties.jobs.is_empty(), "a later write could have followed");
        let stored = |index| Stored { piece: of(index), ..stored() };
        talk.expect(target.members[0], &Call::Survey, Answer::Value(Some(stored(0))));
        talk.expect(target.members[1], &Call::List { version }, Answer::Has(Some(1)));
        talk.expect(target.members[2], &Call::List { version }, Answer::Has(None));
        for (place, &member) in target.members.iter().enumerate() {
            let (to, call, number) = talk.call();
            assert_eq!((to, call), (member, Call::Fetch { version }));
            let mut bytes = fragments.get(place as u8, None).bytes().to_vec();
            bytes[9] ^= place as u8;
            let found = (place < 2).then(|| stored(place as u8));
            talk.reply(number, Answer::Value(found), if place < 2 { &bytes } else { &[] });
        }
        talk.pass(PAUSE.1);
    }
    assert!(talk.duties.jobs.is_empty() && talk.duties.report.lost == 1);
}

#[test]
fn an_agent_rests_between_its_looks() {
    let mut talk = Talk::begin(1, true);
    let target = talk.target();
    for look in 1..3 {
        assert_eq!(talk.duties.rests_until(), Some(1 + look * LOOK));
        talk.pass(LOOK);
        assert_eq!(talk.duties.rests_until(), None);
        talk.tell(About::Tombstone, version(4));
    }
    talk.pass(0);
    assert_eq!((talk.calls.len(), talk.duties.rests_until()), (target.others().len(), None));
}

#[test]
fn a_server_that_is_not_there_is_waited_for_aloud() {
    let talk = Talk::begin(0, false);
    let epoch = talk.layout.epoch().0;
    let mut duties = Duties::new("another", 1);
    assert!(duties.progress(&talk.layout, 1).is_empty() && duties.progress(&talk.layout, ABSENT).is_empty());
    // Its server may be about to join.
    assert_eq!((duties.take_events(), duties.rests_until()), (Vec::new(), Some(ABSENT + 1)));
    for now in [ABSENT + 1, ABSENT + 2] {
        assert!(duties.progress(&talk.layout, now).is_empty());
    }
    assert_eq!((duties.take_events(), duties.rests_until()), (vec![AgentEvent::Absent { epoch }], Some(u64::MAX)));
    // A later epoch without it is no news.
    let later = Arc::new(Layout::of(&talk.layout.config().whole().unwrap()));
    for now in [2 * ABSENT, 9 * ABSENT] {
        assert!(duties.progress(&later, now).is_empty());
    }
    assert_eq!(duties.take_events(), []);
}

#[test]
fn a_server_that_joins_in_time_is_not_absent() {
    let talk = Talk::begin(0, true);
    let mut duties = Duties::new("another", 1);
    duties.progress(&talk.layout, 1);
    let joined = talk.layout.config().with_server("another", Vec::new(), 1, Incarnation(9)).unwrap();
    let joined = Arc::new(Layout::of(&joined));
    duties.progress(&joined, ABSENT);
    duties.progress(&joined, 2 * ABSENT);
    assert_eq!(duties.take_events(), [AgentEvent::Began { epoch: joined.epoch().0 }]);
}

#[test]
fn a_drained_server_is_not_waited_for() {
    let mut talk = Talk::begin(0, false);
    let drains = talk.layout.config().draining(talk.duties.me.unwrap()).unwrap();
    talk.duties.progress(&Arc::new(Layout::of(&drains)), talk.now);
    let without = Layout::of(&drains.whole().unwrap());
    let epoch = without.epoch().0;
    talk.duties.progress(&Arc::new(without), talk.now);
    assert_eq!(talk.duties.take_events().last(), Some(&AgentEvent::Drained { epoch }));
}

#[test]
fn calls_without_answers_are_repeated() {
    let mut talk = Talk::begin(0, false);
    for _ in 0..20 {
        let (_, call, number) = talk.call();
        assert_eq!(call, Call::Keys { select: Select::Primary, from: Place::FIRST });
        talk.duties.take(number, None, talk.now);
        assert!(talk.duties.progress(&talk.layout, talk.now).is_empty(), "it pauses");
        talk.pass(PAUSE.1);
    }
}
