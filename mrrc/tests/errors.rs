//! Every error is one of the standard library's kind, may go to another thread, and says something.

use mrrc::cache::{ChangeError, OutsideArena, Unusable};
use mrrc::cost::CostError;
use mrrc::invalidation::Unwatched;
use mrrc::testing::SpaceError;
use mrrc::{AcquireError, AllInUse, ArenaError, BuildError, ConfigError, RangeError};
use std::error::Error;

fn is_good<E: Error + Send + Sync + 'static>() {}

#[test]
fn every_error_goes_anywhere_that_errors_go() {
    is_good::<AcquireError>();
    is_good::<AllInUse>();
    is_good::<ArenaError>();
    is_good::<BuildError>();
    is_good::<ChangeError>();
    is_good::<ConfigError>();
    is_good::<CostError>();
    is_good::<OutsideArena>();
    is_good::<RangeError>();
    is_good::<SpaceError>();
    is_good::<Unusable>();
    is_good::<Unwatched>();
}
