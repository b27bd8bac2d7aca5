//! TLS: certificates and keys from files, read again when `refresh_certs` or a SIGHUP asks for it, and connections
//! over them. Handshakes and records are rustls's, over ring.

mod options;
#[cfg(feature = "tls")]
mod stream;
#[cfg(not(feature = "tls"))]
mod without;

pub(super) use options::Options;
#[cfg(feature = "tls")]
pub(super) use stream::TlsStream;
#[cfg(not(feature = "tls"))]
pub(super) use without::{Certificates, TlsStream};

#[cfg(feature = "tls")]
pub(super) use certificates::Certificates;

#[cfg(feature = "tls")]
mod certificates;
