//! One thread that makes requests: an event loop over its own connections.
//!
//! All answers in one read are counted together, and the requests that follow them go out in one write, so that the
//! generator makes few system calls when much is under way. In the loop nothing is allocated but for datagrams.

use std::time::Duration;

use rand::SeedableRng;
use rand_pcg::Pcg64;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;

use crate::account::Account;
use crate::conn::Conn;
use crate::due;
use crate::plan::{DEPTH_MAX, Plan};
use crate::protocol::{Ask, Codec, InFlight};
use crate::schedule::Schedule;
use crate::sizes::mix;
use crate::tally::{Calls, Tally};
use crate::target::Target;
use crate::window::{Ended, Line, Meter, SECOND, TICK, Window};
use crate::work::{Next, Work};

/// Bytes that a read takes at most.
const BUFFER: usize = 256 << 10;
/// How often an open loop looks for answers while it is behind.
const BATCH: usize = 128;

/// The thread's things.
#[derive(Debug)]
pub(crate) struct Generator<'a> {
    plan: &'a Plan,
    codec: Codec<'a>,
    conns: Vec<Conn>,
    epoll: OwnedFd,
    buffer: Vec<u8>,
    random: Pcg64,
    pub(crate) tally: Tally,
    pub(crate) calls: Calls,
    /// Requests that were asked and not answered, on all connections.
    under_way: usize,
    /// The connection whose turn it is in an open loop.
    turn: usize,
    touched: Vec<usize>,
    /// Requests that follow from answers, with when the first of their operation was to start.
    following: Vec<(Ask, u64)>,
}

impl<'a> Generator<'a> {
    /// Connects. `thread` is one of the plan's threads.
    pub(crate) fn new(plan: &'a Plan, codec: Codec<'a>, target: &Target, thread: usize) -> Result<Self, Ended> {
        let failed = |error: rustix::io::Errno| format!("an event loop: {error}");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let (_, count) = plan.connections_of(thread);
        let mut conns = Vec::with_capacity(count);
        for at in 0..count {
            let conn = Conn::open(target, plan.depth, plan.timeout)?;
            epoll::add(&epoll, &conn.socket, epoll::EventData::new_u64(at as u64), epoll::EventFlags::IN)
                .map_err(failed)?;
            conns.push(conn);
        }
        Ok(Self {
            plan,
            codec,
            conns,
            epoll,
            buffer: vec![0; BUFFER],
            random: Pcg64::seed_from_u64(plan.seed ^ (thread as u64) << 32),
            tally: Tally::default(),
            calls: Calls::default(),
            under_way: 0,
            turn: 0,
            touched: Vec::with_capacity(count),
            following: Vec::new(),
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
        let mut events = Vec::with_capacity(256);
        let mut goes_on = true;
        let bursts = matches!(work, Work::Bursts(_));
        if schedule.is_none() && !bursts {
            let now = window.now();
            for at in 0..self.conns.len() {
                self.refill(at, self.plan.depth, now, work, &mut goes_on);
            }
            self.flush(now)?;
        }
        loop {
            let now = window.now();
            meter.look(now, window, &self.calls);
            match schedule {
                None if bursts => {
                    self.burst(now, window, work, &mut goes_on);
                    self.flush(now)?;
                }
                None => goes_on &= now < window.to,
                Some(schedule) if goes_on => {
                    self.arrive(schedule, now, window, work, &mut goes_on);
                    self.flush(now)?;
                    goes_on &= !due::ends_open_loop(&mut self.tally, schedule, now, window, self.plan.grace());
                }
                Some(_) => {}
            }
            if !goes_on && self.under_way == 0 {
                return Ok(());
            }
            if now >= tick {
                tick = now + TICK;
                self.look_at_time(now, schedule.is_none(), work, &mut goes_on)?;
                self.flush(now)?;
                if line.is_stopped() {
                    return Ok(());
                }
            }
            if now >= second {
                second += SECOND;
                line.hand_over(&mut self.tally);
            }
            let mut until = tick.min(second);
            if goes_on {
                if now < window.to {
                    until = until.min(window.to);
                }
                if now < window.from {
                    until = until.min(window.from);
                }
                if let Some(schedule) = schedule {
                    until = until.min(schedule.next());
                }
                if let Work::Bursts(clients) = work {
                    until = until.min(clients.next_time().filter(|&time| time < window.to).unwrap_or(u64::MAX));
                }
            }
            let wait = if self.plan.spin { 0 } else { until.saturating_sub(window.now()) };
            self.serve(wait, &mut events, window, schedule.is_none(), work, &mut goes_on)?;
        }
    }

    /// Waits for events and serves them.
    fn serve(
        &mut self,
        wait: u64,
        events: &mut Vec<epoll::Event>,
        window: Window,
        closed: bool,
        work: &mut Work,
        goes_on: &mut bool,
    ) -> Result<(), Ended> {
        let wait = Timespec { tv_sec: (wait / SECOND) as _, tv_nsec: (wait % SECOND) as _ };
        self.calls.waits += 1;
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("waiting for events: {error}")),
        }
        for event in events.drain(..) {
            let at = event.data.u64() as usize;
            let flags = event.flags;
            let mut now = None;
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                let (came, ended) = self.receive(at, window, work)?;
                now = Some(came);
                if closed && ended > 0 {
                    *goes_on &= came < window.to || work.ends_what_it_began();
                    self.refill(at, ended, came, work, goes_on);
                }
            }
            if flags.contains(epoll::EventFlags::OUT) && !self.conns[at].touched {
                self.conns[at].touched = true;
                self.touched.push(at);
            }
            // At once: the server need not wait for the others' answers to be read.
            if !self.touched.is_empty() {
                self.flush(now.unwrap_or_else(|| window.now()))?;
            }
        }
        Ok(())
    }

    /// Reads what is there for a connection, and asks for what follows from it; returns when, and how many operations have ended.
    fn receive(&mut self, at: usize, window: Window, work: &mut Work) -> Result<(u64, usize), Ended> {
        let (mut answers, mut ended) = (0, 0);
        let mut now;
        loop {
            // The clock is read when the bytes are here, and before they are looked at.
            let (tally, conn, following) = (&mut self.tally, &mut self.conns[at], &mut self.following);
            let mut account = Account { tally, window, random: &mut self.random, penalty: self.plan.penalty.as_ref() };
            let mut stamp = None;
            let mut error = None;
            let more = conn.receive(&mut self.buffer, &self.codec, &mut self.calls, &mut error, |asked, answer| {
                let now = *stamp.get_or_insert_with(|| window.now());
                answers += 1;
                match account.answered(asked, answer, now, work) {
                    Some(ask) => following.push((ask, asked.first)),
                    None => ended += 1,
                }
            });
            let tally = account.tally;
            if error.is_some() && tally.error.is_none() {
                tally.error = error;
            }
            now = stamp.unwrap_or_else(|| window.now());
            if !more? {
                break;
            }
        }
        self.under_way -= answers;
        while let Some((ask, first)) = self.following.pop() {
            self.ask(at, InFlight { start: now, first, ask });
        }
        if let Work::Bursts(clients) = work {
            due::chunks_end(&mut self.tally, clients, at, ended as u64, now, window);
        }
        Ok((now, ended))
    }

    /// So many requests more on a connection of a closed loop.
    fn refill(&mut self, at: usize, requests: usize, now: u64, work: &mut Work, goes_on: &mut bool) {
        if !*goes_on && !work.ends_what_it_began() {
            return;
        }
        for _ in 0..requests {
            match work.next(at, &mut self.random) {
                Next::Ask(ask) => self.ask(at, InFlight { start: now, first: now, ask }),
                Next::Wait => break,
                Next::End => {
                    *goes_on = false;
                    break;
                }
            }
        }
    }

    /// Blocks that are due begin; those that were due before the end, soon after it at the latest.
    fn burst(&mut self, now: u64, window: Window, work: &mut Work, goes_on: &mut bool) {
        while *goes_on {
            let Work::Bursts(clients) = work else { return };
            let Some(begun) = clients.begin(now, window.to, &mut self.random) else { break };
            due::block_begins(&mut self.tally, &begun, window);
            self.refill(begun.conn, self.plan.depth, now, work, goes_on);
        }
        if let Work::Bursts(clients) = work
            && *goes_on
        {
            *goes_on = !due::ends_bursts(&mut self.tally, clients, now, window, self.plan.grace());
        }
    }

    #[inline]
    fn ask(&mut self, at: usize, asked: InFlight) {
        let conn = &mut self.conns[at];
        conn.ask(&self.codec, asked);
        self.under_way += 1;
        if !conn.touched {
            conn.touched = true;
            self.touched.push(at);
        }
    }

    /// The requests of an open loop that are due.
    fn arrive(&mut self, schedule: &mut Schedule, now: u64, window: Window, work: &mut Work, goes_on: &mut bool) {
        for _ in 0..BATCH {
            let start = schedule.next();
            if start > now || start >= window.to {
                return;
            }
            schedule.step(&mut self.random);
            self.turn = (self.turn + 1) % self.conns.len();
            let Next::Ask(ask) = work.next(self.turn, &mut self.random) else {
                *goes_on = false;
                return;
            };
            let at = if work.keeps_order() { (mix(ask.key) >> 32) as usize % self.conns.len() } else { self.turn };
            let counts = start >= window.from;
            if counts {
                self.tally.started(now - start);
            }
            // Bounded: a server that never answers must not take all memory here.
            if self.conns[at].under_way() >= DEPTH_MAX {
                self.tally.counts.unsent += u64::from(counts);
                work.settle(&ask);
                continue;
            }
            self.ask(at, InFlight { start, first: start, ask });
        }
    }

    /// Writes what was put into connections, and waits for those that are full.
    fn flush(&mut self, now: u64) -> Result<(), Ended> {
        while let Some(at) = self.touched.pop() {
            let conn = &mut self.conns[at];
            conn.flush(&self.codec, now, &mut self.calls)?;
            if conn.full != conn.waits_to_write {
                conn.waits_to_write = conn.full;
                let write = if conn.full { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
                let data = epoll::EventData::new_u64(at as u64);
                epoll::modify(&self.epoll, &conn.socket, data, epoll::EventFlags::IN | write)
                    .map_err(|error| format!("an event loop: {error}"))?;
            }
        }
        Ok(())
    }

    /// Answers that did not come in time.
    fn look_at_time(&mut self, now: u64, closed: bool, work: &mut Work, goes_on: &mut bool) -> Result<(), Ended> {
        let limit = self.plan.timeout.as_nanos() as u64;
        for conn in &mut self.conns {
            if let Some(start) = conn.oldest()
                && now.saturating_sub(start) > limit
            {
                let wait = Duration::from_nanos(now - start);
                return Err(format!("the server did not answer a request for {:.1} s", wait.as_secs_f64()));
            }
        }
        let limit = now.saturating_sub(self.plan.datagram_timeout.as_nanos() as u64);
        for at in 0..self.conns.len() {
            let lost = self.conns[at].give_up(limit) as usize;
            if lost > 0 {
                self.tally.counts.lost += lost as u64;
                self.under_way -= lost;
                if let Work::Bursts(clients) = work {
                    clients.done(at, lost as u64, now);
                }
                if closed {
                    self.refill(at, lost, now, work, goes_on);
                }
            }
        }
        Ok(())
    }
}
