//! The command line, by memcached's names: each flag is done, or refused with a reason.

use std::path::PathBuf;

use clap::Parser;

use super::cluster::ClusterFlags;
use super::flash::FlashPlan;
use super::plan::Plan;
use super::process;
use super::{extended, users, warm};
use crate::fabric::options;
use crate::http::Hosts;
use crate::kernel;
use crate::net::listen::{Encryption, Place};
use crate::net::tls::{Certificates, Options};
use crate::session::{ProtocolMode, Settings};
use crate::store::Config;

/// A memcached with memory that RDMA clients can read.
#[derive(Debug, Parser)]
#[command(name = "rdmakv-server", version = concat!(env!("CARGO_PKG_VERSION"), ", protocol of memcached 1.6.18"), disable_version_flag = true, args_override_self = true, after_help = EXAMPLES)]
pub(super) struct Flags {
    /// TCP port to listen on; 0 is off (with -U, -s or --fabric), -1 is a free one [default: 11211, or that of -U if there is one]
    #[arg(short = 'p', long = "port", allow_negative_numbers = true, value_parser = within::<i32, -1, 65535>)]
    port: Option<i32>,
    /// UDP port to listen on; 0 is off, -1 is a free one
    #[arg(short = 'U', long = "udp-port", default_value_t = 0, allow_negative_numbers = true, value_parser = within::<i32, -1, 65535>)]
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
    /// Addresses to listen on, with commas; each may have a port of its own, and before it "notls:" (not
    /// encrypted) or "mtls:" (clients show a certificate) where -Z is given (default: all)
    #[arg(short = 'l', long = "listen", value_name = "ADDR")]
    listen: Vec<String>,
    /// Run in the background: return once the server serves, or has printed why it cannot
    #[arg(short = 'd', long = "daemon")]
    pub(super) daemon: bool,
    /// Lift the limit on core files
    #[arg(short = 'r', long = "enable-coredumps")]
    pub(super) coredumps: bool,
    /// Become this user (only if started as root)
    #[arg(short = 'u', long = "user")]
    user: Option<String>,
    /// Memory for items, in MiB: -m 1024 is 1 GiB
    #[arg(short = 'm', long = "memory-limit", value_name = "MIB", default_value_t = 64, value_parser = memory)]
    memory: u64,
    /// Refuse new items when memory is full, evict none
    #[arg(short = 'M', long = "disable-evictions")]
    no_evictions: bool,
    /// Connections at most
    #[arg(short = 'c', long = "conn-limit", default_value_t = 1024, value_parser = within::<u32, 1, 1_048_576>)]
    connections: u32,
    /// Keep all memory from being paged out
    #[arg(short = 'k', long = "lock-memory")]
    pub(super) lock_memory: bool,
    /// Take the memory of -m from the system at the start, in the background. Requests do not wait for pages to be cleared
    #[arg(long = "preallocate")]
    pub(super) preallocate: bool,
    /// Print more on standard error: warnings; twice, also connections and their requests
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
    #[arg(short = 'f', long = "slab-growth-factor", default_value = "1.25", value_parser = factor)]
    factor: f64,
    /// Room for key and value in the smallest chunks
    #[arg(short = 'n', long = "slab-min-size", default_value_t = 48, value_parser = within::<u32, 1, 8192>)]
    least: u32,
    /// Try huge pages (done in any case)
    #[arg(short = 'L', long = "enable-largepages")]
    large_pages: bool,
    /// Count commands by the prefix of keys before this character ("stats detail")
    #[arg(short = 'D', value_name = "CHAR", value_parser = delimiter)]
    delimiter: Option<u8>,
    /// Worker threads
    #[arg(short = 't', long = "threads", default_value_t = 4, value_parser = within::<u16, 1, 256>)]
    threads: u16,
    /// Requests of one connection in a row, before others have their turn
    #[arg(short = 'R', long = "max-reqs-per-event", default_value_t = 20, value_parser = within::<u32, 1, 1_000_000_000>)]
    requests: u32,
    /// Show no versions
    #[arg(short = 'C', long = "disable-cas")]
    no_cas: bool,
    /// Connections that may wait to be accepted
    #[arg(short = 'b', long = "listen-backlog", default_value_t = 1024, value_parser = within::<i32, 1, 1_000_000>)]
    backlog: i32,
    /// ascii, binary or auto
    #[arg(short = 'B', long = "protocol", default_value = "auto", value_parser = protocol)]
    protocol: ProtocolMode,
    /// Bytes of an item at most; k, m and g are understood
    #[arg(short = 'I', long = "max-item-size", default_value = "1m", value_parser = size)]
    item: usize,
    /// Ask for the users of -Y by SASL (PLAIN) in the binary protocol too
    #[arg(short = 'S', long = "enable-sasl")]
    sasl: bool,
    /// Refuse flush_all
    #[arg(short = 'F', long = "disable-flush-all")]
    no_flush: bool,
    /// Refuse "stats cachedump" and "lru_crawler metadump"
    #[arg(short = 'X', long = "disable-dumping")]
    no_dump: bool,
    /// Refuse "watch"
    #[arg(short = 'W', long = "disable-watch")]
    no_watch: bool,
    /// Users and passwords, a line each: user:password
    #[arg(short = 'Y', long = "auth-file", value_name = "FILE")]
    users: Option<String>,
    /// A file that keeps the items from an orderly stop to the next start; FILE.meta is beside it. It has room for -m, and with
    /// --flash it keeps those on flash, too. After any other end the server starts empty
    #[arg(short = 'e', long = "memory-file", value_name = "FILE")]
    memory_file: Option<String>,
    /// Encrypt TCP connections; the certificate is -o ssl_chain_cert=FILE,ssl_key=FILE
    #[arg(short = 'Z', long = "enable-ssl")]
    tls: bool,
    /// Refused: NAPI
    #[arg(short = 'N', long = "napi_ids", hide = true)]
    napi: Option<String>,
    /// More options, with commas: [no_]maxconns_fast, idle_timeout=SECONDS, hashpower=N, [no_]lru_crawler. With -Z:
    /// ssl_chain_cert=FILE, ssl_key=FILE, ssl_keyformat=PEM|DER, ssl_ca_cert=FILE, ssl_verify_mode=0|1|2, ssl_ciphers=A:B,
    /// ssl_min_version=2|3, ssl_session_cache, ssl_wbuf_size=KB. For flash: ext_path=PATH:SIZE,
    /// ext_item_size=BYTES, ext_page_size=MB (4 to 64, by the size), ext_wbuf_size=MB (1), ext_max_frag=SHARE (0.6; less saves writes and
    /// loses items), ext_drop_unread
    #[arg(short = 'o', long = "extended", value_name = "OPTIONS")]
    extended: Vec<String>,
    /// Address for watching the server: an overview at /, Prometheus metrics at /metrics, /health
    #[arg(long = "http", value_name = "ADDR", value_parser = http)]
    http: Option<(String, u16)>,
    /// Names by which browsers and Prometheus ask for --http, with commas. Addresses, the machine's own name and names without a dot,
    /// or that end with .localhost, .local or .internal, need not be given; requests for other names are refused
    #[arg(long = "http-host", value_name = "NAME", value_delimiter = ',', value_parser = host)]
    http_hosts: Vec<String>,
    /// A file for items that memory has no room for, and its size: /flash/rdmakv:64g. With commas, or repeated, for several devices.
    /// Keys stay in memory. Without -e the file is empty after each start
    #[arg(long = "flash", value_name = "PATH:SIZE", value_delimiter = ',')]
    flash: Vec<String>,
    #[command(flatten)]
    fabrics: options::FabricFlags,
    #[command(flatten)]
    kernel: kernel::options::KernelFlags,
    #[command(flatten)]
    cluster: ClusterFlags,
}

const EXAMPLES: &str = "\
Examples:
  rdmakv-server                                        64 MiB on TCP port 11211, all addresses
  rdmakv-server -m 1024 -l 127.0.0.1 --http 9150       a gigabyte, for this machine;
                                                       the overview is at http://127.0.0.1:9150/
  rdmakv-server --fabric iwarp:0.0.0.0:7471 --fabric shm:@rdmakv-11211
                                                       RDMA clients on other machines and here
  rdmakv-server -m 4096 --flash /flash/rdmakv:200g      values beyond the memory go to flash
  rdmakv-server -s /run/kv.sock -a 770                 a Unix socket, and no port
  rdmakv-server -Z -o ssl_chain_cert=cert.pem,ssl_key=key.pem
                                                       encrypted

The flags are memcached's; what is not done is refused with a reason.

Exit status: 0 ended as it was asked to, 1 something failed, 2 wrong usage.";

/// The TCP port if there is no other.
const PORT: i32 = 11211;

/// The overview's port if its address has none: the one at which Prometheus looks for a memcached's metrics by custom.
const HTTP_PORT: u16 = 9150;

fn http(text: &str) -> Result<(String, u16), String> {
    let bad = || "an address with or without a port: 127.0.0.1:9150, [::1]:9150, localhost".to_owned();
    if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse() {
        return Ok(("127.0.0.1".into(), port));
    }
    match place(text).map_err(|_| bad())? {
        Place { encryption: Encryption::Usual, host, port } => {
            Ok((host.unwrap_or_else(|| "0.0.0.0".into()), port.unwrap_or(HTTP_PORT)))
        }
        _ => Err(bad()),
    }
}

fn host(text: &str) -> Result<String, String> {
    let is_label =
        |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if text.strip_suffix('.').unwrap_or(text).split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    Err("a host name without a port is needed, such as cache1.example.com".into())
}

/// Returns a number within these bounds, whatever is wrong with another.
fn within<T: TryFrom<i64>, const LOW: i64, const HIGH: i64>(text: &str) -> Result<T, String> {
    let number =
        text.parse().ok().filter(|number| (LOW..=HIGH).contains(number)).and_then(|number| number.try_into().ok());
    number.ok_or_else(|| format!("a whole number is needed, {LOW} to {HIGH}"))
}

fn memory(text: &str) -> Result<u64, String> {
    within::<u64, 2, 16_777_216>(text).map_err(|why| format!("memory for items in MiB: {why}, as in -m 1024 for 1 GiB"))
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|&factor| factor > 1.0 && factor < 10.0);
    factor.ok_or_else(|| "a number is needed, more than 1 and less than 10, such as 1.25".into())
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        &[byte @ b'!'..=b'~'] => Ok(byte),
        _ => Err("one character that keys may have, such as a colon".into()),
    }
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).ok().filter(|&mode| mode <= 0o777).ok_or_else(|| "octal, up to 777".into())
}

fn protocol(text: &str) -> Result<ProtocolMode, String> {
    match text {
        "auto" => Ok(ProtocolMode::Auto),
        "ascii" => Ok(ProtocolMode::Ascii),
        "binary" => Ok(ProtocolMode::Binary),
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

fn place(text: &str) -> Result<Place, String> {
    let bad = || format!("-l {text}: an address, or an address and a port: 127.0.0.1, 127.0.0.1:11211, [::1]:11211");
    let (encryption, text) = match (text.strip_prefix("notls:"), text.strip_prefix("mtls:")) {
        (Some(rest), _) => (Encryption::Plain, rest),
        (_, Some(rest)) => (Encryption::Mutual, rest),
        _ => (Encryption::Usual, text),
    };
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
    Ok(Place { host: (host != "*").then(|| host.to_owned()), port, encryption })
}

impl Flags {
    /// Returns the TCP port. As in memcached, a UDP port alone is one for both.
    fn port(&self) -> i32 {
        self.port.unwrap_or(if self.udp_port == 0 { PORT } else { self.udp_port })
    }

    /// Returns the plan.
    ///
    /// # Errors
    ///
    /// The fault and the right form.
    pub(super) fn plan(&self) -> Result<Plan, String> {
        for (asked, why) in [
            (self.sasl && self.users.is_none(), "-S: SASL asks for the users of a file; name it with -Y FILE"),
            (
                self.sasl && self.protocol == ProtocolMode::Ascii,
                "-S: SASL is part of the binary protocol; use -B binary or -B auto",
            ),
            (self.memory_file.as_deref() == Some(""), "-e: a file is needed: /var/lib/rdmakv/items"),
            (
                self.tls && self.socket.is_some(),
                "-Z: Unix sockets are not encrypted, and with -s there are no others; leave one of them out",
            ),
            (self.tls && self.port() == 0, "-Z: only TCP is encrypted; it needs a port (-p)"),
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
        let places = self.listen.iter().flat_map(|list| list.split(',')).map(place).collect::<Result<Vec<_>, _>>()?;
        let users = self.users.as_deref().map(users::read).transpose()?;
        let user = self.user.as_deref().map(process::find_user).transpose()?;
        if users.is_some() && !self.sasl && self.protocol == ProtocolMode::Binary {
            return Err("-Y: names and passwords go with the text protocol; use -B ascii, or add -S".into());
        }
        let fabrics = self.fabrics.plan(options::Server {
            memory: memory as u64,
            item: self.item,
            // The memory that the kernel reads is not shared with clients.
            has_port: self.port() != 0 && self.socket.is_none() && !self.kernel.is_wanted(),
        })?;
        let kernel = self.kernel.plan(kernel::options::Server {
            memory: memory as u64,
            item: self.item,
            has_datagrams: self.udp_port != 0 && self.socket.is_none(),
            has_users: users.is_some(),
            encrypts: self.tls,
            binary_only: self.protocol == ProtocolMode::Binary,
            keeps_memory: self.memory_file.is_some(),
            shares_memory: fabrics.shares_memory(),
        })?;
        let memory_max = match kernel {
            // It is memory from the start, and not address space.
            Some(_) => memory,
            None => process::address_space(memory, self.lock_memory),
        };
        let mut plan = Plan {
            settings: Settings {
                maxbytes: memory as u64,
                maxconns: self.connections as usize,
                tcp_port: self.port(),
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
                protocol: if users.is_some() && !self.sasl { ProtocolMode::Ascii } else { self.protocol },
                sasl: self.sasl,
                item_max: self.item,
                maxconns_fast: true,
                hashpower: 0,
                idle_timeout: 0,
                flush: !self.no_flush,
                dump: !self.no_dump,
                watch: !self.no_watch,
                moves: true,
                prefixes: self.delimiter,
                watcher_buffer: 256 << 10,
                users,
                memory_file: self.memory_file.clone(),
                tls: Vec::new(),
                fabrics: fabrics.list(),
                seats: fabrics.seats(),
            },
            store: Config {
                memory,
                memory_max,
                extra: Config::default().extra,
                item_max: self.item,
                factor: self.factor,
                least: self.least as usize,
                evict: !self.no_evictions,
                huge: true,
                hashpower: 0,
                seed: rand::random(),
                incarnation: rand::random::<u32>().max(1),
                lease: fabrics.lease,
            },
            fabrics,
            kernel,
            flash: FlashPlan::default(),
            cluster: self.cluster.plan()?,
            memory_file: self.memory_file.as_ref().map(PathBuf::from),
            places,
            crawler: true,
            automove: 1,
            notes: Vec::new(),
            user,
            users_file: self.users.clone(),
            http: self.http.clone(),
            hosts: Hosts::new(self.http.iter().map(|(host, _)| host).chain(&self.http_hosts).cloned()),
            tls: self.tls.then(Options::default),
            certificates: None,
        };
        for file in &self.flash {
            plan.flash.take(file).map_err(|error| format!("--flash {error}"))?;
        }
        for option in self.extended.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
            extended::take(option, &mut plan)?;
        }
        plan.flash.check(&plan.store, plan.settings.threads)?;
        if let Some(file) = &plan.memory_file {
            warm::check(file, plan.flash.files.iter().map(|(file, _)| &**file))?;
        }
        if let Some(tls) = &plan.tls {
            let mutual = plan.places.iter().any(|place| place.encryption == Encryption::Mutual);
            tls.check(mutual)?;
            if plan.settings.udp_port != 0 {
                plan.notes.push("-U: datagrams are not encrypted, and no certificate is asked for there".into());
            }
            plan.notes.extend(tls.doubt(mutual));
            plan.settings.tls = tls.list();
            plan.certificates = Some(Certificates::read(tls.clone(), mutual)?);
        } else if let Some(place) = plan.places.iter().find(|place| place.encryption != Encryption::Usual) {
            let host = place.host.as_deref().unwrap_or("*");
            let name = if place.encryption == Encryption::Plain { "notls:" } else { "mtls:" };
            return Err(format!("-l {name}{host}: nothing is encrypted without -Z; leave \"{name}\" out"));
        }
        Ok(plan)
    }
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
        assert_eq!(plan.places[1], Place { host: Some("::1".into()), port: Some(77), encryption: Encryption::Usual });
        assert!(super::tests::plan("-vvv -d -k -r -L -W -X -n 10 -f 1.1 -P /x -u nobody -s /tmp/x").is_ok());
    }

    #[test]
    fn the_last_of_repeated_flags_wins() {
        let both =
            plan("-p 1 -m 64 -l 127.0.0.1 -p 2 -m 128 -C -C -l [::1] -o idle_timeout=3 -o idle_timeout=4").unwrap();
        assert_eq!((both.settings.tcp_port, both.settings.maxbytes, both.settings.idle_timeout), (2, 128 << 20, 4));
        assert_eq!(both.places.len(), 2, "addresses add up");
    }

    #[test]
    fn a_udp_port_alone_is_one_for_both() {
        for (flags, tcp, udp) in
            [("", 11211, 0), ("-U 5", 5, 5), ("-U -1", -1, -1), ("-U 5 -p 0", 0, 5), ("-U 0", 11211, 0)]
        {
            let settings = plan(flags).unwrap().settings;
            assert_eq!((settings.tcp_port, settings.udp_port), (tcp, udp), "{flags}");
        }
    }

    #[test]
    fn memory_can_grow_as_far_as_there_is_address_space() {
        let plan = plan("-m 64").unwrap();
        assert!(plan.store.memory_max >= 1 << 30, "{}", plan.store.memory_max);
    }

    #[test]
    fn flash_takes_what_it_may_write_again() {
        let flash = |options: &str| plan(&format!("--flash /x:64m {options}")).unwrap().flash;
        assert_eq!((flash("").max_live, flash("").drop_unread), (None, false));
        // In binary this is a little less than 0.29.
        let tuned = flash("-o ext_max_frag=0.29,ext_drop_unread");
        assert_eq!((tuned.max_live, tuned.drop_unread), (Some(29), true));
    }

    #[test]
    fn no_modern_has_the_defaults_of_before() {
        let before = plan("-o no_modern").unwrap();
        assert!(!before.settings.maxconns_fast && !before.crawler && before.automove == 0);
        let after = plan("-o no_modern,maxconns_fast,lru_crawler,slab_automove=2").unwrap();
        assert!(after.settings.maxconns_fast && after.crawler && after.automove == 2);
    }

    #[test]
    fn the_overview_has_an_address_of_its_own() {
        for (text, host, port) in [
            ("127.0.0.1:1", "127.0.0.1", 1),
            ("localhost", "localhost", 9150),
            ("[::1]:80", "::1", 80),
            (":81", "127.0.0.1", 81),
            ("82", "127.0.0.1", 82),
            ("*", "0.0.0.0", 9150),
        ] {
            assert_eq!(plan(&format!("--http {text}")).unwrap().http, Some((host.to_owned(), port)), "{text}");
        }
    }

    #[test]
    fn what_is_refused_says_why() {
        for (arguments, words) in [
            ("-Z", "ssl_chain_cert=FILE"),
            ("-Z -o ssl_chain_cert=/does/not/exist", "/does/not/exist"),
            ("-Z -s /tmp/x", "leave one of them out"),
            ("-Z -p 0", "needs a port"),
            ("-o ssl_key=x", "without -Z"),
            ("-l notls:127.0.0.1", "without -Z"),
            ("-l mtls:127.0.0.1", "without -Z"),
            ("-Z -l mtls:127.0.0.1 -o ssl_chain_cert=/x", "ssl_ca_cert"),
            ("-u nobody-of-that-name", "no such user"),
            ("--http 1.2.3.4:x", "127.0.0.1:9150"),
            ("--http notls:x", "127.0.0.1:9150"),
            ("--http-host a.example:9150", "without a port"),
            ("--http-host a.example,", "cache1.example.com"),
            ("-a 888", "octal"),
            ("-U 65536", "-1 to 65535"),
            ("-c 0", "1 to 1048576"),
            ("-b x", "a whole number is needed"),
            ("-N 1", "NAPI"),
            ("-o idle_timeout", "idle_timeout=1"),
            ("-o hashpower=99", "between 12 and 32"),
            ("-Y /x -B binary", "-Y /x"),
            ("-S", "name it with -Y FILE"),
            ("-S -Y /x -B ascii", "-B binary"),
            ("-D é", "one character"),
            ("-o hot_lru_pct=20", "S3-FIFO"),
            ("-o temporary_ttl=61", "S3-FIFO"),
            ("-I 40m", "half of the memory"),
            ("-I 12", "between 1k and 1024m"),
            ("-m 1", "in MiB: a whole number is needed, 2 to 16777216, as in -m 1024 for 1 GiB"),
            ("-m 64m", "in MiB: a whole number"),
            ("-f 1", "more than 1"),
            ("-f x", "such as 1.25"),
            ("-l 1.2.3.4:x", "an address and a port"),
            ("-Y /does/not/exist", "/does/not/exist"),
            ("-o nonsense", "no such option"),
            ("-o ext_path=/x", "/flash/rdmakv:64g"),
            ("-o ext_item_size=512", "ext_path=PATH:SIZE"),
            ("-o ext_drop_unread", "ext_path=PATH:SIZE"),
            ("-o ext_max_frag=60", "a share from 0 to 1"),
            ("--flash /x", "a file and its size"),
            ("--flash :1g", "a file and its size"),
            ("--flash /x:10", "give PATH:32m or more"),
            ("--flash /x:1.5g", "\"1.5g\" is no size"),
            ("--flash /x:g", "\"g\" is no size"),
            ("--flash /x:64MiB", "\"mib\" is no unit"),
            ("--flash /x:18446744073709551615", "too large for a file"),
            ("--flash /x:9000000t", "too large for a file"),
            ("--flash /x:8000000t,/y:8000000t,/z:8000000t", "too large: each shard"),
            ("-o ext_path=/x:64m,ext_page_size=17592186044417", "1 to 1024"),
            ("--flash /x:1g,/x:1g", "named twice"),
            ("--flash /x/y:1g -e /x/y", "-e has this file: name another one"),
            ("--flash /x/y.meta:1g -e /x/./y", "-e has this file"),
            ("--flash /x/y.meta.new:1g -e /x/y", "-e has this file"),
            (&format!("-e /x/{}", "y".repeat(247)), "246 at most"),
            ("--flash /x:8m", "8 segments of 4 MiB"),
            ("--flash /x:32m -I 8m", "give PATH:256m or more"),
            ("--flash /x:1g -M", "-M forbids"),
            ("--flash /x:1g -m 4 -I 1m", "-m 8 at least"),
            ("-B foo", "ascii, binary, auto"),
            ("-t 0", "1 to 256"),
        ] {
            let error = plan(arguments).unwrap_err();
            assert!(error.contains(words), "{arguments}: {error}");
        }
    }
}
