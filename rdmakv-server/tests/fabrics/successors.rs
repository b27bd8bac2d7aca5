//! Servers that are killed, and what clients read of them once another one has their port.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use rdmakv_client::{Client, Options, Source};

use super::common::{PATIENCE, SERVER, Server, soon};

const READERS: usize = 2;
/// Reads of each reader that a successor is measured by.
const READS: u64 = 300;

/// Returns a server on this port, as it is started from a place with such an environment.
fn start(port: &str, folder: &std::path::Path, surroundings: &str) -> Server {
    // Through a shell, which knows of a mask; the environment is the server's own.
    let mut command = Command::new("sh");
    command.args(["-c", "umask $MASK; exec \"$0\" \"$@\"", SERVER]);
    command.args(["-p", port, "-l", "127.0.0.1", "--tag-lease", "10s"]).env("MASK", "022").stderr(Stdio::null());
    match surroundings {
        "nothing" => drop(command.env_clear().env("MASK", "022").env("PATH", std::env::var_os("PATH").unwrap())),
        "directory" => drop(command.current_dir(folder)),
        "mask" => drop(command.env("MASK", "077")),
        "no fabric" => drop(command.args(["--fabric", "none"])),
        "the same" => {}
        variable => drop(command.env(variable, folder)),
    }
    Server::run(&mut command)
}

/// Reads until it is the end. A value is stale if a later one was acknowledged before the read began.
fn read(address: &str, acknowledged: &AtomicU64, reads: &AtomicU64, ends: &AtomicBool) -> (u64, u64) {
    let mut client = Client::with_options([address], Options::default()).unwrap();
    let mut stale = 0;
    while !ends.load(SeqCst) {
        let before = acknowledged.load(SeqCst);
        if let Ok(Some(value)) = client.get("key") {
            let number = u64::from_le_bytes(value[..].try_into().unwrap());
            stale += u64::from(number < before);
        }
        reads.fetch_add(1, SeqCst);
    }
    (stale, client.counters().one_sided)
}

/// Nothing is known to a successor of the server before it: neither waits.
#[test]
fn nothing_stale_is_read_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start("-1", folder.path(), "the same");
    let tcp = server.address("tcp");
    let port = tcp.rsplit_once(':').unwrap().1.to_owned();
    let both = format!("shm:@rdmakv-{port},tcp:{tcp}");
    let (acknowledged, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let reads = [const { AtomicU64::new(0) }; READERS];
    let write = |number: u64| {
        let set = || {
            let mut writer = Client::new([format!("tcp:{tcp}")]).unwrap();
            writer.set("key", number.to_le_bytes(), ()).is_ok_and(|stored| stored.is_stored())
        };
        soon("that it is written", set);
        acknowledged.store(number, SeqCst);
    };
    let read_on = || {
        let before = reads.each_ref().map(|reads| reads.load(SeqCst));
        let went_on = || reads.iter().zip(before).all(|(reads, before)| reads.load(SeqCst) >= before + READS);
        soon("that readers go on", went_on);
    };
    write(1);
    let readers = std::thread::scope(|scope| {
        let begin = |reads| {
            let (both, acknowledged, ends) = (&both, &acknowledged, &ends);
            scope.spawn(move || read(both, acknowledged, reads, ends))
        };
        let readers: Vec<_> = reads.iter().map(begin).collect();
        let places = ["XDG_RUNTIME_DIR", "TMPDIR", "HOME", "directory", "mask", "nothing", "no fabric", "the same"];
        for (round, surroundings) in (1..).zip(places) {
            write(2 * round);
            read_on();
            server.signal("-KILL");
            server.process.wait().unwrap();
            server = start(&port, folder.path(), surroundings);
            write(2 * round + 1);
            read_on();
        }
        ends.store(true, SeqCst);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(readers.iter().all(|&(_, one_sided)| one_sided > 0), "{readers:?}");
    assert!(readers.iter().all(|&(stale, _)| stale == 0), "stale reads and one-sided ones: {readers:?}");
}

/// A client that is slow to take its answers keeps its connection up for seconds after a SIGTERM. Its reads meanwhile return the value, as
/// it cannot have been changed at another server on that port.
#[test]
fn port_frees_only_when_old_readers_end() {
    const LARGE: usize = 100;
    let folder = tempfile::tempdir().unwrap();
    // One that was asked for by its number: no client asks for another's that the system chose.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (port, tcp) = (free.port().to_string(), free.to_string());
    let mut server = start(&port, folder.path(), "the same");
    let options = Options { timeout: PATIENCE, connect_timeout: PATIENCE, ..Options::default() };
    let mut reader = Client::with_options([format!("shm:@rdmakv-{port}")], options).unwrap();
    assert!(reader.set("key", "value", ()).unwrap().is_stored());
    let large: Vec<_> = (0..LARGE).map(|key| format!("large-{key}")).collect();
    for key in &large {
        assert!(reader.set(key, [7; 30_000], ()).unwrap().is_stored());
    }
    soon("a one-sided read", || reader.get("key").unwrap().unwrap().source() == Source::OneSided);
    // Answers that are never taken.
    let _asked: Vec<_> = large.iter().map(|key| reader.iget(key).unwrap()).collect();
    server.signal("-TERM");
    soon("that nobody is accepted", || TcpStream::connect(&tcp).is_err());
    soon("that the port is free", || TcpListener::bind(&tcp).is_ok());
    let read = reader.get("key");
    assert!(!matches!(read, Ok(Some(_))), "{read:?}");
    server.process.wait().unwrap();
}
