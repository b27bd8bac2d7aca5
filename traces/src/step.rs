//! One range of an event.
//!
//! Sixteen bytes, eight of them in a [list](crate::StepList): a start has 52 bits as pages go, and what the step is fits above it.

use mrrc_core::{Access, PageRange};

/// The kind of a step. A request of several ranges is several steps; all but the last have [`Step::goes_on`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Asked for and released at once.
    Request,
    /// Asked for, in use until its release.
    Acquire,
    /// The end of the last acquire of the same ranges that is in use.
    Release,
    /// Unmapped, moved or discarded.
    Invalidate,
}

/// One range of one event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// Kind in 2 bits, whether the event goes on in 1, rights in 5, start in 52.
    start: u64,
    pages: u64,
}

const START_BITS: u32 = 52;
const GOES_ON: u64 = 1 << 57;
const KIND_SHIFT: u32 = 58;

impl Step {
    /// Returns a step over these pages; `goes_on` if the next step belongs to the same event.
    pub fn new(kind: Kind, range: PageRange, access: Access, goes_on: bool) -> Self {
        let tag = u64::from(access.bits()) << START_BITS | (kind as u64) << KIND_SHIFT;
        Self { start: range.start() | tag | if goes_on { GOES_ON } else { 0 }, pages: range.pages() }
    }

    /// Returns a plain request to read and to write these pages.
    #[inline]
    pub(crate) fn request(range: PageRange) -> Self {
        Self::new(Kind::Request, range, Access::LOCAL, false)
    }

    /// Returns the step in two words, of which the second has the pages.
    #[inline]
    pub(crate) fn words(self) -> (u64, u64) {
        (self.start, self.pages)
    }

    /// Returns the step of [`Step::words`].
    #[inline]
    pub(crate) fn of_words(start: u64, pages: u64) -> Self {
        Self { start, pages }
    }

    /// Returns the pages.
    #[inline]
    pub fn range(self) -> PageRange {
        let start = self.start & ((1 << START_BITS) - 1);
        // It came from a range.
        PageRange::between(start, start + self.pages)
    }

    /// Returns the kind of the step.
    #[inline]
    pub fn kind(self) -> Kind {
        match self.start >> KIND_SHIFT {
            0 => Kind::Request,
            1 => Kind::Acquire,
            2 => Kind::Release,
            _ => Kind::Invalidate,
        }
    }

    /// Returns whether the next step belongs to the same event.
    #[inline]
    pub fn goes_on(self) -> bool {
        self.start & GOES_ON != 0
    }

    /// Returns whether this is all of a plain request.
    #[inline]
    pub fn is_single_request(self) -> bool {
        self.start >> (START_BITS + 5) == 0
    }

    /// Returns the rights asked for.
    #[inline]
    pub fn access(self) -> Access {
        Access::from_bits_truncate((self.start >> START_BITS) as u8 & 0x1f)
    }
}
