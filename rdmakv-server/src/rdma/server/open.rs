//! From the plan to listeners, and from these to threads; and how all of it ends.
//!
//! Sockets come first, so that what cannot be had is said before anything else is done, and with them the file by which
//! servers hear of their predecessors; then the stores, in memory that the fabrics made. Then leases that a predecessor may have
//! left are waited for, and nobody is served meanwhile, over whatever face. Then the threads.

use std::io;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use frrwp::fabric::iwarp::{IwarpDomain, IwarpListener, IwarpOptions};
use frrwp::fabric::shm::{Sharing, ShmAddress, ShmDomain, ShmError, ShmListener, ShmOptions};
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
use frrwp::fabric::verbs::{VerbsAddress, VerbsDomain, VerbsListener, VerbsOptions, WindowTrial};
use mrrc::PAGE;

use super::arenas::Arenas;
use super::counts::Reported;
use super::fabrics::iwarp::Iwarp;
use super::fabrics::shm::Shm;
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
use super::fabrics::verbs::Verbs;
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
use super::fabrics::windows::Windowed;
use super::fabrics::{Door, Fabric};
use super::face::{Face, Terms};
use super::grants::Exposed;
use super::life::{self, LifeError, LifeFile};
use super::listener::{self, Seats};
use super::options::{Place, Plan};
use super::pinned::Pins;
use super::predecessor::Predecessor;
use super::reaper;
use crate::server::{clock, trace};
use crate::session::{Shards, Shared};
use crate::store::Memory;

/// Keys of shared memory at most; each has a slot in a table that clients see.
const KEYS: u64 = 1 << 18;
/// Stores at most that have an arena each.
const ARENAS: usize = 4096;

/// How often somebody who waits looks whether the server is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Fabrics at most: each has a place for counts of its own.
pub(crate) const FABRICS: usize = 8;

/// What was opened.
pub(crate) struct Opened {
    plan: Plan,
    shm: Option<(ShmDomain, Vec<ShmListener>)>,
    iwarp: Option<(IwarpDomain, Vec<IwarpListener>)>,
    /// Each may be another device's.
    #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
    verbs: Vec<(VerbsDomain, VerbsListener)>,
    life: Option<LifeFile>,
    /// Where it listens, and what clients can read there: for the start-up lines.
    pub(crate) said: Vec<String>,
}

impl Opened {
    /// Opens what the plan asks for. `port` is the one beside which clients look for shared memory, and fall back to where it
    /// is `plain`.
    ///
    /// # Errors
    ///
    /// What could not be opened, why, and what would help.
    pub(crate) fn open(plan: Plan, port: Option<u16>, plain: bool) -> Result<Self, String> {
        let beside = port.filter(|_| plain);
        let (mut shm, mut iwarp, mut said) = (None, None, Vec::new());
        #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
        let mut verbs = Vec::new();
        let by_default = matches!(plan.places[..], [Place::ShmOfPort]);
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
                        Err(ShmError::InUse { .. }) => trace::say(format_args!(
                            "{name} is another server's: none over shared memory; --fabric shm:@NAME chooses another name, \
                             --fabric none does without"
                        )),
                        Err(error) => return Err(format!("{name}: {error}; --fabric none does without")),
                    }
                }
                Place::Iwarp(address) => {
                    let wrong = |error: &dyn std::fmt::Display| format!("--fabric {address}: {error}");
                    let (domain, doors) = match &mut iwarp {
                        Some(there) => there,
                        none => {
                            let domain = IwarpDomain::new(IwarpOptions {
                                passive: true,
                                checksums: false,
                                stall: plan.patience,
                                ..IwarpOptions::default()
                            })
                            .map_err(|error| wrong(&error))?;
                            none.insert((domain, Vec::new()))
                        }
                    };
                    let door = domain.listen(&address.to_string()).map_err(|error| wrong(&error))?;
                    let local = door.address().map_err(|error| wrong(&error))?;
                    said.push(format!("listening on iwarp:{local}"));
                    said.push("each client there can read the items that it was told of, and no others".into());
                    said.push(reached("iwarp", local.port(), beside));
                    doors.push(door);
                }
                #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
                Place::Verbs(address) => {
                    let wrong = |error: &dyn std::fmt::Display| format!("--fabric {address}: {error}");
                    let domain = device(address, &plan).map_err(|error| wrong(&error))?;
                    let door = domain.listen(&address.to_string()).map_err(|error| wrong(&error))?;
                    let local = door.address().map_err(|error| wrong(&error))?;
                    said.push(format!("listening on verbs:{local}"));
                    said.push(match domain.has_windows() {
                        true => "each client there can read the items that it was told of, and no others (memory windows)",
                        false => "each client there can read whatever memory is registered (--expose slab)",
                    }.into());
                    said.push(reached("verbs", local.port(), beside));
                    verbs.push((domain, door));
                }
            }
        }
        let mut life = None;
        if said.is_empty() {
            // The server before may have told its clients something all the same.
            let there = life_place(&plan, port).ok().filter(|path| path.exists());
            life = there.and_then(|path| LifeFile::begin(&path, plan.lease, rand::random()).ok());
        } else {
            match take_life(&plan, port) {
                Ok(taken) => life = Some(taken),
                // Nobody asked for it.
                Err(error) if by_default => {
                    trace::say(format_args!("{error}: none over shared memory"));
                    (shm, said) = (None, Vec::new());
                }
                Err(error) => return Err(format!("--fabric: {error}")),
            }
        }
        Ok(Self {
            plan,
            shm,
            iwarp,
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            verbs,
            life,
            said,
        })
    }

    /// How many there are.
    fn fabrics(&self) -> usize {
        let verbs = {
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            {
                self.verbs.len()
            }
            #[cfg(not(any(feature = "verbs", feature = "verbs-linked")))]
            {
                0
            }
        };
        usize::from(self.shm.is_some()) + usize::from(self.iwarp.is_some()) + verbs
    }

    /// Which life of the server this is, where that matters to anybody.
    pub(crate) fn incarnation(&self) -> Option<u32> {
        self.life.as_ref().map(LifeFile::incarnation)
    }

    /// Waits until no client relies on what a server before this one told him; says whether it may serve, or `ends` came first.
    ///
    /// # Errors
    ///
    /// The file cannot be written by which the next server will know of this one.
    pub(crate) fn wait(&mut self, ends: impl Fn() -> bool) -> Result<bool, String> {
        let Some(life) = &mut self.life else { return Ok(true) };
        if !life.wait().is_zero() {
            let before = match life.predecessor() {
                Predecessor::Unreadable => {
                    format!("{} makes no sense, so the longest lease is taken", life.path().display())
                }
                _ => "the server before did not end as it should, or not in time".to_owned(),
            };
            trace::say(format_args!(
                "{before}: its clients may rely on what they were told for another {:.1?}; nobody is served before",
                life.wait()
            ));
        }
        while !life.wait().is_zero() {
            if ends() {
                return Ok(false);
            }
            std::thread::sleep(life.wait().min(LOOK));
        }
        life.serve().map_err(|error| error.to_string())?;
        Ok(true)
    }

    /// What makes memory for the stores, if it has to be a fabric's.
    pub(crate) fn memory(&self) -> Option<impl FnMut(usize) -> io::Result<Memory> + use<>> {
        let domain = self.shm.as_ref().map(|(domain, _)| domain.clone())?;
        Some(move |bytes| {
            let arena = domain.arena(bytes, Sharing::Readable).map_err(io::Error::other)?;
            let base = NonNull::new(arena.as_ptr()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
            let bytes = arena.len();
            #[expect(unsafe_code, reason = "the arena is the store's from now on")]
            // SAFETY: the arena is new and all zeros, begins with a page, and is mapped as long as it is not dropped. Peers
            // can read it only, and nobody of this process is given a buffer of it.
            Ok(unsafe { Memory::new(base, bytes, Box::new(arena)) })
        })
    }

    /// Begins to serve. `first` is the first place for counts that is nobody's, and those behind it.
    ///
    /// # Errors
    ///
    /// What could not be had, and what would help.
    pub(crate) fn start(self, shared: &Arc<Shared>, first: usize) -> Result<Running, String> {
        let fabrics = self.fabrics();
        let Self { plan, shm, iwarp, life, .. } = self;
        let incarnation = life.as_ref().map_or(0, LifeFile::incarnation);
        let life = Arc::new(Mutex::new(life));
        let mut running = Running { doors: Vec::new(), reapers: Vec::new(), fabrics: Vec::new(), life: life.clone() };
        if fabrics == 0 {
            return Ok(running);
        }
        let arenas = Arc::new(Arenas::of(&shared.shards));
        let start = Start {
            plan: &plan,
            shared,
            arenas,
            incarnation,
            registered: plan.registered / fabrics as u64 / PAGE * PAGE,
            pin: plan.pin,
            first,
            life,
            seats: Seats::new(first + FABRICS, plan.connections),
        };
        if let Some((domain, doors)) = shm {
            let places = start.arenas.places();
            let keys = keys(&plan) as usize / 2;
            let fabric =
                Shm::new(domain, &places, plan.lease, keys).map_err(|error| format!("--fabric shm: {error}"))?;
            start.fabric(fabric, doors, &mut running)?;
        }
        if let Some((domain, doors)) = iwarp {
            start.fabric(Iwarp::new(domain, shared.settings.item_max), doors, &mut running)?;
        }
        #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
        for (domain, door) in self.verbs {
            // Devices pin by themselves.
            let start = Start { pin: false, ..start.clone() };
            match domain.has_windows() {
                true => start.fabric(Windowed(domain), vec![door], &mut running)?,
                false => start.fabric(Verbs(domain), vec![door], &mut running)?,
            }
        }
        Ok(running)
    }
}

/// The device by which the address is reached. Its clients are to be kept to what they were told of, unless it was asked to be
/// otherwise: then windows, which cost something, are not used where there are any.
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
fn device(address: &VerbsAddress, plan: &Plan) -> Result<VerbsDomain, String> {
    let text = address.to_string();
    let options = VerbsOptions { windows: !plan.exposes, stall: plan.patience, ..VerbsOptions::default() };
    let domain = VerbsDomain::reaching(&text, options).map_err(|error| error.to_string())?;
    if plan.exposes {
        return Ok(domain);
    }
    let name = domain.device();
    let why = match domain.try_windows(&text) {
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

/// What a client on another machine types. The address that is listened on is often none that can be asked.
fn reached(fabric: &str, at: u16, tcp: Option<u16>) -> String {
    let socket = tcp.map_or_else(String::new, |port| format!(",tcp:HOST:{port}"));
    format!("clients reach it by -s {fabric}:HOST:{at}{socket}")
}

fn readable(address: &ShmAddress) -> [String; 2] {
    [format!("listening on {address}"), "clients there, of this user, can read every item".into()]
}

/// Keys that shared memory needs: one for each chunk that is leased or was a while ago.
fn keys(plan: &Plan) -> u64 {
    (plan.registered / PAGE).clamp(8192, KEYS)
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
            ..ShmOptions::default()
        })?,
    };
    let listener = ShmListener::bind(&domain, address)?;
    let (_, doors) = shm.get_or_insert_with(|| (domain, Vec::new()));
    doors.push(listener);
    Ok(&doors[doors.len() - 1])
}

/// What every fabric is started with.
#[derive(Clone)]
struct Start<'a> {
    plan: &'a Plan,
    shared: &'a Arc<Shared>,
    arenas: Arc<Arenas>,
    incarnation: u32,
    /// Bytes that may be registered with each.
    registered: u64,
    pin: bool,
    first: usize,
    life: Arc<Mutex<Option<LifeFile>>>,
    seats: Arc<Seats>,
}

impl Start<'_> {
    fn fabric<F: Fabric>(&self, fabric: F, doors: Vec<impl Door<F>>, running: &mut Running) -> Result<(), String> {
        let name = F::NAME;
        let terms = Terms {
            incarnation: self.incarnation,
            lease: self.plan.lease,
            eager: self.plan.eager(name),
            registered: self.registered,
            policy: self.plan.policy,
        };
        let pins = if self.pin {
            let pins = Pins::new(terms.registered / PAGE).map_err(|error| format!("--pin: {error}"))?;
            if let Some(pages) = pins.pages().filter(|&pages| pages < terms.registered / PAGE) {
                trace::say(format_args!(
                    "--pin: {} MB may be pinned of the {} MB of --registered-memory that {name} has; raise ulimit -l",
                    (pages * PAGE) >> 20,
                    terms.registered >> 20
                ));
            }
            Some(pins)
        } else {
            None
        };
        let face = Face::new(fabric, self.shared.clone(), self.arenas.clone(), terms, pins);
        let face = Arc::new(face.map_err(|error| format!("--fabric {name}: {error}"))?);
        self.shared.shards.each(|store| store.attach(Box::new(Exposed(Arc::downgrade(&face)))));
        let thread = |error| format!("--fabric {name}: starting a thread: {error}");
        let life = self.life.clone();
        let tend = move || life.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map_or(Ok(()), LifeFile::tend);
        let seat = self.first + running.fabrics.len();
        running.reapers.push(reaper::start(face.clone(), seat, tend).map_err(thread)?);
        for door in doors {
            running.doors.push(listener::start(face.clone(), door, self.seats.clone()).map_err(thread)?);
        }
        running.fabrics.push(face);
        Ok(())
    }
}

/// What serves clients over fabrics.
pub(crate) struct Running {
    doors: Vec<JoinHandle<()>>,
    reapers: Vec<JoinHandle<()>>,
    fabrics: Vec<Arc<dyn Reported>>,
    life: Arc<Mutex<Option<LifeFile>>>,
}

impl Running {
    /// The fabrics, to report on.
    pub(crate) fn fabrics(&self) -> &[Arc<dyn Reported>] {
        &self.fabrics
    }

    /// Connections at present.
    pub(crate) fn connections(&self) -> u64 {
        self.fabrics.iter().map(|fabric| fabric.gauges().connections).sum()
    }

    /// The end, after the server was told to stop. When this returns no item can be read any more by who was told of it.
    pub(crate) fn end(self, shards: &Shards) {
        for door in self.doors {
            let _ = door.join();
        }
        shards.each(|store| store.close(clock::now()));
        for fabric in &self.fabrics {
            fabric.end();
        }
        for reaper in self.reapers {
            let _ = reaper.join();
        }
        // Only now: the next server need not wait.
        let life = self.life.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = life.map(LifeFile::end) {
            trace::say(format_args!("{error}; the next server will wait"));
        }
    }
}

fn take_life(plan: &Plan, port: Option<u16>) -> Result<LifeFile, LifeError> {
    LifeFile::begin(&life_place(plan, port)?, plan.lease, rand::random())
}

/// The file by which servers of this name hear of each other.
fn life_place(plan: &Plan, port: Option<u16>) -> Result<PathBuf, LifeError> {
    let first = |place: &Place| match place {
        Place::ShmOfPort => String::new(),
        Place::Shm(address) => address.to_string(),
        Place::Iwarp(address) => address.to_string(),
        #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
        Place::Verbs(address) => address.to_string(),
    };
    let name = match port {
        Some(port) => port.to_string(),
        None => plan.places.first().map(first).unwrap_or_default(),
    };
    let name = name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    let socket = plan.places.iter().find_map(|place| match place {
        Place::Shm(address) => address.path(),
        _ => None,
    });
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    life::place(&format!("rdmakv-{name}"), runtime.as_deref(), socket, &std::env::temp_dir())
}
