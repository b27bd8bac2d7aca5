//! A pair of network interfaces in two namespaces, which end with the test: the server is at one, clients are at the other.

use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rdmakv_bpf::layout::Settings;
use rdmakv_bpf::load::{Gets, Links, OBJECT, missing_capabilities};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::common::{PATIENCE, Server};

pub(crate) const ADDRESS: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.2";
pub(crate) const PORT: u16 = 11211;
/// The interface of the server, and the clients' one.
pub(crate) const HERE: &str = "rdmakva";
const THERE: &str = "rdmakvb";
/// How long an answer takes at most. A busy machine loses some.
const ANSWER: Duration = Duration::from_millis(500);
const TRIES: usize = 10;

/// The namespaces. They end with this.
#[derive(Debug)]
pub(crate) struct Wire {
    here: OwnedFd,
    there: OwnedFd,
    /// The pair loses what XDP sends back unless there is a program at its other end.
    _program: (Gets, Links),
}

/// Runs a command, which must succeed; returns what it prints.
pub(crate) fn run(line: &str) -> String {
    let words: Vec<_> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs this on a thread in that namespace. Processes that it starts are there, too.
fn within<T: Send>(namespace: &OwnedFd, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        });
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A process in a new namespace, until this is dropped.
struct Ends(Child);

impl Ends {
    fn start() -> Self {
        let mut command = Command::new("unshare");
        let child = command.args(["-n", "sh", "-c", "echo ready; exec cat"]).stdin(Stdio::piped());
        let mut ends = Self(child.stdout(Stdio::piped()).spawn().unwrap());
        let mut ready = [0; 6];
        std::io::Read::read_exact(ends.0.stdout.as_mut().unwrap(), &mut ready).unwrap();
        ends
    }

    fn namespace(&self) -> OwnedFd {
        std::fs::File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap().into()
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns why there cannot be such a pair.
fn lacks() -> Option<String> {
    let missing = missing_capabilities();
    if !missing.is_empty() {
        return Some(format!("this process lacks {}", missing.join(", ")));
    }
    let tools = [&["ip", "-V"][..], &["unshare", "-n", "true"]];
    let fails =
        |tool: &&&[&str]| !Command::new(tool[0]).args(&tool[1..]).output().is_ok_and(|output| output.status.success());
    tools.iter().find(fails).map(|tool| format!("`{}` does not work here", tool.join(" ")))
}

impl Wire {
    /// Runs a test in the namespace of the server. Without capabilities or tools it reports that it is skipped, and why.
    pub(crate) fn run(test: impl FnOnce(&Self) + Send) {
        match lacks() {
            Some(why) => println!("SKIPPED: the server's GETs in the kernel: {why}"),
            None => {
                let wire = Self::new();
                within(&wire.here, || test(&wire));
            }
        }
    }

    fn new() -> Self {
        let (one, other) = (Ends::start(), Ends::start());
        let (here, there) = (one.namespace(), other.namespace());
        within(&here, || {
            run(&format!("ip link add {HERE} type veth peer name {THERE} netns {}", other.0.id()));
            run(&format!("ip addr add {ADDRESS}/24 dev {HERE}"));
            run(&format!("ip link set {HERE} up"));
            run("ip link set lo up");
        });
        let program = within(&there, || {
            run(&format!("ip addr add {CLIENT}/24 dev {THERE}"));
            run(&format!("ip link set {THERE} up"));
            let settings = Settings {
                value_size: 1 << 20,
                memory: 1 << 20,
                shard_size: 1 << 20,
                buckets: 64,
                secret: [1, 2],
                clock: 0,
                without_cas: false,
                only_tcx: false,
                mtu: 1500,
                port: 1,
                mac: [0; 6],
                addresses: Vec::new(),
                sources: Vec::new(),
            };
            let program = Gets::load(OBJECT, &settings, None).unwrap();
            let number = run(&format!("ip -o link show {THERE}")).split(':').next().unwrap().parse().unwrap();
            let links = program.attach(number, true).unwrap();
            (program, links)
        });
        Self { here, there, _program: program }
    }

    /// Starts a server that answers in the kernel.
    pub(crate) fn server(&self, more: &[&str]) -> Server {
        let xdp = format!("--xdp={HERE}");
        Server::start(&[&["-l", ADDRESS, "-p", "11211", "-U", "11211", &xdp], more].concat())
    }

    pub(crate) fn client(&self) -> Client {
        within(&self.there, || {
            let socket = UdpSocket::bind((CLIENT, 0)).unwrap();
            socket.connect((ADDRESS, PORT)).unwrap();
            socket.set_read_timeout(Some(ANSWER)).unwrap();
            Client { socket, number: 0 }
        })
    }
}

/// A client that sends datagrams.
#[derive(Debug)]
pub(crate) struct Client {
    socket: UdpSocket,
    number: u16,
}

impl Client {
    /// Returns the answer, or none if none comes.
    pub(crate) fn ask_once(&mut self, text: &str) -> Option<String> {
        self.number = self.number.wrapping_add(1);
        let mut request = self.number.to_be_bytes().to_vec();
        request.extend_from_slice(b"\0\0\0\x01\0\0");
        request.extend_from_slice(text.as_bytes());
        self.socket.send(&request).unwrap();
        let mut parts = std::collections::BTreeMap::new();
        loop {
            let mut datagram = [0; 2048];
            let bytes = self.socket.recv(&mut datagram).ok()?;
            // An answer that came late is not this one's.
            if datagram[..2] != self.number.to_be_bytes() {
                continue;
            }
            parts.insert(datagram[3], datagram[8..bytes].to_vec());
            if parts.len() >= usize::from(datagram[5]) {
                return Some(String::from_utf8(parts.into_values().flatten().collect()).unwrap());
            }
        }
    }

    /// Returns the answer. A datagram may be lost; not all of them.
    pub(crate) fn ask(&mut self, text: &str) -> String {
        let answer = (0..TRIES).find_map(|_| self.ask_once(text));
        answer.unwrap_or_else(|| panic!("no answer to {text:?} in {:?}", ANSWER * TRIES as u32))
    }

    pub(crate) fn get(&mut self, key: &str) -> String {
        self.ask(&format!("get {key}\r\n"))
    }
}

/// Sends requests over TCP and a last one whose answer is known; returns what comes before that.
pub(crate) fn tcp(server: &Server, request: &[u8]) -> String {
    const LAST: &[u8] = b"MN\r\n";
    let mut stream = server.connect();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = request.to_vec();
    all.extend_from_slice(b"mn\r\n");
    std::io::Write::write_all(&mut stream, &all).unwrap();
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    while !text.ends_with(LAST) {
        let read = std::io::Read::read(&mut stream, &mut piece).unwrap();
        assert!(read > 0, "the connection ends: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&piece[..read]);
    }
    text.truncate(text.len() - LAST.len());
    String::from_utf8(text).unwrap()
}
