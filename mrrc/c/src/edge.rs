//! All kinds of registrars as one, so that all caches of C's are of one type.
#![expect(unsafe_code, reason = "promises what the trait asks for, for those behind it")]

use crate::callbacks::{Callbacks, Own, mrrc_registration_t};
#[cfg(target_os = "linux")]
use mrrc::registrar::io_uring::{FixedBuffer, IoUringBuffers};
#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
use mrrc::registrar::verbs::{MemoryRegion, Verbs};
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, PageRange};
use std::io;

/// The registrar of a cache.
pub(crate) enum Edge {
    Callbacks(Callbacks),
    #[cfg(target_os = "linux")]
    IoUring(IoUringBuffers),
    #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
    Verbs(Verbs),
}

/// The registration that the edge made.
pub(crate) enum Key {
    Own(Own),
    #[cfg(target_os = "linux")]
    Fixed(FixedBuffer),
    #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
    Region(MemoryRegion),
}

impl Key {
    /// Returns the registration as C sees it.
    pub(crate) fn shown(&self) -> mrrc_registration_t {
        match self {
            Self::Own(own) => own.0,
            #[cfg(target_os = "linux")]
            Self::Fixed(buffer) => {
                mrrc_registration_t { handle: std::ptr::null_mut(), lkey: buffer.index().into(), rkey: 0 }
            }
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Self::Region(region) => mrrc_registration_t {
                handle: region.raw().as_ptr(),
                lkey: region.lkey().into(),
                rkey: region.rkey().into(),
            },
        }
    }
}

// SAFETY: each call is passed on to the registrar behind it, and registrations go back to the one that they came from. Two of
// these are of this workspace and promise it; of the program's own the header asks it.
unsafe impl Registrar for Edge {
    type Registration = Key;

    fn register(&self, range: PageRange, access: Access) -> io::Result<Key> {
        match self {
            Self::Callbacks(callbacks) => callbacks.register(range, access).map(Key::Own),
            #[cfg(target_os = "linux")]
            Self::IoUring(table) => table.register(range, access).map(Key::Fixed),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Self::Verbs(verbs) => verbs.register(range, access).map(Key::Region),
        }
    }

    fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        match self {
            Self::Callbacks(callbacks) => callbacks.probe(range, access),
            #[cfg(target_os = "linux")]
            Self::IoUring(table) => table.probe(range, access),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Self::Verbs(verbs) => verbs.probe(range, access),
        }
    }

    fn examine(&self, range: PageRange, access: Access) -> io::Result<()> {
        match self {
            Self::Callbacks(callbacks) => callbacks.probe(range, access),
            #[cfg(target_os = "linux")]
            Self::IoUring(table) => table.examine(range, access),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Self::Verbs(verbs) => verbs.examine(range, access),
        }
    }

    fn deregister(&self, batch: &mut Vec<Registered<Key>>) -> io::Result<()> {
        #[allow(irrefutable_let_patterns, reason = "there is but one kind where there are no rings")]
        match self {
            Self::Callbacks(callbacks) => sorted_out(
                batch,
                |key| if let Key::Own(own) = key { Ok(own) } else { Err(key) },
                Key::Own,
                |batch| callbacks.deregister(batch),
            ),
            #[cfg(target_os = "linux")]
            Self::IoUring(table) => sorted_out(
                batch,
                |key| if let Key::Fixed(buffer) = key { Ok(buffer) } else { Err(key) },
                Key::Fixed,
                |batch| table.deregister(batch),
            ),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Self::Verbs(verbs) => sorted_out(
                batch,
                |key| if let Key::Region(region) = key { Ok(region) } else { Err(key) },
                Key::Region,
                |batch| verbs.deregister(batch),
            ),
        }
    }

    fn limits(&self) -> Limits {
        match self {
            Self::Callbacks(callbacks) => callbacks.limits(),
            #[cfg(target_os = "linux")]
            Self::IoUring(table) => table.limits(),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Self::Verbs(verbs) => verbs.limits(),
        }
    }

    fn rights(&self) -> Access {
        match self {
            Self::Callbacks(callbacks) => callbacks.rights(),
            #[cfg(target_os = "linux")]
            Self::IoUring(table) => table.rights(),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Self::Verbs(verbs) => verbs.rights(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Callbacks(callbacks) => callbacks.name(),
            #[cfg(target_os = "linux")]
            Self::IoUring(table) => table.name(),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Self::Verbs(verbs) => verbs.name(),
        }
    }
}

/// Hands a batch to the registrar that it came from, which does not panic, and leaves in it what that left.
fn sorted_out<T>(
    batch: &mut Vec<Registered<Key>>,
    mine: impl Fn(Key) -> Result<T, Key>,
    again: impl Fn(T) -> Key,
    deregister: impl FnOnce(&mut Vec<Registered<T>>) -> io::Result<()>,
) -> io::Result<()> {
    let (mut own, mut strange) = (Vec::with_capacity(batch.len()), Vec::new());
    for Registered { range, access, registration } in batch.drain(..) {
        match mine(registration) {
            Ok(registration) => own.push(Registered { range, access, registration }),
            Err(registration) => strange.push(Registered { range, access, registration }),
        }
    }
    let answer = deregister(&mut own);
    let back =
        |Registered { range, access, registration }| Registered { range, access, registration: again(registration) };
    batch.extend(own.into_iter().map(back));
    batch.append(&mut strange);
    match answer {
        Ok(()) if !batch.is_empty() => Err(io::Error::other("registrations of another registrar")),
        answer => answer,
    }
}
