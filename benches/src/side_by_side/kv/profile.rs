//! The work of a server's CPU, by `perf`: samples of the processor's time, sorted by the purpose of the kernel's work.
//!
//! The classes are the paper's: *network* (protocols and sockets; copies between the program and the kernel apart), *application* (what the
//! program does itself, libraries included) and the rest, of which waiting and being woken is apart. A sample belongs to the innermost
//! function of its stack that is of a class: a lock that is released during a wake-up counts as waking.
//!
//! Over loopback the sender also does the work that the other end's network card would have interrupted for. The *network* of a server
//! therefore includes the way into the client's socket, and its *waking* the wake-up of the client.

use crate::side_by_side::remote::Outcome;
use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Samples for a second of CPU.
const RATE: &str = "3989";

/// The work that the CPU's time goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    Application,
    Network,
    Copies,
    Waking,
    Remaining,
}

impl Class {
    pub(super) const ALL: [Self; 5] = [Self::Application, Self::Network, Self::Copies, Self::Waking, Self::Remaining];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Network => "network",
            Self::Copies => "copies",
            Self::Waking => "waking",
            Self::Remaining => "remaining",
        }
    }
}

/// Beginnings of the kernel's names, the first that fits.
const NAMES: [(Class, &[&str]); 4] = [
    // An interrupt belongs to no class: it is unrelated to the work that it stopped.
    (Class::Remaining, &["asm_sysvec_", "asm_common_interrupt", "asm_exc_", "do_IRQ", "el1_interrupt"]),
    (
        Class::Copies,
        &[
            "_copy_from_iter",
            "_copy_to_iter",
            "copy_from_user",
            "copy_to_user",
            "_copy_from_user",
            "_copy_to_user",
            "__copy_",
            "copy_user_",
            "rep_movs",
            "__arch_copy_",
            "__check_object_size",
            "__check_heap_object",
            "check_heap_object",
            "copy_page_from_iter",
            "copy_page_to_iter",
        ],
    ),
    (
        Class::Waking,
        &[
            "sock_def_readable",
            "sock_def_write_space",
            "sk_stream_write_space",
            "try_to_wake_up",
            "ttwu_",
            "wake_up",
            "__wake_up",
            "autoremove_wake",
            "ep_",
            "do_epoll_",
            "__x64_sys_epoll_",
            "sock_poll",
            "tcp_poll",
            "do_sys_poll",
            "do_poll",
            "__x64_sys_poll",
            "poll_",
            "__pollwait",
            "futex_",
            "do_futex",
            "schedule",
            "__schedule",
            "finish_task_switch",
            "__switch_to",
            "switch_mm",
            "pick_next",
            "dequeue_",
            "enqueue_",
            "select_task_rq",
            "hrtimer_",
            "wait_woken",
            "sk_wait_data",
            "eventfd_",
            "exit_to_user_mode_loop",
        ],
    ),
    (
        Class::Network,
        &[
            "tcp_",
            "__tcp_",
            "bbr_",
            "cubictcp_",
            "bictcp_",
            "ip_",
            "__ip_",
            "ipv4_",
            "ip6_",
            "__ip6_",
            "inet_",
            "__inet_",
            "inet6_",
            "sock_",
            "__sock_",
            "sk_",
            "__sk_",
            "sk_",
            "skb_",
            "__skb_",
            "__alloc_skb",
            "alloc_skb",
            "kfree_skb",
            "__kfree_skb",
            "consume_skb",
            "napi_",
            "__napi_",
            "net_",
            "netif_",
            "__netif_",
            "dev_",
            "__dev_",
            "process_backlog",
            "loopback_",
            "eth_",
            "validate_xmit_",
            "nf_",
            "nft_",
            "ipt_",
            "fib_",
            "dst_",
            "__sys_send",
            "__sys_recv",
            "___sys_send",
            "___sys_recv",
            "____sys_send",
            "____sys_recv",
            "__x64_sys_send",
            "__x64_sys_recv",
            "lock_sock",
            "release_sock",
            "__release_sock",
            "import_iovec",
            "move_addr_",
            "unix_",
            "udp_",
        ],
    ),
];

/// Returns the class of a function, if its name says one.
fn class(function: &str) -> Option<Class> {
    NAMES.iter().find(|(_, names)| names.iter().any(|name| function.starts_with(name))).map(|&(class, _)| class)
}

/// A profile: samples by class, and which functions they met most.
#[derive(Clone, Debug, Default)]
pub(super) struct Profile {
    samples: HashMap<&'static str, u64>,
    functions: HashMap<(&'static str, String), u64>,
    all: u64,
}

impl Profile {
    /// Returns the class's share of all.
    pub(super) fn share(&self, class: Class) -> f64 {
        self.samples.get(class.name()).copied().unwrap_or(0) as f64 / self.all.max(1) as f64
    }

    /// Its most frequent functions, with their shares of all.
    pub(super) fn most(&self, class: Class, count: usize) -> Vec<(&str, f64)> {
        let of_class = self.functions.iter().filter(|((of, _), _)| *of == class.name());
        let mut of_class: Vec<_> =
            of_class.map(|((_, name), &count)| (name.as_str(), count as f64 / self.all as f64)).collect();
        of_class.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(other.0)));
        of_class.truncate(count);
        of_class
    }

    /// From `perf script`'s text: a stack each, innermost first, blank lines between.
    ///
    /// None if the kernel's functions have no names there.
    fn read(text: &str) -> Option<Self> {
        let mut profile = Self::default();
        for stack in text.split("\n\n") {
            let frames: Vec<(&str, &str)> = stack.lines().filter_map(frame).collect();
            let Some(&(innermost, object)) = frames.first() else { continue };
            let class = if is_kernel(object) {
                if innermost == "[unknown]" {
                    return None;
                }
                let named = frames.iter().filter(|(_, object)| is_kernel(object)).find_map(|(name, _)| class(name));
                named.unwrap_or(Class::Remaining)
            } else {
                Class::Application
            };
            *profile.samples.entry(class.name()).or_default() += 1;
            *profile.functions.entry((class.name(), plain(innermost).to_owned())).or_default() += 1;
            profile.all += 1;
        }
        (profile.all > 0).then_some(profile)
    }
}

/// Function and object of a line: `ffffffff81 tcp_sendmsg ([kernel.kallsyms])`.
fn frame(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (function, object) = rest.rsplit_once(" (")?;
    Some((function, object.strip_suffix(')')?))
}

fn is_kernel(object: &str) -> bool {
    object.starts_with("[kernel") || object.starts_with("[guest.kernel") || object.ends_with(".ko")
}

/// Without what compilers put behind names, and of a path in Rust the end.
fn plain(function: &str) -> &str {
    let function = function.split(".isra").next().unwrap_or_default();
    let function = function.split(".part").next().unwrap_or_default();
    let start = function.rmatch_indices("::").nth(1).map_or(0, |(at, _)| at + 2);
    function.get(start..).unwrap_or(function)
}

/// Samples a process for so long, while `load` keeps it busy. An `Err` in it says why there is nothing.
pub(super) fn profile(
    process: u32,
    longest: Duration,
    mut load: impl FnMut() -> Outcome<()>,
) -> Outcome<Result<Profile, String>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("perf.data");
    let recording = Command::new("perf")
        .args(["record", "-q", "-e", "cpu-clock", "-F", RATE, "-g", "-p", &process.to_string(), "-o"])
        .arg(&file)
        .args(["--", "sleep", &longest.as_secs_f64().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut recording) = recording else {
        return Ok(Err("there is no perf: apt-get install linux-perf".into()));
    };
    let done = loop {
        if let Some(status) = recording.try_wait()? {
            break status;
        }
        if let Err(error) = load() {
            let _ = recording.kill();
            let _ = recording.wait();
            return Err(error);
        }
    };
    let said = recording.wait_with_output()?;
    if !done.success() {
        let said = String::from_utf8_lossy(&said.stderr);
        let first =
            said.lines().map(str::trim).find(|line| !line.is_empty() && *line != "Error:").unwrap_or("it failed");
        return Ok(Err(format!("perf: {first}")));
    }
    let script = Command::new("perf").arg("script").arg("-i").arg(&file).args(["-F", "ip,sym,dso"]).output()?;
    let read = Profile::read(&String::from_utf8_lossy(&script.stdout));
    Ok(read.ok_or_else(|| "perf: no samples, or the kernel's functions have no names (kernel.kptr_restrict)".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_belongs_to_innermost_classified_function() {
        let text = "\
	ffffffff1 _raw_spin_unlock_irqrestore ([kernel.kallsyms])
	ffffffff2 sock_def_readable ([kernel.kallsyms])
	ffffffff3 tcp_sendmsg ([kernel.kallsyms])

	ffffffff1 __slab_free ([kernel.kallsyms])
	ffffffff3 tcp_sendmsg ([kernel.kallsyms])

	ffffffff1 _copy_from_iter ([kernel.kallsyms])
	ffffffff3 tcp_sendmsg ([kernel.kallsyms])

	ffffffff1 do_syscall_64 ([kernel.kallsyms])

	ffffffff1 handle_irq ([kernel.kallsyms])
	ffffffff1 asm_sysvec_apic_timer_interrupt ([kernel.kallsyms])
	ffffffff3 tcp_sendmsg ([kernel.kallsyms])

	    55d0 rdmakv_server::store::find::<impl store::Store>::get (/usr/bin/rdmakv-server)

	    7fff _mm_crc (x) (/usr/lib/libc.so.6)
";
        let profile = Profile::read(text).unwrap();
        let shares = Class::ALL.map(|class| (profile.share(class) * 7.0).round() as u64);
        assert_eq!(shares, [2, 1, 1, 1, 2]);
        assert_eq!(profile.most(Class::Waking, 3)[0].0, "_raw_spin_unlock_irqrestore");
        assert!(profile.most(Class::Application, 3).iter().any(|(name, _)| name.ends_with("Store>::get")));
    }

    #[test]
    fn a_kernel_without_names_gives_no_profile() {
        assert!(Profile::read("\tffffffff1 [unknown] ([kernel.kallsyms])\n").is_none());
        assert!(Profile::read("").is_none());
    }
}
