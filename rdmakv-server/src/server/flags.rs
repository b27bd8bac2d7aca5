//! The command line, by memcached's names: each flag is done, or refused with a reason.

use clap::Parser;

use crate::session::{Settings, Speaks};
use crate::store::Config;

/// A memcached whose memory RDMA clients will be able to read.
#[derive(Debug, Parser)]
#[command(name = "rdmakv-server", version = concat!(env!("CARGO_PKG_VERSION"), ", protocol of memcached 1.6.18"), disable_version_flag = true)]
pub(super) struct Flags {
    /// TCP port to listen on; 0 is off, -1 is a free one
    #[arg(short = 'p', long = "port", default_value_t = 11211, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..=65535))]
    port: i32,
    /// UDP port to listen on; 0 is off, -1 is a free one
    #[arg(short = 'U', long = "udp-port", default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..=65535))]
    udp_port: i32,
    /// Unix socket to listen on (no network then)
    #[arg(short = 's', long = "unix-socket", value_name = "FILE")]
    socket: Option<String>,
    /// Access mode of the Unix socket, octal
    #[arg(short = 'a', long = "unix-mask", default_value = "700", value_parser = octal)]
    socket_mode: u32,
    /// Enable the "shutdown" command
    #[arg(short = 'A', long = "enable-shutdown")]
    shutdown: bool,
    /// Addresses to listen on, with commas; each may have a port of its own (default: all)
    #[arg(short = 'l', long = "listen", value_name = "ADDR")]
    listen: Vec<String>,
    /// Run in the background
    #[arg(short = 'd', long = "daemon")]
    pub(super) daemon: bool,
    /// Lift the limit on core files
    #[arg(short = 'r', long = "enable-coredumps")]
    pub(super) coredumps: bool,
    /// Become this user (only if started as root)
    #[arg(short = 'u', long = "user")]
    pub(super) user: Option<String>,
    /// Memory for items, in megabytes
    #[arg(short = 'm', long = "memory-limit", default_value_t = 64, value_parser = clap::value_parser!(u64).range(2..=16 << 20))]
    memory: u64,
    /// Refuse new items when memory is full, evict none
    #[arg(short = 'M', long = "disable-evictions")]
    no_evictions: bool,
    /// Connections at most
    #[arg(short = 'c', long = "conn-limit", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    connections: u32,
    /// Keep all memory from being paged out
    #[arg(short = 'k', long = "lock-memory")]
    pub(super) lock_memory: bool,
    /// Say more; up to three times
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    /// Print the version
    #[arg(short = 'V', long = "version", action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Print the licence
    #[arg(short = 'i', long = "license")]
    pub(super) license: bool,
    /// Write the process's number to this file
    #[arg(short = 'P', long = "pidfile", value_name = "FILE")]
    pub(super) pidfile: Option<String>,
    /// Growth of chunk sizes
    #[arg(short = 'f', long = "slab-growth-factor", default_value_t = 1.25)]
    factor: f64,
    /// Room for key and value in the smallest chunks
    #[arg(short = 'n', long = "slab-min-size", default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..=8192))]
    least: u32,
    /// Try huge pages (done in any case)
    #[arg(short = 'L', long = "enable-largepages")]
    large_pages: bool,
    /// Refused: statistics by key prefix
    #[arg(short = 'D', value_name = "CHAR", hide = true)]
    delimiter: Option<char>,
    /// Worker threads
    #[arg(short = 't', long = "threads", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Requests of one connection in a row, before others have their turn
    #[arg(short = 'R', long = "max-reqs-per-event", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// Show no versions
    #[arg(short = 'C', long = "disable-cas")]
    no_cas: bool,
    /// Connections that wait to be accepted at most
    #[arg(short = 'b', long = "listen-backlog", default_value_t = 1024, value_parser = clap::value_parser!(i32).range(1..))]
    backlog: i32,
    /// ascii, binary or auto
    #[arg(short = 'B', long = "protocol", default_value = "auto", value_parser = protocol)]
    protocol: Speaks,
    /// Bytes of an item at most; k, m and g are understood
    #[arg(short = 'I', long = "max-item-size", default_value = "1m", value_parser = size)]
    item: usize,
    /// Refused: SASL
    #[arg(short = 'S', long = "enable-sasl", hide = true)]
    sasl: bool,
    /// Refuse flush_all
    #[arg(short = 'F', long = "disable-flush-all")]
    no_flush: bool,
    /// Refuse "stats cachedump" and "lru_crawler metadump"
    #[arg(short = 'X', long = "disable-dumping")]
    no_dump: bool,
    /// Refuse "watch" (always refused so far)
    #[arg(short = 'W', long = "disable-watch")]
    no_watch: bool,
    /// Users and passwords, a line each: user:password
    #[arg(short = 'Y', long = "auth-file", value_name = "FILE")]
    users: Option<String>,
    /// Refused: memory that outlives the server
    #[arg(short = 'e', long = "memory-file", hide = true)]
    memory_file: Option<String>,
    /// Refused: TLS
    #[arg(short = 'Z', long = "enable-ssl", hide = true)]
    tls: bool,
    /// Refused: NAPI
    #[arg(short = 'N', long = "napi_ids", hide = true)]
    napi: Option<String>,
    /// More options, with commas: maxconns_fast, idle_timeout=SECONDS, hashpower=N, no_lru_crawler, …
    #[arg(short = 'o', long = "extended", value_name = "OPTIONS")]
    extended: Vec<String>,
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).ok().filter(|&mode| mode <= 0o777).ok_or_else(|| "octal, up to 777".into())
}

fn protocol(text: &str) -> Result<Speaks, String> {
    match text {
        "auto" => Ok(Speaks::Auto),
        "ascii" => Ok(Speaks::Ascii),
        "binary" => Ok(Speaks::Binary),
        _ => Err("one of ascii, binary, auto".into()),
    }
}

fn size(text: &str) -> Result<usize, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, shift) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 10),
        Some(b'm') => (&lower[..lower.len() - 1], 20),
        Some(b'g') => (&lower[..lower.len() - 1], 30),
        _ => (&lower[..], 0),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|bytes| (1 << 10..=1 << 30).contains(bytes)).ok_or_else(|| "between 1k and 1024m".into())
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// A name or an address; none for all addresses.
    pub(super) host: Option<String>,
    pub(super) port: Option<u16>,
}

fn place(text: &str) -> Result<Place, String> {
    let bad = || format!("-l {text}: an address, or an address and a port: 127.0.0.1, 127.0.0.1:11211, [::1]:11211");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(bad)?) })
        }
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map(|port| port.parse().map_err(|_| bad())).transpose()?;
    if host.is_empty() {
        return Err(bad());
    }
    Ok(Place { host: (host != "*").then(|| host.to_owned()), port })
}

/// All that the command line asks for.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) store: Config,
    pub(super) places: Vec<Place>,
    pub(super) crawler: bool,
    pub(super) notes: Vec<String>,
}

impl Flags {
    /// What is to be done.
    ///
    /// # Errors
    ///
    /// What is wrong and what would be right.
    pub(super) fn plan(&self) -> Result<Plan, String> {
        for (asked, why) in [
            (self.sasl, "-S: SASL is not offered; for names and passwords use -Y with the text protocol"),
            (self.memory_file.is_some(), "-e: the memory does not outlive the server; start without it"),
            (self.tls, "-Z: TLS is not offered yet; put a TLS proxy before the server"),
            (self.delimiter.is_some(), "-D: statistics by prefix are not kept; start without it"),
            (self.napi.is_some(), "-N: connections are not chosen by NAPI; start without it"),
        ] {
            if asked {
                return Err(why.into());
            }
        }
        let memory = (self.memory << 20) as usize;
        if self.item > memory / 2 {
            return Err(format!("-I: items may take half of the memory (-m) at most, that is {}m", self.memory / 2));
        }
        if !(self.factor > 1.0 && self.factor < 10.0) {
            return Err("-f: more than 1 and less than 10, such as 1.25".into());
        }
        let places = self.listen.iter().flat_map(|list| list.split(',')).map(place).collect::<Result<Vec<_>, _>>()?;
        let users = self.users.as_deref().map(users).transpose()?;
        if users.is_some() && self.protocol == Speaks::Binary {
            return Err("-Y: names and passwords go with the text protocol; use -B ascii".into());
        }
        let mut plan = Plan {
            settings: Settings {
                maxbytes: memory as u64,
                maxconns: self.connections as usize,
                tcp_port: self.port,
                udp_port: self.udp_port,
                inter: (!self.listen.is_empty()).then(|| self.listen.join(",")),
                evictions: !self.no_evictions,
                socket: self.socket.clone(),
                socket_mode: self.socket_mode,
                shutdown: self.shutdown,
                factor: self.factor,
                chunk_size: self.least as usize,
                threads: usize::from(self.threads),
                reqs_per_event: self.requests as usize,
                cas: !self.no_cas,
                backlog: self.backlog,
                speaks: if users.is_some() { Speaks::Ascii } else { self.protocol },
                item_max: self.item,
                maxconns_fast: true,
                hashpower: 0,
                idle_timeout: 0,
                flush: !self.no_flush,
                dump: !self.no_dump,
                users,
            },
            store: Config {
                memory,
                // Address space for a later cache_memlimit.
                memory_max: memory.saturating_mul(4).min(30 << 30).max(memory),
                item_max: self.item,
                factor: self.factor,
                least: self.least as usize,
                evict: !self.no_evictions,
                huge: true,
                hashpower: 0,
                seed: rand::random(),
                incarnation: rand::random::<u32>().max(1),
            },
            places,
            crawler: true,
            notes: Vec::new(),
        };
        for option in self.extended.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
            extended(option, &mut plan)?;
        }
        Ok(plan)
    }
}

fn users(file: &str) -> Result<Vec<Vec<u8>>, String> {
    let text = std::fs::read(file).map_err(|error| format!("-Y {file}: {error}"))?;
    let users: Vec<Vec<u8>> = text
        .split(|&byte| byte == b'\n')
        .map(|line| line.trim_ascii().to_vec())
        .filter(|line| !line.is_empty())
        .collect();
    if users.is_empty() || users.iter().any(|user| !user.contains(&b':')) {
        return Err(format!("-Y {file}: a line for each user is needed: user:password"));
    }
    Ok(users)
}

fn extended(option: &str, plan: &mut Plan) -> Result<(), String> {
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    let number = || {
        value
            .and_then(|value| value.parse::<u64>().ok())
            .ok_or_else(|| format!("-o {name}: a number is needed: {name}=1"))
    };
    match name {
        "maxconns_fast" => plan.settings.maxconns_fast = true,
        "no_maxconns_fast" => plan.settings.maxconns_fast = false,
        "idle_timeout" => plan.settings.idle_timeout = number()?,
        "hashpower" => {
            let power = number()?;
            if !(12..=32).contains(&power) {
                return Err("-o hashpower: between 12 and 32".into());
            }
            // Ten slots to a bucket where memcached has one.
            plan.settings.hashpower = power as u32;
            plan.store.hashpower = power as u32 - 3;
        }
        "lru_crawler" => plan.crawler = true,
        "no_lru_crawler" => plan.crawler = false,
        "track_sizes" | "modern" | "slab_reassign" | "no_modern" => {}
        "hash_algorithm"
        | "lru_crawler_sleep"
        | "lru_crawler_tocrawl"
        | "read_buf_mem_limit"
        | "lru_maintainer"
        | "no_lru_maintainer"
        | "hot_lru_pct"
        | "warm_lru_pct"
        | "hot_max_factor"
        | "warm_max_factor"
        | "temporary_ttl"
        | "slab_chunk_max"
        | "slab_automove"
        | "slab_automove_ratio"
        | "slab_automove_window"
        | "slab_automove_freeratio"
        | "no_slab_reassign"
        | "watcher_logbuf_size"
        | "worker_logbuf_size"
        | "tail_repair_time" => {
            plan.notes.push(format!("-o {name}: has no effect here: there is no such part to tune"));
        }
        _ if name.starts_with("ext_") => return Err(format!("-o {name}: items live in memory only; start without it")),
        _ if name.starts_with("ssl_") => return Err(format!("-o {name}: TLS is not offered yet")),
        "sock_cookie_id" | "no_hashexpand" | "inline_ascii_resp" | "no_inline_ascii_resp" => {
            return Err(format!("-o {name}: is not offered; start without it"));
        }
        _ => return Err(format!("-o {name}: there is no such option (-h lists the flags)")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(arguments: &str) -> Result<Plan, String> {
        let flags = Flags::try_parse_from(std::iter::once("x").chain(arguments.split_whitespace()));
        flags.map_err(|error| error.to_string())?.plan()
    }

    #[test]
    fn memcacheds_flags_mean_what_they_mean_there() {
        let plan = plan("-p 0 -U 5 -m 128 -c 10 -t 2 -R 7 -C -M -F -I 4m -b 9 -B ascii -A -a 755 -l 127.0.0.1,[::1]:77 -o idle_timeout=3,no_maxconns_fast").unwrap();
        let settings = &plan.settings;
        assert_eq!((settings.tcp_port, settings.udp_port, settings.maxbytes), (0, 5, 128 << 20));
        assert_eq!((settings.item_max, settings.idle_timeout, settings.socket_mode), (4 << 20, 3, 0o755));
        assert!(
            !settings.cas && !settings.evictions && !settings.flush && !settings.maxconns_fast && settings.shutdown
        );
        assert_eq!(plan.places[1], Place { host: Some("::1".into()), port: Some(77) });
        assert!(super::tests::plan("-vvv -d -k -r -L -W -X -n 10 -f 1.1 -P /x -u nobody -s /tmp/x").is_ok());
    }

    #[test]
    fn what_is_refused_says_why() {
        for (arguments, words) in [
            ("-Z", "TLS"),
            ("-S", "SASL"),
            ("-D :", "by prefix"),
            ("-I 40m", "half of the memory"),
            ("-I 12", "between 1k and 1024m"),
            ("-f 1", "more than 1"),
            ("-l 1.2.3.4:x", "an address and a port"),
            ("-Y /does/not/exist", "/does/not/exist"),
            ("-o nonsense", "no such option"),
            ("-o ext_path=/x", "memory only"),
            ("-B foo", "ascii, binary, auto"),
            ("-t 0", "0 is not in"),
        ] {
            let error = plan(arguments).unwrap_err();
            assert!(error.contains(words), "{arguments}: {error}");
        }
    }
}
