//! Pings of the other servers, over TCP: one thread for each, so that a silent one delays no other.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rdmakv_cluster::config::{Incarnation, ServerId};
use rdmakv_cluster::detector::Clocks;
use rdmakv_proto::clock;

use super::Event;

/// How long a server may take to answer: as many pings as make it suspected.
const PATIENCE: Duration = Duration::from_millis(400);
/// Bytes of an answer at most.
const LINE: u64 = 128;
/// memcached's port.
const PORT: u16 = 11211;

/// The threads that ping.
pub(super) struct Pings {
    events: Sender<Event>,
    peers: HashMap<(ServerId, Incarnation), SyncSender<()>>,
    /// The last ping of this server to itself.
    own: Option<JoinHandle<()>>,
}

impl Pings {
    pub(super) fn new(events: Sender<Event>) -> Self {
        Self { events, peers: HashMap::new(), own: None }
    }

    /// Pings these runs, at the addresses that they have. Threads of others end.
    pub(super) fn send(
        &mut self,
        runs: &[(ServerId, Incarnation)],
        address: impl Fn(ServerId) -> Option<(String, u16)>,
    ) {
        self.peers.retain(|run, _| runs.contains(run));
        for &run in runs {
            let peer = match self.peers.get(&run) {
                Some(peer) => peer,
                None => {
                    let Some(address) = address(run.0) else { continue };
                    let (peer, pings) = sync_channel(1);
                    let events = self.events.clone();
                    let ping = move || Peer { run, line: Line::to(address), events }.run(&pings);
                    // Without a thread the server counts as silent. The next ping tries again.
                    if std::thread::Builder::new().name("ping".into()).spawn(ping).is_err() {
                        continue;
                    }
                    self.peers.entry(run).or_insert(peer)
                }
            };
            // One that is under way yet is not repeated: it counts as unanswered.
            let _ = peer.try_send(());
        }
    }

    /// Pings the server at this address, which should be this one, unless such a ping is under way. Tells the run that answers.
    pub(super) fn send_to_self(&mut self, address: (String, u16)) {
        if self.own.as_ref().is_some_and(|ping| !ping.is_finished()) {
            return;
        }
        let events = self.events.clone();
        let ping = move || {
            let answer = Line::to(address).ping();
            // The driver may have ended.
            let _ = events.send(Event::PingedSelf(answer.map(|(run, _)| run).map_err(|error| why(&error))));
        };
        // Without a thread there is no answer. The next ping tries again.
        self.own = std::thread::Builder::new().name("ping".into()).spawn(ping).ok();
    }
}

/// Returns why a ping has no answer, for people.
fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => "no server of a cluster answers there".into(),
        _ if is_silence(error) => "no answer".into(),
        _ => error.to_string(),
    }
}

/// Returns host and port of an address over TCP, as servers advertise it.
pub(super) fn tcp(address: &str) -> Option<(String, u16)> {
    match address.split_once(':') {
        Some(("tcp", rest)) => host_and_port(rest),
        Some(("shm" | "iwarp" | "verbs" | "unix", _)) => None,
        _ if address.starts_with('/') => None,
        _ => host_and_port(address),
    }
}

/// Returns whether an address leads nowhere from another machine: it stands for all addresses of one, or has port 0.
pub(super) fn leads_nowhere(address: &str) -> bool {
    let over_network = match address.split_once(':') {
        Some(("iwarp" | "verbs", rest)) => host_and_port(rest),
        _ => tcp(address),
    };
    let is_any = |host: &str| host.parse::<IpAddr>().is_ok_and(|host| host.is_unspecified());
    over_network.is_some_and(|(host, port)| is_any(&host) || port == 0)
}

fn host_and_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(host, port)| (host, port.strip_prefix(':')))?,
        None if address.matches(':').count() > 1 => (address, None),
        None => address.split_once(':').map_or((address, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Some(PORT), |port| port.parse().ok())?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// Another server.
struct Peer {
    run: (ServerId, Incarnation),
    line: Line,
    events: Sender<Event>,
}

/// A connection for pings, made when it is first used.
struct Line {
    address: (String, u16),
    stream: Option<BufReader<TcpStream>>,
}

impl Peer {
    fn run(mut self, pings: &Receiver<()>) {
        while pings.recv().is_ok() {
            let (id, run) = self.run;
            let event = match self.line.ping() {
                Ok((other, shown)) => Event::Answered(id, other, shown),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Event::Refused(id, run),
                Err(_) => continue,
            };
            if self.events.send(event).is_err() {
                return;
            }
        }
    }
}

impl Line {
    fn to(address: (String, u16)) -> Self {
        Self { address, stream: None }
    }

    /// Asks the server. One that closed the connection is asked over another.
    fn ping(&mut self) -> io::Result<(Incarnation, (Clocks, bool))> {
        let is_new = self.stream.is_none();
        match self.try_ping() {
            Err(error) if !is_new && !is_silence(&error) => self.try_ping(),
            result => result,
        }
    }

    fn try_ping(&mut self) -> io::Result<(Incarnation, (Clocks, bool))> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => BufReader::new(self.connect()?),
        };
        let sent = since_1970();
        stream.get_mut().write_all(b"mp\r\n")?;
        let mut line = String::new();
        (&mut stream).take(LINE).read_line(&mut line)?;
        let received = since_1970();
        let (run, answered, has_right) = answer(&line).ok_or(io::ErrorKind::InvalidData)?;
        self.stream = Some(stream);
        Ok((run, (Clocks { sent, answered, received }, has_right)))
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let (host, port) = &self.address;
        let address = (host.as_str(), *port).to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn since_1970() -> i64 {
    i64::try_from(clock::since_1970().as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the run and the time that an answer shows, and whether the run has a right.
fn answer(line: &str) -> Option<(Incarnation, i64, bool)> {
    let mut words = line.strip_suffix("\r\n")?.split(' ');
    let (name, run, epoch, time) = (words.next()?, words.next()?, words.next()?, words.next()?);
    epoch.parse::<u32>().ok()?;
    let run = (name == "MP" && run.len() == 16).then(|| u64::from_str_radix(run, 16).ok())??;
    let has_right = match words.next() {
        // One of an earlier release does not tell.
        Some("right") | None => true,
        Some("none") => false,
        Some(_) => return None,
    };
    (words.next().is_none()).then_some((Incarnation(run), time.parse().ok()?, has_right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_addresses_over_tcp() {
        let tcp = |address| tcp(address).map(|(host, port)| format!("{host} {port}"));
        assert_eq!(tcp("tcp:10.0.0.1:1234").as_deref(), Some("10.0.0.1 1234"));
        assert_eq!(tcp("tcp:host").as_deref(), Some("host 11211"));
        assert_eq!(tcp("host:7").as_deref(), Some("host 7"));
        assert_eq!(tcp("tcp:[::1]:7").as_deref(), Some("::1 7"));
        assert_eq!(tcp("[::1]").as_deref(), Some("::1 11211"));
        for other in ["shm:@name", "iwarp:10.0.0.1:7471", "unix:/run/kv", "/run/kv", "tcp:host:x", "tcp:", "[::1"] {
            assert_eq!(tcp(other), None, "{other}");
        }
    }

    #[test]
    fn addresses_of_all_interfaces_lead_nowhere() {
        for address in ["tcp:0.0.0.0:1234", "0.0.0.0", "tcp:[::]:7", "[::]", "iwarp:0.0.0.0:7471", "tcp:host:0"] {
            assert!(leads_nowhere(address), "{address}");
        }
        for address in ["tcp:10.0.0.1:1234", "host:7", "[::1]", "iwarp:10.0.0.1:7471", "shm:@name", "/run/kv"] {
            assert!(!leads_nowhere(address), "{address}");
        }
    }

    #[test]
    fn understands_answers_and_nothing_else() {
        assert_eq!(answer("MP 00000000000000ff 7 12 right\r\n"), Some((Incarnation(255), 12, true)));
        assert_eq!(answer("MP 00000000000000ff 7 12 none\r\n"), Some((Incarnation(255), 12, false)));
        for line in [
            "ff 7 12 right\r\n",
            "00000000000000ff 7 right\r\n",
            "00000000000000ff 7 12 right",
            "00000000000000ff 7 12 x\r\n",
        ] {
            assert_eq!(answer(&format!("MP {line}")), None, "{line}");
        }
        assert_eq!(answer("ERROR\r\n"), None);
    }
}
