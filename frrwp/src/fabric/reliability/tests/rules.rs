//! The rules of `mod.rs`, one by one.

use super::super::limits::{MILLISECOND, SECOND};
use super::super::wire::{Body, Datagram, List, Part, Refused, flags};
use super::super::{Client, ClientLimits, Event, Failure, Format, RequestKind, Scope, Server, ServerLimits};
use super::{parse, peer, reply, request, server, server_peer, short};
use crate::fabric::traits::Peer;

const READ: RequestKind = RequestKind::Read;
const MUTATION: RequestKind = RequestKind::Mutation;

/// A datagram of a client's, from an honest one's library or a forger's.
fn bytes(client: u64, request: u64, floor: u16, body: Body<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    Datagram { client, request, floor, flags: 0, clock: 5, echo: 0, body }.encode(&[], true, &mut bytes);
    bytes
}

fn part(client: u64, number: u64, floor: u16, message: &[u8]) -> Vec<u8> {
    let length = message.len() as u32;
    bytes(client, number, floor, Body::Part(Part { execution: 0, part: 0, parts: 1, length, bytes: message }))
}

/// Takes what a server or client has to send.
fn take(outbox: &mut super::super::Outbox) -> Vec<(Peer, Vec<u8>)> {
    let all = outbox.iter().map(|(to, bytes)| (to, bytes.to_vec())).collect();
    outbox.clear();
    all
}

fn sent(server: &mut Server<Vec<u8>>) -> Vec<(Peer, Vec<u8>)> {
    take(server.outbox())
}

/// Returns the only datagram that the server sends.
fn only(server: &mut Server<Vec<u8>>) -> Vec<u8> {
    let mut all = sent(server);
    assert_eq!(all.len(), 1, "one datagram");
    all.remove(0).1
}

/// Admits a client by hand; returns its id.
fn admit(server: &mut Server<Vec<u8>>, now: u64, from: Peer, nonce: u64) -> u64 {
    assert!(server.receive(now, from, &bytes(0, nonce, 0, Body::Hello(Default::default()))).is_none());
    let retry = only(server);
    let Body::Retry(cookie) = Datagram::decode(&retry, true).unwrap().body else { panic!("a RETRY") };
    assert!(server.receive(now, from, &bytes(0, nonce, 0, Body::Hello(cookie))).is_none());
    Datagram::decode(&only(server), true).unwrap().client
}

/// Executes what comes; returns whether anything was.
fn execute(server: &mut Server<Vec<u8>>, now: u64, from: Peer, datagram: &[u8]) -> bool {
    let Some(request) = server.receive(now, from, datagram) else { return false };
    let (length, work) = (parse(request.message).1, request.work);
    let number = work.request() as u32;
    server.complete(now, work, &reply(number, 0, length), None);
    true
}

#[test]
fn unknown_senders_cost_no_state_and_few_bytes() {
    let mut server = server(ServerLimits::default(), 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    let mut all: Vec<Vec<u8>> = vec![
        bytes(0, 2, 0, Body::Hello(Default::default())),
        bytes(id, 2, 0, Body::Hello(Default::default())),
        bytes(77, 2, 0, Body::Ping),
        bytes(77, 2, 0, Body::Bye),
        part(77, 1, 0, b""),
        part(id, 1, 0, b""),
        part(id, 1, 0, &request(MUTATION, 1, 1000, 300)),
        bytes(id, 9, 0, Body::Want(List { next: 0, upto: 9, execution: 1, there: [0; 4] })),
        bytes(id, 9, 0, Body::Bye),
        bytes(id, u64::MAX, 0, Body::Ping),
    ];
    // Replays from another address, and nonsense.
    all.push(bytes(0, 1, 0, Body::Hello(super::super::Secret::new([7; 16]).cookie(peer(1, 1), 0, 1, 0))));
    all.extend((0..200).map(|length| vec![0x46; length]));
    for datagram in all {
        let forged = peer(9, 9);
        assert!(server.receive(1, forged, &datagram).is_none());
        let answers: usize = sent(&mut server).iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(answers <= datagram.len(), "{answers} bytes for {}", datagram.len());
        assert_eq!((server.clients(), server.unfinished(), server.kept_replies()), (1, 0, 0));
    }
    assert!(execute(&mut server, 2, peer(1, 1), &part(id, 1, 0, &request(MUTATION, 1, 8, 9))), "it is still served");
}

#[test]
fn bursts_of_new_clients_leave_bounded_records() {
    const BURST: u32 = 100_000;
    const CLIENTS: usize = 4096;
    let limits = ServerLimits { clients: CLIENTS, ..ServerLimits::default() };
    let mut server = server(limits, 1);
    // 391 hosts, each with 256 ports.
    let from = |number: u32| peer((number >> 8) as u16, number as u16 & 0xff);
    let hello = |number: u32, cookie| bytes(0, 1 + u64::from(number), 0, Body::Hello(cookie));
    let mut answers = 0;
    for number in 0..BURST {
        assert!(server.receive(0, from(number), &hello(number, Default::default())).is_none());
        answers += sent(&mut server).len();
    }
    assert_eq!((answers, server.clients()), (50_000, 0), "a second's answers, and no state");

    // They come back with their cookies, over ten seconds.
    let (mut admitted, mut now) = (0, 0);
    for number in 0..BURST {
        now += MILLISECOND / 10;
        server.receive(now, from(number), &hello(number, Default::default()));
        let Body::Retry(cookie) = Datagram::decode(&only(&mut server), true).unwrap().body else { panic!("a RETRY") };
        server.receive(now, from(number), &hello(number, cookie));
        admitted += usize::from(matches!(Datagram::decode(&only(&mut server), true).unwrap().body, Body::Admit { .. }));
        assert!(server.clients() <= CLIENTS);
    }
    assert_eq!(admitted, server.clients());
    assert!(admitted > CLIENTS * 9 / 10, "{admitted}");
    assert_eq!(server.counters().full, u64::from(BURST) - admitted as u64);

    // All of them expire, and others find room.
    now += limits.idle;
    server.sweep(now);
    assert_eq!(server.clients(), 0);
    let id = admit(&mut server, now, from(BURST), 7);
    assert!(execute(&mut server, now, from(BURST), &part(id, 1, 0, &request(READ, 1, 8, 9))));
}

#[test]
fn repeated_hellos_find_the_same_record() {
    let mut server = server(ServerLimits::default(), 1);
    let cookie = super::super::Secret::new([7; 16]).cookie(peer(1, 1), 0, 5, 0);
    let hello = bytes(0, 5, 0, Body::Hello(cookie));
    let ids: Vec<u64> = (0..3)
        .map(|_| {
            assert!(server.receive(SECOND, peer(1, 1), &hello).is_none());
            Datagram::decode(&only(&mut server), true).unwrap().client
        })
        .collect();
    assert!(ids.iter().all(|id| *id == ids[0] && id & 0xff == 3), "thread 3 is named");
    assert_eq!(server.clients(), 1);
    // The client leaves. Its HELLO, late and twice, does not bring it back.
    assert!(server.receive(2 * SECOND, peer(1, 1), &bytes(ids[0], 1, 0, Body::Bye)).is_none());
    assert!(server.receive(9 * SECOND, peer(1, 1), &hello).is_none());
    assert!(server.receive(9 * SECOND, peer(1, 1), &part(ids[0], 1, 0, b"x")).is_none());
    assert!(sent(&mut server).is_empty());
    server.sweep(23 * SECOND);
    assert_eq!(server.clients(), 0);
    assert!(server.receive(24 * SECOND, peer(1, 1), &hello).is_none());
    assert_eq!((server.clients(), server.counters().bad_cookie), (0, 1), "by then its cookie is too old");
}

#[test]
fn a_client_that_leaves_makes_room_at_once() {
    let mut server = server(ServerLimits { clients: 2, ..ServerLimits::default() }, 1);
    let ids = [1, 2].map(|host| admit(&mut server, 0, peer(host, 1), 1));
    for (id, host) in ids.into_iter().zip(1..) {
        assert!(server.receive(1, peer(host, 1), &bytes(id, 1, 0, Body::Bye)).is_none());
    }
    let others = [3, 4].map(|host| admit(&mut server, 2, peer(host, 1), 1));
    assert_eq!(server.clients(), 4, "the two that left are remembered");
    // As many as there are places; the next ones to leave keep theirs.
    for (id, host) in others.into_iter().zip(3..) {
        assert!(server.receive(3, peer(host, 1), &bytes(id, 1, 0, Body::Bye)).is_none());
    }
    let secret = super::super::Secret::new([7; 16]);
    let hello = bytes(0, 1, 0, Body::Hello(secret.cookie(peer(5, 1), 0, 1, 3)));
    assert!(server.receive(4, peer(5, 1), &hello).is_none());
    let refusal = only(&mut server);
    assert!(refusal.len() <= hello.len());
    let refusal = Datagram::decode(&refusal, true).unwrap();
    assert_eq!((refusal.request, refusal.body), (1, Body::Refused { execution: 0, why: Refused::Full }));
    server.sweep(30 * SECOND);
    assert_eq!(server.clients(), 0);
    for host in 1..3 {
        admit(&mut server, 30 * SECOND, peer(host, 1), 2);
    }
}

#[test]
fn a_client_of_a_full_server_ends_its_calls() {
    let mut pair = Pair::new(Format::default());
    pair.server = server(ServerLimits { clients: 1, ..ServerLimits::default() }, 1);
    let id = admit(&mut pair.server, 0, peer(9, 9), 1);
    let calls = [READ, MUTATION].map(|kind| pair.call(kind, 8, 9));
    for call in calls {
        assert_eq!(pair.end(), Event::Failed { call, why: Failure::Full });
    }
    assert_eq!((pair.client.unanswered(), pair.client.timer()), (0, None));
    // A forged refusal does not have the nonce.
    let call = pair.call(READ, 8, 9);
    let forged = bytes(0, 1, 0, Body::Refused { execution: 0, why: Refused::Full });
    pair.client.receive(pair.now, server_peer(), &forged);
    assert_eq!(pair.client.next_event(), None);
    // It is served as soon as another one leaves.
    assert!(pair.server.receive(pair.now, peer(9, 9), &bytes(id, 1, 0, Body::Bye)).is_none());
    assert!(matches!(pair.end(), Event::Reply { call: ended, .. } if ended == call));
}

#[test]
fn mutations_run_once_and_are_answered_again() {
    let mut server = server(ServerLimits::default(), 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    let one = part(id, 1, 0, &request(MUTATION, 1, 8, 9));
    assert!(execute(&mut server, 0, peer(1, 1), &one));
    let first = only(&mut server);
    assert!(!execute(&mut server, 1, peer(1, 1), &one));
    assert_eq!(only(&mut server), first, "the same reply, of the same execution");
    // The next request says that the reply has come.
    assert!(execute(&mut server, 2, peer(1, 1), &part(id, 2, 0, &request(MUTATION, 2, 8, 9))));
    assert_eq!(server.kept_replies(), 1);
    sent(&mut server);
    assert!(!execute(&mut server, 3, peer(1, 1), &one));
    assert!(!execute(&mut server, 3, peer(1, 1), &part(id, 66, 64, b"")), "too far above the floor");
    assert!(sent(&mut server).is_empty());
    // An older floor does not bring it back.
    assert!(!execute(&mut server, 4, peer(1, 1), &bytes(id, 2, 1, Body::Ping)));
    assert!(!execute(&mut server, 4, peer(1, 1), &one));
    assert_eq!(server.counters().executed, 2);
}

#[test]
fn reads_are_executed_again_under_a_new_number() {
    let mut server = server(ServerLimits::default(), 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    let read = part(id, 1, 0, &request(READ, 1, 8, 9));
    let mut executions: Vec<u32> = (0..3)
        .map(|_| {
            assert!(execute(&mut server, 0, peer(1, 1), &read));
            let datagram = only(&mut server);
            let Body::Part(part) = Datagram::decode(&datagram, true).unwrap().body else { panic!("a reply") };
            part.execution
        })
        .collect();
    executions.dedup();
    assert_eq!(executions.len(), 3);
    assert_eq!(server.kept_replies(), 0, "replies of one part are not kept");
}

#[test]
fn executing_requests_are_not_begun_again() {
    let mut server = server(ServerLimits::default(), 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    for kind in [MUTATION, READ] {
        let datagram = part(id, if kind == READ { 2 } else { 1 }, 0, &request(kind, 1, 8, 9));
        let work = server.receive(0, peer(1, 1), &datagram).unwrap().work;
        assert!(server.receive(1, peer(1, 1), &datagram).is_none());
        assert!(sent(&mut server).is_empty());
        server.complete(2, work, b"done", None);
        assert_eq!(sent(&mut server).len(), 1);
    }
}

#[test]
fn full_replies_refuse_mutations_unexecuted() {
    let limits = ServerLimits { replies: 3000, ..ServerLimits::default() };
    let mut server = server(limits, 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    let other = admit(&mut server, 0, peer(2, 1), 2);
    let mutation = |id, number| part(id, number, number as u16 - 1, &request(MUTATION, 1, 900, 9));
    assert!(execute(&mut server, 0, peer(1, 1), &mutation(id, 1)));
    assert!(execute(&mut server, 0, peer(1, 1), &mutation(id, 2)));
    sent(&mut server);
    assert!(!execute(&mut server, SECOND, peer(2, 1), &mutation(other, 1)));
    let refused = mutation(other, 1);
    let refusal = Datagram { clock: 0, echo: 5, flags: flags::REPLY, ..Datagram::decode(&refused, true).unwrap() };
    let body = Body::Refused { execution: 0, why: Refused::Busy };
    assert_eq!(Datagram::decode(&only(&mut server), true), Some(Datagram { body, ..refusal }));
    // After five seconds of silence its replies make room, and it learns that they are gone.
    assert!(execute(&mut server, 6 * SECOND, peer(2, 1), &mutation(other, 1)));
    sent(&mut server);
    let gone: Vec<bool> = [1, 2]
        .map(|number| {
            assert!(!execute(&mut server, 6 * SECOND, peer(1, 1), &mutation(id, number)));
            let body = Datagram::decode(&only(&mut server), true)
                .map(|datagram| matches!(datagram.body, Body::Refused { .. }));
            body.unwrap()
        })
        .into();
    assert!(gone.contains(&true));
    assert_eq!(server.counters().executed, 3);
}

/// Executes what comes, with a long reply; returns whether anything was.
fn execute_long(server: &mut Server<Vec<u8>>, from: Peer, datagram: &[u8]) -> bool {
    execute_long_at(server, 0, from, datagram)
}

fn execute_long_at(server: &mut Server<Vec<u8>>, now: u64, from: Peer, datagram: &[u8]) -> bool {
    let Some(request) = server.receive(now, from, datagram) else { return false };
    let (length, work) = (parse(request.message).1, request.work);
    server.complete(now, work, b"", Some(vec![7; length]));
    true
}

fn is_busy(server: &mut Server<Vec<u8>>) -> bool {
    let refusal = only(server);
    matches!(Datagram::decode(&refusal, true).unwrap().body, Body::Refused { why: Refused::Busy, .. })
}

#[test]
fn long_replies_have_room_before_execution() {
    let mut server = server(ServerLimits { references: 40_000, ..ServerLimits::default() }, 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    let take = |number: u64, floor: u64| {
        part(id, number, (number - floor) as u16, &request(RequestKind::LongMutation, 1, 15_000, 9))
    };
    for number in [1, 2] {
        assert!(execute_long(&mut server, peer(1, 1), &take(number, 1)));
        assert_eq!(sent(&mut server).len(), 8);
    }
    assert!(!execute_long(&mut server, peer(1, 1), &take(3, 1)), "it is not executed");
    assert!(is_busy(&mut server));
    for number in [1, 2] {
        assert!(!execute_long(&mut server, peer(1, 1), &take(number, 1)));
        assert_eq!(sent(&mut server).len(), 8, "the kept reply comes again");
    }
    assert!(execute_long(&mut server, peer(1, 1), &take(3, 3)), "the others' replies have gone");
    assert_eq!((server.counters().executed, server.counters().reply_gone, server.kept_replies()), (3, 0, 1));
    // All of it is given back.
    server.receive(0, peer(1, 1), &bytes(id, 9, 0, Body::Ping));
    assert_eq!((server.kept_replies(), server.has_taken_nothing()), (0, true));
}

/// Executes a read whose reply is kept: 15,000 bytes.
fn keep_read(server: &mut Server<Vec<u8>>, from: Peer, id: u64, number: u64) {
    let ask = part(id, number, number as u16 - 1, &request(READ, 1, 8, 9));
    let work = server.receive(0, from, &ask).unwrap().work;
    server.complete(0, work, b"", Some(vec![7; 15_000]));
    assert_eq!(sent(server).len(), 8);
}

/// Asks for the last parts of such a reply; returns how many come.
fn want(server: &mut Server<Vec<u8>>, from: Peer, (id, number): (u64, u64), execution: u32) -> usize {
    let list = List { next: 8, upto: 12, execution, there: [0; 4] };
    assert!(server.receive(1, from, &bytes(id, number, number as u16 - 1, Body::Want(list))).is_none());
    let is_part = |datagram: Datagram<'_>| matches!(datagram.body, Body::Part(_));
    sent(server).iter().filter(|(_, bytes)| Datagram::decode(bytes, true).is_some_and(is_part)).count()
}

#[test]
fn replies_of_reads_make_room_for_mutations() {
    let mut server = server(ServerLimits { references: 40_000, ..ServerLimits::default() }, 1);
    let peers = [1, 2, 3].map(|host| peer(host, 1));
    let ids = peers.map(|from| admit(&mut server, 0, from, 1));
    keep_read(&mut server, peers[0], ids[0], 1);
    keep_read(&mut server, peers[1], ids[1], 1);
    assert_eq!(want(&mut server, peers[0], (ids[0], 1), 1), 4);
    let take = |number: u64| part(ids[2], number, number as u16 - 1, &request(RequestKind::LongMutation, 1, 15_000, 9));
    assert!(!execute_long(&mut server, peers[2], &take(1)), "both reads are still being sent");
    assert!(is_busy(&mut server));
    assert!(execute_long_at(&mut server, 200_000_000, peers[2], &take(1)));
    assert_eq!((sent(&mut server).len(), server.counters().busy), (8, 1));
    assert_eq!(want(&mut server, peers[0], (ids[0], 1), 1), 4, "the one that was asked for is there");
    assert_eq!(want(&mut server, peers[1], (ids[1], 1), 2), 0, "the other read is executed again");
    // No reply of a mutation goes for another one, and no read's where that is too little.
    assert!(!execute_long(&mut server, peers[2], &take(2)));
    assert!(is_busy(&mut server));
    assert_eq!(want(&mut server, peers[0], (ids[0], 1), 1), 4);
    assert!(!execute_long(&mut server, peers[2], &take(1)));
    assert_eq!(sent(&mut server).len(), 8);
    for (from, id) in peers.into_iter().zip(ids) {
        server.receive(1, from, &bytes(id, 9, 0, Body::Ping));
    }
    assert_eq!((server.kept_replies(), server.has_taken_nothing()), (0, true), "all is given back");
}

#[test]
fn own_reads_make_room_within_a_share() {
    let mut server = server(ServerLimits { references: 160_000, ..ServerLimits::default() }, 1);
    let ids = [1, 2].map(|host| admit(&mut server, 0, peer(host, 1), 1));
    keep_read(&mut server, peer(2, 1), ids[1], 1);
    // More than a share of what is left.
    (1..=5).for_each(|number| keep_read(&mut server, peer(1, 1), ids[0], number));
    assert!(execute_long(
        &mut server,
        peer(1, 1),
        &part(ids[0], 6, 5, &request(RequestKind::LongMutation, 1, 15_000, 9))
    ));
    assert_eq!((sent(&mut server).len(), server.counters().busy), (8, 0));
    assert_eq!(want(&mut server, peer(2, 1), (ids[1], 1), 1), 4, "that of another host stays");
    assert_eq!(want(&mut server, peer(1, 1), (ids[0], 1), 2), 0);
    assert_eq!(want(&mut server, peer(1, 1), (ids[0], 2), 3), 4);
}

#[test]
fn oldest_requests_have_more_than_a_share() {
    let mut server = server(ServerLimits::default(), 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    let take = |number: u64| part(id, number, number as u16 - 1, &request(RequestKind::LongMutation, 1, 1 << 20, 9));
    // The first request is lost at first.
    let executed = (2..64).take_while(|number| execute_long(&mut server, peer(1, 1), &take(*number))).count();
    assert_eq!(executed, 9, "half of the room, and one");
    sent(&mut server);
    assert!(execute_long(&mut server, peer(1, 1), &take(1)), "the floor cannot rise before");
    assert!(!execute_long(&mut server, peer(1, 1), &take(11)));
}

#[test]
fn short_replies_are_kept_without_room_for_long_ones() {
    let mut server = server(ServerLimits { references: 40_000, ..ServerLimits::default() }, 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    let ask = |number: u64, kind, length| part(id, number, number as u16 - 1, &request(kind, 1, length, 9));
    for number in [1, 2] {
        assert!(execute_long(&mut server, peer(1, 1), &ask(number, RequestKind::LongMutation, 15_000)));
    }
    let short = ask(3, MUTATION, 8);
    assert!(execute(&mut server, 0, peer(1, 1), &short));
    sent(&mut server);
    assert!(!execute(&mut server, 0, peer(1, 1), &short));
    let again = only(&mut server);
    assert!(matches!(Datagram::decode(&again, true).unwrap().body, Body::Part(_)));
}

#[test]
fn memory_of_unfinished_requests_is_bounded() {
    let limits = ServerLimits { buffers: 1 << 20, ..ServerLimits::default() };
    let mut server = server(limits, 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    let fragment = [1; 1352];
    let long = |number, part| {
        let length = 1_000_000;
        bytes(
            id,
            number,
            number as u16 - 1,
            Body::Part(Part { execution: 0, part, parts: 740, length, bytes: &fragment }),
        )
    };
    for number in 1..=64 {
        for part in 0..12 {
            assert!(server.receive(0, peer(1, 1), &long(number, part)).is_none());
        }
    }
    // An eighth for one client: twelve requests whose first eight parts are granted.
    assert!(server.unfinished() <= 12, "{}", server.unfinished());
    assert!(server.counters().busy > 0);
    server.sweep(3 * SECOND);
    assert_eq!(server.unfinished(), 0, "silence ends them");
    assert!(server.receive(3 * SECOND, peer(1, 1), &long(1, 0)).is_none());
    assert!(server.receive(3 * SECOND, peer(1, 1), &bytes(id, 65, 0, Body::Ping)).is_none());
    assert_eq!(server.unfinished(), 0, "the floor ends them");
}

#[test]
fn clients_that_move_keep_their_records() {
    let mut server = server(ServerLimits::default(), 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    let one = part(id, 1, 0, &request(MUTATION, 1, 8, 100));
    assert!(execute(&mut server, 0, peer(1, 1), &one));
    sent(&mut server);
    assert!(!execute(&mut server, 1, peer(2, 2), &one));
    let Body::Retry(cookie) = Datagram::decode(&only(&mut server), true).unwrap().body else { panic!("a RETRY") };
    // The cookie is for that address, client and nonce.
    assert!(server.receive(1, peer(3, 2), &bytes(id, 1, 0, Body::Hello(cookie))).is_none());
    assert!(server.receive(1, peer(2, 2), &bytes(id, 2, 0, Body::Hello(cookie))).is_none());
    sent(&mut server);
    assert!(!execute(&mut server, 1, peer(2, 2), &one));
    sent(&mut server);
    assert!(server.receive(2, peer(2, 2), &bytes(id, 1, 0, Body::Hello(cookie))).is_none());
    assert!(matches!(Datagram::decode(&only(&mut server), true).unwrap().body, Body::Admit { .. }));
    assert!(!execute(&mut server, 3, peer(2, 2), &one));
    assert!(matches!(Datagram::decode(&only(&mut server), true).unwrap().body, Body::Part(_)), "the kept reply");
    assert_eq!((server.clients(), server.counters().executed), (1, 1));
}

#[test]
fn idle_clients_are_forgotten() {
    let mut server = server(ServerLimits { idle: 60 * SECOND, ..ServerLimits::default() }, 1);
    let ids = [1, 2].map(|host| admit(&mut server, 0, peer(host, 1), 7));
    assert!(execute(&mut server, 30 * SECOND, peer(2, 1), &part(ids[1], 1, 0, &request(MUTATION, 1, 8, 9))));
    server.sweep(61 * SECOND);
    assert_eq!((server.clients(), server.kept_replies()), (1, 1));
    server.sweep(91 * SECOND);
    assert_eq!((server.clients(), server.kept_replies()), (0, 0));
    sent(&mut server);
    assert!(server.receive(92 * SECOND, peer(1, 1), &part(ids[0], 1, 0, &request(READ, 1, 8, 9))).is_none());
    assert!(matches!(Datagram::decode(&only(&mut server), true).unwrap().body, Body::Reset { incarnation: 1 }));
}

/// A client and a server that lose nothing, but what the test takes out.
struct Pair {
    now: u64,
    /// The client's address.
    from: Peer,
    client: Client,
    server: Server<Vec<u8>>,
}

impl Pair {
    fn new(format: Format) -> Self {
        let limits = ClientLimits { format, ..ClientLimits::default() };
        let client = Client::new(limits, server_peer(), 1);
        Self { now: 0, from: peer(1, 1), client, server: server(ServerLimits { format, ..ServerLimits::default() }, 1) }
    }

    /// Lets datagrams pass until there are none, each if this returns true. A round takes a tenth of a millisecond.
    fn run(&mut self, mut passes: impl FnMut(&Datagram<'_>) -> bool) {
        let mut passes = |bytes: &[u8]| passes(&Datagram::decode(bytes, true).unwrap());
        loop {
            let up = take(self.client.outbox());
            let down = take(self.server.outbox());
            if up.is_empty() && down.is_empty() {
                return;
            }
            self.now += MILLISECOND / 10;
            for (_, bytes) in up.iter().filter(|(_, bytes)| passes(bytes)) {
                execute(&mut self.server, self.now, self.from, bytes);
            }
            for (_, bytes) in down.iter().filter(|(_, bytes)| passes(bytes)) {
                self.client.receive(self.now, server_peer(), bytes);
            }
        }
    }

    fn call(&mut self, kind: RequestKind, reply: u32, length: usize) -> u64 {
        let call = self.client.call(self.now, kind, Scope::Key(1), request(kind, 1, reply, length));
        call.expect("there is room")
    }

    /// Goes on through time-outs until a call ends.
    fn end(&mut self) -> Event {
        loop {
            self.run(|_| true);
            match self.client.next_event() {
                Some(end) => return end,
                None => self.time_out(),
            }
        }
    }

    /// Goes on to the client's next time-out.
    fn time_out(&mut self) {
        self.now = self.client.timer().expect("it waits for something");
        self.client.tick(self.now);
    }
}

#[test]
fn long_messages_go_both_ways() {
    for format in [short(), Format::default()] {
        let mut pair = Pair::new(format);
        for (length, reply_length) in [(9, 8), (60, 60), (1000, 5000), (100_000, 9), (9, 100_000), (300_000, 300_000)] {
            for kind in [READ, MUTATION] {
                let call = pair.call(kind, reply_length, length);
                // The reply of a mutation is kept up to 1 KiB, so what follows the first eight parts may be gone.
                let is_kept = kind == READ || reply_length <= 352;
                pair.run(|_| true);
                let message = match pair.client.next_event() {
                    Some(Event::Reply { call: ended, message }) if ended == call => message,
                    other => {
                        assert!(!is_kept && other == Some(Event::Failed { call, why: Failure::Unknown }), "{other:?}");
                        continue;
                    }
                };
                assert_eq!(message.len(), reply_length as usize);
                assert!(super::parse_reply(&message).is_some());
            }
        }
        assert_eq!((pair.server.unfinished(), pair.client.counters().timeouts), (0, 0));
    }
}

#[test]
fn uploads_go_on_when_there_is_room_again() {
    let mut pair = Pair::new(Format::default());
    pair.server = server(ServerLimits { buffers: 4 << 20, ..ServerLimits::default() }, 1);
    pair.call(READ, 8, 9);
    assert!(matches!(pair.end(), Event::Reply { .. }));
    // An eighth is for one client. Others of its requests take nearly half of that, and do not go on.
    let first = Body::Part(Part { execution: 0, part: 0, parts: 740, length: 1_000_000, bytes: &[1; 1352] });
    for number in 10..30 {
        let datagram = bytes(pair.client.id().unwrap(), number, number as u16 - 1, first);
        assert!(pair.server.receive(pair.now, pair.from, &datagram).is_none());
    }
    take(pair.server.outbox());
    pair.call(READ, 8, 400_000);
    assert!(matches!(pair.end(), Event::Reply { .. }));
    assert_eq!(pair.server.unfinished(), 0);
}

#[test]
fn stalled_uploads_give_room_to_others() {
    let limits = ServerLimits { buffers: 1 << 20, ..ServerLimits::default() };
    let mut server = server(limits, 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    let bytes = [1; 1352];
    let part = Body::Part(Part { execution: 0, part: 0, parts: 740, length: 1_000_000, bytes: &bytes });
    assert!(server.receive(0, peer(1, 1), &self::bytes(id, 1, 0, part)).is_none());
    // The same part again is no progress.
    for tenth in 1..30 {
        assert!(server.receive(tenth * SECOND / 10, peer(1, 1), &self::bytes(id, 1, 0, part)).is_none());
        assert!(server.unfinished() == 1 || tenth >= 20);
        sent(&mut server);
    }
    server.sweep(9 * SECOND);
    assert_eq!(server.unfinished(), 0);
}

#[test]
fn short_requests_find_out_that_the_address_changed() {
    for length in [9, 100] {
        let mut pair = Pair::new(Format::default());
        pair.call(READ, 8, 9);
        assert!(matches!(pair.end(), Event::Reply { .. }));
        pair.from = peer(2, 2);
        pair.call(MUTATION, 8, length);
        assert!(matches!(pair.end(), Event::Reply { .. }), "{length} bytes");
        assert_eq!(pair.server.clients(), 1);
    }
}

/// Returns a server that has sent the first parts of a reply of 100,000 bytes, its client, and the number of the execution.
fn server_of_a_long_reply() -> (Server<Vec<u8>>, u64, u32) {
    let mut server = server(ServerLimits::default(), 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    let work = server.receive(0, peer(1, 1), &part(id, 1, 0, &request(READ, 1, 8, 9))).unwrap().work;
    server.complete(0, work, &vec![7; 100_000], None);
    let first = sent(&mut server).swap_remove(0).1;
    match Datagram::decode(&first, true).unwrap().body {
        Body::Part(part) => (server, id, part.execution),
        other => panic!("{other:?}"),
    }
}

#[test]
fn outboxes_are_bounded() {
    let (mut server, id, execution) = server_of_a_long_reply();
    let list = List { next: 0, upto: 64, execution, there: [0; 4] };
    for _ in 0..1000 {
        assert!(server.receive(1, peer(1, 1), &bytes(id, 1, 0, Body::Want(list))).is_none());
    }
    assert_eq!(server.counters().unsent + server.outbox().iter().count() as u64, 64_000);
    let waiting: usize = sent(&mut server).iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(waiting <= (4 << 20) + 1400, "{waiting}");
    server.receive(1, peer(1, 1), &bytes(id, 1, 0, Body::Want(list)));
    assert_eq!(sent(&mut server).len(), 64);
}

#[test]
fn long_replies_stay_while_they_are_asked_for() {
    let (mut server, id, execution) = server_of_a_long_reply();
    let list = List { next: 0, upto: 1, execution, there: [0; 4] };
    for second in 1..=10 {
        let now = second * SECOND * 9 / 10;
        assert!(server.receive(now, peer(1, 1), &bytes(id, 1, 0, Body::Want(list))).is_none());
        server.sweep(now);
        assert_eq!((server.kept_replies(), sent(&mut server).len()), (1, 1));
    }
    server.sweep(11 * SECOND);
    assert_eq!(server.kept_replies(), 0);
}

#[test]
fn reads_that_cannot_be_kept_are_asked_again_later() {
    let mut server = server(ServerLimits { references: 50_000, ..ServerLimits::default() }, 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    for (number, is_kept) in [(1, true), (2, false)] {
        let ask = part(id, number, number as u16 - 1, &request(READ, 1, 8, 9));
        let work = server.receive(0, peer(1, 1), &ask).unwrap().work;
        server.complete(0, work, b"", Some(vec![7; 30_000]));
        let all = sent(&mut server);
        let body = Datagram::decode(&all[0].1, true).unwrap().body;
        match is_kept {
            true => assert_eq!(all.len(), 8),
            false => assert!(matches!(body, Body::Refused { why: Refused::Busy, .. }), "{body:?}"),
        }
    }
    // The client waits before it asks again.
    let mut pair = Pair::new(Format::default());
    pair.server = self::server(ServerLimits { replies: 50_000, ..ServerLimits::default() }, 1);
    pair.call(READ, 100_000, 9);
    assert!(matches!(pair.end(), Event::Failed { why: Failure::TimedOut, .. }));
    assert!(pair.server.counters().executed < 20, "{:?}", pair.server.counters());
}

#[test]
fn a_client_has_64_requests_executed_at_a_time() {
    let mut server = server(ServerLimits::default(), 1);
    let id = admit(&mut server, 0, peer(1, 1), 1);
    // It asserts for each that the one before is not needed any more.
    let ask = |number: u64| part(id, number, 0, &request(READ, 1, 8, 9));
    let mut works: Vec<_> = (1..=64).map(|number| server.receive(0, peer(1, 1), &ask(number)).unwrap().work).collect();
    assert!(server.receive(0, peer(1, 1), &ask(65)).is_none());
    let refusal = only(&mut server);
    let body = Datagram::decode(&refusal, true).unwrap().body;
    assert_eq!(body, Body::Refused { execution: 0, why: Refused::Busy });
    server.complete(0, works.remove(0), b"", None);
    assert!(server.receive(0, peer(1, 1), &ask(65)).is_some());
    assert!(server.receive(0, peer(1, 1), &ask(66)).is_none());
}

#[test]
fn replies_are_forgotten_after_a_ping() {
    let mut pair = Pair::new(Format::default());
    pair.call(MUTATION, 8, 9);
    pair.run(|_| true);
    assert_eq!(pair.server.kept_replies(), 1);
    pair.time_out();
    pair.run(|datagram| datagram.body != Body::Pong);
    assert_eq!(pair.server.kept_replies(), 0);
    pair.time_out();
    pair.run(|_| true);
    assert_eq!(pair.client.timer(), None, "a PONG ends it");
}

#[test]
fn lost_replies_of_mutations_come_again() {
    let mut pair = Pair::new(Format::default());
    let call = pair.call(MUTATION, 8, 9);
    pair.run(|datagram| datagram.flags & flags::REPLY == 0 || !matches!(datagram.body, Body::Part(_)));
    assert_eq!(pair.client.next_event(), None);
    pair.time_out();
    pair.run(|_| true);
    assert!(matches!(pair.client.next_event(), Some(Event::Reply { call: ended, .. }) if ended == call));
    assert_eq!(pair.server.counters().executed, 1);
}

#[test]
fn lost_parts_are_asked_for_before_the_time_out() {
    let mut pair = Pair::new(short());
    for (length, reply_length) in [(2000, 8), (9, 2000)] {
        pair.call(READ, reply_length, length);
        let mut lost = 0;
        pair.run(|datagram| {
            let is_lost = matches!(datagram.body, Body::Part(part) if part.part == 4) && lost == 0;
            lost += u32::from(is_lost);
            !is_lost
        });
        assert_eq!(lost, 1);
        assert!(matches!(pair.client.next_event(), Some(Event::Reply { .. })), "without a time-out");
    }
    assert_eq!(pair.client.counters().timeouts, 0);
}

#[test]
fn lost_tails_are_sent_again_before_the_time_out() {
    // The last two parts of a request, its only one, the last of a reply, a whole one.
    for (length, reply_length, is_lost) in [
        (350, 8, (|part| part.parts == 8 && part.part >= 6) as fn(&Part<'_>) -> bool),
        (9, 8, |_| true),
        (9, 250, |part| part.parts > 5 && part.part == part.parts - 1),
        (9, 250, |part| part.parts > 5),
    ] {
        let mut pair = Pair::new(short());
        // A round trip is known.
        pair.call(READ, 8, 9);
        pair.run(|_| true);
        assert!(pair.client.next_event().is_some());
        pair.call(READ, reply_length, length);
        let (mut lost, before) = (0, pair.now);
        pair.run(|datagram| {
            let is_lost = matches!(datagram.body, Body::Part(part) if is_lost(&part));
            lost += u32::from(is_lost);
            !is_lost
        });
        assert!(lost > 0, "{length} {reply_length}");
        pair.time_out();
        assert!(pair.now < before + 5 * MILLISECOND, "{length} {reply_length}");
        pair.run(|_| true);
        assert!(matches!(pair.client.next_event(), Some(Event::Reply { .. })), "{length} {reply_length}");
        let counts = pair.client.counters();
        assert_eq!((counts.probes, counts.timeouts), (1, 0), "{length} {reply_length}");
    }
}

#[test]
fn silence_is_sent_one_probe() {
    let mut pair = Pair::new(Format::default());
    pair.call(READ, 8, 9);
    pair.run(|_| true);
    assert!(pair.client.next_event().is_some());
    let limits = ClientLimits::default();
    for key in 0..8 {
        pair.client.call(pair.now, READ, Scope::Key(key), request(READ, 1, 8, 9)).unwrap();
    }
    take(pair.client.outbox());
    let until = pair.now + limits.least_timeout;
    let mut sent = 0;
    while pair.client.timer().expect("it waits") < until {
        pair.time_out();
        sent += take(pair.client.outbox()).len();
    }
    assert_eq!((sent, pair.client.counters().probes), (1, 1), "one of eight requests is sent again");
}

#[test]
fn resets_repeat_reads_and_leave_mutations_unknown() {
    let mut pair = Pair::new(Format::default());
    pair.call(READ, 8, 9);
    pair.run(|_| true);
    pair.client.next_event();
    let mutation = pair.client.call(pair.now, MUTATION, Scope::Key(1), request(MUTATION, 1, 8, 9)).unwrap();
    let read = pair.client.call(pair.now, READ, Scope::Key(2), request(READ, 1, 8, 9)).unwrap();
    let behind = pair.client.call(pair.now, MUTATION, Scope::Key(1), request(MUTATION, 1, 8, 9)).unwrap();
    take(pair.client.outbox());
    pair.server = server(ServerLimits::default(), 2);
    pair.time_out();
    pair.run(|_| true);
    let ends: Vec<Event> = std::iter::from_fn(|| pair.client.next_event()).collect();
    assert_eq!(ends[0], Event::Failed { call: mutation, why: Failure::Unknown });
    let answered: Vec<u64> =
        ends[1..].iter().map(|end| if let Event::Reply { call, .. } = end { *call } else { 0 }).collect();
    assert!(answered.contains(&read) && answered.contains(&behind), "{ends:?}");
    assert_eq!((pair.client.incarnation(), pair.server.counters().executed), (2, 2));
}

#[test]
fn unknown_outcomes_settle_with_a_floor_above() {
    let mut pair = Pair::new(Format::default());
    pair.call(READ, 8, 9);
    pair.run(|_| true);
    pair.client.next_event();
    assert!(pair.client.is_settled());
    let call = pair.call(MUTATION, 8, 9);
    let late = take(pair.client.outbox());
    assert!(pair.client.cancel(pair.now, call) && !pair.client.cancel(pair.now, call));
    assert_eq!(pair.client.next_event(), Some(Event::Failed { call, why: Failure::Unknown }));
    assert!(!pair.client.is_settled(), "the server may execute it still");
    pair.time_out();
    pair.run(|datagram| datagram.body != Body::Pong);
    assert!(!pair.client.is_settled(), "nothing is known of the server's floor");
    pair.time_out();
    pair.run(|_| true);
    assert!(pair.client.is_settled());
    let executed = pair.server.counters().executed;
    for (_, bytes) in late {
        assert!(pair.server.receive(pair.now, pair.from, &bytes).is_none());
    }
    assert_eq!(pair.server.counters().executed, executed, "late copies are dropped");
}

#[test]
fn calls_that_end_together_send_nothing_more() {
    let mut pair = Pair::new(Format::default());
    pair.call(READ, 8, 9);
    pair.run(|_| true);
    pair.client.next_event();
    let [first, behind] = [(); 2].map(|()| pair.call(MUTATION, 8, 9));
    let other = pair.client.call(pair.now, READ, Scope::Key(2), request(READ, 1, 8, 9)).unwrap();
    assert_eq!([first, behind, other].map(|call| pair.client.was_sent(call)), [true, false, true]);
    let late = take(pair.client.outbox());
    pair.client.cancel_all(pair.now);
    assert!(take(pair.client.outbox()).is_empty());
    let mut ends: Vec<(u64, Failure)> = std::iter::from_fn(|| pair.client.next_event())
        .map(|end| match end {
            Event::Failed { call, why } => (call, why),
            Event::Reply { .. } => panic!("{end:?}"),
        })
        .collect();
    ends.sort_by_key(|(call, _)| *call);
    let why = [Failure::Unknown, Failure::TimedOut, Failure::TimedOut];
    assert_eq!(ends, [first, behind, other].into_iter().zip(why).collect::<Vec<_>>());
    assert!(!pair.client.is_settled());
    pair.time_out();
    pair.run(|_| true);
    assert!(pair.client.is_settled());
    let executed = pair.server.counters().executed;
    assert!(late.into_iter().all(|(_, bytes)| pair.server.receive(pair.now, pair.from, &bytes).is_none()));
    assert_eq!(pair.server.counters().executed, executed);
}

#[test]
fn an_admission_tells_nothing_of_the_floor() {
    let mut pair = Pair::new(Format::default());
    pair.call(READ, 8, 9);
    pair.run(|_| true);
    pair.client.next_event();
    let lost = pair.call(MUTATION, 8, 9);
    take(pair.client.outbox());
    pair.client.cancel(pair.now, lost);
    pair.call(READ, 8, 9);
    let read = take(pair.client.outbox());
    let read = Datagram::decode(&read.last().unwrap().1, true).unwrap().request;
    // The server admits the client at another address: the request of a HELLO is that of what was sent there.
    let body = Body::Admit { incarnation: 1, idle: 600_000, window: 8 };
    let mut admission = Vec::new();
    let client = pair.client.id().unwrap();
    let flags = super::super::wire::flags::REPLY;
    Datagram { client, request: read, floor: 0, flags, clock: 0, echo: 0, body }.encode(&[], true, &mut admission);
    pair.client.receive(pair.now, server_peer(), &admission);
    assert!(!pair.client.is_settled());
}

#[test]
fn later_answers_settle_unknown_outcomes() {
    let mut pair = Pair::new(Format::default());
    pair.call(READ, 8, 9);
    pair.run(|_| true);
    pair.client.next_event();
    let [lost, open] = [(); 2].map(|()| pair.call(MUTATION, 8, 9));
    take(pair.client.outbox());
    pair.client.cancel(pair.now, lost);
    take(pair.client.outbox());
    pair.time_out();
    pair.run(|_| true);
    assert!(matches!(pair.client.next_event(), Some(Event::Failed { call, .. }) if call == lost));
    assert!(matches!(pair.client.next_event(), Some(Event::Reply { call, .. }) if call == open));
    assert!(pair.client.is_settled(), "its answer shows that the floor has risen");
}

#[test]
fn a_request_that_is_always_lost_holds_up_no_other() {
    let mut pair = Pair::new(Format::default());
    pair.call(READ, 8, 9);
    pair.run(|_| true);
    pair.client.next_event();
    let is_lost = |datagram: &Datagram<'_>| matches!(datagram.body, Body::Part(part) if part.bytes.len() == 500);
    let lost = pair.call(MUTATION, 8, 500);
    let mut answered = 0;
    while pair.client.unanswered() > 0 {
        pair.client.call(pair.now, READ, Scope::Key(2), request(READ, 1, 8, 9)).unwrap();
        pair.run(|datagram| !is_lost(datagram));
        while let Some(event) = pair.client.next_event() {
            match event {
                Event::Reply { .. } => answered += 1,
                Event::Failed { call, why } => assert_eq!((call, why), (lost, Failure::Unknown)),
            }
        }
        if pair.client.unanswered() > 0 {
            pair.time_out();
        }
    }
    assert!(answered > 5, "{answered}");
}

#[test]
fn silent_clients_ping_before_a_mutation() {
    let mut pair = Pair::new(Format::default());
    pair.call(READ, 8, 9);
    pair.run(|_| true);
    pair.now += 301 * SECOND;
    pair.server = server(ServerLimits::default(), 2);
    pair.client.next_event();
    pair.call(MUTATION, 8, 9);
    pair.run(|_| true);
    assert!(
        matches!(pair.client.next_event(), Some(Event::Reply { .. })),
        "the server was new, and nothing is in doubt"
    );
}

#[test]
fn forged_answers_are_ignored() {
    let mut pair = Pair::new(Format::default());
    pair.call(READ, 8, 9);
    pair.run(|_| true);
    pair.client.next_event();
    let call = pair.call(MUTATION, 8, 9);
    let id = pair.client.id().unwrap();
    let answer = |client, number, body| {
        let mut bytes = Vec::new();
        Datagram { client, request: number, floor: 0, flags: flags::REPLY, clock: 0, echo: 0, body }.encode(
            &[],
            true,
            &mut bytes,
        );
        bytes
    };
    let part = Body::Part(Part { execution: 9, part: 0, parts: 1, length: 3, bytes: b"bad" });
    for number in 0..5 {
        for body in [part, Body::Reset { incarnation: 5 }, Body::Refused { execution: 0, why: Refused::ReplyGone }] {
            pair.client.receive(pair.now, server_peer(), &answer(id ^ 256, number, body));
            pair.client.receive(pair.now, peer(5, 5), &answer(id, number, body));
        }
    }
    pair.client.receive(pair.now, server_peer(), &answer(id, 1, part));
    assert_eq!(pair.client.next_event(), None);
    pair.run(|_| true);
    assert!(matches!(pair.client.next_event(), Some(Event::Reply { call: ended, .. }) if ended == call));
}

#[test]
fn closing_ends_all_calls() {
    let mut pair = Pair::new(Format::default());
    pair.call(READ, 8, 9);
    pair.run(|_| true);
    pair.client.next_event();
    let calls = [MUTATION, READ, MUTATION].map(|kind| pair.call(kind, 8, 9));
    pair.client.close(pair.now);
    let ends: Vec<Event> = std::iter::from_fn(|| pair.client.next_event()).collect();
    let why = [Failure::Unknown, Failure::Closed, Failure::Closed];
    let expected: Vec<Event> = calls.into_iter().zip(why).map(|(call, why)| Event::Failed { call, why }).collect();
    assert_eq!(ends, expected);
    assert_eq!((pair.client.timer(), pair.client.unanswered()), (None, 0));
}
