//! The start of the server and its end: flags, privileges, threads, signals.
//!
//! Public for what is beside this crate, and no part of what [semantic versions](crate) are about.
//!
//! The main thread accepts; each worker is an event loop over its own connections; maintenance looks after the stores once
//! a second, and after signals; a thread of its own answers monitoring. They share the stores (a lock each) and counters,
//! nothing else.

mod activation;
mod background;
mod cluster;
mod extended;
mod flags;
#[cfg(test)]
mod flags_fuzz;
mod flash;
mod maintenance;
mod plan;
mod populate;
mod process;
mod signals;
mod users;
mod warm;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser};

use rdmakv_cluster::config::Incarnation;
use rdmakv_proto::clock;

use crate::disk::BackingThread;
use crate::fabric::open::{Opened, Running};
use crate::http::{self, Hosts};
use crate::kernel::{self, Kernel};
use crate::log;
use crate::net::listen::{self, Listeners, Patience};
use crate::net::membership;
use crate::net::tls::Certificates;
use crate::net::worker;
use crate::session::{Cluster, RESERVED, Shards, Shared, Tls, is_stopping};
use crate::store::Backing;
use background::Background;
use cluster::ClusterPlan;
use flags::Flags;
use flash::{PreparedFlash, RunningFlash};
use plan::Plan;
use signals::Signals;
use warm::Warm;

/// How long clients may go on after the server was asked to finish.
const FINISH: Duration = Duration::from_secs(30);

/// Megabytes of the kernel's memory that take it a while.
const SLOW_MB: u64 = 1024;
/// How long the server before may hold a port, where it may have the file of `-e`.
const PORT: Duration = Duration::from_secs(5);

/// Returns the command line's definition, for manual pages and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

/// Runs the command: 0 when it ended as it should, 1 when something failed, 2 when it was called wrongly.
pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// Runs the command with these arguments, of which the first is the program's name; returns its exit status as [`main`] does.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let flags = Flags::parse_from(arguments);
    if flags.license {
        println!("MIT OR Apache-2.0");
        return ExitCode::SUCCESS;
    }
    let plan = match flags.plan() {
        Ok(plan) => plan,
        Err(wrong) => {
            log::print(wrong);
            return ExitCode::from(2);
        }
    };
    match run(&flags, plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            log::print(wrong);
            ExitCode::FAILURE
        }
    }
}

/// Checks arguments, of which the first is the program's name, and reads the files that they name. Nothing is started.
///
/// # Errors
/// What the command would print.
pub fn check(arguments: impl IntoIterator<Item = OsString>) -> Result<(), String> {
    let flags = Flags::try_parse_from(arguments).map_err(|error| error.to_string())?;
    flags.plan().map(drop)
}

/// Returns what `FILE.meta` of `-e` says, as it would be written; `None` if it is not believed to be one.
pub fn reread_meta(bytes: &[u8]) -> Option<Vec<u8>> {
    warm::reread(bytes)
}

fn run(flags: &Flags, mut plan: Plan) -> Result<(), String> {
    // Before anything else is opened: they are where systemd put them.
    let passed = activation::sockets()?;
    for note in &plan.notes {
        log::print(note);
    }
    // As memcached does, it runs all the same.
    if passed.is_empty() && !plan.listens() {
        log::print(
            "-p 0: nothing listens: name a TCP port (-p), a UDP port (-U), a Unix socket (-s) or a fabric (--fabric)",
        );
    }
    let descriptors = process::raise_descriptors();
    let wanted = plan.settings.maxconns as u64 + RESERVED;
    if descriptors < wanted {
        log::print(format_args!(
            "{descriptors} descriptors for -c {}: raise ulimit -n to {wanted}",
            plan.settings.maxconns
        ));
    }
    if flags.coredumps {
        process::allow_cores().map_err(|error| format!("-r: {error}"))?;
    }
    let certificates = plan.certificates.take().map(Arc::new);
    let activated = !passed.is_empty();
    let file = plan.memory_file.clone();
    let is_ending = || file.as_deref().is_some_and(warm::is_ending);
    let patience = file.is_some().then(|| Patience { until: Instant::now() + PORT, is_ending: &is_ending });
    let mut listeners = if activated {
        Listeners::take(passed, certificates.as_ref())?
    } else {
        Listeners::open(&plan.settings, &plan.places, certificates.as_ref(), patience.as_ref())?
    };
    if let Some((host, port)) = plan.http.as_ref().filter(|_| listeners.http.is_none()) {
        listeners.watch(host, *port, patience.as_ref())?;
    }
    // The socket itself has to wait; but a server without a place takes no other's file with the process's number.
    if let Some(path) = plan.settings.socket.as_deref().filter(|_| !activated) {
        listen::is_left_over(path)?;
    }
    let background =
        if flags.daemon { Some(background::enter().map_err(|error| format!("-d: {error}"))?) } else { None };
    if let Some(file) = &flags.pidfile {
        process::write_number(file)?;
    }
    let served = as_user(flags, plan, listeners, certificates, background, activated);
    if let Some(file) = &flags.pidfile {
        let _ = std::fs::remove_file(file);
    }
    served
}

/// Does the work that needs no privileges any more.
fn as_user(
    flags: &Flags,
    mut plan: Plan,
    mut listeners: Listeners,
    certificates: Option<Arc<Certificates>>,
    background: Option<Background>,
    activated: bool,
) -> Result<(), String> {
    // It takes privileges, which end here.
    let kernel = match plan.kernel.take() {
        Some(wanted) => Some(attach(&wanted, &plan, &mut listeners)?),
        None => None,
    };
    if let Some(user) = plan.user.take().filter(|_| process::is_root()) {
        process::become_user(&user).map_err(|error| format!("-u: {error}"))?;
    }
    if kernel.is_some() && !process::is_root() {
        process::drop_capabilities().map_err(|error| format!("--xdp: giving up capabilities: {error}"))?;
    }
    if let Some(path) = plan.settings.socket.clone().filter(|_| !activated) {
        listeners.unix(&path, &plan.settings)?;
    }
    // Clients over fabrics speak no TLS on the socket beside.
    let plain = plan.settings.tls.is_empty();
    let keeps = plan.memory_file.is_some().then(|| plan.settings.socket.clone().unwrap_or_default());
    // Before the server's record: one that ends has both until all is written.
    let file = plan.memory_file.as_deref().map(|path| warm::lock(path, &plan.store, plan.flash.bytes())).transpose()?;
    if let Some(cluster) = &mut plan.cluster {
        cluster.place.tag_lease = (!plan.fabrics.places.is_empty()).then_some(plan.fabrics.lease);
    }
    let mut fabrics = Opened::open(plan.fabrics, listeners.port, plain, keeps.as_deref())?;
    plan.store.incarnation = fabrics.incarnation();
    listeners.said.extend(fabrics.said.iter().cloned());
    let flash_files = plan.flash.open(plan.memory_file.as_deref())?;
    for note in plan.flash.notes(&flash_files) {
        log::print(note);
    }
    let threads = plan.settings.threads;
    let mut warm = file.map(|file| {
        let (name, record) = fabrics.record();
        let address = warm::Address { name: name.to_owned(), record, incarnation: fabrics.incarnation() };
        Warm::open(file, (&mut plan.store, threads), address)
    });
    let shards = match (&kernel, fabrics.memory()) {
        (Some(kernel), _) => Shards::with_memory(&plan.store, threads, kernel.memory()),
        (None, Some(memory)) => Shards::with_memory(&plan.store, threads, memory),
        (None, None) => Shards::new(&plan.store, threads),
    };
    let shards = shards.map_err(|error| format!("-m: mapping the arena: {error}"))?;
    if let Some(kernel) = &kernel {
        kernel.list(&shards, plan.store.incarnation);
    }
    if flags.lock_memory {
        process::lock_memory().map_err(|error| format!("-k: {error}; raise ulimit -l"))?;
    }
    let mut shared = Shared::new(shards, plan.settings, clock::now());
    shared.tls = certificates.map(|held| Tls::new(Box::new(move || held.refresh()), clock::now()));
    if let Some(ClusterPlan { identity, dirty_limit, backing, .. }) = &plan.cluster {
        let shards = shared.shards.count();
        let cluster = Cluster::new(identity.clone(), Incarnation(rand::random()), shards);
        let cluster = cluster.with_dirty_limit(*dirty_limit);
        shared.join(Arc::new(if backing.is_some() { cluster.with_backing() } else { cluster }));
    }
    let shared = Arc::new(shared);
    if let Some(kernel) = &kernel {
        let _ = shared.kernel.set(kernel.reported());
    }
    shared.log.set_level(u32::from(flags.verbose));
    shared.crawler.store(plan.crawler, Relaxed);
    shared.automove.store(plan.automove, Relaxed);
    shared.shards.each(|store| store.set_automove(plan.automove > 0));
    let signals = Signals::listen()?;
    let shards = shared.shards.count() as u32;
    let flash = (!plan.flash.files.is_empty()).then(|| plan.flash.prepare(flash_files, &plan.store, shards));
    let flash = flash.transpose()?;
    // Up to here a start that fails leaves the items for the next one.
    if !fabrics.wait(|| signals.is_end_wanted())? {
        return Ok(());
    }
    // From here on it leaves them as a stop does, with a record that says so.
    let restored = restore(&shared, flash, warm.as_mut());
    let (fabrics, mut flash, started) = match restored {
        Ok(flash) => {
            let (fabrics, started) = fabrics.start(&shared, threads + 1);
            (fabrics, flash, started)
        }
        Err(why) => {
            fabrics.withdraw();
            return Err(why);
        }
    };
    let served = started.and_then(|()| {
        let _ = shared.fabrics.set(fabrics.fabrics().to_vec());
        if let Some(far) = fabrics.far() {
            let _ = shared.far.set(far);
        }
        let files = (plan.users_file, plan.hosts, plan.flash.said());
        let parts = (&fabrics, kernel.as_ref(), warm.as_ref(), plan.cluster.as_ref());
        // Items are back, so pages that they took are not populated.
        let populates = flags.preallocate.then(|| populate::start(shared.clone())).transpose();
        let populates = populates.map_err(|error| format!("--preallocate: starting its thread: {error}"))?;
        let served = serve(&shared, &mut listeners, &signals, files, background, parts);
        // It ends with the workers, which were told to.
        populates.into_iter().for_each(|thread| drop(thread.join()));
        served
    });
    // Also where it failed.
    shared.stop.store(true, Relaxed);
    let mut saved = Ok(());
    fabrics.end(&shared.shards, || {
        if let Some(warm) = &warm {
            saved = warm.save(&shared, flash.as_mut());
        }
    });
    drop(flash);
    // Only now: a client that finds another server at the port does not read this one's memory any more.
    listeners.close();
    served.and(saved)
}

/// Puts programs at the interfaces.
fn attach(wanted: &kernel::options::Plan, plan: &Plan, listeners: &mut Listeners) -> Result<Kernel, String> {
    let megabytes = plan.settings.maxbytes >> 20;
    if megabytes >= SLOW_MB {
        log::print(format_args!("--xdp: the kernel clears {megabytes} MiB for items first"));
    }
    let kernel = Kernel::attach(
        wanted,
        &kernel::Server {
            store: &plan.store,
            threads: plan.settings.threads,
            memory: plan.settings.maxbytes,
            sockets: listeners.datagram_addresses(),
            cas: plan.settings.cas,
        },
    )?;
    listeners.said.extend(kernel.said().iter().cloned());
    Ok(kernel)
}

/// Gives the shards their tiers, and brings items back.
///
/// # Errors
///
/// The tier that could not be started, and why. Items are left for the next start.
fn restore(
    shared: &Arc<Shared>,
    flash: Option<PreparedFlash>,
    warm: Option<&mut Warm>,
) -> Result<Option<RunningFlash>, String> {
    let Some(warm) = warm else { return flash.map(|flash| flash.start(shared, None)).transpose() };
    warm.begin().inspect_err(|_| warm.put_back())?;
    let kept = warm.on_flash();
    if kept.is_some() && flash.is_none() {
        warm.print("its items on flash are lost: this start has no --flash");
    }
    let flash = flash.map(|flash| flash.start(shared, kept.as_ref())).transpose();
    let flash = flash.inspect_err(|_| warm.put_back())?;
    drop(kept);
    warm.load(&shared.shards);
    Ok(flash)
}

/// Returns the backing of the items' memory, for the start-up lines.
fn backing(backing: Backing, is_kernels: bool) -> &'static str {
    match backing {
        Backing::Given if is_kernels => "a BPF map",
        Backing::HugePages => "HugePages",
        Backing::Memfd => "Memfd",
        Backing::Anonymous => "Anonymous",
        Backing::Given => "Memfd (shared)",
    }
}

/// The parts of a server that not each one has, besides fabrics.
type Parts<'a> = (&'a Running, Option<&'a Kernel>, Option<&'a Warm>, Option<&'a ClusterPlan>);

fn serve(
    shared: &Arc<Shared>,
    listeners: &mut Listeners,
    signals: &Signals,
    files: (Option<String>, Hosts, String),
    background: Option<Background>,
    parts: Parts<'_>,
) -> Result<(), String> {
    let mut threads = Threads::default();
    let served = serve_by(&mut threads, shared, listeners, signals, files, background, parts);
    // Before the workers end, also where serving failed.
    if let (_, Some(kernel), ..) = parts {
        kernel.end();
    }
    shared.stop.store(true, Relaxed);
    threads.end();
    served
}

/// The threads that serve and look after clients, except those of fabrics.
#[derive(Default)]
struct Threads {
    workers: Vec<worker::Reach>,
    maintenance: Option<JoinHandle<()>>,
    watch: Option<http::Watch>,
    membership: Option<membership::Running>,
    backing: Option<BackingThread>,
}

impl Threads {
    /// Waits for their ends, after the server was told to stop.
    fn end(self) {
        for worker in &self.workers {
            let _ = worker.waker.wake();
        }
        for worker in self.workers {
            let _ = worker.thread.join();
        }
        let _ = self.maintenance.map(JoinHandle::join);
        if let Some(watch) = self.watch {
            watch.end();
        }
        if let Some(membership) = self.membership {
            membership.end();
        }
        if let Some(backing) = self.backing {
            backing.end();
        }
    }
}

fn serve_by(
    threads: &mut Threads,
    shared: &Arc<Shared>,
    listeners: &mut Listeners,
    signals: &Signals,
    (users, hosts, flash): (Option<String>, Hosts, String),
    background: Option<Background>,
    (fabrics, kernel, warm, cluster): Parts<'_>,
) -> Result<(), String> {
    shared.watchers.set_time(clock::since_1970);
    listeners.list(shared);
    let mut sockets = std::mem::take(&mut listeners.datagrams);
    for number in 0..shared.settings.threads {
        let started = worker::start(number, shared.clone(), std::mem::take(&mut sockets));
        threads.workers.push(started.map_err(|error| format!("-t: starting worker {number}: {error}"))?);
    }
    let maintenance = maintenance::start(shared.clone(), signals.clone(), users, fabrics.upkeep());
    threads.maintenance = Some(maintenance.map_err(|error| format!("starting the maintenance thread: {error}"))?);
    let watch =
        listeners.http.take().map(|listener| http::start(listener, shared.clone(), listeners.said.clone(), hosts));
    threads.watch = watch.transpose().map_err(|error| format!("--http: starting its thread: {error}"))?;
    if let (Some(plan), Some(cluster)) = (cluster, &shared.cluster) {
        let membership = membership::start(&plan.place, cluster.clone(), shared.clone());
        threads.membership = Some(membership.map_err(|error| format!("--etcd: starting its threads: {error}"))?);
        let start = |path: &std::path::PathBuf| BackingThread::start(path.clone(), cluster.clone(), shared.clone());
        let backing = plan.backing.as_ref().map(start).transpose();
        threads.backing = backing.map_err(|error| format!("--backing: starting its thread: {error}"))?;
    }
    if let Some(kernel) = kernel {
        kernel.answer();
    }
    // A reader of these lines may connect.
    let settings = &shared.settings;
    let shards = shared.shards.count();
    let memory =
        format!("{} MiB for items in {shards} shard{}", settings.maxbytes >> 20, if shards == 1 { "" } else { "s" });
    let said = format!(
        "{}\n{memory}, {}{flash}; {} threads, {} connections; SIGTERM ends it\n",
        listeners.said.join("\n"),
        backing(shared.shards.at(0).backing(), kernel.is_some()),
        settings.threads,
        settings.maxconns
    );
    let mut out = std::io::stdout().lock();
    // Without a reader the server serves all the same.
    let _ = out.write_all(said.as_bytes()).and_then(|()| out.flush());
    drop(out);
    if let Some(background) = background {
        let keep_errors = shared.log.level() > 0;
        background.serves(keep_errors).map_err(|error| format!("-d: {error}"))?;
    }
    activation::ready(&format!("{}; {memory}", listeners.said.join(", ")));
    let served = listeners.serve(shared, &threads.workers).map_err(|error| format!("accepting connections: {error}"));
    activation::stopping();
    // First: another server may have the interface from now on.
    if let Some(kernel) = kernel {
        kernel.end();
    }
    warm.into_iter().for_each(Warm::announce_end);
    if is_stopping(shared) {
        listeners.shut();
    } else {
        // Its clients go on for a while, with this server's items. New ones are for another server, which may have the ports.
        listeners.close();
    }
    let finished_at = Instant::now();
    while !is_stopping(shared) && served.is_ok() && finished_at.elapsed() < FINISH {
        if shared.connections.load(Relaxed) <= 0 && fabrics.connections() == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    served
}
