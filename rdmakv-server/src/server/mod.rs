//! The server: sessions on real sockets.
//!
//! The main thread accepts; each worker is an event loop over its own connections; the keeper looks after the stores
//! once a second. They share the stores (a lock each) and counters, nothing else.

mod conn;
mod datagrams;
mod flags;
mod listen;
mod process;
mod worker;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use clap::Parser;

use crate::session::{Shards, Shared, is_stopping};
use flags::{Flags, Plan};
use listen::Doors;

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
            eprintln!("rdmakv-server: {wrong}");
            return ExitCode::from(2);
        }
    };
    match run(&flags, plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("rdmakv-server: {wrong}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags, plan: Plan) -> Result<(), String> {
    for note in &plan.notes {
        eprintln!("rdmakv-server: {note}");
    }
    let descriptors = process::raise_descriptors();
    let wanted = plan.settings.maxconns as u64 + 64;
    if descriptors < wanted {
        eprintln!(
            "rdmakv-server: {descriptors} descriptors for -c {}: raise ulimit -n to {wanted}",
            plan.settings.maxconns
        );
    }
    if flags.coredumps {
        process::allow_cores().map_err(|error| format!("-r: {error}"))?;
    }
    let doors = Doors::open(&plan.settings, &plan.places)?;
    if flags.daemon {
        process::daemonize().map_err(|error| format!("-d: {error}"))?;
    }
    if let Some(file) = &flags.pidfile {
        std::fs::write(file, format!("{}\n", std::process::id())).map_err(|error| format!("-P {file}: {error}"))?;
    }
    if let Some(user) = flags.user.as_deref().filter(|_| process::is_root()) {
        process::become_user(user).map_err(|error| format!("-u {user}: {error}"))?;
    }
    let shards =
        Shards::new(&plan.store, plan.settings.threads).map_err(|error| format!("-m: mapping the arena: {error}"))?;
    if flags.lock_memory {
        process::lock_memory().map_err(|error| format!("-k: {error}; raise ulimit -l"))?;
    }
    let backing = shards.at(0).backing();
    let shared = Arc::new(Shared::new(shards, plan.settings, worker::now()));
    shared.verbosity.store(u32::from(flags.verbose), Relaxed);
    shared.crawler.store(plan.crawler, Relaxed);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGUSR1] {
        signal_hook::flag::register(signal, stop.clone()).map_err(|error| format!("signal {signal}: {error}"))?;
    }
    let served = serve(&shared, doors, &stop, &format!("{backing:?}"));
    if let Some(file) = &flags.pidfile {
        let _ = std::fs::remove_file(file);
    }
    served
}

fn serve(shared: &Arc<Shared>, mut doors: Doors, stop: &Arc<AtomicBool>, backing: &str) -> Result<(), String> {
    let mut workers = Vec::new();
    let mut sockets = std::mem::take(&mut doors.datagrams);
    for number in 0..shared.settings.threads {
        let started = worker::start(number, shared.clone(), std::mem::take(&mut sockets));
        workers.push(started.map_err(|error| format!("-t: starting worker {number}: {error}"))?);
    }
    let keeper = std::thread::Builder::new()
        .name("keeper".into())
        .spawn({
            let (shared, stop) = (shared.clone(), stop.clone());
            move || keep(&shared, &stop)
        })
        .map_err(|error| format!("starting the keeper: {error}"))?;
    // Whoever reads these lines may connect.
    let mut said = doors.said.join("\n");
    let settings = &shared.settings;
    said.push_str(&format!(
        "\n{} MB for items in {} shard(s), {backing}; {} threads, {} connections; SIGTERM ends it\n",
        settings.maxbytes >> 20,
        shared.shards.count(),
        settings.threads,
        settings.maxconns
    ));
    let mut out = std::io::stdout().lock();
    // Without a reader the server serves all the same.
    let _ = out.write_all(said.as_bytes()).and_then(|()| out.flush());
    drop(out);
    let served = doors.serve(shared, &workers).map_err(|error| format!("accepting connections: {error}"));
    shared.stop.store(true, Relaxed);
    for worker in &workers {
        let _ = worker.waker.wake();
    }
    for worker in workers {
        let _ = worker.thread.join();
    }
    let _ = keeper.join();
    served
}

/// Looks after the stores: flushes that are due, pages that should move, items that have expired.
fn keep(shared: &Shared, stop: &AtomicBool) {
    /// Chunks that the crawler looks at while it holds a lock, and in a second at most.
    const PIECE: usize = 500;
    const A_SECOND: usize = 200_000;
    let mut ticked = 0;
    while !is_stopping(shared) {
        if stop.load(Relaxed) {
            shared.stop.store(true, Relaxed);
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        let now = worker::now();
        if now == ticked {
            continue;
        }
        ticked = now;
        let all = shared.crawl_now.swap(false, Relaxed);
        let crawl = all || shared.crawler.load(Relaxed);
        if crawl {
            shared.crawler_starts.fetch_add(1, Relaxed);
        }
        for shard in 0..shared.shards.count() {
            shared.shards.at(shard).tick(now);
            let mut left = if crawl { A_SECOND } else { 0 };
            while left > 0 && !shared.shards.at(shard).crawl(PIECE, now) {
                left -= PIECE;
            }
        }
    }
}
