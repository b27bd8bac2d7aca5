//! Settings as text: by environment variables, for whoever runs a program that they cannot change; and by name, for who has
//! them from a file, a command line or another language.

use super::builder::{BuildError, MonitorKind, Settings};
use crate::bytes::bytes;
use crate::cost::Linear;
use crate::policy::PolicyKind;
use crate::range::PAGE;
use std::fmt;
use std::time::Duration;

/// A variable: its name after `MRRC_`, what it may be, and what it sets.
struct Variable {
    name: &'static str,
    expected: Expected,
    set: fn(&str, &mut Settings) -> Option<()>,
}

/// What a variable may be.
enum Expected {
    Text(&'static str),
    Policy,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Policy => {
                let names: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
                write!(f, "the name of a policy: {}", names.join(", "))
            }
        }
    }
}

/// What can be set. The documentation of [`Builder`](super::Builder) has the same table.
const VARIABLES: &[Variable] = &[
    Variable {
        name: "CAPACITY",
        expected: Expected::Text(
            "bytes, with K, M, G or T (powers of 1024) or kB, MB, GB or TB (of 1000) if you like, and at least 4096, one page: 64M",
        ),
        set: |text, settings| {
            settings.capacity_pages = Some(Some(bytes(text)? / PAGE).filter(|&pages| pages > 0)?);
            Some(())
        },
    },
    Variable {
        name: "MAX_REGIONS",
        expected: Expected::Text("a number, 1 or more"),
        set: |text, settings| {
            settings.max_regions = Some(text.parse().ok().filter(|&regions| regions > 0)?);
            Some(())
        },
    },
    Variable {
        name: "POLICY",
        expected: Expected::Policy,
        set: |text, settings| {
            settings.policy = Some(text.parse::<PolicyKind>().ok()?);
            Some(())
        },
    },
    Variable {
        name: "RESORT",
        expected: Expected::Text("a fraction of the capacity, from 0 to 1"),
        set: |text, settings| {
            settings.resort = Some(fraction(text)?);
            Some(())
        },
    },
    Variable {
        name: "EVICT",
        expected: Expected::Text("a fraction of the capacity, from 0 to 1"),
        set: |text, settings| {
            settings.evict = Some(fraction(text)?);
            Some(())
        },
    },
    Variable {
        name: "COST",
        expected: Expected::Text(
            "a cost model: paper, fmr, io-uring, or four numbers of microseconds, as 0.77,7.42,0.22,1.1: to register a \
             page, and each call; to deregister a page, and each batch",
        ),
        set: |text, settings| {
            settings.costs = Some(text.parse::<Linear>().ok()?);
            Some(())
        },
    },
    Variable {
        name: "MONITOR",
        expected: Expected::Text("userfaultfd or explicit"),
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
    Variable {
        name: "WAIT_FOR_ROOM",
        expected: Expected::Text("a time: 0, 500us, 20ms, 2s"),
        set: |text, settings| {
            settings.room_wait = Some(time(text)?);
            Some(())
        },
    },
    Variable {
        name: "PATIENCE",
        expected: Expected::Text("a time: 500us, 20ms, 10s"),
        set: |text, settings| {
            settings.patience = Some(time(text)?);
            Some(())
        },
    },
    Variable {
        name: "DISCARD_BAR",
        expected: Expected::Text("a time: 20ms, 1s"),
        set: |text, settings| {
            settings.bar = Some(time(text)?);
            Some(())
        },
    },
    Variable {
        name: "RETRIES",
        expected: Expected::Text("a number"),
        set: |text, settings| {
            settings.retries = Some(text.parse().ok()?);
            Some(())
        },
    },
    Variable {
        name: "MAX_SEGMENTS",
        expected: Expected::Text("a number, 1 or more"),
        set: |text, settings| {
            settings.max_segments = Some(text.parse().ok().filter(|&segments| segments > 0)?);
            Some(())
        },
    },
    Variable {
        name: "HEADROOM",
        expected: Expected::Text("a fraction of the capacity, from 0 to 1"),
        set: |text, settings| {
            settings.headroom = Some(fraction(text)?);
            Some(())
        },
    },
    Variable {
        name: "BACKGROUND",
        expected: Expected::Text("on, 1, true or yes; or off, 0, false or no"),
        set: |text, settings| {
            settings.background = Some(switch(text)?);
            Some(())
        },
    },
    Variable {
        name: "HISTOGRAMS",
        expected: Expected::Text("on, 1, true or yes; or off, 0, false or no"),
        set: |text, settings| {
            settings.histograms = Some(switch(text)?);
            Some(())
        },
    },
    #[cfg(target_os = "linux")]
    Variable {
        name: "CPUS",
        expected: Expected::Text("all, or the numbers of CPUs: 0-3,8"),
        set: |text, settings| {
            settings.cpus = Some(crate::own_thread::Cpus::parse(text)?);
            Some(())
        },
    },
    Variable {
        name: "FENCE",
        expected: Expected::Text("on, 1, true or yes; or off, 0, false or no"),
        set: |text, settings| {
            settings.fence = Some(switch(text)?);
            Some(())
        },
    },
];

fn fraction(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value| (0.0..=1.0).contains(value))
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "1" | "true" | "yes" => Some(true),
        "off" | "0" | "false" | "no" => Some(false),
        _ => None,
    }
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

/// Reads the variables. The text of a value is trimmed, and its case does not matter; an empty one counts as unset.
pub(super) fn read(
    variables: impl IntoIterator<Item = (String, String)>,
    settings: &mut Settings,
) -> Result<(), BuildError> {
    for (name, value) in variables {
        let Some(short) = name.strip_prefix("MRRC_") else { continue };
        let text = &*value.trim().to_ascii_lowercase();
        let Some(variable) = VARIABLES.iter().find(|variable| variable.name == short) else {
            // Not ours, or misspelt: a setting that is silently not made is worse than a program that will not start.
            if let Some(meant) = VARIABLES.iter().find(|variable| is_meant(variable.name, short)) {
                let expected = format!("there is no such setting: did you mean MRRC_{}?", meant.name);
                return Err(BuildError::Variable { name, value, expected });
            }
            continue;
        };
        if !text.is_empty() && (variable.set)(text, settings).is_none() {
            let expected = format!("expected {}", variable.expected);
            return Err(BuildError::Variable { name, value, expected });
        }
    }
    Ok(())
}

/// Sets one by its name, as it is in a variable after `MRRC_`, in any case.
pub(super) fn set(name: &str, value: &str, settings: &mut Settings) -> Result<(), BuildError> {
    let wrong = |expected| BuildError::Setting { name: name.to_owned(), value: value.to_owned(), expected };
    let Some(variable) = VARIABLES.iter().find(|variable| variable.name.eq_ignore_ascii_case(name)) else {
        let meant = VARIABLES.iter().find(|variable| is_meant(variable.name, name));
        let offered = || VARIABLES.iter().map(|variable| variable.name.to_ascii_lowercase()).collect::<Vec<_>>();
        return Err(wrong(match meant {
            Some(meant) => {
                format!("there is no such setting: did you mean {}?", meant.name.to_ascii_lowercase())
            }
            None => format!("there is no such setting: choose from {}", offered().join(", ")),
        }));
    };
    match (variable.set)(&value.trim().to_ascii_lowercase(), settings) {
        Some(()) => Ok(()),
        None => Err(wrong(format!("expected {}", variable.expected))),
    }
}

/// Whether somebody who typed this meant that: a slip of one or two letters, the case, words left out or added
/// (`REGIONS`, `CAPACITY_BYTES`), or a beginning (`CAP`).
fn is_meant(name: &str, typed: &str) -> bool {
    let typed = typed.to_ascii_uppercase();
    let within = |some: &str, all: &str| some.split('_').all(|word| all.split('_').any(|other| other == word));
    typed.len() >= 3 && (name.starts_with(&typed) || within(&typed, name) || within(name, &typed))
        || is_slip(name, &typed)
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

/// The variables of this process.
pub(super) fn of_process() -> impl Iterator<Item = (String, String)> {
    // A name that is no text is no setting of ours.
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with("MRRC_"))?;
        Some((name, value.to_string_lossy().into_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, BuildError> {
        let mut settings = Settings::default();
        read(variables.iter().map(|&(name, value)| (name.into(), value.into())), &mut settings)?;
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
            ("MRRC_WAIT_FOR_ROOM", "20ms"),
            ("MRRC_PATIENCE", "3s"),
            ("MRRC_DISCARD_BAR", "1 S"),
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
        assert_eq!(set.room_wait, Some(Duration::from_millis(20)));
        assert_eq!((set.patience, set.bar), (Some(Duration::from_secs(3)), Some(Duration::from_secs(1))));
        assert_eq!(set.headroom, Some(0.1));
        assert_eq!((set.retries, set.max_segments), (Some(2), Some(1)));
        assert_eq!((set.background, set.histograms, set.fence), (Some(false), Some(true), Some(true)));
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
            ("MRRC_PATIENCE", "10"),
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
        set("capacity", "1 GiB", &mut settings).unwrap();
        set("Max_Segments", "2", &mut settings).unwrap();
        assert_eq!((settings.capacity_pages, settings.max_segments), (Some(1 << 18), Some(2)));
        for (name, value, said) in [
            ("capacity", "lots", "setting capacity=\"lots\": expected bytes"),
            ("capacity", "", "expected bytes"),
            ("capactiy", "1G", "did you mean capacity?"),
            ("colour", "red", "choose from capacity, max_regions, policy"),
            ("", "1", "choose from"),
            ("MRRC_CAPACITY", "1G", "did you mean capacity?"),
        ] {
            let error = set(name, value, &mut settings).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("environment"), "{error}");
        }
    }

    #[test]
    fn a_slip_is_no_silence_and_other_peoples_variables_are_left_alone() {
        let error = settings(&[("MRRC_CAPACTIY", "64M")]).unwrap_err().to_string();
        assert!(error.contains("did you mean MRRC_CAPACITY"), "{error}");
        assert!(settings(&[("MRRC_policy", "mrrc")]).is_err());
        for (typed, meant) in [
            ("CAP", "CAPACITY"),
            ("CAPACITY_BYTES", "CAPACITY"),
            ("REGIONS", "MAX_REGIONS"),
            ("SEGMENTS", "MAX_SEGMENTS"),
            ("wait", "WAIT_FOR_ROOM"),
            ("BAR", "DISCARD_BAR"),
        ] {
            let error = settings(&[(&format!("MRRC_{typed}"), "1")]).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean MRRC_{meant}?")), "{error}");
        }
        assert!(settings(&[("MRRC_CASES", "10"), ("MRRC_RECORD", "x"), ("MRRC_EVICT", " ")]).is_ok());
    }
}
