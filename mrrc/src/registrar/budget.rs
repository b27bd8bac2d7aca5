//! How much memory this process may pin.
//!
//! Two things bound it. The kernel enforces `RLIMIT_MEMLOCK`, per user and not per process. A process with
//! `CAP_IPC_LOCK` is exempt, unless in a user namespace, where the capability does not reach that far. The second
//! limit is the memory itself. Pinned pages cannot be reclaimed, so a default never takes more than half of the
//! machine's memory, or of the control group's. An unreadable limit bounds nothing; a limit with an unreadable
//! exemption applies.

use std::fs;
use std::path::Path;

/// The capability to pin beyond `RLIMIT_MEMLOCK`: its bit in a capability set.
const CAP_IPC_LOCK: u32 = 14;

/// The inode number of the first user namespace, fixed in the kernel's interface.
#[cfg(target_os = "linux")]
const FIRST_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// Pages of 4 KiB that this process may pin besides `locked` bytes, which count as locked already. At least one, so that
/// the kernel itself refuses a process that may pin nothing. `None` if nothing is known to bound it.
pub(crate) fn pages(locked: u64) -> Option<u64> {
    let left = memlock().map(|bytes| bytes.saturating_sub(locked));
    smallest([left, memory().map(|bytes| bytes / 2)]).map(|bytes| (bytes / crate::PAGE).max(1))
}

/// `RLIMIT_MEMLOCK` in bytes, unless it is unlimited or not felt. Other processes of the same user draw on it as well,
/// and nothing tells how much.
pub(crate) fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: the pointer is to a structure of the kind that the call fills, and lives through it.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0;
    if failed || limit.rlim_cur == libc::RLIM_INFINITY || exempt() {
        return None;
    }
    #[allow(clippy::useless_conversion, reason = "the type differs between systems")]
    Some(limit.rlim_cur.into())
}

/// Bytes of memory that this process can have: the machine's, or less if its control group says so.
pub(crate) fn memory() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_total(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = smallest(limit_files(&groups).map(|file| fs::read_to_string(file).ok().and_then(|text| bytes(&text))));
    smallest([machine, group])
}

/// Returns the system's page: what a pin is rounded out to.
pub(crate) fn page_size() -> u64 {
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: `sysconf` takes a number and returns one.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(crate::PAGE).max(crate::PAGE)
}

/// Returns whether `RLIMIT_MEMLOCK` is not felt by this thread.
#[cfg(target_os = "linux")]
fn exempt() -> bool {
    use std::os::unix::fs::MetadataExt;
    let capable = fs::read_to_string("/proc/thread-self/status").is_ok_and(|text| holds(&text, CAP_IPC_LOCK));
    capable && fs::metadata("/proc/self/ns/user").is_ok_and(|namespace| namespace.ino() == FIRST_USER_NAMESPACE)
}

#[cfg(not(target_os = "linux"))]
fn exempt() -> bool {
    false
}

fn smallest(bounds: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    bounds.into_iter().flatten().min()
}

/// Returns whether the effective capabilities in a `/proc/*/status` have this bit.
fn holds(status: &str, capability: u32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> capability & 1 == 1)
}

/// Returns the bytes of memory in a `/proc/meminfo`.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the number of bytes in a control group's file; `max` is none.
fn bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Returns the files that may hold a limit of memory for a process with this `/proc/self/cgroup`. Those are the files
/// of its group and of all groups above, which bind it too. In a container, groups above the container's do not show.
fn limit_files(groups: &str) -> impl Iterator<Item = String> {
    groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (root, file) = match fields.next() {
            Some("") => ("/sys/fs/cgroup", "memory.max"),
            Some(names) if names.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let group = Path::new(fields.next().unwrap_or("/"));
        group
            .ancestors()
            .map(|group| format!("{root}{}/{file}", group.display().to_string().trim_end_matches('/')))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_a_bit_of_the_effective_set() {
        let status = |set| format!("Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t{set}\nCapBnd:\t000001ffffffffff\n");
        assert!(holds(&status("000001fffeffffff"), CAP_IPC_LOCK));
        assert!(holds(&status("0000000000004000"), CAP_IPC_LOCK));
        assert!(!holds(&status("000001ffffffbfff"), CAP_IPC_LOCK));
        assert!(!holds(&status("0000000000000000"), CAP_IPC_LOCK));
        assert!(!holds(&status("nonsense"), CAP_IPC_LOCK));
        assert!(!holds("", CAP_IPC_LOCK));
    }

    #[test]
    fn the_machines_memory_is_counted_in_kilobytes() {
        let sample = "MemTotal:       24684100 kB\nMemFree:        23174328 kB\n";
        assert_eq!(mem_total(sample), Some(24_684_100 * 1024));
        for broken in ["", "MemTotal:", "MemTotal: 5 MB", "MemTotal: -1 kB", "MemTotal: 18446744073709551615 kB"] {
            assert_eq!(mem_total(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_control_group_bounds_by_a_number_or_not_at_all() {
        assert_eq!(bytes("536870912\n"), Some(512 << 20));
        assert_eq!(bytes("max\n"), None);
        assert_eq!(bytes(""), None);
    }

    #[test]
    fn the_groups_above_bind_too() {
        let files = |groups| limit_files(groups).collect::<Vec<_>>();
        assert_eq!(
            files("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        assert_eq!(files("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        let older = "5:cpu,cpuacct:/c\n4:hugetlb,memory:/c\n1:name=systemd:/c\n";
        let limits = ["/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        assert_eq!(files(older), limits);
        assert_eq!(files("no colons\n\n"), [""; 0]);
    }

    #[test]
    fn a_bound_that_is_not_known_does_not_bind() {
        assert_eq!(smallest([None, Some(7), Some(5)]), Some(5));
        assert_eq!(smallest([None, None]), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_a_budget_below_its_memory() {
        let total = mem_total(&fs::read_to_string("/proc/meminfo").unwrap()).unwrap();
        assert!(pages(0).unwrap() <= total / 2 / crate::PAGE);
        assert!(pages(u64::MAX).unwrap() >= 1);
    }
}
