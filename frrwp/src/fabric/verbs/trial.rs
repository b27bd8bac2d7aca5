//! Finding out what a device's windows are good for, by having peers of its own read what they must not.

use super::address::VerbsAddress;
use super::connect::{VerbsListener, connect};
use super::endpoint::VerbsEndpoint;
use super::error::VerbsError;
use super::windows::{Keeps, Window};
use super::{VerbsDomain, ib};
use crate::fabric::attempt::Attempt;
use crate::fabric::traits::{Completion, Endpoint, Local};
use crate::wire::{MESSAGE, Segment};
use mrrc::registrar::verbs::MemoryRegion;
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, PAGE, PageRange};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The use of the windows of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "who relies on windows that do not hold lets peers at what is not theirs"]
pub enum WindowTrial {
    /// They let one peer at their bytes, and at no others.
    Holds,
    /// The device has none.
    Absent,
    /// They do not do what they are for.
    Fails {
        /// The observation: "a peer …".
        what: &'static str,
    },
}

/// How long one read is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// The bytes that peers are let at, within two pages.
const FROM: usize = 1000;
const BYTES: usize = 5000;

/// A connection of the device with itself. It ends with what is refused.
struct Peers {
    near: VerbsEndpoint,
    far: VerbsEndpoint,
}

/// Finds out whether the [windows](super::Windows) of a domain's device protect memory.
///
/// It connects the device to itself, at the host of this address, and has peers read what they may, and what they must not. The domain
/// was opened for windows ([`VerbsOptions::windows`](super::VerbsOptions::windows)).
///
/// # Errors
/// [`VerbsError`]: it could not be tried.
pub fn try_windows(domain: &VerbsDomain, address: &str) -> Result<WindowTrial, VerbsError> {
    if !domain.has_windows() {
        return Ok(WindowTrial::Absent);
    }
    let address: VerbsAddress = address.parse()?;
    let host = own_host(domain, &address)?;
    let mut listener = VerbsListener::bind(domain, &format!("verbs:{}", SocketAddr::new(host, 0)))?;
    let system = |error| VerbsError::System { address: address.to_string(), what: "try memory windows", error };
    // Where reads are from, and where they go: never freed while something may be at it.
    let memory = Memory::new(domain, Access::LOCAL, 7).map_err(system)?;
    tried(domain, &mut listener, &memory).map_err(system)
}

fn tried(domain: &VerbsDomain, listener: &mut VerbsListener, memory: &Arc<Memory>) -> io::Result<WindowTrial> {
    let fails = |what| Ok(WindowTrial::Fails { what });
    let (mut one, mut other) = (peers(domain, listener)?, peers(domain, listener)?);
    let window = one.open(memory)?;
    let told = window.segment();
    one.speak()?;
    if !one.reads(told)? {
        return fails("a peer cannot read what it was let at");
    }
    if other.reads(told)? {
        return fails("a peer reads by another's key");
    }
    let longer = Segment { length: told.length + 1, ..told };
    if one.reads(longer)? {
        return fails("a peer reads behind the bytes that it was let at");
    }
    let mut one = peers(domain, listener)?;
    let window = one.open(memory)?;
    one.speak()?;
    let told = window.segment();
    if one.reads(Segment { address: told.address - 1, ..told })? {
        return fails("a peer reads before the bytes that it was let at");
    }
    let mut one = peers(domain, listener)?;
    let held = Arc::strong_count(memory);
    let window = one.open(memory)?;
    one.speak()?;
    let told = window.segment();
    drop(window);
    let until = Instant::now() + PATIENCE;
    while Arc::strong_count(memory) > held {
        one.near.wait(Some(one.near.now() + 1_000_000));
        one.look();
        if until <= Instant::now() {
            return fails("a key is not taken back");
        }
    }
    if one.reads(told)? {
        return fails("a peer reads by a key that was taken back");
    }
    Ok(WindowTrial::Holds)
}

fn peers(domain: &VerbsDomain, listener: &mut VerbsListener) -> io::Result<Peers> {
    let address = format!("verbs:{}", listener.address()?);
    std::thread::scope(|scope| {
        let far = scope.spawn(|| connect(domain, &address, 4));
        let near = listener.accept(4, Some(domain.options().set_up));
        let far = far.join().map_err(|_| io::Error::other("connecting to itself failed"))?;
        Ok(Peers { near: near.map_err(io::Error::other)?, far: far.map_err(io::Error::other)? })
    })
}

/// Returns an address of this machine by which the device is reached.
fn own_host(domain: &VerbsDomain, address: &VerbsAddress) -> Result<IpAddr, VerbsError> {
    let found = address.resolve(&Attempt::new(domain.options().set_up))?;
    let named = found.iter().map(SocketAddr::ip).find(|ip| !ip.is_unspecified());
    named.or_else(|| hosts(domain).next()).ok_or_else(|| VerbsError::NoWay {
        address: address.to_string(),
        what: "find an address of the device's own, to try its memory windows (name one)",
    })
}

/// Returns the addresses that the device's ports have by RoCE's rule.
#[expect(unsafe_code, reason = "asks libibverbs")]
fn hosts(domain: &VerbsDomain) -> impl Iterator<Item = IpAddr> {
    const IDENTIFIERS: libc::c_int = 64;
    let ports = domain.attributes().ports;
    let all = (1..=ports).flat_map(|port| (0..IDENTIFIERS).map(move |index| (port, index)));
    all.filter_map(|(port, index)| {
        let mut said = ib::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and the identifier one that the call fills; any bytes are one.
        let raw = unsafe {
            if ib::ibv_query_gid(domain.context(), port, index, &mut said) != 0 {
                return None;
            }
            said.raw
        };
        Ipv6Addr::from(raw).to_ipv4_mapped().map(IpAddr::V4)
    })
}

impl Peers {
    #[expect(unsafe_code, reason = "lets a peer at memory")]
    fn open(&self, memory: &Arc<Memory>) -> io::Result<Window> {
        let windows = self.near.windows().ok_or(io::ErrorKind::Unsupported)?;
        let keeps: Keeps = memory.clone();
        let registration = memory.registration()?;
        // SAFETY: the owner of the memory keeps it registered, and does not write it.
        unsafe { windows.open(registration, memory.address().wrapping_add(FROM), BYTES, keeps) }
    }

    /// Sends a message to the far side, behind which windows are open that were opened before.
    fn speak(&mut self) -> io::Result<()> {
        let (until, mut message) = (Instant::now() + PATIENCE, [0; MESSAGE]);
        // The accepting side may have to receive something first.
        while let Err(error) = self.near.send(b"open") {
            if error.kind() != io::ErrorKind::WouldBlock || until <= Instant::now() {
                return Err(error);
            }
            self.near.wait(Some(self.near.now() + 1_000_000));
            self.look();
        }
        while Instant::now() < until {
            match self.far.poll(&mut message) {
                Some(Completion::Message { .. }) => return Ok(()),
                Some(Completion::Lost | Completion::Flushed) => break,
                _ => self.far.wait(Some(self.far.now() + 1_000_000)),
            }
            self.look();
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "a message of the device to itself did not come"))
    }

    /// Has the near side do its work.
    fn look(&mut self) {
        let _ = self.near.poll(&mut [0; MESSAGE]);
    }

    /// Has the far side read; whether it got the bytes.
    #[expect(unsafe_code, reason = "reads into memory")]
    fn reads(&mut self, from: Segment) -> io::Result<bool> {
        let into = Memory::new(self.far.domain(), self.far.capabilities().sink, 0)?;
        let registration = into.registration()?;
        let local = Local { address: into.address(), length: from.length as usize, registration };
        // SAFETY: it is done, or flushed, before the memory goes.
        unsafe { self.far.read(1, &[local], from) }?;
        let (until, mut message, mut got) = (Instant::now() + PATIENCE, [0; MESSAGE], None);
        while got.is_none() {
            match self.far.poll(&mut message) {
                Some(Completion::Done { succeeded, .. }) => got = Some(succeeded),
                Some(Completion::Flushed) => got = Some(false),
                Some(_) => {}
                None => self.far.wait(Some(self.far.now() + 1_000_000)),
            }
            self.look();
            if until <= Instant::now() {
                self.far.disconnect();
            }
        }
        // SAFETY: two pages, which no peer reads any more.
        let read = unsafe { std::slice::from_raw_parts(into.address(), from.length as usize) };
        Ok(got == Some(true) && read.iter().all(|&byte| byte == 7))
    }
}

/// Two registered pages.
struct Memory {
    domain: VerbsDomain,
    pages: *mut [Page; 2],
    registered: Option<Registered<MemoryRegion>>,
}

#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "read by address")] [u8; PAGE as usize]);

// SAFETY: a slab owns its memory alone, and memory belongs to no thread.
#[expect(unsafe_code, reason = "it has a pointer")]
unsafe impl Send for Memory {}
// SAFETY: nothing of it is changed by a shared reference.
#[expect(unsafe_code, reason = "it has a pointer")]
unsafe impl Sync for Memory {}

impl Memory {
    /// Full of this byte.
    fn new(domain: &VerbsDomain, access: Access, byte: u8) -> io::Result<Arc<Self>> {
        let pages = Box::into_raw(Box::new([Page([byte; PAGE as usize]); 2]));
        let mut memory = Self { domain: domain.clone(), pages, registered: None };
        let range = PageRange::of_bytes(pages as u64, 2 * PAGE).map_err(io::Error::other)?;
        let registration = domain.register(range, access)?;
        memory.registered = Some(Registered { range, access, registration });
        Ok(Arc::new(memory))
    }

    fn address(&self) -> *mut u8 {
        self.pages.cast()
    }

    fn registration(&self) -> io::Result<&MemoryRegion> {
        let registered = self.registered.as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok(&registered.registration)
    }
}

impl Drop for Memory {
    #[expect(unsafe_code, reason = "frees what it has allocated")]
    fn drop(&mut self) {
        let mut batch: Vec<_> = self.registered.take().into_iter().collect();
        if self.domain.deregister(&mut batch).is_ok() {
            // SAFETY: it came from a box, and has no user: no device accesses memory that is not registered any more.
            drop(unsafe { Box::from_raw(self.pages) });
        }
    }
}
