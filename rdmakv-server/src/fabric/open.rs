//! From the plan to listeners, and from these to threads; and how all of it ends.
//!
//! Sockets come first, so that what cannot be had is said before anything else is done; with RDMA devices the file by which servers
//! hear of such predecessors; then the stores, in memory that the fabrics made. Then leases that a predecessor's device may serve
//! are waited for, and no client is served meanwhile, over any transport. Then the threads.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
use frrwp::fabric::DatagramPort;
use frrwp::fabric::datagram::{UdpAddress, UdpError, UdpPort};
use frrwp::fabric::iwarp::{IwarpDomain, IwarpOptions};
use frrwp::fabric::reliability::{Format, ServerLimits};
use frrwp::fabric::shm::{Sharing, ShmAddress, ShmDomain, ShmError, ShmListener, ShmOptions};
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
use frrwp::fabric::verbs::{self, VerbsAddress, VerbsDomain, VerbsOptions, VerbsUdAddress, VerbsUdPort, WindowTrial};
use frrwp::fabric::{Connector, Listener};
use mrrc::PAGE;

use super::arenas::Arenas;
use super::datagrams::{self, DatagramState};
use super::far::{Closes, Far, FarPlan};
use super::grants::Exposed;
use super::hybrid::Hybrid;
use super::incarnation::{self, IncarnationFile};
use super::listener::{self, Seats};
use super::options::{FABRICS, Place, Plan};
use super::pinned::Pins;
use super::predecessor::Predecessor;
use super::providers::Fabric;
use super::providers::iwarp::Iwarp;
use super::providers::shm::{Shm, Table};
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
use super::providers::verbs::Verbs;
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
use super::providers::windows::Windowed;
use super::reaper;
use super::state::{FabricState, Terms};
use crate::log;
use crate::metrics::{FarReported, Reported};
use crate::session::{Shards, Shared};
use crate::store::Memory;
use rdmakv_proto::clock;

/// Keys of shared memory at most; each has a slot in a table that clients see.
const KEYS: u64 = 1 << 18;
/// Connections that access a region of far memory, as far as keys are counted.
const LANES: u64 = 16;
/// Stores at most that have an arena each.
const ARENAS: usize = 4096;

/// The interval at which a waiting thread looks whether the server is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Serves the clients of one fabric from now on.
type Begin = Box<dyn FnOnce(&Start<'_>, &mut Running) -> Result<(), String>>;

/// The ports for datagrams at one address, one for each thread.
enum Ports {
    Udp(Vec<UdpPort>),
    #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
    Verbs(Vec<VerbsUdPort>),
}

/// The opened fabrics.
pub(crate) struct Opened {
    plan: Plan,
    /// The fabrics that it listens at.
    fabrics: Vec<Begin>,
    /// The ports for datagrams, of each address.
    datagrams: Vec<Ports>,
    /// The maker of memory for the stores, if it has to be a fabric's.
    memory: Option<ShmDomain>,
    /// The line of a server that offers RDMA devices, or follows one that did.
    incarnation_file: Option<IncarnationFile>,
    /// One run of a server.
    incarnation: u32,
    /// The name under which servers of this address hear of each other.
    name: String,
    /// The addresses, and what clients can read there: for the start-up lines.
    pub(crate) said: Vec<String>,
}

impl Opened {
    /// Opens what the plan asks for. `port` is the one beside which clients look for shared memory, and fall back to where it
    /// is `plain`. `keeps` is where items outlive the server: its other address, of which there is a record even without devices.
    ///
    /// # Errors
    ///
    /// The fabric that could not be opened, why, and the remedy.
    pub(crate) fn open(plan: Plan, port: Option<u16>, plain: bool, keeps: Option<&str>) -> Result<Self, String> {
        let beside = port.filter(|_| plain);
        let (mut shm, mut iwarp, mut datagrams, mut said) = (None, None, Vec::new(), Vec::new());
        #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
        let mut verbs = Vec::new();
        for place in &plan.places {
            match place {
                Place::Shm(address) => {
                    let listener = listen_shm(&mut shm, address, &plan);
                    said.extend(readable(listener.map_err(|error| format!("--fabric {address}: {error}"))?.address()));
                }
                Place::ShmOfPort => {
                    let Some(port) = port else { continue };
                    let name =
                        format!("shm:@rdmakv-{port}").parse::<ShmAddress>().map_err(|error| error.to_string())?;
                    match listen_shm(&mut shm, &name, &plan) {
                        Ok(listener) => said.extend(readable(listener.address())),
                        Err(ShmError::InUse { .. }) => log::print(format_args!(
                            "{name} is another server's: none over shared memory; --fabric shm:@NAME chooses another name, \
                             --fabric none does without"
                        )),
                        Err(error) => return Err(format!("{name}: {error}; --fabric none does without")),
                    }
                }
                Place::Iwarp(address) => {
                    let (domain, listeners) = match &mut iwarp {
                        Some(there) => there,
                        none => {
                            let options = IwarpOptions {
                                passive: true,
                                checksums: false,
                                stall: plan.timeout,
                                ..IwarpOptions::default()
                            };
                            let domain = IwarpDomain::new(options);
                            none.insert((domain.map_err(|error| format!("--fabric {address}: {error}"))?, Vec::new()))
                        }
                    };
                    listeners.push(listen(domain, address, ONLY_ITEMS, beside, &mut said)?);
                }
                #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
                Place::Verbs(address) => {
                    let domain = device(address, &plan).map_err(|error| format!("--fabric {address}: {error}"))?;
                    let reads = match domain.has_windows() {
                        true => &format!("{ONLY_ITEMS} (memory windows)"),
                        false => "each client there can read whatever memory is registered (--expose slab)",
                    };
                    let listener = listen(&domain, address, reads, beside, &mut said)?;
                    verbs.push((domain, listener));
                }
                Place::Udp(address) => {
                    let ports = open_udp(address, &plan, beside, &mut said);
                    datagrams.push(Ports::Udp(ports.map_err(|error| format!("--fabric {address}: {error}"))?));
                }
                #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
                Place::VerbsUd(address) => {
                    let ports = open_verbs_ud(address, &plan, beside, &mut said);
                    datagrams.push(Ports::Verbs(ports.map_err(|error| format!("--fabric {address}: {error}"))?));
                }
            }
        }
        let memory = shm.as_ref().map(|(domain, _): &(ShmDomain, _)| domain.clone());
        if let Some(far) = &plan.far {
            let (regions, mebibytes) = (far.regions, far.region_bytes >> 20);
            said.push(format!("offering far memory: {regions} regions of {mebibytes} MiB"));
        }
        let mut fabrics = Vec::<Begin>::new();
        if let Some((domain, listeners)) = shm {
            fabrics.push(Box::new(|start, running| start.shm(domain, listeners, running)));
        }
        if let Some((domain, listeners)) = iwarp {
            fabrics.push(Box::new(|start, running| {
                start.fabric(Iwarp::new(domain, start.shared.settings.item_max), listeners, running)
            }));
        }
        #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
        for (domain, listener) in verbs {
            fabrics.push(Box::new(|start, running| {
                // Devices pin by themselves.
                let start = Start { pin: false, ..start.clone() };
                match domain.has_windows() {
                    true => start.fabric(Windowed(domain), vec![listener], running),
                    false => start.fabric(Verbs(domain), vec![listener], running),
                }
            }));
        }
        let name = record_name(&plan, port, keeps.unwrap_or_default());
        let path = incarnation::place(&name);
        let begin = |lease| IncarnationFile::begin(&path, lease, rand::random());
        let incarnation_file = if plan.places.iter().any(Place::pins) {
            Some(begin(plan.lease).map_err(|error| format!("--fabric: {error}"))?)
        } else if keeps.is_some() || path.exists() {
            // The server before may have offered devices all the same. One that has the file now lives, and has another address.
            // Where the file cannot be this user's, no server of this user's has offered devices. This one offers none: if it is killed,
            // nothing serves its leases any more.
            match begin(Duration::ZERO) {
                Err(error) if keeps.is_some() => {
                    log::print(format_args!("-e FILE: {error}; the next start is empty"));
                    None
                }
                begun => begun.ok(),
            }
        } else {
            None
        };
        let incarnation =
            incarnation_file.as_ref().map_or_else(|| rand::random::<u32>().max(1), IncarnationFile::incarnation);
        Ok(Self { plan, fabrics, datagrams, memory, incarnation_file, incarnation, name, said })
    }

    /// Returns the name of this address's record, and what the server before left there, if there can be a record.
    pub(crate) fn record(&self) -> (&str, Option<Predecessor>) {
        (&self.name, self.incarnation_file.as_ref().map(IncarnationFile::predecessor))
    }

    /// Returns which run of the server this is: every header and every tag carries it.
    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Waits until no client relies on what a server with RDMA devices before this one told it; returns whether this one may serve, or `ends`
    /// came first.
    ///
    /// # Errors
    ///
    /// The file cannot be written by which the next server will know of this one.
    pub(crate) fn wait(&mut self, ends: impl Fn() -> bool) -> Result<bool, String> {
        let Some(incarnation_file) = &mut self.incarnation_file else { return Ok(true) };
        if !incarnation_file.wait().is_zero() {
            let before = match incarnation_file.predecessor() {
                Predecessor::Unreadable => {
                    format!("{} makes no sense, so the longest lease is taken", incarnation_file.path().display())
                }
                _ => "the server before did not end as it should, or not in time".to_owned(),
            };
            log::print(format_args!(
                "{before}: its clients may rely on their leases for another {:.1?}: no client is served before",
                incarnation_file.wait()
            ));
        }
        while !incarnation_file.wait().is_zero() {
            if ends() {
                return Ok(false);
            }
            std::thread::sleep(incarnation_file.wait().min(LOOK));
        }
        incarnation_file.serve().map_err(|error| error.to_string())?;
        Ok(true)
    }

    /// Ends instead of a [start](Self::start): nothing was exposed.
    pub(crate) fn withdraw(mut self) {
        if let Some(Err(error)) = self.incarnation_file.take().map(IncarnationFile::end) {
            log::print(format_args!("{error}; the next server will wait"));
        }
    }

    /// Returns the maker of memory for the stores, if it has to be a fabric's.
    pub(crate) fn memory(&self) -> Option<impl FnMut(usize) -> io::Result<Memory> + use<>> {
        let domain = self.memory.clone()?;
        Some(move |bytes| {
            let arena = domain.arena(bytes, Sharing::Readable).map_err(io::Error::other)?;
            let base = NonNull::new(arena.as_ptr()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
            let bytes = arena.len();
            #[expect(unsafe_code, reason = "the arena is the store's from now on")]
            // SAFETY: the arena is new and all zeros, begins with a page, and is mapped as long as it is not dropped. Peers
            // can read it only, and no code of this process gets a buffer of it.
            Ok(unsafe { Memory::new(base, bytes, Box::new(arena)) })
        })
    }

    /// Begins to serve. `first` is the first free place for counts, and those behind it are free too. Returns what has begun, to be
    /// [ended](Running::end), and the resource that could not be had, if there is one, with the remedy.
    pub(crate) fn start(self, shared: &Arc<Shared>, first: usize) -> (Running, Result<(), String>) {
        let Self { plan, fabrics, datagrams, incarnation_file, incarnation, memory, .. } = self;
        let incarnation_file = Arc::new(Mutex::new(incarnation_file));
        let (listeners, reapers, fabrics_of) = (Vec::new(), Vec::new(), Vec::new());
        let mut running = Running { listeners, reapers, fabrics: fabrics_of, incarnation_file, far: None };
        let threads = first + FABRICS + plan.connections;
        let hybrid = plan.slots.map(|slots| Hybrid::new(slots, plan.timeout, clock::nanos()));
        let terms = (&plan, incarnation, &hybrid);
        let started = start_datagrams(datagrams, terms, (shared, threads), &mut running);
        if fabrics.is_empty() || started.is_err() {
            return (running, started);
        }
        if let Some(Err(error)) = plan.far.clone().map(|far| running.offer_far(far, memory)) {
            return (running, Err(error));
        }
        let arenas = Arc::new(Arenas::of(&shared.shards));
        let start = Start {
            plan: &plan,
            shared,
            arenas,
            incarnation,
            registered: plan.registered / fabrics.len() as u64 / PAGE * PAGE,
            pin: plan.pin,
            hybrid,
            first,
            seats: Seats::new(first + FABRICS, plan.connections),
        };
        let started = fabrics.into_iter().try_for_each(|begin| begin(&start, &mut running));
        (running, started)
    }
}

/// Returns the device by which the address is reached. Its clients are to be kept to what they were told of, unless it was
/// asked to be otherwise: then windows, which cost something, are not used where there are any.
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
fn device(address: &VerbsAddress, plan: &Plan) -> Result<VerbsDomain, String> {
    let text = address.to_string();
    let options = VerbsOptions { windows: !plan.exposes, stall: plan.timeout, ..VerbsOptions::default() };
    let domain = VerbsDomain::reaching(&text, options).map_err(|error| error.to_string())?;
    if plan.exposes {
        return Ok(domain);
    }
    let name = domain.device();
    let why = match verbs::try_windows(&domain, &text) {
        Ok(WindowTrial::Holds) => return Ok(domain),
        Ok(WindowTrial::Absent) => format!("the device {name:?} has no memory windows"),
        Ok(WindowTrial::Fails { what }) => format!("the memory windows of the device {name:?} do not hold ({what})"),
        Err(error) => format!("whether the memory windows of the device {name:?} hold could not be tried ({error})"),
    };
    Err(format!(
        "{why}: its keys open whatever memory is registered, not only items that a client was told of; say --expose slab if \
         that may be, or use iwarp:HOST:PORT"
    ))
}

/// The time for looking up the name of this machine's own address.
const RESOLVE: Duration = Duration::from_secs(5);

/// Opens the sockets of an address for datagrams.
fn open_udp(
    address: &UdpAddress,
    plan: &Plan,
    tcp: Option<u16>,
    said: &mut Vec<String>,
) -> Result<Vec<UdpPort>, UdpError> {
    let mut error = None;
    for at in address.resolve(RESOLVE)? {
        match UdpPort::listen(at, plan.datagram_threads, ServerLimits::default().format.datagram) {
            Ok(ports) => {
                said.extend(sent_to(datagrams::UDP, ports[0].local_address()?, tcp));
                return Ok(ports);
            }
            Err(why) => error = Some(why),
        }
    }
    Err(error.unwrap_or_else(|| UdpError::Address { text: address.to_string() }))
}

/// Opens the queue pairs of an address for datagrams.
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
fn open_verbs_ud(
    address: &VerbsUdAddress,
    plan: &Plan,
    tcp: Option<u16>,
    said: &mut Vec<String>,
) -> Result<Vec<VerbsUdPort>, verbs::VerbsError> {
    let ports = VerbsUdPort::listen(address, plan.datagram_threads, RESOLVE)?;
    said.extend(ports.first().map(|port| sent_to(datagrams::VERBS_UD, port.address(), tcp)).into_iter().flatten());
    Ok(ports)
}

/// The start-up lines of an address for datagrams.
fn sent_to(name: &str, at: SocketAddr, tcp: Option<u16>) -> [String; 3] {
    let socket = tcp.map_or_else(String::new, |port| format!(",tcp:HOST:{port}"));
    [
        format!("listening on {name}:{at}"),
        "clients there send datagrams, and read no memory".to_owned(),
        format!("clients reach it by -s {name}:HOST:{}{socket}", at.port()),
    ]
}

/// Starts the threads that serve datagrams; their counts have the places from `first` on. All threads of an address share its bounds.
fn start_datagrams(
    datagrams: Vec<Ports>,
    (plan, incarnation, hybrid): (&Plan, u32, &Option<Arc<Hybrid>>),
    (shared, first): (&Arc<Shared>, usize),
    running: &mut Running,
) -> Result<(), String> {
    let (whole, threads) = (ServerLimits::default(), plan.datagram_threads);
    let limits = ServerLimits {
        clients: plan.datagram_clients.div_ceil(threads),
        buffers: (whole.buffers / threads).max(LEAST_POOL),
        replies: (whole.replies / threads).max(LEAST_POOL),
        references: (whole.references / threads).max(LEAST_POOL),
        ..whole
    };
    for (at, ports) in datagrams.into_iter().enumerate() {
        let (name, format) = ports.kind(limits.format);
        let limits = ServerLimits { format, ..limits };
        let terms = datagrams::Terms { name, incarnation, eager: plan.eager(name), limits };
        let state = Arc::new(DatagramState::new(shared.clone(), terms, hybrid.clone()));
        running.fabrics.push(state.clone());
        let (first, threads) = (first + at * threads, &mut running.listeners);
        let started = match ports {
            Ports::Udp(ports) => datagrams::start(&state, ports, first, threads),
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            Ports::Verbs(ports) => datagrams::start(&state, ports, first, threads),
        };
        started.map_err(|error| format!("--fabric {name}: starting a thread: {error}"))?;
    }
    Ok(())
}

impl Ports {
    /// Returns the fabric's name, and the form of its datagrams. Devices check what they carry by themselves.
    fn kind(&self, format: Format) -> (&'static str, Format) {
        match self {
            Self::Udp(_) => (datagrams::UDP, format),
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            Self::Verbs(ports) => {
                let datagram = ports.first().map_or(format.datagram, DatagramPort::part);
                (datagrams::VERBS_UD, Format { datagram, check: false })
            }
        }
    }
}

/// The least bytes of a thread's pool: an eighth of it is one client's, and has room for one message of the longest.
const LEAST_POOL: usize = 10 << 20;

/// The line on what clients can read if they are kept to their grants.
const ONLY_ITEMS: &str = "each client there can read the items that it was told of, and no others";

/// Returns why an address is refused. Some of the errors begin with the address.
fn refusal(address: &impl Display, error: &impl Display) -> String {
    let (address, error) = (address.to_string(), error.to_string());
    let why = error.strip_prefix(&address).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&error);
    format!("--fabric {address}: {why}")
}

/// Listens at a place on the network. The start-up lines have where that is, what clients can `read` there, and what a client on
/// another machine types: the address that is listened on is often none that can be asked.
fn listen<C: Connector>(
    domain: &C,
    address: &C::Address,
    read: &str,
    tcp: Option<u16>,
    said: &mut Vec<String>,
) -> Result<C::Listener, String> {
    let listener = domain.listen_at(&address.to_string()).map_err(|error| refusal(address, &error))?;
    let place = listener.place();
    let (fabric, at) = place.split_once(':').unwrap_or_default();
    let port = at.rsplit(':').next().unwrap_or_default();
    let socket = tcp.map_or_else(String::new, |port| format!(",tcp:HOST:{port}"));
    said.push(format!("listening on {place}"));
    said.push(read.to_owned());
    said.push(format!("clients reach it by -s {fabric}:HOST:{port}{socket}"));
    Ok(listener)
}

fn readable(address: &ShmAddress) -> [String; 2] {
    [format!("listening on {address}"), "clients there are processes of this user, and can read every item".into()]
}

/// From now on the stores list items in the table, at places that follow each other as the arenas do.
fn list_in(table: &Table, shared: &Shared, arenas: &[(u64, u64)]) {
    let mut base = 0;
    for (shard, (_, bytes)) in arenas.iter().enumerate() {
        shared.shards.at(shard).list_in(table.shared().clone(), base);
        base += bytes;
    }
}

/// Keys that shared memory needs: one for each chunk that is leased or was a while ago, and for each lane of a region.
fn keys(plan: &Plan) -> u64 {
    let of_far = plan.far.as_ref().map_or(0, |far| u64::from(far.regions) * LANES);
    (plan.registered / PAGE + of_far).clamp(8192, KEYS)
}

fn listen_shm<'a>(
    shm: &'a mut Option<(ShmDomain, Vec<ShmListener>)>,
    address: &ShmAddress,
    plan: &Plan,
) -> Result<&'a ShmListener, ShmError> {
    let domain = match &*shm {
        Some((domain, _)) => domain.clone(),
        None => ShmDomain::new(ShmOptions {
            keys: keys(plan) as usize,
            arenas: ARENAS,
            connections: plan.connections + plan.connections / 4 + 8,
            // Arenas are open for good, and a client that stops while it is at one holds nothing that would be let go otherwise. Each is
            // at one registration at a time.
            quarantine: u64::MAX,
            ..ShmOptions::default()
        })?,
    };
    let listener = ShmListener::bind(&domain, address)?;
    let (_, listeners) = shm.get_or_insert_with(|| (domain, Vec::new()));
    listeners.push(listener);
    Ok(&listeners[listeners.len() - 1])
}

/// The arguments with which every fabric is started.
#[derive(Clone)]
struct Start<'a> {
    plan: &'a Plan,
    shared: &'a Arc<Shared>,
    arenas: Arc<Arenas>,
    incarnation: u32,
    /// Bytes that may be registered with each.
    registered: u64,
    pin: bool,
    /// Which clients get connections over a network, if not those that come first.
    hybrid: Option<Arc<Hybrid>>,
    first: usize,
    seats: Arc<Seats>,
}

impl Start<'_> {
    fn shm(&self, domain: ShmDomain, listeners: Vec<ShmListener>, running: &mut Running) -> Result<(), String> {
        let Self { plan, shared, .. } = *self;
        let places = self.arenas.places();
        let failed = |error| format!("--fabric shm: {error}");
        // Memory that has to be pinned is read by tags, which know what is.
        let table = match plan.pin {
            true => None,
            false => Table::new(&domain, &places, plan.memory, plan.lease).map_err(failed)?,
        };
        if let Some(table) = &table {
            list_in(table, shared, &places);
        }
        let fabric = Shm::new(domain, &places, plan.lease, keys(plan) as usize / 2, table).map_err(failed)?;
        self.fabric(fabric, listeners, running)
    }

    fn fabric<F: Fabric>(
        &self,
        fabric: F,
        listeners: Vec<impl Listener<Endpoint = F::Endpoint>>,
        running: &mut Running,
    ) -> Result<(), String> {
        let name = F::NAME;
        let terms = Terms {
            incarnation: self.incarnation,
            lease: self.plan.lease,
            eager: self.plan.eager(name),
            transfers_from: self.plan.transfers_from(name),
            registered: self.registered,
            far: self.plan.far.as_ref().map_or(0, FarPlan::bytes),
            policy: self.plan.policy,
        };
        let pins = if self.pin {
            let pins = Pins::new(terms.registered / PAGE).map_err(|error| format!("--pin: {error}"))?;
            if let Some(pages) = pins.pages().filter(|&pages| pages < terms.registered / PAGE) {
                log::print(format_args!(
                    "--pin: {} MiB may be pinned of the {} MiB of --registered-memory that {name} has; raise ulimit -l",
                    (pages * PAGE) >> 20,
                    terms.registered >> 20
                ));
            }
            Some(pins)
        } else {
            None
        };
        let far = running.far.as_ref().map(|(far, _)| far.clone());
        let hybrid = self.hybrid.clone().filter(|_| name != Shm::NAME);
        let state =
            FabricState::new(fabric, self.shared.clone(), self.arenas.clone(), terms, pins, far.clone(), hybrid);
        let state = Arc::new(state.map_err(|error| format!("--fabric {name}: {error}"))?);
        if let Some(far) = &far {
            let state: Arc<dyn Closes> = state.clone();
            far.attach(Arc::downgrade(&state));
        }
        self.shared.shards.each(|store| store.attach(Box::new(Exposed(Arc::downgrade(&state)))));
        let thread = |error| format!("--fabric {name}: starting a thread: {error}");
        let seat = self.first + running.fabrics.len();
        // Before its threads: they end with it.
        running.fabrics.push(state.clone());
        running.reapers.push(reaper::start(state.clone(), seat).map_err(thread)?);
        for listener in listeners {
            running.listeners.push(listener::start(state.clone(), listener, self.seats.clone()).map_err(thread)?);
        }
        Ok(())
    }
}

/// The threads that serve clients over fabrics.
pub(crate) struct Running {
    listeners: Vec<JoinHandle<()>>,
    reapers: Vec<JoinHandle<()>>,
    fabrics: Vec<Arc<dyn Reported>>,
    incarnation_file: Arc<Mutex<Option<IncarnationFile>>>,
    /// Far memory, and the thread that frees it.
    far: Option<(Arc<Far>, JoinHandle<()>)>,
}

impl Running {
    /// Offers far memory, in files of the domain whose peers are passed them.
    fn offer_far(&mut self, plan: FarPlan, domain: Option<ShmDomain>) -> Result<(), String> {
        // Without clients over shared memory no peer is passed anything.
        let domain = match domain {
            Some(domain) => domain,
            None => ShmDomain::new(ShmOptions { arenas: ARENAS, ..ShmOptions::default() })
                .map_err(|error| format!("--far: {error}"))?,
        };
        let far = Arc::new(Far::new(plan, domain));
        let thread = far.start().map_err(|error| format!("--far: starting a thread: {error}"))?;
        self.far = Some((far, thread));
        Ok(())
    }

    /// Returns far memory, to report on.
    pub(crate) fn far(&self) -> Option<Arc<dyn FarReported>> {
        let (far, _) = self.far.as_ref()?;
        Some(far.clone())
    }

    /// Returns the fabrics, to report on.
    pub(crate) fn fabrics(&self) -> &[Arc<dyn Reported>] {
        &self.fabrics
    }

    /// Returns what is to be done once a second. The next server hears of this one by a record. If that was removed, it is written again.
    pub(crate) fn upkeep(&self) -> impl FnMut() + Send + 'static + use<> {
        let (incarnation_file, mut is_reported) = (self.incarnation_file.clone(), false);
        move || {
            let mut file = incarnation_file.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Err(error)) = file.as_mut().map(IncarnationFile::tick)
                && !std::mem::replace(&mut is_reported, true)
            {
                log::print(error);
            }
        }
    }

    /// Connections at present.
    pub(crate) fn connections(&self) -> u64 {
        self.fabrics.iter().map(|fabric| fabric.gauges().connections).sum()
    }

    /// The end, after the server was told to stop. When this returns, no client can read any item any more. `last` is called when items
    /// do not change any more, and are still there.
    pub(crate) fn end(self, shards: &Shards, last: impl FnOnce()) {
        for listener in self.listeners {
            let _ = listener.join();
        }
        if let Some((far, thread)) = self.far {
            far.stop();
            let _ = thread.join();
        }
        last();
        shards.each(|store| store.close(clock::now()));
        for fabric in &self.fabrics {
            fabric.end();
        }
        for reaper in self.reapers {
            let _ = reaper.join();
        }
        // Only now: the next server need not wait.
        let incarnation_file = self.incarnation_file.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = incarnation_file.map(IncarnationFile::end) {
            log::print(format_args!("{error}; the next server will wait"));
        }
    }
}

/// Returns the name under which servers of this address hear of each other. Without a port and fabrics it is `other`.
fn record_name(plan: &Plan, port: Option<u16>, other: &str) -> String {
    let first = |place: &Place| match place {
        Place::ShmOfPort => String::new(),
        Place::Shm(address) => address.to_string(),
        Place::Iwarp(address) => address.to_string(),
        #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
        Place::Verbs(address) => address.to_string(),
        Place::Udp(address) => address.to_string(),
        #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
        Place::VerbsUd(address) => address.to_string(),
    };
    let name = match port {
        Some(port) => port.to_string(),
        None => plan.places.first().map(first).filter(|name| !name.is_empty()).unwrap_or_else(|| other.to_owned()),
    };
    let name = name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    format!("rdmakv-{name}")
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn a_refusal_has_the_address_once() {
        let place = "iwarp:10.0.0.1:7471";
        let wanted = "--fabric iwarp:10.0.0.1:7471: the port is in use";
        assert_eq!(refusal(&place, &"iwarp:10.0.0.1:7471: the port is in use"), wanted);
        assert_eq!(refusal(&place, &"the port is in use"), wanted);
    }
}
