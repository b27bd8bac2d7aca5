//! One entry of a trace.

use mrrc_core::{Access, PageRange, RangeError};
use smallvec::SmallVec;
use std::fmt;

/// A range of bytes in a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Span {
    /// The first byte. Null is an address like any other here: objects are laid out from there.
    pub address: u64,
    /// Bytes, at least one.
    pub length: u64,
}

impl Span {
    /// Returns a range of whole pages.
    pub fn of_pages(range: PageRange) -> Self {
        let [address, length] = [range.start(), range.pages()].map(|pages| pages.saturating_mul(mrrc_core::PAGE));
        Self { address, length }
    }

    /// Returns the pages that the bytes touch.
    ///
    /// # Errors
    /// [`RangeError`] for no bytes, and for bytes past the end of the address space.
    pub fn pages(self) -> Result<PageRange, RangeError> {
        let Self { address: start, length } = self;
        let before_last = length.checked_sub(1).ok_or(RangeError::Empty { start })?;
        let last = start.checked_add(before_last).ok_or(RangeError::Wraps { start, length })?;
        let first_page = start / mrrc_core::PAGE;
        PageRange::new(first_page, last / mrrc_core::PAGE - first_page + 1)
    }
}

/// `0x7f00_1000+4096`, without the underscore.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{}", self.address, self.length)
    }
}

/// The ranges of one request: usually one.
pub type Spans = SmallVec<[Span; 1]>;

/// The operation on the memory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// Asked for together, and released at once.
    Request(Spans),
    /// Asked for together, and in use until its release.
    Acquire(Spans),
    /// The last acquire of these ranges that is still in use ends.
    Release(Spans),
    /// The memory was unmapped, moved or discarded.
    Invalidate(Span),
}

impl Action {
    /// Returns the ranges: of an invalidation, its one.
    pub fn spans(&self) -> &[Span] {
        match self {
            Self::Request(spans) | Self::Acquire(spans) | Self::Release(spans) => spans,
            Self::Invalidate(span) => std::slice::from_ref(span),
        }
    }
}

/// One entry of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Nanoseconds since some start; 0 where the format has no clock.
    pub time: u64,
    /// The cache and address space: a rank, a member of an archive. Counted from 0.
    pub process: u32,
    /// The client or thread: the clients of a process share its cache. 0 where none is named.
    pub client: u32,
    /// The rights asked for: what a read of the data needs, or a write.
    pub access: Access,
    /// The operation.
    pub action: Action,
}

impl Event {
    /// Returns a request for one range, without time and client.
    pub fn request(span: Span, access: Access) -> Self {
        let action = Action::Request(smallvec::smallvec![span]);
        Self { time: 0, process: 0, client: 0, access, action }
    }
}
