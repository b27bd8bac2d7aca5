//! Items as they came, and the values in them.

use crate::slots::Slot;
use crate::value::{Bytes, Source, Value};
use rdmakv_proto::clock;
use rdmakv_proto::faults::{Fault, injected};
use rdmakv_proto::item::{self, HEADER, Item, ItemError, State};

/// Returns the item that was read one-sidedly, if it can be believed.
#[inline]
pub(super) fn read(slot: Slot, key: &[u8], incarnation: u32) -> Result<Value, ItemError> {
    read_at(slot, key, incarnation, clock::unix)
}

/// The same, by this clock, in Unix seconds.
#[inline]
pub(super) fn read_at(slot: Slot, key: &[u8], incarnation: u32, clock: impl Fn() -> u64) -> Result<Value, ItemError> {
    // The clock is asked where an end is near or far.
    let ends = slot.bytes().get(8..16).is_some_and(|expiry| expiry != [0; 8]);
    let now = if ends { clock() } else { 0 };
    let fields = match item::check(slot.bytes(), key, incarnation, now) {
        Err(ItemError::Torn) if injected(Fault::NoCrc) => unsummed(slot.bytes(), key),
        Err(distrust) => return Err(distrust),
        Ok(Item { value, flags, version, .. }) => (value.len(), flags, version),
    };
    let (len, flags, version) = fields;
    Ok(Value::new(Bytes::Slot(slot), HEADER + key.len(), len, (flags, version), Source::OneSided))
}

/// Returns the item that the server gave: it was the key's value then, whatever it has become since.
pub(super) fn given(mut bytes: Bytes, key: &[u8], incarnation: u32, source: Source) -> Result<Value, ItemError> {
    let image = match &mut bytes {
        Bytes::Slot(slot) => slot.bytes_mut(),
        Bytes::Heap(vec) => &mut vec[..],
    };
    if let Some(state) = image.first_mut() {
        *state = State::Alive as u8;
    }
    // When it ends was the server's to look at.
    let Item { value, flags, version, .. } = item::check(image, key, incarnation, 0)?;
    let len = value.len();
    Ok(Value::new(bytes, HEADER + key.len(), len, (flags, version), source))
}

/// Length, flags and version of an item that is as it should be but for its sum.
#[cold]
fn unsummed(bytes: &[u8], key: &[u8]) -> (usize, u32, u64) {
    let four = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let length = (four(24) as usize).min(bytes.len() - HEADER - key.len());
    (length, four(28), u64::from(four(16)) | u64::from(four(20)) << 32)
}
