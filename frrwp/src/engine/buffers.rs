//! Buffers of transfers: from an address to leases, and from leases to what the handshake is told.
#![expect(unsafe_code, reason = "the memory is the application's, by address")]

use super::{Engine, key_of};
use crate::fabric::Endpoint;
use crate::handshake::{Handshake, Tag};
use crate::wire::{Reason, Segment};
use mrrc::cache::Acquiring;
use mrrc::registrar::Registrar;
use mrrc::{Access, Lease};
use smallvec::SmallVec;

/// The application's memory, and what keeps it registered.
pub(super) struct Buffer<'cache, D: Registrar> {
    pub(super) address: *mut u8,
    pub(super) length: usize,
    access: Access,
    /// Holds what was ready before the rest was registered: a peer may have its keys, also where the rest failed.
    acquiring: Option<Acquiring<'cache, D>>,
    lease: Option<Lease<D>>,
    /// Writes from it that are not posted, or not wholly.
    pub(super) unposted: u32,
}

// SAFETY: an address, which the engine uses in one thread at a time, and a lease, which may be sent. An acquiring is finished in the
// call that began it, so what stays of it is held as a lease holds: any thread may let go of that, as `Lease: Send` has it.
unsafe impl<D: Registrar> Send for Buffer<'_, D> {}

impl<D: Registrar> Buffer<'_, D> {
    pub(super) fn new(address: *mut u8, length: usize, access: Access) -> Self {
        Self { address, length, access, acquiring: None, lease: None, unposted: 0 }
    }

    /// What is registered of it, as addresses, lengths and registrations.
    pub(super) fn segments(&self) -> impl Iterator<Item = (*const u8, usize, &D::Registration)> {
        let ready = self.acquiring.iter().filter(|_| self.lease.is_none()).flat_map(Acquiring::ready);
        let leased = self.lease.iter().flat_map(Lease::segments);
        ready.chain(leased).map(|segment| (segment.address(), segment.len(), segment.registration()))
    }

    fn is_target(&self) -> bool {
        self.access.is_remote()
    }
}

/// A registered part of a buffer.
#[derive(Clone, Copy)]
struct Part {
    offset: u64,
    length: u64,
    remote: Segment,
}

/// Few, as a rule: a buffer that is in one region is one.
type Parts = SmallVec<[Part; 4]>;

impl<'cache, E: Endpoint> Engine<'cache, E> {
    /// Registers the buffer of a transfer. What is ready is told before the rest is registered.
    pub(super) fn register(&mut self, tag: Tag) {
        let Some(buffer) = self.buffers.get(&tag) else { return };
        let (address, length, access) = (buffer.address, buffer.length, buffer.access);
        if length == 0 {
            return;
        }
        // SAFETY: whoever opened or answered the transfer promised it for this memory.
        let acquiring = match unsafe { self.cache.begin(address, length, access) } {
            Ok(acquiring) => acquiring,
            Err(error) => return self.cannot_register(tag, error),
        };
        let domain = self.cache.registrar();
        let part = |at: *const u8, bytes: usize, registration: &_| Part {
            offset: at as u64 - address as u64,
            length: bytes as u64,
            remote: key_of(domain, registration, at, bytes),
        };
        let ready: Parts =
            acquiring.ready().map(|segment| part(segment.address(), segment.len(), segment.registration())).collect();
        let all_ready = ready.iter().map(|part| part.length).sum::<u64>() == length as u64;
        if let Some(buffer) = self.buffers.get_mut(&tag) {
            buffer.acquiring = Some(acquiring);
        }
        if !all_ready {
            // What is ready may travel with the SYNC; and the peer can register while this side does.
            self.tell(tag, &ready, true);
            self.drive();
        }
        // Driving may have ended it.
        let Some(buffer) = self.buffers.get_mut(&tag) else { return };
        let Some(finished) = buffer.acquiring.as_mut().map(Acquiring::finish) else { return };
        match finished {
            Ok(lease) => {
                let told = if all_ready { &[][..] } else { &ready[..] };
                let parts: Parts = lease
                    .segments()
                    .map(|segment| part(segment.address(), segment.len(), segment.registration()))
                    .flat_map(|part| without(part, told))
                    .collect();
                buffer.lease = Some(lease);
                self.tell(tag, &parts, false);
            }
            Err(error) => self.cannot_register(tag, error),
        }
    }

    /// The traditional process has registered before it opens.
    pub(super) fn registered_before(&mut self, tag: Tag, lease: Lease<E::Domain>) {
        let domain = self.cache.registrar();
        let Some(buffer) = self.buffers.get_mut(&tag) else { return };
        let start = buffer.address as u64;
        let parts: Parts = lease
            .segments()
            .map(|segment| Part {
                offset: segment.address() as u64 - start,
                length: segment.len() as u64,
                remote: key_of(domain, segment.registration(), segment.address(), segment.len()),
            })
            .collect();
        buffer.lease = Some(lease);
        self.tell(tag, &parts, false);
    }

    fn cannot_register(&mut self, tag: Tag, error: mrrc::cache::AcquireError) {
        self.errors.insert(tag, error);
        // Where the transfer has ended meanwhile, its end is told.
        if self.handshake.fail(self.endpoint.now(), tag, Reason::Registration).is_err() {
            self.errors.remove(&tag);
        }
    }

    /// Tells the handshake of parts that are registered. Refused where the transfer has ended meanwhile.
    fn tell(&mut self, tag: Tag, parts: &[Part], more: bool) {
        let now = self.endpoint.now();
        let is_target = self.buffers.get(&tag).is_some_and(Buffer::is_target);
        if is_target {
            offer(&mut self.handshake, now, tag, parts, more);
        } else {
            for part in parts {
                let _ = self.handshake.ready(now, tag, part.offset, part.length);
            }
        }
    }
}

/// Offers parts that follow each other together.
fn offer(handshake: &mut Handshake, now: u64, tag: Tag, parts: &[Part], more: bool) {
    let mut run = SmallVec::<[Segment; 4]>::new();
    let mut start = parts.first().map_or(0, |part| part.offset);
    let mut end = start;
    for part in parts {
        if part.offset != end {
            let _ = handshake.offer(now, tag, start, &run, true);
            run.clear();
            start = part.offset;
        }
        run.push(part.remote);
        end = part.offset + part.length;
    }
    let _ = handshake.offer(now, tag, start, &run, more);
}

/// What is left of a part beside those that were told already. Both are in the order of their addresses.
fn without(part: Part, told: &[Part]) -> Parts {
    let mut rest = Parts::new();
    let mut at = part.offset;
    let end = part.offset + part.length;
    let cut = |from: u64, to: u64| Part {
        offset: from,
        length: to - from,
        remote: Segment {
            address: part.remote.address + (from - part.offset),
            length: to - from,
            key: part.remote.key,
        },
    };
    for told in told {
        let (from, to) = (told.offset.max(at), (told.offset + told.length).min(end));
        if from >= to {
            continue;
        }
        if at < from {
            rest.push(cut(at, from));
        }
        at = to;
    }
    if at < end {
        rest.push(cut(at, end));
    }
    rest
}
