//! Receives are announced and spent: no message meets a side that has none posted.
//!
//! Each message takes a receive of the other side and announces those that its sender has added. The last credit goes
//! only on a message that announces at least one, so the two sides cannot both run dry: where one has spent all but the last
//! and has nothing to announce, the other holds credits for its whole window, and can speak.
//!
//! # Why there are CREDITs
//!
//! That it can speak does not make it. A side that only listens, the target of many writes whose application takes its time,
//! say, has had fifteen SYNCs, holds fifteen receives that nobody knows of, and has no message to announce them on: the
//! opener stands still until its first SYNC is answered or its time is out, though there is room. The immediates that stand for
//! DONE are the same: each takes a receive and announces nothing. So a side that has added half its window since it last
//! spoke, and has nothing else to say, says just that: a CREDIT. It takes a credit like any other message, and obeys the rule
//! of the last one. Each CREDIT needs half a window of messages before it, so that two sides that only answer each
//! other's CREDITs send half as many each time, and fall silent.
//!
//! # What applications say
//!
//! A SAY takes its receive for as long as the application does not take what was said: it is announced only then, so that a
//! peer is held back by an application that does not listen. But transfers are not: a SAY is sent only where more than
//! [`RESERVED`] credits are left, so those go round for the handshake's own messages whatever applications do. A peer
//! that does not keep to that holds back nobody but itself.
//!
//! What is held is no part of the window meanwhile: a CREDIT goes out at half of what is left, at least four messages.

/// Receives that both sides post before the connection stands.
pub const RECEIVES: u16 = 16;

/// Credits that no SAY takes: half of the smallest window.
const RESERVED: u32 = RECEIVES as u32 / 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Credits {
    /// Receives of the peer's that are not spent.
    granted: u32,
    /// One's own that the peer has not heard of.
    unannounced: u16,
    /// One's own that the peer may still spend.
    standing: u32,
    /// One's own that were taken by what this side's application has not taken.
    held: u16,
    /// One's own, all together.
    window: u16,
}

impl Credits {
    pub(super) fn new(receives: u16) -> Self {
        let window = receives.max(RECEIVES);
        Self { granted: RECEIVES.into(), unannounced: window - RECEIVES, standing: RECEIVES.into(), held: 0, window }
    }

    /// A message came; its receive is posted again. False if the peer had none left to spend.
    pub(super) fn received(&mut self) -> bool {
        let Some(standing) = self.standing.checked_sub(1) else { return false };
        self.standing = standing;
        self.unannounced += 1;
        true
    }

    /// The message that came last was said to the application: its receive is not there again before that has taken it.
    pub(super) fn hold(&mut self) {
        self.unannounced -= 1;
        self.held += 1;
    }

    /// The application has taken what was said.
    pub(super) fn let_go(&mut self) {
        if self.held > 0 {
            self.held -= 1;
            self.unannounced += 1;
        }
    }

    /// Whether enough is left to say something.
    pub(super) fn may_say(&self) -> bool {
        self.granted > RESERVED
    }

    /// The peer has added receives.
    pub(super) fn granted(&mut self, more: u16) {
        self.granted = self.granted.saturating_add(more.into());
    }

    /// Spends one on a message, which announces so many.
    pub(super) fn spend(&mut self) -> Option<u16> {
        if self.granted == 0 || (self.granted == 1 && self.unannounced == 0) {
            return None;
        }
        self.granted -= 1;
        self.standing += u32::from(self.unannounced);
        Some(std::mem::take(&mut self.unannounced))
    }

    /// Spends one on a message that cannot announce any.
    pub(super) fn spend_silently(&mut self) -> bool {
        let can = self.granted > 1;
        self.granted -= u32::from(can);
        can
    }

    /// Whether the peer should hear of its credits though there is nothing else to say.
    pub(super) fn should_announce(&self) -> bool {
        self.unannounced >= ((self.window - self.held) / 2).max(RECEIVES / 4)
    }
}
