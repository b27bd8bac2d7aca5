//! The state of a domain that its connections see: tags, options, and the limit of guesses.

use super::IwarpOptions;
use super::tags::Table;
use super::throttle::TagThrottle;

/// The state of a domain that its connections see.
pub(super) struct Common {
    pub(super) tags: Table,
    pub(super) options: IwarpOptions,
    pub(super) throttle: TagThrottle,
}

impl Common {
    pub(super) fn new(options: IwarpOptions) -> Self {
        Self { tags: Table::new(), options, throttle: TagThrottle::default() }
    }
}
