//! Requests in datagrams: each is a session of its own, its answer as many datagrams as it takes.

use std::io;
use std::net::SocketAddr;

use mio::net::UdpSocket;

use crate::session::{Context, Out, Pause, SLICES, Session};
use rdmakv_proto::commands::udp;

/// A socket for datagrams.
pub(super) struct Datagrams {
    socket: UdpSocket,
    out: Out,
    answer: Vec<u8>,
    parked: Vec<Parked>,
    /// The turns of those of them that go on.
    woken: Vec<u64>,
    /// Whether more may have arrived than was answered in one turn; no event tells of it again.
    pub(super) waits: bool,
}

/// The number of a request, and its client.
#[derive(Clone, Copy)]
struct Asked {
    request: u16,
    from: SocketAddr,
}

/// A request that waits for flash.
struct Parked {
    turn: u64,
    asked: Asked,
    input: Vec<u8>,
    session: Session,
    out: Out,
}

/// Requests that wait for flash at most; others are lost, as datagrams may be.
const PARKED: usize = 64;

/// Datagrams that are answered before others have their turn.
const TURN: usize = 64;

/// An answer at most; a longer one is not sent at all, and the client takes it for lost.
const ANSWER: usize = (udp::DATAGRAM - udp::HEADER) * 65_535;
/// Memory that is kept from one answer to the next.
const KEPT: usize = 256 << 10;

impl Datagrams {
    pub(super) fn new(socket: UdpSocket) -> Self {
        Self { socket, out: Out::default(), answer: Vec::new(), parked: Vec::new(), woken: Vec::new(), waits: false }
    }

    /// Answers what has arrived, as much as one turn allows.
    pub(super) fn serve(&mut self, buffer: &mut [u8], cx: &mut Context<'_>) {
        self.waits = false;
        self.go_on(cx);
        for _ in 0..TURN {
            let (read, from) = match self.socket.recv_from(buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // An error that an earlier answer met says nothing of the next request.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            cx.counts.bytes_read += read as u64;
            let Some((request, input)) = udp::parse(&buffer[..read]) else { continue };
            // Of another server, whose address a datagram to this one was given as its source.
            if udp::is_error(input) {
                continue;
            }
            // The datagram is all there is: no value continues in a later one.
            let session = Session::new(cx.shared.settings.protocol);
            self.run(Asked { request, from }, input, session, cx);
        }
        self.waits = true;
    }

    /// Notes that what waits by this turn goes on.
    pub(super) fn wake(&mut self, turn: u64) {
        self.woken.push(turn);
        self.waits = true;
    }

    /// Goes on with requests that waited.
    fn go_on(&mut self, cx: &mut Context<'_>) {
        for turn in std::mem::take(&mut self.woken) {
            if let Some(at) = self.parked.iter().position(|parked| parked.turn == turn) {
                let Parked { asked, input, session, out, .. } = self.parked.swap_remove(at);
                self.out = out;
                self.run(asked, &input, session, cx);
            }
        }
    }

    /// Answers a request, or parks it.
    fn run(&mut self, asked: Asked, input: &[u8], mut session: Session, cx: &mut Context<'_>) {
        let mut turns = usize::MAX;
        cx.waits.has_no_place = self.parked.len() >= PARKED;
        let (used, pause) = session.advance(input, &mut turns, cx, &mut self.out);
        if cx.waits.is_used {
            // The next one has a turn of its own.
            cx.waits.is_used = false;
            cx.waits.turn += 1;
        }
        if pause == Pause::Flash && self.parked.len() < PARKED {
            let (turn, input, out) = (cx.waits.turn - 1, input[used..].to_vec(), std::mem::take(&mut self.out));
            return self.parked.push(Parked { turn, asked, input, session, out });
        }
        let whole = pause != Pause::Flash && !session.has_more() && (pause != Pause::Output || used == input.len());
        session.close(&cx.shared.shards);
        // Before anything is copied: a request of sixty kilobytes may ask for thirty thousand large values.
        if !whole || self.out.waiting() > ANSWER {
            self.out.clear(&cx.shared.shards);
        }
        self.collect(cx);
        self.list_again(input, cx);
        self.send(asked, cx);
        self.shrink();
    }

    fn collect(&mut self, cx: &Context<'_>) {
        self.answer.clear();
        while !self.out.is_empty() {
            let mut slices = [io::IoSlice::new(&[]); SLICES];
            let count = self.out.slices(&mut slices);
            let before = self.answer.len();
            for slice in &slices[..count] {
                self.answer.extend_from_slice(slice);
            }
            self.out.advance(self.answer.len() - before, &cx.shared.shards);
        }
    }

    /// Has the kernel answer from now on for the first item of an answer, which it had no place for.
    fn list_again(&self, input: &[u8], cx: &Context<'_>) {
        if cx.shared.kernel.get().is_none() {
            return;
        }
        let is_meta = self.answer.starts_with(b"VA ") || self.answer.starts_with(b"HD");
        let words = match self.answer.strip_prefix(b"VALUE ") {
            None if is_meta => input.strip_prefix(b"mg "),
            words => words,
        };
        if let Some(key) = words.and_then(|words| words.split(|&byte| byte == b' ').next()) {
            cx.shared.shards.with(key).list_again(key, cx.now);
        }
    }

    /// Gives memory back that a large answer needed.
    fn shrink(&mut self) {
        self.out.shrink(KEPT);
        if self.answer.capacity() > KEPT {
            self.answer = Vec::new();
        }
    }

    fn send(&mut self, Asked { request, from: to }: Asked, cx: &mut Context<'_>) {
        let part = udp::DATAGRAM - udp::HEADER;
        let total = self.answer.len().div_ceil(part) as u16;
        for (sequence, payload) in self.answer.chunks(part).enumerate() {
            let mut datagram = [0; udp::DATAGRAM];
            datagram[..udp::HEADER].copy_from_slice(&udp::frame(request, sequence as u16, total));
            datagram[udp::HEADER..udp::HEADER + payload.len()].copy_from_slice(payload);
            // A full socket loses the rest, as a network may; the client asks again.
            let Ok(sent) = self.socket.send_to(&datagram[..udp::HEADER + payload.len()], to) else { return };
            cx.counts.bytes_written += sent as u64;
        }
    }
}
