//! Where the client at the other end of a connection came from.

use frrwp::fabric::iwarp::IwarpEndpoint;
use frrwp::fabric::shm::ShmEndpoint;

use super::tags::Peer;

/// An end of a connection that knows its other end.
pub(super) trait Origin {
    /// As whom a client counts, whatever connection it comes by.
    fn peer(&self) -> Peer;
}

impl Origin for IwarpEndpoint {
    fn peer(&self) -> Peer {
        Peer::at(Self::peer(self).ip())
    }
}

impl Origin for ShmEndpoint {
    fn peer(&self) -> Peer {
        // The domain lets in nobody else.
        Peer::User
    }
}

#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
impl Origin for frrwp::fabric::verbs::VerbsEndpoint {
    fn peer(&self) -> Peer {
        Self::peer(self).map_or(Peer::Other, |address| Peer::at(address.ip()))
    }
}
