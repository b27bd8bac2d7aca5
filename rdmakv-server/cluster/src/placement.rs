//! Placement: which servers have a key, and which of them orders its writes.
//!
//! Each server stands at points of a ring of 2⁶⁴ places, [`POINTS`] for each unit of weight. Its points depend on its name and weight
//! only, so another server that comes or goes moves none of them. A key's group are the servers at the next points, clockwise.

use crate::config::{Config, ServerId};
pub use crate::ring::{POINTS, Ring};

/// The servers of a key in one epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Those that serve. The first is the primary; the place of each is the index of its fragment.
    pub serving: Vec<ServerId>,
    /// Those that will serve in the next whole epoch, and take every write already.
    pub extra: Vec<ServerId>,
}

impl Group {
    /// Returns the server that orders the key's writes.
    pub fn primary(&self) -> Option<ServerId> {
        self.serving.first().copied()
    }

    /// Returns all servers that take a write of the key.
    pub fn all(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.serving.iter().chain(&self.extra).copied()
    }

    /// Returns whether the server takes the key's writes.
    pub fn has(&self, server: ServerId) -> bool {
        self.all().any(|member| member == server)
    }
}

/// The rings of one configuration, made once for each epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    now: Ring,
    next: Option<Ring>,
}

impl Placement {
    /// Returns the placement of a configuration.
    pub fn of(config: &Config) -> Self {
        let (now, next) = (config.ring(), config.next_ring());
        Self { next: (now != next).then_some(next), now }
    }

    /// Returns the group of a key, of `size` servers if there are as many.
    pub fn group(&self, key: &[u8], size: usize) -> Group {
        let serving = self.now.group(key, size);
        let next = self.next.as_ref().map(|next| next.group(key, size)).unwrap_or_default();
        let extra = next.into_iter().filter(|server| !serving.contains(server)).collect();
        Group { serving, extra }
    }

    /// Returns the server that orders the writes of a key, whatever its policy.
    pub fn primary(&self, key: &[u8]) -> Option<ServerId> {
        self.now.primary(key)
    }
}
