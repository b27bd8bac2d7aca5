//! `--flash`: the files of the second tier, from the flag to a driver that runs.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rdmakv_flash::layout::{self, LayoutError};
use rdmakv_flash::restart::{Start, Step};
use rdmakv_flash::superblock::Superblock;
use rdmakv_flash::{Layout, Settings, rewrite_percent};

use crate::disk::{self, Driver, FlashFile};
use crate::log;
use crate::session::{Shards, Shared};
use crate::store::{Config, Kept};

/// How long the requests of a killed server may hold a file.
const LOCKED: Duration = Duration::from_secs(5);
/// How long a stop waits for the last writes.
const WRITTEN: Duration = Duration::from_secs(60);
/// The unit before a file tells its own.
const UNIT: u32 = 512;
/// Bytes of a batch, unless items are larger.
const BATCH: usize = 1 << 20;
/// Memory of a shard at least: with less, buffers and stubs would leave none for items.
const MEMORY_MIN: usize = 8 << 20;
/// Bytes of a file at most: its offsets are signed, and its superblock comes before.
const SIZE_MAX: u64 = i64::MAX as u64 - layout::BLOCK;
/// Reads for clients in progress, of all shards.
const LOADS: usize = 512;

/// The part of the command line that is about the tier.
#[derive(Clone, Debug, Default)]
pub(super) struct FlashPlan {
    /// Paths and bytes.
    pub(super) files: Vec<(PathBuf, u64)>,
    /// Bytes of an item at least.
    pub(super) item_min: Option<u32>,
    /// Bytes of a segment.
    pub(super) segment: Option<u32>,
    /// Bytes of a batch.
    pub(super) batch: Option<u32>,
    /// The share of a segment, in percent, that is written again so that the rest becomes free.
    pub(super) max_live: Option<u32>,
    /// Whether items that were never fetched are not written again.
    pub(super) drop_unread: bool,
}

impl FlashPlan {
    /// Takes `PATH:SIZE`. What memcached lets follow is left out.
    ///
    /// # Errors
    ///
    /// The right form.
    pub(super) fn take(&mut self, text: &str) -> Result<(), String> {
        let bad = || format!("{text}: a file and its size are needed: /flash/rdmakv:64g");
        let (path, rest) = text.rsplit_once(':').ok_or_else(bad)?;
        let is_use = ["default", "compact", "lowttl", "chunked"].contains(&rest);
        let (path, rest) = if is_use { path.rsplit_once(':').ok_or_else(bad)? } else { (path, rest) };
        if path.is_empty() {
            return Err(bad());
        }
        let size = size(rest).map_err(|wrong| format!("{text}: {wrong}"))?;
        if self.files.iter().any(|(other, _)| other.as_os_str() == path) {
            return Err(format!("{path}: is named twice"));
        }
        // The superblock is not part of what users divide.
        self.files.push((path.into(), size + layout::BLOCK));
        Ok(())
    }

    fn sizes(&self) -> Vec<u64> {
        self.files.iter().map(|&(_, size)| size).collect()
    }

    fn segment(&self, store: &Config, shards: u32) -> u32 {
        self.segment.unwrap_or_else(|| layout::segment_size(self.bytes(), shards, store.item_max as u32))
    }

    /// Returns the bytes of a batch, and the buffers of a shard with this memory.
    fn buffers(&self, store: &Config, memory: usize) -> (usize, usize) {
        let batch = self.batch.map_or_else(|| BATCH.max(store.item_max.min(memory / 32)), |batch| batch as usize);
        (batch, if memory >= 64 << 20 { 4 } else { 2 })
    }

    /// Checks that the sizes can be divided.
    ///
    /// # Errors
    ///
    /// What is too small or too large, and what suffices.
    pub(super) fn check(&self, store: &Config, threads: usize) -> Result<(), String> {
        if self.files.is_empty() {
            let is_tuned =
                self.item_min.or(self.segment).or(self.batch).or(self.max_live).is_some() || self.drop_unread;
            let without = "-o ext_…: there is no flash to tune: give ext_path=PATH:SIZE, too, or --flash";
            return if is_tuned { Err(without.into()) } else { Ok(()) };
        }
        if !store.evict {
            return Err("--flash: items go there when memory is full, which -M forbids; leave one of them out".into());
        }
        let shards = Shards::number(store, threads);
        if store.memory / shards < MEMORY_MIN {
            let least = (MEMORY_MIN * shards) >> 20;
            return Err(format!("--flash: it needs memory for what is on its way: give -m {least} at least"));
        }
        let memory = store.memory / shards;
        let (batch, buffers) = self.buffers(store, memory);
        if batch * buffers > memory / 4 {
            let least = (batch * buffers * 4 * shards).div_ceil(1 << 20);
            return Err(format!(
                "-o ext_wbuf_size: {buffers} buffers of {} MiB take too much of each shard's {} MiB: give -m {least} at least",
                batch >> 20,
                memory >> 20
            ));
        }
        let segment = self.segment(store, shards as u32);
        let divided = Layout::new(&self.sizes(), shards as u32, 0, segment, UNIT);
        divided.map(drop).map_err(|error| match error {
            LayoutError::TooSmall { needed, .. } => format!(
                "--flash: too small: each shard needs {} segments of {} MiB: give PATH:{}m or more",
                layout::SEGMENTS_MIN,
                segment >> 20,
                (needed - layout::BLOCK).div_ceil(1 << 20)
            ),
            LayoutError::TooLarge { most, .. } => {
                format!("--flash: too large: each shard can use {} GiB: give less, or more threads (-t)", most >> 30)
            }
            LayoutError::Sizes { .. } => format!("--flash: {error}"),
        })
    }

    /// Opens the files. `kept` is the file of `-e`.
    ///
    /// # Errors
    ///
    /// The file that cannot be used, and why.
    pub(super) fn open(&self, kept: Option<&Path>) -> Result<Vec<FlashFile>, String> {
        let identity = |path: &Path| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
        let mut files = Vec::new();
        for (number, (path, size)) in self.files.iter().enumerate() {
            // One file by two names: it would be waited for, and another server blamed.
            let others = self.files[..number].iter().map(|(path, _)| path.as_path());
            let own = identity(path).and_then(|own| others.chain(kept).find(|other| identity(other) == Some(own)));
            if let Some(other) = own {
                return Err(format!(
                    "--flash {}: it is the same file as {}: name another one",
                    path.display(),
                    other.display()
                ));
            }
            files.push(disk::open(path, *size, LOCKED).map_err(|error| format!("--flash: {error}"))?);
        }
        Ok(files)
    }

    /// Returns the bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|&(_, size)| size).fold(0, u64::saturating_add)
    }

    /// Returns the files' part of the start-up lines, or nothing.
    pub(super) fn said(&self) -> String {
        let each = self.files.iter().map(|(path, size)| format!("; {} MiB on flash in {}", size >> 20, path.display()));
        each.collect()
    }

    /// Makes all that a tier needs besides memory, and tries what may be refused. Nothing is written.
    ///
    /// # Errors
    ///
    /// No io_uring, or sizes that cannot be divided.
    pub(super) fn prepare(&self, files: Vec<FlashFile>, store: &Config, shards: u32) -> Result<PreparedFlash, String> {
        let failed = |what: &dyn std::fmt::Display| format!("--flash: {what}");
        let unit = files.iter().map(|file| file.unit).max().unwrap_or(UNIT);
        let segment = self.segment(store, shards);
        let before = files.iter().map(|file| file.superblock).collect();
        let log = rand::random();
        let described = files.into_iter().zip(&self.files).enumerate().map(|(number, (file, &(_, size)))| {
            let (number, of) = (number as u16, self.files.len() as u16);
            (file, Superblock { log, size, stop: None, segment, unit, shards, file: number, files: of })
        });
        let files = described.collect();
        let memory = store.memory / shards as usize;
        let (batch, buffers) = self.buffers(store, memory);
        let settings = (0..shards).map(|shard| -> Result<Settings, LayoutError> {
            let layout = Layout::new(&self.sizes(), shards, shard, segment, unit)?;
            let usual = Settings::new(layout, rand::random::<u32>().max(1), 0);
            Ok(Settings {
                item_min: self.item_min.unwrap_or(if unit > 2048 { 2048 } else { 512 }),
                batch: batch as u32,
                buffers,
                stub_bytes: memory as u64 / 2,
                loads: (LOADS / shards as usize).clamp(8, 128),
                rewrite_percent: self.max_live.map_or(usual.rewrite_percent, rewrite_percent),
                drop_unread: self.drop_unread,
                ..usual
            })
        });
        let settings = settings.collect::<Result<Vec<_>, LayoutError>>().map_err(|error| failed(&error))?;
        Driver::try_ring(&settings).map_err(|error| failed(&error))?;
        Ok(PreparedFlash { files, before, settings })
    }

    /// Returns the lines that users see at the start.
    pub(super) fn notes(&self, files: &[FlashFile]) -> Vec<String> {
        let buffered = self.files.iter().zip(files).filter(|(_, file)| file.is_buffered);
        let note = |((path, _), _): (&(PathBuf, u64), _)| {
            let path = path.display();
            format!("--flash {path}: its file system has no direct I/O: its bytes take memory of the page cache, too")
        };
        buffered.map(note).collect()
    }
}

/// The files of the log and what their tiers are made with.
#[derive(Debug)]
pub(super) struct PreparedFlash {
    files: Vec<(FlashFile, Superblock)>,
    /// The superblocks that were there.
    before: Vec<Option<Superblock>>,
    settings: Vec<Settings>,
}

impl PreparedFlash {
    /// Gives the shards their tiers, with what is `kept` of the stop of which the files are, or empty; and starts the driver.
    ///
    /// # Errors
    ///
    /// A file that cannot be written, or no thread. The files are of the stop as before.
    pub(super) fn start(self, shared: &Arc<Shared>, kept: Option<&OnFlash<'_>>) -> Result<RunningFlash, String> {
        let failed = |what: &dyn std::fmt::Display| format!("--flash: {what}");
        let Self { files, before, settings } = self;
        // FILE.meta is in memory, and removed, by now.
        let mut steps = Start::new(&before);
        let is_kept = kept.is_some();
        let kept = steps.next_step().and_then(|step| kept.filter(|kept| step == Step::ReadManifest(kept.stop)));
        if kept.is_none() && (is_kept || before.iter().flatten().any(|block| block.stop.is_some())) {
            log::print("--flash: its items are not those of -e FILE: it starts empty");
        }
        let mut running = RunningFlash { driver: None, files };
        let started = running.start(settings, shared, kept);
        if let (Err(_), Some(kept)) = (&started, kept) {
            // Nothing else was written.
            let _ = running.mark(Some(kept.stop));
        }
        started.map_err(|error| failed(&error))?;
        Ok(running)
    }
}

/// The shards' items on flash, from an orderly stop.
pub(super) struct OnFlash<'a> {
    /// The stop.
    pub(super) stop: u64,
    of: Box<dyn Fn(usize) -> Option<Kept<'a>> + 'a>,
}

impl<'a> OnFlash<'a> {
    /// Returns the items of a stop. `of` reads what a shard has there.
    pub(super) fn new(stop: u64, of: impl Fn(usize) -> Option<Kept<'a>> + 'a) -> Self {
        Self { stop, of: Box::new(of) }
    }
}

/// The files of the log, in use.
#[derive(Debug)]
pub(super) struct RunningFlash {
    driver: Option<Driver>,
    files: Vec<(FlashFile, Superblock)>,
}

impl RunningFlash {
    fn start(
        &mut self,
        settings: Vec<Settings>,
        shared: &Arc<Shared>,
        kept: Option<&OnFlash<'_>>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        // Whatever was there is not believed any more before anything is written.
        self.mark(None).map_err(|error| format!("write its superblocks: {error}"))?;
        let named = |(file, _): &(FlashFile, _)| Ok((file.path.clone(), file.file.try_clone()?));
        let files = self.files.iter().map(named).collect::<io::Result<_>>()?;
        let (driver, unused) = Driver::start(files, settings, |shard| (kept?.of)(shard), shared)?;
        if let Some(error) = unused {
            log::print(format_args!("--flash: {error}"));
        }
        self.driver = Some(driver);
        Ok(())
    }

    /// Writes everything out and ends the driver; returns whether all is written.
    pub(super) fn stop(&mut self, shared: &Shared) -> bool {
        self.driver.take().is_some_and(|driver| driver.stop(shared, WRITTEN))
    }

    /// Marks the files as in use, or as those of a stop.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub(super) fn mark(&self, stop: Option<u64>) -> io::Result<()> {
        self.files.iter().try_for_each(|(file, block)| file.describe(&Superblock { stop, ..*block }))
    }
}

/// Returns a number of bytes; k, m, g and t are understood.
///
/// # Errors
///
/// The fault and the right form.
fn size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|end: char| !end.is_ascii_digit());
    let shift = match &lower[digits.len()..] {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        unit => return Err(format!("\"{unit}\" is no unit: use k, m, g or t, as in 64g")),
    };
    if digits.is_empty() || digits.contains(|digit: char| !digit.is_ascii_digit()) {
        return Err(format!("\"{text}\" is no size: give a whole number and its unit, as in 1536m or 64g"));
    }
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    let bytes = bytes.filter(|&bytes| bytes <= SIZE_MAX);
    bytes.ok_or_else(|| format!("\"{text}\" is too large for a file: give less, as in 64g"))
}
