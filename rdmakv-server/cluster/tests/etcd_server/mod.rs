//! Servers of etcd that a test starts, in a folder of its own and on free ports.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdmakv_cluster::etcd::http::Answer;
use rdmakv_cluster::etcd::{Endpoint, Etcd, Store};

/// The time after which something that must happen is taken for never happening.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One server of etcd.
pub(crate) struct Member {
    pub(crate) port: u16,
    arguments: Vec<String>,
    child: Option<Child>,
}

/// Servers of etcd that form one cluster. They end with it.
pub(crate) struct Members {
    pub(crate) list: Vec<Member>,
    folder: tempfile::TempDir,
}

fn is_installed() -> bool {
    let there = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !there {
        println!("skipped: etcd is not installed");
    }
    there
}

fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

impl Members {
    /// Starts servers and waits until they have a leader; None, with a line, where etcd is missing.
    pub(crate) fn start(count: usize) -> Option<Self> {
        if !is_installed() {
            return None;
        }
        // Another program may take a port first.
        (0..5).find_map(|_| Self::try_start(count)).or_else(|| panic!("etcd does not start"))
    }

    fn try_start(count: usize) -> Option<Self> {
        let (folder, ports) = (tempfile::tempdir().unwrap(), free_ports(2 * count));
        let peer = |at: usize| format!("http://127.0.0.1:{}", ports[count + at]);
        let all: Vec<String> = (0..count).map(|at| format!("m{at}={}", peer(at))).collect();
        let member = |at: usize| {
            let client = format!("http://127.0.0.1:{}", ports[at]);
            let data = folder.path().join(format!("m{at}")).display().to_string();
            let arguments = [
                ("name", format!("m{at}")),
                ("data-dir", data),
                ("listen-client-urls", client.clone()),
                ("advertise-client-urls", client),
                ("listen-peer-urls", peer(at)),
                ("initial-advertise-peer-urls", peer(at)),
                ("initial-cluster", all.join(",")),
                ("logger", "zap".to_owned()),
                ("log-outputs", "/dev/null".to_owned()),
            ];
            let arguments = arguments.into_iter().map(|(name, value)| format!("--{name}={value}")).collect();
            Member { port: ports[at], arguments, child: None }
        };
        let mut members = Self { list: (0..count).map(member).collect(), folder };
        members.list.iter_mut().for_each(Member::start);
        let begun = Instant::now();
        while !members.list.iter().all(|member| member.leader().is_some()) {
            let has_ended =
                |member: &mut Member| member.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some());
            if members.list.iter_mut().any(has_ended) || begun.elapsed() > PATIENCE {
                return None;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(members)
    }

    /// Returns the addresses as `--etcd` takes them.
    pub(crate) fn urls(&self) -> String {
        let urls: Vec<_> = self.list.iter().map(|member| format!("http://127.0.0.1:{}", member.port)).collect();
        urls.join(",")
    }

    /// Drops all that a server has, which does not run.
    #[allow(dead_code, reason = "not all tests use it")]
    pub(crate) fn empty(&self, at: usize) {
        std::fs::remove_dir_all(self.folder.path().join(format!("m{at}"))).unwrap();
    }

    pub(crate) fn client(&self) -> Etcd {
        Etcd::new(Endpoint::list(&self.urls()).unwrap(), PATIENCE)
    }

    pub(crate) fn store(&self, name: &str) -> Store {
        Store::new(self.client(), name).unwrap()
    }
}

impl Member {
    pub(crate) fn start(&mut self) {
        let child = Command::new("etcd").args(&self.arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.unwrap());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Returns whether this server leads; None if it does not answer, or there is no leader.
    pub(crate) fn leader(&self) -> Option<bool> {
        let status: serde_json::Value = serde_json::from_slice(&self.post("maintenance/status", "{}")?).ok()?;
        let leader = status["leader"].as_str().filter(|leader| *leader != "0")?;
        Some(status["header"]["member_id"] == leader)
    }

    /// Sends a request as it is. Returns the body of the answer.
    pub(crate) fn post(&self, path: &str, body: &str) -> Option<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let length = body.len();
        write!(stream, "POST /v3/{path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
        let (mut answer, mut bytes) = (Answer::default(), [0; 4096]);
        while !answer.is_done() {
            let count = stream.read(&mut bytes).ok().filter(|&count| count > 0)?;
            answer.push(&bytes[..count]).ok()?;
        }
        Some(answer.body().to_vec())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}
