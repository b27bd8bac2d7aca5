//! The keys of a cluster in etcd, and the facts that servers write about themselves and each other.
//!
//! Below `/rdmakv/NAME/` are `config` ([`json`](crate::json)) and the facts:
//!
//! | key | value | meaning |
//! | --- | --- | --- |
//! | `alive/ID` | incarnation | this run is connected to etcd; the key hangs on a lease of etcd's |
//! | `suspect/ID/BY` | incarnations of ID and BY | BY gets no answer from ID; the key hangs on BY's lease |
//! | `adopted/ID` | incarnation, epoch | this run adopted the epoch, its fences of before are over, and what it hands over is held |
//! | `repaired/ID` | incarnation, epoch | this run's keys are where the epoch wants them |
//!
//! Incarnations are 16 hexadecimal digits, epochs decimal, with a space between them. A fact is about a run: it says nothing about a later
//! run of the same server. Keys and values of other forms are ignored. `rdmakv-fuse` has one of its own there: `directory/UUID`, by the
//! cluster's number, is the number of the directory that its files are carried to.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

use thiserror::Error;

use crate::config::Config;
use crate::ids::{Epoch, Incarnation, MAX_EPOCH, MAX_SERVERS, ServerId};
use crate::text::hexadecimal;

/// The keys of one cluster.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Keys {
    prefix: String,
}

/// A name that no cluster has.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("name cluster {0:?}: not a name: use 1 to 64 letters, digits, '-', '_' or '.'")]
pub struct NameError(String);

impl Keys {
    /// Returns the keys of the cluster with this name.
    ///
    /// # Errors
    ///
    /// The name is empty, too long, or has other characters than letters, digits, `-`, `_` and `.`.
    pub fn of(name: &str) -> Result<Self, NameError> {
        let may_be = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = (1..=64).contains(&name.len()) && name.bytes().all(may_be);
        if is_name { Ok(Self { prefix: format!("/rdmakv/{name}/") }) } else { Err(NameError(name.to_owned())) }
    }

    /// Returns what all keys of the cluster begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key of the configuration.
    pub fn config(&self) -> String {
        format!("{}config", self.prefix)
    }

    /// Returns the key of a fact.
    pub fn fact(&self, fact: &Fact) -> String {
        format!("{}{}", self.prefix, fact.path())
    }
}

/// A fact that a server writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fact {
    /// The run is connected to etcd.
    Alive(ServerId, Incarnation),
    /// A run gets no answer from another.
    Suspect {
        /// The silent one.
        of: (ServerId, Incarnation),
        /// The one that asks.
        by: (ServerId, Incarnation),
    },
    /// The run adopted the epoch.
    Adopted(ServerId, Incarnation, Epoch),
    /// The run's keys are where the epoch wants them.
    Repaired(ServerId, Incarnation, Epoch),
}

impl Fact {
    /// Returns the part of its key below the cluster's prefix.
    pub fn path(&self) -> String {
        match self {
            Self::Alive(id, _) => format!("alive/{}", id.0),
            Self::Suspect { of, by } => format!("suspect/{}/{}", of.0.0, by.0.0),
            Self::Adopted(id, ..) => format!("adopted/{}", id.0),
            Self::Repaired(id, ..) => format!("repaired/{}", id.0),
        }
    }

    /// Returns its value.
    pub fn value(&self) -> String {
        match self {
            Self::Alive(_, run) => format!("{:016x}", run.0),
            Self::Suspect { of, by } => format!("{:016x} {:016x}", of.1.0, by.1.0),
            Self::Adopted(_, run, epoch) | Self::Repaired(_, run, epoch) => format!("{:016x} {}", run.0, epoch.0),
        }
    }

    /// Returns the fact of a path and a value, or None if they are none.
    pub fn parse(path: &str, value: &[u8]) -> Option<Self> {
        let value = std::str::from_utf8(value).ok()?;
        let (run, more) = value.split_at_checked(16)?;
        let run = incarnation(run)?;
        let more = if more.is_empty() { None } else { Some(more.strip_prefix(' ')?) };
        let epoch = || more.and_then(decimal).filter(|&epoch| epoch <= MAX_EPOCH).map(Epoch);
        let mut path = path.split('/');
        let fact = match (path.next()?, server(path.next()?)?) {
            ("alive", id) if more.is_none() => Self::Alive(id, run),
            ("suspect", id) => Self::Suspect { of: (id, run), by: (server(path.next()?)?, incarnation(more?)?) },
            ("adopted", id) => Self::Adopted(id, run, epoch()?),
            ("repaired", id) => Self::Repaired(id, run, epoch()?),
            _ => return None,
        };
        path.next().is_none().then_some(fact)
    }
}

fn server(text: &str) -> Option<ServerId> {
    decimal(text).filter(|&id| (id as usize) < MAX_SERVERS).map(|id| ServerId(id as u8))
}

fn decimal(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

fn incarnation(text: &str) -> Option<Incarnation> {
    hexadecimal(text, 16).map(|run| Incarnation(run as u64))
}

/// All facts of a cluster at one moment.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Facts {
    by_path: BTreeMap<String, Fact>,
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.by_path.values()).finish()
    }
}

impl Facts {
    /// Takes a changed key, by its path below the cluster's prefix; no value means that the key is gone.
    ///
    /// At most 64 × 67 facts are kept: there are no other paths.
    pub fn set(&mut self, path: &str, value: Option<&[u8]>) {
        match value.and_then(|value| Fact::parse(path, value)) {
            Some(fact) => self.by_path.insert(path.to_owned(), fact),
            None => self.by_path.remove(path),
        };
    }

    /// Returns all facts.
    pub fn iter(&self) -> impl Iterator<Item = &Fact> {
        self.by_path.values()
    }

    /// Returns whether the fact is there.
    pub fn has(&self, fact: &Fact) -> bool {
        self.by_path.get(&fact.path()) == Some(fact)
    }

    /// Returns whether the run is connected to etcd, as far as etcd knows.
    pub fn is_alive(&self, id: ServerId, run: Incarnation) -> bool {
        self.has(&Fact::Alive(id, run))
    }

    /// Returns the servers of a configuration that suspect one of its servers: runs that belong to it, about the run that does.
    pub fn suspecters(&self, config: &Config, of: ServerId) -> Vec<ServerId> {
        let Some(silent) = config.server(of) else { return Vec::new() };
        let others = config.servers().iter().filter(|server| server.id != of);
        let suspects = |by: (ServerId, Incarnation)| self.has(&Fact::Suspect { of: (of, silent.incarnation), by });
        others.filter(|server| suspects((server.id, server.incarnation))).map(|server| server.id).collect()
    }

    /// Returns whether a run wrote that it adopted this epoch or a later one.
    pub fn has_adopted(&self, run: Incarnation, epoch: Epoch) -> bool {
        // All paths with this beginning, and no others: '0' follows '/'.
        let paths = (Bound::Included("adopted/"), Bound::Excluded("adopted0"));
        self.by_path
            .range::<str, _>(paths)
            .any(|(_, fact)| matches!(fact, Fact::Adopted(_, by, at) if *by == run && *at >= epoch))
    }

    /// Returns whether the keys of a run are where this epoch wants them.
    pub fn has_repaired(&self, run: Incarnation, epoch: Epoch) -> bool {
        self.iter().any(|fact| matches!(fact, Fact::Repaired(_, by, at) if *by == run && *at == epoch))
    }
}

/// The knowledge of a cluster: its configuration and facts as of one revision of etcd.
///
/// A view is made of a read of all keys, and follows a watch from the revision after. It never shows an older revision than before.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct View {
    /// The revision of etcd that it shows.
    revision: i64,
    /// The revision in which the configuration was written; 0 if there is none.
    config_revision: i64,
    config: Option<Config>,
    facts: Facts,
}

/// A key of the cluster in etcd that was read, or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'a> {
    /// The key below the cluster's prefix.
    pub path: &'a str,
    /// Its value; None if it was deleted.
    pub value: Option<&'a [u8]>,
    /// The revision in which it got the value.
    pub revision: i64,
}

impl View {
    /// Returns the view that a read of all keys of the cluster gives.
    ///
    /// # Errors
    ///
    /// The configuration cannot be decoded.
    pub fn of<'a>(revision: i64, keys: impl IntoIterator<Item = Change<'a>>) -> Result<Self, crate::json::DecodeError> {
        let mut view = Self { revision, ..Self::default() };
        for key in keys {
            view.set(key)?;
        }
        Ok(view)
    }

    /// Takes changes from a watch, by rising revision. Those that the view shows already change nothing.
    ///
    /// # Errors
    ///
    /// The configuration cannot be decoded. All other changes are taken.
    pub fn apply<'a>(&mut self, changes: impl IntoIterator<Item = Change<'a>>) -> Result<(), crate::json::DecodeError> {
        let (shown, mut result) = (self.revision, Ok(()));
        for change in changes.into_iter().filter(|change| change.revision > shown) {
            self.revision = self.revision.max(change.revision);
            result = result.and(self.set(change));
        }
        result
    }

    fn set(&mut self, change: Change<'_>) -> Result<(), crate::json::DecodeError> {
        if change.path != "config" {
            self.facts.set(change.path, change.value);
            return Ok(());
        }
        let config = change.value.map(crate::json::decode).transpose()?;
        self.config_revision = if config.is_some() { change.revision } else { 0 };
        self.config = config;
        Ok(())
    }

    /// Returns the revision that it shows.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the revision in which the configuration was written, which a change of it compares; 0 if there is none.
    pub fn config_revision(&self) -> i64 {
        self.config_revision
    }

    /// Returns the configuration; None if the cluster does not exist.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// Returns the facts.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: (ServerId, Incarnation) = (ServerId(3), Incarnation(0xabc));
    const OTHER: (ServerId, Incarnation) = (ServerId(63), Incarnation(u64::MAX));

    #[test]
    fn parses_what_it_writes() {
        for (fact, path, value) in [
            (Fact::Alive(RUN.0, RUN.1), "alive/3", "0000000000000abc"),
            (Fact::Suspect { of: RUN, by: OTHER }, "suspect/3/63", "0000000000000abc ffffffffffffffff"),
            (Fact::Adopted(RUN.0, RUN.1, Epoch(7)), "adopted/3", "0000000000000abc 7"),
            (Fact::Repaired(RUN.0, RUN.1, Epoch(0)), "repaired/3", "0000000000000abc 0"),
        ] {
            assert_eq!((fact.path().as_str(), fact.value().as_str()), (path, value));
            assert_eq!(Fact::parse(path, value.as_bytes()), Some(fact));
        }
    }

    #[test]
    fn ignores_what_is_no_fact() {
        let run = "0000000000000abc";
        for (path, value) in [
            ("alive/64", run.to_owned()),
            ("alive/03", run.to_owned()),
            ("alive/+3", run.to_owned()),
            ("alive/3/", run.to_owned()),
            ("alive/3", format!("{run} 7")),
            ("alive/3", run.to_uppercase()),
            ("suspect/3", format!("{run} {run}")),
            ("suspect/3/4", run.to_owned()),
            ("suspect/3/4/5", format!("{run} {run}")),
            ("adopted/3", run.to_owned()),
            ("adopted/3", format!("{run} 16777216")),
            ("adopted/3", format!("{run}  7")),
            ("other/3", run.to_owned()),
            ("", String::new()),
        ] {
            assert_eq!(Fact::parse(path, value.as_bytes()), None, "{path} {value}");
        }
        assert!(Keys::of("a/b").is_err() && Keys::of("").is_err() && Keys::of(&"a".repeat(65)).is_err());
    }

    #[test]
    fn a_view_follows_a_watch_and_never_goes_back() {
        let config = Config::new(7);
        let bytes = crate::json::encode(&config);
        let alive = Fact::Alive(RUN.0, RUN.1);
        let (path, value) = (alive.path(), alive.value());
        let fact = |value, revision| Change { path: &path, value, revision };
        let mut view = View::of(5, [Change { path: "config", value: Some(&bytes), revision: 4 }]).unwrap();
        assert_eq!((view.revision(), view.config_revision(), view.config()), (5, 4, Some(&config)));
        view.apply([fact(Some(value.as_bytes()), 5)]).unwrap();
        assert!(!view.facts().has(&alive));
        view.apply([fact(None, 4), fact(Some(value.as_bytes()), 6)]).unwrap();
        assert!(view.facts().has(&alive));
        view.apply([fact(None, 6)]).unwrap();
        assert!(view.facts().has(&alive));
        view.apply([fact(None, 8), Change { path: "config", value: None, revision: 8 }]).unwrap();
        assert_eq!((view.facts().iter().count(), view.config(), view.config_revision()), (0, None, 0));
    }
}
