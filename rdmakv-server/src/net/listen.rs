//! The sockets that others come to, and the thread that accepts them.

use std::fs::File;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, UdpSocket, UnixListener};
use mio::{Events, Interest, Poll, Token};
use rustix::fs::Mode;
use rustix::process::umask;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::conn::Stream;
use super::tls::Certificates;
use super::worker::{Incoming, Reach};
use crate::log;
use crate::session::{Address, Peer, Settings, Shared, is_accepting};
use rdmakv_proto::clock::now;

/// Names the file that ports are written to, as for memcached.
const PORT_FILE: &str = "MEMCACHED_PORT_FILENAME";

/// Between two looks at a port that another has.
const LOOK: Duration = Duration::from_millis(20);

/// How connections to a place are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Encryption {
    /// As the options say.
    #[default]
    Usual,
    /// Not, whatever `-Z` says: `notls:`.
    Plain,
    /// So that clients have to show a certificate: `mtls:`.
    Mutual,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// A name or an address; none for all addresses.
    pub(crate) host: Option<String>,
    pub(crate) port: Option<u16>,
    /// How it is encrypted where `-Z` says that it is.
    pub(crate) encryption: Encryption,
}

/// A socket to accept from.
struct Listener {
    kind: Kind,
    address: Arc<Address>,
}

enum Kind {
    Tcp(TcpListener),
    /// With whether clients have to show a certificate here whatever the options say.
    Tls(TcpListener, Arc<Certificates>, bool),
    /// With the file that goes when the server does.
    Unix(UnixListener, Option<String>),
}

/// All of them.
#[derive(Default)]
pub(crate) struct Listeners {
    listeners: Vec<Listener>,
    /// Sockets for datagrams.
    pub(crate) datagrams: Vec<UdpSocket>,
    /// The socket on which the server is watched.
    pub(crate) http: Option<TcpListener>,
    /// The first TCP port.
    pub(crate) port: Option<u16>,
    /// The addresses, for the start-up lines.
    pub(crate) said: Vec<String>,
    /// Others opened the sockets, and have them too.
    passed: bool,
}

fn addresses(place: &Place, port: u16) -> io::Result<Vec<SocketAddr>> {
    let port = place.port.unwrap_or(port);
    match &place.host {
        None => Ok(vec![SocketAddr::from(([0, 0, 0, 0], port)), SocketAddr::from(([0_u16; 8], port))]),
        Some(host) => Ok((host.as_str(), port).to_socket_addrs()?.collect()),
    }
}

fn socket(address: SocketAddr, kind: Type, backlog: i32) -> io::Result<Socket> {
    let protocol = if kind == Type::STREAM { Protocol::TCP } else { Protocol::UDP };
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_keepalive(true)?;
    }
    socket.bind(&address.into())?;
    if kind == Type::STREAM {
        socket.listen(backlog)?;
    }
    Ok(socket)
}

/// How long a port that another has is waited for.
pub(crate) struct Patience<'a> {
    /// Until then in any case.
    pub(crate) until: Instant,
    /// Says whether the server before ends: it is waited for.
    pub(crate) is_ending: &'a dyn Fn() -> bool,
}

/// Opens a socket; waits for its port, if there is any patience and no own socket has it.
fn wait_for_socket(
    address: SocketAddr,
    kind: Type,
    backlog: i32,
    patience: Option<&Patience<'_>>,
    own: &[SocketAddr],
) -> io::Result<Socket> {
    let mut is_waiting = false;
    loop {
        let opened = socket(address, kind, backlog);
        let is_taken = opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
        if is_taken && own.iter().any(|&own| overlap(own, address)) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "this server listens there already"));
        }
        let waits = |patience: &Patience<'_>| Instant::now() < patience.until || (patience.is_ending)();
        if !is_taken || !patience.is_some_and(waits) {
            return opened;
        }
        if !std::mem::replace(&mut is_waiting, true) {
            log::print(format_args!("-e: waits until another server has left {address}"));
        }
        std::thread::sleep(LOOK);
    }
}

/// Returns whether one socket at most may have these addresses.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_shared = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.is_ipv4() == other.is_ipv4() && is_shared
}

impl Listeners {
    /// Opens what the settings ask for.
    ///
    /// # Errors
    ///
    /// The socket that could not be opened, and why.
    pub(crate) fn open(
        settings: &Settings,
        places: &[Place],
        certificates: Option<&Arc<Certificates>>,
        patience: Option<&Patience<'_>>,
    ) -> Result<Self, String> {
        let mut listeners = Self::default();
        // The Unix socket is its owner's, so it has to wait until that is settled.
        if settings.socket.is_some() {
            return Ok(listeners);
        }
        let everywhere = [Place { host: None, port: None, encryption: Encryption::Usual }];
        let places = if places.is_empty() { &everywhere } else { places };
        let kinds = [("tcp", settings.tcp_port, Type::STREAM), ("udp", settings.udp_port, Type::DGRAM)];
        for (name, port, kind) in kinds {
            if port == 0 {
                continue;
            }
            let mut port = u16::try_from(port).unwrap_or(0);
            for place in places {
                let host = place.host.as_deref().unwrap_or("*");
                let all = addresses(place, port).map_err(|error| format!("-l {host}: {error}"))?;
                for mut address in all {
                    if address.port() == 0 {
                        address.set_port(port);
                    }
                    let own = listeners.addresses(kind);
                    let socket = match wait_for_socket(address, kind, settings.backlog, patience, &own) {
                        Ok(socket) => socket,
                        // A system without IPv6 has no such addresses.
                        Err(error)
                            if place.host.is_none()
                                && address.is_ipv6()
                                && error.kind() != io::ErrorKind::AddrInUse =>
                        {
                            continue;
                        }
                        Err(error) => {
                            return Err(format!(
                                "listening on {name} {address}: {error}; -p and -l choose another place"
                            ));
                        }
                    };
                    let local = socket.local_addr().ok().and_then(|local| local.as_socket()).unwrap_or(address);
                    // Both families have the same free port.
                    if place.port.is_none() {
                        port = local.port();
                    }
                    if kind == Type::STREAM {
                        let certificates = certificates.filter(|_| place.encryption != Encryption::Plain);
                        let mutual = place.encryption == Encryption::Mutual;
                        listeners.tcp(
                            TcpListener::from_std(socket.into()),
                            local,
                            certificates.map(|held| (held, mutual)),
                        );
                    } else {
                        listeners.said.push(format!("listening on udp {local}"));
                        listeners.datagrams.push(UdpSocket::from_std(socket.into()));
                    }
                }
            }
        }
        if let Some(file) = std::env::var_os(PORT_FILE) {
            listeners.write_ports(Path::new(&file))?;
        }
        Ok(listeners)
    }

    /// Returns the addresses of the sockets of this kind.
    fn addresses(&self, kind: Type) -> Vec<SocketAddr> {
        if kind == Type::DGRAM {
            return self.datagram_addresses();
        }
        let streams = self.listeners.iter().filter_map(|listener| match *listener.address {
            Address::Tcp(at) => Some(at),
            _ => None,
        });
        streams.collect()
    }

    /// Returns the addresses of the sockets for datagrams.
    pub(crate) fn datagram_addresses(&self) -> Vec<SocketAddr> {
        self.datagrams.iter().filter_map(|socket| socket.local_addr().ok()).collect()
    }

    /// Writes the ports to this file, a line each, by memcached's names. A regular file appears whole; a device or a pipe is
    /// written to, and never replaced, nor waited for.
    fn write_ports(&self, file: &Path) -> Result<(), String> {
        let mut text = String::new();
        let streams = self.listeners.iter().map(|listener| (*listener.address).clone());
        let datagrams = self.datagrams.iter().filter_map(|socket| socket.local_addr().ok()).map(Address::Udp);
        for address in streams.chain(datagrams) {
            let (name, at) = match address {
                Address::Tcp(at) => ("TCP", at),
                Address::Udp(at) => ("UDP", at),
                Address::Local(_) => continue,
            };
            let family = if at.is_ipv4() { "INET" } else { "INET6" };
            text += &format!("{name} {family}: {}\n", at.port());
        }
        let is_special = std::fs::metadata(file).is_ok_and(|there| !there.is_file() && !there.is_dir());
        let written = if is_special {
            let opened = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(file);
            opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(pipe_needs_reader)
        } else {
            let mut whole = file.as_os_str().to_owned();
            whole.push(".lck");
            let written = std::fs::write(&whole, text).and_then(|()| std::fs::rename(&whole, file));
            if written.is_err() {
                _ = std::fs::remove_file(&whole);
            }
            written
        };
        written.map_err(|error| format!("{PORT_FILE}={}: {error}; name a file that may be written", file.display()))
    }

    fn push(&mut self, kind: Kind, address: Address) {
        self.listeners.push(Listener { kind, address: Arc::new(address) });
    }

    fn tcp(&mut self, listener: TcpListener, local: SocketAddr, certificates: Option<(&Arc<Certificates>, bool)>) {
        self.port.get_or_insert(local.port());
        match certificates {
            Some((certificates, mutual)) => {
                self.said.push(format!("listening on tls {local}"));
                self.push(Kind::Tls(listener, certificates.clone(), mutual), Address::Tcp(local));
            }
            None => {
                self.said.push(format!("listening on tcp {local}"));
                self.push(Kind::Tcp(listener), Address::Tcp(local));
            }
        }
    }

    /// Takes sockets that others opened, instead of what the flags say. One named "http" is for watching the server,
    /// TCP sockets named "notls" are not encrypted, and clients that come to one named "mtls" show a certificate.
    ///
    /// # Errors
    ///
    /// Which socket is none to listen on.
    pub(crate) fn take(
        passed: Vec<(Socket, String)>,
        certificates: Option<&Arc<Certificates>>,
    ) -> Result<Self, String> {
        let mut listeners = Self { passed: true, ..Self::default() };
        for (socket, name) in passed {
            let wrong = |why: &dyn std::fmt::Display| format!("the socket {name} that systemd passed: {why}");
            let kind = socket.r#type().map_err(|error| wrong(&error))?;
            let local = socket.local_addr().map_err(|error| wrong(&error))?;
            socket.set_nonblocking(true).map_err(|error| wrong(&error))?;
            if kind == Type::STREAM && !socket.is_listener().unwrap_or(false) {
                return Err(wrong(&"it is a connection; the unit needs Accept=no"));
            }
            match (kind, local.as_socket(), local.as_pathname()) {
                (Type::STREAM, Some(local), _) if name == "http" => {
                    listeners.said.push(format!("listening on http {local}"));
                    listeners.http = Some(TcpListener::from_std(socket.into()));
                }
                (Type::STREAM, Some(local), _) => {
                    let certificates = certificates.filter(|_| name != "notls");
                    let mutual = name == "mtls";
                    listeners.tcp(TcpListener::from_std(socket.into()), local, certificates.map(|held| (held, mutual)));
                }
                (Type::DGRAM, Some(local), _) => {
                    listeners.said.push(format!("listening on udp {local}"));
                    listeners.datagrams.push(UdpSocket::from_std(socket.into()));
                }
                (Type::STREAM, None, path) => {
                    let path = path.map_or_else(|| "(without a name)".into(), |path| path.display().to_string());
                    listeners.said.push(format!("listening on unix {path}"));
                    let address = Address::Local(path);
                    listeners.push(Kind::Unix(UnixListener::from_std(socket.into()), None), address);
                }
                _ => return Err(wrong(&"use ListenStream= (TCP, Unix) or ListenDatagram= (UDP)")),
            }
        }
        if listeners.listeners.is_empty() && listeners.datagrams.is_empty() {
            return Err("systemd passed no socket for clients; the socket unit needs a ListenStream=".into());
        }
        Ok(listeners)
    }

    /// Opens the socket on which the server is watched.
    ///
    /// # Errors
    ///
    /// The socket that could not be opened, and why.
    pub(crate) fn watch(&mut self, host: &str, port: u16, patience: Option<&Patience<'_>>) -> Result<(), String> {
        let wrong = |error: io::Error| format!("--http {host}:{port}: {error}; name another address");
        let address = (host, port).to_socket_addrs().map_err(wrong)?.next();
        let address = address.ok_or_else(|| wrong(io::ErrorKind::NotFound.into()))?;
        let own = self.addresses(Type::STREAM);
        let socket = wait_for_socket(address, Type::STREAM, 64, patience, &own).map_err(wrong)?;
        let local = socket.local_addr().ok().and_then(|local| local.as_socket()).unwrap_or(address);
        self.said.push(format!("listening on http {local}"));
        self.http = Some(TcpListener::from_std(socket.into()));
        Ok(())
    }

    /// Opens a Unix socket.
    ///
    /// # Errors
    ///
    /// Why it could not be opened.
    pub(crate) fn unix(&mut self, path: &str, settings: &Settings) -> Result<(), String> {
        let wrong = |error: io::Error| format!("-s {path}: {error}");
        if is_left_over(path)? {
            std::fs::remove_file(path).map_err(wrong)?;
        }
        // The socket is never open to more users than it should be: there is one thread yet, whose mask this is.
        let mask = umask(Mode::from_raw_mode(!settings.socket_mode & 0o777));
        let listener = UnixListener::bind(path);
        umask(mask);
        let listener = listener.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                format!("-s {path}: a socket's path has 107 bytes at most; name a shorter one")
            }
            io::ErrorKind::NotFound => format!("-s {path}: {error}; is its directory there?"),
            _ => wrong(error),
        })?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(settings.socket_mode)).map_err(wrong)?;
        self.said.push(format!("listening on unix {path}"));
        self.push(Kind::Unix(listener, Some(path.to_owned())), Address::Local(path.to_owned()));
        Ok(())
    }

    /// Notes the sockets for those that ask for connections.
    pub(crate) fn list(&self, shared: &Shared) {
        let listeners = self.listeners.iter().map(|listener| {
            let number = match &listener.kind {
                Kind::Tcp(listener) | Kind::Tls(listener, ..) => listener.as_raw_fd(),
                Kind::Unix(listener, _) => listener.as_raw_fd(),
            };
            (number, (*listener.address).clone())
        });
        let datagrams = self
            .datagrams
            .iter()
            .filter_map(|socket| Some((socket.as_raw_fd(), Address::Udp(socket.local_addr().ok()?))));
        for (number, address) in listeners.chain(datagrams) {
            shared.peers.add(Arc::new(Peer::listener(number, address, now())));
        }
    }

    /// Accepts until the server stops or finishes, each connection to the next worker. The sockets stay open.
    ///
    /// # Errors
    ///
    /// The event loop could not be had.
    pub(crate) fn serve(&mut self, shared: &Arc<Shared>, workers: &[Reach]) -> io::Result<()> {
        let mut poll = Poll::new()?;
        for (at, listener) in self.listeners.iter_mut().enumerate() {
            match &mut listener.kind {
                Kind::Tcp(listener) | Kind::Tls(listener, ..) => {
                    poll.registry().register(listener, Token(at), Interest::READABLE)?
                }
                Kind::Unix(listener, _) => poll.registry().register(listener, Token(at), Interest::READABLE)?,
            }
        }
        let (mut events, mut next, mut waiting) = (Events::with_capacity(64), 0, false);
        let mut since = None::<Instant>;
        while is_accepting(shared) {
            let wait = Duration::from_millis(if waiting { 20 } else { 500 });
            if let Err(error) = poll.poll(&mut events, Some(wait))
                && error.kind() != io::ErrorKind::Interrupted
            {
                return Err(error);
            }
            // After a pause every listener is tried: its event has been used up.
            let (again, listeners) = (waiting, self.listeners.iter());
            if let Some(since) = since.filter(|_| waiting) {
                let micros = since.elapsed().as_micros() as u64;
                shared.listen_disabled_micros.fetch_add(micros, Relaxed);
            }
            waiting = listeners.fold(false, |waiting, listener| waiting | listener.accept(shared, workers, &mut next));
            since = waiting.then(Instant::now);
            if waiting && !again {
                shared.listen_disabled.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }

    /// Accepts no more clients, and keeps the ports. Sockets that others passed are theirs to keep: they start no other server
    /// meanwhile.
    pub(crate) fn shut(&mut self) {
        if self.passed {
            return self.close();
        }
        for listener in &self.listeners {
            if let Kind::Tcp(listener) | Kind::Tls(listener, ..) = &listener.kind {
                let socket = SockRef::from(listener);
                // A socket that does not listen keeps its port to itself only where it does not share it, and where the port was asked
                // for by its number. Where one of these fails, it listens on, and a new client waits for the end.
                let _ = socket.set_reuse_address(false).and_then(|()| socket.shutdown(Shutdown::Both));
            }
        }
    }

    /// Closes the sockets: another server may have their ports from now on.
    pub(crate) fn close(&mut self) {
        for listener in self.listeners.drain(..) {
            if let Kind::Unix(_, Some(path)) = &listener.kind {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Listener {
    /// Accepts all that wait; returns whether some still do.
    fn accept(&self, shared: &Shared, workers: &[Reach], next: &mut usize) -> bool {
        loop {
            let full = shared.connections.load(Relaxed) >= shared.settings.maxconns as i64;
            if full && !shared.settings.maxconns_fast {
                return true;
            }
            let accepted = match &self.kind {
                Kind::Tcp(listener) => listener.accept().map(|(stream, from)| {
                    let _ = stream.set_nodelay(true);
                    (stream.as_raw_fd(), Stream::Tcp(stream), Address::Tcp(from))
                }),
                Kind::Tls(listener, certificates, mutual) => listener.accept().and_then(|(stream, from)| {
                    let _ = stream.set_nodelay(true);
                    let number = stream.as_raw_fd();
                    let stream = certificates.accept(stream, *mutual).map_err(io::Error::other)?;
                    Ok((number, Stream::Tls(Box::new(stream)), Address::Tcp(from)))
                }),
                Kind::Unix(listener, _) => listener
                    .accept()
                    .map(|(stream, _)| (stream.as_raw_fd(), Stream::Unix(stream), Address::Local(String::new()))),
            };
            let (number, stream, from) = match accepted {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                // No descriptors, no memory: soon perhaps.
                Err(error) => {
                    shared.log.warn(format_args!("accepting a connection: {error}; trying again soon"));
                    return true;
                }
            };
            if full {
                shared.rejected_connections.fetch_add(1, Relaxed);
                shared.log.warn(format_args!("more connections than -c {}: refused", shared.settings.maxconns));
                refuse(stream);
                continue;
            }
            shared.connections.fetch_add(1, Relaxed);
            shared.total_connections.fetch_add(1, Relaxed);
            let worker = &workers[*next % workers.len()];
            *next += 1;
            let peer = Arc::new(Peer::client(number, from, self.address.clone(), now()));
            shared.peers.add(peer.clone());
            if worker.sender.send(Incoming { stream, peer: peer.clone() }).is_err() || worker.waker.wake().is_err() {
                shared.peers.remove(&peer);
                shared.connections.fetch_sub(1, Relaxed);
            }
        }
    }
}

/// Returns whether a socket is there without a listener. Anything else is not ours to remove.
///
/// # Errors
///
/// There is something else.
pub(crate) fn is_left_over(path: &str) -> Result<bool, String> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(false) };
    if !found.file_type().is_socket() {
        return Err(format!("-s {path}: there is something else than a socket; name another file"));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(format!("-s {path}: another server listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) => Err(format!("-s {path}: whether another server listens there: {error}; name another file")),
    }
}

fn refuse(stream: Stream) {
    // Whether it arrives or not: the connection ends.
    let line = b"ERROR Too many open connections\r\n";
    let _ = match stream {
        Stream::Tcp(mut stream) => stream.write(line),
        Stream::Unix(mut stream) => stream.write(line),
        // A client that expects a handshake cannot read it.
        Stream::Tls(_) => Ok(0),
    };
}

/// Returns an error of a pipe that was opened without waiting for a reader, in words.
pub(crate) fn pipe_needs_reader(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENXIO) => io::Error::new(error.kind(), "no process reads this pipe"),
        _ => error,
    }
}
