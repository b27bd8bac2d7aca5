//! Sizes as people write them (`4096`, `64M`, `32MB`), and numbers with their nouns (`1 page`, `2 pages`).

use std::fmt;

/// Returns a number of bytes, with a unit if any. The case does not matter, and there may be spaces around the unit:
///
/// | unit | bytes |
/// | --- | --- |
/// | none, `B` | 1 |
/// | `K`, `M`, `G`, `T`; `KiB`, `MiB`, `GiB`, `TiB` | powers of 1024 |
/// | `kB`, `MB`, `GB`, `TB` | powers of 1000 |
///
/// `None` for what is no such number, or does not fit. Settings of the cache, the tools and their environment variables all
/// read sizes this way, so that a size that one of them found means the same to the other.
///
/// ```
/// assert_eq!(mrrc_core::units::bytes("64M"), Some(64 << 20));
/// assert_eq!(mrrc_core::units::bytes("64 MiB"), Some(64 << 20));
/// assert_eq!(mrrc_core::units::bytes("64MB"), Some(64_000_000));
/// assert_eq!(mrrc_core::units::bytes("1.5G"), None);
/// ```
pub fn bytes(text: &str) -> Option<u64> {
    // `traces-record`, which does not depend on this crate, reads sizes by itself; tracesim/tests/sizes.rs holds it to this.
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(unit)
}

/// Displays a number with its noun, which is given in the plural: `1 page`, `2 pages`.
#[derive(Clone, Copy, Debug)]
pub struct Count(pub u64, pub &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self(number, plural) = self;
        let noun = match plural {
            _ if number != 1 => plural,
            "batches" => "batch",
            "tries" => "try",
            _ => plural.strip_suffix('s').unwrap_or(plural),
        };
        write!(f, "{number} {noun}")
    }
}

/// Displays pages and regions, and leaves out what is 0: `1 page and 2 regions`, `3 regions`.
#[derive(Clone, Copy, Debug)]
pub struct Amounts {
    /// Pages.
    pub pages: u64,
    /// Regions.
    pub regions: u64,
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pages, regions) = (Count(self.pages, "pages"), Count(self.regions, "regions"));
        match (self.pages, self.regions) {
            (_, 0) => pages.fmt(f),
            (0, _) => regions.fmt(f),
            _ => write!(f, "{pages} and {regions}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_binary_and_si_with_byte_unit() {
        for (text, size) in [
            ("4096", 4096),
            ("7b", 7),
            (" 7 B ", 7),
            ("0", 0),
            ("4k", 4 << 10),
            ("4K", 4 << 10),
            ("4KiB", 4 << 10),
            ("4kB", 4000),
            ("4KB", 4000),
            ("64M", 64 << 20),
            ("64 m", 64 << 20),
            ("1MiB", 1 << 20),
            ("32MB", 32_000_000),
            ("2G", 2 << 30),
            ("2GiB", 2 << 30),
            ("2 GB", 2_000_000_000),
            ("1T", 1 << 40),
            ("1tib", 1 << 40),
            ("1TB", 1_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes(text), Some(size), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_none() {
        for text in [
            "",
            " ",
            "M",
            "1.5G",
            "-1",
            "+1",
            "1X",
            "99999999999T",
            "18446744073709551616",
            "64KIIBB",
            "1BB",
            "1I",
            "1 0M",
            "1 Mi B",
            "½",
            "1p",
        ] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn one_is_singular_and_none_is_left_out() {
        let said = |pages, regions| Amounts { pages, regions }.to_string();
        assert_eq!([said(1, 2), said(2, 1)], ["1 page and 2 regions", "2 pages and 1 region"]);
        assert_eq!([said(0, 1), said(1, 0), said(0, 0)], ["1 region", "1 page", "0 pages"]);
    }
}
