//! A size means the same in every crate: one that `tracesim` found is one to set in `MRRC_CAPACITY`.

use traces::BlockSize;
use tracesim::sizes::Capacity;

const SIZES: [(&str, u64); 14] = [
    ("64K", 64 << 10),
    ("64KiB", 64 << 10),
    ("64kB", 64_000),
    ("64KB", 64_000),
    ("32m", 32 << 20),
    ("32M", 32 << 20),
    ("32MiB", 32 << 20),
    ("32MB", 32_000_000),
    ("2 G", 2 << 30),
    ("2GiB", 2 << 30),
    ("2GB", 2_000_000_000),
    ("1T", 1 << 40),
    ("1TiB", 1 << 40),
    ("1TB", 1_000_000_000_000),
];

#[test]
fn units_agree_across_crates() {
    for (text, bytes) in SIZES {
        assert_eq!(mrrc_core::units::bytes(text), Some(bytes), "{text}");
        assert_eq!(traces_record::bytes(text), Some(bytes), "{text}");
        assert_eq!(text.parse::<Capacity>().unwrap().pages(0), bytes / mrrc_core::PAGE, "{text}");
        assert_eq!(text.parse::<BlockSize>().unwrap().get(), bytes, "{text}");
    }
    for bad in ["", "M", "1.5G", "-1M", "5XB", "4 5M", "99999999999T"] {
        assert_eq!(mrrc_core::units::bytes(bad), None, "{bad}");
        assert!(bad.parse::<Capacity>().is_err(), "{bad}");
    }
}

#[test]
fn recorder_and_cache_parse_sizes_alike() {
    let numbers =
        ["", "0", "7", " 64", "+1", "-1", "1.5", "1 0", "99999999999", "18446744073709551615", "18446744073709551616"];
    let units = [
        "", "b", "k", "m", "g", "t", "p", "x", "i", "ki", "kib", "mib", "gib", "tib", "kb", "mb", "gb", "tb", "bb",
        "kiibb", "½",
    ];
    let mut sizes = 0;
    for (number, unit) in numbers.iter().flat_map(|number| units.map(|unit| (number, unit))) {
        for text in [format!("{number}{unit}"), format!("{number} {} ", unit.to_uppercase())] {
            assert_eq!(traces_record::bytes(&text), mrrc_core::units::bytes(&text), "{text:?}");
            sizes += usize::from(mrrc_core::units::bytes(&text).is_some());
        }
    }
    assert!(sizes > 100, "{sizes}");
}
