//! Bounds of any cache: a cost that none goes below, and one that a cache which knows the future reaches.
//!
//! With ranges of different sizes the cheapest schedule is hard to find (NP-hard), so both sides of it are given.
//!
//! # The lower side
//!
//! [`lower`] holds for every cache that registers only pages of the request at hand and of regions that overlap it
//! ([`holds_for`]): with exact or containment matching, whether overlaps split, merge or give way. For one process:
//!
//! 1. *Time* is counted in requests, a range of a list being one. Between two requests at most `C` pages are registered;
//!    a request that bypasses the limit does so only while it lasts.
//! 2. Look at single pages: a page is registered if any region holds it. Registering a region registers its pages,
//!    and regions that overlap only cost more, so the pages' schedule is no dearer than the regions' and takes no more room.
//! 3. A page that a request finds was registered at no time since its last use but at that use (no other request asked
//!    for it). So it has been registered ever since: it took one page for as many moments as there were requests, its
//!    *volume*. Waits of one page do not overlap, so the volumes of all that is found add up to at most the capacity that
//!    can be used, which is `min(C, pages that wait for another use)`, summed over time. Whether a lease held the page
//!    meanwhile changes nothing: held or cached, it is registered.
//! 4. A page that was never used, or was invalidated since, is not found.
//! 5. Serving a request costs at least `a` for each page that is not found, and `b` if there is one. Every page
//!    registered is deregistered for `a'`, but for those that are registered at the end: at most `C`, and at most one
//!    for each page that was used (and not invalidated after that). The cost of a batch, `b'`, vanishes as batches grow and
//!    is left out.
//! 6. So a cache saves, against finding nothing, `a + a'` for each page found and `b` for each request of which *all* pages
//!    are found. That minimum over pages is at most any weighted mean of them, so `b` can be spread over the pages
//!    of the request by any weights that add up to one; none if a page cannot be found.
//! 7. It remains to choose pages by value within a total volume. Allowing fractions only saves more, and then the best
//!    choice is by value over volume.
//!
//! The weights in step 6 that make the bound highest, for every capacity at once, give `b` to the pages that waited longest,
//! as to water that fills the deepest parts first: a price for volume buys either the pages that are worth it by
//! themselves, or those and all others together with `b`, and the sum of these two convex pieces is that of the items so
//! made. (Spreading by volume, which is simpler, is lower wherever a request has pages of different ages.)
//!
//! Rights are not looked at: a page found with too few rights has to be registered again, which only costs more.
//!
//! A request that is refused because all is in use (`all_in_use`) is charged `(a + a')` for each of its pages and `b + b'`
//! ([`Replayed::cost`](crate::simulate::Replayed::cost)). That is a request that finds nothing and bypasses the limit, for as long as its own
//! use lasts, so all of the above holds of it. It saves nothing (step 6), the most that it can cost. No other request finds its
//! registrations, so a page that a later request finds was in the cache all the while (step 3).
//!
//! Ten million requests take seconds and memory in proportion to the runs of pages that are alive (`last_use`).
//! The sums in `knapsack` and `living` are bounded.
//!
//! # The upper side
//!
//! [`upper`] replays the trace through [`mrrc_core::Core`] with a policy that knows the next use of every region
//! ([`clairvoyant`]), in a few ways, and with every policy that does not know it and for which the lower side holds. The
//! least of all these counts, for each process. Its schedule is possible, so the cheapest one costs no more. The
//! clairvoyant is a heuristic, and no optimum, but no such policy of the same run is below the upper side.
//!
//! The lower side allows any request to bypass the limit, registered for itself alone, which the rules of the simulator
//! allow only where a request does not fit. [`upper_bypassing`] uses that freedom too: it is above the optimum of that
//! wider game, and shows how much of the gap between the two sides is the room of newcomers without an early next use.

pub mod clairvoyant;
mod knapsack;
mod living;
mod lower;
mod upper;

pub use lower::{lower, lower_until};
pub use upper::{upper, upper_bypassing, upper_bypassing_until, upper_replays, upper_until};

use mrrc_core::policy::{Granule, Scheme};

/// Returns whether [`lower`] holds for policies of this scheme: not for those that register pages that no request names.
///
/// Merging regions that overlap is no such case: their union holds only pages that were registered or are requested.
///
/// For those, the same bound with calls that cost nothing holds. They may register all pages in one call. But a page that is
/// found was kept since its last use, or it was deregistered and registered again.
pub fn holds_for(scheme: &Scheme) -> bool {
    !scheme.groups && !scheme.widens && !matches!(scheme.granule, Granule::Bucket(_))
}
