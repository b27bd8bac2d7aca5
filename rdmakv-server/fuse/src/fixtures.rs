//! Inodes for tests.

use rdmakv_proto::files::{Generation, Ino, Inode, Kind, State, Time};

/// Returns an empty file in the root directory, which nothing writes.
pub(crate) fn empty_file() -> Inode {
    Inode {
        kind: Kind::File,
        state: State::Frozen,
        is_torn: false,
        is_unlinked: false,
        is_spilled: false,
        mode: 0o644,
        chunk_bits: 16,
        owner: 0,
        group: 0,
        size: 0,
        modified: Time::default(),
        changed: Time::default(),
        generation: Generation(0),
        reserved: Generation(0),
        writer: None,
        parent: Some(Ino::ROOT),
        backing: 0,
        name: b"a".to_vec(),
        target: Vec::new(),
        map: Vec::new(),
    }
}
