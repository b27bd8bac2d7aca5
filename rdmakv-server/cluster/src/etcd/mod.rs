//! A blocking client of etcd's JSON gateway: the only input and output of this crate.
//!
//! * [`Endpoint`]: addresses of etcd. [`Etcd`] asks one after another until one answers.
//! * [`Store`]: the configuration and facts of a cluster, and changes of them.
//! * [`Watch`]: changes as they happen.
//! * [`http`], [`gateway`]: bytes to answers, without sockets.
//!
//! Reads are linearizable. A write whose answer does not come is [`Error::OutcomeUnknown`], and is not sent again by itself: it may be done
//! yet. Each operation ends within its time, whatever the endpoints do. No thread is started.
//!
//! The crates that speak etcd's own protocol bring an asynchronous runtime and gRPC, which servers and clients of rdmakv do without.

mod connection;
mod endpoint;
mod error;
pub mod gateway;
pub mod http;
mod store;
mod watch;

pub use endpoint::{Endpoint, EndpointError, MAX_ENDPOINTS};
pub use error::{Error, Operation};
pub use store::{Store, Written};
pub use watch::{Watch, WatchEvent};

use std::time::{Duration, Instant};

use connection::{Connection, Failed};
use gateway::{KeyValue, LeaseId, NotAnAnswer, Refusal, Write, code};

/// The least time that one endpoint gets.
const LEAST_SHARE: Duration = Duration::from_millis(50);

/// The longest pause after no endpoint could answer.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// A client of etcd.
#[derive(Debug)]
pub struct Etcd {
    endpoints: Vec<Endpoint>,
    /// The endpoint to ask next: the last that answered.
    at: usize,
    timeout: Duration,
    /// When an operation of several calls ends.
    deadline: Option<Instant>,
    connection: Option<Connection>,
    token: Option<String>,
}

/// A request, and whether it may be sent twice.
struct Request<'a> {
    operation: Operation,
    path: &'a str,
    body: &'a str,
    repeatable: bool,
}

/// Why an endpoint has no answer.
enum Attempt {
    NotSent(String),
    Lost(String),
    Refused(Refusal),
    NotEtcd(String),
}

impl Etcd {
    /// Returns a client of these endpoints, whose operations take at most `timeout`. It connects when it is first used.
    ///
    /// # Panics
    ///
    /// There is no endpoint.
    pub fn new(endpoints: Vec<Endpoint>, timeout: Duration) -> Self {
        assert!(!endpoints.is_empty(), "a client of etcd has an endpoint");
        Self { endpoints, at: 0, timeout, deadline: None, connection: None, token: None }
    }

    /// Sets how long operations take at most from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Begins an operation of several calls that share the time of one, and returns its end.
    fn begin(&mut self) -> Instant {
        *self.deadline.insert(Instant::now() + self.timeout)
    }

    /// Ends an operation of several calls.
    fn end(&mut self) {
        self.deadline = None;
    }

    /// Reads all keys with a prefix: the revision that they show, and the keys.
    ///
    /// # Errors
    ///
    /// No endpoint answered in time, or etcd refused.
    pub fn range(&mut self, prefix: &str) -> Result<(i64, Vec<KeyValue>), Error> {
        let body = gateway::range(prefix).to_string();
        let request = Request { operation: Operation::Read, path: "/v3/kv/range", body: &body, repeatable: true };
        self.call(&request, gateway::read_range)
    }

    /// Does the writes in one step if a key was written last in a given revision (0: it does not exist), or without a condition.
    ///
    /// Returns the revision of etcd, and whether the writes were done.
    ///
    /// # Errors
    ///
    /// As [`range`](Self::range); or the outcome is unknown.
    pub fn transaction(
        &mut self,
        operation: Operation,
        condition: Option<(&str, i64)>,
        writes: &[Write<'_>],
    ) -> Result<(i64, bool), Error> {
        let body = gateway::transaction(condition, writes).to_string();
        // Without a condition the same writes may be done twice.
        let repeatable = condition.is_none();
        self.call(&Request { operation, path: "/v3/kv/txn", body: &body, repeatable }, gateway::read_transaction)
    }

    /// Gets a lease of so many seconds. etcd may grant more; its least are 2 by default.
    ///
    /// # Errors
    ///
    /// As [`range`](Self::range).
    pub fn grant(&mut self, seconds: u32) -> Result<LeaseId, Error> {
        let body = gateway::grant(seconds).to_string();
        self.lease("/v3/lease/grant", &body, gateway::read_grant)
    }

    /// Renews a lease. Returns false if it is gone, and its keys with it.
    ///
    /// # Errors
    ///
    /// As [`range`](Self::range).
    pub fn renew(&mut self, lease: LeaseId) -> Result<bool, Error> {
        let body = gateway::lease(lease).to_string();
        self.lease("/v3/lease/keepalive", &body, gateway::read_renewal)
    }

    /// Ends a lease, and deletes its keys. One that is gone already is no error.
    ///
    /// # Errors
    ///
    /// As [`range`](Self::range).
    pub fn revoke(&mut self, lease: LeaseId) -> Result<(), Error> {
        let body = gateway::lease(lease).to_string();
        match self.lease("/v3/lease/revoke", &body, |_| Ok(())) {
            Err(Error::Refused { refusal, .. }) if refusal.code == code::NOT_FOUND => Ok(()),
            other => other,
        }
    }

    /// Returns a watch of all keys with a prefix, from a revision on: that after the one that a read showed.
    pub fn watch(&self, prefix: &str, from: i64) -> Watch {
        Watch::new(self.endpoints.clone(), self.timeout, prefix.to_owned(), from)
    }

    fn lease<T>(&mut self, path: &str, body: &str, read: impl Fn(&[u8]) -> Result<T, NotAnAnswer>) -> Result<T, Error> {
        self.call(&Request { operation: Operation::Lease, path, body, repeatable: true }, read)
    }

    /// Asks the endpoints in turn until one answers, or the time is over.
    ///
    /// If none takes a connection, that is the answer at once: the caller knows better how long to try.
    fn call<T>(&mut self, request: &Request<'_>, read: impl Fn(&[u8]) -> Result<T, NotAnAnswer>) -> Result<T, Error> {
        let (begun, operation) = (Instant::now(), request.operation);
        let deadline = self.deadline.unwrap_or(begun + self.timeout);
        let (mut pause, mut logged_in, mut tried) = (Duration::from_millis(10), false, 0);
        let (mut reached, mut last) = (false, "no answer in time".to_owned());
        // An endpoint at which another program answers. Others may be etcd.
        let mut foreign = None;
        loop {
            let endpoint = self.endpoints[self.at].clone();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut { operation, endpoint, after: begun.elapsed(), cause: last });
            }
            let others = (self.endpoints.len() - tried) as u32;
            let share = (left / others).max(LEAST_SHARE).min(left);
            let attempt = self.attempt(request, Instant::now() + share).and_then(|body| {
                read(&body).map_err(|NotAnAnswer| Attempt::NotEtcd("not an answer of etcd's gateway".to_owned()))
            });
            match attempt {
                Ok(answer) => return Ok(answer),
                Err(Attempt::NotSent(cause)) => last = cause,
                Err(Attempt::Lost(cause)) if request.repeatable => (reached, last) = (true, cause),
                Err(Attempt::Lost(cause)) => {
                    self.pass_over();
                    return Err(Error::OutcomeUnknown { operation, endpoint, cause });
                }
                Err(Attempt::NotEtcd(cause)) if request.repeatable => foreign = Some((endpoint.clone(), cause)),
                // A proxy that answers may have passed the write on.
                Err(Attempt::NotEtcd(cause)) => {
                    self.pass_over();
                    return Err(Error::OutcomeUnknown { operation, endpoint, cause });
                }
                Err(Attempt::Refused(refusal)) => match refusal.code {
                    code::UNAUTHENTICATED if endpoint.login.is_some() && !logged_in => {
                        (logged_in, self.token) = (true, None);
                        continue;
                    }
                    // It was not taken up. Another time or endpoint may do.
                    code::EXHAUSTED if !refusal.message.contains("space") => (reached, last) = (true, refusal.message),
                    code::UNAVAILABLE | code::DEADLINE if request.repeatable => {
                        (reached, last) = (true, refusal.message)
                    }
                    code::UNAVAILABLE | code::DEADLINE => {
                        self.pass_over();
                        return Err(Error::OutcomeUnknown { operation, endpoint, cause: refusal.message });
                    }
                    _ => return Err(Error::Refused { operation, endpoint, refusal }),
                },
            }
            self.pass_over();
            tried += 1;
            if tried == self.endpoints.len() {
                if let Some((endpoint, cause)) = foreign.take().filter(|_| !reached) {
                    return Err(Error::NotEtcd { operation, endpoint, cause });
                }
                if !reached {
                    return Err(Error::Unreachable { operation, endpoint, cause: last });
                }
                std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
                pause = (pause * 2).min(LONGEST_PAUSE);
                (tried, reached) = (0, false);
            }
        }
    }

    /// Leaves the next request to the next endpoint.
    fn pass_over(&mut self) {
        self.connection = None;
        self.at = (self.at + 1) % self.endpoints.len();
    }

    /// Asks the endpoint whose turn it is.
    fn attempt(&mut self, request: &Request<'_>, deadline: Instant) -> Result<Vec<u8>, Attempt> {
        let endpoint = &self.endpoints[self.at];
        if self.connection.as_ref().is_none_or(|connection| !connection.is_idle()) {
            self.connection = Some(Connection::open(endpoint, deadline).map_err(Attempt::NotSent)?);
        }
        if let (Some(login), None) = (&endpoint.login, &self.token) {
            let body = gateway::authenticate(&login.name, &login.password).to_string();
            let answer = exchange(&mut self.connection, endpoint, "/v3/auth/authenticate", None, &body, deadline);
            self.token = Some(token(answer)?);
        }
        exchange(&mut self.connection, endpoint, request.path, self.token.as_deref(), request.body, deadline)
    }
}

/// Returns the token of an answer. Etcd without users has none, and takes any.
fn token(answer: Result<Vec<u8>, Attempt>) -> Result<String, Attempt> {
    match answer {
        // Nothing that matters was sent.
        Err(Attempt::Lost(cause) | Attempt::NotEtcd(cause)) => Err(Attempt::NotSent(cause)),
        Err(Attempt::Refused(refusal)) if refusal.message.contains("not enabled") => Ok(String::new()),
        answer => gateway::read_token(&answer?).map_err(|NotAnAnswer| Attempt::NotSent("no token".to_owned())),
    }
}

/// Sends a request over a connection and reads the answer.
fn exchange(
    connection: &mut Option<Connection>,
    endpoint: &Endpoint,
    path: &str,
    token: Option<&str>,
    body: &str,
    deadline: Instant,
) -> Result<Vec<u8>, Attempt> {
    let open = match connection.take() {
        Some(open) => open,
        None => Connection::open(endpoint, deadline).map_err(Attempt::NotSent)?,
    };
    let mut open = open;
    let failed = |failed| match failed {
        Failed::NotSent(cause) => Attempt::NotSent(cause),
        Failed::Lost(cause) => Attempt::Lost(cause),
    };
    open.send(&head(endpoint, path, token, body), body, deadline).map_err(failed)?;
    let answer = open.receive(deadline).map_err(failed)?;
    if answer.stays() {
        *connection = Some(open);
    }
    match answer.status() {
        Some(200) => Ok(answer.body().to_vec()),
        status => Err(match gateway::read_refusal(answer.body()) {
            Some(refusal) => Attempt::Refused(refusal),
            None => Attempt::NotEtcd(format!("status {} for {path}", status.unwrap_or(0))),
        }),
    }
}

/// Returns the head of a request. Etcd refuses it if it has no leader, so that another endpoint is asked.
fn head(endpoint: &Endpoint, path: &str, token: Option<&str>, body: &str) -> String {
    let host = &endpoint.address;
    let token = token.filter(|token| !token.is_empty());
    let token = token.map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
    format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Grpc-Metadata-Hasleader: true\r\n{token}\r\n",
        body.len()
    )
}
