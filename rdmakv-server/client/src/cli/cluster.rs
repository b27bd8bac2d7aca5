//! Clusters in etcd: their configuration, shown and changed.

use super::Failure;
use super::flags::{ClusterCommand, ClusterFlags};
use super::repairs::{self, Repairs};
use crate::Options;
use rdmakv_cluster::config::{ChangeError, Config, Incarnation, Policy, Rule, Server, State};
use rdmakv_cluster::etcd::{Endpoint, Error, Etcd, Store};
use rdmakv_cluster::facts::{Fact, View};
use rdmakv_cluster::json::prefix_text;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// The time between two looks at what servers adopted.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn run(flags: &ClusterFlags, (etcd, name): (Option<&str>, &str), options: Options) -> Result<(), Failure> {
    let from_environment = std::env::var("RDMAKV_ETCD").ok().filter(|etcd| !etcd.trim().is_empty());
    let etcd = etcd.map(str::to_owned).or(from_environment);
    let etcd =
        etcd.ok_or_else(|| usage("find etcd: no address is given: use --etcd URL or the variable RDMAKV_ETCD"))?;
    let endpoints = Endpoint::list(&etcd).map_err(usage)?;
    let mut store = Store::new(Etcd::new(endpoints, options.timeout), name).map_err(usage)?;
    let (said, answer) = match &flags.command {
        ClusterCommand::Init { lease } => init(&mut store, name, *lease)?,
        ClusterCommand::Status { wait, up } => {
            let (said, answer, late) = status(&mut store, name, wait.map(|seconds| (seconds, *up)), options)?;
            print(flags, &said, &answer)?;
            return late.map_or(Ok(()), |why| Err(Failure::No(why)));
        }
        ClusterCommand::Policy { prefix, policy } => policy_of(&mut store, name, prefix, policy)?,
        ClusterCommand::Drain { id } => drain(&mut store, name, id)?,
        ClusterCommand::Forget { id, lose_values: _ } => forget(&mut store, name, id)?,
        ClusterCommand::Flush => flush(&mut store, name)?,
    };
    print(flags, &said, &answer)
}

fn print(flags: &ClusterFlags, said: &str, answer: &Value) -> Result<(), Failure> {
    let mut to = io::stdout();
    let printed = if flags.json { writeln!(to, "{answer:#}") } else { to.write_all(said.as_bytes()) };
    Ok(printed?)
}

fn usage(why: impl ToString) -> Failure {
    Failure::Usage(why.to_string())
}

/// Returns what is printed of a change, as text and as JSON.
fn changed(said: &str, name: &str, config: &Config) -> (String, Value) {
    let epoch = config.epoch().0;
    (format!("{said}; epoch {epoch}\n"), json!({ "cluster": name, "epoch": epoch }))
}

fn init(store: &mut Store, name: &str, lease: u32) -> Result<(String, Value), Failure> {
    let mut random = [0; 16];
    let got = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    if !got.is_ok_and(|got| got == random.len()) {
        return Err(Failure::Io("make cluster: the system has no random numbers".to_owned()));
    }
    let config = Config::with_lease(u128::from_le_bytes(random), lease).map_err(usage)?;
    if !store.create(&config)? {
        let why = format!("make cluster {name}: it exists already: see its status, or choose another --cluster");
        return Err(Failure::No(why));
    }
    let (said, mut answer) = changed(&format!("made cluster {name}, {:032x}", config.uuid()), name, &config);
    answer["uuid"] = json!(format!("{:032x}", config.uuid()));
    Ok((said, answer))
}

fn policy_of(store: &mut Store, name: &str, prefix: &str, policy: &str) -> Result<(String, Value), Failure> {
    let rule: Rule = policy.parse().map_err(usage)?;
    let policy = rule.policy;
    // The answer to the change may be lost, and the change is found done then.
    let mut lost = None;
    let config = store.update(|_, config| {
        let next = config.with_rule(prefix.as_bytes(), rule)?;
        let is_change = next.rules().ne(config.rules());
        if is_change {
            lost.get_or_insert(values_lost(config, prefix, policy));
        }
        Ok(is_change.then_some(next))
    })?;
    let keys = if prefix.is_empty() { "all other keys".to_owned() } else { prefix_text(prefix.as_bytes()) };
    let said = match lost {
        None => format!("policy of {keys} was {rule} already: nothing changed"),
        Some(lost) => format!("policy of {keys} is {rule}{lost}"),
    };
    let (mut said, answer) = changed(&said, name, &config);
    if let Some(lack) = lack(&config, policy) {
        let _ = writeln!(said, "warning: {lack}");
    }
    Ok((said, answer))
}

/// Returns what a change of a policy does to values: between *none* and others they go. A cluster without servers has none.
fn values_lost(before: &Config, prefix: &str, policy: Policy) -> &'static str {
    let is_kept = (before.policy(prefix.as_bytes()) == Policy::None) == (policy == Policy::None);
    if is_kept || before.servers().is_empty() {
        return "";
    }
    "; values of these keys that were stored before, if there were any, are gone"
}

/// Returns the servers of the next whole epoch.
fn servers(config: &Config) -> usize {
    config.servers().iter().filter(|server| server.state != State::Draining).count()
}

/// Returns how a policy lacks servers, and what follows. A cluster without servers is about to get them.
fn lack(config: &Config, policy: Policy) -> Option<String> {
    let (needed, servers) = (policy.group_size(), servers(config));
    (policy != Policy::None && (1..needed).contains(&servers)).then(|| {
        let now = match policy.shrunk_to(servers) {
            Some(now) => format!("new values are {now} until then"),
            None => "writes are refused until there are 2".to_owned(),
        };
        format!("{policy} needs {needed} servers, and the cluster has {servers}: start more: {now}")
    })
}

/// Returns the server with this number or name.
fn find<'a>(config: &'a Config, id: &str) -> Option<&'a Server> {
    config.servers().iter().find(|server| server.id.0.to_string() == id || server.name == id)
}

/// Gives up the server that others wait for. It has ended: its lease in etcd has, too.
fn forget(store: &mut Store, name: &str, id: &str) -> Result<(String, Value), Failure> {
    let mut gone: Option<Incarnation> = None;
    let config = store.update(|view, config| {
        // The answer to the change may be lost, and the change is found done then.
        if gone.is_some_and(|run| config.incarnation(run).is_none()) {
            return Ok(None);
        }
        let server = find(config, id).ok_or(ChangeError::Unknown)?;
        if view.facts().is_alive(server.id, server.incarnation) {
            return Err(ChangeError::Alive);
        }
        gone = Some(server.incarnation);
        config.forget(server.id).map(Some)
    });
    let config = config.map_err(|error| match error {
        Error::Change(why) => {
            let why = why.to_string();
            let why = why.strip_prefix("forget server: ").or(why.strip_prefix("change server: ")).unwrap_or(&why);
            Failure::No(format!("forget server {id}: {why}"))
        }
        error => error.into(),
    })?;
    Ok(changed(&format!("forgot server {id} and all values"), name, &config))
}

fn drain(store: &mut Store, name: &str, id: &str) -> Result<(String, Value), Failure> {
    let mut found = false;
    let config = store.update(|_, config| {
        let server = find(config, id);
        found = server.is_some();
        match server.map(|server| (server.id, server.state)) {
            Some((id, State::Up | State::Joining)) => config.draining(id).map(Some),
            Some((_, State::Draining)) | None => Ok(None),
        }
    });
    // All refusals have one exit code: that of a server that is not there.
    let config = config.map_err(|error| match error {
        Error::Change(why) => {
            Failure::No(format!("drain server {id}: {}", why.to_string().trim_start_matches("drain server: ")))
        }
        error => error.into(),
    })?;
    if !found {
        let why = format!("drain server {id}: cluster {name} has no such server: give a number or name of its status");
        return Err(Failure::No(why));
    }
    let (mut said, answer) = changed(&format!("server {id} drains"), name, &config);
    for lack in config.policies().iter().filter_map(|&(_, policy)| lack(&config, policy)) {
        let _ = writeln!(said, "warning: {lack}");
    }
    Ok((said, answer))
}

/// Begins an epoch that has no older value, and waits until no server answers by an earlier one.
fn flush(store: &mut Store, name: &str) -> Result<(String, Value), Failure> {
    let mut from = None;
    let config = store.update(|_, config| {
        // A lost answer must not flush twice.
        let from = *from.get_or_insert(config.epoch());
        if config.flushed() > from { Ok(None) } else { config.flush().map(Some) }
    })?;
    // A right that shows an earlier epoch was read before now, and its clock may be slow by an eighth.
    let lease = Duration::from_millis(u64::from(config.lease_ms()));
    let end = Instant::now() + lease + lease / 8;
    let epoch = config.flushed();
    let is_adopted = |view: &View| {
        let adopted = |server: &Server| view.facts().has_adopted(server.incarnation, epoch);
        view.config().is_some_and(|config| config.servers().iter().all(adopted))
    };
    while Instant::now() < end && !store.read().is_ok_and(|view| is_adopted(&view)) {
        std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
    }
    Ok(changed("flushed", name, &config))
}

/// Returns how many servers of this epoch are up.
///
/// Facts stay in etcd for a lease after a server ended, and longer if etcd was away. So a server counts if it answers, too.
fn servers_up(view: &View, config: &Config, answered: &Repairs) -> usize {
    let facts = view.facts();
    let is_up = |server: &&Server| {
        let (id, run) = (server.id, server.incarnation);
        let is_known = server.state == State::Up && facts.is_alive(id, run) && facts.has_adopted(run, config.epoch());
        is_known && answered.contains_key(&id)
    };
    config.servers().iter().filter(is_up).count()
}

/// Returns the last server that is up, if it is gone: only it has the keys, so no other leaves the state *joining*.
fn keeper<'a>(view: &View, config: &'a Config) -> Option<&'a Server> {
    let mut up = config.servers().iter().filter(|server| server.state != State::Joining);
    let last = up.next().filter(|last| !view.facts().is_alive(last.id, last.incarnation))?;
    let others_join = config.servers().iter().any(|server| server.state == State::Joining);
    (up.next().is_none() && others_join).then_some(last)
}

/// A look at a cluster: its facts in etcd, and the answers of its servers.
struct Seen {
    config: Config,
    view: View,
    repairs: Repairs,
}

impl Seen {
    /// Asks the servers of the view's epoch; None if it has no cluster.
    fn of(view: View, options: Options) -> Option<Self> {
        let config = view.config()?.clone();
        let repairs = repairs::ask(&view, &config, options);
        Some(Self { config, view, repairs })
    }

    fn servers_up(&self) -> usize {
        servers_up(&self.view, &self.config, &self.repairs)
    }

    /// Returns whether the epoch is whole and so many servers are up.
    fn is_ready(&self, up: usize) -> bool {
        self.config.is_whole() && self.servers_up() >= up
    }

    /// Says, after so many seconds, why it is not ready.
    fn lacks(&self, name: &str, (seconds, up): (u64, usize)) -> Option<String> {
        if self.is_ready(up) {
            return None;
        }
        let (epoch, whole) = (self.config.epoch().0, if self.config.is_whole() { "whole" } else { "not whole" });
        let servers = self.servers_up();
        let remedy = match keeper(&self.view, &self.config) {
            Some(Server { name, .. }) => format!(
                "{name} has keys that others wait for, and is gone: start it again under this name, or give it up by `rdmakv cluster forget {name}`"
            ),
            None => "see that they run with --etcd and agents, and answer here, or raise --wait".to_owned(),
        };
        Some(format!(
            "wait for cluster {name}: after {seconds} s epoch {epoch} is {whole} and {servers} of {up} servers are up: {remedy}"
        ))
    }
}

/// Returns the status as text and as JSON. It waits so many seconds for so many servers, and returns what was lacking at the end.
fn status(
    store: &mut Store,
    name: &str,
    wait: Option<(u64, usize)>,
    options: Options,
) -> Result<(String, Value, Option<String>), Failure> {
    let end = Instant::now() + Duration::from_secs(wait.map_or(0, |(seconds, _)| seconds));
    let seen = loop {
        // While it waits, etcd may not run yet, and the cluster may not be made.
        let seen = store.read().map(|view| Seen::of(view, options.clone()));
        let is_over = Instant::now() >= end;
        let is_ready = |seen: &Seen| wait.is_some_and(|(_, up)| seen.is_ready(up));
        if is_over || matches!(&seen, Ok(Some(seen)) if is_ready(seen)) {
            break seen?;
        }
        std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
    };
    let Some(seen) = seen else {
        return Err(Failure::No(format!(
            "read status of cluster {name}: no such cluster: make it by `rdmakv cluster init`"
        )));
    };
    let Seen { config, view, repairs } = &seen;
    let answer = json!({
        "cluster": name,
        "uuid": format!("{:032x}", config.uuid()),
        "epoch": config.epoch().0,
        "whole": config.is_whole(),
        "flushed": config.flushed().0,
        "lease_ms": config.lease_ms(),
        "servers": config.servers().iter().map(|server| server_json(view, config, server, repairs)).collect::<Vec<_>>(),
        "policies": config.rules().map(|(prefix, rule)| {
            let now = rule.policy.shrunk_to(servers(config)).map(|now| now.to_string());
            json!({ "prefix": prefix_text(prefix), "policy": rule.to_string(), "now": now })
        }).collect::<Vec<_>>(),
    });
    let late = wait.and_then(|wait| seen.lacks(name, wait));
    Ok((status_text(view, config, name, repairs), answer, late))
}

/// Returns the epochs that a server adopted and repaired.
fn epochs(view: &View, server: &Server) -> (Option<u32>, Option<u32>) {
    let (mut adopted, mut repaired) = (None, None);
    for fact in view.facts().iter() {
        match fact {
            Fact::Adopted(_, run, epoch) if *run == server.incarnation => adopted = Some(epoch.0),
            Fact::Repaired(_, run, epoch) if *run == server.incarnation => repaired = Some(epoch.0),
            _ => {}
        }
    }
    (adopted, repaired)
}

fn server_json(view: &View, config: &Config, server: &Server, repairs: &Repairs) -> Value {
    let (adopted, repaired) = epochs(view, server);
    let suspecters: Vec<u8> = view.facts().suspecters(config, server.id).iter().map(|id| id.0).collect();
    json!({
        "id": server.id.0,
        "name": server.name,
        "state": server.state.name(),
        "weight": server.weight,
        "incarnation": format!("{:016x}", server.incarnation.0),
        "addresses": server.addresses,
        "alive": view.facts().is_alive(server.id, server.incarnation),
        "adopted": adopted,
        "repaired": repaired,
        "suspected_by": suspecters,
        "repair": repairs.get(&server.id).map(repairs::Repair::json),
    })
}

fn status_text(view: &View, config: &Config, name: &str, repairs: &Repairs) -> String {
    let whole = if config.is_whole() { "whole" } else { "not whole" };
    let mut text = format!("cluster {name}  epoch {}  {whole}  lease {} ms", config.epoch().0, config.lease_ms());
    if config.flushed().0 > 0 {
        let _ = write!(text, "  flushed in epoch {}", config.flushed().0);
    }
    let _ = write!(text, "\nuuid {:032x}\n\n", config.uuid());
    if config.servers().is_empty() {
        text.push_str("no servers\n");
    } else {
        let mut rows = vec![
            ["id", "name", "state", "weight", "alive", "adopted", "repaired", "suspected by", "addresses"]
                .map(str::to_owned),
        ];
        let or_dash = |epoch: Option<u32>| epoch.map_or("–".to_owned(), |epoch| epoch.to_string());
        for server in config.servers() {
            let (adopted, repaired) = epochs(view, server);
            let suspecters = view.facts().suspecters(config, server.id);
            let by: Vec<String> = suspecters.iter().map(|id| id.0.to_string()).collect();
            let alive = view.facts().is_alive(server.id, server.incarnation);
            rows.push([
                server.id.0.to_string(),
                server.name.clone(),
                server.state.to_string(),
                server.weight.to_string(),
                if alive { "yes" } else { "no" }.to_owned(),
                or_dash(adopted),
                or_dash(repaired),
                if by.is_empty() { "–".to_owned() } else { by.join(",") },
                server.addresses.join(","),
            ]);
        }
        text.push_str(&table(&rows, |column| matches!(column, 0 | 3 | 5 | 6)));
    }
    let rows = repairs::rows(repairs, config);
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&table(&rows, |column| column > 0));
    }
    text.push('\n');
    let mut rows = vec![["prefix", "policy"].map(str::to_owned)];
    if config.policies().first().is_none_or(|(prefix, _)| !prefix.is_empty()) {
        rows.push(["(all other keys)".to_owned(), Policy::None.to_string()]);
    }
    for (prefix, rule) in config.rules() {
        let prefix = if prefix.is_empty() { "(all other keys)".to_owned() } else { prefix_text(prefix) };
        rows.push([prefix, rule.to_string()]);
    }
    text.push_str(&table(&rows, |_| false));
    for (prefix, policy) in config.policies() {
        if let Some(lack) = lack(config, *policy) {
            let prefix = if prefix.is_empty() { "(all other keys)".to_owned() } else { prefix_text(prefix) };
            let _ = writeln!(text, "warning: {prefix}: {lack}");
        }
    }
    text.push_str(&repairs::warnings(repairs, config));
    text
}

/// Returns rows with their columns below each other; those of numbers end alike.
fn table<const N: usize>(rows: &[[String; N]], is_number: impl Fn(usize) -> bool) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = width(column);
            let gap = if column == 0 { "" } else { "  " };
            let _ = match is_number(column) {
                true => write!(line, "{gap}{cell:>width$}"),
                false => write!(line, "{gap}{cell:<width$}"),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmakv_cluster::config::ServerId;
    use rdmakv_cluster::facts::Change;
    use rdmakv_cluster::json::encode;

    #[test]
    fn policies_that_lack_servers_are_told() {
        let join =
            |config: Config, run: u64| config.with_server(&format!("s{run}"), Vec::new(), 1, Incarnation(run)).unwrap();
        let with = |servers| (0..servers).fold(Config::new(7), join);
        let code = Policy::Code { data: 4, parity: 2 };
        let told = |servers, policy| lack(&with(servers), policy).unwrap_or_default();
        assert!(
            told(5, code)
                .ends_with("needs 6 servers, and the cluster has 5: start more: new values are code:3+2 until then")
        );
        assert!(told(3, code).ends_with("new values are copies:3 until then"));
        assert!(told(1, Policy::Copies(3)).ends_with("has 1: start more: writes are refused until there are 2"));
        for (servers, policy) in [(6, code), (0, code), (3, Policy::Copies(3)), (1, Policy::None)] {
            assert_eq!(told(servers, policy), "");
        }
        let config = with(2).with_policy(b"", Policy::Copies(3)).unwrap();
        let text = status_text(&View::default(), &config, "main", &Repairs::new());
        assert!(text.ends_with("\nwarning: (all other keys): copies:3 needs 3 servers, and the cluster has 2: start more: new values are copies:2 until then\n"), "{text}");
    }

    #[test]
    fn a_policy_loses_values_of_servers_only() {
        let empty = Config::new(7);
        let with = |config: Config| config.with_server("a", Vec::new(), 1, Incarnation(1)).unwrap();
        let plain = with(empty.clone());
        let resilient = with(empty.with_policy(b"user:", Policy::Copies(2)).unwrap());
        let says = |config, policy| values_lost(config, "user:", policy).ends_with("are gone");
        assert!(says(&plain, Policy::Copies(2)) && says(&resilient, Policy::None));
        assert!(!says(&plain, Policy::None) && !says(&resilient, Policy::Copies(3)));
        assert!(!says(&empty, Policy::Copies(2)));
    }

    #[test]
    fn status_shows_servers_facts_and_policies() {
        let join = |config: Config, (name, run): (&str, u64)| {
            config.with_server(name, vec![format!("tcp:{name}:11211")], 1, Incarnation(run)).unwrap()
        };
        let config = [("a", 1), ("long-name", 2)].into_iter().fold(Config::new(7), join);
        let config = config.with_policy(b"user:", Policy::Copies(2)).unwrap();
        let (one, two) = ((ServerId(0), Incarnation(1)), (ServerId(1), Incarnation(2)));
        let adopted = Fact::Adopted(one.0, one.1, config.epoch());
        let facts = [Fact::Alive(one.0, one.1), adopted, Fact::Suspect { of: two, by: one }];
        let keys: Vec<(String, String)> = facts.iter().map(|fact| (fact.path(), fact.value())).collect();
        let bytes = encode(&config);
        let facts = keys.iter().map(|(path, value)| Change { path, value: Some(value.as_bytes()), revision: 3 });
        let config_key = Change { path: "config", value: Some(&bytes), revision: 3 };
        let view = View::of(3, facts.chain([config_key])).unwrap();
        let expected = "\
cluster main  epoch 4  not whole  lease 2000 ms
uuid 00000000000000000000000000000007

id  name       state    weight  alive  adopted  repaired  suspected by  addresses
 0  a          up            1  yes          4         –  –             tcp:a:11211
 1  long-name  joining       1  no           –         –  0             tcp:long-name:11211

prefix            policy
(all other keys)  none
user:             copies:2
";
        assert_eq!(status_text(&view, &config, "main", &Repairs::new()), expected);
        let server = server_json(&view, &config, &config.servers()[1], &Repairs::new());
        assert_eq!((&server["suspected_by"], &server["adopted"]), (&json!([0]), &Value::Null));
    }
}
