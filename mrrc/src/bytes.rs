//! Sizes as people write them: `4096`, `64M`, `32MB`.

/// A number of bytes, with a unit if any. The case does not matter, and there may be spaces around the unit:
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
/// assert_eq!(mrrc::bytes("64M"), Some(64 << 20));
/// assert_eq!(mrrc::bytes("64 MiB"), Some(64 << 20));
/// assert_eq!(mrrc::bytes("64MB"), Some(64_000_000));
/// assert_eq!(mrrc::bytes("1.5G"), None);
/// ```
pub fn bytes(text: &str) -> Option<u64> {
    // `mrrc-record`, which does not depend on this crate, reads sizes by itself; tracesim/tests/sizes.rs holds it to this.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_powers_of_1024_and_bytes_with_a_prefix_powers_of_1000() {
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
}
