//! The rules of the handshake, one by one, with a peer that is played by hand.

mod by_hand;

use by_hand::{Side, bytes, nak, offer, sync};
use frrwp::handshake::{
    Action, Disconnect, Failure, Handshake, Limits, Phase, Process, RECEIVES, Refusal, Side as End, Tag,
};
use frrwp::wire::{Body, MESSAGE, Message, Offer, Placed, Reason, Segment, Segments};

const SECOND: u64 = 1_000_000_000;

/// Returns a side that has accepted a write of ten bytes and sent their keys.
fn target_with_keys_out(limits: Limits) -> Side {
    let mut side = Side::new(limits);
    side.say(1, sync(10, false));
    side.actions();
    side.0.accept(0, Tag(1), 10).unwrap();
    side.0.offer(0, Tag(1), 0, &[bytes(10).segment], false).unwrap();
    assert_eq!(side.hears(), [(1, "STCRW".into())]);
    side
}

/// Returns a side that has opened a write of ten bytes, of which half are on their way.
fn writer_half_way(limits: Limits) -> (Side, Tag) {
    let mut side = Side::new(limits);
    let tag = side.0.write(0, 10, b"").unwrap();
    side.hears();
    side.0.ready(0, tag, 0, 5).unwrap();
    side.say(tag.0, offer(&[bytes(10)], false));
    assert!(matches!(side.actions()[..], [Action::Write { offset: 0, immediate: None, .. }]));
    (side, tag)
}

fn ended(tag: Tag, failure: Failure) -> Action {
    Action::Completed { tag, result: Err(failure) }
}

#[test]
fn target_sends_nak_before_stcrw_cancel_after() {
    let mut side = Side::new(Limits::default());
    side.say(1, sync(10, false));
    side.actions();
    side.0.accept(0, Tag(1), 10).unwrap();
    side.0.offer(0, Tag(1), 0, &[bytes(5).segment], true).unwrap();
    // Its STCRW is not sent yet: the peer has no keys.
    side.0.fail(0, Tag(1), Reason::Registration).unwrap();
    assert_eq!(side.hears(), [(1, nak(Reason::Registration))]);
    assert_eq!(side.actions(), [ended(Tag(1), Failure::Here(Reason::Registration)), Action::Release { tag: Tag(1) }]);
    let mut side = target_with_keys_out(Limits::default());
    side.0.fail(0, Tag(1), Reason::Registration).unwrap();
    assert_eq!((side.hears(), side.actions()), (vec![(1, "CANCEL".into())], vec![]), "the peer has keys");
    side.say(1, Body::Nak(Reason::Cancelled));
    assert_eq!(side.actions(), [ended(Tag(1), Failure::Here(Reason::Registration)), Action::Release { tag: Tag(1) }]);
}

#[test]
fn a_done_that_crosses_a_cancel_is_a_success() {
    let mut side = target_with_keys_out(Limits::default());
    side.0.cancel(0, Tag(1)).unwrap();
    side.say(1, Body::Done { bytes: 10 });
    assert_eq!(side.actions(), [Action::Completed { tag: Tag(1), result: Ok(10) }, Action::Release { tag: Tag(1) }]);
}

#[test]
fn nonsense_about_a_transfer_ends_it_by_the_same_rule() {
    // A target with keys out never says NAK, whatever it hears; and its lease stays.
    let mut side = target_with_keys_out(Limits::default());
    side.say(1, offer(&[bytes(1)], false));
    assert_eq!((side.hears(), side.actions()), (vec![(1, "CANCEL".into())], vec![]));
    // The same for a message that cannot even be read.
    let mut side = target_with_keys_out(Limits::default());
    let mut message = [0; MESSAGE];
    let length = Message { credits: 2, tag: 1, body: Body::Done { bytes: 10 } }.encode(&mut message);
    side.0.received(0, &message[..length - 1]);
    assert_eq!((side.hears(), side.actions()), (vec![(1, "CANCEL".into())], vec![]));
    // A writer with a write out says it when that has completed.
    let (mut side, tag) = writer_half_way(Limits::default());
    side.say(tag.0, Body::Done { bytes: 5 });
    assert_eq!((side.hears(), side.actions()), (vec![], vec![]));
    side.0.written(tag, true);
    assert_eq!(side.hears(), [(tag.0, nak(Reason::Malformed))]);
    assert_eq!(side.0.counters().strangers, 1);
}

#[test]
fn foreign_version_nak_is_not_answered() {
    let mut side = Side::new(Limits::default());
    let mut message = [0; MESSAGE];
    let length = Message { credits: 1, tag: 1, body: Body::Nak(Reason::Busy) }.encode(&mut message);
    side.0.received(0, &message[..length - 1]);
    message[4] = 2;
    side.0.received(0, &message[..length]);
    assert_eq!(side.hears(), []);
    assert_eq!(side.0.counters().strangers, 2);
}

#[test]
fn a_writer_s_nak_follows_its_last_write() {
    for by_peer in [true, false] {
        let (mut side, tag) = writer_half_way(Limits::default());
        if by_peer {
            side.say(tag.0, Body::Cancel);
        } else {
            side.0.cancel(0, tag).unwrap();
        }
        assert_eq!((side.hears(), side.actions()), (vec![], vec![]));
        // Nothing more is posted, though the rest is registered now; and what is offered now is late.
        side.0.ready(0, tag, 5, 5).unwrap();
        side.say(tag.0, offer(&[bytes(5)], false));
        assert_eq!((side.hears(), side.actions()), (vec![], vec![]));
        assert_eq!(side.0.counters().late, 1);
        side.0.written(tag, true);
        assert_eq!(side.hears(), [(tag.0, nak(Reason::Cancelled))]);
        let failure = if by_peer { Failure::Peer(Reason::Cancelled) } else { Failure::Here(Reason::Cancelled) };
        assert_eq!(side.actions(), [ended(tag, failure), Action::Release { tag }]);
    }
}

#[test]
fn a_crw_after_the_peer_s_cancel_fails_here() {
    let mut side = Side::new(Limits::default());
    side.say(1, sync(10, true));
    side.say(1, offer(&[bytes(10)], false));
    side.say(1, Body::Cancel);
    assert_eq!(side.hears(), [(1, nak(Reason::Cancelled))]);
    assert_eq!(side.0.crw(0, Tag(1), 10), Err(Refusal::NotOpen { tag: Tag(1) }));
}

#[test]
fn ended_writer_answers_nothing() {
    let mut side = Side::new(Limits::default());
    let tag = side.0.write(0, 10, b"").unwrap();
    side.hears();
    side.say(tag.0, Body::Nak(Reason::Registration));
    assert_eq!(side.actions(), [ended(tag, Failure::Peer(Reason::Registration)), Action::Release { tag }]);
    side.say(tag.0, offer(&[bytes(10)], false));
    assert_eq!(side.hears(), [], "a late STCRW is dropped");
    assert_eq!(side.0.counters().late, 1);
    let (mut side, tag) = writer_half_way(Limits::default());
    side.0.ready(0, tag, 5, 5).unwrap();
    assert_eq!(side.hears(), [(tag.0, "DONE 10".into())]);
    side.say(tag.0, Body::Cancel);
    side.0.written(tag, true);
    side.0.written(tag, true);
    assert_eq!(side.hears(), []);
    assert_eq!(side.actions().last(), Some(&Action::Release { tag }));
}

#[test]
fn a_write_that_failed_never_becomes_a_success() {
    let (mut side, tag) = writer_half_way(Limits::default());
    side.0.ready(0, tag, 5, 5).unwrap();
    side.actions();
    side.0.written(tag, false);
    side.0.written(tag, true);
    let actions = side.actions();
    assert_eq!(actions[..2], [ended(tag, Failure::Lost), Action::Disconnect { why: Disconnect::WriteFailed }]);
    side.0.lost();
    side.0.flushed();
    assert_eq!(side.0.counters().completed, 0);
    assert_eq!(side.0.open_transfers(), 0);
}

#[test]
fn what_touches_is_written_at_once() {
    // One write a remote segment, gathering over what was registered apart.
    let mut side = Side::new(Limits::default());
    let tag = side.0.write(0, 10, b"").unwrap();
    for offset in [5, 0, 8] {
        let length = if offset == 8 { 2 } else { 3 + 2 * u64::from(offset == 0) };
        side.0.ready(0, tag, offset, length).unwrap();
    }
    side.hears();
    side.say(tag.0, offer(&[bytes(10)], false));
    let remote = bytes(10).segment;
    assert_eq!(side.actions(), [Action::Write { tag, remote, offset: 0, immediate: None }]);
}

/// Among the immediates of the writes that a side submits, the last one's.
fn last_immediate(side: &mut Side) -> Option<u32> {
    let immediate = |action: &Action| match *action {
        Action::Write { immediate, .. } => Some(immediate),
        _ => None,
    };
    side.actions().iter().filter_map(immediate).next_back().flatten()
}

#[test]
fn immediate_replaces_done_only_on_exact_length() {
    let limits = Limits { immediate: true, ..Limits::default() };
    let mut side = Side::new(limits);
    let tag = side.0.write(0, 10, b"").unwrap();
    side.0.ready(0, tag, 0, 10).unwrap();
    side.hears();
    side.say(tag.0, offer(&[bytes(5)], true));
    assert_eq!(last_immediate(&mut side), None, "not the last");
    side.say(tag.0, Body::Stcrw(Offer { offset: 5, segments: Segments::Plain(&[bytes(5)]), more: false }));
    assert_eq!(last_immediate(&mut side), Some(2));
    assert_eq!(side.hears(), [], "and no DONE");
    // A read's writer has sent no SYNC.
    side.say(1, sync(10, true));
    side.actions();
    side.0.crw(0, Tag(1), 10).unwrap();
    side.0.ready(0, Tag(1), 0, 10).unwrap();
    side.say(1, offer(&[bytes(10)], false));
    assert_eq!(last_immediate(&mut side), None);
    assert_eq!(side.hears(), [(1, "DONE 10".into())]);
    // Nothing is written for nothing.
    let tag = side.0.write(0, 0, b"").unwrap();
    side.hears();
    side.say(tag.0, offer(&[], false));
    assert_eq!(last_immediate(&mut side), None);
    assert_eq!(side.hears(), [(tag.0, "DONE 0".into())]);
}

#[test]
fn an_immediate_counts_by_what_its_tag_is() {
    let mut side = target_with_keys_out(Limits::default());
    let own = side.0.read(0, 10, b"").unwrap();
    side.hears();
    side.0.received_immediate(0, 1);
    assert_eq!(side.actions(), [Action::Completed { tag: Tag(1), result: Ok(10) }, Action::Release { tag: Tag(1) }]);
    side.0.received_immediate(0, 1);
    assert_eq!((side.0.counters().late, side.0.counters().strangers), (1, 0));
    side.0.received_immediate(0, 3);
    assert_eq!(side.hears(), [(3, nak(Reason::UnknownTag))], "never opened");
    side.0.received_immediate(0, own.0 as u32);
    assert_eq!(side.hears(), [(own.0, nak(Reason::Malformed))], "a read ends by a DONE");
    assert_eq!(side.actions(), [ended(own, Failure::Here(Reason::Malformed)), Action::Release { tag: own }]);
    assert_eq!(side.0.counters().strangers, 2);
}

#[test]
fn immediate_without_keys_is_a_false_done() {
    let mut side = Side::new(Limits::default());
    side.say(1, sync(10, false));
    side.actions();
    side.0.received_immediate(0, 1);
    assert!(side.actions().contains(&Action::Disconnect { why: Disconnect::FalseDone }));
}

#[test]
fn last_credit_announces_receives() {
    let mut side = Side::new(Limits::default());
    for _ in 0..20 {
        side.0.write(0, 10, b"").unwrap();
    }
    assert_eq!(side.hears().len(), usize::from(RECEIVES) - 1, "the last is kept");
    // A message that adds no receive, but takes one: there is one to announce.
    side.say_at(0, 0, 2, Body::Nak(Reason::Busy));
    assert_eq!(side.hears().len(), 1);
    side.say_at(0, 0, 4, Body::Nak(Reason::Busy));
    assert_eq!(side.hears().len(), 0, "no credit is left at all");
    side.say_at(0, 3, 6, Body::Nak(Reason::Busy));
    assert_eq!(side.hears().len(), 2, "the first announces all that there is, so the last is kept again");
}

#[test]
fn an_immediate_never_takes_the_last_credit() {
    let limits = Limits { immediate: true, ..Limits::default() };
    let mut side = Side::new(limits);
    let tags: Vec<Tag> = (0..15).map(|_| side.0.write(0, 10, b"").unwrap()).collect();
    assert_eq!(side.hears().len(), 15);
    let tag = tags[0];
    side.0.ready(0, tag, 0, 10).unwrap();
    side.say_at(0, 0, tag.0, offer(&[bytes(10)], false));
    assert_eq!(last_immediate(&mut side), None, "it cannot announce");
    assert_eq!(side.hears(), [(tag.0, "DONE 10".into())], "which this does");
}

/// Everything that each side has to say, until both are silent.
fn talk(sides: &mut [Handshake; 2]) -> u32 {
    let mut message = [0; MESSAGE];
    let mut messages = 0;
    loop {
        let before = messages;
        for side in 0..2 {
            while let Some(length) = sides[side].take_message(0, &mut message) {
                messages += 1;
                sides[1 - side].received(0, &message[..length]);
            }
        }
        if messages == before {
            return messages;
        }
        assert!(messages < 10_000, "two sides that never fall silent");
    }
}

#[test]
fn talkative_side_gets_credits_from_silent_one() {
    // The target answers no SYNC: by the rule of the last credit alone it would have nothing to announce its receives on.
    let mut sides = [End::Connecting, End::Accepting].map(|end| Handshake::new(end, Limits::default()));
    for _ in 0..1_000 {
        sides[0].write(0, 10, b"").unwrap();
    }
    let messages = talk(&mut sides);
    assert_eq!(sides[1].counters().received, 1_000 + sides[0].counters().credit_messages);
    assert!((1_050..1_300).contains(&messages), "one CREDIT for half a window: {messages}");
}

#[test]
fn credits_of_a_message_that_makes_no_sense_count() {
    let mut side = Side::new(Limits::default());
    for _ in 0..40 {
        side.0.write(0, 10, b"").unwrap();
    }
    assert_eq!(side.hears().len(), 15);
    let mut message = [0; MESSAGE];
    let length = Message { credits: 20, tag: 99, body: Body::Done { bytes: 1 } }.encode(&mut message);
    side.0.received(0, &message[..length - 1]);
    assert!(side.hears().len() > 15);
}

#[test]
fn timeouts_scale_with_bytes() {
    let bytes_length = 3_000_000_000;
    let mut side = Side::new(Limits { lowest_rate: 3_000_000_000, ..Limits::default() });
    side.say(1, sync(bytes_length, false));
    side.actions();
    assert_eq!(side.0.next_deadline(), Some(5 * SECOND));
    side.0.accept(SECOND, Tag(1), bytes_length).unwrap();
    assert_eq!(side.0.next_deadline(), Some(5 * SECOND), "to accept is no progress that the peer sees");
    let half = Segment { address: 0, length: bytes_length / 2, key: 1 };
    for (now, offset, more) in [(2 * SECOND, 0, true), (33 * SECOND + SECOND / 2, bytes_length / 2, false)] {
        side.0.offer(now, Tag(1), offset, &[half], more).unwrap();
        let mut message = [0; MESSAGE];
        side.0.take_message(now, &mut message).unwrap();
        // The earlier note is looked at, and found to be over.
        side.0.expire(now + 31 * SECOND - 1);
        assert_eq!(side.actions(), [], "31 seconds: thirty, and one for the bytes");
        assert_eq!(side.0.next_deadline(), Some(now + 31 * SECOND), "since the last");
    }
    let now = side.0.next_deadline().unwrap();
    side.0.expire(now);
    assert_eq!(side.hears(), [(1, "CANCEL".into())]);
    side.0.expire(now + 5 * SECOND);
    let failure = Failure::TimedOut { phase: Phase::Done, waited: 31 * SECOND };
    assert_eq!(side.actions(), [ended(Tag(1), failure), Action::Disconnect { why: Disconnect::Revocation }]);
}

#[test]
fn a_writer_waits_anew_with_each_stcrw_and_each_piece() {
    let mut side = Side::new(Limits::default());
    let tag = side.0.write(0, 10, b"").unwrap();
    side.hears();
    side.say_at(4 * SECOND, 2, tag.0, offer(&[bytes(5)], true));
    let time = 30 * SECOND + 1_000;
    side.0.expire(5 * SECOND);
    assert_eq!(side.0.next_deadline(), Some(4 * SECOND + time));
    side.0.ready(20 * SECOND, tag, 5, 5).unwrap();
    side.0.expire(4 * SECOND + time);
    assert_eq!(side.0.next_deadline(), Some(20 * SECOND + time));
    assert_eq!(side.actions(), []);
    side.0.expire(20 * SECOND + time);
    let failure = Failure::TimedOut { phase: Phase::Pieces, waited: time };
    assert_eq!(side.actions(), [ended(tag, failure), Action::Release { tag }]);
    assert_eq!(side.hears(), [(tag.0, nak(Reason::TimedOut))]);
}

#[test]
fn reader_keys_time_out_from_its_sync() {
    let mut side = Side::new(Limits::default());
    side.say(1, sync(10, true));
    side.0.crw(4 * SECOND, Tag(1), 10).unwrap();
    side.actions();
    side.0.expire(5 * SECOND);
    let failure = Failure::TimedOut { phase: Phase::Pieces, waited: 5 * SECOND };
    assert_eq!(side.actions(), [ended(Tag(1), failure), Action::Release { tag: Tag(1) }]);
}

#[test]
fn cancel_waits_as_long_as_writes_may_take() {
    // The peer's posts may still take their time: the connection is not torn down for an application's change of mind.
    let mut side = target_with_keys_out(Limits::default());
    side.0.cancel(SECOND, Tag(1)).unwrap();
    side.0.expire(30 * SECOND);
    assert_eq!(side.actions(), []);
    side.0.expire(side.0.next_deadline().unwrap());
    assert!(side.actions().contains(&Action::Disconnect { why: Disconnect::Revocation }));
    // And five seconds where that time is over.
    let mut side = target_with_keys_out(Limits::default());
    side.0.cancel(29 * SECOND, Tag(1)).unwrap();
    side.0.expire(31 * SECOND);
    assert_eq!((side.actions(), side.0.next_deadline()), (vec![], Some(34 * SECOND)));
}

#[test]
fn a_clock_that_goes_back_does_no_harm() {
    let mut side = target_with_keys_out(Limits { write_time: 0, ..Limits::default() });
    side.0.cancel(100 * SECOND, Tag(1)).unwrap();
    side.0.expire(0);
    side.0.expire(200 * SECOND);
    side.0.expire(SECOND);
}

#[test]
fn target_offers_each_byte_once() {
    let mut side = Side::new(Limits::default());
    side.say(1, sync(10, false));
    side.actions();
    // A larger buffer is offered as far as it was asked for.
    side.0.accept(0, Tag(1), 100).unwrap();
    let part = |length| [bytes(length).segment];
    let refused = |result: Result<(), Refusal>| matches!(result, Err(Refusal::OutOfPlace { call: "offer", .. }));
    assert!(refused(side.0.offer(0, Tag(1), 0, &part(11), false)));
    assert!(refused(side.0.offer(0, Tag(1), 6, &part(5), true)));
    side.0.offer(0, Tag(1), 0, &part(5), true).unwrap();
    assert!(refused(side.0.offer(0, Tag(1), 4, &part(5), true)), "a byte that was offered before");
    assert!(refused(side.0.offer(0, Tag(1), 5, &part(4), false)), "a byte is left out");
    side.0.offer(0, Tag(1), 5, &part(5), false).unwrap();
    assert_eq!(side.hears(), [(1, "STCRW".into())]);
}

#[test]
fn ready_segments_travel_with_the_sync() {
    let mut side = Side::new(Limits::default());
    let tag = side.0.read(0, 10, b"get").unwrap();
    side.0.offer(0, tag, 0, &[bytes(5).segment], true).unwrap();
    side.0.offer(0, tag, 5, &[bytes(5).segment], false).unwrap();
    let mut message = [0; MESSAGE];
    let length = side.0.take_message(0, &mut message).unwrap();
    let expected = [bytes(5), Placed { offset: 5, ..bytes(5) }];
    let offer = Some(Offer { offset: 0, segments: Segments::Plain(&expected), more: false });
    let body = Body::Sync { length: 10, read: true, header: b"get", offer };
    assert_eq!(Message::decode(&message[..length]), Ok(Message { credits: 0, tag: tag.0, body }));
    assert_eq!(side.hears(), [], "and nothing else is said");
}

#[test]
fn unsent_transfer_is_cancelled_silently() {
    let mut side = Side::new(Limits::default());
    for read in [false, true] {
        let tag = if read { side.0.read(0, 10, b"") } else { side.0.write(0, 10, b"") }.unwrap();
        side.0.cancel(0, tag).unwrap();
        assert_eq!(side.actions(), [ended(tag, Failure::Here(Reason::Cancelled)), Action::Release { tag }]);
    }
    assert_eq!(side.hears(), []);
}

#[test]
fn a_tag_whose_low_half_is_open_is_not_opened_again() {
    // Two billion transfers on, as it were: a peer with tags that far apart.
    let mut side = Side::new(Limits::default());
    side.say(5, sync(10, false));
    side.say((1 << 32) + 5, sync(10, false));
    assert_eq!(side.hears(), [((1 << 32) + 5, nak(Reason::Malformed))]);
    side.say((1 << 32) + 7, sync(10, false));
    assert_eq!(side.0.open_transfers(), 2);
    // Between them everything is late, whether it was opened or not.
    side.say(77, Body::Done { bytes: 1 });
    assert_eq!((side.hears(), side.0.counters().late), (vec![], 1));
}

#[test]
fn room_that_a_flood_has_taken_is_given_back() {
    let mut side = Side::new(Limits::default());
    let flood = [bytes(1); 256];
    // Many are open at once, so each has a place of its own; each is filled to the bound in its turn.
    for tag in 0..40 {
        side.say(2 * tag + 1, sync(1 << 40, true));
        side.actions();
        side.hears();
    }
    for tag in 0..40 {
        for _ in 0..(1 << 20) / (32 * 256) {
            side.say(2 * tag + 1, offer(&flood, true));
            side.hears();
        }
        assert!(side.0.memory() > 1 << 20, "it is kept");
        side.say(2 * tag + 1, Body::Cancel);
        side.hears();
        side.actions();
    }
    assert_eq!((side.0.open_transfers(), side.0.counters().busy), (0, 0));
    assert!(side.0.memory() < 1 << 20, "{} bytes", side.0.memory());
}

#[test]
fn target_timeout_restarts_on_offer_and_send() {
    // No credit is left, so what is offered waits.
    let mut side = Side::new(Limits::default());
    side.say_at(0, 0, 1, sync(10, false));
    for _ in 0..20 {
        side.0.write(0, 10, b"").unwrap();
    }
    assert_eq!(side.hears().len(), 15);
    side.actions();
    side.0.accept(0, Tag(1), 10).unwrap();
    side.0.offer(4 * SECOND, Tag(1), 0, &[bytes(10).segment], false).unwrap();
    side.0.expire(5 * SECOND);
    assert!(
        !side.actions().iter().any(|action| matches!(action, Action::Completed { tag: Tag(1), .. })),
        "it has answered"
    );
    side.say_at(6 * SECOND, 40, 99, Body::Credit);
    let mut message = [0; MESSAGE];
    while side.0.take_message(20 * SECOND, &mut message).is_some() {}
    side.0.expire(49 * SECOND);
    assert_eq!(side.hears(), [], "thirty seconds from when it was sent");
    side.0.expire(50 * SECOND + 1_000);
    assert_eq!(side.hears(), [(1, "CANCEL".into())]);
}

#[test]
fn early_or_excess_done_is_false() {
    let mut side = Side::new(Limits::default());
    side.say(1, sync(0, false));
    side.actions();
    side.say(1, Body::Done { bytes: 0 });
    assert!(side.actions().contains(&Action::Disconnect { why: Disconnect::FalseDone }));
    // And one of more than there were keys for, though the read asked for as much.
    let mut side = Side::new(Limits::default());
    let tag = side.0.read(0, 10, b"").unwrap();
    side.0.offer(0, tag, 0, &[bytes(5).segment], true).unwrap();
    side.hears();
    side.say(tag.0, Body::Done { bytes: 8 });
    assert!(side.actions().contains(&Action::Disconnect { why: Disconnect::FalseDone }));
    // Fewer than were asked for are all that the writer had.
    let mut side = Side::new(Limits::default());
    let tag = side.0.read(0, 10, b"").unwrap();
    side.0.offer(0, tag, 0, &[bytes(5).segment], true).unwrap();
    side.hears();
    side.say(tag.0, Body::Done { bytes: 5 });
    assert_eq!(side.actions(), [Action::Completed { tag, result: Ok(5) }, Action::Release { tag }]);
}

#[test]
fn a_writer_of_nothing_says_done_once_it_may() {
    // Of nothing all is written at once; but the peer has to have said that it takes it.
    let mut side = Side::new(Limits::default());
    side.say(1, sync(10, true));
    side.actions();
    side.0.crw(0, Tag(1), 0).unwrap();
    assert_eq!((side.hears(), side.actions()), (vec![], vec![]));
    side.say(1, offer(&[bytes(10)], false));
    assert_eq!(side.hears(), [(1, "DONE 0".into())]);
    assert_eq!(side.actions(), [Action::Completed { tag: Tag(1), result: Ok(0) }, Action::Release { tag: Tag(1) }]);
}

#[test]
fn stuck_write_disconnects() {
    // Nothing but the flush ends it: to say NAK would be a lie while it is on its way.
    let (mut side, tag) = writer_half_way(Limits::default());
    let deadline = 30 * SECOND + 1_000;
    side.0.expire(deadline);
    let failure = Failure::TimedOut { phase: Phase::Writes, waited: deadline };
    assert_eq!(side.actions(), [ended(tag, failure), Action::Disconnect { why: Disconnect::WriteFailed }]);
    assert_eq!(side.hears(), []);
    side.0.lost();
    assert_eq!(side.actions(), [], "the lease waits for the flush");
    side.0.flushed();
    assert_eq!(side.actions(), [Action::Release { tag }]);
}

#[test]
fn traditional_process_submits_by_application() {
    let mut side = Side::new(Limits { process: Process::Traditional, ..Limits::default() });
    let tag = side.0.write(0, 10, b"").unwrap();
    side.0.ready(0, tag, 0, 10).unwrap();
    side.hears();
    assert!(matches!(side.0.submit(0, tag), Err(Refusal::OutOfPlace { call: "submit", .. })), "no keys yet");
    side.say(tag.0, offer(&[bytes(10)], false));
    assert_eq!((side.actions(), side.hears()), (vec![Action::KeysCame { tag }], vec![]));
    side.0.submit(0, tag).unwrap();
    assert!(matches!(side.actions()[..], [Action::Write { .. }]));
    assert_eq!(side.hears(), [(tag.0, "DONE 10".into())]);
}

#[test]
fn cancel_drops_unsent_segments() {
    let mut side = Side::new(Limits::default());
    side.say_at(0, 0, 1, sync(10, false));
    side.actions();
    side.0.accept(0, Tag(1), 10).unwrap();
    side.0.offer(0, Tag(1), 0, &[bytes(5).segment], true).unwrap();
    assert_eq!(side.hears(), [(1, "STCRW".into())]);
    // The credits go on others, so that the rest waits.
    for _ in 0..20 {
        side.0.write(0, 10, b"").unwrap();
    }
    side.hears();
    side.0.offer(0, Tag(1), 5, &[bytes(5).segment], false).unwrap();
    side.0.cancel(0, Tag(1)).unwrap();
    side.say_at(0, 40, 0, Body::Credit);
    let about_it: Vec<_> = side.hears().into_iter().filter(|&(tag, _)| tag == 1).collect();
    assert_eq!(about_it, [(1, "CANCEL".into())]);
}

#[test]
fn withdrawn_unsent_transfers_leave_nothing() {
    // The peer gives no credit, and a NAK waits before them: nothing is looked at until there is one.
    let mut side = Side::new(Limits::default());
    for _ in 0..15 {
        side.0.write(0, 10, b"").unwrap();
    }
    assert_eq!(side.hears().len(), 15);
    for tag in [1, 3] {
        side.say_at(0, 0, tag, sync(10, false));
        side.0.fail(0, Tag(tag), Reason::Refused).unwrap();
    }
    assert_eq!(side.hears().len(), 1, "that was the last credit");
    for _ in 0..50_000 {
        let tag = side.0.write(0, 10, b"").unwrap();
        side.0.cancel(0, tag).unwrap();
        side.actions();
    }
    assert!(side.0.memory() < 64 << 10, "{} bytes", side.0.memory());
    side.say_at(0, 4, 0, Body::Credit);
    assert_eq!(side.hears(), [(3, nak(Reason::Refused))]);
}

#[test]
fn nobody_speaks_of_a_transfer_that_was_not_said_yet() {
    // Its tag is easily guessed. A message of it before its SYNC was sent concerns no transfer.
    let mut side = Side::new(Limits::default());
    let tag = side.0.write(0, 10, b"").unwrap();
    side.0.ready(0, tag, 0, 10).unwrap();
    side.say(tag.0, offer(&[bytes(10)], false));
    side.say(tag.0, Body::Nak(Reason::Refused));
    assert_eq!(side.actions(), [], "no write, and no end");
    assert_eq!(side.hears(), [(tag.0, "SYNC".into()), (tag.0, nak(Reason::UnknownTag))]);
    assert_eq!(side.0.counters().strangers, 2);
}
