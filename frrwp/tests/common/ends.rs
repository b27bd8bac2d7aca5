//! Two ends in this process over the fabric of an address, with a domain and a cache each.
#![allow(unreachable_pub, reason = "shared by tests")]

use frrwp::fabric::{Connector, FabricAddress, FabricDomain, FabricEndpoint, FabricListener, FabricOptions, Listener};
use mrrc::Cache;
use mrrc::invalidation::Explicit;
use std::time::Duration;

pub const SOON: Duration = Duration::from_secs(30);

pub struct Ends {
    /// The connecting end's, and the accepting one's.
    pub domains: [FabricDomain; 2],
    pub caches: [Cache<FabricDomain>; 2],
}

impl Ends {
    pub fn new(address: &str) -> Self {
        let options = FabricOptions { set_up: SOON, ..FabricOptions::default() };
        let parsed: FabricAddress = address.parse().unwrap();
        let domains = [(); 2].map(|()| FabricDomain::new(&parsed, options).unwrap());
        let caches = domains.clone().map(|domain| {
            let builder = Cache::builder(domain).ignore_environment().monitor(Explicit);
            builder.background(false).build().unwrap()
        });
        Self { domains, caches }
    }

    pub fn listen(&self, address: &str) -> FabricListener {
        self.domains[1].listen_at(address).unwrap()
    }

    /// One more connection.
    pub fn pair(&self, listener: &mut FabricListener, receives: u16) -> [FabricEndpoint; 2] {
        let address = listener.place();
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| self.domains[0].connect_to(&address, receives, SOON).unwrap());
            let accepted = listener.next(receives, Some(SOON)).unwrap().unwrap();
            [connecting.join().unwrap(), accepted]
        })
    }
}
