//! The client's side of each fabric: a domain, a cache of its registrations, and how connections come about.
//!
//! All is made when it is first needed. Everything that is registered is memory of the client's own, which stays mapped as long as its
//! caches live; so nobody has to look out for changes of it.

use super::end::{End, RECEIVES, end};
use crate::client::address::Fabric;
use crate::client::error::Error;
use crate::client::memory::Memory;
use crate::client::options::Options;
use crate::client::slots::Slots;
use frrwp::fabric::iwarp::{IwarpDomain, IwarpOptions};
use frrwp::fabric::shm::{self, ShmAddress, ShmDomain};
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
use frrwp::fabric::verbs::{VerbsDomain, VerbsOptions};
use mrrc::Cache;
use mrrc::invalidation::Explicit;
use mrrc::registrar::Registrar;
use std::sync::Arc;
use std::time::Duration;

/// What a thread that has connected hands over: how to make an end of it.
pub(in crate::client) type Connected = Box<dyn FnOnce(&mut Fabrics) -> Result<Box<dyn End>, String> + Send>;
/// What connects, in a thread of its own.
pub(in crate::client) type Attempt = Box<dyn FnOnce() -> Result<Connected, String> + Send>;

/// A client's memory, domains and caches. The caches go before the memory.
pub(in crate::client) struct Fabrics {
    shm: Option<Arc<Cache<ShmDomain>>>,
    iwarp: Option<Arc<Cache<IwarpDomain>>>,
    memory: Option<Memory>,
    slots: Option<Slots>,
    value_memory: usize,
    transfer_memory: usize,
}

fn cache<R: Registrar>(registrar: R) -> Result<Arc<Cache<R>>, String> {
    let built = Cache::builder(registrar).monitor(Explicit).build();
    built.map(Arc::new).map_err(|error| error.to_string())
}

impl Fabrics {
    pub(in crate::client) fn new(options: &Options) -> Self {
        let Options { value_memory, transfer_memory, .. } = *options;
        Self { shm: None, iwarp: None, memory: None, slots: None, value_memory, transfer_memory }
    }

    /// What servers read from and write into.
    pub(in crate::client) fn memory(&mut self) -> Result<&Memory, Error> {
        match &mut self.memory {
            Some(memory) => Ok(memory),
            none => Ok(none.insert(Memory::new(self.transfer_memory)?)),
        }
    }

    /// The same, if it was needed yet.
    pub(in crate::client) fn memory_if_any(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// What this side reads into.
    #[inline]
    pub(in crate::client) fn slots(&mut self) -> Option<&mut Slots> {
        if self.slots.is_none() {
            self.slots = Slots::new(self.value_memory).ok();
        }
        self.slots.as_mut()
    }

    /// Bytes that are registered with the domains that connections share.
    pub(in crate::client) fn registered(&self) -> u64 {
        let shm = self.shm.as_ref().map_or(0, |cache| cache.usage().pages);
        let iwarp = self.iwarp.as_ref().map_or(0, |cache| cache.usage().pages);
        (shm + iwarp) * mrrc::PAGE
    }

    /// How to connect to a server's fabric. What fails here will fail there.
    pub(in crate::client) fn attempt(&mut self, to: &Fabric, within: Duration) -> Attempt {
        self.try_attempt(to, within).unwrap_or_else(|why| Box::new(move || Err(why)))
    }

    fn try_attempt(&mut self, to: &Fabric, within: Duration) -> Result<Attempt, String> {
        match to {
            Fabric::Shm(text) => {
                let address: ShmAddress = text.parse().map_err(|error| format!("{error}"))?;
                let domain = self.memory().map_err(|error| error.to_string())?.domain.clone();
                Ok(Box::new(move || {
                    let endpoint =
                        shm::connect(&domain, &address, RECEIVES, within).map_err(|error| error.to_string())?;
                    Ok(Box::new(move |fabrics: &mut Self| {
                        if fabrics.shm.is_none() {
                            fabrics.shm = Some(cache(domain)?);
                        }
                        let cache = fabrics.shm.as_ref().ok_or("no cache")?;
                        Ok(end(endpoint, cache))
                    }))
                }))
            }
            Fabric::Iwarp(text) => {
                if self.iwarp.is_none() {
                    // Items carry sums of their own, from end to end; a server that wants more asks for it.
                    let options = IwarpOptions { set_up: within, checksums: false, ..IwarpOptions::default() };
                    self.iwarp = Some(cache(IwarpDomain::new(options).map_err(|error| format!("{text}: {error}"))?)?);
                }
                let cache = self.iwarp.clone().ok_or("no cache")?;
                let (domain, text) = (cache.registrar().clone(), text.clone());
                Ok(Box::new(move || {
                    let endpoint = domain.connect(&text, RECEIVES).map_err(|error| error.to_string())?;
                    Ok(Box::new(move |_: &mut Self| Ok(end(endpoint, &cache))))
                }))
            }
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            Fabric::Verbs(text) => {
                let text = text.clone();
                Ok(Box::new(move || {
                    let options = VerbsOptions { set_up: within, ..VerbsOptions::default() };
                    // A device that has gone takes its domain along, so each connection has its own.
                    let domain = VerbsDomain::reaching(&text, options).map_err(|error| error.to_string())?;
                    let endpoint = domain.connect(&text, RECEIVES).map_err(|error| error.to_string())?;
                    Ok(Box::new(move |_: &mut Self| Ok(end(endpoint, &cache(domain)?))))
                }))
            }
            #[cfg(not(any(feature = "verbs", feature = "verbs-linked")))]
            Fabric::Verbs(text) => Err(format!("{text}: RDMA devices are not built in: build with the feature verbs")),
        }
    }
}

impl Fabric {
    /// Whether each connection has a domain of its own.
    pub(in crate::client) fn is_apart(&self) -> bool {
        matches!(self, Self::Verbs(_))
    }

    /// Whether the server counts this side's reads by itself.
    pub(in crate::client) fn counts_reads(&self) -> bool {
        matches!(self, Self::Iwarp(_))
    }
}
