//! Calls to the only server of a cluster, without etcd.

use std::sync::Arc;

use rdmakv_cluster::config::{Config as Configuration, Incarnation, Policy};
use rdmakv_cluster::facts::{Change as Changed, Fact, View};
use rdmakv_cluster::json;
use rdmakv_cluster::membership::{Action, Identity};
use rdmakv_cluster::messages::{
    Answer, Call, Change, Chunk, Condition, Epoch, Form, Frozen, Piece, Place, Refusal, Request, Select, Verdict,
    Version, WriteId,
};
use rdmakv_cluster::placement::Placement;
use rdmakv_cluster::wire::{About, Arguments, Attributes, Entry, ReplyFrame, RequestFrame};
use rdmakv_proto::clock;
use rdmakv_proto::item::{ItemError, State, check_head, value_sum};

use super::{Cluster, Context, Out, Session, Settings, Shards, Shared};
use crate::metrics::Counts;
use crate::store::Config;

const RUN: Incarnation = Incarnation(3);
const NOW: u64 = 1_000_000;

fn configuration() -> Configuration {
    let config = Configuration::with_lease(7, 60_000).unwrap();
    let config = config.with_policy(b"r:", Policy::Copies(2)).unwrap();
    config.with_server("tcp:a", vec!["tcp:a".to_owned()], 1, RUN).unwrap()
}

/// Returns a server that has adopted this configuration, and has a right for a minute.
fn server(config: &Configuration) -> (Shared, Arc<Cluster>) {
    server_of(8 << 20, config)
}

fn server_of(memory: usize, config: &Configuration) -> (Shared, Arc<Cluster>) {
    server_with((memory, false), config)
}

fn server_with((memory, carries): (usize, bool), config: &Configuration) -> (Shared, Arc<Cluster>) {
    let stores = Config { memory, huge: false, ..Config::default() };
    let mut shared = Shared::new(Shards::new(&stores, 1).unwrap(), Settings { threads: 1, ..Settings::default() }, NOW);
    let identity = Identity {
        name: "tcp:a".to_owned(),
        addresses: vec!["tcp:a".to_owned()],
        weight: 1,
        clock_skew: 1_000_000_000,
    };
    let cluster = Cluster::new(identity, RUN, 1);
    let cluster = Arc::new(if carries { cluster.with_backing() } else { cluster });
    shared.join(cluster.clone());
    adopt(&shared, &cluster, config, 5);
    (shared, cluster)
}

/// Lets the server read a configuration that was written in this revision, and adopt it.
fn adopt(shared: &Shared, cluster: &Cluster, config: &Configuration, revision: i64) {
    assert!(follow(shared, cluster, config, revision) && cluster.membership().config() == Some(config));
}

/// Lets the server read a configuration, and do what follows. Returns whether it adopted one.
fn follow(shared: &Shared, cluster: &Cluster, config: &Configuration, revision: i64) -> bool {
    let bytes = json::encode(config);
    let view = View::of(revision, [Changed { path: "config", value: Some(&bytes), revision }]).unwrap();
    let mut adopted = false;
    // Work that needs etcd or other servers is left.
    for _ in 0..8 {
        match cluster.next(&shared.shards, clock::boot()) {
            Some(Action::Read(renewal)) => cluster.membership().read(renewal, view.clone()),
            Some(Action::Adopt) => {
                adopted = true;
                while cluster.adopt_more(&shared.shards) {}
            }
            _ => cluster.membership().changed(view.clone()),
        }
    }
    adopted
}

/// Sends a line with a call, and returns what comes back.
fn send(shared: &Shared, key: &str, (call, piece): (Call, &[u8]), attributes: Attributes, now: u64) -> Vec<u8> {
    let epoch = shared.cluster.as_ref().unwrap().membership().config().map_or(Epoch(0), Configuration::epoch);
    let request = Request { cluster: 7, epoch, call };
    send_frame(shared, key, &RequestFrame { attributes, ..RequestFrame::new(request) }, piece, now)
}

fn send_frame(shared: &Shared, key: &str, frame: &RequestFrame, piece: &[u8], now: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    let line = format!("mx {key} {} {}\r\n", bytes.len() + piece.len(), bytes.len());
    let input = [line.as_bytes(), &bytes, piece, b"\r\n"].concat();
    let (mut counts, mut out) = (Counts::default(), Out::default());
    let mut cx = Context::new(shared, now, &mut counts, 0);
    Session::default().advance(&input, &mut 99, &mut cx, &mut out);
    out.bytes
}

/// Returns the answer of a line, and the bytes that follow the reply.
fn answer(bytes: &[u8]) -> (Answer, &[u8]) {
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap();
    let line = std::str::from_utf8(&bytes[..end]).unwrap().trim_end();
    let length: usize = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}")).1.parse().unwrap();
    let (reply, rest) = bytes[end + 1..bytes.len() - 2].split_at(length);
    (ReplyFrame::decode(reply).unwrap_or_else(|error| panic!("{line}: {error}")).reply.answer, rest)
}

fn ask(shared: &Shared, call: Call, piece: &[u8]) -> Answer {
    answer(&send(shared, "r:key", (call, piece), Attributes::default(), NOW)).0
}

fn order(sequence: u64, condition: Condition) -> Call {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, b"value") as u32;
    let piece = Piece { chunk: Chunk(0), form: Form::Copy, length: 5, sum };
    Call::Order { id: WriteId { client: 9, sequence }, lowest: 1, condition, change: Change::Put(piece) }
}

fn write(shared: &Shared, sequence: u64) {
    let Answer::Ordered { version, .. } = ask(shared, order(sequence, Condition::Always), b"value") else { panic!() };
    let published = ask(shared, Call::Publish { id: WriteId { client: 9, sequence }, version }, b"");
    assert_eq!(published, Answer::Done(Verdict::Stored(version)));
}

#[test]
fn epochs_keep_values_but_for_flushes_and_policies() {
    let config = configuration();
    let (shared, cluster) = server(&config);
    write(&shared, 1);
    let next = config.flush().unwrap().with_policy(b"other:", Policy::Copies(2)).unwrap();
    // Values of before the flush are gone.
    adopt(&shared, &cluster, &next, 6);
    assert_eq!(ask(&shared, Call::Read, b""), Answer::Value(None));
    write(&shared, 2);
    let next = next.with_policy(b"more:", Policy::Copies(2)).unwrap();
    adopt(&shared, &cluster, &next, 7);
    assert!(matches!(ask(&shared, Call::Read, b""), Answer::Value(Some(_))));
    // A key that loses its policy is dropped.
    let next = next.with_policy(b"r:", Policy::None).unwrap();
    adopt(&shared, &cluster, &next, 8);
    let gauges = cluster.gauges(&shared.shards);
    assert_eq!((gauges.keys, gauges.pieces, gauges.epoch), (0, (0, 0), next.epoch().0));
}

#[test]
fn values_that_expired_are_forgotten_as_tombstones() {
    let (shared, cluster) = server(&configuration().whole().unwrap());
    let attributes = Attributes { expiry: NOW + 10, ..Attributes::default() };
    let ordered = send(&shared, "r:key", (order(1, Condition::Always), b"value"), attributes, NOW);
    let (Answer::Ordered { version, .. }, _) = answer(&ordered) else { panic!() };
    ask(&shared, Call::Publish { id: WriteId { client: 9, sequence: 1 }, version }, b"");
    let at = |call, now| send(&shared, "r:key", (call, b""), Attributes::default(), now);
    let unsettled = |now| {
        let page = at(Call::Keys { select: Select::Unsettled, from: Place::FIRST }, now);
        Entry::decode_all(answer(&page).1).unwrap()
    };
    // It cannot be forgotten before.
    assert!(unsettled(NOW + 9).is_empty() && answer(&at(Call::Forget { version }, NOW + 9)).0 == Answer::Taken);
    assert!(matches!(answer(&at(Call::Read, NOW + 9)).0, Answer::Value(Some(_))));
    let [entry] = &unsettled(NOW + 10)[..] else { panic!("the agent is told of it") };
    assert_eq!((entry.about, entry.version), (About::Tombstone, version));
    assert_eq!(answer(&at(Call::Forget { version }, NOW + 10)).0, Answer::Taken);
    assert_eq!((cluster.gauges(&shared.shards).keys, cluster.gauges(&shared.shards).pieces), (0, (0, 0)));
}

#[test]
fn a_value_that_grows_too_large_is_told_so() {
    let (shared, cluster) = server(&configuration());
    let epoch = cluster.membership().config().unwrap().epoch();
    let append = |sequence, added: &[u8]| {
        let id = WriteId { client: 9, sequence };
        let change = Change::Compute(0);
        let call = Call::Order { id, lowest: 1, condition: Condition::Present, change };
        let request = Request { cluster: 7, epoch, call };
        let frame = RequestFrame { arguments: Some(Arguments::Append), ..RequestFrame::new(request) };
        answer(&send_frame(&shared, "r:key", &frame, added, NOW)).0
    };
    write(&shared, 1);
    // Items have at most 1 MiB.
    let half = vec![b'x'; 600 << 10];
    let Answer::Ordered { version, .. } = append(2, &half) else { panic!("it fits") };
    ask(&shared, Call::Publish { id: WriteId { client: 9, sequence: 2 }, version }, b"");
    assert_eq!(append(3, &half), Answer::Done(Verdict::Declined(Refusal::TooLarge)));
}

#[test]
fn a_new_primary_ends_values_early() {
    let (other, key) = (Incarnation(4), |at: u64| format!("r:{at}"));
    let config = configuration().with_server("tcp:b", vec!["tcp:b".to_owned()], 1, other).unwrap().whole().unwrap();
    let (shared, cluster) = server(&config);
    let id = config.incarnation(other).unwrap().id;
    let ring = config.ring();
    let handed = (1..).find(|&at| ring.primary(key(at).as_bytes()) == Some(id)).unwrap();
    let own = (1..).find(|&at| ring.primary(key(at).as_bytes()) != Some(id)).unwrap();
    let attributes = Attributes { expiry: NOW + 10, ..Attributes::default() };
    let Call::Order { change: Change::Put(piece), .. } = order(1, Condition::Always) else { panic!() };
    let (version, write) = (Version::new(config.epoch(), 5), WriteId { client: 9, sequence: 1 });
    let seal = Call::Seal { id: write, version, base: Version::ABSENT, piece: Some(piece) };
    let sealed = send(&shared, &key(handed), (seal, b"value"), attributes, NOW);
    assert_eq!(answer(&sealed).0, Answer::Sealed(version));
    send(&shared, &key(handed), (Call::Note { id: write, version, lowest: 0 }, b""), attributes, NOW);
    let ordered = send(&shared, &key(own), (order(2, Condition::Always), b"value"), attributes, NOW);
    let Answer::Ordered { version, .. } = answer(&ordered).0 else { panic!() };
    let publish = Call::Publish { id: WriteId { client: 9, sequence: 2 }, version };
    send(&shared, &key(own), (publish, b""), attributes, NOW);
    // The other server leaves, and has told that nothing of before is fenced.
    let next = config.without_server(id).unwrap();
    let (bytes, told) = (json::encode(&next), Fact::Adopted(id, other, next.epoch()));
    let (path, value) = (told.path(), told.value());
    let changes = [
        Changed { path: "config", value: Some(&bytes), revision: 6 },
        Changed { path: &path, value: Some(value.as_bytes()), revision: 6 },
    ];
    cluster.membership().changed(View::of(6, changes).unwrap());
    assert_eq!(cluster.next(&shared.shards, clock::boot()), Some(Action::Adopt));
    while cluster.adopt_more(&shared.shards) {}
    let is_there = |key: &str, now| {
        let read = send(&shared, key, (Call::Read, b""), Attributes::default(), now);
        match answer(&read).0 {
            Answer::Value(value) => value.is_some(),
            answer => panic!("{key}: {answer:?}"),
        }
    };
    // The clocks of servers may be a second apart.
    assert!(is_there(&key(handed), NOW + 8) && !is_there(&key(handed), NOW + 9));
    assert!(is_there(&key(own), NOW + 9) && !is_there(&key(own), NOW + 10));
}

#[test]
fn an_epoch_takes_many_keys_in_steps() {
    let config = configuration();
    let (shared, cluster) = server(&config);
    let count = 2 * super::adoption::KEYS as u64 + 7;
    let key = |at: u64| format!("r:{}{at}", if at.is_multiple_of(3) { "a" } else { "b" });
    for at in 1..=count {
        let sent = send(&shared, &key(at), (order(at, Condition::Always), b"value"), Attributes::default(), NOW);
        assert!(sent.starts_with(b"MX "));
    }
    // All writes are pending yet. Keys of one prefix lose their policy.
    assert_eq!((cluster.gauges(&shared.shards).keys, cluster.gauges(&shared.shards).pending), (count, count));
    let next = config.with_policy(b"r:a", Policy::Copies(3)).unwrap();
    adopt(&shared, &cluster, &next, 6);
    assert_eq!((cluster.gauges(&shared.shards).keys, cluster.gauges(&shared.shards).pending), (count, count));
    let next = next.with_policy(b"r:a", Policy::None).unwrap();
    adopt(&shared, &cluster, &next, 7);
    let left = count - count / 3;
    assert_eq!((cluster.gauges(&shared.shards).keys, cluster.gauges(&shared.shards).pending), (left, left));
    adopt(&shared, &cluster, &next.flush().unwrap(), 8);
    assert_eq!(
        (
            cluster.gauges(&shared.shards).keys,
            cluster.gauges(&shared.shards).pending,
            cluster.gauges(&shared.shards).pieces.0
        ),
        (0, 0, 0)
    );
}

#[test]
fn the_right_is_renewed_while_keys_are_adopted() {
    let config = configuration();
    let (shared, cluster) = server(&config);
    for at in 1..=3 * super::adoption::KEYS as u64 {
        let call = (order(at, Condition::Always), &b"value"[..]);
        assert!(send(&shared, &format!("r:{at}"), call, Attributes::default(), NOW).starts_with(b"MX "));
    }
    let next = config.with_policy(b"other:", Policy::Copies(2)).unwrap();
    let bytes = json::encode(&next);
    let view = View::of(6, [Changed { path: "config", value: Some(&bytes), revision: 6 }]).unwrap();
    cluster.membership().changed(view.clone());
    // The times are those of a driver that takes a second for each step.
    let (begin, second) = (clock::boot(), 1_000_000_000);
    assert_eq!(cluster.next(&shared.shards, begin), Some(Action::Adopt));
    let (mut steps, mut reads) = (0, 0);
    loop {
        let now = begin + steps * 20 * second;
        while let Some(action) = cluster.next(&shared.shards, now) {
            let Action::Read(renewal) = action else { continue };
            reads += 1;
            cluster.membership().read(renewal, view.clone());
        }
        assert!(cluster.membership().is_in_force(now + 19 * second) && !cluster.membership().has_right(now));
        steps += 1;
        if !cluster.adopt_more(&shared.shards) {
            break;
        }
    }
    // One step for the shard, three for its keys, then those for items.
    assert!(steps >= 5 && reads >= steps - 1, "{steps} steps, {reads} reads");
    assert!(cluster.membership().has_right(begin + (steps - 1) * 20 * second));
}

#[test]
fn plain_items_of_keys_that_get_a_policy_are_dropped() {
    let config = configuration();
    let (shared, cluster) = server(&config);
    let talk = |input: &[u8]| {
        let (mut counts, mut out) = (Counts::default(), Out::default());
        let mut cx = Context::new(&shared, NOW, &mut counts, 0);
        Session::default().advance(input, &mut 99, &mut cx, &mut out);
        String::from_utf8(out.bytes).unwrap()
    };
    assert_eq!(talk(b"set p:1 0 0 1\r\nx\r\nset q:1 0 0 1\r\ny\r\n"), "STORED\r\nSTORED\r\n");
    let next = config.with_policy(b"p:", Policy::Copies(2)).unwrap();
    adopt(&shared, &cluster, &next, 6);
    assert_eq!(talk(b"get p:1\r\nget q:1\r\n"), "END\r\nVALUE q:1 0 1\r\ny\r\nEND\r\n");
    adopt(&shared, &cluster, &next.with_policy(b"p:", Policy::None).unwrap(), 7);
    assert_eq!(talk(b"get p:1\r\nget q:1\r\n"), "END\r\nVALUE q:1 0 1\r\ny\r\nEND\r\n");
}

#[test]
fn what_clients_read_is_covered_by_each_epoch() {
    let config = configuration();
    let (shared, cluster) = server(&config);
    let read = || {
        let shown = cluster.show(&shared.shards, b"r:key", NOW, |store, handle| {
            let handle = handle.expect("it was written");
            let mut image = Vec::new();
            store.image(handle, &mut image);
            (handle, image)
        });
        shown.map(|(handle, image)| (handle, State::of(image[0])))
    };
    let state = |handle| {
        let mut image = Vec::new();
        shared.shards.at(0).image(handle, &mut image);
        State::of(image[0])
    };
    write(&shared, 1);
    let (handle, before) = read().unwrap();
    assert_eq!(before, State::Primary);
    let next = config.with_policy(b"other:", Policy::Copies(2)).unwrap();
    adopt(&shared, &cluster, &next, 6);
    assert_eq!(state(handle), State::Held);
    assert_eq!(read().map(|(_, state)| state), Ok(State::Primary));
    // A server that leaves holds what it hands over.
    let next = next.with_server("tcp:b", vec!["tcp:b".to_owned()], 1, Incarnation(4)).unwrap();
    let me = next.servers().iter().find(|server| server.name == "tcp:a").unwrap().id;
    adopt(&shared, &cluster, &next, 7);
    let (handle, shown) = read().unwrap();
    assert_eq!(shown, State::Primary);
    follow(&shared, &cluster, &next.without_server(me).unwrap(), 8);
    assert_eq!(state(handle), State::Held);
    assert!(read().is_err());
}

#[test]
fn fragments_are_lent_until_they_are_another_values() {
    let config = configuration().with_policy(b"c:", Policy::Code { data: 2, parity: 1 }).unwrap();
    let config = config.with_server("tcp:b", vec!["tcp:b".to_owned()], 1, Incarnation(4)).unwrap().whole().unwrap();
    let (shared, cluster) = server(&config);
    let me = config.servers().iter().find(|server| server.name == "tcp:a").unwrap().id;
    let is_mine = |key: &String| Placement::of(&config).primary(key.as_bytes()) == Some(me);
    let mut keys = (0..).map(|at| format!("c:{at}"));
    let own = keys.by_ref().find(is_mine).unwrap();
    let held = keys.find(|key| !is_mine(key)).unwrap();
    let ask = |key: &str, call, piece| {
        let sent = send(&shared, key, (call, piece), Attributes::default(), NOW);
        answer(&sent).0
    };
    // Of 5,000 bytes the second fragment has 2,440.
    let (bytes, sum) = (vec![7; 2440], value_sum(&[7; 5000]));
    let piece = Piece { chunk: Chunk(0), form: Form::Fragment { k: 2, index: 1 }, length: 5000, sum };
    let write = |key: &str, sequence| {
        let id = WriteId { client: 9, sequence };
        let put = Call::Order { id, lowest: 1, condition: Condition::Always, change: Change::Put(piece) };
        let Answer::Ordered { version, .. } = ask(key, put, &bytes) else { panic!() };
        assert_eq!(ask(key, Call::Publish { id, version }, b""), Answer::Done(Verdict::Stored(version)));
        version
    };
    let seal = |key: &str, (sequence, version, base)| {
        let id = WriteId { client: 9, sequence };
        let sealed = ask(key, Call::Seal { id, version, base, piece: Some(piece) }, &bytes);
        assert!(matches!(sealed, Answer::Sealed(_)), "{sealed:?}");
    };
    let image = |handle| {
        let mut image = Vec::new();
        shared.shards.at(0).image(handle, &mut image);
        image
    };
    let lend = |key: &str| cluster.lend(&shared.shards, key.as_bytes(), NOW, |_, handle| handle);
    let head = |handle, key: &str, version: Version| {
        let bytes = image(handle);
        let incarnation = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
        let head = check_head(&bytes, key.as_bytes(), incarnation, version.0, (2440, sum));
        head.map(|head| head.state)
    };

    let located = |key: &str| {
        let sent = send(&shared, key, (Call::Locate, b""), Attributes::default(), NOW);
        match answer(&sent) {
            (Answer::Value(found), b"") => found.map(|stored| (stored.version, stored.piece.form)),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((located(&own), located(&held)), (None, None));

    let version = write(&own, 1);
    assert_eq!(located(&own), Some((version, piece.form)));
    let handle = lend(&own).unwrap().unwrap();
    assert_eq!(head(handle, &own, version), Ok(State::Primary));
    assert!(cluster.show(&shared.shards, own.as_bytes(), NOW, |_, _| ()).is_err(), "it is no whole value");
    write(&own, 2);
    assert_ne!(head(handle, &own, version), Ok(State::Primary));

    assert!(lend(&held).unwrap().is_none());
    let (first, second) = (Version::new(config.epoch(), 1), Version::new(config.epoch(), 2));
    seal(&held, (3, first, Version::ABSENT));
    let before = lend(&held).unwrap().unwrap();
    assert_eq!(head(before, &held, first), Ok(State::Held));
    seal(&held, (4, second, first));
    let after = lend(&held).unwrap().unwrap();
    assert_eq!((head(before, &held, first), head(after, &held, second)), (Ok(State::Held), Ok(State::Held)));
    assert_eq!(head(after, &held, first), Err(ItemError::Torn));
    assert_eq!(located(&held), Some((second, piece.form)), "the newest");

    let handle = lend(&own).unwrap().unwrap();
    adopt(&shared, &cluster, &config.with_policy(b"other:", Policy::Copies(2)).unwrap(), 6);
    assert_eq!(State::of(image(handle)[0]), State::Held, "an epoch covers what was shown");
    assert_eq!(State::of(image(after)[0]), State::Held);
}

fn freeze(ino: u64) -> Frozen {
    Frozen { ino, generation: 1, size: 2 << 16, chunk_bits: 16, runs: vec![(0, 2)] }
}

/// Returns whether a value never changes, and whether it is clean, as the server tells agents.
fn told(shared: &Shared, key: &str) -> (bool, bool) {
    let bytes = send(shared, key, (Call::Survey, b""), Attributes::default(), NOW);
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap();
    let frame = ReplyFrame::decode(&bytes[end + 1..bytes.len() - 2]).unwrap();
    assert!(matches!(frame.reply.answer, Answer::Value(Some(_))), "{frame:?}");
    (frame.attributes.is_final, frame.attributes.is_clean)
}

#[test]
fn chunks_of_a_frozen_generation_never_change() {
    let config = configuration().with_policy(b"c/", Policy::Copies(2)).unwrap();
    let (shared, _cluster) = server(&config);
    let ask =
        |key: &str, call: Call, piece: &[u8]| answer(&send(&shared, key, (call, piece), Attributes::default(), NOW)).0;
    let put = |key: &str, sequence| {
        let Answer::Ordered { version, .. } = ask(key, order(sequence, Condition::Always), b"value") else { panic!() };
        version
    };
    let publish =
        |key: &str, sequence, version| ask(key, Call::Publish { id: WriteId { client: 9, sequence }, version }, b"");
    let declined = Answer::Done(Verdict::Declined(Refusal::Final));
    let version = put("c/5/1/0", 1);
    // A write is under way, and is completed. No other one begins.
    assert_eq!(ask("agent", Call::Freeze(freeze(5)), b""), Answer::Busy);
    assert_eq!(publish("c/5/1/0", 1, version), Answer::Done(Verdict::Stored(version)));
    assert_eq!(ask("c/5/1/1", order(2, Condition::Absent), b"value"), declined);
    assert_eq!(told(&shared, "c/5/1/0"), (false, false));
    for _ in 0..2 {
        assert_eq!(ask("agent", Call::Freeze(freeze(5)), b""), Answer::Taken);
    }
    assert_eq!(told(&shared, "c/5/1/0"), (true, false));
    let Call::Order { id, change: Change::Put(piece), .. } = order(3, Condition::Always) else { panic!() };
    assert_eq!(ask("c/5/1/0", Call::Stage { id, piece }, b"value"), declined);
    assert_eq!(ask("c/5/1/0", order(4, Condition::Version(version)), b"value"), declined);
    // Another generation is another one, and so is a key that is no chunk.
    let other = put("c/5/2/0", 5);
    assert_eq!(publish("c/5/2/0", 5, other), Answer::Done(Verdict::Stored(other)));
    assert_eq!(told(&shared, "c/5/2/0"), (false, false));

    // Chunks that are here stay as they are after that, but may go. None comes back.
    assert_eq!(ask("agent", Call::Persisted(freeze(5)), b""), Answer::Taken);
    assert_eq!(told(&shared, "c/5/1/0"), (true, true));
    assert_eq!(ask("c/5/1/0", order(6, Condition::Always), b"value"), declined);
    let tombstone = Piece { form: Form::Tombstone, length: 0, sum: 0, ..piece };
    let (id, change) = (WriteId { client: 9, sequence: 7 }, Change::Put(tombstone));
    let delete = Call::Order { id, lowest: 1, condition: Condition::Present, change };
    let Answer::Ordered { version, .. } = ask("c/5/1/0", delete, b"") else { panic!() };
    assert_eq!(publish("c/5/1/0", 7, version), Answer::Done(Verdict::Stored(version)));
    assert_eq!(ask("c/5/1/0", order(8, Condition::Always), b"value"), declined);
}

#[test]
fn servers_carry_final_chunks_only() {
    let config = configuration().with_policy(b"c/", Policy::Copies(2)).unwrap();
    let (shared, cluster) = server(&config);
    let ask =
        |key: &str, call: Call, piece: &[u8]| answer(&send(&shared, key, (call, piece), Attributes::default(), NOW)).0;
    let copied = |key: &str| {
        let mut bytes = b"before".to_vec();
        cluster.copy_final(&shared.shards, key.as_bytes(), &mut bytes).then_some(bytes)
    };
    let write = |key: &str, sequence| {
        let Answer::Ordered { version, .. } = ask(key, order(sequence, Condition::Always), b"value") else { panic!() };
        version
    };
    let publish =
        |key: &str, sequence, version| ask(key, Call::Publish { id: WriteId { client: 9, sequence }, version }, b"");
    let version = write("c/5/1/0", 1);
    publish("c/5/1/0", 1, version);
    assert_eq!(copied("c/5/1/0"), None, "it may change");
    let version = write("c/5/1/0", 2);
    assert_eq!(ask("agent", Call::Freeze(freeze(5)), b""), Answer::Busy);
    assert_eq!(copied("c/5/1/0"), None, "a write is under way");
    publish("c/5/1/0", 2, version);
    assert_eq!(ask("agent", Call::Freeze(freeze(5)), b""), Answer::Taken);
    assert_eq!(copied("c/5/1/0"), Some(b"value".to_vec()));
    assert_eq!((copied("c/5/1/1"), copied("c/6/1/0")), (None, None));
    // Without a directory it carries none.
    let carry = || ask("agent", Call::Carry { file: 3, frozen: freeze(5) }, b"");
    assert_eq!(carry(), Answer::Carried(Vec::new()));
}

#[test]
fn a_server_is_asked_until_chunks_are_on_disk() {
    let config = configuration().with_policy(b"c/", Policy::Copies(2)).unwrap();
    let (shared, cluster) = server_with((8 << 20, true), &config);
    let carry = || of_file(&shared, Call::Carry { file: 3, frozen: freeze(5) });
    assert_eq!((carry(), carry()), (Answer::Busy, Answer::Busy));
    let order = cluster.orders().next(std::time::Duration::ZERO).unwrap();
    assert_eq!((order.cluster, order.file, &order.frozen), (7, 3, &freeze(5)));
    assert_eq!(carry(), Answer::Busy);
    cluster.orders().end(vec![2]);
    assert_eq!((carry(), carry()), (Answer::Carried(vec![2]), Answer::Carried(vec![2])));
}

/// A server of 32 MiB that evicts clean chunks, and the length of values that take a page each.
fn files() -> (Shared, Arc<Cluster>) {
    let config = configuration().with_rule(b"c/", "copies:2,evict=clean".parse().unwrap()).unwrap();
    server_of(32 << 20, &config)
}

/// Writes a chunk of a file of nearly 1 MiB. Returns the answer to its order.
fn put_chunk(shared: &Shared, key: &str, sequence: u64) -> Answer {
    put_bytes(shared, key, sequence, 1_000_000)
}

fn put_bytes(shared: &Shared, key: &str, sequence: u64, length: usize) -> Answer {
    let value = vec![b'x'; length];
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &value) as u32;
    let piece = Piece { chunk: Chunk(0), form: Form::Copy, length: value.len() as u64, sum };
    let id = WriteId { client: 9, sequence };
    let call = Call::Order { id, lowest: 1, condition: Condition::Always, change: Change::Put(piece) };
    let answered = answer(&send(shared, key, (call, &value), Attributes::default(), NOW)).0;
    if let Answer::Ordered { version, .. } = answered {
        let published = answer(&send(shared, key, (Call::Publish { id, version }, b""), Attributes::default(), NOW)).0;
        assert_eq!(published, Answer::Done(Verdict::Stored(version)));
    }
    answered
}

fn of_file(shared: &Shared, call: Call) -> Answer {
    answer(&send(shared, "agent", (call, b""), Attributes::default(), NOW)).0
}

fn file(ino: u64, chunks: u32) -> Frozen {
    Frozen { size: u64::from(chunks) << 20, chunk_bits: 20, runs: vec![(0, chunks)], ..freeze(ino) }
}

#[test]
fn dirty_chunks_are_refused_beyond_their_share() {
    let (shared, cluster) = files();
    let refused = Answer::Done(Verdict::Declined(Refusal::NoMemory));
    let put = |ino: u32, index: u32, sequence| put_chunk(&shared, &format!("c/{ino:x}/1/{index:x}"), sequence);
    // The oldest chunk stays dirty.
    assert!(matches!(put(7, 0, 100), Answer::Ordered { .. }));
    let taken = (0..32).take_while(|&index| put(5, index, u64::from(index) + 1) != refused).count() as u32;
    // 70 % of 32 pages.
    assert_eq!(taken, 21);
    let files = |cluster: &Cluster| cluster.gauges(&shared.shards).files;
    assert_eq!(files(&cluster), (22 << 20, 0, (32 << 20) / 100 * 70));
    // Nothing goes that the backing does not have, and other keys have room.
    assert_eq!(put(6, 0, 50), refused);
    write(&shared, 51);
    let small = |key: &str, sequence| {
        answer(&send(&shared, key, (order(sequence, Condition::Always), b"value"), Attributes::default(), NOW)).0
    };
    assert!(matches!(small("r:other", 52), Answer::Ordered { .. }));

    // What the backing has makes room, the oldest first, and the server has none of it then.
    assert_eq!(of_file(&shared, Call::Freeze(file(5, taken))), Answer::Taken);
    assert_eq!(put(6, 0, 60), refused);
    assert_eq!(of_file(&shared, Call::Persisted(file(5, taken))), Answer::Taken);
    assert_eq!(files(&cluster), (1 << 20, 21 << 20, (32 << 20) / 100 * 70));
    for index in 0..10 {
        assert!(matches!(put(6, index, 61 + u64::from(index)), Answer::Ordered { .. }), "{index}");
    }
    assert_eq!((files(&cluster).0, files(&cluster).1), (11 << 20, 13 << 20));
    assert_eq!(
        cluster.file_counts().list(),
        [("files_evicted", 8), ("files_refused", 3), ("files_carried_bytes", 0), ("files_carry_errors", 0)]
    );
    let has = |key: &str| {
        matches!(answer(&send(&shared, key, (Call::Survey, b""), Attributes::default(), NOW)).0, Answer::Value(Some(_)))
    };
    assert_eq!([0, 7, 8, 20].map(|index| has(&format!("c/5/1/{index:x}"))), [false, false, true, true]);
    assert!(has("c/7/1/0") && (0..10).all(|index| has(&format!("c/6/1/{index:x}"))));
    // A late write cannot bring an evicted chunk back.
    assert_eq!(put(5, 0, 90), Answer::Done(Verdict::Declined(Refusal::Final)));
}

#[test]
fn clean_chunks_make_room_for_other_sizes() {
    let (shared, cluster) = files();
    let put = |(ino, index): (u32, u32), sequence, length| {
        matches!(put_bytes(&shared, &format!("c/{ino:x}/1/{index:x}"), sequence, length), Answer::Ordered { .. })
    };
    // Three chunks share a page. Each third one is written again, so each page has old ones and a new one.
    let all = (0..63).chain((0..63).step_by(3));
    assert!(all.zip(1..).all(|(index, sequence)| put((5, index), sequence, 300_000)));
    for call in [Call::Freeze(file(5, 63)), Call::Persisted(file(5, 63))] {
        assert_eq!(of_file(&shared, call), Answer::Taken);
    }
    for index in 0..16 {
        assert!(
            put((6, index), 200 + u64::from(index), 1_000_000),
            "{index}: {:?}",
            cluster.gauges(&shared.shards).files
        );
    }
}

/// Memory that clients may read is free once their leases end, so no more chunks go for it.
#[test]
fn few_leased_chunks_go_for_a_piece() {
    let (shared, cluster) = files();
    let put = |key: &str, sequence, length| matches!(put_bytes(&shared, key, sequence, length), Answer::Ordered { .. });
    let chunk = |index: u64| format!("c/5/1/{index:x}");
    assert!((0..60).all(|index| put(&chunk(index), index + 1, 300_000)));
    assert!((100..200).any(|sequence| !put(&format!("r:{sequence}"), sequence, 1_000_000)), "memory is full");
    for call in [Call::Freeze(file(5, 60)), Call::Persisted(file(5, 60))] {
        assert_eq!(of_file(&shared, call), Answer::Taken);
    }
    let lease = |index| {
        let key = chunk(index);
        cluster
            .show(&shared.shards, key.as_bytes(), NOW, |store, shown| store.lease(shown.unwrap(), NOW * 1_000_000_000))
    };
    // The last ones have no leases, and have pages of their own.
    assert!((0..48).all(|index| lease(index).unwrap().is_ok()));
    let evicted = || cluster.file_counts().list()[0].1;
    assert!(put("r:more", 300, 1_000_000));
    let for_one = evicted();
    assert!((1..=12).contains(&for_one), "{for_one}");
    let refused = (301..310).find(|&sequence| !put(&format!("r:{sequence}"), sequence, 1_000_000));
    assert!(refused.is_some() && evicted() <= 12 + 4, "{}", evicted());
}

#[test]
fn clean_chunks_stay_without_their_policy() {
    let config = configuration().with_policy(b"c/", Policy::Copies(2)).unwrap();
    let (shared, cluster) = server_of(32 << 20, &config);
    (0..22).for_each(|index| {
        assert!(matches!(put_chunk(&shared, &format!("c/5/1/{index:x}"), index + 1), Answer::Ordered { .. }))
    });
    for call in [Call::Freeze(file(5, 22)), Call::Persisted(file(5, 22))] {
        assert_eq!(of_file(&shared, call), Answer::Taken);
    }
    let written = (0..20).take_while(|&index| {
        matches!(put_chunk(&shared, &format!("c/6/1/{index:x}"), index + 30), Answer::Ordered { .. })
    });
    assert_eq!((written.count(), cluster.file_counts().list()[0]), (2, ("files_evicted", 0)));
}
