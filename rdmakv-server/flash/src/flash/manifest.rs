//! The manifest of a shard: what a warm restart needs of its flash tier, besides the log.
//!
//! It is a head, the segments, the stubs, and a CRC32C of all that. It names the orderly stop that it belongs to, and counts for one
//! start only: [`Start`](crate::restart::Start) removes it before anything is served.

use std::io::{self, Read, Write};

use crc_fast::{CrcAlgorithm, Digest};
use thiserror::Error;

use super::{Flash, Settings};
use crate::memory::StubMemory;
use crate::record::{self, crc, u32_at, u64_at};
use crate::segments::State;
use crate::stubs::{self, Id, Stub};

const MAGIC: &[u8; 8] = b"rdmakvfm";
const HEAD: usize = 56;
const SEGMENT: usize = 16;
const STUB: usize = 12;
/// Bytes that are written at a time.
const PART: usize = 64 << 10;

/// Why a manifest is not used: the tier starts empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// No manifest, or one that is damaged.
    #[error("restore flash: the manifest is damaged: flash starts empty")]
    Damaged,
    /// It is of another stop.
    #[error("restore flash: the manifest is of another stop than the log: flash starts empty")]
    OtherStop,
    /// The log is divided otherwise now.
    #[error("restore flash: sizes, files or threads changed: flash starts empty: start with the same flags")]
    OtherLayout,
}

/// A manifest that is being written, and its sum.
struct Writer<'a> {
    out: &'a mut dyn Write,
    part: Vec<u8>,
    digest: Digest,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.part.extend_from_slice(bytes);
        if self.part.len() < PART {
            return Ok(());
        }
        self.flush()
    }
    fn flush(&mut self) -> io::Result<()> {
        self.digest.update(&self.part);
        self.out.write_all(&self.part)?;
        self.part.clear();
        Ok(())
    }
}

/// A manifest that is being read, and its sum.
struct Reader<'a> {
    from: &'a mut dyn Read,
    digest: Digest,
}

impl Reader<'_> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ManifestError> {
        self.from.read_exact(bytes).map_err(|_| ManifestError::Damaged)?;
        self.digest.update(bytes);
        Ok(())
    }
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ManifestError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }
    /// Checks that the sum follows, and nothing else.
    fn end(self) -> Result<(), ManifestError> {
        let mut sum = [0; 4];
        let is_read = self.from.read_exact(&mut sum).is_ok();
        let is_right = u32::from_le_bytes(sum) == self.digest.finalize() as u32;
        let is_end = matches!(self.from.read(&mut [0]), Ok(0));
        if is_read && is_right && is_end { Ok(()) } else { Err(ManifestError::Damaged) }
    }
}

fn digest() -> Digest {
    Digest::new(CrcAlgorithm::Crc32Iscsi)
}

impl Flash {
    /// Returns the manifest of this stop, once [`is_stopped`](Self::is_stopped).
    #[must_use]
    pub fn manifest(&self, stop: u64) -> Vec<u8> {
        let mut out = Vec::new();
        // A vector takes all.
        let _ = self.write_manifest(stop, &mut out);
        out
    }

    /// Writes the manifest of this stop in parts, once [`is_stopped`](Self::is_stopped).
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_manifest(&self, stop: u64, out: &mut dyn Write) -> io::Result<()> {
        debug_assert!(self.is_stopped());
        let layout = &self.settings.layout;
        let mut out = Writer { out, part: Vec::with_capacity(PART + 512), digest: digest() };
        out.put(MAGIC)?;
        for number in [stop, self.settings.seed, self.stubs.len() as u64] {
            out.put(&number.to_le_bytes())?;
        }
        let numbers = [self.settings.life, self.opened, layout.unit(), layout.segment_bytes(), layout.segments(), 0];
        numbers.iter().try_for_each(|number| out.put(&number.to_le_bytes()))?;
        for number in 0..layout.segments() {
            let segment = self.segments.get(number);
            out.put(&segment.sequence.to_le_bytes())?;
            out.put(&segment.records.to_le_bytes())?;
            out.put(&u32::from(segment.state == State::Sealed).to_le_bytes())?;
        }
        let mut at = self.stubs.after(Id::NONE);
        while let Some(id) = at {
            let (stub, key) = (self.stubs.get(id), self.stubs.key(id));
            out.put(&stub.place.to_le_bytes())?;
            out.put(&stub.expiry.to_le_bytes())?;
            out.put(&[stub.len, key.len() as u8, stub.version, stub.marks & !stubs::LOADING])?;
            out.put(key)?;
            at = self.stubs.after(id);
        }
        out.flush()?;
        let sum = out.digest.finalize() as u32;
        out.out.write_all(&sum.to_le_bytes())
    }

    /// Makes a tier of what a manifest of this stop says, with stubs in memory that it maps. Seed and life are the manifest's.
    ///
    /// # Errors
    ///
    /// [`ManifestError`]: the tier is to start empty.
    pub fn restore(settings: Settings, bytes: &[u8], stop: u64) -> Result<Self, ManifestError> {
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(ManifestError::Damaged)?;
        if !body.starts_with(MAGIC) || crc(&[body]) != u32::from_le_bytes(*sum) {
            return Err(ManifestError::Damaged);
        }
        Self::read_manifest(settings, &mut &bytes[..], stop, None::<fn() -> Option<StubMemory>>)
    }

    /// Does the same with a manifest that is read in parts. Stubs lie in memory that is lent, [`Settings::stub_page`] bytes at a
    /// time. Stubs for which none is lent are dropped, and counted.
    ///
    /// # Errors
    ///
    /// [`ManifestError`]: the tier is to start empty. No memory that was lent is used any more.
    pub fn restore_in(
        settings: Settings,
        from: &mut dyn Read,
        stop: u64,
        lend: impl FnMut() -> Option<StubMemory>,
    ) -> Result<Self, ManifestError> {
        Self::read_manifest(settings, from, stop, Some(lend))
    }

    fn read_manifest(
        mut settings: Settings,
        from: &mut dyn Read,
        stop: u64,
        mut lend: Option<impl FnMut() -> Option<StubMemory>>,
    ) -> Result<Self, ManifestError> {
        let mut from = Reader { from, digest: digest() };
        let head = from.take::<HEAD>()?;
        if !head.starts_with(MAGIC) {
            return Err(ManifestError::Damaged);
        }
        if u64_at(&head, 8) != stop {
            return Err(ManifestError::OtherStop);
        }
        let layout = &settings.layout;
        let count = u64_at(&head, 24);
        if [layout.unit(), layout.segment_bytes(), layout.segments()] != [40, 44, 48].map(|at| u32_at(&head, at)) {
            return Err(ManifestError::OtherLayout);
        }
        let unit_count = u64::from(layout.segments()) * u64::from(layout.segment_bytes() / layout.unit());
        (settings.seed, settings.life) = (u64_at(&head, 16), u32_at(&head, 32));
        let mut flash = Self::new(settings);
        flash.opened = u32_at(&head, 36);
        if lend.is_some() {
            flash.take_lent_only();
        }
        for number in 0..flash.segments.len() {
            let segment = from.take::<SEGMENT>()?;
            if record::directory_len(u32_at(&segment, 8) as usize) as u64
                > u64::from(flash.settings.layout.segment_bytes())
            {
                return Err(ManifestError::Damaged);
            }
            if u32_at(&segment, 12) == 1 {
                flash.segments.restore(number, u64_at(&segment, 0), u32_at(&segment, 8));
            }
        }
        flash.segments.order();
        let mut key = [0; u8::MAX as usize];
        for _ in 0..count {
            let fixed = from.take::<STUB>()?;
            let key = &mut key[..usize::from(fixed[9])];
            from.fill(key)?;
            let place = u32_at(&fixed, 0);
            if key.is_empty() || u64::from(place) >= unit_count || fixed[8] == 0 {
                return Err(ManifestError::Damaged);
            }
            if !flash.segments.counts(flash.settings.layout.segment_of(place)) {
                continue;
            }
            let stub = Stub {
                place,
                expiry: u32_at(&fixed, 4),
                len: fixed[8],
                version: fixed[10],
                marks: fixed[11] & !stubs::LOADING,
            };
            let hash = flash.hash(key);
            if flash.find(hash, key).is_some() {
                return Err(ManifestError::Damaged);
            }
            if flash.insert(hash, key, stub).is_none() {
                let lend = lend.as_mut().filter(|_| !flash.stubs.is_full());
                let memory = lend.and_then(|lend| lend());
                let is_lent = memory.is_some();
                memory.into_iter().for_each(|memory| flash.lend_stub_memory(memory));
                if !is_lent || flash.insert(hash, key, stub).is_none() {
                    flash.counts.dropped_stubs += 1;
                }
            }
        }
        from.end()?;
        for number in 0..flash.segments.len() {
            flash.settle(number);
        }
        Ok(flash)
    }
}
