//! The requests that cannot be granted at all.

use crate::access::Access;
use crate::error::AcquireError;
use crate::miss::AcquireRequest;
use crate::registrar::{Registrar, WRITES_OF_PEERS};
use crate::state::shared::Shared;
use std::io;

/// Returns whether windows could not give peers these rights, because regions with the others do not let this side write.
pub(crate) fn needs_local_write(of_regions: Access, peers: Access) -> bool {
    peers.intersects(WRITES_OF_PEERS) && !of_regions.contains(Access::LOCAL_WRITE)
}

/// Returns an error where a request cannot be granted at all.
pub(super) fn check<R: Registrar>(shared: &Shared<R>, request: &AcquireRequest) -> Result<(), AcquireError> {
    let asked = request.access | request.peers;
    shared.settings.check(request.range, asked, request.blocks, || shared.registrar.name())?;
    let AcquireRequest { range, access, peers, .. } = *request;
    if needs_local_write(access, peers) {
        let (rights, registrar) = (peers, shared.registrar.name());
        let source = "peers may write only where this side may: ask for local-write too";
        let source = io::Error::new(io::ErrorKind::InvalidInput, source);
        return Err(AcquireError::Window { range, rights, registrar, source });
    }
    if request.access.is_remote() {
        shared.tables.expect_remote();
    }
    Ok(())
}
