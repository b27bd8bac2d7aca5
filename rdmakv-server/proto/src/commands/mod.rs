//! From bytes to requests, without input or output: classic text, meta commands, binary, the UDP frame.
//!
//! A parser sees a whole line (or header) and answers with a request or with the very error line that memcached
//! 1.6 would send. It allocates nothing and never panics, whatever the bytes.

pub mod binary;
pub mod meta;
pub mod replicate;
pub mod text;
pub mod udp;

/// memcached's "bad command line format".
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// The fault of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The error line, without its end.
    pub line: &'static str,
    /// Bytes of data that follow the line and are to be dropped.
    pub drop: usize,
}

impl From<&'static str> for Fault {
    fn from(line: &'static str) -> Self {
        Self { line, drop: 0 }
    }
}

/// On what terms an item is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// In any case.
    #[default]
    Set,
    /// Only if there is none.
    Add,
    /// Only if there is one.
    Replace,
    /// After the value that is there.
    Append,
    /// Before the value that is there.
    Prepend,
}

/// Words of a line, which blanks separate.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// Returns the text after the first `skip` words. Only blanks separate words.
fn rest(line: &[u8], skip: usize) -> &[u8] {
    let blanks = |line: &[u8]| line.iter().take_while(|&&byte| byte == b' ').count();
    let mut line = &line[blanks(line)..];
    for _ in 0..skip {
        let end = memchr::memchr(b' ', line).unwrap_or(line.len());
        line = &line[end..];
        line = &line[blanks(line)..];
    }
    let end = line.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1);
    &line[..end]
}

/// Returns a word as C's strtol and its like take it: blanks of other kinds before it, a sign, digits, and after them
/// nothing or another kind of blank. The sign is told apart from the digits.
fn digits(word: &[u8]) -> Option<(bool, &[u8])> {
    let is_space = |byte: &u8| matches!(byte, b' ' | 9..=13);
    let word = &word[word.iter().take_while(|byte| is_space(byte)).count()..];
    let (negative, word) = match word.first()? {
        b'-' => (true, &word[1..]),
        b'+' => (false, &word[1..]),
        _ => (false, word),
    };
    let len = word.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (len > 0 && word.get(len).is_none_or(is_space)).then_some((negative, &word[..len]))
}

fn magnitude(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

/// Returns a decimal number of 64 bits. As strtoull has it, a small number below nothing is a large one, which
/// memcached takes unless it is too large for that.
pub fn number(word: &[u8]) -> Option<u64> {
    let (negative, digits) = digits(word)?;
    let number = magnitude(digits)?;
    if negative { Some(number.wrapping_neg()).filter(|&number| number <= i64::MAX as u64) } else { Some(number) }
}

/// 32 bits, of a number that may have more: that is what memcached keeps.
pub fn number32(word: &[u8]) -> Option<u32> {
    number(word).map(|number| number as u32)
}

/// 32 bits with a sign, of a number that may have 64.
pub fn signed32(word: &[u8]) -> Option<i32> {
    let (negative, digits) = digits(word)?;
    let number = i128::from(magnitude(digits)?) * if negative { -1 } else { 1 };
    i64::try_from(number).ok().map(|number| number as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_c_makes_of_them() {
        for (word, unsigned, signed) in [
            ("0", Some(0), Some(0)),
            ("+7", Some(7), Some(7)),
            ("007\t!", Some(7), Some(7)),
            ("-1", None, Some(-1)),
            ("-18446744073709551615", Some(1), None),
            ("4294967297", Some(1 << 32 | 1), Some(1)),
            ("18446744073709551615", Some(u64::MAX), None),
            ("18446744073709551616", None, None),
            ("9223372036854775807", Some(i64::MAX as u64), Some(-1)),
            ("", None, None),
            ("-", None, None),
            ("+-1", None, None),
            ("1x", None, None),
            ("x", None, None),
        ] {
            assert_eq!((number(word.as_bytes()), signed32(word.as_bytes())), (unsigned, signed), "{word}");
        }
    }
}
