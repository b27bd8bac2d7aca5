//! The verdict on one key: writers are found, then zones, then, where that is needed, all orders are looked through.
//!
//! ```
//! use rdmakv_check::history::{Operation, Step};
//! use rdmakv_check::judge::{Verdict, judge};
//!
//! let at = |begin, end, step| Operation { begin, end, certain: true, step };
//! let mut history = vec![at(1, 2, Step::Write(7)), at(3, 6, Step::Write(8)), at(4, 5, Step::Read(8)), at(7, 8, Step::Read(8))];
//! assert!(matches!(judge(&history), Verdict::Linearizable));
//! // While the second write is under way either value may be seen; the first one after the second never.
//! history.push(at(9, 10, Step::Read(7)));
//! assert!(matches!(judge(&history), Verdict::Violated(_)));
//! ```

use crate::attribution::attribute;
use crate::history::Operation;
use crate::search::{Found, search};
use crate::violation::Violation;
use crate::zones::zones;

/// Whether an order of the operations explains all answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is one.
    Linearizable,
    /// There is none, and why.
    Violated(Violation),
    /// The zones find nothing wrong; whether each deletion had something to delete was too much to look through.
    Undecided,
}

/// Judges one key's history.
pub fn judge(history: &[Operation]) -> Verdict {
    let attributed = match attribute(history) {
        Ok(attributed) => attributed,
        Err(violation) => return Verdict::Violated(violation),
    };
    let zones = match zones(&attributed) {
        Ok(zones) => zones,
        Err(mut violation) => {
            violation.operations.iter_mut().for_each(|place| *place = attributed.places[*place]);
            return Verdict::Violated(violation);
        }
    };
    match search(&attributed, &zones) {
        Found::Order => Verdict::Linearizable,
        Found::None(violation) => Verdict::Violated(violation),
        Found::Undecided => Verdict::Undecided,
    }
}
