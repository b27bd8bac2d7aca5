//! Requests in datagrams: each has a number in its frame, and its answer comes in one or more datagrams with that number.
//! An answer that does not come in time is lost, which is counted and no failure.

use std::collections::VecDeque;
use std::io::ErrorKind;

use socket2::Socket;

use crate::outgoing::Outgoing;
use crate::protocol::{Answer, Codec, InFlight, Reader};
use crate::tally::Calls;
use crate::window::Ended;

/// Bytes of the frame: the request's number, which datagram this is, of how many, and two that mean nothing.
const FRAME: usize = 8;

/// The requests in flight on one socket.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    next: u16,
    /// To be sent.
    waiting: VecDeque<(Request, Vec<u8>)>,
    /// Sent, the oldest first.
    sent: VecDeque<Request>,
}

#[derive(Debug)]
struct Request {
    number: u16,
    asked: InFlight,
    sent: u64,
    /// The parts that have come, if it is more than one.
    parts: Vec<Option<Vec<u8>>>,
    missing: usize,
}

impl Datagrams {
    pub(crate) fn under_way(&self) -> usize {
        self.waiting.len() + self.sent.len()
    }

    pub(crate) fn ask(&mut self, asked: InFlight, codec: &Codec<'_>) {
        let number = self.next;
        self.next = number.wrapping_add(1);
        let mut out = Outgoing::default();
        let [high, low] = number.to_be_bytes();
        out.bytes.extend_from_slice(&[high, low, 0, 0, 0, 1, 0, 0]);
        codec.put(&asked.ask, &mut out);
        self.waiting.push_back((Request { number, asked, sent: 0, parts: Vec::new(), missing: 0 }, out.bytes));
    }

    /// Sends what waits; returns whether the socket was full before the end.
    pub(crate) fn send(&mut self, socket: &Socket, now: u64, calls: &mut Calls) -> Result<bool, Ended> {
        while let Some((mut request, bytes)) = self.waiting.pop_front() {
            calls.writes += 1;
            match socket.send(&bytes) {
                Ok(sent) => {
                    calls.bytes_written += sent as u64;
                    request.sent = now;
                    self.sent.push_back(request);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.waiting.push_front((request, bytes));
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => self.waiting.push_front((request, bytes)),
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(false)
    }

    pub(crate) fn receive(
        &mut self,
        socket: &Socket,
        buffer: &mut [u8],
        codec: &Codec<'_>,
        calls: &mut Calls,
        error: &mut Option<String>,
        mut answered: impl FnMut(&InFlight, Answer),
    ) -> Result<(), Ended> {
        loop {
            calls.reads += 1;
            let read = match std::io::Read::read(&mut &*socket, buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(refused(error)),
            };
            calls.bytes_read += read as u64;
            let Some((frame, payload)) = buffer[..read].split_first_chunk::<FRAME>() else {
                return Err("nonsense from the server: a datagram without a frame".into());
            };
            let [number, sequence, total] = [0, 2, 4].map(|at| u16::from_be_bytes([frame[at], frame[at + 1]]));
            if sequence >= total {
                return Err(format!("nonsense from the server: datagram {sequence} of {total}"));
            }
            // The answer to one that was given up.
            let Some(at) = self.sent.iter().position(|request| request.number == number) else { continue };
            let request = &mut self.sent[at];
            let whole = if total == 1 {
                understand(payload, &request.asked, codec, error)?
            } else {
                if request.parts.is_empty() {
                    request.parts.resize(usize::from(total), None);
                    request.missing = usize::from(total);
                }
                let Some(part) = request.parts.get_mut(usize::from(sequence)) else {
                    return Err(format!(
                        "nonsense from the server: datagram {sequence} of {total}, which was less before"
                    ));
                };
                if part.replace(payload.to_vec()).is_none() {
                    request.missing -= 1;
                }
                if request.missing > 0 {
                    continue;
                }
                let all: Vec<u8> = request.parts.drain(..).flatten().flatten().collect();
                understand(&all, &request.asked, codec, error)?
            };
            answered(&request.asked, whole);
            self.sent.remove(at);
        }
    }

    /// Gives up what was sent before this time; returns how much.
    pub(crate) fn give_up(&mut self, before: u64) -> u64 {
        let mut lost = 0;
        while self.sent.front().is_some_and(|request| request.sent < before) {
            self.sent.pop_front();
            lost += 1;
        }
        lost
    }
}

fn refused(error: std::io::Error) -> Ended {
    let more =
        if error.kind() == ErrorKind::ConnectionRefused { "; does the server listen for datagrams (-U)?" } else { "" };
    format!("datagrams to the server: {error}{more}")
}

fn understand(bytes: &[u8], asked: &InFlight, codec: &Codec<'_>, error: &mut Option<String>) -> Result<Answer, Ended> {
    let mut reader = Reader::default();
    match reader.next(bytes, asked, codec).map_err(|nonsense| nonsense.0)? {
        (used, Some(answer)) if used == bytes.len() => {
            if error.is_none() {
                *error = reader.error.take();
            }
            Ok(answer)
        }
        _ => Err(format!("nonsense from the server: a datagram of {} bytes that is no whole answer", bytes.len())),
    }
}
