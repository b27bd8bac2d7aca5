//! The command line's options of fabrics: addresses, limits on registrations, durations of tags.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use frrwp::fabric::datagram::UdpAddress;
use frrwp::fabric::iwarp;
use frrwp::fabric::reliability::ServerLimits;
use frrwp::fabric::shm::ShmAddress;
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
use frrwp::fabric::verbs::{VerbsAddress, VerbsUdAddress};
use mrrc::policy::PolicyKind;

use super::datagrams;
use super::far::{FarFlags, FarPlan};
use crate::store::LONGEST;
use rdmakv_proto::eager;
use rdmakv_proto::item::{HEADER, KEY_MAX};

/// Fabrics at most: each has a place for counts of its own.
pub(crate) const FABRICS: usize = 8;
/// The shortest lease of a tag: clients have to get at something within it.
const SHORTEST: Duration = Duration::from_millis(10);

/// The flags.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Clients over RDMA")]
pub(crate) struct FabricFlags {
    /// Listen on a fabric: shm:PATH or shm:@NAME for processes of this user, iwarp:HOST:PORT, verbs:HOST:PORT, udp:HOST:PORT
    /// or verbs-ud:HOST:PORT for datagrams; may be repeated. "none" turns them off (default: shm:@rdmakv-PORT beside the TCP port)
    #[arg(long = "fabric", value_name = "ADDR")]
    fabric: Vec<String>,
    /// "slab": clients over verbs: may read all registered memory, not only items that they were told of; needed for devices
    /// with memory windows that do not keep clients to these
    #[arg(long = "expose", value_name = "WHAT", value_parser = ["slab"])]
    expose: Option<String>,
    /// Memory that may be registered with fabrics at a time, in MiB, all of them together (default: as much as -m, a quarter of it where that pins: --pin, verbs:)
    #[arg(long = "registered-memory", value_name = "MIB", value_parser = megabytes)]
    registered: Option<u64>,
    /// Eviction policy when that is full, by the names of mrrc's policies
    #[arg(long = "registration-policy", value_name = "NAME", default_value = PolicyKind::default().name(), value_parser = policy)]
    policy: PolicyKind,
    /// Pin what is registered with shm: and iwarp: too, which do not need it: it is never swapped out then
    #[arg(long = "pin")]
    pin: bool,
    /// How long a client may read an item by itself before it asks again: 500ms, 1s; up to 60s
    #[arg(long = "tag-lease", value_name = "TIME", default_value = "1s", value_parser = time)]
    lease: Duration,
    /// Values of at most so many bytes travel in messages; k is understood, up to 64k (default: 64k, over verbs: 8k)
    #[arg(long = "eager", value_name = "BYTES", value_parser = bytes)]
    eager: Option<usize>,
    /// How long a client on another machine may be out of reach, or stand still in the middle of something, before its
    /// connection ends: 500ms, 10s; up to 60s
    #[arg(long = "fabric-timeout", value_name = "TIME", default_value = "10s", value_parser = time)]
    timeout: Duration,
    /// Connections over fabrics at most
    #[arg(long = "fabric-connections", value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=16384))]
    fabric_connections: u16,
    /// Clients over datagrams at most, at each udp: or verbs-ud: address; each takes about 130 bytes
    #[arg(long = "datagram-clients", value_name = "N", default_value_t = ServerLimits::default().clients as u32, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    datagram_clients: u32,
    /// Threads at each udp: or verbs-ud: address; a client stays with its thread
    #[arg(long = "datagram-threads", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    datagram_threads: u16,
    /// Connections over iwarp: and verbs: at most, for the busiest clients of datagrams; the others have none. These are clients that
    /// name datagrams first (-s udp:HOST:PORT,iwarp:HOST:PORT or -s verbs-ud:HOST:PORT,verbs:HOST:PORT) (default: connections are for those that come first)
    #[arg(long = "connections", value_name = "N", value_parser = clap::value_parser!(u16).range(0..=16384))]
    slots: Option<u16>,
    #[command(flatten)]
    far: FarFlags,
}

fn policy(text: &str) -> Result<PolicyKind, String> {
    let names = || PolicyKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    PolicyKind::from_str(text).map_err(|_| format!("one of {}", names()))
}

fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let number = number.parse::<u32>().ok();
    let time = match (number, unit) {
        (Some(number), "ms") => Some(Duration::from_millis(number.into())),
        (Some(number), "s" | "") => Some(Duration::from_secs(number.into())),
        _ => None,
    };
    let within = time.filter(|time| (SHORTEST..=LONGEST).contains(time));
    within.ok_or_else(|| "a time is needed, 10ms to 60s: 500ms, 1s".into())
}

fn megabytes(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a whole number of megabytes is needed, such as 64".to_owned())
}

fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1024),
        None => (text, 1),
    };
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|&bytes| bytes <= eager::MOST).ok_or_else(|| "a number of bytes is needed, 0 to 64k".into())
}

/// An address to listen on.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// With shared memory.
    Shm(ShmAddress),
    /// The same, under a default name: a failure is no error.
    ShmOfPort,
    /// iWARP in user space.
    Iwarp(iwarp::IwarpAddress),
    /// RDMA devices.
    #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
    Verbs(VerbsAddress),
    /// Datagrams: nothing is registered there.
    Udp(UdpAddress),
    /// The same by RDMA devices, which have registered what they send from and receive into, and no items.
    #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
    VerbsUd(VerbsUdAddress),
}

impl Place {
    /// Returns whether what is registered there is pinned in any case: there are RDMA devices.
    pub(super) fn pins(&self) -> bool {
        match self {
            Self::Shm(_) | Self::ShmOfPort | Self::Iwarp(_) | Self::Udp(_) => false,
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            Self::Verbs(_) => true,
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            Self::VerbsUd(_) => false,
        }
    }
}

/// The plan for the fabrics.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The addresses; no fabric if empty.
    pub(crate) places: Vec<Place>,
    /// Bytes that may be registered.
    pub(crate) registered: u64,
    /// Bytes for items.
    pub(crate) memory: u64,
    /// The eviction policy when they are full.
    pub(crate) policy: PolicyKind,
    /// Whether fabrics pin that do not need it.
    pub(crate) pin: bool,
    /// Whether clients of RDMA devices may read whatever is registered.
    #[cfg_attr(
        not(any(feature = "verbs", feature = "verbs-linked")),
        expect(dead_code, reason = "there are no devices")
    )]
    pub(crate) exposes: bool,
    /// How long a tag lasts.
    pub(crate) lease: Duration,
    /// Bytes of a value that travels in a message at most, if that was said.
    eager: Option<usize>,
    /// Bytes of a value at most.
    longest: usize,
    /// How long a peer on another machine may be out of reach.
    pub(crate) timeout: Duration,
    /// Connections at most.
    pub(crate) connections: usize,
    /// Connections for the busiest clients of datagrams, if they are for these.
    pub(crate) slots: Option<usize>,
    /// Clients over datagrams at most, at each address.
    pub(crate) datagram_clients: usize,
    /// Threads at each address for datagrams.
    pub(crate) datagram_threads: usize,
    /// Far memory, if it is offered.
    pub(super) far: Option<FarPlan>,
}

impl Plan {
    /// Bytes of a value that travels in a message at most, on the fabric of this name.
    pub(crate) fn eager(&self, fabric: &str) -> usize {
        self.eager_of(fabric, eager::limit(fabric))
    }

    /// Over datagrams there is no other way for a value, so nothing is to be said of it.
    fn eager_of(&self, fabric: &str, limit: usize) -> usize {
        self.eager.filter(|_| !eager::is_datagrams(fabric)).unwrap_or(limit).min(self.longest)
    }

    /// Longer values may go by transfers, if clients find these faster.
    pub(crate) fn transfers_from(&self, fabric: &str) -> usize {
        self.eager_of(fabric, eager::transfers_from(fabric))
    }

    /// Returns a number, or each fabric's.
    fn eagers(&self) -> String {
        let mut each: Vec<_> = self.places.iter().map(Place::fabric).map(|name| (name, self.eager(name))).collect();
        each.sort_unstable();
        each.dedup();
        match each[..] {
            [(_, first), ..] if each.iter().all(|&(_, eager)| eager == first) => first.to_string(),
            _ => each.iter().map(|(name, eager)| format!("{name}:{eager}")).collect::<Vec<_>>().join(" "),
        }
    }

    /// Returns whether clients or devices read the items' memory by themselves.
    pub(crate) fn shares_memory(&self) -> bool {
        self.places.iter().any(|place| !matches!(place, Place::Iwarp(_)) && !place.has_datagrams())
    }

    /// Returns how many threads serve datagrams.
    fn threads(&self) -> usize {
        self.places.iter().filter(|place| place.has_datagrams()).count() * self.datagram_threads
    }

    /// Returns how many places for counts are needed.
    pub(crate) fn seats(&self) -> usize {
        if self.places.is_empty() { 0 } else { FABRICS + self.connections + self.threads() }
    }

    /// Returns the lines of `stats settings`.
    pub(crate) fn list(&self) -> Vec<(&'static str, String)> {
        if self.places.is_empty() {
            return Vec::new();
        }
        let mut lines = vec![
            ("registered_memory", self.registered.to_string()),
            ("registration_policy", self.policy.to_string()),
            ("registration_pins", if self.pin { "yes" } else { "no" }.to_owned()),
            ("tag_lease_ms", self.lease.as_millis().to_string()),
            ("eager", self.eagers()),
            ("fabric_timeout_ms", self.timeout.as_millis().to_string()),
            ("fabric_connections", self.connections.to_string()),
        ];
        if let Some(far) = &self.far {
            lines.push(("far_memory", far.bytes().to_string()));
            lines.push(("far_region", far.region_bytes.to_string()));
            lines.push(("far_longest", far.longest.as_secs().to_string()));
        }
        if self.threads() > 0 {
            lines.push(("datagram_clients", self.datagram_clients.to_string()));
            lines.push(("datagram_threads", self.datagram_threads.to_string()));
        }
        lines.extend(self.slots.map(|slots| ("connections", slots.to_string())));
        lines
    }
}

impl Place {
    /// Its fabric's name in addresses.
    fn fabric(&self) -> &'static str {
        match self {
            Self::Shm(_) | Self::ShmOfPort => "shm",
            Self::Iwarp(_) => "iwarp",
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            Self::Verbs(_) => "verbs",
            Self::Udp(_) => datagrams::UDP,
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            Self::VerbsUd(_) => datagrams::VERBS_UD,
        }
    }

    /// Returns whether clients there take a connection over a network.
    fn has_connections(&self) -> bool {
        !matches!(self, Self::Shm(_) | Self::ShmOfPort) && !self.has_datagrams()
    }

    /// Returns whether clients there have far memory.
    fn has_far(&self) -> bool {
        matches!(self, Self::Shm(_) | Self::ShmOfPort | Self::Iwarp(_))
    }

    /// Returns whether clients come by datagrams, and not by connections.
    fn has_datagrams(&self) -> bool {
        match self {
            Self::Udp(_) => true,
            #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
            Self::VerbsUd(_) => true,
            _ => false,
        }
    }
}

/// The rest of the command line, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    /// Bytes for items.
    pub(crate) memory: u64,
    /// Bytes of an item at most.
    pub(crate) item: usize,
    /// Whether there is a TCP port beside which clients look for the fabric.
    pub(crate) has_port: bool,
}

fn place(text: &str) -> Result<Place, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("--fabric {text}: {error}");
    if text.contains(',') {
        // Where clients name servers, commas are between addresses.
        return Err(wrong(&"no client could name it, for the comma; for several addresses repeat --fabric"));
    }
    match text.split_once(':').map_or(text, |(fabric, _)| fabric) {
        "shm" => ShmAddress::from_str(text).map(Place::Shm).map_err(|error| wrong(&error)),
        "iwarp" => iwarp::IwarpAddress::from_str(text).map(Place::Iwarp).map_err(|error| wrong(&error)),
        #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
        "verbs" => VerbsAddress::from_str(text).map(Place::Verbs).map_err(|error| wrong(&error)),
        #[cfg(not(any(feature = "verbs", feature = "verbs-linked")))]
        "verbs" | "verbs-ud" => {
            Err(wrong(&"this server was built without RDMA devices; build it with --features verbs"))
        }
        #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
        "verbs-ud" => VerbsUdAddress::from_str(text).map(Place::VerbsUd).map_err(|error| wrong(&error)),
        "udp" => UdpAddress::from_str(text).map(Place::Udp).map_err(|error| wrong(&error)),
        "none" => Err(wrong(&"there are others besides; leave one of them out")),
        _ => Err(wrong(
            &"one of shm:PATH, shm:@NAME, iwarp:HOST:PORT, verbs:HOST:PORT, udp:HOST:PORT, verbs-ud:HOST:PORT, none",
        )),
    }
}

impl FabricFlags {
    /// Returns the plan.
    ///
    /// # Errors
    ///
    /// The fault and the right form.
    pub(crate) fn plan(&self, server: Server) -> Result<Plan, String> {
        let places = match &self.fabric[..] {
            [] if server.has_port => vec![Place::ShmOfPort],
            [] => Vec::new(),
            [none] if none == "none" => Vec::new(),
            all => all.iter().map(|text| place(text)).collect::<Result<_, _>>()?,
        };
        if places.len() > FABRICS {
            return Err(format!("--fabric: {} of them; {} may be had", places.len(), FABRICS));
        }
        if self.expose.is_some() && !places.iter().any(Place::pins) {
            return Err(
                "--expose: it is for verbs:, and no --fabric is one; over shm: and iwarp: clients can read what \
                        they were told of, and nothing else: leave it out"
                    .to_owned(),
            );
        }
        if let Some(slots) = self.slots {
            if !places.iter().any(Place::has_datagrams) || !places.iter().any(Place::has_connections) {
                return Err(
                    "--connections: it shares connections among clients of datagrams: add --fabric udp:HOST:PORT and \
                            --fabric iwarp:HOST:PORT, or leave it out"
                        .to_owned(),
                );
            }
            if slots > self.fabric_connections {
                return Err(format!(
                    "--connections: {slots} are more than --fabric-connections, {}: raise that",
                    self.fabric_connections
                ));
            }
        }
        // Half of it is for what clients were told of, half for what is under way; of each fabric.
        let largest = (server.item + 8192) as u64;
        let registering = places.iter().filter(|place| !place.has_datagrams()).count();
        let fabrics = registering.max(1) as u64;
        let far = self.far.plan(places.iter().any(Place::has_far))?;
        let of_items = (4 * largest * fabrics).next_multiple_of(1 << 20);
        let far_bytes = far.as_ref().map_or(0, FarPlan::bytes).saturating_mul(fabrics);
        let least = of_items.saturating_add(far_bytes);
        let registered = match self.registered {
            Some(megabytes) => megabytes.saturating_mul(1 << 20),
            // Registrations with shm: and iwarp: alone take no more of the machine than it had anyway.
            None if self.pin || places.iter().any(Place::pins) => {
                (server.memory / 4).max(of_items).saturating_add(far_bytes)
            }
            None => server.memory.max(of_items).saturating_add(far_bytes),
        };
        if registered < least && registering > 0 {
            if far_bytes > 0 {
                return Err(format!(
                    "--registered-memory: {} MiB are too few for far memory (--far, {} MiB on all fabrics) and for items of up to {} \
                     bytes (-I), {} MiB: {} MiB are lacking",
                    registered >> 20,
                    far_bytes >> 20,
                    server.item,
                    of_items >> 20,
                    (least - registered).div_ceil(1 << 20)
                ));
            }
            return Err(format!(
                "--registered-memory: with items of up to {} bytes (-I) on all fabrics it takes {} MiB at least",
                server.item,
                least >> 20
            ));
        }
        Ok(Plan {
            places,
            registered,
            memory: server.memory,
            policy: self.policy,
            pin: self.pin,
            exposes: self.expose.is_some(),
            lease: self.lease,
            eager: self.eager,
            longest: server.item.saturating_sub(HEADER + KEY_MAX),
            timeout: self.timeout,
            connections: usize::from(self.fabric_connections),
            slots: self.slots.map(usize::from),
            datagram_clients: self.datagram_clients as usize,
            datagram_threads: usize::from(self.datagram_threads),
            far,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: FabricFlags,
    }

    const SERVER: Server = Server { memory: 64 << 20, item: 1 << 20, has_port: true };

    fn plan(arguments: &str, server: Server) -> Result<Plan, String> {
        let line = Line::try_parse_from(std::iter::once("x").chain(arguments.split_whitespace()));
        line.map_err(|error| error.to_string())?.flags.plan(server)
    }

    #[test]
    fn shared_memory_is_on_beside_a_port_by_default() {
        let default = plan("", SERVER).unwrap();
        assert!(matches!(default.places[..], [Place::ShmOfPort]));
        assert_eq!((default.registered, default.connections), (64 << 20, 256));
        assert_eq!(default.eager("shm"), eager::limit("shm"));
        assert_eq!(
            (default.lease, default.policy, default.pin),
            (Duration::from_secs(1), PolicyKind::Probation, false)
        );
        assert_eq!(default.timeout, Duration::from_secs(10));
        assert!(plan("--fabric none", SERVER).unwrap().places.is_empty());
        assert!(plan("", Server { has_port: false, ..SERVER }).unwrap().places.is_empty());
        let named = plan("--fabric shm:@x --fabric iwarp:[::1]:0 --tag-lease 250ms --pin", SERVER).unwrap();
        assert!(matches!(named.places[..], [Place::Shm(_), Place::Iwarp(_)]));
        assert_eq!((named.lease, named.pin), (Duration::from_millis(250), true));
    }

    #[test]
    fn eager_limit_is_per_fabric_and_bounded_by_item() {
        let both = "--fabric shm:@x --fabric iwarp:[::1]:0";
        let said = plan(&format!("{both} --eager 4k"), SERVER).unwrap();
        assert_eq!((said.eager("shm"), said.eager("iwarp"), said.eagers()), (4096, 4096, "4096".into()));
        assert_eq!(plan(&format!("{both} --eager 64k"), SERVER).unwrap().eager("iwarp"), eager::MOST);
        assert_eq!(plan("--eager 0", SERVER).unwrap().eager("shm"), 0);
        let short = plan("", Server { item: 1024, ..SERVER }).unwrap();
        assert_eq!(short.eager("shm"), 1024 - HEADER - KEY_MAX);
        let unsaid = plan(both, SERVER).unwrap();
        assert_eq!(["shm", "iwarp"].map(|name| unsaid.eager(name)), ["shm", "iwarp"].map(eager::limit));
        let floors = ["shm", "iwarp"].map(|name| unsaid.transfers_from(name));
        assert_eq!(floors, ["shm", "iwarp"].map(eager::transfers_from));
        assert_eq!((said.transfers_from("shm"), short.transfers_from("shm")), (4096, short.eager("shm")));
    }

    #[test]
    fn far_memory_counts_as_registered() {
        let far = "--far 64 --far-region 2m";
        assert_eq!(plan(far, SERVER).unwrap().registered, (64 + 64) << 20);
        let both = format!("{far} --fabric shm:@x --fabric iwarp:[::]:0");
        assert_eq!(plan(&both, SERVER).unwrap().registered, (64 + 2 * 64) << 20);
        assert!(plan(&format!("{far} --registered-memory 69"), SERVER).is_ok());
        let error = plan(&format!("{far} --registered-memory 60"), SERVER).unwrap_err();
        assert!(error.contains("9 MiB are lacking"), "{error}");
        assert!(plan("--far 64 --fabric udp:127.0.0.1:0", SERVER).unwrap_err().contains("shm: or iwarp:"));
    }

    #[test]
    fn what_is_refused_says_why() {
        for (arguments, words) in [
            ("--fabric nonsense:x", "iwarp:HOST:PORT"),
            ("--fabric shm:", "shm:PATH"),
            ("--fabric shm:@x,iwarp:[::]:0", "repeat --fabric"),
            ("--fabric iwarp:x", "iwarp:HOST:PORT"),
            ("--fabric none --fabric shm:@x", "leave one of them out"),
            ("--expose everything", "slab"),
            ("--expose slab", "leave it out"),
            ("--registered-memory 3", "it takes 5 MiB at least"),
            ("--registered-memory 64M", "a whole number of megabytes"),
            ("--registered-memory 5 --fabric shm:@x --fabric iwarp:[::]:0", "it takes 9 MiB at least"),
            ("--registration-policy best", "gdsf"),
            ("--tag-lease 1h", "10ms to 60s"),
            ("--tag-lease 61s", "10ms to 60s"),
            ("--tag-lease 9ms", "10ms to 60s"),
            ("--eager 65k", "0 to 64k"),
            ("--fabric-connections 0", "1..=16384"),
            ("--connections 1", "add --fabric udp:HOST:PORT"),
            ("--connections 1 --fabric udp:127.0.0.1:0", "--fabric iwarp:HOST:PORT"),
            ("--connections 1 --fabric shm:@x --fabric udp:127.0.0.1:0", "--fabric iwarp:HOST:PORT"),
            (
                "--connections 9 --fabric-connections 8 --fabric iwarp:[::]:0 --fabric udp:127.0.0.1:0",
                "more than --fabric-connections, 8",
            ),
        ] {
            let error = plan(arguments, SERVER).unwrap_err();
            assert!(error.contains(words), "{arguments}: {error}");
        }
        #[cfg(not(any(feature = "verbs", feature = "verbs-linked")))]
        assert!(plan("--fabric verbs:x:1", SERVER).unwrap_err().contains("--features verbs"));
    }
}
