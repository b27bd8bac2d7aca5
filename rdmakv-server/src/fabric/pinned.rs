//! A provider with registrations that pin, and with waits that end now and then.
//!
//! `shm` and `iwarp` in user space move bytes by the CPU and pin nothing: what they register may be swapped out. [`Pinned`] is
//! around such a provider's domain and, if it has [`Pins`], pins what the provider registers through fixed buffers of an
//! io_uring, so that the kernel counts it (`VmPin`), and one-sided reads meet no page that is elsewhere. The cache's capacity
//! is then what is pinned at most.
//!
//! A page is pinned before a peer can read it, and released after no peer can.
//!
//! [`End`] is around the provider's endpoints. Its waits last a [`ROUND`] at most, so that a serving thread finds out that the
//! server ends, or that the peer has been silent for too long.
#![expect(unsafe_code, reason = "wraps what is unsafe to implement")]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use frrwp::fabric::{Capabilities, Completion, Domain, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::registrar::io_uring::{FixedBuffer, IoUringBuffers};
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, PageRange};
use smallvec::SmallVec;

/// How long a wait lasts at most.
pub(super) const ROUND: Duration = Duration::from_millis(500);
/// Buffers that one ring has room for.
const A_RING: u64 = 1 << 14;
/// Rings at most: each is a descriptor.
const RINGS: u64 = 64;

/// The pins: as many rings as there may be registrations.
#[derive(Debug)]
pub(super) struct Pins(Vec<IoUringBuffers>);

/// A pinned range.
#[derive(Debug)]
struct Pin {
    ring: usize,
    buffer: FixedBuffer,
}

impl Pins {
    /// Room for so many registrations.
    ///
    /// # Errors
    ///
    /// Why the system gives no such ring.
    pub(super) fn new(registrations: u64) -> Result<Self, String> {
        let rings = registrations.div_ceil(A_RING).clamp(1, RINGS);
        let each = registrations.div_ceil(rings).clamp(64, A_RING) as u32;
        let ring = |_| {
            let ring = io_uring::IoUring::new(2).map_err(|error| {
                format!("an io_uring: {error}; see /proc/sys/kernel/io_uring_disabled, or start without --pin")
            })?;
            IoUringBuffers::new(&ring, each).map_err(|error| error.to_string())
        };
        (0..rings).map(ring).collect::<Result<_, _>>().map(Self)
    }

    /// Pages that may be pinned, as far as the system says.
    pub(super) fn pages(&self) -> Option<u64> {
        self.0[0].limits().pages
    }

    fn pin(&self, range: PageRange) -> io::Result<Pin> {
        let mut full = io::Error::from_raw_os_error(libc::ENOSPC);
        for (ring, table) in self.0.iter().enumerate() {
            match table.register(range, Access::LOCAL) {
                Ok(buffer) => return Ok(Pin { ring, buffer }),
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => full = error,
                Err(error) => return Err(error),
            }
        }
        Err(full)
    }

    /// Unpins; what could not be is left there.
    fn unpin(&self, pins: &mut Vec<(PageRange, Pin)>) -> io::Result<()> {
        let (mut left, mut failed) = (Vec::new(), Ok(()));
        for (at, table) in self.0.iter().enumerate() {
            let of_ring = pins.extract_if(.., |(_, pin)| pin.ring == at);
            let mut batch: Vec<_> = of_ring
                .map(|(range, pin)| Registered { range, access: Access::LOCAL, registration: pin.buffer })
                .collect();
            if !batch.is_empty() {
                failed = failed.and(table.deregister(&mut batch));
            }
            let held = |Registered { range, registration, .. }| (range, Pin { ring: at, buffer: registration });
            left.extend(batch.into_iter().map(held));
        }
        *pins = left;
        failed
    }
}

/// A domain that pins what it registers, if it has pins. Clones are the same.
#[derive(Debug)]
pub(super) struct Pinned<D>(Arc<Inner<D>>);

#[derive(Debug)]
struct Inner<D> {
    domain: D,
    pins: Option<Pins>,
}

/// A registration and its pin.
#[derive(Debug)]
pub(super) struct Key<T> {
    /// None where the provider has taken its own back, and the pin is still to go.
    own: Option<T>,
    pin: Option<Pin>,
}

impl<T> Key<T> {
    /// Returns the provider's own registration.
    pub(super) fn own(&self) -> io::Result<&T> {
        self.own.as_ref().ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl<D> Clone for Pinned<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Domain> Pinned<D> {
    /// Around this domain.
    pub(super) fn new(domain: D, pins: Option<Pins>) -> Self {
        Self(Arc::new(Inner { domain, pins }))
    }
}

// SAFETY: what is promised is what the inner domain promises: its registrations are valid, unique and quiescent. The pin besides
// keeps pages where they are and opens them to no peer. Of a batch exactly those are taken out that neither the domain nor the
// ring has any more.
unsafe impl<D: Domain> Registrar for Pinned<D> {
    type Registration = Key<D::Registration>;

    fn register(&self, range: PageRange, access: Access) -> io::Result<Self::Registration> {
        let Inner { domain, pins } = &*self.0;
        let pin = pins.as_ref().map(|pins| pins.pin(range)).transpose()?;
        match domain.register(range, access) {
            Ok(own) => Ok(Key { own: Some(own), pin }),
            Err(error) => {
                if let (Some(pins), Some(pin)) = (pins, pin) {
                    // Where it stays pinned, the ring's table has a slot less; no peer reads the pages.
                    let _ = pins.unpin(&mut vec![(range, pin)]);
                }
                Err(error)
            }
        }
    }

    fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.0.domain.probe(range, access)
    }

    fn examine(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.0.domain.examine(range, access)
    }

    fn deregister(&self, batch: &mut Vec<Registered<Self::Registration>>) -> io::Result<()> {
        let Inner { domain, pins } = &*self.0;
        let mut own = Vec::with_capacity(batch.len());
        // Any pin of one range and access is as good as another, so the owners of each need not be known.
        let mut pinned = Vec::new();
        for Registered { range, access, registration } in batch.drain(..) {
            own.extend(registration.own.map(|registration| Registered { range, access, registration }));
            pinned.extend(registration.pin.map(|pin| (range, pin)));
        }
        let done = domain.deregister(&mut own);
        for Registered { range, access, registration } in own {
            let at = pinned.iter().position(|(pinned, _)| *pinned == range);
            let pin = at.map(|at| pinned.swap_remove(at).1);
            batch.push(Registered { range, access, registration: Key { own: Some(registration), pin } });
        }
        let Some(pins) = pins else { return done };
        let unpinned = pins.unpin(&mut pinned);
        batch.extend(pinned.into_iter().map(|(range, pin)| Registered {
            range,
            access: Access::LOCAL,
            registration: Key { own: None, pin: Some(pin) },
        }));
        done.and(unpinned)
    }

    fn clock(&self) -> Option<Duration> {
        self.0.domain.clock()
    }

    fn limits(&self) -> Limits {
        let Inner { domain, pins } = &*self.0;
        let own = domain.limits();
        let Some(Pins(rings)) = pins else { return own };
        let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        let ring = rings[0].limits();
        Limits {
            regions: least(own.regions, ring.regions.map(|regions| regions * rings.len() as u64)),
            pages: least(own.pages, ring.pages),
            region_pages: least(own.region_pages, ring.region_pages),
            page_size: own.page_size.max(ring.page_size),
        }
    }

    fn rights(&self) -> Access {
        self.0.domain.rights()
    }

    fn name(&self) -> &'static str {
        self.0.domain.name()
    }
}

// SAFETY: the inner domain keeps the contract, and this one changes only how long its calls take.
unsafe impl<D: Domain> Domain for Pinned<D> {
    fn remote(&self, registration: &Self::Registration, address: *const u8, length: usize) -> Segment {
        match &registration.own {
            Some(own) => self.0.domain.remote(own, address, length),
            // A deregistered key opens nothing.
            None => Segment { address: 0, length: 0, key: 0 },
        }
    }

    fn is_held(&self, registration: &Self::Registration) -> bool {
        registration.own.as_ref().is_some_and(|own| self.0.domain.is_held(own))
    }
}

/// An endpoint of a [`Pinned`] domain, with waits of at most a [`ROUND`].
#[derive(Debug)]
pub(super) struct End<E>(pub(super) E);

type Few<'a, T> = SmallVec<[Local<'a, T>; 16]>;

fn inner<'a, T>(pieces: &[Local<'a, Key<T>>]) -> io::Result<Few<'a, T>> {
    let inner = |piece: &Local<'a, Key<T>>| {
        let Local { address, length, registration } = *piece;
        Ok(Local { address, length, registration: registration.own()? })
    };
    pieces.iter().map(inner).collect()
}

// SAFETY: as the inner endpoint, which does everything.
unsafe impl<E: Endpoint> Endpoint for End<E> {
    type Domain = Pinned<E::Domain>;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn now(&self) -> u64 {
        self.0.now()
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.send(message)
    }

    fn receive(&mut self, more: u16) -> io::Result<()> {
        self.0.receive(more)
    }

    unsafe fn write(
        &mut self,
        id: u64,
        from: &[Local<'_, <Self::Domain as Registrar>::Registration>],
        to: Segment,
        immediate: Option<u32>,
    ) -> io::Result<()> {
        let from = inner(from)?;
        // SAFETY: the caller's promise; a key's own registration lives as long as the key.
        unsafe { self.0.write(id, &from, to, immediate) }
    }

    unsafe fn read(
        &mut self,
        id: u64,
        into: &[Local<'_, <Self::Domain as Registrar>::Registration>],
        from: Segment,
    ) -> io::Result<()> {
        let into = inner(into)?;
        // SAFETY: the caller's promise; a key's own registration lives as long as the key.
        unsafe { self.0.read(id, &into, from) }
    }

    fn cork(&mut self, corked: bool) {
        self.0.cork(corked);
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE]) -> Option<Completion> {
        self.0.poll(message)
    }

    fn wait(&mut self, until: Option<u64>) {
        let round = self.0.now().saturating_add(ROUND.as_nanos() as u64);
        self.0.wait(Some(until.map_or(round, |until| until.min(round))));
    }

    fn disconnect(&mut self) {
        self.0.disconnect();
    }
}
