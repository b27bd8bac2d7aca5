//! The settings of a cache: one table for the builder, the environment, the C interface, the shim and the documentation.
//!
//! A setting comes from the first of these that has it: an environment variable, for the user of the program; the
//! program, by a call of [`Builder`](crate::cache::Builder) or by name; the default. What correctness rests on the
//! environment can only strengthen: see below. No setting exceeds the limits of the registrar.
#![doc = include_str!("settings.md")]
//!
//! A variable is named `MRRC_` and the name in capitals: `MRRC_CAPACITY`. Case does not matter in values. An empty variable
//! counts as unset. `MRRC_MONITOR=userfaultfd` is for a program that chose
//! [`Explicit`](crate::invalidation::Explicit). `explicit` weakens every other choice, the default too, and is
//! ignored then, with a line on standard error. `MRRC_SHARED=trusted` is not: it is the word of the user that no process takes pages of
//! shared memory away. So is a time of `MRRC_DISCARD_GRACE` that is shorter than the
//! program's (or 100 ms, if it set none). Of `MRRC_MAX_UNHELD` and the program's limit the stricter one holds.
//!
//! Variables with other names are ignored. A name that looks like a slip of one of these (`MRRC_CAPACTIY`, `MRRC_CAP`,
//! `MRRC_REGIONS`) is an error. So is a name from before a change, such as `MRRC_PATIENCE`: the error states the new one.

use crate::config::{Config, ConfigError};
use crate::core::Core;
use crate::error::BuildError;
use crate::own_thread;
use crate::range::PageRange;
use crate::shared_memory::SharedMemory;
use crate::unheld_limit::UnheldLimit;
use mrrc_core::cost::Linear;
use mrrc_core::policy::PolicyKind;
use std::time::Duration;

pub use table::{SWITCH, Setting, all, switch};

mod names;
mod table;
#[cfg(test)]
mod tests;

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
    pub(crate) slice_pages: Option<u64>,
    pub(crate) policy: Option<PolicyKind>,
    pub(crate) resort: Option<f64>,
    pub(crate) evict: Option<f64>,
    pub(crate) widen: Option<bool>,
    pub(crate) widen_for_peers: bool,
    pub(crate) costs: Option<Linear>,
    pub(crate) monitor: Option<MonitorKind>,
    pub(crate) shared: Option<SharedMemory>,
    pub(crate) grace: Option<Duration>,
    pub(crate) capacity_timeout: Duration,
    pub(crate) wait_timeout: Duration,
    pub(crate) retries: u32,
    pub(crate) max_segments: usize,
    pub(crate) headroom: f64,
    pub(crate) max_unheld: Option<UnheldLimit>,
    pub(crate) pressure: bool,
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
            slice_pages: None,
            policy: None,
            resort: None,
            evict: None,
            widen: None,
            widen_for_peers: false,
            costs: None,
            monitor: None,
            shared: None,
            grace: None,
            capacity_timeout: Duration::ZERO,
            wait_timeout: Duration::from_secs(10),
            retries: 4,
            max_segments: usize::MAX,
            headroom: 0.0,
            max_unheld: None,
            pressure: false,
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
    pub(crate) const ALL: &[Self] = &[
        Self::Explicit,
        #[cfg(target_os = "linux")]
        Self::Userfaultfd,
    ];
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

impl Settings {
    /// Sets one by its [name](Setting::name), in any case.
    ///
    /// # Errors
    /// [`BuildError::Setting`]: no such name, or no such value. Nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), BuildError> {
        let wrong = |expected| BuildError::Setting { name: name.to_owned(), value: value.to_owned(), expected };
        let Some(setting) = names::find(name) else {
            return Err(wrong(names::remedy(name, |setting| setting.name().into()).unwrap_or_else(|| {
                let names: Vec<_> = all().iter().map(Setting::name).collect();
                format!("there is no such setting: choose from {}", names.join(", "))
            })));
        };
        setting.set(self, value).ok_or_else(|| wrong(format!("expected {}", setting.expected())))
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

    /// Returns those of variables that were read before: names and values.
    ///
    /// # Errors
    /// As [`Settings::of_environment`].
    pub fn of_variables(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, BuildError> {
        let mut settings = Self::default();
        settings.read(variables)?;
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
    pub(crate) fn read(&mut self, variables: impl IntoIterator<Item = (String, String)>) -> Result<(), BuildError> {
        for (name, value) in variables {
            let Some(short) = name.strip_prefix("MRRC_") else { continue };
            let expected = match names::find(short).filter(|setting| setting.variable() == name) {
                Some(_) if value.trim().is_empty() => continue,
                Some(setting) if setting.set(self, &value).is_some() => continue,
                Some(setting) => format!("expected {}", setting.expected()),
                // Another program's, or a mistake: a program that does not start is better than one without its setting.
                None => match names::remedy(short, Setting::variable) {
                    Some(remedy) => remedy,
                    None => continue,
                },
            };
            return Err(BuildError::Variable { name, value, expected });
        }
        Ok(())
    }

    /// Returns whether a cache can be built with them, over a registrar without limits.
    ///
    /// # Errors
    /// [`BuildError::Config`], [`BuildError::Setting`]: what contradicts.
    pub fn check(&self) -> Result<(), BuildError> {
        if self.background == Some(false) {
            refuse_unheld(self.max_unheld)?;
            refuse_pressure(self.pressure)?;
        }
        let mut config = self.config()?;
        let capacity = self.capacity_pages.unwrap_or(PAGES).min(PageRange::EVERYTHING.pages());
        config.capacity = capacity;
        config.max_regions = Some(config.max_regions.unwrap_or(REGIONS).min(capacity.max(1)));
        Core::new(&config)?;
        Ok(())
    }

    /// Returns what the core is made of, before limits apply: the program's configuration with the single settings in it.
    pub(crate) fn config(&self) -> Result<Config, BuildError> {
        let mut config = self.config.clone().unwrap_or_else(|| Config::new(0));
        config.max_regions = self.max_regions.or(config.max_regions);
        config.slice_pages = self.slice_pages.or(config.slice_pages);
        config.policy = self.policy.unwrap_or(config.policy);
        config.resort = self.resort.unwrap_or(config.resort);
        config.evict = self.evict.unwrap_or(config.evict);
        config.widen = self.widen.or(config.widen);
        config.widen_for_peers |= self.widen_for_peers;
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

/// Refuses a limit where there is no background thread, which keeps to it.
///
/// # Errors
/// [`BuildError::Setting`], where there is one.
pub(crate) fn refuse_unheld(limit: Option<UnheldLimit>) -> Result<(), BuildError> {
    match limit {
        None | Some(UnheldLimit::NONE) => Ok(()),
        Some(_) => Err(BuildError::Setting {
            name: "background".into(),
            value: "off".into(),
            expected: "max_unheld needs the background thread: leave one of the two out".into(),
        }),
    }
}

/// Refuses to follow memory pressure where there is no background thread, which makes the room.
///
/// # Errors
/// [`BuildError::Setting`], where it is to be followed.
pub(crate) fn refuse_pressure(follows: bool) -> Result<(), BuildError> {
    if !follows {
        return Ok(());
    }
    Err(BuildError::Setting {
        name: "background".into(),
        value: "off".into(),
        expected: "pressure needs the background thread: leave one of the two out".into(),
    })
}
