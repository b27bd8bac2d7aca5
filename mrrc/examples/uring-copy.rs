//! Copies a file by io_uring, through buffers that change, and prints what a cache of registrations gains.
//!
//! What to learn from it: the kernel must pin a buffer before a disk may write into it. With plain buffers it does
//! so for each transfer anew; with *fixed* buffers the program pins (registers) them ahead and transfers name them
//! by number. But which buffer comes next is rarely known, so a program would register for each transfer, which
//! takes as long as it saves. [`mrrc::Cache`] keeps registered what is used again. Three things make a
//! program use it: a cache over the ring ([`Pins::cached`]), a lease before a transfer ([`Pins::hold`]), and the
//! lease dropped when the transfer's completion was seen ([`Lane`]).
//!
//! ```text
//! cargo run --release -p mrrc --example uring-copy             # a file of its own, in the temporary directory
//! cargo run --release -p mrrc --example uring-copy -- FROM TO  # copy this file
//! cargo run --release -p mrrc --example uring-copy -- --help
//! ```
//!
//! The three ways take turns, so that what else the machine does hits all of them, and each copy is compared with its
//! original. The files are opened with `O_DIRECT`: transfers by way of the page cache copy bytes and pin nothing, so
//! there is nothing to gain (`--buffered` shows that).

use clap::Parser;
use io_uring::{IoUring, opcode, squeue, types};
use mrrc::invalidation::Explicit;
use mrrc::registrar::io_uring::{FixedBuffer, IoUringBuffers};
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, AcquireError, Cache, Lease, PAGE, PageRange};
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Copies a file by io_uring in three ways and says what each costs: plain buffers, buffers registered for each
/// chunk, and buffers that a cache keeps registered.
///
/// Variables of the cache, like MRRC_CAPACITY, MRRC_POLICY and MRRC_MONITOR, apply.
#[derive(Parser)]
#[command(name = "uring-copy")]
struct Options {
    /// The file to copy [default: one of random bytes, removed at the end]
    from: Option<PathBuf>,
    /// Where to; it must not exist yet [default: a file that is removed at the end]
    to: Option<PathBuf>,
    /// Where the program's own files are made [default: the temporary directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Bytes in the program's own file
    #[arg(long, value_parser = size, default_value = "64M", conflicts_with = "from")]
    size: u64,
    /// Bytes in a chunk, which is one read and one write: a multiple of 4K, at most 64M [default: 4M, or less where
    /// little may be pinned]
    #[arg(long, value_parser = chunk)]
    chunk: Option<u64>,
    /// Chunks under way at a time
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256), default_value_t = 8)]
    depth: u32,
    /// Buffers, a chunk each: half of all chunks go to an eighth of them
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16384), default_value_t = 32)]
    buffers: u32,
    /// Bytes that the cache may keep registered [default: half of the buffers]. At most half of what may be pinned
    #[arg(long, value_parser = size)]
    capacity: Option<u64>,
    /// Copies that are measured, each way; the medians are printed. One more, unmeasured, goes ahead
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000), default_value_t = 9)]
    rounds: u32,
    /// Copy through the page cache, where transfers pin nothing
    #[arg(long)]
    buffered: bool,
}

/// Bytes in a chunk, if as much may be pinned.
const CHUNK: u64 = 4 << 20;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(report) => match io::stdout().write_all(report.as_bytes()) {
            // Whoever has stopped reading has seen enough.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(&error),
            _ => ExitCode::SUCCESS,
        },
        Err(error) => fail(&*error),
    }
}

fn fail(error: &dyn Error) -> ExitCode {
    // There is nobody left to tell if this cannot be written.
    let _ = writeln!(io::stderr(), "uring-copy: {error}");
    ExitCode::FAILURE
}

fn run(options: &Options) -> Result<String> {
    if options.buffers < options.depth {
        return Err(format!("{} buffers for {} chunks at a time: too few", options.buffers, options.depth).into());
    }
    // What can be refused is asked for before any file is made.
    let plain = Way::new("plain buffers", options.depth, |_| Ok(Pins::Plain))?;
    let each_time = Way::new("register each time", options.depth, Pins::each_time)?;
    let plan = Plan::new(options, each_time.pins.limit());
    let cached = Way::new("cached", options.depth, |ring| Pins::cached(ring, plan.capacity))?;
    let mut ways = [plain, each_time, cached];
    let mut pool = Pool::new(options.buffers, plan.chunk)?;
    let mut job = Job::open(options, plan.chunk)?;
    let cpu = stay_on_one_cpu()?;

    for round in 0..=options.rounds {
        for turn in 0..ways.len() {
            let way = &mut ways[(turn + round as usize) % 3];
            job.wipe_copy()?;
            // The same buffers for every way, others in the next round.
            let mut draw = Draw(0x9E37_79B9_7F4A_7C15 ^ u64::from(round + 1));
            let (wall, busy) = (Instant::now(), cpu_time()?);
            way.copy(&job, &mut pool, &mut draw)?;
            let sample = Sample { wall: wall.elapsed(), cpu: cpu_time()?.saturating_sub(busy) };
            job.compare().map_err(|error| format!("{}: {error}", way.name))?;
            match round {
                0 => way.before = way.pins.counts(),
                _ => way.samples.push(sample),
            }
        }
    }
    job.keep();
    Ok(report(options, &plan, &job, &ways, cpu))
}

/// What the options leave open, as what may be pinned allows.
struct Plan {
    chunk: u64,
    /// Of the cache, in bytes.
    capacity: u64,
    /// Bytes that may be pinned.
    limit: u64,
}

impl Plan {
    /// The cache gets half of the limit at most, because this program registers by hand besides. (A program that
    /// does not need not set a capacity: a cache keeps to the limit by itself.)
    fn new(options: &Options, limit: u64) -> Self {
        let fitting = || 1 << (limit / 2 / 16).clamp(PAGE, CHUNK).ilog2();
        let chunk = options.chunk.unwrap_or_else(fitting);
        let wanted = options.capacity.unwrap_or_else(|| (u64::from(options.buffers) * chunk / 2).max(chunk));
        Self { chunk, capacity: wanted.min(limit / 2), limit }
    }
}

// ---- The buffers: three ways to have them pinned ---------------------------------------------------------------

/// Who pins a buffer for a transfer, and when.
enum Pins {
    /// The kernel, in each transfer.
    Plain,
    /// This program, for each chunk.
    EachTime { table: IoUringBuffers, registered: u64 },
    /// This program, when the cache does not have it yet.
    Cached(Cache<IoUringBuffers>),
}

/// A buffer that stays pinned until it is given back, if anybody but the kernel pinned it.
enum Held {
    Plain,
    Registered(Registered<FixedBuffer>),
    /// Dropped when the transfer is over, and the cache may evict the buffer, sooner or later.
    Leased(Lease<IoUringBuffers>),
}

/// Why a buffer could not be pinned.
struct Refused {
    /// Too much is pinned: it may work when transfers have ended.
    short: bool,
    error: Box<dyn Error>,
}

impl Pins {
    fn each_time(ring: &IoUring) -> Result<Self> {
        Ok(Self::EachTime { table: IoUringBuffers::new(ring, IoUringBuffers::DEFAULT_SLOTS)?, registered: 0 })
    }

    fn cached(ring: &IoUring, capacity: u64) -> Result<Self> {
        let cache = Cache::builder(IoUringBuffers::new(ring, IoUringBuffers::DEFAULT_SLOTS)?)
            .capacity_bytes(capacity)
            // A transfer names one fixed buffer, so a lease has to be one segment.
            .max_segments(1)
            // The pool is never unmapped, so there is nothing to hear of. Leave this line out where buffers come
            // from an allocator: the cache then watches for pages that go, by userfaultfd.
            .monitor(Explicit)
            .build()?;
        Ok(Self::Cached(cache))
    }

    fn hold(&mut self, address: *mut u8, length: usize) -> Result<Held, Refused> {
        match self {
            Self::Plain => Ok(Held::Plain),
            Self::EachTime { table, registered } => {
                let range = PageRange::of_bytes(address as u64, length as u64).map_err(Refused::for_good)?;
                let access = Access::LOCAL;
                let registration = table.register(range, access).map_err(Refused::by_system)?;
                *registered += 1;
                Ok(Held::Registered(Registered { range, access, registration }))
            }
            Self::Cached(cache) => {
                #[expect(unsafe_code, reason = "leases memory to the kernel")]
                // SAFETY: the memory is the pool's, which is never freed and to which there are no references.
                let lease = unsafe { cache.acquire(address, length, Access::LOCAL) };
                lease.map(Held::Leased).map_err(Refused::by_cache)
            }
        }
    }

    fn give_back(&mut self, held: Held) -> Result<()> {
        match (self, held) {
            (Self::EachTime { table, .. }, Held::Registered(buffer)) => Ok(table.deregister(&mut vec![buffer])?),
            // A lease is dropped here, and that is all: one store.
            _ => Ok(()),
        }
    }

    /// Bytes that may be registered.
    fn limit(&self) -> u64 {
        let pages = match self {
            Self::Plain => None,
            Self::EachTime { table, .. } => table.limits().pages,
            Self::Cached(cache) => Some(cache.usage().capacity_pages),
        };
        pages.map_or(u64::MAX, |pages| pages.saturating_mul(PAGE))
    }

    fn counts(&self) -> Counts {
        match self {
            Self::Plain => Counts::default(),
            Self::EachTime { table, registered } => Counts {
                requests: *registered,
                hits: 0,
                registered: *registered,
                calls: registered + table.clearing_calls(),
            },
            Self::Cached(cache) => {
                let counters = cache.counters();
                Counts {
                    requests: counters.decisions.requests,
                    hits: counters.decisions.hits(),
                    registered: counters.attempts,
                    calls: counters.attempts + cache.registrar().clearing_calls(),
                }
            }
        }
    }
}

impl Held {
    /// The number by which a transfer names the buffer.
    fn index(&self) -> Option<u16> {
        match self {
            Self::Plain => None,
            Self::Registered(buffer) => Some(buffer.registration.index()),
            Self::Leased(lease) => lease.segments().next().map(|segment| segment.registration().index()),
        }
    }
}

impl Refused {
    fn for_good(error: impl Error + 'static) -> Self {
        Self { short: false, error: error.into() }
    }

    fn by_system(error: io::Error) -> Self {
        let short = is_shortage(&error);
        let remedy = if short { ": raise RLIMIT_MEMLOCK (ulimit -l), or take a smaller --chunk" } else { "" };
        Self { short, error: format!("registering a buffer: {error}{remedy}").into() }
    }

    fn by_cache(error: AcquireError) -> Self {
        let short = match &error {
            AcquireError::AllInUse { .. } => true,
            // The cache has evicted and tried again, several times.
            AcquireError::Register { source, .. } => is_shortage(source),
            _ => false,
        };
        Self { short, error: error.into() }
    }
}

fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::ENOSPC))
}

/// Buffers that live as long as the process, so that no transfer can outlive its memory, whatever goes wrong.
struct Pool {
    start: *mut u8,
    chunk: usize,
    busy: Vec<bool>,
}

impl Pool {
    fn new(buffers: u32, chunk: u64) -> Result<Self> {
        let (count, chunk) = (buffers as usize, usize::try_from(chunk)?);
        let bytes = count.checked_mul(chunk).ok_or("so many buffers do not fit into the address space")?;
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE as usize)?;
        #[expect(unsafe_code, reason = "page-aligned memory without references to it")]
        // SAFETY: the size is not zero: there is at least one buffer, of at least a page.
        let start = unsafe { std::alloc::alloc(layout) };
        if start.is_null() {
            return Err(format!("no memory for {} of buffers", human(bytes as u64)).into());
        }
        #[expect(unsafe_code, reason = "faults the pages in, so that no way pays for that")]
        // SAFETY: exactly what was allocated, and nobody else knows of it yet.
        unsafe {
            start.write_bytes(1, bytes);
        }
        Ok(Self { start, chunk, busy: vec![false; count] })
    }

    /// A buffer that no transfer uses: the one drawn, or the next behind it.
    fn take(&mut self, draw: &mut Draw) -> Option<usize> {
        let (count, drawn) = (self.busy.len(), draw.below(self.busy.len()));
        let buffer = (drawn..drawn + count).map(|buffer| buffer % count).find(|&buffer| !self.busy[buffer])?;
        self.busy[buffer] = true;
        Some(buffer)
    }

    fn give(&mut self, buffer: usize) {
        self.busy[buffer] = false;
    }

    fn address(&self, buffer: usize) -> *mut u8 {
        self.start.wrapping_add(buffer * self.chunk)
    }
}

/// Pseudo-random numbers (xorshift), for choices that are the same in each run.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Small numbers more often than large ones: half of them are in the first eighth.
    fn below(&mut self, count: usize) -> usize {
        let even = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (even.powi(3) * count as f64) as usize
    }
}

// ---- The copy: up to `depth` chunks at a time, each read and then written --------------------------------------

/// One of the three, with a ring of its own.
struct Way {
    name: &'static str,
    // Dropped before the ring.
    pins: Pins,
    ring: IoUring,
    lanes: Vec<Option<Lane>>,
    /// Times that a chunk waited because no more could be pinned.
    short: u64,
    /// Counts before the measured rounds.
    before: Counts,
    samples: Vec<Sample>,
}

/// A chunk under way. It has its buffer, and what keeps it pinned, until its last completion was seen.
struct Lane {
    buffer: usize,
    held: Held,
    offset: u64,
    writing: bool,
}

impl Way {
    fn new(name: &'static str, depth: u32, pins: impl FnOnce(&IoUring) -> Result<Pins>) -> Result<Self> {
        let ring = IoUring::new(depth).map_err(|error| {
            let remedy = match error.raw_os_error() {
                Some(libc::ENOSYS) => "this kernel has none",
                Some(libc::EPERM | libc::EACCES) => {
                    "it is forbidden here: see the sysctl kernel.io_uring_disabled and, in a container, its seccomp profile"
                }
                Some(libc::ENOMEM) => "raise RLIMIT_MEMLOCK (ulimit -l)",
                _ => "no ring, no copy",
            };
            format!("setting up an io_uring: {error}: {remedy}")
        })?;
        let pins = pins(&ring)?;
        let lanes = (0..depth).map(|_| None).collect();
        Ok(Self { name, pins, ring, lanes, short: 0, before: Counts::default(), samples: Vec::new() })
    }

    /// Copies the file. When this returns, no transfer is under way, unless the ring itself failed.
    fn copy(&mut self, job: &Job, pool: &mut Pool, draw: &mut Draw) -> Result<()> {
        let mut next = 0;
        let mut failure = None;
        let mut completions = Vec::with_capacity(self.lanes.len());
        loop {
            if failure.is_none() {
                failure = self.start(job, pool, draw, &mut next).err();
            }
            if self.lanes.iter().all(Option::is_none) {
                return failure.map_or_else(|| job.finish(), Err);
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(format!("submitting to the io_uring: {error}").into());
                }
                _ => {}
            }
            completions.extend(self.ring.completion().map(|entry| (entry.user_data() as usize, entry.result())));
            for (number, result) in completions.drain(..) {
                if let Err(error) = self.step(job, pool, number, result) {
                    failure.get_or_insert(error);
                }
            }
        }
    }

    /// Starts chunks while there are free lanes.
    fn start(&mut self, job: &Job, pool: &mut Pool, draw: &mut Draw, next: &mut u64) -> Result<()> {
        while let Some(number) = self.lanes.iter().position(Option::is_none)
            && *next < job.length
        {
            let buffer = pool.take(draw).ok_or("no free buffer")?;
            match self.pins.hold(pool.address(buffer), pool.chunk) {
                Ok(held) => {
                    let lane = Lane { buffer, held, offset: *next, writing: false };
                    *next += job.chunk;
                    self.submit(job, pool, number, lane)?;
                }
                Err(refused) => {
                    pool.give(buffer);
                    // The transfers under way will make room.
                    if refused.short && self.lanes.iter().any(Option::is_some) {
                        self.short += 1;
                        return Ok(());
                    }
                    return Err(refused.error);
                }
            }
        }
        Ok(())
    }

    /// Goes on with a chunk whose read or write is complete.
    fn step(&mut self, job: &Job, pool: &mut Pool, number: usize, result: i32) -> Result<()> {
        let lane = self.lanes.get_mut(number).and_then(Option::take);
        let mut lane = lane.ok_or("the io_uring completed what was not submitted")?;
        let (verb, expected) = match lane.writing {
            false => ("read", job.chunk.min(job.length - lane.offset)),
            true => ("write", job.transfer_length(lane.offset)),
        };
        let outcome = match u64::try_from(result) {
            Err(_) => Err(io::Error::from_raw_os_error(-result).to_string()),
            Ok(bytes) if bytes < expected => Err(format!("only {bytes} of {expected} bytes")),
            Ok(_) => Ok(()),
        };
        if outcome.is_ok() && !lane.writing {
            lane.writing = true;
            return self.submit(job, pool, number, lane);
        }
        pool.give(lane.buffer);
        let offset = lane.offset;
        self.pins.give_back(lane.held)?;
        outcome.map_err(|why| format!("{}: {verb} at byte {offset}: {why}", self.name).into())
    }

    fn submit(&mut self, job: &Job, pool: &Pool, number: usize, lane: Lane) -> Result<()> {
        let (address, offset) = (pool.address(lane.buffer), lane.offset);
        let length = job.transfer_length(offset) as u32; // At most 64 MiB.
        let (from, to) = (types::Fd(job.from.transfers.as_raw_fd()), types::Fd(job.to.transfers.as_raw_fd()));
        let entry: squeue::Entry = match (lane.held.index(), lane.writing) {
            (None, false) => opcode::Read::new(from, address, length).offset(offset).build(),
            (None, true) => opcode::Write::new(to, address, length).offset(offset).build(),
            (Some(index), false) => opcode::ReadFixed::new(from, address, length, index).offset(offset).build(),
            (Some(index), true) => opcode::WriteFixed::new(to, address, length, index).offset(offset).build(),
        };
        #[expect(unsafe_code, reason = "hands memory to the kernel")]
        // SAFETY: the buffer is the pool's, which lives as long as the process; no reference to it exists, and this
        // lane alone uses it and keeps it pinned until its completion was seen. The files outlive the copy.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(number as u64)) };
        // One entry a lane, and as many entries as lanes: there is room.
        pushed.map_err(|_| "the io_uring's queue is full")?;
        self.lanes[number] = Some(lane);
        Ok(())
    }
}

// ---- The files ------------------------------------------------------------------------------------------------

/// What is copied.
struct Job {
    from: Opened,
    to: Opened,
    length: u64,
    chunk: u64,
    /// Transfers pass by the page cache.
    direct: bool,
    file_system: String,
    /// What to remove at the end unless the copy succeeded.
    unfinished: Option<PathBuf>,
}

/// A file, opened once for transfers and once for what is not measured.
struct Opened {
    transfers: File,
    plain: File,
}

impl Job {
    fn open(options: &Options, chunk: u64) -> Result<Self> {
        let dir = options.dir.clone().unwrap_or_else(std::env::temp_dir);
        let direct = !options.buffered;
        let (from, file_system) = match &options.from {
            Some(path) => (Opened::existing(path, direct)?, file_system(path)),
            None => {
                let from = Opened::temporary(&dir, "from", direct)?;
                fill(&from.plain, options.size)
                    .map_err(|error| format!("filling a file in {}: {error}", dir.display()))?;
                (from, file_system(&dir))
            }
        };
        let length = from.plain.metadata()?.len();
        let mut unfinished = None;
        let to = match &options.to {
            Some(path) => {
                let to = Opened::create(path, direct)?;
                unfinished = Some(path.clone());
                to
            }
            None => Opened::temporary(&dir, "to", direct)?,
        };
        Ok(Self { from, to, length, chunk, direct, file_system, unfinished })
    }

    /// Direct transfers take whole blocks: the last one reads and writes past the end, and the copy is cut afterwards.
    fn transfer_length(&self, offset: u64) -> u64 {
        let bytes = self.chunk.min(self.length - offset);
        if self.direct { bytes.next_multiple_of(PAGE) } else { bytes }
    }

    fn finish(&self) -> Result<()> {
        Ok(self.to.plain.set_len(self.length)?)
    }

    /// Makes sure that what is compared later was written by the copy that comes now.
    fn wipe_copy(&self) -> Result<()> {
        let zeros = vec![0; 1 << 20];
        for offset in (0..self.length).step_by(zeros.len()) {
            let bytes = zeros.len().min((self.length - offset) as usize);
            self.to.plain.write_all_at(&zeros[..bytes], offset).map_err(|error| format!("wiping the copy: {error}"))?;
        }
        self.to.plain.sync_data()?;
        self.forget();
        Ok(())
    }

    fn compare(&self) -> Result<()> {
        let (mut original, mut copy) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        for offset in (0..self.length).step_by(original.len()) {
            let bytes = original.len().min((self.length - offset) as usize);
            self.from.plain.read_exact_at(&mut original[..bytes], offset)?;
            self.to.plain.read_exact_at(&mut copy[..bytes], offset)?;
            if let Some(at) = (0..bytes).find(|&at| original[at] != copy[at]) {
                return Err(format!("the copy differs from the original at byte {}", offset + at as u64).into());
            }
        }
        if self.to.plain.metadata()?.len() != self.length {
            return Err("the copy is longer than the original".into());
        }
        self.forget();
        Ok(())
    }

    /// Takes the files out of the page cache: direct transfers would have to look after what is there.
    fn forget(&self) {
        if self.direct {
            for file in [&self.from.plain, &self.to.plain] {
                #[expect(unsafe_code, reason = "a system call")]
                // SAFETY: no memory is passed. It is advice: that it is not taken is no matter.
                unsafe {
                    libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
                }
            }
        }
    }

    fn keep(&mut self) {
        self.unfinished = None;
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(path) = &self.unfinished {
            let _ = fs::remove_file(path);
        }
    }
}

impl Opened {
    fn existing(path: &Path, direct: bool) -> Result<Self> {
        let at = |error: io::Error| format!("{}: {error}", path.display());
        let about = fs::metadata(path).map_err(at)?;
        if !about.is_file() || about.len() == 0 {
            return Err(format!("{}: not a regular file with anything in it", path.display()).into());
        }
        Self::open(path, direct, OpenOptions::new().read(true))
    }

    fn create(path: &Path, direct: bool) -> Result<Self> {
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        created.map_err(|error| format!("making {}: {error}", path.display()))?;
        let opened = Self::open(path, direct, OpenOptions::new().read(true).write(true));
        if opened.is_err() {
            let _ = fs::remove_file(path);
        }
        opened
    }

    /// A file without a name, so that it is gone when the program is, however that ends.
    fn temporary(dir: &Path, role: &str, direct: bool) -> Result<Self> {
        let path = dir.join(format!("mrrc-uring-copy-{}-{role}", std::process::id()));
        let opened = Self::create(&path, direct)?;
        fs::remove_file(&path)?;
        Ok(opened)
    }

    fn open(path: &Path, direct: bool, how: &mut OpenOptions) -> Result<Self> {
        let plain = how.open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let transfers = how.custom_flags(flags).open(path).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => format!(
                "{}: its file system ({}) has no direct transfers: choose another by --dir, or --buffered",
                path.display(),
                file_system(path)
            ),
            _ => format!("{}: {error}", path.display()),
        })?;
        Ok(Self { transfers, plain })
    }
}

fn fill(file: &File, length: u64) -> io::Result<()> {
    let mut draw = Draw(42);
    let mut bytes = vec![0; 1 << 20];
    for offset in (0..length).step_by(bytes.len()) {
        bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&draw.next().to_ne_bytes()));
        let count = bytes.len().min((length - offset) as usize);
        file.write_all_at(&bytes[..count], offset)?;
    }
    file.sync_data()
}

/// The type of the file system that a file is on: of the innermost mount that holds it.
fn file_system(path: &Path) -> String {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let inside = fields.filter(|(mount, _)| path.starts_with(mount));
    // Of mounts on the same place the last one counts, and `max_by_key` gives the last.
    inside.max_by_key(|(mount, _)| mount.len()).map_or("unknown file system", |(_, kind)| kind).to_owned()
}

// ---- What is measured and said ----------------------------------------------------------------------------------

/// What one copy took.
#[derive(Clone, Copy)]
struct Sample {
    wall: Duration,
    /// Of the whole process, with what the kernel did for it.
    cpu: Duration,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    requests: u64,
    hits: u64,
    registered: u64,
    /// System calls to register and deregister.
    calls: u64,
}

impl Way {
    /// The median over the rounds, in microseconds a chunk.
    fn median(&self, chunks: u64, of: impl Fn(&Sample) -> Duration) -> f64 {
        let mut times: Vec<Duration> = self.samples.iter().map(of).collect();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6 / chunks as f64
    }

    /// What was counted in the measured rounds.
    fn counted(&self) -> Counts {
        let (now, before) = (self.pins.counts(), self.before);
        Counts {
            requests: now.requests - before.requests,
            hits: now.hits - before.hits,
            registered: now.registered - before.registered,
            calls: now.calls - before.calls,
        }
    }
}

fn report(options: &Options, plan: &Plan, job: &Job, ways: &[Way; 3], cpu: usize) -> String {
    let chunks = job.length.div_ceil(job.chunk);
    let mut text = format!(
        "{} in chunks of {}, {} at a time, {} on {}\n{} buffers of {}, some used more often; the cache may keep {} \
         of {}\nmedians of {} rounds, the three taking turns, on CPU {cpu}; every copy equals its original\n\n",
        human(job.length),
        human(job.chunk),
        options.depth,
        if job.direct { "O_DIRECT" } else { "through the page cache" },
        job.file_system,
        options.buffers,
        human(job.chunk),
        human(ways[2].pins.limit()),
        human(u64::from(options.buffers) * job.chunk),
        options.rounds,
    );
    let cpu_of = |way: &Way| way.median(chunks, |sample| sample.cpu);
    let wall_of = |way: &Way| way.median(chunks, |sample| sample.wall);
    text += "a chunk (read + write)   CPU us  of cached   wall us   MiB/s   registered   hits  calls for that\n";
    for way in ways {
        let (busy, wall, counts) = (cpu_of(way), wall_of(way), way.counted());
        let hits = match counts.requests {
            0 => "-".to_owned(),
            requests => format!("{:.0}%", 100.0 * counts.hits as f64 / requests as f64),
        };
        let _ = writeln!(
            text,
            "{:<22} {busy:>8.1} {:>9.2}x {wall:>9.0} {:>7.0} {:>12} {hits:>6} {:>15}",
            way.name,
            busy / cpu_of(&ways[2]),
            job.chunk as f64 / wall / 1.048_576,
            counts.registered,
            counts.calls,
        );
    }
    text.push('\n');
    let change = |of: &dyn Fn(&Way) -> f64, way: &Way| {
        let saved = 100.0 * (1.0 - of(&ways[2]) / of(way));
        format!("{:.0}% {}", saved.abs(), if saved >= 0.0 { "less" } else { "more" })
    };
    let _ = writeln!(
        text,
        "The cached copy takes {} CPU time than with plain buffers and {} than registering each time;\n\
         {} and {} time on the clock.",
        change(&cpu_of, &ways[0]),
        change(&cpu_of, &ways[1]),
        change(&wall_of, &ways[0]),
        change(&wall_of, &ways[1]),
    );
    let busy = 100.0 * cpu_of(&ways[2]) / wall_of(&ways[2]);
    if busy < 50.0 {
        let _ = writeln!(text, "The program is busy {busy:.0}% of the time: the disk sets the pace.");
    }
    if !job.direct {
        text += "The page cache copies bytes and pins nothing, so registered buffers save nothing here.\n";
    } else if matches!(job.file_system.as_str(), "tmpfs" | "ramfs") {
        let _ = writeln!(
            text,
            "{} takes O_DIRECT and copies bytes all the same, which pins nothing: try --dir on a disk.",
            job.file_system
        );
    }
    if plan.chunk < CHUNK && options.chunk.is_none() {
        let _ = writeln!(
            text,
            "The process may pin {} (ulimit -l), so the chunks are small: large ones gain more.",
            human(plan.limit)
        );
    }
    for way in ways.iter().filter(|way| way.short > 0) {
        let _ = writeln!(
            text,
            "{}: no more could be registered {} times, so fewer chunks were under way: raise --capacity or ulimit -l.",
            way.name, way.short
        );
    }
    text
}

/// Stays on the CPU it is on, so that the ways do not differ by where they ran.
fn stay_on_one_cpu() -> Result<usize> {
    #[expect(unsafe_code, reason = "system calls")]
    // SAFETY: the set is plain bits, for which zero is a value; the number is that of a CPU, so it is inside of the
    // set; and the call reads a set of that size.
    let (cpu, failed) = unsafe {
        let cpu = libc::sched_getcpu().max(0) as usize % libc::CPU_SETSIZE as usize;
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        (cpu, libc::sched_setaffinity(0, size_of_val(&set), &set) != 0)
    };
    if failed {
        return Err(format!("staying on CPU {cpu}: {}", io::Error::last_os_error()).into());
    }
    Ok(cpu)
}

/// What the process and the kernel on its behalf have computed so far, all threads.
fn cpu_time() -> Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: the pointer is to a structure of the kind that the call fills.
    if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) } != 0 {
        return Err(format!("reading the CPU time: {}", io::Error::last_os_error()).into());
    }
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}

/// Bytes: `4096`, `64K`, `1M`, `2G`.
fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()).map(|at| text.split_at(at)) {
        None => (text, 1),
        Some((number, "K")) => (number, 1 << 10),
        Some((number, "M")) => (number, 1 << 20),
        Some((number, "G")) => (number, 1 << 30),
        Some(_) => return Err("a number of bytes, like 4096, 64K, 1M or 2G".into()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let bytes = bytes.filter(|bytes| (PAGE..=1 << 40).contains(bytes));
    bytes.ok_or_else(|| "a number of bytes from 4K to 1024G".into())
}

fn chunk(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    let fits = bytes.is_multiple_of(PAGE) && bytes <= 64 << 20;
    if fits { Ok(bytes) } else { Err("a multiple of 4K, at most 64M".into()) }
}

fn human(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} bytes"),
    }
}
