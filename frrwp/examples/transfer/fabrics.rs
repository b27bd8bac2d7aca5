//! From an address to a connection and memory for it: all that depends on the fabric.

use crate::Outcome;
use frrwp::fabric::iwarp::{IwarpAddress, IwarpDomain, IwarpEndpoint, IwarpOptions};
use frrwp::fabric::priced::{Priced, PricedEndpoint};
use frrwp::fabric::shm::{Sharing, ShmAddress, ShmArena, ShmDomain, ShmEndpoint, ShmListener, ShmOptions, connect};
#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
use frrwp::fabric::verbs::{VerbsAddress, VerbsDomain, VerbsEndpoint, VerbsOptions};
use frrwp::fabric::{Domain, Endpoint};
use frrwp::handshake::RECEIVES;
use mrrc::PAGE;
use mrrc::cost::Linear;
use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How long setting a connection up may take.
const WITHIN: Duration = Duration::from_secs(5);

/// An address.
#[derive(Clone, Debug)]
pub(crate) enum Fabric {
    Shm(ShmAddress),
    Iwarp(IwarpAddress),
    #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
    Verbs(VerbsAddress),
}

impl FromStr for Fabric {
    type Err = Box<dyn Error + Send + Sync>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("shm", _)) => Ok(Self::Shm(text.parse()?)),
            Some(("iwarp", _)) => Ok(Self::Iwarp(text.parse()?)),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Some(("verbs", _)) => Ok(Self::Verbs(text.parse()?)),
            #[cfg(not(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux")))]
            Some(("verbs", _)) => Err("RDMA devices are not built in: cargo run --features verbs".into()),
            _ => Err("no fabric of that name: write shm:PATH, shm:@NAME or iwarp:HOST:PORT, or verbs:HOST:PORT".into()),
        }
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(address) => address.fmt(f),
            Self::Iwarp(address) => address.fmt(f),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Self::Verbs(address) => address.fmt(f),
        }
    }
}

/// A domain that can make memory which a peer may be let at.
pub(crate) trait Provider: Domain + Clone {
    type Memory: Memory;

    /// So many bytes, beginning at a page.
    fn memory(&self, bytes: usize) -> Outcome<Self::Memory>;
}

/// Memory for transfers. Nobody has references to its bytes, as a peer may write them.
pub(crate) trait Memory {
    fn start(&self) -> *mut u8;
}

impl Provider for ShmDomain {
    type Memory = ShmArena;

    fn memory(&self, bytes: usize) -> Outcome<ShmArena> {
        Ok(self.arena(bytes, Sharing::Writable)?)
    }
}

impl Memory for ShmArena {
    fn start(&self) -> *mut u8 {
        self.as_ptr()
    }
}

/// Memory of this process, of whole pages.
pub(crate) struct Pages {
    _memory: Vec<u8>,
    start: *mut u8,
}

impl Provider for IwarpDomain {
    type Memory = Pages;

    fn memory(&self, bytes: usize) -> Outcome<Pages> {
        Pages::new(bytes)
    }
}

#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
impl Provider for VerbsDomain {
    type Memory = Pages;

    fn memory(&self, bytes: usize) -> Outcome<Pages> {
        Pages::new(bytes)
    }
}

impl Pages {
    fn new(bytes: usize) -> Outcome<Self> {
        let mut memory = Vec::new();
        // More than there can be is refused by the allocator.
        let room = bytes.saturating_add(2 * PAGE as usize);
        memory.try_reserve_exact(room)?;
        memory.resize(room, 0);
        let ahead = memory.as_ptr().align_offset(PAGE as usize);
        let start = memory[ahead..].as_mut_ptr();
        Ok(Self { _memory: memory, start })
    }
}

impl Memory for Pages {
    fn start(&self) -> *mut u8 {
        self.start
    }
}

/// A connection, and why it ended if that is known.
pub(crate) struct Connection<E> {
    pub(crate) endpoint: E,
    pub(crate) why: fn(&E) -> Option<String>,
}

/// What a side does, whatever its fabric.
pub(crate) trait Work {
    /// As who connects.
    fn connecting<E: Endpoint<Domain = Priced<D>>, D: Provider>(
        &self,
        domain: &Priced<D>,
        connect: impl FnMut() -> Outcome<Connection<E>>,
    ) -> Outcome<()>;
}

/// What a server does, whatever its fabric.
pub(crate) trait Serve: Sync {
    /// With each connection, in a thread of its own.
    fn serve<E: Endpoint<Domain = Priced<D>>, D: Provider>(
        &self,
        domain: &Priced<D>,
        connection: Connection<E>,
    ) -> Outcome<()>;

    /// Runs the loop that accepts, given what waits for the next connection: nothing if it has to be asked again.
    fn accept<E: Endpoint<Domain = Priced<D>> + Send, D: Provider>(
        &self,
        at: &str,
        domain: &Priced<D>,
        accept: impl FnMut() -> Result<Connection<E>, NotNow>,
    ) -> Outcome<()>;
}

/// Why there is no connection now.
pub(crate) enum NotNow {
    /// Nobody came.
    Nobody,
    /// Somebody came and was not let in.
    Refused(String),
}

fn shm_why(endpoint: &PricedEndpoint<ShmEndpoint>) -> Option<String> {
    endpoint.inner().fault().map(|fault| format!("the peer broke the rules: {fault}"))
}

fn iwarp_why(endpoint: &PricedEndpoint<IwarpEndpoint>) -> Option<String> {
    endpoint.inner().why().map(|why| why.to_string())
}

#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
fn verbs_why(endpoint: &PricedEndpoint<VerbsEndpoint>) -> Option<String> {
    endpoint.inner().why().map(|why| why.to_string())
}

pub(crate) fn connecting(fabric: &Fabric, cost: Linear, work: &impl Work) -> Outcome<()> {
    match fabric {
        Fabric::Shm(address) => {
            let domain = Priced::new(ShmDomain::new(ShmOptions::default())?, cost);
            work.connecting(&domain, || {
                let endpoint = connect(domain.inner(), address, RECEIVES, WITHIN)?;
                Ok(Connection { endpoint: domain.endpoint(endpoint), why: shm_why })
            })
        }
        Fabric::Iwarp(address) => {
            let domain = Priced::new(IwarpDomain::new(IwarpOptions::default())?, cost);
            work.connecting(&domain, || {
                let endpoint = domain.inner().connect(&address.to_string(), RECEIVES)?;
                Ok(Connection { endpoint: domain.endpoint(endpoint), why: iwarp_why })
            })
        }
        #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
        Fabric::Verbs(address) => {
            let domain = VerbsDomain::reaching(&address.to_string(), VerbsOptions::default())?;
            let domain = Priced::new(domain, cost);
            work.connecting(&domain, || {
                let endpoint = domain.inner().connect(&address.to_string(), RECEIVES)?;
                Ok(Connection { endpoint: domain.endpoint(endpoint), why: verbs_why })
            })
        }
    }
}

/// How long to wait for a connection before looking at other things.
const TURN: Duration = Duration::from_millis(200);

pub(crate) fn listening(fabric: &Fabric, cost: Linear, server: &impl Serve) -> Outcome<()> {
    use frrwp::fabric::iwarp::IwarpError;
    use frrwp::fabric::shm::ShmError;
    match fabric {
        Fabric::Shm(address) => {
            let domain = Priced::new(ShmDomain::new(ShmOptions::default())?, cost);
            let listener = ShmListener::bind(domain.inner(), address)?;
            server.accept(&address.to_string(), &domain, || match listener.accept(RECEIVES, TURN) {
                Ok(endpoint) => Ok(Connection { endpoint: domain.endpoint(endpoint), why: shm_why }),
                Err(ShmError::TimedOut { doing: "accept a connection", .. }) => Err(NotNow::Nobody),
                Err(error) => Err(NotNow::Refused(error.to_string())),
            })
        }
        Fabric::Iwarp(address) => {
            let domain = Priced::new(IwarpDomain::new(IwarpOptions::default())?, cost);
            let mut listener = domain.inner().listen(&address.to_string())?;
            let at = format!("iwarp:{}", listener.address()?);
            let mut refused = 0;
            server.accept(&at, &domain, || match listener.accept(RECEIVES, Some(TURN)) {
                Ok(endpoint) => Ok(Connection { endpoint: domain.endpoint(endpoint), why: iwarp_why }),
                Err(IwarpError::TimedOut { .. }) if listener.refused() == refused => Err(NotNow::Nobody),
                Err(IwarpError::TimedOut { .. }) => {
                    refused = listener.refused();
                    Err(NotNow::Refused(listener.last_refused().map(ToString::to_string).unwrap_or_default()))
                }
                Err(error) => Err(NotNow::Refused(error.to_string())),
            })
        }
        #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
        Fabric::Verbs(address) => {
            use frrwp::fabric::verbs::VerbsError;
            let domain = VerbsDomain::reaching(&address.to_string(), VerbsOptions::default())?;
            let domain = Priced::new(domain, cost);
            let mut listener = domain.inner().listen(&address.to_string())?;
            let at = format!("verbs:{}", listener.address()?);
            let mut refused = 0;
            server.accept(&at, &domain, || match listener.accept(RECEIVES, Some(TURN)) {
                Ok(endpoint) => Ok(Connection { endpoint: domain.endpoint(endpoint), why: verbs_why }),
                Err(VerbsError::TimedOut { .. }) if listener.refused() == refused => Err(NotNow::Nobody),
                Err(VerbsError::TimedOut { .. }) => {
                    refused = listener.refused();
                    Err(NotNow::Refused(listener.last_refused().map(ToString::to_string).unwrap_or_default()))
                }
                Err(error) => Err(NotNow::Refused(error.to_string())),
            })
        }
    }
}
