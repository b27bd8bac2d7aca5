//! The agent of a server of a cluster, as a process.

use super::Failure;
use super::repairs::no_room;
use crate::{Agent, AgentEvent, Cluster, Options};
use std::io::{self, Read, Write};
use std::time::Duration;

/// The longest sleep without work. A later epoch ends it.
const REST: Duration = Duration::from_secs(1);

/// Works until the process is ended, or standard input is at its end.
pub(super) fn run(
    cluster: &Cluster,
    (name, rate): (&str, u64),
    options: Options,
    until_input_ends: bool,
) -> Result<(), Failure> {
    if until_input_ends {
        let wait = || {
            // Whatever comes is no matter, and an error is an end.
            while io::stdin().read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
            // The server is gone, and nothing here outlives it.
            std::process::exit(0);
        };
        std::thread::Builder::new().name("input".to_owned()).spawn(wait)?;
    }
    let mut agent = Agent::of_server(cluster, name, rate, options)?;
    loop {
        for event in agent.work(REST) {
            let line = match event {
                AgentEvent::Absent { epoch } => {
                    format!("waits for {name}: epoch {epoch} has no server of this name: see `rdmakv cluster status`")
                }
                AgentEvent::Drained { epoch } => format!("{name} has drained: epoch {epoch} is without it"),
                AgentEvent::Began { epoch } => format!("repairs the keys of {name} in epoch {epoch}"),
                AgentEvent::Unrepaired { epoch, short, refused, servers } => {
                    let mut why = Vec::new();
                    if short > 0 {
                        why.push(format!(
                            "{short} values have fewer fragments than their policy wants: start more servers"
                        ));
                    }
                    if refused > 0 {
                        why.push(no_room(refused, &servers.join(", ")));
                    }
                    format!("epoch {epoch} does not become whole for the keys of {name} yet: {}", why.join("; "))
                }
                AgentEvent::Repaired { epoch, keys, bytes, lost, time } => {
                    let (megabytes, time) = (bytes as f64 / 1e6, time.as_secs_f64());
                    let lost = if lost == 0 { String::new() } else { format!("; {lost} values are lost") };
                    format!(
                        "repaired {keys} keys of {name} in epoch {epoch} in {time:.1} s; {megabytes:.1} MB were sent{lost}"
                    )
                }
            };
            // Where standard error is closed, it works on.
            let _ = writeln!(io::stderr(), "rdmakv agent: {line}");
        }
    }
}
