//! `httpd`: logs of web servers. A request is for the whole file, which is as large as the largest answer for its URL.
//!
//! Three forms, told apart by the first line: NCSA common, `host ident user [date] "request" status bytes`; NCSA combined,
//! which adds `"referrer" "agent"`; and tab-separated columns with a header that names `host`, `time`, `method`, `url`,
//! `response` and `bytes`, as the Internet Traffic Archive has them. A URL may contain anything, quotes and blanks too, so a
//! line is read from the right.
//!
//! Kept is GET with status 200, and 304 if asked for.

use crate::layout::{Layout, Names};
use crate::number::decimal;
use crate::parser::{self, Outcome, Parser};
use crate::{Event, ReadOptions};
use mrrc_core::Access;
use std::collections::VecDeque;

pub(crate) struct Httpd {
    not_modified: bool,
    /// The columns, once a header has named them.
    columns: Option<Columns>,
    has_begun: bool,
    clients: Names<Box<[u8]>>,
    layout: Layout<Box<[u8]>>,
}

/// A parsed line.
struct Entry<'a> {
    host: &'a [u8],
    /// Seconds since 1970.
    time: u64,
    method: &'a [u8],
    url: &'a [u8],
    status: u64,
    bytes: u64,
}

impl Httpd {
    pub(crate) fn new(options: &ReadOptions) -> Self {
        Self {
            not_modified: options.not_modified,
            columns: None,
            has_begun: false,
            clients: Names::default(),
            layout: Layout::default(),
        }
    }

    fn entry<'a>(&self, line: &'a [u8]) -> Result<Entry<'a>, &'static str> {
        match &self.columns {
            Some(columns) => columns.entry(line),
            None => ncsa(line),
        }
    }
}

impl Parser for Httpd {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        if line.is_empty() {
            return Outcome::Other;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            self.columns = Columns::of(line);
            if self.columns.is_some() {
                return Outcome::Other;
            }
        }
        let entry = match self.entry(line) {
            Ok(entry) => entry,
            Err(why) => return Outcome::Bad(why),
        };
        if entry.method != b"GET" {
            return Outcome::LeftOut("the method is not GET");
        }
        if !(entry.status == 200 || entry.status == 304 && self.not_modified) {
            return Outcome::LeftOut("the answer is not the file (status 200)");
        }
        if !self.layout.is_laid_out() {
            self.layout.note(entry.url, entry.bytes);
            return Outcome::Noted;
        }
        match self.layout.find(entry.url) {
            Ok(span) if span.length == 0 => Outcome::LeftOut("nothing was ever sent of the file"),
            Ok(span) => {
                let time = entry.time.saturating_mul(1_000_000_000);
                parser::request(time, self.clients.number(entry.host), Access::LOCAL_READ, span)
            }
            Err(why) => Outcome::Bad(why),
        }
    }

    fn lay_out(&mut self, _: u64) {
        self.layout.lay_out();
        self.has_begun = false;
    }

    fn understood(&self) -> String {
        let form = if self.columns.is_some() { "tab-separated columns" } else { "NCSA lines" };
        let too = if self.not_modified { " and 304" } else { "" };
        let files = self.layout.objects();
        format!(
            "{form}; GET with status 200{too} is a request for the whole file; {files} files side by side, each as large \
             as its largest answer; a host is a client"
        )
    }
}

/// The columns of the tab-separated form.
#[derive(Clone, Copy, Debug)]
struct Columns {
    host: usize,
    time: usize,
    method: usize,
    url: usize,
    status: usize,
    bytes: usize,
}

impl Columns {
    fn of(header: &[u8]) -> Option<Self> {
        let names: Vec<&[u8]> = header.split(|&byte| byte == b'\t').map(|name| name.trim_ascii()).collect();
        let at = |wanted: &[&[u8]]| {
            names.iter().position(|name| wanted.iter().any(|known| name.eq_ignore_ascii_case(known)))
        };
        Some(Self {
            host: at(&[b"host"])?,
            time: at(&[b"time", b"timestamp"])?,
            method: at(&[b"method"])?,
            url: at(&[b"url", b"path"])?,
            status: at(&[b"response", b"status"])?,
            bytes: at(&[b"bytes", b"size"])?,
        })
    }

    fn entry(self, line: &[u8]) -> Result<Entry<'_>, &'static str> {
        let field = |wanted| line.split(|&byte| byte == b'\t').nth(wanted).ok_or("it has too few columns");
        Ok(Entry {
            host: field(self.host)?,
            time: decimal(field(self.time)?).ok_or("the time is no number")?,
            method: field(self.method)?,
            url: field(self.url)?,
            status: decimal(field(self.status)?).ok_or("the status is no number")?,
            bytes: bytes(field(self.bytes)?).ok_or("the length is no number")?,
        })
    }
}

/// `-` is none.
fn bytes(text: &[u8]) -> Option<u64> {
    if text == b"-" { Some(0) } else { decimal(text) }
}

/// Returns a line of the common or the combined form.
fn ncsa(line: &[u8]) -> Result<Entry<'_>, &'static str> {
    let line = line.trim_ascii_end();
    let host_end = memchr::memchr(b' ', line).ok_or("it has no fields")?;
    let date = memchr::memchr(b'[', line).ok_or("it has no date in brackets")?;
    let date_end = date + memchr::memchr(b']', &line[date..]).ok_or("it has no date in brackets")?;
    let time = date_and_time(&line[date + 1..date_end]).ok_or("the date is not like 01/Jul/1995:00:00:01 -0400")?;
    let after = line[date_end + 1..].trim_ascii_start();
    let after = after.strip_prefix(b"\"").ok_or("no request in quotes follows the date")?;
    let (request, status, bytes) = from_the_right(after).ok_or("it does not end with a status and a length")?;
    let method_end = memchr::memchr(b' ', request).ok_or("the request has no URL")?;
    let url = without_protocol(request[method_end + 1..].trim_ascii());
    if url.is_empty() {
        return Err("the request has no URL");
    }
    Ok(Entry { host: &line[..host_end], time, method: &request[..method_end], url, status, bytes })
}

/// Request, status and length of `GET /a "b" HTTP/1.0" 200 17`, perhaps with ` "referrer" "agent"` after it.
fn from_the_right(text: &[u8]) -> Option<(&[u8], u64, u64)> {
    memchr::memrchr_iter(b'"', text).find_map(|quote| {
        let rest = text[quote + 1..].strip_prefix(b" ")?;
        let status_end = memchr::memchr(b' ', rest)?;
        let status = decimal(&rest[..status_end]).filter(|status| (100..=999).contains(status))?;
        let rest = &rest[status_end + 1..];
        let bytes_end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        let bytes = bytes(&rest[..bytes_end])?;
        let rest = rest[bytes_end..].trim_ascii();
        let is_combined = rest.starts_with(b"\"") && rest.ends_with(b"\"");
        (rest.is_empty() || is_combined).then_some((&text[..quote], status, bytes))
    })
}

/// Returns a URL without ` HTTP/1.0` after it, which the oldest requests lack.
fn without_protocol(url: &[u8]) -> &[u8] {
    match memchr::memrchr(b' ', url) {
        Some(blank) if url[blank + 1..].starts_with(b"HTTP/") => url[..blank].trim_ascii_end(),
        _ => url,
    }
}

/// Seconds since 1970 of `01/Jul/1995:00:00:01 -0400`.
fn date_and_time(text: &[u8]) -> Option<u64> {
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let mut parts = text.split(|byte| matches!(byte, b'/' | b':' | b' '));
    let mut next = || parts.next();
    let day = decimal(next()?).filter(|day| (1..=31).contains(day))?;
    let month = next()?;
    let month = MONTHS.iter().position(|known| month.eq_ignore_ascii_case(known))? as u64 + 1;
    let year = decimal(next()?).filter(|year| (1970..=9999).contains(year))?;
    let [hour, minute, second] = [decimal(next()?)?, decimal(next()?)?, decimal(next()?)?];
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let east = match next() {
        None => 0,
        Some(zone) => {
            let (sign, digits) = zone.split_first()?;
            let zone = decimal(digits).filter(|&zone| zone <= 2359 && digits.len() == 4)?;
            let seconds = (zone / 100 * 3600 + zone % 100 * 60) as i64;
            match sign {
                b'+' => seconds,
                b'-' => -seconds,
                _ => return None,
            }
        }
    };
    let local = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(local.saturating_add_signed(-east))
}

/// Days from 1 January 1970 in the Gregorian calendar. The year begins in March here, so that the day that is not in every
/// year is its last.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let in_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + in_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn httpd_line_is_parsed_from_the_right() {
        let line = br#"a.b - - [01/Jul/1995:00:00:01 -0400] "GET /say "hi" 200 5" HTTP/1.0" 200 6245"#;
        let entry = ncsa(line).unwrap();
        assert_eq!(entry.url, br#"/say "hi" 200 5""#);
        assert_eq!((entry.status, entry.bytes, entry.time), (200, 6245, 804_571_201));
        assert_eq!((entry.host, entry.method), (&b"a.b"[..], &b"GET"[..]));
    }

    #[test]
    fn combined_and_old_httpd_lines_parse() {
        let line = br#"::1 - x [29/Feb/2024:23:59:60 +0530] "GET /a b HTTP/1.1" 304 - "http://r/" "Agent (\"x\")""#;
        let entry = ncsa(line).unwrap();
        assert_eq!((entry.url, entry.status, entry.bytes), (&b"/a b"[..], 304, 0));
        assert_eq!(ncsa(br#"h - - [01/Jan/1970:00:00:00 +0000] "GET /old" 200 1"#).unwrap().url, b"/old");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (text, seconds) in [
            ("01/Jan/1970:00:00:00 +0000", 0),
            ("29/Feb/2000:12:00:00 +0000", 951_825_600),
            ("31/Dec/1999:23:59:59 -0000", 946_684_799),
            ("01/Aug/1995:00:00:01 -0400", 807_249_601),
        ] {
            assert_eq!(date_and_time(text.as_bytes()), Some(seconds), "{text}");
        }
        for text in
            ["", "32/Jan/1970:00:00:00 +0000", "1/Foo/1995:0:0:0 +0000", "1/Jan/1995:24:0:0 +0000", "1/Jan/1995"]
        {
            assert_eq!(date_and_time(text.as_bytes()), None, "{text}");
        }
    }
}
