//! A client that says what it is told to say, over any fabric: the fabric tests look at what comes back.

use std::time::Instant;

use frrwp::engine::{Engine, Event};
use frrwp::fabric::Endpoint;
use frrwp::fabric::iwarp::{IwarpDomain, IwarpEndpoint, IwarpOptions};
use frrwp::fabric::shm::{Sharing, ShmArena, ShmBuffer, ShmDomain, ShmEndpoint, ShmOptions};
use frrwp::handshake::{Limits, Side};
use frrwp::wire::{MAX_FRAME_PAYLOAD, Segment};
use mrrc::invalidation::Explicit;
use mrrc::{Access, Cache, Lease};
use rdmakv_proto::item;
use rdmakv_proto::messages::RemoteSegment;
use rdmakv_proto::messages::{self, Assembly, FRAGMENT, Kind, Reply, Request, Tag, Welcome};

use super::common::PATIENCE;
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
use super::common::Server;

/// Receives that clients post.
pub(crate) const RECEIVES: u16 = 32;
/// Bytes of a client's memory that a server is let at.
const MEMORY: usize = 8 << 20;

/// A fabric, from a client's side.
pub(crate) trait Way {
    type Domain: frrwp::fabric::Domain;
    type Endpoint: Endpoint<Domain = Self::Domain>;
    fn domain(&self) -> Self::Domain;
    fn connect(&self, address: &str) -> Result<Self::Endpoint, String>;
    /// Memory that servers may be let at.
    fn memory(&self) -> *mut u8;
}

/// Shared memory.
pub(crate) struct Shm {
    domain: ShmDomain,
    buffer: ShmBuffer,
    _arena: ShmArena,
}

impl Shm {
    pub(crate) fn new() -> Self {
        let domain = ShmDomain::new(ShmOptions::default()).unwrap();
        let arena = domain.arena(MEMORY, Sharing::Writable).unwrap();
        Self { buffer: arena.buffer(MEMORY).unwrap(), _arena: arena, domain }
    }
}

impl Way for Shm {
    type Domain = ShmDomain;
    type Endpoint = ShmEndpoint;
    fn domain(&self) -> ShmDomain {
        self.domain.clone()
    }
    fn connect(&self, address: &str) -> Result<ShmEndpoint, String> {
        frrwp::fabric::shm::connect(&self.domain, &address.parse().unwrap(), RECEIVES, PATIENCE)
            .map_err(|error| error.to_string())
    }
    fn memory(&self) -> *mut u8 {
        self.buffer.as_ptr()
    }
}

/// iWARP in user space.
pub(crate) struct Iwarp {
    domain: IwarpDomain,
    memory: *mut u8,
}

impl Iwarp {
    pub(crate) fn new() -> Self {
        let memory = Box::leak(vec![0_u8; MEMORY].into_boxed_slice()).as_mut_ptr();
        Self { domain: IwarpDomain::new(IwarpOptions::default()).unwrap(), memory }
    }
}

impl Way for Iwarp {
    type Domain = IwarpDomain;
    type Endpoint = IwarpEndpoint;
    fn domain(&self) -> IwarpDomain {
        self.domain.clone()
    }
    fn connect(&self, address: &str) -> Result<IwarpEndpoint, String> {
        frrwp::fabric::iwarp::connect(&self.domain, address, RECEIVES).map_err(|error| error.to_string())
    }
    fn memory(&self) -> *mut u8 {
        self.memory
    }
}

/// RDMA devices.
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
pub(crate) struct Verbs {
    domain: frrwp::fabric::verbs::VerbsDomain,
    memory: *mut u8,
}

#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
impl Verbs {
    /// Returns the address by which a device is reached, if one is to be tested with.
    pub(crate) fn address() -> Option<String> {
        let host = std::env::var("MRRC_VERBS_ADDRESS").ok().filter(|host| !host.is_empty());
        if host.is_none() {
            assert!(
                std::env::var("MRRC_VERBS_MUST").is_err(),
                "not run, and it must: MRRC_VERBS_ADDRESS names no device"
            );
            println!("skipped: MRRC_VERBS_ADDRESS does not say by which IP address an RDMA device is reached");
        }
        host
    }

    /// Returns whether its clients may read whatever is registered, as the device has no memory windows that hold.
    pub(crate) fn exposes() -> bool {
        std::env::var_os("MRRC_VERBS_EXPOSE").is_some()
    }

    /// Returns a server there.
    pub(crate) fn server(host: &str, flags: &[&str]) -> Server {
        let place = format!("verbs:{host}:0");
        let exposes: &[&str] = if Self::exposes() { &["--expose", "slab"] } else { &[] };
        Server::on_a_free_port(&[flags, &["--fabric", &place], exposes].concat())
    }

    pub(crate) fn new(address: &str) -> Self {
        let memory = Box::leak(vec![0_u8; MEMORY].into_boxed_slice()).as_mut_ptr();
        let options = frrwp::fabric::verbs::VerbsOptions::default();
        Self { domain: frrwp::fabric::verbs::VerbsDomain::reaching(address, options).unwrap(), memory }
    }
}

#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
impl Way for Verbs {
    type Domain = frrwp::fabric::verbs::VerbsDomain;
    type Endpoint = frrwp::fabric::verbs::VerbsEndpoint;
    fn domain(&self) -> Self::Domain {
        self.domain.clone()
    }
    fn connect(&self, address: &str) -> Result<Self::Endpoint, String> {
        frrwp::fabric::verbs::connect(&self.domain, address, RECEIVES).map_err(|error| error.to_string())
    }
    fn memory(&self) -> *mut u8 {
        self.memory
    }
}

/// Returns a cache for a way's registrations.
pub(crate) fn cache<W: Way>(way: &W) -> Cache<W::Domain> {
    Cache::builder(way.domain()).capacity_bytes(64 << 20).monitor(Explicit).ignore_environment().build().unwrap()
}

/// An answer, in bytes.
pub(crate) type Answer = (u32, Kind, Vec<u8>);

/// A connection.
pub(crate) struct Client<'c, W: Way> {
    pub(crate) way: &'c W,
    cache: &'c Cache<W::Domain>,
    pub(crate) engine: Engine<'c, W::Endpoint>,
    input: Assembly,
    id: u32,
    pub(crate) closed: bool,
    pub(crate) ended: Vec<(frrwp::handshake::Tag, bool)>,
    pub(crate) fetched: Vec<bool>,
}

impl<'c, W: Way> Client<'c, W> {
    /// Connects, and says nothing.
    pub(crate) fn silent(way: &'c W, cache: &'c Cache<W::Domain>, address: &str) -> Result<Self, String> {
        let endpoint = way.connect(address)?;
        let limits = Limits { receives: RECEIVES, ..Limits::default() };
        let engine = Engine::new(cache, endpoint, Side::Connecting, limits);
        let input = Assembly::default();
        Ok(Self { way, cache, engine, input, id: 0, closed: false, ended: Vec::new(), fetched: Vec::new() })
    }

    /// Connects and says hello.
    pub(crate) fn new(way: &'c W, cache: &'c Cache<W::Domain>, address: &str) -> Self {
        let mut client = Self::silent(way, cache, address).expect("somebody listens");
        client.hello();
        client
    }

    pub(crate) fn hello(&mut self) -> Welcome {
        let mut bytes = Vec::new();
        let kind = Request::hello(&mut bytes, false);
        let (_, kind, answer) = self.ask(kind, &bytes).expect("a welcome");
        match Reply::decode(kind, &answer).unwrap() {
            Reply::Welcome(welcome) => welcome,
            other => panic!("{other:?}"),
        }
    }

    /// Says a fragment as it is; false if the connection is gone.
    pub(crate) fn say(&mut self, fragment: &[u8]) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.engine.send_message(fragment) {
                Ok(()) => return true,
                Err(frrwp::handshake::SendError::Full) => {}
                Err(_) => return false,
            }
            assert!(Instant::now() < until, "there is no room to say something");
            if !self.step() {
                return false;
            }
        }
    }

    /// Says a message; the id that it has.
    pub(crate) fn tell(&mut self, kind: Kind, bytes: &[u8]) -> Option<u32> {
        self.id += 1;
        let mut parts = bytes.chunks(MAX_FRAME_PAYLOAD - FRAGMENT).peekable();
        loop {
            let part = parts.next().unwrap_or_default();
            let mut fragment = Vec::new();
            messages::start(&mut fragment, self.id, kind, parts.peek().is_some());
            fragment.extend_from_slice(part);
            if !self.say(&fragment) {
                return None;
            }
            if parts.peek().is_none() {
                return Some(self.id);
            }
        }
    }

    /// Does what can be done, after waiting for it; false if the connection is gone.
    fn step(&mut self) -> bool {
        if self.closed {
            return false;
        }
        self.engine.wait();
        self.look();
        true
    }

    /// Does what can be done.
    pub(crate) fn look(&mut self) {
        self.engine.progress();
        while let Some(event) = self.engine.next_event() {
            match event {
                Event::Closed { .. } => self.closed = true,
                Event::Completed { tag, result } => self.ended.push((tag, result.is_ok())),
                Event::ReadCompleted { succeeded, .. } => self.fetched.push(succeeded),
                _ => {}
            }
        }
    }

    /// Returns the next message; nothing if the connection ends first.
    pub(crate) fn hear(&mut self) -> Option<Answer> {
        let (until, mut heard) = (Instant::now() + PATIENCE, Vec::new());
        loop {
            while self.engine.recv_message(&mut heard) {
                if let Some((id, kind, bytes)) = self.input.take(&heard, 256 << 20).expect("servers make sense") {
                    return Some((id, kind, bytes.to_vec()));
                }
            }
            assert!(Instant::now() < until, "no answer");
            self.look();
            let more = self.engine.recv_message(&mut heard);
            if more {
                if let Some((id, kind, bytes)) = self.input.take(&heard, 256 << 20).expect("servers make sense") {
                    return Some((id, kind, bytes.to_vec()));
                }
                continue;
            }
            if !self.step() {
                return None;
            }
        }
    }

    /// Says something and hears what comes of it.
    pub(crate) fn ask(&mut self, kind: Kind, bytes: &[u8]) -> Option<Answer> {
        let id = self.tell(kind, bytes)?;
        let answer = self.hear()?;
        assert!(answer.0 == id || answer.1 == Kind::Refused, "the answer to {id}: {answer:?}");
        Some(answer)
    }

    /// A command as over TCP: its answer, and the tag of this key's item.
    pub(crate) fn run(&mut self, wish: Option<&[u8]>, command: &[&[u8]]) -> (String, Option<Tag>) {
        let mut bytes = Vec::new();
        let kind = Request::run(&mut bytes, wish.is_some(), wish.unwrap_or_default(), command);
        let (_, kind, answer) = self.ask(kind, &bytes).expect("an answer");
        match Reply::decode(kind, &answer).unwrap() {
            Reply::Ran { tag, answer } => (String::from_utf8_lossy(answer).into_owned(), tag),
            other => panic!("{other:?}"),
        }
    }

    /// Stores a value.
    pub(crate) fn set(&mut self, key: &str, value: &[u8]) -> Option<Tag> {
        let line = format!("set {key} 0 0 {}\r\n", value.len());
        let (answer, tag) = self.run(Some(key.as_bytes()), &[line.as_bytes(), value, b"\r\n"]);
        assert_eq!(answer, "STORED\r\n");
        tag
    }

    /// Returns a number of `stats`.
    pub(crate) fn stat(&mut self, name: &str) -> u64 {
        let (text, _) = self.run(None, &[b"stats\r\n"]);
        let line = text.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
    }

    /// Asks for an item in a message.
    pub(crate) fn get(&mut self, key: &str, wish: bool) -> Answer {
        let mut bytes = Vec::new();
        let kind = Request::get(&mut bytes, wish, key.as_bytes());
        self.ask(kind, &bytes).expect("an answer")
    }

    /// Reads by a tag: what is there now.
    #[expect(unsafe_code, reason = "reads into this client's memory")]
    pub(crate) fn read(&mut self, tag: &Tag) -> Option<Vec<u8>> {
        let length = tag.segment.length as usize;
        self.fetched.clear();
        // SAFETY: the memory is the way's, and only this client uses it, one read at a time.
        unsafe { self.engine.read_remote(self.way.memory(), length, segment(tag)) }.ok()?;
        while self.fetched.is_empty() {
            self.look();
            if self.fetched.is_empty() && !self.step() {
                return None;
            }
        }
        // SAFETY: the read has ended, so the fabric no longer writes the memory; it has room for `length` bytes.
        self.fetched[0].then(|| unsafe { std::slice::from_raw_parts(self.way.memory(), length) }.to_vec())
    }

    /// Returns the value that a tag leads to, if it is one to believe.
    pub(crate) fn read_value(&mut self, tag: &Tag, key: &str) -> Option<Vec<u8>> {
        let image = self.read(tag)?;
        item::check(&image, key.as_bytes(), tag.incarnation, 1).ok().map(|item| item.value.to_vec())
    }

    /// Opens a transfer for an item of so many bytes at most.
    #[expect(unsafe_code, reason = "lends this client's memory")]
    pub(crate) fn open(&mut self, key: &str, wish: bool, room: usize) -> frrwp::handshake::Tag {
        self.id += 1;
        let mut header = Vec::new();
        messages::start(&mut header, self.id, Kind::Get, false);
        Request::get(&mut header, wish, key.as_bytes());
        // SAFETY: the memory is the way's, and only this client uses it, one transfer at a time.
        unsafe { self.engine.open_read(self.way.memory(), room, &header) }.expect("a transfer opens")
    }

    /// Opens a transfer with any header; false if that cannot be.
    #[expect(unsafe_code, reason = "lends this client's memory")]
    pub(crate) fn open_any(&mut self, header: &[u8], room: usize, read: bool) -> bool {
        let memory = self.way.memory();
        // SAFETY: the memory is the way's, and its content does not matter then.
        let opened = unsafe {
            match read {
                true => self.engine.open_read(memory, room, header),
                false => self.engine.open_write(memory, room, header),
            }
        };
        opened.is_ok()
    }

    /// Waits for the end of a transfer; whether it has succeeded.
    pub(crate) fn finish(&mut self, transfer: frrwp::handshake::Tag) -> bool {
        loop {
            self.look();
            if let Some(at) = self.ended.iter().position(|(tag, _)| *tag == transfer) {
                return self.ended.swap_remove(at).1;
            }
            if !self.step() {
                return false;
            }
        }
    }

    /// Returns the client's memory.
    #[expect(unsafe_code, reason = "reads this client's memory")]
    pub(crate) fn memory(&self, length: usize) -> Vec<u8> {
        // SAFETY: no transfer is in flight, so no other end writes the memory; it has room for `length` bytes.
        unsafe { std::slice::from_raw_parts(self.way.memory(), length) }.to_vec()
    }

    /// Lets the server read this value in the client's memory, in parts: what holds it there, and the segments.
    #[expect(unsafe_code, reason = "lends this client's memory")]
    pub(crate) fn lend(&mut self, value: &[u8], parts: usize) -> (Vec<Lease<W::Domain>>, Vec<RemoteSegment>) {
        let memory = self.way.memory();
        // SAFETY: the memory is the way's, and as long as this.
        unsafe { std::ptr::copy(value.as_ptr(), memory, value.len()) };
        let (mut leases, mut segments, mut at) = (Vec::new(), Vec::new(), 0);
        for part in (1..=parts).rev() {
            let length = (value.len() - at) / part;
            if length == 0 {
                continue;
            }
            let address = memory.wrapping_add(at);
            // SAFETY: it is not changed before the server has answered.
            let lease = unsafe { self.cache.acquire(address, length, Access::LOCAL | Access::REMOTE_READ) }.unwrap();
            segments.extend(lease.segments().map(|segment| {
                let (registration, address) = (segment.registration(), segment.address());
                let named = frrwp::fabric::Domain::remote(self.cache.registrar(), registration, address, segment.len());
                RemoteSegment { address: named.address, length: named.length, key: named.key }
            }));
            leases.push(lease);
            at += length;
        }
        (leases, segments)
    }

    /// Has the server read a value out of this client's memory.
    pub(crate) fn put(&mut self, key: &str, value: &[u8], parts: usize) -> Answer {
        let (leases, segments) = self.lend(value, parts);
        let mut bytes = Vec::new();
        let line = format!("set {key} 0 0 {}", value.len());
        let kind = Request::put(&mut bytes, true, key.as_bytes(), line.as_bytes(), &segments);
        let answer = self.ask(kind, &bytes).expect("an answer");
        drop(leases);
        answer
    }
}

/// Returns the fabric's name of a tag's segment.
pub(crate) fn segment(tag: &Tag) -> Segment {
    let RemoteSegment { address, length, key } = tag.segment;
    Segment { address, length, key }
}
