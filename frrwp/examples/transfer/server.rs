//! The server: a thread for each connection, which has memory for the file and answers transfers as their headers say.
//!
//! A header is the offset in the file, 8 bytes, little-endian. A write of nothing asks for a fresh start: nothing registered.

use crate::greeting::{Greeting, cache, engine, greeted};
use crate::priced::Priced;
use crate::{End, Outcome, Server};
use frrwp::engine::{Engine, Event};
use frrwp::fabric::{Connector, FabricDomain, Listener};
use frrwp::handshake::{Process, RECEIVES, Side, Tag};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Connections at a time.
const MOST: usize = 16;
/// How long to wait for a connection before looking at other things.
const TURN: Duration = Duration::from_millis(200);

pub(crate) fn run(server: &Server) -> Outcome<()> {
    let running = Running { server, open: AtomicUsize::new(0) };
    running.accept()
}

struct Running<'a> {
    server: &'a Server,
    /// Connections that are served.
    open: AtomicUsize,
}

impl Running<'_> {
    /// Accepts, and serves each connection in a thread of its own.
    fn accept(&self) -> Outcome<()> {
        let domain = &self.server.common.domain()?;
        let mut listener = domain.inner().listen_at(&self.server.common.fabric.to_string())?;
        let mut unset = 0;
        println!("listening on {}", listener.address());
        std::thread::scope(|scope| {
            let mut served = 0_usize;
            loop {
                let open = self.open.load(Ordering::Acquire);
                // A client has two connections, one after the other.
                if self.server.once && served >= 2 && open == 0 {
                    return Ok(());
                }
                if open >= MOST {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                match listener.next(RECEIVES, Some(TURN)) {
                    Ok(Some(endpoint)) => {
                        served += 1;
                        self.open.fetch_add(1, Ordering::AcqRel);
                        let endpoint = domain.endpoint(endpoint);
                        scope.spawn(move || {
                            if let Err(error) = self.serve(domain, endpoint) {
                                eprintln!("transfer: connection {served}: {error}");
                            }
                            self.open.fetch_sub(1, Ordering::AcqRel);
                        });
                    }
                    Ok(None) if listener.unset() == unset => {}
                    Ok(None) => refused(listener.last_unset().unwrap_or_default()),
                    Err(error) => refused(error.to_string()),
                }
                unset = listener.unset();
            }
        })
    }

    fn serve(&self, domain: &Priced<FabricDomain>, mut endpoint: End) -> Outcome<()> {
        let most = self.server.most;
        let (Greeting { process, .. }, bytes, memory) = greeted(&mut endpoint, |greeting| {
            let fits = usize::try_from(greeting.bytes).ok().filter(|&bytes| bytes as u64 <= most);
            let bytes = fits.ok_or_else(|| {
                format!("the file has {} bytes, and this server takes {most}: start it with --most", greeting.bytes)
            })?;
            Ok((greeting, bytes, domain.inner().memory(bytes.max(1))?))
        })?;
        let cache = cache(domain.clone(), bytes)?;
        let mut engine = engine(&cache, endpoint, Side::Accepting, process);
        let (mut transfers, mut moved) = (0_u64, 0_u64);
        while let Some(event) = engine.run() {
            match event {
                Event::Requested { tag, read: false, length: 0 } => {
                    cache.invalidate(memory.start(), bytes.max(1))?;
                    cache.reap()?;
                    // SAFETY: the memory is this connection's alone, and lives longer than the engine.
                    // One that has ended meanwhile is refused, here and below, and its end comes.
                    let _ = unsafe { engine.accept_write(tag, memory.start(), 0) };
                }
                Event::Requested { tag, read, length } => match place(&engine, tag, length, bytes) {
                    Some((at, length)) => {
                        let at = memory.start().wrapping_add(at);
                        // SAFETY: the memory outlives the engine and has no other user; the place is within it.
                        let _ = unsafe {
                            if read {
                                engine.accept_read(tag, at, length)
                            } else {
                                engine.accept_write(tag, at, length)
                            }
                        };
                    }
                    None => _ = engine.refuse(tag),
                },
                Event::KeysCame { tag } => _ = engine.submit(tag),
                Event::Completed { result: Ok(bytes), .. } => {
                    transfers += u64::from(bytes > 0);
                    moved += bytes;
                }
                Event::Completed { result: Err(error), .. } => eprintln!("transfer: {error}"),
                Event::Closed { why: Some(why) } => return Err(format!("the connection was ended: {why:?}").into()),
                Event::Closed { why: None } => break,
                _ => {}
            }
        }
        let name = if process == Process::Frrwp { "FRRWP" } else { "traditional" };
        let why = engine.endpoint().inner().why().map(|why| format!("; {why}")).unwrap_or_default();
        println!("served {transfers} transfers, {moved} bytes, {name}{why}");
        Ok(())
    }
}

/// Reports a connection that was not set up, and lets others have the CPU.
fn refused(error: String) {
    eprintln!("transfer: a connection was not set up: {error}");
    std::thread::sleep(Duration::from_millis(10));
}

/// Returns the place of a transfer in the file.
fn place(engine: &Engine<'_, End>, tag: Tag, length: u64, bytes: usize) -> Option<(usize, usize)> {
    let at = usize::try_from(u64::from_le_bytes(engine.header(tag)?.try_into().ok()?)).ok()?;
    let length = usize::try_from(length).ok()?;
    at.checked_add(length).is_some_and(|end| end <= bytes).then_some((at, length))
}
