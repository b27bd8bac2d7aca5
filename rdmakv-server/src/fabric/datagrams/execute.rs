//! One request at a time: what comes is a whole message, and so is the reply.

use super::super::commands::Commands;
use super::super::gets::{Found, check_key, read};
use super::super::turns::Turns;
use super::DatagramState;
use crate::log;
use crate::metrics::count;
use rdmakv_proto::datagrams::is_lookup;
use rdmakv_proto::messages::{self, Kind, Malformed, Refusal, Reply, Request, VERSION, Welcome};

/// A client sent HELLO.
const GREETED: u64 = 1;
/// It has logged in.
const LOGGED_IN: u64 = 2;
/// It connects when it gets a token.
const MAY_CONNECT: u64 = 4;
/// Bytes of an answer that is prepared at once.
const PART: usize = 64 << 10;
/// Bytes of a reply at most: a value of the longest, and more than what is beside it.
const REPLY: usize = rdmakv_proto::eager::DATAGRAMS + (64 << 10);
/// The answer to a mutation whose own is longer than that.
const CARRIED_OUT: &[u8] = b"SERVER_ERROR it was carried out, and datagrams do not carry its answer\r\n";
/// Memory that is kept from one answer to the next.
const KEPT: usize = 16 << 10;

/// Carries requests out, each in a conversation of its own.
pub(super) struct Executor<'f> {
    state: &'f DatagramState,
    commands: Commands<'f>,
    image: Vec<u8>,
    turns: Turns,
}

impl<'f> Executor<'f> {
    /// Returns one with the counts of this seat.
    pub(super) fn new(state: &'f DatagramState, seat: usize) -> Self {
        let commands = Commands::new(&state.shared, seat);
        Self { state, commands, image: Vec::new(), turns: Turns::new(seat as u32) }
    }

    /// Notes that something came.
    pub(super) fn wake(&mut self) {
        self.turns.wake();
    }

    /// Publishes the counts.
    pub(super) fn publish(&self) {
        self.commands.publish();
    }

    /// Returns whether the client of this note may be offered a connection. Without a login it would keep users from one.
    pub(super) fn may_be_offered(&self, note: u64) -> bool {
        let may_ask = note & LOGGED_IN != 0 || self.state.shared.settings.users.is_none();
        note & MAY_CONNECT != 0 && may_ask
    }

    /// Carries a message out for the client of this note. Leaves the reply in `reply`, and returns the client's next note.
    pub(super) fn execute(&mut self, message: &[u8], note: u64, reply: &mut Vec<u8>) -> u64 {
        self.turns.begin(self.commands.counts());
        let mut note = note;
        let mut to = To::new(message, reply);
        if let Err(Malformed(what)) = self.request(message, &mut note, &mut to) {
            count(&self.state.counts.malformed);
            to.reply(&Reply::Refused { why: Refusal::NotUnderstood, text: what });
        }
        let counts = self.commands.counts();
        counts.bytes_read += message.len() as u64;
        counts.bytes_written += reply.len() as u64;
        if let Some((kind, time)) = self.turns.end(self.commands.counts()) {
            self.state.latencies.record(kind, time);
        }
        note
    }

    fn request(&mut self, message: &[u8], note: &mut u64, to: &mut To<'_>) -> Result<(), Malformed> {
        let (_, kind, more, bytes) = messages::fragment(message)?;
        if more {
            return Err(Malformed("a part of a message: over datagrams it is whole"));
        }
        let request = Request::decode(kind, bytes)?;
        if *note & GREETED == 0 && !matches!(request, Request::Hello { .. }) {
            return Err(Malformed("something before HELLO"));
        }
        match request {
            Request::Hello { version: VERSION, wishes } => {
                *note |= GREETED | if wishes.may_connect { MAY_CONNECT } else { 0 };
                to.reply(&Reply::Welcome(self.welcome()));
            }
            Request::Hello { version, .. } => {
                let text = format!("version {version} is not spoken here; version {VERSION} is");
                to.reply(&Reply::Refused { why: Refusal::NotUnderstood, text: &text });
            }
            Request::Run { command, .. } => self.run(command, note, to)?,
            Request::Get { key, .. } => {
                check_key(key)?;
                self.get(key, *note, to);
            }
            Request::Put { .. } => return Err(Malformed("a PUT: over datagrams a value travels in its message")),
            Request::Far(_) => return Err(Malformed("FAR: far memory is reached over shm: and iwarp:")),
            Request::Seen(_) => to.reply(&Reply::None),
        }
        Ok(())
    }

    fn welcome(&self) -> Welcome {
        let terms = &self.state.terms;
        let eager = terms.eager as u32;
        let largest = self.state.shared.settings.item_max as u64;
        Welcome { version: VERSION, incarnation: terms.incarnation, lease_ms: 0, eager, transfers_from: eager, largest }
    }

    /// Runs a command of the text or meta protocol, as over TCP.
    fn run(&mut self, command: &[u8], note: &mut u64, to: &mut To<'_>) -> Result<(), Malformed> {
        if self.state.shared.log.shows_requests() {
            log::request(command);
        }
        self.commands.begin(*note & LOGGED_IN != 0);
        self.commands.run(command)?;
        if self.commands.is_authorised() {
            *note |= LOGGED_IN;
        }
        to.reply(&Reply::Ran { tag: None, answer: b"" });
        loop {
            let waiting = self.commands.prepare(PART);
            if waiting == 0 {
                break;
            }
            // Before anything is copied.
            if to.len() + waiting > REPLY {
                self.commands.begin(false);
                // What has changed something is not to be carried out another way.
                to.reply(&match is_lookup(command) {
                    true => Reply::Refused { why: Refusal::TooLarge, text: "an answer that datagrams do not carry" },
                    false => Reply::Ran { tag: None, answer: CARRIED_OUT },
                });
                break;
            }
            self.commands.copy(waiting, to.bytes);
            self.commands.sent(waiting);
        }
        self.commands.shrink(KEPT);
        Ok(())
    }

    /// Answers a GET.
    fn get(&mut self, key: &[u8], note: u64, to: &mut To<'_>) {
        if note & LOGGED_IN == 0 && self.state.shared.settings.users.is_some() {
            return to.reply(&Reply::Refused { why: Refusal::NotNow, text: "CLIENT_ERROR unauthenticated" });
        }
        self.image.clear();
        match read(&mut self.commands, key, self.state.terms.eager, &mut self.image) {
            Found::Image => {
                count(&self.state.counts.gets_by_message);
                to.reply(&Reply::Item { tag: None, image: &self.image });
            }
            Found::Long(size) => to.reply(&Reply::Large { tag: None, size }),
            Found::Nothing | Found::Lent(_) => to.reply(&Reply::None),
            Found::Busy => {
                count(&self.state.counts.busy);
                to.reply(&Reply::Refused { why: Refusal::Busy, text: "no memory for an item on flash; ask again" });
            }
            Found::Refused(line) => to.reply(&Reply::Refused { why: Refusal::NotNow, text: line }),
        }
        if self.image.capacity() > KEPT {
            self.image = Vec::new();
        }
    }
}

/// The reply to a message.
struct To<'a> {
    id: u32,
    bytes: &'a mut Vec<u8>,
}

impl<'a> To<'a> {
    fn new(message: &[u8], bytes: &'a mut Vec<u8>) -> Self {
        let id = message.first_chunk().map_or(0, |id| u32::from_le_bytes(*id));
        Self { id, bytes }
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes it in place of what was written before.
    fn reply(&mut self, reply: &Reply<'_>) {
        const KIND: usize = 4;
        self.bytes.clear();
        messages::start(self.bytes, self.id, Kind::None, false);
        let kind = reply.encode(self.bytes);
        self.bytes[KIND] = kind as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Settings;
    use rdmakv_proto::messages::Wishes;

    fn message(request: impl FnOnce(&mut Vec<u8>) -> Kind) -> Vec<u8> {
        let (mut message, mut bytes) = (Vec::new(), Vec::new());
        let kind = request(&mut bytes);
        messages::start(&mut message, 1, kind, false);
        message.extend(bytes);
        message
    }

    #[test]
    fn users_alone_are_offered_connections() {
        let hello = |may_connect| {
            let wishes = Wishes { may_connect, ..Wishes::default() };
            message(|bytes| Request::hello_with(bytes, wishes))
        };
        let get = message(|bytes| Request::get(bytes, false, b"k"));
        let login = message(|bytes| Request::run(bytes, false, b"login", &[b"set login 0 0 9\r\nme secret\r\n"]));
        for users in [None, Some(vec![b"me:secret".to_vec()])] {
            let has_users = users.is_some();
            let state = super::super::trial::state(Settings { threads: 1, users, ..Settings::default() });
            let (mut executor, mut reply) = (Executor::new(&state, 0), Vec::new());
            let mut may = |messages: &[&Vec<u8>]| {
                let note = messages.iter().fold(0, |note, message| executor.execute(message, note, &mut reply));
                executor.may_be_offered(note)
            };
            assert_eq!(may(&[&hello(true), &get]), !has_users);
            assert!(may(&[&hello(true), &login]));
            assert!(!may(&[&hello(false), &login]), "it cannot connect");
        }
    }
}
