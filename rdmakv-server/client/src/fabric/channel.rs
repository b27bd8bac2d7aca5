//! The messages and events of a connection to a server.

#![expect(unsafe_code, reason = "lends memory to engines")]

use super::outbox::Outbox;
use crate::end::End;
use crate::slots::Slot;
use frrwp::engine::{Event, OpenError};
use frrwp::handshake::Tag;
use rdmakv_proto::messages::{Kind, RemoteSegment, Welcome};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// This side's end, what waits to be sent, and what came while something else was waited for.
pub(super) struct Channel {
    /// Dropped first: the memory that it was lent is in other parts of the link.
    end: Box<dyn End>,
    outbox: Outbox,
    next_id: u32,
    /// The server's first message; no request is sent before.
    welcome: Option<Welcome>,
    /// Nanoseconds of a lease.
    lease: u64,
    /// The message that is being written.
    pub(super) message: Vec<u8>,
    /// Events that came while something else was waited for.
    events: VecDeque<Event>,
    /// Why the connection is of no use any more.
    broken: Option<String>,
}

impl Channel {
    pub(super) fn new(end: Box<dyn End>) -> Self {
        Self {
            end,
            outbox: Outbox::default(),
            next_id: 1,
            welcome: None,
            lease: 0,
            message: Vec::new(),
            events: VecDeque::new(),
            broken: None,
        }
    }

    /// Returns this side's end.
    #[inline]
    pub(super) fn end(&mut self) -> &mut dyn End {
        &mut *self.end
    }

    /// Returns how many bytes are registered here.
    pub(super) fn registered(&self) -> u64 {
        self.end.registered()
    }

    /// Notes why the connection is of no use any more, if no reason is known.
    pub(super) fn give_up(&mut self, why: impl FnOnce() -> String) {
        self.broken.get_or_insert_with(why);
    }

    /// Notes that this side's end is of no use any more, if so.
    pub(super) fn look_at_end(&mut self) {
        if let Some(why) = self.end.broken().filter(|_| self.broken.is_none()) {
            self.broken = Some(why.to_owned());
        }
    }

    /// Returns why the connection is of no use any more, if it is not.
    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Returns whether no request of unknown outcome can be carried out any more.
    pub(super) fn is_settled(&self) -> bool {
        self.end.is_settled()
    }

    /// Notes the server's first message.
    pub(super) fn welcomed(&mut self, welcome: Welcome) {
        self.lease = u64::from(welcome.lease_ms) * 1_000_000;
        self.welcome = Some(welcome);
    }

    pub(super) fn is_welcomed(&self) -> bool {
        self.welcome.is_some()
    }

    /// Returns the server's incarnation, or 0 if it is unknown.
    pub(super) fn incarnation(&self) -> u32 {
        self.welcome.map_or(0, |welcome| welcome.incarnation)
    }

    /// Returns the length of a lease, in nanoseconds.
    #[inline]
    pub(super) fn lease(&self) -> u64 {
        self.lease
    }

    /// Returns the longest data that go into a message.
    pub(super) fn eager(&self) -> usize {
        self.welcome.map_or(0, |welcome| welcome.eager as usize)
    }

    /// Returns the longest data that do not go by a transfer.
    pub(super) fn transfers_from(&self) -> usize {
        self.welcome.map_or(0, |welcome| welcome.transfers_from as usize)
    }

    /// Returns the most bytes of an item.
    pub(super) fn largest(&self) -> usize {
        let largest = self.welcome.map_or(0, |welcome| welcome.largest);
        usize::try_from(largest).unwrap_or(usize::MAX).min(1 << 30)
    }

    // ---- Messages ------------------------------------------------------------------------------------

    /// Returns the number of the next request.
    pub(super) fn next_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1).max(1);
        id
    }

    /// Returns a number that is larger for a later request, of those that are open.
    pub(super) fn order_of(&self, id: u32) -> u32 {
        id.wrapping_sub(self.next_id)
    }

    /// Sends the message that was written.
    pub(super) fn send(&mut self, id: u32, kind: Kind) {
        self.outbox.push(id, kind, &self.message);
        self.send_waiting();
    }

    /// Sends waiting messages, as many as there is room for.
    pub(super) fn send_waiting(&mut self) {
        if let Err(unsent) = self.outbox.say(&mut *self.end) {
            self.give_up(|| unsent.to_string());
        }
    }

    /// Returns whether no message waits to be sent.
    pub(super) fn has_sent_all(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Returns whether anything of a request may have left.
    pub(super) fn was_sent(&self, id: u32) -> bool {
        !self.outbox.has_all(id) && self.end.was_sent(id)
    }

    /// Ends a request that has no answer. Returns whether the others go on; else nothing has changed.
    pub(super) fn cancel(&mut self, id: u32) -> bool {
        self.outbox.remove(id) || self.end.cancel(id)
    }

    /// Closes the connection. Returns this side's end if a request may still be carried out.
    pub(super) fn close(self) -> Option<Box<dyn End>> {
        let mut end = self.end;
        end.give_up().then_some(end)
    }

    /// Sends waiting messages, if there is room for them by now. Other events are kept.
    pub(super) fn make_room(&mut self) {
        if self.outbox.is_empty() {
            return;
        }
        self.end.progress();
        while let Some(event) = self.end.next_event() {
            match event {
                Event::Writable => self.send_waiting(),
                event => self.events.push_back(event),
            }
        }
    }

    // ---- Events --------------------------------------------------------------------------------------

    pub(super) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front().or_else(|| self.end.next_event())
    }

    /// Waits for events, if none is kept.
    pub(super) fn wait(&mut self, longest: Duration) {
        if self.events.is_empty() {
            self.end.wait(longest);
        }
    }

    /// Waits for the end of a read. Other events are kept.
    #[cold]
    pub(super) fn wait_for(&mut self, read: u64, first: Option<Event>, longest: Duration) -> Option<bool> {
        self.events.extend(first);
        let until = Instant::now() + longest;
        loop {
            while let Some(event) = self.end.next_event() {
                match event {
                    Event::ReadCompleted { id, succeeded } if id == read => return Some(succeeded),
                    event => self.events.push_back(event),
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.give_up(|| format!("a one-sided read took more than {} ms", longest.as_millis()));
                return None;
            }
            if matches!(self.events.back(), Some(Event::Closed { .. })) {
                return None;
            }
            self.end.wait(left);
            self.end.progress();
        }
    }

    /// Asks for a transfer, with the message that was written.
    ///
    /// # Safety
    /// As [`End::read`].
    pub(super) unsafe fn read(&mut self, memory: *mut u8, length: usize) -> Result<Tag, OpenError> {
        // SAFETY: `Self::read` requires what `End::read` does.
        unsafe { self.end.read(memory, length, &self.message) }
    }

    // ---- Reads ---------------------------------------------------------------------------------------

    /// Posts a read of `from.length` bytes. With the fault `no-crc` the second half comes later, which shows the use of the sum.
    ///
    /// # Safety
    /// As [`End::fetch`].
    #[inline]
    pub(super) unsafe fn fetch(&mut self, memory: *mut u8, from: RemoteSegment) -> Option<u64> {
        #[cfg(rdmakv_fault_injection)]
        if rdmakv_proto::faults::injected(rdmakv_proto::faults::Fault::NoCrc) {
            let half = from.length / 2;
            // SAFETY: both halves lie in the caller's memory; reads end in order, so the end of the second half ends both.
            return unsafe {
                self.end.fetch(memory, RemoteSegment { length: half, ..from }).ok()?;
                std::thread::sleep(Duration::from_millis(1));
                let rest = RemoteSegment { address: from.address + half, length: from.length - half, ..from };
                self.end.fetch(memory.add(half as usize), rest).ok()
            };
        }
        // SAFETY: `Self::fetch` requires what `End::fetch` does.
        unsafe { self.end.fetch(memory, from) }.ok()
    }

    /// Reads `from.length` bytes into a slot before it returns. Returns whether they were read; None where the fabric cannot, or not now, or
    /// where the slot is shorter.
    #[inline]
    pub(super) fn read_now(&mut self, into: &mut Slot, from: RemoteSegment) -> Option<bool> {
        if from.length > into.len() as u64 {
            return None;
        }
        // SAFETY: the slot has so many bytes, and `&mut` shows that no other code uses them until this returns.
        unsafe { self.end.read_now(into.as_ptr(), from) }
    }

    /// Reads an item as [`Channel::read_now`] does. With the fault `no-crc` the second half comes later, which shows the use of the sum.
    #[inline]
    pub(super) fn read_item(&mut self, into: &mut Slot, from: RemoteSegment) -> Option<bool> {
        #[cfg(rdmakv_fault_injection)]
        if rdmakv_proto::faults::injected(rdmakv_proto::faults::Fault::NoCrc) && from.length <= into.len() as u64 {
            let half = from.length / 2;
            // SAFETY: both parts lie within the slot, and `&mut` shows that no other code uses it until this returns.
            return unsafe {
                let first = self.end.read_now(into.as_ptr(), RemoteSegment { length: half, ..from })?;
                std::thread::sleep(Duration::from_millis(1));
                let rest = RemoteSegment { address: from.address + half, length: from.length - half, ..from };
                Some(first && self.end.read_now(into.as_ptr().add(half as usize), rest)?)
            };
        }
        self.read_now(into, from)
    }
}
