//! Numbers as people read them.

/// `1,100,000`
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12.3 %`, for pages.
pub fn percent(share: f64) -> String {
    format!("{} %", hundredths(share))
}

/// `12.3%`, for columns of a terminal.
pub fn percent_unspaced(share: f64) -> String {
    format!("{}%", hundredths(share))
}

fn hundredths(share: f64) -> String {
    let text = format!("{:.1}", 100.0 * share);
    // Nothing has no sign.
    if text == "-0.0" { "0.0".into() } else { text }
}

/// Returns the size of so many pages in bytes: `32 MiB`.
pub fn bytes(pages: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut size, mut at) = (pages as f64 * 4.0, 0);
    while size >= 1024.0 && at + 1 < units.len() {
        size /= 1024.0;
        at += 1;
    }
    let decimals = if size.fract() == 0.0 || size >= 100.0 { 0 } else { 1 };
    format!("{size:.decimals$} {}", units[at])
}

/// Microseconds as milliseconds, with three digits or all that stand before the point: `0.56`, `12.3`, `1,234`.
pub fn milliseconds(us: f64) -> String {
    let ms = us / 1000.0;
    match ms {
        _ if ms >= 100.0 => grouped(ms.round() as u64),
        _ if ms >= 10.0 => format!("{ms:.1}"),
        _ => format!("{ms:.2}"),
    }
}

/// Returns the text with no line break between a number and its unit.
pub fn unbroken(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for (at, word) in text.split(' ').enumerate() {
        let unit = ["%", "×", "µs", "KB", "KiB", "MiB", "GiB", "points", "pages"];
        let is_unit = unit.contains(&word.trim_end_matches([',', ';', '.', ':', ')']));
        if at > 0 {
            joined.push(if is_unit && joined.ends_with(|c: char| c.is_ascii_digit()) { '\u{a0}' } else { ' ' });
        }
        joined.push_str(word);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_stay_with_their_numbers() {
        assert_eq!(unbroken("over 0, under HTTPD's 18.8 %"), "over 0, under HTTPD's 18.8\u{a0}%");
        assert_eq!(unbroken("at 4 MiB; 12 pages of many pages"), "at 4\u{a0}MiB; 12\u{a0}pages of many pages");
    }

    #[test]
    fn numbers_are_short_and_whole() {
        assert_eq!([0, 999, 1000, 1_100_000].map(grouped), ["0", "999", "1,000", "1,100,000"]);
        assert_eq!(
            [1, 256, 384, 8192, 131_072, 30_000_000].map(bytes),
            ["4 KiB", "1 MiB", "1.5 MiB", "32 MiB", "512 MiB", "114 GiB"]
        );
        assert_eq!([0.1234, 1.0, -0.0004, -0.004].map(percent), ["12.3 %", "100.0 %", "0.0 %", "-0.4 %"]);
        assert_eq!([0.1234, 1.0, -0.0004, -0.004].map(percent_unspaced), ["12.3%", "100.0%", "0.0%", "-0.4%"]);
        assert_eq!([560.0, 12_340.0, 99_990.0, 1_234_500.0].map(milliseconds), ["0.56", "12.3", "100.0", "1,235"]);
    }
}
