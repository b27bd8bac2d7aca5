//! A client of one or several servers: over RDMA, where it reads items out of their memory by itself, and over TCP.
//!
//! ```
//! use rdmakv_client::{Client, Expire};
//! use std::time::Duration;
//!
//! # let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
//! # let address = listener.local_addr().unwrap().to_string();
//! # std::thread::spawn(move || {
//! #     use std::io::{Read, Write};
//! #     let mut stream = listener.accept().unwrap().0;
//! #     for answer in ["HD c1\r\n", "VA 5 f0 c1\r\nhello\r\n", "EN\r\n"] {
//! #         assert!(stream.read(&mut [0; 1000]).unwrap() > 0);
//! #         stream.write_all(answer.as_bytes()).unwrap();
//! #     }
//! # });
//! # let server = &address;
//! // let server = "shm:@rdmakv-11211,tcp:127.0.0.1:11211";
//! let mut client = Client::new([server])?;
//! let stored = client.set("greeting", "hello", Expire::In(Duration::from_secs(60)))?;
//! assert!(stored.is_stored());
//! let value = client.get("greeting")?.expect("it was stored just now");
//! assert_eq!(&value[..], b"hello");
//! assert!(client.get("another")?.is_none());
//! # Ok::<(), rdmakv_client::Error>(())
//! ```
//!
//! The command `rdmakv` is built with the feature `cli`, which is on by default. Semantic versions are about the library, the command
//! and the features.
//!
//! # Servers
//!
//! A server is named with every way to it, the best one first: `shm:@rdmakv-11211,tcp:127.0.0.1:11211`. Ways are
//! tried at the same time: the next one begins when the one before has failed or was silent for 30 ms. An operation
//! goes over the first that stands. A better way that comes up later is used from then on. While a fabric stands, all
//! goes over it. When it goes, or is silent for half of an operation's time, reads fall back to the socket. The
//! fabric is tried again in the background, while the client is in use. Several servers share the keys as
//! libmemcached has it ([`Ring`]); [`ServerAddress`] has the syntax, with weights and names.
//!
//! # Clusters
//!
//! [`Client::of_cluster`] takes the servers from a configuration in etcd, and follows it as servers come and go. Keys with the policy
//! `copies:N` are written to N servers by this client, those with `code:K+M` in K + M fragments. Operations on them have one order, for
//! all clients. It holds though all but one of a key's servers are lost, or M of them with fragments. They take up to [`Cluster::give_up_after`] while servers fail, whatever [`Options::timeout`] is.
//! That time is for each of their calls. Over fabrics values are read as those of plain keys are, one-sidedly too: fragments from K servers at once.
//!
//! # One-sided reads
//!
//! A client that asks a server for an item over a fabric is told a *tag*: the place of the item in the server's
//! memory. Until its lease is over (a second, as a rule) the next GETs of the key are reads of that memory, without
//! the server's CPU. An item is believed if it is alive, of this incarnation of the server, of this key, not expired,
//! and of the right sum. Besides, the lease, as it stood when the read was begun, was not over when its last byte had
//! come. Anything else forgets the tag and asks the server. So a GET returns the server's answer: operations on one
//! key have one order, for all clients and transports.
//!
//! Over shared memory a client finds items by itself: it looks their keys up in a [table](rdmakv_proto::gets) in the server's memory, and needs
//! no tags. It asks the server for keys that are not there, and from then on they are, for all clients.
//!
//! [`Value::source`] says which way a value came, [`Client::counters`] how often. Each server's tags are bounded
//! ([`Options::tags`]); the least recently used leaves first.
//!
//! *The server takes for cold what it does not see.* So reads are counted and reported to it (over `iwarp` it counts
//! by itself). That goes with the next request or read once a quarter or half of a lease has passed, and when the
//! client is dropped. An idle client does not do that; its last reads are reported when it is used again, if the
//! connection still stands. That loses how hot an item looks, and nothing else.
//!
//! # Three ways to wait
//!
//! * *Blocking*: [`Client::get`], [`Client::set`] and so on.
//! * *Tickets*: [`Client::iget`] and [`Client::iset`] begin an operation and never wait: the data is the client's until the end.
//!   [`Client::bget`] and [`Client::bset`] wait while the [window](Options::window) is full, and the caller's bytes are free when they return.
//!   [`Client::test`] and [`Client::wait`] take the outcome. Operations begun together go out together.
//! * *Futures*, without a runtime: [`future::AsyncClient`].
//!
//! An operation begun after a change of the same key, on the same transport, finds the effect of the change. Changes of one key on the same
//! transport are carried out in the order in which they were begun. A GET may also find the result of an operation
//! that was begun after it, while it is in progress: if its tag leads to nothing any more, the server is asked then.
//! If one of two is in progress over a fabric and the other over a socket, or after an error, wait for the first
//! before the second.
//!
//! # When something goes wrong
//!
//! Each operation has a time ([`Options::timeout`]). An operation that runs out of it takes the connection along, because the next bytes
//! there are unknown. Over datagrams it ends alone. Of the operations in flight on a lost connection, *reads are done again*, a bounded number of
//! times. *Mutations end with [`Error::OutcomeUnknown`]* if anything of them was sent: whether they were done is unknown, and doing them twice
//! could be wrong. Where no way stands, operations end with [`Error::Unreachable`] at once, which lists each way with
//! its reason. Datagrams that are lost with mutations under way are an exception. Later operations wait until the server drops late copies, or for
//! half of the time. Reads do not wait where a socket stands and no mutation waits before them. Attempts to connect follow each other with growing pauses ([`Options::back_off`]). Errors name the
//! operation, the key and the server.
//!
//! # Memory
//!
//! One-sided reads go into memory of the client's, and a [`Value`] is lent from there without another copy. Values of
//! more than the [eager limit](rdmakv_proto::eager) that have no tag come by a transfer of `frrwp`'s, into memory
//! that the server may write. They are copied once, because the server may write it later too. The server sends the
//! limit when a client comes: 64 KiB over `shm` and `iwarp` and 8 KiB over `verbs`, unless its `--eager` is another. From 8 KiB up to
//! the limit values take the way that was faster lately.
//!
//! Values to be stored of more than that are read by the server out of the client's memory: without a copy out of a
//! [`Client::buffer`]. All of it is registered by [`mrrc::Cache`]s, one for each domain, and bounded
//! ([`Options::value_memory`], [`Options::transfer_memory`]).
//!
//! Trust: over `shm` the servers, which are processes of the same user, can read all data to be stored, and write
//! where transfers arrive. Over other fabrics they reach only the memory that they have keys of. Nothing else, and no
//! server's word decides where this process writes.
//!
//! # Threads
//!
//! A client is of one thread at a time, and can be sent to another. Several threads have a client each; values go anywhere. In a child of a
//! fork it connects anew; its parent's connections go on, and what was under way there has an unknown outcome here.

mod address;
mod agent;
mod answer;
mod buffer;
mod caller;
mod calls;
mod cluster;
mod command;
mod common;
mod counters;
mod datagrams;
mod domains;
mod duties;
mod end;
mod ending;
mod erasure;
mod error;
mod fabric;
pub mod far;
mod fragment_tags;
pub mod future;
mod gathering;
mod membership;
mod memory;
mod one_sided;
mod ops;
mod options;
mod places;
mod replication;
#[cfg(test)]
mod replication_tests;
mod resilient;
mod revision;
mod server;
mod slots;
mod stream;
mod tags;
mod telling;
mod ticket;
mod turns;
mod value;
mod ways;

pub use address::{Fabric, ServerAddress, Socket};
pub use agent::Agent;
pub use answer::Stored;
pub use buffer::{Buffer, Data};
pub use cluster::Cluster;
pub use command::{Expire, Terms};
pub use counters::Counters;
pub use duties::AgentEvent;
pub use error::{About, Error, Operation, WayDown};
pub use options::Options;
pub use rdmakv_cluster::messages::Frozen;
pub use rdmakv_proto::placement::{Continuum, Name, Ring};
pub use ticket::{Outcome, Ticket};
pub use value::{Source, Value};

#[cfg(feature = "cli")]
pub mod cli;

use caller::Caller;
use command::{Arguments, check_key};
use common::{Common, ThisProcess};
use domains::Fabrics;
use ops::Ops;
use places::Hands;
use rdmakv_cluster::messages::Call;
use resilient::Resilient;
use server::Server;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telling::Telling;

/// A client of one or several servers.
pub struct Client {
    servers: Vec<Server>,
    ring: Ring,
    common: Common,
    /// The cluster, if the servers are of one.
    resilient: Option<Box<Resilient>>,
    /// The number of the last call that all servers of a cluster were told.
    told: u64,
    id: u64,
}

/// How long a server may take to answer a request for far memory: it may have to wait for a former owner's process.
const FAR_PATIENCE: Duration = Duration::from_secs(10);

type Result<T> = std::result::Result<T, Error>;
/// Names and values.
pub type Stats = Vec<(String, String)>;
/// The outcome at each server, by the server's address as it was given.
pub type Everywhere<T> = Vec<(String, Result<T>)>;

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id).field("servers", &self.servers.len()).finish_non_exhaustive()
    }
}

impl Client {
    /// Returns a client of these servers, with the [defaults](Options::default).
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::NoServer`]. That a server cannot be reached is told by what is asked of it.
    pub fn new<S: AsRef<str>>(servers: impl IntoIterator<Item = S>) -> Result<Self> {
        Self::with_options(servers, Options::default())
    }

    /// Returns a client of these servers.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn with_options<S: AsRef<str>>(servers: impl IntoIterator<Item = S>, options: Options) -> Result<Self> {
        let servers: Vec<ServerAddress> =
            servers.into_iter().map(|server| server.as_ref().parse()).collect::<Result<_>>()?;
        if servers.is_empty() {
            return Err(Error::NoServer);
        }
        let named: Vec<_> = servers.iter().map(|server| (server.name(), server.weight())).collect();
        let ring = Ring::new(options.continuum, &named);
        Ok(Self::of_servers(servers.iter().map(|server| Server::new(server, &options)).collect(), ring, &options))
    }

    /// Returns a client of all servers of a cluster, as the cluster's configuration changes.
    ///
    /// # Errors
    /// [`Error::Configuration`]: etcd does not answer, or has no such cluster.
    pub fn of_cluster(cluster: &Cluster, options: Options) -> Result<Self> {
        let ring = Ring::new(options.continuum, &[]);
        // Keys have a place though no server has joined.
        let nowhere = Server::new(&ServerAddress::nowhere(), &options);
        let mut client = Self::of_servers(vec![nowhere], ring, &options);
        let mut hands = Hands { servers: &mut client.servers, common: &mut client.common };
        client.resilient = Some(Box::new(Resilient::new(cluster, &options, &mut hands)?));
        Ok(client)
    }

    fn of_servers(servers: Vec<Server>, ring: Ring, options: &Options) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            servers,
            ring,
            common: Common {
                ops: Ops::new(options.window),
                patience: options.patience(),
                timeout: options.timeout,
                counters: Counters::default(),
                fabrics: Fabrics::new(options),
                one_sided: options.one_sided,
                login: options.login(),
                process: std::process::id(),
                this_process: ThisProcess::new(),
            },
            resilient: None,
            told: 0,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns the fabric by which far memory of the first server is reached, if there is one.
    #[cfg(feature = "cli")]
    pub(crate) fn far_fabric(&self) -> Option<&'static str> {
        let (_, fabrics) = self.servers.first()?.fabrics();
        fabrics.iter().map(Fabric::name).find(|name| ["shm", "iwarp"].contains(name))
    }

    /// Returns the first server's address on a fabric, if it has one.
    #[cfg(feature = "cli")]
    pub(crate) fn far_server(&self, fabric: &str) -> Option<&address::Fabric> {
        let (_, fabrics) = self.servers.first()?.fabrics();
        fabrics.iter().find(|of| of.name() == fabric)
    }

    /// Returns the servers as far memory uses them, over connections of its own.
    pub(crate) fn far_source(&self) -> far::Source {
        let of = |server: &Server| {
            let (name, fabrics) = server.fabrics();
            far::SourceServer { name: name.to_owned(), fabrics: fabrics.to_vec() }
        };
        far::Source {
            servers: self.servers.iter().map(of).collect(),
            login: self.common.login.clone(),
            // A server to which a lane cannot connect is lost with its regions: a slow one is not.
            connect: self.common.patience.connect.max(FAR_PATIENCE),
            patience: self.common.timeout.max(FAR_PATIENCE),
        }
    }

    // ---- Blocking ----------------------------------------------------------------------------------

    /// Returns the value of a key.
    ///
    /// # Errors
    /// [`Error`].
    pub fn get(&mut self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let key = key.as_ref();
        check_key(Operation::Get, key)?;
        let place = match &mut self.resilient {
            Some(resilient) => {
                resilient.follow(&mut Hands { servers: &mut self.servers, common: &mut self.common });
                resilient.to_read(key)
            }
            None => Some((self.server_of(key), true)),
        };
        if let Some((server, may_be_listed)) = place
            && let Some(value) = self.servers[server].get_now(&mut self.common, (key, may_be_listed))
        {
            self.common.counters.hits += 1;
            return Ok(Some(value));
        }
        self.run((Operation::Get, key), Arguments::default(), Data::None)
    }

    /// The same: a [`Value`] always has the [version](Value::version) that [`Client::cas`] takes.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn gets(&mut self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get(key)
    }

    /// Notes how large a value is that the client did not read or write. Large ones that several servers have in fragments are read
    /// one-sidedly at once, without a first try in a message.
    pub fn expect(&mut self, key: impl AsRef<[u8]>, bytes: usize) {
        if let Some(resilient) = &self.resilient {
            resilient.expect_size(key.as_ref(), bytes, &mut self.servers);
        }
    }

    /// Returns the values of several keys, each with its own outcome, in their order. All are asked for at once, as
    /// far as the [window](Options::window) goes.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: impl IntoIterator<Item = K>) -> Vec<Result<Option<Value>>> {
        let (mut under_way, mut got) = (VecDeque::new(), Vec::new());
        let mut keys = keys.into_iter().peekable();
        while keys.peek().is_some() {
            // As many as there is room for, beside what the caller has open, leave together; half of them are waited for before the next.
            self.hold(true);
            while (under_way.is_empty() || self.has_room())
                && let Some(key) = keys.next()
            {
                under_way.push_back(self.bget(key));
            }
            self.hold(false);
            let left = if keys.peek().is_some() { under_way.len() / 2 } else { 0 };
            while under_way.len() > left {
                let first: Option<Result<Ticket<_>>> = under_way.pop_front();
                got.extend(first.map(|ticket| ticket.and_then(|ticket| self.wait(ticket))));
            }
        }
        got
    }

    fn hold(&mut self, requests: bool) {
        self.servers.iter_mut().for_each(|server| server.hold(requests));
    }

    /// Stores a value, whatever was there.
    ///
    /// # Errors
    /// [`Error`]; see [`Error::OutcomeUnknown`].
    pub fn set(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, terms: impl Into<Terms>) -> Result<Stored> {
        self.store(Operation::Set, key.as_ref(), value.as_ref(), terms.into(), 0)
    }

    /// Stores a value where there is none.
    ///
    /// # Errors
    /// As [`Client::set`].
    pub fn add(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, terms: impl Into<Terms>) -> Result<Stored> {
        self.store(Operation::Add, key.as_ref(), value.as_ref(), terms.into(), 0)
    }

    /// Stores a value where there is one.
    ///
    /// # Errors
    /// As [`Client::set`].
    pub fn replace(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        terms: impl Into<Terms>,
    ) -> Result<Stored> {
        self.store(Operation::Replace, key.as_ref(), value.as_ref(), terms.into(), 0)
    }

    /// Adds bytes at the end of a value. Its flags and its end stay.
    ///
    /// # Errors
    /// As [`Client::set`].
    pub fn append(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Stored> {
        self.store(Operation::Append, key.as_ref(), value.as_ref(), Terms::default(), 0)
    }

    /// Adds bytes at the start of a value. Its flags and its end stay.
    ///
    /// # Errors
    /// As [`Client::set`].
    pub fn prepend(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Stored> {
        self.store(Operation::Prepend, key.as_ref(), value.as_ref(), Terms::default(), 0)
    }

    /// Stores a value if the one that is there still has this [version](Value::version).
    ///
    /// # Errors
    /// As [`Client::set`].
    pub fn cas(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        version: u64,
        terms: impl Into<Terms>,
    ) -> Result<Stored> {
        self.store(Operation::Cas, key.as_ref(), value.as_ref(), terms.into(), version)
    }

    /// Takes a value away. Whether there was one.
    ///
    /// # Errors
    /// As [`Client::set`].
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.run((Operation::Delete, key.as_ref()), Arguments::default(), Data::None)
    }

    /// Changes when a value ends. Whether there was one.
    ///
    /// # Errors
    /// As [`Client::set`].
    pub fn touch(&mut self, key: impl AsRef<[u8]>, expire: impl Into<Expire>) -> Result<bool> {
        self.run((Operation::Touch, key.as_ref()), until(expire), Data::None)
    }

    /// Returns the value of a key, and changes its end.
    ///
    /// # Errors
    /// As [`Client::set`].
    pub fn gat(&mut self, key: impl AsRef<[u8]>, expire: impl Into<Expire>) -> Result<Option<Value>> {
        self.run((Operation::Gat, key.as_ref()), until(expire), Data::None)
    }

    /// Adds to a decimal number. Returns the value after it, if there was one; it wraps at 2⁶⁴.
    ///
    /// # Errors
    /// As [`Client::set`].
    pub fn incr(&mut self, key: impl AsRef<[u8]>, by: u64) -> Result<Option<u64>> {
        self.run((Operation::Incr, key.as_ref()), Arguments { number: by, ..Arguments::default() }, Data::None)
    }

    /// Takes from a decimal number. Returns the value after it, if there was one; never less than 0.
    ///
    /// # Errors
    /// As [`Client::set`].
    pub fn decr(&mut self, key: impl AsRef<[u8]>, by: u64) -> Result<Option<u64>> {
        self.run((Operation::Decr, key.as_ref()), Arguments { number: by, ..Arguments::default() }, Data::None)
    }

    /// Returns the statistics of each server: of this kind (`items`, `slabs`, `settings`), or with an empty word the
    /// general ones.
    pub fn stats(&mut self, kind: &str) -> Everywhere<Stats> {
        let word: String = kind.chars().filter(char::is_ascii_graphic).collect();
        self.run_everywhere(Operation::Stats, &Arguments { word, ..Arguments::default() })
    }

    /// Returns the version of each server.
    pub fn version(&mut self) -> Everywhere<String> {
        self.run_everywhere(Operation::Version, &Arguments::default())
    }

    /// Empties each server, after so long, in whole seconds.
    pub fn flush(&mut self, after: Duration) -> Everywhere<bool> {
        self.run_everywhere(Operation::Flush, &Arguments { number: after.as_secs(), ..Arguments::default() })
    }

    // ---- Non-blocking ------------------------------------------------------------------------------

    /// Asks for a value, and goes on. [`Client::wait`] has the outcome.
    ///
    /// # Errors
    /// [`Error::Key`]; [`Error::Full`] where the window is full, as this never waits.
    pub fn iget(&mut self, key: impl AsRef<[u8]>) -> Result<Ticket<Option<Value>>> {
        self.ticket((Operation::Get, key.as_ref()), Arguments::default(), Data::None)
    }

    /// Stores a value, and goes on. The data is the client's until the operation has ended: [`Client::wait_for_data`] gives it back.
    ///
    /// # Errors
    /// As [`Client::iget`].
    pub fn iset(
        &mut self,
        key: impl AsRef<[u8]>,
        data: impl Into<Data>,
        terms: impl Into<Terms>,
    ) -> Result<Ticket<Stored>> {
        let arguments = Arguments { terms: terms.into(), ..Arguments::default() };
        self.ticket((Operation::Set, key.as_ref()), arguments, data.into())
    }

    /// Takes a value away, and goes on.
    ///
    /// # Errors
    /// As [`Client::iget`].
    pub fn idelete(&mut self, key: impl AsRef<[u8]>) -> Result<Ticket<bool>> {
        self.ticket((Operation::Delete, key.as_ref()), Arguments::default(), Data::None)
    }

    /// As [`Client::iget`], but waits while the window is full.
    ///
    /// # Errors
    /// [`Error::Key`]; [`Error::Full`] where it is full of results that were not taken.
    pub fn bget(&mut self, key: impl AsRef<[u8]>) -> Result<Ticket<Option<Value>>> {
        self.wait_for_room(Operation::Get)?;
        self.iget(key)
    }

    /// As [`Client::iset`], but waits while the window is full, and returns when the caller's bytes may be used again.
    ///
    /// # Errors
    /// As [`Client::bget`].
    pub fn bset(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        terms: impl Into<Terms>,
    ) -> Result<Ticket<Stored>> {
        self.wait_for_room(Operation::Set)?;
        let data = self.copied(value.as_ref());
        self.iset(key, data, terms)
    }

    /// Returns whether an operation has ended; and does what can be done now.
    ///
    /// # Errors
    /// [`Error::OtherClient`].
    pub fn test<T: Outcome>(&mut self, ticket: &Ticket<T>) -> Result<bool> {
        self.own(ticket)?;
        self.progress();
        Ok(self.common.ops.is_done(ticket.name))
    }

    /// Waits for the end of an operation.
    ///
    /// # Errors
    /// As the operation ended; [`Error::OtherClient`].
    pub fn wait<T: Outcome>(&mut self, ticket: Ticket<T>) -> Result<T> {
        self.wait_for_data(ticket).0
    }

    /// The same, and gives back what was to be stored.
    pub fn wait_for_data<T: Outcome>(&mut self, ticket: Ticket<T>) -> (Result<T>, Data) {
        if let Err(error) = self.own(&ticket) {
            return (Err(error), Data::None);
        }
        self.finish(ticket.name)
    }

    /// Memory for a value that is to be stored, which fabrics take from there without a copy.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn buffer(&mut self, bytes: usize) -> Result<Buffer> {
        Ok(Buffer(self.common.fabrics.memory()?.sending(bytes)?))
    }

    /// Does what can be done now, without waiting.
    pub fn progress(&mut self) {
        self.move_on();
        // Futures that were taken apart from their client may all be gone.
        drop(self.common.ops.woken());
    }

    /// When [`Client::progress`] has something to do though nothing comes.
    pub fn next_deadline(&mut self) -> Option<Instant> {
        let oldest = self.common.ops.oldest().and_then(|oldest| self.common.ops.get(oldest));
        let of_cluster = self.resilient.as_ref().and_then(|resilient| resilient.next_deadline());
        oldest.map(|op| op.deadline).into_iter().chain(of_cluster).min()
    }

    /// Operations that are open: under way, or ended and their results not taken.
    pub fn open(&self) -> usize {
        self.common.ops.open()
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> Counters {
        self.common.counters
    }

    /// Returns the fabric over which the server at this [place](Client::server_of) is read, if one stands.
    pub fn fabric(&self, server: usize) -> Option<&Fabric> {
        self.servers.get(server)?.fabric_in_use()
    }

    /// Keys of which a tag, or a size, is known.
    pub fn known(&self) -> usize {
        self.servers.iter().map(Server::known).sum()
    }

    /// Bytes of this process's memory that are registered, for all servers.
    pub fn registered(&self) -> u64 {
        self.common.fabrics.registered() + self.servers.iter().map(Server::registered).sum::<u64>()
    }

    /// Returns the place, in the order in which they were named, of the server that has a key.
    pub fn server_of(&self, key: impl AsRef<[u8]>) -> usize {
        match &self.resilient {
            Some(resilient) => resilient.primary(key.as_ref()).unwrap_or(0),
            None if self.servers.len() == 1 => 0,
            None => self.ring.server(key.as_ref()),
        }
    }

    /// Has all servers of a cluster refuse changes of a generation's chunks. Returns the epoch in which all of them did.
    ///
    /// Writes of these chunks that were begun before are completed first: by this client after a second, as theirs may be dead. In a later
    /// epoch servers know it, too: a chunk takes the mark along.
    ///
    /// # Errors
    /// [`Error::NotEverywhere`]: some servers did not take it within [`Cluster::give_up_after`]. Others may have; it may be repeated.
    pub fn freeze(&mut self, frozen: &Frozen) -> Result<u32> {
        self.tell(Call::Freeze(frozen.clone()), "freeze", frozen).map(|(epoch, _)| epoch)
    }

    /// Tells all servers of a cluster that the backing directory shows a frozen generation. Returns the epoch in which all of them took it.
    ///
    /// # Errors
    /// As [`Client::freeze`].
    pub fn persisted(&mut self, frozen: &Frozen) -> Result<u32> {
        self.tell(Call::Persisted(frozen.clone()), "persist", frozen).map(|(epoch, _)| epoch)
    }

    /// Has the servers of a cluster write chunks of a frozen generation to its data file, which has this inode number in the backing
    /// directory. Returns for each chunk of `frozen`, in the order of its runs, whether it is on disk. A server writes those that it
    /// has whole, and orders the writes of, if it was started with that directory (`--backing`).
    ///
    /// # Errors
    /// As [`Client::freeze`]. `frozen` names more than [`MAX_CARRIED`](rdmakv_cluster::messages::MAX_CARRIED) chunks: no server takes it.
    pub fn carry(&mut self, file: u64, frozen: &Frozen) -> Result<Vec<bool>> {
        let (_, telling) = self.tell(Call::Carry { file, frozen: frozen.clone() }, "carry", frozen)?;
        let (bits, chunks) = (telling.carried(), frozen.runs.iter().map(|&(_, count)| count as usize).sum());
        Ok((0..chunks).map(|at| bits.get(at / 64).is_some_and(|bits| bits >> (at % 64) & 1 == 1)).collect())
    }

    // ---- Inside ------------------------------------------------------------------------------------

    fn move_on(&mut self) {
        for server in &mut self.servers {
            server.progress(&mut self.common);
        }
        self.progress_cluster();
        self.expire();
        self.common.ops.sweep();
    }

    /// Sleeps until something may have happened, or so long.
    fn wait_for_news(&mut self, longest: Duration) {
        let busy: usize = self.servers.iter().map(Server::busy).sum();
        // With several servers, and several transports to one, it sleeps for one at a time.
        let longest = if busy > 1 { Duration::from_millis(1) } else { longest };
        if self.resilient.as_ref().is_some_and(|resilient| resilient.any().is_some()) {
            return self.wait_for_cluster(None, longest);
        }
        let Some(oldest) = self.common.ops.oldest() else {
            return std::thread::sleep(longest.min(Duration::from_millis(1)));
        };
        let Some(op) = self.common.ops.get(oldest) else { return };
        let (server, on, left) = (op.server, op.on, op.deadline.saturating_duration_since(Instant::now()));
        self.servers[server].wait(&self.common, on, longest.min(left));
    }

    /// The bytes, owned: what is too large for a message is copied to where a fabric takes it.
    fn copied(&mut self, bytes: &[u8]) -> Data {
        const LARGE: usize = 4 << 10;
        if bytes.len() > LARGE
            && let Some(memory) = self.common.fabrics.memory_if_any()
            && let Ok(mut sending) = memory.sending(bytes.len())
        {
            sending.bytes_mut().copy_from_slice(bytes);
            return Buffer(sending).into();
        }
        Data::Vec(bytes.to_vec())
    }

    fn store(&mut self, operation: Operation, key: &[u8], value: &[u8], terms: Terms, version: u64) -> Result<Stored> {
        let data = self.copied(value);
        self.run((operation, key), Arguments { terms, version, ..Arguments::default() }, data)
    }

    fn own<T>(&self, ticket: &Ticket<T>) -> Result<()> {
        if ticket.client == self.id { Ok(()) } else { Err(Error::OtherClient) }
    }

    fn open_one(
        &mut self,
        (operation, key): (Operation, &[u8]),
        arguments: Arguments,
        data: Data,
        server: usize,
    ) -> Result<ops::Name> {
        if !self.has_room() {
            return Err(Error::Full { operation, most: self.common.ops.most() });
        }
        let deadline = Instant::now() + self.common.timeout;
        Ok(self.common.ops.insert((operation, key), arguments, data, server, deadline))
    }

    fn issue(&mut self, (operation, key): (Operation, &[u8]), arguments: Arguments, data: Data) -> Result<ops::Name> {
        check_key(operation, key)?;
        if self.has_copies(key) {
            return self.issue_to_cluster((operation, key), arguments, data);
        }
        let server = self.server_of(key);
        let name = self.open_one((operation, key), arguments, data, server)?;
        self.servers[server].issue(&mut self.common, name);
        Ok(name)
    }

    /// Returns whether several servers have the key, in the latest epoch.
    #[inline]
    fn has_copies(&mut self, key: &[u8]) -> bool {
        let Some(resilient) = &mut self.resilient else { return false };
        resilient.follow(&mut Hands { servers: &mut self.servers, common: &mut self.common });
        resilient.has(key)
    }

    fn issue_to_cluster(&mut self, what: (Operation, &[u8]), arguments: Arguments, data: Data) -> Result<ops::Name> {
        if !self.has_room() {
            return Err(Error::Full { operation: what.0, most: self.common.ops.most() });
        }
        let name = self.common.ops.insert_group(what, arguments, data);
        if let Some(resilient) = &mut self.resilient {
            resilient.begin(name, &mut Hands { servers: &mut self.servers, common: &mut self.common });
        }
        Ok(name)
    }

    fn progress_cluster(&mut self) {
        if let Some(resilient) = &mut self.resilient {
            resilient.progress(&mut Hands { servers: &mut self.servers, common: &mut self.common });
        }
    }

    fn wait_for_cluster(&mut self, name: Option<ops::Name>, longest: Duration) {
        if let Some(resilient) = &mut self.resilient {
            let mut hands = Hands { servers: &mut self.servers, common: &mut self.common };
            resilient.wait(name, longest, &mut hands);
        }
    }

    /// Sends the calls of a caller and brings it the replies, for so long, or until it is done.
    fn serve<C: Caller>(&mut self, caller: &mut C, time: Duration, is_done: impl Fn(&C) -> bool) {
        /// The longest sleep, as what is due comes without a reply.
        const MOMENT: Duration = Duration::from_millis(20);
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.move_on();
            let Some(resilient) = &mut self.resilient else { return };
            let mut hands = Hands { servers: &mut self.servers, common: &mut self.common };
            let is_busy = resilient.serve(caller, &mut hands);
            if is_done(caller) {
                return;
            }
            if !is_busy {
                // Without a call or work only a later epoch comes before.
                let rest = resilient.rest_of(caller).unwrap_or(MOMENT);
                resilient.wait(None, rest.min(end.saturating_duration_since(Instant::now())), &mut hands);
            }
        }
    }

    fn tell(&mut self, call: Call, operation: &'static str, of: &Frozen) -> Result<(u32, Telling)> {
        let Some(after) = self.resilient.as_ref().map(|resilient| resilient.patience()) else {
            let why = format!("{operation} generation: the client is of no cluster: use Client::of_cluster");
            return Err(Error::Configuration { why });
        };
        let mut telling = Telling::new(call, self.told);
        self.serve(&mut telling, after, |telling| telling.done().is_some());
        self.told = telling.last();
        let (inode, generation, servers) = (of.ino, of.generation, telling.missing());
        let missing = Error::NotEverywhere { operation, inode, generation, servers, after };
        match telling.done() {
            Some(epoch) => Ok((epoch.0, telling)),
            None => Err(missing),
        }
    }

    fn ticket<T: Outcome>(
        &mut self,
        (operation, key): (Operation, &[u8]),
        arguments: Arguments,
        data: Data,
    ) -> Result<Ticket<T>> {
        let name = self.issue((operation, key), arguments, data)?;
        let holder = self.common.ops.hold(name);
        Ok(Ticket::new(name, self.id, holder))
    }

    fn run<T: Outcome>(&mut self, what: (Operation, &[u8]), arguments: Arguments, data: Data) -> Result<T> {
        self.wait_for_room(what.0)?;
        let name = self.issue(what, arguments, data)?;
        self.finish(name).0
    }

    fn run_everywhere<T: Outcome>(&mut self, operation: Operation, arguments: &Arguments) -> Everywhere<T> {
        let mut outcomes = Vec::new();
        let is_there = |&server: &usize| self.resilient.is_none() || !self.servers[server].is_nowhere();
        let servers: Vec<usize> = (0..self.servers.len()).filter(is_there).collect();
        for server in servers {
            let outcome = self.open_one((operation, b""), arguments.clone(), Data::None, server).and_then(|name| {
                self.servers[server].issue(&mut self.common, name);
                self.finish(name).0
            });
            outcomes.push((self.servers[server].text.clone(), outcome));
        }
        outcomes
    }

    /// Returns whether another operation may be opened. Results that can no longer be taken make room.
    fn has_room(&mut self) -> bool {
        if !self.common.ops.has_room() {
            self.common.ops.sweep();
        }
        self.common.ops.has_room()
    }

    /// Waits until another operation may be opened.
    fn wait_for_room(&mut self, operation: Operation) -> Result<()> {
        while !self.has_room() {
            let of_cluster = self.resilient.as_ref().and_then(|resilient| resilient.any());
            let Some(oldest) = self.common.ops.oldest().or(of_cluster) else {
                return Err(Error::Full { operation, most: self.common.ops.most() });
            };
            self.wait_until_done(oldest);
        }
        Ok(())
    }

    fn finish<T: Outcome>(&mut self, name: ops::Name) -> (Result<T>, Data) {
        self.wait_until_done(name);
        match self.common.ops.take(name) {
            Some((result, data)) => (result.map(|answer| T::from_answer(ticket::AnyAnswer(answer))), data),
            None => (Err(Error::OtherClient), Data::None),
        }
    }

    fn wait_until_done(&mut self, name: ops::Name) {
        while let Some(op) = self.common.ops.unanswered(name) {
            if op.on == ops::On::Group {
                self.servers
                    .iter_mut()
                    .filter(|server| server.busy() > 0)
                    .for_each(|server| server.progress(&mut self.common));
                self.progress_cluster();
                if self.common.ops.unanswered(name).is_some() {
                    self.wait_for_cluster(Some(name), Duration::from_secs(1));
                }
                continue;
            }
            let (server, deadline) = (op.server, op.deadline);
            self.progress_cluster();
            self.servers[server].progress(&mut self.common);
            let Some(op) = self.common.ops.unanswered(name) else { break };
            let on = op.on;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.servers[server].expire(&mut self.common, name);
            } else {
                self.servers[server].wait(&self.common, on, left);
            }
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while let Some(name) = self.common.ops.oldest()
            && let Some(op) = self.common.ops.get(name)
            && op.deadline <= now
        {
            let server = op.server;
            self.servers[server].expire(&mut self.common, name);
        }
    }
}

impl Drop for Client {
    /// Waits up to 100 ms until servers of a cluster know that the last writes are published.
    fn drop(&mut self) {
        let until = Instant::now() + resilient::LAST_NOTES;
        if let Some(resilient) = self.resilient.as_mut().filter(|resilient| resilient.has_calls()) {
            resilient.send_notes(&mut Hands { servers: &mut self.servers, common: &mut self.common });
        }
        let is_waiting = |client: &Self| client.resilient.as_ref().is_some_and(|resilient| resilient.has_calls());
        while is_waiting(self) && Instant::now() < until {
            self.move_on();
            // Without calls it would wait for another configuration.
            if is_waiting(self) {
                self.wait_for_cluster(None, until.saturating_duration_since(Instant::now()));
            }
        }
        self.servers.iter_mut().for_each(Server::close);
    }
}

fn until(expire: impl Into<Expire>) -> Arguments {
    Arguments { terms: Terms { expire: expire.into(), flags: 0 }, ..Arguments::default() }
}
