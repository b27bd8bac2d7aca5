//! The file, byte by byte: a head that counts, and records of one size.
//!
//! All numbers are little-endian. The head, 4,096 bytes:
//!
//! | byte | | |
//! | --- | --- | --- |
//! | 0–7 | `89 4d 52 4d 0d 0a 1a 0a` | `MRM` between bytes that a transfer as text would change |
//! | 8 | 1 | the version |
//! | 9–15 | 0 | reserved |
//! | 16–23 | start | nanoseconds of `CLOCK_MONOTONIC` that count as 0 |
//! | 24–39 | boot | of which boot of the machine that is: `/proc/sys/kernel/random/boot_id` |
//! | 40–47 | limit | records, at most |
//! | 64–71 | claimed | records begun, and events that found no room: may be more than the limit |
//! | 128–135 | ready | records that the file has room for |
//! | 192–195 | attached | processes that recorded |
//! | 196–199 | ended | of these, those that ended by `exit` |
//! | 200–203 | stopped | the error number because of which the file did not become longer, 0 for none |
//! | 204–207 | source | 1 verbs, 2 MPI, 0 none yet |
//! | 208–211 | others | bit 1: verbs were used as well and left out, bit 2: MPI was |
//! | 212–215 | unwatched | registrations of memory that was not watched, because too much was watched: their invalidations are missing |
//!
//! Everything else in it is 0. Record `n` lies at byte 4,096 + 32·`n`, of which `min(claimed, ready)` are there:
//!
//! | byte | |
//! | --- | --- |
//! | 0–7 | bits 0–2: 1 request, 2 acquire, 3 release, 4 invalidate, 0 not (yet) written; 3–7: the rights: local read, local write, remote read, remote write, remote atomic; 8–29: the process; 30–51: the thread, both as the kernel numbers them; 52–63: a checksum of all else |
//! | 8–15 | nanoseconds since the start |
//! | 16–23 | address |
//! | 24–31 | bits 0–47: length; 48–55: the domain, as each of a process has a cache of its own; the last byte is always 0 |
//!
//! The first word is stored last. A record whose first word is 0 was begun and not finished: the program was killed there.

/// The first eight bytes.
pub const MAGIC: [u8; 8] = *b"\x89MRM\r\n\x1a\n";
/// The version that is written.
pub const VERSION: u8 = 1;
/// Bytes of the head.
pub const HEAD: usize = 4096;
/// Bytes of a record.
pub const RECORD: usize = 32;

/// Offsets of the words of the head that change, and of those that are written once.
pub(crate) mod at {
    pub(crate) const VERSION: usize = 8;
    pub(crate) const START: usize = 16;
    pub(crate) const BOOT: usize = 24;
    pub(crate) const LIMIT: usize = 40;
    pub(crate) const CLAIMED: usize = 64;
    pub(crate) const READY: usize = 128;
    pub(crate) const ATTACHED: usize = 192;
    pub(crate) const ENDED: usize = 196;
    pub(crate) const STOPPED: usize = 200;
    pub(crate) const SOURCE: usize = 204;
    pub(crate) const OTHERS: usize = 208;
    pub(crate) const UNWATCHED: usize = 212;
}

/// The recorded operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Used, and released at once.
    Request = 1,
    /// In use from now on.
    Acquire = 2,
    /// In use no more.
    Release = 3,
    /// Unmapped, moved or discarded.
    Invalidate = 4,
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// The recorded operation.
    pub operation: Operation,
    /// The rights: five bits.
    pub access: u8,
    /// The process, below 2²².
    pub process: u32,
    /// The thread, below 2²².
    pub thread: u32,
    /// Nanoseconds since the start.
    pub time: u64,
    /// The first byte.
    pub address: u64,
    /// Bytes, below 2⁴⁸.
    pub length: u64,
    /// Which of the process's protection domains: each has a cache of its own.
    pub domain: u8,
}

/// The content of a record's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A record.
    Written(Record),
    /// Nothing: it was begun, and the writer was stopped.
    Empty,
    /// No record.
    Damaged,
}

/// Process and thread have so many bits: as many as Linux gives.
const WHO: u32 = (1 << 22) - 1;
const CHECK_SHIFT: u32 = 52;
const LENGTH_BITS: u32 = 48;
const DOMAIN_BITS: u32 = 8;

impl Record {
    /// Its four words, the first of which is to be stored last.
    #[inline]
    pub fn words(&self) -> [u64; 4] {
        let length = self.length.min((1 << LENGTH_BITS) - 1) | u64::from(self.domain) << LENGTH_BITS;
        let low = self.operation as u64
            | u64::from(self.access & 0x1f) << 3
            | u64::from(self.process & WHO) << 8
            | u64::from(self.thread & WHO) << 30;
        [low | check(low, self.time, self.address, length) << CHECK_SHIFT, self.time, self.address, length]
    }

    /// Decodes these words.
    pub fn of_words([first, time, address, length]: [u64; 4]) -> Place {
        if first == 0 {
            return Place::Empty;
        }
        let low = first & ((1 << CHECK_SHIFT) - 1);
        let operation = match low & 7 {
            1 => Operation::Request,
            2 => Operation::Acquire,
            3 => Operation::Release,
            4 => Operation::Invalidate,
            _ => return Place::Damaged,
        };
        if length >> (LENGTH_BITS + DOMAIN_BITS) != 0 || check(low, time, address, length) != first >> CHECK_SHIFT {
            return Place::Damaged;
        }
        let number = |shift: u32| (low >> shift) as u32 & WHO;
        let access = (low >> 3) as u8 & 0x1f;
        let domain = (length >> LENGTH_BITS) as u8;
        let length = length & ((1 << LENGTH_BITS) - 1);
        Place::Written(Record {
            operation,
            access,
            process: number(8),
            thread: number(30),
            time,
            address,
            length,
            domain,
        })
    }

    /// Decodes these bytes.
    pub fn of_bytes(bytes: &[u8; RECORD]) -> Place {
        Self::of_words(std::array::from_fn(|at| word(bytes, 8 * at)))
    }

    /// As it lies in the file.
    pub fn bytes(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        for (at, word) in self.words().into_iter().enumerate() {
            bytes[8 * at..][..8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Twelve bits that a stray record matches once in 4,096 times.
#[inline]
fn check(low: u64, time: u64, address: u64, length: u64) -> u64 {
    let mixed = low ^ time.rotate_left(11) ^ address.rotate_left(29) ^ length.rotate_left(47);
    // 2⁶⁴ divided by the golden ratio: the high bits depend on all.
    (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> CHECK_SHIFT
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The content of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    /// Nanoseconds of `CLOCK_MONOTONIC` that count as 0.
    pub start: u64,
    /// Which boot that was.
    pub boot: [u8; 16],
    /// Records, at most.
    pub limit: u64,
    /// Records begun, and events that found no room.
    pub claimed: u64,
    /// Records that there is room for.
    pub ready: u64,
    /// Processes that recorded.
    pub attached: u32,
    /// Of these, those that ended by `exit`.
    pub ended: u32,
    /// The error number because of which the file did not become longer.
    pub stopped: u32,
    /// 1 verbs, 2 MPI.
    pub source: u32,
    /// Other sources in use that were left out, by bit.
    pub others: u32,
    /// Registrations whose invalidations are missing, because too much was watched.
    pub unwatched: u32,
}

/// Why bytes are no head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoHead {
    /// It does not begin as one does.
    Foreign,
    /// Of a version to come.
    Version(u8),
}

impl Head {
    /// Decodes these bytes.
    ///
    /// # Errors
    /// [`NoHead`].
    pub fn of_bytes(bytes: &[u8; HEAD]) -> Result<Self, NoHead> {
        if bytes[..8] != MAGIC {
            return Err(NoHead::Foreign);
        }
        if bytes[at::VERSION] != VERSION || bytes[at::VERSION + 1..at::START] != [0; 7] {
            return Err(NoHead::Version(bytes[at::VERSION]));
        }
        let half = |at: usize| word(bytes, at) as u32;
        let mut boot = [0; 16];
        boot.copy_from_slice(&bytes[at::BOOT..at::BOOT + 16]);
        Ok(Self {
            start: word(bytes, at::START),
            boot,
            limit: word(bytes, at::LIMIT),
            claimed: word(bytes, at::CLAIMED),
            ready: word(bytes, at::READY),
            attached: half(at::ATTACHED),
            ended: half(at::ENDED),
            stopped: half(at::STOPPED),
            source: half(at::SOURCE),
            others: half(at::OTHERS),
            unwatched: half(at::UNWATCHED),
        })
    }

    /// As it lies in the file.
    pub fn bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[at::VERSION] = VERSION;
        let words = [
            (at::START, self.start),
            (at::LIMIT, self.limit),
            (at::CLAIMED, self.claimed),
            (at::READY, self.ready),
            (at::ATTACHED, u64::from(self.attached) | u64::from(self.ended) << 32),
            (at::STOPPED, u64::from(self.stopped) | u64::from(self.source) << 32),
            (at::OTHERS, u64::from(self.others) | u64::from(self.unwatched) << 32),
        ];
        for (at, word) in words {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[at::BOOT..at::BOOT + 16].copy_from_slice(&self.boot);
        bytes
    }

    /// Records that lie in the file, finished or not.
    pub fn records(&self) -> u64 {
        self.claimed.min(self.ready).min(self.limit)
    }

    /// Events that found no room.
    pub fn left_out(&self) -> u64 {
        self.claimed - self.records()
    }
}
