//! Connecting and listening: from an address to an endpoint.
//!
//! Each step has an event to wait for, with a time at which it is given up: an answer from who has the address, the way there,
//! the peer's yes. Of a listener, peers whose connection does not come to stand hold nobody back.

#![expect(unsafe_code, reason = "identifiers come with events")]

use super::VerbsDomain;
use super::address::VerbsAddress;
use super::device::device_name;
use super::domain::{cannot_manage, resolved};
use super::endpoint::{SPARE, VerbsEndpoint};
use super::error::VerbsError;
use super::manager::{Channel, Event, Id, kind};
use super::pair::Pair;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Connections that are being set up at a time.
const EMBRYOS: usize = 256;
/// Connections that the kernel keeps until they are looked at.
const BACKLOG: i32 = 128;
/// How long a listener sleeps while connections are being set up: a message may come before it is told that one stands.
const NAP: Duration = Duration::from_millis(20);
/// How long it sleeps otherwise: that the device goes, nobody tells who listens at 0.0.0.0.
const LOOK: Duration = Duration::from_secs(1);
/// Receives that a connection has room for at least.
const ROOM: u32 = 64;
/// The reason for which InfiniBand's connection manager says that nobody listens, and that who listens does not want to.
const NOBODY: libc::c_int = 8;
const UNWANTED: libc::c_int = 28;

/// Where an endpoint was connected to, and how.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) address: VerbsAddress,
    pub(super) receives: u16,
}

impl VerbsDomain {
    /// Connects to a listener, with so many receives posted.
    ///
    /// Over siw the system's own time-out for TCP connections may come before that of [`VerbsOptions::set_up`](super::VerbsOptions::set_up): it
    /// connects within the call.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn connect(&self, address: &str, receives: u16) -> Result<VerbsEndpoint, VerbsError> {
        let address: VerbsAddress = address.parse()?;
        let until = Instant::now() + self.0.options.set_up;
        let mut failed = None;
        for found in address.resolve()? {
            match self.reach(&address, found, receives, until) {
                Ok(endpoint) => return Ok(endpoint),
                Err(error) => _ = failed.get_or_insert(error),
            }
        }
        Err(failed.unwrap_or(VerbsError::NoWay { address: address.to_string(), what: "connect" }))
    }

    fn reach(
        &self,
        address: &VerbsAddress,
        found: SocketAddr,
        receives: u16,
        until: Instant,
    ) -> Result<VerbsEndpoint, VerbsError> {
        let able = self.0.able;
        let name = || address.to_string();
        let system = |what| move |error| VerbsError::System { address: address.to_string(), what, error };
        let channel = Channel::new().map_err(|error| cannot_manage(address, error))?;
        let id = resolved(&channel, address, found, until, &self.0.options)?;
        self.is_own(address, &id)?;
        let left = || until.saturating_duration_since(Instant::now());
        let timed_out = |what| VerbsError::TimedOut { address: name(), what, after: self.0.options.set_up };
        id.resolve_route(left()).map_err(system("look for the route"))?;
        match channel.wait(until) {
            Some(event) if event.kind == kind::RDMA_CM_EVENT_ROUTE_RESOLVED => {}
            Some(event) => {
                return Err(VerbsError::Unreachable {
                    address: name(),
                    what: "look for the route",
                    error: event.error(),
                });
            }
            None => return Err(timed_out("route")),
        }
        if !able.iwarp {
            id.set_patience(patience(self.0.options.stall));
        }
        let sizes = self.sizes(receives);
        let mut pair = Pair::new(self, id, (sizes.0 + SPARE, sizes.1)).map_err(system("make a queue pair"))?;
        pair.events = Some(channel);
        let way = Way { address: address.clone(), receives };
        let mut endpoint = VerbsEndpoint::new(self, pair, sizes, receives, Some(way))
            .map_err(system("register and post the connection's receives"))?;
        let Some(pair) = &endpoint.pair else { return Err(VerbsError::Hung { address: name() }) };
        let reads = (able.answered.min(self.0.options.reads), able.under_way.min(self.0.options.reads));
        pair.id.connect(reads).map_err(|error| match error.raw_os_error() {
            // siw connects within the call.
            Some(libc::ECONNREFUSED) => VerbsError::Refused { address: name() },
            Some(libc::ETIMEDOUT) => timed_out("answer from the host"),
            Some(libc::EHOSTUNREACH | libc::ENETUNREACH) => {
                VerbsError::Unreachable { address: name(), what: "connect", error }
            }
            _ => system("connect")(error),
        })?;
        let event = pair.events.as_ref().and_then(|events| events.wait(until));
        match event {
            Some(event) if event.kind == kind::RDMA_CM_EVENT_ESTABLISHED => {}
            Some(event) => return Err(unconnected(name(), event)),
            None => {
                if able.iwarp {
                    give_up(endpoint);
                }
                return Err(timed_out("answer from the host, or the server"));
            }
        }
        if able.iwarp {
            // Who was connected to may speak once he was spoken to (RFC 5044).
            endpoint.nudge();
        }
        Ok(endpoint)
    }

    /// Entries of the send queue and of the receive queue.
    fn sizes(&self, receives: u16) -> (u32, u32) {
        let able = self.0.able;
        let sends = self.0.options.depth.clamp(1, able.posts.saturating_sub(SPARE).max(1));
        let receives = (2 * u32::from(receives)).max(ROOM).min(able.posts);
        (sends, receives.min(able.completions.saturating_sub(sends + SPARE)).max(1))
    }

    fn is_own(&self, address: &VerbsAddress, id: &Id) -> Result<(), VerbsError> {
        if id.context() == self.context() {
            return Ok(());
        }
        // SAFETY: what an identifier is bound to is open as long as that lives.
        let reached = NonNull::new(id.context()).map(|context| unsafe { device_name(context) });
        let own = self.device().to_owned();
        Err(match reached {
            // It went, and came again.
            Some(reached) if reached == own => mrrc::registrar::verbs::VerbsError::Gone { device: own }.into(),
            Some(reached) => VerbsError::OtherDevice { address: address.to_string(), reached, own },
            None => VerbsError::NoWay { address: address.to_string(), what: "connect" },
        })
    }

    /// Listens at an address: one of this machine's, or 0.0.0.0 for all that the domain's device has.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn listen(&self, address: &str) -> Result<VerbsListener, VerbsError> {
        let address: VerbsAddress = address.parse()?;
        let name = || address.to_string();
        let channel = Channel::new().map_err(|error| cannot_manage(&address, error))?;
        let mut failed = None;
        for found in address.resolve()? {
            let id = Id::new(&channel).map_err(|error| cannot_manage(&address, error))?;
            match id.bind(found).and_then(|()| id.listen(BACKLOG)) {
                Ok(()) => {
                    if !found.ip().is_unspecified() {
                        self.is_own(&address, &id)?;
                    }
                    let (domain, embryos) = (self.clone(), Vec::new());
                    return Ok(VerbsListener { embryos, id, channel, domain, refused: 0, last_refused: None });
                }
                Err(error) => failed = Some(error),
            }
        }
        let error = failed.unwrap_or_else(|| io::ErrorKind::NotFound.into());
        Err(match error.raw_os_error() {
            Some(libc::EADDRINUSE) => VerbsError::PortInUse { address: name() },
            Some(libc::EADDRNOTAVAIL) => VerbsError::NotHere { address: name() },
            Some(libc::ENODEV) => VerbsError::NoWay { address: name(), what: "listen" },
            _ => VerbsError::System { address: name(), what: "listen", error },
        })
    }
}

/// Over iWARP the kernel has who gives a connection up wait until the peer has answered, or it has given it up as well, which takes
/// it longer than was to be waited. So that is another thread's.
fn give_up(endpoint: VerbsEndpoint) {
    // Without a thread it is dropped here.
    let _ = std::thread::Builder::new().name("verbs-give-up".to_owned()).spawn(move || drop(endpoint));
}

/// What became of a connection in the place of coming to stand.
fn unconnected(address: String, event: Event) -> VerbsError {
    match (event.kind, event.status) {
        (kind::RDMA_CM_EVENT_REJECTED, UNWANTED) => VerbsError::Rejected { address },
        (kind::RDMA_CM_EVENT_REJECTED, NOBODY) => VerbsError::Refused { address },
        (kind::RDMA_CM_EVENT_REJECTED, status) if status == -libc::ECONNREFUSED => VerbsError::Refused { address },
        (kind::RDMA_CM_EVENT_REJECTED, _) => VerbsError::Rejected { address },
        (kind::RDMA_CM_EVENT_UNREACHABLE, _) => {
            VerbsError::Unreachable { address, what: "connect", error: event.error() }
        }
        (kind::RDMA_CM_EVENT_DISCONNECTED, _) => VerbsError::Hung { address },
        // Whatever siw finds wrong with what came before the connection stood: among others that it ended.
        (kind::RDMA_CM_EVENT_CONNECT_ERROR, status) if status == -libc::EINVAL => VerbsError::Hung { address },
        _ => VerbsError::System { address, what: "come to stand", error: event.error() },
    }
}

/// The power of two, times 4.096 µs, that the device waits for an answer, so that all of its eight attempts take no longer
/// than this.
fn patience(stall: Duration) -> u8 {
    let one = (stall.as_micros() / 8 / 4).clamp(1, 1 << 30) as u32;
    one.ilog2().clamp(8, 20) as u8
}

/// Takes connections.
pub struct VerbsListener {
    // Before the channel that their events come by, and so the identifier.
    embryos: Vec<Embryo>,
    id: Id,
    channel: Channel,
    domain: VerbsDomain,
    refused: u64,
    last_refused: Option<VerbsError>,
}

/// A connection that was accepted and does not stand yet.
struct Embryo {
    endpoint: VerbsEndpoint,
    name: usize,
    until: Instant,
}

impl VerbsListener {
    /// Where it listens, with the port that was chosen for port 0.
    ///
    /// # Errors
    /// The identifier has no address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.id.local().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Connections that did not come to stand.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Why the last of those did not.
    pub fn last_refused(&self) -> Option<&VerbsError> {
        self.last_refused.as_ref()
    }

    /// Waits for the next connection, with so many receives posted.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`] when the time is over, and that the device is gone.
    pub fn accept(&mut self, receives: u16, time: Option<Duration>) -> Result<VerbsEndpoint, VerbsError> {
        let deadline = time.map(|time| Instant::now() + time);
        loop {
            while let Some(event) = self.channel.next() {
                if let Some(endpoint) = self.told(event, receives)? {
                    return Ok(endpoint);
                }
            }
            if let Some(endpoint) = self.spoken_to() {
                return Ok(endpoint);
            }
            let now = Instant::now();
            self.give_up(now);
            if self.domain.is_gone() {
                return Err(self.gone());
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                let after = time.unwrap_or_default();
                return Err(VerbsError::TimedOut { address: self.name(), what: "connection", after });
            }
            let next = deadline.map(|deadline| deadline.saturating_duration_since(now));
            let nap = if self.embryos.is_empty() { LOOK } else { NAP };
            let time = next.map_or(nap, |next| next.min(nap));
            super::manager::sleep(&[self.channel.file()], Some(time));
        }
    }

    fn name(&self) -> String {
        self.id.local().map_or_else(|| "verbs:".to_owned(), |address| format!("verbs:{address}"))
    }

    fn gone(&self) -> VerbsError {
        mrrc::registrar::verbs::VerbsError::Gone { device: self.domain.device().to_owned() }.into()
    }

    fn refuse(&mut self, error: VerbsError) {
        self.refused += 1;
        self.last_refused = Some(error);
    }

    /// What an event means: a connection that stands, perhaps.
    fn told(&mut self, event: Event, receives: u16) -> Result<Option<VerbsEndpoint>, VerbsError> {
        match event.kind {
            kind::RDMA_CM_EVENT_CONNECT_REQUEST => {
                // SAFETY: the request was just told, and its identifier is nobody else's.
                if let Some(id) = unsafe { Id::of_request(event) }
                    && let Err(error) = self.let_in(id, event, receives)
                {
                    self.refuse(error);
                }
                Ok(None)
            }
            kind::RDMA_CM_EVENT_ESTABLISHED => {
                let at = self.embryos.iter().position(|embryo| embryo.name == event.id);
                Ok(at.and_then(|at| self.stands(at)))
            }
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL if event.id == self.id.name() => {
                self.domain.set_gone();
                Err(self.gone())
            }
            _ => {
                if let Some(at) = self.embryos.iter().position(|embryo| embryo.name == event.id) {
                    drop(self.embryos.swap_remove(at));
                    let address = self.name();
                    self.refuse(VerbsError::Hung { address });
                }
                Ok(None)
            }
        }
    }

    /// Accepts a request.
    fn let_in(&mut self, id: Id, event: Event, receives: u16) -> Result<(), VerbsError> {
        let address = id.peer().map_or_else(|| "verbs:".to_owned(), |peer| format!("verbs:{peer}"));
        let too_many = self.embryos.len() >= EMBRYOS;
        if too_many || id.context() != self.domain.context() {
            id.reject();
            if too_many {
                let error = io::Error::other("too many connections are being set up; try again");
                return Err(VerbsError::System { address, what: "not let in", error });
            }
            let parsed = self.name().parse()?;
            return self.domain.is_own(&parsed, &id);
        }
        let system = |what| {
            let address = address.clone();
            move |error| VerbsError::System { address, what, error }
        };
        let able = self.domain.0.able;
        let options = &self.domain.0.options;
        if !able.iwarp {
            id.set_patience(patience(options.stall));
        }
        let (name, sizes) = (id.name(), self.domain.sizes(receives));
        let pair = Pair::new(&self.domain, id, (sizes.0 + SPARE, sizes.1)).map_err(system("make a queue pair"))?;
        let endpoint = VerbsEndpoint::new(&self.domain, pair, sizes, receives, None)
            .map_err(system("register and post the connection's receives"))?;
        let Some(pair) = &endpoint.pair else { return Err(VerbsError::Hung { address }) };
        // No more than the peer does: it answers as many as this side may have under way, and the other way round.
        let answered = able.answered.min(options.reads).min(event.depths.0);
        let under_way = able.under_way.min(options.reads).min(event.depths.1);
        pair.id.accept((answered, under_way)).map_err(system("accept"))?;
        let until = Instant::now() + options.set_up;
        self.embryos.push(Embryo { endpoint, name, until });
        Ok(())
    }

    /// One that has heard something stands, whether that was told or not.
    fn spoken_to(&mut self) -> Option<VerbsEndpoint> {
        let at = self.embryos.iter_mut().position(|embryo| embryo.endpoint.has_heard())?;
        self.stands(at)
    }

    /// A connection stands: its events come by a channel of its own.
    fn stands(&mut self, at: usize) -> Option<VerbsEndpoint> {
        let mut endpoint = self.embryos.swap_remove(at).endpoint;
        endpoint.listen_first();
        let pair = endpoint.pair.as_mut()?;
        let moved = Channel::new().and_then(|channel| pair.id.migrate(&channel).map(|()| channel));
        match moved {
            Ok(channel) => {
                pair.events = Some(channel);
                Some(endpoint)
            }
            Err(error) => {
                let address = self.name();
                self.refuse(VerbsError::System { address, what: "have a connection's events apart", error });
                None
            }
        }
    }

    fn give_up(&mut self, now: Instant) {
        while let Some(at) = self.embryos.iter().position(|embryo| embryo.until <= now) {
            drop(self.embryos.swap_remove(at));
            let (address, after) = (self.name(), self.domain.0.options.set_up);
            self.refuse(VerbsError::TimedOut { address, what: "word from a peer that it is connected", after });
        }
    }
}

impl fmt::Debug for VerbsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerbsListener({})", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_attempts_take_no_longer_than_the_stall() {
        for seconds in [1, 5, 10, 60] {
            let exponent = patience(Duration::from_secs(seconds));
            let all = Duration::from_nanos(4096 << exponent) * 8;
            assert!(all <= Duration::from_secs(seconds).mul_f64(1.05), "{exponent}: {all:?}");
            assert!(seconds > 30 || all * 3 > Duration::from_secs(seconds), "{exponent}: {all:?}");
        }
    }
}
