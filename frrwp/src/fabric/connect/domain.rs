//! The domain of whichever provider an address names.
#![expect(unsafe_code, reason = "a registrar is one")]

use super::{FabricAddress, FabricError, FabricOptions, foreign};
use crate::fabric::attempt::Attempt;
use crate::fabric::iwarp::{IwarpDomain, IwarpKey, IwarpOptions};
#[cfg(target_os = "linux")]
use crate::fabric::shm::{ShmDomain, ShmKey};
use crate::fabric::traits::Domain;
#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
use crate::fabric::verbs::{VerbsDomain, VerbsOptions};
use crate::wire::Segment;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, PageRange};
use std::io;

#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
type VerbsKey = <VerbsDomain as Registrar>::Registration;

/// A domain of one provider. Clones are the same domain.
#[derive(Clone, Debug)]
pub struct FabricDomain {
    pub(super) inner: Inner,
}

#[derive(Clone, Debug)]
pub(super) enum Inner {
    #[cfg(target_os = "linux")]
    Shm(ShmDomain),
    Iwarp(IwarpDomain),
    #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
    Verbs(VerbsDomain),
}

/// A registration with a [`FabricDomain`].
#[derive(Debug)]
pub struct FabricKey(pub(super) Key);

#[derive(Debug)]
pub(super) enum Key {
    #[cfg(target_os = "linux")]
    Shm(ShmKey),
    Iwarp(IwarpKey),
    #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
    Verbs(VerbsKey),
}

/// A provider's registration, among those of all.
pub(super) trait OwnKey: Sized {
    /// Returns it if it is of this provider.
    fn of(key: &FabricKey) -> Option<&Self>;
    /// The same, or gives it back.
    fn take(key: FabricKey) -> Result<Self, FabricKey>;
    /// Returns it as one of all.
    fn into_any(self) -> FabricKey;
}

macro_rules! own_key {
    ($provider:ident, $key:ty) => {
        impl OwnKey for $key {
            fn of(key: &FabricKey) -> Option<&Self> {
                if let FabricKey(Key::$provider(key)) = key { Some(key) } else { None }
            }

            fn take(key: FabricKey) -> Result<Self, FabricKey> {
                if let FabricKey(Key::$provider(key)) = key { Ok(key) } else { Err(key) }
            }

            fn into_any(self) -> FabricKey {
                FabricKey(Key::$provider(self))
            }
        }
    };
}

#[cfg(target_os = "linux")]
own_key!(Shm, ShmKey);
own_key!(Iwarp, IwarpKey);
#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
own_key!(Verbs, VerbsKey);

impl FabricDomain {
    /// Makes a domain by which this address can be reached, or listened at.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn new(address: &FabricAddress, options: FabricOptions) -> Result<Self, FabricError> {
        Self::reached(address, options, &Attempt::new(options.set_up))
    }

    /// The same, as an attempt that can be stopped.
    pub(super) fn reached(
        address: &FabricAddress,
        options: FabricOptions,
        #[cfg_attr(
            not(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux")),
            expect(unused_variables, reason = "only a device is chosen by what is found at the address")
        )]
        attempt: &Attempt,
    ) -> Result<Self, FabricError> {
        let set_up = options.set_up;
        let inner = match address {
            #[cfg(target_os = "linux")]
            FabricAddress::Shm(_) => Inner::Shm(ShmDomain::new(options.shm)?),
            FabricAddress::Iwarp(_) => Inner::Iwarp(IwarpDomain::new(IwarpOptions { set_up, ..options.iwarp })?),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            FabricAddress::Verbs(address) => {
                let options = VerbsOptions { set_up, ..options.verbs };
                Inner::Verbs(VerbsDomain::reached(address, options, attempt)?)
            }
        };
        Ok(Self { inner })
    }

    /// Returns the error of an address of another provider.
    pub(super) fn other<T>(&self, address: &FabricAddress) -> Result<T, FabricError> {
        Err(FabricError::OtherFabric { address: address.to_string(), domain: self.name() })
    }
}

/// Gives the part of a batch that is this provider's to it, and takes back what it did not deregister.
fn deregister<D: Registrar<Registration: OwnKey>>(
    domain: &D,
    batch: &mut Vec<Registered<FabricKey>>,
) -> io::Result<()> {
    let mut theirs = Vec::with_capacity(batch.len());
    let mut others = Vec::new();
    for Registered { range, access, registration } in batch.drain(..) {
        match OwnKey::take(registration) {
            Ok(registration) => theirs.push(Registered { range, access, registration }),
            Err(registration) => others.push(Registered { range, access, registration }),
        }
    }
    let result = domain.deregister(&mut theirs);
    batch.extend(theirs.into_iter().map(|Registered { range, access, registration }| Registered {
        range,
        access,
        registration: registration.into_any(),
    }));
    let is_foreign = !others.is_empty();
    batch.extend(others);
    if is_foreign { result.and_then(|()| foreign()) } else { result }
}

// SAFETY: what is promised is what the provider's domain promises. A registration of another provider is refused, and stays.
unsafe impl Registrar for FabricDomain {
    type Registration = FabricKey;

    fn register(&self, range: PageRange, access: Access) -> io::Result<FabricKey> {
        each!(Inner, &self.inner, domain => domain.register(range, access).map(OwnKey::into_any))
    }

    fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        each!(Inner, &self.inner, domain => domain.probe(range, access))
    }

    fn examine(&self, range: PageRange, access: Access) -> io::Result<()> {
        each!(Inner, &self.inner, domain => domain.examine(range, access))
    }

    fn deregister(&self, batch: &mut Vec<Registered<FabricKey>>) -> io::Result<()> {
        each!(Inner, &self.inner, domain => deregister(domain, batch))
    }

    fn clock(&self) -> Option<std::time::Duration> {
        each!(Inner, &self.inner, domain => domain.clock())
    }

    fn limits(&self) -> Limits {
        each!(Inner, &self.inner, domain => domain.limits())
    }

    fn rights(&self) -> Access {
        each!(Inner, &self.inner, domain => domain.rights())
    }

    fn name(&self) -> &'static str {
        each!(Inner, &self.inner, domain => domain.name())
    }
}

// SAFETY: the segment is the provider's; for a registration of another one it opens nothing.
unsafe impl Domain for FabricDomain {
    fn remote(&self, registration: &FabricKey, address: *const u8, length: usize) -> Segment {
        both!(Inner, Key, (&self.inner, &registration.0), (domain, key) => {
            domain.remote(key, address, length)
        }, Segment { address: 0, length: 0, key: 0 })
    }

    fn is_held(&self, registration: &FabricKey) -> bool {
        both!(Inner, Key, (&self.inner, &registration.0), (domain, key) => domain.is_held(key), false)
    }
}
