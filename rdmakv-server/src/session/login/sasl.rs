//! SASL in the binary protocol: the mechanism PLAIN (RFC 4616), with the users of `-Y`.
//!
//! A message is `[identity] NUL name NUL password`. It comes with the first request, or in a step after an empty one. An identity
//! is taken if it is the name: no user acts for another.

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

/// The progress of the mechanism.
#[derive(Debug, Default)]
pub(super) struct Sasl {
    /// Whether the mechanism that was asked for is the one there is.
    known: bool,
    /// Whether a step may follow.
    begun: bool,
}

/// The result of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The client waits to be asked for its message.
    Ask,
    /// A name and a password, with a colon between.
    User(Vec<u8>),
    /// Neither.
    Malformed,
}

impl Sasl {
    /// Begins to take a message for this mechanism.
    pub(super) fn begin(&mut self, mechanism: &[u8]) {
        self.known = mechanism == MECHANISM;
    }

    /// Takes a message, with the first request or in a later `step`.
    pub(super) fn step(&mut self, step: bool, message: &[u8]) -> Step {
        if self.known && !step && message.is_empty() {
            self.begun = true;
            return Step::Ask;
        }
        let in_order = !step || std::mem::take(&mut self.begun);
        match user(message) {
            Some(user) if self.known && in_order => Step::User(user),
            _ => Step::Malformed,
        }
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
