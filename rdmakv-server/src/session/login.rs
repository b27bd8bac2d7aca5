//! Names and passwords, where the server asks for them: the first `set` of a conversation is one.

use std::sync::PoisonError;

use super::{Context, Out, Session};

impl Session {
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
            let users = cx.shared.users.lock().unwrap_or_else(PoisonError::into_inner);
            // Each is compared to its end, so that the time says nothing.
            users.iter().fold(false, |found, user| found | same(user, &wanted))
        });
        let line = match known {
            Some(true) => {
                self.authenticated = true;
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

    /// Whether the client may do something yet.
    pub(crate) fn may_speak(&self, cx: &Context<'_>) -> bool {
        self.authenticated || cx.shared.settings.users.is_none()
    }
}

fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}
