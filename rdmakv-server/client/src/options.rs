//! Every bound of a client, with its default.

use super::ways::Patience;
use rdmakv_proto::placement::Continuum;
use std::time::Duration;

/// Every bound of a client.
///
/// Fields may be added in a minor release: name those that you set, and write `..Default::default()` for the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Name and password, for servers that ask for them (`-Y`); they go as they are. None, unless set.
    pub login: Option<(String, String)>,
    /// How long an operation may take, connecting included: 1 s. A longer operation takes its connection with it.
    pub timeout: Duration,
    /// How long connecting may take before operations give a way up: 1 s. One that answers later is used from then on.
    pub connect_timeout: Duration,
    /// The wait before a second attempt to connect, at first (20 ms) and at most (2 s).
    pub back_off: (Duration, Duration),
    /// Operations that may be open, their results not taken included: 1,024. Each holds its data and its value.
    pub window: usize,
    /// How several servers share the keys: by weight, as most clients do.
    pub continuum: Continuum,
    /// Keys of each server of which tags are kept: 65,536. Each takes some 100 bytes and the key.
    pub tags: usize,
    /// Whether servers are asked for tags, so that values are read one-sidedly: yes.
    pub one_sided: bool,
    /// Bytes that one-sided reads go to: 64 MiB of addresses, of which the system gives what is used. Values that the program keeps
    /// stay there.
    pub value_memory: usize,
    /// Bytes that servers read large values from, and as many that they write them into: 64 MiB of addresses, of which the system gives
    /// what is used.
    pub transfer_memory: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            login: None,
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            back_off: (Duration::from_millis(20), Duration::from_secs(2)),
            window: 1024,
            continuum: Continuum::default(),
            tags: 65_536,
            one_sided: true,
            value_memory: 64 << 20,
            transfer_memory: 64 << 20,
        }
    }
}

impl Options {
    /// Returns the first bytes on each connection.
    pub(super) fn login(&self) -> Option<Vec<u8>> {
        let (name, password) = self.login.as_ref()?;
        let length = name.len() + 1 + password.len();
        Some(format!("set login 0 0 {length}\r\n{name} {password}\r\n").into_bytes())
    }

    pub(super) fn patience(&self) -> Patience {
        let (least, most) = self.back_off;
        Patience { connect: self.connect_timeout, least, most }
    }
}
