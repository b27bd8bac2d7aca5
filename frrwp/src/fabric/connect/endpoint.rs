//! Endpoints and listeners of whichever provider an address names.
#![expect(unsafe_code, reason = "passes on what is unsafe to post")]

use super::domain::OwnKey;
use super::{FabricDomain, FabricError, FabricKey, Listener, foreign};
use crate::fabric::iwarp::IwarpEndpoint;
use crate::fabric::poller::Bell;
#[cfg(target_os = "linux")]
use crate::fabric::shm::ShmEndpoint;
use crate::fabric::traits::{Armed, Capabilities, Completion, Endpoint, Local};
#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
use crate::fabric::verbs::VerbsEndpoint;
use crate::wire::{MESSAGE, Segment};
use smallvec::SmallVec;
use std::fmt;
use std::io;
use std::time::Duration;

/// One end of a connection, of one provider.
#[derive(Debug)]
pub struct FabricEndpoint(Inner);

#[derive(Debug)]
enum Inner {
    #[cfg(target_os = "linux")]
    Shm(Box<ShmEndpoint>),
    Iwarp(IwarpEndpoint),
    #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
    Verbs(Box<VerbsEndpoint>),
}

#[cfg(target_os = "linux")]
impl From<ShmEndpoint> for FabricEndpoint {
    fn from(endpoint: ShmEndpoint) -> Self {
        Self(Inner::Shm(Box::new(endpoint)))
    }
}

impl From<IwarpEndpoint> for FabricEndpoint {
    fn from(endpoint: IwarpEndpoint) -> Self {
        Self(Inner::Iwarp(endpoint))
    }
}

#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
impl From<VerbsEndpoint> for FabricEndpoint {
    fn from(endpoint: VerbsEndpoint) -> Self {
        Self(Inner::Verbs(Box::new(endpoint)))
    }
}

impl FabricEndpoint {
    /// Returns why the connection ended, if the provider knows.
    pub fn why(&self) -> Option<String> {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Inner::Shm(endpoint) => endpoint.fault().map(|fault| format!("the peer broke the rules: {fault}")),
            Inner::Iwarp(endpoint) => endpoint.why().map(|why| why.to_string()),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Inner::Verbs(endpoint) => endpoint.why().map(ToString::to_string),
        }
    }

    /// Returns whether the connection's frames carry CRCs, where that is negotiated: over iWARP.
    pub fn checksums(&self) -> Option<bool> {
        match &self.0 {
            Inner::Iwarp(endpoint) => Some(endpoint.checksums()),
            #[cfg(target_os = "linux")]
            _ => None,
        }
    }
}

/// Pieces of local memory.
type Pieces<'a, T> = SmallVec<[Local<'a, T>; 16]>;

/// The same memory with the provider's own registrations.
fn own<'a, T: OwnKey>(pieces: &[Local<'a, FabricKey>]) -> io::Result<Pieces<'a, T>> {
    let own = |&Local { address, length, registration }: &Local<'a, FabricKey>| {
        T::of(registration).map(|registration| Local { address, length, registration })
    };
    pieces.iter().map(own).collect::<Option<_>>().map_or_else(foreign, Ok)
}

// SAFETY: as the provider's endpoint, which does everything. A registration of another provider is refused, and nothing is posted.
unsafe impl Endpoint for FabricEndpoint {
    type Domain = FabricDomain;

    fn capabilities(&self) -> Capabilities {
        each!(Inner, &self.0, endpoint => endpoint.capabilities())
    }

    fn now(&self) -> u64 {
        each!(Inner, &self.0, endpoint => endpoint.now())
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        each!(Inner, &mut self.0, endpoint => endpoint.send(message))
    }

    fn receive(&mut self, more: u16) -> io::Result<()> {
        each!(Inner, &mut self.0, endpoint => endpoint.receive(more))
    }

    unsafe fn write(
        &mut self,
        id: u64,
        from: &[Local<'_, FabricKey>],
        to: Segment,
        immediate: Option<u32>,
    ) -> io::Result<()> {
        // SAFETY: `write` requires that the memory may be read until the write is done; the caller promised that.
        each!(Inner, &mut self.0, endpoint => unsafe { endpoint.write(id, &own(from)?, to, immediate) })
    }

    unsafe fn read(&mut self, id: u64, into: &[Local<'_, FabricKey>], from: Segment) -> io::Result<()> {
        // SAFETY: `read` requires that the memory is left to it until the read is done; the caller promised that.
        each!(Inner, &mut self.0, endpoint => unsafe { endpoint.read(id, &own(into)?, from) })
    }

    fn cork(&mut self, corked: bool) {
        each!(Inner, &mut self.0, endpoint => endpoint.cork(corked));
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE]) -> Option<Completion> {
        each!(Inner, &mut self.0, endpoint => endpoint.poll(message))
    }

    fn wait(&mut self, until: Option<u64>) {
        each!(Inner, &mut self.0, endpoint => endpoint.wait(until));
    }

    fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        each!(Inner, &mut self.0, endpoint => endpoint.attach(bell))
    }

    fn arm(&mut self) -> Armed {
        each!(Inner, &mut self.0, endpoint => endpoint.arm())
    }

    fn disconnect(&mut self) {
        each!(Inner, &mut self.0, endpoint => endpoint.disconnect());
    }
}

/// Takes connections of one provider.
pub struct FabricListener {
    domain: FabricDomain,
    inner: Box<dyn Listener<Endpoint = FabricEndpoint, Error = FabricError>>,
}

/// A provider's listener, as one of all.
struct Any<L>(L);

impl<L: Listener<Endpoint: Into<FabricEndpoint>, Error: Into<FabricError>>> Listener for Any<L> {
    type Endpoint = FabricEndpoint;
    type Error = FabricError;

    fn next(&mut self, receives: u16, within: Option<Duration>) -> Result<Option<FabricEndpoint>, FabricError> {
        self.0.next(receives, within).map(|endpoint| endpoint.map(Into::into)).map_err(Into::into)
    }

    fn place(&self) -> String {
        self.0.place()
    }

    fn unset(&self) -> u64 {
        self.0.unset()
    }

    fn last_unset(&self) -> Option<String> {
        self.0.last_unset()
    }
}

impl FabricListener {
    pub(super) fn new(
        domain: FabricDomain,
        listener: impl Listener<Endpoint: Into<FabricEndpoint>, Error: Into<FabricError>>,
    ) -> Self {
        Self { domain, inner: Box::new(Any(listener)) }
    }

    /// Returns the domain that its connections are of.
    pub fn domain(&self) -> &FabricDomain {
        &self.domain
    }

    /// Waits for the next connection, with so many receives posted.
    ///
    /// # Errors
    /// [`FabricError`]. The listener goes on.
    pub fn accept(&mut self, receives: u16, within: Option<Duration>) -> Result<FabricEndpoint, FabricError> {
        loop {
            if let Some(endpoint) = self.next(receives, within)? {
                return Ok(endpoint);
            }
            if let Some(after) = within {
                return Err(FabricError::TimedOut { address: self.place(), after });
            }
        }
    }

    /// Returns the address that it listens at, with the port that was chosen for port 0.
    pub fn address(&self) -> String {
        self.place()
    }
}

impl Listener for FabricListener {
    type Endpoint = FabricEndpoint;
    type Error = FabricError;

    fn next(&mut self, receives: u16, within: Option<Duration>) -> Result<Option<FabricEndpoint>, FabricError> {
        self.inner.next(receives, within)
    }

    fn place(&self) -> String {
        self.inner.place()
    }

    fn unset(&self) -> u64 {
        self.inner.unset()
    }

    fn last_unset(&self) -> Option<String> {
        self.inner.last_unset()
    }
}

impl fmt::Debug for FabricListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FabricListener").field(&self.place()).finish()
    }
}
