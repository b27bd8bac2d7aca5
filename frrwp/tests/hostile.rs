//! A peer that means harm, or is broken: it is answered as the rules say, counted, and costs bounded memory.

mod by_hand;

use by_hand::{Side, bytes, nak, offer, sync};
use frrwp::handshake::{Action, Disconnect, Failure, Limits, Phase, RECEIVES, Refusal, Tag};
use frrwp::wire::{Body, MESSAGE, Message, Offer, Placed, Reason, Segment, Segments};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

#[test]
fn unknown_tags_are_answered_up_to_a_limit() {
    let mut side = Side::new(Limits::default());
    for round in 1..16 {
        side.say(99, Body::Done { bytes: 1 });
        assert_eq!(side.hears(), [(99, nak(Reason::UnknownTag))], "round {round}");
    }
    side.say(99, Body::Done { bytes: 1 });
    assert_eq!(side.actions(), [Action::Disconnect { why: Disconnect::Strangers { count: 16 } }]);
    assert_eq!(side.hears(), [], "nothing is said any more");
    assert_eq!(side.0.counters().strangers, 16);
}

#[test]
fn a_nak_is_never_answered() {
    let mut side = Side::new(Limits::default());
    side.say(99, Body::Nak(Reason::Busy));
    side.say(0, Body::Nak(Reason::Malformed));
    assert_eq!(side.hears(), []);
    assert_eq!(side.0.counters().strangers, 2);
}

#[test]
fn unreadable_nak_ends_transfer_unanswered() {
    // A NAK of a later version, or cut short: its kind and its transfer stand at its start.
    for version in [1, 9] {
        let failure = Failure::Peer(if version == 1 { Reason::Malformed } else { Reason::Version { spoken: version } });
        let mut message = [0; MESSAGE];
        let mut unreadable = |tag| {
            let length = Message { credits: 2, tag, body: Body::Nak(Reason::Busy) }.encode(&mut message);
            message[4] = version;
            message[..length - 1].to_vec()
        };
        // A writer, and a target with keys out: it holds its buffer for a writer that has said that it writes no more.
        let mut side = Side::new(Limits::default());
        let write = side.0.write(0, 10, b"").unwrap();
        let read = side.0.read(0, 10, b"").unwrap();
        side.0.offer(0, read, 0, &[bytes(10).segment], false).unwrap();
        assert_eq!(side.hears().len(), 2);
        for tag in [write, read] {
            side.0.received(0, &unreadable(tag.0));
            assert_eq!(side.hears(), [], "version {version}");
            let ended = Action::Completed { tag, result: Err(failure) };
            assert_eq!(side.actions(), [ended, Action::Release { tag }], "version {version}");
        }
        assert_eq!(side.0.counters().strangers, 2);
    }
}

#[test]
fn garbage_and_the_future_get_the_right_nak() {
    let mut side = Side::new(Limits::default());
    side.0.received(0, b"GET / HTTP/1.1\r\n\r\n");
    side.0.received(0, b"");
    let mut future = [0; MESSAGE];
    let length = Message { credits: 0, tag: 5, body: Body::Cancel }.encode(&mut future);
    future[4] = 9;
    side.0.received(0, &future[..length]);
    let expected = [(0, nak(Reason::Malformed)), (0, nak(Reason::Malformed)), (5, nak(Reason::Version { spoken: 2 }))];
    assert_eq!(side.hears(), expected);
}

#[test]
fn replayed_and_late_messages_are_counted_only() {
    let mut side = Side::new(Limits::default());
    side.say(1, sync(10, false));
    side.0.fail(0, Tag(1), Reason::Refused).unwrap();
    assert_eq!(side.hears(), [(1, nak(Reason::Refused))]);
    side.actions();
    for body in [sync(10, false), Body::Done { bytes: 10 }, Body::Cancel, Body::Nak(Reason::Busy)] {
        side.say(1, body);
    }
    side.0.received_immediate(0, 1);
    assert_eq!((side.hears(), side.actions()), (vec![], vec![]));
    assert_eq!(side.0.counters().late, 5);
}

#[test]
fn a_tag_of_the_wrong_side_opens_nothing() {
    let mut side = Side::new(Limits::default());
    side.say(2, sync(10, false));
    side.say(0, sync(10, false));
    assert_eq!(side.hears(), [(2, nak(Reason::Malformed)), (0, nak(Reason::Malformed))]);
    assert_eq!(side.actions(), []);
}

#[test]
fn transfers_beyond_limit_are_busy() {
    let mut side = Side::new(Limits { open: 2, ..Limits::default() });
    for tag in [1, 3, 5] {
        side.say(tag, sync(10, false));
    }
    assert_eq!(side.hears(), [(5, nak(Reason::Busy))]);
    assert_eq!((side.0.open_transfers(), side.0.counters().busy), (2, 1));
    // One's own are counted apart: a peer cannot take them away.
    side.0.write(0, 1, b"").unwrap();
    side.0.write(0, 1, b"").unwrap();
    assert_eq!(side.0.write(0, 1, b""), Err(Refusal::TooManyOpen { open: 2 }));
}

#[test]
fn segment_flood_ends_transfer_within_bounds() {
    let mut side = Side::new(Limits { early_bytes: 32 * 100, ..Limits::default() });
    side.say(1, sync(1 << 40, true));
    side.actions();
    let early = [bytes(1); 90];
    side.say(1, offer(&early, true));
    assert_eq!(side.actions(), []);
    side.say(1, offer(&early, true));
    assert_eq!(side.hears(), [(1, nak(Reason::Busy))]);
    let ended = Action::Completed { tag: Tag(1), result: Err(Failure::Here(Reason::Busy)) };
    assert_eq!(side.actions(), [ended, Action::Release { tag: Tag(1) }]);
    // The room is there again for the next.
    side.say(3, sync(1 << 40, true));
    side.say(3, offer(&early, true));
    assert_eq!(side.hears(), []);
    assert!(side.0.memory() < 64 << 10, "{} bytes", side.0.memory());
}

#[test]
fn excess_empty_and_late_offers_are_malformed() {
    let more = [bytes(11)];
    let (half, all) = ([bytes(5)], [bytes(10)]);
    let offers: [&[Body<'_>]; 5] = [
        &[offer(&more, true)],
        &[offer(&half, true), offer(&all, false)],
        &[offer(&[], true)],
        &[offer(&half, false)],
        &[Body::Stcrw(Offer { offset: u64::MAX, segments: Segments::Plain(&half), more: true })],
    ];
    for offers in offers {
        let mut side = Side::new(Limits::default());
        let tag = side.0.write(0, 10, b"").unwrap();
        assert_eq!(side.hears(), [(2, "SYNC".into())]);
        for &body in offers {
            side.say(2, body);
        }
        assert_eq!(side.hears(), [(2, nak(Reason::Malformed))], "{offers:?}");
        let ended = Action::Completed { tag, result: Err(Failure::Here(Reason::Malformed)) };
        assert_eq!(side.actions(), [ended, Action::Release { tag }]);
    }
}

#[test]
fn false_done_disconnects_and_lease_awaits_flush() {
    for (offered, claimed) in [(false, 10), (true, 9), (true, 11), (false, 0)] {
        let mut side = Side::new(Limits::default());
        side.say(1, sync(10, false));
        side.actions();
        side.0.accept(0, Tag(1), 10).unwrap();
        if offered {
            side.0.offer(0, Tag(1), 0, &[bytes(10).segment], false).unwrap();
            assert_eq!(side.hears(), [(1, "STCRW".into())]);
        }
        side.say(1, Body::Done { bytes: claimed });
        let actions = side.actions();
        assert!(actions.contains(&Action::Disconnect { why: Disconnect::FalseDone }), "{actions:?}");
        assert!(!actions.contains(&Action::Release { tag: Tag(1) }));
        side.0.flushed();
        assert_eq!(side.actions(), [Action::Release { tag: Tag(1) }]);
    }
}

#[test]
fn messages_beyond_receives_disconnect() {
    let mut side = Side::new(Limits::default());
    for tag in 0..u64::from(RECEIVES) {
        side.say(2 * tag + 1, sync(1, false));
    }
    assert!(side.actions().iter().all(|action| matches!(action, Action::Requested { .. })));
    // Nothing was said, so nothing was announced.
    side.say(99, sync(1, false));
    assert_eq!(side.actions(), [Action::Disconnect { why: Disconnect::NoCredit }]);
}

#[test]
fn a_silent_peer_costs_its_time_out_and_no_more() {
    let limits = Limits::default();
    let mut side = Side::new(limits);
    let write = side.0.write(0, 10, b"").unwrap();
    side.hears();
    side.0.expire(limits.sync_time - 1);
    assert_eq!(side.actions(), []);
    assert_eq!(side.0.next_deadline(), Some(limits.sync_time));
    side.0.expire(limits.sync_time);
    let waited = limits.sync_time;
    let ended = Action::Completed { tag: write, result: Err(Failure::TimedOut { phase: Phase::Answer, waited }) };
    assert_eq!(side.actions(), [ended, Action::Release { tag: write }]);
    assert_eq!(side.hears(), [(2, nak(Reason::TimedOut))]);
    // A target with keys out asks first, and then takes the connection down.
    let read = side.0.read(waited, 10, b"").unwrap();
    side.0.offer(waited, read, 0, &[bytes(10).segment], false).unwrap();
    assert_eq!(side.hears(), [(4, "SYNC".into())]);
    side.sleep();
    assert_eq!((side.hears(), side.actions()), (vec![(4, "CANCEL".into())], vec![]));
    side.sleep();
    let actions = side.actions();
    assert!(actions.contains(&Action::Disconnect { why: Disconnect::Revocation }), "{actions:?}");
    assert!(!actions.contains(&Action::Release { tag: read }), "not before the flush");
}

#[test]
fn a_peer_with_a_bad_memory_for_numbers_does_no_harm() {
    // Tags leap over the whole range: what has the same low half as an open one is refused, and nothing takes long.
    let mut side = Side::new(Limits { strangers: u32::MAX, ..Limits::default() });
    for leap in 0..14_u64 {
        side.say((leap << 33) + 1, sync(1, false));
        side.say((leap << 33) + 3, sync(1, false));
        side.hears();
    }
    assert_eq!(side.0.open_transfers(), 2);
    assert_eq!(side.0.counters().strangers, 26);
}

/// Random messages that are nearly right, against a side that answers whatever it is asked. Nothing panics, nothing grows.
fn fuzz(seed: u64, rounds: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut side = Side::new(Limits { open: 8, early_bytes: 4096, ..Limits::default() });
    let (mut now, mut held) = (0, 0);
    for _ in 0..rounds {
        let tag = rng.random_range(0..40);
        let segments: Vec<Placed> = (0..rng.random_range(0..6)).map(|_| bytes(rng.random_range(1..20))).collect();
        let more = rng.random();
        let body = match rng.random_range(0..10) {
            0 | 1 => sync(rng.random_range(0..40), rng.random()),
            2 | 3 => Body::Stcrw(Offer { offset: rng.random_range(0..40), segments: Segments::Plain(&segments), more }),
            4 => Body::Done { bytes: rng.random_range(0..40) },
            5 => Body::Nak(Reason::Cancelled),
            6 => Body::Cancel,
            7 => Body::Nak(Reason::Version { spoken: rng.random_range(0..3) }),
            8 => Body::Say(b"noise"),
            _ => Body::Credit,
        };
        let mut message = [0; MESSAGE];
        let length = Message { credits: 2, tag, body }.encode(&mut message);
        if rng.random_ratio(1, 10) {
            message[rng.random_range(0..length)] = rng.random();
        }
        now += rng.random_range(0..100_000_000);
        held += u32::from(side.0.received(now, &message[..length]).is_some());
        assert!(held <= u32::from(RECEIVES), "a receive holds one at most");
        if held > 0 && rng.random_ratio(1, 3) {
            side.0.message_taken();
            held -= 1;
        }
        if rng.random_ratio(1, 20) {
            side.0.received_immediate(now, rng.random_range(0..40));
        }
        side.0.expire(now);
        for action in side.actions() {
            match action {
                Action::Requested { tag, read: true, length } => {
                    let length = rng.random_range(0..=length);
                    let _ = side.0.crw(now, tag, length);
                    let _ = side.0.ready(now, tag, 0, length);
                }
                Action::Requested { tag, read: false, length } => {
                    let _ = side.0.accept(now, tag, length);
                    let segment = Segment { address: 0x1000, length: length.max(1), key: 1 };
                    let _ = side.0.offer(now, tag, 0, &[segment], false);
                }
                Action::Write { tag, .. } => side.0.written(tag, true),
                Action::Disconnect { .. } => {
                    side.0.lost();
                    side.0.flushed();
                    assert_eq!(side.0.open_transfers(), 0);
                    side = Side::new(Limits { open: 8, early_bytes: 4096, ..Limits::default() });
                    held = 0;
                    break;
                }
                _ => {}
            }
        }
        if rng.random_ratio(1, 10) {
            let _ = side.0.write(now, rng.random_range(0..20), b"mine");
            let _ = side.0.read(now, rng.random_range(0..20), b"mine");
        }
        let mut out = [0; MESSAGE];
        if rng.random_ratio(1, 5) {
            let _ = side.0.send_message(b"something", &mut out);
        }
        while side.0.take_message(now, &mut out).is_some() {}
        assert!(side.0.memory() < 64 << 10, "{} bytes", side.0.memory());
    }
}

#[test]
fn nearly_right_messages_do_no_harm() {
    for seed in 0..20 {
        fuzz(seed, 5_000);
    }
}

#[test]
#[ignore = "minutes"]
fn nearly_right_messages_do_no_harm_at_length() {
    let begun = std::time::Instant::now();
    for seed in 0..1_000 {
        fuzz(seed, 50_000);
    }
    println!("50,000,000 messages, {:.0} a second", 50e6 / begun.elapsed().as_secs_f64());
}
