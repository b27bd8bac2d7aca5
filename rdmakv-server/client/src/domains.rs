//! The client's side of each fabric: a domain, a cache of its registrations, and how connections come about.
//!
//! All is made when it is first needed. Everything that is registered is memory of the client's own, which stays mapped as long as its
//! caches live; so no monitor watches it.

use super::datagrams::Datagrams;
use super::end::{End, RECEIVES, end};
use crate::address::Fabric;
use crate::error::Error;
use crate::memory::Memory;
use crate::options::Options;
use crate::slots::Slots;
use frrwp::fabric::Connector;
use frrwp::fabric::iwarp::{IwarpDomain, IwarpError, IwarpOptions};
use frrwp::fabric::shm::{ShmDomain, ShmError};
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
use frrwp::fabric::verbs::{VerbsDomain, VerbsOptions};
use mrrc::Cache;
use mrrc::invalidation::Explicit;
use mrrc::registrar::Registrar;
use std::sync::Arc;
use std::time::Duration;

/// An attempt to connect, for a thread of its own.
pub(crate) type Attempt = Box<dyn FnOnce() -> Result<Box<dyn End>, NotConnected> + Send>;

/// Why an attempt came to nothing.
#[derive(Debug)]
pub(crate) struct NotConnected {
    pub(crate) why: String,
    /// Whether the other side closed the connection early: a server at a limit does so, and one that ends.
    pub(crate) was_closed: bool,
}

impl From<String> for NotConnected {
    fn from(why: String) -> Self {
        Self { why, was_closed: false }
    }
}

impl NotConnected {
    fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let by_shm = matches!(error.downcast_ref(), Some(ShmError::ClosedEarly { .. }));
        let by_iwarp = matches!(error.downcast_ref(), Some(IwarpError::Hung { .. }));
        Self { why: error.to_string(), was_closed: by_shm || by_iwarp }
    }
}

/// A client's memory, domains and caches. The caches go before the memory.
pub(crate) struct Fabrics {
    shm: Shared<ShmDomain>,
    iwarp: Shared<IwarpDomain>,
    memory: Option<Memory>,
    slots: Option<Slots>,
    value_memory: usize,
    transfer_memory: usize,
    /// How long an operation may take.
    timeout: Duration,
}

/// A domain that connections share, and the cache of its registrations.
struct Shared<C: Connector>(Option<Arc<Cache<C>>>);

impl<C: Connector<Registration: Send + Sync> + Sync> Shared<C> {
    /// How to connect in the domain, which is made so if there is none.
    fn attempt(
        &mut self,
        to: &str,
        within: Duration,
        domain: impl FnOnce() -> Result<C, String>,
    ) -> Result<Attempt, String> {
        let cache = match &self.0 {
            Some(cache) => cache.clone(),
            None => self.0.insert(cache(domain()?)?).clone(),
        };
        Ok(attempt(to, within, move |_| Ok(cache)))
    }

    /// Bytes that are registered.
    fn registered(&self) -> u64 {
        self.0.as_ref().map_or(0, |cache| cache.usage().pages * mrrc::PAGE)
    }
}

/// How to connect in the domain of a cache, which may be made in the connecting thread.
fn attempt<C: Connector<Registration: Send + Sync> + Sync>(
    to: &str,
    within: Duration,
    cache: impl FnOnce(&str) -> Result<Arc<Cache<C>>, String> + Send + 'static,
) -> Attempt {
    let to = to.to_owned();
    Box::new(move || {
        let cache = cache(&to)?;
        let endpoint = cache.registrar().connect_to(&to, RECEIVES, within).map_err(|error| NotConnected::of(&error))?;
        Ok(end(endpoint, &cache))
    })
}

fn cache<R: Registrar>(registrar: R) -> Result<Arc<Cache<R>>, String> {
    let built = Cache::builder(registrar).monitor(Explicit).build();
    built.map(Arc::new).map_err(|error| error.to_string())
}

impl Fabrics {
    pub(crate) fn new(options: &Options) -> Self {
        let Options { value_memory, transfer_memory, timeout, .. } = *options;
        Self {
            shm: Shared(None),
            iwarp: Shared(None),
            memory: None,
            slots: None,
            value_memory,
            transfer_memory,
            timeout,
        }
    }

    /// In a child of a fork: what was made before is the parent's, and its threads are not here. It is left as it is.
    pub(crate) fn begin_anew(&mut self) {
        std::mem::forget((self.shm.0.take(), self.iwarp.0.take(), self.memory.take()));
    }

    /// Returns the memory that servers read from and write into.
    pub(crate) fn memory(&mut self) -> Result<&Memory, Error> {
        match &mut self.memory {
            Some(memory) => Ok(memory),
            none => Ok(none.insert(Memory::new(self.transfer_memory)?)),
        }
    }

    /// The same, if it was needed yet.
    pub(crate) fn memory_if_any(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// Returns the slots that this side reads into.
    #[inline]
    pub(crate) fn slots(&mut self) -> Option<&mut Slots> {
        if self.slots.is_none() {
            self.slots = Slots::new(self.value_memory).ok();
        }
        self.slots.as_mut()
    }

    /// Bytes that are registered with the domains that connections share.
    pub(crate) fn registered(&self) -> u64 {
        self.shm.registered() + self.iwarp.registered()
    }

    /// How to connect to a server's fabric. A failure here will be one there.
    pub(crate) fn attempt(&mut self, to: &Fabric, within: Duration) -> Attempt {
        self.try_attempt(to, within).unwrap_or_else(|why| Box::new(move || Err(why.into())))
    }

    fn try_attempt(&mut self, to: &Fabric, within: Duration) -> Result<Attempt, String> {
        match to {
            Fabric::Shm(text) => {
                let domain = self.memory().map_err(|error| error.to_string())?.domain.clone();
                self.shm.attempt(text, within, || Ok(domain))
            }
            Fabric::Iwarp(text) => self.iwarp.attempt(text, within, || {
                // Items carry sums of their own, from end to end; a server that wants more asks for it.
                let options = IwarpOptions { set_up: within, checksums: false, ..IwarpOptions::default() };
                IwarpDomain::new(options).map_err(|error| format!("{text}: {error}"))
            }),
            Fabric::Udp(text) => {
                // The operation ends first, and all that is open with it.
                let (text, call_time) = (text.clone(), self.timeout.saturating_mul(2));
                Ok(Box::new(move || {
                    let end = Datagrams::open(&text, within, call_time)?;
                    Ok(Box::new(end) as Box<dyn End>)
                }))
            }
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            Fabric::VerbsUd(text) => {
                let (text, call_time) = (text.clone(), self.timeout.saturating_mul(2));
                Ok(Box::new(move || {
                    let end = Datagrams::open_device(&text, within, call_time)?;
                    Ok(Box::new(end) as Box<dyn End>)
                }))
            }
            // A device that has gone takes its domain along, so each connection has its own.
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            Fabric::Verbs(text) => Ok(attempt(text, within, move |text| {
                let options = VerbsOptions { set_up: within, ..VerbsOptions::default() };
                cache(VerbsDomain::reaching(text, options).map_err(|error| error.to_string())?)
            })),
            #[cfg(not(any(feature = "verbs", feature = "verbs-linked")))]
            Fabric::Verbs(text) | Fabric::VerbsUd(text) => {
                Err(format!("{text}: RDMA devices are not built in: build with the feature verbs"))
            }
        }
    }
}
