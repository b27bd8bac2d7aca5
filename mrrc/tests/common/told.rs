//! A monitor that the test plays: it watches everything, and reports what the test says.

use mrrc::PageRange;
use mrrc::invalidation::{Change, Monitor, Reports, Watch};
use std::io;
use std::sync::{Arc, OnceLock};

#[derive(Clone, Default)]
pub(crate) struct Told(Arc<OnceLock<Arc<dyn Reports>>>);

impl Told {
    pub(crate) fn report(&self, changes: &[Change]) {
        let reports = self.0.get().expect("a cache that started its monitor");
        reports.raise();
        while !reports.apply(changes) {}
        reports.lower();
    }
}

// SAFETY: there is no device, so a change that goes unheard harms no memory.
unsafe impl Monitor for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    unsafe fn start(&self, reports: Arc<dyn Reports>) -> io::Result<()> {
        assert!(self.0.set(reports).is_ok(), "started once");
        Ok(())
    }

    unsafe fn watch(&self, _: PageRange) -> Watch {
        Watch::Watched
    }
}
