//! One connection over a socket: requests go out one behind the other, and answers come back in the same order.
//!
//! Nothing here blocks but [`Stream::wait`]. Bytes that cannot be sent yet wait here: as much as the open operations have.

use super::address::Socket;
use super::answer::{self, Answer};
use super::error::Operation;
use super::ops::Name;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Bytes that are asked of the socket at a time.
const CHUNK: usize = 64 << 10;
/// Bytes of a value at most: more than any server takes.
const LARGEST: usize = 1 << 30;
/// The size that empty buffers keep.
const KEPT: usize = 1 << 20;

enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection.
pub(super) struct Stream {
    kind: Kind,
    out: Vec<u8>,
    /// Bytes of `out` that have left, and bytes that had left before them.
    sent: usize,
    before: u64,
    into: Vec<u8>,
    /// Bytes of `into` that were understood, and how many there have to be before it is worth another look.
    taken: usize,
    wanted: usize,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    op: Name,
    operation: Operation,
    /// The place of its first byte, counted from the connection's first.
    from: u64,
}

/// Why a connection is of no use any more.
pub(super) enum Lost {
    System(io::Error),
    Closed,
    Nonsense(&'static str),
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::Closed => f.write_str("the server closed the connection"),
            Self::Nonsense(what) => write!(f, "the answer makes no sense ({what})"),
        }
    }
}

/// Connects, within this time, and logs in. Blocks.
pub(super) fn connect(to: &Socket, login: Option<&[u8]>, within: Duration) -> Result<Stream, String> {
    let mut kind = match to {
        Socket::Tcp(host, port) => {
            let places: Vec<_> = (host.as_str(), *port)
                .to_socket_addrs()
                .map_err(|error| format!("{to}: the host's name is not resolved: {error}"))?
                .collect();
            let mut last = io::Error::from(ErrorKind::NotFound);
            let mut connected = None;
            for place in &places {
                match TcpStream::connect_timeout(place, within / places.len().max(1) as u32) {
                    Ok(stream) => {
                        connected = Some(stream);
                        break;
                    }
                    Err(error) => last = error,
                }
            }
            let stream = connected.ok_or_else(|| format!("{to}: {last}"))?;
            // Requests are sent whole.
            let _ = stream.set_nodelay(true);
            let _ = stream.set_read_timeout(Some(within));
            Kind::Tcp(stream)
        }
        Socket::Unix(path) => {
            let stream = UnixStream::connect(path).map_err(|error| format!("{to}: {error}"))?;
            let _ = stream.set_read_timeout(Some(within));
            Kind::Unix(stream)
        }
    };
    if let Some(login) = login {
        let answer = kind.say(login).map_err(|error| format!("{to}: logging in: {error}"))?;
        if answer != "STORED" {
            return Err(format!("{to}: logging in: the server says: {answer}"));
        }
    }
    match &kind {
        Kind::Tcp(stream) => stream.set_nonblocking(true),
        Kind::Unix(stream) => stream.set_nonblocking(true),
    }
    .map_err(|error| format!("{to}: {error}"))?;
    let (out, into) = (Vec::new(), Vec::new());
    Ok(Stream { kind, out, sent: 0, before: 0, into, taken: 0, wanted: 1, waiting: VecDeque::new() })
}

impl Kind {
    /// Says something while nothing else is under way; the line that is answered.
    fn say(&mut self, request: &[u8]) -> io::Result<String> {
        let (mut line, mut byte) = (Vec::new(), [0]);
        match self {
            Self::Tcp(stream) => stream.write_all(request),
            Self::Unix(stream) => stream.write_all(request),
        }?;
        while !line.ends_with(b"\n") && line.len() < 1000 {
            match self {
                Self::Tcp(stream) => stream.read_exact(&mut byte),
                Self::Unix(stream) => stream.read_exact(&mut byte),
            }?;
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}

impl Stream {
    /// Queues a request; `write` appends it.
    pub(super) fn send(&mut self, op: Name, operation: Operation, write: impl FnOnce(&mut Vec<u8>)) {
        if self.sent == self.out.len() {
            self.before += self.sent as u64;
            (self.sent, self.out) = (0, emptied(std::mem::take(&mut self.out)));
        }
        let from = self.before + self.out.len() as u64;
        write(&mut self.out);
        self.waiting.push_back(Waiting { op, operation, from });
    }

    /// Does what can be done now.
    pub(super) fn progress(&mut self, mut answered: impl FnMut(Name, Answer)) -> Result<(), Lost> {
        let written = self.write();
        // Received bytes are read though nothing can be written any more: the reason may be among them.
        let read = self.read();
        self.understand(&mut answered)?;
        written.and(read)
    }

    fn write(&mut self) -> Result<(), Lost> {
        while self.sent < self.out.len() {
            let rest = &self.out[self.sent..];
            let written = match &mut self.kind {
                Kind::Tcp(stream) => stream.write(rest),
                Kind::Unix(stream) => stream.write(rest),
            };
            match written {
                Ok(0) => return Err(Lost::Closed),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Lost::System(error)),
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), Lost> {
        loop {
            let len = self.into.len();
            // Not all of a long answer at once: room is made anew each time, and a word of the server's alone is worth none.
            let left = (self.taken + self.wanted).saturating_sub(len).clamp(CHUNK, KEPT);
            self.into.resize(len + left, 0);
            let read = match &mut self.kind {
                Kind::Tcp(stream) => stream.read(&mut self.into[len..]),
                Kind::Unix(stream) => stream.read(&mut self.into[len..]),
            };
            self.into.truncate(len + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(Lost::Closed),
                // A read that did not fill it has taken all.
                Ok(read) if read < left => return Ok(()),
                // Not without end: it is understood in between.
                Ok(_) if self.into.len() - self.taken >= self.wanted => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Lost::System(error)),
            }
        }
    }

    fn understand(&mut self, answered: &mut impl FnMut(Name, Answer)) -> Result<(), Lost> {
        while self.into.len() - self.taken >= self.wanted {
            let Some(first) = self.waiting.front() else {
                return Err(Lost::Nonsense("an answer to no question"));
            };
            match answer::take(first.operation, &self.into[self.taken..], LARGEST) {
                Ok(Ok((answer, len))) => {
                    answered(first.op, answer);
                    self.waiting.pop_front();
                    self.taken += len;
                    self.wanted = 1;
                }
                Ok(Err(wanted)) => self.wanted = wanted,
                Err(what) => return Err(Lost::Nonsense(what)),
            }
        }
        if self.taken == self.into.len() {
            (self.taken, self.into) = (0, emptied(std::mem::take(&mut self.into)));
        } else if self.taken > CHUNK {
            self.into.drain(..self.taken);
            self.taken = 0;
        }
        Ok(())
    }

    /// Sleeps until something can be done, or so long.
    pub(super) fn wait(&self, longest: Duration) {
        let mut events = PollFlags::IN;
        if self.sent < self.out.len() {
            events |= PollFlags::OUT;
        }
        let longest = Timespec {
            tv_sec: longest.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: longest.subsec_nanos().into(),
        };
        // A signal is as good as news.
        let _ = rustix::event::poll(&mut [PollFd::from_borrowed_fd(self.as_fd(), events)], Some(&longest));
    }

    /// Returns whether answers are waited for.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Operations that have not been answered, and whether any byte of them has left.
    pub(super) fn into_waiting(self) -> impl Iterator<Item = (Name, bool)> {
        let gone = self.before + self.sent as u64;
        self.waiting.into_iter().map(move |waiting| (waiting.op, waiting.from < gone))
    }
}

fn emptied(mut buffer: Vec<u8>) -> Vec<u8> {
    buffer.clear();
    buffer.shrink_to(KEPT);
    buffer
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Tcp(stream) => stream.as_fd(),
            Kind::Unix(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_announcement_of_a_long_value_takes_no_memory() {
        let (mut server, here) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        let (out, into) = (Vec::new(), Vec::new());
        let kind = Kind::Unix(here);
        let mut stream = Stream { kind, out, sent: 0, before: 0, into, taken: 0, wanted: 1, waiting: VecDeque::new() };
        let mut ops = crate::ops::Ops::new(1);
        let op = ops.insert(
            (Operation::Get, b"k"),
            crate::command::Arguments::default(),
            crate::Data::None,
            0,
            std::time::Instant::now(),
        );
        stream.send(op, Operation::Get, |out| out.extend_from_slice(b"mg k v\r\n"));
        for part in [&b"VA 1000000000 c1\r\n"[..], &[0; 1000], &[0; 1000]] {
            server.write_all(part).unwrap();
            assert!(stream.progress(|_, _| panic!("it is not there yet")).is_ok());
            assert!(stream.into.capacity() < 4 * KEPT, "{}", stream.into.capacity());
        }
    }
}
