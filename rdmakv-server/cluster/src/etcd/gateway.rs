//! Requests and answers of etcd's JSON gateway (`/v3/…`), without sockets.
//!
//! Keys and values are base64 there, and numbers of 64 bits are text. Fields that are zero are left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// A key of etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision in which it was written last.
    pub mod_revision: i64,
}

/// A change of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The key.
    pub key: Vec<u8>,
    /// Its value; None if it was deleted.
    pub value: Option<Vec<u8>>,
    /// The revision that changed it.
    pub revision: i64,
}

/// The number of a lease of etcd's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseId(pub i64);

/// A write in a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write<'a> {
    /// Writes a key; it goes when the lease ends, if there is one.
    Put(&'a str, &'a [u8], Option<LeaseId>),
    /// Deletes a key.
    Delete(&'a str),
}

/// etcd's refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The code of gRPC.
    pub code: u32,
    /// The reason in etcd's words, shortened.
    pub message: String,
}

/// A part of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Watched {
    /// The watch began.
    Created,
    /// Keys changed, by rising revision. There may be none.
    Changes(Vec<Event>),
    /// The revisions before this one are gone, so changes were missed.
    Compacted(i64),
    /// The watch ended.
    Canceled(Refusal),
}

/// The codes of gRPC that decide what the client does.
pub(crate) mod code {
    pub(crate) const UNKNOWN: u32 = 2;
    pub(crate) const INVALID: u32 = 3;
    pub(crate) const DEADLINE: u32 = 4;
    pub(crate) const NOT_FOUND: u32 = 5;
    pub(crate) const PERMISSION: u32 = 7;
    pub(crate) const EXHAUSTED: u32 = 8;
    pub(crate) const UNAVAILABLE: u32 = 14;
    pub(crate) const UNAUTHENTICATED: u32 = 16;
}

fn text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Returns the least key above all with this prefix. Prefixes are text, so the last byte can be raised.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

/// Returns a linearizable read of all keys with a prefix.
pub fn range(prefix: &str) -> Value {
    json!({ "key": text(prefix.as_bytes()), "range_end": text(&end_of(prefix)) })
}

/// Returns a transaction: if the key was written last in this revision (0: if it does not exist), the writes are done.
pub fn transaction(condition: Option<(&str, i64)>, writes: &[Write<'_>]) -> Value {
    let compare = condition.map(|(key, revision)| {
        let (key, revision) = (text(key.as_bytes()), revision.to_string());
        json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision })
    });
    let write = |write: &Write<'_>| match *write {
        Write::Put(key, value, lease) => {
            let lease = lease.map_or(0, |lease| lease.0).to_string();
            json!({ "request_put": { "key": text(key.as_bytes()), "value": text(value), "lease": lease } })
        }
        Write::Delete(key) => json!({ "request_delete_range": { "key": text(key.as_bytes()) } }),
    };
    let compare: Vec<Value> = compare.into_iter().collect();
    json!({ "compare": compare, "success": writes.iter().map(write).collect::<Vec<_>>() })
}

/// Returns a request for a lease of so many seconds.
pub fn grant(seconds: u32) -> Value {
    json!({ "TTL": seconds.to_string() })
}

/// Returns a request about a lease: to renew or to end it.
pub fn lease(lease: LeaseId) -> Value {
    json!({ "ID": lease.0.to_string() })
}

/// Returns a watch of all keys with a prefix, from a revision on.
pub fn watch(prefix: &str, from: i64) -> Value {
    let (key, end) = (text(prefix.as_bytes()), text(&end_of(prefix)));
    json!({ "create_request": { "key": key, "range_end": end, "start_revision": from.to_string() } })
}

/// Returns a request for a token.
pub fn authenticate(name: &str, password: &str) -> Value {
    json!({ "name": name, "password": password })
}

/// Bytes that are no answer of etcd's gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAnAnswer;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: i64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Kv {
    #[serde(deserialize_with = "bytes")]
    key: Vec<u8>,
    #[serde(deserialize_with = "bytes")]
    value: Vec<u8>,
    #[serde(deserialize_with = "number")]
    mod_revision: i64,
}

/// An answer with any of the fields that are used. Each has the revision of its header.
#[derive(Deserialize)]
struct Plain {
    header: Header,
    #[serde(default)]
    kvs: Vec<Kv>,
    #[serde(default)]
    succeeded: bool,
    #[serde(default, rename = "ID", deserialize_with = "number")]
    id: i64,
    #[serde(default, rename = "TTL", deserialize_with = "number")]
    ttl: i64,
    #[serde(default)]
    token: String,
    #[serde(default)]
    created: bool,
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    cancel_reason: String,
    #[serde(default, deserialize_with = "number")]
    compact_revision: i64,
    #[serde(default)]
    events: Vec<EventForm>,
}

#[derive(Deserialize)]
struct EventForm {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    kv: Kv,
}

/// A part of a stream.
#[derive(Deserialize)]
struct Part {
    result: Plain,
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Text(String),
        Plain(i64),
    }
    match Number::deserialize(deserializer)? {
        Number::Plain(number) => Ok(number),
        Number::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD.decode(text).map_err(serde::de::Error::custom)
}

fn plain(body: &[u8]) -> Result<Plain, NotAnAnswer> {
    serde_json::from_slice(body).map_err(|_| NotAnAnswer)
}

/// Returns the revision and the keys that a read shows.
///
/// # Errors
///
/// The bytes are no answer.
pub fn read_range(body: &[u8]) -> Result<(i64, Vec<KeyValue>), NotAnAnswer> {
    let answer = plain(body)?;
    let pair = |kv: Kv| KeyValue { key: kv.key, value: kv.value, mod_revision: kv.mod_revision };
    Ok((answer.header.revision, answer.kvs.into_iter().map(pair).collect()))
}

/// Returns the revision of a transaction, and whether its writes were done.
///
/// # Errors
///
/// The bytes are no answer.
pub fn read_transaction(body: &[u8]) -> Result<(i64, bool), NotAnAnswer> {
    plain(body).map(|answer| (answer.header.revision, answer.succeeded))
}

/// Returns the lease that was granted.
///
/// # Errors
///
/// The bytes are no answer.
pub fn read_grant(body: &[u8]) -> Result<LeaseId, NotAnAnswer> {
    plain(body).map(|answer| LeaseId(answer.id)).and_then(|id| if id.0 == 0 { Err(NotAnAnswer) } else { Ok(id) })
}

/// Returns whether a lease was renewed; it is gone if not.
///
/// # Errors
///
/// The bytes are no answer.
pub fn read_renewal(body: &[u8]) -> Result<bool, NotAnAnswer> {
    let part: Part = serde_json::from_slice(body).map_err(|_| NotAnAnswer)?;
    Ok(part.result.ttl > 0)
}

/// Returns the token of a user.
///
/// # Errors
///
/// The bytes are no answer.
pub fn read_token(body: &[u8]) -> Result<String, NotAnAnswer> {
    let token = plain(body)?.token;
    let is_token = !token.is_empty() && token.len() <= 4096 && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_token { Ok(token) } else { Err(NotAnAnswer) }
}

/// Returns a part of a watch.
///
/// # Errors
///
/// The bytes are no part of one.
pub fn read_watched(line: &[u8]) -> Result<Watched, NotAnAnswer> {
    if let Some(refusal) = read_refusal(line) {
        return Ok(Watched::Canceled(refusal));
    }
    let Part { result } = serde_json::from_slice(line).map_err(|_| NotAnAnswer)?;
    if result.compact_revision > 0 {
        return Ok(Watched::Compacted(result.compact_revision));
    }
    if result.canceled {
        return Ok(Watched::Canceled(Refusal { code: code::UNKNOWN, message: shortened(&result.cancel_reason) }));
    }
    if result.created {
        return Ok(Watched::Created);
    }
    let event = |event: EventForm| {
        let value = if event.kind.as_deref() == Some("DELETE") { None } else { Some(event.kv.value) };
        Event { key: event.kv.key, value, revision: event.kv.mod_revision }
    };
    Ok(Watched::Changes(result.events.into_iter().map(event).collect()))
}

/// Returns the refusal in an answer, or None if it is something else.
pub fn read_refusal(body: &[u8]) -> Option<Refusal> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let error = answer.get("error")?;
    let message = answer.get("message").or(error.get("message")).unwrap_or(error).as_str()?;
    let code = answer.get("code").or(error.get("grpc_code")).and_then(Value::as_u64);
    let code = code.and_then(|code| u32::try_from(code).ok()).unwrap_or(code::UNKNOWN);
    Some(Refusal { code, message: shortened(message) })
}

/// Returns a message that fits on a line.
fn shortened(message: &str) -> String {
    let message = message.strip_prefix("etcdserver: ").unwrap_or(message);
    message.chars().map(|character| if character.is_control() { ' ' } else { character }).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#""header":{"cluster_id":"15118495548433857066","revision":"3","raft_term":"2"}"#;

    #[test]
    fn writes_requests_as_the_gateway_reads_them() {
        assert_eq!(range("/a/").to_string(), r#"{"key":"L2Ev","range_end":"L2Ew"}"#);
        let writes = [Write::Put("/a", b"x", None), Write::Delete("/b")];
        let transaction = transaction(Some(("/a", 5)), &writes);
        assert_eq!(transaction["compare"][0]["mod_revision"], "5");
        assert_eq!(transaction["success"][0]["request_put"]["value"], "eA==");
        assert_eq!(transaction["success"][1]["request_delete_range"]["key"], "L2I=");
        assert_eq!(watch("/a/", 7)["create_request"]["start_revision"], "7");
    }

    #[test]
    fn reads_answers() {
        let range = format!(
            r#"{{{HEADER},"kvs":[{{"key":"L2E=","mod_revision":"2","version":"1","value":"eA=="}}],"count":"1"}}"#
        );
        let pair = KeyValue { key: b"/a".to_vec(), value: b"x".to_vec(), mod_revision: 2 };
        assert_eq!(read_range(range.as_bytes()), Ok((3, vec![pair])));
        assert_eq!(read_range(format!("{{{HEADER}}}").as_bytes()), Ok((3, vec![])));
        assert_eq!(read_transaction(format!("{{{HEADER},\"succeeded\":true}}").as_bytes()), Ok((3, true)));
        assert_eq!(read_transaction(format!("{{{HEADER}}}").as_bytes()), Ok((3, false)));
        assert_eq!(read_grant(format!(r#"{{{HEADER},"ID":"-7","TTL":"2"}}"#).as_bytes()), Ok(LeaseId(-7)));
        assert_eq!(read_renewal(format!(r#"{{"result":{{{HEADER},"ID":"7","TTL":"2"}}}}"#).as_bytes()), Ok(true));
        assert_eq!(read_renewal(format!(r#"{{"result":{{{HEADER},"ID":"7"}}}}"#).as_bytes()), Ok(false));
        for other in ["", "{}", "[]", "<html>", r#"{"header":{"revision":"x"}}"#, r#"{"header":7}"#] {
            assert_eq!(read_range(other.as_bytes()), Err(NotAnAnswer), "{other}");
        }
    }

    #[test]
    fn reads_watches_and_refusals() {
        let watched = |inner: &str| read_watched(format!(r#"{{"result":{{{HEADER},{inner}}}}}"#).as_bytes()).unwrap();
        assert_eq!(watched(r#""created":true"#), Watched::Created);
        assert_eq!(watched(r#""canceled":true,"compact_revision":"3""#), Watched::Compacted(3));
        let events = r#""events":[{"kv":{"key":"L2E=","mod_revision":"3","value":"eQ=="}},{"type":"DELETE","kv":{"key":"L2E=","mod_revision":"4"}}]"#;
        let event =
            |value: Option<&[u8]>, revision| Event { key: b"/a".to_vec(), value: value.map(<[u8]>::to_vec), revision };
        assert_eq!(watched(events), Watched::Changes(vec![event(Some(b"y"), 3), event(None, 4)]));
        let refusal = Refusal { code: 5, message: "requested lease not found".to_owned() };
        let plain = br#"{"error":"etcdserver: requested lease not found","message":"etcdserver: requested lease not found","code":5}"#;
        assert_eq!(read_refusal(plain), Some(refusal.clone()));
        let stream = br#"{"error":{"grpc_code":5,"http_code":404,"message":"etcdserver: requested lease not found"}}"#;
        assert_eq!(read_watched(stream), Ok(Watched::Canceled(refusal)));
    }
}
