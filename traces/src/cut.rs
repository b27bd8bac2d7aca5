//! Requests of at most so many pages: what is larger is cut off there, or asked for in several requests.

use crate::{Action, Event, Reader, Span, Spans, Summary, TraceError};
use smallvec::smallvec;
use std::fmt;
use std::num::NonZeroU64;

/// The treatment of a range that is too large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Larger {
    /// Only its first pages are asked for.
    Cut,
    /// It is asked for in several requests, one after the other, all but the last as large as may be.
    Split,
}

/// `split` or `cut`.
impl fmt::Display for Larger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cut => "cut",
            Self::Split => "split",
        })
    }
}

/// A reader whose requests have ranges of at most so many pages.
///
/// An event without larger ranges passes as it is. Else each of its ranges becomes an event of its own, or several. An
/// acquire and its release fall into the same parts. Invalidations pass as they are.
pub struct Cut<R> {
    inner: R,
    pages: NonZeroU64,
    larger: Larger,
    /// An event that is being handed out in parts, and its ranges that are left, the last first.
    in_parts: Option<(Event, Spans)>,
    summary: Summary,
}

impl<R> fmt::Debug for Cut<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cut")
            .field("pages", &self.pages)
            .field("larger", &self.larger)
            .field("summary", &self.summary)
            .finish_non_exhaustive()
    }
}

impl<R: Reader> Cut<R> {
    /// Sees to it that no range of `inner` has more than `pages` pages.
    pub fn new(inner: R, pages: NonZeroU64, larger: Larger) -> Self {
        let mut cut = Self { inner, pages, larger, in_parts: None, summary: Summary::default() };
        cut.take_over();
        cut
    }

    /// Takes over the source's summary, with our own counts of events.
    fn take_over(&mut self) {
        let first = std::mem::take(&mut self.summary.first);
        let events = self.summary.events;
        let of = self.inner.summary();
        let done = match self.larger {
            Larger::Cut => "cut to",
            Larger::Split => "split into requests of at most",
        };
        let s = if self.pages.get() == 1 { "" } else { "s" };
        let understood = format!("{}; larger ranges {done} {} page{s}", of.understood, self.pages);
        self.summary = Summary { understood, events, first, ..of.clone() };
    }

    fn is_too_large(&self, span: Span) -> bool {
        span.pages().is_ok_and(|range| range.pages() > self.pages.get())
    }

    /// Returns the next part of the event that is handed out in parts.
    fn part(&mut self) -> Option<Event> {
        let (event, left) = self.in_parts.as_mut()?;
        let Some(span) = left.pop() else {
            self.in_parts = None;
            return None;
        };
        // A part that begins within a page ends with a page, so that parts share none.
        let most = self.pages.get().saturating_mul(mrrc_core::PAGE) - span.address % mrrc_core::PAGE;
        let part = Span { length: span.length.min(most), ..span };
        if part.length < span.length && self.larger == Larger::Split {
            left.push(Span { address: span.address + part.length, length: span.length - part.length });
        }
        let part = smallvec![part];
        let action = match event.action {
            Action::Acquire(_) => Action::Acquire(part),
            Action::Release(_) => Action::Release(part),
            Action::Request(_) | Action::Invalidate(_) => Action::Request(part),
        };
        let Event { time, process, client, access, .. } = *event;
        Some(Event { time, process, client, access, action })
    }

    fn step(&mut self) -> Option<Result<Event, TraceError>> {
        loop {
            if let Some(part) = self.part() {
                return Some(Ok(part));
            }
            let event = match self.inner.next()? {
                Ok(event) => event,
                Err(error) => return Some(Err(error)),
            };
            match &event.action {
                Action::Request(spans) | Action::Acquire(spans) | Action::Release(spans)
                    if spans.iter().any(|&span| self.is_too_large(span)) =>
                {
                    let left = spans.iter().rev().copied().collect();
                    self.in_parts = Some((event, left));
                }
                _ => return Some(Ok(event)),
            }
        }
    }
}

impl<R: Reader> Iterator for Cut<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        match &step {
            Some(Ok(event)) => self.summary.read(event),
            // The source may have more to say now than it had at first.
            _ => self.take_over(),
        }
        step
    }
}

impl<R: Reader> Reader for Cut<R> {
    fn summary(&self) -> &Summary {
        &self.summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Event;
    use mrrc_core::Access;

    /// Events from a list.
    struct List(std::vec::IntoIter<Event>, Summary);

    impl Iterator for List {
        type Item = Result<Event, TraceError>;

        fn next(&mut self) -> Option<Self::Item> {
            self.0.next().map(Ok)
        }
    }

    impl Reader for List {
        fn summary(&self) -> &Summary {
            &self.1
        }
    }

    fn cut(action: Action, pages: u64, larger: Larger) -> Vec<Action> {
        let event = Event { action, ..Event::request(Span::default(), Access::LOCAL) };
        let list = List(vec![event].into_iter(), Summary::new("list"));
        let mut cut = Cut::new(list, NonZeroU64::new(pages).unwrap(), larger);
        let all: Vec<_> = cut.by_ref().map(|event| event.unwrap().action).collect();
        assert_eq!(cut.summary().events, all.len() as u64);
        all
    }

    fn span(address: u64, length: u64) -> Span {
        Span { address, length }
    }

    #[test]
    fn split_request_covers_the_same_bytes() {
        let whole = Action::Request(smallvec![span(4000, 20_000)]);
        let parts = [span(4000, 96 + 4096), span(8192, 8192), span(16384, 7616)];
        assert_eq!(cut(whole, 2, Larger::Split), parts.map(|part| Action::Request(smallvec![part])));
    }

    #[test]
    fn a_cut_request_asks_for_its_first_pages() {
        let whole = Action::Request(smallvec![span(4000, 20_000)]);
        assert_eq!(cut(whole, 2, Larger::Cut), [Action::Request(smallvec![span(4000, 4192)])]);
    }

    #[test]
    fn what_is_small_enough_passes_as_it_is() {
        let small = Action::Acquire(smallvec![span(1, 4096), span(1 << 20, 8192)]);
        assert_eq!(cut(small.clone(), 2, Larger::Split), [small]);
        let gone = Action::Invalidate(span(0, 1 << 40));
        assert_eq!(cut(gone.clone(), 1, Larger::Split), [gone]);
    }

    #[test]
    fn whole_address_space_splits_lazily() {
        let event = Event::request(span(0, u64::MAX), Access::LOCAL);
        let list = List(vec![event].into_iter(), Summary::new("list"));
        let cut = Cut::new(list, NonZeroU64::MIN, Larger::Split);
        assert_eq!(cut.take(1000).count(), 1000);
    }
}
