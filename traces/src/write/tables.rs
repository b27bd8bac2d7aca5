//! `pages` and `csv`: lines of requests.
//!
//! Both know requests only. An acquire is written as one; releases and invalidations are left out and counted. The ranges of
//! an event become a line each.

use super::{Output, Writer, Written, line, unwritable};
use crate::{Action, Event, Span, TraceError};
use mrrc_core::Access;
use std::io::Write;

/// Writes `start_page,pages`: the pages that each range touches.
#[derive(Debug)]
pub struct Pages {
    output: Output,
    written: Written,
}

impl Pages {
    /// Writes the header.
    ///
    /// # Errors
    /// [`TraceError::Io`].
    pub fn new(mut output: Output) -> Result<Self, TraceError> {
        line!(output, "start_page,pages")?;
        Ok(Self { output, written: Written::default() })
    }
}

impl Writer for Pages {
    fn write(&mut self, event: &Event) -> Result<(), TraceError> {
        let Some(spans) = asked(event) else {
            self.written.left_out += 1;
            return Ok(());
        };
        for span in spans {
            let range =
                span.pages().map_err(|error| unwritable(&self.output, self.written.events, error.to_string()))?;
            line!(self.output, "{},{}", range.start(), range.pages())?;
        }
        self.written.add(spans.len());
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Written, TraceError> {
        self.output.finish()?;
        Ok(self.written)
    }
}

/// Writes `time_ns,addr,len,op,client,process`: nanoseconds, a hexadecimal address, bytes, `r` or `w` (any right to write).
#[derive(Debug)]
pub struct Csv {
    output: Output,
    written: Written,
}

impl Csv {
    /// Writes the header.
    ///
    /// # Errors
    /// [`TraceError::Io`].
    pub fn new(mut output: Output) -> Result<Self, TraceError> {
        line!(output, "time_ns,addr,len,op,client,process")?;
        Ok(Self { output, written: Written::default() })
    }
}

impl Writer for Csv {
    fn write(&mut self, event: &Event) -> Result<(), TraceError> {
        let Some(spans) = asked(event) else {
            self.written.left_out += 1;
            return Ok(());
        };
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let op = if event.access.intersects(writes) { 'w' } else { 'r' };
        for &span in spans {
            span.pages().map_err(|error| unwritable(&self.output, self.written.events, error.to_string()))?;
            let Span { address, length } = span;
            line!(self.output, "{},{address:#x},{length},{op},{},{}", event.time, event.client, event.process)?;
        }
        self.written.add(spans.len());
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Written, TraceError> {
        self.output.finish()?;
        Ok(self.written)
    }
}

fn asked(event: &Event) -> Option<&[Span]> {
    match &event.action {
        Action::Request(spans) | Action::Acquire(spans) => Some(spans),
        Action::Release(_) | Action::Invalidate(_) => None,
    }
}
