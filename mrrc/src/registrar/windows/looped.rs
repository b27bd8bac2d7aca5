//! A pair of queue pairs that are linked to each other, and the windows that they bind.
//!
//! A window of type 1 belongs to a domain and to no connection. A request on some connected queue pair of that domain binds it.
//! This pair belongs to the windows, and carries nothing else.
#![expect(unsafe_code, reason = "the calls of libibverbs")]

use super::abi::{
    AhAttr, Context, LINK_INFINIBAND, Mr, Mw, MwBind, Opaque, PORT_ACTIVE, Pd, PortAttr, Qp, QpAttr, QpInit, RC,
    SIGNALED, SendWr, Sge, TYPE_1, Wc, flag, opcode, state, status, step,
};
use super::calls::Calls;
use super::steps::{Bytes, Device, Failure};
use std::io;
use std::ptr::{NonNull, null_mut};
use std::time::{Duration, Instant};

/// The longest time that a completion is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks at the completion queue between two looks at the clock.
const LOOKS: u32 = 64;
/// Ports of a device, at most.
const PORTS: u8 = 8;

/// Both ends, and the queue of their completions.
pub(super) struct Pair {
    calls: Calls,
    cq: NonNull<Opaque>,
    ends: [NonNull<Qp>; 2],
}

/// An access of one end to memory of the other's domain.
pub(super) struct Access<'a> {
    pub(super) opcode: i32,
    /// The other side of the copy.
    pub(super) own: &'a mut Sge,
    pub(super) address: u64,
    pub(super) rkey: u32,
}

/// The place of a device in its network.
struct Place {
    port: u8,
    lid: u16,
    /// The number of the address and the address, on networks that need one.
    gid: Option<(u8, [u8; 16])>,
}

/// Returns the `errno` of a call that failed: an error in any case.
pub(super) fn reason() -> i32 {
    io::Error::last_os_error().raw_os_error().filter(|&why| why != 0).unwrap_or(libc::EIO)
}

fn checked(code: i32) -> Result<(), i32> {
    match code {
        0 => Ok(()),
        // Some calls of libibverbs return -1 and set `errno`.
        -1 => Err(reason()),
        code => Err(code.abs()),
    }
}

impl Place {
    /// Returns the first port that is active.
    ///
    /// # Safety
    /// The context is open.
    unsafe fn find(calls: Calls, context: *mut Context) -> Option<Self> {
        let (query_port, query_gid) = (calls.query_port?, calls.query_gid?);
        for port in 1..=PORTS {
            // SAFETY: all zero is a value of `PortAttr`, which holds plain numbers.
            let mut attributes: PortAttr = unsafe { std::mem::zeroed() };
            // SAFETY: the caller promises that the context is open; the structure has room for what is written.
            if unsafe { query_port(context, port, &mut attributes) } != 0 {
                return None;
            }
            if attributes.state != PORT_ACTIVE {
                continue;
            }
            let lid = attributes.lid;
            if attributes.link_layer == LINK_INFINIBAND {
                return Some(Self { port, lid, gid: None });
            }
            let read = |at: u8| {
                let mut gid = [0; 16];
                // SAFETY: the caller promises that the context is open; an address has 16 bytes.
                (unsafe { query_gid(context, port, at.into(), &mut gid) } == 0).then_some((at, gid))
            };
            let known = (0..attributes.gid_tbl_len.clamp(0, 255) as u8).filter_map(read);
            let known: Vec<_> = known.filter(|(_, gid)| gid.iter().any(|&byte| byte != 0)).collect();
            // The form that is routed, of an IPv4 address, if there is one: the last has the newest version of RoCE.
            let is_ipv4 = |gid: &[u8; 16]| gid[..10].iter().all(|&byte| byte == 0) && gid[10..12] == [0xff, 0xff];
            let best = known.iter().rfind(|(_, gid)| is_ipv4(gid)).or(known.first()).copied();
            return best.map(|gid| Self { port, lid, gid: Some(gid) });
        }
        None
    }

    fn address(&self) -> AhAttr {
        let (sgid_index, gid) = self.gid.unwrap_or_default();
        AhAttr {
            gid,
            flow_label: 0,
            sgid_index,
            hop_limit: 1,
            traffic_class: 0,
            dlid: self.lid,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: self.gid.is_some().into(),
            port_num: self.port,
        }
    }
}

impl Pair {
    /// Makes a pair in a domain, and links its ends.
    ///
    /// # Errors
    /// An `errno`. `ENETDOWN`: no port is active.
    ///
    /// # Safety
    /// The domain is open for as long as the pair is used.
    pub(super) unsafe fn new(calls: Calls, pd: NonNull<Pd>) -> Result<Self, i32> {
        let (Some(create_cq), Some(create_qp)) = (calls.create_cq, calls.create_qp) else {
            return Err(libc::EOPNOTSUPP);
        };
        // SAFETY: the caller promises that the domain is open, so its context is.
        let context = unsafe { (*pd.as_ptr()).context };
        // SAFETY: the same promise: the context is open.
        let place = unsafe { Place::find(calls, context) }.ok_or(libc::ENETDOWN)?;
        // SAFETY: the context is open, and nothing of the program is passed.
        let cq = NonNull::new(unsafe { create_cq(context, 8, null_mut(), null_mut(), 0) }).ok_or_else(reason)?;
        let mut ends = Vec::new();
        for _ in 0..2 {
            let mut wishes = QpInit {
                of_program: null_mut(),
                send_cq: cq.as_ptr(),
                recv_cq: cq.as_ptr(),
                srq: null_mut(),
                max_send_wr: 4,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
                kind: RC,
                sq_sig_all: 0,
            };
            // SAFETY: the domain and the completion queue are open, and the structure is libibverbs' `ibv_qp_init_attr`.
            match NonNull::new(unsafe { create_qp(pd.as_ptr(), (&raw mut wishes).cast()) }.cast::<Qp>()) {
                Some(end) => ends.push(end),
                None => break,
            }
        }
        let why = reason();
        let [one, other] = ends[..] else {
            // SAFETY: both were made above, and no other code knows them.
            unsafe { destroy(calls, Some(cq), &ends) };
            return Err(why);
        };
        let pair = Self { calls, cq, ends: [one, other] };
        pair.link(one, other, &place)?;
        pair.link(other, one, &place)?;
        Ok(pair)
    }

    /// Connects an end with the other one.
    fn link(&self, end: NonNull<Qp>, other: NonNull<Qp>, place: &Place) -> Result<(), i32> {
        let modify = self.calls.modify_qp.ok_or(libc::EOPNOTSUPP)?;
        let change = |attributes: &mut QpAttr, what: i32| {
            // SAFETY: the end is open as long as the pair is, and the structure has room for all that libibverbs reads.
            checked(unsafe { modify(end.as_ptr(), attributes, what) })
        };
        // SAFETY: all zero is a value of `QpAttr`, which holds plain numbers.
        let mut attributes: QpAttr = unsafe { std::mem::zeroed() };
        (attributes.state, attributes.port_num) = (state::INIT, place.port);
        // Some devices bind windows with rights that their queue pair has, and not all have atomic operations.
        attributes.access = flag::LOCAL_WRITE | flag::REMOTE;
        change(&mut attributes, step::INIT).or_else(|_| {
            attributes.access &= !flag::REMOTE_ATOMIC;
            change(&mut attributes, step::INIT)
        })?;
        attributes.state = state::RTR;
        // 1,024 bytes.
        attributes.path_mtu = 3;
        // SAFETY: the other end is open, and libibverbs has filled it.
        attributes.dest_qp_num = unsafe { (*other.as_ptr()).qp_num };
        (attributes.max_dest_rd_atomic, attributes.min_rnr_timer) = (1, 12);
        attributes.ah_attr = place.address();
        change(&mut attributes, step::RTR)?;
        attributes.state = state::RTS;
        (attributes.timeout, attributes.retry_cnt, attributes.rnr_retry, attributes.max_rd_atomic) = (14, 7, 7, 1);
        change(&mut attributes, step::RTS)
    }

    fn context(&self) -> &Context {
        // SAFETY: the first field of a queue pair is its context, which is open as long as the pair is.
        unsafe { &**self.ends[0].as_ptr().cast::<*mut Context>() }
    }

    /// Waits for the completion of the only request, and returns its status.
    fn completion(&self) -> Result<i32, Failure> {
        let poll = self.context().ops.poll_cq.ok_or(Failure::Broken)?;
        let begun = Instant::now();
        loop {
            // Before the looks: a process may be stopped for long between two of them.
            let is_last = begun.elapsed() >= PATIENCE;
            for _ in 0..LOOKS {
                // SAFETY: all zero is a value of `Wc`, which holds plain numbers.
                let mut done: Wc = unsafe { std::mem::zeroed() };
                // SAFETY: the completion queue is open, and there is room for one completion.
                match unsafe { poll(self.cq.as_ptr(), 1, &mut done) } {
                    0 => std::hint::spin_loop(),
                    1 => return Ok(done.status),
                    _ => return Err(Failure::Broken),
                }
            }
            if is_last {
                return Err(Failure::Silent);
            }
            std::thread::yield_now();
        }
    }

    /// Binds a window to a region of the same domain; unbinds it where there is no length.
    ///
    /// # Safety
    /// The window and the region are those of this domain, and are not ended meanwhile.
    unsafe fn bind(&self, window: NonNull<Mw>, bytes: &Bytes) -> Result<u32, Failure> {
        let bind = self.context().ops.bind_mw.ok_or(Failure::Refused(libc::EOPNOTSUPP))?;
        let mut request = MwBind {
            wr_id: 0,
            send_flags: SIGNALED,
            mr: bytes.region as *mut Mr,
            addr: bytes.address,
            length: bytes.length,
            access: bytes.rights,
        };
        // SAFETY: the end is open; the caller promises the same of window and region.
        checked(unsafe { bind(self.ends[0].as_ptr(), window.as_ptr(), &mut request) }).map_err(Failure::Refused)?;
        match self.completion()? {
            // SAFETY: the caller promises that the window is not ended, so its key can be read.
            status::SUCCESS => Ok(unsafe { (*window.as_ptr()).rkey }),
            _ => Err(Failure::Broken),
        }
    }

    /// Has the first end read, write or add, by a key of the other end's domain. Returns the status of the completion.
    pub(super) fn access(&self, access: Access<'_>) -> Option<i32> {
        let post = self.context().ops.post_send?;
        // SAFETY: all zero is a value of `SendWr`, which holds numbers and pointers that may be null.
        let mut request: SendWr = unsafe { std::mem::zeroed() };
        (request.sg_list, request.num_sge) = (access.own, 1);
        (request.opcode, request.send_flags) = (access.opcode, SIGNALED);
        request.remote_addr = access.address;
        if access.opcode == opcode::FETCH_AND_ADD {
            // There the first operand stands: 1 is added.
            (request.rkey, request.atomic_rkey) = (1, access.rkey);
        } else {
            request.rkey = access.rkey;
        }
        let mut refused = null_mut();
        // SAFETY: the end is open, and the request lives through the call, which copies it.
        (unsafe { post(self.ends[0].as_ptr(), &mut request, &mut refused) } == 0).then(|| self.completion().ok())?
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: all were made by `new`, and no other code knows them.
        unsafe { destroy(self.calls, Some(self.cq), &self.ends) };
    }
}

/// # Safety
/// All are open, and are used no more.
unsafe fn destroy(calls: Calls, cq: Option<NonNull<Opaque>>, ends: &[NonNull<Qp>]) {
    let (Some(destroy_qp), Some(destroy_cq)) = (calls.destroy_qp, calls.destroy_cq) else { return };
    for end in ends {
        // SAFETY: the caller promises that it is open.
        unsafe { destroy_qp(end.as_ptr()) };
    }
    if let Some(cq) = cq {
        // SAFETY: the caller promises that it is open, and its queue pairs are gone.
        unsafe { destroy_cq(cq.as_ptr()) };
    }
}

/// A window of libibverbs'.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle(NonNull<Mw>);

// SAFETY: libibverbs' windows belong to no thread.
unsafe impl Send for Handle {}

/// The windows of a domain, and the pair that binds them, made when it is needed.
pub(super) struct Looped {
    calls: Calls,
    pd: NonNull<Pd>,
    pair: Option<Pair>,
}

// SAFETY: what libibverbs makes belongs to no thread.
unsafe impl Send for Looped {}

impl Looped {
    /// # Safety
    /// The domain is open for as long as this is used, and when it is dropped.
    pub(super) unsafe fn new(calls: Calls, pd: NonNull<Pd>) -> Self {
        Self { calls, pd, pair: None }
    }

    /// Returns the pair, after it was made if there was none. One that cannot be made refuses the call.
    fn pair(&mut self) -> Result<&Pair, Failure> {
        if self.pair.is_none() {
            // SAFETY: `new` requires that the domain is open.
            self.pair = Some(unsafe { Pair::new(self.calls, self.pd) }.map_err(Failure::Refused)?);
        }
        self.pair.as_ref().ok_or(Failure::Broken)
    }

    fn context(&self) -> &Context {
        // SAFETY: `new` requires that the domain is open, so its context is.
        unsafe { &*(*self.pd.as_ptr()).context }
    }
}

impl Device for Looped {
    type Window = Handle;

    fn make(&mut self) -> Result<Handle, i32> {
        let make = self.context().ops.alloc_mw.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: `new` requires that the domain is open for as long as this is used.
        NonNull::new(unsafe { make(self.pd.as_ptr(), TYPE_1) }).map(Handle).ok_or_else(reason)
    }

    fn key(&self, window: Handle) -> u32 {
        // SAFETY: `windows` asks about windows that this has made and not ended.
        unsafe { (*window.0.as_ptr()).rkey }
    }

    fn bind(&mut self, window: Handle, bytes: &Bytes) -> Result<u32, Failure> {
        // SAFETY: `windows` binds windows that this has made and not ended, to regions that a lease keeps.
        unsafe { self.pair()?.bind(window.0, bytes) }
    }

    fn unbind(&mut self, window: Handle, region: usize) -> Result<(), Failure> {
        // The library of rxe looks at the region in any case.
        let nothing = Bytes { region, address: 0, length: 0, rights: 0 };
        // SAFETY: a lease keeps the region until its window is unbound, and `windows` ends the window after that.
        unsafe { self.pair()?.bind(window.0, &nothing) }.map(|_| ())
    }

    fn end(&mut self, window: Handle) -> Result<(), i32> {
        let end = self.context().ops.dealloc_mw.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: `windows` ends each window that `make` returned once, and uses it no more.
        checked(unsafe { end(window.0.as_ptr()) })
    }

    fn tear_down(&mut self) {
        self.pair = None;
    }

    fn abandon(&mut self) {
        std::mem::forget(self.pair.take());
    }
}
