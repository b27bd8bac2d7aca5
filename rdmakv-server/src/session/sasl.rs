//! SASL in the binary protocol: the mechanism PLAIN (RFC 4616), with the users of `-Y`.
//!
//! A message is `[identity] NUL name NUL password`. It comes with the first request, or in a step after an empty one. An identity
//! is taken if it is the name: no user acts for another.

use super::body::{Answer, Body};
use super::{Context, Out, Session, binary, login};
use crate::protocol::binary::{Header, status};
use crate::store::Terms;

/// The mechanism that is offered.
pub(super) const MECHANISM: &[u8] = b"PLAIN";
/// Bytes of a mechanism's name at most, as in memcached.
const NAME_MAX: usize = 32;
/// Bytes of a message at most.
const MESSAGE_MAX: usize = 4096;

/// The name and the password of a message, with a colon between, as users are kept.
fn user(message: &[u8]) -> Option<Vec<u8>> {
    let mut parts = message.splitn(3, |&byte| byte == 0);
    let (identity, name, password) = (parts.next()?, parts.next()?, parts.next()?);
    let good = !name.is_empty() && !name.contains(&b':') && !password.contains(&0);
    (good && (identity.is_empty() || identity == name)).then(|| [name, b":", password].concat())
}

impl Session {
    /// Begins to take a message; `mechanism` is the request's key.
    pub(super) fn begin_sasl(&mut self, header: Header, mechanism: &[u8], out: &mut Out) {
        let refused = if mechanism.len() > NAME_MAX || header.value > MESSAGE_MAX {
            status::INVALID
        } else {
            let len = header.value;
            self.sasl_mechanism = mechanism == MECHANISM;
            self.body = Some(Body {
                filling: None,
                scratch: Vec::new(),
                shard: 0,
                got: 0,
                len,
                ended: false,
                terms: Terms::default(),
                answer: Answer::Sasl { header },
            });
            return;
        };
        binary::fail(&header, refused, out);
        self.drop = header.value;
    }

    /// The message is there.
    pub(super) fn finish_sasl(&mut self, header: &Header, message: &[u8], cx: &mut Context<'_>, out: &mut Out) {
        let step = header.op == crate::protocol::binary::Op::SaslStep;
        // Without a message the client waits to be asked for it.
        if self.sasl_mechanism && !step && message.is_empty() {
            self.sasl_begun = true;
            return header.answer(&mut out.bytes, status::AUTH_CONTINUE, (0, 0, 0), 0);
        }
        let in_order = !step || std::mem::take(&mut self.sasl_begun);
        let known = user(message).is_some_and(|user| login::is_known(&user, cx));
        cx.counts.auth_cmds += 1;
        if !(self.sasl_mechanism && in_order && known) {
            cx.counts.auth_errors += 1;
            return binary::fail(header, status::AUTH_ERROR, out);
        }
        self.authenticated = true;
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
