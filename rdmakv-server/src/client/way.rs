//! A way to a server: down, on its way up, or up.
//!
//! Connecting blocks, in a thread of its own that ends with the attempt. After a failure the next attempt waits, each time twice as
//! long, up to a bound; a connection that stood is made anew at once.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// A way by which a connection `C` comes about from a `P`, which a thread can hand over.
pub(super) enum Way<C, P> {
    Down { failures: u32, not_before: Instant },
    Connecting { failures: u32, until: Instant, outcome: Receiver<Result<P, String>>, came: Option<Result<P, String>> },
    Up(C),
}

/// How attempts follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) connect: Duration,
    pub(super) least: Duration,
    pub(super) most: Duration,
}

impl<C, P: Send + 'static> Way<C, P> {
    pub(super) fn new() -> Self {
        Self::Down { failures: 0, not_before: Instant::now() }
    }

    pub(super) fn up(&mut self) -> Option<&mut C> {
        match self {
            Self::Up(connection) => Some(connection),
            _ => None,
        }
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self, Self::Connecting { .. })
    }

    /// Begins an attempt, if it is time for one. The attempt is told how many failed before it.
    pub(super) fn begin(
        &mut self,
        patience: &Patience,
        connect: impl FnOnce(u32) -> Box<dyn FnOnce() -> Result<P, String> + Send>,
    ) {
        let Self::Down { failures, not_before } = *self else { return };
        let now = Instant::now();
        if now < not_before {
            return;
        }
        let connect = connect(failures);
        let (tell, outcome) = sync_channel(1);
        let mut came = None;
        // Nobody may be listening any more.
        let work = move || drop(tell.send(connect()));
        if let Err(error) = std::thread::Builder::new().name("rdmakv-connect".to_owned()).spawn(work) {
            came = Some(Err(format!("no thread to connect in: {error}")));
        }
        // A little more than the attempt itself takes, so that its own words come.
        let until = now + patience.connect + patience.connect / 4;
        *self = Self::Connecting { failures, until, outcome, came };
    }

    /// What became of the attempt that is under way, once.
    pub(super) fn outcome(&mut self) -> Option<Result<P, String>> {
        let Self::Connecting { until, outcome, came, .. } = self else { return None };
        if let Some(came) = came.take() {
            return Some(came);
        }
        match outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Disconnected) => Some(Err("the attempt broke off".to_owned())),
            Err(TryRecvError::Empty) if Instant::now() >= *until => Some(Err("connecting took too long".to_owned())),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// It did not come about, or did not last.
    pub(super) fn fail(&mut self, patience: &Patience) {
        let failures = match self {
            Self::Down { .. } => return,
            Self::Connecting { failures, .. } => *failures + 1,
            // At once, and with patience only if that fails.
            Self::Up(_) => 0,
        };
        let wait = match failures {
            0 => Duration::ZERO,
            _ => patience.least.saturating_mul(1 << (failures - 1).min(16)).min(patience.most),
        };
        *self = Self::Down { failures, not_before: Instant::now() + wait };
    }

    /// It failed though it was up for a moment: as if it had not come about.
    pub(super) fn fail_young(&mut self, before: u32, patience: &Patience) {
        let failures = before + 1;
        let wait = patience.least.saturating_mul(1 << before.min(16)).min(patience.most);
        *self = Self::Down { failures, not_before: Instant::now() + wait };
    }

    pub(super) fn failures(&self) -> u32 {
        match self {
            Self::Down { failures, .. } | Self::Connecting { failures, .. } => *failures,
            Self::Up(_) => 0,
        }
    }

    /// Sleeps until the attempt has come to something, or so long.
    pub(super) fn wait(&mut self, longest: Duration) {
        if let Self::Connecting { until, outcome, came, .. } = self
            && came.is_none()
        {
            let longest = longest.min(until.saturating_duration_since(Instant::now()));
            match outcome.recv_timeout(longest) {
                Ok(outcome) => *came = Some(outcome),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience =
        Patience { connect: Duration::from_secs(5), least: Duration::from_secs(1), most: Duration::from_secs(3) };

    fn left(way: &Way<(), ()>) -> Duration {
        let Way::Down { not_before, .. } = way else { panic!("it is down") };
        not_before.saturating_duration_since(Instant::now())
    }

    fn attempt(way: &mut Way<(), ()>, outcome: Result<(), String>) -> Option<Result<(), String>> {
        *way = Way::Down { failures: way.failures(), not_before: Instant::now() };
        way.begin(&PATIENCE, |_| Box::new(move || outcome));
        way.wait(Duration::from_secs(60));
        way.outcome()
    }

    #[test]
    fn each_failure_is_waited_for_longer_up_to_a_bound() {
        let mut way = Way::new();
        for most in [1, 2, 3, 3, 3] {
            assert_eq!(attempt(&mut way, Err("no".into())), Some(Err("no".into())));
            way.fail(&PATIENCE);
            let left = left(&way);
            assert!(left <= Duration::from_secs(most) && left > Duration::from_secs(most - 1), "{left:?}");
            // Not before it is time.
            way.begin(&PATIENCE, |_| panic!("it is too early"));
        }
        assert_eq!(attempt(&mut way, Ok(())), Some(Ok(())));
        way = Way::Up(());
        way.fail(&PATIENCE);
        assert_eq!(left(&way), Duration::ZERO);
    }
}
