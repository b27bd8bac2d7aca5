//! The server: a thread for each connection, which has memory for the file and answers transfers as their headers say.
//!
//! A header is the offset in the file, 8 bytes, little-endian. A write of nothing asks for a fresh start: nothing registered.

use crate::fabrics::{self, Connection, Memory, NotNow, Provider, Serve};
use crate::greeting::{Greeting, cache, engine, greeted};
use crate::{Outcome, Server};
use frrwp::engine::{Engine, Event};
use frrwp::fabric::Endpoint;
use frrwp::fabric::priced::Priced;
use frrwp::handshake::{Process, Side, Tag};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Connections at a time.
const MOST: usize = 16;

pub(crate) fn run(server: &Server) -> Outcome<()> {
    let running = Running { server, open: AtomicUsize::new(0) };
    fabrics::listening(&server.common.fabric, server.common.cost, &running)
}

struct Running<'a> {
    server: &'a Server,
    /// Connections that are served.
    open: AtomicUsize,
}

impl Serve for Running<'_> {
    fn accept<E: Endpoint<Domain = Priced<D>> + Send, D: Provider>(
        &self,
        at: &str,
        domain: &Priced<D>,
        mut accept: impl FnMut() -> Result<Connection<E>, NotNow>,
    ) -> Outcome<()> {
        println!("listening on {at}");
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
                match accept() {
                    Ok(connection) => {
                        served += 1;
                        self.open.fetch_add(1, Ordering::AcqRel);
                        scope.spawn(move || {
                            if let Err(error) = self.serve(domain, connection) {
                                eprintln!("transfer: connection {served}: {error}");
                            }
                            self.open.fetch_sub(1, Ordering::AcqRel);
                        });
                    }
                    Err(NotNow::Nobody) => {}
                    Err(NotNow::Refused(error)) => {
                        eprintln!("transfer: a connection was not set up: {error}");
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
            }
        })
    }

    fn serve<E: Endpoint<Domain = Priced<D>>, D: Provider>(
        &self,
        domain: &Priced<D>,
        mut connection: Connection<E>,
    ) -> Outcome<()> {
        let most = self.server.most;
        let (Greeting { process, .. }, bytes, memory) = greeted(&mut connection, |greeting| {
            let fits = usize::try_from(greeting.bytes).ok().filter(|&bytes| bytes as u64 <= most);
            let bytes = fits.ok_or_else(|| {
                format!("the file has {} bytes, and this server takes {most}: start it with --most", greeting.bytes)
            })?;
            Ok((greeting, bytes, domain.inner().memory(bytes.max(1))?))
        })?;
        let cache = cache(domain.clone(), bytes)?;
        let why = connection.why;
        let mut engine = engine(&cache, connection.endpoint, Side::Accepting, process);
        let (mut transfers, mut moved) = (0_u64, 0_u64);
        while let Some(event) = engine.run() {
            match event {
                Event::Asked { tag, read: false, length: 0 } => {
                    cache.invalidate(memory.start(), bytes.max(1))?;
                    cache.reap()?;
                    // SAFETY: the memory is this connection's alone, and lives longer than the engine.
                    // One that has ended meanwhile is refused, here and below, and its end comes.
                    let _ = unsafe { engine.accept(tag, memory.start(), 0) };
                }
                Event::Asked { tag, read, length } => match place(&engine, tag, length, bytes) {
                    Some((at, length)) => {
                        let at = memory.start().wrapping_add(at);
                        // SAFETY: as above; and the place is within the memory.
                        let _ = unsafe {
                            if read { engine.supply(tag, at, length) } else { engine.accept(tag, at, length) }
                        };
                    }
                    None => _ = engine.refuse(tag),
                },
                Event::KeysCame { tag } => _ = engine.submit(tag),
                Event::Ended { result: Ok(bytes), .. } => {
                    transfers += u64::from(bytes > 0);
                    moved += bytes;
                }
                Event::Ended { result: Err(error), .. } => eprintln!("transfer: {error}"),
                Event::Closed { why: Some(why) } => return Err(format!("the connection was ended: {why:?}").into()),
                Event::Closed { why: None } => break,
                _ => {}
            }
        }
        let name = if process == Process::Frrwp { "FRRWP" } else { "traditional" };
        let why = why(engine.endpoint()).map(|why| format!("; {why}")).unwrap_or_default();
        println!("served {transfers} transfers, {moved} bytes, {name}{why}");
        Ok(())
    }
}

/// Where in the file a transfer belongs.
fn place<E: Endpoint>(engine: &Engine<'_, E>, tag: Tag, length: u64, bytes: usize) -> Option<(usize, usize)> {
    let at = usize::try_from(u64::from_le_bytes(engine.header(tag)?.try_into().ok()?)).ok()?;
    let length = usize::try_from(length).ok()?;
    at.checked_add(length).is_some_and(|end| end <= bytes).then_some((at, length))
}
