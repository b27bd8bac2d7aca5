//! Sizes as people write them: `4096`, `64M`, `32MB`.

/// Returns a number of bytes, with a unit if any. The case does not matter, and there may be spaces around the unit:
///
/// | unit | bytes |
/// | --- | --- |
/// | none, `B` | 1 |
/// | `K`, `M`, `G`, `T`; `KiB`, `MiB`, `GiB`, `TiB` | powers of 1024 |
/// | `kB`, `MB`, `GB`, `TB` | powers of 1000 |
///
/// `None` for what is no such number, or does not fit. The settings of the cache and the tools read sizes the same way.
///
/// ```
/// assert_eq!(traces_record::bytes("64M"), Some(64 << 20));
/// assert_eq!(traces_record::bytes("64 MiB"), Some(64 << 20));
/// assert_eq!(traces_record::bytes("64MB"), Some(64_000_000));
/// assert_eq!(traces_record::bytes("1.5G"), None);
/// ```
pub fn bytes(text: &str) -> Option<u64> {
    // As `mrrc_core::units::bytes`, which this crate, that is in every process recorded, does not depend on; tracesim/tests/sizes.rs, where
    // both are, holds the one to the other.
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
