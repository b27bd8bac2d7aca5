//! A server that stores nothing: it answers each GET with the value that the generator would have written, and each SET
//! with success. A run against it costs the generator, this and the sockets between them: no server can seem faster.

use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{TcpListener, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::event::{Timespec, epoll};
use socket2::Socket;

use crate::outgoing::{Outgoing, SLICES};
use crate::sizes::Sizes;
use crate::target::Target;
use crate::values::Values;

/// The server.
#[derive(Debug)]
pub struct Null {
    listener: Listener,
    target: Target,
    values: Values,
    spin: bool,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
    Udp(UdpSocket),
}

#[derive(Debug)]
struct Client {
    socket: Socket,
    /// The beginning of a request.
    pending: Vec<u8>,
    /// Bytes of a value that are still to come.
    skip: usize,
    out: Outgoing,
}

const DOOR: u64 = u64::MAX;
/// Bytes of a request's line at most.
const LINE_MAX: usize = 64 << 10;

impl Null {
    /// Listens there; port 0 is a free one.
    ///
    /// # Errors
    ///
    /// The place cannot be listened at.
    pub fn bind(place: &str, sizes: &Sizes) -> Result<Self, String> {
        let wrong = |error: io::Error| match error.kind() {
            ErrorKind::InvalidInput => {
                format!("listening on {place}: {error}; such as 127.0.0.1:0, udp:127.0.0.1:0 or unix:/tmp/null")
            }
            _ => format!("listening on {place}: {error}"),
        };
        let (scheme, rest) = match place.split_once(':') {
            Some((scheme @ ("tcp" | "udp" | "unix"), rest)) => (scheme, rest),
            _ => ("tcp", place),
        };
        let address = || rest.to_socket_addrs()?.next().ok_or_else(|| io::Error::from(ErrorKind::NotFound));
        let (listener, target) = match scheme {
            "unix" => {
                let listener = UnixListener::bind(rest).map_err(wrong)?;
                listener.set_nonblocking(true).map_err(wrong)?;
                (Listener::Unix(listener), Target::Unix(rest.into()))
            }
            "udp" => {
                let socket = UdpSocket::bind(address().map_err(wrong)?).map_err(wrong)?;
                socket.set_nonblocking(true).map_err(wrong)?;
                let target = Target::Udp(socket.local_addr().map_err(wrong)?.to_string());
                (Listener::Udp(socket), target)
            }
            _ => {
                let listener = TcpListener::bind(address().map_err(wrong)?).map_err(wrong)?;
                listener.set_nonblocking(true).map_err(wrong)?;
                let target = Target::Tcp(listener.local_addr().map_err(wrong)?.to_string());
                (Listener::Tcp(listener), target)
            }
        };
        Ok(Self { listener, target, values: Values::new(sizes), spin: false })
    }

    /// Sets whether it looks for requests again and again instead of sleeping: then no wake-up is needed.
    #[must_use]
    pub fn spinning(self, spin: bool) -> Self {
        Self { spin, ..self }
    }

    /// Returns its address.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Serves on this thread until `stop` is set; it looks ten times a second.
    ///
    /// # Errors
    ///
    /// The event loop could not be had.
    pub fn serve(&self, stop: &AtomicBool) -> io::Result<()> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(DOOR);
        match &self.listener {
            Listener::Tcp(listener) => epoll::add(&epoll, listener, data, epoll::EventFlags::IN)?,
            Listener::Unix(listener) => epoll::add(&epoll, listener, data, epoll::EventFlags::IN)?,
            Listener::Udp(socket) => epoll::add(&epoll, socket, data, epoll::EventFlags::IN)?,
        }
        let mut clients: Vec<Option<Client>> = Vec::new();
        let (mut events, mut buffer) = (Vec::with_capacity(256), vec![0; 256 << 10]);
        while !stop.load(Relaxed) {
            events.clear();
            let wait = Timespec { tv_sec: 0, tv_nsec: if self.spin { 0 } else { 100_000_000 } };
            match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let data = event.data;
                if data.u64() == DOOR {
                    self.open(&epoll, &mut clients, &mut buffer);
                    continue;
                }
                let at = data.u64() as usize;
                let flags = event.flags;
                let Some(client) = &mut clients[at] else { continue };
                let good = client.serve(flags, &mut buffer, &self.values).is_ok_and(|()| {
                    let write = if client.out.is_empty() { epoll::EventFlags::empty() } else { epoll::EventFlags::OUT };
                    // While it does not read, nothing more is read from it: what waits here has bounds.
                    let read = if client.out.is_empty() { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
                    // Asked only where it changes.
                    let same = flags == epoll::EventFlags::IN && client.out.is_empty();
                    same || epoll::modify(&epoll, &client.socket, data, read | write).is_ok()
                });
                if !good {
                    clients[at] = None;
                }
            }
        }
        Ok(())
    }

    fn open(&self, epoll: &rustix::fd::OwnedFd, clients: &mut Vec<Option<Client>>, buffer: &mut [u8]) {
        let socket: Socket = match &self.listener {
            Listener::Tcp(listener) => match listener.accept() {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    stream.into()
                }
                Err(_) => return,
            },
            Listener::Unix(listener) => match listener.accept() {
                Ok((stream, _)) => stream.into(),
                Err(_) => return,
            },
            Listener::Udp(socket) => return self.datagrams(socket, buffer),
        };
        let at = clients.iter().position(Option::is_none).unwrap_or_else(|| {
            clients.push(None);
            clients.len() - 1
        });
        let data = epoll::EventData::new_u64(at as u64);
        if socket.set_nonblocking(true).is_ok() && epoll::add(epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
            clients[at] = Some(Client { socket, pending: Vec::new(), skip: 0, out: Outgoing::default() });
        }
    }

    fn datagrams(&self, socket: &UdpSocket, buffer: &mut [u8]) {
        while let Ok((read, from)) = socket.recv_from(buffer) {
            let Some((frame, request)) = buffer[..read].split_first_chunk::<8>() else { continue };
            let mut out = Outgoing::default();
            if !matches!(understand(request, &mut out, &self.values), Ok(Some(_))) {
                continue;
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = out.slices(self.values.pattern(), &mut slices);
            let whole: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
            let parts = whole.chunks(1392);
            let [high, low] = (parts.len() as u16).to_be_bytes();
            for (sequence, part) in parts.enumerate() {
                let [first, second] = (sequence as u16).to_be_bytes();
                let mut datagram = vec![frame[0], frame[1], first, second, high, low, 0, 0];
                datagram.extend_from_slice(part);
                let _ = socket.send_to(&datagram, from);
            }
        }
    }
}

impl Client {
    fn serve(&mut self, flags: epoll::EventFlags, buffer: &mut [u8], values: &Values) -> io::Result<()> {
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            match (&self.socket).read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.take(&buffer[..read], values)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.out.slices(values.pattern(), &mut slices);
            match self.socket.send_vectored_with_flags(&slices[..count], libc::MSG_NOSIGNAL) {
                Ok(written) => self.out.advance(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take(&mut self, input: &[u8], values: &Values) -> io::Result<()> {
        let joined;
        let mut rest = input;
        if !self.pending.is_empty() {
            self.pending.extend_from_slice(input);
            joined = std::mem::take(&mut self.pending);
            rest = &joined;
        }
        loop {
            let skipped = self.skip.min(rest.len());
            self.skip -= skipped;
            rest = &rest[skipped..];
            if rest.is_empty() {
                return Ok(());
            }
            match understand(rest, &mut self.out, values) {
                Ok(Some((used, skip))) => {
                    rest = &rest[used..];
                    self.skip = skip;
                }
                Ok(None) if rest.len() < LINE_MAX => {
                    self.pending = rest.to_vec();
                    return Ok(());
                }
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
    }
}

/// Returns the request that these bytes begin with, answered: how long it is, and how many bytes of a value follow it. None
/// if it is not complete.
fn understand(bytes: &[u8], out: &mut Outgoing, values: &Values) -> Result<Option<(usize, usize)>, ()> {
    if bytes.first() == Some(&0x80) {
        return binary(bytes, out, values);
    }
    let Some(end) = memchr::memchr(b'\n', bytes) else { return Ok(None) };
    let line = bytes[..end].trim_ascii_end();
    let mut words = line.split(|&byte| byte == b' ');
    let (name, key) = (words.next().ok_or(())?, words.next().unwrap_or_default());
    let number = |word: Option<&[u8]>| std::str::from_utf8(word?).ok()?.parse::<usize>().ok();
    let mut skip = 0;
    match name {
        b"get" | b"gets" => {
            for key in std::iter::once(key).chain(words) {
                let place = values.place(number_of(key));
                out.bytes.extend_from_slice(b"VALUE ");
                out.bytes.extend_from_slice(key);
                out.bytes.extend_from_slice(b" 0 ");
                out.bytes.extend_from_slice(itoa::Buffer::new().format(place.len()).as_bytes());
                out.bytes.extend_from_slice(b"\r\n");
                out.put(place, values.pattern());
                out.bytes.extend_from_slice(b"\r\n");
            }
            out.bytes.extend_from_slice(b"END\r\n");
        }
        b"mg" => {
            let place = values.place(number_of(key));
            out.bytes.extend_from_slice(b"VA ");
            out.bytes.extend_from_slice(itoa::Buffer::new().format(place.len()).as_bytes());
            give_back(words, key, out);
            out.bytes.extend_from_slice(b"\r\n");
            out.put(place, values.pattern());
            out.bytes.extend_from_slice(b"\r\n");
        }
        b"set" => {
            skip = number(words.nth(2)).ok_or(())? + 2;
            out.bytes.extend_from_slice(b"STORED\r\n");
        }
        b"ms" => {
            skip = number(words.next()).ok_or(())? + 2;
            out.bytes.extend_from_slice(b"HD");
            give_back(words, key, out);
            out.bytes.extend_from_slice(b"\r\n");
        }
        b"version" => out.bytes.extend_from_slice(b"VERSION 1.6.0 stores nothing\r\n"),
        _ => out.bytes.extend_from_slice(b"ERROR\r\n"),
    }
    Ok(Some((end + 1, skip)))
}

/// Writes the fields that a meta command asks for: its key, its flags, its version.
fn give_back<'a>(wishes: impl Iterator<Item = &'a [u8]>, key: &[u8], out: &mut Outgoing) {
    for wish in wishes {
        match wish {
            b"k" => {
                out.bytes.extend_from_slice(b" k");
                out.bytes.extend_from_slice(key);
            }
            b"f" => out.bytes.extend_from_slice(b" f0"),
            b"c" => out.bytes.extend_from_slice(b" c1"),
            _ => {}
        }
    }
}

fn binary(bytes: &[u8], out: &mut Outgoing, values: &Values) -> Result<Option<(usize, usize)>, ()> {
    let Some(header) = bytes.first_chunk::<24>() else { return Ok(None) };
    let (key, extras) = (usize::from(u16::from_be_bytes([header[2], header[3]])), usize::from(header[4]));
    let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
    let value = body.checked_sub(key + extras).ok_or(())?;
    let Some(key) = bytes.get(24 + extras..24 + extras + key) else { return Ok(None) };
    let mut answer = [0; 28];
    answer[..2].copy_from_slice(&[0x81, header[1]]);
    answer[12..16].copy_from_slice(&header[12..16]);
    match header[1] {
        0 => {
            let place = values.place(number_of(key));
            answer[4] = 4;
            answer[8..12].copy_from_slice(&(place.len() as u32 + 4).to_be_bytes());
            out.bytes.extend_from_slice(&answer);
            out.put(place, values.pattern());
        }
        1 => out.bytes.extend_from_slice(&answer[..24]),
        _ => return Err(()),
    }
    Ok(Some((24 + extras + key.len(), value)))
}

/// Returns the number in a key: its last digits.
fn number_of(key: &[u8]) -> u64 {
    let digits = key.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    key[key.len() - digits..].iter().fold(0, |sum: u64, byte| sum.wrapping_mul(10).wrapping_add(u64::from(byte - b'0')))
}
