//! `FILE.meta`: all that a warm start needs besides the items, and whether it is believed.
//!
//! It is a head, a part for each shard, and a CRC32C of all that. Numbers are little-endian, words have their length before them.
//!
//! | bytes | what                                                       |
//! |------:|------------------------------------------------------------|
//! |     8 | magic: `rdmakvwm`                                          |
//! |     4 | version of the format: 1                                   |
//! |     8 | stop id                                                    |
//! |     8 | the server's clock at the stop, in Unix seconds            |
//! |     8 | the secret of the key hash                                 |
//! |     4 | incarnation of the server                                  |
//! |  2, … | the machine's boot                                         |
//! |  2, … | the server's address                                       |
//! |  2, … | the limits, as flags                                       |
//! |     4 | shards; of each:                                           |
//! |    32 | latest version, flushed, next flush (all ones: none), chosen |
//! |     8 | bytes of its items in FILE                                 |
//! |     8 | bytes of its flash tier's manifest behind them; all ones: none |

use rdmakv_flash::record;

use crate::fabric::predecessor::Predecessor;
use crate::store::Continuation;

const MAGIC: &[u8; 8] = b"rdmakvwm";
const VERSION: u32 = 1;
const NONE: u64 = u64::MAX;

/// Why a start is cold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Disbelief {
    #[error("the server before was killed, or could not write it")]
    NoMeta,
    #[error("its description is damaged")]
    Damaged,
    #[error("it is of a later version of the server")]
    Version,
    #[error("it and its description are of different stops")]
    OtherStop,
    #[error("the limits are others: they were {before}")]
    Limits { before: String },
    #[error(
        "its items are of a server at {before}, and this one is at {now}, where others may have been since: start it at {before}"
    )]
    Address { before: String, now: String },
    #[error("the clock is {seconds} s behind the one at the stop")]
    Clock { seconds: u64 },
    #[error("another server was at this address since, or this one was killed while it stopped")]
    OtherServer,
    #[error(
        "nothing tells whether another server was at this address since: its record in /dev/shm is gone or in use: let nothing remove \
         it (systemd: rdmakv-items.conf)"
    )]
    NoRecord,
    #[error("its items cannot be read: {0}")]
    Items(String),
}

/// The part of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShardMeta {
    pub(super) numbers: Continuation,
    /// Bytes of its items in FILE.
    pub(super) bytes: u64,
    /// Bytes of its flash tier's manifest behind them.
    pub(super) flash: Option<u64>,
}

/// The circumstances of a run: at its stop, and at the start of the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Circumstances {
    /// The server's clock.
    pub(super) clock: u64,
    /// Names the machine's boot.
    pub(super) boot: String,
    /// The server's address, as its record has it.
    pub(super) address: String,
    /// The flags that have to be the same.
    pub(super) limits: String,
}

/// The contents of FILE.meta.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) stop: u64,
    pub(super) seed: u64,
    pub(super) incarnation: u32,
    pub(super) at: Circumstances,
    pub(super) shards: Vec<ShardMeta>,
}

/// Bytes that are taken apart.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        self.0.split_off(..len)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
    fn half(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn word(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn text(&mut self) -> Option<String> {
        let len = u16::from_le_bytes(self.array()?);
        String::from_utf8(self.take(len.into())?.to_vec()).ok()
    }
}

impl Meta {
    /// Returns its bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for word in [self.stop, self.at.clock, self.seed] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        for text in [&self.at.boot, &self.at.address, &self.at.limits] {
            out.extend_from_slice(&(text.len() as u16).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        out.extend_from_slice(&(self.shards.len() as u32).to_le_bytes());
        for shard in &self.shards {
            let Continuation { latest, flushed, flush_at, chosen } = shard.numbers;
            for word in [latest, flushed, flush_at.unwrap_or(NONE), u64::from(chosen), shard.bytes] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            out.extend_from_slice(&shard.flash.unwrap_or(NONE).to_le_bytes());
        }
        let sum = record::sum(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Returns the contents of these bytes.
    ///
    /// # Errors
    ///
    /// They are not what a server wrote.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Disbelief> {
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(Disbelief::Damaged)?;
        if !body.starts_with(MAGIC) || record::sum(body) != u32::from_le_bytes(*sum) {
            return Err(Disbelief::Damaged);
        }
        let mut fields = Fields(&body[MAGIC.len()..]);
        if fields.half() != Some(VERSION) {
            return Err(Disbelief::Version);
        }
        Self::body(&mut fields).filter(|_| fields.0.is_empty()).ok_or(Disbelief::Damaged)
    }

    fn body(fields: &mut Fields<'_>) -> Option<Self> {
        let (stop, clock, seed, incarnation) = (fields.word()?, fields.word()?, fields.word()?, fields.half()?);
        let (boot, address, limits) = (fields.text()?, fields.text()?, fields.text()?);
        let mut shards = Vec::new();
        for _ in 0..fields.half()? {
            let (latest, flushed, flush_at) = (fields.word()?, fields.word()?, fields.word()?);
            let chosen = match fields.word()? {
                0 => false,
                1 => true,
                _ => return None,
            };
            let numbers = Continuation { latest, flushed, flush_at: (flush_at != NONE).then_some(flush_at), chosen };
            let bytes = fields.word()?;
            let flash = Some(fields.word()?).filter(|&bytes| bytes != NONE);
            shards.push(ShardMeta { numbers, bytes, flash });
        }
        Some(Self { stop, seed, incarnation, at: Circumstances { clock, boot, address, limits }, shards })
    }

    /// Returns whether the items of this stop may be served by a run that begins so. `stop` is FILE's, `record` is that of the
    /// server before at this address.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(super) fn believe(
        &self,
        stop: Option<u64>,
        now: &Circumstances,
        record: Option<Predecessor>,
    ) -> Result<(), Disbelief> {
        if stop != Some(self.stop) {
            return Err(Disbelief::OtherStop);
        }
        if now.limits != self.at.limits {
            return Err(Disbelief::Limits { before: self.at.limits.clone() });
        }
        if now.clock < self.at.clock {
            return Err(Disbelief::Clock { seconds: self.at.clock - now.clock });
        }
        // Servers that keep no items leave no record at another address.
        if now.address != self.at.address {
            let (before, now) = (self.at.address.clone(), now.address.clone());
            return Err(Disbelief::Address { before, now });
        }
        let is_other_boot = now.boot != self.at.boot;
        match record {
            Some(Predecessor::Known(record)) if record.clean && record.incarnation == self.incarnation => Ok(()),
            // The machine was started since: records of before are gone.
            Some(Predecessor::None) if is_other_boot => Ok(()),
            Some(Predecessor::Known(_)) => Err(Disbelief::OtherServer),
            _ => Err(Disbelief::NoRecord),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::fabric::predecessor::IncarnationRecord;

    fn circumstances() -> Circumstances {
        Circumstances { clock: 1000, boot: "one".into(), address: "rdmakv-11211".into(), limits: "-m 64".into() }
    }

    fn meta() -> Meta {
        let numbers = Continuation { latest: 9, flushed: 3, flush_at: Some(2000), chosen: true };
        let first = ShardMeta { numbers, bytes: 77, flash: Some(88) };
        let second = ShardMeta { flash: Some(0), ..ShardMeta::default() };
        let shards = vec![first, second, ShardMeta::default()];
        Meta { stop: 5, seed: 6, incarnation: 7, at: circumstances(), shards }
    }

    fn known(incarnation: u32, clean: bool) -> Option<Predecessor> {
        Some(Predecessor::Known(IncarnationRecord { incarnation, lease: Duration::ZERO, clean }))
    }

    #[test]
    fn meta_is_read_as_it_was_written() {
        assert_eq!(Meta::decode(&meta().encode()), Ok(meta()));
        assert_eq!(Meta::decode(&Meta::default().encode()), Ok(Meta::default()));
    }

    #[test]
    fn every_damaged_byte_is_seen() {
        let bytes = meta().encode();
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0x10;
            assert_eq!(Meta::decode(&broken), Err(Disbelief::Damaged), "byte {at}");
            assert_eq!(Meta::decode(&bytes[..at]), Err(Disbelief::Damaged), "{at} bytes");
        }
    }

    #[test]
    fn meta_of_the_same_run_only_is_believed() {
        let now = Circumstances { clock: 1000, ..circumstances() };
        let clean = known(7, true);
        let believe = |stop, now: &Circumstances, record| meta().believe(stop, now, record);
        assert_eq!(believe(Some(5), &now, clean), Ok(()));
        assert_eq!(believe(Some(6), &now, clean), Err(Disbelief::OtherStop));
        assert_eq!(believe(None, &now, clean), Err(Disbelief::OtherStop));
        let behind = Circumstances { clock: 999, ..now.clone() };
        assert_eq!(believe(Some(5), &behind, clean), Err(Disbelief::Clock { seconds: 1 }));
        let other = Circumstances { limits: "-m 65".into(), ..now.clone() };
        assert!(matches!(believe(Some(5), &other, clean), Err(Disbelief::Limits { .. })));
        assert_eq!(believe(Some(5), &now, known(8, true)), Err(Disbelief::OtherServer));
        assert_eq!(believe(Some(5), &now, known(7, false)), Err(Disbelief::OtherServer));
        for record in [None, Some(Predecessor::None), Some(Predecessor::Unreadable)] {
            assert_eq!(believe(Some(5), &now, record), Err(Disbelief::NoRecord));
        }
        // The first server since the machine was started.
        let later = Circumstances { boot: "two".into(), ..now };
        assert_eq!(believe(Some(5), &later, Some(Predecessor::None)), Ok(()));
        assert_eq!(believe(Some(5), &later, None), Err(Disbelief::NoRecord));
    }

    #[test]
    fn items_of_another_address_are_not_believed() {
        for boot in ["one", "two"] {
            let now = Circumstances { address: "rdmakv-1".into(), boot: boot.into(), ..circumstances() };
            for record in [None, Some(Predecessor::None), known(7, true), known(8, true)] {
                assert!(matches!(meta().believe(Some(5), &now, record), Err(Disbelief::Address { .. })));
            }
        }
    }

    proptest! {
        #[test]
        fn noise_with_a_right_sum_is_no_panic(noise in prop::collection::vec(any::<u8>(), 0..400), at in 12..200_usize, byte: u8) {
            let with_sum = |mut bytes: Vec<u8>| {
                let sum = record::sum(&bytes);
                bytes.extend_from_slice(&sum.to_le_bytes());
                bytes
            };
            let _ = Meta::decode(&noise);
            let head = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
            let _ = Meta::decode(&with_sum([&head[..], &noise].concat()));
            let mut bytes = meta().encode();
            bytes.truncate(bytes.len() - 4);
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = Meta::decode(&with_sum(bytes));
        }
    }
}
