//! Registering what a request lacks: the end of a request.

use super::contents::Contents;
use super::holders::{Holders, Request};
use super::outcome::Part;
use super::planner::{Piece, Planner};
use super::{AllInUse, room};
use crate::policy::Policy;
use crate::range::PageRange;
use crate::regions::RegionId;

/// Makes a region of each piece of the plan.
pub(super) fn admit<P: Policy>(contents: &mut Contents<P>, planner: &Planner, asked: PageRange) {
    count_registrations(contents, planner);
    add_parts(contents, planner, asked, true);
    contents.record_peak(0);
}

/// Makes the region of a request that overlaps nothing.
#[inline]
pub(super) fn admit_lone<P: Policy>(contents: &mut Contents<P>, request: &Request) -> RegionId {
    contents.record_mut().count_registrations(1, request.range.pages());
    let id = contents.add(request.range, request.access, true);
    contents.record_peak(0);
    id
}

/// Registers regions for one request: they are regions like others for the limits, and retired from the
/// start, so no look-up finds them, and they leave with their first release. Under a hard limit they are held for
/// their registration.
pub(super) fn admit_aside<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    request: &Request,
    holders: &mut impl Holders,
) -> Result<(), AllInUse> {
    let found = planner.set_aside(contents.view(), request);
    contents.record_mut().start(found);
    room::make(contents, planner, request.range, holders)?;
    count_registrations(contents, planner);
    for &Piece { range, access } in planner.plan().pieces() {
        let region = Some(contents.add_retired(range, access));
        contents.record_mut().push(Part::Gap { region, range, access });
    }
    contents.record_peak(0);
    Ok(())
}

/// Registers what is missing for this request alone, and deregisters it in one batch.
pub(super) fn bypass<P: Policy>(contents: &mut Contents<P>, planner: &mut Planner, asked: PageRange) {
    planner.bypass(asked);
    count_registrations(contents, planner);
    let pages = planner.plan().piece_pages();
    let registrations = planner.registrations(contents.view());
    contents.record_mut().count_deregistrations(registrations, pages);
    contents.record_peak(pages);
    add_parts(contents, planner, asked, false);
}

/// Answers that the regions of the plan serve the request.
pub(super) fn answer<P: Policy>(contents: &mut Contents<P>, planner: &Planner, asked: PageRange) {
    add_parts(contents, planner, asked, false);
}

fn count_registrations<P: Policy>(contents: &mut Contents<P>, planner: &Planner) {
    let registrations = planner.registrations(contents.view());
    contents.record_mut().count_registrations(registrations, planner.plan().piece_pages());
}

/// Fills in the parts in address order. `keep`: the pieces become regions.
fn add_parts<P: Policy>(contents: &mut Contents<P>, planner: &Planner, asked: PageRange, keep: bool) {
    let mut pieces = planner.plan().pieces().iter().copied().peekable();
    let add_piece = |contents: &mut Contents<P>, Piece { range, access }: Piece| {
        let region = keep.then(|| contents.add(range, access, false));
        contents.record_mut().push(Part::Gap { region, range, access });
    };
    for &region in planner.plan().overlaps() {
        let covered = contents.view().regions.get(region).range();
        while let Some(piece) = pieces.next_if(|piece| piece.range.start() < covered.start()) {
            add_piece(contents, piece);
        }
        if let Some(range) = covered.intersection(asked) {
            let part = contents.view().part_of(region, range);
            contents.record_mut().push(part);
        }
    }
    for piece in pieces {
        add_piece(contents, piece);
    }
}
