//! A network that is cut in the middle of things: each end releases the other within the time, and goes on.
//!
//! Server and client are on hosts of their own, in network namespaces. The way that is cut is that of the fabric; TCP goes by another.

use std::time::Duration;

use rdmakv_client::{Client, Error, Options, Source};

use super::apart::{Cut, FAR, Hosts, NEAR};
use super::common::{Server, soon, stat, to};

/// A large value: on the slow network it takes nearly a second, so that a busy machine cuts it in the middle, too.
const LARGE: usize = 2 << 20;

/// A server and the ways to it.
struct World {
    hosts: Hosts,
    server: Server,
    tcp: String,
    iwarp: String,
    /// Files that the server has open without clients.
    files: usize,
}

fn files(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

fn value(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 255 + seed) as u8).collect()
}

impl World {
    fn new() -> Option<Self> {
        let hosts = Hosts::new()?;
        let flags = ["-p", "-1", "-l", "0.0.0.0", "-m", "64", "-I", "4m", "--tag-lease", "1s"];
        let more = ["--fabric", "iwarp:0.0.0.0:0", "--fabric-timeout", "1s"];
        let server = hosts.server.inside(|| Server::start(&[&flags[..], &more].concat()));
        let port = |text: &str| text.rsplit_once(':').unwrap().1.to_owned();
        let tcp = format!("{NEAR}:{}", port(&server.address("tcp")));
        let iwarp = format!("{FAR}:{}", port(&super::fabric(&server, "iwarp")));
        let mut world = Self { hosts, server, tcp, iwarp, files: 0 };
        // Threads have what they need from the first client on.
        world.hosts.client.inside(|| {
            let mut client = world.client(true);
            assert!(client.set("first", "value", ()).unwrap().is_stored() && client.fabric(0).is_some());
            drop(client);
            soon("that nobody is there", || world.stat("iwarp_connections") == 0);
        });
        world.files = files(world.server.process.id());
        Some(world)
    }

    fn client(&self, one_sided: bool) -> Client {
        let options = Options {
            timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(1),
            back_off: (Duration::from_millis(20), Duration::from_millis(100)),
            one_sided,
            ..Options::default()
        };
        let mut client = Client::with_options([format!("iwarp:{},tcp:{}", self.iwarp, self.tcp)], options).unwrap();
        soon("the fabric", || {
            client.progress();
            client.fabric(0).is_some()
        });
        client
    }

    fn stat(&self, name: &str) -> u64 {
        stat(&mut to(&self.tcp), name)
    }

    /// The server has nothing any more of the connection that was cut, and others are served all the while.
    fn lets_go(&self) {
        soon("that the connection is gone", || self.stat("iwarp_connections") == 0);
        soon("that nothing is leased", || self.stat("leased_chunks") == 0 && self.stat("iwarp_leased_pages") == 0);
        soon("that every chunk is an item's", || self.used() == self.stat("curr_items"));
        assert_eq!(self.stat("iwarp_faults"), 0);
    }

    fn used(&self) -> u64 {
        use std::io::{Read, Write};
        let (mut stream, mut slabs) = (to(&self.tcp), String::new());
        stream.write_all(b"stats slabs\r\nquit\r\n").unwrap();
        stream.read_to_string(&mut slabs).unwrap();
        let used = slabs.lines().filter_map(|line| line.split_once(":used_chunks ")?.1.trim().parse::<u64>().ok());
        used.sum()
    }

    /// The way is there again: so are one-sided reads. And when the client goes, nothing is left of it.
    fn goes_on(&self, mut client: Client) {
        self.hosts.mend();
        let mut plain = self.client(true);
        for (who, client) in [("who was cut off", &mut client), ("who comes anew", &mut plain)] {
            soon(&format!("that {who} has the fabric again"), || {
                let stored = client.set("again", "and again", ()).is_ok_and(|stored| stored.is_stored());
                let got = client.get("again").ok().flatten();
                stored && got.is_some_and(|value| &value[..] == b"and again") && client.fabric(0).is_some()
            });
        }
        soon("that one-sided reads are there", || {
            plain.get("again").ok().flatten().is_some_and(|value| value.source() == Source::OneSided)
        });
        assert_eq!((client.open(), plain.open()), (0, 0));
        drop((client, plain));
        soon("that no file is left", || files(self.server.process.id()) == self.files);
    }
}

fn timed_out(error: &Error) -> bool {
    matches!(error, Error::TimedOut { .. } | Error::Unreachable { .. })
}

/// Has a value read while the way is cut, after so many bytes of it.
fn read_cut(one_sided: bool, how: Cut) {
    let Some(world) = World::new() else { return };
    world.hosts.client.inside(|| {
        let mut client = world.client(one_sided);
        let large = value(LARGE, 1);
        assert!(client.set("large", &large, ()).unwrap().is_stored());
        assert_eq!(&client.get("large").unwrap().unwrap()[..], &large[..]);
        assert!(client.fabric(0).is_some());
        if !world.hosts.slow_down() {
            return;
        }
        let before = world.hosts.mark();
        let outcome = std::thread::scope(|scope| {
            let reader = scope.spawn(|| client.get("large"));
            world.hosts.cut_after(before, LARGE as u64 / 2, how);
            reader.join().unwrap()
        });
        match outcome {
            Ok(got) => assert!(got.unwrap()[..] == large[..], "a value comes whole"),
            Err(error) => assert!(timed_out(&error), "{error}"),
        }
        // It was in the middle.
        let counters = client.counters();
        assert_eq!(counters.one_sided, 0, "{counters:?}");
        let got = client.get("large").unwrap().unwrap();
        assert!(got[..] == large[..] && got.source() == Source::Socket, "{:?}", got.source());
        assert!(client.set("small", "1", ()).unwrap().is_stored());
        world.lets_go();
        soon("that the client lets go, too", || {
            client.progress();
            client.counters().lost_connections == 1
        });
        world.goes_on(client);
    });
}

#[test]
fn in_the_middle_of_a_read_by_tag() {
    read_cut(true, Cut::Silently);
}

#[test]
fn in_the_middle_of_a_transfer() {
    read_cut(false, Cut::Cable);
}

#[test]
fn server_read_of_client_memory_survives_cuts() {
    let Some(world) = World::new() else { return };
    world.hosts.client.inside(|| {
        let mut client = world.client(true);
        let (old, new) = (value(LARGE, 1), value(LARGE, 2));
        assert!(client.set("large", &old, ()).unwrap().is_stored());
        if !world.hosts.slow_down() {
            return;
        }
        let before = world.hosts.mark();
        let outcome = std::thread::scope(|scope| {
            let writer = scope.spawn(|| client.set("large", &new, ()));
            world.hosts.cut_after(before, LARGE as u64 / 2, Cut::Silently);
            writer.join().unwrap()
        });
        assert!(matches!(outcome, Err(Error::OutcomeUnknown { .. })), "{outcome:?}");
        // The server had half of it, which is no key's value; or, where the cut came late, all of it. Only reads are done again by
        // themselves.
        let got = client.get("large").unwrap().unwrap();
        assert!((got[..] == old[..] || got[..] == new[..]) && got.source() == Source::Socket);
        world.lets_go();
        assert_eq!(&client.get("large").unwrap().unwrap()[..], &got[..]);
        assert!(client.set("large", &new, ()).unwrap().is_stored());
        assert_eq!(&client.get("large").unwrap().unwrap()[..], &new[..]);
        world.goes_on(client);
    });
}

#[test]
fn while_nothing_happens() {
    let Some(world) = World::new() else { return };
    world.hosts.client.inside(|| {
        let mut client = world.client(true);
        assert!(client.set("small", "value", ()).unwrap().is_stored());
        for _ in 0..2 {
            assert_eq!(&client.get("small").unwrap().unwrap()[..], b"value");
        }
        assert_eq!(client.counters().one_sided, 1);
        world.hosts.cut(Cut::Silently);
        // No packet passes, and the server sees that the client is gone.
        world.lets_go();
        let first = client.get("small");
        assert!(first.as_ref().map_or_else(timed_out, Option::is_some), "{first:?}");
        let got = client.get("small").unwrap().unwrap();
        assert_eq!((&got[..], got.source()), (&b"value"[..], Source::Socket));
        assert!(client.delete("small").unwrap());
        world.goes_on(client);
    });
}

#[test]
fn where_no_other_way_is_left() {
    let Some(world) = World::new() else { return };
    world.hosts.client.inside(|| {
        let mut client = world.client(true);
        assert!(client.set("small", "value", ()).unwrap().is_stored());
        assert_eq!(&client.get("small").unwrap().unwrap()[..], b"value");
        world.hosts.cut(Cut::Silently);
        world.hosts.near(false);
        let error = client.set("small", "other", ()).unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
        for _ in 0..2 {
            let error = client.get("small").unwrap_err();
            assert!(timed_out(&error), "{error}");
        }
        world.hosts.near(true);
        soon("that the near way is found again", || std::net::TcpStream::connect(&world.tcp).is_ok());
        world.lets_go();
        // A way that failed just now is tried again after its back-off.
        let mut got = None;
        soon("that a way is tried again", || {
            got = client.get("small").ok();
            got.is_some()
        });
        assert!(matches!(&got.flatten().unwrap()[..], b"value" | b"other"));
        world.goes_on(client);
    });
}
