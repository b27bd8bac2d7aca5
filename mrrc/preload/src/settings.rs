//! The settings of the shim, from the user's variables.
//!
//! Those of the caches themselves are mrrc's (`MRRC_CAPACITY`, `MRRC_POLICY`, …) and are read by it. They are tried once
//! here, so that a mistake is told at the start and not at the first registration.

use mrrc::BuildError;
use mrrc::cache::Builder;
use mrrc::registrar::Registrar;
use mrrc::settings::{self as cache, SWITCH, switch};
use std::path::PathBuf;

/// The destination of output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// Standard error as it was at the start: many programs close it before they end.
    Stderr,
    File(PathBuf),
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    /// Nothing is cached, and nothing more is read.
    pub(crate) off: bool,
    /// Whether rights for peers are cached.
    pub(crate) remote: bool,
    /// The destination of the summary, if there is to be one.
    pub(crate) summary: Option<Target>,
}

impl Settings {
    /// # Errors
    /// A line that says which variable is wrong, and what it may be.
    pub(crate) fn read(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, String> {
        let mut settings = Self::default();
        let mut error = None;
        for (name, value) in variables {
            let text = value.trim();
            if text.is_empty() {
                continue;
            }
            let wrong = |expected: &str| format!("{name}={value:?}: expected {expected}");
            let read = match &*name {
                "MRRC_PRELOAD" => switch(text).map(|on| settings.off = !on).ok_or_else(|| wrong(SWITCH)),
                "MRRC_PRELOAD_REMOTE" => switch(text).map(|on| settings.remote = on).ok_or_else(|| wrong(SWITCH)),
                "MRRC_PRELOAD_SUMMARY" => {
                    settings.summary = match switch(text) {
                        Some(true) => Some(Target::Stderr),
                        Some(false) => None,
                        None => Some(Target::File(numbered(text).into())),
                    };
                    Ok(())
                }
                "MRRC_MAX_SEGMENTS" if text != "1" => Err(wrong("1, or nothing: an ibv_mr has one key for all of it")),
                _ if name.starts_with("MRRC_PRELOAD") => Err(format!(
                    "{name}={value:?}: there is no such setting; there are MRRC_PRELOAD, MRRC_PRELOAD_REMOTE and \
                     MRRC_PRELOAD_SUMMARY"
                )),
                _ => Ok(()),
            };
            error = error.or(read.err());
        }
        match error {
            // An explicit `off` is final.
            Some(error) if !settings.off => Err(error),
            _ => Ok(settings),
        }
    }

    /// Settings of this process, those of mrrc's caches included.
    pub(crate) fn of_process() -> Result<Self, String> {
        let ours: Vec<_> = of_process().collect();
        if ours.is_empty() {
            return Ok(Self::default());
        }
        let settings = Self::read(ours)?;
        if !settings.off {
            // Its errors of variables are those of a cache.
            match cache::Settings::of_environment().and_then(|settings| settings.check()) {
                Err(BuildError::Variable { name, value, expected }) => {
                    return Err(format!("{name}={value:?}: {expected}"));
                }
                Err(error) => return Err(error.to_string()),
                Ok(_) => {}
            }
        }
        Ok(settings)
    }
}

/// Settings that the environment may only strengthen for a program that chose them (`Builder::set`): the shim applies the
/// variables, because no program chooses for it.
pub(crate) fn chosen<R: Registrar>(mut builder: Builder<R>) -> Result<Builder<R>, BuildError> {
    for (name, variable) in [("monitor", "MRRC_MONITOR"), ("discard_grace", "MRRC_DISCARD_GRACE")] {
        let value = std::env::var(variable).unwrap_or_default();
        if !value.trim().is_empty() {
            builder = builder.set(name, &value)?;
        }
    }
    Ok(builder)
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
        assert_eq!(settings, Settings { off: false, remote: false, summary: None });
    }

    #[test]
    fn every_variable_sets_what_it_says() {
        let settings = read(&[("MRRC_PRELOAD", "on"), ("MRRC_PRELOAD_REMOTE", "1"), ("MRRC_PRELOAD_SUMMARY", "Yes")]);
        assert_eq!(settings, Ok(Settings { off: false, remote: true, summary: Some(Target::Stderr) }));
        let file = read(&[("MRRC_PRELOAD_SUMMARY", "/tmp/of-%p")]).unwrap().summary;
        assert_eq!(file, Some(Target::File(format!("/tmp/of-{}", std::process::id()).into())));
        assert_eq!(read(&[("MRRC_PRELOAD_SUMMARY", "off")]).unwrap().summary, None);
    }

    #[test]
    fn what_makes_no_sense_is_named_with_what_would() {
        for (name, value, part) in [
            ("MRRC_PRELOAD", "maybe", "expected on"),
            ("MRRC_PRELOAD_REMOTE", "peers", "expected on"),
            ("MRRC_PRELOAD_SUMARY", "1", "MRRC_PRELOAD_SUMMARY"),
            ("MRRC_MAX_SEGMENTS", "4", "one key"),
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
