//! One thread that makes requests through rdmakv-server's client library: its fabrics, and its sockets.
//!
//! A client is one program's: it blocks, and has as many operations under way as it has tickets. So each connection is a client on a thread
//! of its own, and what is measured is what a program would see, the library's own cost included. Answers are taken in the order of the
//! requests. In an open loop the thread looks for them again and again, as the library has nothing to sleep on until a given time. That is
//! the generator's CPU, and is reported as such.

use std::collections::VecDeque;
use std::time::Duration;

use rand::SeedableRng;
use rand_pcg::Pcg64;
use rdmakv_client::{Client, Error, Options, ServerAddress, Source, Stored, Ticket, Value};

use crate::account::Account;
use crate::due;
use crate::plan::{DEPTH_MAX, Plan};
use crate::protocol::{Answer, Ask, Codec, InFlight, Op};
use crate::schedule::Schedule;
use crate::tally::{Calls, Tally};
use crate::window::{Ended, Line, Meter, SECOND, TICK, Window};
use crate::work::{Next, Work};

/// The thread's things.
pub(crate) struct ThroughClient<'a> {
    plan: &'a Plan,
    codec: Codec<'a>,
    client: Client,
    random: Pcg64,
    pub(crate) tally: Tally,
    pub(crate) calls: Calls,
    in_flight: VecDeque<(InFlight, Pending)>,
    key: Vec<u8>,
    goes_on: bool,
}

/// The awaited answer.
enum Pending {
    Get(Ticket<Option<Value>>),
    Set(Ticket<Stored>),
    /// It is to be asked and waited for at once.
    Blocking,
}

impl<'a> ThroughClient<'a> {
    /// Connects. `thread` is one of the plan's threads.
    pub(crate) fn new(plan: &'a Plan, codec: Codec<'a>, address: &ServerAddress, thread: usize) -> Result<Self, Ended> {
        let options = Options {
            timeout: plan.timeout,
            connect_timeout: plan.timeout,
            window: if plan.is_open() { DEPTH_MAX } else { (2 * plan.depth).max(16) },
            ..Options::default()
        };
        let failed = |error: Error| format!("connecting to {address}: {error}");
        let mut client = Client::with_options([address.to_string()], options).map_err(failed)?;
        // It connects when it is asked for something.
        for (_, version) in client.version() {
            version.map_err(failed)?;
        }
        Ok(Self {
            plan,
            codec,
            client,
            random: Pcg64::seed_from_u64(plan.seed ^ (thread as u64) << 32),
            tally: Tally::default(),
            calls: Calls::default(),
            in_flight: VecDeque::new(),
            key: Vec::new(),
            goes_on: true,
        })
    }

    /// Makes requests until the window ends or the work does, and waits for their answers.
    ///
    /// # Errors
    ///
    /// The reason for an early end.
    pub(crate) fn drive(
        &mut self,
        work: &mut Work,
        schedule: &mut Option<Schedule>,
        window: Window,
        line: &Line<'_>,
        meter: &mut Meter,
    ) -> Result<(), Ended> {
        let (mut tick, mut second) = (TICK, SECOND);
        let mut now = window.now();
        loop {
            meter.look(now, window, &self.calls);
            if now >= tick {
                tick = now + TICK;
                if line.is_stopped() {
                    return Ok(());
                }
            }
            if now >= second {
                second += SECOND;
                line.hand_over(&mut self.tally);
            }
            let waits = match schedule {
                Some(schedule) => self.arrive(schedule, now, window, work)?,
                None => {
                    self.goes_on &= now < window.to || work.ends_what_it_began();
                    self.refill(now, window, work)?
                }
            };
            if self.in_flight.is_empty() {
                if !self.goes_on {
                    return Ok(());
                }
                let until = waits.min(tick).min(second).min(if now < window.to { window.to } else { u64::MAX });
                let rest = until.saturating_sub(window.now());
                // Short waits are over sooner than a sleep would be.
                if rest > 100_000 {
                    std::thread::sleep(Duration::from_nanos(rest - 50_000));
                }
                now = window.now();
                continue;
            }
            now = if schedule.is_some() { self.take_done(window, work)? } else { self.take_first(window, work)? };
        }
    }

    /// Fills the window of a closed loop; returns when the next is due if nothing is for now.
    fn refill(&mut self, now: u64, window: Window, work: &mut Work) -> Result<u64, Ended> {
        if let (Work::Bursts(clients), true) = (&mut *work, self.goes_on) {
            match clients.begin(now, window.to, &mut self.random) {
                Some(begun) => due::block_begins(&mut self.tally, &begun, window),
                None => self.goes_on = !due::ends_bursts(&mut self.tally, clients, now, window, self.plan.grace()),
            }
        }
        while self.in_flight.len() < self.plan.depth && (self.goes_on || work.ends_what_it_began()) {
            match work.next(0, &mut self.random) {
                Next::Ask(ask) => self.ask(InFlight { start: now, first: now, ask })?,
                Next::Wait => break,
                Next::End => self.goes_on = false,
            }
        }
        Ok(match work {
            Work::Bursts(clients) => clients.next_time().filter(|&time| time < window.to).unwrap_or(u64::MAX),
            _ => u64::MAX,
        })
    }

    /// Returns the requests of an open loop that are due; returns when the next is.
    fn arrive(&mut self, schedule: &mut Schedule, now: u64, window: Window, work: &mut Work) -> Result<u64, Ended> {
        while self.goes_on && schedule.next() <= now && schedule.next() < window.to {
            let start = schedule.next();
            schedule.step(&mut self.random);
            let Next::Ask(ask) = work.next(0, &mut self.random) else {
                self.goes_on = false;
                break;
            };
            let counts = start >= window.from;
            if counts {
                self.tally.started(now - start);
            }
            if self.in_flight.len() >= DEPTH_MAX / 2 {
                self.tally.counts.unsent += u64::from(counts);
                work.settle(&ask);
                continue;
            }
            self.ask(InFlight { start, first: start, ask })?;
        }
        self.goes_on = self.goes_on && !due::ends_open_loop(&mut self.tally, schedule, now, window, self.plan.grace());
        Ok(schedule.next())
    }

    fn ask(&mut self, asked: InFlight) -> Result<(), Ended> {
        let Ask { op, key, .. } = asked.ask;
        self.key.clear();
        self.codec.names.put(key, &mut self.key);
        let values = self.codec.values;
        // One at a time, a program would use the plain calls.
        let pending = if self.plan.depth == 1 && !self.plan.is_open() {
            Pending::Blocking
        } else if op == Op::Set {
            let value = &values.pattern()[values.place(key)];
            Pending::Set(self.client.bset(&self.key, value, ()).map_err(|error| error.to_string())?)
        } else {
            Pending::Get(self.client.bget(&self.key).map_err(|error| error.to_string())?)
        };
        self.in_flight.push_back((asked, pending));
        Ok(())
    }

    /// Waits for the oldest answer, and takes what else is there.
    fn take_first(&mut self, window: Window, work: &mut Work) -> Result<u64, Ended> {
        let now = self.take(window, work)?;
        self.take_ready(window, work).map(|later| later.unwrap_or(now))
    }

    /// Takes what is there.
    fn take_done(&mut self, window: Window, work: &mut Work) -> Result<u64, Ended> {
        Ok(match self.take_ready(window, work)? {
            Some(now) => now,
            None => {
                std::thread::yield_now();
                window.now()
            }
        })
    }

    fn take_ready(&mut self, window: Window, work: &mut Work) -> Result<Option<u64>, Ended> {
        let mut now = None;
        loop {
            let done = match self.in_flight.front() {
                Some((_, Pending::Get(ticket))) => self.client.test(ticket),
                Some((_, Pending::Set(ticket))) => self.client.test(ticket),
                Some((_, Pending::Blocking)) | None => Ok(false),
            };
            if !done.map_err(|error| error.to_string())? {
                return Ok(now);
            }
            now = Some(self.take(window, work)?);
        }
    }

    /// Returns the outcome of the oldest request, waited for if need be, and counted.
    fn take(&mut self, window: Window, work: &mut Work) -> Result<u64, Ended> {
        let Some((asked, pending)) = self.in_flight.pop_front() else { return Ok(window.now()) };
        let place = self.codec.values.place(asked.ask.key);
        let outcome = match (pending, asked.ask.op) {
            (Pending::Get(ticket), _) => Outcome::Got(self.client.wait(ticket)),
            (Pending::Set(ticket), _) => Outcome::Put(self.client.wait(ticket)),
            (Pending::Blocking, Op::Set) => {
                Outcome::Put(self.client.set(&self.key, &self.codec.values.pattern()[place.clone()], ()))
            }
            (Pending::Blocking, Op::Get | Op::Scan) => Outcome::Got(self.client.get(&self.key)),
        };
        let now = window.now();
        self.calls.bytes_written += self.key.len() as u64;
        let answer = match outcome {
            Outcome::Got(Ok(Some(value))) => {
                if window.counts(now) {
                    self.tally.counts.sources[way(value.source())?] += 1;
                }
                self.calls.bytes_read += value.len() as u64;
                let right = !self.codec.verify || value[..] == self.codec.values.pattern()[place];
                if right { Answer::Hit } else { Answer::Wrong }
            }
            Outcome::Got(Ok(None)) => Answer::Miss,
            Outcome::Put(Ok(stored)) if stored.is_stored() => {
                self.calls.bytes_written += place.len() as u64;
                Answer::Stored
            }
            Outcome::Put(Ok(other)) => self.refused(format!("{other:?}")),
            Outcome::Got(Err(Error::Refused { said, .. })) | Outcome::Put(Err(Error::Refused { said, .. })) => {
                self.refused(said)
            }
            Outcome::Got(Err(error)) | Outcome::Put(Err(error)) => return Err(error.to_string()),
        };
        let mut account =
            Account { tally: &mut self.tally, window, random: &mut self.random, penalty: self.plan.penalty.as_ref() };
        let next = account.answered(&asked, answer, now, work);
        let ended = u64::from(next.is_none());
        if let Some(ask) = next {
            self.ask(InFlight { start: now, first: asked.first, ask })?;
        }
        if let Work::Bursts(clients) = work {
            due::chunks_end(&mut self.tally, clients, 0, ended, now, window);
        }
        Ok(now)
    }

    fn refused(&mut self, said: String) -> Answer {
        self.tally.error.get_or_insert(said);
        Answer::Error
    }
}

enum Outcome {
    Got(Result<Option<Value>, Error>),
    Put(Result<Stored, Error>),
}

/// Returns the place in the counts.
fn way(source: Source) -> Result<usize, String> {
    Ok(match source {
        Source::OneSided => 0,
        Source::Message => 1,
        Source::Transfer => 2,
        Source::Socket => 3,
        other => return Err(format!("a value came by a {other}, which is not counted here: use a newer rdmakv-bench")),
    })
}
