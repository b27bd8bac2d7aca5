//! Registering: a registration is a key, which the RFCs call a steering tag.
#![expect(unsafe_code, reason = "a registrar is one, and exact registration opens memory by address")]

use super::binding::Binding;
use super::handle::Handle;
use super::provider::Provider;
use super::tags::{MOST, Scope};
use super::throttle::{TagGuesses, TagSource};
use super::{IwarpError, IwarpOptions};
use crate::fabric::traits::Domain;
use crate::wire::Segment;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, PAGE, PageRange};
use std::fmt;
use std::io;
use std::sync::Arc;

/// Registers memory for iWARP, and makes connections to it. Clones are the same domain.
#[derive(Clone)]
pub struct IwarpDomain {
    pub(super) provider: Arc<Provider>,
    pub(super) scope: Scope,
}

/// A registration: its key.
#[derive(Debug)]
pub struct IwarpKey {
    key: u32,
}

/// A registration to the byte. It ends when it is dropped.
pub struct Exact {
    provider: Arc<Provider>,
    segment: Segment,
}

impl IwarpDomain {
    /// Returns a domain, and the thread that serves its connections.
    ///
    /// # Errors
    /// The system has no thread or no epoll for it.
    pub fn new(options: IwarpOptions) -> Result<Self, IwarpError> {
        let options = IwarpOptions {
            inbound: options.inbound.clamp(1, 16_382),
            outbound: options.outbound.clamp(1, 16_382),
            ..options
        };
        let system = |error| IwarpError::System {
            address: "iwarp:".to_owned(),
            what: "the domain's thread cannot be started",
            error,
        };
        Ok(Self { provider: Arc::new(Provider::new(options).map_err(system)?), scope: Scope::Domain })
    }

    pub(super) fn of_connection(provider: Arc<Provider>, number: u64) -> Self {
        Self { provider, scope: Scope::Connection(number) }
    }

    /// Returns the options of its connections.
    pub(super) fn options(&self) -> &IwarpOptions {
        &self.provider.shared.common.options
    }

    /// Opens these bytes and no others.
    ///
    /// # Errors
    /// `ENOMEM` where too many keys live.
    ///
    /// # Safety
    /// The memory stays mapped until the registration was dropped, and the caller does not rely on its bytes where
    /// peers may write them.
    pub unsafe fn open(&self, address: *mut u8, length: usize, access: Access) -> io::Result<Exact> {
        let start = address as u64;
        let end = start.checked_add(length as u64).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let tag = self.provider.shared.common.tags.open(start, end, access, self.scope);
        let key = tag.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let segment = Segment { address: start, length: length as u64, key };
        Ok(Exact { provider: Arc::clone(&self.provider), segment })
    }

    /// Makes a key by which peers read so many bytes of whatever is bound when a read begins. A tag of an
    /// [own domain](super::IwarpEndpoint::own_domain) is that connection's alone.
    ///
    /// # Errors
    /// `EINVAL` for no bytes or more than [`Handle::LONGEST`], `ENOMEM` where too many keys live.
    pub fn handle(&self, binding: &Arc<Binding>, length: usize) -> io::Result<Handle> {
        Handle::new(&self.provider, binding, length, self.scope)
    }

    /// Returns how many registrations live.
    pub fn registrations(&self) -> usize {
        self.provider.shared.common.tags.live()
    }

    /// Returns how often peers used tags that did not open what they wanted because they were never theirs, or not any more.
    pub fn tag_guesses(&self) -> TagGuesses {
        self.provider.shared.common.throttle.counts()
    }

    /// Returns the next source with newly limited guesses, each activation once: for a log. At most 64 wait to be returned;
    /// [`TagGuesses::activations`] counts them all.
    pub fn next_throttled(&self) -> Option<TagSource> {
        self.provider.shared.common.throttle.report()
    }

    /// Returns how often the domain's thread woke up so far. Idle connections do not wake it.
    pub fn wakes(&self) -> u64 {
        self.provider.shared.wakes()
    }

    /// Connections that are served.
    pub fn connections(&self) -> usize {
        self.provider.shared.connections()
    }
}

impl Exact {
    /// Returns the segment that lets the peer access it.
    pub fn segment(&self) -> Segment {
        self.segment
    }
}

impl fmt::Debug for IwarpDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IwarpDomain")
            .field("scope", &self.scope)
            .field("options", self.options())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exact").field(&self.segment).finish()
    }
}

impl Drop for Exact {
    /// The peer may have ended it before, by sending with invalidate.
    fn drop(&mut self) {
        self.provider.shared.common.tags.close(self.segment.key);
    }
}

// SAFETY: a tag is unique while it lives, is looked up before every placement, and opens its bytes for its rights alone;
// closing it waits for threads that are in the kernel on its account. Behind it is the address range and not its pages:
// nothing is pinned. Between an unmapping and the end of the registration, which the cache's monitor brings about, a peer that
// still uses the tag is told of a fault, or reaches what is mapped there by then: the module's documentation says so.
unsafe impl Registrar for IwarpDomain {
    type Registration = IwarpKey;

    fn register(&self, range: PageRange, access: Access) -> io::Result<IwarpKey> {
        mrrc::registrar::mapped(range)?;
        let (start, end) = (range.start() * PAGE, range.end().saturating_mul(PAGE));
        let tag = self.provider.shared.common.tags.open(start, end, access, self.scope);
        tag.map(|key| IwarpKey { key }).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }

    fn probe(&self, range: PageRange, _: Access) -> io::Result<()> {
        mrrc::registrar::mapped(range)
    }

    fn deregister(&self, batch: &mut Vec<Registered<IwarpKey>>) -> io::Result<()> {
        for registered in batch.drain(..) {
            self.provider.shared.common.tags.close(registered.registration.key);
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits { regions: Some(MOST as u64), ..Limits::NONE }
    }

    fn rights(&self) -> Access {
        Access::all() - Access::REMOTE_ATOMIC
    }

    fn name(&self) -> &'static str {
        "iwarp"
    }
}

// SAFETY: the segment names bytes of the registration, which the table checks.
unsafe impl Domain for IwarpDomain {
    fn remote(&self, registration: &IwarpKey, address: *const u8, length: usize) -> Segment {
        Segment { address: address as u64, length: length as u64, key: registration.key }
    }
}
