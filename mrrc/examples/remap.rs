//! A cache over real pins, and memory that changes under it.
//!
//! The kernel reads from memory that is *registered*: pinned, and known by a number (a fixed buffer of an io_uring, as a
//! memory region is to a network card). The cache keeps it registered, so that the second transfer from the same
//! address costs no registration. But then the program unmaps the memory and maps new memory at the *same address*:
//! the old registration still means the old pages. Used again, it would send bytes that the program does not have any
//! more, without an error. The default monitor hears of the unmapping, and the cache registers anew.
//!
//! ```text
//! cargo run -p mrrc --example remap
//! cargo run -p mrrc --example remap -- explicit     # the cache is not told: the bytes are stale
//! ```

use io_uring::{IoUring, opcode, types};
use mrrc::registrar::io_uring::IoUringBuffers;
use mrrc::{Access, Cache};
use std::error::Error;
use std::io::{self, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::process::ExitCode;

const BYTES: usize = 4 * 4096;

/// Far from where the system puts memory by itself, so that no other thread's gets into the gap.
const PLACE: usize = 0x2000_0000_0000;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough (`remap | head -1`).
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // The errors of the crate say what to do; `{:?}`, which `main` would print, does not.
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut ring = IoUring::new(8).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            format!("setting up an io_uring: {error}: its memory counts as locked; raise the limit (ulimit -l)")
        }
        _ => format!("setting up an io_uring: {error}"),
    })?;
    let table = IoUringBuffers::new(&ring, IoUringBuffers::DEFAULT_SLOTS)?;
    // One key is needed for a transfer, so a lease has to be one segment. The rest is default: as much as the process
    // may pin, and invalidation by userfaultfd.
    let mut builder = Cache::builder(table).max_segments(1);
    if let Some(monitor) = std::env::args().nth(1) {
        builder = builder.set("monitor", &monitor)?;
    }
    let cache = builder.build()?;
    writeln!(io::stdout(), "told of changes by: {}", cache.monitor())?;

    let memory = map()?;
    fill(memory, b'A');
    send(&mut ring, &cache, memory, "first   ", b'A')?;
    send(&mut ring, &cache, memory, "again   ", b'A')?;

    // SAFETY: no reference leads to the memory, and no transfer is in flight.
    #[expect(unsafe_code, reason = "unmaps by address")]
    unsafe {
        libc::munmap(memory.cast(), BYTES);
    }
    let memory = map()?;
    fill(memory, b'B');
    send(&mut ring, &cache, memory, "remapped", b'B')?;

    writeln!(io::stdout(), "\n{}\n\n{}", cache.counters(), cache.usage())?;
    Ok(())
}

/// Writes the memory into a pipe, and looks at what comes out.
fn send(
    ring: &mut IoUring,
    cache: &Cache<IoUringBuffers>,
    memory: *mut u8,
    what: &str,
    expected: u8,
) -> Result<(), Box<dyn Error>> {
    let before = cache.counters().attempts;
    // SAFETY: the memory stays mapped, and is not written, until the transfer is complete.
    #[expect(unsafe_code, reason = "memory is lent to the kernel")]
    let lease = unsafe { cache.acquire(memory, BYTES, Access::LOCAL_READ) }?;
    let buffer = lease.segments().next().ok_or("a lease has a segment")?;
    let (mut reader, writer) = pipe()?;

    // The transfer: `WRITE_FIXED` names the buffer by its number in the ring's table, the lease's key.
    let request = opcode::WriteFixed::new(
        types::Fd(writer.as_raw_fd()),
        buffer.address(),
        buffer.len() as u32,
        buffer.registration().index(),
    );
    // SAFETY: the lease and the pipe outlive the transfer, which is waited for below.
    #[expect(unsafe_code, reason = "the kernel reads from the buffer")]
    unsafe {
        ring.submission().push(&request.build())?;
    }
    ring.submit_and_wait(1)?;
    let sent = ring.completion().next().ok_or("no completion")?.result();
    // From here on the buffer may leave the cache, when room is needed.
    drop(lease);
    if sent < 0 {
        return Err(format!("the transfer failed: {}", io::Error::from_raw_os_error(-sent)).into());
    }
    drop(writer);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;

    let registered = if cache.counters().attempts > before { "registered now" } else { "was registered" };
    let all = |byte: u8| bytes.len() == BYTES && bytes.iter().all(|&sent| sent == byte);
    let verdict = if all(expected) { "as in memory" } else { "STALE: the pages of the old mapping" };
    let (holds, out) = (char::from(expected), shown(&bytes));
    writeln!(io::stdout(), "{what}: memory holds {holds}, {registered}, {out} came out: {verdict}")?;
    Ok(())
}

fn shown(bytes: &[u8]) -> char {
    bytes.first().map_or('?', |&byte| char::from(byte))
}

/// Fresh memory, always at the same address.
fn map() -> io::Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let place = std::ptr::without_provenance_mut(PLACE);
    // SAFETY: MAP_FIXED_NOREPLACE maps only where nothing is mapped.
    #[expect(unsafe_code, reason = "maps memory")]
    let mapped = unsafe { libc::mmap(place, BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapped.cast()) }
}

fn fill(memory: *mut u8, byte: u8) {
    // SAFETY: the memory is mapped for so many bytes, and has no other user now.
    #[expect(unsafe_code, reason = "writes by address")]
    unsafe {
        memory.write_bytes(byte, BYTES);
    }
}
