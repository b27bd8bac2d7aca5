//! `examples/transfer`: its client against its server, over both fabrics.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// Returns the example, which `cargo test` builds too, but `cargo test --test transfer` does not.
fn transfer() -> Option<PathBuf> {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.set_file_name("examples");
    path.push("transfer");
    let built = path.exists();
    if !built {
        println!("skipped: build it with cargo build --example transfer");
    }
    built.then_some(path)
}

/// A server, ended with the test.
struct Server {
    child: Child,
    address: String,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(program).arg("server").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line.strip_prefix("listening on ").unwrap().to_owned();
        Self { child, address, lines }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).arg("client").args(arguments).output().unwrap()
}

/// Returns a file of so many bytes, no two chunks alike.
fn file(bytes: u32) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let content: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    file.write_all(&content).unwrap();
    file
}

fn fresh() -> String {
    format!("shm:@transfer-test-{}-{:?}", std::process::id(), std::thread::current().id())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn file_round_trips_by_both_processes_and_fabrics() {
    let Some(program) = transfer() else { return };
    for fabric in [fresh(), "iwarp:127.0.0.1:0".to_owned()] {
        for bytes in [0, 1, 300_001] {
            let mut server = Server::start(&program, &["--fabric", &fabric, "--cost", "io-uring", "--once"]);
            let file = file(bytes);
            let (address, name) = (server.address.clone(), file.path().to_str().unwrap());
            let arguments = ["--fabric", &address, "--cost", "io-uring", "--rounds", "2", "--chunk", "64K", name];
            let output = client(&program, &arguments);
            assert!(output.status.success(), "{}", stderr(&output));
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(printed.contains("Every byte came back as it was."), "{printed}");
            assert!(!printed.contains("NaN"), "{printed}");
            // Twice there and twice back, in each of both processes.
            let chunks = bytes.div_ceil(64 << 10) * 4;
            let mut served: Vec<_> = server.lines.by_ref().map(|line| line.unwrap()).collect();
            served.sort_unstable();
            assert_eq!(served.len(), 2, "{served:?}");
            for (line, process) in served.iter().zip(["FRRWP", "traditional"]) {
                assert!(
                    line.starts_with(&format!("served {chunks} transfers, {} bytes, {process}", bytes * 4)),
                    "{line}"
                );
            }
        }
    }
}

#[test]
fn oversized_file_is_refused_with_remedy() {
    let Some(program) = transfer() else { return };
    let server = Server::start(&program, &["--fabric", &fresh(), "--most", "100K"]);
    let [large, small] = [200_000, 50_000].map(file);
    let run = |file: &tempfile::NamedTempFile| {
        client(&program, &["--fabric", &server.address, "--rounds", "1", file.path().to_str().unwrap()])
    };
    let refused = run(&large);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("the file has 200000 bytes, and this server takes 102400: start it with --most"));
    assert!(run(&small).status.success());
}

#[test]
fn foreign_protocol_is_detected_and_server_goes_on() {
    let Some(program) = transfer() else { return };
    let server = Server::start(&program, &["--fabric", "iwarp:127.0.0.1:0"]);
    let plain = server.address.strip_prefix("iwarp:").unwrap();
    let mut stranger = std::net::TcpStream::connect(plain).unwrap();
    stranger.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let file = file(1000);
    let served = client(&program, &["--fabric", &server.address, "--rounds", "1", file.path().to_str().unwrap()]);
    assert!(served.status.success(), "{}", stderr(&served));
    // And a client with another server: it hangs up at the unknown answer.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("iwarp:{}", other.local_addr().unwrap());
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").unwrap();
        stream
    });
    let failed = client(&program, &["--fabric", &address, file.path().to_str().unwrap()]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr(&failed).contains("does not speak iWARP"), "{}", stderr(&failed));
    drop(answering);
}

#[test]
fn bad_address_or_file_names_the_remedy() {
    let Some(program) = transfer() else { return };
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("file");
    std::fs::write(&plain, b"no socket").unwrap();
    let [plain, missing] = [plain, folder.path().join("none")].map(|path| format!("shm:{}", path.display()));
    let listening = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("iwarp:{}", listening.local_addr().unwrap());
    let file = file(10);
    let name = file.path().to_str().unwrap();
    for (arguments, status, says) in [
        (&["server", "--fabric", "tcp:1.2.3.4:5"][..], 2, "write shm:PATH, shm:@NAME or iwarp:HOST:PORT"),
        (&["server", "--fabric", "iwarp:host"], 2, "write iwarp:HOST:PORT"),
        (&["server", "--fabric", "shm:@x", "--cost", "cheap"], 2, "or none"),
        (&["server", "--fabric", "shm:@x", "--most", "0"], 2, "from 1 byte"),
        (&["client", "--fabric", "shm:@x", "--chunk", "1K", name], 2, "from 4K to 256M"),
        (&["server", "--fabric", &taken], 1, "the port is in use"),
        (&["server", "--fabric", &plain], 1, "a file that is no socket"),
        (&["client", "--fabric", &missing, name], 1, "start the other side first"),
        (&["client", "--fabric", "iwarp:127.0.0.1:1", name], 1, "start the server"),
        (&["client", "--fabric", "shm:@x", "/no/file"], 1, "name a file that can be read"),
    ] {
        let output = Command::new(&program).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{arguments:?}: {}", stderr(&output));
    }
    drop(listening);
}

#[test]
fn killed_servers_socket_file_is_replaced() {
    let Some(program) = transfer() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let fabric = format!("shm:{}", path.display());
    drop(Server::start(&program, &["--fabric", &fabric]));
    assert!(path.exists());
    let server = Server::start(&program, &["--fabric", &fabric]);
    let file = file(10);
    let output = client(&program, &["--fabric", &server.address, "--rounds", "1", file.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
}
