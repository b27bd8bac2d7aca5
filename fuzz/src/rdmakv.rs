//! Messages between rdmakv's clients and servers, and the bytes that they read in each other's memory.

use rdmakv_proto::commands::{binary, text, udp};
use rdmakv_proto::far::procedures::Procedure;
use rdmakv_proto::far::{batch, messages as far};
use rdmakv_proto::files::{self, Key};
use rdmakv_proto::item;
use rdmakv_proto::messages::{Assembly, Kind, Reply, Request};

/// A line of the text or the meta protocol.
pub(crate) fn text(input: &[u8]) -> bool {
    text::parse(input).is_ok()
}

/// The header of a binary request, and of its answer.
pub(crate) fn binary(input: &[u8]) -> bool {
    let Some((header, _)) = input.split_first_chunk::<{ binary::HEADER }>() else { return false };
    let Ok(header) = binary::parse(header) else { return false };
    header.answer(&mut Vec::new(), 1, (4, 0, 0), 0);
    header.is_well_formed()
}

/// The frame of a datagram, and a line in it.
pub(crate) fn udp(input: &[u8]) -> bool {
    udp::parse(input).is_some_and(|(_, line)| {
        let _ = text::parse(line);
        true
    })
}

/// A request of the kind that the first byte names.
pub(crate) fn request(input: &[u8]) -> bool {
    let Some((kind, bytes)) = kind(input) else { return false };
    let Ok(request) = Request::decode(kind, bytes) else { return false };
    match request {
        Request::Put { segments, .. } => _ = segments.iter().count(),
        Request::Seen(seen) => _ = seen.iter().count(),
        _ => {}
    }
    true
}

/// A reply of the kind that the first byte names is understood again after it was encoded.
pub(crate) fn reply(input: &[u8]) -> bool {
    let Some((kind, bytes)) = kind(input) else { return false };
    let Ok(reply) = Reply::decode(kind, bytes) else { return false };
    let mut again = Vec::new();
    let kind = reply.encode(&mut again);
    assert_eq!(Reply::decode(kind, &again), Ok(reply));
    true
}

fn kind(input: &[u8]) -> Option<(Kind, &[u8])> {
    let (&kind, bytes) = input.split_first()?;
    Some((Kind::of(kind)?, bytes))
}

/// A request for far memory has one encoding.
pub(crate) fn far_request(input: &[u8]) -> bool {
    let Ok(request) = far::Request::decode(input) else { return false };
    let mut again = Vec::new();
    request.encode(&mut again);
    assert_eq!(again, input);
    true
}

/// An answer about far memory has one encoding.
pub(crate) fn far_reply(input: &[u8]) -> bool {
    let Ok(reply) = far::Reply::decode(input) else { return false };
    let mut again = Vec::new();
    reply.encode(&mut again);
    assert_eq!(again, input);
    true
}

/// The copy of a slot that batch 7 is awaited in. What is accepted lies within the copy.
pub(crate) fn far_batch(input: &[u8]) -> bool {
    let Ok(batch) = batch::Batch::decode(input) else { return false };
    let mut bytes = 0;
    for operation in batch.operations().flatten() {
        if let batch::Operation::Write { data, .. } = operation {
            bytes += data.len();
        }
    }
    assert!(bytes + batch::HEAD <= input.len());
    assert!(batch.replies().count() <= batch.len() + 1);
    true
}

/// The number of a procedure, a byte, and its arguments, which have one encoding.
pub(crate) fn far_run(input: &[u8]) -> bool {
    let Some((&number, arguments)) = input.split_first() else { return false };
    let Ok(procedure) = Procedure::decode(number.into(), arguments) else { return false };
    let mut again = Vec::new();
    procedure.encode(&mut again);
    assert_eq!(again, arguments);
    assert!(again.len() <= far::ARGUMENTS_MAX);
    true
}

/// A module is stored in parts, listed, compiled and run, within the limits of each.
#[cfg(feature = "wasm")]
pub(crate) fn far_module(input: &[u8]) -> bool {
    rdmakv_server::fabric::far::try_module(input)
}

/// The most bytes of a message.
const MOST: usize = 1000;

/// Fragments of 1 to 256 bytes, each behind its length: no more is kept than is taken.
pub(crate) fn fragments(input: &[u8]) -> bool {
    let (mut assembly, mut input, mut whole) = (Assembly::default(), input, false);
    while let Some((&length, rest)) = input.split_first() {
        let (fragment, rest) = rest.split_at(rest.len().min(usize::from(length) + 1));
        match assembly.take(fragment, MOST) {
            Ok(Some((_, _, bytes))) => {
                assert!(bytes.len() <= MOST.max(fragment.len()));
                whole = true;
            }
            Ok(None) => assert!(assembly.is_within()),
            Err(_) => return false,
        }
        input = rest;
    }
    whole
}

/// Messages of one client over datagrams, each behind its length in two bytes, are carried out by a server.
pub(crate) fn datagrams(input: &[u8]) -> bool {
    let mut left = input;
    let messages = std::iter::from_fn(|| {
        let (length, rest) = left.split_first_chunk()?;
        let (message, rest) = rest.split_at(rest.len().min(u16::from_le_bytes(*length).into()));
        left = rest;
        Some(message)
    });
    !input.is_empty() && rdmakv_server::fabric::try_messages(messages)
}

/// An item of the key `key`: what is taken lies within the bytes, and its sum is right.
pub(crate) fn item(input: &[u8]) -> bool {
    item::check(input, b"key", 7, 1000).is_ok_and(|item| {
        assert!(item.value.len() + item::HEADER + b"key".len() <= input.len());
        true
    })
}

/// A command line of the server, an argument a line. A refusal has words.
pub(crate) fn flags(input: &[u8]) -> bool {
    // Flags may name files, which are read: those of the machine are not.
    if input.contains(&b'/') {
        return false;
    }
    crate::text(input, |text| {
        let arguments = std::iter::once("rdmakv-server").chain(text.lines());
        rdmakv_server::startup::check(arguments.map(Into::into)).map_err(|words| assert_ne!(words, "")).is_ok()
    })
}

/// A key of the burst buffer, a space and its value. Both have one encoding.
pub(crate) fn files(input: &[u8]) -> bool {
    let Some(space) = input.iter().position(|&byte| byte == b' ') else { return false };
    let Some(key) = std::str::from_utf8(&input[..space]).ok().and_then(Key::parse) else { return false };
    assert_eq!(key.to_string().as_bytes(), &input[..space]);
    let value = &input[space + 1..];
    let again = match key {
        Key::Chunk(..) => Ok(value.to_vec()),
        Key::Inode(_) => files::Inode::decode(value).map(|inode| inode.encode()),
        Key::Bucket(..) => files::Bucket::decode(value).map(|bucket| bucket.encode()),
        Key::Directory(_) => files::Directory::decode(value).map(|directory| directory.encode()),
        Key::Persisted(..) => files::Ranges::decode(value).map(|ranges| ranges.encode()),
        Key::Mount(_) => files::Mount::decode(value).map(|mount| mount.encode()),
    };
    again.is_ok_and(|again| {
        assert_eq!(again, value);
        true
    })
}
