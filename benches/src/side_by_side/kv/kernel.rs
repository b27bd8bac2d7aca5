//! GETs over UDP that the kernel answers, compared with memcached's over UDP and with our own socket's.
//!
//! Each contestant has a pair of interfaces in namespaces of its own. The server is at one end, on a CPU of its own. The load comes
//! from the other end. On such a pair the kernel handles a packet in its sender's time: the program runs in the client's. The whole of
//! a GET is the CPU time of client, server and softirq threads.

use super::client::Client;
use super::load::{CONNECTIONS, Load, Mix, key};
use super::server::{Server, Whose, peer_version};
use super::size_name;
use super::transport::Address;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::remote::Outcome;
use crate::side_by_side::report::{Row, Unit};
use rdmakv_bpf::pair::{CLIENT, INTERFACE, Pair, SERVER, run};
use std::fs;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Above the tables.
const KERNEL: &str =
    "A GET over UDP that the kernel answers: CPU of client, server and softirq; the peer is memcached over UDP";
const SOCKET: &str = "A GET over UDP that our server answers itself: otherwise the same";
const UNKNOWN: &str =
    "A GET over UDP of a key that is not there: the server's CPU with --xdp; the peer is ours without it";
const BUSY: &str = "A GET over UDP that the kernel answers, while all workers answer GETs over TCP; the peer is ours with idle workers";
const TCP: &str =
    "A request over TCP to a server with --xdp: the server's CPU, 32 connections; the peer is ours without --xdp";

const PORT: u16 = 11211;
const SIZES: [usize; 3] = [32, 200, 1024];
const WINDOWS: [usize; 2] = [1, 64];
const PAIRS: u32 = 1000;
/// How long an answer is waited for.
const LOST: Duration = Duration::from_millis(200);
const FRAME: usize = 8;

/// Returns the parts, or why there are none here.
pub(super) fn parts() -> Result<Vec<Part>, String> {
    if let Some(why) = Pair::lacks() {
        return Err(format!("GETs in the kernel cannot be measured here: {why}"));
    }
    let mut parts = Vec::new();
    for (way, title, rows) in [
        (Way::Kernel, KERNEL, &["cpu", "process", "program", "server", "p50"][..]),
        (Way::Socket, SOCKET, &["cpu", "process", "p50"]),
    ] {
        for (value, window) in SIZES.into_iter().flat_map(|value| WINDOWS.map(|window| (value, window))) {
            let name = format!("{}/{}/{window}", way.name(), size_name(value));
            let rows: Vec<_> = rows.iter().filter(|row| window == 1 || **row != "p50").collect();
            parts.push(Part::new(name.clone(), title, &rows, move |setting| {
                datagrams(setting, way, value, window, &name).map_err(|error| error.to_string())
            }));
        }
    }
    for window in WINDOWS {
        let name = format!("unknown/{window}");
        parts.push(Part::new(name.clone(), UNKNOWN, &["process"], move |setting| {
            unknown(setting, window, &name).map_err(|error| error.to_string())
        }));
    }
    for value in [32, 1024] {
        let name = format!("busy/{}", size_name(value));
        parts.push(Part::new(name.clone(), BUSY, &["p50", "p99"], move |setting| {
            busy(setting, value, &name).map_err(|error| error.to_string())
        }));
    }
    for value in [32, 1024] {
        let name = format!("tcp/{}", size_name(value));
        parts.push(Part::new(name.clone(), TCP, &["get/cpu", "set/cpu"], move |setting| {
            tcp(setting, value, &name).map_err(|error| error.to_string())
        }));
    }
    Ok(parts)
}

/// The answerer of GETs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kernel,
    Socket,
    Memcached,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Socket => "socket",
            Self::Memcached => "memcached",
        }
    }
}

/// A turn's time in nanoseconds, for all GETs that were answered.
#[derive(Clone, Copy, Debug)]
struct Turn {
    gets: u64,
    client: u64,
    server: u64,
    softirq: u64,
    p50: u64,
    p99: u64,
}

impl Turn {
    fn of(self, nanos: u64) -> f64 {
        nanos as f64 / self.gets as f64
    }
}

/// A server at one end of a pair, and a socket at the other.
#[derive(Debug)]
struct Contestant {
    way: Way,
    server: Server,
    pair: Pair,
    socket: UdpSocket,
    turns: Vec<Turn>,
    next: u16,
    random: u64,
    /// The first key that is asked for.
    first: u32,
}

fn server(pair: &Pair, way: Way, cpu: usize) -> Outcome<Server> {
    let mut flags = ["-l", SERVER, "-p", "11211", "-U", "11211", "-m", "64"].map(str::to_owned).to_vec();
    if way == Way::Kernel {
        flags.push(format!("--xdp={INTERFACE}"));
    }
    let whose = if way == Way::Memcached { Whose::Peer } else { Whose::Ours };
    let address = Address::Tcp((SERVER.parse::<std::net::IpAddr>()?, PORT).into());
    pair.here(|| Server::start_at(whose, cpu, address, &flags).map_err(|error| error.to_string()))?.map_err(Into::into)
}

impl Contestant {
    fn begin(way: Way, cpu: usize, value: usize) -> Outcome<Self> {
        let pair = Pair::new()?;
        let server = server(&pair, way, cpu)?;
        let address = server.address.clone();
        let filled = pair.here(|| -> Result<(), String> {
            let mut client = Client::connect(&address).map_err(|error| error.to_string())?;
            for number in 0..PAIRS {
                client.set(&key(number), &vec![b'v'; value]).map_err(|error| error.to_string())?;
            }
            Ok(())
        });
        filled??;
        let socket = pair.there(|| UdpSocket::bind((CLIENT, 0)))??;
        socket.connect((SERVER, PORT))?;
        socket.set_read_timeout(Some(LOST))?;
        Ok(Self { way, server, pair, socket, turns: Vec::new(), next: 0, random: 1, first: 0 })
    }

    fn send(&mut self) -> Outcome<()> {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.next = self.next.wrapping_add(1);
        let mut request = [0; 64];
        request[..2].copy_from_slice(&self.next.to_be_bytes());
        request[5] = 1;
        let left = {
            let mut rest = &mut request[FRAME..];
            write!(rest, "get {}\r\n", key(self.first + (self.random >> 33) as u32 % PAIRS))?;
            rest.len()
        };
        self.socket.send(&request[..64 - left])?;
        Ok(())
    }

    /// Keeps so many GETs in flight, for so long.
    fn turn(&mut self, value: usize, window: usize, whole: Duration) -> Outcome<Turn> {
        let (begin, wanted): (&[u8], _) =
            if self.first > 0 { (b"END", FRAME + 5) } else { (b"VALUE ", answer_bytes(value)) };
        let mut times = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
        let mut answer = [0; 2048];
        let (mut gets, mut lost) = (0_u64, 0);
        let before = (thread_time(), self.server.cpu()?.all, softirq_time());
        let begun = Instant::now();
        let (mut flying, mut asked) = (0, begun);
        while begun.elapsed() < whole {
            if flying == 0 {
                asked = Instant::now();
            }
            while flying < window {
                self.send()?;
                flying += 1;
            }
            match self.socket.recv(&mut answer) {
                Ok(read) if read == wanted && answer[FRAME..].starts_with(begin) => {
                    flying -= 1;
                    gets += 1;
                    if window == 1 {
                        times.saturating_record(asked.elapsed().as_nanos() as u64);
                    }
                }
                Ok(read) => {
                    let text = String::from_utf8_lossy(&answer[FRAME..read.clamp(FRAME, 60)]).into_owned();
                    return Err(format!("answered {text:?}").into());
                }
                Err(_) => {
                    lost += flying as u64;
                    flying = 0;
                }
            }
        }
        let client = thread_time() - before.0;
        // Those that are still in flight are another turn's.
        self.socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        while flying > 0 && self.socket.recv(&mut answer).is_ok() {
            flying -= 1;
        }
        self.socket.set_read_timeout(Some(LOST))?;
        let (server, softirq) = (self.server.cpu()?.all - before.1, softirq_time() - before.2);
        if lost * 100 > gets {
            return Err(format!("{}: {lost} answers were lost, and {gets} came", self.way.name()).into());
        }
        let [p50, p99] = [0.5, 0.99].map(|quantile| if window == 1 { times.value_at_quantile(quantile) } else { 0 });
        Ok(Turn { gets, client, server, softirq, p50, p99 })
    }

    fn rounds(&self, of: impl Fn(Turn) -> f64) -> Figure {
        Figure::lowest(self.turns.iter().map(|&turn| of(turn)).collect())
    }

    /// Returns the run time of the programs for a GET, in nanoseconds, if the kernel tells.
    fn program(&mut self, value: usize, window: usize) -> Outcome<Option<f64>> {
        const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";
        let was = fs::read_to_string(STATS).unwrap_or_default();
        if run("bpftool version").is_err() || fs::write(STATS, "1").is_err() {
            return Ok(None);
        }
        let before = self.run_time();
        let turn = self.turn(value, window, Duration::from_millis(200));
        let after = self.run_time();
        fs::write(STATS, was.trim())?;
        Ok(Some((after? - before?) as f64 / turn?.gets as f64))
    }

    /// Returns the run time of the programs whose links the server has, by bpftool.
    fn run_time(&self) -> Outcome<u64> {
        let mut all = 0;
        for file in fs::read_dir(format!("/proc/{}/fdinfo", self.server.process()))? {
            let text = fs::read_to_string(file?.path()).unwrap_or_default();
            if let Some(id) = text.lines().find_map(|line| line.strip_prefix("prog_id:")) {
                let shown = run(&format!("bpftool prog show id {}", id.trim()))?;
                let time = shown.split_once("run_time_ns ").and_then(|(_, rest)| rest.split_whitespace().next());
                all += time.map_or(Ok(0), str::parse::<u64>)?;
            }
        }
        Ok(all)
    }
}

fn datagrams(setting: &Setting, way: Way, value: usize, window: usize, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let peer = peer_version().map(|_| Way::Memcached);
    let begin = |way| Contestant::begin(way, setting.far, value);
    let mut all = [Some(way), peer].into_iter().flatten().map(begin).collect::<Outcome<Vec<_>>>()?;
    turns(setting, &mut all, value, window)?;
    let row = |what: &str, of: &dyn Fn(Turn) -> f64| {
        let peer = all.get(1).map(|peer| peer.rounds(of));
        Row::new(format!("{name}/{what}"), all[0].rounds(of), peer, Unit::Nanos)
    };
    let whole = |turn: Turn| turn.of(turn.client + turn.server + turn.softirq);
    let process = |turn: Turn| turn.of(turn.server);
    let mut rows = vec![row("cpu", &whole), row("process", &process)];
    if window == 1 {
        rows.push(row("p50", &|turn| turn.p50 as f64));
    }
    if way == Way::Kernel {
        let gets = in_kernel(&all[0])?;
        rows[0].note = format!("{gets:.1} % of the GETs answered by the kernel");
        let peer = all.get(1).map(|peer| peer.rounds(process));
        let own = all[0].rounds(process);
        if let Some(program) = all[0].program(value, window)? {
            rows.push(Row::new(format!("{name}/program"), Figure::once(program), None, Unit::Nanos));
            let server = Figure {
                best: own.best + program,
                median: own.median.map(|median| median + program),
                rounds: own.rounds.map(|(low, high)| (low + program, high + program)),
            };
            let server = Row::new(format!("{name}/server"), server, peer, Unit::Nanos);
            rows.push(server.note("the process and the program's run time"));
        }
    }
    Ok(rows)
}

/// Returns the bytes of an answer with a value.
fn answer_bytes(value: usize) -> usize {
    FRAME + format!("VALUE {} 0 {value}\r\n", key(0)).len() + value + b"\r\nEND\r\n".len()
}

fn unknown(setting: &Setting, window: usize, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let begin = |way| Contestant::begin(way, setting.far, 32).map(|one| Contestant { first: PAIRS, ..one });
    let mut all = [Way::Kernel, Way::Socket].into_iter().map(begin).collect::<Outcome<Vec<_>>>()?;
    turns(setting, &mut all, 32, window)?;
    let of = |one: &Contestant| one.rounds(|turn| turn.of(turn.server));
    Ok(vec![Row::new(format!("{name}/process"), of(&all[0]), Some(of(&all[1])), Unit::Nanos)])
}

/// A client that waits for each answer: with a server whose workers have a full load over TCP, and with an idle one.
fn busy(setting: &Setting, value: usize, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let mut one = Contestant::begin(Way::Kernel, setting.far, value)?;
    let mut idle = Contestant::begin(Way::Kernel, setting.far, value)?;
    let (address, far) = (one.server.address.clone(), setting.far);
    for _ in 0..setting.rounds {
        let stop = AtomicBool::new(false);
        let (begun, begins) = std::sync::mpsc::channel();
        let turn = std::thread::scope(|scope| {
            let load =
                one.pair.here(|| Load::begin(&address, Mix::reading(value, PAIRS)).map_err(|error| error.to_string()));
            let mut load = load.map_err(|error| error.to_string())??;
            let stop = &stop;
            let loading = scope.spawn(move || -> Result<(), String> {
                crate::pin::pin(far).map_err(|error| error.to_string())?;
                while !stop.load(Relaxed) {
                    load.turn(Duration::from_millis(20)).map_err(|error| error.to_string())?;
                    let _ = begun.send(());
                }
                Ok(())
            });
            let _ = begins.recv();
            let turn = one.turn(value, 1, setting.whole).map_err(|error| error.to_string());
            stop.store(true, Relaxed);
            loading.join().map_err(|_| "the load ended".to_owned())??;
            turn
        });
        one.turns.push(turn?);
        let turn = idle.turn(value, 1, setting.whole)?;
        idle.turns.push(turn);
    }
    let row = |what: &str, of: fn(Turn) -> f64| {
        Row::new(format!("{name}/{what}"), one.rounds(of), Some(idle.rounds(of)), Unit::Nanos)
    };
    Ok(vec![row("p50", |turn| turn.p50 as f64), row("p99", |turn| turn.p99 as f64)])
}

/// Has the contestants take turns.
fn turns(setting: &Setting, all: &mut [Contestant], value: usize, window: usize) -> Outcome<()> {
    for one in &mut *all {
        one.turn(value, window, setting.whole / 4)?;
    }
    for round in 0..setting.rounds {
        for nth in 0..all.len() {
            // There and back: no contestant always runs behind the same other.
            let nth = if round % 2 == 0 { nth } else { all.len() - 1 - nth };
            let turn = all[nth].turn(value, window, setting.whole)?;
            all[nth].turns.push(turn);
        }
    }
    Ok(())
}

/// Returns how many of 100 GETs the kernel answered.
fn in_kernel(one: &Contestant) -> Outcome<f64> {
    let address = one.server.address.clone();
    let read = one.pair.here(|| -> Result<(u64, u64), String> {
        let stat = |name| {
            let mut client = Client::connect(&address).map_err(|error| error.to_string())?;
            client.stat(name).map_err(|error| error.to_string())
        };
        Ok((stat("kernel_gets")?, stat("cmd_get")?))
    });
    let (kernel, all) = read??;
    Ok(100.0 * kernel as f64 / all.max(1) as f64)
}

/// A server and a load over TCP.
struct Tcp {
    server: Server,
    load: Load,
    sets: Vec<std::net::TcpStream>,
    turns: [Vec<f64>; 2],
    /// The server's interface, as long as there is one.
    _pair: Pair,
}

impl Tcp {
    fn begin(way: Way, cpu: usize, value: usize) -> Outcome<Self> {
        let pair = Pair::new()?;
        let server = server(&pair, way, cpu)?;
        let address = server.address.clone();
        let mix = Mix::reading(value, PAIRS);
        let made = pair.here(|| -> Result<_, String> {
            let load = Load::begin(&address, mix).map_err(|error| error.to_string())?;
            let connect = |_| {
                let stream = std::net::TcpStream::connect((SERVER, PORT))?;
                stream.set_nodelay(true)?;
                Ok(stream)
            };
            let sets = (0..CONNECTIONS).map(connect).collect::<std::io::Result<Vec<_>>>();
            Ok((load, sets.map_err(|error| error.to_string())?))
        });
        let (load, sets) = made??;
        Ok(Self { server, load, sets, turns: [Vec::new(), Vec::new()], _pair: pair })
    }

    fn turn(&mut self, value: usize, whole: Duration) -> Outcome<[f64; 2]> {
        let before = self.server.cpu()?.all;
        let turn = self.load.turn(whole)?;
        let between = self.server.cpu()?.all;
        let sets = self.set(value, whole)?;
        let after = self.server.cpu()?.all;
        Ok([(between - before) as f64 / turn.requests as f64, (after - between) as f64 / sets as f64])
    }

    /// Sets for so long, one at a time on each connection; returns how many.
    fn set(&mut self, value: usize, whole: Duration) -> Outcome<u64> {
        let (begun, mut sets) = (Instant::now(), 0);
        let mut answer = [0; 8];
        while begun.elapsed() < whole {
            for stream in &mut self.sets {
                sets += 1;
                let mut request =
                    format!("set {} 0 0 {value}\r\n", key((sets * 7 % u64::from(PAIRS)) as u32)).into_bytes();
                request.resize(request.len() + value, b'w');
                request.extend_from_slice(b"\r\n");
                stream.write_all(&request)?;
            }
            for stream in &mut self.sets {
                stream.read_exact(&mut answer)?;
                if answer != *b"STORED\r\n" {
                    return Err(format!("answered {:?}", String::from_utf8_lossy(&answer)).into());
                }
            }
        }
        Ok(sets)
    }
}

fn tcp(setting: &Setting, value: usize, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let begin = |way| Tcp::begin(way, setting.far, value);
    let mut all = [Way::Kernel, Way::Socket].into_iter().map(begin).collect::<Outcome<Vec<_>>>()?;
    for one in &mut all {
        one.turn(value, setting.whole / 4)?;
    }
    for round in 0..setting.rounds {
        for nth in 0..all.len() {
            let nth = if round % 2 == 0 { nth } else { all.len() - 1 - nth };
            let figures = all[nth].turn(value, setting.whole)?;
            all[nth].turns.iter_mut().zip(figures).for_each(|(turns, figure)| turns.push(figure));
        }
    }
    let row = |nth: usize, what: &str| {
        let of = |one: &Tcp| Figure::lowest(one.turns[nth].clone());
        Row::new(format!("{name}/{what}"), of(&all[0]), Some(of(&all[1])), Unit::Nanos)
    };
    Ok(vec![row(0, "get/cpu"), row(1, "set/cpu")])
}

/// Returns the CPU time of this thread, in nanoseconds.
fn thread_time() -> u64 {
    #[expect(unsafe_code, reason = "clock_gettime")]
    // SAFETY: an all-zero time is a value of the type, and the call overwrites it.
    let time = unsafe {
        let mut time = std::mem::zeroed::<libc::timespec>();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the CPU time of the kernel's threads for softirq, in nanoseconds; 0 where they cannot be seen.
fn softirq_time() -> u64 {
    let Ok(all) = fs::read_dir("/proc") else { return 0 };
    let of = |process: fs::DirEntry| {
        let path = process.path();
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let is_softirq = name.starts_with("ksoftirqd/");
        let text = is_softirq.then(|| fs::read_to_string(path.join("schedstat")).ok())??;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    all.flatten().filter_map(of).sum()
}
