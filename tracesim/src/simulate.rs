//! One trace through one cache.
//!
//! Each process of a trace has a core of its own, and their counters are added up.

use crate::policies::PolicyEntry;
use crate::replayer::add;
use mrrc_core::Config;
use traces::Trace;

pub use crate::replayer::{Recency, ReplayError, Replayed, Watch};

/// Replays a trace through caches of this configuration. Objects that [have no addresses](traces::Summary::is_laid_out) are never
/// widened.
///
/// ```
/// use mrrc_core::policy::PolicyKind;
/// use mrrc_core::{Access, Config, PageRange};
/// use tracesim::simulate::{Recency, replay};
/// use traces::{Kind, Process, Step, Trace};
///
/// let asked = |page| Step::new(Kind::Request, PageRange::new(page, 1).unwrap(), Access::LOCAL_READ, false);
/// let process = Process { steps: [1, 2, 1].map(asked).into() };
/// let trace = Trace { processes: vec![process], ..Trace::default() };
/// let counters = replay(&trace, &PolicyKind::Mrrc.into(), &Config::new(8), Recency::Exact, None)?.counters;
/// assert_eq!((counters.requests, counters.exact, counters.miss), (3, 1, 2));
/// # Ok::<(), tracesim::simulate::ReplayError>(())
/// ```
///
/// # Errors
/// [`ReplayError`].
pub fn replay(
    trace: &Trace,
    policy: &PolicyEntry,
    config: &Config,
    recency: Recency,
    watch: Option<&Watch<'_>>,
) -> Result<Replayed, ReplayError> {
    // What lies behind an object would tell a policy the future.
    let exact = Config { widen: Some(false), ..config.clone() };
    let config = if trace.summary.is_laid_out { &exact } else { config };
    let mut all = Replayed::default();
    for process in &trace.processes {
        let one = policy.replay_process(process, config, recency, watch)?;
        add(&mut all.counters, &one.counters);
        all.unmatched_releases += one.unmatched_releases;
        all.refused_pages = all.refused_pages.saturating_add(one.refused_pages);
    }
    Ok(all)
}
