//! Items that clients ask for: short ones go in messages, long ones are written into the client's memory.
//!
//! A client that expects a long item opens a transfer with a GET as its header, so that its keys come with the question. The
//! item's chunk is held until the transfer has ended: a replacement of the item meanwhile changes nothing of the written
//! bytes.

use frrwp::engine::TransferError;
use frrwp::handshake::Tag;

use super::budget::Room;
use super::connection::Connection;
use super::providers::Fabric;
use super::saying::Then;
use crate::metrics::{add, count};
use crate::session::Shards;
use crate::store::ChunkRef;
use rdmakv_proto::item::{HEADER, KEY_MAX};
use rdmakv_proto::messages::{self, Kind, Malformed, Refusal, Reply, Request};

/// A chunk that a transfer reads.
#[derive(Debug)]
pub(super) struct Lent {
    shard: usize,
    held: ChunkRef,
    address: usize,
    size: usize,
    _room: Room,
}

impl Lent {
    pub(super) fn give_back(self, shards: &Shards) {
        shards.at(self.shard).release(self.held);
    }
}

/// The result of a look at a key.
enum Found {
    Nothing,
    /// Copied: it is short.
    Image,
    /// Bytes with the header.
    Long(u64),
    /// Held for a transfer.
    Lent(Lent),
    /// Too much is under way.
    Busy,
}

impl<F: Fabric> Connection<'_, F> {
    /// Looks an item up. For a transfer into so many bytes a long one is held.
    fn find(&mut self, key: &[u8], transfer: Option<u64>) -> Found {
        let state = self.state;
        let lent = self.own.lent.values().map(|lent| lent.size as u64).sum::<u64>();
        let (_, _, cx) = self.own.context();
        let shards = &cx.shared.shards;
        let shard = shards.of(key);
        let mut store = shards.at(shard);
        cx.counts.cmd_get += 1;
        let Some(view) = store.get(key, true, cx.now) else {
            cx.counts.get_misses += 1;
            return Found::Nothing;
        };
        cx.counts.get_hits += 1;
        let (short, size, handle) = (view.value.len() <= state.terms.eager, view.size, view.handle());
        let address = view.key.as_ptr() as usize - HEADER;
        if short {
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
            Some(held) => Found::Lent(Lent { shard, held, address, size, _room: room }),
            None => Found::Busy,
        }
    }

    /// A GET in a message.
    pub(super) fn get(&mut self, id: u32, wish: bool, key: &[u8]) -> Result<(), Malformed> {
        check_key(key)?;
        if !self.may_ask(id) {
            return Ok(());
        }
        let found = self.find(key, None);
        let there = matches!(found, Found::Image | Found::Long(_));
        let tag = if wish && there { self.grant(key) } else { None };
        match found {
            Found::Image => {
                count(&self.state.counts.gets_by_message);
                self.own.saying.reply(id, &Reply::Item { tag, image: &self.image });
            }
            Found::Long(size) => self.own.saying.reply(id, &Reply::Large { tag, size }),
            _ => self.own.saying.reply(id, &Reply::None),
        }
        Ok(())
    }

    /// A GET that came with a transfer.
    pub(super) fn answer_question(&mut self, transfer: Tag, room: u64) {
        // It may have ended while it waited.
        let Some(header) = self.engine.header(transfer).map(<[u8]>::to_vec) else { return };
        let asked =
            messages::fragment(&header).and_then(|(id, kind, more, bytes)| match Request::decode(kind, bytes)? {
                Request::Get { wish, key } if kind == Kind::Get && !more => check_key(key).map(|()| (id, wish, key)),
                _ => Err(Malformed("a transfer that is no GET")),
            });
        let (id, wish, key) = match asked {
            Ok(asked) if self.is_greeted() => asked,
            Ok((id, ..)) => {
                let _ = self.engine.refuse(transfer);
                return self.makes_no_sense(id, "a transfer before HELLO");
            }
            Err(Malformed(what)) => {
                let _ = self.engine.refuse(transfer);
                return self.makes_no_sense(0, what);
            }
        };
        if !self.may_ask(id) {
            return self.own.saying.then(Then::Refuse(transfer));
        }
        let found = self.find(key, Some(room));
        let there = !matches!(found, Found::Nothing | Found::Busy);
        let tag = if wish && there { self.grant(key) } else { None };
        let mut then = Then::Refuse(transfer);
        match found {
            Found::Nothing => self.own.saying.reply(id, &Reply::None),
            Found::Image => {
                count(&self.state.counts.gets_by_message);
                self.own.saying.reply(id, &Reply::Item { tag, image: &self.image });
            }
            Found::Long(size) => self.own.saying.reply(id, &Reply::Large { tag, size }),
            Found::Lent(lent) => {
                self.own.saying.reply(id, &Reply::Tag(tag));
                then = Then::Supply(transfer, lent);
            }
            Found::Busy => self.refuse(id, Refusal::Busy, "too many large items are on their way; ask again"),
        }
        self.own.saying.then(then);
    }

    /// The client knows what comes: it gets it.
    #[expect(unsafe_code, reason = "the chunk is lent to the fabric by its address")]
    pub(super) fn supply(&mut self, transfer: Tag, lent: Lent) {
        // SAFETY: the chunk is held until the transfer has ended, and the arena outlives the state; a published chunk's bytes are
        // not written but for words of its header, which are atomics and may be read at any moment.
        let supplied = unsafe { self.engine.accept_read(transfer, lent.address as *const u8, lent.size) };
        match supplied {
            Ok(()) => drop(self.own.lent.insert(transfer, lent)),
            // The client has taken it back.
            Err(_) => lent.give_back(&self.own.shared.shards),
        }
    }

    /// A transfer has ended.
    pub(super) fn transferred(&mut self, transfer: Tag, result: Result<u64, TransferError>) {
        self.forget_question(transfer);
        let Some(lent) = self.own.lent.remove(&transfer) else { return };
        lent.give_back(&self.own.shared.shards);
        let counts = &self.state.counts;
        match result {
            Ok(bytes) => {
                count(&counts.gets_by_transfer);
                add(&counts.transferred_bytes, bytes);
                self.own.counts.bytes_written += bytes;
            }
            Err(_) => count(&counts.failed_transfers),
        }
    }
}

fn check_key(key: &[u8]) -> Result<(), Malformed> {
    if (1..=KEY_MAX).contains(&key.len()) { Ok(()) } else { Err(Malformed("a key has 1 to 250 bytes")) }
}
