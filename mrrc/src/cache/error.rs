//! What a caller is told when there is no lease, and what to do about it.

use super::arena::OutsideArena;
use crate::access::Access;
use crate::core::AllInUse;
use crate::count::{Amounts, Count};
use crate::range::{PageRange, RangeError};
use crate::registrar::mapped::{self, Fault};
use std::io;
use std::time::Duration;

/// Why memory could not be acquired. Nothing is leased; parts that were registered before the failure stay cached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The buffer is no range of memory.
    #[error("acquire: {0}")]
    Range(#[from] RangeError),
    /// The registrar does not grant such rights.
    #[error("acquire {range}: {registrar} grants {offered}, and not {asked}: ask for less, or use another registrar")]
    Rights {
        /// What was asked for.
        range: PageRange,
        /// With these rights.
        asked: Access,
        /// What the registrar can grant.
        offered: Access,
        /// Its name.
        registrar: &'static str,
    },
    /// The request alone is more than the cache may ever register.
    #[error(
        "acquire {range}: it takes {}, and {limit} is the limit: acquire it in pieces, or raise the limit of the cache (capacity_bytes, \
         MRRC_CAPACITY; no cache goes beyond what its registrar may pin: RLIMIT_MEMLOCK, ulimit -l)",
        Count(*needed, unit)
    )]
    TooLarge {
        /// What was asked for.
        range: PageRange,
        /// How much it needs.
        needed: u64,
        /// How much there may be.
        limit: u64,
        /// Of what.
        unit: &'static str,
    },
    /// All that could make room is in use.
    #[error("acquire: {source}{}", waited_for(waited))]
    AllInUse {
        /// The figures.
        source: AllInUse,
        /// How long the request waited for leases to end.
        waited: Duration,
    },
    /// What has left the cache takes the room: the registrar fails to deregister it. It was tried again for this request.
    #[error(
        "acquire {range}: no room, because {} of {} left the cache and could not be deregistered ({registrar}: {why}): this \
         is tried again with each request that lacks room, by `reap` and in the background; if that never helps, the registrar or its device \
         is at fault",
        Count(*regions, "regions"),
        Count(*pages, "pages")
    )]
    NotTakenBack {
        /// What was asked for.
        range: PageRange,
        /// Pages of the regions that could not be deregistered.
        pages: u64,
        /// Their number.
        regions: u64,
        /// The registrar's name.
        registrar: &'static str,
        /// What it said when it last refused.
        why: String,
    },
    /// The registrar refused. For a bad address (`EFAULT`) the message says what is wrong with the memory at the time
    /// that it is shown.
    #[error(
        "acquire: {registrar} cannot register {range} with {access} (after {}): {source}{}",
        Count((*attempts).into(), "attempts"),
        hint(source, registrar, *range, *access)
    )]
    Register {
        /// What was to be registered: the request or a gap of it.
        range: PageRange,
        /// With these rights.
        access: Access,
        /// The registrar's name.
        registrar: &'static str,
        /// How often it was tried.
        attempts: u32,
        /// What the system said.
        source: io::Error,
    },
    /// Others take too long: a thread registers part of the range, or what left is not deregistered and takes the room.
    #[error("acquire {range}: timed out after {waited:?}, in which {obstacle}")]
    TimedOut {
        /// What was asked for.
        range: PageRange,
        /// How long the request waited.
        waited: Duration,
        /// What it waited for.
        obstacle: Obstacle,
    },
    /// A region that the request needs has as many leases as can be counted. Leases that are forgotten and not dropped count for
    /// ever.
    #[error(
        "acquire {range}: a region there has more leases than can be counted: drop leases when their transfers are done"
    )]
    TooManyLeases {
        /// What was asked for.
        range: PageRange,
    },
    /// A request that was begun was finished before: there is a lease of it, or was.
    #[error("acquire {range}: it was finished before, and its lease was handed out: begin another")]
    Finished {
        /// What was asked for.
        range: PageRange,
    },
    /// The range of an arena ends outside of it.
    #[error("acquire: {0}")]
    Outside(#[from] OutsideArena),
    /// See [`Unusable`].
    #[error("acquire: {0}")]
    Unusable(#[from] Unusable),
}

/// What a request waited for until its [time](crate::cache::Builder::patience) was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// Another thread registers this part of the range.
    #[error(
        "another thread registered {range} and did not finish: try again, or wait longer (patience, MRRC_PATIENCE)"
    )]
    Registering {
        /// The part.
        range: PageRange,
    },
    /// What left the cache is not deregistered yet, and takes the room.
    #[error(
        "{} left the cache and were not deregistered ({} of them were, at the end, being deregistered by other threads), and \
         {} were missing: wait longer (patience, MRRC_PATIENCE), keep room free (headroom, MRRC_HEADROOM), or raise the limit \
         (capacity_bytes, MRRC_CAPACITY; max_regions, MRRC_MAX_REGIONS)",
        Amounts { pages: under_way_pages + waiting_pages, regions: under_way_regions + waiting_regions },
        Count(*under_way_regions, "regions"),
        Amounts { pages: *missing_pages, regions: *missing_regions }
    )]
    Deregistering {
        /// Pages that the request has no room for.
        missing_pages: u64,
        /// Regions that it has no room for.
        missing_regions: u64,
        /// Pages of what other threads are deregistering.
        under_way_pages: u64,
        /// Regions that other threads are deregistering.
        under_way_regions: u64,
        /// Pages of what no thread has begun to deregister.
        waiting_pages: u64,
        /// Regions that no thread has begun to deregister.
        waiting_regions: u64,
    },
}

fn waited_for(waited: &Duration) -> String {
    if waited.is_zero() { String::new() } else { format!(" (waited {waited:?} for leases to end)") }
}

/// What to do about an error of the system.
pub(super) fn hint(error: &io::Error, registrar: &str, range: PageRange, access: Access) -> String {
    match error.raw_os_error() {
        Some(libc::EFAULT) => bad_address(registrar, range, access),
        Some(libc::ENOMEM) => {
            let device = "; or the table of the device is full (max_mr in `ibv_devinfo -v`): lower max_regions (MRRC_MAX_REGIONS)";
            format!(
                ": the locked memory of this user is used up (RLIMIT_MEMLOCK, ulimit -l), by this cache and by all else that he \
                 has locked: other caches of this process, other rings, other processes. Raise the limit, or set capacities that \
                 fit it together (capacity_bytes, MRRC_CAPACITY). Of a huge page, all of it counts{}",
                if registrar == "verbs" { device } else { "" }
            )
        }
        Some(libc::ENOSPC) if registrar == "io_uring" => {
            ": every slot of the ring's table holds a buffer, some of them of others than this cache: give the ring a table of \
             more slots (`IoUringBuffers::new`, up to 16384), or lower `max_regions`"
                .into()
        }
        Some(libc::ENOSPC) => ": the registrar's table is full: make it larger, or lower `max_regions`".into(),
        Some(libc::EPERM) => ": is the process allowed to pin memory?".into(),
        _ => String::new(),
    }
}

fn bad_address(registrar: &str, range: PageRange, access: Access) -> String {
    // The kernel pins fixed buffers for writing, whatever will be done with them.
    let io_uring = registrar == "io_uring";
    let writes = !access.difference(Access::LOCAL_READ | Access::REMOTE_READ).is_empty();
    match mapped::fault(range) {
        Some(Fault::Unmapped(at)) => {
            format!(": {at:#x} is not mapped: check address and length, and whether it was unmapped meanwhile")
        }
        Some(Fault::NoAccess(at)) => {
            format!(": {at:#x} is mapped without access (PROT_NONE): make it readable and writable first (mprotect)")
        }
        Some(Fault::BeyondEnd(at)) => format!(
            ": {at:#x} is mapped, but lies beyond the end of its file, which has no pages there: make the file longer, or ask \
             for less"
        ),
        Some(Fault::ReadOnly(at)) if io_uring => format!(
            ": {at:#x} is mapped read-only, and io_uring pins for writing whatever the rights: copy it into writable \
             memory, or transfer it without a fixed buffer"
        ),
        Some(Fault::ReadOnly(at)) if writes => {
            format!(": {at:#x} is mapped read-only: ask for {} alone, or for writable memory", Access::LOCAL_READ)
        }
        Some(Fault::SharedFile(at)) => format!(
            ": {at:#x} is a shared mapping of a file, whose writes the file system must know of, so its pages may not be \
             pinned: copy it into anonymous memory (an arena, a Vec), or transfer it without a registration"
        ),
        None => ": is all of it mapped, and writable where it will be written?".into(),
        Some(_) => {
            ": it is mapped, but not with memory that may be pinned (a device's, the kernel's own): copy it into anonymous memory"
                .into()
        }
    }
}

/// Why the cache could not be told of a change of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// What changes is no range of memory.
    #[error("tell of a change of memory (invalidate, changing): {0}")]
    Range(#[from] RangeError),
    /// See [`Unusable`].
    #[error("tell of a change of memory (invalidate, changing): {0}")]
    Unusable(#[from] Unusable),
}

/// Why a cache cannot be used at all, now or any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// This is a child that was forked from the cache's process.
    #[error(
        "the cache is of no use here: this process was forked from the one that made the cache: make a cache of its own here"
    )]
    Forked,
    /// A registrar called the [`LocalCache`](crate::LocalCache) that was calling it.
    #[error("the registrar called the cache that was calling it: acquire before or after, not meanwhile")]
    Reentered,
    /// The cache is gone; what is left of it is an arena.
    #[error("the cache was dropped, and registers nothing more: keep it for as long as its arenas are used")]
    Closed,
    /// The monitor reads an event and does not come back.
    #[error(
        "the monitor has been dealing with a change of memory for {0:?}, which should take microseconds: try again; if that does not help, make a new cache"
    )]
    Draining(Duration),
    /// A thread panicked while it changed the books.
    #[error("a thread panicked while it changed the cache's books, and what is cached is in doubt: make a new cache")]
    Broken,
}
