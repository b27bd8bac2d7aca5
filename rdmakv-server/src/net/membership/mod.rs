//! The driver of the server's membership in a cluster: etcd, the pings of other servers, and time.
//!
//! All decisions are [`Membership`](rdmakv_cluster::membership::Membership)'s. One thread asks it for work and tells it what came of that. Reads of
//! etcd, writes to it, the watch, and the pings of each other server have threads of their own. So a slow write delays no renewal of the
//! right. Each wait is bounded.

mod agent;
mod etcd;
mod pings;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rdmakv_cluster::config::{Config, Incarnation, ServerId};
use rdmakv_cluster::detector::Clocks;
use rdmakv_cluster::etcd::Endpoint;
use rdmakv_cluster::facts::View;
use rdmakv_cluster::membership::{Action, Mismatch, Part};
use rdmakv_cluster::rights::Renewal;
use rdmakv_proto::clock;

use crate::log;
use crate::session::{Cluster, Shared, is_stopping};
pub(crate) use agent::Agent;
use pings::Pings;

/// The time between two looks for work.
const LOOK: Duration = Duration::from_millis(20);
/// The time between two steps that take keys into an epoch. Threads that wait for a shard get it then.
const STEP: Duration = Duration::from_micros(50);

/// A server that is removed sooner after it joined is likely one that the others do not reach.
const EARLY: Duration = Duration::from_secs(10);
/// Pings of this server to itself without an answer after which that is told.
const UNANSWERED: u32 = 2;

/// The place of a cluster in etcd.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The servers of etcd.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The name of the cluster.
    pub(crate) name: String,
    /// The first address of this server over TCP.
    pub(crate) address: String,
    /// The agent of this server, if it starts one.
    pub(crate) agent: Option<Agent>,
    /// How long tags of this server last, if it has a fabric.
    pub(crate) tag_lease: Option<Duration>,
}

/// The ends of work that other threads did.
enum Event {
    /// A read of all keys.
    Read(Renewal, Result<View, String>),
    /// A later view, of the watch.
    Changed(View),
    /// A write of facts: the revision of etcd.
    Written(Result<i64, String>),
    /// A proposal of a configuration, whatever came of it.
    Proposed(Result<(), String>),
    /// A server answered a ping, and told whether it has a right.
    Answered(ServerId, Incarnation, (Clocks, bool)),
    /// The run that answered at this server's own address, or why none did.
    PingedSelf(Result<Incarnation, String>),
    /// A server's address refused the connection.
    Refused(ServerId, Incarnation),
}

/// Returns whether an address is over TCP, where servers ping each other.
pub(crate) fn is_tcp(address: &str) -> bool {
    pings::tcp(address).is_some()
}

/// Returns whether no other machine reaches a server by this address.
pub(crate) fn leads_nowhere(address: &str) -> bool {
    pings::leads_nowhere(address)
}

/// The threads of a membership.
#[derive(Debug)]
pub(crate) struct Running(Vec<JoinHandle<()>>);

impl Running {
    /// Waits for their ends, after the server was told to stop.
    pub(crate) fn end(self) {
        for thread in self.0 {
            let _ = thread.join();
        }
    }
}

/// Starts the membership of a server of a cluster. It ends when the server stops.
///
/// # Errors
///
/// No thread.
pub(crate) fn start(place: &Place, cluster: Arc<Cluster>, shared: Arc<Shared>) -> io::Result<Running> {
    let (events, happened) = channel();
    let (reads, to_read) = sync_channel(1);
    let (writes, to_write) = sync_channel(2);
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| std::thread::Builder::new().name(name.into()).spawn(run);
    let mut threads = Vec::new();
    let store = |timeout| etcd::store(place, timeout);
    let (reader, writer, watcher) =
        (store(etcd::read_time(None))?, store(etcd::write_time(None))?, store(etcd::read_time(None))?);
    let tell = events.clone();
    threads.push(spawn("etcd-read", Box::new(move || etcd::read(reader, &to_read, &tell)))?);
    let tell = events.clone();
    threads.push(spawn("etcd-write", Box::new(move || etcd::write(writer, &to_write, &tell)))?);
    let (tell, ends) = (events.clone(), shared.clone());
    threads.push(spawn("etcd-watch", Box::new(move || etcd::watch(watcher, &tell, &|| is_stopping(&ends))))?);
    if let Some(agent) = place.agent.clone() {
        let ends = shared.clone();
        threads.push(spawn("agent", Box::new(move || agent.keep(&|| is_stopping(&ends))))?);
    }
    let (pings, name) = (Pings::new(events), place.name.clone());
    let driver = Driver {
        name,
        cluster,
        shared,
        reads,
        writes,
        pings,
        failing: false,
        mismatch: None,
        address: place.address.clone(),
        unanswered: 0,
        part: None,
        tag_lease: place.tag_lease,
    };
    threads.push(spawn("cluster", Box::new(move || driver.run(&happened)))?);
    Ok(Running(threads))
}

/// Work for the thread that writes to etcd.
enum Write {
    Facts {
        leased: Vec<rdmakv_cluster::facts::Fact>,
        lasting: Vec<rdmakv_cluster::facts::Fact>,
        removed: Vec<rdmakv_cluster::facts::Fact>,
    },
    Config(Box<(View, rdmakv_cluster::config::Config)>),
}

struct Driver {
    /// The cluster's name in etcd.
    name: String,
    cluster: Arc<Cluster>,
    shared: Arc<Shared>,
    reads: SyncSender<Renewal>,
    /// Writes, and how long each may take.
    writes: SyncSender<(Duration, Write)>,
    pings: Pings,
    /// The last operation on etcd failed, and that was printed.
    failing: bool,
    /// The difference of etcd that was printed last.
    mismatch: Option<Mismatch>,
    /// The address at which the others ping this server.
    address: String,
    /// Pings to itself in a row without an answer.
    unanswered: u32,
    /// The part that was printed last, and whether etcd had been read then.
    part: Option<(Part, bool)>,
    /// How long tags last, until that was compared with the cluster's lease.
    tag_lease: Option<Duration>,
}

impl Driver {
    fn run(mut self, happened: &Receiver<Event>) {
        while !is_stopping(&self.shared) {
            // Each round ends, whatever the membership wants: others need its lock.
            for _ in 0..64 {
                match self.cluster.next(&self.shared.shards, clock::boot()) {
                    Some(action) => self.act(action),
                    None => break,
                }
            }
            self.print_mismatch();
            self.print_part();
            let wait = if self.cluster.adopt_more(&self.shared.shards) { STEP } else { LOOK };
            match happened.recv_timeout(wait) {
                Ok(event) => {
                    self.take(event);
                    happened.try_iter().take(256).for_each(|event| self.take(event));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Read(renewal) => {
                if self.reads.try_send(renewal).is_err() {
                    self.cluster.membership().read_failed();
                }
            }
            Action::Ping(runs) => {
                let membership = self.cluster.membership();
                let address = |id| {
                    let server = membership.view().config().and_then(|config| config.server(id));
                    server.and_then(|server| server.addresses.iter().find_map(|address| pings::tcp(address)))
                };
                self.pings.send(&runs, address);
            }
            Action::PingSelf => {
                if let Some(address) = pings::tcp(&self.address) {
                    self.pings.send_to_self(address);
                }
            }
            Action::Write { leased, lasting, removed } => self.write(Write::Facts { leased, lasting, removed }),
            Action::Propose(config) => {
                let view = self.cluster.membership().view().clone();
                self.write(Write::Config(Box::new((view, config))));
            }
            Action::Empty => {
                let (now, mut membership) = (clock::boot(), self.cluster.membership());
                let lasted = Duration::from_nanos(membership.lasted(now).unwrap_or(0));
                membership.restart(Incarnation(rand::random()), now);
                self.unanswered = 0;
                if lasted < EARLY {
                    log::print(format_args!(
                        "cluster: this server was removed {lasted:.1?} after it joined, as when the others do not reach it at {}: \
                         correct --advertise, or see the network; it joins again after {:.0?}",
                        self.address,
                        Duration::from_nanos(membership.joins_in(now).0)
                    ));
                } else {
                    log::print("cluster: this server was removed: it drops its resilient values, and joins again");
                }
            }
            Action::Leave => {
                log::print("cluster: this server has drained: it ends");
                self.shared.stop.store(true, Relaxed);
            }
            // The keys go into the epoch in steps, or are held already.
            Action::Adopt | Action::Hold => {}
        }
    }

    fn write(&self, write: Write) {
        let within = etcd::write_time(self.cluster.membership().view().config());
        let sent = self.writes.try_send((within, write));
        if let Err(TrySendError::Full((_, write)) | TrySendError::Disconnected((_, write))) = sent {
            let mut membership = self.cluster.membership();
            match write {
                Write::Facts { .. } => membership.written(None),
                Write::Config(_) => membership.proposed(clock::boot(), false),
            }
        }
    }

    fn take(&mut self, event: Event) {
        let cluster = self.cluster.clone();
        let mut membership = cluster.membership();
        match event {
            Event::Read(renewal, Ok(view)) => {
                membership.read(renewal, view);
                if self.failing {
                    self.failing = false;
                    log::print("cluster: etcd answers again");
                }
            }
            Event::Read(_, Err(why)) => {
                membership.read_failed();
                self.print_failure(&why);
            }
            Event::Changed(view) => membership.changed(view),
            Event::Written(Ok(revision)) => membership.written(Some(revision)),
            Event::Written(Err(why)) => {
                membership.written(None);
                self.print_failure(&why);
            }
            Event::Proposed(result) => {
                membership.proposed(clock::boot(), result.is_ok());
                if let Err(why) = result {
                    self.print_failure(&why);
                }
            }
            Event::Answered(id, run, shown) => membership.answered(id, run, shown, clock::boot()),
            Event::Refused(id, run) => membership.refused(id, run),
            Event::PingedSelf(answer) => {
                if let Ok(run) = answer {
                    membership.reached(run);
                }
                let why = match answer {
                    Ok(run) if run == membership.run() => None,
                    Ok(_) => Some("another server answers there".to_owned()),
                    Err(why) => Some(why),
                };
                let wait = Duration::from_nanos(membership.joins_in(clock::boot()).1);
                self.print_unreached(why, wait);
            }
        }
    }

    /// Prints that this server does not reach itself, but not each time.
    fn print_unreached(&mut self, why: Option<String>, wait: Duration) {
        self.unanswered = if why.is_some() { self.unanswered.saturating_add(1) } else { 0 };
        if let Some(why) = why.filter(|_| self.unanswered == UNANSWERED) {
            log::print(format_args!(
                "cluster: this server does not reach itself at {}: {why}: correct --advertise; it joins as soon as it does, or in {:.0?} if \
                 only the others do",
                self.address, wait
            ));
        }
    }

    /// Prints a failure of etcd, but not each of a row.
    fn print_failure(&mut self, why: &str) {
        if !std::mem::replace(&mut self.failing, true) {
            log::print(format_args!("cluster: {why}"));
        }
    }

    /// Prints that etcd has another cluster than the one that this server belongs to, or none, and when it has it again.
    fn print_mismatch(&mut self) {
        let membership = self.cluster.membership();
        let mismatch = membership.mismatch();
        if std::mem::replace(&mut self.mismatch, mismatch) == mismatch {
            return;
        }
        let (name, own) = (&self.name, membership.config().map_or(0, Config::uuid));
        match mismatch {
            None => log::print(format_args!("cluster {name}: etcd has this server's cluster again")),
            Some(Mismatch::Gone) => log::print(format_args!(
                "cluster {name}: it is not in etcd any more (uuid {own:032x}): resilient keys are refused: restore etcd's data; or give \
                 them up: make the cluster by `rdmakv cluster init`, and restart all servers"
            )),
            Some(Mismatch::Other(other)) => log::print(format_args!(
                "cluster {name}: etcd has another cluster of this name (uuid {other:032x}, this server's is {own:032x}): resilient keys \
                 are refused: correct --etcd or --cluster; or restart this server: it joins the other one, without resilient values"
            )),
            Some(Mismatch::Earlier) => log::print(format_args!(
                "cluster {name}: etcd shows an earlier state than before, as after a restore: resilient keys are refused: restart all \
                 servers: they join again, without resilient values"
            )),
        }
    }

    fn print_part(&mut self) {
        let membership = self.cluster.membership();
        let (part, config) = (membership.part(), membership.view().config());
        let is_read = membership.view().revision() > 0;
        if self.part == Some((part, is_read)) {
            return;
        }
        let epoch = config.map_or(0, |config| config.epoch().0);
        match part {
            Part::Member(state) => {
                log::print(format_args!("cluster: this server is {state} in epoch {epoch}"));
                let lease = config.map_or(u32::MAX, Config::lease_ms);
                if let Some(why) = self.tag_lease.take().and_then(|tags| long_tags(tags, lease)) {
                    log::print(format_args!("cluster: {why}"));
                }
            }
            Part::Unknown if !is_read || membership.mismatch().is_some() => {}
            Part::Unknown => log::print("cluster: it does not exist: make it by `rdmakv cluster init`"),
            Part::Outside => {
                if let Some(why) = membership.obstacle() {
                    log::print(format_args!("cluster: {why}"));
                }
            }
            Part::Over | Part::Drained => {}
        }
        self.part = Some((part, is_read));
    }
}

/// Returns what is wrong with tags that last longer than a right does from its renewal on.
fn long_tags(tags: Duration, lease_ms: u32) -> Option<String> {
    let limit = u64::from(lease_ms) * 2 / 3;
    (tags.as_millis() >= u128::from(limit)).then(|| {
        format!(
            "--tag-lease {tags:?} is too long for the cluster's lease of {lease_ms} ms: clients read few resilient values one-sidedly, or \
             none: use less than {limit} ms, or make the cluster with a longer --lease"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_tags_are_told_with_their_limit() {
        let told = |tags, lease| long_tags(Duration::from_millis(tags), lease);
        assert_eq!((told(1000, 2000), told(1332, 2000), told(10, u32::MAX)), (None, None, None));
        let why = told(1333, 2000).unwrap();
        assert!(why.starts_with("--tag-lease 1.333s") && why.contains("use less than 1333 ms"), "{why}");
        assert!(told(60_000, 60_000).is_some());
    }
}
