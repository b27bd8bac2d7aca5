//! A run: a server, client processes, and a thread that kills them now and then; then the verdict.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::addresses::{Addresses, Kernel};
use crate::client::{Client, Outcome, text::Text};
use crate::clock;
use crate::evidence::{Ending, Evidence, Findings, Restart};
use crate::journal::Journal;
use crate::place::Place;
use crate::progress::Progress;
use crate::record::Transport;
use crate::server::Server;
use crate::values::MOST_THREADS;
use crate::worker::Habits;

/// How long clients may take to come to an end.
const END: Duration = Duration::from_secs(60);
/// The share of orderly stops that are interrupted by a kill, and of starts after them.
const INTERRUPTED: f64 = 0.3;
/// How long a server stops or starts at most before it is killed at that.
const STOPPING: Duration = Duration::from_millis(300);
const STARTING: Duration = Duration::from_millis(100);
/// How often is looked after.
const ROUND: Duration = Duration::from_millis(20);

/// The plan of a run.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// Operations in all
    #[arg(short = 'n', long, default_value_t = 1_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1_000_000_000))]
    pub operations: u64,
    /// Client processes
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..100))]
    pub processes: u32,
    /// Threads of each client process
    #[arg(short = 't', long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..100))]
    pub threads: u32,
    /// Paths that clients take; each thread of a process takes the next one
    #[arg(long, value_delimiter = ',', default_value = "tcp", value_name = "TRANSPORT")]
    pub transports: Vec<Transport>,
    /// Datagrams of the transports "datagrams" and "hybrid" that are lost in each direction, in percent; as many come late, and as many twice
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = percent, conflicts_with = "at")]
    pub loss: f64,
    /// Run the server where the kernel answers GETs in datagrams (--xdp), at one of two interfaces in namespaces of their own. Takes
    /// root, and a build with --features bpf
    #[arg(long, conflicts_with = "at")]
    pub kernel: bool,
    /// Memory of the server, in megabytes
    #[arg(short = 'm', long, default_value_t = 8, value_name = "MB")]
    pub memory: u32,
    /// Flash of the server, in megabytes; 0 for no flash
    #[arg(long, default_value_t = 0, value_name = "MB")]
    pub flash: u32,
    /// Seconds from one kill -9 of the server to the next, or operations as in 2000op; 0 is never
    #[arg(long, default_value = "10", value_name = "SECONDS|Nop", value_parser = every)]
    pub kill_server_every: Every,
    /// Seconds from one orderly stop of the server (SIGTERM) to the next, or operations as in 2000op; 0 is never. What it keeps
    /// (--server-argument=-e --server-argument=FILE) has to be right. Some are killed while they stop, or the next one while it starts
    #[arg(long, default_value = "0", value_name = "SECONDS|Nop", value_parser = every)]
    pub stop_server_every: Every,
    /// Seconds from one kill -9 of a client process to the next, or operations as in 2000op; 0 is never
    #[arg(long, default_value = "5", value_name = "SECONDS|Nop", value_parser = every)]
    pub kill_client_every: Every,
    /// How long clients on fabrics may rely on what they were told
    #[arg(long, default_value = "500ms", value_name = "TIME")]
    pub tag_lease: String,
    /// The server's program, if not the one that is built in
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,
    /// A server that runs already and is never killed, such as memcached
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "server")]
    pub at: Option<String>,
    /// With --at: that server's address for the transport "datagrams", such as verbs-ud:HOST:PORT
    #[arg(long, value_name = "ADDRESS", requires = "at")]
    pub datagrams_at: Option<String>,
    /// More arguments for the server
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub server_argument: Vec<String>,
    /// A fault of the server's, in builds with --cfg rdmakv_fault_injection
    #[arg(long, value_name = "NAME", hide = true, value_parser = fault)]
    pub server_fault: Option<String>,
    /// A fault of the clients', in builds with --cfg rdmakv_fault_injection
    #[arg(long, value_name = "NAME", hide = true, value_parser = fault)]
    pub client_fault: Option<String>,
    /// The habits of threads.
    #[command(flatten)]
    pub habits: Habits,
    /// Folder that keeps the journals after the run (else they are removed)
    #[arg(long, value_name = "DIRECTORY")]
    pub keep: Option<PathBuf>,
    /// No progress on standard error
    #[arg(short, long)]
    pub quiet: bool,
}

#[cfg(feature = "bpf")]
type Pair = rdmakv_bpf::pair::Pair;

/// No pair of interfaces: this program was built without GETs in the kernel.
#[cfg(not(feature = "bpf"))]
#[derive(Debug)]
enum Pair {}

#[cfg(not(feature = "bpf"))]
impl Pair {
    fn new() -> io::Result<Self> {
        Err(io::Error::other("--kernel: this program was built without it; build it with --features bpf"))
    }

    fn here<T>(&self, _: impl FnOnce() -> T) -> io::Result<T> {
        match *self {}
    }
}

#[cfg(feature = "bpf")]
fn kernel(pair: &Pair) -> Kernel {
    use rdmakv_bpf::pair::{INTERFACE, SERVER};
    Kernel { host: SERVER.to_owned(), interface: INTERFACE.to_owned(), namespace: pair.path() }
}

#[cfg(not(feature = "bpf"))]
fn kernel(pair: &Pair) -> Kernel {
    match *pair {}
}

fn fault(text: &str) -> Result<String, String> {
    if !cfg!(rdmakv_fault_injection) {
        return Err("this program was built without faults; see `rdmakv-check faults`".into());
    }
    Ok(text.to_owned())
}

/// How often something is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Every {
    /// Not at all.
    Never,
    /// Once in so many seconds.
    Seconds(f64),
    /// Once in so many operations of the run, however fast it is.
    Operations(u64),
}

fn percent(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=50.0).contains(share));
    share.ok_or_else(|| "a percentage is needed, 0 to 50".into())
}

fn every(text: &str) -> Result<Every, String> {
    if let Some(number) = text.strip_suffix("op") {
        let operations = number.parse().ok().filter(|operations| (1..1_000_000_000).contains(operations));
        return operations.map(Every::Operations).ok_or_else(|| "operations are needed, 1op to 999999999op".into());
    }
    match text.parse() {
        Ok(0.0) => Ok(Every::Never),
        Ok(seconds @ 0.0..=1e6) => Ok(Every::Seconds(seconds)),
        _ => Err("seconds are needed, 0 to 1000000, or operations as in 2000op".into()),
    }
}

/// Begins a server, from its program, arguments, environment and log.
type Begin = fn(Option<&Path>, &[String], &[(&str, &OsStr)], &File) -> io::Result<Server>;

/// When something is done next.
#[derive(Clone, Copy, Debug)]
enum Due {
    Never,
    At(Instant),
    /// After so many operations.
    After(u64),
}

impl Due {
    fn is_over(self, operations: u64) -> bool {
        match self {
            Self::Never => false,
            Self::At(time) => Instant::now() >= time,
            Self::After(most) => operations >= most,
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    /// The evidence of the threads.
    pub evidence: Evidence,
    /// The verdicts.
    pub findings: Findings,
    /// Restarts of the server.
    pub restarts: Vec<Restart>,
    /// Client processes that were killed.
    pub killed: u32,
    /// Items that were driven out, and that had expired, as far as servers lived to tell.
    pub evicted: u64,
    /// See `evicted`.
    pub expired: u64,
    /// Values that came back from flash, likewise.
    pub from_flash: u64,
    /// Times that a client of datagrams moved to a connection, likewise.
    pub moved_clients: u64,
    /// Datagrams that were lost on purpose.
    pub lost_datagrams: u64,
    /// Values that reclaim moved on flash, likewise.
    pub moved: u64,
    /// GETs that the kernel answered, likewise.
    pub in_kernel: u64,
    /// How long clients worked.
    pub worked: Duration,
    /// How long the judging took.
    pub judged: Duration,
    /// When the run began, by the journals' clock.
    pub began: u64,
}

impl Run {
    /// Returns whether nothing at all was wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.wrong.is_empty() && self.findings.undecided.is_empty() && self.evidence.nonsense() == 0
    }
}

/// Carries out a plan.
///
/// # Errors
///
/// The server does not start or ends by itself, a client process fails, or files cannot be written.
pub fn run(plan: &Plan) -> io::Result<Run> {
    if plan.kernel {
        let pair = Pair::new()?;
        return pair.here(|| run_at(plan, Some(kernel(&pair))))?;
    }
    run_at(plan, None)
}

fn run_at(plan: &Plan, kernel: Option<Kernel>) -> io::Result<Run> {
    let own = match &plan.keep {
        Some(directory) => {
            std::fs::create_dir_all(directory)?;
            None
        }
        None => Some(tempfile::tempdir()?),
    };
    let directory = plan.keep.as_deref().or(own.as_ref().map(tempfile::TempDir::path)).unwrap_or(Path::new("."));
    let place = Place::create(directory)?;
    let began = clock::now();
    let mut torture = Torture::start(plan, place.clone(), kernel)?;
    torture.until_done()?;
    let (worked, threads) = (torture.began.elapsed(), torture.next_thread);
    let lost_datagrams = torture.addresses.lost_datagrams();
    let Torture { restarts, killed, evicted, expired, from_flash, moved_clients, moved, in_kernel, .. } = torture;
    let judging = Instant::now();
    let evidence = Evidence::gather(&place, 0..threads, plan.habits.keys, restarts.clone())?;
    let count = plan.habits.keys.count();
    let mut progress = Progress::new(plan.quiet);
    let findings = evidence.judge(|key| {
        progress.print(|| format!("judging: key {key} of {count}, {:.0} s", judging.elapsed().as_secs_f64()));
    });
    drop(progress);
    let judged = judging.elapsed();
    Ok(Run {
        evidence,
        findings,
        restarts,
        killed,
        evicted,
        expired,
        from_flash,
        moved_clients,
        lost_datagrams,
        moved,
        in_kernel,
        worked,
        judged,
        began,
    })
}

/// A client process, killed with the run.
struct Clients {
    process: Child,
    journals: Vec<Option<Journal>>,
    first: usize,
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Torture<'a> {
    plan: &'a Plan,
    place: Place,
    addresses: Addresses,
    server: Option<Server>,
    clients: Vec<Clients>,
    /// Lines of clients that were killed.
    lines_before: u64,
    next_thread: usize,
    restarts: Vec<Restart>,
    killed: u32,
    evicted: u64,
    expired: u64,
    from_flash: u64,
    moved_clients: u64,
    moved: u64,
    in_kernel: u64,
    began: Instant,
    random: Pcg64Mcg,
}

impl<'a> Torture<'a> {
    fn start(plan: &'a Plan, place: Place, kernel: Option<Kernel>) -> io::Result<Self> {
        let mut torture = Self {
            plan,
            place,
            addresses: Addresses::choose(
                &plan.transports,
                plan.at.as_deref().map(|at| (at, plan.datagrams_at.as_deref())),
                kernel,
                plan.loss / 100.0,
            )?,
            server: None,
            clients: Vec::new(),
            lines_before: 0,
            next_thread: 0,
            restarts: Vec::new(),
            killed: 0,
            evicted: 0,
            expired: 0,
            from_flash: 0,
            moved_clients: 0,
            moved: 0,
            in_kernel: 0,
            began: Instant::now(),
            random: Pcg64Mcg::seed_from_u64(plan.habits.seed),
        };
        torture.start_server()?;
        for _ in 0..plan.processes {
            torture.start_clients()?;
        }
        Ok(torture)
    }

    fn start_server(&mut self) -> io::Result<()> {
        if self.plan.at.is_none() {
            let started = self.with_server(Server::start);
            let with_log = |error| io::Error::other(format!("{error}:\n{}", self.place.end_of_server_log()));
            self.server = Some(started.map_err(with_log)?);
        }
        self.place.up(&self.addresses.all())
    }

    /// Begins a server with the run's arguments.
    fn with_server(&self, begin: Begin) -> io::Result<Server> {
        let mut arguments = self.addresses.arguments(&self.plan.tag_lease);
        // Pages are as large as the largest item: with small ones memory is full soon.
        let memory = self.plan.memory.to_string();
        arguments.extend(["-t", "4", "-I", "128k", "-m", &memory].map(str::to_owned));
        if self.plan.flash > 0 {
            let file = self.place.directory().join("flash");
            arguments.extend(["--flash".into(), format!("{}:{}m", file.display(), self.plan.flash)]);
        }
        arguments.extend(self.plan.server_argument.iter().cloned());
        // Each sees another environment than the one before, as from a login and from cron.
        let elsewhere = self.place.directory().join(format!("environment-{}", self.restarts.len()));
        let mut environment: Vec<_> =
            ["XDG_RUNTIME_DIR", "TMPDIR", "HOME"].map(|name| (name, elsewhere.as_os_str())).into();
        environment.extend(self.plan.server_fault.as_deref().map(|fault| ("RDMAKV_FAULT", fault.as_ref())));
        let log = self.place.server_log()?;
        begin(self.plan.server.as_deref(), &arguments, &environment, &log)
    }

    fn start_clients(&mut self) -> io::Result<()> {
        let first = self.next_thread;
        let threads = self.plan.threads as usize;
        if first + threads > MOST_THREADS {
            return Err(io::Error::other("so many clients were killed that numbers run out: kill fewer"));
        }
        let (habits, keys) = (self.plan.habits, self.plan.habits.keys);
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("work").arg("--directory").arg(self.place.directory());
        for (name, value) in [
            ("--first-thread", first as u64),
            ("--threads", threads as u64),
            ("--lines", self.plan.operations),
            ("--hot", keys.hot.into()),
            ("--counters", keys.counters.into()),
            ("--warm", keys.warm.into()),
            ("--cold", keys.cold.into()),
            ("--gets", habits.gets.into()),
            ("--readers", habits.readers.into()),
            ("--warm-changes", habits.warm_changes.into()),
            ("--flush-every", habits.flush_every.into()),
            ("--seed", habits.seed),
        ] {
            command.arg(name).arg(value.to_string());
        }
        command.envs(self.plan.client_fault.as_ref().map(|fault| ("RDMAKV_FAULT", fault)));
        command.args(habits.large.then_some("--large")).args(habits.small.then_some("--small"));
        command.args(habits.equal.then_some("--equal"));
        let transports: Vec<&str> = self.plan.transports.iter().map(|transport| transport.name()).collect();
        let process = command.arg("--transports").arg(transports.join(",")).stdin(Stdio::null()).spawn()?;
        self.next_thread += threads;
        self.clients.push(Clients { process, journals: (0..threads).map(|_| None).collect(), first });
        Ok(())
    }

    fn lines(&mut self) -> io::Result<u64> {
        let mut lines = self.lines_before;
        for clients in &mut self.clients {
            lines += clients.lines(&self.place)?;
        }
        Ok(lines)
    }

    /// Works until there were as many operations as were asked for.
    fn until_done(&mut self) -> io::Result<()> {
        let mut kill_server = self.next(self.plan.kill_server_every, 0);
        let mut stop_server = self.next(self.plan.stop_server_every, 0);
        let mut kill_client = self.next(self.plan.kill_client_every, 0);
        let mut progress = Progress::new(self.plan.quiet);
        loop {
            std::thread::sleep(ROUND);
            let lines = self.lines()?;
            progress.print(|| self.so_far(lines));
            let is_over = lines >= self.plan.operations;
            if let Some(status) = self.server.as_mut().map(Server::ended).transpose()?.flatten() {
                return Err(io::Error::other(format!("the server ended by itself, with {status}")));
            }
            // Those whose journals are full end.
            for clients in self.clients.iter_mut().filter(|_| !is_over) {
                if let Some(status) = clients.process.try_wait()? {
                    return Err(io::Error::other(format!("a client process ended by itself, with {status}")));
                }
            }
            // Due events happen in the end, too: on a fast machine a short run is over at the first look.
            if kill_client.is_over(lines) {
                self.kill_client()?;
                kill_client = self.next(self.plan.kill_client_every, lines);
            }
            if kill_server.is_over(lines) && self.server.is_some() {
                self.restart(false)?;
                kill_server = self.next(self.plan.kill_server_every, lines);
            }
            if stop_server.is_over(lines) && self.server.is_some() {
                self.restart(true)?;
                stop_server = self.next(self.plan.stop_server_every, lines);
            }
            if is_over {
                break;
            }
        }
        self.place.stop();
        let ending = Instant::now();
        for clients in &mut self.clients {
            while clients.process.try_wait()?.is_none() {
                if ending.elapsed() > END {
                    return Err(io::Error::other("a client process does not come to an end"));
                }
                std::thread::sleep(ROUND);
            }
        }
        self.count();
        Ok(())
    }

    /// When it is time again: somewhere around the middle of such an interval.
    fn next(&mut self, every: Every, operations: u64) -> Due {
        let share = self.random.random_range(0.5..1.5);
        match every {
            Every::Never => Due::Never,
            Every::Seconds(seconds) => Due::At(Instant::now() + Duration::from_secs_f64(seconds * share)),
            Every::Operations(each) => Due::After(operations + (each as f64 * share) as u64),
        }
    }

    fn kill_client(&mut self) -> io::Result<()> {
        let which = self.random.random_range(0..self.clients.len());
        let mut clients = self.clients.swap_remove(which);
        let _ = clients.process.kill();
        let _ = clients.process.wait();
        self.lines_before += clients.lines(&self.place)?;
        self.killed += 1;
        self.start_clients()
    }

    /// Kills the server, or has it end in order, and starts another.
    fn restart(&mut self, in_order: bool) -> io::Result<()> {
        self.count();
        self.place.down();
        let begin = clock::now();
        let mut ending = Ending::Killed;
        if in_order && let Some(server) = &mut self.server {
            let is_killed = self.random.random_bool(INTERRUPTED);
            ending = server.stop(is_killed.then(|| self.random.random_range(Duration::ZERO..STOPPING)))?;
        }
        self.server = None;
        if in_order && self.random.random_bool(INTERRUPTED) {
            ending = Ending::Interrupted;
            let starting = self.with_server(Server::spawn)?;
            std::thread::sleep(self.random.random_range(Duration::ZERO..STARTING));
            drop(starting);
        }
        let dead = clock::now();
        self.start_server()?;
        let mut client = Text::new(self.place.clone());
        let asked = if client.is_ready() { client.get(b"anything", &mut Vec::new()) } else { Outcome::Unknown };
        if asked == Outcome::Unknown {
            return Err(io::Error::other("the server that was started anew answers nothing"));
        }
        self.restarts.push(Restart { begin, dead, answered: clock::now(), ending });
        Ok(())
    }

    /// Notes what the server knows about evictions, before it is gone.
    fn count(&mut self) {
        let statistics = Text::new(self.place.clone()).statistics();
        let count = |name| statistics.iter().find(|(given, _)| given == name).map_or(0, |(_, count)| *count);
        self.evicted += count("evictions");
        self.expired += count("get_expired") + count("crawler_reclaimed");
        self.from_flash += count("get_extstore");
        self.moved_clients += count("iwarp_promoted");
        self.moved += count("extstore_compact_rescues");
        self.in_kernel += count("kernel_gets");
    }

    fn so_far(&self, lines: u64) -> String {
        let rate = lines as f64 / self.began.elapsed().as_secs_f64();
        let (all, restarts) = (self.plan.operations, self.restarts.len());
        format!("{lines} of {all} operations, {rate:.0} a second, {restarts} restarts, {} clients killed", self.killed)
    }
}

impl Clients {
    fn lines(&mut self, place: &Place) -> io::Result<u64> {
        let mut lines = 0;
        for (number, journal) in self.journals.iter_mut().enumerate() {
            if journal.is_none() {
                *journal = place.journal(self.first + number)?;
            }
            lines += journal.as_ref().map_or(0, Journal::lines) as u64;
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_due_by_time_or_by_operations() {
        assert_eq!(every("0"), Ok(Every::Never));
        assert_eq!(every("0.7"), Ok(Every::Seconds(0.7)));
        assert_eq!(every("2000op"), Ok(Every::Operations(2000)));
        assert!(["-1", "inf", "", "op", "0op", "1.5op", "2e6"].iter().all(|text| every(text).is_err()));
        assert!(!Due::Never.is_over(u64::MAX) && Due::At(Instant::now()).is_over(0));
        assert!(!Due::After(3).is_over(2) && Due::After(3).is_over(3));
    }
}
