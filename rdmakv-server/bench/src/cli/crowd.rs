//! `crowd`: many clients of one server, most of them idle, and what they cost it in memory.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Args;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use procfs::process::Process;
use rdmakv_client::{Client, Error, Options, ServerAddress};

use super::Failure;
use super::flags::time;
use super::session::raise_descriptors;
use crate::owner;
use crate::target::Target;

const VALUE: &[u8] = &[b'v'; 64];
/// Reads that an active client has under way at a time.
const AT_ONCE: usize = 8;
/// Memory of a client for values, and as much for transfers. The commands of a crowd are short, and its clients many.
const MEMORY: usize = 64 << 10;

#[derive(Debug, Args)]
#[command(after_help = "\
Each client reads one key once. Then the active ones read it, 8 at a time, and the others are idle. The server's memory is its
proportional set size, if it runs on this machine. What its kernel has for connections is not in it. Ctrl-C ends the reads early.

Examples:
  rdmakv-bench crowd udp:127.0.0.1:11211 --clients 4096
  rdmakv-bench crowd udp:10.0.0.1:11211,iwarp:10.0.0.1:11211 --active 20
  rdmakv-bench crowd iwarp:127.0.0.1:11211 --server-pid 4711")]
pub(super) struct Crowd {
    /// The server, as `rdmakv -s` takes it
    #[arg(value_name = "ADDRESS")]
    server: ServerAddress,
    /// Clients, all in this process
    #[arg(short, long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    clients: u32,
    /// Those of them that read all the time
    #[arg(short, long, value_name = "CLIENTS", default_value_t = 10)]
    active: u32,
    /// How long they read
    #[arg(short = 'T', long, value_name = "TIME", default_value = "5s", value_parser = time)]
    duration: Duration,
    /// The key, which is written first
    #[arg(long, default_value = "crowd")]
    key: String,
    /// How long an operation may take, and the connection before it
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    timeout: Duration,
    /// The server's process, if it is not found by its address
    #[arg(long, value_name = "PID")]
    server_pid: Option<i32>,
}

impl Crowd {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        if self.active > self.clients {
            return Err(Failure::usage("--active: there are fewer --clients"));
        }
        raise_descriptors();
        let interrupt = Arc::new(AtomicBool::new(false));
        let heard = interrupt.clone();
        // The second time, the wait ends at once.
        let _ = ctrlc::set_handler(move || {
            if heard.swap(true, Relaxed) {
                std::process::exit(130);
            }
        });
        let failed = |doing: String| move |error: Error| Failure::work(format!("{doing}: {error}"));
        // What the first client has the server allocate is no other's cost.
        let mut first = self.client().map_err(failed("the first client".into()))?;
        let stored = first.set(&self.key, VALUE, ()).map_err(failed(format!("set {}", self.key)))?;
        if !stored.is_stored() {
            return Err(Failure::work(format!("set {}: the server did not store it: {stored:?}", self.key)));
        }
        let memory = Memory::of(self.server_pid.or_else(|| owner::find(&Target::Client(self.server.clone()))));
        let before = memory.now()?;
        let begun = Instant::now();
        let mut all = Vec::with_capacity(self.clients as usize);
        for number in 1..=self.clients {
            if interrupt.load(Relaxed) {
                return Err(Failure::work(format!("interrupted, when {} clients were there", all.len())));
            }
            let mut client = self.client().map_err(failed(format!("client {number}")))?;
            client.get(&self.key).map_err(failed(format!("get {} by client {number}", self.key)))?;
            all.push(client);
        }
        let came = begun.elapsed();
        say(&format!("{} clients after {:.2} s", self.clients, came.as_secs_f64()))?;
        let begun = Instant::now();
        let mut reads = 0;
        while begun.elapsed() < self.duration && !interrupt.load(Relaxed) {
            for (number, client) in (1..).zip(&mut all[..self.active as usize]) {
                let got = client.get_many([&self.key; AT_ONCE]).into_iter().collect::<Result<Vec<_>, _>>();
                reads += got.map_err(failed(format!("get {} by client {number}", self.key)))?.len();
            }
            if self.active == 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let took = begun.elapsed();
        let grown = before.zip(memory.now()?);
        say(&self.table(&all, reads as f64 / took.as_secs_f64(), grown))?;
        Ok(ExitCode::SUCCESS)
    }

    fn client(&self) -> Result<Client, Error> {
        let options = Options {
            timeout: self.timeout,
            connect_timeout: self.timeout,
            window: 16,
            tags: 16,
            value_memory: MEMORY,
            transfer_memory: MEMORY,
            ..Options::default()
        };
        Client::with_options([&self.server.to_string()], options)
    }

    /// Returns a table of how the clients are served, and of the memory before and with them.
    fn table(&self, all: &[Client], rate: f64, memory: Option<(u64, u64)>) -> String {
        let mut ways: Vec<(&str, usize)> = Vec::new();
        for client in all {
            let way = client.fabric(0).map_or("socket", |fabric| fabric.name());
            match ways.iter_mut().find(|(name, _)| *name == way) {
                Some((_, count)) => *count += 1,
                None => ways.push((way, 1)),
            }
        }
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        let mut row = |what: &str, number: String, unit: &str| {
            let number = Cell::new(number).set_alignment(CellAlignment::Right);
            table.add_row([Cell::new(what), number, Cell::new(unit)]);
        };
        for (way, count) in ways {
            row(&format!("clients by {way}"), count.to_string(), "");
        }
        row("reads", format!("{rate:.0}"), "a second");
        match memory {
            Some((before, with)) => {
                let more = with.saturating_sub(before);
                row("server's memory before", (before >> 10).to_string(), "KiB");
                row("more with them", (more >> 10).to_string(), "KiB");
                row("for each of them", (more / u64::from(self.clients)).to_string(), "bytes");
            }
            None => row("server's memory", "unknown".into(), "its process is not found here: --server-pid names it"),
        }
        if let Some(names) = table.column_mut(0) {
            names.set_padding((0, 1));
        }
        table.trim_fmt()
    }
}

/// The memory of a process.
struct Memory(Option<i32>);

impl Memory {
    fn of(process: Option<i32>) -> Self {
        Self(process)
    }

    /// Returns the proportional set size, in bytes, if the process is known.
    fn now(&self) -> Result<Option<u64>, Failure> {
        let Some(pid) = self.0 else { return Ok(None) };
        let sizes = Process::new(pid).and_then(|process| process.smaps_rollup());
        let sizes = sizes.map_err(|error| Failure::work(format!("read the memory of process {pid}: {error}")))?;
        let pss = sizes.memory_map_rollup.iter().filter_map(|map| map.extension.map.get("Pss"));
        Ok(Some(pss.sum()))
    }
}

/// Prints lines at once: what watches this command waits for them.
fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        // A reader that does not read to the end wants no more.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::work(format!("print: {error}"))),
        _ => Ok(()),
    }
}
