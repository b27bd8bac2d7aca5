//! The addresses of the server of a run: the same before and after a kill, so that clients find the new one where the old
//! one was, and their memory of the old one is put to the test.

use std::io;
use std::net::{TcpListener, UdpSocket};

use crate::loss::Relay;
use crate::record::Transport;

/// Connections for the busiest clients: fewer than there are.
const CONNECTIONS: usize = 3;

#[derive(Debug)]
pub(crate) struct Addresses {
    tcp: String,
    shm: Option<String>,
    iwarp: Option<String>,
    udp: bool,
    /// Connections for the busiest clients of datagrams, if there are such clients.
    connections: Option<usize>,
    /// The server's address for datagrams of our client library, and the relay that loses some.
    datagrams: Option<(String, Option<Relay>)>,
    /// The interface where the kernel answers, and the path of the clients' namespace.
    kernel: Option<Kernel>,
}

/// A server that has the kernel answer datagrams.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The server's address and interface.
    pub(crate) host: String,
    pub(crate) interface: String,
    /// The path of the clients' namespace.
    pub(crate) namespace: String,
}

impl Addresses {
    /// Chooses addresses that were free a moment ago. With `at` they are those of a server that runs already, for TCP and for datagrams.
    /// This share of the datagrams of our client library is lost.
    pub(crate) fn choose(
        transports: &[Transport],
        at: Option<(&str, Option<&str>)>,
        kernel: Option<Kernel>,
        loss: f64,
    ) -> io::Result<Self> {
        let uses = |transport| transports.contains(&transport);
        if let Some((at, datagrams)) = at {
            if [Transport::Shm, Transport::Iwarp, Transport::Hybrid].into_iter().any(uses) {
                return Err(io::Error::other(
                    "--at names a server's TCP port: leave shm, iwarp and hybrid out of --transports",
                ));
            }
            if uses(Transport::Datagrams) != datagrams.is_some() {
                return Err(io::Error::other(
                    "--at with the transport datagrams: --datagrams-at has to name the server's address for them",
                ));
            }
            let udp = uses(Transport::Udp);
            return Ok(Self {
                tcp: at.to_owned(),
                shm: None,
                iwarp: None,
                udp,
                connections: None,
                datagrams: datagrams.map(|address| (address.to_owned(), None)),
                kernel,
            });
        }
        let host = kernel.as_ref().map_or("127.0.0.1", |kernel| &kernel.host);
        let (tcp, iwarp) = (TcpListener::bind((host, 0))?, TcpListener::bind((host, 0))?);
        let (tcp, iwarp) = (tcp.local_addr()?, iwarp.local_addr()?);
        let datagrams = (uses(Transport::Datagrams) || uses(Transport::Hybrid)).then(|| {
            let server = UdpSocket::bind((host, 0))?.local_addr()?;
            let relay = if loss > 0.0 { Some(Relay::start(server, loss)?) } else { None };
            io::Result::Ok((format!("udp:{server}"), relay))
        });
        Ok(Self {
            tcp: tcp.to_string(),
            shm: uses(Transport::Shm).then(|| format!("@rdmakv-check-{}-{}", std::process::id(), tcp.port())),
            iwarp: (uses(Transport::Iwarp) || uses(Transport::Hybrid)).then(|| iwarp.to_string()),
            udp: uses(Transport::Udp),
            connections: uses(Transport::Hybrid).then_some(CONNECTIONS),
            datagrams: datagrams.transpose()?,
            kernel,
        })
    }

    /// Returns the server's arguments.
    pub(crate) fn arguments(&self, tag_lease: &str) -> Vec<String> {
        let (host, port) = self.tcp.rsplit_once(':').unwrap_or_default();
        let mut all: Vec<String> = ["-l", host, "-p", port].map(str::to_owned).into();
        if self.udp {
            all.extend(["-U", port].map(str::to_owned));
        }
        all.extend(self.kernel.iter().map(|kernel| format!("--xdp={}", kernel.interface)));
        for (transport, address) in self.fabrics() {
            all.extend(["--fabric".into(), format!("{}:{address}", transport.name())]);
        }
        if let Some((server, _)) = &self.datagrams {
            all.extend(["--fabric".into(), server.clone()]);
        }
        all.extend(self.connections.iter().flat_map(|number| ["--connections".to_owned(), number.to_string()]));
        let last = if self.fabrics().next().is_some() || self.datagrams.is_some() {
            ["--tag-lease", tag_lease]
        } else {
            ["--fabric", "none"]
        };
        all.extend(last.map(str::to_owned));
        all
    }

    fn fabrics(&self) -> impl Iterator<Item = (Transport, &String)> {
        let both = [(Transport::Shm, &self.shm), (Transport::Iwarp, &self.iwarp)];
        both.into_iter().filter_map(|(transport, address)| Some((transport, address.as_ref()?)))
    }

    /// Returns how many datagrams of our client library were lost on purpose.
    pub(crate) fn lost_datagrams(&self) -> u64 {
        self.datagrams.iter().filter_map(|(_, relay)| relay.as_ref()).map(Relay::lost).sum()
    }

    /// Every transport and where it is.
    pub(crate) fn all(&self) -> Vec<(&'static str, String)> {
        let fabrics = self.fabrics().map(|(transport, address)| (transport.name(), address.clone()));
        let udp = self.udp.then(|| (Transport::Udp.name(), self.tcp.clone()));
        let datagrams = self.datagrams.iter().map(|(server, relay)| {
            let address = relay.as_ref().map_or_else(|| server.clone(), |relay| format!("udp:{}", relay.address()));
            (Transport::Datagrams.name(), address)
        });
        let namespace = self.kernel.iter().map(|kernel| ("namespace", kernel.namespace.clone()));
        let tcp = std::iter::once((Transport::Tcp.name(), self.tcp.clone()));
        tcp.chain(fabrics).chain(udp).chain(datagrams).chain(namespace).collect()
    }
}
