//! Keys that survive their servers compared with one copy: what `side-by-side resilience` measures.
//!
//! Six servers form a cluster by one etcd. Another server has no cluster and keeps one copy of each value. All of them are this program under
//! another name, and so are the servers' agents. The client is this process. Everything is over `shm`, with the defaults of server and client;
//! `-I 1025k` admits values of 1 MiB. The one server, `copies:3`, `code:4+2` and three memcacheds, where these are installed, take turns.
//!
//! * `memory`: the chunks that hold many values of 1 MiB, counted whole.
//! * `set`, `get`: the time of a request, with one under way, and the CPU of servers, agents and client for it.
//! * `degraded`: the same GETs after two of the six servers were killed.
//! * `repair`: the pace at which a server that was killed, and came back empty, gets its pieces.
//!
//! Rows have limits: how many times the cost of one copy they may take. The limits are held against medians.

mod cluster;
mod contestant;
mod memory;
mod repair;
mod requests;

use super::part::Part;
use super::remote::Outcome;
use cluster::Etcd;
use contestant::Contestant;
use rdmakv_cluster::config::Policy;
use std::cell::RefCell;
use std::rc::Rc;

/// By this name the agents of servers are started: this program, called so, is `rdmakv`.
pub const CLIENT: &str = "rdmakv";

/// The servers of a cluster.
const SERVERS: usize = 6;
const COPIES: Policy = Policy::Copies(3);
const CODE: Policy = Policy::Code { data: 4, parity: 2 };

/// The way in which values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// On one server that has no cluster.
    One,
    Copies,
    Code,
    /// On three memcacheds, to each of which the client sends it over TCP.
    Memcached,
}

impl Kind {
    const ALL: [Self; 4] = [Self::One, Self::Copies, Self::Code, Self::Memcached];
    /// Those of our servers.
    const OURS: [Self; 3] = [Self::One, Self::Copies, Self::Code];
    /// Those of the cluster.
    const RESILIENT: [Self; 2] = [Self::Copies, Self::Code];

    fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Copies => "copies",
            Self::Code => "code",
            Self::Memcached => "memcached",
        }
    }

    fn policy(self) -> Policy {
        match self {
            Self::One | Self::Memcached => Policy::None,
            Self::Copies => COPIES,
            Self::Code => CODE,
        }
    }

    /// Returns a key, whose prefix has the policy.
    fn key(self, of: &str, number: usize) -> String {
        format!("{}:{of}:{number}", self.name())
    }
}

/// `1KiB`, `1MiB`.
fn size_name(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{}KiB", bytes >> 10) } else { format!("{}MiB", bytes >> 20) }
}

/// The one server, the cluster and their clients, which several parts use one after the other. The first of them starts them.
type Shared = Rc<RefCell<Option<Contestant>>>;

/// Returns everything there is to measure, in order. `cpus` are those of the servers.
pub fn parts(cpus: &[usize]) -> Vec<Part> {
    let shared = Shared::default();
    let mut parts = vec![memory::part(&shared, cpus)];
    parts.extend(requests::parts(&shared, cpus));
    parts.extend(repair::parts(&shared, cpus));
    parts
}

/// Lends what is shared, as it is or started now.
fn with<T>(
    shared: &Shared,
    start: impl FnOnce() -> Outcome<Contestant>,
    run: impl FnOnce(&mut Contestant) -> Outcome<T>,
) -> Outcome<T> {
    let mut place = shared.borrow_mut();
    let contestant = match &mut *place {
        Some(contestant) => contestant,
        none => none.insert(start()?),
    };
    run(contestant)
}

/// Returns the participants.
pub fn about() -> Vec<String> {
    vec![
        format!("ours: {SERVERS} servers and their agents, by {}; keys have {COPIES} or {CODE}", Etcd::version()),
        "peer: one copy on one server of this build, without a cluster".into(),
        "The client is this process. CPU is that of servers, agents and client; etcd's is not counted.".into(),
        cluster::Memcached::version()
            .map_or("No SETs to three memcacheds: apt-get install memcached.".into(), |version| {
                format!("set/.../memcached: the client sends a value to three of {version} at once, over TCP")
            }),
        "memcached behind mcrouter is not compared: Debian has no package of mcrouter.".into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_prefixes_of_their_policies() {
        assert_eq!((Kind::Copies.key("s", 7), Kind::One.policy()), ("copies:s:7".into(), Policy::None));
        assert_eq!((CODE.to_string(), COPIES.to_string()), ("code:4+2".into(), "copies:3".into()));
    }

    #[test]
    fn rows_have_names_of_their_own() {
        let mut names: Vec<_> = parts(&[0]).into_iter().flat_map(|part| part.rows).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
