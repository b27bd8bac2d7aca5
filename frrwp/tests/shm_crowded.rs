//! A shm listener under peers that connect and stay silent, and without descriptors; and limits that are errors.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "limits of processes")]

use frrwp::fabric::shm::{Sharing, ShmAddress, ShmDomain, ShmError, ShmListener, ShmOptions, connect};
use frrwp::fabric::{Completion, Endpoint, Listener};
use frrwp::wire::MESSAGE;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(30);
const ADDRESS: &str = "FRRWP_SHM_ADDRESS";
const SILENT: usize = 1_000;
/// Descriptors of a server that is to run out.
const FEW: u64 = 48;

fn domain() -> ShmDomain {
    ShmDomain::new(ShmOptions::default()).expect("a domain")
}

fn name() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("frrwp-crowded-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst))
}

fn address(name: &str) -> ShmAddress {
    format!("shm:@{name}").parse().expect("an address")
}

fn limit(what: libc::__rlimit_resource_t, most: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is this function's own, and lives.
    unsafe {
        assert_eq!(libc::getrlimit(what, &mut limit), 0);
        limit.rlim_cur = most.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(what, &limit), 0);
    }
}

/// Returns a connected socket that says nothing. A full backlog is waited for.
fn silent(name: &str) -> OwnedFd {
    let place = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
    let until = Instant::now() + WITHIN;
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = socket.expect("a socket");
        match rustix::net::connect(&socket, &place) {
            Ok(()) => return socket,
            Err(Errno::AGAIN | Errno::CONNREFUSED) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// This binary, running one of its tests.
struct Other(Child);

impl Other {
    fn of(
        test: &str,
        address: &ShmAddress,
        prepare: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(ADDRESS, address.to_string()).stdout(Stdio::null());
        // SAFETY: what is called makes system calls only.
        unsafe { command.pre_exec(prepare) };
        Self(command.spawn().expect("a child"))
    }

    fn end(&mut self) -> std::process::ExitStatus {
        self.0.wait().expect("its end")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn called() -> Option<ShmAddress> {
    Some(std::env::var(ADDRESS).ok()?.parse().expect("an address"))
}

#[test]
fn a_silent_peer_delays_no_other() {
    let name = name();
    let domain = domain();
    let listener = ShmListener::bind(&domain, &address(&name)).expect("a listener");
    // They came first.
    let sockets: Vec<_> = (0..20).map(|_| silent(&name)).collect();
    let other = self::domain();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&other, listener.address(), 8, WITHIN));
        let accepted = listener.accept(8, WITHIN);
        assert!(accepted.is_ok(), "the first that is told: {:?}", accepted.err());
        connecting.join().expect("no panic").expect("connected");
    });
    assert_eq!((listener.refused(), sockets.len()), (0, 20), "they may still speak");
}

#[test]
fn bad_peers_are_counted_and_passed_over() {
    let name = name();
    let domain = domain();
    let mut listener = ShmListener::bind(&domain, &address(&name)).expect("a listener");
    // They came first, and speak something else.
    let sockets: Vec<_> = (0..20).map(|_| silent(&name)).collect();
    for socket in &sockets {
        rustix::net::send(socket, b"GET / HTTP/1.1", SendFlags::NOSIGNAL).expect("it is connected");
    }
    let (other, there) = (self::domain(), address(&name));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&other, &there, 8, WITHIN));
        let next = Listener::next(&mut listener, 8, Some(WITHIN)).expect("no error of the listener's");
        assert!(next.is_some(), "the first that is told stands");
        connecting.join().expect("no panic").expect("connected");
    });
    assert_eq!((listener.unset(), listener.evicted()), (20, 0));
    let why = listener.last_unset().expect("it knows");
    assert!(why.contains(&name) && why.contains("does not speak this protocol"), "{why}");
}

#[test]
fn silent_sockets_lock_no_client_out() {
    limit(libc::RLIMIT_NOFILE, 8_192);
    let name = name();
    let domain = domain();
    let listener = ShmListener::bind(&domain, &address(&name)).expect("a listener");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Two threads accept: one watches at a time.
        let serve = || {
            let mut served = Vec::new();
            while !done.load(SeqCst) {
                served.extend(listener.accept(8, Duration::from_millis(10)).ok());
            }
            served.len()
        };
        let serving = [scope.spawn(serve), scope.spawn(serve)];
        let other = self::domain();
        let mut sockets = Vec::new();
        let mut refused = Vec::new();
        for _ in 0..SILENT / 100 {
            sockets.extend((0..100).map(|_| silent(&name)));
            refused.extend(connect(&other, listener.address(), 8, WITHIN).err());
        }
        done.store(true, SeqCst);
        let served: usize = serving.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        assert!(refused.is_empty(), "{} clients were locked out: {:?}", refused.len(), refused.first());
        assert_eq!(served, SILENT / 100);
        assert!(listener.evicted() >= (SILENT - 64) as u64, "{}", listener.evicted());
    });
}

#[test]
#[ignore = "the other process of a test"]
fn server_with_few_descriptors() {
    let Some(address) = called() else { return };
    limit(libc::RLIMIT_NOFILE, FEW);
    let listener = ShmListener::bind(&domain(), &address).expect("a listener");
    // The half-open connections leave some; what else the process does has most of those.
    let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    files.truncate(files.len() - 14);
    let (mut endpoints, mut reports) = (Vec::new(), 0);
    // The report may come after the last connection.
    while endpoints.len() < 5 || reports < listener.shortages() {
        match listener.accept(8, WITHIN) {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(ShmError::Descriptors { .. }) => reports += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // One report for each time of want, and not one for each of the rounds' many sockets.
    assert_eq!(reports, listener.shortages());
    assert!((1..=5).contains(&reports), "{reports}");
    // The last client may still be at its set-up: it needs a peer that lives.
    for endpoint in &mut endpoints {
        while endpoint.poll(&mut [0; MESSAGE]) != Some(Completion::Flushed) {
            endpoint.wait(None);
        }
    }
}

#[test]
fn silent_sockets_beyond_descriptors_lock_none_out() {
    let name = name();
    let address = address(&name);
    let mut server = Other::of("server_with_few_descriptors", &address, || Ok(()));
    let other = domain();
    let mut sockets = Vec::new();
    let mut endpoints = Vec::new();
    for round in 0..5 {
        sockets.extend((0..2 * FEW).map(|_| silent(&name)));
        let connected = connect(&other, &address, 8, WITHIN);
        assert!(connected.is_ok(), "round {round}: {:?}", connected.err());
        endpoints.extend(connected);
    }
    drop(endpoints);
    assert!(server.end().success(), "the server says what is wrong");
}

#[test]
#[ignore = "the other process of a test"]
fn process_with_a_limit_on_file_sizes() {
    let Some(_) = called() else { return };
    let made = domain();
    limit(libc::RLIMIT_FSIZE, 4_096);
    let error = ShmDomain::new(ShmOptions::default()).expect_err("too large a file");
    assert!(matches!(error, ShmError::FileSize { .. }) && error.to_string().contains("ulimit -f"), "{error}");
    let error = made.arena(1 << 20, Sharing::Writable).expect_err("too large a file");
    assert!(matches!(error, ShmError::FileSize { bytes: 1_048_576 }), "{error}");
    assert!(made.arena(4_096, Sharing::Writable).is_ok());
}

#[test]
fn a_limit_on_file_sizes_is_an_error() {
    let mut other = Other::of("process_with_a_limit_on_file_sizes", &address(&name()), || Ok(()));
    let status = other.end();
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "the other process of a test"]
fn process_of_an_unknown_user() {
    let Some(address) = called() else { return };
    let domain = domain();
    let listener = ShmListener::bind(&domain, &address).expect("a listener");
    let other = self::domain();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&other, &address, 8, Duration::from_secs(5)));
        let accepted = listener.accept(8, Duration::from_secs(5)).expect_err("anybody");
        assert!(matches!(accepted, ShmError::UnknownUser { .. }), "{accepted}");
        let connected = connecting.join().expect("no panic").expect_err("anybody");
        assert!(matches!(connected, ShmError::UnknownUser { .. }), "{connected}");
    });
}

#[test]
fn the_overflow_user_is_refused() {
    // A user namespace that knows no user: each appears as the overflow user.
    let unshare = || {
        // SAFETY: `unshare` takes a number and no memory.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER) } == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    let mut trial = Command::new("/bin/true");
    // SAFETY: what is called makes a system call only.
    unsafe { trial.pre_exec(unshare) };
    if !trial.status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: this system makes no user namespaces for this user");
        return;
    }
    let mut other = Other::of("process_of_an_unknown_user", &address(&name()), unshare);
    let status = other.end();
    assert!(status.success(), "{status}");
}
