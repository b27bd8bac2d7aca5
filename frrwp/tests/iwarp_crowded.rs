//! An iWARP listener under peers that connect and stay silent, and without descriptors.
#![allow(unsafe_code, reason = "limits of this process, and its CPU time")]
#![allow(clippy::unwrap_used, reason = "tests")]

use frrwp::fabric::iwarp::{self, IwarpDomain, IwarpError, IwarpListener, IwarpOptions};
use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SILENT: usize = 1_000;
/// Descriptors of a server that is to run out.
const FEW: u64 = 48;

fn limit_files(most: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is this function's own, and lives.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = most.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    // SAFETY: zeroes are a usage, which lives.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1_000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
}

/// Nothing is given up for the time that it takes: what ends was evicted.
fn listening() -> (IwarpDomain, IwarpListener) {
    let domain =
        IwarpDomain::new(IwarpOptions { set_up: Duration::from_secs(120), ..IwarpOptions::default() }).unwrap();
    let listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    (domain, listener)
}

#[test]
fn silent_sockets_lock_no_client_out() {
    limit_files(8_192);
    let (domain, mut listener) = listening();
    let address = listener.address().unwrap();
    let done = AtomicBool::new(false);
    let rounds = SILENT / 100;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut endpoints = Vec::new();
            while !done.load(Relaxed) {
                endpoints.extend(listener.accept(8, Some(Duration::from_millis(10))).ok());
            }
            (endpoints.len(), listener.evicted())
        });
        let client =
            IwarpDomain::new(IwarpOptions { set_up: Duration::from_secs(60), ..IwarpOptions::default() }).unwrap();
        let mut sockets = Vec::new();
        let mut refused = Vec::new();
        for round in 0..rounds {
            sockets.extend(silent(address, 100));
            if let Err(error) = iwarp::connect(&client, &format!("iwarp:{address}"), 8) {
                refused.push(format!("round {round}: {error}"));
            }
        }
        done.store(true, Relaxed);
        let (served, evicted) = serving.join().unwrap();
        assert!(refused.is_empty(), "{} of {rounds} clients were locked out: {:?}", refused.len(), refused.first());
        // All but the 64 that may be half open, and one for each client, while that was half open too.
        let expected = SILENT as u64 - 64..=(SILENT - 64 + rounds) as u64;
        assert!(served == rounds && expected.contains(&evicted), "{served} served, {evicted} evicted");
    });
    drop(domain);
}

/// Two listeners of one process with few descriptors, one of which is flooded.
#[test]
fn one_listener_leaves_descriptors_for_the_other() {
    let (mut server, address) = Server::new("server_with_two_listeners");
    let other: SocketAddr = server.says("and ").parse().unwrap();
    let _sockets = silent(other, 3 * FEW as usize);
    let client = IwarpDomain::new(IwarpOptions::default()).unwrap();
    for round in 0..5 {
        let connected = iwarp::connect(&client, &format!("iwarp:{address}"), 8);
        assert!(connected.is_ok(), "round {round}: {:?}", connected.err());
    }
    server.hears("enough");
    assert_eq!(server.says("served "), "5 0", "connections, reports of times of want");
}

#[test]
#[ignore = "the other process of a test"]
fn server_with_two_listeners() {
    if !is_server() {
        return;
    }
    limit_files(FEW);
    let (_domain, mut listener) = listening();
    let (_other_domain, mut other) = listening();
    println!("listening {}", listener.address().unwrap());
    println!("and {}", other.address().unwrap());
    std::thread::spawn(move || while other.accept(8, None).is_err() {});
    let (served, reports) = serve(&mut listener);
    println!("served {served} {reports}");
}

#[test]
fn silent_sockets_are_given_up_in_time() {
    let options = IwarpOptions { set_up: Duration::from_millis(100), ..IwarpOptions::default() };
    let mut listener = IwarpListener::bind(&IwarpDomain::new(options).unwrap(), "iwarp:127.0.0.1:0").unwrap();
    let sockets = silent(listener.address().unwrap(), 20);
    let until = Instant::now() + Duration::from_secs(20);
    while listener.refused() < 20 {
        assert!(Instant::now() < until, "{} of 20", listener.refused());
        assert!(matches!(listener.accept(8, Some(Duration::from_millis(50))), Err(IwarpError::TimedOut { .. })));
    }
    assert_eq!(listener.evicted(), 0);
    assert!(matches!(listener.last_refused(), Some(IwarpError::TimedOut { what: "MPA request", .. })));
    drop(sockets);
}

/// A server in a process of its own, which says a line at a time and hears a line at a time.
struct Server {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
    hears: ChildStdin,
}

impl Server {
    fn new(test: &str) -> (Self, SocketAddr) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env("FRRWP_CROWDED", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let hears = child.stdin.take().unwrap();
        let mut server = Self { child, said, hears };
        let address = server.says("listening ").parse().unwrap();
        (server, address)
    }

    fn says(&mut self, first: &str) -> String {
        loop {
            let line = self.said.next().expect("it still speaks").unwrap();
            // The harness says something too, and not always a whole line.
            if let Some((_, rest)) = line.split_once(first) {
                return rest.to_owned();
            }
        }
    }

    fn hears(&mut self, line: &str) {
        writeln!(self.hears, "{line}").unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_server() -> bool {
    std::env::var_os("FRRWP_CROWDED").is_some()
}

/// Serves until a line is heard: connections, and reports of descriptors that ran out.
fn serve(listener: &mut IwarpListener) -> (usize, usize) {
    let heard = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()).unwrap());
    let (mut endpoints, mut reports) = (Vec::new(), 0);
    loop {
        // Connections from before the line are still taken.
        let is_over = heard.is_finished();
        match listener.accept(8, Some(Duration::from_millis(20))) {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(IwarpError::Descriptors { .. }) => reports += 1,
            Err(IwarpError::TimedOut { .. }) if is_over => break,
            Err(IwarpError::TimedOut { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    (endpoints.len(), reports)
}

#[test]
#[ignore = "the other process of a test"]
fn server_with_few_descriptors() {
    if !is_server() {
        return;
    }
    limit_files(FEW);
    let (_domain, mut listener) = listening();
    // The half-open connections leave some; what else the process does has most of those.
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    files.truncate(files.len() - 10);
    println!("listening {}", listener.address().unwrap());
    let (served, reports) = serve(&mut listener);
    println!("served {served} {reports} {}", listener.shortages());
}

#[test]
fn silent_sockets_beyond_descriptors_lock_none_out() {
    let (mut server, address) = Server::new("server_with_few_descriptors");
    let client = IwarpDomain::new(IwarpOptions { set_up: Duration::from_secs(60), ..IwarpOptions::default() }).unwrap();
    let mut sockets = Vec::new();
    for round in 0..5 {
        sockets.extend(silent(address, 2 * FEW as usize));
        let connected = iwarp::connect(&client, &format!("iwarp:{address}"), 8);
        assert!(connected.is_ok(), "round {round}: {:?}", connected.err());
    }
    // They leave, and it goes on.
    drop(sockets);
    assert!(iwarp::connect(&client, &format!("iwarp:{address}"), 8).is_ok());
    server.hears("enough");
    assert_eq!(server.says("served "), "6 1 1", "connections, reports, times of want");
}

#[test]
#[ignore = "the other process of a test"]
fn server_without_descriptors() {
    if !is_server() {
        return;
    }
    limit_files(FEW);
    let (_domain, mut listener) = listening();
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    println!("listening {}", listener.address().unwrap());
    let before = cpu_time();
    let (served, reports) = serve(&mut listener);
    println!("served {served} {reports} {}", (cpu_time() - before).as_millis());
    files.clear();
    let (served, reports) = serve(&mut listener);
    println!("served {served} {reports} {}", listener.shortages());
}

#[test]
fn a_listener_without_descriptors_rests_and_recovers() {
    let (mut server, address) = Server::new("server_without_descriptors");
    let client = IwarpDomain::new(IwarpOptions { set_up: Duration::from_secs(30), ..IwarpOptions::default() }).unwrap();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| iwarp::connect(&client, &format!("iwarp:{address}"), 8).map(drop));
        // Time to spin in.
        std::thread::sleep(Duration::from_secs(1));
        server.hears("enough");
        let said = server.says("served ");
        let spent: u64 = said.strip_prefix("0 1 ").expect(&said).parse().unwrap();
        assert!(spent < 200, "{spent} ms of CPU time in a second without descriptors");
        // The client has waited, and is served.
        connecting.join().unwrap().unwrap();
        server.hears("enough");
        assert_eq!(server.says("served "), "1 0 1", "connections, reports, times of want");
    });
}
