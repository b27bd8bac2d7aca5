//! TLS: certificates and keys from files, read again when `refresh_certs` or a SIGHUP asks for it, and connections
//! over them. Handshakes and records are rustls's, over ring.

mod options;
#[cfg(feature = "tls")]
mod stream;
#[cfg(not(feature = "tls"))]
mod without;

pub(crate) use options::Options;
#[cfg(feature = "tls")]
pub(crate) use stream::TlsStream;
#[cfg(not(feature = "tls"))]
pub(crate) use without::{Certificates, TlsStream};

#[cfg(feature = "tls")]
pub(crate) use certificates::Certificates;

#[cfg(feature = "tls")]
mod certificates;
