//! The command line's options of GETs in the kernel, and what they do not go with.

use std::net::IpAddr;

use clap::Args;

/// The flags.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "GETs in the kernel")]
pub(crate) struct KernelFlags {
    /// Answer GETs over UDP (-U) at this network interface, in the kernel: by XDP, or with "=generic" without its driver's help.
    /// Clients of the interface's own networks are answered, at addresses that are not public; "=public" answers at these too. With
    /// commas for several
    #[arg(long = "xdp", value_name = "IFACE", value_delimiter = ',')]
    #[cfg_attr(not(feature = "bpf"), arg(hide = true))]
    interfaces: Vec<String>,
    /// Networks of clients that are answered there, with commas: 10.0.0.0/8 (default: the interface's own)
    #[arg(long = "xdp-from", value_name = "CIDR", value_delimiter = ',', value_parser = network)]
    #[cfg_attr(not(feature = "bpf"), arg(hide = true))]
    from: Vec<(IpAddr, u8)>,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) name: String,
    /// Whether it does without XDP.
    pub(crate) generic: bool,
    /// Whether its public addresses answer.
    pub(crate) public: bool,
}

/// The plan for the programs.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "bpf"), expect(dead_code, reason = "nothing is attached"))]
pub(crate) struct Plan {
    pub(crate) interfaces: Vec<At>,
    /// Networks of clients; those of the interface if there are none.
    pub(crate) from: Vec<(IpAddr, u8)>,
}

/// The rest of the command line, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    /// Bytes for items, and of one at most.
    pub(crate) memory: u64,
    pub(crate) item: usize,
    pub(crate) has_datagrams: bool,
    pub(crate) has_users: bool,
    pub(crate) encrypts: bool,
    pub(crate) binary_only: bool,
    pub(crate) keeps_memory: bool,
    /// Whether clients share the items' memory, or devices read it.
    pub(crate) shares_memory: bool,
}

/// Bytes for items at most, and of one item. The programs know places in 32 GiB; clients' leases may hold memory besides `-m`.
pub(super) const MEMORY: u64 = (32 << 30) - (64 << 20);
pub(super) const ITEM: usize = 256 << 20;

fn network(text: &str) -> Result<(IpAddr, u8), String> {
    let bad = || "a network is needed, as an address and its bits: 10.0.0.0/8, fd00::/8".to_owned();
    let (address, bits) = text.split_once('/').ok_or_else(bad)?;
    let address: IpAddr = address.parse().map_err(|_| bad())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.parse().ok().filter(|&bits| bits <= most).ok_or_else(bad)?;
    Ok((address, bits))
}

fn interface(text: &str) -> Result<At, String> {
    let mut words = text.split('=');
    let name = words.next().unwrap_or_default().to_owned();
    let mut at = At { name, generic: false, public: false };
    for word in words {
        match word {
            "generic" => at.generic = true,
            "public" => at.public = true,
            _ => return Err(format!("--xdp {text}: after the interface's name: =generic or =public")),
        }
    }
    let is_name = (1..16).contains(&at.name.len()) && !at.name.contains(['/', ' ', '%']);
    if is_name { Ok(at) } else { Err(format!("--xdp {text}: a network interface is needed, such as eth0 (ip link)")) }
}

impl KernelFlags {
    /// Returns whether GETs are to be answered in the kernel.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.interfaces.is_empty()
    }

    /// Returns the plan.
    ///
    /// # Errors
    ///
    /// The fault and the right form.
    pub(crate) fn plan(&self, server: Server) -> Result<Option<Plan>, String> {
        if !self.is_wanted() {
            let stray = !self.from.is_empty();
            return if stray { Err("--xdp-from: it needs an interface: --xdp=IFACE".to_owned()) } else { Ok(None) };
        }
        let interfaces = self.interfaces.iter().map(|text| interface(text)).collect::<Result<Vec<_>, _>>()?;
        let is_twice = |at: usize| interfaces[..at].iter().any(|before| before.name == interfaces[at].name);
        for (refused, why) in [
            (
                cfg!(not(feature = "bpf")),
                "this server was built without GETs in the kernel; build it with --features bpf",
            ),
            (cfg!(not(target_os = "linux")), "only Linux answers in the kernel; leave it out"),
            ((0..interfaces.len()).any(is_twice), "an interface is named twice; leave one of them out"),
            (
                interfaces.iter().any(|at| at.name == "lo"),
                "lo: what stays on this machine passes no driver; name the interface of a network",
            ),
            (!server.has_datagrams, "the kernel answers datagrams; it needs a UDP port (-U), and no -s"),
            (server.has_users, "the kernel checks no password of a datagram; leave -Y out, or --xdp"),
            (server.encrypts, "datagrams are not encrypted; leave -Z out, or --xdp"),
            (server.binary_only, "the kernel answers the text protocol; leave -B binary out, or --xdp"),
            (server.keeps_memory, "the kernel's memory is no file (-e); leave one of them out"),
            (
                server.shares_memory,
                "the kernel's memory is not shared with clients (shm:) or devices (verbs:); use iwarp:, or leave --xdp out",
            ),
            (server.item > ITEM, "items of at most 256 MiB are in memory that the kernel reads; use -I 256m"),
            (server.memory > MEMORY, "the kernel reads at most 32 GiB, for items and what leases hold; use -m 32704"),
        ] {
            if refused {
                return Err(format!("--xdp: {why}"));
            }
        }
        Ok(Some(Plan { interfaces, from: self.from.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Server = Server {
        memory: 64 << 20,
        item: 1 << 20,
        has_datagrams: true,
        has_users: false,
        encrypts: false,
        binary_only: false,
        keeps_memory: false,
        shares_memory: false,
    };

    fn plan(interfaces: &str, server: Server) -> Result<Option<Plan>, String> {
        let interfaces = interfaces.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        KernelFlags { interfaces, from: Vec::new() }.plan(server)
    }

    #[test]
    fn without_an_interface_there_is_no_plan() {
        assert!(plan("", SERVER).unwrap().is_none());
        let stray = KernelFlags { interfaces: Vec::new(), from: vec![network("10.0.0.0/8").unwrap()] };
        assert!(stray.plan(SERVER).unwrap_err().contains("--xdp=IFACE"));
    }

    #[test]
    fn networks_are_read() {
        assert_eq!(network("10.0.0.0/8"), Ok(("10.0.0.0".parse().unwrap(), 8)));
        assert_eq!(network("fd00::/128"), Ok(("fd00::".parse().unwrap(), 128)));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/", "fd00::/129"] {
            assert!(network(wrong).unwrap_err().contains("10.0.0.0/8"), "{wrong}");
        }
    }

    #[cfg(not(feature = "bpf"))]
    #[test]
    fn server_without_programs_refuses() {
        assert!(plan("eth0", SERVER).unwrap_err().contains("--features bpf"));
    }

    #[cfg(feature = "bpf")]
    #[test]
    fn interfaces_are_read() {
        let all = plan("eth0,eth1=generic,eth2=public,eth3=public=generic", SERVER).unwrap().unwrap().interfaces;
        let at = |name: &str, generic, public| At { name: name.to_owned(), generic, public };
        assert_eq!(
            all,
            [at("eth0", false, false), at("eth1", true, false), at("eth2", false, true), at("eth3", true, true)]
        );
    }

    #[cfg(feature = "bpf")]
    #[test]
    fn refusals_name_the_reason() {
        for (interfaces, server, words) in [
            ("eth0=fast", SERVER, "=generic or =public"),
            ("=public", SERVER, "such as eth0"),
            ("an-interface-of-a-long-name", SERVER, "such as eth0"),
            ("eth0,eth0", SERVER, "twice"),
            ("lo", SERVER, "lo:"),
            ("eth0", Server { has_datagrams: false, ..SERVER }, "-U"),
            ("eth0", Server { has_users: true, ..SERVER }, "-Y"),
            ("eth0", Server { encrypts: true, ..SERVER }, "-Z"),
            ("eth0", Server { binary_only: true, ..SERVER }, "-B binary"),
            ("eth0", Server { keeps_memory: true, ..SERVER }, "-e"),
            ("eth0", Server { shares_memory: true, ..SERVER }, "iwarp:"),
            ("eth0", Server { item: 257 << 20, ..SERVER }, "-I 256m"),
            ("eth0", Server { memory: 32 << 30, ..SERVER }, "-m 32704"),
        ] {
            let error = plan(interfaces, server).unwrap_err();
            assert!(error.starts_with("--xdp") && error.contains(words), "{interfaces}: {error}");
        }
    }
}
