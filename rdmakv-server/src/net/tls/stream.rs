//! A socket with encrypted bytes. It looks to a connection like a plain one, but for two things: what was written may
//! still wait here ([`waits`](TlsStream::waits)), and its end may come before the socket's
//! ([`has_ended`](TlsStream::has_ended)).

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::{ServerConfig, ServerConnection};

/// Bytes from the peer that may bring no data, one after the other: a long handshake, or a peer that wants to keep us
/// busy.
const IDLE_MAX: usize = 256 << 10;

/// The socket and its session.
#[derive(Debug)]
pub(crate) struct TlsStream {
    socket: TcpStream,
    session: ServerConnection,
    idle: usize,
    ended: bool,
    failed: bool,
}

/// A socket that notes whether the last read emptied it.
struct Noting<'a> {
    socket: &'a mut TcpStream,
    emptied: bool,
}

impl Read for Noting<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.socket.read(into)?;
        self.emptied = read < into.len();
        Ok(read)
    }
}

impl TlsStream {
    pub(super) fn new(socket: TcpStream, config: Arc<ServerConfig>, buffer: usize) -> Result<Self, rustls::Error> {
        let mut session = ServerConnection::new(config)?;
        session.set_buffer_limit(Some(buffer));
        Ok(Self { socket, session, idle: 0, ended: false, failed: false })
    }

    /// Returns the socket below.
    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Returns whether the handshake is not done yet.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Returns whether the peer broke the protocol.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns whether the peer's end has been read, of which the socket says nothing again.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended || self.failed
    }

    /// Returns whether something is still to be sent.
    pub(crate) fn waits(&self) -> bool {
        self.session.wants_write()
    }

    /// Reads until there is no more room or the socket is empty, like a plain one.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (mut got, mut emptied) = (0, false);
        let so_far = |got: usize, error: io::Error| if got > 0 { Ok(got) } else { Err(error) };
        while got < into.len() {
            match self.session.reader().read(&mut into[got..]) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(read) => {
                    got += read;
                    self.idle = 0;
                    continue;
                }
                // To ask an empty socket again would take a system call. It reports its end when it is read next.
                Err(error) if error.kind() == ErrorKind::WouldBlock && got > 0 && emptied => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // A client that leaves without a word has left all the same: requests mark their own ends.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    self.ended = true;
                    break;
                }
                Err(error) => return so_far(got, error),
            }
            if self.failed {
                return so_far(got, ErrorKind::InvalidData.into());
            }
            let mut socket = Noting { socket: &mut self.socket, emptied: false };
            let read = self.session.read_tls(&mut socket);
            emptied = socket.emptied;
            match read {
                Ok(read) => self.idle += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return so_far(got, error),
            }
            self.failed = self.session.process_new_packets().is_err() || self.idle > IDLE_MAX;
            // A handshake's answer, or why there will be none; what does not go now waits.
            match self.flush() {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return so_far(got, error),
                _ => {}
            }
        }
        Ok(got)
    }

    /// Takes what there is room for, and sends what the socket takes.
    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        let written = self.session.writer().write_vectored(slices)?;
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(written),
        }
    }

    /// Sends what waits.
    ///
    /// # Errors
    ///
    /// `WouldBlock` where some of it still does.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells the peer that nothing more comes, if it listens.
    pub(crate) fn close(&mut self) {
        self.session.send_close_notify();
        let _ = self.flush();
    }
}
