//! A queue pair with its completion queue, its identifier and the channels of both: the edge that posts and polls.

#![expect(unsafe_code, reason = "the calls of libibverbs")]

use super::address::VerbsAddress;
use super::device::longest;
use super::manager::{Channel, Event, Id, last_error, sleep};
use super::{VerbsDomain, ib};
use smallvec::SmallVec;
use std::io;
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

/// Bytes that travel in a request itself, where the device takes so many.
const INLINE: u32 = 128;

/// The address that an endpoint connected to, and its receives.
#[derive(Clone)]
pub(super) struct Destination {
    pub(super) address: VerbsAddress,
    pub(super) receives: u16,
}

/// An entry of the send queue, for the device.
pub(super) struct Request<'a> {
    pub(super) number: u64,
    pub(super) opcode: ib::ibv_wr_opcode::Type,
    pub(super) parts: &'a mut [ib::ibv_sge],
    /// The peer's memory, and its key.
    pub(super) remote: (u64, u32),
    pub(super) immediate: u32,
    /// The parts are copied by the call.
    pub(super) inline: bool,
}

/// Set in the numbers of receives.
pub(super) const RECEIVE: u64 = 1 << 63;

/// See the [module](self). The device does not use its posts any more once it is [ended](Pair::end).
pub(super) struct Pair {
    queue: Option<NonNull<ib::ibv_qp>>,
    completions: NonNull<ib::ibv_cq>,
    woken: NonNull<ib::ibv_comp_channel>,
    pub(super) id: Id,
    /// Its own, once it stands; before that, events come by the thread that sets it up.
    pub(super) events: Option<Channel>,
    /// Bytes of a message that are posted inline.
    pub(super) inline: usize,
    /// Bytes of one request.
    pub(super) longest: usize,
}

// SAFETY: libibverbs' calls may be made from any thread.
unsafe impl Send for Pair {}

/// A completion queue and its channel, until they are a pair's.
struct Queue(NonNull<ib::ibv_cq>, NonNull<ib::ibv_comp_channel>);

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: no queue pair uses it, and all its events are acknowledged.
        unsafe {
            ib::ibv_destroy_cq(self.0.as_ptr());
            ib::ibv_destroy_comp_channel(self.1.as_ptr());
        }
    }
}

impl Pair {
    /// Returns a queue pair for the connection of this identifier, with room for so many sends and receives.
    pub(super) fn new(domain: &VerbsDomain, id: Id, (sends, receives): (u32, u32)) -> io::Result<Self> {
        let context = domain.context();
        // SAFETY: the context is open as long as the domain, of which the endpoint has a clone.
        unsafe {
            let woken = NonNull::new(ib::ibv_create_comp_channel(context)).ok_or_else(last_error)?;
            let made = ib::ibv_create_cq(context, (sends + receives) as libc::c_int, null_mut(), woken.as_ptr(), 0);
            let Some(completions) = NonNull::new(made) else {
                let error = last_error();
                ib::ibv_destroy_comp_channel(woken.as_ptr());
                return Err(error);
            };
            let queue = Queue(completions, woken);
            rustix::io::ioctl_fionbio(BorrowedFd::borrow_raw((*woken.as_ptr()).fd), true)?;
            let mut wishes: ib::ibv_qp_init_attr = zeroed();
            (wishes.send_cq, wishes.recv_cq) = (completions.as_ptr(), completions.as_ptr());
            wishes.qp_type = ib::ibv_qp_type::IBV_QPT_RC;
            let wished = |inline| ib::ibv_qp_cap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: domain.able().gather as u32,
                max_recv_sge: 1,
                max_inline_data: inline,
            };
            // How much a device takes inline is found out by asking for it.
            let mut failed = -1;
            for inline in [INLINE, 0] {
                wishes.cap = wished(inline);
                failed = ib::rdma_create_qp(id.raw(), domain.protection_domain(), &mut wishes);
                if failed == 0 {
                    break;
                }
            }
            if failed != 0 {
                return Err(last_error());
            }
            std::mem::forget(queue);
            let queue = NonNull::new((*id.raw()).qp);
            let (inline, longest) = (wishes.cap.max_inline_data.min(INLINE) as usize, longest(context, id.port()));
            Ok(Self { queue, completions, woken, id, events: None, inline, longest })
        }
    }

    /// Posts to the send queue.
    ///
    /// # Safety
    /// The parts' memory is there until the request has completed or the pair is ended; inline data only until the call
    /// returns. Memory that is read into has no other user until then.
    pub(super) unsafe fn post(&self, request: Request<'_>) -> io::Result<()> {
        let Some(queue) = self.queue else { return Err(io::ErrorKind::NotConnected.into()) };
        // SAFETY: the structures live through the call, which copies them; of the memory, the caller's promise.
        let failed = unsafe {
            let mut asked: ib::ibv_send_wr = zeroed();
            asked.wr_id = request.number;
            (asked.sg_list, asked.num_sge) = (request.parts.as_mut_ptr(), request.parts.len() as libc::c_int);
            asked.opcode = request.opcode;
            let inline = if request.inline { ib::ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
            asked.send_flags = ib::ibv_send_flags::IBV_SEND_SIGNALED.0 | inline;
            asked.imm_data_invalidated_rkey_union.imm_data = request.immediate.to_be();
            (asked.wr.rdma.remote_addr, asked.wr.rdma.rkey) = request.remote;
            ib::ibv_post_send(queue.as_ptr(), &mut asked, &mut null_mut())
        };
        posted(failed)
    }

    /// Posts that a window is bound, by this key.
    ///
    /// # Safety
    /// The window is there and bound to nothing, and the region there and of the pair's domain, as long as the window is bound.
    pub(super) unsafe fn bind(
        &self,
        number: u64,
        window: NonNull<ib::ibv_mw>,
        key: u32,
        (region, address, length): (NonNull<ib::ibv_mr>, u64, u64),
    ) -> io::Result<()> {
        let Some(queue) = self.queue else { return Err(io::ErrorKind::NotConnected.into()) };
        // SAFETY: the structures live through the call, which copies them; of what they point to, the caller's promise.
        let failed = unsafe {
            let mut asked: ib::ibv_send_wr = zeroed();
            asked.wr_id = number;
            asked.opcode = ib::ibv_wr_opcode::IBV_WR_BIND_MW;
            asked.send_flags = ib::ibv_send_flags::IBV_SEND_SIGNALED.0;
            let bind = &mut asked.bind_mw_tso_union.bind_mw;
            (bind.mw, bind.rkey) = (window.as_ptr(), key);
            (bind.bind_info.mr, bind.bind_info.addr, bind.bind_info.length) = (region.as_ptr(), address, length);
            bind.bind_info.mw_access_flags = ib::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0 as _;
            ib::ibv_post_send(queue.as_ptr(), &mut asked, &mut null_mut())
        };
        posted(failed)?;
        // SAFETY: the window is there. Of one that is bound by a request, libibverbs leaves that to its poster.
        unsafe { (*window.as_ptr()).rkey = key };
        Ok(())
    }

    /// Posts that this key of a window opens nothing any more.
    pub(super) fn invalidate(&self, number: u64, key: u32) -> io::Result<()> {
        let Some(queue) = self.queue else { return Err(io::ErrorKind::NotConnected.into()) };
        // SAFETY: the structure lives through the call, which copies it; no memory is passed.
        let failed = unsafe {
            let mut asked: ib::ibv_send_wr = zeroed();
            asked.wr_id = number;
            asked.opcode = ib::ibv_wr_opcode::IBV_WR_LOCAL_INV;
            asked.send_flags = ib::ibv_send_flags::IBV_SEND_SIGNALED.0;
            asked.imm_data_invalidated_rkey_union.invalidated_rkey = key;
            ib::ibv_post_send(queue.as_ptr(), &mut asked, &mut null_mut())
        };
        posted(failed)
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The memory is there and has no other user until the receive has completed or the pair is ended.
    pub(super) unsafe fn post_receive(&self, number: u64, mut into: ib::ibv_sge) -> io::Result<()> {
        let Some(queue) = self.queue else { return Err(io::ErrorKind::NotConnected.into()) };
        // SAFETY: the caller promises that the memory stays until the receive has completed; the structures live across
        // the call.
        let failed = unsafe {
            let mut asked: ib::ibv_recv_wr = zeroed();
            asked.wr_id = number | RECEIVE;
            (asked.sg_list, asked.num_sge) = (&mut into, 1);
            ib::ibv_post_recv(queue.as_ptr(), &mut asked, &mut null_mut())
        };
        posted(failed)
    }

    /// Returns the next completions, some of them.
    pub(super) fn poll(&self) -> SmallVec<[ib::ibv_wc; 8]> {
        // SAFETY: completions are numbers, of which the call fills as many as it says.
        unsafe {
            let mut came: [ib::ibv_wc; 8] = zeroed();
            let count = ib::ibv_poll_cq(self.completions.as_ptr(), came.len() as i32, came.as_mut_ptr());
            came.into_iter().take(count.max(0) as usize).collect()
        }
    }

    /// Makes the next completion wake a thread that [sleeps](Pair::sleep). Poll once more in between.
    pub(super) fn arm(&self) {
        // SAFETY: `self` owns the completion queue, which is destroyed only when `self` is dropped.
        unsafe { ib::ibv_req_notify_cq(self.completions.as_ptr(), 0) };
    }

    /// Returns the descriptors to read when a completion or an event has come.
    pub(super) fn files(&self) -> SmallVec<[BorrowedFd<'_>; 3]> {
        // SAFETY: the channel's descriptor is open for as long as the channel, which `self` owns.
        let woken = unsafe { BorrowedFd::borrow_raw((*self.woken.as_ptr()).fd) };
        std::iter::once(woken).chain(self.events.as_ref().map(Channel::file)).collect()
    }

    /// Sleeps until a completion or an event may have come, or this file has something, or the time is over.
    pub(super) fn sleep(&self, other: Option<BorrowedFd<'_>>, time: Option<Duration>) {
        let mut files = self.files();
        files.extend(other);
        sleep(&files, time);
        self.acknowledge();
    }

    /// Takes note of what the completion channel says.
    pub(super) fn acknowledge(&self) {
        let (mut of, mut context) = (null_mut(), null_mut());
        // SAFETY: it lives; one that is told is acknowledged.
        unsafe {
            while ib::ibv_get_cq_event(self.woken.as_ptr(), &mut of, &mut context) == 0 {
                ib::ibv_ack_cq_events(of, 1);
            }
        }
    }

    /// Returns the connection manager's next event, if there is one.
    pub(super) fn next_event(&self) -> Option<Event> {
        self.events.as_ref()?.next()
    }

    /// Ends the queue pair: the device is at nothing any more that was posted to it, and a peer at nothing by it. Completions
    /// that came before can still be polled.
    pub(super) fn end(&mut self) {
        if self.queue.take().is_some() {
            self.id.disconnect();
            // SAFETY: it was made for this identifier, and is destroyed once.
            unsafe { ib::rdma_destroy_qp(self.id.raw()) };
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.id.is_here() {
            return;
        }
        self.end();
        // The identifier goes after this, and after it its channel.
        drop(Queue(self.completions, self.woken));
    }
}

fn posted(failed: libc::c_int) -> io::Result<()> {
    match failed {
        0 => Ok(()),
        failed if failed > 0 => Err(io::Error::from_raw_os_error(failed)),
        _ => Err(last_error()),
    }
}
