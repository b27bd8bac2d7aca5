//! The configuration and the facts of one cluster, in etcd.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use super::Etcd;
use super::error::{Error, Operation};
use super::gateway::{Event, LeaseId, Write};
use super::watch::Watch;
use crate::config::{ChangeError, Config};
use crate::facts::{Change, Fact, Keys, View};
use crate::json::{self, DecodeError};

/// How often a change is made anew because others came first.
const TRIES: u32 = 64;

/// The configuration and the facts of a cluster.
#[derive(Debug)]
pub struct Store {
    etcd: Etcd,
    name: String,
    keys: Keys,
}

/// The outcome of a write of the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// It is the configuration now, written in this revision of etcd.
    Yes(i64),
    /// Another change came first.
    Overtaken,
}

impl Store {
    /// Returns the store of the cluster with this name.
    ///
    /// # Errors
    ///
    /// No cluster has this name.
    pub fn new(etcd: Etcd, name: &str) -> Result<Self, crate::facts::NameError> {
        Ok(Self { etcd, name: name.to_owned(), keys: Keys::of(name)? })
    }

    /// Returns the client, for leases.
    pub fn etcd(&mut self) -> &mut Etcd {
        &mut self.etcd
    }

    /// Reads the configuration and all facts, linearizably and as of one revision.
    ///
    /// # Errors
    ///
    /// etcd does not answer, or the configuration cannot be decoded.
    pub fn read(&mut self) -> Result<View, Error> {
        let (revision, keys) = self.etcd.range(self.keys.prefix())?;
        let of = |key: &'_ [u8]| path(&self.keys, key).map(str::to_owned);
        let keys: Vec<_> = keys.into_iter().filter_map(|pair| Some((of(&pair.key)?, pair))).collect();
        let changes =
            keys.iter().map(|(path, pair)| Change { path, value: Some(&pair.value), revision: pair.mod_revision });
        Ok(View::of(revision, changes)?)
    }

    /// Writes a configuration if the one that the view shows is still there.
    ///
    /// # Errors
    ///
    /// etcd does not answer, or the outcome is unknown.
    pub fn write(&mut self, view: &View, next: &Config) -> Result<Written, Error> {
        let (key, bytes) = (self.keys.config(), json::encode(next));
        let condition = Some((key.as_str(), view.config_revision()));
        let (revision, done) = self.etcd.transaction(Operation::Write, condition, &[Write::Put(&key, &bytes, None)])?;
        Ok(if done { Written::Yes(revision) } else { Written::Overtaken })
    }

    /// Makes a change of the configuration as often as others come first. Returns the configuration that it wrote, or found to need no
    /// change.
    ///
    /// `change` gets what is there and returns the next configuration, or None if nothing is to be done. If the answer to a write is lost, the
    /// configuration is read again: either it is the one written, or the change is made anew. All of it has the time of one operation.
    ///
    /// # Errors
    ///
    /// etcd does not answer, there is no such cluster, the change cannot be made, others came first each time, or the outcome is unknown.
    pub fn update(
        &mut self,
        change: impl FnMut(&View, &Config) -> Result<Option<Config>, ChangeError>,
    ) -> Result<Config, Error> {
        let deadline = self.etcd.begin();
        // A write whose answer was lost, while it may be done yet.
        let mut unknown = None;
        let result = self.update_until(deadline, &mut unknown, change);
        self.etcd.end();
        result.map_err(|error| unknown.unwrap_or(error))
    }

    fn update_until(
        &mut self,
        deadline: Instant,
        unknown: &mut Option<Error>,
        mut change: impl FnMut(&View, &Config) -> Result<Option<Config>, ChangeError>,
    ) -> Result<Config, Error> {
        let mut sent: Option<(Config, i64)> = None;
        for tried in 0..TRIES {
            let view = self.read()?;
            let config = view.config().ok_or_else(|| Error::NoCluster(self.name.clone()))?;
            if let Some((sent, revision)) = &sent {
                if sent == config {
                    return Ok(config.clone());
                }
                // A write that compares an earlier revision is not done any more.
                unknown.take_if(|_| *revision != view.config_revision());
            }
            let Some(next) = change(&view, config)? else { return Ok(config.clone()) };
            match self.write(&view, &next) {
                Ok(Written::Yes(_)) => return Ok(next),
                Ok(Written::Overtaken) => std::thread::sleep(pause(tried)),
                Err(error @ Error::OutcomeUnknown { .. }) => {
                    (*unknown, sent) = (Some(error), Some((next, view.config_revision())));
                }
                Err(error) => return Err(error),
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        Err(Error::Contended(self.name.clone()))
    }

    /// Makes the cluster. Returns false if it exists already.
    ///
    /// # Errors
    ///
    /// etcd does not answer. If the answer is lost, the configuration that is there decides.
    pub fn create(&mut self, config: &Config) -> Result<bool, Error> {
        match self.write(&View::default(), config) {
            Ok(written) => Ok(matches!(written, Written::Yes(_))),
            // Its uuid is no other cluster's.
            Err(Error::OutcomeUnknown { operation, endpoint, cause }) => match self.read()?.config() {
                Some(there) => Ok(there.uuid() == config.uuid()),
                None => Err(Error::OutcomeUnknown { operation, endpoint, cause }),
            },
            Err(error) => Err(error),
        }
    }

    /// Writes facts in one step. They go when the lease ends, if there is one.
    ///
    /// # Errors
    ///
    /// etcd does not answer, or has no such lease.
    pub fn put(&mut self, facts: &[Fact], lease: Option<LeaseId>) -> Result<i64, Error> {
        let facts: Vec<_> = facts.iter().map(|fact| (self.keys.fact(fact), fact.value())).collect();
        let writes: Vec<_> = facts.iter().map(|(key, value)| Write::Put(key, value.as_bytes(), lease)).collect();
        self.etcd.transaction(Operation::Fact, None, &writes).map(|(revision, _)| revision)
    }

    /// Deletes facts in one step.
    ///
    /// # Errors
    ///
    /// etcd does not answer.
    pub fn remove(&mut self, facts: &[Fact]) -> Result<i64, Error> {
        let keys: Vec<_> = facts.iter().map(|fact| self.keys.fact(fact)).collect();
        let writes: Vec<_> = keys.iter().map(|key| Write::Delete(key)).collect();
        self.etcd.transaction(Operation::Fact, None, &writes).map(|(revision, _)| revision)
    }

    /// Returns a watch of all that changes after what the view shows.
    pub fn watch(&self, view: &View) -> Watch {
        self.etcd.watch(self.keys.prefix(), view.revision() + 1)
    }

    /// Takes the changes of a watch into a view.
    ///
    /// # Errors
    ///
    /// The configuration cannot be decoded.
    pub fn apply(&self, view: &mut View, events: &[Event]) -> Result<(), DecodeError> {
        view.apply(events.iter().filter_map(|event| {
            let path = path(&self.keys, &event.key)?;
            Some(Change { path, value: event.value.as_deref(), revision: event.revision })
        }))
    }
}

/// Returns a key's path below the cluster's prefix.
fn path<'a>(keys: &Keys, key: &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(key).ok()?.strip_prefix(keys.prefix())
}

/// Returns a random pause, longer the more tries there were.
fn pause(tried: u32) -> Duration {
    let random = RandomState::new().hash_one(tried);
    Duration::from_micros(random % (1000 << tried.min(7)))
}
