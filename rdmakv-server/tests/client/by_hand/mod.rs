//! A small server that speaks to clients over fabrics as the real one does, and that tests can make do what the real one never would.
#![expect(unsafe_code, reason = "lends memory to engines")]

use frrwp::engine::{Engine, Event, OpenError};
use frrwp::fabric::shm::{Sharing, ShmArena, ShmDomain, ShmOptions};
use frrwp::fabric::{Domain, Endpoint};
use frrwp::handshake::{Limits, Side};
use frrwp::wire::{MAX_FRAME_PAYLOAD, Segment};
use mrrc::invalidation::Explicit;
use mrrc::{Access, Cache, Lease};
use rdmakv_proto::item::{self, HEADER, MAGIC, State};
use rdmakv_proto::messages::RemoteSegment;
use rdmakv_proto::messages::{self, Assembly, FRAGMENT, Refusal, Reply, Request, Tag, VERSION, Welcome};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const INCARNATION: u32 = 77;
pub(crate) const EAGER: u32 = 8192;

/// The deviations of a server, and its requests so far.
pub(crate) struct Knobs {
    pub(crate) lease_ms: AtomicU32,
    /// Whether answers carry tags.
    pub(crate) tags: AtomicBool,
    /// Requests are taken and not answered.
    pub(crate) silent: AtomicBool,
    /// The connection is ended as soon as the next request comes.
    pub(crate) hangs_up: AtomicBool,
    /// Refuses requests.
    pub(crate) refuses: AtomicBool,
    /// Commands are taken and neither carried out nor answered.
    pub(crate) lazy: AtomicBool,
    /// Transfers are refused.
    pub(crate) no_transfers: AtomicBool,
    pub(crate) stop: AtomicBool,
    pub(crate) requests: AtomicU64,
    pub(crate) transfers: AtomicU64,
    pub(crate) seen: AtomicU64,
    pub(crate) connections: AtomicU64,
}

/// Items in memory that clients can read.
pub(crate) struct Store {
    pub(crate) domain: ShmDomain,
    arena: ShmArena,
    items: Mutex<Items>,
    pub(crate) knobs: Knobs,
}

#[derive(Default)]
struct Items {
    index: HashMap<Vec<u8>, (usize, usize)>,
    end: usize,
    version: u64,
}

impl Store {
    pub(crate) fn new() -> Arc<Self> {
        let domain = ShmDomain::new(ShmOptions::default()).unwrap();
        let arena = domain.arena(64 << 20, Sharing::Readable).unwrap();
        let knobs = Knobs {
            lease_ms: AtomicU32::new(60_000),
            tags: AtomicBool::new(true),
            silent: AtomicBool::new(false),
            hangs_up: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            lazy: AtomicBool::new(false),
            no_transfers: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            transfers: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        };
        Arc::new(Self { domain, arena, items: Mutex::default(), knobs })
    }

    /// Returns the place of an item, and its bytes.
    pub(crate) fn place(&self, key: &[u8]) -> Option<(usize, usize)> {
        self.items.lock().unwrap().index.get(key).copied()
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        self.arena.write_at(at, bytes).unwrap();
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.arena.read_at(at, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn put(&self, key: &[u8], value: &[u8], flags: u32) -> u64 {
        let mut items = self.items.lock().unwrap();
        items.version += 1;
        let version = items.version;
        let mut image = vec![0; HEADER];
        image[0] = State::Alive as u8;
        image[2..4].copy_from_slice(&MAGIC.to_le_bytes());
        image[4..8].copy_from_slice(&INCARNATION.to_le_bytes());
        image[16..24].copy_from_slice(&version.to_le_bytes());
        image[24..28].copy_from_slice(&(value.len() as u32).to_le_bytes());
        image[28..32].copy_from_slice(&flags.to_le_bytes());
        image[32..36].copy_from_slice(&item::sum(version, flags, key, value).to_le_bytes());
        image[36] = key.len() as u8;
        image.extend_from_slice(key);
        image.extend_from_slice(value);
        if let Some((old, _)) = items.index.get(key) {
            self.write(*old, &[State::Dead as u8]);
        }
        let at = items.end.next_multiple_of(64);
        items.end = at + image.len();
        self.write(at, &image);
        items.index.insert(key.to_vec(), (at, image.len()));
        version
    }

    fn delete(&self, key: &[u8]) -> bool {
        let gone = self.items.lock().unwrap().index.remove(key);
        gone.inspect(|(at, _)| self.write(*at, &[State::Dead as u8])).is_some()
    }
}

/// Serves one connection until it ends.
pub(crate) fn serve<E: Endpoint>(store: &Store, cache: &Cache<E::Domain>, endpoint: E) {
    store.knobs.connections.fetch_add(1, SeqCst);
    let engine = Engine::new(cache, endpoint, Side::Accepting, Limits { receives: 64, ..Limits::default() });
    let mut serving =
        Serving { store, cache, engine, leases: Vec::new(), puts: VecDeque::new(), pulls: HashMap::new() };
    // All in one piece, so that each tag is. SAFETY: the arena outlives the cache's use of it; no
    // reference is made to it.
    unsafe { cache.warm(store.arena.as_ptr(), store.arena.len(), Access::REMOTE_READ) }.unwrap();
    let (mut heard, mut assembly) = (Vec::new(), Assembly::default());
    loop {
        serving.engine.progress();
        let Some(event) = serving.engine.next_event() else {
            if store.knobs.stop.load(SeqCst) {
                return;
            }
            serving.engine.wait_at_most(20_000_000);
            continue;
        };
        match event {
            Event::Closed { .. } => return,
            Event::Message => {
                assert!(serving.engine.recv_message(&mut heard));
                if store.knobs.hangs_up.swap(false, SeqCst) {
                    return;
                }
                if let Some((id, kind, bytes)) = assembly.take(&heard, 1 << 20).unwrap() {
                    let request = Request::decode(kind, bytes).unwrap();
                    serving.answer(id, request);
                }
            }
            Event::Requested { tag, length, .. } => {
                let header = serving.engine.header(tag).unwrap().to_vec();
                let (id, kind, _, bytes) = messages::fragment(&header).unwrap();
                let Ok(Request::Get { wish, key }) = Request::decode(kind, bytes) else { panic!("a GET") };
                store.knobs.transfers.fetch_add(1, SeqCst);
                let place = store.place(key);
                match place {
                    _ if store.knobs.no_transfers.load(SeqCst) => serving.engine.refuse(tag).unwrap(),
                    Some((at, len)) if len as u64 <= length && len > EAGER as usize => {
                        let grant = serving.grant(wish, at, len);
                        serving.say(id, &Reply::Tag(grant));
                        // SAFETY: the arena lives longer than the engine, and is written by raw copies alone.
                        unsafe { serving.engine.accept_read(tag, store.arena.as_ptr().add(at), len) }.unwrap();
                    }
                    _ => {
                        serving.get(id, wish, key);
                        serving.engine.refuse(tag).unwrap();
                    }
                }
            }
            Event::ReadCompleted { id, succeeded } => serving.pulled(id, succeeded),
            Event::Writable => serving.pull(),
            _ => {}
        }
    }
}

struct Serving<'a, E: Endpoint> {
    store: &'a Store,
    cache: &'a Cache<E::Domain>,
    engine: Engine<'a, E>,
    leases: Vec<Lease<E::Domain>>,
    /// Values of which a part is still to be asked for.
    puts: VecDeque<(Put, VecDeque<RemoteSegment>)>,
    /// Values that are read from the client, by the last read of each.
    pulls: HashMap<u64, Put>,
}

/// A value that is read from the client.
struct Put {
    id: u32,
    key: Vec<u8>,
    flags: u32,
    memory: Vec<u8>,
    /// Bytes that were asked for.
    at: usize,
    last: u64,
}

impl<E: Endpoint> Serving<'_, E> {
    fn say(&mut self, id: u32, reply: &Reply<'_>) {
        if self.store.knobs.silent.load(SeqCst) && !matches!(reply, Reply::Welcome(_)) {
            return;
        }
        let mut message = Vec::new();
        let kind = reply.encode(&mut message);
        let mut at = 0;
        loop {
            let end = message.len().min(at + MAX_FRAME_PAYLOAD - FRAGMENT);
            let mut bytes = Vec::new();
            messages::start(&mut bytes, id, kind, end < message.len());
            bytes.extend_from_slice(&message[at..end]);
            while let Err(unsaid) = self.engine.send_message(&bytes) {
                if unsaid != frrwp::handshake::SendError::Full {
                    return;
                }
                self.engine.progress();
            }
            at = end;
            if at == message.len() {
                return;
            }
        }
    }

    fn grant(&mut self, wish: bool, at: usize, len: usize) -> Option<Tag> {
        if !wish || !self.store.knobs.tags.load(SeqCst) {
            return None;
        }
        let address = self.store.arena.as_ptr().wrapping_add(at);
        // SAFETY: the arena outlives the lease; no reference is made to it.
        let lease = unsafe { self.cache.acquire(address, len, Access::REMOTE_READ) }.unwrap();
        let part = lease.segments().next().unwrap();
        let Segment { address, length, key } = self.cache.registrar().remote(part.registration(), address, len);
        self.leases.push(lease);
        let segment = RemoteSegment { address, length, key };
        Some(Tag { segment, incarnation: INCARNATION })
    }

    fn get(&mut self, id: u32, wish: bool, key: &[u8]) {
        let Some((at, len)) = self.store.place(key) else { return self.say(id, &Reply::None) };
        let tag = self.grant(wish, at, len);
        if len > EAGER as usize {
            return self.say(id, &Reply::Large { tag, size: len as u64 });
        }
        let image = self.store.bytes(at, len);
        self.say(id, &Reply::Item { tag, image: &image });
    }

    fn answer(&mut self, id: u32, request: Request<'_>) {
        let knobs = &self.store.knobs;
        match request {
            Request::Hello { .. } => {
                let welcome = Welcome {
                    version: VERSION,
                    incarnation: INCARNATION,
                    lease_ms: knobs.lease_ms.load(SeqCst),
                    eager: EAGER,
                    transfers_from: EAGER,
                    largest: 8 << 20,
                };
                return self.say(id, &Reply::Welcome(welcome));
            }
            Request::Seen(seen) => {
                knobs.seen.fetch_add(seen.iter().map(|(_, _, reads)| u64::from(reads)).sum(), SeqCst);
                return;
            }
            _ => drop(knobs.requests.fetch_add(1, SeqCst)),
        }
        if knobs.refuses.load(SeqCst) {
            return self.say(id, &Reply::Refused { why: Refusal::NotNow, text: "not now" });
        }
        match request {
            Request::Get { wish, key } => self.get(id, wish, key),
            Request::Run { .. } if knobs.lazy.load(SeqCst) => {}
            Request::Run { wish, key, command } => {
                let end = command.windows(2).position(|two| two == b"\r\n").unwrap();
                let line = String::from_utf8(command[..end].to_vec()).unwrap();
                let answer = self.run(&line, key, &command[end + 2..]);
                let tag = self.store.place(key).and_then(|(at, len)| self.grant(wish, at, len));
                self.say(id, &Reply::Ran { tag, answer: &answer });
            }
            Request::Put { key, line, segments, .. } => {
                let words: Vec<_> = std::str::from_utf8(line).unwrap().split_ascii_whitespace().collect();
                let length: usize = words[2].parse().unwrap();
                let flags =
                    words.iter().find_map(|word| word.strip_prefix('F')).map_or(0, |flags| flags.parse().unwrap());
                let segments: VecDeque<RemoteSegment> = segments.iter().collect();
                assert_eq!(segments.iter().map(|segment| segment.length as usize).sum::<usize>(), length);
                let put = Put { id, key: key.to_vec(), flags, memory: vec![0; length], at: 0, last: 0 };
                self.puts.push_back((put, segments));
                self.pull();
            }
            _ => unreachable!(),
        }
    }

    /// Begins reads of values, as many as may be under way at once; the others wait for the end of one.
    fn pull(&mut self) {
        while let Some((put, segments)) = self.puts.front_mut() {
            while let Some(&RemoteSegment { address, length, key }) = segments.front() {
                let segment = Segment { address, length, key };
                let length = length as usize;
                // SAFETY: the memory is kept until the last read has ended; they end in order.
                let read = match unsafe { self.engine.read_remote(put.memory[put.at..].as_mut_ptr(), length, segment) }
                {
                    Ok(read) => read,
                    Err(OpenError::Busy { .. }) => return,
                    Err(error) => panic!("{error}"),
                };
                put.at += length;
                segments.pop_front();
                put.last = read;
            }
            let (put, _) = self.puts.pop_front().unwrap();
            self.pulls.insert(put.last, put);
        }
    }

    fn pulled(&mut self, read: u64, succeeded: bool) {
        self.pull();
        let Some(Put { id, key, flags, memory, .. }) = self.pulls.remove(&read) else { return };
        // Memory that is freed is not to be found registered.
        let _ = self.cache.invalidate(memory.as_ptr(), memory.len());
        if !succeeded {
            return self.say(id, &Reply::Refused { why: Refusal::Unreadable, text: "the data could not be read" });
        }
        let version = self.store.put(&key, &memory, flags);
        self.say(id, &Reply::Ran { tag: None, answer: format!("HD c{version}\r\n").as_bytes() });
    }

    fn run(&mut self, line: &str, key: &[u8], data: &[u8]) -> Vec<u8> {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        match words[0] {
            "ms" => {
                let length: usize = words[2].parse().unwrap();
                let flags =
                    words.iter().find_map(|word| word.strip_prefix('F')).map_or(0, |flags| flags.parse().unwrap());
                assert_eq!(&data[length..], b"\r\n");
                format!("HD c{}\r\n", self.store.put(key, &data[..length], flags)).into_bytes()
            }
            "md" if self.store.delete(key) => b"HD\r\n".to_vec(),
            "md" => b"NF\r\n".to_vec(),
            "mg" => match self.store.place(key) {
                Some((at, len)) => {
                    let image = self.store.bytes(at, len);
                    let value = &image[HEADER + key.len()..];
                    [format!("VA {} f0 c1\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
                }
                None => b"EN\r\n".to_vec(),
            },
            "set" if key == b"login" => b"STORED\r\n".to_vec(),
            "version" => b"VERSION by hand\r\n".to_vec(),
            _ => b"ERROR\r\n".to_vec(),
        }
    }
}

/// A server that takes connections one after the other and serves each in a thread.
pub(crate) struct Running {
    pub(crate) store: Arc<Store>,
    pub(crate) address: String,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.store.knobs.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let served = thread.join();
            assert!(served.is_ok() || std::thread::panicking());
        }
    }
}

impl Running {
    pub(crate) fn over_shm() -> Self {
        use frrwp::fabric::shm::{ShmAddress, ShmListener};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let address = format!("shm:@rdmakv-client-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
        let store = Store::new();
        Self::on_shm(store, &address.parse::<ShmAddress>().unwrap(), ShmListener::bind)
    }

    fn on_shm(
        store: Arc<Store>,
        address: &frrwp::fabric::shm::ShmAddress,
        bind: impl Fn(
            &ShmDomain,
            &frrwp::fabric::shm::ShmAddress,
        ) -> Result<frrwp::fabric::shm::ShmListener, frrwp::fabric::shm::ShmError>,
    ) -> Self {
        let listener = bind(&store.domain, address).unwrap();
        let serving = store.clone();
        let thread = std::thread::spawn(move || {
            let cache = Cache::builder(serving.domain.clone()).monitor(Explicit).build().unwrap();
            std::thread::scope(|scope| {
                while !serving.knobs.stop.load(SeqCst) {
                    if let Ok(endpoint) = listener.accept(64, Duration::from_millis(20)) {
                        scope.spawn(|| serve(&serving, &cache, endpoint));
                    }
                }
            });
        });
        Self { store, address: address.to_string(), thread: Some(thread) }
    }

    /// Another one at the same address, once this one is gone.
    pub(crate) fn again(self) -> Self {
        let (store, address) = (Store::new(), self.address.parse().unwrap());
        drop(self);
        Self::on_shm(store, &address, frrwp::fabric::shm::ShmListener::bind)
    }

    pub(crate) fn over_iwarp() -> Self {
        use frrwp::fabric::iwarp::{IwarpDomain, IwarpListener, IwarpOptions};
        let store = Store::new();
        let domain = IwarpDomain::new(IwarpOptions::default()).unwrap();
        let mut listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
        let address = format!("iwarp:{}", listener.address().unwrap());
        let serving = store.clone();
        let thread = std::thread::spawn(move || {
            let cache = Cache::builder(domain).monitor(Explicit).build().unwrap();
            std::thread::scope(|scope| {
                while !serving.knobs.stop.load(SeqCst) {
                    if let Ok(endpoint) = listener.accept(64, Some(Duration::from_millis(20))) {
                        scope.spawn(|| serve(&serving, &cache, endpoint));
                    }
                }
            });
        });
        Self { store, address, thread: Some(thread) }
    }
}
