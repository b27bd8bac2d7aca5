//! This generator beside memaslap, on the same CPU, against the same memcached: does it ask for as much?
//!
//! ```sh
//! cargo run --release -p rdmakv-bench --example beside-memaslap      # two CPUs, 45 s
//! ```
//!
//! Both make the same load: one thread, GETs and SETs 9:1, keys of 64 bytes, values of 1 KiB, so many connections with one
//! request under way on each. They take turns, so that what changes on the machine changes for both. Where the server is what
//! limits the rate, both get the same. Then the CPU that each took for an operation is what tells them apart.
//!
//! memaslap (in some systems memcaslap) is in libmemcached's tools: Debian's libmemcached-tools. Without it or memcached this says
//! so and does nothing.

mod memaslap;

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use memaslap::Memaslap;
use rdmakv_bench::{Mix, Plan, Traffic, pin, run};

/// This generator beside memaslap
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  beside-memaslap                                  CPU 0 for memcached, CPU 1 for who asks; 45 s
  beside-memaslap --rounds 9 --seconds 3 -c 64     more of all
  beside-memaslap --cpu 0 --server-cpu 0           where there is but one")]
struct Cli {
    /// How often each has its turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of a turn: whole ones, as memaslap takes no others
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Connections
    #[arg(short, long, default_value_t = 16)]
    connections: usize,
    /// The generators' CPU
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// The server's CPU; the same as the generators' if there is but one
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Operations a second.
    rate: f64,
    /// Nanoseconds of CPU that the generator took for one.
    cpu: f64,
}

/// A server on its CPU, ended with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const KEY: usize = 64;
const VALUE: usize = 1024;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match compare(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(wrong) => {
            eprintln!("beside-memaslap: {wrong}");
            ExitCode::from(2)
        }
    }
}

fn compare(cli: &Cli) -> Result<bool, String> {
    let Some(memaslap) = Memaslap::find() else {
        println!("skipped: neither memaslap nor memcaslap is here (Debian: libmemcached-tools)");
        return Ok(true);
    };
    // Children stay where their parent is.
    pin(cli.server_cpu)?;
    let Some((_server, place)) = server()? else {
        println!("skipped: memcached is not here (Debian: memcached)");
        return Ok(true);
    };
    pin(cli.cpu)?;
    let mut turns: [Vec<Turn>; 2] = [Vec::new(), Vec::new()];
    println!("{:>5}  {:>24}  {:>24}", "round", "rdmakv-bench", memaslap.name());
    for round in 1..=cli.rounds {
        // The contestant that begins changes, too.
        for turn in 0..2 {
            let who = (round + turn) % 2;
            let done =
                if who == 0 { ours(cli, &place)? } else { memaslap.turn(&place, cli.connections, cli.seconds)? };
            turns[who].push(done);
        }
        let cell =
            |turn: Option<&Turn>| turn.map_or(String::new(), |turn| format!("{:.0}/s, {:.0} ns", turn.rate, turn.cpu));
        println!("{round:>5}  {:>24}  {:>24}", cell(turns[0].last()), cell(turns[1].last()));
    }
    let median = |who: usize, of: fn(&Turn) -> f64| {
        let mut all: Vec<f64> = turns[who].iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let rate = median(0, |turn| turn.rate) / median(1, |turn| turn.rate);
    let cpu = median(0, |turn| turn.cpu) / median(1, |turn| turn.cpu);
    println!("medians: {rate:.3} times its operations a second, with {cpu:.3} times its CPU for each");
    // With a server as the limit, the rate is the server's: there the CPU counts.
    let good = rate >= 1.0 || (rate > 0.95 && cpu <= 1.0);
    println!("{}", if good { "reached: as much as memaslap, or as much for less CPU" } else { "NOT reached" });
    Ok(good)
}

fn server() -> Result<Option<(Server, String)>, String> {
    // A free port: what was free a moment ago is so still, nearly always; else memcached ends and this says so.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| format!("a free port: {error}"))?;
    let place = listener.local_addr().map_err(|error| format!("a free port: {error}"))?.to_string();
    drop(listener);
    let port = place.rsplit(':').next().unwrap_or_default();
    let mut command = Command::new("memcached");
    command.args(["-u", "root", "-t", "1", "-m", "512", "-l", "127.0.0.1", "-p", port]).stderr(Stdio::null());
    let mut server = match command.spawn() {
        Ok(process) => Server(process),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("starting memcached: {error}")),
    };
    for _ in 0..500 {
        if std::net::TcpStream::connect(&place).is_ok() {
            return Ok(Some((server, place)));
        }
        if let Ok(Some(status)) = server.0.try_wait() {
            return Err(format!("memcached ended at once, with {status}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err("memcached does not listen".into())
}

fn ours(cli: &Cli, place: &str) -> Result<Turn, String> {
    let mut plan = Plan::new(place.parse()?);
    plan.connections = cli.connections;
    plan.pin = vec![cli.cpu];
    plan.key_len = KEY;
    plan.sizes = VALUE.to_string().parse()?;
    plan.traffic = Traffic::Mix(Mix::sets(0.1));
    plan.warm_up = Duration::from_millis(300);
    plan.duration = Duration::from_secs(cli.seconds);
    let report = run(&plan)?;
    if !report.is_good() {
        return Err(format!("a turn of rdmakv-bench: {report:?}"));
    }
    Ok(Turn { rate: report.rate, cpu: report.generator.user_ns + report.generator.system_ns })
}
