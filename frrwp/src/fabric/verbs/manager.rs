//! The edge to librdmacm: event channels that do not block, identifiers, events.
//!
//! An identifier is one end of a connection that comes about, stands or goes, or a listener. Its events come by the channel
//! that it was made with, or was moved to. Each connection that stands has its own, so that one is driven without the others.

#![expect(unsafe_code, reason = "the calls of librdmacm")]

use super::ib;
use crate::fabric::attempt::Attempt;
use rustix::event::PollFlags;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

pub(super) use ib::rdma_cm_event_type as kind;

/// Returns the error that the last call left in `errno`.
pub(super) fn last_error() -> io::Error {
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(0) { io::Error::from_raw_os_error(libc::ENODEV) } else { error }
}

/// The result of a call that says -1 and leaves why in `errno`.
fn done(returned: libc::c_int) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(last_error()) }
}

/// The source of events. Goes after its identifiers.
#[derive(Debug)]
pub(super) struct Channel(NonNull<ib::rdma_event_channel>);

// SAFETY: a file descriptor and what librdmacm guards with a lock of its own.
unsafe impl Send for Channel {}

impl Channel {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: `rdma_create_event_channel` takes no arguments.
        let raw = NonNull::new(unsafe { ib::rdma_create_event_channel() }).ok_or_else(last_error)?;
        let channel = Self(raw);
        rustix::io::ioctl_fionbio(channel.file(), true)?;
        Ok(channel)
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's descriptor is open for as long as the channel, which `self` owns.
        unsafe { BorrowedFd::borrow_raw((*self.0.as_ptr()).fd) }
    }

    /// Returns the next event, acknowledged, if there is one.
    pub(super) fn next(&self) -> Option<Event> {
        self.next_with(|_| ()).map(|(event, ())| event)
    }

    /// Returns the next event, acknowledged, and what is read of it before that.
    pub(super) fn next_with<T>(&self, read: impl FnOnce(&ib::rdma_cm_event) -> T) -> Option<(Event, T)> {
        let mut raw = null_mut();
        // SAFETY: the channel is open; an event is returned, or none.
        let got = unsafe { ib::rdma_get_cm_event(self.0.as_ptr(), &mut raw) };
        if got != 0 || raw.is_null() {
            return None;
        }
        // SAFETY: the event is valid until it is acknowledged; of which member of the union is meant, its kind says.
        unsafe {
            let ib::rdma_cm_event { id, event, status, .. } = *raw;
            let has_depths = matches!(event, kind::RDMA_CM_EVENT_CONNECT_REQUEST | kind::RDMA_CM_EVENT_ESTABLISHED);
            let conn = has_depths.then(|| (*raw).param.conn);
            let depths = conn.map_or((0, 0), |conn| (conn.responder_resources, conn.initiator_depth));
            let read = read(&*raw);
            ib::rdma_ack_cm_event(raw);
            Some((Event { id: id as usize, kind: event, status, depths }, read))
        }
    }

    /// Returns the next event; None if the attempt is over first.
    pub(super) fn wait(&self, attempt: &Attempt) -> Option<Event> {
        self.wait_with(attempt, |_| ()).map(|(event, ())| event)
    }

    /// Returns the next event, and what is read of it.
    pub(super) fn wait_with<T>(&self, attempt: &Attempt, read: impl Fn(&ib::rdma_cm_event) -> T) -> Option<(Event, T)> {
        loop {
            if let Some(event) = self.next_with(&read) {
                return Some(event);
            }
            if attempt.is_over() {
                return None;
            }
            attempt.wait(self.file(), PollFlags::IN);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: it was made, and no identifier is left on it.
        unsafe { ib::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// Sleeps until one of the files can be read, or the time is over. A signal is as good.
pub(super) fn sleep(files: &[BorrowedFd<'_>], time: Option<Duration>) {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let time = time.map(|time| Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let mut watched: smallvec::SmallVec<[PollFd<'_>; 3]> =
        files.iter().map(|&file| PollFd::from_borrowed_fd(file, PollFlags::IN)).collect();
    let _ = rustix::event::poll(&mut watched, time.as_ref());
}

/// An event of the connection manager.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// Of which identifier: its [name](Id::name).
    pub(super) id: usize,
    pub(super) kind: kind::Type,
    pub(super) status: libc::c_int,
    /// A request's numbers: reads that this side is to answer at a time, and that it may have in flight.
    pub(super) depths: (u8, u8),
}

impl Event {
    /// Returns the error that its status is, where it is one of the system's.
    pub(super) fn error(self) -> io::Error {
        io::Error::from_raw_os_error(if self.status == 0 { libc::ENODEV } else { self.status.abs() })
    }
}

/// The ports of identifiers: those of connections and those of datagrams have the same numbers, and are others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Space {
    Connections,
    Datagrams,
}

/// One end of a connection, or a listener. Goes after its queue pair.
#[derive(Debug)]
pub(super) struct Id {
    raw: NonNull<ib::rdma_cm_id>,
    process: u32,
}

// SAFETY: librdmacm's calls may be made from any thread.
unsafe impl Send for Id {}

impl Id {
    /// On this channel, which lives longer.
    pub(super) fn new(channel: &Channel, space: Space) -> io::Result<Self> {
        let mut raw = null_mut();
        let space = match space {
            Space::Connections => ib::rdma_port_space::RDMA_PS_TCP,
            Space::Datagrams => ib::rdma_port_space::RDMA_PS_UDP,
        };
        // SAFETY: `rdma_create_id` requires an open channel, which `channel` owns; `raw` can be written.
        done(unsafe { ib::rdma_create_id(channel.0.as_ptr(), &mut raw, null_mut(), space) })?;
        Self::made(raw).ok_or_else(last_error)
    }

    /// That of a request.
    ///
    /// # Safety
    /// The request's event was just reported, and no other code has its identifier.
    pub(super) unsafe fn of_request(event: Event) -> Option<Self> {
        Self::made(event.id as *mut _)
    }

    fn made(raw: *mut ib::rdma_cm_id) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self { raw, process: std::process::id() })
    }

    /// Returns whether this process made it: a forked child shares its file with its parent, which owns it.
    pub(super) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// By what events name it.
    pub(super) fn name(&self) -> usize {
        self.raw() as usize
    }

    pub(super) fn raw(&self) -> *mut ib::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Returns the device that it is bound to.
    pub(super) fn context(&self) -> *mut ib::ibv_context {
        // SAFETY: `self` owns the identifier, which is destroyed only when `self` is dropped.
        unsafe { (*self.raw()).verbs }
    }

    /// Returns the port of the device, from 1; 0 where it is not known.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: `self` owns the identifier, which is destroyed only when `self` is dropped.
        unsafe { (*self.raw()).port_num }
    }

    pub(super) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut address = Raw::of(address);
        // SAFETY: it lives, and so does the address.
        done(unsafe { ib::rdma_bind_addr(self.raw(), address.pointer()) })
    }

    pub(super) fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: `self` owns the identifier, which is destroyed only when `self` is dropped.
        done(unsafe { ib::rdma_listen(self.raw(), backlog) })
    }

    pub(super) fn resolve(&self, address: SocketAddr, time: Duration) -> io::Result<()> {
        let mut address = Raw::of(address);
        // SAFETY: it lives, and so does the address.
        done(unsafe { ib::rdma_resolve_addr(self.raw(), null_mut(), address.pointer(), milliseconds(time)) })
    }

    pub(super) fn resolve_route(&self, time: Duration) -> io::Result<()> {
        // SAFETY: `self` owns the identifier, which is destroyed only when `self` is dropped.
        done(unsafe { ib::rdma_resolve_route(self.raw(), milliseconds(time)) })
    }

    /// Has the device wait so long for an answer before it asks again: 4.096 µs times 2 to this power. Not over iWARP, where
    /// TCP does that.
    pub(super) fn set_patience(&self, exponent: u8) {
        const LEVEL_ID: libc::c_int = 0;
        const ACK_TIMEOUT: libc::c_int = 3;
        let mut exponent = exponent;
        // SAFETY: it lives, and so does the byte.
        unsafe { ib::rdma_set_option(self.raw(), LEVEL_ID, ACK_TIMEOUT, (&raw mut exponent).cast(), 1) };
    }

    /// Connects, with so many reads answered and under way at a time.
    pub(super) fn connect(&self, depths: (u8, u8)) -> io::Result<()> {
        let mut parameters = parameters(depths);
        // SAFETY: it lives, and so do the parameters.
        done(unsafe { ib::rdma_connect(self.raw(), &mut parameters) })
    }

    pub(super) fn accept(&self, depths: (u8, u8)) -> io::Result<()> {
        let mut parameters = parameters(depths);
        // SAFETY: it lives, and so do the parameters.
        done(unsafe { ib::rdma_accept(self.raw(), &mut parameters) })
    }

    /// Asks a listener for the place of its datagrams. It answers with an event.
    pub(super) fn ask(&self) -> io::Result<()> {
        let mut parameters = parameters((0, 0));
        // SAFETY: it lives, and so do the parameters.
        done(unsafe { ib::rdma_connect(self.raw(), &mut parameters) })
    }

    /// Answers with the number of a queue pair, and these bytes.
    pub(super) fn answer(&self, queue_pair: u32, bytes: &[u8]) -> io::Result<()> {
        let mut parameters = parameters((0, 0));
        parameters.qp_num = queue_pair;
        parameters.private_data = bytes.as_ptr().cast();
        parameters.private_data_len = u8::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: it lives, and so do the parameters and the bytes, which the call copies.
        done(unsafe { ib::rdma_accept(self.raw(), &mut parameters) })
    }

    pub(super) fn reject(&self) {
        // SAFETY: it lives, and no data goes with it. A peer that cannot be told finds out by itself.
        unsafe { ib::rdma_reject(self.raw(), std::ptr::null(), 0) };
    }

    /// A peer that does not hear of it finds out by itself.
    pub(super) fn disconnect(&self) {
        // SAFETY: `self` owns the identifier, which is destroyed only when `self` is dropped.
        unsafe { ib::rdma_disconnect(self.raw()) };
    }

    /// Has its events come by another channel, which lives longer than it does.
    pub(super) fn migrate(&self, channel: &Channel) -> io::Result<()> {
        // SAFETY: both live, and all events that were told are acknowledged.
        done(unsafe { ib::rdma_migrate_id(self.raw(), channel.0.as_ptr()) })
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: it lives, and addresses are those that librdmacm filled. Bindings name the union's members differently.
        unsafe { read(&raw const (*self.raw()).route.addr.src_addr_union) }
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: `self` owns the identifier, which is destroyed only when `self` is dropped.
        unsafe { read(&raw const (*self.raw()).route.addr.dst_addr_union) }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        // SAFETY: it lives until now, its queue pair is gone, and all events that were told are acknowledged.
        unsafe { ib::rdma_destroy_id(self.raw()) };
    }
}

fn milliseconds(time: Duration) -> libc::c_int {
    time.as_millis().clamp(1, 1 << 30) as libc::c_int
}

/// Seven is without end, for peers that have no receive posted: what is posted has a time of its own to end in.
const RETRIES: u8 = 7;

fn parameters((answered, under_way): (u8, u8)) -> ib::rdma_conn_param {
    // SAFETY: numbers, and a pointer that may be null.
    let mut parameters: ib::rdma_conn_param = unsafe { std::mem::zeroed() };
    (parameters.responder_resources, parameters.initiator_depth) = (answered, under_way);
    (parameters.retry_count, parameters.rnr_retry_count) = (RETRIES, RETRIES);
    parameters
}

/// A socket address as C has it.
struct Raw(libc::sockaddr_storage);

impl Raw {
    fn of(address: SocketAddr) -> Self {
        // SAFETY: zeroes are an address without family; the parts written are those of the family, which fit into it.
        unsafe {
            let mut raw: libc::sockaddr_storage = std::mem::zeroed();
            match address {
                SocketAddr::V4(address) => {
                    let at = (&raw mut raw).cast::<libc::sockaddr_in>();
                    (*at).sin_family = libc::AF_INET as libc::sa_family_t;
                    (*at).sin_port = address.port().to_be();
                    (*at).sin_addr.s_addr = u32::from(*address.ip()).to_be();
                }
                SocketAddr::V6(address) => {
                    let at = (&raw mut raw).cast::<libc::sockaddr_in6>();
                    (*at).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                    (*at).sin6_port = address.port().to_be();
                    (*at).sin6_addr.s6_addr = address.ip().octets();
                    ((*at).sin6_scope_id, (*at).sin6_flowinfo) = (address.scope_id(), address.flowinfo());
                }
            }
            Self(raw)
        }
    }

    fn pointer(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

/// # Safety
/// It points to an address as C has it, with room for any family.
unsafe fn read<T>(address: *const T) -> Option<SocketAddr> {
    // SAFETY: the caller promises a socket address whose family is set; the family tells which structure can be read.
    unsafe {
        match libc::c_int::from((*address.cast::<libc::sockaddr>()).sa_family) {
            libc::AF_INET => {
                let at = *address.cast::<libc::sockaddr_in>();
                let host = IpAddr::V4(Ipv4Addr::from(u32::from_be(at.sin_addr.s_addr)));
                Some(SocketAddr::new(host, u16::from_be(at.sin_port)))
            }
            libc::AF_INET6 => {
                let at = *address.cast::<libc::sockaddr_in6>();
                let host = IpAddr::V6(Ipv6Addr::from(at.sin6_addr.s6_addr));
                Some(SocketAddr::new(host, u16::from_be(at.sin6_port)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_the_same_in_c_and_back() {
        for text in ["10.1.2.3:4567", "0.0.0.0:0", "[fe80::1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut raw = Raw::of(address);
            // SAFETY: `raw` was just made from an address, so its family and structure agree.
            assert_eq!(unsafe { read(raw.pointer()) }, Some(address));
        }
        // SAFETY: zeroes are an address without family.
        assert_eq!(unsafe { read(Raw(std::mem::zeroed()).pointer()) }, None);
    }
}
