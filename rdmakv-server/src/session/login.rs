//! Names and passwords, where the server asks for them: the first `set` of a conversation is one.

mod sasl;

use std::sync::PoisonError;

use super::replies::put_error;
use super::{Context, Out};
use rdmakv_proto::commands::binary::{Header, Op, status};
use sasl::{Sasl, Step};

pub(super) use sasl::{MECHANISM, is_acceptable};

/// The progress of a client's authentication.
#[derive(Debug, Default)]
pub(super) struct Login {
    /// It has logged in, and nothing else of its requests is to be checked.
    done: bool,
    /// It has logged in.
    shown: bool,
    /// The name that it logged in by.
    name: Option<Box<[u8]>>,
    sasl: Sasl,
}

impl Login {
    /// Returns that of a client that has logged in on another conversation.
    pub(super) fn shown(cx: &Context<'_>) -> Self {
        let mut login = Self::default();
        login.succeed(cx);
        login
    }

    /// Takes what a `set` brought for a name and a password.
    pub(super) fn authenticate(
        &mut self,
        name_and_password: &[u8],
        good: bool,
        quiet: bool,
        cx: &mut Context<'_>,
        out: &mut Out,
    ) {
        cx.counts.auth_cmds += 1;
        let space = name_and_password.iter().position(|&byte| byte == b' ');
        let known = space.filter(|_| good).map(|at| {
            let mut wanted = name_and_password.to_vec();
            wanted[at] = b':';
            let is_known = is_known(&wanted, cx);
            if is_known {
                self.name = Some(wanted[..at].into());
            }
            is_known
        });
        let line = match known {
            Some(true) => {
                self.succeed(cx);
                "STORED\r\n"
            }
            Some(false) => "CLIENT_ERROR authentication failure\r\n",
            None => "CLIENT_ERROR bad authentication token format\r\n",
        };
        cx.counts.auth_errors += u64::from(known != Some(true));
        if !(quiet && known == Some(true)) {
            out.bytes.extend_from_slice(line.as_bytes());
        }
    }

    /// Begins to take a SASL message for this mechanism.
    pub(super) fn begin_sasl(&mut self, mechanism: &[u8]) {
        self.sasl.begin(mechanism);
    }

    /// Takes the SASL message, and answers the request.
    pub(super) fn finish_sasl(&mut self, header: &Header, message: &[u8], cx: &mut Context<'_>, out: &mut Out) {
        let user = match self.sasl.step(header.op == Op::SaslStep, message) {
            Step::Ask => return header.answer(&mut out.bytes, status::AUTH_CONTINUE, (0, 0, 0), 0),
            Step::User(user) => Some(user),
            Step::Malformed => None,
        };
        cx.counts.auth_cmds += 1;
        let known = user.filter(|user| is_known(user, cx));
        if let Some(user) = &known {
            self.name = user.split(|&byte| byte == b':').next().map(Into::into);
        } else {
            cx.counts.auth_errors += 1;
            return put_error(header, status::AUTH_ERROR, out);
        }
        self.succeed(cx);
        let line = b"Authenticated";
        header.answer(&mut out.bytes, status::OK, (0, 0, line.len()), 0);
        out.bytes.extend_from_slice(line);
    }

    /// Returns the name that the client logged in by, if it did.
    pub(super) fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    fn succeed(&mut self, cx: &Context<'_>) {
        self.shown = true;
        self.done = cx.shared.cluster.is_none();
    }

    /// Returns whether each request of the client may be carried out. Otherwise it has to log in, or the keys are to be looked at.
    pub(super) fn is_enough(&self, cx: &Context<'_>) -> bool {
        self.done || cx.shared.is_open
    }

    /// Returns whether the client has logged in, or need not.
    pub(super) fn is_shown(&self, cx: &Context<'_>) -> bool {
        self.shown || cx.shared.settings.users.is_none()
    }
}

/// Returns whether a user has this name and this password, with a colon between. All users are compared, so that the time does not
/// depend on which of them it is.
fn is_known(wanted: &[u8], cx: &Context<'_>) -> bool {
    let users = cx.shared.users.lock().unwrap_or_else(PoisonError::into_inner);
    users.iter().fold(false, |found, user| found | same(user, wanted))
}

/// Compares in a number of steps that depends on the client's text only.
fn same(user: &[u8], wanted: &[u8]) -> bool {
    let mut differ = user.len() ^ wanted.len();
    for (at, byte) in wanted.iter().enumerate() {
        differ |= usize::from(byte ^ user.get(at).copied().unwrap_or(0));
        // The compiler must not end the loop at the first difference.
        differ = std::hint::black_box(differ);
    }
    differ == 0
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn only_equal_ones_are_the_same() {
        for (user, wanted, equal) in [
            ("me:secret", "me:secret", true),
            ("me:secret", "me:secreT", false),
            ("me:secret", "me:secre", false),
            ("me:secret", "me:secret\0", false),
            ("", "", true),
            ("a", "", false),
        ] {
            assert_eq!(same(user.as_bytes(), wanted.as_bytes()), equal, "{user} {wanted}");
        }
    }
}
