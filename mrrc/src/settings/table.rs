//! The table of settings, and how the text of each is read.

use super::{MonitorKind, Settings};
use crate::own_thread;
use crate::shared_memory::SharedMemory;
use crate::unheld_limit::UnheldLimit;
use mrrc_core::PAGE;
use mrrc_core::policy::PolicyKind;
use mrrc_core::units::bytes;
use std::time::Duration;

/// One setting.
#[derive(Debug)]
pub struct Setting {
    name: &'static str,
    help: &'static str,
    /// The text that sets the default, where that is one.
    default: Option<&'static str>,
    value: Value,
}

/// The kind of a value, and its place in the settings.
#[derive(Debug)]
enum Value {
    Fraction(fn(&mut Settings, f64)),
    Switch(fn(&mut Settings, bool)),
    Time(fn(&mut Settings, Duration)),
    /// A number, 1 or more.
    Count(fn(&mut Settings, u64)),
    /// Another value: the expected form, and what reads it.
    Other(&'static str, fn(&mut Settings, &str) -> Option<()>),
}

/// The values of a switch.
pub const SWITCH: &str = "on, 1, true or yes; or off, 0, false or no";

/// Returns all settings.
pub fn all() -> &'static [Setting] {
    TABLE
}

const TABLE: &[Setting] = &[
    Setting {
        name: "capacity",
        help: "the most that may be registered at once: 1GiB, 64M, 4096; else what may be pinned",
        default: None,
        value: Value::Other(
            "bytes, with K, M, G or T (powers of 1024) or kB, MB, GB or TB (of 1000) if you like, and at least 4096, one page: 64M",
            |settings, text| {
                let pages = bytes(text).map(|bytes| bytes / PAGE).filter(|&pages| pages > 0);
                put(&mut settings.capacity_pages, pages.map(Some))
            },
        ),
    },
    Setting {
        name: "max_regions",
        help: "the most registrations at once: a number; else what the registrar takes, or 2^20",
        default: None,
        value: Value::Count(|settings, regions| settings.max_regions = Some(regions)),
    },
    Setting {
        name: "slice",
        help: "no registration crosses a multiple of so many bytes: 1G; else what the device takes",
        default: None,
        value: Value::Other("bytes as in capacity, and at least 4096, one page: 1G", |settings, text| {
            let pages = bytes(text).map(|bytes| bytes / PAGE).filter(|&pages| pages > 0);
            put(&mut settings.slice_pages, pages.map(Some))
        }),
    },
    Setting {
        name: "policy",
        help: "the eviction policy: probation (default), mrrc, gdsf, ...; an error names all of them",
        default: Some("probation"),
        value: Value::Other("the name of a policy", |settings, text| {
            put(&mut settings.policy, text.parse().ok().map(Some))
        }),
    },
    Setting {
        name: "resort",
        help: "the share of the capacity in the resorting section of policy mrrc: 0.5 (default)",
        default: Some("0.5"),
        value: Value::Fraction(|settings, share| settings.resort = Some(share)),
    },
    Setting {
        name: "evict",
        help: "the share of the capacity that policy mrrc evicts in one batch: 0.1 (default)",
        default: Some("0.1"),
        value: Value::Fraction(|settings, share| settings.evict = Some(share)),
    },
    Setting {
        name: "widen",
        help: "on, off: whether misses register neighbours too, where that has paid; else off",
        default: None,
        value: Value::Switch(|settings, on| settings.widen = Some(on)),
    },
    Setting {
        name: "cost",
        help: "the cost model: paper (default), fmr, io-uring, or four numbers of microseconds",
        default: Some("paper"),
        value: Value::Other(
            "a cost model: paper, fmr, io-uring, or four numbers of microseconds, as 0.77,7.42,0.22,1.1: to register a \
             page, and each call; to deregister a page, and each batch",
            |settings, text| put(&mut settings.costs, text.parse().ok().map(Some)),
        ),
    },
    Setting {
        name: "monitor",
        help: "reports changes of memory: userfaultfd (default); or explicit: the program does",
        default: if cfg!(target_os = "linux") { Some("userfaultfd") } else { None },
        value: Value::Other("userfaultfd or explicit", |settings, text| {
            put(&mut settings.monitor, MonitorKind::ALL.iter().find(|kind| kind.name() == text).map(|&kind| Some(kind)))
        }),
    },
    Setting {
        name: "shared",
        help: "shared memory that is cached besides anonymous: sealed (default) memfds; trusted; off",
        default: Some("sealed"),
        value: Value::Other("sealed, trusted or off", |settings, text| {
            let found = SharedMemory::ALL.into_iter().find(|shared| shared.name() == text);
            put(&mut settings.shared, found.map(Some))
        }),
    },
    Setting {
        name: "discard_grace",
        help: "longer than any discard of memory by the program takes: 100ms (default)",
        default: Some("100ms"),
        value: Value::Time(|settings, time| settings.grace = Some(time)),
    },
    Setting {
        name: "capacity_timeout",
        help: "how long a request waits for leases to end when all is in use: 0 (default), 20ms",
        default: Some("0"),
        value: Value::Time(|settings, time| settings.capacity_timeout = time),
    },
    Setting {
        name: "wait_timeout",
        help: "how long a request waits for other threads: 10s (default)",
        default: Some("10s"),
        value: Value::Time(|settings, time| settings.wait_timeout = time),
    },
    Setting {
        name: "retries",
        help: "how often a registration is tried again after room was made: 4 (default)",
        default: Some("4"),
        value: Value::Other("a number", |settings, text| put(&mut settings.retries, text.parse().ok())),
    },
    Setting {
        name: "max_segments",
        help: "the most segments of a lease, 1 where a transfer takes one key; else no limit",
        default: None,
        value: Value::Count(|settings, segments| {
            settings.max_segments = usize::try_from(segments).unwrap_or(usize::MAX)
        }),
    },
    Setting {
        name: "headroom",
        help: "the share of the capacity that the background keeps free: 0 (default)",
        default: Some("0"),
        value: Value::Fraction(|settings, share| settings.headroom = share),
    },
    Setting {
        name: "max_unheld",
        help: "after this time regions without a lease end: 60s, or with a size 1G,60s; else never",
        default: None,
        value: Value::Other(
            "a time of 100ms or more, after a size and a comma if you like: 60s, or 1G,60s; or off",
            |settings, text| put(&mut settings.max_unheld, unheld(text).map(Some)),
        ),
    },
    Setting {
        name: "pressure",
        help: "on, off (default): whether the cache keeps less while memory is short",
        default: Some("off"),
        value: Value::Switch(|settings, on| settings.pressure = on),
    },
    Setting {
        name: "background",
        help: "on, off: whether a thread of the cache deregisters; else on if the monitor reports",
        default: None,
        value: Value::Switch(|settings, on| settings.background = Some(on)),
    },
    Setting {
        name: "histograms",
        help: "on, off (default): whether latencies are recorded; 50 ns an acquire",
        default: Some("off"),
        value: Value::Switch(|settings, on| settings.histograms = on),
    },
    Setting {
        name: "fence",
        help: "on, off (default): whether hits use a fence although there is membarrier",
        default: Some("off"),
        value: Value::Switch(|settings, on| settings.fence = on),
    },
    #[cfg(target_os = "linux")]
    Setting {
        name: "cpus",
        help: "all, or 0-3,8: where own threads of all caches run; else as the process was at load",
        default: None,
        value: Value::Other("all, or the numbers of CPUs: 0-3,8", |settings, text| {
            put(&mut settings.cpus, own_thread::Cpus::parse(text).map(Some))
        }),
    },
];

impl Setting {
    /// Returns its name: `capacity`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the name of its environment variable: `MRRC_CAPACITY`.
    pub fn variable(&self) -> String {
        format!("MRRC_{}", self.name.to_ascii_uppercase())
    }

    /// Returns its line of documentation: meaning, values and default.
    pub fn help(&self) -> &'static str {
        self.help
    }

    /// Returns the text that sets its default, where that is one.
    pub fn default(&self) -> Option<&'static str> {
        self.default
    }

    /// Returns what a value may be, as in errors.
    pub fn expected(&self) -> String {
        match self.value {
            Value::Fraction(_) => "a fraction of the capacity, from 0 to 1".into(),
            Value::Switch(_) => SWITCH.into(),
            Value::Time(_) => "a time: 0, 500us, 20ms, 10s".into(),
            Value::Count(_) => "a number, 1 or more".into(),
            Value::Other(expected, _) if self.name == "policy" => {
                let names: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
                format!("{expected}: {}", names.join(", "))
            }
            Value::Other(expected, _) => expected.into(),
        }
    }

    /// Sets it to a text, whose case and outer spaces do not matter. Returns None, and changes nothing, if it is no such value.
    pub(super) fn set(&self, settings: &mut Settings, text: &str) -> Option<()> {
        let text = &*text.trim().to_ascii_lowercase();
        match self.value {
            Value::Fraction(set) => set(settings, text.parse().ok().filter(|share| (0.0..=1.0).contains(share))?),
            Value::Switch(set) => set(settings, switch(text)?),
            Value::Time(set) => set(settings, time(text)?),
            Value::Count(set) => set(settings, text.parse().ok().filter(|&count| count > 0)?),
            Value::Other(_, set) => set(settings, text)?,
        }
        Some(())
    }
}

fn put<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

/// Reads a switch: see [`SWITCH`].
pub fn switch(text: &str) -> Option<bool> {
    match &*text.trim().to_ascii_lowercase() {
        "on" | "1" | "true" | "yes" => Some(true),
        "off" | "0" | "false" | "no" => Some(false),
        _ => None,
    }
}

/// Reads a limit on regions without a lease.
fn unheld(text: &str) -> Option<UnheldLimit> {
    if text == "off" {
        return Some(UnheldLimit::NONE);
    }
    let (size, longest) = text.rsplit_once(',').map_or((None, text), |(size, time)| (Some(size), time));
    let pages = size.map_or(Some(u64::MAX), |size| bytes(size).map(|bytes| bytes / PAGE))?;
    let time = time(longest.trim()).filter(|&time| time >= UnheldLimit::SHORTEST)?;
    Some(UnheldLimit::new(pages, time))
}

fn time(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number = digits.parse::<u64>().ok()?;
    match text[digits.len()..].trim_start() {
        "" if number == 0 => Some(Duration::ZERO),
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}
