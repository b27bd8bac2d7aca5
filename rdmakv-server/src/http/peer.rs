//! A client: a socket, the received part of the request, the unsent part of the answer.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use mio::net::TcpStream;

/// Bytes of a request at most.
const REQUEST: usize = 8 << 10;
/// Headers of a request at most.
const HEADERS: usize = 64;
/// How long a request may take to come, and an answer to go.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time for which a client may stay without a further request.
const IDLE: Duration = Duration::from_secs(30);

/// Requests that are answered in a row before others have their turn.
const TURN: usize = 8;

/// The next step with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for the socket.
    Wait,
    /// Let others go first, then go on.
    Again,
    /// They are done with.
    Go,
}

/// The request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// From the slash on, without what follows a question mark.
    pub(super) path: String,
    /// The part behind it.
    pub(super) query: String,
    /// The host of the header.
    pub(super) host: Option<String>,
}

/// The answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: &'static str,
    /// Lines of their own, each with its end.
    pub(super) headers: String,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// Returns a line of text.
    pub(super) fn line(status: &'static str, text: &str) -> Self {
        Self {
            status,
            headers: "Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\n".into(),
            body: format!("{text}\n").into_bytes(),
        }
    }
}

/// Them.
#[derive(Debug)]
pub(super) struct Peer {
    socket: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    last: bool,
    /// When they came, or their last request or answer was complete.
    since: Instant,
    deadline: Instant,
}

/// A request as it stands in the input.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Incomplete,
    /// Its length, whether a body is wanted in the answer, and whether another may follow.
    Request {
        request: Request,
        length: usize,
        body: bool,
        last: bool,
    },
    Wrong(&'static str, &'static str),
}

impl Peer {
    pub(super) fn new(socket: TcpStream) -> Self {
        let since = Instant::now();
        let deadline = since + PATIENCE;
        Self { socket, input: Vec::new(), output: Vec::new(), sent: 0, last: false, since, deadline }
    }

    /// When they have waited, or made us wait, for too long.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Since when nothing was completed with them.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Does what can be done now.
    pub(super) fn serve(&mut self, answer: impl Fn(&Request) -> Answer) -> Next {
        let mut answered = 0;
        loop {
            match self.send() {
                Ok(true) if self.last => return Next::Go,
                Ok(true) if answered == TURN => return Next::Again,
                Ok(true) => {}
                Ok(false) => return Next::Wait,
                Err(_) => return Next::Go,
            }
            match parse(&self.input) {
                Parsed::Incomplete => match self.receive() {
                    Ok(true) => {}
                    Ok(false) => return Next::Wait,
                    Err(_) => return Next::Go,
                },
                Parsed::Request { request, length, body, last } => {
                    self.input.drain(..length);
                    self.put(&answer(&request), body, last);
                    answered += 1;
                }
                Parsed::Wrong(status, why) => {
                    self.input.clear();
                    self.put(&Answer::line(status, why), true, true);
                }
            }
        }
    }

    /// Returns whether everything has gone.
    fn send(&mut self) -> io::Result<bool> {
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent > 0 {
            (self.output, self.sent) = (Vec::new(), 0);
            self.since = Instant::now();
            self.deadline = self.since + IDLE;
        }
        Ok(true)
    }

    /// Returns whether something came.
    fn receive(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 2048];
        let room = (REQUEST - self.input.len()).min(bytes.len());
        match self.socket.read(&mut bytes[..room]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                if self.input.is_empty() {
                    self.deadline = self.deadline.min(Instant::now() + PATIENCE);
                }
                self.input.extend_from_slice(&bytes[..read]);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn put(&mut self, answer: &Answer, body: bool, last: bool) {
        let Answer { status, headers, body: bytes } = answer;
        let connection = if last { "close" } else { "keep-alive" };
        self.output = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: {connection}\r\nX-Content-Type-Options: nosniff\r\n\
             {headers}\r\n",
            bytes.len()
        )
        .into_bytes();
        if body {
            self.output.extend_from_slice(bytes);
        }
        self.last = last;
        self.since = Instant::now();
        self.deadline = self.since + PATIENCE;
    }
}

fn parse(input: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let length = match parsed.parse(input) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if input.len() < REQUEST => return Parsed::Incomplete,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Wrong("431 Request Header Fields Too Large", "the request is too long");
        }
        Err(_) => return Parsed::Wrong("400 Bad Request", "that is no HTTP/1 request"),
    };
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
        return Parsed::Wrong("400 Bad Request", "that is no HTTP/1 request");
    };
    let header = |name: &str| parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    let says = |name: &str, word: &str| {
        header(name).is_some_and(|header| {
            let value = String::from_utf8_lossy(header.value);
            value.split(',').any(|part| part.trim().eq_ignore_ascii_case(word))
        })
    };
    if version == 1 && header("host").is_none() {
        return Parsed::Wrong("400 Bad Request", "HTTP/1.1 asks for a Host header");
    }
    if !["GET", "HEAD"].contains(&method) {
        return Parsed::Wrong("405 Method Not Allowed\r\nAllow: GET, HEAD", "only GET and HEAD are answered");
    }
    // Bytes that follow as its body are not to be taken for another request.
    let has_body = header("transfer-encoding").is_some() || header("content-length").is_some_and(|of| of.value != b"0");
    let last = has_body || if version == 0 { !says("connection", "keep-alive") } else { says("connection", "close") };
    // As for a proxy: http://host/path.
    let target = target.split_once("://").map_or(target, |(_, rest)| rest.find('/').map_or("/", |at| &rest[at..]));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let host = header("host").map(|header| String::from_utf8_lossy(header.value).into_owned());
    let request = Request { path: path.to_owned(), query: query.to_owned(), host };
    Parsed::Request { request, length, body: method == "GET", last }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> (Request, bool, bool) {
        match parse(text.as_bytes()) {
            Parsed::Request { request, body, last, .. } => (request, body, last),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_parse_target_body_and_close() {
        let (asked, body, last) = request("GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!((asked.path.as_str(), asked.query.as_str(), body, last), ("/a", "b=c", true, false));
        assert!(request("GET / HTTP/1.1\r\nHost: x\r\nConnection: foo, Close\r\n\r\n").2);
        assert!(request("GET / HTTP/1.0\r\n\r\n").2);
        assert!(!request("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").2);
        assert!(!request("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n").1);
        assert_eq!(request("GET http://proxy:1/metrics HTTP/1.1\r\nHost: x\r\n\r\n").0.path, "/metrics");
        assert!(request("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc").2, "a body is nobody's request");
    }

    #[test]
    fn bad_requests_are_refused() {
        for (text, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "400"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
            ("\x16\x03\x01\x02\x00\x01\x00", "400"),
            ("get foo\r\n", "400"),
            ("POST / HTTP/1.1\r\nHost: x\r\n\r\n", "405"),
            (&format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS + 1)), "431"),
            (&format!("GET /{}", "a".repeat(REQUEST)), "431"),
        ] {
            match parse(text.as_bytes()) {
                Parsed::Wrong(said, _) => assert!(said.starts_with(status), "{text:?}: {said}"),
                other => panic!("{text:?}: {other:?}"),
            }
        }
        assert_eq!(parse(b"GET / HT"), Parsed::Incomplete);
    }

    proptest::proptest! {
        #[test]
        fn noise_is_no_reason_to_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
            let _ = parse(&[b"GET / HTTP/1.1\r\nHost: x\r\n".as_slice(), &bytes, b"\r\n\r\n"].concat());
        }
    }
}
