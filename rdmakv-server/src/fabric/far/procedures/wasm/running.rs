//! A run of a module, as the functions `far` see it.

use wasmi::{StoreLimits, StoreLimitsBuilder};

use super::super::step::{Cx, Stop};
use super::super::{LIMITS, Space, Spent};
use super::outline::MEMORY_MAX;

/// Elements of a table at most.
const TABLE: usize = 1024;

/// A run, as the functions `far` see it.
pub(super) struct Running {
    pub(super) space: Box<dyn Space + Send>,
    pub(super) spent: Spent,
    pub(super) reply: Vec<u8>,
    pub(super) state: Vec<u8>,
    pub(super) memory: Option<wasmi::Memory>,
    /// Whether this step is the last one.
    pub(super) is_done: bool,
    /// Whether this step has written: nothing that may stop comes behind.
    pub(super) has_written: bool,
    /// The reason why this step stops.
    pub(super) stop: Option<Stop>,
    pub(super) limits: StoreLimits,
}

impl Running {
    pub(super) fn new(space: Box<dyn Space + Send>, spent: Spent, state: Vec<u8>) -> Self {
        let limits = StoreLimitsBuilder::new().memory_size(MEMORY_MAX).table_elements(TABLE).build();
        let (memory, is_done, has_written, stop) = (None, false, false, None);
        Self { space, spent, reply: Vec::new(), state, memory, is_done, has_written, stop, limits }
    }

    /// Returns the context of a step, unless it has written: what comes behind might stop, and then the step would be taken twice.
    pub(super) fn cx(&mut self) -> Option<(Cx<'_>, &mut Option<Stop>)> {
        let Self { space, spent, reply, stop, has_written, .. } = self;
        (!*has_written).then(|| (Cx::new(&mut **space, (spent, &LIMITS), reply), stop))
    }
}
