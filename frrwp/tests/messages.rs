//! The messages of applications beside their transfers: in order, bounded, and never in the way of transfers.
#![allow(unsafe_code, reason = "lends memory to transfers")]

mod by_hand;

use by_hand::{Side, bytes, nak, offer, sync};
use frrwp::engine::{Engine, Event};
use frrwp::fabric::sim::{Costs, Faults, Network, SimEndpoint};
use frrwp::handshake::{Action, Disconnect, Handshake, Limits, RECEIVES, SendError, Side as End, Tag};
use frrwp::wire::{Body, MAX_FRAME_PAYLOAD, MESSAGE, Message, Reason};
use mrrc::Cache;
use mrrc::invalidation::Explicit;

/// Says things until there is no room.
fn say_all(side: &mut Handshake) -> usize {
    let mut message = [0; MESSAGE];
    let mut said = 0;
    while side.send_message(b"more", &mut message).is_ok() {
        said += 1;
    }
    assert_eq!(side.send_message(b"more", &mut message), Err(SendError::Full));
    said
}

#[test]
fn half_of_the_credits_are_never_said_away() {
    let mut side = Side::new(Limits::default());
    assert_eq!(say_all(&mut side.0), 8, "of 16");
    // The others are there for transfers, down to the last.
    for _ in 0..10 {
        side.0.write(0, 10, b"").unwrap();
    }
    assert_eq!(side.hears().len(), 7);
    assert!(!side.0.may_send());
    side.say_at(0, 3, 0, Body::Credit);
    assert_eq!(side.hears().len(), 3, "what waits comes before what is said");
    assert_eq!(say_all(&mut side.0), 0);
    side.say_at(0, 9, 0, Body::Credit);
    assert_eq!(say_all(&mut side.0), 2);
}

#[test]
fn transfer_messages_go_before_application_messages() {
    let mut side = Side::new(Limits::default());
    let mut message = [0; MESSAGE];
    side.0.write(0, 10, b"").unwrap();
    assert_eq!(side.0.send_message(b"x", &mut message), Err(SendError::Full), "a SYNC waits");
    assert_eq!(side.hears(), [(2, "SYNC".into())]);
    side.say(1, sync(10, false));
    assert_eq!(side.0.send_message(b"x", &mut message), Err(SendError::Full), "the application is to be asked");
    assert_eq!(side.actions().len(), 1);
    assert_eq!(side.0.send_message(b"x", &mut message), Ok(17));
}

#[test]
fn what_is_not_taken_is_not_announced() {
    let mut side = Side::new(Limits::default());
    for _ in 0..8 {
        side.say_at(0, 1, 0, Body::Say(b"x"));
    }
    let mut message = [0; MESSAGE];
    let credits = |side: &mut Side, message: &mut [u8; MESSAGE]| {
        side.0.write(0, 1, b"").unwrap();
        let length = side.0.take_message(0, message).unwrap();
        Message::decode(&message[..length]).unwrap().credits
    };
    assert_eq!(credits(&mut side, &mut message), 0);
    side.0.message_taken();
    side.0.message_taken();
    assert_eq!(credits(&mut side, &mut message), 2);
    (0..6).for_each(|_| side.0.message_taken());
    // All is taken, and more than half a window is there: it is said, though there is nothing else to say.
    assert_eq!(credits(&mut side, &mut message), 6);
    side.0.message_taken();
    assert_eq!(credits(&mut side, &mut message), 0, "what was not said cannot be taken");
}

#[test]
fn message_flood_disconnects_for_no_credit() {
    let mut side = Side::new(Limits::default());
    for _ in 0..RECEIVES {
        side.say_at(0, 0, 0, Body::Say(b"flood"));
    }
    assert_eq!((side.hears(), side.actions()), (vec![], vec![]), "nothing is answered, nor credited");
    side.say_at(0, 0, 0, Body::Say(b"flood"));
    assert_eq!(side.actions(), [Action::Disconnect { why: Disconnect::NoCredit }]);
    assert_eq!(side.0.counters().messages_received, u64::from(RECEIVES));
    assert!(side.0.memory() < 4096);
    let mut message = [0; MESSAGE];
    assert_eq!(side.0.send_message(b"x", &mut message), Err(SendError::Disconnected));
}

#[test]
fn transfers_go_on_where_nobody_listens() {
    // One side has said all that it may, and the other's application takes nothing, for ever.
    let mut sides = [End::Connecting, End::Accepting].map(|end| Handshake::new(end, Limits::default()));
    let mut message = [0; MESSAGE];
    let mut said = 0;
    while let Ok(length) = sides[0].send_message(b"is anybody there?", &mut message) {
        assert!(sides[1].received(0, &message[..length]).is_some());
        said += 1;
    }
    assert_eq!(said, 8);
    for _ in 0..100 {
        for _ in 0..10 {
            sides[0].write(0, 10, b"").unwrap();
        }
        let mut ended = 0;
        loop {
            let mut quiet = true;
            for side in 0..2 {
                while let Some(action) = sides[side].next_action() {
                    quiet = false;
                    match action {
                        Action::Requested { tag, .. } => sides[side].fail(0, tag, Reason::Refused).unwrap(),
                        Action::Release { .. } => ended += 1,
                        _ => {}
                    }
                }
                while let Some(length) = sides[side].take_message(0, &mut message) {
                    quiet = false;
                    sides[1 - side].received(0, &message[..length]);
                }
            }
            if quiet {
                break;
            }
        }
        assert_eq!(ended, 20, "each is refused");
        assert!(!sides[0].may_send(), "and still nothing more is said");
    }
    // Only listened to, and with nothing to say itself, it is heard of again once it has taken all.
    for _ in 0..said {
        sides[1].message_taken();
    }
    let length = sides[1].take_message(0, &mut message).expect("a CREDIT");
    sides[0].received(0, &message[..length]);
    assert!(sides[0].may_send());
}

#[test]
fn silent_full_listener_still_gives_credits() {
    // 8 are held. The 7 credits that are left for transfers are spent, and none of them is answered.
    let mut sides = [End::Connecting, End::Accepting].map(|end| Handshake::new(end, Limits::default()));
    let mut message = [0; MESSAGE];
    while let Ok(length) = sides[0].send_message(b"x", &mut message) {
        sides[1].received(0, &message[..length]);
    }
    for _ in 0..100 {
        sides[0].write(0, 10, b"").unwrap();
    }
    loop {
        let before = sides[1].counters().received;
        for side in 0..2 {
            while let Some(length) = sides[side].take_message(0, &mut message) {
                sides[1 - side].received(0, &message[..length]);
            }
        }
        if sides[1].counters().received == before {
            break;
        }
    }
    assert_eq!(sides[1].open_transfers(), 100, "all were heard of");
}

#[test]
fn version_1_peer_gets_transfers_only() {
    let mut side = Side::new(Limits::default());
    let mut message = [0; MESSAGE];
    assert_eq!(say_all(&mut side.0), 8);
    // It answers each with what its version has for it.
    for _ in 0..8 {
        side.say_at(0, 1, 0, Body::Nak(Reason::Version { spoken: 1 }));
    }
    assert_eq!(side.actions(), [Action::PeerTooOld { spoken: 1 }], "told once");
    assert_eq!((side.hears(), side.0.counters().strangers), (vec![], 0), "that is no nonsense");
    assert_eq!(side.0.send_message(b"x", &mut message), Err(SendError::PeerTooOld { spoken: 1 }));
    let tag = side.0.write(0, 10, b"").unwrap();
    side.0.ready(0, tag, 0, 10).unwrap();
    assert_eq!(side.hears(), [(tag.0, "SYNC".into())]);
    side.say(tag.0, offer(&[bytes(10)], false));
    assert!(matches!(side.actions()[..], [Action::Write { .. }]));
    // More than was said is nonsense.
    side.say_at(0, 1, 0, Body::Nak(Reason::Version { spoken: 1 }));
    assert_eq!(side.0.counters().strangers, 1);
    // And one that knows how to listen does not say so.
    let mut side = Side::new(Limits::default());
    say_all(&mut side.0);
    side.say_at(0, 1, 0, Body::Nak(Reason::Version { spoken: 2 }));
    assert_eq!((side.actions(), side.0.counters().strangers), (vec![], 1));
}

#[test]
fn what_is_too_long_is_not_said() {
    let mut side = Side::new(Limits::default());
    let mut message = [0; MESSAGE];
    let long = vec![0; MAX_FRAME_PAYLOAD + 1];
    assert_eq!(side.0.send_message(&long, &mut message), Err(SendError::TooLong { length: MAX_FRAME_PAYLOAD + 1 }));
    assert_eq!(side.0.send_message(&long[..MAX_FRAME_PAYLOAD], &mut message), Ok(MESSAGE));
}

#[test]
fn a_say_is_not_mixed_up_with_a_transfer() {
    let mut side = Side::new(Limits::default());
    side.say(1, sync(10, false));
    side.actions();
    // Its tag says nothing, whatever it is.
    side.say(1, Body::Say(b"x"));
    side.say(99, Body::Say(b"x"));
    assert_eq!((side.hears(), side.actions()), (vec![], vec![]));
    side.0.fail(0, Tag(1), Reason::Refused).unwrap();
    assert_eq!(side.hears(), [(1, nak(Reason::Refused))]);
}

/// Two engines over the simulated network.
fn on_sim(test: impl FnOnce(&Network, [Engine<'_, SimEndpoint>; 2])) {
    let network = Network::new(1, Costs::default(), Faults::default());
    let nodes = [network.node(), network.node()];
    let cache =
        |node: usize| Cache::builder(nodes[node].domain()).ignore_environment().monitor(Explicit).build().unwrap();
    let caches = [cache(0), cache(1)];
    let [one, other] = network.connect(&nodes[0], &nodes[1], RECEIVES);
    let client = Engine::new(&caches[0], one, End::Connecting, Limits::default());
    let server = Engine::new(&caches[1], other, End::Accepting, Limits::default());
    test(&network, [client, server]);
}

fn settle(network: &Network, engines: &mut [Engine<'_, SimEndpoint>; 2]) {
    loop {
        engines.iter_mut().for_each(Engine::progress);
        if !network.step(u64::MAX) {
            return;
        }
    }
}

#[test]
fn message_before_answer_arrives_before_end() {
    on_sim(|network, mut engines| {
        let (source, mut sink) = (vec![7_u8; 5000], vec![0_u8; 5000]);
        // SAFETY: both live longer than the engines, and have no other user.
        let tag = unsafe { engines[0].open_read(sink.as_mut_ptr(), sink.len(), b"key") }.unwrap();
        engines[0].send_message(b"and another thing").unwrap();
        settle(network, &mut engines);
        assert!(matches!(engines[1].next_event(), Some(Event::Requested { .. })));
        assert!(matches!(engines[1].next_event(), Some(Event::Message)));
        let mut said = Vec::new();
        assert!(engines[1].recv_message(&mut said) && said == b"and another thing");
        assert!(!engines[1].recv_message(&mut said) && said == b"and another thing", "there is no more");
        engines[1].send_message(b"a grant").unwrap();
        // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
        unsafe { engines[1].accept_read(tag, source.as_ptr(), source.len()) }.unwrap();
        settle(network, &mut engines);
        assert!(matches!(engines[0].next_event(), Some(Event::Message)));
        assert!(matches!(engines[0].next_event(), Some(Event::Completed { result: Ok(5000), .. })));
        assert!(engines[0].recv_message(&mut said) && said == b"a grant");
        drop(engines);
        assert_eq!(source, sink);
    });
}

#[test]
fn unread_messages_hold_the_sender_back() {
    on_sim(|network, mut engines| {
        let mut said = 0_u32;
        while engines[0].send_message(&said.to_le_bytes()).is_ok() {
            said += 1;
            settle(network, &mut engines);
        }
        assert_eq!(said, 8);
        assert!(engines[0].next_event().is_none(), "there is no room");
        let mut into = Vec::new();
        for expected in 0..said {
            assert!(matches!(engines[1].next_event(), Some(Event::Message)));
            assert!(engines[1].recv_message(&mut into) && into == expected.to_le_bytes());
        }
        assert!(engines[1].next_event().is_none());
        // Without any call but those: an application that has taken all may go to sleep.
        while network.step(u64::MAX) {}
        engines[0].progress();
        assert!(matches!(engines[0].next_event(), Some(Event::Writable)));
        assert!(engines[0].next_event().is_none());
        engines[0].send_message(b"again").unwrap();
    });
}

#[test]
fn what_is_taken_before_it_is_told_is_not_told() {
    on_sim(|network, mut engines| {
        let mut into = Vec::new();
        for round in 0..1000 {
            engines[0].send_message(&[1]).unwrap();
            engines[0].send_message(&[2]).unwrap();
            settle(network, &mut engines);
            assert!(engines[1].recv_message(&mut into) && into == [1], "round {round}");
            assert!(matches!(engines[1].next_event(), Some(Event::Message)));
            assert!(engines[1].next_event().is_none(), "one is left");
            assert!(engines[1].recv_message(&mut into) && into == [2]);
            assert!(engines[1].next_event().is_none() && !engines[1].recv_message(&mut into));
            // The answer brings the credits back.
            engines[1].send_message(b"ok").unwrap();
            settle(network, &mut engines);
            assert!(engines[0].recv_message(&mut into) && into == b"ok");
            assert!(engines[0].next_event().is_none());
        }
    });
}

#[test]
fn what_was_said_before_the_end_can_be_taken_after_it() {
    on_sim(|network, mut engines| {
        engines[0].send_message(b"goodbye").unwrap();
        settle(network, &mut engines);
        engines[0].disconnect();
        settle(network, &mut engines);
        assert_eq!(engines[0].send_message(b"x"), Err(SendError::Disconnected));
        assert!(matches!(engines[1].next_event(), Some(Event::Message)));
        assert!(matches!(engines[1].next_event(), Some(Event::Closed { .. })));
        let mut into = Vec::new();
        assert!(engines[1].recv_message(&mut into) && into == b"goodbye");
    });
}

#[test]
fn messages_allocate_nothing_in_steady_state() {
    // The machine and the engine's buffers: the simulated network allocates for itself.
    let mut sides = [End::Connecting, End::Accepting].map(|end| Handshake::new(end, Limits::default()));
    let mut message = [0; MESSAGE];
    let mut round = || {
        for side in 0..2 {
            for _ in 0..4 {
                let length = sides[side].send_message(&[7; 1000], &mut message).unwrap();
                assert_eq!(sides[1 - side].received(0, &message[..length]).map(<[u8]>::len), Some(1000));
                sides[1 - side].message_taken();
            }
        }
    };
    round();
    let allocated = allocation_counter::measure(|| (0..1000).for_each(|_| round()));
    assert_eq!(allocated.count_total, 0);
}
