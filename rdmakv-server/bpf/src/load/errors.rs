//! Why programs cannot be loaded or attached, with the remedy.

use std::fmt;
use std::io;

/// The system's numbers of the errors that are told apart.
const EPERM: i32 = 1;
const ENOMEM: i32 = 12;
pub(super) const EBUSY: i32 = 16;
pub(super) const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;
const EOPNOTSUPP: i32 = 95;

/// Linux has tcx since this release.
const LEAST: (u32, u32) = (6, 6);

/// Why the programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The system refused a map, a program or what they are described by.
    #[error("the kernel does not take the program: {0:#}")]
    Load(libbpf_rs::Error),
    /// A map cannot be mapped.
    #[error("cannot map the program's memory: {0}")]
    Map(io::Error),
    /// The interface does not take the program.
    #[error("cannot attach the program: {0}")]
    Attach(io::Error),
    /// The interface's driver does not take the program at XDP.
    #[error("its driver does not take the program: {0}")]
    Driver(io::Error),
    /// Another program is there.
    #[error("program {0} is there already")]
    Busy(u32),
    /// The object lacks this.
    #[error("the program's object has no {0} of the right size")]
    Object(&'static str),
    /// Memory, pages, shards or buckets that the program cannot have.
    #[error("the memory does not suit the program: at most 32 GiB, pages of at most 256 MiB, 252 shards")]
    Settings,
    /// More addresses or networks than the program knows.
    #[error("the program knows {0} addresses and {0} networks of each family: name fewer of them")]
    TooMany(usize),
}

impl Cause {
    pub(super) fn bpf(error: libbpf_rs::Error) -> Self {
        Self::Load(error)
    }

    fn number(&self) -> Option<i32> {
        match self {
            Self::Load(error) => match error.kind() {
                libbpf_rs::ErrorKind::PermissionDenied => Some(EPERM),
                libbpf_rs::ErrorKind::OutOfMemory => Some(ENOMEM),
                _ => None,
            },
            Self::Map(error) | Self::Attach(error) | Self::Driver(error) => error.raw_os_error(),
            _ => None,
        }
    }
}

/// An interface at which GETs cannot be answered, and why.
#[derive(Debug)]
pub struct Error {
    interface: String,
    cause: Cause,
    missing: Vec<&'static str>,
    release: Option<(u32, u32)>,
}

impl Error {
    /// Returns the error of an interface, with what this system lacks.
    pub fn new(interface: &str, cause: Cause) -> Self {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok().and_then(|text| release(&text));
        Self { interface: interface.to_owned(), cause, missing: missing_capabilities(), release }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--xdp {}: ", self.interface)?;
        match (&self.cause, self.cause.number()) {
            (_, Some(EPERM)) if !self.missing.is_empty() => write!(
                f,
                "needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; missing: {}. Start as root with -u, or setcap \
                 cap_bpf,cap_net_admin,cap_perfmon+ep on the program",
                self.missing.join(", ")
            ),
            (Cause::Load(_) | Cause::Attach(_) | Cause::Driver(_), _)
                if self.release.is_some_and(|release| release < LEAST) =>
            {
                let (major, minor) = self.release.unwrap_or(LEAST);
                write!(f, "Linux {major}.{minor} is too old: {}.{} or later (tcx)", LEAST.0, LEAST.1)
            }
            (Cause::Driver(_), Some(EOPNOTSUPP)) => {
                write!(f, "its driver has no XDP (EOPNOTSUPP): --xdp={}=generic does without", self.interface)
            }
            (Cause::Driver(error), Some(EINVAL | ERANGE)) => write!(
                f,
                "its driver does not take the program ({error}): XDP takes an MTU of some 3,500 at most (ip link set \
                 {0} mtu 1500); --xdp={0}=generic takes any",
                self.interface
            ),
            (Cause::Driver(error), _) => {
                write!(
                    f,
                    "its driver does not take the program ({error}): --xdp={}=generic does without",
                    self.interface
                )
            }
            (Cause::Load(_), Some(ENOMEM)) => {
                f.write_str("the kernel has no memory for all items, which it takes at the start: use a smaller -m")
            }
            (Cause::Map(_), Some(ENOMEM)) => write!(f, "{}: raise the limit on address space (ulimit -v)", self.cause),
            (Cause::Busy(_), _) => {
                write!(f, "{}: end the server that has it, or use --xdp={}=generic", self.cause, self.interface)
            }
            (cause, _) => write!(f, "{cause}"),
        }
    }
}

impl std::error::Error for Error {}

/// Returns the capabilities that loading takes and this process has not.
pub fn missing_capabilities() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    missing(effective(&status).unwrap_or(u64::MAX))
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn missing(effective: u64) -> Vec<&'static str> {
    let has = |number: u32| effective >> number & 1 != 0;
    // CAP_SYS_ADMIN has all of them.
    let wanted = [("CAP_BPF", 39), ("CAP_NET_ADMIN", 12), ("CAP_PERFMON", 38)];
    wanted.into_iter().filter(|&(_, number)| !has(21) && !has(number)).map(|(name, _)| name).collect()
}

fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(cause: Cause, missing: &[&'static str], release: (u32, u32)) -> String {
        let missing = missing.to_vec();
        Error { interface: "eth0".to_owned(), cause, missing, release: Some(release) }.to_string()
    }

    #[test]
    fn errors_name_the_remedy() {
        let attach = |number| Cause::Attach(io::Error::from_raw_os_error(number));
        assert_eq!(
            shown(attach(EPERM), &["CAP_BPF"], (6, 18)),
            "--xdp eth0: needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; missing: CAP_BPF. Start as root with -u, or setcap \
             cap_bpf,cap_net_admin,cap_perfmon+ep on the program"
        );
        assert_eq!(shown(attach(22), &[], (5, 15)), "--xdp eth0: Linux 5.15 is too old: 6.6 or later (tcx)");
        let driver = |number| shown(Cause::Driver(io::Error::from_raw_os_error(number)), &[], (6, 18));
        assert_eq!(
            driver(EOPNOTSUPP),
            "--xdp eth0: its driver has no XDP (EOPNOTSUPP): --xdp=eth0=generic does without"
        );
        for (number, words) in
            [(ERANGE, "ip link set eth0 mtu 1500"), (EINVAL, "an MTU of"), (12, "=generic does without")]
        {
            assert!(driver(number).contains(words), "{}", driver(number));
        }
        assert_eq!(
            shown(Cause::Busy(42), &[], (6, 18)),
            "--xdp eth0: program 42 is there already: end the server that has it, or use --xdp=eth0=generic"
        );
    }

    #[test]
    fn capabilities_and_releases_are_read() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(missing(0), ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"]);
        assert_eq!(missing(1 << 12 | 1 << 38), ["CAP_BPF"]);
        assert_eq!((missing(1 << 39 | 1 << 38), missing(1 << 21)), (vec!["CAP_NET_ADMIN"], vec![]));
        assert_eq!(release("6.18.44-fc-v769\n"), Some((6, 18)));
        assert_eq!(release("none"), None);
    }
}
