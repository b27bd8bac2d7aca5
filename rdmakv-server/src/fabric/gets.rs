//! Items that clients ask for: short ones go in messages, long ones are written into the client's memory.
//!
//! A client that expects a long item opens a transfer with a GET as its header, so that its keys come with the question. The
//! item's chunk is held until the transfer has ended: a replacement of the item meanwhile changes nothing of the written
//! bytes.

use std::collections::HashMap;

use frrwp::engine::Engine;
use frrwp::fabric::Endpoint;
use frrwp::handshake::Tag;

use super::budget::Room;
use super::commands::Commands;
use super::providers::Fabric;
use super::state::FabricState;
use crate::session::{Shards, resilient};
use crate::store::{ChunkRef, Handle, Store};
use rdmakv_proto::item::KEY_MAX;
use rdmakv_proto::messages::{self, Kind, Malformed, Request};

/// A chunk that a transfer reads. Dropping it gives the chunk back.
#[derive(Debug)]
pub(super) struct Lent<'f> {
    shards: &'f Shards,
    shard: usize,
    /// Taken when it is dropped.
    held: Option<ChunkRef>,
    address: usize,
    size: usize,
    _room: Room,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.shards.at(self.shard).release(held);
        }
    }
}

/// The result of a look at a key.
#[derive(Debug)]
pub(super) enum Found<'f> {
    Nothing,
    /// It is short: its image is [`Gets::image`].
    Image,
    /// Bytes with the header.
    Long(u64),
    /// Held for a transfer.
    Lent(Lent<'f>),
    /// Too much is under way.
    Busy,
    /// The client may not have it from here, for this reason.
    Refused(&'static str),
}

/// A GET that opened a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Get<'a> {
    pub(super) id: u32,
    /// Whether the client wishes for a tag.
    pub(super) wish: bool,
    pub(super) key: &'a [u8],
}

impl<'a> Get<'a> {
    /// Reads the header of a transfer.
    pub(super) fn of_transfer(header: &'a [u8]) -> Result<Self, Malformed> {
        let (id, kind, more, bytes) = messages::fragment(header)?;
        match Request::decode(kind, bytes)? {
            Request::Get { wish, key } if kind == Kind::Get && !more => check_key(key).map(|()| Self { id, wish, key }),
            _ => Err(Malformed("a transfer that is no GET")),
        }
    }
}

/// The items that a client is given at present.
#[derive(Debug, Default)]
pub(super) struct Gets<'f> {
    lent: HashMap<Tag, Lent<'f>>,
    image: Vec<u8>,
}

impl<'f> Gets<'f> {
    /// Returns whether no transfer is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }

    /// Returns the image of the short item that was found last.
    pub(super) fn image(&self) -> &[u8] {
        &self.image
    }

    /// Looks an item up. For a transfer into so many bytes a long one is held.
    pub(super) fn find<F: Fabric>(
        &mut self,
        state: &'f FabricState<F>,
        commands: &mut Commands<'f>,
        key: &[u8],
        transfer: Option<u64>,
    ) -> Found<'f> {
        let shards = &commands.shared().shards;
        look(commands, key, |shard, store, handle| self.give(state, (shards, shard, store), handle, transfer))
    }

    /// Returns an item that was found.
    fn give<F: Fabric>(
        &mut self,
        state: &'f FabricState<F>,
        (shards, shard, store): (&'f Shards, usize, &mut Store),
        handle: Handle,
        transfer: Option<u64>,
    ) -> Found<'f> {
        let lent = self.lent.values().map(|lent| lent.size as u64).sum::<u64>();
        // A client that opened a transfer wants one for values that could come in a message too.
        let eager = if transfer.is_some() { state.terms.transfers_from } else { state.terms.eager };
        let ((value, size), address) = (store.size(handle), store.extent(handle).address as usize);
        if value <= eager {
            self.image.clear();
            store.image(handle, &mut self.image);
            return Found::Image;
        }
        if transfer.is_none_or(|room| room < size as u64) {
            return Found::Long(size as u64);
        }
        // One client does not take all of the room from the others; but one item is always worth a try.
        if lent > 0 && lent + size as u64 > state.share {
            return Found::Busy;
        }
        let Some(room) = state.under_way.take(size as u64) else { return Found::Busy };
        match store.hold(handle) {
            Some(held) => Found::Lent(Lent { shards, shard, held: Some(held), address, size, _room: room }),
            None => Found::Busy,
        }
    }

    /// Gives a transfer the bytes of a chunk, unless the client has taken it back.
    #[expect(unsafe_code, reason = "the chunk is lent to the fabric by its address")]
    pub(super) fn accept<E: Endpoint>(&mut self, engine: &mut Engine<'_, E>, transfer: Tag, lent: Lent<'f>) {
        // SAFETY: `accept_read` requires readable memory until the transfer has ended or the engine is gone. The chunk is held
        // until then: these items are dropped after the engine, and the arena outlives the state. A published chunk's bytes are
        // not written but for words of its header, which are atomics and may be read at any moment.
        let accepted = unsafe { engine.accept_read(transfer, lent.address as *const u8, lent.size) };
        if accepted.is_ok() {
            self.lent.insert(transfer, lent);
        }
    }

    /// Gives the chunk of a transfer back that has ended; returns whether it had one.
    pub(super) fn end(&mut self, transfer: Tag) -> bool {
        self.lent.remove(&transfer).is_some()
    }
}

/// Looks a key up, and counts that. An item that is there is given on, under its store's lock.
fn look<'f>(
    commands: &mut Commands<'f>,
    key: &[u8],
    give: impl FnOnce(usize, &mut Store, Handle) -> Found<'f>,
) -> Found<'f> {
    let cluster = match resilient(commands.shared(), key) {
        Ok(cluster) => cluster,
        Err(line) => return Found::Refused(line),
    };
    let shards = &commands.shared().shards;
    if let Some(cluster) = cluster {
        let (shard, cx) = (shards.of(key), commands.context());
        cx.counts.cmd_get += 1;
        let shown = cluster.show(shards, key, cx.now, |store, handle| {
            handle.map_or(Found::Nothing, |handle| give(shard, store, handle))
        });
        match shown {
            Ok(Found::Nothing) => cx.counts.get_misses += 1,
            Ok(_) => cx.counts.get_hits += 1,
            Err(_) => {}
        }
        return shown.unwrap_or_else(Found::Refused);
    }
    let Some((shard, mut store)) = commands.recall(key) else { return Found::Busy };
    let cx = commands.context();
    cx.counts.cmd_get += 1;
    let Some(view) = store.get(key, true, cx.now) else {
        cx.counts.get_misses += 1;
        return Found::Nothing;
    };
    cx.counts.get_hits += 1;
    let handle = view.handle();
    give(shard, &mut store, handle)
}

/// Looks an item up, and appends its image, if its value has at most so many bytes.
pub(super) fn read<'f>(commands: &mut Commands<'f>, key: &[u8], most: usize, into: &mut Vec<u8>) -> Found<'f> {
    look(commands, key, |_, store, handle| {
        let (value, size) = store.size(handle);
        if value > most {
            return Found::Long(size as u64);
        }
        store.image(handle, into);
        Found::Image
    })
}

/// Checks the length of a key.
pub(super) fn check_key(key: &[u8]) -> Result<(), Malformed> {
    if (1..=KEY_MAX).contains(&key.len()) { Ok(()) } else { Err(Malformed("a key has 1 to 250 bytes")) }
}
