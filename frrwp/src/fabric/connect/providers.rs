//! The providers as connectors, and all of them as one.

use super::domain::Inner;
use super::{
    BEGIN, Connector, FabricAddress, FabricDomain, FabricEndpoint, FabricError, FabricListener, FabricMemory, Listener,
};
use crate::fabric::attempt::Attempt;
use crate::fabric::iwarp::{self, IwarpAddress, IwarpDomain, IwarpEndpoint, IwarpError, IwarpListener};
use std::io;
use std::time::Duration;

/// The providers with listeners at IP addresses: they differ in their types.
macro_rules! over_ip {
    ($domain:ident, $address:ident, $endpoint:ident, $listener:ident, $error:ident, $connect:path) => {
        impl Connector for $domain {
            type Address = $address;
            type Endpoint = $endpoint;
            type Listener = $listener;
            type Error = $error;

            fn try_connect(&self, address: &$address, receives: u16, attempt: &Attempt) -> Result<$endpoint, $error> {
                $connect(self, address, receives, attempt)
            }

            fn not_begun(address: String, error: io::Error) -> $error {
                $error::System { address, what: BEGIN, error }
            }

            fn listen_at(&self, address: &str) -> Result<$listener, $error> {
                $listener::bind(self, address)
            }
        }

        impl Listener for $listener {
            type Endpoint = $endpoint;
            type Error = $error;

            fn next(&mut self, receives: u16, within: Option<Duration>) -> Result<Option<$endpoint>, $error> {
                match self.accept(receives, within) {
                    Err($error::TimedOut { .. }) => Ok(None),
                    accepted => accepted.map(Some),
                }
            }

            fn place(&self) -> String {
                self.name()
            }

            fn unset(&self) -> u64 {
                self.refused()
            }

            fn last_unset(&self) -> Option<String> {
                self.last_refused().map(ToString::to_string)
            }
        }
    };
}

over_ip!(IwarpDomain, IwarpAddress, IwarpEndpoint, IwarpListener, IwarpError, iwarp::connect_within);

#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
mod verbs {
    use super::{Attempt, BEGIN, Connector, Duration, Listener, io};
    use crate::fabric::verbs::{VerbsAddress, VerbsDomain, VerbsEndpoint, VerbsError, VerbsListener, connect_within};

    over_ip!(VerbsDomain, VerbsAddress, VerbsEndpoint, VerbsListener, VerbsError, connect_within);
}

#[cfg(target_os = "linux")]
mod shm {
    use super::{Attempt, BEGIN, Connector, Duration, Listener, io};
    use crate::fabric::connector::FabricMemory;
    use crate::fabric::shm::{Sharing, ShmAddress, ShmDomain, ShmEndpoint, ShmError, ShmListener, connect_within};

    impl Connector for ShmDomain {
        type Address = ShmAddress;
        type Endpoint = ShmEndpoint;
        type Listener = ShmListener;
        type Error = ShmError;

        fn try_connect(&self, address: &ShmAddress, receives: u16, attempt: &Attempt) -> Result<ShmEndpoint, ShmError> {
            connect_within(self, address, receives, attempt)
        }

        fn not_begun(_: String, source: io::Error) -> ShmError {
            let remedy = "raise the limits on open files (ulimit -n) and threads (ulimit -u)";
            ShmError::System { doing: BEGIN, remedy, source }
        }

        fn listen_at(&self, address: &str) -> Result<ShmListener, ShmError> {
            ShmListener::bind(self, &address.parse()?)
        }

        /// Memory of an arena of its own.
        fn memory(&self, bytes: usize) -> io::Result<FabricMemory> {
            let arena = self.arena(bytes.max(1), Sharing::Writable).map_err(io::Error::other)?;
            Ok(FabricMemory::new(arena.as_ptr(), arena.len(), arena))
        }
    }

    impl Listener for ShmListener {
        type Endpoint = ShmEndpoint;
        type Error = ShmError;

        fn next(&mut self, receives: u16, within: Option<Duration>) -> Result<Option<ShmEndpoint>, ShmError> {
            self.next_standing(receives, within)
        }

        fn place(&self) -> String {
            self.address().to_string()
        }

        fn unset(&self) -> u64 {
            self.refused()
        }

        fn last_unset(&self) -> Option<String> {
            self.last_refused()
        }
    }
}

impl Connector for FabricDomain {
    type Address = FabricAddress;
    type Endpoint = FabricEndpoint;
    type Listener = FabricListener;
    type Error = FabricError;

    fn try_connect(
        &self,
        address: &FabricAddress,
        receives: u16,
        attempt: &Attempt,
    ) -> Result<FabricEndpoint, FabricError> {
        both!(Inner, FabricAddress, (&self.inner, address), (domain, address) => {
            Ok(domain.try_connect(address, receives, attempt)?.into())
        }, self.other(address))
    }

    fn not_begun(address: String, error: io::Error) -> FabricError {
        FabricError::NotBegun { address, error }
    }

    fn listen_at(&self, address: &str) -> Result<FabricListener, FabricError> {
        let parsed = address.parse()?;
        both!(Inner, FabricAddress, (&self.inner, &parsed), (domain, _) => {
            Ok(FabricListener::new(self.clone(), domain.listen_at(address)?))
        }, self.other(&parsed))
    }

    fn memory(&self, bytes: usize) -> io::Result<FabricMemory> {
        each!(Inner, &self.inner, domain => domain.memory(bytes))
    }
}
