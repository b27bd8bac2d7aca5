//! Whether the kernel keeps pinned pages with a process that forks.

/// Returns whether pages that are pinned stay the parent's when it forks: Linux copies them for the child since 5.12. On
/// older ones a registration that outlives the program's own would part from its memory at the next fork.
pub(crate) fn kernel_copies_pinned_pages() -> bool {
    let Ok(release) = std::fs::read_to_string("/proc/sys/kernel/osrelease") else { return false };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(5), Some(12))
}
