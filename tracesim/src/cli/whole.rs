//! Whole numbers on the command line.

use std::ops::RangeInclusive;

/// Returns a parser of a whole number in a range. What it refuses, it answers with the range.
pub(super) fn whole<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match (range.start(), range.end()) {
            (least, &u64::MAX) => format!("give a whole number, at least {least} ({least}..)"),
            (least, most) => format!("give a whole number from {least} to {most}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_number_is_answered_with_the_range() {
        let points = whole::<u16>(1..=100);
        assert_eq!((points("1"), points("100")), (Ok(1), Ok(100)));
        for refused in ["0", "101", "-1", "1.5", "ten", ""] {
            assert_eq!(points(refused), Err("give a whole number from 1 to 100".into()), "{refused}");
        }
        assert_eq!(whole::<u64>(1..=u64::MAX)("0"), Err("give a whole number, at least 1 (1..)".into()));
    }
}
