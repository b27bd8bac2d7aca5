//! Slices that are registered for the time of a closure, in safe code.
//!
//! The borrow of the slice lasts as long as the call, so no other code can use or free the memory meanwhile. Once
//! the call returned, that is possible; so
//!
//! * the lease ends with the closure, also when it panics, and is only lent to it;
//! * rights for peers cannot be asked for: a peer could use a key whenever it likes. Nor does a region that a peer
//!   has rights to serve such a request. The owner of an [arena](crate::Arena) can give peers rights in safe code;
//! * nothing stays cached that could be found when the memory is another's. Where the monitor finds changes out, the cache
//!   is used like for any other request. If the monitor relies on the program's reports
//!   ([`Monitor::vouches`](crate::invalidation::Monitor::vouches)), safe code made no such promise. The slice is
//!   registered for this call alone, and deregistered after it.
//!
//! # Why there is no safe lease that borrows
//!
//! A guard with a lifetime would let the memory go when the *lifetime* ends, while the registration ends when the guard
//! is *dropped*. `mem::forget`, a cycle of `Rc` or a thread that sleeps for good keep it from being dropped. The borrow
//! ends all the same, and a device may go on writing into what is now another's memory.

use crate::access::Access;
use crate::core::Sharing;
use crate::error::AcquireError;
use crate::lease::{self, Lease};
use crate::miss::AcquireRequest;
use crate::reclaim;
use crate::registrar::Registrar;
use crate::state::shared::Shared;

/// Calls the closure with a lease of the memory, which the caller has borrowed for that time.
pub(crate) fn with_memory<R: Registrar, T>(
    shared: &Shared<R>,
    address: usize,
    length: usize,
    access: Access,
    run: impl FnOnce(&Lease<R>) -> T,
) -> Result<T, AcquireError> {
    // Before the lease, so that it is dropped after it.
    let _tidy = Tidy(shared);
    let lease = acquire(shared, address, length, access)?;
    Ok(run(&lease))
}

fn acquire<R: Registrar>(
    shared: &Shared<R>,
    address: usize,
    length: usize,
    access: Access,
) -> Result<Lease<R>, AcquireError> {
    let sharing = if shared.settings.vouched { Sharing::OwnClass } else { Sharing::Nothing };
    let request = AcquireRequest { sharing, ..AcquireRequest::new(&shared.settings, address, length, access)? };
    if sharing == Sharing::OwnClass
        && let Some(hold) = shared.tables.hit_own_class(request.range, access)
    {
        return Ok(Lease::one(&shared.tables, address, length, hold));
    }
    lease::grant(shared, request)
}

/// Takes out what was registered for the call alone.
struct Tidy<'a, R: Registrar>(&'a Shared<R>);

impl<R: Registrar> Drop for Tidy<'_, R> {
    fn drop(&mut self) {
        if !self.0.settings.vouched {
            reclaim::tidy(self.0);
        }
    }
}
