//! The state that a memory and its lanes share: which server has which region, and how it is reached.

use super::Source;
use super::configuration::Configuration;
use super::connection::{Connection, NotOpen, Trouble};
use super::migration::{Ask, Leftover, Migration, Outcome, Step};
use super::table::{MemoryError, ServerId, Table};
use crate::address::Fabric;
use crate::domains::Fabrics;
use crate::slots::{Slot, Slots};
use rdmakv_proto::clock;
use rdmakv_proto::far::messages::{Answer, Refusal, Request, Secret as Bytes, Verb};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How long a lane waits for a change at most, before it looks at its connections.
pub(super) const ROUND: Duration = Duration::from_millis(20);

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
    state: Mutex<State>,
    /// Rung at each change of the table.
    changed: Condvar,
    /// The number of the table's last change.
    change: AtomicU64,
    /// How many servers there are.
    arrivals: AtomicUsize,
    /// The oldest access of each lane, by the number of the table's change.
    oldest: Mutex<Vec<Weak<AtomicU64>>>,
    /// Which servers lanes and runners have connections to.
    reached: Mutex<Vec<(ServerId, Weak<()>)>>,
    /// When its time is over, in nanoseconds of the boot clock.
    ends: AtomicU64,
}

/// The part of it that moves change.
struct State {
    table: Table,
    /// Servers are only added.
    servers: Vec<Place>,
    /// Servers that are lost.
    gone: Vec<ServerId>,
    /// The region that moves.
    moving: Option<Migration>,
}

/// A server that has regions, or had some.
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

    /// Returns whether a user means this server: by its name, or by the address at which it is reached.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.name == name || self.fabric.to_string() == name
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
            change: AtomicU64::new(table.change()),
            arrivals: AtomicUsize::new(servers.len()),
            state: Mutex::new(State { table, servers, gone: Vec::new(), moving: None }),
            changed: Condvar::new(),
            oldest: Mutex::default(),
            reached: Mutex::default(),
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

    /// Notes that a server keeps its part no longer than this.
    pub(super) fn ends_by(&self, ends: u64) {
        self.ends.fetch_min(ends, Relaxed);
    }

    /// Returns memory for an access.
    pub(super) fn slot(&self, bytes: usize) -> Option<Slot> {
        lock(&self.slots).take(bytes)
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    pub(super) fn servers(&self) -> Vec<Place> {
        lock(&self.state).servers.clone()
    }

    /// Returns how many servers there are.
    pub(super) fn arrivals(&self) -> usize {
        self.arrivals.load(Acquire)
    }

    /// Adds a server, to which lanes connect before a region is there.
    pub(super) fn add_server(&self, place: &Place) {
        let mut state = lock(&self.state);
        if state.servers.iter().all(|known| known.server != place.server) {
            state.servers.push(place.clone());
            self.arrivals.store(state.servers.len(), Release);
        }
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the domains of connections.
    pub(super) fn fabrics(&self) -> MutexGuard<'_, Fabrics> {
        lock(&self.fabrics)
    }

    pub(super) fn is_over(&self) -> bool {
        clock::boot() >= self.ends.load(Relaxed)
    }

    /// Returns the number of the table's last change. A lane that published its oldest access before learns of each change that the driver
    /// of a move made before it looked at that access.
    pub(super) fn change(&self) -> u64 {
        self.change.load(SeqCst)
    }

    pub(super) fn table(&self) -> Table {
        lock(&self.state).table.clone()
    }

    /// Returns the table, and the servers that are lost.
    pub(super) fn now(&self) -> (Table, Vec<ServerId>) {
        let state = lock(&self.state);
        (state.table.clone(), state.gone.clone())
    }

    /// Returns whether a server has a region that is not lost.
    pub(super) fn has_regions(&self, server: ServerId) -> bool {
        let table = &lock(&self.state).table;
        (0..table.len()).any(|region| table.target(region).is_some_and(|at| at.server == server))
    }

    pub(super) fn is_gone(&self, server: ServerId) -> bool {
        lock(&self.state).gone.contains(&server)
    }

    /// Tells lanes of changes of the table.
    fn publish(&self, state: &State) {
        self.change.store(state.table.change(), SeqCst);
        self.changed.notify_all();
    }

    /// Waits for a change after this one, but not for long.
    pub(super) fn wait_for_change(&self, after: u64) {
        let state = lock(&self.state);
        if state.table.change() == after {
            drop(self.changed.wait_timeout(state, ROUND));
        }
    }

    /// Notes that a server is lost, and all regions that it had. The region that moves may be at the other server.
    pub(super) fn lose(&self, server: ServerId) {
        let mut state = lock(&self.state);
        let State { table, gone, moving, .. } = &mut *state;
        if !gone.contains(&server) {
            gone.push(server);
        }
        let since = clock::since_1970();
        let mut moves = None;
        if let Some(moving) = moving.as_mut().filter(|moving| !moving.has_ended()) {
            moving.gone(table, since, server);
            moves = Some(moving.region()).filter(|_| !moving.has_ended());
        }
        for region in (0..table.len()).filter(|&region| Some(region) != moves) {
            if table.target(region).is_some_and(|target| target.server == server) {
                table.lose(region, since);
            }
        }
        self.publish(&state);
    }

    /// Notes that a region is lost.
    pub(super) fn lose_region(&self, region: u32) {
        let mut state = lock(&self.state);
        state.table.lose(region, clock::since_1970());
        self.publish(&state);
    }

    /// Notes that this connection reaches the server, until it is broken or dropped.
    pub(super) fn reach(&self, server: ServerId, connection: &mut Connection) {
        let token = Arc::new(());
        let mut reached = lock(&self.reached);
        reached.retain(|(_, token)| token.strong_count() > 0);
        reached.push((server, Arc::downgrade(&token)));
        connection.keep_until_broken(token);
    }

    /// Returns whether a connection reaches the server, and none found it gone.
    pub(super) fn is_reached(&self, server: ServerId) -> bool {
        !self.is_gone(server) && lock(&self.reached).iter().any(|(of, token)| *of == server && token.strong_count() > 0)
    }

    /// Returns the number of a lane's oldest access, which the lane sets.
    pub(super) fn join(&self) -> Arc<AtomicU64> {
        let own = Arc::new(AtomicU64::new(u64::MAX));
        lock(&self.oldest).push(Arc::downgrade(&own));
        own
    }

    /// Returns the lowest number of an access under way, of all lanes.
    fn oldest(&self) -> u64 {
        let mut all = lock(&self.oldest);
        all.retain(|lane| lane.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).map(|lane| lane.load(SeqCst)).min().unwrap_or(u64::MAX)
    }

    /// Begins to move a region. Returns false if it is lost or there already, or another one moves.
    pub(super) fn begin_move(&self, region: u32, to: ServerId) -> bool {
        let mut state = lock(&self.state);
        let State { table, moving, .. } = &mut *state;
        if moving.is_some() {
            return false;
        }
        *moving = Migration::new(table, region, to);
        let is_begun = moving.is_some();
        self.publish(&state);
        is_begun
    }

    /// Returns the next step of the move, if there is one.
    pub(super) fn next_step(&self) -> Option<Step> {
        // Before the lock: lanes take both locks in turn.
        let oldest = self.oldest();
        lock(&self.state).moving.as_mut().map(|moving| moving.poll(oldest))
    }

    /// Takes the answer to a request of the move.
    pub(super) fn answered(&self, ask: &Ask, answer: Result<&[u8], Refusal>) {
        let mut state = lock(&self.state);
        let State { table, moving, .. } = &mut *state;
        if let Some(moving) = moving {
            moving.answered(table, clock::since_1970(), ask, answer);
        }
        self.publish(&state);
    }

    /// Gives the move up, unless COMMIT was sent. Returns whether it is given up.
    pub(super) fn give_up(&self) -> bool {
        let mut state = lock(&self.state);
        let State { table, moving, .. } = &mut *state;
        let is_given_up = moving.as_mut().is_some_and(|moving| moving.give_up(table));
        self.publish(&state);
        is_given_up
    }

    /// Ends the steps of a move that leaves a part at a server. Returns that part and the outcome.
    pub(super) fn leave_part(&self) -> Option<(Leftover, Outcome)> {
        lock(&self.state).moving.as_mut().and_then(Migration::leave)
    }

    /// Returns whether no access is under way that began before this change of the table.
    pub(super) fn counts(&self, change: u64) -> bool {
        self.oldest() >= change
    }

    /// Ends the move: another one may begin.
    pub(super) fn end_move(&self) {
        lock(&self.state).moving = None;
    }

    /// Marks pages that are about to be written, if the region moves.
    pub(super) fn mark(&self, region: u32, offset: u64, length: u64) {
        if let Some(moving) = &mut lock(&self.state).moving
            && moving.region() == region
        {
            moving.mark(offset, length);
        }
    }

    /// Returns the pages that were written while the region moved.
    pub(super) fn marks(&self) -> Vec<u8> {
        lock(&self.state).moving.as_ref().map_or_else(Vec::new, |moving| moving.marks().bytes().to_vec())
    }

    /// Connects to a server, and attaches the connection to the memory.
    pub(super) fn connect(&self, place: &Place) -> Result<Connection, MemoryError> {
        let attempt = || lock(&self.fabrics).attempt(&place.fabric, self.source.connect);
        let mut connection = Connection::open(attempt, &self.source).map_err(|why| not_open(why, &place.name))?;
        let Name { memory, owner, secret } = self.name;
        let verb = Verb::List { owner, secret: secret.0, name: b"" };
        let request = Request { memory, region: u32::MAX, epoch: 0, verb };
        let server = connection.ask(&request, |reply| match reply.answer {
            Answer::List { server, .. } => Some(server),
            _ => None,
        });
        let server = server.map_err(|trouble| failed(trouble, &place.name, MemoryError::Ended))?;
        // Another run of the server has none of its memory.
        if server != place.server {
            return Err(MemoryError::Ended);
        }
        self.reach(server, &mut connection);
        Ok(connection)
    }
}

/// Returns the error of a server that has no connection for this client.
pub(super) fn not_open(why: NotOpen, server: &str) -> MemoryError {
    let server = server.to_owned();
    match why {
        NotOpen::Gone(why) => MemoryError::Unreachable { server, why },
        NotOpen::Refused(why) => MemoryError::Refused { server, why },
    }
}

/// Returns the error of a request; `unknown` where the server knows no such memory.
pub(super) fn failed(trouble: Trouble, server: &str, unknown: MemoryError) -> MemoryError {
    let server = server.to_owned();
    match trouble {
        Trouble::Broken(why) => MemoryError::Unreachable { server, why },
        // TAKE, which is refused for want of regions, has its own error.
        Trouble::Refused(Refusal::NoRoom, _) => MemoryError::Connections { server },
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

    #[test]
    fn a_refused_connection_is_no_want_of_bytes() {
        let refused = |why| failed(Trouble::Refused(why, 0), "here", MemoryError::Unknown);
        assert_eq!(refused(Refusal::NoRoom), MemoryError::Connections { server: "here".to_owned() });
        assert_eq!(refused(Refusal::Stale), MemoryError::Unknown);
    }
}
