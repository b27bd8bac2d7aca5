//! The client: there and back by each process in turns, and a table of what that took.

use crate::greeting::{Greeting, cache, engine, greet};
use crate::priced::Priced;
use crate::{Client, End, Outcome};
use frrwp::engine::{Engine, Event};
use frrwp::fabric::{Connector, FabricDomain};
use frrwp::handshake::{Process, RECEIVES, Side, Tag};
use mrrc::{Cache, PAGE};
use std::time::{Duration, Instant};

/// How long connecting may take.
const WITHIN: Duration = Duration::from_secs(5);
const PROCESSES: [(Process, &str); 2] = [(Process::Frrwp, "FRRWP"), (Process::Traditional, "traditional")];

pub(crate) fn run(client: &Client) -> Outcome<()> {
    let file = std::fs::read(&client.file)
        .map_err(|error| format!("{}: {error}: name a file that can be read", client.file.display()))?;
    Sending { client, file }.run()
}

struct Sending<'a> {
    client: &'a Client,
    file: Vec<u8>,
}

impl Sending<'_> {
    fn run(&self) -> Outcome<()> {
        let fabric = self.client.common.fabric.to_string();
        let domain = &self.client.common.domain()?;
        let Client { chunk, rounds, keep, .. } = self.client;
        let bytes = self.file.len();
        // The file, and behind it what comes back.
        let back = bytes.next_multiple_of(PAGE as usize).max(PAGE as usize);
        let memory = domain.inner().memory(2 * back)?;
        let (there, back) = (memory.start(), memory.start().wrapping_add(back));
        // SAFETY: there is room for twice as many bytes, and no transfer has begun.
        unsafe { std::ptr::copy_nonoverlapping(self.file.as_ptr(), there, bytes) };
        // Each process has its own: what one registers, the other does not find.
        let caches = [cache(domain.clone(), 2 * bytes)?, cache(domain.clone(), 2 * bytes)?];
        let mut ways = Vec::new();
        for ((process, _), cache) in PROCESSES.iter().zip(&caches) {
            let mut endpoint = domain.endpoint(domain.inner().connect_to(&fabric, RECEIVES, WITHIN)?);
            greet(&mut endpoint, Greeting { process: *process, bytes: bytes as u64 })?;
            let engine = engine(cache, endpoint, Side::Connecting, *process);
            ways.push(Way { engine, cache, there, back, bytes });
        }
        let mut times = [(); 2].map(|()| [(); 2].map(|()| vec![Vec::new(); bytes.div_ceil(*chunk as usize)]));
        let registering = domain.registering();
        for round in 0..*rounds {
            for back in [false, true] {
                // The server would find on the way back what it registered on the way there.
                if round == 0 || !keep {
                    ways.iter_mut().try_for_each(Way::fresh)?;
                }
                for (chunk, part) in self.file.chunks(*chunk as usize).enumerate() {
                    for turn in 0..2 {
                        // In turns: neither always goes behind the other.
                        let nth = (round as usize + chunk + turn) % 2;
                        let at = chunk * self.client.chunk as usize;
                        let time = ways[nth].transfer(at, part, back)?;
                        times[nth][usize::from(back)][chunk].push(time);
                    }
                }
            }
        }
        let registering = domain.registering().saturating_sub(registering);
        drop(ways);
        self.table(times, registering);
        Ok(())
    }

    fn table(&self, times: [[Vec<Vec<Duration>>; 2]; 2], registering: Duration) {
        let Client { common, chunk, rounds, keep, file } = self.client;
        let bytes = self.file.len();
        let whole: Duration = times.iter().flatten().flatten().flatten().sum();
        // For each chunk, so that a moment in which others have the CPU is not a whole round's.
        let medians = times.map(|ways| ways.map(|chunks| chunks.into_iter().map(median).sum::<Duration>()));
        println!(
            "{}: {bytes} bytes, {chunk} in a transfer, over {}; medians of {rounds} rounds, {}",
            file.display(),
            common.fabric,
            if *keep { "registered in the first" } else { "registered anew in each" },
        );
        println!("{:<12} {:>12} {:>8} {:>12} {:>8}", "", "there", "MB/s", "back", "MB/s");
        for ((_, name), [there, back]) in PROCESSES.iter().zip(&medians) {
            let cells = [there, back].map(|time| {
                let seconds = time.as_secs_f64();
                match bytes {
                    0 => format!("{:>9.3} ms {:>8}", seconds * 1e3, "-"),
                    _ => format!("{:>9.3} ms {:>8.0}", seconds * 1e3, bytes as f64 / 1e6 / seconds),
                }
            });
            println!("{name:<12} {} {}", cells[0], cells[1]);
        }
        if bytes == 0 {
            println!("The file is empty, so nothing was transferred. Every byte came back as it was.");
            return;
        }
        let [ours, other] = medians.map(|ways| ways.map(|time| time.as_secs_f64()));
        let differ = |way: usize| match 100.0 * (1.0 - ours[way] / other[way]) {
            less if less >= 0.0 => format!("{less:.1} % less"),
            more => format!("{:.1} % more", -more),
        };
        println!("FRRWP takes {} time there and {} back. Every byte came back as it was.", differ(0), differ(1));
        let share = 100.0 * registering.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE);
        println!("This side registered for {share:.1} % of the time.");
        if common.cost.register(1) == 0.0 {
            println!(
                "That is all there is to hide: --cost paper, at both sides, has registrations cost what a card's do."
            );
        }
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// One connection, and the memory of both, which all connections share.
struct Way<'cache> {
    engine: Engine<'cache, End>,
    cache: &'cache Cache<Priced<FabricDomain>>,
    there: *mut u8,
    back: *mut u8,
    bytes: usize,
}

impl Way<'_> {
    /// Both sides forget what they have registered.
    fn fresh(&mut self) -> Outcome<()> {
        for memory in [self.there, self.back] {
            self.cache.invalidate(memory, self.bytes.max(1))?;
        }
        self.cache.reap()?;
        // SAFETY: a transfer of no bytes lends no memory.
        let tag = unsafe { self.engine.open_write(self.there, 0, b"") }?;
        self.end(tag).map(drop)
    }

    /// A part of the file there, or back, which is compared.
    fn transfer(&mut self, at: usize, part: &[u8], back: bool) -> Outcome<Duration> {
        let header = (at as u64).to_le_bytes();
        let memory = if back { self.back } else { self.there }.wrapping_add(at);
        if back {
            // SAFETY: no transfer is under way, and the bytes are within the memory.
            unsafe { std::ptr::write_bytes(memory, 0, part.len()) };
        }
        let start = Instant::now();
        // SAFETY: the memory is used by these engines alone, one transfer at a time, and lives longer than they do.
        let tag = unsafe {
            if back {
                self.engine.open_read(memory, part.len(), &header)
            } else {
                self.engine.open_write(memory, part.len(), &header)
            }
        }?;
        let moved = self.end(tag)?;
        let time = start.elapsed();
        if moved != part.len() as u64 {
            return Err(format!("{moved} bytes were moved where {} were to be", part.len()).into());
        }
        if back {
            let mut came = vec![0; part.len()];
            // SAFETY: the transfer has ended, so the engine no longer uses the memory.
            unsafe { std::ptr::copy_nonoverlapping(memory, came.as_mut_ptr(), came.len()) };
            if came != part {
                return Err(format!("the bytes from {at} on came back as others").into());
            }
        }
        Ok(time)
    }

    /// Waits for a transfer's end. In the traditional process this is the application, which wants the write.
    fn end(&mut self, tag: Tag) -> Outcome<u64> {
        loop {
            match self.engine.run() {
                Some(Event::KeysCame { tag }) => self.engine.submit(tag)?,
                Some(Event::Completed { tag: ended, result }) if ended == tag => {
                    return result.map_err(|error| self.ended(&error.to_string()));
                }
                Some(Event::Closed { .. }) | None => return Err(self.ended("the connection is gone")),
                Some(_) => {}
            }
        }
    }

    /// Why the connection ended, if the fabric knows.
    fn ended(&mut self, error: &str) -> Box<dyn std::error::Error> {
        let why = self.engine.endpoint().inner().why().map(|why| format!(" ({why})")).unwrap_or_default();
        format!("{error}{why}; see what the server says, and start it again if it is gone").into()
    }
}
