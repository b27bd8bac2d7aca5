//! From an address to a queue pair: the connection manager's ports of datagrams. A client asks once, and the answer has it all.

#![expect(unsafe_code, reason = "what events and identifiers point to")]

use super::super::connect::{cannot_listen, check_device};
use super::super::domain::{cannot_manage, resolved, timed_out};
use super::super::error::VerbsError;
use super::super::manager::{Channel, Id, Space, kind};
use super::super::{VerbsDomain, ib};
use super::VerbsUdAddress;
use super::wire::Answer;
use crate::fabric::attempt::Attempt;
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Questions that the kernel keeps until they are looked at.
const BACKLOG: i32 = 1024;
/// The first wait for an answer. It doubles.
const ASK: Duration = Duration::from_millis(250);
/// Questions that are answered at a time.
const ROUND: usize = 64;
/// Routers that a datagram may pass.
const HOPS: u8 = 64;
/// GIDs of a port that are looked at.
const GIDS: libc::c_int = 256;

/// The place of a server, as a client learns it.
pub(super) struct Found {
    pub(super) answer: Answer,
    pub(super) route: ib::ibv_ah_attr,
    /// This side's port of the device.
    pub(super) port: u8,
}

impl Found {
    /// Returns the server's GID.
    pub(super) fn host(&self) -> [u8; 16] {
        // SAFETY: all members of the union are 16 bytes, of any value.
        unsafe { self.route.grh.dgid.raw }
    }
}

/// Asks a server for its place. The kernel repeats a question only after four seconds, so one that is not answered is asked anew before.
pub(super) fn ask(
    domain: &VerbsDomain,
    address: &VerbsUdAddress,
    found: SocketAddr,
    attempt: &Attempt,
) -> Result<Found, VerbsError> {
    let mut patience = ASK;
    while patience < attempt.left() {
        let waits = usize::try_from(attempt.left().as_millis() / patience.as_millis()).unwrap_or(usize::MAX);
        match ask_once(domain, address, found, &attempt.share(waits)) {
            Err(VerbsError::TimedOut { .. }) => patience *= 2,
            other => return other,
        }
    }
    ask_once(domain, address, found, attempt)
}

fn ask_once(
    domain: &VerbsDomain,
    address: &VerbsUdAddress,
    found: SocketAddr,
    attempt: &Attempt,
) -> Result<Found, VerbsError> {
    let name = || address.to_string();
    let system = |what| move |error| VerbsError::System { address: address.to_string(), what, error };
    let channel = Channel::new().map_err(|error| cannot_manage(address, error))?;
    let id = resolved((&channel, Space::Datagrams), address, found, attempt)?;
    check_device(domain, address, &id)?;
    id.resolve_route(attempt.left()).map_err(system("look for the route"))?;
    match channel.wait(attempt) {
        Some(event) if event.kind == kind::RDMA_CM_EVENT_ROUTE_RESOLVED => {}
        Some(event) => {
            return Err(VerbsError::Unreachable { address: name(), what: "look for the route", error: event.error() });
        }
        None => return Err(timed_out(address, "route", attempt)),
    }
    id.ask().map_err(system("ask for the place of datagrams"))?;
    let Some((event, read)) = channel.wait_with(attempt, read_answer) else {
        return Err(timed_out(address, "answer from the host", attempt));
    };
    match (event.kind, read) {
        (kind::RDMA_CM_EVENT_ESTABLISHED, Some((answer, route))) => Ok(Found { answer, route, port: id.port() }),
        (kind::RDMA_CM_EVENT_ESTABLISHED, None) => Err(VerbsError::NotOurServer { address: name() }),
        // A status of the connection manager's: it has no such listener. Those of the system are negative.
        (kind::RDMA_CM_EVENT_UNREACHABLE, _) if event.status > 0 => Err(VerbsError::Refused { address: name() }),
        (kind::RDMA_CM_EVENT_UNREACHABLE, _) if event.status == -libc::ETIMEDOUT => {
            Err(timed_out(address, "answer from the host", attempt))
        }
        _ => Err(VerbsError::Unreachable {
            address: name(),
            what: "ask for the place of datagrams",
            error: event.error(),
        }),
    }
}

/// Returns what an event brings, if it is an answer of ours.
fn read_answer(event: &ib::rdma_cm_event) -> Option<(Answer, ib::ibv_ah_attr)> {
    if event.event != kind::RDMA_CM_EVENT_ESTABLISHED {
        return None;
    }
    // SAFETY: of an identifier for datagrams this event has the union's member `ud`, with so many bytes, until it is acknowledged.
    unsafe {
        let ud = event.param.ud;
        let data = ud.private_data.cast::<u8>();
        if data.is_null() {
            return None;
        }
        let bytes = std::slice::from_raw_parts(data, ud.private_data_len.into());
        Answer::parse(bytes).map(|answer| (answer, ud.ah_attr))
    }
}

/// Answers clients that ask for the place.
pub(super) struct Answers {
    // Goes before its channel.
    id: Id,
    channel: Channel,
    address: SocketAddr,
    /// The place of each thread.
    places: Vec<Answer>,
    next: usize,
}

impl Answers {
    /// Listens at an address of this machine's. It has no places yet.
    pub(super) fn listen(
        domain: &VerbsDomain,
        address: &VerbsUdAddress,
        found: SocketAddr,
    ) -> Result<Self, VerbsError> {
        let channel = Channel::new().map_err(|error| cannot_manage(address, error))?;
        let id = Id::new(&channel, Space::Datagrams).map_err(|error| cannot_manage(address, error))?;
        id.bind(found).and_then(|()| id.listen(BACKLOG)).map_err(|error| cannot_listen(address, error))?;
        check_device(domain, address, &id)?;
        let address = id.local().unwrap_or(found);
        Ok(Self { id, channel, address, places: Vec::new(), next: 0 })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the device's port.
    pub(super) fn port(&self) -> u8 {
        self.id.port()
    }

    pub(super) fn set_places(&mut self, places: Vec<Answer>) {
        self.places = places;
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.channel.file()
    }

    /// Answers those that have asked, in turn with the places of the threads. Returns whether the device goes away.
    pub(super) fn answer(&mut self) -> bool {
        for _ in 0..ROUND {
            let Some(event) = self.channel.next() else { return false };
            match event.kind {
                kind::RDMA_CM_EVENT_CONNECT_REQUEST => {
                    // SAFETY: the request was just told, and no other code has its identifier.
                    let Some(id) = (unsafe { Id::of_request(event) }) else { continue };
                    let Some(place) = self.places.get(self.next % self.places.len().max(1)) else { continue };
                    self.next = self.next.wrapping_add(1);
                    // A client without an answer asks again.
                    let _ = id.answer(place.queue_pair, &place.to_bytes());
                }
                kind::RDMA_CM_EVENT_DEVICE_REMOVAL => return true,
                _ => {}
            }
        }
        false
    }
}

/// Returns the way from this address of this machine's, to a host that is filled in.
pub(super) fn route_from(domain: &VerbsDomain, port: u8, own: IpAddr) -> io::Result<ib::ibv_ah_attr> {
    let own = match own {
        IpAddr::V4(own) => own.to_ipv6_mapped(),
        IpAddr::V6(own) => own,
    };
    let index = find_gid(domain, port, own.octets());
    let index = index.ok_or_else(|| {
        io::Error::new(io::ErrorKind::AddrNotAvailable, "the device has no GID of this address (`rdma link show`)")
    })?;
    // SAFETY: `zeroed` requires that all zeros are a value: the structure consists of numbers.
    let mut route: ib::ibv_ah_attr = unsafe { zeroed() };
    (route.is_global, route.port_num) = (1, port);
    (route.grh.sgid_index, route.grh.hop_limit) = (index, HOPS);
    Ok(route)
}

/// Returns the number of a GID. Of several that are equal it is that of RoCE's second version, which is routed.
fn find_gid(domain: &VerbsDomain, port: u8, own: [u8; 16]) -> Option<u8> {
    let mut found = None;
    for index in 0..GIDS {
        // SAFETY: the context is open as long as the domain, and the call fills the union, whose members are bytes.
        let gid = unsafe {
            let mut gid: ib::ibv_gid = zeroed();
            if ib::ibv_query_gid(domain.context(), port, index, &mut gid) != 0 {
                break;
            }
            gid.raw
        };
        if gid == own {
            let file = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/types/{index}", domain.device());
            let is_routed = std::fs::read_to_string(file).is_ok_and(|kind| kind.trim() == "RoCE v2");
            if is_routed || found.is_none() {
                found = u8::try_from(index).ok();
            }
            if is_routed {
                break;
            }
        }
    }
    found
}
