//! The manifest of a shard: what a warm restart needs of its flash tier, besides the log.
//!
//! It is a head, the segments, the stubs, and a CRC32C of all that. It names the orderly stop that it belongs to, and counts for one
//! start only: [`Start`](crate::restart::Start) removes it before anything is served.

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
    /// The memory for stubs is less now.
    #[error("restore flash: the stubs need more memory: flash starts empty: raise -m")]
    Stubs,
}

impl Flash {
    /// Returns the manifest of this stop, once [`is_stopped`](Self::is_stopped).
    #[must_use]
    pub fn manifest(&self, stop: u64) -> Vec<u8> {
        debug_assert!(self.is_stopped());
        let layout = &self.settings.layout;
        let mut out = Vec::with_capacity(HEAD + layout.segments() as usize * SEGMENT + self.stubs.len() * 48 + 4);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&stop.to_le_bytes());
        out.extend_from_slice(&self.settings.seed.to_le_bytes());
        out.extend_from_slice(&(self.stubs.len() as u64).to_le_bytes());
        let numbers = [self.settings.life, self.opened, layout.unit(), layout.segment_bytes(), layout.segments(), 0];
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        for number in 0..layout.segments() {
            let segment = self.segments.get(number);
            out.extend_from_slice(&segment.sequence.to_le_bytes());
            out.extend_from_slice(&segment.records.to_le_bytes());
            out.extend_from_slice(&u32::from(segment.state == State::Sealed).to_le_bytes());
        }
        let mut at = self.stubs.after(Id::NONE);
        while let Some(id) = at {
            let (stub, key) = (self.stubs.get(id), self.stubs.key(id));
            out.extend_from_slice(&stub.place.to_le_bytes());
            out.extend_from_slice(&stub.expiry.to_le_bytes());
            out.extend_from_slice(&[stub.len, key.len() as u8, stub.version, stub.marks & !stubs::LOADING]);
            out.extend_from_slice(key);
            at = self.stubs.after(id);
        }
        let sum = crc(&[&out]);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Makes a tier of what a manifest of this stop says, with stubs in memory that it maps. Seed and life are the manifest's.
    ///
    /// # Errors
    ///
    /// [`ManifestError`]: the tier is to start empty.
    pub fn restore(settings: Settings, bytes: &[u8], stop: u64) -> Result<Self, ManifestError> {
        Self::read_manifest(settings, bytes, stop, None::<fn() -> Option<StubMemory>>)
    }

    /// The same, with stubs in memory that is lent: as many bytes as [`Settings::stub_page`] at a time.
    ///
    /// # Errors
    ///
    /// [`ManifestError`]: the tier is to start empty. No memory that was lent is used any more.
    pub fn restore_in(
        settings: Settings,
        bytes: &[u8],
        stop: u64,
        lend: impl FnMut() -> Option<StubMemory>,
    ) -> Result<Self, ManifestError> {
        Self::read_manifest(settings, bytes, stop, Some(lend))
    }

    fn read_manifest(
        mut settings: Settings,
        bytes: &[u8],
        stop: u64,
        mut lend: Option<impl FnMut() -> Option<StubMemory>>,
    ) -> Result<Self, ManifestError> {
        let end = bytes.len().checked_sub(4).filter(|&end| end >= HEAD).ok_or(ManifestError::Damaged)?;
        let body = &bytes[..end];
        if &body[..8] != MAGIC || crc(&[body]) != u32_at(bytes, end) {
            return Err(ManifestError::Damaged);
        }
        if u64_at(body, 8) != stop {
            return Err(ManifestError::OtherStop);
        }
        let layout = &settings.layout;
        let count = u64_at(body, 24);
        if [layout.unit(), layout.segment_bytes(), layout.segments()] != [40, 44, 48].map(|at| u32_at(body, at)) {
            return Err(ManifestError::OtherLayout);
        }
        let unit_count = u64::from(layout.segments()) * u64::from(layout.segment_bytes() / layout.unit());
        (settings.seed, settings.life) = (u64_at(body, 16), u32_at(body, 32));
        let mut flash = Self::new(settings);
        flash.opened = u32_at(body, 36);
        if lend.is_some() {
            flash.take_lent_only();
        }
        let mut rest = &body[HEAD..];
        for number in 0..flash.segments.len() {
            let segment = rest.split_off(..SEGMENT).ok_or(ManifestError::Damaged)?;
            if record::directory_len(u32_at(segment, 8) as usize) as u64
                > u64::from(flash.settings.layout.segment_bytes())
            {
                return Err(ManifestError::Damaged);
            }
            if u32_at(segment, 12) == 1 {
                flash.segments.restore(number, u64_at(segment, 0), u32_at(segment, 8));
            }
        }
        flash.segments.order();
        for _ in 0..count {
            let fixed = rest.split_off(..STUB).ok_or(ManifestError::Damaged)?;
            let key = rest.split_off(..usize::from(fixed[9])).ok_or(ManifestError::Damaged)?;
            let place = u32_at(fixed, 0);
            if key.is_empty() || u64::from(place) >= unit_count || fixed[8] == 0 {
                return Err(ManifestError::Damaged);
            }
            if !flash.segments.counts(flash.settings.layout.segment_of(place)) {
                continue;
            }
            let stub = Stub {
                place,
                expiry: u32_at(fixed, 4),
                len: fixed[8],
                version: fixed[10],
                marks: fixed[11] & !stubs::LOADING,
            };
            let hash = flash.hash(key);
            if flash.find(hash, key).is_some() {
                return Err(ManifestError::Damaged);
            }
            if flash.insert(hash, key, stub).is_none() {
                let memory = lend.as_mut().and_then(|lend| lend()).ok_or(ManifestError::Stubs)?;
                flash.lend_stub_memory(memory);
                flash.insert(hash, key, stub).ok_or(ManifestError::Stubs)?;
            }
        }
        if !rest.is_empty() {
            return Err(ManifestError::Damaged);
        }
        for number in 0..flash.segments.len() {
            flash.settle(number);
        }
        Ok(flash)
    }
}
