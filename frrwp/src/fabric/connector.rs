//! The interface of makers of connections, for any provider.

use super::attempt::Attempt;
use super::connecting::Connecting;
use super::traits::{Domain, Endpoint};
use std::any::Any;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// A domain that connects, listens, and makes memory that peers may be let at. The providers of this crate are such domains.
pub trait Connector: Domain + Clone + Send + 'static {
    /// The address of a listener.
    type Address: FromStr<Err = Self::Error> + fmt::Display + Send + 'static;
    /// One end of its connections.
    type Endpoint: Endpoint<Domain = Self> + Send + 'static;
    /// The listener for its connections.
    type Listener: Listener<Endpoint = Self::Endpoint>;
    /// Why there is no connection.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Connects, as an attempt that can be stopped.
    ///
    /// # Errors
    /// The provider's.
    fn try_connect(
        &self,
        address: &Self::Address,
        receives: u16,
        attempt: &Attempt,
    ) -> Result<Self::Endpoint, Self::Error>;

    /// Returns the error where there is no thread, or no descriptor, to connect by.
    fn not_begun(address: String, error: io::Error) -> Self::Error;

    /// Connects to a listener, with so many receives posted. All of it takes no longer than this, whatever the peer does: looking the
    /// host's name up, connecting, and agreeing with the peer.
    ///
    /// # Errors
    /// The provider's. Those for time that is over name the operation, the address, and a remedy.
    fn connect_to(&self, address: &str, receives: u16, within: Duration) -> Result<Self::Endpoint, Self::Error> {
        self.try_connect(&address.parse()?, receives, &Attempt::new(within))
    }

    /// The same on a thread of its own, to wait for it together with others. Dropping it cancels it.
    ///
    /// # Errors
    /// The provider's, for an address that does not parse; and there is no thread, or no descriptor, for it.
    fn begin_connect(
        &self,
        address: &str,
        receives: u16,
        within: Duration,
    ) -> Result<Connecting<Self::Endpoint, Self::Error>, Self::Error> {
        let (domain, address) = (self.clone(), address.parse::<Self::Address>()?);
        let name = address.to_string();
        Connecting::begin(within, move |attempt| domain.try_connect(&address, receives, attempt))
            .map_err(|error| Self::not_begun(name, error))
    }

    /// Listens at an address.
    ///
    /// # Errors
    /// The provider's.
    fn listen_at(&self, address: &str) -> Result<Self::Listener, Self::Error>;

    /// Makes memory of zeros, of so many bytes or a few more, from the start of a page on. Peers can be let at it.
    ///
    /// # Errors
    /// There is not as much.
    fn memory(&self, bytes: usize) -> io::Result<FabricMemory> {
        FabricMemory::of_process(bytes)
    }
}

/// Takes connections of one provider.
pub trait Listener: Send + 'static {
    /// One end of them.
    type Endpoint: Endpoint;
    /// Why one that came was not set up, or why none can come.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Waits for the next connection, with so many receives posted: for ever, or so long. Returns None if none came.
    ///
    /// # Errors
    /// The provider's. The listener goes on.
    fn next(&mut self, receives: u16, within: Option<Duration>) -> Result<Option<Self::Endpoint>, Self::Error>;

    /// Returns the address that it listens at, with the port that was chosen for port 0: to connect to.
    fn place(&self) -> String;

    /// Returns how many connections were not set up, without an error that told of each.
    fn unset(&self) -> u64 {
        0
    }

    /// Returns why the last of those was not.
    fn last_unset(&self) -> Option<String> {
        None
    }
}

/// Memory that peers can be let at. No references to its bytes are made, because peers may write them.
pub struct FabricMemory {
    start: *mut u8,
    length: usize,
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: an address, and what keeps the memory there, which itself may be sent and shared.
#[expect(unsafe_code, reason = "has an address")]
unsafe impl Send for FabricMemory {}
// SAFETY: a shared reference gives out the address alone.
#[expect(unsafe_code, reason = "has an address")]
unsafe impl Sync for FabricMemory {}

impl FabricMemory {
    pub(super) fn new(start: *mut u8, length: usize, keep: impl Any + Send + Sync) -> Self {
        Self { start, length, keep: Arc::new(keep) }
    }

    /// Memory of this process.
    fn of_process(bytes: usize) -> io::Result<Self> {
        let page = mrrc::PAGE as usize;
        let mut memory = Vec::new();
        // More than there can be is refused by the allocator.
        let room = bytes.saturating_add(2 * page);
        memory.try_reserve_exact(room).map_err(|_| io::ErrorKind::OutOfMemory)?;
        memory.resize(room, 0_u8);
        let ahead = memory.as_ptr().align_offset(page);
        let start = memory[ahead..].as_mut_ptr();
        Ok(Self::new(start, bytes, memory))
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Takes the bytes from there on out, so that both parts can be lent at the same time.
    ///
    /// # Panics
    /// If there are fewer bytes.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.length, "the part begins {} bytes behind the end", at - self.length);
        let rest = Self { start: self.start.wrapping_add(at), length: self.length - at, keep: Arc::clone(&self.keep) };
        self.length = at;
        rest
    }

    /// Returns how many bytes there are.
    #[expect(clippy::len_without_is_empty, reason = "memory of no bytes is of no interest")]
    pub fn len(&self) -> usize {
        self.length
    }
}

impl fmt::Debug for FabricMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FabricMemory").field("start", &self.start).field("length", &self.length).finish_non_exhaustive()
    }
}
