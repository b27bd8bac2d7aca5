//! The addresses of the server of a run: the same before and after a kill, so that clients find the new one where the old
//! one was, and their memory of the old one is put to the test.

use std::io;
use std::net::TcpListener;

use crate::record::Transport;

#[derive(Debug)]
pub(crate) struct Addresses {
    tcp: String,
    shm: Option<String>,
    iwarp: Option<String>,
}

impl Addresses {
    /// Chooses addresses that were free a moment ago; with `at`, that of a server that runs already.
    pub(crate) fn choose(transports: &[Transport], at: Option<&str>) -> io::Result<Self> {
        let uses = |transport| transports.contains(&transport);
        if let Some(at) = at {
            if uses(Transport::Shm) || uses(Transport::Iwarp) {
                return Err(io::Error::other(
                    "--at names a server's TCP port: leave shm and iwarp out of --transports",
                ));
            }
            return Ok(Self { tcp: at.to_owned(), shm: None, iwarp: None });
        }
        let (tcp, iwarp) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let (tcp, iwarp) = (tcp.local_addr()?, iwarp.local_addr()?);
        Ok(Self {
            tcp: tcp.to_string(),
            shm: uses(Transport::Shm).then(|| format!("@rdmakv-check-{}-{}", std::process::id(), tcp.port())),
            iwarp: uses(Transport::Iwarp).then(|| iwarp.to_string()),
        })
    }

    /// Returns the server's arguments.
    pub(crate) fn arguments(&self, tag_lease: &str) -> Vec<String> {
        let port = self.tcp.rsplit(':').next().unwrap_or_default();
        let mut all: Vec<String> = ["-l", "127.0.0.1", "-p", port].map(str::to_owned).into();
        for (transport, address) in self.fabrics() {
            all.extend(["--fabric".into(), format!("{}:{address}", transport.name())]);
        }
        let last = if self.fabrics().next().is_some() { ["--tag-lease", tag_lease] } else { ["--fabric", "none"] };
        all.extend(last.map(str::to_owned));
        all
    }

    fn fabrics(&self) -> impl Iterator<Item = (Transport, &String)> {
        let both = [(Transport::Shm, &self.shm), (Transport::Iwarp, &self.iwarp)];
        both.into_iter().filter_map(|(transport, address)| Some((transport, address.as_ref()?)))
    }

    /// Every transport and where it is.
    pub(crate) fn all(&self) -> Vec<(&'static str, String)> {
        let fabrics = self.fabrics().map(|(transport, address)| (transport.name(), address.clone()));
        std::iter::once((Transport::Tcp.name(), self.tcp.clone())).chain(fabrics).collect()
    }
}
