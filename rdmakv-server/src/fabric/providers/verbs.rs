//! RDMA devices without memory windows that hold ([`windows`](super::windows) has the others): a tag is the key of the registration
//! that the item is in, and opens all of that, for every client that is told it. That has to be asked for (`--expose slab`). A
//! registration is a block of 64 KiB or more, so that items share them.
//!
//! A key goes when the cache takes the registration back, after the leases of what is in it. A client that reads later than
//! that loses its connection.

use std::convert::Infallible;
use std::io;

use frrwp::fabric::Domain;
use frrwp::fabric::verbs::{VerbsDomain, VerbsEndpoint};
use frrwp::wire::Segment;
use mrrc::{Access, Cache};

use crate::fabric::far::Part;
use crate::fabric::pinned::Pinned;
use crate::fabric::providers::{Fabric, FarOpened, Leased};
use crate::fabric::tags::{Granted, TagKind};

/// The fabric.
pub(crate) struct Verbs(pub(crate) VerbsDomain);

/// A chunk in one registration, which stays as long as this.
pub(crate) struct Open(Leased<Verbs>);

impl TagKind for Verbs {
    type Registration = Open;
    type Record = ();
    type Tag = ();
    const REBINDS: bool = false;

    fn bind((): &(), _: Option<u64>) {}
}

impl Fabric for Verbs {
    const NAME: &'static str = "verbs";
    const RIGHTS: Access = Access::LOCAL.union(Access::REMOTE_READ);
    const PINS: bool = true;
    const SEGMENTS: Option<usize> = Some(1);
    type Provider = VerbsDomain;
    type Endpoint = VerbsEndpoint;
    type Own = ();

    fn provider(&self) -> VerbsDomain {
        self.0.clone()
    }

    fn own(_: &VerbsEndpoint) {}

    fn registration(&self, leased: Leased<Self>) -> io::Result<Open> {
        // A tag is one key.
        if leased.segments().count() == 1 { Ok(Open(leased)) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    fn record(&self) {}

    fn tag(&self, (): &(), (): &(), _: &Open, _: u64, _: u64) -> Option<()> {
        Some(())
    }

    fn segment(&self, cache: &Cache<Pinned<VerbsDomain>>, granted: &Granted<'_, Self>, address: u64) -> Segment {
        match granted.registration.0.segments().next() {
            Some(segment) => {
                cache.registrar().remote(segment.registration(), address as *const u8, granted.bound as usize)
            }
            None => Segment { address: 0, length: 0, key: 0 },
        }
    }

    fn address(&self, told: u64) -> Option<u64> {
        Some(told)
    }

    fn release(&self, registration: Open) {
        drop(registration);
    }

    type FarTag = Infallible;

    fn open_far(&self, _: &VerbsEndpoint, _: Leased<Self>, _: &Part, _: Access) -> io::Result<FarOpened<Infallible>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn close_far(&self, tag: Infallible) -> Option<Infallible> {
        Some(tag)
    }
}
