//! A connection of a lane, or of the memory itself, to one server: messages of far memory, and one-sided accesses.
#![expect(unsafe_code, reason = "lends buffers to engines")]

use super::Source;
use crate::address::Fabric;
use crate::domains::{Attempt, NotConnected};
use crate::end::End;
use frrwp::engine::{Event, OpenError};
use frrwp::handshake::SendError;
use frrwp::wire::MAX_FRAME_PAYLOAD;
use rdmakv_proto::far::messages as far;
use rdmakv_proto::messages::{self, Assembly, Kind, RemoteSegment, Request, VERSION};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of an answer at most.
const ANSWER: usize = 256 << 10;
/// Bytes of a fragment after its start.
const PART: usize = MAX_FRAME_PAYLOAD - messages::FRAGMENT;

/// Why a request came to nothing.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection is of no use any more.
    Broken(String),
    /// The server refuses, and has room for so many regions.
    Refused(far::Refusal, u32),
}

/// Why a server did not welcome a connection.
enum Greeting {
    /// It said no.
    Answered(String),
    /// The connection broke, or the server was silent.
    Broken(String),
}

impl From<Trouble> for Greeting {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Broken(why) => Self::Broken(why),
            Trouble::Refused(why, _) => Self::Answered(format!("{why:?}")),
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NotOpen {
    /// The server does not answer.
    Gone(String),
    /// It answers, and takes no connection of this client now.
    Refused(String),
}

/// How long a server has been silent while answers were waited for.
///
/// Each answer counts for all requests: a server answers them one after the other. While the caller did not look, nothing is known.
#[derive(Clone, Copy, Debug)]
struct Silence {
    heard: Instant,
    looked: Instant,
}

impl Silence {
    fn new(now: Instant) -> Self {
        Self { heard: now, looked: now }
    }

    /// Notes that something came, or that the first request was sent.
    fn end(&mut self, now: Instant) {
        (self.heard, self.looked) = (now, now);
    }

    /// Looks again. Returns whether the server has been silent for this long.
    fn is_over(&mut self, patience: Duration, now: Instant) -> bool {
        if now.saturating_duration_since(self.looked) > patience / 2 {
            self.heard = now;
        }
        self.looked = now;
        now.saturating_duration_since(self.heard) > patience
    }
}

/// See the module.
pub(super) struct Connection {
    /// Dropped first: the memory that it was lent is its caller's.
    end: Box<dyn End>,
    next_id: u32,
    received: Vec<u8>,
    assembly: Assembly,
    answers: VecDeque<(u32, Kind, Vec<u8>)>,
    /// Fragments that are to be sent.
    outgoing: VecDeque<Vec<u8>>,
    /// Requests whose answers are not waited for.
    posted: VecDeque<u32>,
    silence: Silence,
    completed: VecDeque<u64>,
    broken: Option<String>,
    /// Tells others of the memory that the server is reached, until this is broken or dropped.
    reached: Option<Arc<()>>,
    /// When the server stops, if it told that.
    stops: Option<Instant>,
    patience: Duration,
}

impl Connection {
    /// Connects, and logs in. It may take as long as two answers, and a second attempt. A server that closes a connection at once is gone if it
    /// answers no other one.
    ///
    /// # Errors
    /// [`NotOpen`].
    pub(super) fn open<F: FnMut() -> Attempt>(mut attempt: F, source: &Source) -> Result<Self, NotOpen> {
        let first = attempt()();
        let mut again = |why| {
            let lives = attempt()().map_or_else(|error| error.was_closed, |_| true);
            if lives { NotOpen::Refused(why) } else { NotOpen::Gone(why) }
        };
        let end = match first {
            Ok(end) => end,
            Err(NotConnected { why, was_closed: true }) => return Err(again(why)),
            Err(NotConnected { why, .. }) => return Err(NotOpen::Gone(why)),
        };
        let mut connection = Self {
            end,
            next_id: 1,
            received: Vec::new(),
            assembly: Assembly::default(),
            answers: VecDeque::new(),
            outgoing: VecDeque::new(),
            posted: VecDeque::new(),
            silence: Silence::new(Instant::now()),
            completed: VecDeque::new(),
            broken: None,
            reached: None,
            stops: None,
            patience: source.patience,
        };
        match connection.greet(source.login.as_deref()) {
            Ok(()) => Ok(connection),
            Err(Greeting::Answered(why)) => Err(NotOpen::Refused(why)),
            Err(Greeting::Broken(why)) => {
                // Its room, if it had some, is free for the second one.
                drop(connection);
                Err(again(why))
            }
        }
    }

    fn greet(&mut self, login: Option<&[u8]>) -> Result<(), Greeting> {
        let mut body = Vec::new();
        let kind = Request::hello(&mut body, false);
        let (kind, answer) = self.exchange(kind, &body)?;
        match messages::Reply::decode(kind, &answer) {
            Ok(messages::Reply::Welcome(welcome)) if welcome.version == VERSION => {}
            Ok(messages::Reply::Refused { text, .. }) => return Err(Greeting::Answered(text.to_owned())),
            _ => return Err(Greeting::Answered(format!("it does not speak version {VERSION}"))),
        }
        let Some(login) = login else { return Ok(()) };
        body.clear();
        let kind = Request::run(&mut body, false, b"login", &[login]);
        let (kind, answer) = self.exchange(kind, &body)?;
        match messages::Reply::decode(kind, &answer) {
            Ok(messages::Reply::Ran { answer: b"STORED\r\n", .. }) => Ok(()),
            _ => Err(Greeting::Answered("logging in: it does not know this name and password".to_owned())),
        }
    }

    /// Returns why it is of no use any more, if it is not.
    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Drops the token once it is broken.
    pub(super) fn keep_until_broken(&mut self, token: Arc<()>) {
        self.reached = Some(token).filter(|_| self.broken.is_none());
    }

    fn fail(&mut self, why: String) -> Trouble {
        self.reached = None;
        Trouble::Broken(self.broken.get_or_insert(why).clone())
    }

    /// Returns when the server stops, if it told that.
    pub(super) fn stops(&self) -> Option<Instant> {
        self.stops
    }

    /// Asks for something, and waits for the answer, which `take` reads. It may take this long besides the usual time.
    pub(super) fn ask_for_long<T>(
        &mut self,
        request: &far::Request<'_>,
        more: Duration,
        take: impl FnOnce(&far::Reply<'_>) -> Option<T>,
    ) -> Result<T, Trouble> {
        let usual = self.patience;
        self.patience = usual.saturating_add(more);
        let answer = self.ask(request, take);
        self.patience = usual;
        answer
    }

    /// Asks for something, and waits for the answer, which `take` reads.
    pub(super) fn ask<T>(
        &mut self,
        request: &far::Request<'_>,
        take: impl FnOnce(&far::Reply<'_>) -> Option<T>,
    ) -> Result<T, Trouble> {
        let mut body = Vec::new();
        request.encode(&mut body);
        let (kind, answer) = self.exchange(Kind::Far, &body)?;
        self.read_reply(kind, &answer, take)
    }

    /// Reads the answer to a request for far memory.
    fn read_reply<T>(
        &mut self,
        kind: Kind,
        answer: &[u8],
        take: impl FnOnce(&far::Reply<'_>) -> Option<T>,
    ) -> Result<T, Trouble> {
        let answer = match messages::Reply::decode(kind, answer) {
            Ok(messages::Reply::Far(answer)) => answer,
            Ok(messages::Reply::Refused { text, .. }) => return Err(self.fail(format!("the server refuses: {text}"))),
            _ => return Err(self.fail("the server's answer makes no sense".to_owned())),
        };
        let reply = match far::Reply::decode(answer) {
            Ok(reply) => reply,
            Err(malformed) => return Err(self.fail(malformed.to_string())),
        };
        if let far::Answer::Refused { why, room, .. } = reply.answer {
            return Err(Trouble::Refused(why, room));
        }
        take(&reply).ok_or_else(|| self.fail("the server answered another question".to_owned()))
    }

    /// Sends a request, and does not wait for its answer: [`Connection::next_answer`] has it. There may be as many as the caller bounds.
    pub(super) fn post(&mut self, request: &far::Request<'_>) {
        let mut body = Vec::new();
        request.encode(&mut body);
        let id = self.queue(Kind::Far, &body);
        if self.posted.is_empty() {
            self.silence.end(Instant::now());
        }
        self.posted.push_back(id);
        self.send_queued();
    }

    /// Returns the answer to the request that was posted first of those without one, if it has come.
    pub(super) fn next_answer<T>(
        &mut self,
        take: impl FnOnce(&far::Reply<'_>) -> Option<T>,
    ) -> Option<Result<T, Trouble>> {
        let &id = self.posted.front()?;
        let at = self.answers.iter().position(|(of, ..)| *of == id)?;
        let (_, kind, answer) = self.answers.remove(at)?;
        self.posted.pop_front();
        Some(self.read_reply(kind, &answer, take))
    }

    /// Puts the fragments of a message behind those that are to be sent. Returns its number.
    fn queue(&mut self, kind: Kind, body: &[u8]) -> u32 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1).max(1);
        let mut left = body;
        loop {
            let (part, rest) = left.split_at(left.len().min(PART));
            let mut fragment = Vec::with_capacity(part.len() + messages::FRAGMENT);
            messages::start(&mut fragment, id, kind, !rest.is_empty());
            fragment.extend_from_slice(part);
            self.outgoing.push_back(fragment);
            left = rest;
            if left.is_empty() {
                return id;
            }
        }
    }

    /// Sends as many fragments as there is room for.
    fn send_queued(&mut self) {
        while let Some(fragment) = self.outgoing.front() {
            match self.end.say(fragment) {
                Ok(()) => drop(self.outgoing.pop_front()),
                Err(SendError::Full) => return,
                Err(error) => {
                    self.outgoing.clear();
                    self.fail(error.to_string());
                }
            }
        }
    }

    /// Sends a message, and waits for its answer.
    fn exchange(&mut self, kind: Kind, body: &[u8]) -> Result<(Kind, Vec<u8>), Trouble> {
        let id = self.queue(kind, body);
        let until = Instant::now() + self.patience;
        loop {
            self.progress();
            if let Some(at) = self.answers.iter().position(|(of, ..)| *of == id)
                && let Some((_, kind, answer)) = self.answers.remove(at)
            {
                return Ok((kind, answer));
            }
            if let Some(why) = &self.broken {
                return Err(Trouble::Broken(why.clone()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.fail(format!("the server did not answer within {:?}", self.patience)));
            }
            self.end.wait(left);
        }
    }

    /// Does what can be done now. What has ended waits for [`Connection::next_completed`].
    pub(super) fn progress(&mut self) {
        self.end.progress();
        self.send_queued();
        while let Some(event) = self.end.next_event() {
            match event {
                Event::Message => self.receive(),
                Event::ReadCompleted { id, succeeded: true } | Event::WriteCompleted { id, succeeded: true } => {
                    self.completed.push_back(id);
                }
                Event::ReadCompleted { .. } | Event::WriteCompleted { .. } => {
                    self.fail("an access to far memory failed".to_owned());
                }
                Event::Requested { tag, .. } => self.end.refuse(tag),
                Event::Closed { why: Some(why) } => drop(self.fail(format!("the connection was closed: {why}"))),
                Event::Closed { why: None } => {
                    self.fail("the server closed the connection, or has gone".to_owned());
                }
                Event::PeerTooOld { .. } => drop(self.fail("the server is too old: it takes no messages".to_owned())),
                Event::Expired(expired) => drop(self.fail(expired.to_string())),
                _ => {}
            }
        }
        let waits = self.answers.is_empty() && !self.posted.is_empty();
        if waits && self.silence.is_over(self.patience, Instant::now()) {
            self.fail(format!("the server did not answer within {:?}", self.patience));
        }
    }

    fn receive(&mut self) {
        let mut received = std::mem::take(&mut self.received);
        if self.end.heard(&mut received) {
            match self.assembly.take(&received, ANSWER) {
                // Nothing was asked: a notice, or something about items.
                Ok(Some((0, kind, bytes))) => self.stops = notice(kind, bytes).or(self.stops),
                Ok(Some((id, kind, bytes))) => {
                    self.answers.push_back((id, kind, bytes.to_vec()));
                    self.silence.end(Instant::now());
                }
                Ok(None) => {}
                Err(malformed) => drop(self.fail(malformed.to_string())),
            }
        }
        self.received = received;
    }

    /// Sleeps until there may be something to do, a while at most.
    pub(super) fn wait(&mut self) {
        self.wait_for(self.patience);
    }

    /// Sleeps until there may be something to do, or so long.
    pub(super) fn wait_for(&mut self, longest: Duration) {
        if self.completed.is_empty() && self.answers.is_empty() && self.broken.is_none() {
            // A caller that waits still looks, for the silence of the server.
            self.end.wait(longest.min(self.patience / 4));
        }
    }

    /// Returns the next access that has ended well, in the order of posting.
    pub(super) fn next_completed(&mut self) -> Option<u64> {
        self.completed.pop_front()
    }

    /// Posts a read. None where the fabric has no room for it now, or the connection is broken.
    ///
    /// # Safety
    /// So many bytes from `memory` on have no other user until the read has ended or this is dropped.
    pub(super) unsafe fn read(&mut self, memory: *mut u8, from: RemoteSegment) -> Option<u64> {
        // SAFETY: `End::fetch` requires what this function requires of its caller.
        let posted = unsafe { self.end.fetch(memory, from) };
        self.posted(posted)
    }

    /// Posts a write. None where the fabric has no room for it now, or the connection is broken.
    ///
    /// # Safety
    /// So many bytes from `memory` on are not written until the write has ended or this is dropped.
    pub(super) unsafe fn write(&mut self, memory: *const u8, to: RemoteSegment) -> Option<u64> {
        // SAFETY: `End::put` requires what this function requires of its caller.
        let posted = unsafe { self.end.put(memory, to) };
        self.posted(posted)
    }

    fn posted(&mut self, posted: Result<u64, OpenError>) -> Option<u64> {
        match posted {
            Ok(id) => Some(id),
            Err(OpenError::Busy { .. }) => None,
            Err(error) => {
                self.fail(error.to_string());
                None
            }
        }
    }
}

/// Returns when the server stops, by its notice.
fn notice(kind: Kind, bytes: &[u8]) -> Option<Instant> {
    let Ok(messages::Reply::Far(answer)) = messages::Reply::decode(kind, bytes) else { return None };
    match far::Reply::decode(answer).ok()?.answer {
        far::Answer::Notice { millis } => Instant::now().checked_add(Duration::from_millis(millis)),
        _ => None,
    }
}

/// Returns whether a completed write over this fabric is at the server.
pub(super) fn acks_by_completion(fabric: &Fabric) -> bool {
    matches!(fabric, Fabric::Shm(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_of_a_server_that_is_looked_at() {
        let (begun, patience) = (Instant::now(), Duration::from_secs(8));
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut silence = Silence::new(begun);
        for seconds in 1..=8 {
            assert!(!silence.is_over(patience, at(seconds)), "{seconds}");
        }
        assert!(silence.is_over(patience, at(9)), "nothing came");
        // Of many requests one was answered.
        silence.end(at(9));
        assert!(!silence.is_over(patience, at(12)));
        // The caller was elsewhere, or was not scheduled: the answers of then may not be here yet.
        assert!(!silence.is_over(patience, at(40)));
        assert!((41..=48).all(|seconds| !silence.is_over(patience, at(seconds))));
        assert!(silence.is_over(patience, at(49)));
    }
}
