//! The answers of HTTP/1.1, byte by byte, without sockets.
//!
//! etcd's gateway needs little of HTTP: one request after another, and bodies with a length or in chunks. A watch has a body that never
//! ends. A client crate brings pools, redirects, proxies and its own time-outs, and none gives the lines of an endless body within a
//! given time. So this is our own, with the head parsed by `httparse`, which the server uses too.

use thiserror::Error;

/// The most bytes of a head, of a chunk's size or of a trailer.
const MAX_HEAD: usize = 16 << 10;

/// The most bytes of a body that wait for the reader.
pub const MAX_BODY: usize = 8 << 20;

/// The most header lines.
const MAX_HEADERS: usize = 64;

/// Bytes that are no answer of HTTP/1.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum HttpError {
    /// The head cannot be read.
    #[error("not an answer of HTTP/1.1")]
    Head,
    /// The body's length is not known.
    #[error("an answer without the length of its body")]
    Length,
    /// A chunk cannot be read.
    #[error("a chunk without its size or end")]
    Chunk,
    /// More bytes than any answer of etcd has.
    #[error("an answer of more than 8 MiB")]
    TooLong,
}

/// The part that the next bytes belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Head,
    /// The body, of which so many bytes are to come.
    Length(usize),
    ChunkSize,
    Chunk(usize),
    ChunkEnd,
    Trailer,
    Done,
}

/// Reads one answer.
#[derive(Clone, Debug)]
pub struct Answer {
    state: State,
    status: u16,
    /// Whether the connection may be used again after this answer.
    stays: bool,
    /// Bytes that were not understood yet.
    raw: Vec<u8>,
    body: Vec<u8>,
}

impl Default for Answer {
    fn default() -> Self {
        Self { state: State::Head, status: 0, stays: true, raw: Vec::new(), body: Vec::new() }
    }
}

impl Answer {
    /// Takes more bytes of the connection.
    ///
    /// # Errors
    ///
    /// They are no answer of HTTP/1.1, or the body has more bytes than the reader may leave.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), HttpError> {
        self.raw.extend_from_slice(bytes);
        let mut at = 0;
        let result = loop {
            match self.step(at) {
                Ok(Some(end)) => at = end,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.raw.drain(..at);
        result
    }

    /// Understands the bytes from `at`, and returns where it stopped; None if more are needed.
    fn step(&mut self, at: usize) -> Result<Option<usize>, HttpError> {
        let raw = &self.raw[at..];
        if raw.is_empty() && self.state != State::Length(0) {
            return Ok(None);
        }
        let used = match self.state {
            State::Head => {
                let Some((used, head)) = Head::parse(raw)? else { return Ok(None) };
                (self.status, self.stays, self.state) = (head.status, head.stays, head.body);
                used
            }
            State::Length(0) => {
                self.state = State::Done;
                0
            }
            State::Length(left) | State::Chunk(left) => {
                let used = left.min(raw.len());
                if self.body.len() + used > MAX_BODY {
                    return Err(HttpError::TooLong);
                }
                self.body.extend_from_slice(&raw[..used]);
                self.state = match self.state {
                    State::Length(_) => State::Length(left - used),
                    _ if left == used => State::ChunkEnd,
                    _ => State::Chunk(left - used),
                };
                used
            }
            State::ChunkSize => match httparse::parse_chunk_size(raw) {
                Ok(httparse::Status::Complete((used, size))) => {
                    let size = usize::try_from(size).ok().filter(|&size| size <= MAX_BODY);
                    let size = size.ok_or(HttpError::TooLong)?;
                    self.state = if size == 0 { State::Trailer } else { State::Chunk(size) };
                    used
                }
                Ok(httparse::Status::Partial) if raw.len() <= MAX_HEAD => return Ok(None),
                _ => return Err(HttpError::Chunk),
            },
            State::ChunkEnd => match raw {
                [b'\r', b'\n', ..] => {
                    self.state = State::ChunkSize;
                    2
                }
                [b'\r'] => return Ok(None),
                _ => return Err(HttpError::Chunk),
            },
            // Header lines after the body, up to an empty one.
            State::Trailer => {
                let Some(end) = raw.windows(2).position(|pair| pair == b"\r\n") else {
                    return if raw.len() <= MAX_HEAD { Ok(None) } else { Err(HttpError::Chunk) };
                };
                if end == 0 {
                    self.state = State::Done;
                }
                end + 2
            }
            // An answer to nothing.
            State::Done => return Err(HttpError::Head),
        };
        Ok(Some(at + used))
    }

    /// Returns the status; None before the head is there.
    pub fn status(&self) -> Option<u16> {
        (self.state != State::Head).then_some(self.status)
    }

    /// Returns whether the whole body is there.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Returns whether another request may use the connection, once this answer is done.
    pub fn stays(&self) -> bool {
        self.stays
    }

    /// Returns the body so far.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Takes the next line out of the body, without its end; None if no whole one is there.
    pub fn take_line(&mut self) -> Option<Vec<u8>> {
        let end = self.body.iter().position(|&byte| byte == b'\n')?;
        let mut line: Vec<u8> = self.body.drain(..=end).collect();
        line.pop();
        Some(line)
    }
}

struct Head {
    status: u16,
    stays: bool,
    body: State,
}

impl Head {
    /// Returns the head and its length; None if more bytes are needed.
    fn parse(raw: &[u8]) -> Result<Option<(usize, Self)>, HttpError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut headers);
        let used = match head.parse(raw) {
            Ok(httparse::Status::Complete(used)) if used <= MAX_HEAD => used,
            Ok(httparse::Status::Partial) if raw.len() <= MAX_HEAD => return Ok(None),
            _ => return Err(HttpError::Head),
        };
        let status = head.code.filter(|code| (200..600).contains(code)).ok_or(HttpError::Head)?;
        let (mut stays, mut length, mut chunked) = (head.version == Some(1), None, false);
        for header in head.headers.iter() {
            let value = std::str::from_utf8(header.value).map_err(|_| HttpError::Head)?.trim();
            if header.name.eq_ignore_ascii_case("content-length") {
                let digits = value.bytes().all(|byte| byte.is_ascii_digit());
                let number = digits.then(|| value.parse::<usize>().ok()).flatten().ok_or(HttpError::Length)?;
                if length.replace(number).is_some_and(|before| before != number) {
                    return Err(HttpError::Length);
                }
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = value.eq_ignore_ascii_case("chunked");
                if !chunked {
                    return Err(HttpError::Length);
                }
            } else if header.name.eq_ignore_ascii_case("connection") {
                stays &= !value.eq_ignore_ascii_case("close");
            }
        }
        let body = match (chunked, length) {
            (true, None) => State::ChunkSize,
            (false, Some(length)) if length <= MAX_BODY => State::Length(length),
            (false, Some(_)) => return Err(HttpError::TooLong),
            (true, Some(_)) | (false, None) => return Err(HttpError::Length),
        };
        Ok(Some((used, Self { status, stays, body })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the bytes in pieces of every size; the answer must not depend on it.
    fn read(bytes: &[u8]) -> Result<Answer, HttpError> {
        let in_pieces = |size: usize| {
            let mut answer = Answer::default();
            bytes.chunks(size).try_for_each(|piece| answer.push(piece)).map(|()| answer)
        };
        let whole = in_pieces(bytes.len());
        for size in 1..bytes.len() {
            let piecewise = in_pieces(size);
            assert_eq!(
                whole.as_ref().map(|answer| (answer.status(), answer.body(), answer.is_done())),
                piecewise.as_ref().map(|answer| (answer.status(), answer.body(), answer.is_done()))
            );
        }
        whole
    }

    #[test]
    fn reads_bodies_with_a_length_and_in_chunks() {
        let answer = read(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        assert_eq!(
            (answer.status(), answer.body(), answer.is_done(), answer.stays()),
            (Some(200), &b"{}"[..], true, true)
        );
        let answer = read(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\nConnection: close\r\n\r\n").unwrap();
        assert_eq!(
            (answer.status(), answer.body(), answer.is_done(), answer.stays()),
            (Some(404), &b""[..], true, false)
        );
        let chunked =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nb\r\n2;x=y\r\n\nc\r\n0\r\nT: v\r\n\r\n";
        let mut answer = read(chunked).unwrap();
        assert!(answer.is_done());
        assert_eq!(
            (answer.take_line(), answer.take_line(), answer.take_line()),
            (Some(b"a".to_vec()), Some(b"b".to_vec()), None)
        );
        let open = read(&chunked[..chunked.len() - 2]).unwrap();
        assert!(!open.is_done());
    }

    #[test]
    fn refuses_what_is_no_answer() {
        let head = "HTTP/1.1 200 OK\r\n";
        for (text, error) in [
            ("SSH-2.0-x\r\n\r\n".to_owned(), HttpError::Head),
            ("HTTP/1.1 100 Continue\r\n\r\n".to_owned(), HttpError::Head),
            (format!("{head}\r\n"), HttpError::Length),
            (format!("{head}Content-Length: -1\r\n\r\n"), HttpError::Length),
            (format!("{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), HttpError::Length),
            (format!("{head}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"), HttpError::Length),
            (format!("{head}Transfer-Encoding: gzip\r\n\r\n"), HttpError::Length),
            (format!("{head}Content-Length: 8388609\r\n\r\n"), HttpError::TooLong),
            (format!("{head}Transfer-Encoding: chunked\r\n\r\n800001\r\n"), HttpError::TooLong),
            (format!("{head}Transfer-Encoding: chunked\r\n\r\nx\r\n"), HttpError::Chunk),
            (format!("{head}Transfer-Encoding: chunked\r\n\r\n1\r\nabc"), HttpError::Chunk),
            (format!("{head}Content-Length: 0\r\n\r\nmore"), HttpError::Head),
        ] {
            assert_eq!(read(text.as_bytes()).map(|_| ()), Err(error), "{text}");
        }
        let endless = [head.as_bytes(), &[b'a'; MAX_HEAD]].concat();
        assert_eq!(Answer::default().push(&endless), Err(HttpError::Head));
    }

    #[test]
    fn bounds_a_body_that_is_not_taken() {
        let mut answer = Answer::default();
        answer.push(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        let chunk = [&b"100000\r\n"[..], &[b'\n'; 1 << 20], b"\r\n"].concat();
        for _ in 0..MAX_BODY >> 20 {
            answer.push(&chunk).unwrap();
        }
        assert_eq!(answer.push(&chunk), Err(HttpError::TooLong));
    }
}
