//! From bytes to requests, without input or output: classic text, meta commands, binary, the UDP frame.
//!
//! A parser sees a whole line (or header) and answers with a request or with the very error line that memcached
//! 1.6 would send. It allocates nothing and never panics, whatever the bytes.

pub mod binary;
pub mod meta;
#[cfg(test)]
mod noise;
pub mod text;
pub mod udp;

/// memcached's "bad command line format".
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// Words of a line, which blanks separate.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// A decimal number without a sign, as strtoul takes it from a whole word.
pub fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    let digits = word.strip_prefix(b"+").unwrap_or(word);
    if digits.is_empty() || digits[0] == b'+' {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// 32 bits, of a number that may have more: that is what memcached keeps.
pub fn number32(word: &[u8]) -> Option<u32> {
    number::<u64>(word).map(|number| number as u32)
}
