//! Ways to a server of which some are silent, refuse, drip or die: operations go by those that work.
#![expect(unsafe_code, reason = "forks")]

use crate::by_hand::Running;
use crate::common::{Server, soon};
use crate::patient;
use rdmakv_client::{Client, Error, Options, Source};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Something that is no server, at an address, as long as it is kept.
struct Bad {
    address: String,
    _keep: Box<dyn std::any::Any>,
}

/// Connections are accepted, and nothing is said.
fn silent() -> Bad {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        kept.extend(listener.incoming().map_while(Result::ok));
    });
    Bad { address, _keep: Box::new(()) }
}

/// Returns an address without a listener.
fn refused() -> Bad {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Bad { address: listener.local_addr().unwrap().to_string(), _keep: Box::new(()) }
}

/// Returns an address that drops all it receives: the queue of waiting connections is full, so no more is answered.
fn dropped() -> Bad {
    use rustix::net::{AddressFamily, SocketType};
    let listener: OwnedFd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listener, &"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let listener = TcpListener::from(listener);
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "the queue is full at some time");
    }
    Bad { address: address.to_string(), _keep: Box::new((listener, waiting)) }
}

/// Returns a byte now and then, without end.
fn dripping() -> Bad {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                // As an answer to a request to connect over iWARP begins.
                for byte in b"MPA ID Rep Frame".iter().cycle() {
                    if stream.write_all(&[*byte]).is_err() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
        }
    });
    Bad { address, _keep: Box::new(()) }
}

fn bad() -> [(&'static str, Bad); 4] {
    [("silent", silent()), ("refused", refused()), ("dropped", dropped()), ("dripping", dripping())]
}

#[test]
fn a_bad_fabric_does_not_cost_an_operation() {
    let server = Server::on_a_free_port(&[]);
    let tcp = server.address("tcp");
    for (what, Bad { address, _keep }) in bad() {
        // As the command does: a client for one operation.
        for round in 0..3_u8 {
            let mut client = Client::with_options([format!("iwarp:{address},tcp:{tcp}")], patient()).unwrap();
            assert!(client.set("key", [round], ()).unwrap().is_stored(), "{what}");
            assert_eq!(client.get("key").unwrap().unwrap(), [round], "{what}");
            assert_eq!(client.counters().timeouts, 0, "{what}");
        }
    }
}

#[test]
fn a_bad_way_does_not_keep_another_fabric_waiting() {
    let server = Running::over_shm();
    server.store.put(b"key", b"value", 0);
    for (what, Bad { address, _keep }) in bad() {
        let ways = format!("iwarp:{address},{},tcp:{}", server.address, refused().address);
        let mut client = Client::with_options([ways], patient()).unwrap();
        assert_eq!(client.get("key").unwrap().unwrap(), b"value", "{what}");
        assert!(client.fabric(0).is_some_and(|fabric| fabric.to_string() == server.address), "{what}");
        assert_eq!(client.get("key").unwrap().unwrap().source(), Source::OneSided, "{what}");
    }
}

#[test]
fn all_ways_that_fail_are_named_with_their_reasons() {
    let [silent, refused] = [silent(), refused()];
    let options =
        Options { timeout: Duration::from_secs(30), connect_timeout: Duration::from_millis(300), ..Options::default() };
    let ways = [
        format!("iwarp:{}", silent.address),
        format!("iwarp:{}", refused.address),
        "shm:@rdmakv-nobody-is-there".to_owned(),
        format!("tcp:{}", refused.address),
    ];
    let mut client = Client::with_options([ways.join(",")], options).unwrap();
    let error = client.get("key").unwrap_err();
    let Error::Unreachable { ways: down, .. } = &error else { panic!("{error}") };
    let named: Vec<_> = down.iter().map(|way| way.address.clone()).collect();
    assert_eq!(named, ways);
    assert!(down.iter().all(|way| !way.why.is_empty() && way.why != "not tried yet"), "{error}");
    assert!(ways.iter().all(|way| error.to_string().contains(way)), "{error}");
}

/// Returns the address of a door to another address, and what opens it: connections wait until then.
fn door(to: String) -> (String, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let door = listener.local_addr().unwrap().to_string();
    let (open, opened) = channel::<()>();
    std::thread::spawn(move || {
        let _ = opened.recv();
        for here in listener.incoming().map_while(Result::ok) {
            let there = TcpStream::connect(&to).unwrap();
            let copy = |mut from: TcpStream, mut to: TcpStream| {
                std::thread::spawn(move || {
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(read) = from.read(&mut bytes)
                        && read > 0
                        && to.write_all(&bytes[..read]).is_ok()
                    {}
                    let _ = to.shutdown(Shutdown::Write);
                });
            };
            copy(here.try_clone().unwrap(), there.try_clone().unwrap());
            copy(there, here);
        }
    });
    (door, open)
}

#[test]
fn a_slow_fabric_is_taken_up_when_it_answers() {
    let server = Server::on_a_free_port(&["--fabric", "iwarp:127.0.0.1:0"]);
    let tcp = server.address("tcp");
    let (iwarp, open) = door(crate::ways::fabric(&server));
    let mut client = Client::with_options([format!("iwarp:{iwarp},tcp:{tcp}")], patient()).unwrap();
    assert!(client.set("key", "value", ()).unwrap().is_stored());
    assert_eq!(client.get("key").unwrap().unwrap().source(), Source::Socket);
    open.send(()).unwrap();
    soon("the fabric", || client.get("key").unwrap().unwrap().source() == Source::OneSided);
    assert!(client.fabric(0).is_some());
}

#[test]
fn an_idle_client_keeps_no_needless_connection() {
    let server = Server::on_a_free_port(&["--fabric", "iwarp:127.0.0.1:0"]);
    let (first, open_first) = door(fabric(&server));
    let (second, open_second) = door(fabric(&server));
    let mut client = Client::with_options([format!("iwarp:{first},iwarp:{second}")], patient()).unwrap();
    let key = client.iget("key").unwrap();
    // Both are tried; the better one comes up.
    std::thread::sleep(Duration::from_millis(300));
    client.progress();
    open_first.send(()).unwrap();
    assert!(client.wait(key).unwrap().is_none());
    let connected = || server.stat("iwarp_total_connections");
    soon("the first", || server.stat("iwarp_connections") == 1);
    let before = connected();
    open_second.send(()).unwrap();
    // The client is not asked for anything meanwhile.
    soon("the second comes and goes", || connected() == before + 1 && server.stat("iwarp_connections") == 1);
    assert!(client.get("key").unwrap().is_none());
}

fn fabric(server: &Server) -> String {
    let line = server.lines.iter().find_map(|line| line.strip_prefix("listening on iwarp:"));
    line.expect("it says where it listens").to_owned()
}

#[test]
fn one_server_s_bad_ways_are_nothing_to_another() {
    let [one, other] = [(); 2].map(|()| Server::on_a_free_port(&[]));
    let bad = silent();
    let ways = [
        format!("iwarp:{},tcp:{}", bad.address, one.address("tcp")),
        format!("shm:@rdmakv-{},tcp:{}", other.address("tcp").rsplit_once(':').unwrap().1, other.address("tcp")),
    ];
    let mut client = Client::with_options(ways, patient()).unwrap();
    let keys: Vec<_> = (0..40).map(|key| format!("key-{key}")).collect();
    for key in &keys {
        assert!(client.set(key, key, ()).unwrap().is_stored());
    }
    assert!(
        client.get_many(&keys).into_iter().zip(&keys).all(|(value, key)| value.unwrap().unwrap() == *key.as_bytes())
    );
    assert_eq!(client.counters().errors, 0);
}

#[test]
fn a_child_of_a_fork_connects_anew() {
    let server = Server::on_a_free_port(&["--fabric", "iwarp:127.0.0.1:0", "--fabric", "shm:@rdmakv-test-fork"]);
    let tcp = server.address("tcp");
    for way in [format!("iwarp:{},tcp:{tcp}", fabric(&server)), format!("shm:@rdmakv-test-fork,tcp:{tcp}"), tcp.clone()]
    {
        let mut client = Client::with_options([&way], patient()).unwrap();
        assert!(client.set("key", "value", ()).unwrap().is_stored());
        soon("all ways", || client.get("key").unwrap().is_some() && (way == tcp || client.fabric(0).is_some()));
        // SAFETY: the child asks its server and ends, without a return into the test.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let got =
                (0..10).all(|_| client.get("key").is_ok_and(|value| value.is_some_and(|value| value == *b"value")));
            let set = client.set("child", "was here", ()).is_ok();
            // SAFETY: `_exit` ends this child without destructors.
            unsafe { libc::_exit(i32::from(!(got && set))) };
        }
        for _ in 0..10 {
            assert_eq!(client.get("key").unwrap().unwrap(), b"value");
        }
        let mut status = 0;
        // SAFETY: `status` is a local integer that the call may write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "{way}");
        // The parent's connections are as they were.
        assert_eq!(client.get("child").unwrap().unwrap(), b"was here");
        assert_eq!((client.counters().errors, client.counters().lost_connections), (0, 0), "{way}");
    }
}

#[test]
fn what_was_begun_before_a_fork_is_not_done_twice() {
    let server = Server::on_a_free_port(&[]);
    let tcp = server.address("tcp");
    let mut client = Client::with_options([&tcp], patient()).unwrap();
    // It waits for a connection: nothing of it was sent.
    let begun = client.iset("key", b"value".to_vec(), ()).unwrap();
    // SAFETY: the child asks its server and ends, without a return into the test.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // An operation begun here is done here.
        let own = client.set("child", "was here", ()).is_ok_and(|stored| stored.is_stored());
        let unknown = matches!(client.wait(begun), Err(Error::OutcomeUnknown { .. }));
        // SAFETY: `_exit` ends this child without destructors.
        unsafe { libc::_exit(i32::from(!own) + 2 * i32::from(!unknown)) };
    }
    assert!(client.wait(begun).unwrap().is_stored());
    let mut status = 0;
    // SAFETY: `status` is a local integer that the call may write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 0, "1: its own SET failed; 2: the parent's was done by the child, too");
    assert_eq!(client.get("child").unwrap().unwrap(), b"was here");
    let stats = client.stats("").remove(0).1.unwrap();
    let sets = stats.into_iter().find(|(name, _)| name == "cmd_set").unwrap();
    assert_eq!(sets.1, "2");
}
