//! The windows of a lease: rights of peers that end with it.

use super::Lease;
use super::checks::check;
use crate::error::AcquireError;
use crate::miss::AcquireRequest;
use crate::registrar::Registrar;
use crate::registrar::windows::CacheWindows;
use crate::state::shared::Shared;
use std::io;
use std::mem::ManuallyDrop;
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

/// A lease whose windows are being bound. Dropped, it ends those that are.
struct Binding<R: Registrar>(Option<(Lease<R>, LeaseWindows<R::Registration>)>);

impl<R: Registrar> Binding<R> {
    /// Returns the lease once the windows that were bound are ended. None if one is not: peers may use it, so its regions stay registered.
    fn undo(&mut self) -> Option<Lease<R>> {
        let (lease, mut windows) = self.0.take()?;
        // Nothing of the lease ends if the registrar panics.
        let lease = ManuallyDrop::new(lease);
        windows.end().is_ok().then(|| ManuallyDrop::into_inner(lease))
    }
}

impl<R: Registrar> Drop for Binding<R> {
    fn drop(&mut self) {
        drop(self.undo());
    }
}

/// Binds the windows of a lease that was granted for a request.
#[inline]
pub(crate) fn open<R: Registrar>(
    shared: &Shared<R>,
    request: &AcquireRequest,
    lease: Lease<R>,
) -> Result<Lease<R>, AcquireError> {
    open_or_return(shared, request, lease).map_err(|(error, _)| error)
}

/// As [`open`]. Where no window is bound, returns the lease without them with the error.
#[inline]
pub(super) fn open_or_return<R: Registrar>(
    shared: &Shared<R>,
    request: &AcquireRequest,
    lease: Lease<R>,
) -> Result<Lease<R>, (AcquireError, Option<Lease<R>>)> {
    if request.peers.is_empty() { Ok(lease) } else { bind(shared, request, lease) }
}

#[cold]
fn bind<R: Registrar>(
    shared: &Shared<R>,
    request: &AcquireRequest,
    lease: Lease<R>,
) -> Result<Lease<R>, (AcquireError, Option<Lease<R>>)> {
    // A hit was not checked.
    if let Err(error) = check(shared, request) {
        return Err((error, Some(lease)));
    }
    let &AcquireRequest { range, peers, .. } = request;
    let Some(of) = &shared.windows else { return Ok(lease) };
    let mut binding = Binding(Some((lease, LeaseWindows { of: of.clone(), keys: Vec::new() })));
    let Some((lease, windows)) = &mut binding.0 else { unreachable!("it was just put there") };
    for part in lease.segments() {
        match of.bind(part.registration(), part.address().addr(), part.len(), peers) {
            Ok(key) => windows.keys.push(Some(key)),
            Err(source) => {
                let registrar = shared.registrar.name();
                return Err((AcquireError::Window { range, rights: peers, registrar, source }, binding.undo()));
            }
        }
    }
    let Some((lease, windows)) = binding.0.take() else { unreachable!("nothing took it") };
    Ok(lease.with_windows(windows))
}
