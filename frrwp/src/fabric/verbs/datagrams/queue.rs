//! A queue pair for datagrams, its completions and its registered memory: the edge that posts and polls.
//!
//! Sends complete in the order in which they were posted, so every 32nd one reports itself and those before it. Where the queue is full,
//! a datagram is dropped: it is sent again, as one that is lost on its way.

#![expect(unsafe_code, reason = "the calls of libibverbs")]

use super::super::manager::{last_error, sleep};
use super::super::{VerbsDomain, ib};
use super::wire::{HEADER, sender};
use crate::fabric::traits::Peer;
use mrrc::registrar::verbs::MemoryRegion;
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, PAGE, PageRange};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::VecDeque;
use std::io;
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

/// Sends of which one reports itself.
const REPORT: u64 = 32;
/// Bytes that travel in a request itself, where the device takes so many.
const INLINE: u32 = 128;
/// Completions that are polled at a time.
const BATCH: usize = 32;
/// Set in the numbers of receives.
const RECEIVE: u64 = 1 << 63;

/// A queue pair's entries: a server has many clients, and a client one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depths {
    pub(super) sends: u32,
    pub(super) receives: u32,
}

/// Registered memory. Goes after the queue pair that may be at it.
struct Memory {
    domain: VerbsDomain,
    bytes: NonNull<u8>,
    layout: Layout,
    registered: Option<Registered<MemoryRegion>>,
    key: u32,
}

impl Memory {
    fn new(domain: &VerbsDomain, bytes: usize) -> io::Result<Self> {
        let layout = Layout::from_size_align(bytes.next_multiple_of(PAGE as usize), PAGE as usize);
        let layout = layout.map_err(io::Error::other)?;
        // SAFETY: `alloc_zeroed` requires a layout with bytes: there is room for one receive at least.
        let bytes = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        // Freed with it, should the rest fail.
        let mut memory = Self { domain: domain.clone(), bytes, layout, registered: None, key: 0 };
        let range = PageRange::of_bytes(bytes.as_ptr() as u64, layout.size() as u64).map_err(io::Error::other)?;
        let access = Access::LOCAL;
        let registration = domain.register(range, access)?;
        memory.key = registration.lkey();
        memory.registered = Some(Registered { range, access, registration });
        Ok(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut batch: Vec<_> = self.registered.take().into_iter().collect();
        let _ = self.domain.deregister(&mut batch);
        // SAFETY: it came from the same allocator with this layout. The queue pair is gone, so no device is at it.
        unsafe { dealloc(self.bytes.as_ptr(), self.layout) };
    }
}

/// A completion queue and its channel.
struct Completions {
    queue: NonNull<ib::ibv_cq>,
    woken: NonNull<ib::ibv_comp_channel>,
}

impl Completions {
    fn new(domain: &VerbsDomain, entries: u32) -> io::Result<Self> {
        let context = domain.context();
        // SAFETY: the context is open as long as the domain, which the queue pair's owner keeps.
        unsafe {
            let woken = NonNull::new(ib::ibv_create_comp_channel(context)).ok_or_else(last_error)?;
            let made = ib::ibv_create_cq(context, entries as libc::c_int, null_mut(), woken.as_ptr(), 0);
            let Some(queue) = NonNull::new(made) else {
                let error = last_error();
                ib::ibv_destroy_comp_channel(woken.as_ptr());
                return Err(error);
            };
            let completions = Self { queue, woken };
            rustix::io::ioctl_fionbio(completions.file(), true)?;
            Ok(completions)
        }
    }

    fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's descriptor is open for as long as the channel, which `self` owns.
        unsafe { BorrowedFd::borrow_raw((*self.woken.as_ptr()).fd) }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: no queue pair uses it, and all its events are acknowledged.
        unsafe {
            ib::ibv_destroy_cq(self.queue.as_ptr());
            ib::ibv_destroy_comp_channel(self.woken.as_ptr());
        }
    }
}

/// The route to a host, as the device has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Handle(NonNull<ib::ibv_ah>);

// SAFETY: libibverbs' calls may be made from any thread.
unsafe impl Send for Handle {}

/// A datagram that has come.
#[derive(Clone, Copy, Debug)]
struct Came {
    slot: usize,
    from: u32,
    bytes: usize,
}

/// See the [module](self).
pub(super) struct Queue {
    pair: NonNull<ib::ibv_qp>,
    completions: Completions,
    memory: Memory,
    domain: VerbsDomain,
    /// The Q_Key that all datagrams of this server carry.
    key: u32,
    part: usize,
    inline: usize,
    depths: Depths,
    /// Sends that were posted, and those that the device is done with.
    posted: u64,
    done: u64,
    came: VecDeque<Came>,
    /// The receive whose datagram is looked at.
    lent: Option<usize>,
    /// Handles that sends may use which are not done, and the last of these.
    retired: VecDeque<(u64, Handle)>,
    is_pressed: bool,
    has_ended: bool,
}

// SAFETY: libibverbs' calls may be made from any thread, and the memory belongs to none.
unsafe impl Send for Queue {}

impl Queue {
    /// Returns one that receives at this port of the device.
    pub(super) fn new(domain: &VerbsDomain, port: u8, part: usize, key: u32, wished: Depths) -> io::Result<Self> {
        let posts = domain.able().posts;
        let depths = Depths { sends: wished.sends.min(posts).max(1), receives: wished.receives.min(posts).max(1) };
        let stride = stride(part);
        let memory = Memory::new(domain, (depths.sends as usize + depths.receives as usize) * stride)?;
        let completions = Completions::new(domain, depths.sends + depths.receives)?;
        let (pair, inline) = make_pair(domain, &completions, depths)?;
        let mut queue = Self {
            pair,
            completions,
            memory,
            domain: domain.clone(),
            key,
            part,
            inline,
            depths,
            posted: 0,
            done: 0,
            came: VecDeque::with_capacity(depths.receives as usize),
            lent: None,
            retired: VecDeque::new(),
            is_pressed: false,
            has_ended: false,
        };
        queue.begin(port)?;
        for slot in 0..depths.receives as usize {
            queue.post_receive(slot)?;
        }
        Ok(queue)
    }

    /// Makes the queue pair ready to receive and to send.
    fn begin(&mut self, port: u8) -> io::Result<()> {
        use ib::ibv_qp_attr_mask as mask;
        use ib::ibv_qp_state as state;
        // SAFETY: `zeroed` requires that all zeros are a value: the structure consists of numbers and a union of numbers.
        let mut asked: ib::ibv_qp_attr = unsafe { zeroed() };
        (asked.pkey_index, asked.port_num, asked.qkey, asked.sq_psn) = (0, port, self.key, 0);
        let first = mask::IBV_QP_STATE.0 | mask::IBV_QP_PKEY_INDEX.0 | mask::IBV_QP_PORT.0 | mask::IBV_QP_QKEY.0;
        for (next, told) in [
            (state::IBV_QPS_INIT, first),
            (state::IBV_QPS_RTR, mask::IBV_QP_STATE.0),
            (state::IBV_QPS_RTS, mask::IBV_QP_STATE.0 | mask::IBV_QP_SQ_PSN.0),
        ] {
            asked.qp_state = next;
            // SAFETY: the queue pair is `self`'s, and the call copies the structure.
            match unsafe { ib::ibv_modify_qp(self.pair.as_ptr(), &mut asked, told as libc::c_int) } {
                0 => {}
                failed => return Err(io::Error::from_raw_os_error(failed.abs())),
            }
        }
        Ok(())
    }

    /// Returns the number by which peers know it.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair is `self`'s, and destroyed only when `self` is dropped.
        unsafe { (*self.pair.as_ptr()).qp_num }
    }

    pub(super) fn part(&self) -> usize {
        self.part
    }

    pub(super) fn is_pressed(&self) -> bool {
        self.is_pressed
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(super) fn end(&mut self) {
        self.has_ended = true;
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        // Within the memory: it has a slot for each receive and each send.
        self.memory.bytes.as_ptr().wrapping_add(slot * stride(self.part))
    }

    fn post_receive(&mut self, slot: usize) -> io::Result<()> {
        let mut into =
            ib::ibv_sge { addr: self.slot(slot) as u64, length: (HEADER + self.part) as u32, lkey: self.memory.key };
        // SAFETY: the slot is there until the queue pair is gone, and nothing looks at it before the receive has completed.
        let failed = unsafe {
            let mut asked: ib::ibv_recv_wr = zeroed();
            asked.wr_id = slot as u64 | RECEIVE;
            (asked.sg_list, asked.num_sge) = (&mut into, 1);
            ib::ibv_post_recv(self.pair.as_ptr(), &mut asked, &mut null_mut())
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed.abs())) }
    }

    /// Looks at what the device has done, and keeps the datagrams that have come. Returns whether there are some.
    pub(super) fn collect(&mut self) -> bool {
        loop {
            // SAFETY: completions are numbers, of which the call fills as many as it says.
            let (count, completions) = unsafe {
                let mut completions: [ib::ibv_wc; BATCH] = zeroed();
                let queue = self.completions.queue.as_ptr();
                (ib::ibv_poll_cq(queue, BATCH as libc::c_int, completions.as_mut_ptr()), completions)
            };
            let count = usize::try_from(count).unwrap_or(0).min(BATCH);
            for completion in &completions[..count] {
                self.completed(completion);
            }
            if count < BATCH || self.came.len() >= self.depths.receives as usize {
                self.is_pressed = self.came.len() * 2 > self.depths.receives as usize;
                return !self.came.is_empty();
            }
        }
    }

    fn completed(&mut self, completion: &ib::ibv_wc) {
        let is_done = completion.status == ib::ibv_wc_status::IBV_WC_SUCCESS;
        self.has_ended |= completion.status == ib::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        if completion.wr_id & RECEIVE == 0 {
            // One that failed was lost.
            self.done = self.done.max(completion.wr_id + 1);
            while self.retired.front().is_some_and(|(last, _)| *last <= self.done) {
                if let Some((_, handle)) = self.retired.pop_front() {
                    destroy(handle);
                }
            }
            return;
        }
        let slot = (completion.wr_id & !RECEIVE) as usize;
        let bytes = (completion.byte_len as usize).checked_sub(HEADER).filter(|&bytes| bytes <= self.part);
        let has_header = completion.wc_flags & ib::ibv_wc_flags::IBV_WC_GRH.0 != 0;
        match bytes {
            Some(bytes) if is_done && has_header => self.came.push_back(Came { slot, from: completion.src_qp, bytes }),
            // Not of ours: no peer of this module sends without a route header.
            _ => self.repost(slot),
        }
    }

    fn repost(&mut self, slot: usize) {
        if !self.has_ended && self.post_receive(slot).is_err() {
            self.has_ended = true;
        }
    }

    /// Returns the next datagram and its sender.
    pub(super) fn pop(&mut self) -> Option<(Peer, &[u8])> {
        if let Some(slot) = self.lent.take() {
            self.repost(slot);
        }
        if self.came.is_empty() {
            self.collect();
        }
        let Came { slot, from, bytes } = self.came.pop_front()?;
        self.lent = Some(slot);
        let at = self.slot(slot);
        // SAFETY: the device has written so many bytes there, behind the header, and does not write again before the slot is
        // posted, which the next call of `pop` does: it borrows `self` as the slice does.
        let (header, datagram) = unsafe {
            let header: &[u8; HEADER] = &*at.cast();
            (header, std::slice::from_raw_parts(at.add(HEADER), bytes))
        };
        Some((Peer::of_queue_pair(sender(header, bytes), from), datagram))
    }

    /// Returns whether datagrams have come that were not looked at.
    pub(super) fn has_next(&self) -> bool {
        !self.came.is_empty()
    }

    /// Sends a datagram to a queue pair. It is dropped where the queue is full.
    ///
    /// # Errors
    /// The device does not take it.
    pub(super) fn send(&mut self, to: Handle, number: u32, datagram: &[u8]) -> io::Result<()> {
        if datagram.len() > self.part {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a datagram that is longer than the port takes"));
        }
        let depth = u64::from(self.depths.sends);
        if self.posted - self.done >= depth {
            self.collect();
        }
        if self.posted - self.done >= depth {
            return Ok(());
        }
        // The last before the queue is full reports itself, whatever its number: else it would be full for ever.
        let reports = self.posted % REPORT == REPORT - 1 || self.posted - self.done == depth - 1;
        let is_inline = datagram.len() <= self.inline;
        let slot = self.slot(self.depths.receives as usize + (self.posted % depth) as usize);
        let from = if is_inline {
            datagram.as_ptr()
        } else {
            // SAFETY: the slot is of at least `part` bytes, in memory of its own, and the send that used it is done.
            unsafe { slot.copy_from_nonoverlapping(datagram.as_ptr(), datagram.len()) };
            slot.cast_const()
        };
        let mut part = ib::ibv_sge { addr: from as u64, length: datagram.len() as u32, lkey: self.memory.key };
        let mut flags = if reports { ib::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        flags |= if is_inline { ib::ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        // SAFETY: the structures live through the call, which copies them, and inline data. A slot is there until the queue pair is
        // gone, and not written before its send is done; a handle until no send uses it.
        let failed = unsafe {
            let mut asked: ib::ibv_send_wr = zeroed();
            asked.wr_id = self.posted;
            (asked.sg_list, asked.num_sge) = (&mut part, 1);
            asked.opcode = ib::ibv_wr_opcode::IBV_WR_SEND;
            asked.send_flags = flags;
            asked.wr.ud.ah = to.0.as_ptr();
            (asked.wr.ud.remote_qpn, asked.wr.ud.remote_qkey) = (number, self.key);
            ib::ibv_post_send(self.pair.as_ptr(), &mut asked, &mut null_mut())
        };
        match failed.abs() {
            0 => self.posted += 1,
            // Full, by the device's own count.
            libc::ENOMEM => {}
            failed => return Err(io::Error::from_raw_os_error(failed)),
        }
        Ok(())
    }

    /// Returns a handle to a host.
    pub(super) fn handle(&self, attributes: &ib::ibv_ah_attr) -> io::Result<Handle> {
        let mut attributes = *attributes;
        // SAFETY: the protection domain is open as long as the domain, and the call copies the structure.
        let made = unsafe { ib::ibv_create_ah(self.domain.protection_domain(), &mut attributes) };
        NonNull::new(made).map(Handle).ok_or_else(last_error)
    }

    /// Destroys a handle when no send uses it any more.
    pub(super) fn retire(&mut self, handle: Handle) {
        if self.done >= self.posted {
            destroy(handle);
        } else {
            self.retired.push_back((self.posted, handle));
        }
    }

    /// Sleeps until something has come here or at one of these files, or the time is over.
    pub(super) fn sleep(&mut self, others: &[BorrowedFd<'_>], time: Option<Duration>) {
        // SAFETY: `self` owns the completion queue, which is destroyed only when `self` is dropped.
        unsafe { ib::ibv_req_notify_cq(self.completions.queue.as_ptr(), 0) };
        if self.collect() || self.has_ended {
            return;
        }
        let mut files: smallvec::SmallVec<[BorrowedFd<'_>; 3]> = smallvec::smallvec![self.completions.file()];
        files.extend_from_slice(others);
        sleep(&files, time);
        let (mut of, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is `self`'s; an event that is told is acknowledged.
        unsafe {
            while ib::ibv_get_cq_event(self.completions.woken.as_ptr(), &mut of, &mut context) == 0 {
                ib::ibv_ack_cq_events(of, 1);
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue pair is `self`'s, and destroyed once, before all that it uses.
        unsafe { ib::ibv_destroy_qp(self.pair.as_ptr()) };
        self.retired.drain(..).for_each(|(_, handle)| destroy(handle));
    }
}

/// Bytes of a slot: no two share a line of the cache.
fn stride(part: usize) -> usize {
    (HEADER + part).next_multiple_of(64)
}

fn destroy(handle: Handle) {
    // SAFETY: a handle is made once and destroyed once: the port's list or the retired ones have it, and no send uses it.
    unsafe { ib::ibv_destroy_ah(handle.0.as_ptr()) };
}

/// Returns a queue pair, and the bytes that it takes inline.
fn make_pair(
    domain: &VerbsDomain,
    completions: &Completions,
    depths: Depths,
) -> io::Result<(NonNull<ib::ibv_qp>, usize)> {
    let queue = completions.queue.as_ptr();
    // How much a device takes inline is found out by asking for it.
    for inline in [INLINE, 0] {
        // SAFETY: all zeros are a value of the structure, the queue lives, and so does the protection domain.
        let (made, inline) = unsafe {
            let mut wishes: ib::ibv_qp_init_attr = zeroed();
            (wishes.send_cq, wishes.recv_cq) = (queue, queue);
            wishes.qp_type = ib::ibv_qp_type::IBV_QPT_UD;
            wishes.cap = ib::ibv_qp_cap {
                max_send_wr: depths.sends,
                max_recv_wr: depths.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline,
            };
            let made = ib::ibv_create_qp(domain.protection_domain(), &mut wishes);
            (NonNull::new(made), wishes.cap.max_inline_data.min(INLINE) as usize)
        };
        if let Some(pair) = made {
            return Ok((pair, inline));
        }
    }
    Err(last_error())
}
