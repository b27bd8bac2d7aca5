//! The store's own counters.

use crate::metrics::{ClassCounters, Counters};

/// The store's counters: plain numbers, which the store's operations add to.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) classes: Vec<ClassCounters>,
    pub(super) whole: Counters,
}

impl Counts {
    pub(super) fn new(classes: usize) -> Self {
        Self { classes: vec![ClassCounters::default(); classes], whole: Counters::default() }
    }
}
