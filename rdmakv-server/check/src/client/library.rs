//! Our own client library, over sockets or a fabric: what it says of an operation is taken at its word. A request that it
//! calls not done must not be seen; one that it calls unknown may have been done, or may be yet.

use std::fmt;
use std::time::{Duration, Instant};

use rdmakv_client::{self as kv, Error, Expire, Source, Stored, Terms};

use super::{Client, Outcome};
use crate::place::Place;
use crate::record::Transport;

/// The pause before another attempt when there is no server.
const PAUSE: Duration = Duration::from_millis(2);
/// The limit on an answer: a server that starts answers no client for a while.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
pub struct Library {
    place: Place,
    transport: Transport,
    client: Option<(String, kv::Client)>,
    clients: u64,
    one_sided: bool,
    not_before: Instant,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("transport", &self.transport)
            .field("clients", &self.clients)
            .finish_non_exhaustive()
    }
}

impl Library {
    /// Returns a client of the server that is at that place, on that way.
    pub fn new(place: Place, transport: Transport) -> Self {
        Self { place, transport, client: None, clients: 0, one_sided: false, not_before: Instant::now() }
    }

    /// Returns the server's address, which stays after the server has gone: a client with a tag may still use it.
    fn address(&self) -> Option<String> {
        let tcp = self.place.last_address("tcp")?;
        match self.transport {
            Transport::Tcp | Transport::Udp | Transport::Socket => Some(format!("tcp:{tcp}")),
            Transport::Datagrams => {
                let datagrams = self.place.last_address(self.transport.name())?;
                Some(format!("{datagrams},tcp:{tcp}"))
            }
            Transport::Hybrid => {
                let datagrams = self.place.last_address(Transport::Datagrams.name())?;
                let iwarp = self.place.last_address(Transport::Iwarp.name())?;
                Some(format!("{datagrams},iwarp:{iwarp},tcp:{tcp}"))
            }
            Transport::Shm | Transport::Iwarp => {
                let fabric = self.place.last_address(self.transport.name())?;
                Some(format!("{}:{fabric},tcp:{tcp}", self.transport.name()))
            }
        }
    }

    fn ask<T>(
        &mut self,
        ask: impl FnOnce(&mut kv::Client) -> Result<T, Error>,
        understand: impl FnOnce(T) -> Outcome,
    ) -> Outcome {
        let Some((_, client)) = &mut self.client else { return Outcome::NotDone };
        let error = match ask(client) {
            Ok(answer) => return understand(answer),
            Err(error) => error,
        };
        self.not_before = Instant::now() + PAUSE;
        match error {
            Error::OutcomeUnknown { .. } => Outcome::Unknown,
            Error::Unreachable { .. } | Error::TimedOut { .. } => Outcome::NotDone,
            Error::Refused { said, .. }
                if said.starts_with("SERVER_ERROR out of memory") || said.ends_with("ask again") =>
            {
                Outcome::NotDone
            }
            error => Outcome::Nonsense(error.to_string()),
        }
    }

    fn flag(&mut self, ask: impl FnOnce(&mut kv::Client) -> Result<bool, Error>) -> Outcome {
        self.ask(ask, |there| if there { Outcome::Done } else { Outcome::Absent })
    }

    fn store(&mut self, ask: impl FnOnce(&mut kv::Client) -> Result<Stored, Error>) -> Outcome {
        self.ask(ask, |stored| match stored {
            Stored::Yes(_) => Outcome::Done,
            Stored::NotStored | Stored::Exists => Outcome::Refused,
            Stored::NotFound => Outcome::Absent,
        })
    }
}

fn expire(seconds: u8) -> Expire {
    if seconds == 0 { Expire::Never } else { Expire::In(Duration::from_secs(seconds.into())) }
}

fn terms(seconds: u8) -> Terms {
    expire(seconds).into()
}

impl Client for Library {
    fn transport(&self) -> Transport {
        self.transport
    }

    fn is_ready(&mut self) -> bool {
        let Some(address) = self.address().filter(|_| Instant::now() >= self.not_before) else { return false };
        if self.client.as_ref().is_none_or(|(old, _)| *old != address) {
            let back_off = (PAUSE, 50 * PAUSE);
            let options = kv::Options { timeout: PATIENCE, back_off, tags: 4096, ..kv::Options::default() };
            let client = kv::Client::with_options([&address], options);
            self.client = client.inspect_err(|error| eprintln!("{error}")).ok().map(|client| (address, client));
            self.clients += 1;
        }
        self.client.is_some()
    }

    fn connections(&self) -> u64 {
        let lost = self.client.as_ref().map_or(0, |(_, client)| client.counters().lost_connections);
        self.clients << 32 | lost
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Outcome {
        let mut one_sided = false;
        let outcome = self.ask(
            |client| client.get(key),
            |found| {
                let Some(found) = found else { return Outcome::Absent };
                one_sided = found.source() == Source::OneSided;
                value.clear();
                value.extend_from_slice(&found);
                Outcome::Found { token: found.version() }
            },
        );
        self.one_sided = one_sided;
        outcome
    }

    fn was_one_sided(&self) -> bool {
        self.one_sided
    }

    fn set(&mut self, key: &[u8], value: &[u8], expiry: u8) -> Outcome {
        self.store(|client| client.set(key, value, terms(expiry)))
    }

    fn add(&mut self, key: &[u8], value: &[u8], expiry: u8) -> Outcome {
        self.store(|client| client.add(key, value, terms(expiry)))
    }

    fn cas(&mut self, key: &[u8], value: &[u8], expiry: u8, token: u64) -> Outcome {
        self.store(|client| client.cas(key, value, token, terms(expiry)))
    }

    fn incr(&mut self, key: &[u8]) -> Outcome {
        self.ask(|client| client.incr(key, 1), |sum| sum.map_or(Outcome::Absent, Outcome::Number))
    }

    fn delete(&mut self, key: &[u8]) -> Outcome {
        self.flag(|client| client.delete(key))
    }

    fn touch(&mut self, key: &[u8], expiry: u8) -> Outcome {
        self.flag(|client| client.touch(key, expire(expiry)))
    }

    fn flush(&mut self) -> Outcome {
        let first = |client: &mut kv::Client| match client.flush(Duration::ZERO).pop() {
            Some((_, flushed)) => flushed,
            None => Err(Error::NoServer),
        };
        self.flag(first)
    }
}
