//! Objects that were asked for: what remains of a trace for a server of keys and values.

use crate::side_by_side::remote::Outcome;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use traces::{Action, ReadOptions};

/// Requests in order, each for an object by its number, and how large the objects are.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    pub(super) requests: Vec<u32>,
    pub(super) sizes: Vec<u32>,
}

impl Objects {
    /// Reads a trace of any format. An object is a range by its first byte, as large as when it was asked for first.
    pub(super) fn read(file: &Path) -> Outcome<Self> {
        let mut objects = Self::default();
        let mut numbers = HashMap::new();
        for event in traces::open(file, &ReadOptions::default())? {
            let event = event?;
            let (Action::Request(spans) | Action::Acquire(spans)) = &event.action else { continue };
            for span in spans {
                let number = *numbers.entry((event.process, span.address)).or_insert_with(|| {
                    objects.sizes.push(span.length.min(LARGEST) as u32);
                    objects.sizes.len() as u32 - 1
                });
                objects.requests.push(number);
            }
        }
        Ok(objects)
    }

    /// Returns the key of an object.
    pub(super) fn key(number: u32) -> String {
        format!("object:{number:08x}")
    }
}

/// Larger objects are sent as if they were so large: no server takes them.
const LARGEST: u64 = 8 << 20;

/// Returns the folder of traces beside the repository, if it is there.
pub(super) fn folder() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
    folder.is_dir().then_some(folder)
}
