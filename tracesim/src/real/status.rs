//! The kernel's figures on memory: the rest of it, and this process's pins.

/// Pages that can be filled before others have to go; none if nothing tells.
pub(crate) fn available_pages() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let machine = kib(&text, "MemAvailable:")? / 4;
    let limit = |file: &str| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    // The control group's limit, where it is known by that name: a container's.
    let group = limit("/sys/fs/cgroup/memory.max").zip(limit("/sys/fs/cgroup/memory.current"));
    Some(group.map_or(machine, |(most, now)| machine.min(most.saturating_sub(now) / mrrc_core::PAGE)))
}

/// `VmPin` of this process, in KiB.
pub(crate) fn pinned_kib() -> u64 {
    std::fs::read_to_string("/proc/self/status").ok().and_then(|text| kib(&text, "VmPin:")).unwrap_or(0)
}

fn kib(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().trim_end_matches("kB").trim().parse().ok()
}
