//! The programs at the server's interfaces, from the start of the server to its end.
//!
//! Nothing outlives the process: the kernel takes programs off and frees maps when their descriptors are closed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdmakv_bpf::layout::{Network, Settings, buckets, value_size};
use rdmakv_bpf::load::{Cause, Error, Gets, Links, Maps, OBJECT};

use super::interface::{self, Interface};
use super::options::{At, Plan};
use super::table::Writer;
use super::{Server, counts};
use crate::log;
use crate::metrics::{KernelCounts, KernelReported};
use crate::session::Shards;
use crate::store::Memory;
use rdmakv_proto::clock;

/// How long a server waits for the one before it to leave an interface, and how often it looks.
const BUSY: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// The programs.
#[derive(Debug)]
pub(crate) struct Kernel {
    maps: Arc<Maps>,
    writer: Arc<Writer<Arc<Maps>>>,
    /// Bytes of each store's memory.
    each: usize,
    /// Addresses and remarks, for the start-up lines.
    said: Vec<String>,
    reported: Arc<State>,
}

/// The state that is reported.
#[derive(Debug)]
struct State {
    maps: Arc<Maps>,
    writer: Arc<Writer<Arc<Maps>>>,
    sockets: Vec<SocketAddr>,
    plan: Plan,
    interfaces: Vec<Attached>,
    /// The counts at the last reset.
    base: Mutex<KernelCounts>,
}

#[derive(Debug)]
struct Attached {
    at: At,
    index: u32,
    is_gone: AtomicBool,
    /// The programs, until they are taken off, and the interface as they know it.
    links: Mutex<(Option<Links>, Settings)>,
}

impl Kernel {
    /// Puts the programs at the interfaces. They answer nothing yet.
    ///
    /// # Errors
    ///
    /// The interface, the cause and the remedy.
    pub(crate) fn attach(plan: &Plan, server: &Server<'_>) -> Result<Self, String> {
        if std::fs::read_to_string("/sys/kernel/realtime").is_ok_and(|text| text.trim() == "1") {
            return Err("--xdp: this kernel is PREEMPT_RT, where programs interrupt each other; use another".to_owned());
        }
        let (shards, page, each) = Shards::plan(server.store, server.threads);
        let memory = (shards * each) as u64;
        let settings = Settings {
            value_size: value_size(page as u64).unwrap_or_default().min(memory),
            memory,
            shard_size: each as u64,
            buckets: buckets(server.memory),
            secret: [rand::random(), rand::random()],
            clock: clock::beyond_boot(),
            without_cas: !server.cas,
            only_tcx: false,
            mtu: 0,
            port: port(&server.sockets)?,
            mac: [0; 6],
            addresses: Vec::new(),
            sources: Vec::new(),
        };
        let object = object()?;
        let (mut all, mut interfaces) = (Vec::<Gets>::new(), Vec::new());
        let mut said = Vec::new();
        for at in &plan.interfaces {
            let failed = |why: &str| format!("--xdp {}: {why}", at.name);
            let found = Interface::find(&at.name).map_err(|error| match error.raw_os_error() {
                Some(libc::ENODEV) => failed("there is no such interface: name one that ip link shows"),
                _ => failed(&error.to_string()),
            })?;
            if found.is_loopback {
                return Err(failed("what stays on this machine passes no driver; name the interface of a network"));
            }
            if !found.is_ethernet {
                return Err(failed("its packets have no headers of Ethernet, which the programs read"));
            }
            let settings = of_interface(at, &found, plan, &server.sockets, &settings);
            remark(at, &found, &server.sockets, &settings, &mut said)?;
            let refused = |cause| Error::new(&at.name, cause).to_string();
            let gets = Gets::load(&object, &settings, all.first()).map_err(refused)?;
            let links = attach(&gets, found.index, !at.generic).map_err(refused)?;
            if found.is_veth && !at.generic {
                said.push(format!(
                    "{0}: its other end loses the answers unless an XDP program is there, too; --xdp={0}=generic needs none",
                    at.name
                ));
            }
            let (is_gone, links) = (AtomicBool::new(false), Mutex::new((Some(links), settings)));
            interfaces.push(Attached { at: at.clone(), index: found.index, is_gone, links });
            all.push(gets);
        }
        let maps = all.first().map(|gets| gets.maps().clone()).ok_or("--xdp: no interface")?;
        let writer = Arc::new(Writer::new(maps.clone(), settings.secret, settings.value_size));
        let base = Mutex::default();
        let (sockets, plan) = (server.sockets.clone(), plan.clone());
        let reported = Arc::new(State { maps: maps.clone(), writer: writer.clone(), sockets, plan, interfaces, base });
        Ok(Self { maps, writer, each, said, reported })
    }

    /// Returns the start-up lines.
    pub(crate) fn said(&self) -> &[String] {
        &self.said
    }

    /// Returns the maker of memory for the stores: each part follows the one before.
    pub(crate) fn memory(&self) -> impl FnMut(usize) -> io::Result<Memory> + use<> {
        let (maps, each, mut next) = (self.maps.clone(), self.each, 0);
        move |bytes| {
            let (base, whole) = maps.memory();
            if bytes != each || next + bytes > whole {
                return Err(io::Error::other("a store takes other memory than was planned"));
            }
            let begin = NonNull::new(base.wrapping_add(next)).ok_or(io::ErrorKind::OutOfMemory)?;
            next += bytes;
            #[expect(unsafe_code, reason = "a part of the map is the store's from now on")]
            // SAFETY: the part lies in the map's mapping, which the keeper holds, begins with a page and is all zeros. Each part is given
            // out once. The programs only read, and no other code of this process writes to items.
            Ok(unsafe { Memory::new(begin, bytes, Box::new(maps.clone())) })
        }
    }

    /// Has the stores, which are empty, list their items.
    pub(crate) fn list(&self, shards: &Shards, incarnation: u32) {
        self.writer.begin(incarnation);
        for shard in 0..shards.count() {
            shards.at(shard).list_in_kernel(self.writer.clone(), (shard * self.each) as u64, shard);
        }
    }

    /// Returns the part that is reported on.
    pub(crate) fn reported(&self) -> Arc<dyn KernelReported> {
        self.reported.clone()
    }

    /// Has the programs answer.
    pub(crate) fn answer(&self) {
        self.writer.answer();
    }

    /// Takes the programs off. The socket answers from now on.
    pub(crate) fn end(&self) {
        self.writer.end();
        self.reported.interfaces.iter().for_each(Attached::take_off);
    }
}

impl KernelReported for State {
    fn counts(&self) -> KernelCounts {
        let mut counts = counts::sum(self.maps.tally());
        counts.displaced = self.writer.displaced();
        counts.since(&self.base.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn reset(&self) {
        let now = self.counts();
        self.base.lock().unwrap_or_else(PoisonError::into_inner).add(&now);
    }

    fn interfaces(&self) -> String {
        let shown = |one: &Attached| {
            let word = |is: bool, word: &'static str| if is { word } else { "" };
            let At { name, generic, public } = &one.at;
            let gone = word(one.is_gone.load(Relaxed), " (gone)");
            format!("{name}{}{}{gone}", word(*generic, "=generic"), word(*public, "=public"))
        };
        self.interfaces.iter().map(shown).collect::<Vec<_>>().join(",")
    }

    fn look(&self) {
        for one in self.interfaces.iter().filter(|one| !one.is_gone.load(Relaxed)) {
            let found = match interface::name(one.index) {
                Ok(Some(name)) => Interface::find(&name),
                Err(error) => Err(error),
                Ok(None) => {
                    // It may be in another namespace, with the programs.
                    one.take_off();
                    one.is_gone.store(true, Relaxed);
                    log::print(format_args!(
                        "--xdp {}: the interface is gone: the socket answers its GETs",
                        one.at.name
                    ));
                    continue;
                }
            };
            one.follow(found, &self.plan, &self.sockets);
        }
    }
}

impl Attached {
    fn take_off(&self) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).0 = None;
    }

    /// Has the programs know the interface as it is now. One that cannot be read may have lost its addresses: nothing is answered there.
    fn follow(&self, found: io::Result<Interface>, plan: &Plan, sockets: &[SocketAddr]) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(links), known) = &mut *links else { return };
        let now = match &found {
            Ok(found) => of_interface(&self.at, found, plan, sockets, known),
            Err(_) => without_addresses(known),
        };
        if now == *known {
            return;
        }
        if let Err(error) = links.follow(&now) {
            log::print(format_args!("--xdp {}: {error}: the socket answers its GETs", self.at.name));
            // The next look does not report it again unless something has changed.
            let _ = links.follow(&without_addresses(&now));
        } else if now.addresses != known.addresses {
            let line = match (&now.addresses[..], found) {
                ([], Err(error)) => format!("reading its addresses: {error}: the socket answers its GETs"),
                ([], _) => "no address is left: the socket answers its GETs".to_owned(),
                (all, _) => format!("GETs over UDP at {} are answered in the kernel now", list(all)),
            };
            log::print(format_args!("--xdp {}: {line}", self.at.name));
        }
        *known = now;
    }
}

/// Returns the port of the sockets, which is one.
fn port(sockets: &[SocketAddr]) -> Result<u16, String> {
    let port = sockets.first().map(SocketAddr::port).ok_or("--xdp: no socket takes datagrams; it needs -U")?;
    match sockets.iter().all(|socket| socket.port() == port) {
        true => Ok(port),
        false => Err("--xdp: the kernel answers at one UDP port; leave out the ports of -l".to_owned()),
    }
}

/// Returns whether the server listens at an address.
fn listens(sockets: &[SocketAddr], address: IpAddr) -> bool {
    let same = |socket: &&SocketAddr| socket.is_ipv4() == address.is_ipv4();
    sockets.iter().filter(same).any(|socket| socket.ip().is_unspecified() || socket.ip() == address)
}

fn list(all: &[IpAddr]) -> String {
    all.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the settings of a program.
fn of_interface(at: &At, found: &Interface, plan: &Plan, sockets: &[SocketAddr], common: &Settings) -> Settings {
    let answers =
        |network: &&Network| listens(sockets, network.address) && (at.public || !interface::is_public(network.address));
    let own: Vec<Network> = found.networks.iter().filter(answers).copied().collect();
    let addresses = own.iter().map(|network| network.address).collect();
    let sources = match plan.from[..] {
        [] => own,
        ref from => from.iter().map(|&(address, bits)| Network { address, bits }).collect(),
    };
    let (mac, mtu, only_tcx) = (found.mac, found.mtu, at.generic);
    Settings { mac, mtu, only_tcx, addresses, sources, ..common.clone() }
}

/// Returns the settings of a program that answers nothing.
fn without_addresses(settings: &Settings) -> Settings {
    Settings { addresses: Vec::new(), sources: Vec::new(), ..settings.clone() }
}

/// Adds the start-up lines of an interface.
///
/// # Errors
///
/// It has no address to answer at.
fn remark(
    at: &At,
    found: &Interface,
    sockets: &[SocketAddr],
    settings: &Settings,
    said: &mut Vec<String>,
) -> Result<(), String> {
    let addresses = &settings.addresses;
    let all = found.networks.iter().map(|network| network.address).filter(|&address| listens(sockets, address));
    let public: Vec<IpAddr> = all.filter(|address| !addresses.contains(address)).collect();
    if addresses.is_empty() {
        return Err(match public[..] {
            [] => format!("--xdp {}: it has no address that the server listens at: ip addr add, or -l", at.name),
            _ => format!(
                "--xdp {0}: {1} is public: whoever reaches it may ask; --xdp={0}=public answers there all the same",
                at.name,
                list(&public)
            ),
        });
    }
    let kind = if at.generic { "tcx" } else { "XDP" };
    said.push(format!(
        "GETs over UDP at {} are answered in the kernel ({kind}, {}): before netfilter, so no firewall rule is asked",
        list(addresses),
        at.name
    ));
    if !public.is_empty() {
        said.push(format!("{}: the socket answers at {}, which is public", at.name, list(&public)));
    }
    Ok(())
}

/// Attaches programs. A server that ends just now may have its own there still.
fn attach(gets: &Gets, interface: u32, with_xdp: bool) -> Result<Links, Cause> {
    let begun = Instant::now();
    loop {
        match gets.attach(interface, with_xdp) {
            Err(Cause::Busy(_)) if begun.elapsed() < BUSY => std::thread::sleep(LOOK),
            result => return result,
        }
    }
}

/// Returns the programs. A build with faults may be told to take others, which have some.
fn object() -> Result<std::borrow::Cow<'static, [u8]>, String> {
    #[cfg(rdmakv_fault_injection)]
    if let Some(path) = std::env::var_os("RDMAKV_GETS_OBJECT") {
        let read = std::fs::read(&path).map_err(|error| format!("RDMAKV_GETS_OBJECT: {error}"))?;
        return Ok(read.into());
    }
    Ok(OBJECT.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmakv_bpf::layout::{REACH, SHARDS};

    fn settings() -> Settings {
        Settings {
            value_size: 1 << 20,
            memory: 1 << 20,
            shard_size: 1 << 20,
            buckets: 64,
            secret: [1, 2],
            clock: 0,
            without_cas: false,
            only_tcx: false,
            mtu: 0,
            port: 1,
            mac: [0; 6],
            addresses: Vec::new(),
            sources: Vec::new(),
        }
    }

    fn found(networks: &[(&str, u8)]) -> Interface {
        let networks = networks.iter().map(|&(address, bits)| Network { address: address.parse().unwrap(), bits });
        let networks = networks.collect();
        let (is_loopback, is_ethernet, is_veth) = (false, true, false);
        Interface { index: 5, mac: [1; 6], mtu: 1500, is_loopback, is_ethernet, is_veth, networks }
    }

    fn of(at: &str, networks: &[(&str, u8)], sockets: &[&str], from: &[(&str, u8)]) -> Result<Settings, String> {
        let at = At { name: "eth0".to_owned(), generic: false, public: at.contains("public") };
        let from = from.iter().map(|&(address, bits)| (address.parse().unwrap(), bits)).collect();
        let plan = Plan { interfaces: vec![at.clone()], from };
        let sockets: Vec<_> = sockets.iter().map(|socket| socket.parse().unwrap()).collect();
        let settings = of_interface(&at, &found(networks), &plan, &sockets, &settings());
        remark(&at, &found(networks), &sockets, &settings, &mut Vec::new()).map(|()| settings)
    }

    #[test]
    fn sources_are_the_interfaces_networks() {
        let all = ["0.0.0.0:1", "[::]:1"];
        let networks = [("10.1.2.3", 16), ("8.8.8.8", 24), ("fd00::1", 64)];
        let settings = of("", &networks, &all, &[]).unwrap();
        let addresses: Vec<IpAddr> = ["10.1.2.3", "fd00::1"].map(|address| address.parse().unwrap()).to_vec();
        assert_eq!((settings.addresses, settings.sources.len()), (addresses, 2));
        assert_eq!(of("public", &networks, &all, &[]).unwrap().sources.len(), 3);
        let settings = of("", &networks, &all, &[("10.0.0.0", 8)]).unwrap();
        assert_eq!(settings.sources, [Network { address: "10.0.0.0".parse().unwrap(), bits: 8 }]);
    }

    #[test]
    fn addresses_are_those_listened_at() {
        let networks = [("10.1.2.3", 16), ("10.1.2.4", 16), ("fd00::1", 64)];
        let settings = of("", &networks, &["10.1.2.4:1"], &[]).unwrap();
        assert_eq!(settings.addresses, ["10.1.2.4".parse::<IpAddr>().unwrap()]);
        assert!(of("", &networks, &["127.0.0.1:1"], &[]).unwrap_err().contains("-l"));
        assert!(of("", &[("8.8.8.8", 24)], &["0.0.0.0:1"], &[]).unwrap_err().contains("--xdp=eth0=public"));
    }

    #[test]
    fn largest_memory_fits_the_programs() {
        use crate::kernel::options::{ITEM, MEMORY};
        use crate::store::Config;
        for (threads, item_max) in [(1, 1 << 20), (4, 1 << 20), (256, 1 << 14), (256, ITEM), (4, 3 << 20)] {
            let memory = MEMORY as usize;
            let config = Config { memory, memory_max: memory, item_max, ..Config::default() };
            let (shards, page, each) = Shards::plan(&config, threads);
            let whole = (shards * each) as u64;
            assert!(whole <= REACH && shards <= SHARDS, "{threads} threads, {item_max}: {whole}, {shards} shards");
            assert!(value_size(page as u64).is_some());
        }
    }

    #[test]
    fn sockets_have_one_port() {
        let sockets = |all: &[&str]| port(&all.iter().map(|socket| socket.parse().unwrap()).collect::<Vec<_>>());
        assert_eq!(sockets(&["0.0.0.0:7", "[::]:7"]), Ok(7));
        assert!(sockets(&["0.0.0.0:7", "10.0.0.1:8"]).is_err() && sockets(&[]).is_err());
    }
}
