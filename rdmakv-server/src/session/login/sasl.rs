//! SASL in the binary protocol: the mechanism PLAIN (RFC 4616), with the users of `-Y`.
//!
//! A message is `[identity] NUL name NUL password`. It comes with the first request, or in a step after an empty one. An identity
//! is taken if it is the name: no user acts for another.

use super::super::{Context, Out, binary};
use super::{Login, is_known};
use rdmakv_proto::commands::binary::{Header, Op, status};

/// The mechanism that is offered.
pub(in crate::session) const MECHANISM: &[u8] = b"PLAIN";
/// Bytes of a mechanism's name at most, as in memcached.
const NAME_MAX: usize = 32;
/// Bytes of a message at most.
const MESSAGE_MAX: usize = 4096;

/// Returns the name and the password of a message, with a colon between, as users are kept.
fn user(message: &[u8]) -> Option<Vec<u8>> {
    let mut parts = message.splitn(3, |&byte| byte == 0);
    let (identity, name, password) = (parts.next()?, parts.next()?, parts.next()?);
    let good = !name.is_empty() && !name.contains(&b':') && !password.contains(&0);
    (good && (identity.is_empty() || identity == name)).then(|| [name, b":", password].concat())
}

/// Returns whether a message of this length is taken, for a mechanism of this name.
pub(in crate::session) fn is_acceptable(mechanism: &[u8], message: usize) -> bool {
    mechanism.len() <= NAME_MAX && message <= MESSAGE_MAX
}

impl Login {
    /// Begins to take a message for this mechanism.
    pub(in crate::session) fn begin_sasl(&mut self, mechanism: &[u8]) {
        self.mechanism = mechanism == MECHANISM;
    }

    /// Takes the message, and answers the request.
    pub(in crate::session) fn finish_sasl(
        &mut self,
        header: &Header,
        message: &[u8],
        cx: &mut Context<'_>,
        out: &mut Out,
    ) {
        let step = header.op == Op::SaslStep;
        // Without a message the client waits to be asked for it.
        if self.mechanism && !step && message.is_empty() {
            self.begun = true;
            return header.answer(&mut out.bytes, status::AUTH_CONTINUE, (0, 0, 0), 0);
        }
        let in_order = !step || std::mem::take(&mut self.begun);
        let known = user(message).is_some_and(|user| is_known(&user, cx));
        cx.counts.auth_cmds += 1;
        if !(self.mechanism && in_order && known) {
            cx.counts.auth_errors += 1;
            return binary::fail(header, status::AUTH_ERROR, out);
        }
        self.done = true;
        let line = b"Authenticated";
        header.answer(&mut out.bytes, status::OK, (0, 0, line.len()), 0);
        out.bytes.extend_from_slice(line);
    }
}

#[cfg(test)]
mod tests {
    use super::user;

    #[test]
    fn a_message_is_a_name_and_a_password() {
        for (message, wanted) in [
            (&b"\0me\0secret"[..], Some(&b"me:secret"[..])),
            (b"me\0me\0pass:word ", Some(b"me:pass:word ")),
            (b"\0me\0", Some(b"me:")),
            (b"you\0me\0secret", None),
            (b"\0\0secret", None),
            (b"\0me:s\0ecret", None),
            (b"\0me\0sec\0ret", None),
            (b"me", None),
            (b"", None),
        ] {
            assert_eq!(user(message).as_deref(), wanted, "{}", message.escape_ascii());
        }
    }
}
