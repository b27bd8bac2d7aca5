//! When bytes last came or went, and the probes of a silent peer.

use std::time::{Duration, Instant};

/// How long nothing comes of a peer before it is probed first, and how often it is: over one third of a second.
const FIRST_PROBE: Duration = Duration::from_millis(4);
const PROBES: u32 = 4;

/// Probes of a peer that accepts and may overlook what comes before it looks. Linux's siw replies first and listens for
/// frames thereafter. It hears of those that came in between when others follow, such as an empty write.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// After how long without a byte in either direction; longer each time.
    after: Duration,
    /// Probes that are left.
    left: u32,
    /// Something was sent that can be overlooked.
    spoken: bool,
}

/// The time of a connection's last progress, and its probes.
#[derive(Debug)]
pub(super) struct Progress {
    /// When bytes last came or went, or the first of what is pending was posted.
    last: Instant,
    /// The probe to send as long as the peer is silent. The accepting side hears of it before it may speak.
    probe: Option<Probe>,
    probes_sent: u32,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            last: Instant::now(),
            probe: Some(Probe { after: FIRST_PROBE, left: PROBES, spoken: false }),
            probes_sent: 0,
        }
    }

    /// Returns when bytes last came or went, or the first of what is pending was posted.
    pub(super) fn last(&self) -> Instant {
        self.last
    }

    /// Notes that bytes came: the peer listens, and is probed no more.
    pub(super) fn received(&mut self) {
        self.last = Instant::now();
        self.probe = None;
    }

    /// Notes that bytes were sent.
    pub(super) fn sent(&mut self) {
        self.last = Instant::now();
        if let Some(probe) = &mut self.probe {
            probe.spoken = true;
        }
    }

    /// Notes that something was posted where nothing was pending.
    pub(super) fn posted(&mut self) {
        self.last = Instant::now();
    }

    /// Returns when the peer is to be probed, if it is.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        let probe = self.probe.filter(|probe| probe.spoken)?;
        Some(self.last + probe.after)
    }

    /// Counts a probe, and sets the time of the next if any are left.
    pub(super) fn probed(&mut self) {
        self.probe = self.probe.and_then(|probe| {
            Some(Probe {
                after: probe.after * 4,
                left: probe.left.checked_sub(1).filter(|&left| left > 0)?,
                spoken: true,
            })
        });
        self.probes_sent += 1;
    }

    /// Returns the number of probes that were sent.
    pub(super) fn probes_sent(&self) -> u32 {
        self.probes_sent
    }
}
