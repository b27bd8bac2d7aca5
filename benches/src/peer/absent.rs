//! The place of a peer that is not there.

use crate::subject::{Behaviour, Setup, Subject};

/// A cache that was not linked: no value of it exists.
pub enum Ucx {}

impl Subject for Ucx {
    fn create(_: &Setup) -> Result<Option<Self>, String> {
        Ok(None)
    }

    fn about() -> String {
        let why = super::missing().unwrap_or_default();
        format!("UCX is not there ({why}): apt-get install libucx-dev, and build again")
    }

    fn touch(&self, _: usize, _: usize) -> bool {
        match *self {}
    }

    fn behaviour(&self) -> &Behaviour {
        match *self {}
    }
}
