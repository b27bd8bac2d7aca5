//! Parts of replies that several protocols have.

use super::{COPIED, Out};
use crate::store::{Handle, Refused, Store};
use rdmakv_proto::commands::binary::{self, Header};

/// Output that waits at most before a session does nothing more.
pub(super) const OUT_MAX: usize = 1 << 20;

pub(super) fn put_number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a line, unless the client wants none.
pub(super) fn put_line(line: &[u8], quiet: bool, out: &mut Out) {
    if !quiet {
        out.bytes.extend_from_slice(line);
    }
}

/// Appends the value, copied if it is small, else lent.
pub(super) fn put_value(store: &mut Store, handle: Handle, shard: usize, out: &mut Out) {
    let value = store.value(handle);
    // A long answer lends small values too: copies of them would have no bound.
    if value.len() <= COPIED && out.bytes.len() < 4 * OUT_MAX {
        return out.bytes.extend_from_slice(value);
    }
    match store.hold(handle) {
        Some(held) => out.lend(shard, held),
        None => out.bytes.extend_from_slice(store.value(handle)),
    }
}

/// Returns the line of a refusal, in the classic and in the meta protocol.
pub(super) fn refusal(refused: Refused) -> &'static [u8] {
    match refused {
        Refused::TooLarge => b"SERVER_ERROR object too large for cache\r\n",
        Refused::NoMemory => b"SERVER_ERROR out of memory storing object\r\n",
    }
}

/// The line of an item on flash for which there is no memory.
pub(super) const NO_MEMORY_TO_READ: &[u8] = b"SERVER_ERROR out of memory reading item\r\n";

/// Appends an error of the binary protocol.
pub(super) fn put_error(header: &Header, code: u16, out: &mut Out) {
    let text = binary::text(code);
    header.answer(&mut out.bytes, code, (0, 0, text.len()), 0);
    out.bytes.extend_from_slice(text.as_bytes());
}
