//! The line above the results of a trace.

use super::table::{many, pages};
use crate::footprint::Footprint;
use traces::Trace;

/// Returns the trace's description.
pub(super) fn heading(trace: &Trace, footprint: &Footprint) -> String {
    let processes = match trace.processes.len() {
        1 => String::new(),
        n => format!(", {n} processes, the largest of {}", pages(footprint.largest_process_pages)),
    };
    format!(
        "{}, read as {}: {} for {}, footprint {}{processes}\n",
        trace.name,
        trace.summary.understood,
        many(footprint.requests, "request"),
        many(footprint.requested_pages, "page"),
        pages(footprint.pages)
    )
}
