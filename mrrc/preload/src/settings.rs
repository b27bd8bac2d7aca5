//! The settings of the shim, from the user's variables.
//!
//! Those of the caches themselves are mrrc's (`MRRC_CAPACITY`, `MRRC_POLICY`, …). They are tried once here, so that a mistake is
//! told at the start and not at the first registration. All variables are read once, when the library is loaded: a program that
//! clears its environment changes nothing.

use crate::eligibility::Remote;
use mrrc::BuildError;
use mrrc::bytes;
use mrrc::cache::Builder;
use mrrc::invalidation::SharedMemory;
use mrrc::registrar::{Registrar, memlock_limit};
use mrrc::settings::{self as cache, SWITCH, switch};
use std::path::PathBuf;

/// The destination of output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// Standard error as it was at the start: many programs close it before they end.
    Stderr,
    File(PathBuf),
}

/// The file of metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Metrics {
    /// The folder of the process at load, which a program may change.
    folder: PathBuf,
    /// With `%p` for the process that writes it.
    name: String,
}

/// The values of `MRRC_PRELOAD_REMOTE`.
const REMOTE: &str = "windows, trusted or 1, or off or 0";
/// How long regions with rights for peers stay without a lease, unless set.
const UNHELD: &str = "60s";

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    /// Nothing is cached, and nothing more is read.
    pub(crate) off: bool,
    pub(crate) remote: Remote,
    /// The preset of jobs whose processes trust each other: misses are widened as well, and shared memory is cached.
    pub(crate) preset: bool,
    /// The destination of the summary, if there is to be one.
    pub(crate) summary: Option<Target>,
    pub(crate) metrics: Option<Metrics>,
    /// Bytes of what the process may lock that the caches leave to others, if that was set.
    pub(crate) reserve: Option<u64>,
    /// All variables of mrrc's at load: names and values.
    variables: Vec<(String, String)>,
}

/// The least that is left to queue pairs and completion queues, of a limit that is at least twice that.
const RESERVE: u64 = 16 << 20;

impl Settings {
    /// Returns those with which nothing is cached.
    pub(crate) fn off() -> Self {
        Self { off: true, ..Self::default() }
    }

    /// # Errors
    /// A line that says which variable is wrong, and what it may be.
    pub(crate) fn read(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, String> {
        let mut settings = Self::default();
        let mut remote = None;
        let mut error = None;
        for (name, value) in variables {
            let text = value.trim();
            if text.is_empty() {
                continue;
            }
            let wrong = |expected: &str| format!("{name}={value:?}: expected {expected}");
            let read = match &*name {
                "MRRC_PRELOAD" if text.eq_ignore_ascii_case("trusted") => {
                    settings.preset = true;
                    Ok(())
                }
                "MRRC_PRELOAD" => {
                    switch(text).map(|on| settings.off = !on).ok_or_else(|| wrong(&format!("trusted, or {SWITCH}")))
                }
                "MRRC_PRELOAD_REMOTE" => read_remote(text).map(|read| remote = Some(read)).ok_or_else(|| wrong(REMOTE)),
                "MRRC_PRELOAD_SUMMARY" => {
                    settings.summary = match switch(text) {
                        Some(true) => Some(Target::Stderr),
                        Some(false) => None,
                        None => Some(Target::File(numbered(text).into())),
                    };
                    Ok(())
                }
                "MRRC_METRICS" => match switch(text) {
                    Some(false) => {
                        settings.metrics = None;
                        Ok(())
                    }
                    Some(true) => Err(wrong("the name of a file, or off")),
                    None => std::path::absolute(".")
                        .map(|folder| settings.metrics = Some(Metrics { folder, name: text.into() }))
                        .map_err(|error| format!("{name}={value:?}: find the folder of the process: {error}")),
                },
                "MRRC_RESERVE" => bytes(text)
                    .map(|bytes| settings.reserve = Some(bytes))
                    .ok_or_else(|| wrong("bytes, as MRRC_CAPACITY has them: 64M, or 0")),
                "MRRC_MAX_SEGMENTS" if text != "1" => Err(wrong("1, or nothing: an ibv_mr has one key for all of it")),
                _ if name.starts_with("MRRC_PRELOAD") => Err(format!(
                    "{name}={value:?}: there is no such setting; there are MRRC_PRELOAD, MRRC_PRELOAD_REMOTE and \
                     MRRC_PRELOAD_SUMMARY"
                )),
                _ => Ok(()),
            };
            error = error.or(read.err());
        }
        settings.remote = remote.unwrap_or(if settings.preset { Remote::Trusted } else { Remote::Off });
        match error {
            // An explicit `off` is final.
            Some(error) if !settings.off => Err(error),
            _ => Ok(settings),
        }
    }

    /// Returns the file of metrics of this process, if there is to be one.
    pub(crate) fn metrics_file(&self) -> Option<PathBuf> {
        self.metrics.as_ref().map(|Metrics { folder, name }| folder.join(numbered(name)))
    }

    /// Returns the part of a limit on locked memory, in bytes, that the caches leave to others. It is what was set, or an eighth:
    /// at least 16 MiB, and at most half.
    pub(crate) fn reserve(&self, limit: u64) -> u64 {
        self.reserve.unwrap_or_else(|| (limit / 8).max(RESERVE).min(limit / 2))
    }

    /// # Errors
    /// A line that states that the reserve leaves nothing of the limit on locked memory, in bytes.
    fn check_reserve(&self, limit: u64) -> Result<(), String> {
        match self.reserve {
            Some(reserve) if reserve > 0 && reserve >= limit => Err(format!(
                "MRRC_RESERVE={reserve}: nothing is left for the caches of a `ulimit -l` of {limit} bytes: lower the reserve, or raise the limit"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the builder of a cache with what the user chose. `for_peers`: its regions have rights for peers.
    ///
    /// Some settings the environment may only strengthen for a program that chose them (`Builder::set`). The shim applies
    /// those variables itself, because no program chooses for it.
    pub(crate) fn chosen<R: Registrar>(
        &self,
        mut builder: Builder<R>,
        for_peers: bool,
    ) -> Result<Builder<R>, BuildError> {
        for (name, variable, default) in self.defaults(for_peers) {
            if let Some(value) = self.variable(variable).or(default) {
                builder = builder.set(name, value)?;
            }
        }
        // Where the program reports changes itself, it reports none of the memory around what it registers.
        let is_watched = self.variable("MRRC_MONITOR").is_none_or(|monitor| !monitor.eq_ignore_ascii_case("explicit"));
        if self.preset && is_watched && self.variable("MRRC_WIDEN").is_none() {
            builder = builder.widen(true);
        }
        // Both classes have caches of their own. This one's regions can be reached by peers in any case.
        builder = builder.widen_for_peers(for_peers);
        if self.preset {
            builder = builder.shared_memory(SharedMemory::Trusted);
        }
        Ok(builder.variables(self.variables.iter().cloned()))
    }

    /// Returns the text of a variable at load, if it was set. The last one counts, as for mrrc.
    fn variable(&self, name: &str) -> Option<&str> {
        let set = |(of, value): &'_ (String, String)| of == name && !value.trim().is_empty();
        self.variables.iter().rfind(|variable| set(variable)).map(|(_, value)| value.trim())
    }

    /// Returns the settings that the shim makes itself: name, variable, and the value unless that is set.
    ///
    /// A user that turned the background off gets no limit that needs it.
    fn defaults(&self, for_peers: bool) -> [(&'static str, &'static str, Option<&'static str>); 3] {
        let has_background = self.variable("MRRC_BACKGROUND").is_none_or(|text| switch(text) != Some(false));
        [
            ("monitor", "MRRC_MONITOR", None),
            ("discard_grace", "MRRC_DISCARD_GRACE", None),
            ("max_unheld", "MRRC_MAX_UNHELD", (for_peers && has_background).then_some(UNHELD)),
        ]
    }

    /// Settings of this process, those of mrrc's caches included.
    pub(crate) fn of_process() -> Result<Self, String> {
        let ours: Vec<_> = of_process().collect();
        if ours.is_empty() {
            return Ok(Self::default());
        }
        let mut settings = Self::read(ours.iter().cloned())?;
        if !settings.off {
            if let Some(limit) = memlock_limit() {
                settings.check_reserve(limit)?;
            }
            // Its errors of variables are those of a cache.
            match cache::Settings::of_variables(ours.iter().cloned()).and_then(|settings| settings.check()) {
                Err(BuildError::Variable { name, value, expected }) => {
                    return Err(format!("{name}={value:?}: {expected}"));
                }
                Err(error) => return Err(error.to_string()),
                Ok(_) => {}
            }
        }
        settings.variables = ours;
        Ok(settings)
    }
}

fn read_remote(text: &str) -> Option<Remote> {
    if text.eq_ignore_ascii_case("trusted") {
        return Some(Remote::Trusted);
    }
    if text.eq_ignore_ascii_case("windows") {
        return Some(Remote::Windows);
    }
    switch(text).map(|on| if on { Remote::Trusted } else { Remote::Off })
}

/// `%p` is the process, for programs of which several run at once.
fn numbered(name: &str) -> String {
    name.replace("%p", &std::process::id().to_string())
}

fn of_process() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with("MRRC_"))?;
        Some((name, value.to_string_lossy().into_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::read(variables.iter().map(|&(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn nothing_said_is_on_and_local() {
        let settings = read(&[("MRRC_CAPACITY", "64M"), ("MRRC_PRELOAD_REMOTE", " ")]).unwrap();
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn every_variable_sets_what_it_says() {
        let settings = read(&[("MRRC_PRELOAD", "on"), ("MRRC_PRELOAD_REMOTE", "1"), ("MRRC_PRELOAD_SUMMARY", "Yes")]);
        let expected = Settings { remote: Remote::Trusted, summary: Some(Target::Stderr), ..Settings::default() };
        assert_eq!(settings, Ok(expected));
        let file = read(&[("MRRC_PRELOAD_SUMMARY", "/tmp/of-%p")]).unwrap().summary;
        assert_eq!(file, Some(Target::File(format!("/tmp/of-{}", std::process::id()).into())));
        assert_eq!(read(&[("MRRC_PRELOAD_SUMMARY", "off")]).unwrap().summary, None);
        for off in ["off", "0", "No"] {
            assert_eq!(read(&[("MRRC_METRICS", off)]).unwrap().metrics, None, "{off}");
        }
    }

    #[test]
    fn metrics_stay_in_the_folder_of_the_start() {
        let file = |name: &str| read(&[("MRRC_METRICS", name)]).unwrap().metrics_file().unwrap();
        assert_eq!(file("/run/of-%p"), PathBuf::from(format!("/run/of-{}", std::process::id())));
        assert_eq!(file("of"), std::env::current_dir().unwrap().join("of"));
    }

    #[test]
    fn a_reserve_leaves_something_to_the_caches() {
        let check = |reserve: &str, limit| read(&[("MRRC_RESERVE", reserve)]).unwrap().check_reserve(limit);
        assert_eq!(
            (check("63M", 64 << 20), check("0", 0), Settings::default().check_reserve(0)),
            (Ok(()), Ok(()), Ok(()))
        );
        for reserve in ["64M", "1G"] {
            assert!(check(reserve, 64 << 20).unwrap_err().contains("nothing is left"), "{reserve}");
        }
    }

    #[test]
    fn keys_of_peers_end_after_a_minute_unless_set() {
        let of = |settings: &Settings, for_peers| {
            settings.defaults(for_peers).into_iter().find_map(|(name, _, value)| Some((name, value?)))
        };
        let mut settings = Settings::default();
        assert_eq!((of(&settings, false), of(&settings, true)), (None, Some(("max_unheld", "60s"))));
        settings.variables = vec![("MRRC_BACKGROUND".into(), " Off".into())];
        assert_eq!(of(&settings, true), None);
    }

    #[test]
    fn an_eighth_is_left_to_others() {
        let plain = Settings::default();
        let left = [(64 << 10, 32 << 10), (8 << 20, 4 << 20), (64 << 20, 16 << 20), (1 << 30, 128 << 20)];
        for (limit, reserve) in left {
            assert_eq!(plain.reserve(limit), reserve, "{limit}");
        }
        assert_eq!(read(&[("MRRC_RESERVE", "1M")]).unwrap().reserve(1 << 30), 1 << 20);
        assert_eq!(read(&[("MRRC_RESERVE", "0")]).unwrap().reserve(1 << 30), 0);
    }

    #[test]
    fn the_preset_trusts_peers_unless_told_otherwise() {
        let of = |variables: &[(&str, &str)]| read(variables).map(|settings| (settings.preset, settings.remote));
        assert_eq!(of(&[("MRRC_PRELOAD", "Trusted")]), Ok((true, Remote::Trusted)));
        assert_eq!(of(&[("MRRC_PRELOAD_REMOTE", "trusted")]), Ok((false, Remote::Trusted)));
        let windows = [("MRRC_PRELOAD_REMOTE", "Windows"), ("MRRC_PRELOAD", "trusted")];
        assert_eq!(of(&windows), Ok((true, Remote::Windows)));
        for both in [
            [("MRRC_PRELOAD", "trusted"), ("MRRC_PRELOAD_REMOTE", "0")],
            [("MRRC_PRELOAD_REMOTE", "off"), ("MRRC_PRELOAD", "trusted")],
        ] {
            assert_eq!(of(&both), Ok((true, Remote::Off)));
        }
        assert_eq!(of(&[("MRRC_PRELOAD", "on")]), Ok((false, Remote::Off)));
    }

    #[test]
    fn what_makes_no_sense_is_named_with_what_would() {
        for (name, value, part) in [
            ("MRRC_PRELOAD", "maybe", "expected trusted, or on"),
            ("MRRC_PRELOAD_REMOTE", "peers", "expected windows, trusted"),
            ("MRRC_PRELOAD_SUMARY", "1", "MRRC_PRELOAD_SUMMARY"),
            ("MRRC_MAX_SEGMENTS", "4", "one key"),
            ("MRRC_RESERVE", "some", "expected bytes"),
            ("MRRC_METRICS", "1", "expected the name of a file, or off"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.contains(name) && error.contains(value) && error.contains(part), "{error}");
            assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn who_says_off_is_not_asked_about_the_rest() {
        assert!(read(&[("MRRC_PRELOAD_REMOTE", "peers"), ("MRRC_PRELOAD", "off")]).unwrap().off);
    }

    #[test]
    fn every_setting_of_a_cache_is_in_the_readme() {
        for setting in cache::all() {
            assert!(include_str!("../README.md").contains(&format!("`{}`", setting.variable())), "{}", setting.name());
        }
    }
}
