//! Writes and messages on their way to the fabric, in one order.
//!
//! A write of the handshake's becomes as many as the gathering takes. What finds the fabric's queue full waits here, and no
//! message is taken from the handshake while something waits: a DONE leaves after the writes that it speaks of.

#![expect(unsafe_code, reason = "posts the memory of leases")]

use super::Engine;
use crate::fabric::{Endpoint, Local};
use crate::handshake::{Handshake, Tag};
use crate::wire::{MESSAGE, Segment};
use std::collections::VecDeque;
use std::io::ErrorKind;

#[derive(Default)]
pub(super) struct Posts {
    /// Writes that are not posted, or not wholly.
    waiting: VecDeque<Write>,
    /// A message that found the queue full.
    unsent: Option<Vec<u8>>,
    /// Writes that are posted at least in part, by name.
    posted: Vec<Option<Posted>>,
    free: Vec<usize>,
}

struct Write {
    tag: Tag,
    /// What is left of it.
    remote: Segment,
    offset: u64,
    immediate: Option<u32>,
    /// Its name, once part of it is posted.
    name: Option<usize>,
}

/// A write of the handshake's on its way.
struct Posted {
    tag: Tag,
    /// Parts that have not completed, and whether there will be more.
    parts: u32,
    all: bool,
    succeeded: bool,
}

impl Posts {
    pub(super) fn queue(&mut self, tag: Tag, remote: Segment, offset: u64, immediate: Option<u32>) {
        self.waiting.push_back(Write { tag, remote, offset, immediate, name: None });
    }

    fn name(&mut self, tag: Tag) -> usize {
        let posted = Some(Posted { tag, parts: 0, all: false, succeeded: true });
        match self.free.pop() {
            Some(name) => {
                self.posted[name] = posted;
                name
            }
            None => {
                self.posted.push(posted);
                self.posted.len() - 1
            }
        }
    }

    /// A part has completed: the transfer, if that was the last of a write.
    pub(super) fn done(&mut self, id: u64, succeeded: bool) -> Option<(Tag, bool)> {
        let name = id as usize;
        let posted = self.posted.get_mut(name)?.as_mut()?;
        posted.parts -= 1;
        posted.succeeded &= succeeded;
        if posted.parts > 0 || !posted.all {
            return None;
        }
        let ended = (posted.tag, posted.succeeded);
        self.posted[name] = None;
        self.free.push(name);
        Some(ended)
    }

    /// Whether anything waits for the fabric.
    pub(super) fn waits(&self) -> bool {
        self.unsent.is_some() || !self.waiting.is_empty()
    }

    /// The next message, if nothing waits before it.
    pub(super) fn take_message(
        &mut self,
        handshake: &mut Handshake,
        now: u64,
        into: &mut [u8; MESSAGE],
    ) -> Option<usize> {
        if let Some(unsent) = self.unsent.take() {
            into[..unsent.len()].copy_from_slice(&unsent);
            return Some(unsent.len());
        }
        handshake.take_message(now, into)
    }

    /// False if the queue is full: the message waits.
    pub(super) fn send(&mut self, endpoint: &mut impl Endpoint, message: &[u8]) -> bool {
        match endpoint.send(message) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.unsent = Some(message.to_vec());
                false
            }
            // The connection's end is told by a completion.
            _ => true,
        }
    }
}

impl<E: Endpoint> Engine<'_, E> {
    /// Posts the writes that wait. False if some still do.
    pub(super) fn post(&mut self) -> bool {
        if self.posts.unsent.is_some() {
            // It was taken after the writes before it were posted; those that came since follow it.
            let Some(unsent) = self.posts.unsent.take() else { return true };
            if !self.posts.send(&mut self.endpoint, &unsent) {
                return false;
            }
        }
        while let Some(mut write) = self.posts.waiting.pop_front() {
            while write.remote.length > 0 {
                if !self.post_part(&mut write) {
                    self.posts.waiting.push_front(write);
                    return false;
                }
            }
        }
        true
    }

    /// Posts as much of a write as one gathering takes.
    fn post_part(&mut self, write: &mut Write) -> bool {
        let Some(buffer) = self.buffers.get(&write.tag) else {
            // Released with a write still waiting: only where the connection is flushed.
            write.remote.length = 0;
            return true;
        };
        let most = self.endpoint.abilities().gather;
        let start = buffer.address as u64 + write.offset;
        let end = start + write.remote.length;
        let mut gather = smallvec::SmallVec::<[Local<'_, _>; 8]>::new();
        let mut bytes = 0_u64;
        let segments = buffer.segments();
        for (address, length, registration) in segments {
            let from = (address as u64).max(start);
            let to = (address as u64 + length as u64).min(end);
            if from < to && gather.len() < most {
                let within = (from - address as u64) as usize;
                let address = address.cast_mut().wrapping_add(within);
                gather.push(Local { address, length: (to - from) as usize, registration });
                bytes += to - from;
            }
        }
        if bytes == 0 {
            write.remote.length = 0;
            return true;
        }
        let name = *write.name.get_or_insert_with(|| self.posts.name(write.tag));
        let is_last = bytes == write.remote.length;
        let to = Segment { length: bytes, ..write.remote };
        let immediate = write.immediate.filter(|_| is_last);
        // SAFETY: the buffer's lease is held until the handshake releases it, which is after the write has completed or the
        // connection was flushed; that it may be read meanwhile is the promise of whoever opened the transfer.
        match unsafe { self.endpoint.write(name as u64, &gather, to, immediate) } {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => {
                // The connection's end is told by a completion, and ends the transfer.
                write.remote.length = 0;
                return true;
            }
            Ok(()) => {}
        }
        if let Some(posted) = self.posts.posted[name].as_mut() {
            posted.parts += 1;
            posted.all = is_last;
        }
        write.remote.address += bytes;
        write.remote.length -= bytes;
        write.offset += bytes;
        true
    }
}
