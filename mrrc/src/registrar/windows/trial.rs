//! Finding out whether a device's memory windows can take the place of registrations with rights for peers.
//!
//! A refused access ends a queue pair, and the context of that reports an error. So the device is opened once more, and the
//! program hears of nothing. Queue pairs of two domains then read and write by windows. They do so in bounds and out of
//! bounds, by keys that have ended, and from the other domain. The judgement of what was observed is a pure decision ([`Observed::judge`]).
#![expect(unsafe_code, reason = "the calls of libibverbs")]

use super::abi::{Context, DeviceAttr, Mr, Pd, Sge, flag, opcode, status};
use super::calls::Calls;
use super::looped::{Access, Looped, Pair, reason};
use super::steps::{Bytes, Device, Failure};
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// The use of a device's windows for registrations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "windows that do not hold are not used"]
pub enum Verdict {
    /// Peers reach what they were shown, nothing else, and nothing after.
    Hold {
        /// By atomic operations as well.
        atomics: bool,
    },
    /// They do not serve, for this reason: "they …".
    Fail(&'static str),
    /// The trial could not be made: the step and its `errno`.
    Untried(&'static str, i32),
}

impl Verdict {
    /// Returns why the windows of a device do not serve, as a sentence without its end.
    pub fn refusal(&self, device: &str) -> Option<String> {
        match *self {
            Self::Hold { .. } => None,
            Self::Fail(why) => Some(format!("the memory windows of {device} {why}")),
            Self::Untried(step, why) => Some(format!(
                "the memory windows of {device} could not be tried: {step}: {}",
                io::Error::from_raw_os_error(why)
            )),
        }
    }
}

/// The observations of a trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Observed {
    /// Reads and writes in bounds had the right bytes.
    serves: bool,
    /// The same of an atomic operation.
    adds: bool,
    /// Refused accesses of those that had to be: without the right, out of bounds, by ended keys, from another domain.
    refused: [(u32, u32); 4],
    /// No key came twice within the changes that a window is used for.
    fresh: bool,
    /// The shortest times of a binding and an unbinding, and of a registration and a deregistration.
    binding: Duration,
    registering: Duration,
}

/// The reasons of [`Observed::refused`], in its order.
const KINDS: [&str; 4] = [
    "let peers do what the registration gives no right to",
    "let peers reach bytes outside of the registration",
    "let peers use keys of ended registrations",
    "let peers of another protection domain in",
];

impl Observed {
    fn judge(&self) -> Verdict {
        if !self.serves {
            return Verdict::Fail("do not let peers of another connection read and write");
        }
        if let Some(at) = self.refused.iter().position(|(refused, of)| refused < of) {
            return Verdict::Fail(KINDS[at]);
        }
        if !self.fresh {
            return Verdict::Fail("have the same key again too soon");
        }
        if self.binding >= self.registering {
            return Verdict::Fail("take longer to bind than memory takes to register");
        }
        Verdict::Hold { atomics: self.adds }
    }
}

/// Values of bytes: of the peers' own page, of the window, and of the others.
const OWN: u8 = 1;
const SHOWN: u8 = 3;
const OTHERS: u8 = 2;
const PAGE: usize = 4096;
/// The bytes of the trial's memory, of which the first page is the peers' own.
const SIZE: usize = 17 * PAGE;
/// The window: within pages, across a border of pages.
const FROM: usize = 2 * PAGE + 256;
const BYTES: usize = PAGE;
/// First bytes, relative to the window, and lengths that are not within it.
const OUTSIDE: [(isize, usize); 6] =
    [(-8, 8), (-64, 128), (BYTES as isize - 1, 2), (BYTES as isize, 64), (0, BYTES + 1), (2 * BYTES as isize, 64)];
/// Registrations that are compared with bindings.
const COMPARED: usize = 8;
/// Bindings of one window that are looked at: each changes the key twice.
const BINDINGS: usize = 127;
/// The rights of the trial's own memory.
const LOCAL: u32 = flag::LOCAL_WRITE | flag::MW_BIND;

type Step<T> = Result<T, Verdict>;

fn untried<T>(step: &'static str, result: Result<T, i32>) -> Step<T> {
    result.map_err(|why| Verdict::Untried(step, why))
}

fn refused<T>(result: Result<T, Failure>) -> Step<T> {
    result.map_err(|failure| match failure {
        Failure::Refused(libc::EOPNOTSUPP | libc::ENOSYS) => Verdict::Fail(ABSENT),
        Failure::Refused(why) => Verdict::Untried("bind a window", why),
        Failure::Broken | Failure::Silent => Verdict::Fail("cannot be bound"),
    })
}

/// With this variable the driver of mlx5 never returns from the completion of a refused access.
const FREEZES: &str = "MLX5_FREEZE_ON_ERROR_CQE";
const ABSENT: &str = "are missing";

/// Tries the device of a context (`struct ibv_context *`). The context is the program's, and only its device is used.
///
/// # Safety
/// The context is open, and the functions are libibverbs'.
pub unsafe fn try_windows(calls: Calls, context: NonNull<c_void>) -> Verdict {
    if std::env::var_os(FREEZES).is_some() {
        return Verdict::Fail(
            "cannot be tried where MLX5_FREEZE_ON_ERROR_CQE stops a program at the first refused access",
        );
    }
    // SAFETY: the caller promises that the context is open.
    match unsafe { Opened::new(calls, context.as_ptr().cast()) }.and_then(|opened| opened.observe()) {
        Ok(observed) => observed.judge(),
        Err(verdict) => verdict,
    }
}

/// The device once more, with two domains and memory. What it has ends in the order of the fields.
struct Opened {
    regions: [Region; 2],
    domains: [Domain; 2],
    memory: Memory,
    context: Opening,
    calls: Calls,
}

struct Opening(Calls, NonNull<Context>);
struct Domain(Calls, NonNull<Pd>);
struct Region(Calls, NonNull<Mr>);
/// Pages of its own, which are given back after their registrations.
struct Memory(NonNull<u8>);

impl Drop for Opening {
    fn drop(&mut self) {
        // SAFETY: it was opened here, and what was made in it is gone.
        unsafe { (self.0.close_device)(self.1.as_ptr()) };
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: it was made here, and is given back once.
        unsafe { (self.0.dealloc_pd)(self.1.as_ptr()) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it was registered here, and is given back once.
        unsafe { (self.0.dereg_mr)(self.1.as_ptr()) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: these pages were mapped by `new`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), SIZE) };
    }
}

impl Memory {
    fn new() -> io::Result<Self> {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new pages at a place that the kernel chooses.
        let pages = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, rights, kind, -1, 0) };
        if pages == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(pages.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn address(&self, at: isize) -> u64 {
        (self.0.as_ptr() as u64).wrapping_add_signed(at as i64)
    }

    /// Fills the peers' own page, the window, and all other bytes, each with its own value.
    fn fill(&self) {
        // SAFETY: the pages are mapped. The device writes there only while an access of this thread's is waited for.
        unsafe {
            let start = self.0.as_ptr();
            start.write_bytes(OWN, PAGE);
            start.add(PAGE).write_bytes(OTHERS, SIZE - PAGE);
            start.add(FROM).write_bytes(SHOWN, BYTES);
        }
    }

    /// Returns whether no byte outside of the window was read or written.
    fn kept_others(&self) -> bool {
        let after = FROM + BYTES;
        // SAFETY: as in `fill`, the page is mapped and no access is under way.
        let saw_others = (0..PAGE).any(|at| unsafe { self.0.as_ptr().add(at).read_volatile() } == OTHERS);
        !saw_others && self.has(PAGE, FROM - PAGE, OTHERS) && self.has(after, SIZE - after, OTHERS)
    }

    /// Returns whether these bytes all have this value.
    fn has(&self, at: usize, length: usize, value: u8) -> bool {
        // SAFETY: as in `fill`, the pages are mapped and no access is under way.
        (at..at + length).all(|at| unsafe { self.0.as_ptr().add(at).read_volatile() } == value)
    }
}

impl Region {
    fn new(calls: Calls, pd: NonNull<Pd>, memory: &Memory, access: u32) -> Result<Self, i32> {
        let start = memory.0.as_ptr().cast::<c_void>();
        // SAFETY: the domain is open, and the memory stays until after the region's end.
        NonNull::new(unsafe { (calls.reg_mr)(pd.as_ptr(), start, SIZE, access as i32) })
            .map(|mr| Self(calls, mr))
            .ok_or_else(reason)
    }

    fn lkey(&self) -> u32 {
        // SAFETY: libibverbs filled it when it was registered.
        unsafe { (*self.1.as_ptr()).lkey }
    }
}

impl Opened {
    /// # Safety
    /// The context is open.
    unsafe fn new(calls: Calls, context: *mut Context) -> Step<Self> {
        let open = calls.open_device.ok_or(Verdict::Fail(ABSENT))?;
        // SAFETY: the caller promises that the context is open, and with it its device stays.
        let opened = NonNull::new(unsafe { open((*context).device) }).ok_or_else(reason);
        let context = Opening(calls, untried("open the device", opened)?);
        let domain = || {
            // SAFETY: the context was opened just now, and is closed after its domains.
            let made = NonNull::new(unsafe { (calls.alloc_pd)(context.1.as_ptr()) }).ok_or_else(reason);
            untried("make a protection domain", made.map(|pd| Domain(calls, pd)))
        };
        let domains = [domain()?, domain()?];
        let mapped = Memory::new().map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM));
        let memory = untried("map memory", mapped)?;
        let region = |of: &Domain| untried("register memory", Region::new(calls, of.1, &memory, LOCAL));
        let regions = [region(&domains[0])?, region(&domains[1])?];
        Ok(Self { regions, domains, memory, context, calls })
    }

    fn observe(&self) -> Step<Observed> {
        // SAFETY: the domain is open until this is dropped, which is after the windows.
        let mut windows = unsafe { Looped::new(self.calls, self.domains[0].1) };
        let window = windows.make().map_err(|why| match why {
            libc::EOPNOTSUPP | libc::ENOSYS => Verdict::Fail(ABSENT),
            why => Verdict::Untried("make a window", why),
        })?;
        let observed = self.observe_window(&mut windows, window);
        // The device ends a window that is still bound.
        let _ = windows.end(window);
        observed
    }

    fn region(&self) -> usize {
        self.regions[0].1.as_ptr() as usize
    }

    fn bytes(&self, rights: u32) -> Bytes {
        let address = self.memory.address(FROM as isize);
        Bytes { region: self.region(), address, length: BYTES as u64, rights }
    }

    fn observe_window(&self, windows: &mut Looped, window: <Looped as Device>::Window) -> Step<Observed> {
        let (read, write) = (flag::REMOTE_READ, flag::REMOTE_WRITE);
        // Times and keys first: refused accesses are slow.
        let (mut keys, mut binding) = (Vec::with_capacity(2 * BINDINGS), Duration::MAX);
        for _ in 0..BINDINGS {
            let begun = Instant::now();
            keys.push(refused(windows.bind(window, &self.bytes(read | write)))?);
            refused(windows.unbind(window, self.region()))?;
            binding = binding.min(begun.elapsed());
        }
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        let mut registering = Duration::MAX;
        for _ in 0..COMPARED {
            let begun = Instant::now();
            let access = flag::LOCAL_WRITE | read | write;
            drop(untried("register memory", Region::new(self.calls, self.domains[0].1, &self.memory, access))?);
            registering = registering.min(begun.elapsed());
        }
        let mut peers = Peers { of: self, pairs: [None, None] };
        let mut refusals = [(0, 0); 4];
        let mut note = |kind: usize, is_refused: bool| {
            refusals[kind].1 += 1;
            refusals[kind].0 += u32::from(is_refused);
        };
        // In bounds, each right alone and both.
        let mut serves = true;
        let mut old = Vec::new();
        for rights in [read, write, read | write] {
            let key = refused(windows.bind(window, &self.bytes(rights)))?;
            for (right, operation) in [(read, opcode::READ), (write, opcode::WRITE)] {
                if rights & right != 0 {
                    serves &= peers.copies(operation, key)?;
                } else {
                    note(0, peers.is_refused(0, operation, key)?);
                }
            }
            refused(windows.unbind(window, self.region()))?;
            old.push(key);
        }
        let key = refused(windows.bind(window, &self.bytes(read | write)))?;
        for (turn, (at, length)) in OUTSIDE.into_iter().enumerate() {
            let operations = [opcode::READ, opcode::WRITE];
            note(1, peers.is_bounded(operations[turn % 2], key, at, length)?);
        }
        note(3, peers.is_refused(1, opcode::READ, key)?);
        note(3, peers.is_refused(1, opcode::WRITE, key)?);
        // Keys of before, while the window is bound by another, and then its last one as well.
        for &key in &old {
            note(2, peers.is_refused(0, opcode::READ, key)?);
        }
        refused(windows.unbind(window, self.region()))?;
        for operation in [opcode::READ, opcode::WRITE] {
            note(2, peers.is_refused(0, operation, key)?);
        }
        let adds = self.has_atomics() && self.try_to_add(windows, window, &mut peers)?;
        Ok(Observed { serves, adds, refused: refusals, fresh: keys.len() == all, binding, registering })
    }

    fn has_atomics(&self) -> bool {
        // SAFETY: all zero is a value of `DeviceAttr`, which holds plain numbers.
        let mut device: DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the structure has room for what is written.
        let failed =
            self.calls.query_device.is_none_or(|query| unsafe { query(self.context.1.as_ptr(), &mut device) != 0 });
        !failed && device.atomic_cap != 0
    }

    /// Returns whether a window with that right lets peers add, and one without it does not.
    fn try_to_add(
        &self,
        windows: &mut Looped,
        window: <Looped as Device>::Window,
        peers: &mut Peers<'_>,
    ) -> Step<bool> {
        let rights = [flag::REMOTE_ATOMIC, flag::REMOTE_READ | flag::REMOTE_WRITE];
        let mut answers = [false; 2];
        for (answer, rights) in answers.iter_mut().zip(rights) {
            let Ok(key) = windows.bind(window, &self.bytes(rights)) else { return Ok(false) };
            self.memory.fill();
            let is_done = peers.access(0, opcode::FETCH_AND_ADD, key, 0, 8)? == status::SUCCESS;
            *answer = is_done && self.memory.has(FROM, 1, SHOWN + 1);
            refused(windows.unbind(window, self.region()))?;
        }
        Ok(answers == [true, false])
    }
}

/// A pair of each domain, which a refused access ends.
struct Peers<'a> {
    of: &'a Opened,
    pairs: [Option<Pair>; 2],
}

impl Peers<'_> {
    /// Returns the status of an access from a domain, to bytes that are named relative to the window.
    fn access(&mut self, domain: usize, operation: i32, key: u32, at: isize, length: usize) -> Step<i32> {
        let of = self.of;
        if self.pairs[domain].is_none() {
            // SAFETY: the domain is open until `of` is dropped, which is after the pairs.
            let pair = unsafe { Pair::new(of.calls, of.domains[domain].1) };
            self.pairs[domain] = Some(untried("link queue pairs", pair)?);
        }
        let lkey = of.regions[domain].lkey();
        let mut own = Sge { addr: of.memory.address(0), length: length as u32, lkey };
        let address = of.memory.address(FROM as isize + at);
        let done = self.pairs[domain]
            .as_ref()
            .and_then(|pair| pair.access(Access { opcode: operation, own: &mut own, address, rkey: key }));
        let done = done.ok_or(Verdict::Untried("wait for a queue pair", libc::ETIMEDOUT))?;
        if done != status::SUCCESS {
            self.pairs[domain] = None;
        }
        Ok(done)
    }

    /// Returns whether all bytes of the window are copied, and no others.
    fn copies(&mut self, operation: i32, key: u32) -> Step<bool> {
        self.of.memory.fill();
        let done = self.access(0, operation, key, 0, BYTES)?;
        let memory = &self.of.memory;
        let value = if operation == opcode::READ { SHOWN } else { OWN };
        let is_copied = memory.has(0, BYTES, value) && memory.has(FROM, BYTES, value);
        Ok(done == status::SUCCESS && is_copied && memory.kept_others())
    }

    /// Returns whether an access of the window's own bytes is refused, and changes nothing.
    fn is_refused(&mut self, domain: usize, operation: i32, key: u32) -> Step<bool> {
        self.of.memory.fill();
        let done = self.access(domain, operation, key, 0, 64)?;
        let memory = &self.of.memory;
        let is_kept = memory.has(0, PAGE, OWN) && memory.has(FROM, BYTES, SHOWN) && memory.kept_others();
        Ok(done == status::REM_ACCESS_ERR && is_kept)
    }

    /// Returns whether an access of bytes outside is refused, and none of those is read or written. Bytes of the window may be.
    fn is_bounded(&mut self, operation: i32, key: u32, at: isize, length: usize) -> Step<bool> {
        self.of.memory.fill();
        let done = self.access(0, operation, key, at, length)?;
        Ok(done == status::REM_ACCESS_ERR && self.of.memory.kept_others())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Observed = Observed {
        serves: true,
        adds: false,
        refused: [(2, 2), (6, 6), (5, 5), (2, 2)],
        fresh: true,
        binding: Duration::from_micros(2),
        registering: Duration::from_micros(3),
    };

    #[test]
    fn windows_hold_only_if_all_was_refused() {
        assert_eq!(GOOD.judge(), Verdict::Hold { atomics: false });
        for (at, kind) in KINDS.into_iter().enumerate() {
            let mut observed = GOOD;
            observed.refused[at].0 -= 1;
            assert_eq!(observed.judge(), Verdict::Fail(kind));
        }
    }

    #[test]
    fn slow_useless_and_stale_windows_fail() {
        for bad in [
            Observed { serves: false, ..GOOD },
            Observed { fresh: false, ..GOOD },
            Observed { binding: GOOD.registering, ..GOOD },
        ] {
            assert!(matches!(bad.judge(), Verdict::Fail(_)), "{bad:?}");
        }
        assert_eq!(Observed { adds: true, ..GOOD }.judge(), Verdict::Hold { atomics: true });
    }
}
