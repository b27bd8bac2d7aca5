//! Each message has the bytes of the page, and is read back or refused.

use proptest::prelude::*;

use super::*;

fn id() -> impl Strategy<Value = WriteId> {
    (any::<u64>(), any::<u64>()).prop_map(|(client, sequence)| WriteId { client, sequence })
}

fn version() -> impl Strategy<Value = Version> {
    any::<u64>().prop_map(Version)
}

fn epoch() -> impl Strategy<Value = Epoch> {
    (0..=MAX_EPOCH).prop_map(Epoch)
}

/// Returns the largest version that a call is for.
fn newest(call: &Call) -> Version {
    match *call {
        Call::Seal { version, base, .. } => version.max(base),
        Call::Publish { version, .. } | Call::Note { version, .. } | Call::Repair { version, .. } => version,
        Call::List { version } | Call::Forget { version } | Call::Fetch { version } => version,
        _ => Version::ABSENT,
    }
}

fn piece() -> impl Strategy<Value = Piece> {
    let fragment = (1..=64_u8, 0..64_u8).prop_map(|(k, index)| Form::Fragment { k, index });
    let form = prop_oneof![Just(Form::Copy), Just(Form::Tombstone), fragment];
    (form, any::<u64>(), any::<u32>()).prop_map(|(form, length, sum)| {
        let length = if form == Form::Tombstone { 0 } else { length };
        Piece { chunk: Chunk(0), form, length, sum }
    })
}

fn stored() -> impl Strategy<Value = Stored> {
    (id(), version(), epoch(), piece(), any::<bool>()).prop_map(|(id, version, confirmed, piece, is_staged)| Stored {
        id,
        version,
        confirmed,
        piece,
        is_staged,
    })
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let refusals =
        [Refusal::NotStored, Refusal::Exists, Refusal::Invalid, Refusal::NoMemory, Refusal::TooLarge, Refusal::Final];
    let declined = proptest::sample::select(refusals.to_vec()).prop_map(Verdict::Declined);
    prop_oneof![version().prop_map(Verdict::Stored), declined, Just(Verdict::Flushed)]
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![verdict().prop_map(Fate::Done), Just(Fate::Refused)]
}

fn condition() -> impl Strategy<Value = Condition> {
    let version = version().prop_map(Condition::Version);
    prop_oneof![Just(Condition::Always), Just(Condition::Absent), Just(Condition::Present), version]
}

fn arguments() -> impl Strategy<Value = Arguments> {
    let increment = any::<(u64, Option<u64>)>().prop_map(|(by, initial)| Arguments::Increment { by, initial });
    let decrement = any::<(u64, Option<u64>)>().prop_map(|(by, initial)| Arguments::Decrement { by, initial });
    prop_oneof![increment, decrement, Just(Arguments::Append), Just(Arguments::Prepend)]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![piece().prop_map(Change::Put), Just(Change::Staged), Just(Change::Compute(0))]
}

fn frozen() -> impl Strategy<Value = Frozen> {
    let gaps = proptest::collection::vec((1..9_u32, 1..9_u32), 0..5);
    (1..=u64::MAX, 1..=u64::MAX, 0..1000_u64, 16..=23_u8, gaps).prop_map(|(ino, generation, more, chunk_bits, gaps)| {
        let mut end = 0;
        let mut run = |(gap, count): (u32, u32)| {
            let first = end + gap;
            end = first + count;
            (first, count)
        };
        let runs: Vec<_> = gaps.into_iter().map(&mut run).collect();
        Frozen { ino, generation, size: (u64::from(end) << chunk_bits) + more, chunk_bits, runs }
    })
}

fn call() -> impl Strategy<Value = Call> {
    let order = (id(), any::<u64>(), condition(), change());
    let seal = (id(), version(), version(), proptest::option::of(piece()));
    prop_oneof![
        (id(), piece()).prop_map(|(id, piece)| Call::Stage { id, piece }),
        order.prop_map(|(id, lowest, condition, change)| Call::Order { id, lowest, condition, change }),
        seal.prop_map(|(id, version, base, piece)| Call::Seal { id, version, base, piece }),
        (id(), version()).prop_map(|(id, version)| Call::Publish { id, version }),
        (id(), version(), any::<u64>()).prop_map(|(id, version, lowest)| Call::Note { id, version, lowest }),
        id().prop_map(|id| Call::Resolve { id }),
        id().prop_map(|id| Call::Refuse { id }),
        Just(Call::Read),
        Just(Call::Survey),
        Just(Call::Locate),
        version().prop_map(|version| Call::List { version }),
        (id(), version(), piece()).prop_map(|(id, version, piece)| Call::Repair { id, version, piece }),
        proptest::collection::vec((id(), fate()), 0..4).prop_map(Call::Fates),
        version().prop_map(|version| Call::Forget { version }),
        version().prop_map(|version| Call::Fetch { version }),
        any::<(u32, Option<(u64, u64)>)>().prop_map(|(shard, after)| {
            let after = after.map(|(client, sequence)| WriteId { client, sequence });
            Call::FatesAfter { shard, after }
        }),
        any::<(bool, u32, u64)>().prop_map(|(is_primary, shard, below)| {
            let select = if is_primary { Select::Primary } else { Select::Unsettled };
            Call::Keys { select, from: Place { shard, below } }
        }),
        any::<(bool, [u64; 7])>().prop_map(|(is_done, [left, keys, bytes, lost, short, refused, millis])| {
            Call::Report(Report { is_done, left, keys, bytes, lost, short, refused, millis })
        }),
        frozen().prop_map(Call::Freeze),
        frozen().prop_map(Call::Persisted),
        (any::<u64>(), frozen()).prop_map(|(file, frozen)| Call::Carry { file, frozen }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let ordered = (version(), version(), proptest::option::of(piece()));
    prop_oneof![
        Just(Answer::OtherEpoch),
        Just(Answer::NotServing),
        Just(Answer::Fenced),
        Just(Answer::Busy),
        Just(Answer::Staged),
        ordered.prop_map(|(version, base, computed)| Answer::Ordered { version, base, computed }),
        version().prop_map(Answer::Sealed),
        Just(Answer::Lacks),
        (stored(), version()).prop_map(|(stored, base)| Answer::Help(Pending { stored, base })),
        verdict().prop_map(Answer::Done),
        Just(Answer::Refused),
        Just(Answer::Unknown),
        Just(Answer::Taken),
        version().prop_map(Answer::Repaired),
        proptest::option::of(stored()).prop_map(Answer::Value),
        any::<Option<u8>>().prop_map(Answer::Has),
        proptest::option::of(proptest::collection::vec((id(), fate()), 0..4)).prop_map(Answer::Fates),
        any::<(Option<(u32, u64)>, u64)>().prop_map(|(next, left)| {
            let next = next.map(|(shard, below)| Place { shard, below });
            Answer::Keys { next, left }
        }),
        proptest::collection::vec(any::<u64>(), 0..=MAX_CARRIED / 64).prop_map(Answer::Carried),
    ]
}

fn attributes() -> impl Strategy<Value = Attributes> {
    any::<(u32, u64, bool, bool)>().prop_map(|(flags, expiry, is_final, is_clean)| {
        let is_clean = is_final && is_clean;
        Attributes { flags, expiry, is_final, is_clean }
    })
}

fn request_frame() -> impl Strategy<Value = RequestFrame> {
    (any::<u128>(), epoch(), call(), attributes(), arguments()).prop_map(
        |(cluster, epoch, call, attributes, arguments)| {
            let epoch = epoch.max(newest(&call).epoch());
            let attributes = if carries_piece(&call) { attributes } else { Attributes::default() };
            let computes = matches!(call, Call::Order { change: Change::Compute(_), .. });
            RequestFrame {
                request: Request { cluster, epoch, call },
                attributes,
                arguments: computes.then_some(arguments),
            }
        },
    )
}

fn reply_frame() -> impl Strategy<Value = ReplyFrame> {
    (epoch(), proptest::option::of(id()), answer(), attributes()).prop_map(|(epoch, id, answer, attributes)| {
        let has_piece =
            matches!(answer, Answer::Ordered { computed: Some(_), .. } | Answer::Help(_) | Answer::Value(Some(_)));
        let attributes = if has_piece { attributes } else { Attributes::default() };
        ReplyFrame { reply: Reply { epoch, id, answer }, attributes }
    })
}

/// Encodes a message, and checks that no part of it and nothing longer is a message.
fn encoded<T>(encode: impl Fn(&mut Vec<u8>), decode: impl Fn(&[u8]) -> Result<T, WireError>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    for end in 0..bytes.len() {
        assert!(decode(&bytes[..end]).is_err(), "{end} of {} bytes", bytes.len());
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(decode(&longer).is_err(), "one byte more");
    bytes
}

proptest! {
    #[test]
    fn calls_are_read_as_they_were_written(frame in request_frame()) {
        let bytes = encoded(|out| frame.encode(out), RequestFrame::decode);
        prop_assert!(bytes.len() <= MAX_CALL);
        prop_assert_eq!(RequestFrame::decode(&bytes), Ok(frame));
    }

    #[test]
    fn replies_are_read_as_they_were_written(frame in reply_frame()) {
        let bytes = encoded(|out| frame.encode(out), ReplyFrame::decode);
        prop_assert!(bytes.len() <= MAX_REPLY);
        prop_assert_eq!(ReplyFrame::decode(&bytes), Ok(frame));
    }

    /// A changed message is refused, or is the encoding of another one.
    #[test]
    fn a_message_has_one_encoding(frame in request_frame(), reply in reply_frame(), at: usize, bits: u8) {
        let (mut call, mut answer) = (Vec::new(), Vec::new());
        frame.encode(&mut call);
        reply.encode(&mut answer);
        let (call_at, answer_at) = (at % call.len(), at % answer.len());
        call[call_at] ^= bits;
        answer[answer_at] ^= bits;
        let mut again = Vec::new();
        if let Ok(frame) = RequestFrame::decode(&call) {
            frame.encode(&mut again);
            prop_assert_eq!(&again, &call);
        }
        again.clear();
        if let Ok(reply) = ReplyFrame::decode(&answer) {
            reply.encode(&mut again);
            prop_assert_eq!(&again, &answer);
        }
    }
}

#[test]
fn no_call_is_for_a_version_of_a_later_epoch() {
    let id = WriteId { client: 1, sequence: 1 };
    let piece = Piece { chunk: Chunk(0), form: Form::Copy, length: 1, sum: 2 };
    let (good, bad) = (Version::new(Epoch(3), Version::MAX_COUNT), Version::new(Epoch(4), 0));
    let calls = |version, base| {
        [
            Call::Seal { id, version, base: Version::ABSENT, piece: None },
            Call::Seal { id, version: good, base, piece: None },
            Call::Publish { id, version },
            Call::Note { id, version, lowest: 0 },
            Call::List { version },
            Call::Repair { id, version, piece },
            Call::Forget { version },
            Call::Fetch { version },
        ]
    };
    let decoded = |call| {
        let mut bytes = Vec::new();
        RequestFrame::new(Request { cluster: 7, epoch: Epoch(3), call }).encode(&mut bytes);
        RequestFrame::decode(&bytes).map(|frame| frame.request.call)
    };
    for (call, later) in calls(good, good).into_iter().zip(calls(bad, bad)) {
        assert_eq!(decoded(call.clone()), Ok(call));
        assert_eq!(decoded(later), Err(WireError::Field("version")));
    }
}

#[test]
fn a_tombstone_has_no_length() {
    let encoded = |length| {
        let piece = Piece { chunk: Chunk(0), form: Form::Tombstone, length, sum: 0 };
        let id = WriteId { client: 1, sequence: 1 };
        let call = Call::Seal { id, version: Version(2), base: Version(1), piece: Some(piece) };
        let mut bytes = Vec::new();
        RequestFrame::new(Request { cluster: 7, epoch: Epoch(1), call }).encode(&mut bytes);
        bytes
    };
    assert!(RequestFrame::decode(&encoded(0)).is_ok());
    assert_eq!(RequestFrame::decode(&encoded(u64::MAX)), Err(WireError::Field("piece")));
}

proptest! {
    #[test]
    fn entries_are_read_as_they_were_written(seeds in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..=255), 0_usize..5, id(), version(), any::<u64>()), 0..9)) {
        let kinds = [About::Value, About::Tombstone, About::Next, About::Staged, About::Sealed];
        let entry = |(key, kind, id, version, length): (Vec<u8>, usize, WriteId, Version, u64)| {
            Entry { key, about: kinds[kind], id, version, length }
        };
        let entries: Vec<Entry> = seeds.into_iter().map(entry).collect();
        let mut bytes = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut bytes));
        if !bytes.is_empty() {
            prop_assert!(Entry::decode_all(&bytes[..bytes.len() - 1]).is_err());
        }
        prop_assert_eq!(Entry::decode_all(&bytes), Ok(entries));
    }
}

#[test]
fn a_call_has_the_bytes_of_the_table() {
    let (id, version) = (WriteId { client: 7, sequence: 9 }, Version::new(Epoch(2), 5));
    let frame = RequestFrame::new(Request { cluster: 3, epoch: Epoch(2), call: Call::Publish { id, version } });
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    let mut expected = vec![1, 4, 0, 0, 2, 0, 0, 0, 3];
    expected.resize(HEADER, 0);
    expected.extend([7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 2, 0, 0]);
    assert_eq!(bytes, expected);
}

#[test]
fn a_frozen_generation_has_chunks_of_its_file() {
    let decoded = |runs: &[(u32, u32)], size: u64| {
        let frozen = Frozen { ino: 1, generation: 1, size, chunk_bits: 16, runs: runs.to_vec() };
        let mut bytes = Vec::new();
        let request = Request { cluster: 7, epoch: Epoch(1), call: Call::Freeze(frozen) };
        RequestFrame::new(request).encode(&mut bytes);
        RequestFrame::decode(&bytes).map(drop)
    };
    assert_eq!(decoded(&[(0, 2), (3, 1)], 3 << 16 | 1), Ok(()));
    let wrong = Err(WireError::Field("run of chunks"));
    assert_eq!(decoded(&[(0, 2), (3, 1)], 3 << 16), wrong);
    for runs in [&[(0, 0)][..], &[(0, 2), (2, 1)], &[(3, 1), (0, 1)], &[(u32::MAX, u32::MAX)]] {
        assert_eq!(decoded(runs, u64::MAX), wrong, "{runs:?}");
    }
    assert_eq!(decoded(&[(0, 1); MAX_RUNS + 1], 1), Err(WireError::Field("generation")));
}

#[test]
fn a_call_carries_4096_chunks_at_most() {
    let decoded = |count: u32| {
        let runs = vec![(0, 96), (100, count - 96)];
        let frozen = Frozen { ino: 1, generation: 1, size: 1 << 40, chunk_bits: 16, runs };
        let mut bytes = Vec::new();
        RequestFrame::new(Request { cluster: 7, epoch: Epoch(1), call: Call::Carry { file: 1, frozen } })
            .encode(&mut bytes);
        RequestFrame::decode(&bytes).map(drop)
    };
    assert_eq!((decoded(4096), decoded(4097)), (Ok(()), Err(WireError::Field("run of chunks"))));
    let answer = Answer::Carried(vec![0; MAX_CARRIED / 64 + 1]);
    let mut bytes = Vec::new();
    ReplyFrame::new(Reply { epoch: Epoch(1), id: None, answer }).encode(&mut bytes);
    assert_eq!(ReplyFrame::decode(&bytes), Err(WireError::Field("number of chunks")));
}

#[test]
fn refuses_another_version_and_too_many_fates() {
    let call = Call::Fates(vec![(WriteId { client: 1, sequence: 1 }, Fate::Refused); MAX_FATES + 1]);
    let mut bytes = Vec::new();
    RequestFrame::new(Request { cluster: 0, epoch: Epoch(1), call }).encode(&mut bytes);
    assert_eq!(RequestFrame::decode(&bytes), Err(WireError::Field("number of fates")));
    bytes[0] = VERSION + 1;
    assert_eq!(RequestFrame::decode(&bytes), Err(WireError::Version(VERSION + 1)));
}
