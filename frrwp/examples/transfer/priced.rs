//! A provider with registrations that take as long as a card's.
//!
//! `shm` and `iwarp` pin nothing, so registering costs them next to nothing, and neither a cache nor the handshake has much to
//! save. [`Priced`] is around such a provider's domain and makes each registration and each batch of deregistrations last
//! as a [cost model](mrrc::cost::Linear) says: the transfers are real, and what registering costs is a real card's.
//!
//! The time is spent computing, by the thread that registers: pinning pages is the CPU's work in a real registration too.

#![expect(unsafe_code, reason = "wraps what is unsafe to implement")]

use frrwp::fabric::poller::Bell;
use frrwp::fabric::{Armed, Capabilities, Completion, Domain, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::cost::Linear;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, PageRange};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A domain with registrations that last. Clones are the same domain.
#[derive(Debug)]
pub(crate) struct Priced<D>(Arc<Inner<D>>);

#[derive(Debug)]
struct Inner<D> {
    domain: D,
    cost: Linear,
    /// Others may use the CPU meanwhile.
    yields: bool,
    /// Nanoseconds.
    registering: AtomicU64,
}

impl<D> Clone for Priced<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Domain> Priced<D> {
    /// Registrations of this domain, at this cost.
    pub(crate) fn new(domain: D, cost: Linear) -> Self {
        Self(Arc::new(Inner { domain, cost, yields: false, registering: AtomicU64::new(0) }))
    }

    /// The same, but the CPU is left to others meanwhile: several processes on one CPU register at once, as machines would.
    #[allow(dead_code, reason = "the example has one peer")]
    pub(crate) fn yielding(domain: D, cost: Linear) -> Self {
        Self(Arc::new(Inner { domain, cost, yields: true, registering: AtomicU64::new(0) }))
    }

    /// Passes the time of a registration or a deregistration that began then.
    fn spend(&self, since: Instant, micros: f64) {
        spend(since, micros, if self.0.yields { std::thread::yield_now } else { std::hint::spin_loop });
    }

    /// How long registrations took until now, all together.
    pub(crate) fn registering(&self) -> Duration {
        Duration::from_nanos(self.0.registering.load(Ordering::Relaxed))
    }

    /// Returns the domain itself.
    pub(crate) fn inner(&self) -> &D {
        &self.0.domain
    }

    /// Returns an endpoint of the inner domain, as one of this.
    pub(crate) fn endpoint<E: Endpoint<Domain = D>>(&self, inner: E) -> PricedEndpoint<E> {
        PricedEndpoint(inner)
    }
}

/// Calls `pass` until this time has passed. A cost that cannot be a time counts as 0.
fn spend(since: Instant, micros: f64, pass: fn()) {
    let until = Duration::try_from_secs_f64(micros * 1e-6).unwrap_or_default();
    while since.elapsed() < until {
        pass();
    }
}

// SAFETY: what is promised is what the inner domain promises; this one takes longer.
unsafe impl<D: Domain> Registrar for Priced<D> {
    type Registration = D::Registration;

    fn register(&self, range: PageRange, access: Access) -> io::Result<D::Registration> {
        let start = Instant::now();
        let registration = self.0.domain.register(range, access);
        self.spend(start, self.0.cost.register(range.pages()));
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.registering.fetch_add(nanos, Ordering::Relaxed);
        registration
    }

    fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.0.domain.probe(range, access)
    }

    fn examine(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.0.domain.examine(range, access)
    }

    fn deregister(&self, batch: &mut Vec<Registered<D::Registration>>) -> io::Result<()> {
        let start = Instant::now();
        let pages = batch.iter().map(|registered| registered.range.pages()).sum();
        let deregistered = self.0.domain.deregister(batch);
        self.spend(start, self.0.cost.deregister(pages));
        deregistered
    }

    fn limits(&self) -> Limits {
        self.0.domain.limits()
    }

    fn rights(&self) -> Access {
        self.0.domain.rights()
    }

    fn name(&self) -> &'static str {
        self.0.domain.name()
    }
}

// SAFETY: the inner domain keeps the contract, and this one changes only how long its calls take.
unsafe impl<D: Domain> Domain for Priced<D> {
    fn remote(&self, registration: &D::Registration, address: *const u8, length: usize) -> Segment {
        self.0.domain.remote(registration, address, length)
    }

    fn is_held(&self, registration: &D::Registration) -> bool {
        self.0.domain.is_held(registration)
    }
}

/// An endpoint of a [`Priced`] domain.
#[derive(Debug)]
pub(crate) struct PricedEndpoint<E>(E);

impl<E> PricedEndpoint<E> {
    /// Returns the endpoint itself.
    pub(crate) fn inner(&self) -> &E {
        &self.0
    }
}

// SAFETY: as the inner endpoint, which does everything.
unsafe impl<E: Endpoint> Endpoint for PricedEndpoint<E> {
    type Domain = Priced<E::Domain>;

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
        from: &[Local<'_, <E::Domain as Registrar>::Registration>],
        to: Segment,
        immediate: Option<u32>,
    ) -> io::Result<()> {
        // SAFETY: the caller makes the promises of the inner endpoint's call.
        unsafe { self.0.write(id, from, to, immediate) }
    }

    unsafe fn read(
        &mut self,
        id: u64,
        into: &[Local<'_, <E::Domain as Registrar>::Registration>],
        from: Segment,
    ) -> io::Result<()> {
        // SAFETY: the caller makes the promises of the inner endpoint's call.
        unsafe { self.0.read(id, into, from) }
    }

    fn cork(&mut self, corked: bool) {
        self.0.cork(corked);
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE]) -> Option<Completion> {
        self.0.poll(message)
    }

    fn wait(&mut self, until: Option<u64>) {
        self.0.wait(until);
    }

    fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        self.0.attach(bell)
    }

    fn arm(&mut self) -> Armed {
        self.0.arm()
    }

    fn disconnect(&mut self) {
        self.0.disconnect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frrwp::fabric::iwarp::{IwarpDomain, IwarpOptions};

    #[test]
    fn a_registration_lasts_as_long_as_a_cards() {
        let domain = Priced::new(IwarpDomain::new(IwarpOptions::default()).unwrap(), Linear::PAPER);
        let cache = mrrc::Cache::builder(domain.clone()).build().unwrap();
        cache.with_slice(&[0; 100], |_| ()).unwrap();
        assert!(domain.registering().as_micros() >= 8);
    }
}
