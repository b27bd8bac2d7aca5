//! `-e FILE`: items outlive an orderly stop of the server, and nothing outlives any other end.
//!
//! Items are written to FILE when the server stops, and read into new memory when the next one starts. FILE itself is no arena: clients
//! over shared memory map sealed memory only, and no file with a name can be sealed. So chunks are always new, with this run's
//! incarnation. A client that still maps the old ones finds no item of this run there.
//!
//! * **Stop**: nothing serves any more. The flash tiers are written out, then the items and what the tiers have. Then all superblocks get
//!   the number of this stop, as clean ones. `FILE.meta` is written last, to a new file, which is renamed. Each has reached the device
//!   before the next begins.
//! * **Start**: FILE is locked, then the server's record and the log. FILE.meta is read and judged ([`Meta::believe`]). All that may fail is
//!   tried. Then FILE.meta is removed, believed or not. Superblocks are in use then, items are read, and only then clients are served.
//!
//! So FILE.meta exists from the end of an orderly stop to the next start, never while a server serves. A server that is killed leaves
//! none, and the next one starts empty.

mod file;
mod meta;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rdmakv_proto::clock;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::flash::{OnFlash, RunningFlash};
use crate::disk::is_at;
use crate::fabric::predecessor::Predecessor;
use crate::log;
use crate::session::{Shards, Shared};
use crate::store::{Config, Kept};
use file::BEGIN;
pub(super) use file::WarmFile;
use meta::{Circumstances, Disbelief, Meta, ShardMeta};

/// How long the server before may hold FILE.
const LOCKED: Duration = Duration::from_secs(5);
/// Two runs read the same clock with a difference of less than this, in seconds.
const ROUNDING: u64 = 2;
/// The ends of the names of the files next to FILE.
const META: &str = ".meta";
const NEW: &str = ".meta.new";
/// Bytes of a name at most.
const NAME_MAX: usize = 255;
/// Bytes of FILE.meta at most.
const META_MAX: u64 = 1 << 20;
/// Bytes that are reserved for FILE.meta. It takes fewer than a hundred for each shard.
const META_ROOM: u64 = 1 << 16;
/// Bytes of flash for which a manifest has one byte, whatever its items are.
const A_BYTE: u64 = 1 << 16;

/// The server's address, and its record.
#[derive(Clone, Debug)]
pub(super) struct Address {
    /// The name of its record.
    pub(super) name: String,
    /// The record of the server before, if there can be one.
    pub(super) record: Option<Predecessor>,
    /// This run of the server.
    pub(super) incarnation: u32,
}

/// FILE, from the start to the stop.
#[derive(Debug)]
pub(super) struct Warm {
    file: WarmFile,
    now: Circumstances,
    incarnation: u32,
    seed: u64,
    /// The contents of FILE.meta, if they are believed and the items are not back yet.
    meta: Option<Meta>,
    /// The file that becomes FILE.meta, with room for it.
    reserved: Option<File>,
}

/// Checks the name of FILE, and that no file of the flash tier is FILE or is beside it.
///
/// # Errors
///
/// The fault and the right form.
pub(super) fn check<'a>(path: &Path, flash: impl Iterator<Item = &'a Path>) -> Result<(), String> {
    let most = NAME_MAX - NEW.len();
    let len = path.file_name().map_or(0, |name| name.len());
    if len > most {
        return Err(format!(
            "-e {}: its name has {len} bytes; use {most} at most, because FILE{NEW} is beside it",
            path.display()
        ));
    }
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let place = std::fs::canonicalize(path);
    let names = [Some(path), place.as_deref().ok()].into_iter().flatten();
    let own: Vec<PathBuf> = names.flat_map(|path| ["", META, NEW].map(|end| absolute(&beside(path, end)))).collect();
    for file in flash {
        if own.contains(&absolute(file)) {
            return Err(format!("--flash {}: -e has this file: name another one", file.display()));
        }
    }
    Ok(())
}

/// Opens FILE for a server with this memory, and as many bytes of flash.
///
/// # Errors
///
/// FILE cannot be used, and why.
pub(super) fn lock(path: &Path, store: &Config, flash: u64) -> Result<WarmFile, String> {
    let bytes = (store.memory + store.extra) as u64;
    // Blocks have a head each. A stub takes as many bytes of memory as of FILE.
    WarmFile::open(path, bytes + bytes / 1024 + flash / A_BYTE, LOCKED)
}

/// Reserves room for FILE.meta: the stop does not fail where others have filled the file system.
fn reserve(meta: &File) -> io::Result<()> {
    match fallocate(meta, FallocateFlags::empty(), 0, META_ROOM) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns so many items as the subject of a sentence.
fn are(items: u64) -> String {
    if items == 1 { "1 item is".to_owned() } else { format!("{items} items are") }
}

fn limits(store: &Config, shards: usize) -> String {
    let Config { memory, item_max, factor, least, .. } = store;
    format!("-m {} -I {item_max} -f {factor} -n {least}, {shards} shard(s)", memory >> 20)
}

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Waits until the names in the file's directory have reached the device.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// Returns the bytes of FILE.meta, decoded and encoded again.
pub(super) fn reread(bytes: &[u8]) -> Option<Vec<u8>> {
    Meta::decode(bytes).ok().map(|meta| meta.encode())
}

/// Returns the places of items, for messages.
fn in_places(on_flash: usize) -> String {
    if on_flash > 0 { format!("in memory, {on_flash} on flash") } else { "in memory".to_owned() }
}

/// Returns whether a server that ends has FILE: its ports are free soon.
pub(super) fn is_ending(path: &Path) -> bool {
    WarmFile::is_ending(path)
}

impl Warm {
    /// Judges the contents of FILE.meta. Nothing is changed. The seed of hashes is that of FILE.meta if it is believed.
    pub(super) fn open(file: WarmFile, (store, threads): (&mut Config, usize), address: Address) -> Self {
        let shards = Shards::number(store, threads);
        let now =
            Circumstances { clock: clock::now(), boot: boot(), address: address.name, limits: limits(store, shards) };
        let mut own =
            Self { file, now, incarnation: address.incarnation, seed: store.seed, meta: None, reserved: None };
        match own.judge(shards, address.record) {
            Ok(meta) => {
                (own.seed, store.seed) = (meta.seed, meta.seed);
                own.meta = Some(meta);
            }
            Err(Disbelief::NoMeta) if own.file.is_new => {}
            Err(why) => own.print(format_args!("starts empty: {why}")),
        }
        own
    }

    /// Returns the path of FILE.
    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    pub(super) fn print(&self, what: impl std::fmt::Display) {
        log::print(format_args!("-e {}: {what}", self.path().display()));
    }
    fn meta_path(&self) -> PathBuf {
        beside(&self.file.place, META)
    }

    fn judge(&mut self, shards: usize, record: Option<Predecessor>) -> Result<Meta, Disbelief> {
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(self.meta_path());
        let file = file.map_err(|_| Disbelief::NoMeta)?;
        let mut bytes = Vec::new();
        let read = file.take(META_MAX).read_to_end(&mut bytes);
        let meta = read.map_err(|_| Disbelief::Damaged).and_then(|_| Meta::decode(&bytes))?;
        while self.now.clock < meta.at.clock && meta.at.clock - self.now.clock <= ROUNDING {
            std::thread::sleep(Duration::from_millis(100));
            self.now.clock = clock::now();
        }
        meta.believe(self.file.stop, &self.now, record)?;
        if meta.shards.len() == shards { Ok(meta) } else { Err(Disbelief::Damaged) }
    }

    /// Removes FILE.meta, believed or not, and marks FILE as in use. From now on a crash leads to an empty server.
    ///
    /// # Errors
    ///
    /// It cannot be removed: nothing may be served.
    pub(super) fn begin(&mut self) -> Result<(), String> {
        let (file, path) = (self.path().to_owned(), self.meta_path());
        let failed =
            |error: io::Error| format!("-e {}: removing {}: {error}: remove it", file.display(), path.display());
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(failed)?,
        }
        match self.new_meta() {
            Ok(meta) => {
                if let Err(error) = reserve(&meta) {
                    self.print(format_args!(
                        "reserving room for its description: {error}: the stop may fail: make room"
                    ));
                }
                self.reserved = Some(meta);
            }
            Err(error) => {
                let new = beside(&self.file.place, NEW);
                self.print(format_args!("making {}: {error}: the stop may fail: remove it", new.display()));
            }
        }
        sync_directory(&self.file.place).map_err(failed)?;
        self.file.mark(None).map_err(|error| format!("-e {}: writing it: {error}", file.display()))
    }

    /// Makes the file that becomes FILE.meta.
    fn new_meta(&self) -> io::Result<File> {
        let new = beside(&self.file.place, NEW);
        let _ = std::fs::remove_file(&new);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)
    }

    /// Undoes [`begin`](Self::begin) after a failure: the items are for the next start. Nothing was served, and no item is back.
    pub(super) fn put_back(&self) {
        let Some(meta) = &self.meta else { return };
        let meta = Meta { incarnation: self.incarnation, at: self.now.clone(), ..meta.clone() };
        match self.file.mark(Some(meta.stop)).and_then(|()| self.write_meta(&meta.encode())) {
            Ok(()) => self.print("the items are kept for the next start"),
            Err(error) => self.print(format_args!("{error}: the next start is empty")),
        }
    }

    /// Has the next server wait for FILE until this one has ended.
    pub(super) fn announce_end(&self) {
        self.file.announce_end();
    }

    /// Returns what each shard has on flash, if any has.
    pub(super) fn on_flash(&self) -> Option<OnFlash<'_>> {
        let meta = self.meta.as_ref()?;
        let mut at = BEGIN;
        let places = meta.shards.iter().map(|shard| {
            let place = shard.flash.map(|bytes| (at.saturating_add(shard.bytes), bytes));
            at = at.saturating_add(shard.bytes).saturating_add(shard.flash.unwrap_or(0));
            place
        });
        let places: Vec<_> = places.collect();
        places.iter().any(Option::is_some).then(|| {
            let stop = meta.stop;
            OnFlash::new(stop, move |shard| {
                let place = (*places.get(shard)?)?;
                Some(Kept { stop, manifest: Box::new(self.file.read_from(place)) })
            })
        })
    }

    /// Brings the items back. Where that fails, all of them are gone.
    pub(super) fn load(&mut self, shards: &Shards) {
        let Some(meta) = self.meta.take() else { return };
        let (begun, now) = (Instant::now(), clock::now());
        let each = |act: &mut dyn FnMut(usize, &ShardMeta)| {
            meta.shards.iter().enumerate().for_each(|(number, shard)| act(number, shard));
        };
        each(&mut |number, shard| shards.at(number).begin_restore(shard.numbers));
        let mut at = BEGIN;
        let mut items = Ok(0);
        each(&mut |number, shard| {
            if let Ok(before) = items {
                items = self.file.load(shards, number, (at, shard.bytes), now).map(|more| before + more);
                at = at.saturating_add(shard.bytes).saturating_add(shard.flash.unwrap_or(0));
            }
        });
        shards.each(|store| store.end_restore());
        self.file.discard();
        match items {
            Ok(items) => {
                let mut on_flash = 0;
                shards.each(|store| on_flash += store.flash_tier().map_or(0, |flash| flash.usage().items));
                let (places, took) = (in_places(on_flash), begun.elapsed().as_secs_f64());
                let items = are(items);
                self.print(format_args!("{items} back {places}, in {took:.1} s"));
            }
            Err(why) => {
                shards.each(|store| store.clear(now));
                self.print(format_args!("starts empty: {}", Disbelief::Items(why)));
            }
        }
    }

    /// Writes everything for the next start. Nothing serves any more.
    ///
    /// # Errors
    ///
    /// What could not be written: the next start is empty.
    pub(super) fn save(&self, shared: &Shared, flash: Option<&mut RunningFlash>) -> Result<(), String> {
        let saved = self.try_save(shared, flash);
        saved.map_err(|error| format!("-e {}: writing the items: {error}: they are lost", self.path().display()))
    }

    fn try_save(&self, shared: &Shared, flash: Option<&mut RunningFlash>) -> io::Result<()> {
        let begun = Instant::now();
        let shards = &shared.shards;
        let now = clock::now();
        // Their records would come back: these do not know of a later touch.
        shards.each(|store| store.end_over(now));
        let mut flash = flash;
        if flash.as_deref_mut().is_some_and(|flash| !flash.stop(shared)) {
            self.print("flash did not end its writes: its items are lost");
            flash = None;
        }
        let stop = rand::random();
        let (mut end, mut items, mut on_flash_items, mut parts) = (BEGIN, 0, 0, Vec::new());
        for number in 0..shards.count() {
            let (bytes, more) = self.file.save(shards, number, end)?;
            (end, items) = (end + bytes, items + more);
            let store = shards.at(number);
            let tier = flash.as_ref().and_then(|_| store.flash_tier());
            on_flash_items += tier.map_or(0, |tier| tier.usage().items);
            let on_flash = tier.map(|tier| -> io::Result<u64> {
                let mut blocks = self.file.write_from(end);
                tier.write_manifest(stop, &mut blocks)?;
                blocks.flush()?;
                Ok(blocks.at - end)
            });
            let on_flash = on_flash.transpose()?;
            end += on_flash.unwrap_or(0);
            parts.push(ShardMeta { numbers: store.continuation(), bytes, flash: on_flash });
        }
        let at = Circumstances { clock: clock::now(), ..self.now.clone() };
        let meta = Meta { stop, seed: self.seed, incarnation: self.incarnation, at, shards: parts };
        if let Some(flash) = flash {
            flash.mark(Some(stop))?;
        }
        self.file.mark(Some(stop))?;
        self.write_meta(&meta.encode())?;
        if !self.file.is_there() {
            return Err(io::Error::other("it was removed, or another file is in its place"));
        }
        let (places, took) = (in_places(on_flash_items), begun.elapsed().as_secs_f64());
        self.print(format_args!("{} kept {places}, in {took:.1} s", are(items)));
        Ok(())
    }

    fn write_meta(&self, bytes: &[u8]) -> io::Result<()> {
        let new = beside(&self.file.place, NEW);
        // The reserved one, unless something else has its name: that may be another's, or no regular file.
        let made;
        let file = match self.reserved.as_ref().filter(|file| is_at(&new, file)) {
            Some(file) => file,
            None => {
                made = self.new_meta()?;
                &made
            }
        };
        file.write_all_at(bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_all()?;
        std::fs::rename(&new, self.meta_path())?;
        sync_directory(&self.file.place)
    }
}
