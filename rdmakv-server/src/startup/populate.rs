//! `--preallocate`: the memory of items is taken from the system at the start.
//!
//! The system clears each page when it is first written. Without this, that is part of the request that needs the page.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::log;
use crate::session::{Shared, is_stopping};

/// Starts the thread. It ends once all pages have memory, or the server stops.
///
/// # Errors
///
/// The system has no more threads.
pub(super) fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name("rdmakv-populate".to_owned());
    builder.spawn(move || {
        if let Err(error) = populate(&shared) {
            log::print(format_args!("--preallocate: {error}: other memory comes as items need it"));
        }
    })
}

/// Populates a page of each shard in turn. The locks of the shards are free meanwhile.
fn populate(shared: &Shared) -> io::Result<()> {
    let mut left: Vec<usize> = (0..shared.shards.count()).collect();
    while !left.is_empty() && !is_stopping(shared) {
        let mut some = Vec::with_capacity(left.len());
        for shard in left {
            let page = shared.shards.at(shard).empty_page();
            let Some(page) = page else { continue };
            page.populate()?;
            some.push(shard);
        }
        left = some;
    }
    Ok(())
}
