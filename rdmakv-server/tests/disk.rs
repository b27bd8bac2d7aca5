//! The flash tier over real files: written, read back, restarted; and what files it refuses.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rdmakv_flash::layout::BLOCK;
use rdmakv_flash::record::Summed;
use rdmakv_flash::superblock::Superblock;
use rdmakv_flash::{Action, Area, DeviceError, Entry, Flash, Layout, Loaded, Lookup, Settings, Ticket};
use rdmakv_proto::item;
use rdmakv_server::disk::{Disk, Done, FileError, Fixed, Memory, Owned, Transfer, open};

const SEGMENT: u32 = 64 << 10;
const SIZE: u64 = BLOCK + 16 * SEGMENT as u64;

fn settings(unit: u32) -> Settings {
    let mut settings = Settings::new(Layout::new(&[SIZE], 1, 0, SEGMENT, unit).unwrap(), 1, 1);
    settings.batch = 16 << 10;
    settings
}

fn value(number: u64) -> Vec<u8> {
    (0..700 + number * 37 % 4000).map(|at| (at * 7 + number) as u8).collect()
}

struct Tier {
    flash: Flash,
    disk: Disk,
    done: Receiver<Done>,
    begun: HashMap<u64, Begun>,
    next: u64,
}

enum Begun {
    Write(Ticket),
    Read(Ticket, Reader),
}

/// Memory of a read whose bytes can be looked at afterwards.
#[derive(Clone, Copy)]
struct Reader(NonNull<u8>, usize);

/// Memory that is never freed: the test's arena.
#[derive(Clone, Copy)]
struct Place(NonNull<[u8]>);

#[expect(unsafe_code, reason = "memory of the test")]
// SAFETY: the memory is leaked, so it stays valid, and the test looks at it after the read has ended only.
unsafe impl Memory for Place {
    fn place(&mut self) -> NonNull<[u8]> {
        self.0
    }
}
#[expect(unsafe_code, reason = "memory of the test")]
// SAFETY: the memory is leaked and used by one thread at a time.
unsafe impl Send for Place {}

impl Reader {
    fn bytes(self) -> &'static [u8] {
        #[expect(unsafe_code, reason = "memory of the test")]
        // SAFETY: the memory is leaked, and the read into it has ended.
        unsafe {
            std::slice::from_raw_parts(self.0.as_ptr(), self.1)
        }
    }
}

/// Leaks memory, aligned to 4 KiB.
fn leak(len: usize) -> NonNull<u8> {
    let memory = Box::leak(vec![0_u8; len + 4096].into_boxed_slice());
    let begin = memory.as_ptr().align_offset(4096);
    NonNull::from(&mut memory[begin..]).cast()
}

impl Tier {
    fn new(flash: Flash, file: std::fs::File) -> Self {
        let (send, done) = channel();
        let disk = Disk::start(vec![file], 8, None, move |done| _ = send.send(done)).unwrap();
        Self { flash, disk, done, begun: HashMap::new(), next: 0 }
    }
    fn read(&mut self, area: Area) -> (u64, Reader) {
        self.next += 1;
        let len = area.len as usize;
        let at = leak(len);
        let into = Box::new(Place(NonNull::slice_from_raw_parts(at, len)));
        self.disk.submit(Transfer::Read { token: self.next, area, into }).unwrap();
        (self.next, Reader(at, len))
    }
    /// Does all that the tier wants done.
    fn settle(&mut self) {
        loop {
            while self.flash.work(0) {}
            while let Some(action) = self.flash.next_action() {
                match action {
                    Action::Write { ticket, area, buffer } => {
                        self.next += 1;
                        self.begun.insert(self.next, Begun::Write(ticket));
                        self.disk.submit(Transfer::Write { token: self.next, area, from: buffer }).unwrap();
                    }
                    Action::Read { ticket, area } => {
                        let (token, reader) = self.read(area);
                        self.begun.insert(token, Begun::Read(ticket, reader));
                    }
                }
            }
            if self.begun.is_empty() {
                return;
            }
            let done = self.done.recv_timeout(Duration::from_secs(30)).unwrap();
            match self.begun.remove(&done.token).unwrap() {
                Begun::Write(ticket) => {
                    assert_eq!(self.flash.written(ticket, done.result, 0), None, "no file is given up")
                }
                Begun::Read(ticket, reader) => {
                    self.flash.read(ticket, done.result.map(|()| Summed::new(reader.bytes())), 0)
                }
            }
        }
    }
    fn store(&mut self, number: u64) {
        let (key, value) = (format!("key{number}").into_bytes(), value(number));
        let crc = item::sum(number, 1, &key, &value);
        let entry = Entry {
            key: &key,
            value: &value,
            version: number,
            flags: 1,
            crc,
            expiry: 0,
            frequency: 1,
            fetched: true,
            marks: 0,
        };
        let _ = self.flash.admit(self.flash.hash(&key), &entry, 0);
        self.settle();
    }
    /// Returns whether the item is there, and looks at its bytes.
    fn holds(&mut self, number: u64) -> bool {
        let key = format!("key{number}").into_bytes();
        let hash = self.flash.hash(&key);
        let (load, area) = match self.flash.get(hash, &key, 0, 0) {
            Lookup::Absent => return false,
            Lookup::Item(item) => {
                assert!(item.record.value == value(number));
                return true;
            }
            Lookup::Load(load, area) => (load, area),
            other => panic!("{other:?}"),
        };
        let (token, reader) = self.read(area);
        let done = self.done.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!((done.token, done.result), (token, Ok(())));
        match self.flash.loaded(load, Ok(Summed::new(reader.bytes())), 0) {
            Loaded::Item(item) => assert!(item.record.value == value(number)),
            other => panic!("{other:?}"),
        }
        true
    }
}

#[test]
fn items_come_back_from_a_file_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = open(&folder.path().join("log"), SIZE, Duration::ZERO).unwrap();
    assert!(file.superblock.is_none() && file.unit >= 512);
    let unit = file.unit;
    // As the server does: without it, the next open would take the records for another program's data.
    let (segment, stop) = (SEGMENT, Some(5));
    file.describe(&Superblock { log: 1, size: SIZE, stop, segment, unit, shards: 1, file: 0, files: 1 }).unwrap();
    let mut tier = Tier::new(Flash::new(settings(unit)), file.file);
    // Three times as much as fits: reclaim reads directories and moves records.
    for number in 0..900 {
        tier.store(number);
    }
    let held: Vec<_> = (0..900).filter(|&number| tier.holds(number)).collect();
    assert!(held.len() > 100, "{}", held.len());
    let counts = tier.flash.counts();
    assert!(counts.rewritten > 0 && counts.wrong == 0 && counts.read_errors + counts.write_errors == 0, "{counts:?}");
    tier.flash.stop();
    tier.settle();
    assert!(tier.flash.is_stopped());
    let manifest = tier.flash.manifest(5);
    drop(tier);

    let file = open(&folder.path().join("log"), SIZE, Duration::from_secs(5)).unwrap();
    let mut tier = Tier::new(Flash::restore(settings(unit), &manifest, 5).unwrap(), file.file);
    let again: Vec<_> = (0..900).filter(|&number| tier.holds(number)).collect();
    assert_eq!(again, held);
}

#[test]
fn reads_in_hot_memory_are_fixed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    std::fs::write(&path, (0..1 << 20).map(|at: u32| (at >> 9) as u8).collect::<Vec<_>>()).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let (send, done) = channel();
    let arena = leak(256 << 10);
    #[expect(unsafe_code, reason = "names memory to the kernel")]
    // SAFETY: the memory is leaked, so it stays mapped.
    let fixed = unsafe { Fixed::new(arena, 256 << 10, 64 << 10, 128 << 10) };
    let disk = Disk::start(vec![file], 4, Some(fixed), move |done| _ = send.send(done)).unwrap();
    for number in 0..400_u64 {
        let (len, offset) = (4096, number % 200 * 4096);
        #[expect(unsafe_code, reason = "memory of the test")]
        // SAFETY: the offset is within the 256 KiB of the arena.
        let at = unsafe { arena.add(number as usize % 16 * 4096) };
        let into = Box::new(Place(NonNull::slice_from_raw_parts(at, len)));
        disk.submit(Transfer::Read { token: number, area: Area { file: 0, offset, len: len as u32 }, into }).unwrap();
        let end = done.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!((end.token, end.result), (number, Ok(())));
        let bytes = Reader(at, len).bytes();
        assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == ((offset as usize + at) >> 9) as u8));
    }
    let counts = disk.counts();
    assert_eq!(counts.fixed + counts.plain, 400);
    // Where the kernel pins: all but the first uses of a block.
    assert!(counts.fixed == 0 || counts.fixed > 300, "{counts:?}");
}

#[test]
fn ends_of_transfers_tell_what_failed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    std::fs::write(&path, [1; 6000]).unwrap();
    let (send, done) = channel();
    let disk =
        Disk::start(vec![std::fs::File::open(&path).unwrap()], 2, None, move |done| _ = send.send(done)).unwrap();
    let read = |token, file, offset, room| {
        let area = Area { file, offset, len: 4096 };
        disk.submit(Transfer::Read { token, area, into: Box::new(Owned::new(room)) }).unwrap();
        done.recv_timeout(Duration::from_secs(30)).unwrap().result
    };
    assert_eq!(read(1, 0, 0, 4096), Ok(()));
    assert_eq!(read(2, 0, 4096, 4096), Err(DeviceError::Short));
    assert_eq!(read(3, 1, 0, 4096), Err(DeviceError::Short));
    assert_eq!(read(4, 0, 0, 100), Err(DeviceError::Short));
}

#[test]
fn files_of_others_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    std::fs::write(&path, "their notes").unwrap();
    let error = open(&path, SIZE, Duration::ZERO).unwrap_err();
    assert!(
        matches!(error, FileError::Foreign { .. }) && error.to_string().contains("another program wrote it"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"their notes");

    let block =
        Superblock { log: 1, size: SIZE, stop: None, segment: SEGMENT, unit: 512, shards: 1, file: 0, files: 1 };
    std::fs::write(&path, block.encode()).unwrap();
    let first = open(&path, SIZE, Duration::ZERO).unwrap();
    assert_eq!((first.superblock, first.file.metadata().unwrap().len()), (Some(block), SIZE));
    assert!(matches!(open(&path, SIZE, Duration::from_millis(50)), Err(FileError::Locked { .. })));
    assert!(matches!(
        open(folder.path(), SIZE, Duration::ZERO),
        Err(FileError::System { .. } | FileError::NoFile { .. })
    ));
}
