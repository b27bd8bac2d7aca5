//! Numbers from bytes, without a detour through strings. Nothing wraps: what does not fit is no number.

/// Decimal digits and nothing else.
#[inline]
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value = 0_u64;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// Returns the decimal number at the beginning of a text, and its digits; `None` unless there are 1 to 19.
#[inline]
pub(crate) fn leading(text: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    let mut digits = 0;
    while let Some(digit) = text.get(digits).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit <= 9) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        digits += 1;
    }
    // More may not fit.
    (1..=19).contains(&digits).then_some((value, digits))
}

/// Hexadecimal digits, with `0x` or without.
#[inline]
pub(crate) fn hex(text: &[u8]) -> Option<u64> {
    let text = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X")).unwrap_or(text);
    if text.is_empty() {
        return None;
    }
    let mut value = 0_u64;
    for &byte in text {
        let digit = (byte as char).to_digit(16)?;
        if value >> 60 != 0 {
            return None;
        }
        value = value << 4 | u64::from(digit);
    }
    Some(value)
}

/// Hexadecimal with `0x`, decimal without.
#[inline]
pub(crate) fn either(text: &[u8]) -> Option<u64> {
    if text.len() > 2 && text[0] == b'0' && text[1] | 0x20 == b'x' { hex(text) } else { decimal(text) }
}

/// Returns whether what is no number above is one, but too large.
#[cold]
pub(crate) fn is_too_large(text: &[u8]) -> bool {
    let (digits, is_hex) = match text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X")) {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    let is_digit = |byte: &u8| if is_hex { byte.is_ascii_hexdigit() } else { byte.is_ascii_digit() };
    !digits.is_empty() && digits.iter().all(is_digit) && either(text).is_none()
}

/// The error of a number that does not fit.
pub(crate) const TOO_LARGE: &str = "a number is too large";

/// Returns the error of fields of which one is no number.
#[cold]
pub(crate) fn wrong(fields: &[&[u8]]) -> &'static str {
    if fields.iter().any(|field| is_too_large(field)) { TOO_LARGE } else { "a field is no number" }
}

/// Returns a time in units of so many nanoseconds, with a fraction or without: `4540.9` microseconds are 4,540,900. A time
/// that is too large is `u64::MAX`: no replay fails because of it.
#[inline]
pub(crate) fn time(text: &[u8], unit: u64) -> Option<u64> {
    let dot = memchr::memchr(b'.', text).unwrap_or(text.len());
    let whole = match decimal(&text[..dot]) {
        Some(number) => number.saturating_mul(unit),
        None if is_too_large(&text[..dot]) => u64::MAX,
        None => return None,
    };
    let fraction = text.get(dot + 1..).unwrap_or_default();
    if fraction.is_empty() {
        return Some(whole);
    }
    // Nothing is left below a nanosecond after this many digits of the longest unit.
    let kept = fraction.len().min(15);
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let part = u128::from(decimal(&fraction[..kept])?) * u128::from(unit) / 10_u128.pow(kept as u32);
    Some(whole.saturating_add(part as u64))
}

/// Returns the words of a line, apart by blanks.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty())
}

/// Returns the first `N` words of a line and whether there are more; `None` if there are fewer.
pub(crate) fn first_words<const N: usize>(line: &[u8]) -> Option<([&[u8]; N], bool)> {
    let mut words = words(line);
    let mut found = [&line[..0]; N];
    for place in &mut found {
        *place = words.next()?;
    }
    Some((found, words.next().is_some()))
}

/// Returns the first `N` fields, apart by commas and without the blanks around them; `None` if there are fewer.
#[inline]
pub(crate) fn fields<const N: usize>(line: &[u8]) -> Option<([&[u8]; N], bool)> {
    let mut found = [&line[..0]; N];
    let mut rest = Some(line);
    for place in &mut found {
        let from = rest?;
        let end = memchr::memchr(b',', from);
        *place = from[..end.unwrap_or(from.len())].trim_ascii();
        rest = end.map(|end| &from[end + 1..]);
    }
    Some((found, rest.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_no_number() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"18446744073709551616"), None);
        assert_eq!(hex(b"ffffffffffffffff"), Some(u64::MAX));
        assert_eq!(hex(b"0x10000000000000000"), None);
        assert_eq!(hex(b"0x"), None);
        for text in ["", "-1", "+1", " 1", "1e3", "1,5", "٣"] {
            assert_eq!(decimal(text.as_bytes()), None, "{text}");
        }
        assert_eq!(leading(b"9999999999999999999 "), Some((9_999_999_999_999_999_999, 19)));
        assert_eq!(leading(b"00000000000000000001"), None);
        assert_eq!(leading(b" 1"), None);
        assert_eq!(leading(b""), None);
        assert_eq!(leading(b"70a"), Some((70, 2)));
        assert_eq!(either(b"0x10"), Some(16));
        assert_eq!(either(b"10"), Some(10));
    }

    #[test]
    fn what_is_too_large_is_told_from_what_is_no_number() {
        for text in ["18446744073709551616", "99999999999999999999", "0x10000000000000000"] {
            assert!(is_too_large(text.as_bytes()), "{text}");
        }
        for text in ["", "0x", "18446744073709551615", "0xffffffffffffffff", "99999999999999999999x", "-1", "foo"] {
            assert!(!is_too_large(text.as_bytes()), "{text}");
        }
        assert_eq!(wrong(&[b"1", b"99999999999999999999"]), "a number is too large");
        assert_eq!(wrong(&[b"1", b"x"]), "a field is no number");
    }

    #[test]
    fn a_time_keeps_its_fraction_to_the_nanosecond() {
        assert_eq!(time(b"4540.9", 1000), Some(4_540_900));
        assert_eq!(time(b"0.000000001", 1_000_000_000), Some(1));
        assert_eq!(time(b"5.", 1000), Some(5000));
        assert_eq!(time(b"1.99999999999999999999999999", 1_000_000_000), Some(1_999_999_999));
        assert_eq!(time(b"18446744073709551615", 1000), Some(u64::MAX));
        assert_eq!(time(b"18446744073709551616.5", 1), Some(u64::MAX));
        assert_eq!(time(b"1.2.3", 1000), None);
        assert_eq!(time(b".5", 1000), None);
    }
}
