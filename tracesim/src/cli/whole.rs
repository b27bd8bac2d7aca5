//! Whole numbers on the command line.

use std::ops::RangeInclusive;

/// Returns a parser of a whole number in a range. What it refuses, it answers with the range.
pub(super) fn whole<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let (&least, &most) = (range.start(), range.end());
        match text.parse() {
            Ok(number) if range.contains(&number) => {
                T::try_from(number).map_err(|_| "give a smaller whole number".into())
            }
            Ok(number) if number > most => Err(format!("give a whole number, at most {most}")),
            // There is no more than the type can have.
            _ if most == u64::MAX || T::try_from(most + 1).is_err() => {
                Err(format!("give a whole number, at least {least}"))
            }
            _ => Err(format!("give a whole number from {least} to {most}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_number_is_answered_with_the_range() {
        let points = whole::<u16>(1..=100);
        assert_eq!((points("1"), points("100")), (Ok(1), Ok(100)));
        for refused in ["0", "-1", "1.5", "ten", ""] {
            assert_eq!(points(refused), Err("give a whole number from 1 to 100".into()), "{refused}");
        }
        assert_eq!(points("101"), Err("give a whole number, at most 100".into()));
        assert_eq!(whole::<u64>(1..=u64::MAX)("0"), Err("give a whole number, at least 1".into()));
        let number = whole::<u16>(1..=u64::from(u16::MAX));
        assert_eq!(number("0"), Err("give a whole number, at least 1".into()));
        assert_eq!(number("65536"), Err("give a whole number, at most 65535".into()));
    }
}
