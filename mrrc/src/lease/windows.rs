//! The windows of a lease: rights of peers that end with it.

use super::Lease;
use super::checks::check;
use crate::error::AcquireError;
use crate::miss::AcquireRequest;
use crate::registrar::Registrar;
use crate::registrar::windows::CacheWindows;
use crate::state::shared::Shared;
use std::io;
use std::sync::Arc;

/// The windows of a lease.
pub(super) struct LeaseWindows<T> {
    of: Arc<CacheWindows<T>>,
    /// The keys, one for each segment, in their order. `None` after the window's end.
    pub(super) keys: Vec<Option<u32>>,
}

impl<T> LeaseWindows<T> {
    /// Unbinds all, as far as the device does.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for place in &mut self.keys {
            let Some(key) = *place else { continue };
            match self.of.unbind(key) {
                Ok(()) => *place = None,
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }
}

/// Binds the windows of a lease that was granted for a request.
#[inline]
pub(crate) fn open<R: Registrar>(
    shared: &Shared<R>,
    request: &AcquireRequest,
    lease: Lease<R>,
) -> Result<Lease<R>, AcquireError> {
    if request.peers.is_empty() { Ok(lease) } else { bind(shared, request, lease) }
}

#[cold]
fn bind<R: Registrar>(shared: &Shared<R>, request: &AcquireRequest, lease: Lease<R>) -> Result<Lease<R>, AcquireError> {
    // A hit was not checked.
    check(shared, request)?;
    let &AcquireRequest { range, peers, .. } = request;
    let refused = |source| AcquireError::Window { range, rights: peers, registrar: shared.registrar.name(), source };
    let Some(of) = &shared.windows else { return Ok(lease) };
    let mut windows = LeaseWindows { of: of.clone(), keys: Vec::new() };
    for part in lease.segments() {
        match of.bind(part.registration(), part.address().addr(), part.len(), peers) {
            Ok(key) => windows.keys.push(Some(key)),
            Err(source) => {
                if windows.end().is_err() {
                    // Peers may use what is bound: its regions stay registered.
                    std::mem::forget(lease);
                }
                return Err(refused(source));
            }
        }
    }
    Ok(lease.with_windows(windows))
}
