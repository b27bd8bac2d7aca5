//! Servers that a study starts and ends.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::target::Target;

/// How long a server may take to start.
const START: Duration = Duration::from_secs(10);
/// Between two times that a file's pages leave the system's cache.
const DROP: Duration = Duration::from_millis(10);

/// A server of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contender {
    /// rdmakv-server with --flash
    Ours,
    /// memcached
    Memcached,
    /// memcached with ext_path
    Extstore,
}

impl Contender {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "rdmakv-server",
            Self::Memcached => "memcached",
            Self::Extstore => "extstore",
        }
    }
    pub(crate) fn has_flash(self) -> bool {
        self != Self::Memcached
    }
}

/// A part of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// GETs by each pattern
    Patterns,
    /// GETs of memory, alone and beside busy flash
    Tiers,
    /// SETs where flash is 80 % full
    Full,
}

/// The programs, and the folder of their files.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) ours: PathBuf,
    pub(crate) memcached: PathBuf,
    pub(crate) folder: PathBuf,
}

/// The amounts that all servers have.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Amounts {
    /// MiB of memory.
    pub(crate) memory: u64,
    /// MiB of flash.
    pub(crate) flash: u64,
    /// Threads that serve.
    pub(crate) threads: usize,
    /// Whether the system may cache the file, in memory beyond the server's.
    pub(crate) page_cache: bool,
}

/// A server that runs. It ends with its value, and its file goes.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    address: String,
    dropping: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    // Removed last.
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server, and waits until it answers. `max_frag` is for ours.
    ///
    /// # Errors
    ///
    /// The program that is missing or ended, and the remedy.
    pub(crate) fn start(
        contender: Contender,
        programs: &Programs,
        amounts: Amounts,
        max_frag: Option<f64>,
    ) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("rdmakv-bench-").tempdir_in(&programs.folder);
        let folder = folder.map_err(|error| {
            format!("make folder in {}: {error}: name another with --folder", programs.folder.display())
        })?;
        let (file, log) = (folder.path().join("flash"), folder.path().join("log"));
        let port = free_port().map_err(|error| format!("find a free port: {error}"))?;
        let program = if contender == Contender::Ours { &programs.ours } else { &programs.memcached };
        let mut command = Command::new(program);
        let Amounts { memory, flash, threads, .. } = amounts;
        command.args(["-l", "127.0.0.1", "-U", "0"]);
        command.args([format!("-p{port}"), format!("-m{memory}"), format!("-t{threads}")]);
        match contender {
            Contender::Ours => {
                command.arg("--flash").arg(format!("{}:{flash}m", file.display()));
                command.args(max_frag.map(|share| format!("-oext_max_frag={share}")));
            }
            Contender::Memcached => {}
            Contender::Extstore => {
                // Its pages are 64 MB, which a small file has too few of.
                let page = (flash / 32).clamp(4, 64);
                command.arg("-o").arg(format!("ext_page_size={page},ext_path={}:{flash}m", file.display()));
            }
        }
        if contender != Contender::Ours && rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        let doing = format!("start {}", program.display());
        let errors = File::create(&log).map_err(|error| format!("{doing}: {}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("{doing}: not found: {}", remedy(contender)),
            _ => format!("{doing}: {error}"),
        })?;
        let mut server = Self { child, address: format!("127.0.0.1:{port}"), dropping: None, _folder: folder };
        server.wait_until_it_serves().map_err(|why| {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let line = text.lines().last().unwrap_or_default();
            format!("{doing}: {why}: {line}: {}", remedy(contender))
        })?;
        if contender.has_flash() && !amounts.page_cache {
            server.dropping = Some(drop_pages(&file).map_err(|error| format!("{doing}: {}: {error}", file.display()))?);
        }
        Ok(server)
    }

    fn wait_until_it_serves(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            // One that only listens may not have its file yet.
            if self.stats().is_ok() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("it ended with {status}"));
            }
            if begun.elapsed() > START {
                return Err(format!("it does not answer after {START:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn target(&self) -> Target {
        Target::Tcp(self.address.clone())
    }
    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Returns the numbers of `stats`.
    ///
    /// # Errors
    ///
    /// The server does not answer.
    pub(crate) fn stats(&self) -> Result<HashMap<String, u64>, String> {
        let asked = || -> io::Result<HashMap<String, u64>> {
            let mut stream = TcpStream::connect(&self.address)?;
            stream.set_read_timeout(Some(START))?;
            stream.write_all(b"stats\r\n")?;
            let mut stats = HashMap::new();
            for line in BufReader::new(stream).lines() {
                let line = line?;
                let mut words = line.split_whitespace();
                match (words.next(), words.next(), words.next().map(str::parse)) {
                    (Some("STAT"), Some(name), Some(Ok(number))) => drop(stats.insert(name.to_owned(), number)),
                    (Some("STAT"), ..) => {}
                    _ => return Ok(stats),
                }
            }
            Err(io::ErrorKind::UnexpectedEof.into())
        };
        asked().map_err(|error| format!("ask {} for statistics: {error}", self.address))
    }

    /// Returns the bytes of memory that are resident now.
    pub(crate) fn resident(&self) -> u64 {
        let status = procfs::process::Process::new(self.pid()).and_then(|process| process.status());
        status.ok().and_then(|status| status.vmrss).unwrap_or(0) * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some((stop, thread)) = self.dropping.take() {
            stop.store(true, Relaxed);
            let _ = thread.join();
        }
    }
}

fn remedy(contender: Contender) -> &'static str {
    match contender {
        Contender::Ours => "build it (cargo build --release -p rdmakv-server), or name it with --server",
        Contender::Memcached => "install it (Debian: memcached), or leave it out: --contenders ours",
        Contender::Extstore => {
            "install a memcached that has extstore (Debian's has), or leave it out: --contenders ours,memcached"
        }
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Keeps the pages of a file out of the system's cache: what is written goes to the device, and reads come from there.
fn drop_pages(path: &Path) -> io::Result<(Arc<AtomicBool>, JoinHandle<()>)> {
    let file = File::open(path)?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name("drop-pages".into()).spawn(move || {
        while !told.load(Relaxed) {
            // Only what is written can leave; that which cannot leave now leaves later.
            let _ = file.sync_data();
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
            std::thread::sleep(DROP);
        }
    })?;
    Ok((stop, thread))
}

/// Returns the file beside this program, or the name alone, which is looked for in PATH.
pub(crate) fn beside_us(name: &str) -> PathBuf {
    let own = std::env::current_exe().ok();
    own.map(|path| path.with_file_name(name)).filter(|path| path.exists()).unwrap_or_else(|| name.into())
}
