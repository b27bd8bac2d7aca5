//! RDMA devices with memory windows: a tag is a window, which lets its client alone at its item alone.
//!
//! Chunks are registered for no peer, in blocks that items share, and a window is bound over each item for each connection that is
//! granted a tag of it: before the answer, on the same queue. When the tag's lease has ended the window is taken back. The chunk
//! stays leased, and registered, until the device says that it was: till then a client that reads too late may be at it. A client
//! that takes nothing holds that up no longer than its connection's stall, which ends the connection.
//!
//! A client that reads later than that loses its connection.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use frrwp::fabric::verbs::{VerbsDomain, VerbsEndpoint, Window, Windows};
use frrwp::wire::Segment;
use mrrc::{Access, Cache};

use crate::fabric::far::Part;
use crate::fabric::pinned::Pinned;
use crate::fabric::providers::{Fabric, FarOpened, Leased};
use crate::fabric::tags::{Granted, TagKind};

/// The fabric.
pub(crate) struct Windowed(pub(crate) VerbsDomain);

/// A chunk in one registration. The windows over it have it too, until they are taken back.
pub(crate) struct Open(Arc<Leased<Windowed>>);

impl TagKind for Windowed {
    type Registration = Open;
    type Record = ();
    type Tag = Window;
    const REBINDS: bool = false;

    fn bind((): &(), _: Option<u64>) {}

    fn is_open(registration: &Open) -> bool {
        Arc::strong_count(&registration.0) > 1
    }
}

impl Fabric for Windowed {
    const NAME: &'static str = "verbs";
    const RIGHTS: Access = Access::LOCAL;
    const PINS: bool = true;
    const SEGMENTS: Option<usize> = Some(1);
    type Provider = VerbsDomain;
    type Endpoint = VerbsEndpoint;
    type Own = Option<Windows>;

    fn provider(&self) -> VerbsDomain {
        self.0.clone()
    }

    fn own(endpoint: &VerbsEndpoint) -> Option<Windows> {
        endpoint.windows().cloned()
    }

    fn registration(&self, leased: Leased<Self>) -> io::Result<Open> {
        // A window is of one registration.
        if leased.segments().count() == 1 { Ok(Open(Arc::new(leased))) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    fn record(&self) {}

    #[expect(unsafe_code, reason = "clients read chunks by their addresses")]
    fn tag(&self, own: &Option<Windows>, (): &(), Open(leased): &Open, address: u64, bound: u64) -> Option<Window> {
        let region = leased.segments().next()?.registration().own().ok()?;
        let bound = usize::try_from(bound).ok()?;
        // SAFETY: the lease keeps the bytes registered, and the store's memory is never unmapped while connections stand. Clients
        // believe nothing that they read of a chunk that is written meanwhile.
        unsafe { own.as_ref()?.open(region, address as *const u8, bound, leased.clone()) }.ok()
    }

    fn segment(&self, _: &Cache<Pinned<VerbsDomain>>, granted: &Granted<'_, Self>, _: u64) -> Segment {
        granted.tag.segment()
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
