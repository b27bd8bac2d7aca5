//! Capacities as people write them: `8192p`, `32MiB`, `5%`.

use std::fmt;
use std::str::FromStr;

/// The pages that may be registered at once in each process's cache, or their share of what the trace touches.
#[derive(Clone, PartialEq, Debug)]
pub struct Capacity {
    /// As it was written.
    text: String,
    size: Size,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Size {
    Pages(u64),
    Percent(f64),
}

/// Why a capacity cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("capacity `{given}`: {what}; give pages (8192p), bytes (32MiB) or a share of the footprint (5%)")]
pub struct CapacityError {
    given: String,
    what: &'static str,
}

impl Capacity {
    /// So many pages.
    pub fn of_pages(pages: u64) -> Self {
        Self { text: format!("{pages}p"), size: Size::Pages(pages) }
    }

    /// Returns whether both are the same size on any trace, however they are written.
    pub fn is_same(&self, other: &Self) -> bool {
        self.size == other.size
    }

    /// Returns whether it is a share of the footprint.
    pub fn is_share(&self) -> bool {
        matches!(self.size, Size::Percent(_))
    }

    /// Pages, where the trace touches so many: those of its largest process. A share is rounded down, to one page at least.
    pub fn pages(&self, footprint_pages: u64) -> u64 {
        match self.size {
            Size::Pages(pages) => pages,
            Size::Percent(percent) => ((percent / 100.0 * footprint_pages as f64) as u64).max(1),
        }
    }
}

/// As it was written.
impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl FromStr for Capacity {
    type Err = CapacityError;

    /// `8192p`, `32MiB`, `33554432B`, `5%`; bytes as [`mrrc_core::units::bytes`] reads them, so `32M` is `32MiB`, and `32MB` is
    /// 32,000,000. They are rounded down to whole pages.
    fn from_str(given: &str) -> Result<Self, CapacityError> {
        let error = |what| CapacityError { given: given.to_owned(), what };
        let text = given.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim());
        if number.is_empty() {
            return Err(error("no number, 0 or more, at its start"));
        }
        let size = if unit == "%" {
            let percent: f64 = number.parse().map_err(|_| error("not a number"))?;
            // More than everything is no mistake, but no more than everything is ever used.
            if percent > 0.0 && percent <= 1000.0 {
                Size::Percent(percent)
            } else {
                return Err(error("a share lies above 0 and at most at 1000 %"));
            }
        } else {
            let bytes = match unit.to_ascii_lowercase().as_str() {
                "p" | "page" | "pages" => mrrc_core::PAGE,
                // Pages, or bytes?
                "" => return Err(error("no unit")),
                // How many bytes one of it is.
                unit if unit.bytes().all(|letter| letter.is_ascii_alphabetic()) => {
                    mrrc_core::units::bytes(&format!("1{unit}")).ok_or_else(|| error("an unknown unit"))?
                }
                _ => return Err(error("an unknown unit")),
            };
            let number: u64 = number.parse().map_err(|_| error("not a whole number that fits 64 bits"))?;
            let bytes = number.checked_mul(bytes).ok_or_else(|| error("more than an address space"))?;
            match bytes / mrrc_core::PAGE {
                0 => return Err(error("less than one page of 4 KiB")),
                pages => Size::Pages(pages),
            }
        };
        Ok(Self { text: text.to_owned(), size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_bytes_and_shares_are_read() {
        for (text, pages) in [
            ("8192p", 8192),
            ("32MiB", 8192),
            ("32m", 8192),
            ("32M", 8192),
            ("32MB", 7812),
            ("40KB", 9),
            ("1 TB", 244_140_625),
            ("33554432B", 8192),
            ("1 GiB", 262_144),
            ("5%", 50),
            ("0.05%", 1),
            ("12.5 %", 125),
            ("150%", 1500),
        ] {
            let capacity: Capacity = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(capacity.pages(1000), pages, "{text}");
            assert_eq!(capacity.to_string(), text);
        }
    }

    #[test]
    fn bad_size_shows_the_three_forms() {
        for bad in [
            "",
            "0p",
            "0%",
            "0B",
            "4095B",
            "8192",
            "p",
            "%",
            "-5%",
            "5 percent",
            "4 5M",
            "5MBB",
            "1.5GiB",
            "1001%",
            "1..5%",
            "99999999999999999999p",
            "18446744073709551615p",
            "9999999999999TiB",
            "nan%",
            "1e3p",
        ] {
            let error = bad.parse::<Capacity>().expect_err(bad).to_string();
            assert!(error.contains(&format!("`{bad}`")) && error.contains("8192p"), "{error}");
        }
    }
}
