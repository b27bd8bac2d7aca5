//! Requests in datagrams: which of them may be executed twice, and which key they are about.
//!
//! A message there is one [fragment](crate::messages::fragment): its start, then all of its bytes. HELLO, RUN, GET and SEEN go up; WELCOME,
//! RAN, ITEM, LARGE, NONE and REFUSED come down. A server that lost the reply of a read executes the read again. It executes anything
//! else at most once, so a command that is not known counts as a mutation.

//!
//! A reply may end with a *token*: its client may [connect](crate::messages) with it.

use crate::messages::{self, FLAGS, FRAGMENT, Request, TOKEN};

/// Bytes of a token.
const LENGTH: usize = size_of::<u64>();

/// Appends a token to a reply.
pub fn append_token(reply: &mut Vec<u8>, token: u64) {
    if let Some(flags) = reply.get_mut(FLAGS) {
        *flags |= TOKEN;
        reply.extend(token.to_le_bytes());
    }
}

/// Takes the token off a reply, if there is one. The reply is as it was before.
///
/// ```
/// use rdmakv_proto::datagrams::{append_token, take_token};
/// use rdmakv_proto::messages::{Kind, start};
///
/// let mut reply = Vec::new();
/// start(&mut reply, 1, Kind::None, false);
/// let before = reply.clone();
/// append_token(&mut reply, 7);
/// assert_eq!((take_token(&mut reply), take_token(&mut reply), reply), (Some(7), None, before));
/// ```
pub fn take_token(reply: &mut Vec<u8>) -> Option<u64> {
    if reply.get(FLAGS)? & TOKEN == 0 || reply.len() < FRAGMENT + LENGTH {
        return None;
    }
    reply[FLAGS] &= !TOKEN;
    let token = *reply.last_chunk()?;
    reply.truncate(reply.len() - LENGTH);
    Some(u64::from_le_bytes(token))
}

/// The part of a server that a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About<'a> {
    /// One key.
    Key(&'a [u8]),
    /// All keys, or none that can be told: it waits for all requests before it, and all behind it wait for it.
    All,
}

/// The effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect<'a> {
    /// Whether executing it twice is the same as executing it once.
    pub is_read: bool,
    /// Whether its answer may be longer than 1 KiB.
    pub is_long: bool,
    /// The part that it is about.
    pub about: About<'a>,
}

/// Returns the effect of a message.
///
/// ```
/// use rdmakv_proto::datagrams::{About, effect};
/// use rdmakv_proto::messages::{Request, start};
///
/// let mut command = Vec::new();
/// let kind = Request::run(&mut command, false, b"k", &[b"ma k\r\n"]);
/// let mut message = Vec::new();
/// start(&mut message, 1, kind, false);
/// message.extend(command);
/// assert_eq!((effect(&message).is_read, effect(&message).about), (false, About::Key(b"k")));
/// ```
pub fn effect(message: &[u8]) -> Effect<'_> {
    let unknown = Effect { is_read: false, is_long: true, about: About::All };
    let Ok((_, kind, false, bytes)) = messages::fragment(message) else { return unknown };
    match Request::decode(kind, bytes) {
        Ok(Request::Hello { .. }) => Effect { is_read: true, is_long: false, about: About::All },
        Ok(Request::Get { key, .. }) => Effect { is_read: true, is_long: true, about: About::Key(key) },
        Ok(Request::Run { key, command, .. }) => {
            let about = if key.is_empty() { About::All } else { About::Key(key) };
            Effect { is_read: is_read(command), is_long: is_long(command), about }
        }
        _ => unknown,
    }
}

/// Returns the words of a command's line.
fn words(command: &[u8]) -> impl Iterator<Item = &[u8]> {
    let line = command.split(|&byte| byte == b'\n').next().unwrap_or_default();
    line.split(|&byte| matches!(byte, b' ' | b'\r')).filter(|word| !word.is_empty())
}

/// Returns whether a command of the text or meta protocol changes nothing.
///
/// A `mg` may, whatever its flags: the first one to find an item stale wins the right to store it anew.
fn is_read(command: &[u8]) -> bool {
    let mut words = words(command);
    match words.next() {
        Some(b"get" | b"gets" | b"version" | b"mn" | b"me") => true,
        Some(b"stats") => !matches!(words.next(), Some(b"reset" | b"detail" | b"sizes_enable" | b"sizes_disable")),
        _ => false,
    }
}

/// Returns whether a command only looks for something. A `mg` without flags that store or touch does: at most it wins the right to store a stale
/// item anew.
pub fn is_lookup(command: &[u8]) -> bool {
    let mut words = words(command);
    is_read(command) || words.next() == Some(b"mg") && words.skip(1).all(|flag| b"bcfhklOqstv".contains(&flag[0]))
}

/// Returns whether the answer to a command may be longer than 1 KiB: it has a value, or it is not known.
fn is_long(command: &[u8]) -> bool {
    let mut words = words(command);
    match words.next() {
        Some(b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas") => false,
        Some(b"delete" | b"incr" | b"decr" | b"touch" | b"flush_all" | b"verbosity" | b"version") => false,
        Some(b"ms" | b"md" | b"ma" | b"mn") => false,
        Some(b"mg") => words.skip(1).any(|flag| flag[0] == b'v'),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Kind;
    use proptest::prelude::*;

    fn message(kind: Kind, bytes: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        messages::start(&mut message, 7, kind, false);
        message.extend_from_slice(bytes);
        message
    }

    fn run(key: &[u8], command: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let kind = Request::run(&mut bytes, false, key, &[command]);
        message(kind, &bytes)
    }

    fn is_repeatable(message: &[u8]) -> bool {
        effect(message).is_read
    }

    #[test]
    fn only_known_reads_may_be_repeated() {
        for read in ["get a b", "gets a", "me k", "mn", "stats", "stats items", "version"] {
            assert!(is_repeatable(&run(b"k", format!("{read}\r\n").as_bytes())), "{read}");
        }
        for other in [
            // The first one that finds an item stale wins.
            "mg k",
            "mg k v f c",
            "mg k v t h l k b q s O7",
            "mg k v T30",
            "mg k N30 v",
            "mg k v R30",
            "mg k E7",
            "ms k 1 c",
            "ma k",
            "md k",
            "mx k 1 0",
            "set k 0 0 1",
            "gat 0 k",
            "gats 0 k",
            "touch k 0",
            "incr k 1",
            "flush_all",
            "stats reset",
            "stats detail on",
            "GET k",
            "",
            "\r\nget k",
            "nonsense",
        ] {
            assert!(!is_repeatable(&run(b"k", format!("{other}\r\n").as_bytes())), "{other}");
        }
        let mut hello = Vec::new();
        let kind = Request::hello(&mut hello, false);
        assert!(is_repeatable(&message(kind, &hello)));
        assert!(!is_repeatable(&message(Kind::Put, b"")) && !is_repeatable(b""));
    }

    #[test]
    fn requests_tell_their_keys() {
        let mut get = Vec::new();
        let kind = Request::get(&mut get, true, b"key");
        assert_eq!(effect(&message(kind, &get)), Effect { is_read: true, is_long: true, about: About::Key(b"key") });
        assert_eq!(
            effect(&run(b"key", b"md key\r\n")),
            Effect { is_read: false, is_long: false, about: About::Key(b"key") }
        );
        assert_eq!(effect(&run(b"", b"flush_all\r\n")), Effect { is_read: false, is_long: false, about: About::All });
        assert_eq!(effect(&run(b"", b"stats\r\n")), Effect { is_read: true, is_long: true, about: About::All });
    }

    #[test]
    fn lookups_store_and_touch_nothing() {
        for lookup in ["get a", "mg k v t", "mg k", "stats"] {
            assert!(is_lookup(lookup.as_bytes()), "{lookup}");
        }
        for other in ["gat 0 a", "mg k v T30", "mg k N30 v", "mg k R30", "md k", "set k 0 0 1", "stats reset", ""] {
            assert!(!is_lookup(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn answers_with_values_are_long() {
        for long in ["gat 0 a b", "gats 0 a", "mg k v", "mg k t v T9", "mx k 1 0", "get k", "nonsense"] {
            assert!(effect(&run(b"k", format!("{long}\r\n").as_bytes())).is_long, "{long}");
        }
        for short in ["mg k", "mg k t s T9", "ms k 1 c", "ma k v", "md k q", "set k 0 0 1", "touch k 0", "flush_all"] {
            assert!(!effect(&run(b"k", format!("{short}\r\n").as_bytes())).is_long, "{short}");
        }
    }

    proptest! {
        #[test]
        fn tokens_come_off_as_they_were_put(bytes in prop::collection::vec(any::<u8>(), 0..100), token: u64) {
            let reply = message(Kind::Ran, &bytes);
            let mut with = reply.clone();
            append_token(&mut with, token);
            prop_assert!(messages::fragment(&with).is_err(), "no reader takes it for a part of the answer");
            prop_assert_eq!((take_token(&mut with), &with), (Some(token), &reply));
            let mut noise = bytes;
            let before = noise.len();
            let taken = take_token(&mut noise);
            prop_assert_eq!(noise.len() + taken.map_or(0, |_| LENGTH), before);
        }

        #[test]
        fn any_bytes_have_an_effect(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            // A message of which nothing is known is executed at most once.
            if effect(&bytes).is_read {
                prop_assert!(messages::fragment(&bytes).is_ok());
            }
        }
    }
}
