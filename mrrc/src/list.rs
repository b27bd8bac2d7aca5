//! Several buffers at once, and when they become one registration (optimistic group registration).
//!
//! Buffers that no region serves are taken in address order. Neighbours are joined as long as registering the hole
//! between them costs less than the calls that it saves and the holes stay a small share of the group. The decision is
//! the core's, that of the simulator. The span of a group is registered, and each buffer gets a lease of its own.
//!
//! Only for local rights, because the pages of a hole must not be opened to peers that their owner did not choose; and
//! only within one mapping, because a hole that is not mapped makes the registration fail. If it fails all the same, or
//! finds no room, the buffers are acquired one by one.

use crate::access::Access;
use crate::driver::group_len;
use crate::error::AcquireError;
use crate::lease::{self, Lease};
use crate::miss::AcquireRequest;
use crate::range::{PAGE, PageRange};
use crate::registrar::{Failure, Registrar};
use crate::state::shared::Shared;

/// A buffer that is no hit: its pages, and its place in the list.
type Missed = (PageRange, usize);

pub(crate) fn acquire<R: Registrar>(
    shared: &Shared<R>,
    buffers: &[(*const u8, usize)],
    access: Access,
) -> Result<Vec<Lease<R>>, AcquireError> {
    let settings = &shared.settings;
    let mut requests = Vec::with_capacity(buffers.len());
    for &(address, length) in buffers {
        requests.push(AcquireRequest::new(settings, address as usize, length, access)?);
    }
    let mut leases = Vec::with_capacity(requests.len());
    let mut missed: Vec<Missed> = Vec::new();
    for (place, request) in requests.iter().enumerate() {
        let hit = shared.tables.hit(request.range, request.access);
        if hit.is_none() {
            missed.push((request.range, place));
        }
        let lease = hit.map(|hold| Lease::one(&shared.tables, request.address, request.length, hold));
        leases.push(lease.map(|lease| lease::open(shared, request, lease)).transpose()?);
    }
    missed.sort_unstable();
    let ranges: Vec<PageRange> = missed.iter().map(|&(range, _)| range).collect();
    let groups = settings.groups && !settings.divided(access).0.is_remote();
    let most_pages = settings.capacity.pages.min(settings.region_pages);
    let mut done = 0;
    while done < missed.len() {
        let len =
            if groups { group_len(&ranges[done..], &settings.costs, settings.group_extra, most_pages) } else { 1 };
        let members = &missed[done..done + len];
        let mut counted = false;
        if len > 1 {
            match acquire_group(shared, &requests, members, &ranges[done..done + len])? {
                Group::Acquired(acquired) => {
                    for (&(_, place), lease) in members.iter().zip(acquired) {
                        leases[place] = Some(lease::open(shared, &requests[place], lease)?);
                    }
                    done += len;
                    continue;
                }
                Group::Single { counted: tried } => counted = tried,
            }
        }
        for &(_, place) in members {
            leases[place] = Some(lease::grant(shared, AcquireRequest { counted, ..requests[place] })?);
        }
        done += len;
    }
    Ok(leases.into_iter().flatten().collect())
}

enum Group<R: Registrar> {
    /// In the order of the members.
    Acquired(Vec<Lease<R>>),
    /// The members are to be acquired one by one; whether they were counted as requests.
    Single { counted: bool },
}

fn acquire_group<R: Registrar>(
    shared: &Shared<R>,
    requests: &[AcquireRequest],
    members: &[Missed],
    ranges: &[PageRange],
) -> Result<Group<R>, AcquireError> {
    let Some(span) = ranges.iter().copied().reduce(PageRange::hull) else {
        return Ok(Group::Single { counted: false });
    };
    // A child of a fork takes no lock: the request itself will say so.
    if shared.tables.gate.is_forked() || !shared.is_one_mapping(span) {
        return Ok(Group::Single { counted: false });
    }
    let (address, length) = ((span.start() * PAGE) as usize, (span.pages() * PAGE) as usize);
    let request = AcquireRequest { address, length, range: span, ..requests[members[0].1] };
    let buffers: Vec<_> = members.iter().map(|&(_, place)| (requests[place].address, requests[place].length)).collect();
    match lease::grant_group(shared, request, ranges, &buffers) {
        Ok(leases) => Ok(Group::Acquired(leases)),
        Err(error) if is_worth_less(&error) => Ok(Group::Single { counted: true }),
        Err(error) => Err(error),
    }
}

/// Returns whether an error is worth a fall-back to smaller ranges: something between them is not mapped, or there is no room
/// for it.
fn is_worth_less(error: &AcquireError) -> bool {
    match error {
        AcquireError::AllInUse { .. } | AcquireError::DeregistrationFailed { .. } => true,
        AcquireError::Register { source, .. } => {
            source.raw_os_error() == Some(libc::EFAULT) || Failure::of(source) == Failure::Exhausted
        }
        _ => false,
    }
}
