//! The name of a cluster and where its configuration is.

use std::fmt;
use std::time::Duration;

/// A cluster: servers that etcd has the configuration of.
///
/// ```no_run
/// use rdmakv_client::{Client, Cluster, Options};
///
/// let mut client = Client::of_cluster(&Cluster::new("http://10.0.0.1:2379,http://10.0.0.2:2379"), Options::default())?;
/// assert!(client.set("user:1", "Ada", ())?.is_stored());
/// # Ok::<(), rdmakv_client::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cluster {
    /// The addresses of etcd: `http://[USER:PASSWORD@]HOST[:PORT]`, with commas between them.
    pub etcd: String,
    /// The cluster's name in etcd: `main`.
    pub name: String,
    /// How long an operation on a key with copies may take: 30 s, and no longer. Other servers take a lost one's place in about 3 s. The first
    /// read of etcd takes no longer, either, and at most 5 s.
    pub give_up_after: Duration,
}

impl Cluster {
    /// Returns the cluster `main` at these addresses of etcd.
    pub fn new(etcd: impl Into<String>) -> Self {
        Self { etcd: etcd.into(), name: "main".to_owned(), give_up_after: Duration::from_secs(30) }
    }

    /// Returns the nanoseconds that an operation may take.
    pub(super) fn patience(&self) -> u64 {
        u64::try_from(self.give_up_after.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The addresses may have a password.
        f.debug_struct("Cluster").field("name", &self.name).finish_non_exhaustive()
    }
}
