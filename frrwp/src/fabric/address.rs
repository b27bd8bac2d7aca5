//! The address of a peer: `HOST:PORT`, with an IPv6 address in brackets. The common parts of the providers that go over a
//! network.

use super::attempt::Attempt;
use super::lookup;
use std::fmt;
use std::io;
use std::net::SocketAddr;

/// A host, by name or address, and a port.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// Returns the text behind this fabric's name and a colon.
    pub(super) fn parse(text: &str, fabric: &str) -> Option<Self> {
        let rest = text.strip_prefix(fabric)?.strip_prefix(':')?;
        let (host, port) = rest.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        // A colon in a host is IPv6's, and needs its brackets.
        let is_one = !host.is_empty() && (bare.is_some() || !host.contains(':'));
        is_one.then(|| Self { host: host.to_owned(), port })
    }

    /// Its addresses, at least one.
    pub(super) fn resolve(&self, attempt: &Attempt) -> io::Result<Vec<SocketAddr>> {
        lookup::resolve(&self.host, self.port, attempt)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}
