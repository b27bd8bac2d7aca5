//! The settings of a cache: one table for the builder, the environment, the C interface, the shim and the documentation.
//!
//! A setting comes from the first of these that has it: an environment variable, which is for the user of the program; the
//! program, by a call of [`Builder`](crate::cache::Builder) or by name; the default. What correctness rests on the
//! environment can only strengthen: see below. No setting exceeds the limits of the registrar.
#![doc = include_str!("settings.md")]
//!
//! A variable is named `MRRC_` and the name in capitals: `MRRC_CAPACITY`. Case does not matter in values. An empty variable
//! counts as unset. `MRRC_MONITOR=userfaultfd` is for a program that chose [`Explicit`](crate::invalidation::Explicit);
//! `explicit` weakens every other choice, the default too, and is ignored then, with a line on standard error. So is a time of
//! `MRRC_DISCARD_GRACE` that is shorter than the program's (or 100 ms, if it set none). Variables with other names are ignored, but a name that looks like a slip of one of these
//! (`MRRC_CAPACTIY`, `MRRC_CAP`, `MRRC_REGIONS`) is an error.

use crate::config::{Config, ConfigError};
use crate::error::BuildError;
use crate::own_thread;
use crate::range::{PAGE, PageRange};
use mrrc_core::cost::Linear;
use mrrc_core::policy::PolicyKind;
use mrrc_core::units::bytes;
use std::time::Duration;

/// Regions, unless the registrar has room for fewer or more are asked for. A region takes 24 bytes and what its
/// registration takes, rounded up to a multiple of 32, once it is used.
pub(crate) const REGIONS: u64 = 1 << 20;
/// Pages, where neither the registrar nor the machine limits them.
pub(crate) const PAGES: u64 = 1 << 18;
/// How long nothing is cached where pages were discarded, unless set.
pub(crate) const GRACE: Duration = Duration::from_millis(100);

/// The settings of the program or the environment.
///
/// Text comes in by [`Settings::set`]; values by the calls of [`Builder`](crate::cache::Builder).
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    pub(crate) capacity_pages: Option<u64>,
    pub(crate) max_regions: Option<u64>,
    pub(crate) config: Option<Config>,
    pub(crate) policy: Option<PolicyKind>,
    pub(crate) resort: Option<f64>,
    pub(crate) evict: Option<f64>,
    pub(crate) costs: Option<Linear>,
    pub(crate) monitor: Option<MonitorKind>,
    pub(crate) grace: Option<Duration>,
    pub(crate) capacity_timeout: Duration,
    pub(crate) wait_timeout: Duration,
    pub(crate) retries: u32,
    pub(crate) max_segments: usize,
    pub(crate) headroom: f64,
    pub(crate) background: Option<bool>,
    pub(crate) histograms: bool,
    pub(crate) fence: bool,
    #[cfg(target_os = "linux")]
    pub(crate) cpus: Option<own_thread::Cpus>,
}

impl Default for Settings {
    /// Nothing is set.
    fn default() -> Self {
        Self {
            capacity_pages: None,
            max_regions: None,
            config: None,
            policy: None,
            resort: None,
            evict: None,
            costs: None,
            monitor: None,
            grace: None,
            capacity_timeout: Duration::ZERO,
            wait_timeout: Duration::from_secs(10),
            retries: 4,
            max_segments: usize::MAX,
            headroom: 0.0,
            background: None,
            histograms: false,
            fence: false,
            #[cfg(target_os = "linux")]
            cpus: None,
        }
    }
}

/// Monitors that have a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MonitorKind {
    Explicit,
    #[cfg(target_os = "linux")]
    Userfaultfd,
}

impl MonitorKind {
    #[cfg(target_os = "linux")]
    pub(crate) const DEFAULT: Self = Self::Userfaultfd;
    #[cfg(not(target_os = "linux"))]
    pub(crate) const DEFAULT: Self = Self::Explicit;

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Explicit => "explicit",
            #[cfg(target_os = "linux")]
            Self::Userfaultfd => "userfaultfd",
        }
    }
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    name: &'static str,
    help: &'static str,
    /// The text that sets the default, where that is one.
    default: Option<&'static str>,
    expected: &'static str,
    set: fn(&str, &mut Settings) -> Option<()>,
}

/// The values of a switch.
pub const SWITCH: &str = "on, 1, true or yes; or off, 0, false or no";
const FRACTION: &str = "a fraction of the capacity, from 0 to 1";

/// Returns all settings.
pub fn all() -> &'static [Setting] {
    TABLE
}

const TABLE: &[Setting] = &[
    Setting {
        name: "capacity",
        help: "the most that may be registered at once: 1GiB, 64M, 4096; else what may be pinned",
        default: None,
        expected: "bytes, with K, M, G or T (powers of 1024) or kB, MB, GB or TB (of 1000) if you like, and at least 4096, one page: 64M",
        set: |text, settings| {
            settings.capacity_pages = Some(Some(bytes(text)? / PAGE).filter(|&pages| pages > 0)?);
            Some(())
        },
    },
    Setting {
        name: "max_regions",
        help: "the most registrations at once: a number; else what the registrar takes, or 2^20",
        default: None,
        expected: "a number, 1 or more",
        set: |text, settings| {
            settings.max_regions = Some(text.parse().ok().filter(|&regions| regions > 0)?);
            Some(())
        },
    },
    Setting {
        name: "policy",
        help: "the eviction policy: mrrc (default), gdsf, sieve, ...; an error names all of them",
        default: Some("mrrc"),
        expected: "the name of a policy",
        set: |text, settings| {
            settings.policy = Some(text.parse::<PolicyKind>().ok()?);
            Some(())
        },
    },
    Setting {
        name: "resort",
        help: "the share of the capacity in the resorting section of policy mrrc: 0.5 (default)",
        default: Some("0.5"),
        expected: FRACTION,
        set: |text, settings| {
            settings.resort = Some(fraction(text)?);
            Some(())
        },
    },
    Setting {
        name: "evict",
        help: "the share of the capacity that is evicted in one batch: 0.1 (default)",
        default: Some("0.1"),
        expected: FRACTION,
        set: |text, settings| {
            settings.evict = Some(fraction(text)?);
            Some(())
        },
    },
    Setting {
        name: "cost",
        help: "the cost model: paper (default), fmr, io-uring, or four numbers of microseconds",
        default: Some("paper"),
        expected: "a cost model: paper, fmr, io-uring, or four numbers of microseconds, as 0.77,7.42,0.22,1.1: to register a \
                   page, and each call; to deregister a page, and each batch",
        set: |text, settings| {
            settings.costs = Some(text.parse::<Linear>().ok()?);
            Some(())
        },
    },
    Setting {
        name: "monitor",
        help: "reports changes of memory: userfaultfd (default); or explicit: the program does",
        default: if cfg!(target_os = "linux") { Some("userfaultfd") } else { None },
        expected: "userfaultfd or explicit",
        set: |text, settings| {
            settings.monitor = Some(match text {
                "explicit" => MonitorKind::Explicit,
                #[cfg(target_os = "linux")]
                "userfaultfd" => MonitorKind::Userfaultfd,
                _ => return None,
            });
            Some(())
        },
    },
    Setting {
        name: "discard_grace",
        help: "longer than any discard of memory by the program takes: 100ms (default)",
        default: Some("100ms"),
        expected: "a time: 20ms, 1s",
        set: |text, settings| {
            settings.grace = Some(time(text)?);
            Some(())
        },
    },
    Setting {
        name: "capacity_timeout",
        help: "how long a request waits for leases to end when all is in use: 0 (default), 20ms",
        default: Some("0"),
        expected: "a time: 0, 500us, 20ms, 2s",
        set: |text, settings| {
            settings.capacity_timeout = time(text)?;
            Some(())
        },
    },
    Setting {
        name: "wait_timeout",
        help: "how long a request waits for other threads: 10s (default)",
        default: Some("10s"),
        expected: "a time: 500us, 20ms, 10s",
        set: |text, settings| {
            settings.wait_timeout = time(text)?;
            Some(())
        },
    },
    Setting {
        name: "retries",
        help: "how often a registration is tried again after room was made: 4 (default)",
        default: Some("4"),
        expected: "a number",
        set: |text, settings| {
            settings.retries = text.parse().ok()?;
            Some(())
        },
    },
    Setting {
        name: "max_segments",
        help: "the most segments of a lease, 1 where a transfer takes one key; else no limit",
        default: None,
        expected: "a number, 1 or more",
        set: |text, settings| {
            settings.max_segments = text.parse().ok().filter(|&segments| segments > 0)?;
            Some(())
        },
    },
    Setting {
        name: "headroom",
        help: "the share of the capacity that the background keeps free: 0 (default)",
        default: Some("0"),
        expected: FRACTION,
        set: |text, settings| {
            settings.headroom = fraction(text)?;
            Some(())
        },
    },
    Setting {
        name: "background",
        help: "on, off: whether a thread of the cache deregisters; else on if the monitor reports",
        default: None,
        expected: SWITCH,
        set: |text, settings| {
            settings.background = Some(switch(text)?);
            Some(())
        },
    },
    Setting {
        name: "histograms",
        help: "on, off (default): whether latencies are recorded; 50 ns an acquire",
        default: Some("off"),
        expected: SWITCH,
        set: |text, settings| {
            settings.histograms = switch(text)?;
            Some(())
        },
    },
    Setting {
        name: "fence",
        help: "on, off (default): whether hits use a fence although there is membarrier",
        default: Some("off"),
        expected: SWITCH,
        set: |text, settings| {
            settings.fence = switch(text)?;
            Some(())
        },
    },
    #[cfg(target_os = "linux")]
    Setting {
        name: "cpus",
        help: "all, or 0-3,8: where own threads of all caches run; else as the process was at load",
        default: None,
        expected: "all, or the numbers of CPUs: 0-3,8",
        set: |text, settings| {
            settings.cpus = Some(own_thread::Cpus::parse(text)?);
            Some(())
        },
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
        if self.name == "policy" {
            let names: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
            return format!("{}: {}", self.expected, names.join(", "));
        }
        self.expected.into()
    }
}

impl Settings {
    /// Sets one by its [name](Setting::name), in any case.
    ///
    /// # Errors
    /// [`BuildError::Setting`]: no such name, or no such value. Nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), BuildError> {
        let wrong = |expected| BuildError::Setting { name: name.to_owned(), value: value.to_owned(), expected };
        let Some(setting) = TABLE.iter().find(|setting| setting.name.eq_ignore_ascii_case(name)) else {
            return Err(wrong(match meant(name) {
                Some(meant) => format!("there is no such setting: did you mean {}?", meant.name),
                None => {
                    let names: Vec<_> = TABLE.iter().map(|setting| setting.name).collect();
                    format!("there is no such setting: choose from {}", names.join(", "))
                }
            }));
        };
        let set = (setting.set)(&value.trim().to_ascii_lowercase(), self);
        set.ok_or_else(|| wrong(format!("expected {}", setting.expected())))
    }

    /// Returns those of the environment of this process.
    ///
    /// # Errors
    /// [`BuildError::Variable`]: a variable has no such value, or its name looks like a slip.
    pub fn of_environment() -> Result<Self, BuildError> {
        let mut settings = Self::default();
        settings.read_environment()?;
        Ok(settings)
    }

    /// Sets those of the environment of this process.
    pub(crate) fn read_environment(&mut self) -> Result<(), BuildError> {
        // A name that is no text is no setting of ours.
        self.read(std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("MRRC_"))?;
            Some((name, value.to_string_lossy().into_owned()))
        }))
    }

    /// Reads variables. The text of a value is trimmed, and its case does not matter; an empty one counts as unset.
    fn read(&mut self, variables: impl IntoIterator<Item = (String, String)>) -> Result<(), BuildError> {
        for (name, value) in variables {
            let Some(short) = name.strip_prefix("MRRC_") else { continue };
            let text = &*value.trim().to_ascii_lowercase();
            let Some(setting) = TABLE.iter().find(|setting| setting.variable() == name) else {
                // Not ours, or misspelt: a setting that is silently not made is worse than a program that will not start.
                if let Some(meant) = meant(short) {
                    let expected = format!("there is no such setting: did you mean {}?", meant.variable());
                    return Err(BuildError::Variable { name, value, expected });
                }
                continue;
            };
            if !text.is_empty() && (setting.set)(text, self).is_none() {
                let expected = format!("expected {}", setting.expected());
                return Err(BuildError::Variable { name, value, expected });
            }
        }
        Ok(())
    }

    /// Returns whether a cache can be built with them, over a registrar without limits.
    ///
    /// # Errors
    /// [`BuildError::Config`]: what contradicts.
    pub fn check(&self) -> Result<(), BuildError> {
        let mut config = self.config()?;
        let capacity = self.capacity_pages.unwrap_or(PAGES).min(PageRange::EVERYTHING.pages());
        config.capacity = capacity;
        config.max_regions = Some(config.max_regions.unwrap_or(REGIONS).min(capacity.max(1)));
        config.build()?;
        Ok(())
    }

    /// Returns what the core is made of, before limits apply: the program's configuration with the single settings in it.
    pub(crate) fn config(&self) -> Result<Config, BuildError> {
        let mut config = self.config.clone().unwrap_or_else(|| Config::new(0));
        config.max_regions = self.max_regions.or(config.max_regions);
        config.policy = self.policy.unwrap_or(config.policy);
        config.resort = self.resort.unwrap_or(config.resort);
        config.evict = self.evict.unwrap_or(config.evict);
        config.cost = self.costs.unwrap_or(config.cost);
        if !(0.0..=1.0).contains(&self.headroom) {
            return Err(ConfigError::Fraction { name: "headroom", value: self.headroom }.into());
        }
        if self.max_segments == 0 {
            return Err(ConfigError::ZeroLimit { name: "max_segments" }.into());
        }
        Ok(config)
    }
}

/// Reads a switch: see [`SWITCH`].
pub fn switch(text: &str) -> Option<bool> {
    match &*text.trim().to_ascii_lowercase() {
        "on" | "1" | "true" | "yes" => Some(true),
        "off" | "0" | "false" | "no" => Some(false),
        _ => None,
    }
}

fn fraction(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value| (0.0..=1.0).contains(value))
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

/// The setting that a name without its prefix was meant for: a slip of one or two letters, the case, words left out or
/// added (`REGIONS`, `CAPACITY_BYTES`), or a beginning (`CAP`).
fn meant(typed: &str) -> Option<&'static Setting> {
    let typed = typed.to_ascii_lowercase();
    let within = |some: &str, all: &str| some.split('_').all(|word| all.split('_').any(|other| other == word));
    let is_part = |name: &str| name.starts_with(&typed) || within(&typed, name) || within(name, &typed);
    let slip = TABLE.iter().find(|setting| is_slip(setting.name, &typed));
    slip.or_else(|| TABLE.iter().find(|setting| typed.len() >= 3 && is_part(setting.name)))
}

fn is_slip(name: &str, typed: &str) -> bool {
    let (a, b) = (name.as_bytes(), typed.as_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()] <= 2.min(name.len() / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, BuildError> {
        let mut settings = Settings::default();
        settings.read(variables.iter().map(|&(name, value)| (name.into(), value.into())))?;
        Ok(settings)
    }

    #[test]
    fn every_variable_sets_what_it_says() {
        let set = settings(&[
            ("MRRC_CAPACITY", "64M"),
            ("MRRC_MAX_REGIONS", "1000"),
            ("MRRC_POLICY", "Sieve"),
            ("MRRC_RESORT", "0.25"),
            ("MRRC_EVICT", "0.2"),
            ("MRRC_COST", "fmr"),
            ("MRRC_MONITOR", "Explicit"),
            ("MRRC_CAPACITY_TIMEOUT", "20ms"),
            ("MRRC_WAIT_TIMEOUT", "3s"),
            ("MRRC_DISCARD_GRACE", "1 S"),
            ("MRRC_HEADROOM", "0.1"),
            ("MRRC_RETRIES", "2"),
            ("MRRC_MAX_SEGMENTS", "1"),
            ("MRRC_BACKGROUND", "off"),
            ("MRRC_HISTOGRAMS", "ON"),
            ("MRRC_FENCE", "1"),
            ("MRRC_CPUS", "0-3"),
            ("PATH", "/bin"),
        ])
        .unwrap();
        assert_eq!((set.capacity_pages, set.max_regions), (Some(16_384), Some(1000)));
        assert_eq!((set.policy, set.resort, set.evict), (Some(PolicyKind::Sieve), Some(0.25), Some(0.2)));
        assert_eq!((set.costs, set.monitor), (Some(Linear::FMR), Some(MonitorKind::Explicit)));
        assert_eq!(set.capacity_timeout, Duration::from_millis(20));
        assert_eq!((set.wait_timeout, set.grace), (Duration::from_secs(3), Some(Duration::from_secs(1))));
        assert_eq!(set.headroom, 0.1);
        assert_eq!((set.retries, set.max_segments), (2, 1));
        assert_eq!((set.background, set.histograms, set.fence), (Some(false), true, true));
        #[cfg(target_os = "linux")]
        assert_eq!(set.cpus, crate::own_thread::Cpus::parse("0,1,2,3"));
    }

    #[test]
    fn what_makes_no_sense_is_named_with_what_would() {
        for (name, value) in [
            ("MRRC_CAPACITY", "lots"),
            ("MRRC_CAPACITY", "4095"),
            ("MRRC_MAX_REGIONS", "0"),
            ("MRRC_POLICY", "best"),
            ("MRRC_EVICT", "1.5"),
            ("MRRC_RESORT", "NaN"),
            ("MRRC_COST", "free"),
            ("MRRC_MONITOR", "none"),
            ("MRRC_WAIT_TIMEOUT", "10"),
            ("MRRC_RETRIES", "-1"),
            ("MRRC_BACKGROUND", "maybe"),
            ("MRRC_HEADROOM", "7"),
            ("MRRC_CPUS", "3-1"),
        ] {
            let error = settings(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value) && error.contains("expected"), "{error}");
        }
    }

    #[test]
    fn a_capacity_is_read_as_a_size_is_everywhere() {
        for (text, pages) in [("32M", 8192), ("32MiB", 8192), ("32MB", 7812), ("32000000", 7812)] {
            assert_eq!(settings(&[("MRRC_CAPACITY", text)]).unwrap().capacity_pages, Some(pages), "{text}");
        }
    }

    #[test]
    fn every_policy_is_offered() {
        let error = settings(&[("MRRC_POLICY", "best")]).unwrap_err().to_string();
        let offered = error.split("policy: ").nth(1).unwrap();
        let names: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(offered.split(", ").collect::<Vec<_>>(), names, "{error}");
    }

    #[test]
    fn a_setting_by_name_is_that_of_the_variable() {
        let mut settings = Settings::default();
        settings.set("capacity", "1 GiB").unwrap();
        settings.set("Max_Segments", "2").unwrap();
        assert_eq!((settings.capacity_pages, settings.max_segments), (Some(1 << 18), 2));
        for (name, value, said) in [
            ("capacity", "lots", "setting capacity=\"lots\": expected bytes"),
            ("capacity", "", "expected bytes"),
            ("capactiy", "1G", "did you mean capacity?"),
            ("colour", "red", "choose from capacity, max_regions, policy"),
            ("", "1", "choose from"),
            ("MRRC_CAPACITY", "1G", "did you mean capacity?"),
        ] {
            let error = settings.set(name, value).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("environment"), "{error}");
        }
    }

    #[test]
    fn misspelled_variable_is_reported() {
        let error = settings(&[("MRRC_CAPACTIY", "64M")]).unwrap_err().to_string();
        assert!(error.contains("did you mean MRRC_CAPACITY"), "{error}");
        assert!(settings(&[("MRRC_policy", "mrrc")]).is_err());
        for (typed, meant) in [
            ("CAP", "CAPACITY"),
            ("CAPACITY_BYTES", "CAPACITY"),
            ("REGIONS", "MAX_REGIONS"),
            ("SEGMENTS", "MAX_SEGMENTS"),
            ("wait", "WAIT_TIMEOUT"),
            ("GRACE", "DISCARD_GRACE"),
        ] {
            let error = settings(&[(&format!("MRRC_{typed}"), "1")]).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean MRRC_{meant}?")), "{error}");
        }
        assert!(settings(&[("MRRC_CASES", "10"), ("MRRC_RECORD", "x"), ("MRRC_EVICT", " ")]).is_ok());
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let plain = Settings::default();
        for setting in all() {
            let Some(default) = setting.default else { continue };
            let mut set = Settings::default();
            set.set(setting.name, default).unwrap();
            assert_eq!(set.config().unwrap(), plain.config().unwrap(), "{}", setting.name);
            let stated = Settings {
                policy: None,
                resort: None,
                evict: None,
                costs: None,
                monitor: set.monitor.filter(|&monitor| monitor != MonitorKind::DEFAULT),
                grace: set.grace.filter(|&grace| grace != GRACE),
                ..set
            };
            assert_eq!(stated, plain, "{}", setting.name);
            let shown = [format!("{default} (default)"), format!("default: {default}")];
            assert!(shown.iter().any(|shown| setting.help.contains(shown)), "{}: {}", setting.name, setting.help);
        }
    }

    #[test]
    fn a_slip_means_the_nearest_name() {
        for (typed, meant) in
            [("CAPACITY_TIMEOT", "CAPACITY_TIMEOUT"), ("WAIT_TIME", "WAIT_TIMEOUT"), ("MAX_SEGMENT", "MAX_SEGMENTS")]
        {
            let error = settings(&[(&format!("MRRC_{typed}"), "1")]).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean MRRC_{meant}?")), "{error}");
        }
    }

    #[test]
    fn contradictions_are_found_without_a_cache() {
        assert!(Settings::default().check().is_ok());
        let of = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check()
        };
        assert!(of(|settings| settings.capacity_pages = Some(0)).is_err());
        assert!(of(|settings| settings.headroom = f64::NAN).is_err());
        assert!(of(|settings| settings.max_segments = 0).is_err());
        assert!(of(|settings| settings.evict = Some(2.0)).is_err());
    }

    /// The table in the documentation of this module, which README.md repeats.
    #[cfg(target_os = "linux")]
    fn table() -> String {
        let row = |setting: &Setting| format!("| `{}` | {} |\n", setting.variable(), setting.help());
        format!("| variable | |\n| --- | --- |\n{}", all().iter().map(row).collect::<String>())
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_documentation_has_the_table() {
        let place = concat!(env!("CARGO_MANIFEST_DIR"), "/src/settings.md");
        let made = format!("\n{}", table());
        if std::env::var("MRRC_SETTINGS").is_ok_and(|word| word == "write") {
            std::fs::write(place, &made).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(place).unwrap(),
            made,
            "MRRC_SETTINGS=write cargo test -p mrrc --lib writes it"
        );
        assert!(include_str!("../README.md").contains(&table()), "README.md has the table of src/settings.md");
    }
}
