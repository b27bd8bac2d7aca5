//! Several buffers at once, and when they become one registration (optimistic group registration).
//!
//! Buffers that no region serves are taken in address order, and neighbours are joined as long as registering the hole
//! between them costs less than the calls that it saves and the holes stay a small share of the group: the decision
//! is the core's, that of the simulator. The span of a group is registered, and each buffer gets a lease of its own.
//!
//! Only for local rights, because the pages of a hole must not be opened to peers whom their owner did not choose; and
//! only within one mapping, because a hole that is not mapped makes the registration fail. If it fails all the same, or
//! finds no room, the buffers are acquired one by one.

use super::acquire::Wish;
use super::error::AcquireError;
use super::lease::{Hold, Lease};
use super::miss::{self, Acquiring};
use super::shared::Shared;
use crate::access::Access;
use crate::core::group_len;
use crate::range::{PAGE, PageRange};
use crate::registrar::Registrar;

/// A buffer that is no hit: its pages, and its place in the list.
type Missed = (PageRange, usize);

pub(super) fn acquire<R: Registrar>(
    shared: &Shared<R>,
    buffers: &[(*const u8, usize)],
    access: Access,
) -> Result<Vec<Lease<R>>, AcquireError> {
    let terms = &shared.terms;
    let mut wishes = Vec::with_capacity(buffers.len());
    for &(address, length) in buffers {
        wishes.push(Wish::new(terms, address as usize, length, access)?);
    }
    let mut leases = Vec::with_capacity(wishes.len());
    let mut missed: Vec<Missed> = Vec::new();
    for (place, wish) in wishes.iter().enumerate() {
        let hit = shared.hit(wish.range, access);
        if hit.is_none() {
            missed.push((wish.range, place));
        }
        leases.push(hit.map(|(id, grip)| Lease::one(shared, wish.address, wish.length, Hold::new(id, grip))));
    }
    missed.sort_unstable();
    let ranges: Vec<PageRange> = missed.iter().map(|&(range, _)| range).collect();
    let groups = terms.groups && !access.is_remote();
    let most_pages = terms.capacity.pages.min(terms.region_pages);
    let mut done = 0;
    while done < missed.len() {
        let len = if groups { group_len(&ranges[done..], &terms.costs, terms.group_extra, most_pages) } else { 1 };
        let members = &missed[done..done + len];
        let mut counted = false;
        if len > 1 {
            match acquire_group(shared, &wishes, members, &ranges[done..done + len])? {
                Group::Acquired(acquired) => {
                    members.iter().zip(acquired).for_each(|(&(_, place), lease)| leases[place] = Some(lease));
                    done += len;
                    continue;
                }
                Group::Single { counted: tried } => counted = tried,
            }
        }
        for &(_, place) in members {
            leases[place] = Some(shared.grant(Wish { counted, ..wishes[place] })?);
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
    wishes: &[Wish],
    members: &[Missed],
    ranges: &[PageRange],
) -> Result<Group<R>, AcquireError> {
    let Some(span) = ranges.iter().copied().reduce(PageRange::hull) else {
        return Ok(Group::Single { counted: false });
    };
    // A child of a fork takes no lock: the request itself will say so.
    if shared.gate.is_forked() || !shared.is_one_mapping(span) {
        return Ok(Group::Single { counted: false });
    }
    let (address, length) = ((span.start() * PAGE) as usize, (span.pages() * PAGE) as usize);
    let wish = Wish { address, length, range: span, ..wishes[members[0].1] };
    let buffers: Vec<_> = members.iter().map(|&(_, place)| (wishes[place].address, wishes[place].length)).collect();
    let mut acquiring = Acquiring::new(shared, wish);
    match acquiring.start(ranges).and_then(|()| acquiring.share(&buffers)) {
        Ok(leases) => Ok(Group::Acquired(leases)),
        Err(error) if miss::is_worth_less(&error) => Ok(Group::Single { counted: true }),
        Err(error) => Err(error),
    }
}
