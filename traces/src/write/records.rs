//! `registrations`: all that an event has.

use super::{Output, Writer, Written, put, unwritable};
use crate::registrations::binary::Encoder;
use crate::registrations::csv;
use crate::{Event, TraceError};
use std::io::ErrorKind;

/// Writes [the CSV form](csv).
#[derive(Debug)]
pub struct CsvRecords {
    output: Output,
    written: Written,
}

impl CsvRecords {
    /// Writes the head.
    ///
    /// # Errors
    /// [`TraceError::Io`].
    pub fn new(mut output: Output) -> Result<Self, TraceError> {
        csv::write_header(&mut output).map_err(|error| output.failed("write", error))?;
        Ok(Self { output, written: Written::default() })
    }
}

impl Writer for CsvRecords {
    fn write(&mut self, event: &Event) -> Result<(), TraceError> {
        csv::write_event(&mut self.output, event).map_err(|error| match error.kind() {
            ErrorKind::InvalidInput => unwritable(&self.output, self.written.events, error.to_string()),
            _ => self.output.failed("write", error),
        })?;
        self.written.add(event.action.spans().len());
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Written, TraceError> {
        self.output.finish()?;
        Ok(self.written)
    }
}

/// Writes [the binary form](crate::registrations::binary).
#[derive(Debug)]
pub struct BinaryRecords {
    output: Output,
    encoder: Encoder,
    written: Written,
}

impl BinaryRecords {
    /// Writes the head.
    ///
    /// # Errors
    /// [`TraceError::Io`].
    pub fn new(mut output: Output) -> Result<Self, TraceError> {
        put(&mut output, &Encoder::header())?;
        Ok(Self { output, encoder: Encoder::default(), written: Written::default() })
    }

    fn take(&mut self) -> Result<(), TraceError> {
        self.encoder.take(&mut self.output).map_err(|error| self.output.failed("write", error))
    }
}

impl Writer for BinaryRecords {
    fn write(&mut self, event: &Event) -> Result<(), TraceError> {
        let full = self.encoder.push(event).map_err(|why| unwritable(&self.output, self.written.events, why))?;
        self.written.add(event.action.spans().len());
        if full { self.take() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<Written, TraceError> {
        self.take()?;
        put(&mut self.output, &Encoder::end(self.written.events))?;
        self.output.finish()?;
        Ok(self.written)
    }
}
