//! Decoders of what etcd keeps of a cluster, of etcd's answers, and of the calls between clients and servers.

use rdmakv_cluster::etcd::gateway::{self, Watched};
use rdmakv_cluster::etcd::http::{Answer, MAX_BODY};
use rdmakv_cluster::facts::{Fact, Facts};
use rdmakv_cluster::json::{MAX_BYTES, decode, encode};
use rdmakv_cluster::wire::{MAX_CALL, MAX_REPLY, ReplyFrame, RequestFrame};

/// A configuration is the same again after it was encoded, and may be changed.
pub(crate) fn config(input: &[u8]) -> bool {
    let Ok(config) = decode(input) else { return false };
    let bytes = encode(&config);
    assert!(bytes.len() <= MAX_BYTES);
    assert_eq!(decode(&bytes).as_ref(), Ok(&config));
    if let Ok(next) = config.flush() {
        assert!(next.supersedes(&config));
        assert_eq!(decode(&encode(&next)), Ok(next));
    }
    true
}

/// A path, a space and a value: a fact is written as it was read.
pub(crate) fn fact(input: &[u8]) -> bool {
    let Some(space) = input.iter().position(|&byte| byte == b' ') else { return false };
    let Ok(path) = std::str::from_utf8(&input[..space]) else { return false };
    let value = &input[space + 1..];
    let mut facts = Facts::default();
    facts.set(path, Some(value));
    let Some(fact) = Fact::parse(path, value) else {
        assert_eq!(facts, Facts::default());
        return false;
    };
    assert!(facts.has(&fact));
    assert_eq!(fact.path(), path);
    assert_eq!(Fact::parse(path, fact.value().as_bytes()), Some(fact));
    true
}

/// The answer does not depend on how its bytes arrive, and no more of it is kept than is allowed.
pub(crate) fn answer(input: &[u8]) -> bool {
    let (mut whole, mut pieces) = (Answer::default(), Answer::default());
    let read = whole.push(input);
    let piecewise = input.chunks(1 + input.len() / 7).try_for_each(|piece| pieces.push(piece));
    assert_eq!(read, piecewise);
    assert_eq!((whole.status(), whole.body(), whole.is_done()), (pieces.status(), pieces.body(), pieces.is_done()));
    assert!(whole.body().len() <= MAX_BODY);
    if read.is_err() || !whole.is_done() {
        return false;
    }
    let body = whole.body().to_vec();
    let mut understood = gateway::read_refusal(&body).is_some();
    understood |= gateway::read_range(&body).is_ok() | gateway::read_transaction(&body).is_ok();
    understood |=
        gateway::read_grant(&body).is_ok() | gateway::read_renewal(&body).is_ok() | gateway::read_token(&body).is_ok();
    while let Some(line) = whole.take_line() {
        if let Ok(Watched::Changes(events)) = gateway::read_watched(&line) {
            assert!(events.len() <= line.len());
            understood = true;
        }
    }
    understood
}

/// A call has one encoding.
pub(crate) fn call(input: &[u8]) -> bool {
    let Ok(frame) = RequestFrame::decode(input) else { return false };
    let mut again = Vec::new();
    frame.encode(&mut again);
    assert_eq!(again, input);
    assert!(again.len() <= MAX_CALL);
    true
}

/// A reply has one encoding.
pub(crate) fn reply(input: &[u8]) -> bool {
    let Ok(frame) = ReplyFrame::decode(input) else { return false };
    let mut again = Vec::new();
    frame.encode(&mut again);
    assert_eq!(again, input);
    assert!(again.len() <= MAX_REPLY);
    true
}
