//! The agent of a server of a cluster.

use super::duties::{AgentEvent, Duties};
use super::{Client, Cluster, Options, Result};
use std::time::Duration;

/// The agent of one server of a cluster. It repairs the server's keys in each epoch that needs it, and ends what clients left behind.
///
/// Each server has one, which `rdmakv-server` starts as a process of its own (`rdmakv agent`). Two for one server do no harm.
///
/// ```no_run
/// use rdmakv_client::{Agent, Cluster, Options};
/// use std::time::Duration;
///
/// let cluster = Cluster::new("http://10.0.0.1:2379");
/// let mut agent = Agent::of_server(&cluster, "tcp:10.0.0.1:11211", 400_000_000, Options::default())?;
/// for event in agent.work(Duration::from_secs(60)) {
///     println!("{event:?}");
/// }
/// # Ok::<(), rdmakv_client::Error>(())
/// ```
#[derive(Debug)]
pub struct Agent {
    client: Client,
    duties: Duties,
}

impl Agent {
    /// Returns the agent of the server of this name, which is the first address that it advertises. Repair sends at most `rate` bytes a
    /// second.
    ///
    /// # Errors
    /// As [`Client::of_cluster`]. A server that is not in the cluster is waited for.
    pub fn of_server(cluster: &Cluster, name: &str, rate: u64, options: Options) -> Result<Self> {
        let client = Client::of_cluster(cluster, options)?;
        Ok(Self { client, duties: Duties::new(name, rate) })
    }

    /// Works for so long, and returns what happened.
    pub fn work(&mut self, time: Duration) -> Vec<AgentEvent> {
        self.client.serve(&mut self.duties, time, |_| false);
        self.duties.take_events()
    }
}
