//! One end of a connection: a domain with a cost of registrations, a cache on it, memory, and an engine.

use super::priced::{Priced, PricedEndpoint};
use super::process_name;
use crate::side_by_side::remote::Outcome;
use frrwp::engine::Engine;
use frrwp::fabric::iwarp::{self, IwarpDomain, IwarpEndpoint, IwarpListener, IwarpOptions};
use frrwp::fabric::shm::{Sharing, ShmArena, ShmDomain, ShmEndpoint, ShmListener, ShmOptions, connect};
use frrwp::fabric::{Domain, Endpoint};
use frrwp::handshake::{Limits, Process, RECEIVES, Side};
use mrrc::cost::Linear;
use mrrc::invalidation::Explicit;
use mrrc::{Cache, PAGE};
use std::time::Duration;

/// Room for the largest buffer, and a page for the figures that go back.
pub(super) const ROOM: usize = (4 << 20) + PAGE as usize;

const WITHIN: Duration = Duration::from_secs(10);

/// The offset of the figures.
pub(super) const FIGURES: usize = 4 << 20;

/// Returns a cache that does nothing by itself.
pub(super) fn cache<D: Domain>(domain: Priced<D>) -> Outcome<Cache<Priced<D>>> {
    let builder = Cache::builder(domain).ignore_environment().monitor(Explicit).background(false);
    Ok(builder.capacity_pages(1 << 16).build()?)
}

/// Returns an engine of this process of the handshake.
pub(super) fn engine<E: Endpoint>(
    cache: &Cache<E::Domain>,
    endpoint: E,
    side: Side,
    process: Process,
) -> Engine<'_, E> {
    Engine::new(cache, endpoint, side, Limits { process, ..Limits::default() })
}

/// A use of an end, on any fabric.
pub(super) trait Use {
    type Output;

    /// `memory` has [`ROOM`] bytes, aligned to pages.
    fn with<E: Endpoint<Domain = Priced<D>>, D: Domain>(
        self,
        domain: Priced<D>,
        memory: *mut u8,
        connect: impl FnMut() -> Outcome<E>,
    ) -> Outcome<Self::Output>;
}

/// The cost of registrations, and whether they leave the CPU to others.
#[derive(Clone, Copy)]
pub(super) struct Price {
    pub(super) cost: Linear,
    pub(super) yields: bool,
}

impl Price {
    fn of<D: Domain>(self, domain: D) -> Priced<D> {
        if self.yields { Priced::yielding(domain, self.cost) } else { Priced::new(domain, self.cost) }
    }
}

fn shm(price: Price) -> Outcome<(Priced<ShmDomain>, ShmArena)> {
    let domain = ShmDomain::new(ShmOptions::default())?;
    let arena = domain.arena(ROOM, Sharing::Writable)?;
    (0..ROOM).step_by(PAGE as usize).try_for_each(|at| arena.write_at(at, &[1]))?;
    Ok((price.of(domain), arena))
}

/// Memory of whole pages.
struct Pages {
    memory: Vec<u8>,
    ahead: usize,
}

fn iwarp(price: Price) -> Outcome<(Priced<IwarpDomain>, Pages)> {
    let memory = vec![1_u8; ROOM + PAGE as usize];
    let ahead = memory.as_ptr().align_offset(PAGE as usize);
    Ok((price.of(IwarpDomain::new(IwarpOptions::default())?), Pages { memory, ahead }))
}

impl Pages {
    fn start(&mut self) -> *mut u8 {
        self.memory[self.ahead..].as_mut_ptr()
    }
}

/// Runs the connecting end: `address` is that of each connection in turn.
pub(super) fn connecting<U: Use>(
    fabric: &str,
    price: Price,
    mut address: impl FnMut() -> Outcome<String>,
    work: U,
) -> Outcome<U::Output> {
    if fabric == "shm" {
        let (domain, arena) = shm(price)?;
        work.with::<PricedEndpoint<ShmEndpoint>, _>(domain.clone(), arena.as_ptr(), || {
            Ok(domain.endpoint(connect(domain.inner(), &address()?.parse()?, RECEIVES, WITHIN)?))
        })
    } else {
        let (domain, mut pages) = iwarp(price)?;
        work.with::<PricedEndpoint<IwarpEndpoint>, _>(domain.clone(), pages.start(), || {
            Ok(domain.endpoint(iwarp::connect(domain.inner(), &address()?, RECEIVES)?))
        })
    }
}

/// Runs the listening end, and prints its address in a line.
pub(super) fn listening<U: Use>(fabric: &str, process: Process, price: Price, work: U) -> Outcome<U::Output> {
    if fabric == "shm" {
        let (domain, arena) = shm(price)?;
        let address = format!("shm:@side-by-side-{}-{}", process_name(process), std::process::id());
        let listener = ShmListener::bind(domain.inner(), &address.parse()?)?;
        println!("{address}");
        work.with::<PricedEndpoint<ShmEndpoint>, _>(domain.clone(), arena.as_ptr(), || {
            Ok(domain.endpoint(listener.accept(RECEIVES, WITHIN)?))
        })
    } else {
        let (domain, mut pages) = iwarp(price)?;
        let mut listener = IwarpListener::bind(domain.inner(), "iwarp:127.0.0.1:0")?;
        println!("iwarp:{}", listener.address()?);
        work.with::<PricedEndpoint<IwarpEndpoint>, _>(domain.clone(), pages.start(), || {
            Ok(domain.endpoint(listener.accept(RECEIVES, Some(WITHIN))?))
        })
    }
}
