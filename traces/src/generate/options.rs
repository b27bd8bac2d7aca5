//! Options as a command line spells them: `key=value,key=value`.

use crate::TraceError;
use std::str::FromStr;

/// Reads and shows options by one list: key, field and how its value is read. So what is shown can be read again.
macro_rules! spelled {
    ($options:ty: $($key:literal $field:ident $read:path),+ $(,)?) => {
        impl std::str::FromStr for $options {
            type Err = $crate::TraceError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let mut options = Self::default();
                let mut seen: Vec<&str> = Vec::new();
                for pair in $crate::generate::options::pairs(text) {
                    let (key, text) = pair?;
                    match key {
                        $($key => options.$field = $read(key, text)?,)+
                        _ => return Err($crate::generate::options::unknown(key, &[$($key),+])),
                    }
                    if seen.contains(&key) {
                        return Err($crate::generate::options::wrong(format!("`{key}` is given twice"), "give it once"));
                    }
                    seen.push(key);
                }
                Ok(options)
            }
        }

        impl std::fmt::Display for $options {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&[$(format!("{}={}", $key, self.$field)),+].join(","))
            }
        }
    };
}
pub(super) use spelled;

pub(super) fn wrong(what: impl Into<String>, remedy: impl Into<String>) -> TraceError {
    TraceError::Option { option: "workload", what: what.into(), remedy: remedy.into() }
}

/// Returns the pairs of a list.
pub(super) fn pairs(text: &str) -> impl Iterator<Item = Result<(&str, &str), TraceError>> {
    text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(|pair| {
        pair.split_once('=').ok_or_else(|| wrong(format!("`{pair}` has no value"), format!("write {pair}=…")))
    })
}

pub(super) fn unknown(key: &str, known: &[&str]) -> TraceError {
    wrong(format!("`{key}` is no option of it"), format!("it has {}", known.join(", ")))
}

/// A value that is a number.
pub(super) trait Number: FromStr {
    /// The form of such a number, in words.
    const FORM: &str;
}

impl Number for u32 {
    const FORM: &str = "a whole number";
}

impl Number for u64 {
    const FORM: &str = "a whole number";
}

impl Number for f64 {
    const FORM: &str = "a number, with a point where it has a fraction";
}

/// Reads a number of the type. Each option's own bounds are checked by [`within`].
pub(super) fn value<T: Number>(key: &str, text: &str) -> Result<T, TraceError> {
    text.parse().map_err(|_| {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            wrong(format!("{key}: `{text}` is too large"), "give a smaller number")
        } else {
            wrong(format!("{key}: `{text}` is no such number"), format!("give {}", T::FORM))
        }
    })
}

/// Bytes, as [`mrrc_core::units::bytes`] reads them: `30MB` is 30,000,000, `30MiB` 31,457,280.
pub(super) fn bytes(key: &str, text: &str) -> Result<u64, TraceError> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    // How many bytes one of it is.
    let unit = mrrc_core::units::bytes(&format!("1{}", &text[digits.len()..]));
    let unit = unit.ok_or_else(|| wrong(format!("{key}: `{text}` has no such unit"), "write 524MB or 500MiB"))?;
    let number: u64 = value(key, digits.trim_end())?;
    number.checked_mul(unit).ok_or_else(|| wrong(format!("{key}: `{text}` is too much"), "give fewer bytes"))
}

/// The option is within these bounds.
pub(super) fn within<T: PartialOrd + std::fmt::Display>(
    key: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), TraceError> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(wrong(format!("{key}={value} is out of its range"), format!("give {least} to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_large_differs_from_no_number() {
        let said = |text| value::<u32>("objects", text).map_err(|error| error.to_string());
        assert_eq!(said("7"), Ok(7));
        let large = said("99999999999999").unwrap_err();
        assert!(large.contains("objects: `99999999999999` is too large"), "{large}");
        for text in ["", "-1", "1.5", "ten"] {
            let wrong = said(text).unwrap_err();
            assert!(wrong.contains("is no such number") && wrong.contains("give a whole number"), "{wrong}");
            assert!(!wrong.contains("from 0"), "the option has bounds of its own: {wrong}");
        }
    }
}
