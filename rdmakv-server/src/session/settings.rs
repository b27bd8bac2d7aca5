//! How the server was started, as sessions obey it and `stats settings` shows it.

/// Which protocols a listener speaks (`-B`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProtocolMode {
    /// Whichever the first byte says.
    #[default]
    Auto,
    /// Text only.
    Ascii,
    /// Binary only.
    Binary,
}

/// Descriptors for others than clients.
pub const RESERVED: u64 = 64;

/// The settings that `stats settings` shows, and that the sessions obey.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the names are those of memcached's settings")]
pub struct Settings {
    pub maxbytes: u64,
    pub maxconns: usize,
    pub tcp_port: i32,
    pub udp_port: i32,
    pub inter: Option<String>,
    pub evictions: bool,
    pub socket: Option<String>,
    pub socket_mode: u32,
    pub shutdown: bool,
    pub factor: f64,
    pub chunk_size: usize,
    pub threads: usize,
    pub reqs_per_event: usize,
    pub cas: bool,
    pub backlog: i32,
    pub protocol: ProtocolMode,
    pub item_max: usize,
    pub maxconns_fast: bool,
    pub hashpower: u32,
    pub idle_timeout: u64,
    pub flush: bool,
    pub dump: bool,
    pub watch: bool,
    /// Whether `stats` has the moves between queues, as memcached has them with `lru_maintainer`.
    pub moves: bool,
    /// The delimiter of a key's prefix (`-D`), if prefixes are counted from the start.
    pub prefixes: Option<u8>,
    /// Bytes that wait for a watcher at most.
    pub watcher_buffer: usize,
    pub users: Option<Vec<Vec<u8>>>,
    /// The file in which items outlive the server.
    pub memory_file: Option<String>,
    /// Whether they are asked for by SASL too.
    pub sasl: bool,
    /// The lines of `stats settings` on TLS, by memcached's names; empty without it.
    pub tls: Vec<(&'static str, String)>,
    /// And of fabrics; empty without any.
    pub fabrics: Vec<(&'static str, String)>,
    /// How many besides the workers keep counts: connections over fabrics.
    pub seats: usize,
}
