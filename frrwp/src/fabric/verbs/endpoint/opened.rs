//! Binding windows and taking them back, in turn with what else is posted.

#![expect(unsafe_code, reason = "a window is bound to memory")]

use super::super::pair::Pair;
use super::super::windows::Work;
use super::{Posted, VerbsEnd, VerbsEndpoint};
use std::io;

impl VerbsEndpoint {
    /// Posts what is wanted of windows. `WouldBlock` if not all of it has room.
    pub(super) fn post_windows(&mut self) -> io::Result<()> {
        while let Some(work) = self.windows.as_ref().and_then(|windows| windows.next()) {
            self.has_room(1)?;
            let number = self.first + self.posted.len() as u64;
            let post = |pair: &Pair| match work {
                // SAFETY: a window is there until the connection ends, and this one free until now; what keeps its region is kept
                // until the window was taken back or the connection has ended.
                Work::Bind { window, key, region, address, length } => unsafe {
                    pair.bind(number, window, key, (region, address, length)).map(|()| Posted::Bind)
                },
                Work::Invalidate { number: index, key } => {
                    pair.invalidate(number, key).map(|()| Posted::Invalidate(index))
                }
            };
            match self.stands().and_then(post) {
                Ok(what) => {
                    self.queued(what);
                    if let Some(windows) = &self.windows {
                        windows.is_posted();
                    }
                }
                Err(error) => {
                    let end = self.gone().unwrap_or(VerbsEnd::Broken { what: "the device takes nothing more" });
                    self.lose(end);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
