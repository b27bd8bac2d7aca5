//! Reads regions from other servers: a thread for each of them, with a connection of its own.
//!
//! A thread ends when it has had no work for a while. Its connection lasts from the first read of a region to the last one. Writes are
//! paused for the last one, which therefore does not connect.
#![expect(unsafe_code, reason = "regions are lent to the connection by their addresses")]

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use frrwp::engine::{Engine, Event, OpenError};
use frrwp::fabric::{FabricDomain, FabricEndpoint, connect};
use frrwp::handshake::{Limits, SendError, Side};
use frrwp::wire::Segment;
use mrrc::Cache;
use mrrc::invalidation::Explicit;
use rdmakv_proto::far::marks::marked_ranges;
use rdmakv_proto::far::messages::{Answer, Reply, Request, Token, Verb};
use rdmakv_proto::messages::{self, Assembly, Kind, RemoteSegment, VERSION};

use super::arena::Part;

/// Bytes of a read at most.
const READ: u64 = 1 << 20;
/// Reads that are under way at most.
const DEPTH: usize = 4;
/// How long connecting, an answer or a read may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);
/// Servers that are read from at a time at most.
const SOURCES: usize = 64;
/// Whole copies that wait for one server at most.
const QUEUE: usize = 64;
/// Last copies that wait for one server at most.
const LASTS: usize = 1024;
/// Receives that are posted.
const RECEIVES: u16 = 16;
/// Bytes of an answer at most.
const ANSWER: usize = 256 << 10;
/// The fewest bytes that a source sends in a second; with less the copy is given up.
const SLOWEST: u64 = 8 << 20;

/// A region at another server.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) memory: u64,
    pub(super) region: u32,
    /// The epoch there.
    pub(super) epoch: u32,
    pub(super) token: Token,
}

/// The pages that are read.
#[derive(Clone, Debug)]
pub(super) enum Pages {
    All,
    /// As they lie in messages.
    Marked(Vec<u8>),
}

impl Pages {
    /// Returns them as ranges of bytes, each of which is read at a time.
    pub(super) fn ranges(&self, bytes: u64) -> Vec<Range<u64>> {
        match self {
            Self::All => (0..bytes.div_ceil(READ)).map(|at| at * READ..((at + 1) * READ).min(bytes)).collect(),
            Self::Marked(marks) => marked_ranges(marks, bytes, READ).collect(),
        }
    }
}

/// A region to be read.
struct Job {
    remote: Remote,
    part: Part,
    pages: Pages,
    done: SyncSender<Result<u64, String>>,
}

impl Job {
    /// Returns whether writes are paused for it.
    fn is_last(&self) -> bool {
        matches!(self.pages, Pages::Marked(_))
    }
}

/// A thread that reads from one server.
#[derive(Debug)]
struct Puller {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pullers(Mutex<HashMap<String, Puller>>);

impl Pullers {
    /// Reads pages of a region at the server of this address. Returns how many bytes were read.
    ///
    /// # Errors
    ///
    /// The source does not answer, or not for this token; there are too many; or there is no thread.
    pub(super) fn pull(&self, address: &str, remote: &Remote, part: &Part, pages: &Pages) -> Result<u64, String> {
        let longest = PATIENCE * 3 + Duration::from_secs(part.bytes() as u64 / SLOWEST);
        let mut last = format!("{address}: its thread has ended");
        // The connection may have broken while it was idle, and the thread may end just now: so it is tried once more.
        for _ in 0..2 {
            let (done, outcome) = sync_channel(1);
            let job = Job { remote: remote.clone(), part: part.clone(), pages: pages.clone(), done };
            match self.queue(address)?.push(job) {
                Ok(()) => {}
                Err(NoPlace::Full(waiting)) => return Err(format!("{waiting} regions wait for {address}")),
                Err(NoPlace::Ended) => continue,
            }
            match outcome.recv_timeout(longest) {
                Ok(Ok(bytes)) => return Ok(bytes),
                Ok(Err(why)) => last = why,
                Err(RecvTimeoutError::Timeout) => return Err(format!("{address}: not all came within {longest:?}")),
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
        Err(last)
    }

    /// Returns the queue of the thread of this address. Starts a thread if none takes jobs. One that takes no more may still close its
    /// connection.
    fn queue(&self, address: &str) -> Result<Arc<Queue>, String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, puller| !puller.thread.is_finished() && !puller.queue.lock().has_ended);
        if let Some(puller) = all.get(address) {
            return Ok(puller.queue.clone());
        }
        if all.len() >= SOURCES {
            return Err(format!("{SOURCES} other servers are read from"));
        }
        let queue = Arc::new(Queue::default());
        let (to, served) = (address.to_owned(), queue.clone());
        let thread = Builder::new().name("far-pull".to_owned()).spawn(move || run(&to, &Served(served)));
        let thread = thread.map_err(|error| format!("starting a thread: {error}"))?;
        all.insert(address.to_owned(), Puller { queue: queue.clone(), thread });
        Ok(queue)
    }

    /// Lets the threads end once they have no work.
    pub(super) fn end(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.drain().for_each(|(_, puller)| puller.queue.close());
    }
}

/// The jobs that wait for a thread. Last copies go before whole ones, because writes are paused for them.
#[derive(Debug)]
struct Lines<T> {
    last: VecDeque<T>,
    whole: VecDeque<T>,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { last: VecDeque::new(), whole: VecDeque::new() }
    }
}

impl<T> Lines<T> {
    fn is_empty(&self) -> bool {
        self.last.is_empty() && self.whole.is_empty()
    }

    /// Adds a job, unless as many of its kind wait as may: then it returns how many.
    fn push(&mut self, is_last: bool, job: T) -> Result<(), usize> {
        let (line, most) = if is_last { (&mut self.last, LASTS) } else { (&mut self.whole, QUEUE) };
        if line.len() >= most {
            return Err(most);
        }
        line.push_back(job);
        Ok(())
    }

    fn pop(&mut self) -> Option<T> {
        self.last.pop_front().or_else(|| self.whole.pop_front())
    }
}

/// The jobs of a thread. All that wait are in order, so that a last copy waits for no whole one but that which is being read.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    lines: Lines<Job>,
    /// Whether the thread ends once it has no work.
    is_closed: bool,
    /// Whether the thread takes no more.
    has_ended: bool,
}

/// The reason why a job is not taken.
enum NoPlace {
    /// So many wait.
    Full(usize),
    /// The thread has ended.
    Ended,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) -> Result<(), NoPlace> {
        let mut jobs = self.lock();
        if jobs.has_ended {
            return Err(NoPlace::Ended);
        }
        jobs.lines.push(job.is_last(), job).map_err(NoPlace::Full)?;
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for a job, and returns it. Without one for a while, or in a closed queue, it returns None, and the queue takes no more.
    fn next(&self) -> Option<Job> {
        let is_idle = |jobs: &mut Jobs| jobs.lines.is_empty() && !jobs.is_closed;
        let waited = self.changed.wait_timeout_while(self.lock(), IDLE, is_idle);
        let (mut jobs, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let next = jobs.lines.pop();
        jobs.has_ended = next.is_none();
        next
    }

    /// Lets the thread end once it has no work.
    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }
}

/// The queue of the thread that has this. The jobs that wait when the thread ends are given up.
struct Served(Arc<Queue>);

impl Drop for Served {
    fn drop(&mut self) {
        let mut jobs = self.0.lock();
        (jobs.lines, jobs.has_ended) = (Lines::default(), true);
    }
}

/// Carries jobs out until there have been none for a while.
fn run(address: &str, Served(jobs): &Served) {
    let mut next = jobs.next();
    while let Some(job) = next {
        next = serve(address, job, jobs);
    }
}

/// Carries jobs out over one connection. Returns the first one that is for another connection.
fn serve(address: &str, mut job: Job, jobs: &Queue) -> Option<Job> {
    let connected = connect(address, RECEIVES, PATIENCE).map_err(|error| error.to_string());
    let built = connected.and_then(|(domain, endpoint)| {
        // Only regions are registered, which are forgotten before they are unmapped.
        let cache = Cache::builder(domain).monitor(Explicit).ignore_environment().build();
        Ok((cache.map_err(|error| error.to_string())?, endpoint))
    });
    let (cache, endpoint) = match built {
        Ok(built) => built,
        Err(why) => {
            let _ = job.done.send(Err(why));
            return jobs.next();
        }
    };
    let mut link = Link::new(&cache, endpoint);
    let mut outcome = link.greet();
    loop {
        match outcome.and_then(|()| link.carry_out(&job)) {
            Ok(bytes) => drop(job.done.send(Ok(bytes))),
            Err(why) => {
                // First: reads may be under way.
                drop(link);
                let _ = job.done.send(Err(format!("{address}: {why}")));
                return jobs.next();
            }
        }
        outcome = Ok(());
        // Its region is not kept while there is nothing to do.
        drop(job);
        job = jobs.next()?;
    }
}

/// A connection to another server.
struct Link<'c> {
    engine: Engine<'c, FabricEndpoint>,
    cache: &'c Cache<FabricDomain>,
    next_id: u32,
    received: Vec<u8>,
    assembly: Assembly,
    completed: usize,
}

impl<'c> Link<'c> {
    fn new(cache: &'c Cache<FabricDomain>, endpoint: FabricEndpoint) -> Self {
        let limits = Limits { receives: RECEIVES, ..Limits::default() };
        let engine = Engine::new(cache, endpoint, Side::Connecting, limits);
        Self { engine, cache, next_id: 1, received: Vec::new(), assembly: Assembly::default(), completed: 0 }
    }

    fn greet(&mut self) -> Result<(), String> {
        let mut body = Vec::new();
        let kind = messages::Request::hello(&mut body, false);
        self.ask(kind, &body, |reply| match reply {
            messages::Reply::Welcome(welcome) if welcome.version == VERSION => Ok(()),
            messages::Reply::Refused { text, .. } => Err(text.to_owned()),
            _ => Err(format!("it does not speak version {VERSION}")),
        })
    }

    /// Asks for the tag of a region, and reads its pages. Returns how many bytes were read. After an error this is to be dropped before the
    /// region is.
    fn carry_out(&mut self, job: &Job) -> Result<u64, String> {
        let tag = self.tag(&job.remote)?;
        let bytes = job.part.bytes() as u64;
        if tag.length != bytes {
            return Err(format!("its region has {} bytes, and this server's {bytes}", tag.length));
        }
        let ranges = job.pages.ranges(bytes);
        let (mut posted, mut last, before) = (0, Instant::now(), self.completed);
        while self.completed - before < ranges.len() {
            let is_done = self.completed - before;
            self.progress()?;
            while posted < ranges.len() && posted - (self.completed - before) < DEPTH {
                let Range { start, end } = ranges[posted].clone();
                let from = Segment { address: tag.address + start, length: end - start, key: tag.key };
                let memory = job.part.address().wrapping_add(start as usize);
                // SAFETY: `read_remote` requires that the memory has no other user until the read has ended or the engine is dropped. The
                // region is a copy, to which no client has a tag, and this process makes no reference to its bytes. The job keeps
                // its memory, and outlives the read or the engine.
                match unsafe { self.engine.read_remote(memory, (end - start) as usize, from) } {
                    Ok(_) => posted += 1,
                    Err(OpenError::Busy { .. }) => break,
                    Err(error) => return Err(error.to_string()),
                }
            }
            if self.completed - before > is_done {
                // More may be posted, or it is the end: there may be nothing to wait for.
                last = Instant::now();
                continue;
            }
            if last.elapsed() > PATIENCE {
                return Err(format!("no bytes came within {PATIENCE:?}"));
            }
            self.engine.wait_at_most(PATIENCE.as_nanos() as u64);
        }
        // The cache keeps regions that are in no lease; this one may be unmapped next.
        if self.cache.invalidate(job.part.address(), job.part.bytes()).is_ok() {
            let _ = self.cache.reap();
        }
        Ok(ranges.iter().map(|range| range.end - range.start).sum())
    }

    fn tag(&mut self, remote: &Remote) -> Result<RemoteSegment, String> {
        let Remote { memory, region, epoch, token } = *remote;
        let mut body = Vec::new();
        Request { memory, region, epoch, verb: Verb::TagsByToken { token } }.encode(&mut body);
        self.ask(Kind::Far, &body, |reply| {
            let messages::Reply::Far(reply) = reply else { return Err("its answer makes no sense".to_owned()) };
            match Reply::decode(reply).map(|reply| reply.answer) {
                Ok(Answer::Tags { read, .. }) if read.iter().len() == 1 => {
                    read.iter().next().ok_or_else(|| "it gives no tag".to_owned())
                }
                Ok(Answer::Refused { why, .. }) => Err(format!("it refuses the region: {why:?}")),
                _ => Err("its answer makes no sense".to_owned()),
            }
        })
    }

    /// Sends a message, and waits for its answer.
    fn ask<T>(
        &mut self,
        kind: Kind,
        body: &[u8],
        take: impl FnOnce(messages::Reply<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1).max(1);
        let mut fragment = Vec::new();
        messages::start(&mut fragment, id, kind, false);
        fragment.extend_from_slice(body);
        let until = Instant::now() + PATIENCE;
        let mut is_sent = false;
        loop {
            if !is_sent {
                is_sent = match self.engine.send_message(&fragment) {
                    Ok(()) => true,
                    Err(SendError::Full) => false,
                    Err(error) => return Err(error.to_string()),
                };
            }
            self.progress()?;
            while self.engine.recv_message(&mut self.received) {
                match self.assembly.take(&self.received, ANSWER) {
                    Ok(Some((of, kind, bytes))) if of == id => {
                        return take(messages::Reply::decode(kind, bytes).map_err(|malformed| malformed.to_string())?);
                    }
                    Ok(_) => {}
                    Err(malformed) => return Err(malformed.to_string()),
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("it did not answer within {PATIENCE:?}"));
            }
            self.engine.wait_at_most(left.as_nanos() as u64);
        }
    }

    fn progress(&mut self) -> Result<(), String> {
        self.engine.progress();
        while let Some(event) = self.engine.next_event() {
            match event {
                Event::ReadCompleted { succeeded: true, .. } => self.completed += 1,
                Event::ReadCompleted { .. } => return Err("a read failed".to_owned()),
                Event::Requested { tag, .. } => drop(self.engine.refuse(tag)),
                Event::Closed { why: Some(why) } => return Err(format!("the connection was closed: {why}")),
                Event::Closed { why: None } => return Err("the connection was closed".to_owned()),
                Event::PeerTooOld { .. } => return Err("it is too old: it takes no messages".to_owned()),
                Event::Expired(expired) => return Err(expired.to_string()),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use frrwp::fabric::shm::{ShmDomain, ShmOptions};

    use super::super::arena::Arena;
    use super::*;

    #[test]
    fn last_copies_go_before_whole_ones() {
        let mut lines = Lines::default();
        for (is_last, job) in [(false, 1), (false, 2), (true, 3), (false, 4), (true, 5)] {
            lines.push(is_last, job).unwrap();
        }
        assert_eq!(std::array::from_fn(|_| lines.pop()), [Some(3), Some(5), Some(1), Some(2), Some(4), None]);
    }

    #[test]
    fn many_whole_copies_keep_no_last_one_waiting() {
        let domain = ShmDomain::new(ShmOptions::default()).unwrap();
        let part = Arena::new(domain, 4096).allocate(1).unwrap().remove(0);
        let queue = Queue::default();
        let push = |region, pages| {
            let (done, _) = sync_channel(1);
            let remote = Remote { memory: 9, region, epoch: 1, token: [0; 16] };
            queue.push(Job { remote, part: part.clone(), pages, done })
        };
        for region in 0..QUEUE as u32 {
            assert!(push(region, Pages::All).is_ok());
        }
        assert!(matches!(push(900, Pages::All), Err(NoPlace::Full(QUEUE))));
        for region in 1000..1000 + LASTS as u32 {
            assert!(push(region, Pages::Marked(vec![1])).is_ok());
        }
        assert!(matches!(push(901, Pages::Marked(vec![1])), Err(NoPlace::Full(LASTS))));
        queue.close();
        let order: Vec<u32> = std::iter::from_fn(|| queue.next()).map(|job| job.remote.region).collect();
        assert!(order.into_iter().eq((1000..1000 + LASTS as u32).chain(0..QUEUE as u32)));
        assert!(matches!(push(902, Pages::All), Err(NoPlace::Ended)), "the thread has ended");
    }

    #[test]
    fn all_pages_are_read_in_parts() {
        let ranges = Pages::All.ranges(READ * 2 + 4096);
        assert_eq!(ranges, [0..READ, READ..READ * 2, READ * 2..READ * 2 + 4096]);
        assert_eq!(Pages::Marked(vec![0b1_0110]).ranges(READ), [4096..3 * 4096, 4 * 4096..5 * 4096]);
    }
}
