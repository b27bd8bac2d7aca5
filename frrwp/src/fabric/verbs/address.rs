//! Addresses: `verbs:10.0.0.1:7471`.

use super::error::VerbsError;
use crate::fabric::address::HostPort;
use crate::fabric::attempt::Attempt;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// `verbs:HOST:PORT`: an IP address of the interface that carries the RDMA device, or a name for it.
///
/// ```
/// use frrwp::fabric::verbs::VerbsAddress;
///
/// let address: VerbsAddress = "verbs:[fe80::1]:7471".parse()?;
/// assert_eq!(address.to_string(), "verbs:[fe80::1]:7471");
/// let error = "verbs:rxe0".parse::<VerbsAddress>().unwrap_err();
/// assert!(error.to_string().contains("verbs:HOST:PORT"));
/// # Ok::<(), frrwp::fabric::verbs::VerbsError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct VerbsAddress(HostPort);

impl FromStr for VerbsAddress {
    type Err = VerbsError;

    fn from_str(text: &str) -> Result<Self, VerbsError> {
        HostPort::parse(text, "verbs").map(Self).ok_or_else(|| VerbsError::Address { text: text.to_owned() })
    }
}

impl fmt::Display for VerbsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verbs:{}", self.0)
    }
}

impl VerbsAddress {
    pub(super) fn resolve(&self, attempt: &Attempt) -> Result<Vec<SocketAddr>, VerbsError> {
        self.0.resolve(attempt).map_err(|error| VerbsError::Resolve { address: self.to_string(), error })
    }
}
