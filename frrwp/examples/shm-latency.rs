//! How long a read and a write of another process's memory take over `shm`, pinned to one CPU.
//!
//! ```text
//! cargo run --release -p frrwp --example shm-latency
//! ```
//!
//! The other process owns the memory and sleeps. A read is posted and its completion polled; the tag is looked up, and looked
//! at again after the copy. `memcpy` is a plain copy in one process. All times have that of asking the clock in them.
#![allow(unsafe_code, reason = "posts local memory by address")]

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("shm is for Linux");
}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(target_os = "linux")]
mod linux {
    use frrwp::fabric::shm::{Sharing, ShmAddress, ShmDomain, ShmEndpoint, ShmListener, ShmSettings, connect};
    use frrwp::fabric::{Completion, Domain, Endpoint, Local};
    use frrwp::wire::{MESSAGE, Segment};
    use mrrc::registrar::Registrar;
    use mrrc::{Access, PageRange};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    const MEMORY: usize = 16 << 20;
    const ROUNDS: usize = 200_000;
    const WITHIN: Duration = Duration::from_secs(10);
    type Error = Box<dyn std::error::Error>;

    pub(super) fn main() -> Result<(), Error> {
        pin();
        match std::env::args().nth(1) {
            Some(address) => own(&address.parse()?),
            None => measure(),
        }
    }

    /// To the CPU that it is on.
    fn pin() {
        // SAFETY: plain numbers in and out.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap_or(0), &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &set);
        }
    }

    /// The process whose memory is read and written: tells where it is, and sleeps until the other goes.
    fn own(address: &ShmAddress) -> Result<(), Error> {
        let domain = ShmDomain::new(ShmSettings::default())?;
        let arena = domain.arena(MEMORY, Sharing::Writable)?;
        (0..MEMORY).step_by(4096).try_for_each(|at| arena.write_at(at, &[1]))?;
        let mut endpoint = connect(&domain, address, 16, WITHIN)?;
        let range = PageRange::of_bytes(arena.as_ptr() as u64, MEMORY as u64)?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let registration = domain.register(range, rights)?;
        let all = domain.remote(&registration, arena.as_ptr(), MEMORY);
        let mut offer = [0; 12];
        offer[..8].copy_from_slice(&all.address.to_le_bytes());
        offer[8..].copy_from_slice(&all.key.to_le_bytes());
        endpoint.send(&offer)?;
        let mut message = Box::new([0; MESSAGE]);
        while endpoint.poll(&mut message) != Some(Completion::Flushed) {
            endpoint.wait(None);
        }
        Ok(())
    }

    fn measure() -> Result<(), Error> {
        let domain = ShmDomain::new(ShmSettings::default())?;
        let address = format!("shm:@frrwp-latency-{}", std::process::id()).parse()?;
        let listener = ShmListener::bind(&domain, &address)?;
        let mut peer = Command::new(std::env::current_exe()?).arg(address.to_string()).stdin(Stdio::null()).spawn()?;
        let mut endpoint = listener.accept(16, WITHIN)?;
        let mut message = Box::new([0; MESSAGE]);
        let all = loop {
            match endpoint.poll(&mut message) {
                Some(Completion::Message { length: 12 }) => {
                    let address = u64::from_le_bytes(message[..8].try_into()?);
                    let key = u32::from_le_bytes(message[8..12].try_into()?);
                    break Segment { address, length: MEMORY as u64, key };
                }
                Some(other) => return Err(format!("the other process: {other:?}").into()),
                None => endpoint.wait(None),
            }
        };
        println!("{:>10} {:>7} {:>9} {:>9} {:>9}", "operation", "bytes", "p50 ns", "p99 ns", "p99.9 ns");
        for bytes in [64, 1 << 10, 10 << 10, 64 << 10] {
            copies(bytes);
            operations(&domain, &mut endpoint, all, bytes, true)?;
            operations(&domain, &mut endpoint, all, bytes, false)?;
        }
        endpoint.disconnect();
        drop(endpoint);
        peer.wait()?;
        Ok(())
    }

    /// Places that no prefetcher guesses, in memory that the caches of a core hold in part.
    fn place(round: usize, bytes: usize) -> u64 {
        let slot = (round as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        slot % ((MEMORY / bytes.next_multiple_of(1024)) as u64) * bytes.next_multiple_of(1024) as u64
    }

    fn operations(
        domain: &ShmDomain,
        endpoint: &mut ShmEndpoint,
        all: Segment,
        bytes: usize,
        read: bool,
    ) -> Result<(), Error> {
        let mut near = vec![0_u8; bytes + 4096];
        let ahead = near.as_ptr().align_offset(64);
        let address = near[ahead..].as_mut_ptr();
        let range = PageRange::of_bytes(address as u64, bytes as u64)?;
        let registration = domain.register(range, Access::LOCAL)?;
        let local = [Local { address, length: bytes, registration: &registration }];
        let mut message = Box::new([0; MESSAGE]);
        let rounds = ROUNDS.min((4 << 30) / bytes);
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let far = Segment { address: all.address + place(round, bytes), length: bytes as u64, key: all.key };
            let start = Instant::now();
            // SAFETY: the local memory is registered and used by nobody else, and the call that returns has ended it.
            unsafe { if read { endpoint.read(1, &local, far) } else { endpoint.write(1, &local, far, None) } }?;
            let done = endpoint.poll(&mut message);
            times.push(start.elapsed());
            if done != Some(Completion::Done { id: 1, succeeded: true }) {
                return Err(format!("{done:?}").into());
            }
        }
        print(if read { "read" } else { "write" }, bytes, times);
        Ok(())
    }

    /// What the copy alone takes.
    fn copies(bytes: usize) {
        let from = vec![1_u8; MEMORY];
        let mut near = vec![0_u8; bytes + 64];
        let ahead = near.as_ptr().align_offset(64);
        let rounds = ROUNDS.min((4 << 30) / bytes);
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let at = place(round, bytes) as usize;
            let start = Instant::now();
            near[ahead..ahead + bytes].copy_from_slice(std::hint::black_box(&from[at..at + bytes]));
            std::hint::black_box(&mut near);
            times.push(start.elapsed());
        }
        print("memcpy", bytes, times);
    }

    fn print(what: &str, bytes: usize, mut times: Vec<Duration>) {
        times.sort_unstable();
        let of = |share: f64| times[(((times.len() - 1) as f64) * share) as usize].as_nanos();
        println!("{what:>10} {bytes:>7} {:>9} {:>9} {:>9}", of(0.5), of(0.99), of(0.999));
    }
}
