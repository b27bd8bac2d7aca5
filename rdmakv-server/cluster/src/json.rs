//! Configurations as JSON: what etcd keeps of a cluster, and people may read.
//!
//! ```json
//! {"version":1,"uuid":"000102030405060708090a0b0c0d0e0f","epoch":3,"lease_ms":2000,
//!  "servers":[{"id":0,"name":"a","addresses":["tcp:10.0.0.1:11211"],"weight":1,"incarnation":"0000000000000007","state":"up"}],
//!  "policies":[{"prefix":"user:","policy":"copies:3"}],"whole":2,"flushed":0,
//!  "runs":[{"id":0,"name":"a","weight":1,"incarnation":"0000000000000007"}],
//!  "past":[{"epoch":2,"up":[0]}]}
//! ```
//!
//! `past` names the servers of earlier epochs by their places in `runs`, because most epochs differ by one server. In a prefix `%` and
//! all bytes but visible ASCII are `%` and two hexadecimal digits. Numbers of 64 bits and more are text: many readers of JSON round them.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::{Config, Epoch, Incarnation, MAX_PAST, Member, Members, Parts, Rule, Server, State};
use crate::ids::{MAX_SERVERS, ServerId};
use crate::text::{hexadecimal, percent_decoded};

/// The version of the form that this code writes and reads.
const VERSION: u32 = 1;

/// The most bytes of a configuration. The largest that changes can make has fewer.
pub const MAX_BYTES: usize = 1 << 20;

/// The most runs that earlier epochs name. An epoch adds at most one to those of the epoch before.
const MAX_RUNS: usize = MAX_SERVERS + MAX_PAST;

/// Bytes that are no configuration.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DecodeError {
    /// More bytes than any configuration has.
    #[error("read configuration: {0} bytes, more than 1 MiB: restore the key in etcd")]
    TooLong(usize),
    /// Written by a later release.
    #[error("read configuration: it is of version {0}, and this release reads version 1: use a newer release")]
    Version(u32),
    /// Not of the form above.
    #[error("read configuration: {0}: restore the key in etcd")]
    Form(String),
    /// A configuration that no changes make.
    #[error("read configuration: a rule is broken ({0}): restore the key in etcd")]
    Rule(&'static str),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    version: u32,
    uuid: String,
    epoch: u32,
    lease_ms: u32,
    servers: Vec<ServerForm>,
    policies: Vec<PolicyForm>,
    whole: Option<u32>,
    flushed: u32,
    runs: Vec<Run>,
    past: Vec<Past>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerForm {
    id: u8,
    name: String,
    addresses: Vec<String>,
    weight: u16,
    incarnation: String,
    state: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyForm {
    prefix: String,
    policy: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    id: u8,
    name: String,
    weight: u16,
    incarnation: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Past {
    epoch: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    up: Vec<usize>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    joining: Vec<usize>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    draining: Vec<usize>,
}

/// Returns a configuration as JSON.
pub fn encode(config: &Config) -> Vec<u8> {
    let parts = config.parts();
    let mut runs = Runs::default();
    let past = parts.past.iter().map(|members| runs.past(members)).collect();
    let form = Form {
        version: VERSION,
        uuid: format!("{:032x}", parts.uuid),
        epoch: parts.epoch.0,
        lease_ms: parts.lease_ms,
        servers: parts.servers.iter().map(ServerForm::of).collect(),
        policies: config.rules().map(PolicyForm::of).collect(),
        whole: parts.whole.map(|epoch| epoch.0),
        flushed: parts.flushed.0,
        runs: runs.list,
        past,
    };
    serde_json::to_vec(&form).expect("the form has no keys but text, and nothing in it fails")
}

/// Returns the configuration that is in the bytes.
///
/// # Errors
///
/// It is of another version or form, or breaks a rule that changes keep.
pub fn decode(bytes: &[u8]) -> Result<Config, DecodeError> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    if bytes.len() > MAX_BYTES {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let malformed = |error: serde_json::Error| DecodeError::Form(error.to_string());
    let Version { version } = serde_json::from_slice(bytes).map_err(malformed)?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let form: Form = serde_json::from_slice(bytes).map_err(malformed)?;
    Config::from_parts(form.parts()?).map_err(DecodeError::Rule)
}

impl Form {
    fn parts(self) -> Result<Parts, DecodeError> {
        if self.runs.len() > MAX_RUNS {
            return Err(DecodeError::Rule("earlier epochs have at most 320 runs"));
        }
        let rules: Vec<(Vec<u8>, Rule)> = self.policies.iter().map(PolicyForm::rule).collect::<Result<_, _>>()?;
        let evicting = rules.iter().filter(|(_, rule)| rule.evicts_clean).map(|(prefix, _)| prefix.clone());
        Ok(Parts {
            evicting: evicting.collect(),
            uuid: number(&self.uuid, 32)?,
            epoch: Epoch(self.epoch),
            lease_ms: self.lease_ms,
            servers: self.servers.into_iter().map(ServerForm::server).collect::<Result<_, _>>()?,
            policies: rules.into_iter().map(|(prefix, rule)| (prefix, rule.policy)).collect(),
            past: self.past.iter().map(|past| past.members(&self.runs)).collect::<Result<_, _>>()?,
            whole: self.whole.map(Epoch),
            flushed: Epoch(self.flushed),
        })
    }
}

impl ServerForm {
    fn of(server: &Server) -> Self {
        Self {
            id: server.id.0,
            name: server.name.clone(),
            addresses: server.addresses.clone(),
            weight: server.weight,
            incarnation: format!("{:016x}", server.incarnation.0),
            state: server.state.name().to_owned(),
        }
    }

    fn server(self) -> Result<Server, DecodeError> {
        let (id, incarnation) = (ServerId(self.id), incarnation(&self.incarnation)?);
        let state = [State::Joining, State::Up, State::Draining].into_iter().find(|state| state.name() == self.state);
        let state = state.ok_or(DecodeError::Rule("a state is joining, up or draining"))?;
        Ok(Server { id, name: self.name, addresses: self.addresses, weight: self.weight, incarnation, state })
    }
}

impl PolicyForm {
    fn of((prefix, rule): (&[u8], Rule)) -> Self {
        Self { prefix: prefix_text(prefix), policy: rule.to_string() }
    }

    fn rule(&self) -> Result<(Vec<u8>, Rule), DecodeError> {
        let prefix =
            prefix_bytes(&self.prefix).ok_or(DecodeError::Rule("a prefix is visible ASCII, or % and two digits"))?;
        let rule = self.policy.parse().map_err(|_| DecodeError::Rule("a policy is none, copies:N or code:K+M"))?;
        Ok((prefix, rule))
    }
}

/// The runs of earlier epochs, each once.
#[derive(Default)]
struct Runs<'a> {
    list: Vec<Run>,
    places: HashMap<(ServerId, &'a str, u16, Incarnation), usize>,
}

impl<'a> Runs<'a> {
    fn past(&mut self, members: &'a Members) -> Past {
        let mut past = Past { epoch: members.epoch.0, up: Vec::new(), joining: Vec::new(), draining: Vec::new() };
        for member in &members.servers {
            let place = self.place(member);
            match member.state {
                State::Up => past.up.push(place),
                State::Joining => past.joining.push(place),
                State::Draining => past.draining.push(place),
            }
        }
        past
    }

    fn place(&mut self, member: &'a Member) -> usize {
        let run = (member.id, member.name.as_str(), member.weight, member.incarnation);
        *self.places.entry(run).or_insert_with(|| {
            let (name, incarnation) = (member.name.clone(), format!("{:016x}", member.incarnation.0));
            self.list.push(Run { id: member.id.0, name, weight: member.weight, incarnation });
            self.list.len() - 1
        })
    }
}

impl Past {
    fn members(&self, runs: &[Run]) -> Result<Members, DecodeError> {
        let parts = [(&self.up, State::Up), (&self.joining, State::Joining), (&self.draining, State::Draining)];
        let mut servers = Vec::new();
        for (place, state) in parts.into_iter().flat_map(|(places, state)| places.iter().map(move |at| (*at, state))) {
            let run = runs.get(place).ok_or(DecodeError::Rule("an earlier epoch has servers that are in runs"))?;
            let incarnation = incarnation(&run.incarnation)?;
            let (id, name, weight) = (ServerId(run.id), run.name.clone(), run.weight);
            servers.push(Member { id, name, weight, incarnation, state });
            if servers.len() > MAX_SERVERS {
                return Err(DecodeError::Rule("an epoch has at most 64 servers"));
            }
        }
        servers.sort_by_key(|server| server.id);
        Ok(Members { epoch: Epoch(self.epoch), servers })
    }
}

fn incarnation(text: &str) -> Result<Incarnation, DecodeError> {
    Ok(Incarnation(number(text, 16)? as u64))
}

fn number(text: &str, digits: usize) -> Result<u128, DecodeError> {
    hexadecimal(text, digits).ok_or(DecodeError::Rule("a uuid has 32 and an incarnation 16 hexadecimal digits"))
}

/// Returns a prefix as text, for people and JSON: `%` and all bytes but visible ASCII as `%` and two digits.
pub fn prefix_text(prefix: &[u8]) -> String {
    let mut text = String::with_capacity(prefix.len());
    for &byte in prefix {
        match byte {
            b'%' | ..=b' ' | 0x7f.. => write!(text, "%{byte:02x}").expect("a String takes all that is written"),
            _ => text.push(char::from(byte)),
        }
    }
    text
}

/// Returns the prefix that [`prefix_text`] writes so, or None if it writes none so.
pub fn prefix_bytes(text: &str) -> Option<Vec<u8>> {
    let bytes = percent_decoded(text)?;
    (prefix_text(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ChangeError, Policy};
    use proptest::prelude::*;

    /// A configuration after changes that the numbers choose.
    fn changed(changes: &[(u8, u8)]) -> Config {
        let mut config = Config::with_lease(0x0123_4567_89ab_cdef, 3000).unwrap();
        for (at, &(kind, of)) in changes.iter().enumerate() {
            let id = ServerId(of % 8);
            let next = match kind % 8 {
                0..3 => config.with_server(
                    &format!("s{}", of % 8),
                    vec!["tcp:h:1".into()],
                    1 + u16::from(of),
                    Incarnation(at as u64),
                ),
                3 => config.without_server(id),
                4 => config.draining(id),
                5 => {
                    config.with_policy(&[of, b'%', 0, 0xff][..usize::from(of % 5)], Policy::Code { data: 4, parity: 2 })
                }
                6 if of % 2 == 0 => {
                    let rule = Rule { policy: Policy::Code { data: 4, parity: 2 }, evicts_clean: of % 4 == 0 };
                    config.with_rule(if of > 99 { b"c/" } else { b"c/1" }, rule)
                }
                6 => config.flush(),
                _ => config.whole(),
            };
            config = next.unwrap_or(config);
        }
        config
    }

    proptest! {
        #[test]
        fn decodes_what_it_encodes(changes in prop::collection::vec(any::<(u8, u8)>(), 0..400)) {
            let config = changed(&changes);
            let bytes = encode(&config);
            prop_assert_eq!(decode(&bytes), Ok(config), "{}", String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn a_prefix_is_the_same_again(prefix in prop::collection::vec(any::<u8>(), 0..20)) {
            prop_assert_eq!(prefix_bytes(&prefix_text(&prefix)), Some(prefix));
        }
    }

    #[test]
    fn is_written_as_the_page_shows() {
        let config = changed(&[(0, 1), (7, 0), (5, 2)]);
        let expected = concat!(
            r#"{"version":1,"uuid":"00000000000000000123456789abcdef","epoch":4,"lease_ms":3000,"#,
            r#""servers":[{"id":0,"name":"s1","addresses":["tcp:h:1"],"weight":2,"incarnation":"0000000000000000","state":"up"}],"#,
            r#""policies":[{"prefix":"%02%25","policy":"code:4+2"}],"whole":3,"flushed":0,"#,
            r#""runs":[{"id":0,"name":"s1","weight":2,"incarnation":"0000000000000000"}],"past":[{"epoch":3,"up":[0]}]}"#
        );
        assert_eq!(String::from_utf8(encode(&config)).unwrap(), expected);
    }

    #[test]
    fn only_chunks_of_files_are_evicted_when_clean() {
        let rule: Rule = "copies:2,evict=clean".parse().unwrap();
        assert_eq!(
            (rule.policy, rule.evicts_clean, rule.to_string().as_str()),
            (Policy::Copies(2), true, "copies:2,evict=clean")
        );
        for text in [
            "none,evict=clean",
            "copies:2,evict=dirty",
            "copies:2,",
            ",evict=clean",
            "copies:2,evict=clean,evict=clean",
        ] {
            assert_eq!(text.parse::<Rule>(), Err(ChangeError::Policy), "{text}");
        }
        let config = Config::new(7).with_rule(b"c/", rule).unwrap().with_policy(b"c/f", Policy::Copies(3)).unwrap();
        assert!(config.evicts_clean(b"c/1/1/0") && !config.evicts_clean(b"c/f/1/0") && !config.evicts_clean(b"d/1"));
        assert_eq!(decode(&encode(&config)), Ok(config.clone()));
        let kept = config.with_policy(b"c/", Policy::Copies(2)).unwrap();
        assert!(!kept.evicts_clean(b"c/1/1/0"));
        for prefix in [&b""[..], b"c", b"i/"] {
            assert_eq!(config.with_rule(prefix, rule), Err(ChangeError::Eviction));
        }
        let text = String::from_utf8(encode(&config)).unwrap();
        assert!(decode(text.replace(r#""prefix":"c/""#, r#""prefix":"b/""#).as_bytes()).is_err());
    }

    #[test]
    fn refuses_what_no_change_makes() {
        let text = String::from_utf8(encode(&changed(&[(0, 1), (0, 2), (7, 0), (5, 2), (5, 4)]))).unwrap();
        assert!(decode(text.as_bytes()).is_ok());
        let server = r#""id":0,"name":"s1","addresses":["tcp:h:1"]"#;
        for (from, to) in [
            (r#""version":1"#, r#""version":2"#),
            (r#""version":1"#, r#""version":1,"later":0"#),
            (r#""epoch":6"#, r#""epoch":0"#),
            (r#""epoch":6"#, r#""epoch":7"#),
            (r#""epoch":6"#, r#""epoch":16777216"#),
            (r#""lease_ms":3000"#, r#""lease_ms":1"#),
            (r#""uuid":"0"#, r#""uuid":""#),
            (r#""uuid":"0"#, r#""uuid":"+"#),
            (server, r#""id":64,"name":"s1","addresses":[]"#),
            (server, r#""id":1,"name":"s1","addresses":[]"#),
            (server, r#""id":0,"name":"s2","addresses":[]"#),
            (server, r#""id":0,"name":"a b","addresses":[]"#),
            (server, r#""id":0,"name":"","addresses":[]"#),
            (server, r#""id":0,"name":"1","addresses":["tcp:h:1"]"#),
            (server, r#""id":0,"name":"s1","addresses":[""]"#),
            (server, r#""id":0,"name":"s1","addresses":["tcp:\u001b[2J"]"#),
            (server, r#""id":0,"name":"s1","addresses":["a","a","a","a","a","a","a","a","a"]"#),
            (r#""state":"up""#, r#""state":"down""#),
            (r#""weight":2"#, r#""weight":0"#),
            (r#""weight":2"#, r#""weight":65536"#),
            ("code:4+2", "code:1+2"),
            ("code:4+2", "code:63+2"),
            ("code:4+2", "code:04+2"),
            ("%02%25", "%2"),
            ("%02%25", "%0A"),
            ("%02%25", "%61"),
            (r#""whole":4"#, r#""whole":7"#),
            (r#""flushed":0"#, r#""flushed":7"#),
            (r#""up":[0,1]"#, r#""up":[0,2]"#),
            (r#""up":[0,1]"#, r#""up":[0,0]"#),
            (r#"{"epoch":5,"#, r#"{"epoch":6,"#),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            assert!(decode(changed.as_bytes()).is_err(), "{changed}");
        }
        assert_eq!(decode(&vec![b' '; MAX_BYTES + 1]), Err(DecodeError::TooLong(MAX_BYTES + 1)));
        assert_eq!(decode(text.replacen(":1,", ":2,", 1).as_bytes()), Err(DecodeError::Version(2)));
    }

    /// The largest configuration that changes make fits into what is read.
    #[test]
    fn the_largest_configuration_fits() {
        let mut config = Config::new(u128::MAX);
        let (mut run, name) = (0, |at: u64| format!("{at:\"<128}"));
        let mut join = |config: &Config, at| {
            run += 1;
            config.with_server(&name(at), vec!["\"".repeat(256); 8], u16::MAX, Incarnation(run)).unwrap()
        };
        config = (0..64).fold(config, |config, at| join(&config, at));
        for at in 0..=255_u8 {
            let prefix = [vec![at], vec![0xff; 249]].concat();
            config = config.with_policy(&prefix, Policy::Code { data: 40, parity: 20 }).unwrap();
        }
        config = (0..256).fold(config, |config, at| join(&config, at % 64));
        let bytes = encode(&config);
        assert!(bytes.len() < MAX_BYTES, "{}", bytes.len());
        assert_eq!(config.past().len(), MAX_PAST);
        assert_eq!(decode(&bytes), Ok(config));
    }
}
