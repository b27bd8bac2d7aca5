//! The state that a memory and its lanes share: which server has which region, and how it is reached.

use super::Source;
use super::configuration::Configuration;
use super::connection::{Connection, Trouble};
use super::table::{MemoryError, ServerId, Table};
use crate::address::Fabric;
use crate::domains::Fabrics;
use crate::slots::{Slot, Slots};
use rdmakv_proto::clock;
use rdmakv_proto::far::messages::{Answer, Refusal, Request, Secret as Bytes, Verb};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Opens a memory. It is printed and read as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Secret(Bytes);

impl Secret {
    pub(super) fn of(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(self) -> Bytes {
        self.0
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// A text that is no secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "read the secret of a far memory: it is not 32 hexadecimal digits: take that which was printed when it was made"
)]
pub struct NoSecret;

impl FromStr for Secret {
    type Err = NoSecret;

    fn from_str(text: &str) -> Result<Self, NoSecret> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NoSecret);
        }
        u128::from_str_radix(text, 16).map(|number| Self(number.to_be_bytes())).map_err(|_| NoSecret)
    }
}

/// Names a memory and its owner at servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    pub(super) memory: u64,
    /// The number that this process drew.
    pub(super) owner: u64,
    pub(super) secret: Secret,
}

/// The state that a memory and its lanes share.
pub(super) struct Shared {
    /// The caches in it go before the memory that they registered.
    fabrics: Mutex<Fabrics>,
    slots: Mutex<Slots>,
    source: Source,
    name: Name,
    /// That of lanes without one of their own.
    configuration: Configuration,
    /// Counts the lanes.
    lanes: AtomicU32,
    servers: Vec<Place>,
    table: Mutex<Table>,
    change: AtomicU64,
    /// When its time is over, in nanoseconds of the boot clock.
    ends: AtomicU64,
}

/// A server that has regions.
#[derive(Clone, Debug)]
pub(super) struct Place {
    server: ServerId,
    /// As the user named it.
    name: String,
    fabric: Fabric,
    workers: u32,
}

impl Place {
    pub(super) fn new(server: ServerId, name: &str, fabric: &Fabric, workers: u32) -> Self {
        Self { server, name: name.to_owned(), fabric: fabric.clone(), workers }
    }

    /// Returns how many batches it carries out at a time.
    pub(super) fn workers(&self) -> u32 {
        self.workers
    }

    pub(super) fn server(&self) -> ServerId {
        self.server
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn fabric(&self) -> &Fabric {
        &self.fabric
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(
        (fabrics, slots, source): (Fabrics, Slots, Source),
        name: Name,
        (servers, table, ends): (Vec<Place>, Table, u64),
        configuration: Configuration,
    ) -> Self {
        Self {
            fabrics: Mutex::new(fabrics),
            slots: Mutex::new(slots),
            source,
            name,
            configuration,
            lanes: AtomicU32::new(0),
            servers,
            change: AtomicU64::new(table.change()),
            table: Mutex::new(table),
            ends: AtomicU64::new(ends),
        }
    }

    /// Returns the configuration of lanes without one of their own.
    pub(super) fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Returns the number of a new lane, less than `workers`: by it the lane has its worker.
    pub(super) fn number_lane(&self, workers: u32) -> u32 {
        self.lanes.fetch_add(1, Relaxed) % workers.max(1)
    }

    /// Returns how much time is left.
    pub(super) fn left(&self) -> Duration {
        Duration::from_nanos(self.ends.load(Relaxed).saturating_sub(clock::boot()))
    }

    /// Sets when its time is over, in nanoseconds of the boot clock.
    pub(super) fn ends_at(&self, ends: u64) {
        self.ends.store(ends, Relaxed);
    }

    /// Returns memory for an access.
    pub(super) fn slot(&self, bytes: usize) -> Option<Slot> {
        lock(&self.slots).take(bytes)
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    pub(super) fn servers(&self) -> &[Place] {
        &self.servers
    }

    pub(super) fn is_over(&self) -> bool {
        clock::boot() >= self.ends.load(Relaxed)
    }

    /// Returns the table's last change.
    pub(super) fn change(&self) -> u64 {
        self.change.load(Acquire)
    }

    pub(super) fn table(&self) -> Table {
        lock(&self.table).clone()
    }

    /// Notes that a server is lost, and all regions that it had.
    pub(super) fn lose(&self, server: ServerId) {
        let mut table = lock(&self.table);
        let since = clock::since_1970();
        for region in 0..table.len() {
            if table.target(region).is_some_and(|target| target.server == server) {
                table.lose(region, since);
            }
        }
        self.change.store(table.change(), Release);
    }

    /// Connects to a server, and attaches the connection to the memory.
    pub(super) fn connect(&self, place: &Place) -> Result<Connection, MemoryError> {
        let attempt = lock(&self.fabrics).attempt(&place.fabric, self.source.connect);
        let unreachable = |why| MemoryError::Unreachable { server: place.name.clone(), why };
        let mut connection = Connection::open(attempt, &self.source).map_err(unreachable)?;
        let Name { memory, owner, secret } = self.name;
        let verb = Verb::List { owner, secret: secret.0, name: b"" };
        let request = Request { memory, region: u32::MAX, epoch: 0, verb };
        let server = connection.ask(&request, |reply| match reply.answer {
            Answer::List { server, .. } => Some(server),
            _ => None,
        });
        let server = server.map_err(|trouble| failed(trouble, &place.name, MemoryError::Ended))?;
        // Another run of the server has none of its memory.
        if server == place.server { Ok(connection) } else { Err(MemoryError::Ended) }
    }
}

/// Returns the error of a request; `unknown` where the server knows no such memory.
pub(super) fn failed(trouble: Trouble, server: &str, unknown: MemoryError) -> MemoryError {
    let server = server.to_owned();
    match trouble {
        Trouble::Broken(why) => MemoryError::Unreachable { server, why },
        Trouble::Refused(Refusal::NoRoom, _) => MemoryError::NoRoom { offered: 0 },
        Trouble::Refused(Refusal::Taken, _) => MemoryError::Taken,
        Trouble::Refused(Refusal::Unable, _) => MemoryError::Unable { server },
        Trouble::Refused(..) => unknown,
    }
}

/// Returns when a time is over that began at the first sending.
pub(super) fn over(sent: u64, left_millis: u64) -> u64 {
    sent.saturating_add(left_millis.saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_come_back_from_their_text() {
        let secret = Secret(std::array::from_fn(|at| at as u8 * 17));
        assert_eq!(secret.to_string().parse(), Ok(secret));
        assert_eq!(secret.to_string().len(), 32);
        assert!(!format!("{secret:?}").contains("11"), "logs do not have it");
        for wrong in ["", "00", &"g".repeat(32), &"0".repeat(33), &format!("+{}", "0".repeat(31))] {
            assert_eq!(wrong.parse::<Secret>(), Err(NoSecret), "{wrong}");
        }
    }
}
