//! A connection: a socket, the requests under way on it, and what waits to be written.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::datagrams::Datagrams;
use crate::outgoing::{Outgoing, SLICES};
use crate::protocol::{Answer, Codec, InFlight, Reader};
use crate::tally::Calls;
use crate::target::Target;
use crate::window::Ended;

/// The connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) socket: Socket,
    pub(crate) out: Outgoing,
    wire: Wire,
    /// Whether the socket took less than it was given.
    pub(crate) full: bool,
    /// Whether the loop waits for it to take more.
    pub(crate) waits_to_write: bool,
    /// Whether something was put into it that is not yet written.
    pub(crate) touched: bool,
}

#[derive(Debug)]
enum Wire {
    /// One answer after the other, in the order of the requests.
    Stream {
        in_flight: VecDeque<InFlight>,
        reader: Reader,
    },
    Datagrams(Datagrams),
}

fn addresses(place: &str) -> Result<Vec<SocketAddr>, Ended> {
    let all: Vec<_> = place.to_socket_addrs().map_err(|error| format!("looking up {place}: {error}"))?.collect();
    if all.is_empty() { Err(format!("looking up {place}: it has no address")) } else { Ok(all) }
}

fn open(address: &SockAddr, domain: Domain, kind: Type, timeout: Duration) -> io::Result<Socket> {
    let socket = Socket::new(domain, kind, None)?;
    if kind == Type::STREAM {
        socket.connect_timeout(address, timeout)?;
        if domain != Domain::UNIX {
            socket.set_tcp_nodelay(true)?;
        }
    } else {
        // Answers of many requests wait here; the system gives what it allows.
        let _ = socket.set_recv_buffer_size(4 << 20);
        socket.connect(address)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn broken(doing: &str, error: &io::Error) -> Ended {
    match error.kind() {
        // A server that goes with requests unread resets what it closes.
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            format!("the server closed the connection with requests on it: {error}")
        }
        _ => format!("{doing} the server: {error}"),
    }
}

impl Conn {
    /// Connects.
    pub(crate) fn open(target: &Target, depth: usize, timeout: Duration) -> Result<Self, Ended> {
        let failed = |error: io::Error| {
            let more = match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::NotFound => "; is the server running there?",
                ErrorKind::TimedOut | ErrorKind::WouldBlock => "; is the address right?",
                _ if error.raw_os_error() == Some(libc::EMFILE) => "; raise ulimit -n, or use fewer connections",
                _ => "",
            };
            format!("connecting to {target}: {error}{more}")
        };
        let stream = || Wire::Stream { in_flight: VecDeque::with_capacity(depth), reader: Reader::default() };
        let (socket, wire) = match target {
            Target::Unix(path) => {
                let address = SockAddr::unix(path).map_err(failed)?;
                (open(&address, Domain::UNIX, Type::STREAM, timeout).map_err(failed)?, stream())
            }
            // Those have a generator of their own.
            Target::Client(_) => return Err(format!("connecting to {target}: not by a socket of ours")),
            Target::Tcp(place) | Target::Udp(place) => {
                let udp = matches!(target, Target::Udp(_));
                let kind = if udp { Type::DGRAM } else { Type::STREAM };
                let mut last = None;
                let opened = addresses(place)?.into_iter().find_map(|address| {
                    open(&address.into(), Domain::for_address(address), kind, timeout)
                        .map_err(|error| last = Some(error))
                        .ok()
                });
                let Some(socket) = opened else {
                    return Err(failed(last.unwrap_or_else(|| ErrorKind::NotFound.into())));
                };
                (socket, if udp { Wire::Datagrams(Datagrams::default()) } else { stream() })
            }
        };
        Ok(Self { socket, out: Outgoing::default(), wire, full: false, waits_to_write: false, touched: false })
    }

    /// Requests under way.
    pub(crate) fn under_way(&self) -> usize {
        match &self.wire {
            Wire::Stream { in_flight, .. } => in_flight.len(),
            Wire::Datagrams(datagrams) => datagrams.under_way(),
        }
    }

    /// A request, to be sent with the next flush.
    #[inline]
    pub(crate) fn ask(&mut self, codec: &Codec<'_>, asked: InFlight) {
        match &mut self.wire {
            Wire::Stream { in_flight, .. } => {
                in_flight.push_back(asked);
                codec.put(&asked.ask, &mut self.out);
            }
            Wire::Datagrams(datagrams) => datagrams.ask(asked, codec),
        }
    }

    /// When the oldest request was to start.
    pub(crate) fn oldest(&self) -> Option<u64> {
        match &self.wire {
            Wire::Stream { in_flight, .. } => in_flight.front().map(|asked| asked.start),
            Wire::Datagrams(_) => None,
        }
    }

    /// Gives up datagrams sent before this time; returns how many.
    pub(crate) fn give_up(&mut self, before: u64) -> u64 {
        match &mut self.wire {
            Wire::Stream { .. } => 0,
            Wire::Datagrams(datagrams) => datagrams.give_up(before),
        }
    }

    /// Writes what the socket takes.
    pub(crate) fn flush(&mut self, codec: &Codec<'_>, now: u64, calls: &mut Calls) -> Result<(), Ended> {
        self.touched = false;
        self.full = false;
        if let Wire::Datagrams(datagrams) = &mut self.wire {
            self.full = datagrams.send(&self.socket, now, calls)?;
            return Ok(());
        }
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.out.slices(codec.values.pattern(), &mut slices);
            let whole: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            calls.writes += 1;
            let sent = if count == 1 {
                // The shorter way into the kernel.
                self.socket.send_with_flags(&slices[0], libc::MSG_NOSIGNAL)
            } else {
                self.socket.send_vectored_with_flags(&slices[..count], libc::MSG_NOSIGNAL)
            };
            match sent {
                Ok(written) => {
                    calls.bytes_written += written as u64;
                    self.out.advance(written);
                    if written < whole {
                        self.full = true;
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.full = true;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(broken("sending to", &error)),
            }
        }
        Ok(())
    }

    /// Reads once what is there and hands out the answers in it; returns whether more may be there.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        codec: &Codec<'_>,
        calls: &mut Calls,
        error: &mut Option<String>,
        mut answered: impl FnMut(&InFlight, Answer),
    ) -> Result<bool, Ended> {
        let (in_flight, reader) = match &mut self.wire {
            Wire::Datagrams(datagrams) => {
                return datagrams.receive(&self.socket, buffer, codec, calls, error, answered).map(|()| false);
            }
            Wire::Stream { in_flight, reader } => (in_flight, reader),
        };
        calls.reads += 1;
        let read = match io::Read::read(&mut &self.socket, buffer) {
            Ok(0) => {
                let left = in_flight.len();
                return Err(format!("the server closed the connection; {left} requests on it were not answered"));
            }
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(false),
            Err(error) => return Err(broken("receiving from", &error)),
        };
        calls.bytes_read += read as u64;
        let mut at = 0;
        while at < read {
            let Some(asked) = in_flight.front() else {
                let came = buffer[at..read.min(at + 60)].escape_ascii();
                return Err(format!("nonsense from the server: nothing was asked, and this came: \"{came}\""));
            };
            let (used, answer) = reader.next(&buffer[at..read], asked, codec).map_err(|nonsense| nonsense.0)?;
            at += used;
            if let Some(answer) = answer {
                if answer == Answer::Error && error.is_none() {
                    *error = reader.error.take();
                }
                answered(asked, answer);
                in_flight.pop_front();
            }
        }
        Ok(read == buffer.len())
    }
}
