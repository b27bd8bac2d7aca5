//! Rights and fences: when a server may answer, by a clock that is given.
//!
//! Times are nanoseconds of the server's own clock, which runs on while the machine sleeps. The clocks of two servers may differ; how
//! fast they run may differ by an eighth.

use std::sync::Arc;

use crate::config::{Config, Epoch, Incarnation, Members};
use crate::ring::Ring;

/// Points of rings of earlier epochs that fences keep, beyond the ring of the epoch that was adopted before: 16 MiB.
const MAX_POINTS: usize = 1 << 20;

/// A server's permission to answer, for one lease from when it *sent* the read that showed it in the configuration.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Right {
    lease: u64,
    incarnation: Incarnation,
    /// When the read was sent, and the epoch it showed.
    shown: Option<(u64, Epoch)>,
    /// When the last read was sent, answered or not.
    tried: Option<u64>,
}

/// A read of the configuration under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub struct Renewal {
    sent: u64,
}

impl Right {
    /// Returns a right that is not yet in force.
    pub fn new(lease: u64, incarnation: Incarnation) -> Self {
        Self { lease, incarnation, shown: None, tried: None }
    }

    /// Returns whether the configuration is to be read again: four times in a lease.
    pub fn is_due(&self, now: u64) -> bool {
        self.tried.is_none_or(|tried| now >= tried + self.lease / 4)
    }

    /// Begins a read, which the caller sends after this. It must be linearizable.
    pub fn renew(&mut self, now: u64) -> Renewal {
        self.tried = Some(now);
        Renewal { sent: now }
    }

    /// Takes what a read showed. Returns whether this run is a server of it, so that the right is in force from its sending.
    ///
    /// An answer that is older than another changes nothing. A configuration without this run ends the right at once.
    pub fn answered(&mut self, renewal: Renewal, config: &Config) -> bool {
        let is_member = config.incarnation(self.incarnation).is_some();
        if self.shown.is_some_and(|(sent, epoch)| renewal.sent < sent || config.epoch() < epoch) {
            return is_member;
        }
        self.shown = is_member.then_some((renewal.sent, config.epoch()));
        is_member
    }

    /// Returns when the right ends; None while there is none.
    pub fn end(&self) -> Option<u64> {
        self.shown.map(|(sent, _)| sent + self.lease)
    }

    /// Returns whether the server may answer now.
    pub fn is_in_force(&self, now: u64) -> bool {
        self.end().is_some_and(|end| now < end)
    }

    /// Returns whether a tag may be granted that clients may use for `duration`: it has to end inside the right.
    pub fn allows_tag(&self, now: u64, duration: u64) -> bool {
        if crate::faults::is_planted("tag-past-right") {
            return self.is_in_force(now);
        }
        let until = now.saturating_add(duration).saturating_add(duration / 8);
        self.end().is_some_and(|end| until <= end)
    }
}

/// Returns how long a new primary waits: a lease of its predecessor, by clocks that run apart by an eighth.
pub fn fence_time(lease: u64) -> u64 {
    lease + lease / 8
}

/// The fences of one server: until when it answers nothing for keys that others may still serve.
///
/// A fence is not kept for each key. It follows from the epochs that this server adopted lately, and from the primaries that the key
/// had in these and between them.
#[derive(Clone, Debug)]
pub struct Fences {
    lease: u64,
    incarnation: Incarnation,
    adopted: Vec<Adopted>,
    last: Option<Members>,
    most_points: usize,
}

/// An epoch that this server adopted.
#[derive(Clone, Debug)]
struct Adopted {
    epoch: Epoch,
    at: u64,
    /// The rings of the epochs since the one adopted before, that one included.
    before: Vec<(Members, Arc<Ring>)>,
    /// Some epoch since then is not known, or has a ring too many. Another server may have been primary in it.
    has_gap: bool,
}

impl Fences {
    /// Returns the fences of a run that has adopted no epoch.
    pub fn new(lease: u64, incarnation: Incarnation) -> Self {
        Self { lease, incarnation, adopted: Vec::new(), last: None, most_points: MAX_POINTS }
    }

    /// Notes that this server adopts a configuration now. One that is not later than the last changes nothing.
    pub fn adopt(&mut self, config: &Config, now: u64) {
        let from = self.last.as_ref().map(|last| last.epoch);
        if from.is_some_and(|from| config.epoch() <= from) {
            return;
        }
        let since = |members: &&Members| from.is_none_or(|from| members.epoch > from);
        let skipped = config.past().iter().filter(since).cloned();
        let before: Vec<Members> = self.last.take().into_iter().chain(skipped).collect();
        let skips = |pair: &[Members]| pair[1].epoch.0 > pair[0].epoch.0 + 1;
        let mut has_gap =
            before.windows(2).any(skips) || before.last().is_some_and(|last| config.epoch().0 > last.epoch.0 + 1);
        self.adopted.retain(|adopted| now < adopted.at.saturating_add(fence_time(self.lease)));
        let before = if has_gap { Vec::new() } else { self.rings(before) };
        has_gap |= before.is_empty() && config.epoch().0 > 1;
        self.adopted.push(Adopted { epoch: config.epoch(), at: now, before, has_gap });
        self.last = Some(config.members());
    }

    /// Returns the rings of epochs; none if they have too many points.
    ///
    /// Epochs with the same serving servers have one ring. That of one epoch is always kept, so that a change from one to the next needs no
    /// fence where the primary stays.
    fn rings(&self, epochs: Vec<Members>) -> Vec<(Members, Arc<Ring>)> {
        let mut points: usize =
            self.adopted.iter().flat_map(|adopted| adopted.before.get(1..)).flatten().map(|(_, ring)| ring.len()).sum();
        let mut rings: Vec<(Members, Arc<Ring>)> = Vec::with_capacity(epochs.len());
        for members in epochs {
            let same =
                rings.last().filter(|(last, _)| last.serving().eq(members.serving())).map(|(_, ring)| ring.clone());
            let ring = same.unwrap_or_else(|| Arc::new(members.ring()));
            if rings.last().is_some_and(|(_, last)| !Arc::ptr_eq(last, &ring)) {
                points += ring.len();
            }
            if points > self.most_points {
                return Vec::new();
            }
            rings.push((members, ring));
        }
        rings
    }

    /// Keeps at most so many points.
    #[cfg(test)]
    pub(crate) fn keep(mut self, points: usize) -> Self {
        self.most_points = points;
        self
    }

    /// Returns until when this server, the primary of a key, must not answer for it; None if it may.
    ///
    /// `has_adopted` tells whether a run has written that it adopted an epoch at least as late. Its fences of before are over then, and what
    /// it hands over is held.
    pub fn until(&self, key: &[u8], now: u64, has_adopted: impl Fn(Incarnation, Epoch) -> bool) -> Option<u64> {
        if crate::faults::is_planted("no-fence") {
            return None;
        }
        let end = |adopted: &Adopted| adopted.at.saturating_add(fence_time(self.lease));
        let recent = self.adopted.iter().filter(|adopted| now < end(adopted));
        let binds = |adopted: &&Adopted| {
            if adopted.has_gap {
                return !crate::faults::is_planted("no-fence-after-skip");
            }
            let skipped = crate::faults::is_planted("no-fence-after-skip");
            let known = if skipped { adopted.before.get(..1).unwrap_or_default() } else { &adopted.before[..] };
            known.iter().any(|(members, ring)| {
                let primary = ring.primary(key).and_then(|id| members.incarnation(id));
                primary.is_some_and(|primary| primary != self.incarnation && !has_adopted(primary, adopted.epoch))
            })
        };
        recent.filter(binds).map(end).max()
    }
}
