//! The server: sessions on real sockets.
//!
//! Public for what is beside this crate, and no part of what [semantic versions](crate) are about.
//!
//! The main thread accepts; each worker is an event loop over its own connections; the keeper looks after the stores
//! once a second, and after signals; a thread of its own answers those who watch. They share the stores (a lock each) and
//! counters, nothing else.

mod activation;
mod background;
pub(crate) mod clock;
mod conn;
mod datagrams;
mod extended;
mod flags;
#[cfg(test)]
mod flags_noise;
mod http;
mod keeper;
mod listen;
mod process;
mod signals;
mod tls;
pub(crate) mod trace;
mod users;
mod worker;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser};

use crate::rdma::server::open::{Opened, Running};
use crate::session::{RESERVED, Shards, Shared, Tls, is_stopping};
use crate::store::Backing;
use background::Background;
use flags::{Flags, Plan};
use http::Hosts;
use listen::Doors;
use signals::Signals;
use tls::Certificates;

/// How long clients may go on after the server was asked to finish.
const FINISH: Duration = Duration::from_secs(30);

/// What may be asked, for manual pages and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

/// Runs the command: 0 when it ended as it should, 1 when something failed, 2 when it was called wrongly.
pub fn main() -> ExitCode {
    let flags = Flags::parse();
    if flags.license {
        println!("MIT OR Apache-2.0");
        return ExitCode::SUCCESS;
    }
    let plan = match flags.plan() {
        Ok(plan) => plan,
        Err(wrong) => {
            trace::say(wrong);
            return ExitCode::from(2);
        }
    };
    match run(&flags, plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            trace::say(wrong);
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags, mut plan: Plan) -> Result<(), String> {
    // Before anything else is opened: they are where systemd put them.
    let passed = activation::sockets()?;
    for note in &plan.notes {
        trace::say(note);
    }
    // As memcached does, it runs all the same.
    if passed.is_empty() && !plan.listens() {
        trace::say(
            "-p 0: nothing listens: name a TCP port (-p), a UDP port (-U), a Unix socket (-s) or a fabric (--fabric)",
        );
    }
    let descriptors = process::raise_descriptors();
    let wanted = plan.settings.maxconns as u64 + RESERVED;
    if descriptors < wanted {
        trace::say(format_args!(
            "{descriptors} descriptors for -c {}: raise ulimit -n to {wanted}",
            plan.settings.maxconns
        ));
    }
    if flags.coredumps {
        process::allow_cores().map_err(|error| format!("-r: {error}"))?;
    }
    let certificates = plan.certificates.take().map(Arc::new);
    let activated = !passed.is_empty();
    let mut doors = if activated {
        Doors::take(passed, certificates.as_ref())?
    } else {
        Doors::open(&plan.settings, &plan.places, certificates.as_ref())?
    };
    if let Some((host, port)) = plan.http.as_ref().filter(|_| doors.http.is_none()) {
        doors.watch(host, *port)?;
    }
    // The socket itself has to wait; but who has no place takes nobody's file with the process's number.
    if let Some(path) = plan.settings.socket.as_deref().filter(|_| !activated) {
        listen::is_left_over(path)?;
    }
    let background =
        if flags.daemon { Some(background::enter().map_err(|error| format!("-d: {error}"))?) } else { None };
    if let Some(file) = &flags.pidfile {
        process::write_number(file)?;
    }
    let served = as_user(flags, plan, doors, certificates, background, activated);
    if let Some(file) = &flags.pidfile {
        let _ = std::fs::remove_file(file);
    }
    served
}

/// What needs no privileges any more.
fn as_user(
    flags: &Flags,
    mut plan: Plan,
    mut doors: Doors,
    certificates: Option<Arc<Certificates>>,
    background: Option<Background>,
    activated: bool,
) -> Result<(), String> {
    if let Some(user) = plan.user.take().filter(|_| process::is_root()) {
        process::become_user(&user).map_err(|error| format!("-u: {error}"))?;
    }
    if let Some(path) = plan.settings.socket.clone().filter(|_| !activated) {
        doors.unix(&path, &plan.settings)?;
    }
    // Clients over fabrics speak no TLS on the socket beside.
    let plain = plan.settings.tls.is_empty();
    let mut fabrics = Opened::open(plan.fabrics, doors.port, plain)?;
    plan.store.incarnation = fabrics.incarnation();
    doors.said.extend(fabrics.said.iter().cloned());
    let threads = plan.settings.threads;
    let shards = match fabrics.memory() {
        Some(memory) => Shards::with_memory(&plan.store, threads, memory),
        None => Shards::new(&plan.store, threads),
    };
    let shards = shards.map_err(|error| format!("-m: mapping the arena: {error}"))?;
    if flags.lock_memory {
        process::lock_memory().map_err(|error| format!("-k: {error}; raise ulimit -l"))?;
    }
    let mut shared = Shared::new(shards, plan.settings, clock::now());
    shared.tls = certificates.map(|held| Tls::new(Box::new(move || held.refresh()), clock::now()));
    let shared = Arc::new(shared);
    shared.verbosity.store(u32::from(flags.verbose), Relaxed);
    shared.crawler.store(plan.crawler, Relaxed);
    shared.automove.store(plan.automove, Relaxed);
    shared.shards.each(|store| store.set_automove(plan.automove > 0));
    let signals = Signals::listen()?;
    if !fabrics.wait(|| signals.is_end_wanted())? {
        return Ok(());
    }
    let fabrics = fabrics.start(&shared, threads + 1)?;
    let _ = shared.fabrics.set(fabrics.fabrics().to_vec());
    let served = serve(&shared, &mut doors, &signals, (plan.users_file, plan.hosts), background, &fabrics);
    // Also where it failed.
    shared.stop.store(true, Relaxed);
    fabrics.end(&shared.shards);
    // Only now: a client that finds another server at the port does not read this one's memory any more.
    doors.close();
    served
}

/// What stands behind the items' memory, for the start-up lines.
fn backing(backing: Backing) -> &'static str {
    match backing {
        Backing::HugePages => "HugePages",
        Backing::Memfd => "Memfd",
        Backing::Anonymous => "Anonymous",
        Backing::Given => "Memfd (shared)",
    }
}

fn serve(
    shared: &Arc<Shared>,
    doors: &mut Doors,
    signals: &Signals,
    (users, hosts): (Option<String>, Hosts),
    background: Option<Background>,
    fabrics: &Running,
) -> Result<(), String> {
    let mut workers = Vec::new();
    shared.watchers.set_time(clock::since_1970);
    doors.list(shared);
    let mut sockets = std::mem::take(&mut doors.datagrams);
    for number in 0..shared.settings.threads {
        let started = worker::start(number, shared.clone(), std::mem::take(&mut sockets));
        workers.push(started.map_err(|error| format!("-t: starting worker {number}: {error}"))?);
    }
    let keeper = keeper::start(shared.clone(), signals.clone(), users)
        .map_err(|error| format!("starting the keeper: {error}"))?;
    let watch = doors.http.take().map(|listener| http::start(listener, shared.clone(), doors.said.clone(), hosts));
    let watch = watch.transpose().map_err(|error| format!("--http: starting its thread: {error}"))?;
    // Whoever reads these lines may connect.
    let settings = &shared.settings;
    let memory = format!("{} MB for items in {} shard(s)", settings.maxbytes >> 20, shared.shards.count());
    let said = format!(
        "{}\n{memory}, {}; {} threads, {} connections; SIGTERM ends it\n",
        doors.said.join("\n"),
        backing(shared.shards.at(0).backing()),
        settings.threads,
        settings.maxconns
    );
    let mut out = std::io::stdout().lock();
    // Without a reader the server serves all the same.
    let _ = out.write_all(said.as_bytes()).and_then(|()| out.flush());
    drop(out);
    if let Some(background) = background {
        let keep_errors = shared.verbosity.load(Relaxed) > 0;
        background.serves(keep_errors).map_err(|error| format!("-d: {error}"))?;
    }
    activation::ready(&format!("{}; {memory}", doors.said.join(", ")));
    let served = doors.serve(shared, &workers).map_err(|error| format!("accepting connections: {error}"));
    activation::stopping();
    if is_stopping(shared) {
        doors.shut();
    } else {
        // Its clients go on for a while, with this server's items. New ones are for another server, which may have the ports.
        doors.close();
    }
    let finished_at = Instant::now();
    while !is_stopping(shared) && served.is_ok() && finished_at.elapsed() < FINISH {
        if shared.connections.load(Relaxed) <= 0 && fabrics.connections() == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    shared.stop.store(true, Relaxed);
    for worker in &workers {
        let _ = worker.waker.wake();
    }
    for worker in workers {
        let _ = worker.thread.join();
    }
    let _ = keeper.join();
    if let Some(watch) = watch {
        watch.end();
    }
    served
}
