//! The peer dies, or is stopped, at each step of each operation: the survivor gets its error and holds nothing.
//!
//! The peer is this test's own program, started again. It counts its calls to the fabric and ends itself before the one that
//! it was told. The loop goes on until a peer lives to the end.
#![allow(unsafe_code, reason = "buffers are lent to engines by address, and the peer ends itself")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/around.rs"]
mod around;

use around::{Around, Between};
use frrwp::engine::{Engine, Event};
use frrwp::fabric::iwarp::{self, IwarpDomain, IwarpEndpoint, IwarpListener, IwarpOptions};
use frrwp::fabric::{Completion, Endpoint};
use frrwp::handshake::{Limits, Process, RECEIVES, Side};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::Cache;
use mrrc::invalidation::Explicit;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Large enough that it takes the socket several times.
const LENGTH: usize = 6_000_000;
const SOON: Duration = Duration::from_secs(20);

/// Ends the process before a certain call of an endpoint.
struct Mortal {
    left: u64,
    signal: i32,
}

impl Mortal {
    fn step(&mut self) {
        if self.left == 0 {
            // SAFETY: `kill` takes numbers; a process may signal itself.
            unsafe { libc::kill(libc::getpid(), self.signal) };
        }
        self.left -= 1;
    }
}

impl Around for Mortal {
    type Inner = IwarpEndpoint;

    fn send(&mut self, message: &[u8], inner: &mut IwarpEndpoint) -> std::io::Result<()> {
        self.step();
        inner.send(message)
    }

    fn before_receive(&mut self) {
        self.step();
    }

    fn before_write(&mut self, _: Segment) -> std::io::Result<()> {
        self.step();
        Ok(())
    }

    fn before_read(&mut self, _: usize) -> std::io::Result<()> {
        self.step();
        Ok(())
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE], inner: &mut IwarpEndpoint) -> Option<Completion> {
        let polled = inner.poll(message);
        // Empty polls are as many as the machine likes.
        if polled.is_some() {
            self.step();
        }
        polled
    }

    fn before_wait(&mut self) {
        self.step();
    }
}

fn limits(process: Process) -> Limits {
    Limits { process, sync_time: 500_000_000, write_time: 500_000_000, ..Limits::default() }
}

fn options() -> IwarpOptions {
    IwarpOptions { stall: Duration::from_millis(400), checksums: false, ..IwarpOptions::default() }
}

fn process() -> Process {
    if std::env::var("PROCESS").as_deref() == Ok("traditional") { Process::Traditional } else { Process::Frrwp }
}

fn cache(domain: &IwarpDomain) -> Cache<IwarpDomain> {
    let builder = Cache::builder(domain.clone()).ignore_environment().monitor(Explicit).background(false);
    builder.capacity_pages(100_000).build().unwrap()
}

/// One transfer of each kind is opened by `opens`, and those of the peer are answered, until so many have ended or the
/// connection has. How many ended well, and whether the connection ended.
fn work<E: Endpoint<Domain = IwarpDomain>>(
    engine: &mut Engine<'_, E>,
    opens: bool,
    memory: &mut [Vec<u8>; 2],
) -> (usize, bool) {
    let [out, into] = [0, 1].map(|which: usize| memory[which].as_mut_ptr());
    let mut wanted = 2;
    if opens {
        // SAFETY: the memory outlives the engine, and has no other user.
        let (written, read) = unsafe { (engine.open_write(out, LENGTH, b"w"), engine.open_read(into, LENGTH, b"r")) };
        wanted = usize::from(written.is_ok()) + usize::from(read.is_ok());
    }
    let (mut well, mut ended) = (0, 0);
    while ended < wanted || !opens {
        match engine.run() {
            // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
            Some(Event::Requested { tag, read, length }) => unsafe {
                let length = usize::try_from(length).unwrap();
                let _ =
                    if read { engine.accept_read(tag, out, length) } else { engine.accept_write(tag, into, length) };
            },
            Some(Event::KeysCame { tag }) => drop(engine.submit(tag)),
            // Its end follows.
            Some(Event::Expired(_)) => {}
            Some(Event::Completed { result, .. }) => {
                ended += 1;
                well += usize::from(result.is_ok());
            }
            Some(Event::Closed { .. }) | None => return (well, true),
            Some(other) => panic!("{other:?}"),
        }
    }
    (well, false)
}

/// The peer's program.
#[test]
#[ignore = "started by the others"]
fn peer() {
    let Ok(address) = std::env::var("ADDRESS") else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let domain = IwarpDomain::new(IwarpOptions { stall: SOON, ..options() }).unwrap();
    let inner = iwarp::connect(&domain, &address, RECEIVES).unwrap();
    let cache = cache(&domain);
    let mortal = Between::new(inner, Mortal { left: number("STEP"), signal: number("SIGNAL") as i32 });
    let mut engine = Engine::new(&cache, mortal, Side::Connecting, limits(process()));
    let mut memory = [vec![1; LENGTH], vec![2; LENGTH]];
    let (well, _) = work(&mut engine, std::env::var_os("OPENS").is_some(), &mut memory);
    assert_eq!(well, 2);
}

/// This binary, running `peer`; ended with the test, also when it is stopped.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(address: &str, step: u64, signal: i32, process: Process, opens: bool) -> Peer {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "peer", "--ignored", "--nocapture"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("ADDRESS", address).env("STEP", step.to_string()).env("SIGNAL", signal.to_string());
    command.env("PROCESS", if process == Process::Traditional { "traditional" } else { "frrwp" });
    if opens {
        command.env("OPENS", "1");
    }
    Peer(command.spawn().unwrap())
}

/// A peer that ends itself before that call. Whether it got there.
fn scene(step: u64, signal: i32, process: Process, peer_opens: bool) -> bool {
    let domain = IwarpDomain::new(options()).unwrap();
    let mut listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    let mut peer = start(&format!("iwarp:{}", listener.address().unwrap()), step, signal, process, peer_opens);
    let endpoint = listener.accept(RECEIVES, Some(SOON)).unwrap();
    let cache = cache(&domain);
    let mut memory = [vec![3; LENGTH], vec![4; LENGTH]];
    let started = Instant::now();
    let died = {
        let mut engine = Engine::new(&cache, endpoint, Side::Accepting, limits(process));
        let (well, closed) = work(&mut engine, !peer_opens, &mut memory);
        if !closed && well == 2 {
            // It lives, or died after its last answer.
            engine.disconnect();
        }
        assert!(closed || well <= 2);
        well < 2
    };
    assert!(started.elapsed() < SOON, "step {step}: an error in time");
    if signal == libc::SIGSTOP {
        peer.0.kill().unwrap();
    }
    let status = peer.0.wait().unwrap();
    cache.flush().unwrap();
    assert_eq!((cache.usage().regions, domain.registrations()), (0, 0), "step {step}: nothing is held");
    use std::os::unix::process::ExitStatusExt;
    // A peer that was to be stopped was killed above, whether it had come to it or not.
    died || (signal != libc::SIGSTOP && status.signal().is_some())
}

/// All steps, or some of them.
fn scenes(signal: i32, stride: usize, openers: &[bool]) {
    for process in [Process::Frrwp, Process::Traditional] {
        for &peer_opens in openers {
            let mut steps = 0;
            for step in (0..).step_by(stride) {
                if !scene(step, signal, process, peer_opens) {
                    break;
                }
                steps += 1;
                assert!(step < 2_000, "it never lives to the end");
            }
            println!("{process:?}, peer opens {peer_opens}: ended before {steps} calls");
            assert!(steps > 1);
        }
    }
}

#[test]
fn peer_killed_at_any_step_costs_only_its_transfers() {
    scenes(libc::SIGKILL, 1, &[false, true]);
}

#[test]
#[ignore = "a minute: each step is a time-out"]
fn peer_stopped_at_any_step_costs_its_transfers() {
    // A side that has opened nothing waits for nothing, and hears nothing of a peer that is stopped.
    scenes(libc::SIGSTOP, 1, &[false]);
}

#[test]
fn peer_stopped_later_costs_only_its_transfers() {
    for step in [0, 4] {
        assert!(scene(step, libc::SIGSTOP, Process::Frrwp, false));
    }
}
