//! The two servers, and what is compared of their answers.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Ends with the test.
struct Server {
    process: Child,
    socket: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start(program: &str, socket: &Path, more: &[&str]) -> Option<Self> {
        let mut command = Command::new(program);
        command.args(more).args(["-m", "64", "-t", "1", "-s"]).arg(socket).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().ok()?;
        for _ in 0..2000 {
            if UnixStream::connect(socket).is_ok() {
                return Some(Self { process, socket: socket.into() });
            }
            assert!(process.try_wait().unwrap().is_none(), "{program} ended at once");
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{program} does not listen");
    }

    /// All that it answers, until it has no more to say.
    fn tell(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut reader = stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            // A client that only writes would be stuck with a server that only writes.
            let answers = scope.spawn(move || {
                let mut answer = Vec::new();
                // It may end the conversation before it has read all.
                let _ = reader.read_to_end(&mut answer);
                answer
            });
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Write);
            answers.join().unwrap()
        })
    }
}

impl Server {
    /// Stores an item; its version.
    fn prepare(&self, name: &str) -> String {
        for _ in 0..4 {
            let answer = self.tell(format!("set {name}v 7 0 5\r\nvalue\r\ngets {name}v\r\n").as_bytes());
            if let Some(version) = String::from_utf8_lossy(&answer).split_whitespace().nth(5) {
                return version.to_owned();
            }
            // A flush of a moment ago takes memcached's newest items with it.
            std::thread::sleep(Duration::from_millis(1100));
        }
        panic!("{:?} does not keep what it is given", self.socket);
    }
}

/// memcached and ours.
pub(crate) struct Pair {
    theirs: Server,
    ours: Server,
    turn: u32,
    _folder: tempfile::TempDir,
}

/// Stands in conversations where a name of their own stands in each, so that they do not meet each other's items.
pub(crate) const NAME: &str = "%N%";
/// Stands where the version of the item `%N%v` stands.
pub(crate) const VERSION: &str = "%VERSION%";

impl Pair {
    pub(crate) fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let theirs = Server::start("memcached", &folder.path().join("theirs"), &["-u", "root"])?;
        let ours = Server::start(env!("CARGO_BIN_EXE_rdmakv-server"), &folder.path().join("ours"), &[])?;
        Some(Self { theirs, ours, turn: 0, _folder: folder })
    }

    /// Returns whether they still differ when a second has passed: flushes and expiries take effect by the second.
    pub(crate) fn differ_later(&mut self, parts: &[Vec<u8>]) -> bool {
        std::thread::sleep(Duration::from_millis(1200));
        self.differ(parts).is_some()
    }

    /// Returns the answers of both, if they differ.
    pub(crate) fn differ(&mut self, parts: &[Vec<u8>]) -> Option<(Vec<u8>, Vec<u8>)> {
        self.turn += 1;
        let name = format!("{:06}", self.turn);
        let whole = parts.concat();
        let binary = whole.first() == Some(&0x80);
        let [theirs, ours] = [&self.theirs, &self.ours].map(|server| {
            let version = server.prepare(&name);
            let mut told = replace(&whole, NAME.as_bytes(), name.as_bytes());
            if binary {
                let number = version.parse::<u64>().unwrap().to_be_bytes();
                told = replace(&told, b"VERSION!", &number);
            } else {
                told = replace(&told, VERSION.as_bytes(), version.as_bytes());
            }
            if binary {
                for _ in 0..400 {
                    told.extend_from_slice(&[0x80, 0x0a]);
                    told.extend_from_slice(&[0; 22]);
                }
            } else {
                // A command that still waits for data gets it, and is answered: memcached keeps back its earlier
                // answers to a client that is gone in the middle of a command.
                told.extend_from_slice(&b"mn\r\n".repeat(600));
            }
            let answer = server.tell(&told);
            if binary { same_binary(answer) } else { same_text(&answer) }
        });
        // It says nothing to what came after when it waits for a value of gigabytes. A key that is too long in a
        // `get` makes it forget what it would have answered before, to commands of the same read.
        let waits = !binary && !theirs.ends_with(b"MN\r\n") && ours.starts_with(&theirs);
        let forgot = waits || theirs.starts_with(b"CLIENT_ERROR bad command line") && ours.ends_with(&theirs);
        (theirs != ours && !forgot).then_some((theirs, ours))
    }
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(from) {
            out.extend_from_slice(to);
            at += from.len();
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    out
}

/// Versions and times are marks.
fn same_text(answer: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in answer.split_inclusive(|&byte| byte == b'\n') {
        let text = String::from_utf8_lossy(line);
        // memcached leaves the blanks of a longer number where a shorter one takes its place; its protocol allows both.
        let number = text.trim_end_matches(['\r', '\n', ' ']);
        if !number.is_empty() && number.len() <= 20 && number.bytes().all(|byte| byte.is_ascii_digit()) {
            out.extend_from_slice(format!("{number}\r\n").as_bytes());
            continue;
        }
        let words: Vec<&str> = text.trim_end().split(' ').collect();
        let digits = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        match words[..] {
            ["VALUE", key, flags, len, ref version @ ..] if digits(len) => {
                let len = if len.len() < 3 { "#" } else { len };
                let version = if version.is_empty() { "" } else { " #" };
                out.extend_from_slice(format!("VALUE {key} {flags} {len}{version}\r\n").as_bytes());
            }
            ["VA" | "HD" | "EN" | "NF" | "NS" | "EX", ..] => {
                for (at, word) in words.into_iter().enumerate() {
                    if at == 1 && digits(word) && word.len() < 3 {
                        out.extend_from_slice(b"# ");
                        continue;
                    }
                    match word.split_at_checked(1) {
                        // With `t` before `N`, memcached tells the time before it is set.
                        Some((flag @ ("c" | "t" | "l"), rest)) if digits(rest) || rest == "-1" => {
                            out.extend_from_slice(format!("{flag}# ").as_bytes());
                        }
                        // The blanks after a number again.
                        Some(("s", rest)) if digits(rest) && rest.len() < 3 => out.extend_from_slice(b"s# "),
                        _ => out.extend_from_slice(format!("{word} ").as_bytes()),
                    }
                }
                out.push(b'\n');
            }
            _ => out.extend_from_slice(line),
        }
    }
    out
}

/// Versions are zero or one, and the blanks after a number are none.
fn same_binary(answer: Vec<u8>) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at + 24 <= answer.len() && answer[at] == 0x81 {
        let body = u32::from_be_bytes([answer[at + 8], answer[at + 9], answer[at + 10], answer[at + 11]]) as usize;
        let end = (at + 24 + body).min(answer.len());
        let any = answer[at + 16..at + 24].iter().any(|&byte| byte != 0);
        out.extend_from_slice(&answer[at..at + 8]);
        out.extend_from_slice(&answer[at + 12..at + 16]);
        out.push(u8::from(any));
        out.extend_from_slice(answer[at + 24..end].trim_ascii_end());
        at = end;
    }
    out.extend_from_slice(&answer[at..]);
    out
}
