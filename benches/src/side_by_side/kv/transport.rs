//! The transports of a load: TCP, a Unix socket, and TLS over TCP.

use crate::side_by_side::remote::Outcome;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The name in the certificate.
const NAME: &str = "localhost";

/// A connected socket.
pub(super) trait Stream: Read + Write + Debug + Send {}

impl<T: Read + Write + Debug + Send> Stream for T {}

/// The address of a server, with what a client needs to connect.
#[derive(Clone, Debug)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Tls(SocketAddr, Arc<ClientConfig>),
}

impl Address {
    pub(super) fn connect(&self) -> Outcome<Box<dyn Stream>> {
        let tcp = |address: &SocketAddr| -> Outcome<TcpStream> {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        Ok(match self {
            Self::Tcp(address) => Box::new(tcp(address)?),
            Self::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Box::new(stream)
            }
            Self::Tls(address, config) => {
                let session = ClientConnection::new(Arc::clone(config), NAME.try_into()?)?;
                Box::new(StreamOwned::new(session, tcp(address)?))
            }
        })
    }
}

/// How a load comes to its server.
#[derive(Debug)]
pub(super) enum Transport {
    Tcp,
    /// With the folder of the sockets.
    Unix(TempDir),
    /// With the folder of certificate and key, and a client that trusts it.
    Tls(TempDir, Arc<ClientConfig>),
}

impl Transport {
    /// Returns Unix sockets in a folder of their own.
    pub(super) fn unix() -> Outcome<Self> {
        Ok(Self::Unix(tempfile::tempdir()?))
    }

    /// Returns TLS with a certificate of its own.
    pub(super) fn tls() -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
        std::fs::write(folder.path().join("chain.pem"), made.cert.pem())?;
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(made.cert))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self::Tls(folder, Arc::new(config)))
    }

    /// Returns an address without a listener, and the flags that have a server listen there. `name` is the server's, and unique
    /// among those of this transport.
    pub(super) fn address(&self, name: &str) -> Outcome<(Address, Vec<String>)> {
        let flags = |flags: &[&str]| flags.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>();
        if let Self::Unix(folder) = self {
            let path = folder.path().join(name);
            let text = path.to_str().ok_or("the folder has no name in UTF-8")?;
            return Ok((Address::Unix(path.clone()), flags(&["-s", text])));
        }
        // A free port is looked for, because memcached can be asked for no other.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let address = (Ipv4Addr::LOCALHOST, port).into();
        let mut words = flags(&["-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
        if let Self::Tls(folder, config) = self {
            let folder = folder.path().display();
            let files = format!("ssl_chain_cert={folder}/chain.pem,ssl_key={folder}/key.pem");
            words.extend(flags(&["-Z", "-o", &files]));
            return Ok((Address::Tls(address, Arc::clone(config)), words));
        }
        Ok((Address::Tcp(address), words))
    }
}
