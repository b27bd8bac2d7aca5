//! The configuration of a client's cluster: its servers, and where keys are.
//!
//! [`Layout`] is one epoch of it. [`Latest`] never goes back to a lower epoch or to another cluster. [`Membership`] has a thread that reads
//! the configuration from etcd, and follows a watch from then on.

use super::error::Error;
use rdmakv_cluster::config::{Config, Epoch, Policy, ServerId, State};
use rdmakv_cluster::etcd::{self, Endpoint, Etcd, Store, WatchEvent};
use rdmakv_cluster::facts::View;
use rdmakv_cluster::helper::Target;
use rdmakv_cluster::placement::Placement;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long etcd has for an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the thread waits for news at a time.
const NEWS: Duration = Duration::from_millis(250);
/// How often the configuration is read though the watch shows nothing: a silent watch may be broken.
const READ_EVERY: Duration = Duration::from_secs(30);
/// The pause after etcd did not answer, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The servers of one epoch, and the places of keys.
#[derive(Debug)]
pub(super) struct Layout {
    config: Config,
    placement: Placement,
}

impl Layout {
    pub(super) fn of(config: &Config) -> Self {
        Self { placement: Placement::of(config), config: config.clone() }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.config.epoch()
    }

    /// Returns the policy of a key.
    pub(super) fn policy(&self, key: &[u8]) -> Policy {
        self.config.policy(key)
    }

    /// Returns how many servers serve.
    pub(super) fn live(&self) -> usize {
        self.config.servers().iter().filter(|server| server.state != State::Joining).count()
    }

    /// Returns the first server of a key, whatever its policy.
    pub(super) fn primary(&self, key: &[u8]) -> Option<ServerId> {
        self.placement.primary(key)
    }

    /// Returns where the calls for a key go.
    pub(super) fn target(&self, key: &[u8]) -> Target {
        let group = self.placement.group(key, self.policy(key).group_size());
        Target { cluster: self.config.uuid(), epoch: self.epoch(), members: group.all().collect() }
    }
}

/// The latest configuration that a client knows.
#[derive(Debug)]
pub(super) struct Latest(Arc<Layout>);

impl Latest {
    pub(super) fn new(config: &Config) -> Self {
        Self(Arc::new(Layout::of(config)))
    }

    pub(super) fn get(&self) -> &Arc<Layout> {
        &self.0
    }

    /// Takes a configuration if it is of this cluster and of a later epoch. Returns whether it did.
    pub(super) fn offer(&mut self, config: &Config) -> bool {
        let is_later = config.supersedes(&self.0.config);
        if is_later {
            self.0 = Arc::new(Layout::of(config));
        }
        is_later
    }
}

/// The cluster of a client, kept up to date by a thread.
///
/// The thread ends within seconds after this is dropped: it may wait for etcd.
#[derive(Debug)]
pub(super) struct Membership {
    shared: Arc<Shared>,
    endpoints: Vec<Endpoint>,
    name: String,
    /// The process that has the thread.
    process: u32,
}

#[derive(Debug)]
struct Shared {
    /// The epoch of the latest configuration, which a client looks at before each operation.
    epoch: AtomicU32,
    state: Mutex<Shown>,
    news: Condvar,
}

#[derive(Debug)]
struct Shown {
    latest: Latest,
    is_over: bool,
}

impl Membership {
    /// Reads the configuration, at most so long, and follows it from then on.
    pub(super) fn open(endpoints: &str, name: &str, longest: Duration) -> Result<Self, Error> {
        let endpoints = Endpoint::list(endpoints).map_err(|why| configuration(&why))?;
        let mut first = store(&endpoints, name, ANSWER.min(longest)).map_err(|why| configuration(&why))?;
        let view = first.read().map_err(|why| configuration(&why))?;
        let none = || configuration(&etcd::Error::NoCluster(name.to_owned()));
        let latest = Latest::new(view.config().ok_or_else(none)?);
        let this = Self { shared: Shared::new(latest), endpoints, name: name.to_owned(), process: std::process::id() };
        let store = store(&this.endpoints, name, ANSWER).map_err(|why| configuration(&why))?;
        this.follow(store, view)?;
        Ok(this)
    }

    /// Starts a thread in a child of a fork, which has not got the one of before.
    pub(super) fn begin_anew(&mut self, layout: &Layout) {
        // The lock of before may be held by a thread that is not here.
        let shared = Shared::new(Latest::new(&layout.config));
        std::mem::forget(std::mem::replace(&mut self.shared, shared));
        self.process = std::process::id();
        // Without a thread the child goes on with the epoch that it knows, and its operations end in time.
        if let Ok(store) = store(&self.endpoints, &self.name, ANSWER) {
            let _ = self.follow(store, View::default());
        }
    }

    /// Returns the latest epoch that is known.
    #[inline]
    pub(super) fn epoch(&self) -> Epoch {
        // The configuration itself is read under the lock.
        Epoch(self.shared.epoch.load(Ordering::Relaxed))
    }

    /// Returns the latest configuration that is known.
    pub(super) fn layout(&self) -> Arc<Layout> {
        Arc::clone(self.shared.lock().latest.get())
    }

    /// Waits for an epoch after this one, at most so long.
    pub(super) fn wait(&self, after: Epoch, longest: Duration) {
        let shown = self.shared.lock();
        let is_old = |shown: &mut Shown| shown.latest.get().epoch() <= after;
        drop(self.shared.news.wait_timeout_while(shown, longest, is_old));
    }

    fn follow(&self, mut store: Store, mut view: View) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let run = move || {
            let mut pause = PAUSE.0;
            while !shared.lock().is_over {
                // A configuration that cannot be decoded, or etcd without an answer: the epoch that is known stays.
                match shared.watch(&mut store, &mut view) {
                    Ok(()) => pause = PAUSE.0,
                    Err(_) => {
                        shared.sleep(pause);
                        pause = (pause * 2).min(PAUSE.1);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("rdmakv-config".to_owned()).spawn(run);
        thread.map(drop).map_err(|error| Error::Configuration { why: format!("follow cluster {}: {error}", self.name) })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // In a child of a fork the thread is not here, and the lock may be held for ever.
        if self.process == std::process::id() {
            self.shared.lock().is_over = true;
            self.shared.news.notify_all();
        }
    }
}

impl Shared {
    fn new(latest: Latest) -> Arc<Self> {
        let epoch = AtomicU32::new(latest.get().epoch().0);
        Arc::new(Self { epoch, state: Mutex::new(Shown { latest, is_over: false }), news: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        // Nothing panics while it is held, and what it guards is whole after each step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&self, longest: Duration) {
        drop(self.news.wait_timeout_while(self.lock(), longest, |shown| !shown.is_over));
    }

    fn offer(&self, view: &View) {
        let Some(config) = view.config() else { return };
        let mut shown = self.lock();
        if shown.latest.offer(config) {
            self.epoch.store(config.epoch().0, Ordering::Relaxed);
            self.news.notify_all();
        }
    }

    /// Reads the configuration, and follows changes until it is to be read again.
    fn watch(&self, store: &mut Store, view: &mut View) -> Result<(), etcd::Error> {
        let read = Instant::now();
        *view = store.read()?;
        self.offer(view);
        let mut watch = store.watch(view);
        while read.elapsed() < READ_EVERY && !self.lock().is_over {
            match watch.wait(NEWS)? {
                WatchEvent::Quiet => {}
                WatchEvent::Compacted(_) => break,
                WatchEvent::Changes(events) => {
                    let taken = store.apply(view, &events);
                    self.offer(view);
                    taken?;
                }
            }
        }
        Ok(())
    }
}

fn store(endpoints: &[Endpoint], name: &str, answer: Duration) -> Result<Store, rdmakv_cluster::facts::NameError> {
    Store::new(Etcd::new(endpoints.to_vec(), answer), name)
}

fn configuration(why: &dyn std::fmt::Display) -> Error {
    Error::Configuration { why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmakv_cluster::config::Incarnation;

    fn with_servers(uuid: u128, count: u64) -> Config {
        let join = |config: Config, run| {
            let addresses = vec![format!("tcp:127.0.0.1:{}", 11211 + run)];
            config.with_server(&format!("s{run}"), addresses, 1, Incarnation(run)).unwrap()
        };
        (0..count).fold(Config::new(uuid), join).whole().unwrap()
    }

    #[test]
    fn never_goes_back() {
        let first = with_servers(7, 3);
        let later = first.without_server(first.servers()[1].id).unwrap();
        let mut latest = Latest::new(&first);
        assert!(latest.offer(&later) && !latest.offer(&first) && !latest.offer(&later));
        assert_eq!(latest.get().epoch(), later.epoch());
        // A cluster that was made anew under the name of this one has other servers and other values.
        let other = (0..9).fold(with_servers(8, 3), |config, _| config.whole().unwrap());
        assert!(other.epoch() > later.epoch() && !latest.offer(&other));
        assert_eq!(latest.get().config().uuid(), 7);
    }

    #[test]
    fn a_child_of_a_fork_waits_for_no_lock() {
        let shared = Shared::new(Latest::new(&with_servers(7, 1)));
        // As after a fork while the parent's thread had the lock.
        let process = std::process::id() + 1;
        let membership =
            Membership { shared: Arc::clone(&shared), endpoints: Vec::new(), name: String::new(), process };
        let held = shared.lock();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(membership);
            done.send(())
        });
        is_done.recv_timeout(Duration::from_secs(60)).expect("the drop waits for the lock");
        assert!(!held.is_over);
    }

    #[test]
    fn calls_go_to_all_members_of_a_key() {
        let config = with_servers(7, 4).with_policy(b"a", Policy::Copies(3)).unwrap();
        let layout = Layout::of(&config);
        assert_eq!((layout.policy(b"a1"), layout.policy(b"b"), layout.live()), (Policy::Copies(3), Policy::None, 4));
        let target = layout.target(b"a1");
        assert_eq!((target.members.len(), target.epoch), (3, config.epoch()));
        assert_eq!(layout.target(b"b").members.len(), 1);
        // One that drains serves on, and its successor takes every write.
        let drains = Layout::of(&config.draining(target.members[0]).unwrap());
        let wider = drains.target(b"a1");
        assert_eq!((wider.members.len(), wider.members[..3].to_vec()), (4, target.members));
    }
}
