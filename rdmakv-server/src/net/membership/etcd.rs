//! The threads that wait for etcd.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rdmakv_cluster::config::Config;
use rdmakv_cluster::etcd::gateway::LeaseId;
use rdmakv_cluster::etcd::{Error, Etcd, Store, WatchEvent};
use rdmakv_cluster::facts::Fact;
use rdmakv_cluster::rights::Renewal;

use super::{Event, Place, Write};

/// How long a read may take, at least and at most.
const READ: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(1000));
/// Seconds of a lease in etcd, the least that it has.
const LEASE: u32 = 2;
/// The time between two renewals of that lease.
const RENEWAL: Duration = Duration::from_millis(500);
/// The time between two looks of the watch whether the server ends.
const LOOK: Duration = Duration::from_millis(500);
/// The pause after a failure of the watch.
const PAUSE: Duration = Duration::from_millis(200);

/// Returns how long a read may take: a quarter of the lease, so that some may fail before the right ends. The most without a configuration.
pub(super) fn read_time(config: Option<&Config>) -> Duration {
    config.map_or(READ.1, |config| (Duration::from_millis(config.lease_ms().into()) / 4).clamp(READ.0, READ.1))
}

/// Returns how long a write may take.
pub(super) fn write_time(config: Option<&Config>) -> Duration {
    read_time(config) * 2
}

/// Returns the store of the cluster.
pub(super) fn store(place: &Place, timeout: Duration) -> io::Result<Store> {
    Store::new(Etcd::new(place.endpoints.clone(), timeout), &place.name).map_err(io::Error::other)
}

/// Reads all keys for each renewal that comes.
pub(super) fn read(mut store: Store, renewals: &Receiver<Renewal>, events: &Sender<Event>) {
    while let Ok(renewal) = renewals.recv() {
        let view = store.read().map_err(|error| error.to_string());
        if let Ok(view) = &view {
            store.etcd().set_timeout(read_time(view.config()));
        }
        if events.send(Event::Read(renewal, view)).is_err() {
            return;
        }
    }
}

/// Sends each view that a watch shows, until `ends`.
pub(super) fn watch(mut store: Store, events: &Sender<Event>, ends: &dyn Fn() -> bool) {
    while !ends() {
        // A failure is the reader's to report.
        let Ok(mut view) = store.read() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        store.etcd().set_timeout(read_time(view.config()));
        let mut watch = store.watch(&view);
        if events.send(Event::Changed(view.clone())).is_err() {
            return;
        }
        while !ends() {
            match watch.wait(LOOK) {
                Ok(WatchEvent::Quiet) => {}
                Ok(WatchEvent::Changes(changes)) => {
                    // The configuration that cannot be decoded is left out. A read reports that.
                    let _ = store.apply(&mut view, &changes);
                    if events.send(Event::Changed(view.clone())).is_err() {
                        return;
                    }
                }
                Ok(WatchEvent::Compacted(_)) => break,
                Err(_) => {
                    std::thread::sleep(PAUSE);
                    break;
                }
            }
        }
    }
}

/// Does each write that comes, within its time, and keeps the lease of the facts that go with this run.
pub(super) fn write(store: Store, writes: &Receiver<(Duration, Write)>, events: &Sender<Event>) {
    let mut writer = Writer { store, lease: None, renewed: Instant::now() };
    loop {
        let write = match writes.recv_timeout(RENEWAL.saturating_sub(writer.renewed.elapsed())) {
            Ok((within, write)) => {
                writer.store.etcd().set_timeout(within);
                write
            }
            Err(RecvTimeoutError::Timeout) => {
                writer.renew();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return writer.end(),
        };
        let event = match write {
            Write::Facts { leased, lasting, removed } => {
                Event::Written(writer.facts(&leased, &lasting, &removed).map_err(|error| error.to_string()))
            }
            Write::Config(change) => {
                let written = writer.store.write(&change.0, &change.1);
                Event::Proposed(written.map(drop).map_err(|error| error.to_string()))
            }
        };
        if events.send(event).is_err() {
            return writer.end();
        }
        if writer.renewed.elapsed() >= RENEWAL {
            writer.renew();
        }
    }
}

struct Writer {
    store: Store,
    lease: Option<LeaseId>,
    renewed: Instant,
}

impl Writer {
    /// Writes and deletes facts; returns the revision that shows all of it.
    fn facts(&mut self, leased: &[Fact], lasting: &[Fact], removed: &[Fact]) -> Result<i64, Error> {
        let mut revision = 0;
        if !leased.is_empty() {
            let lease = match self.lease {
                Some(lease) => lease,
                None => self.store.etcd().grant(LEASE)?,
            };
            // A lease that is gone is asked for anew the next time.
            self.lease = None;
            revision = self.store.put(leased, Some(lease))?;
            self.lease = Some(lease);
        }
        if !lasting.is_empty() {
            revision = revision.max(self.store.put(lasting, None)?);
        }
        if !removed.is_empty() {
            revision = revision.max(self.store.remove(removed)?);
        }
        Ok(revision)
    }

    fn renew(&mut self) {
        self.renewed = Instant::now();
        if let Some(lease) = self.lease
            && let Ok(false) = self.store.etcd().renew(lease)
        {
            // The watch shows that the facts are gone, so they are written again, under another one.
            self.lease = None;
        }
    }

    /// Ends the lease, so that others see at once that this run is over.
    fn end(mut self) {
        if let Some(lease) = self.lease {
            let _ = self.store.etcd().revoke(lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_follow_the_lease() {
        let times = |lease| {
            let config = Config::with_lease(7, lease).unwrap();
            (read_time(Some(&config)).as_millis(), write_time(Some(&config)).as_millis())
        };
        assert_eq!([500, 2_000, 4_000, 60_000].map(times), [(250, 500), (500, 1_000), (1_000, 2_000), (1_000, 2_000)]);
        assert_eq!(read_time(None), READ.1);
    }
}
