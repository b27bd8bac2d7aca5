//! Changes of keys as they happen.

use std::time::{Duration, Instant};

use super::connection::{Connection, Failed};
use super::endpoint::Endpoint;
use super::error::{Error, Operation};
use super::gateway::{self, Event, NotAnAnswer, Watched, code};
use super::http::Answer;
use super::{Attempt, exchange, head, token};

/// The pause before an endpoint is tried that comes after one that failed.
const PAUSE: Duration = Duration::from_millis(50);

/// A watch of keys. It goes on at another endpoint where it stopped, so that no change is missed.
#[derive(Debug)]
pub struct Watch {
    endpoints: Vec<Endpoint>,
    at: usize,
    timeout: Duration,
    prefix: String,
    /// The first revision that was not returned.
    next: i64,
    open: Option<(Connection, Answer)>,
    token: Option<String>,
}

/// The news of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchEvent {
    /// Changes by rising revision.
    Changes(Vec<Event>),
    /// Nothing happened in the time given, as far as the endpoint knows.
    Quiet,
    /// Changes before this revision are gone, and were missed. Read all keys, and watch anew from the revision after that.
    Compacted(i64),
}

impl Watch {
    pub(super) fn new(endpoints: Vec<Endpoint>, timeout: Duration, prefix: String, from: i64) -> Self {
        Self { endpoints, at: 0, timeout, prefix, next: from, open: None, token: None }
    }

    /// Returns the first revision that was not returned yet.
    pub fn next_revision(&self) -> i64 {
        self.next
    }

    /// Waits for changes, at most `wait`, or until the watch stands: at most the time that the client's operations have.
    ///
    /// A broken connection is made anew, at the next endpoint. A silent one may be broken, too: read the keys now and then, and call
    /// [`renew`](Self::renew) if the read shows what the watch did not.
    ///
    /// # Errors
    ///
    /// No endpoint takes the watch, or etcd refuses it. The watch can be used again.
    pub fn wait(&mut self, wait: Duration) -> Result<WatchEvent, Error> {
        let deadline = Instant::now() + wait;
        let stands_by = Instant::now() + self.timeout;
        // One more than there are endpoints: the first may have been lost.
        for _ in 0..=self.endpoints.len() {
            if self.open.is_none() {
                self.begin(stands_by)?;
            }
            let cause = match self.take(deadline) {
                Ok(event) => return Ok(event),
                Err(cause) => cause,
            };
            let endpoint = self.endpoints[self.at].clone();
            self.renew();
            match cause {
                Broken::Lost => std::thread::sleep(PAUSE.min(deadline.saturating_duration_since(Instant::now()))),
                Broken::NotEtcd => {
                    let cause = "not an answer of etcd's gateway".to_owned();
                    return Err(Error::NotEtcd { operation: Operation::Watch, endpoint, cause });
                }
                Broken::Refused(refusal) => {
                    return Err(Error::Refused { operation: Operation::Watch, endpoint, refusal });
                }
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        Ok(WatchEvent::Quiet)
    }

    /// Closes the connection. The next wait begins at the next endpoint, and misses nothing.
    pub fn renew(&mut self) {
        self.open = None;
        self.at = (self.at + 1) % self.endpoints.len();
    }

    /// Begins the watch at the first endpoint that takes it in time.
    fn begin(&mut self, deadline: Instant) -> Result<(), Error> {
        let mut last = "no answer in time".to_owned();
        let (mut tries, mut logged_in) = (0, false);
        while tries < self.endpoints.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / (self.endpoints.len() - tries) as u32;
            match self.try_begin(Instant::now() + share) {
                Ok(()) => return Ok(()),
                Err(Attempt::Refused(refusal)) if refusal.code == code::UNAUTHENTICATED && !logged_in => {
                    (logged_in, self.token) = (true, None);
                    continue;
                }
                Err(Attempt::Refused(refusal)) if refusal.code != code::UNAVAILABLE => {
                    let endpoint = self.endpoints[self.at].clone();
                    return Err(Error::Refused { operation: Operation::Watch, endpoint, refusal });
                }
                Err(Attempt::Refused(refusal)) => last = refusal.message,
                Err(Attempt::NotSent(cause) | Attempt::Lost(cause) | Attempt::NotEtcd(cause)) => last = cause,
            }
            tries += 1;
            self.at = (self.at + 1) % self.endpoints.len();
        }
        let endpoint = self.endpoints[self.at].clone();
        Err(Error::Unreachable { operation: Operation::Watch, endpoint, cause: last })
    }

    fn try_begin(&mut self, deadline: Instant) -> Result<(), Attempt> {
        let endpoint = &self.endpoints[self.at];
        if let (Some(login), None) = (&endpoint.login, &self.token) {
            let body = gateway::authenticate(&login.name, &login.password).to_string();
            self.token = Some(token(exchange(&mut None, endpoint, "/v3/auth/authenticate", None, &body, deadline))?);
        }
        let body = gateway::watch(&self.prefix, self.next).to_string();
        let mut connection = Connection::open(endpoint, deadline).map_err(Attempt::NotSent)?;
        let mut answer = Answer::default();
        let lost = |failed| match failed {
            Failed::NotSent(cause) | Failed::Lost(cause) => Attempt::Lost(cause),
        };
        connection.send(&head(endpoint, "/v3/watch", self.token.as_deref(), &body), &body, deadline).map_err(lost)?;
        // The gateway's first line says that the watch stands.
        let line = loop {
            if let Some(line) = answer.take_line() {
                break line;
            }
            if answer.is_done() {
                break answer.body().to_vec();
            }
            if !connection.more(&mut answer, deadline).map_err(lost)? {
                return Err(Attempt::Lost("no answer in time".to_owned()));
            }
        };
        match gateway::read_watched(&line) {
            Ok(Watched::Created) => {}
            Ok(Watched::Canceled(refusal)) => return Err(Attempt::Refused(refusal)),
            Ok(_) | Err(NotAnAnswer) => return Err(Attempt::NotEtcd("not an answer of etcd's gateway".to_owned())),
        }
        self.open = Some((connection, answer));
        Ok(())
    }

    /// Takes the next part of the watch.
    fn take(&mut self, deadline: Instant) -> Result<WatchEvent, Broken> {
        let Some((connection, answer)) = &mut self.open else { return Err(Broken::Lost) };
        loop {
            while let Some(line) = answer.take_line() {
                match gateway::read_watched(&line).map_err(|NotAnAnswer| Broken::NotEtcd)? {
                    Watched::Changes(mut events) => {
                        events.retain(|event| event.revision >= self.next);
                        if let Some(last) = events.last() {
                            self.next = last.revision + 1;
                            return Ok(WatchEvent::Changes(events));
                        }
                    }
                    Watched::Compacted(revision) => return Ok(WatchEvent::Compacted(revision)),
                    Watched::Canceled(refusal) => {
                        return Err(match refusal.code {
                            // Without a leader, or for no reason that would last: another endpoint may do.
                            code::UNAVAILABLE | code::UNKNOWN => Broken::Lost,
                            code::UNAUTHENTICATED => {
                                self.token = None;
                                Broken::Lost
                            }
                            _ => Broken::Refused(refusal),
                        });
                    }
                    Watched::Created => {}
                }
            }
            if answer.is_done() {
                return Err(Broken::Lost);
            }
            match connection.more(answer, deadline) {
                Ok(true) => {}
                Ok(false) => return Ok(WatchEvent::Quiet),
                Err(_) => return Err(Broken::Lost),
            }
        }
    }
}

/// Why a watch ended.
enum Broken {
    Lost,
    NotEtcd,
    Refused(gateway::Refusal),
}
