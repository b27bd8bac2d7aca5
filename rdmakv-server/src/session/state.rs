//! The states of a session between two requests.

use super::admin::Dump;
use super::body::{Body, NoRoom};
use super::watch::Watch;

/// A use of the next bytes of the client.
///
/// A request is given the session's state to change, for it is large and most requests leave it as it is.
#[derive(Debug, Default)]
pub(super) enum State {
    /// Takes them for a request.
    #[default]
    Ready,
    /// Takes them for the data of the last request.
    Filling(Body),
    /// Leaves them until the last request can be ended: its data is complete. It says whether the end was proper.
    Ending(Box<Body>, bool),
    /// Skips so many of them.
    Skipping(usize),
    /// Leaves them until the dump is complete.
    Dumping(Dump),
    /// Ignores them: the client is sent events.
    Watching(Watch),
    /// Ignores them: the connection ends.
    Over {
        /// Whether the client asked for the end.
        quit: bool,
    },
}

impl State {
    /// Skips so many bytes before the next request.
    pub(super) fn skip(bytes: usize) -> Self {
        if bytes == 0 { Self::Ready } else { Self::Skipping(bytes) }
    }

    /// Takes the data of an item from now on, or skips it where there is no room; `refused` is called then.
    #[inline]
    pub(super) fn fill(&mut self, body: Result<Body, NoRoom>, refused: impl FnOnce(NoRoom)) {
        *self = match body {
            Ok(body) => Self::Filling(body),
            Err(no_room) => {
                refused(no_room);
                Self::skip(no_room.follows)
            }
        };
    }

    /// Ends the connection for a reason of the server's.
    pub(super) fn over() -> Self {
        Self::Over { quit: false }
    }
}
