//! The errors of a request without a lease, and their remedies.

use crate::access::Access;
use crate::config::ConfigError;
use crate::core::AllInUse;
use crate::mapped::{self, Fault};
use crate::range::{PageRange, RangeError};
use crate::units::{Amounts, Count};
use std::io;
use std::time::Duration;

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting makes no sense.
    #[error("build a cache: {0}")]
    Config(#[from] ConfigError),
    /// An environment variable makes no sense.
    #[error("environment variable {name}={value:?}: {expected}")]
    Variable {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
        /// The expected form.
        expected: String,
    },
    /// A setting by name makes no sense: see [`Settings::set`](crate::settings::Settings::set).
    #[error("setting {name}={value:?}: {expected}")]
    Setting {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
        /// The expected form.
        expected: String,
    },
    /// Nothing would be cached for too short a time after a discard: see [`Builder::discard_grace`](crate::cache::Builder::discard_grace).
    #[error(
        "build a cache: discard_grace (MRRC_DISCARD_GRACE) is {grace:?}, and monitor {monitor} needs {floor:?} at least: it \
         hears when a discard of pages begins and not when it is done, and what is registered in between and found \
         after that time means the old pages"
    )]
    DiscardGrace {
        /// The given time.
        grace: Duration,
        /// The least that the monitor takes.
        floor: Duration,
        /// Its name.
        monitor: &'static str,
    },
    /// The registrar has no memory windows that hold: see [`Builder::remote`](crate::cache::Builder::remote).
    #[error(
        "build a cache that gives peers rights by memory windows (Remote::Windows): {registrar}: {source}{}",
        without_windows(source)
    )]
    Windows {
        /// Its name.
        registrar: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The registrar states limits that cannot be.
    #[error("build a cache: {registrar} says {what}: this is a fault of the registrar")]
    Registrar {
        /// Its name.
        registrar: &'static str,
        /// The fault.
        what: String,
    },
    /// The monitor does not start.
    #[error(
        "build a cache: monitor {monitor}: {source}: or choose another in the program (`Explicit`, if it tells of its changes)"
    )]
    Monitor {
        /// Its name.
        monitor: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused something else.
    #[error("build a cache: {what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

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
        /// The requested range.
        range: PageRange,
        /// With these rights.
        asked: Access,
        /// The rights that the registrar can grant.
        offered: Access,
        /// Its name.
        registrar: &'static str,
    },
    /// The request alone is more than the cache may ever register.
    #[error(
        "acquire {range}: it takes {}, and {limit} is the limit: acquire it in pieces, or {}",
        Count(*needed, unit),
        limit_remedy(unit)
    )]
    TooLarge {
        /// The requested range.
        range: PageRange,
        /// How much it needs.
        needed: u64,
        /// How much there may be.
        limit: u64,
        /// Of what.
        unit: &'static str,
    },
    /// Regions cannot be divided between blocks of so many bytes.
    #[error("acquire {range} in blocks of {}: {source}", Count(*block as u64, "bytes"))]
    Blocks {
        /// The requested range.
        range: PageRange,
        /// Bytes of a block.
        block: usize,
        /// The reason.
        source: BlocksError,
    },
    /// All that could make room is in use.
    #[error("acquire: {source}{}", waited_for(waited))]
    AllInUse {
        /// The figures.
        source: AllInUse,
        /// How long the request waited for leases to end.
        waited: Duration,
    },
    /// Evicted regions take the room: the registrar fails to deregister them. It was tried again for this request.
    #[error(
        "acquire {range}: no room, because {} of {} left the cache and could not be deregistered ({registrar}: {why}): this \
         is tried again with each request that lacks room, by `reap` and in the background; if that never helps, the registrar or its device \
         is at fault",
        Count(*regions, "regions"),
        Count(*pages, "pages")
    )]
    DeregistrationFailed {
        /// The requested range.
        range: PageRange,
        /// Pages of the regions that could not be deregistered.
        pages: u64,
        /// Their number.
        regions: u64,
        /// The registrar's name.
        registrar: &'static str,
        /// The message of its last refusal.
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
        /// The range to be registered: the request or a gap of it.
        range: PageRange,
        /// With these rights.
        access: Access,
        /// The registrar's name.
        registrar: &'static str,
        /// How often it was tried.
        attempts: u32,
        /// The system's error.
        source: io::Error,
    },
    /// No window gives peers the rights: the device binds none, or these may not be given. Memory that was registered for it stays cached, for
    /// local use.
    #[error(
        "acquire {range}: no memory window of {registrar} gives peers {rights}: {source}{}",
        without_window(source)
    )]
    Window {
        /// The requested range.
        range: PageRange,
        /// The rights of peers.
        rights: Access,
        /// The registrar's name.
        registrar: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Others take too long: a thread registers part of the range, or what left is not deregistered and takes the room.
    #[error("acquire {range}: timed out after {waited:?}, in which {obstacle}")]
    TimedOut {
        /// The requested range.
        range: PageRange,
        /// How long the request waited.
        waited: Duration,
        /// The obstacle.
        obstacle: Obstacle,
    },
    /// A region that the request needs has as many leases as can be counted. Leases that are forgotten and not dropped count for
    /// ever.
    #[error(
        "acquire {range}: a region there has more leases than can be counted: drop leases when their transfers are done"
    )]
    TooManyLeases {
        /// The requested range.
        range: PageRange,
    },
    /// A request that was begun was finished before: there is a lease of it, or was.
    #[error("acquire {range}: it was finished before, and its lease was handed out: begin another")]
    Finished {
        /// The requested range.
        range: PageRange,
    },
    /// The range of an arena ends outside of it.
    #[error("acquire: {0}")]
    Outside(#[from] OutsideArena),
    /// See [`Unusable`].
    #[error("acquire: {0}")]
    Unusable(#[from] Unusable),
}

/// Returns what raises a limit of the cache, by its unit.
fn limit_remedy(unit: &str) -> &'static str {
    match unit {
        "segments" => {
            "allow more segments (max_segments, MRRC_MAX_SEGMENTS) and take the key of each part (key_for), or raise the slice, if one is \
             set (slice_bytes, MRRC_SLICE)"
        }
        "regions" => "raise the limits of the cache (max_regions, MRRC_MAX_REGIONS; slice_bytes, MRRC_SLICE)",
        _ => {
            "raise the limit of the cache (capacity_bytes, MRRC_CAPACITY; no cache goes beyond what its registrar may pin: RLIMIT_MEMLOCK, \
             ulimit -l)"
        }
    }
}

/// Why a buffer cannot be acquired in blocks: see [`Cache::acquire_blocks`](crate::Cache::acquire_blocks).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlocksError {
    /// A block of no bytes.
    #[error("a block has one byte at least")]
    Empty,
    /// The policy does not cut ranges.
    #[error(
        "the policy of the cache registers other ranges than those asked for: choose one that does not, such as probation"
    )]
    Policy,
    /// A region would have to be longer than it may be.
    #[error(
        "the buffer takes more than one region of {}, and in none does a block end where a page ends: choose blocks whose bytes a page \
         divides, or that divide a page, raise the slice, if one is set (slice_bytes, MRRC_SLICE), or acquire fewer blocks at once",
        Count(*limit, "pages")
    )]
    Bounds {
        /// The most pages of a region.
        limit: u64,
    },
}

/// The obstacle of a request that ran out of its [time](crate::cache::Builder::wait_timeout).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// Another thread registers this part of the range.
    #[error(
        "another thread registered {range} and did not finish: try again, or wait longer (wait_timeout, MRRC_WAIT_TIMEOUT)"
    )]
    Registering {
        /// The part.
        range: PageRange,
    },
    /// Evicted regions are not deregistered yet, and take the room.
    #[error(
        "{} left the cache and were not deregistered ({} of them were, at the end, being deregistered by other threads), and \
         {} were missing: wait longer (wait_timeout, MRRC_WAIT_TIMEOUT), keep room free (headroom, MRRC_HEADROOM), or raise the limit \
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

/// Why a lease has no one key for some bytes: see [`Lease::key_for`](crate::Lease::key_for).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoKey {
    /// Several registrations have the bytes together.
    #[error(
        "key for bytes {offset} to {end} of a lease: one registration has those up to {at}: make a transfer of each part, or acquire one \
         segment (max_segments, MRRC_MAX_SEGMENTS=1)"
    )]
    Straddles {
        /// The first byte.
        offset: usize,
        /// The byte after the last.
        end: usize,
        /// The byte from which on another registration is needed.
        at: usize,
    },
    /// The lease has not all of the bytes, or none were asked for.
    #[error(
        "key for {length} bytes from {offset} on of a lease: it has {bytes}: ask for one byte at least, and within it"
    )]
    Outside {
        /// The first byte.
        offset: usize,
        /// How many.
        length: usize,
        /// Bytes of the lease.
        bytes: usize,
    },
    /// This is a child that was forked meanwhile: the registrations are its parent's.
    #[error(
        "key of a lease in a forked child: the registrations are the parent's: acquire by a cache of the child's own"
    )]
    Forked,
}

fn waited_for(waited: &Duration) -> String {
    if waited.is_zero() { String::new() } else { format!(" (waited {waited:?} for leases to end)") }
}

/// Returns the remedy where a registrar has no windows that hold. Other errors name theirs.
fn without_windows(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::Unsupported {
        ": use another device, or Remote::Trusted with a short `max_unheld` if peers may keep their rights that long"
    } else {
        ""
    }
}

/// Returns the remedy where no window was bound. Errors without a number name theirs.
fn without_window(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN) => {
            ": the device has no more windows (max_mw in `ibv_devinfo -v`), or no memory for one: end leases that peers are done with"
        }
        Some(_) => {
            ": `explain` looks whether any can be bound; where peers may keep their rights until regions leave, Remote::Trusted takes no windows"
        }
        None => "",
    }
}

/// Returns the remedy for an error of the system.
pub(crate) fn hint(error: &io::Error, registrar: &str, range: PageRange, access: Access) -> String {
    match error.raw_os_error() {
        Some(libc::EFAULT) => bad_address(registrar, range, access),
        Some(libc::ENOMEM) => {
            let device = "; or the table of the device is full (max_mr in `ibv_devinfo -v`): lower max_regions (MRRC_MAX_REGIONS)";
            format!(
                ": the locked memory of this user is used up (RLIMIT_MEMLOCK, ulimit -l), by this cache and by all else that this \
                 user has locked: other caches of this process, other rings, other processes. Raise the limit, or set capacities that \
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

/// These bytes are not all in the arena, or end before they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes {start}..{end} of an arena that has {bytes}: {}", if start > end {
    "the range ends before it begins"
} else {
    "stay inside of it, or make it larger"
})]
pub struct OutsideArena {
    /// The first byte that was asked for.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// Bytes in the arena.
    pub bytes: usize,
}

/// Why the cache could not be told of a change of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The changed range is no range of memory.
    #[error("tell of a change of memory (invalidate, begin_change): {0}")]
    Range(#[from] RangeError),
    /// See [`Unusable`].
    #[error("tell of a change of memory (invalidate, begin_change): {0}")]
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
    /// The cache is gone; what is left of it is an arena.
    #[error("the cache was dropped, and registers nothing more: keep it for as long as its arenas are used")]
    Closed,
    /// The monitor reads an event and does not come back.
    #[error(
        "the monitor has been dealing with a change of memory for {0:?}, which should take microseconds: try again, or make a new cache"
    )]
    Draining(Duration),
    /// A thread panicked while it changed the state.
    #[error("a thread panicked while it changed the cache's state: make a new cache")]
    Broken,
}
