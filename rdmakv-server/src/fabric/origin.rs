//! The origin of the client at the other end of a connection.

use frrwp::fabric::iwarp::IwarpEndpoint;
use frrwp::fabric::shm::ShmEndpoint;

use super::tags::Peer;

/// An end of a connection that knows its other end.
pub(super) trait Origin {
    /// Returns the peer as which a client counts, on any connection.
    fn peer(&self) -> Peer;

    /// Returns how often the client has read one-sidedly, where this end sees that.
    fn reads(&self) -> u64 {
        0
    }

    /// Notes whether the client's next message is expected soon. Where a thread of the fabric takes messages in, the connection's own does
    /// so meanwhile, so that none has to be woken by the other.
    fn expect_message(&self, _soon: bool) {}
}

impl Origin for IwarpEndpoint {
    fn peer(&self) -> Peer {
        Peer::at(Self::peer(self).ip())
    }

    fn reads(&self) -> u64 {
        self.reads_taken()
    }

    fn expect_message(&self, soon: bool) {
        self.set_passive(!soon);
    }
}

impl Origin for ShmEndpoint {
    fn peer(&self) -> Peer {
        // The domain lets in no other user.
        Peer::User
    }
}

#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
impl Origin for frrwp::fabric::verbs::VerbsEndpoint {
    fn peer(&self) -> Peer {
        Self::peer(self).map_or(Peer::Other, |address| Peer::at(address.ip()))
    }
}
