//! Receives are announced and spent: no message meets a side that has none posted.
//!
//! Each message takes a receive of the other side and announces those that its sender has added. The last credit goes only
//! on a message that announces at least one, so the two sides cannot both run dry. If one has spent all but the last and has
//! nothing to announce, the other holds credits for its whole window, and can send.
//!
//! # Why there are CREDITs
//!
//! That it can speak does not make it. Take a side that only listens, the target of many writes with a slow application. It has
//! had fifteen SYNCs, holds fifteen receives that its peer does not know of, and has no message to announce them on. The opener
//! stands still until its first SYNC is answered or its time is out, though there is room. The immediates that stand for DONE
//! are the same: each takes a receive and announces nothing. So a side that has added half its window since it last spoke, and
//! has nothing else to say, says just that: a CREDIT. It takes a credit like any other message, and obeys the rule of the last
//! one. Each CREDIT needs half a window of messages before it, so that two sides that only answer each other's CREDITs send
//! half as many each time, and fall silent.
//!
//! # What applications say
//!
//! A SAY takes its receive for as long as the application does not take what was said: it is announced only then, so that a
//! peer is held back by an application that does not listen. But transfers are not: at most [`UNTAKEN`] SAYs are out that the
//! peer's application is not known to have taken, or more than [`RESERVED`] credits are left. So that many credits go round
//! for the handshake's own messages whatever applications do. A peer that does not keep to that holds back only itself.
//!
//! Nor are SAYs held back by transfers: under a flood of them no more than a few credits are ever left, as each is spent when it
//! comes. So CREDIT and SAY tell how many SAYs the application has taken since the last that told so, and a SAY takes the
//! next credit, whatever else waits for one. Where other messages have announced the receives of SAYs that were taken,
//! which does not tell that, a CREDIT does after four of them, and does not wait behind other messages either.
//!
//! Held messages are no part of the window meanwhile: a CREDIT goes out at half of the rest, at least four messages.

/// Receives that both sides post before the connection stands.
pub const RECEIVES: u16 = 16;

/// Credits that no SAY takes, where more than [`UNTAKEN`] are out: half of the smallest window.
const RESERVED: u32 = RECEIVES as u32 / 2;
/// SAYs that may be out, the peer's application not being known to have taken them: the other half.
const UNTAKEN: u32 = RECEIVES as u32 - RESERVED;
/// SAYs that were taken, and messages to be announced, after which there may be a CREDIT.
const FEW: u16 = RECEIVES / 4;

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
    /// SAYs of this side's that the peer's application is not known to have taken.
    untaken: u32,
    /// SAYs of the peer's that were taken here, which it was not told.
    untold: u16,
}

impl Credits {
    pub(super) fn new(receives: u16) -> Self {
        let window = receives.max(RECEIVES);
        Self {
            granted: RECEIVES.into(),
            unannounced: window - RECEIVES,
            standing: RECEIVES.into(),
            held: 0,
            window,
            untaken: 0,
            untold: 0,
        }
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
            self.untold += 1;
        }
    }

    /// Returns whether something can be said now.
    pub(super) fn may_send(&self) -> bool {
        self.granted > RESERVED || (self.untaken < UNTAKEN && self.can_spend())
    }

    /// Returns whether one more could be said after so many that wait, as soon as there is a credit for each. Those come by
    /// themselves.
    pub(super) fn may_wait_to_send(&self, waiting: usize) -> bool {
        waiting < UNTAKEN.saturating_sub(self.untaken) as usize
    }

    /// The peer's application has taken so many SAYs.
    pub(super) fn taken(&mut self, more: u64) {
        self.untaken = self.untaken.saturating_sub(u32::try_from(more).unwrap_or(u32::MAX));
    }

    /// Spends one on a SAY: what it announces, and how many SAYs it tells that were taken here.
    pub(super) fn spend_on_say(&mut self) -> Option<(u16, u64)> {
        let credits = self.spend()?;
        self.untaken = self.untaken.saturating_add(1);
        Some((credits, self.tell_taken()))
    }

    /// How many SAYs were taken here since this was told last.
    pub(super) fn tell_taken(&mut self) -> u64 {
        std::mem::take(&mut self.untold).into()
    }

    fn can_spend(&self) -> bool {
        self.granted > 1 || (self.granted == 1 && self.unannounced > 0)
    }

    /// The peer has added receives.
    pub(super) fn granted(&mut self, more: u16) {
        self.granted = self.granted.saturating_add(more.into());
    }

    /// Spends one on a message, which announces so many.
    pub(super) fn spend(&mut self) -> Option<u16> {
        if !self.can_spend() {
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

    /// Returns whether the peer should hear of its credits though there is nothing else to say.
    pub(super) fn should_announce(&self) -> bool {
        self.unannounced >= ((self.window - self.held) / 2).max(FEW)
    }

    /// Returns whether the peer should hear of the SAYs that were taken, before anything else is said: their receives were
    /// announced, but not that.
    pub(super) fn should_tell_taken(&self) -> bool {
        self.untold >= FEW && self.unannounced < FEW
    }
}
