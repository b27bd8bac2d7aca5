//! The greeting before the first transfer, by plain messages, and engines for afterwards.
//!
//! ```text
//! client ─► "frrwp-transfer 1", process (1 byte: 0 FRRWP, 1 traditional), bytes of the file (8 bytes, little-endian)
//! server ─► 0, or 1 and why not
//! ```

use crate::priced::Priced;
use crate::{End, Outcome};
use frrwp::engine::Engine;
use frrwp::fabric::{Completion, Endpoint, FabricDomain};
use frrwp::handshake::{Limits, Process, Side};
use frrwp::wire::MESSAGE;
use mrrc::Cache;
use mrrc::invalidation::Explicit;

const NAME: &[u8] = b"frrwp-transfer 1";

/// How long the other side may take to say its part, in nanoseconds.
const WITHIN: u64 = 5_000_000_000;

/// The client's request.
#[derive(Clone, Copy)]
pub(crate) struct Greeting {
    pub(crate) process: Process,
    pub(crate) bytes: u64,
}

impl Greeting {
    fn decode(message: &[u8]) -> Option<Self> {
        let rest = message.strip_prefix(NAME)?;
        let (process, bytes) = rest.split_first()?;
        let process = match process {
            0 => Process::Frrwp,
            1 => Process::Traditional,
            _ => return None,
        };
        Some(Self { process, bytes: u64::from_le_bytes(bytes.try_into().ok()?) })
    }

    fn encode(self) -> Vec<u8> {
        [NAME, &[u8::from(self.process == Process::Traditional)], &self.bytes.to_le_bytes()].concat()
    }
}

/// The client's part.
pub(crate) fn greet(endpoint: &mut End, greeting: Greeting) -> Outcome<()> {
    // An end that is gone is told by what comes.
    let _ = endpoint.send(&greeting.encode());
    let answer = hear(endpoint, "the server")?;
    match answer.split_first() {
        Some((0, [])) => Ok(()),
        Some((1, why)) => Err(format!("the server refuses: {}", String::from_utf8_lossy(why).escape_debug()).into()),
        _ => Err("what listens there is no `transfer server`: see which program it is".into()),
    }
}

/// The server's part: what the client wants, once that is said to be all right.
pub(crate) fn greeted<T>(endpoint: &mut End, agree: impl FnOnce(Greeting) -> Outcome<T>) -> Outcome<T> {
    let message = hear(endpoint, "the client")?;
    let greeting = Greeting::decode(&message).ok_or("the client is no `transfer client` of this version")?;
    let agreed = agree(greeting);
    let answer = match &agreed {
        Ok(_) => vec![0],
        Err(why) => [&[1][..], why.to_string().as_bytes()].concat(),
    };
    endpoint.send(&answer[..answer.len().min(MESSAGE)])?;
    agreed
}

/// The next message.
fn hear(endpoint: &mut End, who: &str) -> Outcome<Vec<u8>> {
    let until = endpoint.now().saturating_add(WITHIN);
    let mut message = Box::new([0; MESSAGE]);
    loop {
        match endpoint.poll(&mut message) {
            Some(Completion::Message { length }) => {
                endpoint.receive(1)?;
                return Ok(message[..length].to_vec());
            }
            Some(Completion::Flushed) => {
                let why = endpoint.inner().why().map(|why| format!(" ({why})")).unwrap_or_default();
                return Err(format!("{who} hung up{why}: see whether it is `transfer`, and what it says").into());
            }
            Some(_) => {}
            None if endpoint.now() >= until => {
                return Err(format!("{who} said nothing for 5 s: see whether it is `transfer`, and runs").into());
            }
            None => endpoint.wait(Some(until)),
        }
    }
}

/// Returns a cache that does nothing by itself, for so many bytes.
pub(crate) fn cache(domain: Priced<FabricDomain>, bytes: usize) -> Outcome<Cache<Priced<FabricDomain>>> {
    let pages = (bytes as u64).div_ceil(mrrc::PAGE) + 1024;
    let builder = Cache::builder(domain).ignore_environment().monitor(Explicit).background(false);
    Ok(builder.capacity_pages(pages).build()?)
}

/// Returns an engine of this process of the handshake, on a connection that was greeted on.
pub(crate) fn engine(
    cache: &Cache<Priced<FabricDomain>>,
    endpoint: End,
    side: Side,
    process: Process,
) -> Engine<'_, End> {
    Engine::new(cache, endpoint, side, Limits { process, ..Limits::default() })
}
