//! Servers as users write them: every way to one server, the best one first.
//!
//! ```text
//! ADDRESS[,ADDRESS...][,weight=N][,name=HOST[:PORT]]
//! ```
//!
//! with addresses `shm:PATH`, `shm:@NAME`, `iwarp:HOST:PORT`, `verbs:HOST:PORT`, `udp:HOST:PORT`, `verbs-ud:HOST:PORT`, `unix:PATH`, `tcp:HOST:PORT`, or as
//! memcached's clients have them `HOST`, `HOST:PORT`, `/PATH`. Those of fabrics are for one-sided reads and are used while they stand; those
//! of sockets are what reads fall back to. `udp:` and `verbs-ud:` count as fabrics: the server has no connection there, and nothing is read one-sidedly.

use super::error::Error;
use rdmakv_proto::placement::Name;
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// memcached's port.
const DEFAULT_PORT: u16 = 11211;

/// One server: the ways to it, its weight and its name on the ring.
///
/// ```
/// use rdmakv_client::ServerAddress;
///
/// let server: ServerAddress = "shm:@rdmakv-11211,tcp:10.0.0.1:11211,weight=2".parse()?;
/// assert_eq!((server.fabrics().len(), server.sockets().len(), server.weight()), (1, 1, 2));
/// // On the ring it is what libmemcached would call it.
/// assert_eq!(server.name().to_string(), "10.0.0.1");
/// assert_eq!("10.0.0.1".parse::<ServerAddress>()?.to_string(), "tcp:10.0.0.1:11211");
/// # Ok::<(), rdmakv_client::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ServerAddress {
    fabrics: Vec<Fabric>,
    sockets: Vec<Socket>,
    weight: u32,
    name: Option<Name>,
}

/// A way over a fabric.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Fabric {
    /// Memory of this machine.
    Shm(String),
    /// iWARP in user space.
    Iwarp(String),
    /// RDMA devices.
    Verbs(String),
    /// Datagrams.
    Udp(String),
    /// Datagrams by RDMA devices.
    VerbsUd(String),
}

/// A way over a socket.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Socket {
    /// TCP: host and port.
    Tcp(String, u16),
    /// A socket's path.
    Unix(PathBuf),
}

impl Fabric {
    /// Returns whether each connection has a domain of its own.
    pub(crate) fn is_apart(&self) -> bool {
        matches!(self, Self::Verbs(_))
    }

    /// Returns whether a server may offer a client of datagrams a connection there.
    pub(crate) fn is_offered(&self) -> bool {
        matches!(self, Self::Iwarp(_) | Self::Verbs(_))
    }

    /// Returns whether it is one of datagrams, beside which a server may offer a connection.
    pub(crate) fn is_datagrams(&self) -> bool {
        matches!(self, Self::Udp(_) | Self::VerbsUd(_))
    }

    /// Returns its name in addresses.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Shm(_) => "shm",
            Self::Iwarp(_) => "iwarp",
            Self::Verbs(_) => "verbs",
            Self::Udp(_) => "udp",
            Self::VerbsUd(_) => "verbs-ud",
        }
    }

    /// Returns whether the server counts this side's reads by itself.
    pub(crate) fn counts_reads(&self) -> bool {
        matches!(self, Self::Iwarp(_))
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(text) | Self::Iwarp(text) | Self::Verbs(text) | Self::Udp(text) | Self::VerbsUd(text) => {
                f.write_str(text)
            }
        }
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "tcp:{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = self.fabrics.iter().map(ToString::to_string).chain(self.sockets.iter().map(ToString::to_string));
        for (at, way) in ways.enumerate() {
            write!(f, "{}{way}", if at == 0 { "" } else { "," })?;
        }
        if self.weight != 1 {
            write!(f, ",weight={}", self.weight)?;
        }
        match &self.name {
            Some(name) => write!(f, ",name={}:{}", name.host, name.port),
            None => Ok(()),
        }
    }
}

impl ServerAddress {
    /// Returns the address of a server that there is no way to.
    pub(crate) fn nowhere() -> Self {
        Self { fabrics: Vec::new(), sockets: Vec::new(), weight: 1, name: None }
    }
}

fn wrong(text: &str, what: &'static str) -> Error {
    Error::Address { text: text.to_owned(), what }
}

/// Returns a host, with an IPv6 address in brackets, and a port.
fn place(text: &str) -> Result<(String, u16), &'static str> {
    const NO_PORT: &str = "a port is a number up to 65535: write HOST:PORT, such as 10.0.0.1:11211 or [::1]:11211";
    let (host, port) = match text.rsplit_once(':') {
        _ if text.ends_with(']') => (text, None),
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = bare.unwrap_or(host);
    if host.is_empty() || (bare.is_none() && host.contains(':')) {
        return Err("a host is missing, or is an IPv6 address without brackets: write HOST:PORT, such as [::1]:11211");
    }
    let port = port.map_or(Ok(DEFAULT_PORT), |port| port.parse().map_err(|_| NO_PORT))?;
    if port == 0 { Err(NO_PORT) } else { Ok((host.to_owned(), port)) }
}

/// `rdma:10.0.0.1:7471` or `http://10.0.0.1`; not `host:11211`, nor an IPv6 address.
fn is_of_an_unknown_way(part: &str) -> bool {
    let Some((way, rest)) = part.split_once(':') else { return false };
    let is_name = !way.is_empty() && way != "tcp" && way.bytes().all(|byte| byte.is_ascii_alphabetic());
    is_name && (rest.contains(':') || rest.starts_with(['/', '@'])) && part.parse::<Ipv6Addr>().is_err()
}

impl FromStr for ServerAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut server = Self { fabrics: Vec::new(), sockets: Vec::new(), weight: 1, name: None };
        for part in text.split(',').map(str::trim) {
            server.take(part).map_err(|what| wrong(text, what))?;
        }
        if server.fabrics.is_empty() && server.sockets.is_empty() {
            return Err(wrong(
                text,
                "there is no address in it: write tcp:HOST:PORT, unix:PATH, shm:PATH, iwarp:HOST:PORT, verbs:HOST:PORT, \
                 udp:HOST:PORT or verbs-ud:HOST:PORT",
            ));
        }
        Ok(server)
    }
}

impl ServerAddress {
    fn take(&mut self, part: &str) -> Result<(), &'static str> {
        let bad_fabric = || "it is no address of that fabric: write shm:PATH, shm:@NAME, iwarp:HOST:PORT, verbs:HOST:PORT, udp:HOST:PORT or verbs-ud:HOST:PORT";
        if let Some(weight) = part.strip_prefix("weight=") {
            self.weight =
                weight.parse().ok().filter(|weight| (1..=65_536).contains(weight)).ok_or("a weight is 1 to 65536")?;
        } else if let Some(name) = part.strip_prefix("name=") {
            self.name = Some(match name.starts_with('/') {
                true => Name { host: name.to_owned(), port: 0 },
                false => place(name).map(|(host, port)| Name { host, port })?,
            });
        } else if part.starts_with("shm:") {
            part.parse::<frrwp::fabric::shm::ShmAddress>()
                .map_err(|_| "it is no address of that fabric: write shm:PATH or shm:@NAME")?;
            self.fabrics.push(Fabric::Shm(part.to_owned()));
        } else if part.starts_with("iwarp:") {
            part.parse::<frrwp::fabric::iwarp::IwarpAddress>().map_err(|_| bad_fabric())?;
            self.fabrics.push(Fabric::Iwarp(part.to_owned()));
        } else if let Some(rest) = part.strip_prefix("verbs:") {
            place(rest)?;
            self.fabrics.push(Fabric::Verbs(part.to_owned()));
        } else if let Some(rest) = part.strip_prefix("verbs-ud:") {
            place(rest)?;
            self.fabrics.push(Fabric::VerbsUd(part.to_owned()));
        } else if part.starts_with("udp:") {
            part.parse::<frrwp::fabric::datagram::UdpAddress>().map_err(|_| bad_fabric())?;
            self.fabrics.push(Fabric::Udp(part.to_owned()));
        } else if let Some(path) = part.strip_prefix("unix:").or(part.starts_with('/').then_some(part)) {
            if path.is_empty() {
                return Err("the path is missing: unix:PATH");
            }
            self.sockets.push(Socket::Unix(path.into()));
        } else if part.is_empty() {
            return Err("an address is empty: write no comma without one");
        } else if is_of_an_unknown_way(part) {
            return Err(
                "there is no such way to a server: write tcp:HOST:PORT, unix:PATH, shm:@NAME, shm:PATH, iwarp:HOST:PORT, \
                        verbs:HOST:PORT, udp:HOST:PORT or verbs-ud:HOST:PORT",
            );
        } else {
            let (host, port) = place(part.strip_prefix("tcp:").unwrap_or(part))?;
            self.sockets.push(Socket::Tcp(host, port));
        }
        Ok(())
    }

    /// Returns the ways over fabrics, the best one first.
    pub fn fabrics(&self) -> &[Fabric] {
        &self.fabrics
    }

    /// Returns the ways over sockets, the best one first.
    pub fn sockets(&self) -> &[Socket] {
        &self.sockets
    }

    /// Its share of the keys, beside the others'.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// Its name on the ring: from `name=`, else its first socket as libmemcached would name it, else its first fabric's address.
    pub fn name(&self) -> Name {
        if let Some(name) = &self.name {
            return name.clone();
        }
        match (self.sockets.first(), self.fabrics.first()) {
            (Some(Socket::Tcp(host, port)), _) => Name { host: host.clone(), port: *port },
            (Some(Socket::Unix(path)), _) => Name { host: path.to_string_lossy().into_owned(), port: 0 },
            (None, Some(fabric)) => Name { host: fabric.to_string(), port: DEFAULT_PORT },
            (None, None) => Name { host: String::new(), port: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_a_server_is_understood_and_said_again() {
        for (text, said) in [
            ("localhost", "tcp:localhost:11211"),
            ("localhost:1", "tcp:localhost:1"),
            ("tcp:[::1]:2", "tcp:[::1]:2"),
            ("[::1]", "tcp:[::1]:11211"),
            ("/run/kv.sock", "unix:/run/kv.sock"),
            ("shm:@x, 127.0.0.1:3", "shm:@x,tcp:127.0.0.1:3"),
            ("10.0.0.1,iwarp:10.0.0.1:7471,weight=3", "iwarp:10.0.0.1:7471,tcp:10.0.0.1:11211,weight=3"),
            ("verbs-ud:h:4,verbs:h:4", "verbs-ud:h:4,verbs:h:4"),
            ("udp:[::1]:4,10.0.0.1", "udp:[::1]:4,tcp:10.0.0.1:11211"),
            ("verbs:10.0.0.1:1,name=a:5", "verbs:10.0.0.1:1,name=a:5"),
        ] {
            let server: ServerAddress = text.parse().unwrap();
            assert_eq!(server.to_string(), said);
            assert_eq!(said.parse::<ServerAddress>().unwrap(), server);
        }
    }

    #[test]
    fn what_is_no_server_is_told_so() {
        for text in [
            "",
            "a,",
            "tcp:",
            "tcp:h:0",
            "tcp:h:x",
            "::1:5",
            "shm:",
            "iwarp:h",
            "udp:h",
            "verbs-ud:h:x",
            "unix:",
            "a,weight=0",
            "weight=2",
            "a,name=",
            "rdma:10.0.0.1:7471",
            "SHM:@x",
            "http://10.0.0.1",
            "dead:beef::1",
        ] {
            let error = text.parse::<ServerAddress>().unwrap_err();
            assert!(
                error.to_string().contains("write")
                    || error.to_string().contains("weight")
                    || error.to_string().contains("path"),
                "{text}: {error}"
            );
        }
    }
}
