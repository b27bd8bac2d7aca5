//! Connecting and listening: from an address to an endpoint.
//!
//! Each step waits for an event, and is given up after some time. The events are an answer of the address's owner, the
//! route, and the peer's consent. A listener's peers without an established connection delay no other.

#![expect(unsafe_code, reason = "identifiers come with events")]

use super::VerbsDomain;
use super::address::VerbsAddress;
use super::device::device_name;
use super::domain::{cannot_manage, resolved, timed_out};
use super::endpoint::{SPARE, VerbsEndpoint};
use super::error::VerbsError;
use super::manager::{Channel, Event, Id, Space, kind};
use super::pair::{Destination, Pair};
use crate::fabric::accept::{self, HalfOpen, Limits, Number, Shortage, Source};
use crate::fabric::attempt::{Attempt, deadline};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Descriptors that a connection may take when it is set up: two channels for its events.
const DESCRIPTORS: usize = 2;
/// Connections that the kernel keeps until they are looked at.
const BACKLOG: i32 = 128;
/// How long a listener sleeps while connections are being set up: a message may come before it is told that one stands.
const NAP: Duration = Duration::from_millis(20);
/// The length of other sleeps: a listener at 0.0.0.0 is not told that the device goes.
const LOOK: Duration = Duration::from_secs(1);
/// Receives that a connection has room for at least.
const ROOM: u32 = 64;
/// The reason by which InfiniBand's connection manager reports that there is no listener, and that the listener refuses.
const NOBODY: libc::c_int = 8;
const UNWANTED: libc::c_int = 28;

/// Connects to a listener, with so many receives posted.
///
/// It takes no longer than [`VerbsOptions::set_up`](super::VerbsOptions::set_up), whatever the peer does. Over iWARP the system's own
/// time-out for TCP connections may come before.
///
/// # Errors
/// [`VerbsError`].
pub fn connect(domain: &VerbsDomain, address: &str, receives: u16) -> Result<VerbsEndpoint, VerbsError> {
    connect_within(domain, &address.parse()?, receives, &Attempt::new(domain.options().set_up))
}

/// Connects in the same way, as an attempt that can be stopped. Each of the host's addresses has an equal share of the time.
pub(in crate::fabric) fn connect_within(
    domain: &VerbsDomain,
    address: &VerbsAddress,
    receives: u16,
    attempt: &Attempt,
) -> Result<VerbsEndpoint, VerbsError> {
    let mut failed = None;
    let found = address.resolve(attempt)?;
    let tries = found.len();
    for (nth, found) in found.into_iter().enumerate() {
        match reach(domain, address, found, receives, &attempt.share(tries - nth)) {
            Ok(endpoint) => return Ok(endpoint),
            Err(error) => _ = failed.get_or_insert(error),
        }
    }
    Err(failed.unwrap_or(VerbsError::NoWay { address: address.to_string(), what: "connect" }))
}

fn reach(
    domain: &VerbsDomain,
    address: &VerbsAddress,
    found: SocketAddr,
    receives: u16,
    attempt: &Attempt,
) -> Result<VerbsEndpoint, VerbsError> {
    let (able, options) = (domain.able(), domain.options());
    let name = || address.to_string();
    let system = |what| move |error| VerbsError::System { address: address.to_string(), what, error };
    let channel = Channel::new().map_err(|error| cannot_manage(address, error))?;
    let id = resolved((&channel, Space::Connections), address, found, attempt)?;
    check_device(domain, address, &id)?;
    let timed_out = |what| timed_out(address, what, attempt);
    id.resolve_route(attempt.left()).map_err(system("look for the route"))?;
    match channel.wait(attempt) {
        Some(event) if event.kind == kind::RDMA_CM_EVENT_ROUTE_RESOLVED => {}
        Some(event) => {
            return Err(VerbsError::Unreachable { address: name(), what: "look for the route", error: event.error() });
        }
        None => return Err(timed_out("route")),
    }
    if !able.iwarp {
        id.set_patience(patience(options.stall));
    }
    let sizes = sizes(domain, receives);
    let mut pair = Pair::new(domain, id, (sizes.0 + SPARE, sizes.1)).map_err(system("make a queue pair"))?;
    pair.events = Some(channel);
    let destination = Destination { address: address.clone(), receives };
    let mut endpoint = VerbsEndpoint::new(domain, pair, sizes, receives, Some(destination))
        .map_err(system("register and post the connection's receives"))?;
    let reads = (able.answered.min(options.reads), able.under_way.min(options.reads));
    let hung = || VerbsError::Hung { address: name() };
    let asked = move |endpoint: &VerbsEndpoint| endpoint.connect(reads);
    let asked = if able.iwarp {
        // The system connects within the call, and nothing interrupts that.
        let work = move || (asked(&endpoint), endpoint);
        let done = attempt.outlast("verbs-connect", work).map_err(system("start a thread to connect"))?;
        let Some((asked, kept)) = done else { return Err(timed_out("answer from the host")) };
        endpoint = kept;
        asked
    } else {
        asked(&endpoint)
    };
    asked.ok_or_else(hung)?.map_err(|error| match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => VerbsError::Refused { address: name() },
        Some(libc::ETIMEDOUT) => timed_out("answer from the host"),
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            VerbsError::Unreachable { address: name(), what: "connect", error }
        }
        _ => system("connect")(error),
    })?;
    match endpoint.next_event(attempt) {
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
        // The accepting side may speak once it has received (RFC 5044).
        endpoint.send_probe();
    }
    Ok(endpoint)
}

/// Returns the entries of the send queue and of the receive queue.
fn sizes(domain: &VerbsDomain, receives: u16) -> (u32, u32) {
    let (able, options) = (domain.able(), domain.options());
    let sends = options.depth.clamp(1, able.posts.saturating_sub(SPARE).max(1));
    let receives = (2 * u32::from(receives)).max(ROOM).min(able.posts);
    (sends, receives.min(able.completions.saturating_sub(sends + SPARE)).max(1))
}

/// Checks that an identifier is bound to the domain's device.
pub(super) fn check_device(domain: &VerbsDomain, address: &dyn fmt::Display, id: &Id) -> Result<(), VerbsError> {
    if id.context() == domain.context() {
        return Ok(());
    }
    // SAFETY: what an identifier is bound to is open as long as that lives.
    let reached = NonNull::new(id.context()).map(|context| unsafe { device_name(context) });
    let own = domain.device().to_owned();
    Err(match reached {
        // It went, and came again.
        Some(reached) if reached == own => mrrc::registrar::verbs::VerbsError::Gone { device: own }.into(),
        Some(reached) => VerbsError::OtherDevice { address: address.to_string(), reached, own },
        None => VerbsError::NoWay { address: address.to_string(), what: "connect" },
    })
}

/// Makes the connection of an endpoint again, to the same address, with as many receives posted. It may have ended because
/// a key was refused.
///
/// It is another connection: keys and messages are to be exchanged anew, and an engine over it is a new one. The endpoint stays what it
/// was, ended as a rule.
///
/// # Errors
/// [`VerbsError`]; that the peer connected to this endpoint is [`VerbsError::NotOurs`].
pub fn connect_again(endpoint: &VerbsEndpoint) -> Result<VerbsEndpoint, VerbsError> {
    let Some(Destination { address, receives }) = endpoint.destination() else {
        return Err(VerbsError::NotOurs { peer: endpoint.peer() });
    };
    connect_within(endpoint.domain(), address, *receives, &Attempt::new(endpoint.domain().options().set_up))
}

/// Drops the endpoint in another thread. Over iWARP the kernel makes a side that gives a connection up wait until the peer
/// has answered, or has given it up as well. That takes longer than the time to wait.
fn give_up(endpoint: VerbsEndpoint) {
    // Without a thread it is dropped here.
    let _ = mrrc::spawn_own_thread("verbs-give-up", move || drop(endpoint));
}

/// Returns the error of a connection that was not established.
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

/// Returns the exponent of the device's wait for an answer: 4.096 µs times that power of two. All of its eight attempts
/// take no longer than `stall`.
fn patience(stall: Duration) -> u8 {
    let one = (stall.as_micros() / 8 / 4).clamp(1, 1 << 30) as u32;
    one.ilog2().clamp(8, 20) as u8
}

/// Takes connections.
///
/// Set-ups run in parallel, while a thread is in [`accept`](VerbsListener::accept). At most 256 connections are half open,
/// and at most an eighth of the descriptors that the process may have. One IPv4 address or IPv6 /64 has at most a quarter
/// of that. A new one evicts the oldest of its address, or of the address that has the most, so silent peers lock no other
/// peer out. A listener that runs out of descriptors evicts in the same order, reports [`VerbsError::Descriptors`] once,
/// and goes on.
pub struct VerbsListener {
    // Before the channel that their events come by, and so the identifier.
    half_open: HalfOpen<Option<Source>, Embryo>,
    id: Id,
    channel: Channel,
    domain: VerbsDomain,
    shortage: Shortage,
    evicted: u64,
    refused: u64,
    last_refused: Option<VerbsError>,
}

/// A connection that was accepted and does not stand yet.
struct Embryo {
    endpoint: VerbsEndpoint,
    name: usize,
}

/// Why there is no listener.
pub(super) fn cannot_listen(address: &dyn fmt::Display, error: io::Error) -> VerbsError {
    let address = address.to_string();
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => VerbsError::PortInUse { address },
        Some(libc::EADDRNOTAVAIL) => VerbsError::NotHere { address },
        Some(libc::ENODEV) => VerbsError::NoWay { address, what: "listen" },
        _ => VerbsError::System { address, what: "listen", error },
    }
}

impl VerbsListener {
    /// Listens at an address: one of this machine's, or 0.0.0.0 for all that the domain's device has.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn bind(domain: &VerbsDomain, address: &str) -> Result<Self, VerbsError> {
        let address: VerbsAddress = address.parse()?;
        let channel = Channel::new().map_err(|error| cannot_manage(&address, error))?;
        let mut failed = None;
        for found in address.resolve(&Attempt::new(domain.options().set_up))? {
            let id = Id::new(&channel, Space::Connections).map_err(|error| cannot_manage(&address, error))?;
            match id.bind(found).and_then(|()| id.listen(BACKLOG)) {
                Ok(()) => {
                    if !found.ip().is_unspecified() {
                        check_device(domain, &address, &id)?;
                    }
                    return Ok(Self {
                        half_open: HalfOpen::new(Limits::of_process()),
                        id,
                        channel,
                        domain: domain.clone(),
                        shortage: Shortage::default(),
                        evicted: 0,
                        refused: 0,
                        last_refused: None,
                    });
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(cannot_listen(&address, failed.unwrap_or_else(|| io::ErrorKind::NotFound.into())))
    }

    /// Returns its address, with the port that was chosen for port 0.
    ///
    /// # Errors
    /// The identifier has no address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.id.local().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Returns how many connections did not come to stand, those that were evicted included.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns why the last of those did not.
    pub fn last_refused(&self) -> Option<&VerbsError> {
        self.last_refused.as_ref()
    }

    /// Returns how many half-open connections were evicted for newer ones. They count as refused.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns how often descriptors ran out. Times of want with less than ten seconds between them count as one.
    pub fn shortages(&self) -> u64 {
        self.shortage.episodes()
    }

    /// Waits for the next connection, with so many receives posted.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`] when the time is over; [`VerbsError::Descriptors`], once, when descriptors run out, and the listener
    /// goes on; and that the device is gone.
    pub fn accept(&mut self, receives: u16, time: Option<Duration>) -> Result<VerbsEndpoint, VerbsError> {
        let deadline = time.map(deadline);
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
            if self.shortage.report() {
                return Err(VerbsError::Descriptors { address: self.name() });
            }
            if self.domain.is_gone() {
                return Err(self.gone());
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                let after = time.unwrap_or_default();
                return Err(VerbsError::TimedOut {
                    doing: "accept at",
                    address: self.name(),
                    what: "connection",
                    after,
                });
            }
            let next = deadline.map(|deadline| deadline.saturating_duration_since(now));
            let nap = if self.half_open.len() == 0 { LOOK } else { NAP };
            let time = next.map_or(nap, |next| next.min(nap));
            super::manager::sleep(&[self.channel.file()], Some(time));
        }
    }

    pub(in crate::fabric) fn name(&self) -> String {
        self.id.local().map_or_else(|| "verbs:".to_owned(), |address| format!("verbs:{address}"))
    }

    fn gone(&self) -> VerbsError {
        mrrc::registrar::verbs::VerbsError::Gone { device: self.domain.device().to_owned() }.into()
    }

    fn refuse(&mut self, error: VerbsError) {
        self.refused += 1;
        self.last_refused = Some(error);
    }

    /// Handles an event; returns the connection if it is established.
    fn told(&mut self, event: Event, receives: u16) -> Result<Option<VerbsEndpoint>, VerbsError> {
        match event.kind {
            kind::RDMA_CM_EVENT_CONNECT_REQUEST => {
                // SAFETY: the request was just told, and no other code has its identifier.
                if let Some(id) = unsafe { Id::of_request(event) }
                    && let Err(error) = self.let_in(id, event, receives)
                {
                    self.refuse(error);
                }
                Ok(None)
            }
            kind::RDMA_CM_EVENT_ESTABLISHED => {
                let number = self.find(|embryo| embryo.name == event.id);
                Ok(number.and_then(|number| self.stands(number)))
            }
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL if event.id == self.id.name() => {
                self.domain.set_gone();
                Err(self.gone())
            }
            _ => {
                if let Some(number) = self.find(|embryo| embryo.name == event.id) {
                    drop(self.half_open.remove(number));
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
        if id.context() != self.domain.context() {
            id.reject();
            return check_device(&self.domain, &self.name(), &id);
        }
        self.make_room();
        let system = |what| {
            let address = address.clone();
            move |error| VerbsError::System { address, what, error }
        };
        let able = self.domain.able();
        let options = &self.domain.options();
        if !able.iwarp {
            id.set_patience(patience(options.stall));
        }
        let source = id.peer().map(|peer| Source::of(peer.ip()));
        let (name, sizes) = (id.name(), sizes(&self.domain, receives));
        let pair = Pair::new(&self.domain, id, (sizes.0 + SPARE, sizes.1)).map_err(system("make a queue pair"))?;
        let endpoint = VerbsEndpoint::new(&self.domain, pair, sizes, receives, None)
            .map_err(system("register and post the connection's receives"))?;
        // No more than the peer does: it answers as many as this side may have under way, and the other way round.
        let answered = able.answered.min(options.reads).min(event.depths.0);
        let under_way = able.under_way.min(options.reads).min(event.depths.1);
        let accepted = endpoint.accept((answered, under_way));
        accepted.ok_or_else(|| VerbsError::Hung { address: address.clone() })?.map_err(system("accept"))?;
        let until = deadline(options.set_up);
        if let Some(evicted) = self.half_open.admit(source, until, Embryo { endpoint, name }) {
            self.end_evicted(evicted, "too many others are half open, and it was the oldest of its address");
        }
        Ok(())
    }

    /// Evicts half-open connections until there are descriptors for another one.
    fn make_room(&mut self) {
        while !accept::are_free(self.channel.file(), DESCRIPTORS) {
            self.shortage.note(Instant::now());
            let Some(evicted) = self.half_open.evict(None) else { break };
            self.end_evicted(evicted, "descriptors ran out, and it was the oldest that was half open");
        }
    }

    fn end_evicted(&mut self, embryo: Embryo, why: &'static str) {
        drop(embryo);
        self.evicted += 1;
        let address = self.name();
        self.refuse(VerbsError::System { address, what: "evicted", error: io::Error::other(why) });
    }

    /// Returns the oldest half-open connection of which this is true.
    fn find(&mut self, mut is_it: impl FnMut(&mut Embryo) -> bool) -> Option<Number> {
        let mut numbers = self.half_open.numbers().into_iter();
        numbers.find(|&number| self.half_open.get_mut(number).is_some_and(&mut is_it))
    }

    /// One that has heard something stands, whether that was told or not.
    fn spoken_to(&mut self) -> Option<VerbsEndpoint> {
        let number = self.find(|embryo| embryo.endpoint.has_received())?;
        self.stands(number)
    }

    /// A connection stands: its events come by a channel of its own.
    fn stands(&mut self, number: Number) -> Option<VerbsEndpoint> {
        let mut endpoint = self.half_open.remove(number)?.endpoint;
        self.make_room();
        endpoint.listen_first();
        match endpoint.take_events()? {
            Ok(()) => Some(endpoint),
            Err(error) => {
                let address = self.name();
                self.refuse(VerbsError::System { address, what: "have a connection's events apart", error });
                None
            }
        }
    }

    fn give_up(&mut self, now: Instant) {
        while let Some(embryo) = self.half_open.expire(now) {
            drop(embryo);
            let (address, after) = (self.name(), self.domain.options().set_up);
            let what = "word from a peer that it is connected";
            self.refuse(VerbsError::TimedOut { doing: "accept at", address, what, after });
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
