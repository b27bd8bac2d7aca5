//! A connection: a socket, the session on it, and what of either waits.

use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mio::Interest;
use mio::net::{TcpStream, UnixStream};

use super::tls::TlsStream;
use crate::log;
use crate::session::{Context, Doing, Out, Pause, Peer, ProtocolMode, SLICES, Session, Shards};

/// A socket of any kind.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

impl Stream {
    pub(super) fn source(&mut self) -> &mut dyn mio::event::Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
            Self::Tls(stream) => stream.socket(),
        }
    }
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
            Self::Tls(stream) => stream.read(into),
        }
    }
    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // One slice goes without the system having to look at a list.
        if let [slice] = slices {
            return match self {
                Self::Tcp(stream) => stream.write(slice),
                Self::Unix(stream) => stream.write(slice),
                Self::Tls(stream) => stream.write(slices),
            };
        }
        match self {
            Self::Tcp(stream) => stream.write_vectored(slices),
            Self::Unix(stream) => stream.write_vectored(slices),
            Self::Tls(stream) => stream.write(slices),
        }
    }
    /// Returns whether the system reports room for output each time that the peer takes some. It does for Unix sockets, whatever
    /// room there was before.
    fn reports_all_room(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
    /// Sends what was written and waits in the stream itself.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tls(stream) => stream.flush(),
            _ => Ok(()),
        }
    }
    fn waits(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.waits())
    }
    fn has_ended(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.has_ended())
    }
    /// Returns whether the conversation cannot begin yet.
    pub(super) fn is_handshaking(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.is_handshaking())
    }
    /// Returns whether there was no handshake, or an end that is none.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.is_handshaking() || stream.has_failed())
    }
}

/// The next step with the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for the socket.
    Wait,
    /// Let others go first, then go on.
    Again,
    /// It is over.
    Close,
}

/// The connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: Stream,
    /// How others know it.
    pub(super) peer: Arc<Peer>,
    session: Session,
    /// Input that could not be used yet.
    pending: Vec<u8>,
    out: Out,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// Whether the poller reports when it is writable.
    watches_room: bool,
    /// The client has said that nothing more comes; there may be something left to read all the same.
    pub(super) hung_up: bool,
    over: bool,
    /// Whether its client ended it.
    ended: bool,
    /// When the client last sent or took something, in Unix seconds; it counts from the handshake on.
    pub(super) heard: u64,
    /// When it came.
    pub(super) came: u64,
    /// Whether the handshake is done, if there is one.
    greeted: bool,
    /// Whether it is in the worker's queue of connections that go on later.
    pub(super) queued: bool,
    /// The turn of the worker by which it waits for flash: nothing is read from the socket then.
    pub(super) parked: Option<u64>,
}

impl Conn {
    pub(super) fn new(stream: Stream, peer: Arc<Peer>, protocol: ProtocolMode, now: u64) -> Self {
        Self {
            greeted: !stream.is_handshaking(),
            watches_room: !stream.reports_all_room(),
            stream,
            session: Session::on(protocol, peer.clone()),
            peer,
            pending: Vec::new(),
            out: Out::default(),
            readable: true,
            writable: true,
            hung_up: false,
            over: false,
            ended: false,
            heard: now,
            came: now,
            queued: false,
            parked: None,
        }
    }

    /// Returns the events that the poller reports.
    pub(super) fn interest(&self) -> Interest {
        if self.watches_room { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE }
    }

    /// Returns whether the events to report have changed. A peer that takes its answers would wake the worker for each where
    /// all room is reported.
    pub(super) fn changes_interest(&mut self) -> bool {
        let watches_room = !self.stream.reports_all_room() || !self.writable;
        std::mem::replace(&mut self.watches_room, watches_room) != watches_room
    }

    /// Returns whether nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.pending.is_empty() && self.out.is_empty() && !self.stream.waits() && self.session.is_quiet()
    }

    /// Returns whether its client watches.
    pub(super) fn is_watching(&self) -> bool {
        self.session.is_watching()
    }

    /// Returns whether its client ended it, as clients do.
    pub(super) fn has_ended(&self) -> bool {
        self.ended || self.session.has_quit()
    }

    /// Returns its holds to the stores.
    pub(super) fn close(&mut self, shards: &Shards) {
        self.session.close(shards);
        self.out.clear(shards);
        if let Stream::Tls(stream) = &mut self.stream {
            stream.close();
        }
    }

    /// Does what can be done now. `buffer` and `spare` are the worker's; both are empty of this connection's data when
    /// it returns.
    pub(super) fn drive(&mut self, buffer: &mut [u8], spare: &mut Out, cx: &mut Context<'_>) -> Next {
        // Connections without output own no memory for it: they borrow the worker's.
        if self.out.is_empty() && spare.is_empty() {
            std::mem::swap(&mut self.out, spare);
        }
        let next = self.turn(buffer, cx);
        if !self.greeted && !self.stream.is_handshaking() {
            self.greeted = true;
            if let Some(tls) = &cx.shared.tls {
                tls.handshakes.fetch_add(1, Relaxed);
            }
        }
        let doing = if self.out.is_empty() { self.session.doing() } else { Doing::Writing };
        self.peer.note(doing, self.heard);
        if self.out.is_empty() {
            self.out.shrink(256 << 10);
            std::mem::swap(&mut self.out, spare);
        }
        next
    }

    fn turn(&mut self, buffer: &mut [u8], cx: &mut Context<'_>) -> Next {
        let mut turns = cx.shared.settings.reqs_per_event;
        loop {
            if !self.out.is_empty() || self.stream.waits() {
                if !self.writable {
                    return Next::Wait;
                }
                match self.flush(cx) {
                    Ok(true) => {}
                    Ok(false) => return Next::Wait,
                    Err(_) => return Next::Close,
                }
            }
            if self.over {
                return Next::Close;
            }
            if self.parked.is_some() {
                return Next::Wait;
            }
            if !self.pending.is_empty() || self.session.has_more() {
                let (used, pause) = self.session.advance(&self.pending, &mut turns, cx, &mut self.out);
                self.pending.drain(..used);
                match pause {
                    Pause::Over => self.over = true,
                    Pause::Turn => return if self.flush(cx).is_err() { Next::Close } else { Next::Again },
                    Pause::Flash => self.parked = Some(cx.waits.turn),
                    Pause::Output | Pause::Input => {}
                }
                if self.parked.is_some() {
                    continue;
                }
                if !self.out.is_empty() || self.over {
                    continue;
                }
                if self.pending.is_empty() && self.pending.capacity() > 4096 {
                    self.pending = Vec::new();
                }
            }
            if !self.readable {
                return Next::Wait;
            }
            if turns == 0 {
                return Next::Again;
            }
            match self.read(buffer, &mut turns, cx) {
                Ok(Some(next)) => return next,
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Next::Close,
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8], turns: &mut usize, cx: &mut Context<'_>) -> io::Result<Option<Next>> {
        if self.pending.is_empty()
            && let Some(value) = self.session.direct()
        {
            // A bounded piece at a time, so that others have their turn.
            let piece = value.len().min(256 << 10);
            let read = self.stream.read(&mut value[..piece])?;
            self.session.add_direct(read);
            cx.counts.bytes_read += read as u64;
            self.heard = cx.now;
            *turns -= 1;
            self.ended = read == 0;
            return Ok((read == 0).then_some(Next::Close));
        }
        let read = self.stream.read(buffer)?;
        if read == 0 {
            self.ended = true;
            return Ok(Some(Next::Close));
        }
        // Less than there was room for: the socket is empty, no need to ask it again. It tells when there is more, but
        // of an end that it has told already it will not tell again.
        if read < buffer.len() && !self.hung_up && !self.stream.has_ended() {
            self.readable = false;
        }
        cx.counts.bytes_read += read as u64;
        self.heard = cx.now;
        // Data is not shown: it may be a password.
        if cx.shared.log.shows_requests() && self.session.is_quiet() {
            log::request(&buffer[..read]);
        }
        if !self.pending.is_empty() {
            self.pending.extend_from_slice(&buffer[..read]);
            return Ok(None);
        }
        let (used, pause) = self.session.advance(&buffer[..read], turns, cx, &mut self.out);
        self.pending.extend_from_slice(&buffer[used..read]);
        match pause {
            Pause::Over => self.over = true,
            Pause::Turn => return Ok(Some(if self.flush(cx).is_err() { Next::Close } else { Next::Again })),
            Pause::Flash => {
                self.parked = Some(cx.waits.turn);
                return Ok(None);
            }
            Pause::Input | Pause::Output => {}
        }
        // Data that fills the buffer and completes nothing, as data that is dropped does, has its price too: others
        // wait.
        if read == buffer.len() {
            *turns = turns.saturating_sub(1);
        }
        // An incomplete request would be parsed again and again if the loop saw it now.
        if pause == Pause::Input && self.out.is_empty() && !self.readable {
            return Ok(Some(Next::Wait));
        }
        Ok(None)
    }

    /// Writes what waits; returns whether all is gone.
    fn flush(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.out.slices(&mut slices);
            match self.stream.write(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    cx.counts.bytes_written += written as u64;
                    // A client that takes an answer, however slowly, is not idle.
                    self.heard = cx.now;
                    self.out.advance(written, &cx.shared.shards);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writable = false;
                    return Ok(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match self.stream.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.writable = false;
                return Ok(false);
            }
            other => other?,
        }
        Ok(true)
    }
}
