//! Settings that the environment may strengthen and never weaken: the monitor, and two limits. One is the time for which
//! nothing is cached where pages were discarded. The other is that on regions without a lease.
//!
//! A program's argument that no key goes stale rests on them (its `SAFETY` comments name them), and a user that sets a
//! variable cannot know that argument. So a weaker value is ignored, and one line on standard error reports that, once a
//! process.

use crate::effective::Widening;
use crate::error::BuildError;
use crate::invalidation::{Explicit, Monitor};
use crate::settings::{GRACE, MonitorKind, Settings};
use crate::unheld_limit::UnheldLimit;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A monitor that the program gave.
pub(super) struct Given {
    monitor: Box<dyn Monitor>,
    is_explicit: bool,
}

impl Given {
    pub(super) fn new(monitor: impl Monitor) -> Self {
        let is_explicit = (&monitor as &dyn Any).is::<Explicit>();
        Self { monitor: Box::new(monitor), is_explicit }
    }

    pub(super) fn is_explicit(&self) -> bool {
        self.is_explicit
    }

    pub(super) fn name(&self) -> &'static str {
        self.monitor.name()
    }
}

/// Returns the monitor of a cache: the one of the name, else the one given, else the default; or a stronger one
/// that the environment names.
///
/// Only [`Explicit`] is weaker than another: it hears of nothing by itself, so userfaultfd hears of more. Two others cannot
/// be compared.
///
/// # Errors
/// Where userfaultfd is refused.
pub(super) fn monitor(
    named: Option<MonitorKind>,
    given: Option<Given>,
    environment: Option<MonitorKind>,
) -> Result<Box<dyn Monitor>, BuildError> {
    let given = given.filter(|_| named.is_none());
    let kind = named.unwrap_or(MonitorKind::DEFAULT);
    let is_explicit = given.as_ref().map_or(kind == MonitorKind::Explicit, Given::is_explicit);
    match environment {
        Some(stronger) if is_explicit => return start(stronger),
        Some(MonitorKind::Explicit) => {
            static REPORTED: AtomicBool = AtomicBool::new(false);
            let relies = given.as_ref().map_or(kind.name(), Given::name);
            report(&REPORTED, "MRRC_MONITOR=explicit", &format!("the program relies on monitor {relies}"));
        }
        _ => {}
    }
    given.map_or_else(|| start(kind), |given| Ok(given.monitor))
}

/// Starts a monitor of a name.
fn start(kind: MonitorKind) -> Result<Box<dyn Monitor>, BuildError> {
    match kind {
        MonitorKind::Explicit => Ok(Box::new(Explicit)),
        #[cfg(target_os = "linux")]
        MonitorKind::Userfaultfd => match crate::invalidation::Userfaultfd::of_process() {
            Ok(monitor) => Ok(Box::new(monitor)),
            Err(source) => Err(BuildError::Monitor { monitor: kind.name(), source }),
        },
    }
}

/// Returns the program's grace period (the default, if it set none), or a longer one that the environment names.
pub(super) fn grace(program: Option<Duration>, environment: Option<Duration>) -> Duration {
    let grace = program.unwrap_or(GRACE);
    match environment {
        Some(longer) if longer >= grace => longer,
        Some(shorter) => {
            static REPORTED: AtomicBool = AtomicBool::new(false);
            report(&REPORTED, &format!("MRRC_DISCARD_GRACE={shorter:?}"), &format!("the program relies on {grace:?}"));
            grace
        }
        None => grace,
    }
}

/// Returns the requests that may be widened, where the policy is. A monitor that vouches hears of changes to their surroundings, and
/// a program that asked for widening reports them. Another program reports those of what it acquires, whether the environment asked or
/// its policy widens by itself.
pub(super) fn widening(program_asked: bool, vouched: bool) -> Widening {
    if vouched || program_asked { Widening::All } else { Widening::Owned }
}

/// The program's settings, apart from those that the environment sets after it.
pub(super) struct Program {
    monitor: Option<MonitorKind>,
    grace: Option<Duration>,
    unheld: Option<UnheldLimit>,
    /// Whether it promised to report changes of all memory around what it acquires.
    widens: bool,
}

impl Program {
    /// Takes these settings out, so that those that are there later are the environment's.
    pub(super) fn take(settings: &mut Settings) -> Self {
        let widens = settings.widen.or(settings.config.as_ref().and_then(|config| config.widen));
        let (monitor, grace, unheld) = (settings.monitor.take(), settings.grace.take(), settings.max_unheld.take());
        Self { monitor, grace, unheld, widens: widens == Some(true) }
    }

    /// Returns the limit on regions without a lease, if there is one: the stricter of the program's and the environment's.
    pub(super) fn max_unheld(&self, environment: &Settings) -> Option<UnheldLimit> {
        let limits = [self.unheld, environment.max_unheld];
        limits.into_iter().flatten().reduce(UnheldLimit::and).filter(|&limit| limit != UnheldLimit::NONE)
    }

    /// Returns whether it asked for widening, and with that promised to report changes of all memory around what it acquires.
    pub(super) fn widens(&self) -> bool {
        self.widens
    }

    /// Returns the monitor and the grace period of a cache.
    ///
    /// # Errors
    /// As [`monitor`].
    pub(super) fn strengthen(
        self,
        given: Option<Given>,
        environment: &Settings,
    ) -> Result<(Box<dyn Monitor>, Duration), BuildError> {
        Ok((monitor(self.monitor, given, environment.monitor)?, grace(self.grace, environment.grace)))
    }
}

fn report(reported: &AtomicBool, setting: &str, why: &str) {
    if !reported.swap(true, Ordering::Relaxed) {
        eprintln!(
            "mrrc: {setting} is ignored: {why}, and the environment can only strengthen that: unset the variable"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn environment_only_tightens_the_unheld_limit() {
        let limit = |pages, seconds| UnheldLimit::new(pages, Duration::from_secs(seconds));
        let of = |program: Option<UnheldLimit>, environment: Option<UnheldLimit>| {
            let program = Program::take(&mut Settings { max_unheld: program, ..Settings::default() });
            program.max_unheld(&Settings { max_unheld: environment, ..Settings::default() })
        };
        assert_eq!(of(None, None), None);
        assert_eq!(of(None, Some(UnheldLimit::NONE)), None);
        assert_eq!(of(Some(limit(9, 60)), Some(UnheldLimit::NONE)), Some(limit(9, 60)));
        assert_eq!(of(Some(limit(9, 60)), Some(limit(50, 10))), Some(limit(9, 10)));
    }

    #[test]
    fn environment_promises_nothing_for_the_program() {
        let asked = |settings: &mut Settings| Program::take(settings).widens();
        let mut settings = Settings::default();
        assert!(!asked(&mut settings));
        settings.config = Some(Config { widen: Some(true), ..Config::new(8) });
        assert!(asked(&mut settings));
        settings.widen = Some(false);
        assert!(!asked(&mut settings));
        assert_eq!(widening(false, false), Widening::Owned);
        // The monitor hears of changes, or the program asked.
        let others = [(false, true), (true, false), (true, true)];
        assert!(others.iter().all(|&(asked, vouched)| widening(asked, vouched) == Widening::All));
    }
}
