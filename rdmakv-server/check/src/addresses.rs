//! Where the server of a run listens: at the same places before and after it was killed, so that clients find the new one
//! where the old one was, and what they remember of the old one is put to the test.

use std::io;
use std::net::TcpListener;

use crate::record::Face;
use crate::torture::Plan;

#[derive(Debug)]
pub(crate) struct Addresses {
    tcp: String,
    shm: Option<String>,
    iwarp: Option<String>,
}

impl Addresses {
    /// Places that nobody had a moment ago.
    pub(crate) fn choose(plan: &Plan) -> io::Result<Self> {
        let uses = |face| plan.faces.contains(&face);
        if let Some(at) = &plan.at {
            if uses(Face::Shm) || uses(Face::Iwarp) {
                return Err(io::Error::other("--at names a server's TCP port: leave shm and iwarp out of --faces"));
            }
            return Ok(Self { tcp: at.clone(), shm: None, iwarp: None });
        }
        let (tcp, iwarp) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let (tcp, iwarp) = (tcp.local_addr()?, iwarp.local_addr()?);
        Ok(Self {
            tcp: tcp.to_string(),
            shm: uses(Face::Shm).then(|| format!("@rdmakv-check-{}-{}", std::process::id(), tcp.port())),
            iwarp: uses(Face::Iwarp).then(|| iwarp.to_string()),
        })
    }

    /// What the server is told.
    pub(crate) fn arguments(&self, tag_lease: &str) -> Vec<String> {
        let port = self.tcp.rsplit(':').next().unwrap_or_default();
        let mut all: Vec<String> = ["-l", "127.0.0.1", "-p", port].map(str::to_owned).into();
        for (face, address) in self.fabrics() {
            all.extend(["--fabric".into(), format!("{}:{address}", face.name())]);
        }
        let last = if self.fabrics().next().is_some() { ["--tag-lease", tag_lease] } else { ["--fabric", "none"] };
        all.extend(last.map(str::to_owned));
        all
    }

    fn fabrics(&self) -> impl Iterator<Item = (Face, &String)> {
        let both = [(Face::Shm, &self.shm), (Face::Iwarp, &self.iwarp)];
        both.into_iter().filter_map(|(face, address)| Some((face, address.as_ref()?)))
    }

    /// Every face and where it is.
    pub(crate) fn all(&self) -> Vec<(&'static str, String)> {
        let fabrics = self.fabrics().map(|(face, address)| (face.name(), address.clone()));
        std::iter::once((Face::Tcp.name(), self.tcp.clone())).chain(fabrics).collect()
    }
}
