//! Messages are decoded as encoded, and noise does no harm.

use super::*;
use proptest::prelude::*;

fn tag() -> impl Strategy<Value = Option<Tag>> {
    proptest::option::of((any::<[u64; 2]>(), any::<[u32; 2]>()).prop_map(|([address, length], [key, incarnation])| {
        Tag { segment: RemoteSegment { address, length, key }, incarnation }
    }))
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 1..=crate::item::KEY_MAX)
}

proptest! {
    #[test]
    fn requests_are_understood_as_they_were_meant(
        wish: bool,
        key in key(),
        line in proptest::collection::vec(any::<u8>(), 0..300),
        segments in proptest::collection::vec(any::<(u64, u64, u32)>(), 0..10),
        (may_connect, token) in any::<(bool, Option<u64>)>(),
    ) {
        let segments: Vec<RemoteSegment> =
            segments.into_iter().map(|(address, length, key)| RemoteSegment { address, length, key }).collect();
        let mut bytes = Vec::new();
        let kind = Request::put(&mut bytes, wish, &key, &line, &segments);
        let Ok(Request::Put { wish: wished, key: named, line: said, segments: told }) = Request::decode(kind, &bytes) else {
            panic!("a PUT")
        };
        prop_assert_eq!((wished, named, said), (wish, &key[..], &line[..]));
        prop_assert_eq!(told.iter().collect::<Vec<_>>(), segments);
        bytes.clear();
        let kind = Request::run(&mut bytes, wish, &key, &[b"mn", &line]);
        let command = [b"mn", &line[..]].concat();
        prop_assert_eq!(Request::decode(kind, &bytes), Ok(Request::Run { wish, key: &key, command: &command }));
        bytes.clear();
        let kind = Request::get(&mut bytes, wish, &key);
        prop_assert_eq!(Request::decode(kind, &bytes), Ok(Request::Get { wish, key: &key }));
        bytes.clear();
        let wishes = Wishes { table: wish, may_connect, token };
        let kind = Request::hello_with(&mut bytes, wishes);
        prop_assert_eq!(Request::decode(kind, &bytes), Ok(Request::Hello { version: VERSION, wishes }));
        bytes.push(0);
        prop_assert!(Request::decode(kind, &bytes).is_err(), "bytes are left over");
    }

    #[test]
    fn replies_are_understood_as_they_were_meant(
        tag in tag(), size: u64, answer in proptest::collection::vec(any::<u8>(), 0..300), numbers: [u32; 3], text: String,
    ) {
        let [incarnation, lease_ms, eager] = numbers;
        let mut segments = Vec::new();
        let segment = RemoteSegment { address: size, length: size, key: eager };
        let segments = Segments::write(&[segment, RemoteSegment { address: 1, ..segment }], &mut segments);
        for reply in [
            Reply::Table(Table { now: size, secret: [size, 5], segments }),
            Reply::Welcome(Welcome { version: VERSION, incarnation, lease_ms, eager, transfers_from: eager, largest: size }),
            Reply::Welcome(Welcome {
                version: VERSION,
                incarnation,
                lease_ms,
                eager: 65_536,
                transfers_from: 8192,
                largest: size,
            }),
            Reply::Ran { tag, answer: &answer },
            Reply::Item { tag, image: &answer },
            Reply::Large { tag, size },
            Reply::None,
            Reply::Demote,
            Reply::Tag(tag),
            Reply::Refused { why: Refusal::Unreadable, text: &text },
        ] {
            let mut bytes = Vec::new();
            let kind = reply.encode(&mut bytes);
            prop_assert_eq!(Reply::decode(kind, &bytes), Ok(reply));
        }
    }

    #[test]
    fn noise_is_no_message_or_one_but_never_a_panic(kind: u8, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = fragment(&bytes);
        if let Some(kind) = Kind::of(kind) {
            let _ = (Request::decode(kind, &bytes), Reply::decode(kind, &bytes));
        }
    }

    #[test]
    fn fragments_make_the_message_that_was_cut(
        message in proptest::collection::vec(any::<u8>(), 0..1000), piece in 1_usize..300,
    ) {
        let mut assembly = Assembly::default();
        let pieces: Vec<&[u8]> = if message.is_empty() { vec![&[]] } else { message.chunks(piece).collect() };
        for (at, part) in pieces.iter().enumerate() {
            let more = at + 1 < pieces.len();
            let mut bytes = Vec::new();
            start(&mut bytes, 7, Kind::Ran, more);
            bytes.extend_from_slice(part);
            let taken = assembly.take(&bytes, 1000).unwrap();
            prop_assert_eq!(taken, (!more).then_some((7, Kind::Ran, &message[..])));
        }
    }
}

#[test]
fn a_message_is_no_longer_than_is_taken() {
    let mut assembly = Assembly::default();
    let mut bytes = Vec::new();
    start(&mut bytes, 1, Kind::Run, true);
    bytes.extend_from_slice(&[0; 100]);
    assert_eq!(assembly.take(&bytes, 150), Ok(None));
    assert!(assembly.take(&bytes, 150).is_err());
}

#[test]
fn messages_do_not_come_among_each_other() {
    let mut assembly = Assembly::default();
    let (mut one, mut other) = (Vec::new(), Vec::new());
    start(&mut one, 1, Kind::Run, true);
    start(&mut other, 2, Kind::Run, false);
    assert_eq!(assembly.take(&one, 100), Ok(None));
    assert!(assembly.take(&other, 100).is_err());
}
