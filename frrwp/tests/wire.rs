//! The wire format: what is written reads back, as documented, and nothing that can be received does harm.

use frrwp::wire::{
    Body, DecodeError, HEADER, MAX_FRAME_PAYLOAD, MESSAGE, Message, Offer, Placed, Reason, SEGMENTS, Segment, Segments,
};
use proptest::prelude::*;

fn bytes_of(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = [0; MESSAGE];
    let length = message.encode(&mut bytes);
    bytes[..length].to_vec()
}

#[test]
fn a_sync_lies_on_the_wire_as_documented() {
    let placed = [Placed { offset: 0, segment: Segment { address: 0x1122, length: 0x10, key: 0xabcd } }];
    let offer = Some(Offer { offset: 0, segments: Segments::Plain(&placed), more: true });
    let body = Body::Sync { length: 0x20, read: true, header: b"get", offer };
    let bytes = bytes_of(&Message { credits: 3, tag: 5, body });
    let mut expected = Vec::from(*b"FRWP\x01\x01\x03\x00");
    expected.extend(5_u64.to_le_bytes());
    expected.extend(0x20_u64.to_le_bytes());
    expected.extend([1 | 2 | 4, 0]);
    expected.extend(3_u16.to_le_bytes());
    expected.extend(1_u16.to_le_bytes());
    expected.extend([0; 2]);
    expected.extend(b"get");
    for field in [0x1122_u64, 0x10, 0xabcd] {
        expected.extend(field.to_le_bytes());
    }
    assert_eq!(bytes, expected);
}

#[test]
fn the_other_messages_lie_on_the_wire_as_documented() {
    let placed = [Placed { offset: 9, segment: Segment { address: 1, length: 2, key: 3 } }];
    let offer = Offer { offset: 9, segments: Segments::Plain(&placed), more: true };
    let start = |kind: u8| [b"FRWP\x01".as_slice(), &[kind, 1, 0], &7_u64.to_le_bytes()].concat();
    let [one, two, three, nine] = [1_u64, 2, 3, 9].map(u64::to_le_bytes);
    let cases = [
        (
            Body::Stcrw(offer),
            [start(2), vec![1, 0, 1, 0, 0, 0, 0, 0], nine.into(), one.into(), two.into(), three.into()].concat(),
        ),
        (Body::Done { bytes: 9 }, [start(3), nine.into()].concat()),
        (Body::Nak(Reason::TooLong { needed: 9 }), [start(4), two.into(), nine.into()].concat()),
        (Body::Cancel, start(5)),
        (Body::Credit, start(6)),
        (Body::Say(b"key"), [b"FRWP\x02\x07\x01\x00".as_slice(), &7_u64.to_le_bytes(), b"key"].concat()),
    ];
    for (body, expected) in cases {
        let message = Message { credits: 1, tag: 7, body };
        assert_eq!(bytes_of(&message), expected, "{body:?}");
        assert_eq!(Message::decode(&expected), Ok(message));
    }
}

#[test]
fn every_truncation_is_an_error_that_says_so() {
    let placed = [Placed::default(); 2].map(|mut placed| {
        placed.segment.length = 1;
        placed
    });
    let offer = Offer { offset: 0, segments: Segments::Plain(&placed), more: false };
    let sync = Body::Sync { length: 2, read: true, header: b"header", offer: Some(offer) };
    for body in [sync, Body::Stcrw(offer), Body::Done { bytes: 1 }, Body::Nak(Reason::Busy)] {
        let whole = bytes_of(&Message { credits: 0, tag: 1, body });
        for length in 0..whole.len() {
            let error = Message::decode(&whole[..length]).expect_err("cut short");
            assert_eq!(
                matches!(error, DecodeError::Foreign { .. }),
                length < 16,
                "{length} bytes of {body:?}: {error}"
            );
        }
        let longer = [&whole[..], &[0]].concat();
        assert!(matches!(Message::decode(&longer), Err(DecodeError::Malformed { tag: 1, .. })));
    }
}

#[test]
fn future_message_shows_version_and_tag() {
    let mut bytes = bytes_of(&Message { credits: 0, tag: 0x0102_0304, body: Body::Cancel });
    bytes[4] = 3;
    assert_eq!(Message::decode(&bytes), Err(DecodeError::Version { version: 3, tag: 0x0102_0304 }));
}

#[test]
fn a_kind_belongs_to_its_version() {
    // As a peer of version 1 sees it: a SAY is of a version that it does not speak, and no nonsense.
    let said = bytes_of(&Message { credits: 0, tag: 0, body: Body::Say(b"hello") });
    assert_eq!((said[4], said[5], said.len()), (2, 7, 16 + 5));
    let with = |version: u8, kind: u8| {
        let mut bytes = [bytes_of(&Message { credits: 0, tag: 0, body: Body::Cancel }), vec![0; 16]].concat();
        bytes[4..6].copy_from_slice(&[version, kind]);
        Message::decode(&bytes).map(|message| message.body == Body::Say(&[0; 16]))
    };
    assert_eq!(with(2, 7), Ok(true));
    for (version, kind) in [(1, 7), (2, 1), (2, 6), (2, 8), (1, 8), (1, 0)] {
        assert!(matches!(with(version, kind), Err(DecodeError::Malformed { .. })), "kind {kind} of version {version}");
    }
    for version in [0, 3, 255] {
        assert_eq!(with(version, 7), Err(DecodeError::Version { version, tag: 0 }));
    }
}

#[test]
fn as_much_is_said_as_a_message_holds() {
    let said = vec![7; MAX_FRAME_PAYLOAD];
    let whole = bytes_of(&Message { credits: 0, tag: 0, body: Body::Say(&said) });
    assert_eq!((whole.len(), MAX_FRAME_PAYLOAD), (MESSAGE, 6160));
    assert_eq!(Message::decode(&whole).map(|message| message.body), Ok(Body::Say(&said)));
    assert!(matches!(Message::decode(&[&whole[..], &[7]].concat()), Err(DecodeError::Malformed { .. })));
    let empty = bytes_of(&Message { credits: 0, tag: 0, body: Body::Say(b"") });
    assert_eq!(Message::decode(&empty).map(|message| message.body), Ok(Body::Say(b"")));
}

#[test]
fn lying_segments_are_refused() {
    let with = |segments: &[Segment]| {
        let placed: Vec<Placed> = segments.iter().map(|&segment| Placed { offset: 0, segment }).collect();
        bytes_of(&Message {
            credits: 0,
            tag: 1,
            body: Body::Stcrw(Offer { offset: 0, segments: Segments::Plain(&placed), more: false }),
        })
    };
    let segment = |address, length| Segment { address, length, key: 1 };
    assert!(Message::decode(&with(&[segment(u64::MAX, 1)])).is_ok());
    for lie in [vec![segment(0, 0)], vec![segment(u64::MAX, 2)], vec![segment(0, u64::MAX), segment(0, 1)]] {
        assert!(matches!(Message::decode(&with(&lie)), Err(DecodeError::Malformed { .. })), "{lie:?}");
    }
}

fn any_segments(most: usize) -> impl Strategy<Value = Vec<Placed>> {
    let segment = (0..1_u64 << 60, 1..1_u64 << 50, any::<u32>());
    let placed =
        segment.prop_map(|(address, length, key)| Placed { offset: 0, segment: Segment { address, length, key } });
    prop::collection::vec(placed, 0..=most)
}

fn any_reason() -> impl Strategy<Value = Reason> {
    prop_oneof![
        Just(Reason::Registration),
        any::<u64>().prop_map(|needed| Reason::TooLong { needed }),
        Just(Reason::Busy),
        Just(Reason::Cancelled),
        Just(Reason::TimedOut),
        Just(Reason::UnknownTag),
        Just(Reason::Malformed),
        any::<u8>().prop_map(|spoken| Reason::Version { spoken }),
        Just(Reason::Refused),
        (100_u16..).prop_map(Reason::Other),
    ]
}

proptest! {
    #[test]
    fn what_is_written_reads_back(
        credits: u16, tag: u64, length: u64, offset: u64, more: bool, offers: bool,
        header in prop::collection::vec(any::<u8>(), 0..=HEADER),
        said in prop::collection::vec(any::<u8>(), 0..=MAX_FRAME_PAYLOAD),
        segments in any_segments(SEGMENTS), reason in any_reason(), kind in 0..8,
    ) {
        let fit = segments.len().min(Message::segments_beside(header.len()));
        let beside = Offer { offset: 0, segments: Segments::Plain(&segments[..fit]), more };
        let body = match kind {
            0 => Body::Sync { length, read: true, header: &header, offer: offers.then_some(beside) },
            1 => Body::Sync { length, read: false, header: &header, offer: None },
            2 => Body::Stcrw(Offer { offset, segments: Segments::Plain(&segments), more }),
            3 => Body::Done { bytes: length },
            4 => Body::Nak(reason),
            5 => Body::Say(&said),
            6 => Body::Credit,
            _ => Body::Cancel,
        };
        let message = Message { credits, tag, body };
        let bytes = bytes_of(&message);
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
    }

    #[test]
    fn noise_and_mutations_decode_or_fail(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        segments in any_segments(8),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let _ = Message::decode(&noise);
        let offer = Offer { offset: 0, segments: Segments::Plain(&segments), more: false };
        let mut bytes = bytes_of(&Message { credits: 0, tag: 1, body: Body::Sync { length: 1, read: true, header: b"header", offer: Some(offer) } });
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(message) = Message::decode(&bytes) {
            // A decoded message decodes again once it is encoded correctly.
            let again = bytes_of(&message);
            prop_assert_eq!(Message::decode(&again), Ok(message));
        }
    }
}
