//! Two connected queue pairs of one device in one process: this side's and a peer's, and transfers between them.
//!
//! `MRRC_VERBS_DEVICE` names the device (default: the first that is up), `MRRC_VERBS_ADDRESS` its IP address, which iWARP
//! needs: its queue pairs come by rdma_cm, in a domain of librdmacm's that is borrowed. Where there is no device a test says
//! so in a line and passes, unless `MRRC_VERBS_MUST` is set: then it fails.

#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "pins.rs"]
pub(crate) mod pins;

use mrrc::registrar::verbs::binding as ib;
use mrrc::registrar::verbs::{Domain, MemoryRegion, Transport, Verbs, VerbsError};
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, PAGE, PageRange};
use std::io;
use std::mem::zeroed;
use std::net::Ipv4Addr;
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The status of a transfer that the device did not take: its connection has ended.
pub(crate) const NOT_POSTED: ib::ibv_wc_status::Type = u32::MAX;

/// The status of a transfer without a completion.
pub(crate) const STALLED: ib::ibv_wc_status::Type = u32::MAX - 1;

/// How long a queue pair waits for an answer, as verbs count it: 17 s. Nothing is lost between two of one device. But rxe
/// (Linux 6.1) sends again whatever is under way when this is over since some earlier packet, though answers come, and it
/// happens that it then hears of no transfer any more. At the usual 14 (67 ms) that is many times in a run.
const PATIENCE: u8 = 22;

/// Transfers that may be under way at once.
pub(crate) const DEPTH: usize = 64;

/// `VmPin` is of the whole process, and so is a device's table.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a setting that is not empty.
pub(crate) fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns whether what was said of a transfer is what a peer's refusal of the key makes of it. On iWARP a write is done
/// when it is sent, and a read that is refused ends with the connection.
pub(crate) fn is_refusal(domain: &Domain, reads: bool, said: ib::ibv_wc_status::Type) -> bool {
    match (domain.attributes().transport, reads) {
        (Transport::Iwarp, true) => ![ib::ibv_wc_status::IBV_WC_SUCCESS, STALLED].contains(&said),
        (Transport::Iwarp, false) => true,
        _ => said == ib::ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
    }
}

/// Returns whether the device looks at rights when a peer reads: siw does not (Linux 6.1).
pub(crate) fn guards_reads(domain: &Domain) -> bool {
    let guards = domain.attributes().transport != Transport::Iwarp;
    if !guards {
        println!("not run in part: siw serves reads whatever rights a key has");
    }
    guards
}

/// Says why a test is not run, where it need not be.
pub(crate) fn not_run(why: impl std::fmt::Display) {
    assert!(setting("MRRC_VERBS_MUST").is_none(), "not run, and it must: {why}");
    println!("not run: {why}");
}

/// Returns a domain of the device to test with, or a line that says why not.
pub(crate) fn domain() -> Option<Domain> {
    let builder = Domain::builder();
    let builder = match setting("MRRC_VERBS_DEVICE") {
        Some(name) => builder.device(name),
        None => builder,
    };
    match builder.open() {
        Ok(domain) => Some(domain),
        Err(error @ (VerbsError::NoDevice | VerbsError::NoLibrary)) => {
            not_run(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns a domain and two queue pairs in it, or a line that says why not.
pub(crate) fn pair() -> Option<(Domain, Loopback)> {
    let domain = domain()?;
    if domain.attributes().transport != Transport::Iwarp {
        let pair = Loopback::over(&domain);
        return Some((domain, pair));
    }
    let Some(address) = setting("MRRC_VERBS_ADDRESS") else {
        not_run("iWARP, and MRRC_VERBS_ADDRESS does not say by which IP address it connects");
        return None;
    };
    let address = address.parse().expect("MRRC_VERBS_ADDRESS: an IPv4 address");
    // siw stands still on a new connection, now and then, and takes nothing in: then another one.
    for attempt in 1..=4 {
        match Loopback::by_rdma_cm(address) {
            Some(made) => return Some(made),
            None => println!("connection {attempt} stands still"),
        }
    }
    panic!("four connections in a row stand still");
}

/// The side that posts a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    Us = 0,
    Peer = 1,
}

/// Bytes from one place to another, by an RDMA write or read of one side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) by: By,
    pub(crate) reads: bool,
    /// At the side that posts: address and lkey.
    pub(crate) local: (u64, u32),
    /// At the other side: address and rkey.
    pub(crate) remote: (u64, u32),
    pub(crate) length: u32,
}

/// See the [module](self). For one batch at a time.
pub(crate) struct Loopback {
    completions: *mut ib::ibv_cq,
    pairs: [*mut ib::ibv_qp; 2],
    /// The peer's, this side's, and the listener, where rdma_cm connected them.
    ids: Vec<*mut ib::rdma_cm_id>,
    one: Mutex<()>,
    /// Gone last.
    domain: Domain,
}

// SAFETY: calls on queue pairs may be made from any thread, and the mutex makes them one at a time.
unsafe impl Send for Loopback {}
// SAFETY: libibverbs' objects belong to no thread, and the rest is behind a lock.
unsafe impl Sync for Loopback {}

impl Loopback {
    /// Queue pairs that are brought up by hand.
    pub(crate) fn over(domain: &Domain) -> Self {
        let raw = domain.protection_domain().cast::<ib::ibv_pd>().as_ptr();
        // SAFETY: the domain is open, and structures are those that the calls read and fill.
        unsafe {
            let context = domain.context().cast().as_ptr();
            let completions = completions(context);
            let pairs = [(); 2].map(|()| {
                let pair = ib::ibv_create_qp(raw, &mut wishes(completions));
                assert!(!pair.is_null(), "ibv_create_qp: {}", io::Error::last_os_error());
                pair
            });
            connect(context, pairs[0], (*pairs[1]).qp_num);
            connect(context, pairs[1], (*pairs[0]).qp_num);
            Self { completions, pairs, ids: Vec::new(), one: Mutex::new(()), domain: domain.clone() }
        }
    }

    /// Queue pairs that rdma_cm connects, from an address of this machine to itself, and librdmacm's domain.
    /// None if nothing arrives.
    pub(crate) fn by_rdma_cm(address: Ipv4Addr) -> Option<(Domain, Self)> {
        let (tcp, before) = (ib::rdma_port_space::RDMA_PS_TCP, pins::pinned());
        let done = |what: &str, result: i32| assert_eq!(result, 0, "{what}: {}", io::Error::last_os_error());
        // SAFETY: ids live until they are destroyed in `drop`, and structures are those that the calls read.
        unsafe {
            let [mut listener, mut us] = [null_mut::<ib::rdma_cm_id>(); 2];
            let mut at: libc::sockaddr_in = zeroed();
            at.sin_family = libc::AF_INET as u16;
            at.sin_addr.s_addr = u32::from(address).to_be();
            done("rdma_create_id", ib::rdma_create_id(null_mut(), &mut listener, null_mut(), tcp));
            done("rdma_bind_addr", ib::rdma_bind_addr(listener, (&raw mut at).cast()));
            done("rdma_listen", ib::rdma_listen(listener, 1));
            // Not by `rdma_get_src_port`, which one of the bindings lacks.
            at.sin_port = (*(&raw const (*listener).route.addr).cast::<libc::sockaddr_in>()).sin_port;
            done("rdma_create_id", ib::rdma_create_id(null_mut(), &mut us, null_mut(), tcp));
            done("rdma_resolve_addr", ib::rdma_resolve_addr(us, null_mut(), (&raw mut at).cast(), 5000));
            done("rdma_resolve_route", ib::rdma_resolve_route(us, 5000));
            let completions = completions((*us).verbs);
            done("rdma_create_qp", ib::rdma_create_qp(us, (*us).pd, &mut wishes(completions)));
            let mut parameters: ib::rdma_conn_param = zeroed();
            (parameters.responder_resources, parameters.initiator_depth) = (4, 4);
            (parameters.retry_count, parameters.rnr_retry_count) = (7, 7);
            let (listening, parameters) = (listener as usize, &mut parameters);
            let completing = completions as usize;
            let peer = std::thread::scope(|threads| {
                let accepting = threads.spawn(move || {
                    let mut peer = null_mut::<ib::rdma_cm_id>();
                    done("rdma_get_request", ib::rdma_get_request(listening as *mut _, &mut peer));
                    let mut wishes = wishes(completing as *mut _);
                    done("rdma_create_qp", ib::rdma_create_qp(peer, (*peer).pd, &mut wishes));
                    let mut parameters: ib::rdma_conn_param = zeroed();
                    (parameters.responder_resources, parameters.initiator_depth) = (4, 4);
                    done("rdma_accept", ib::rdma_accept(peer, &mut parameters));
                    peer as usize
                });
                done("rdma_connect", ib::rdma_connect(us, parameters));
                accepting.join().unwrap() as *mut ib::rdma_cm_id
            });
            assert_eq!((*us).pd, (*peer).pd, "librdmacm has one domain for a device");
            let domain = Domain::borrow(NonNull::new((*us).pd).unwrap().cast()).unwrap();
            let (pairs, ids) = ([(*us).qp, (*peer).qp], vec![peer, us, listener]);
            let pair = Self { completions, pairs, ids, one: Mutex::new(()), domain: domain.clone() };
            // iWARP: the accepting side speaks only after it received.
            let (mut ours, theirs) = (Memory::new(1), Memory::new(1));
            let table = Verbs::new(&domain).unwrap();
            ours.fill(b'!');
            let (a, b) = (register(&table, ours.range()), register(&table, theirs.range()));
            let spoke = pair.one(By::Us, false, (&ours, &a), (&theirs, &b), 8);
            let heard = pair.one(By::Peer, true, (&theirs, &b), (&ours, &a), 8);
            let stands = theirs.copy()[0] != b'!' || [spoke, heard].contains(&Err(STALLED));
            deregister(&table, vec![a, b]);
            // siw unpins a little later.
            let end = Instant::now() + Duration::from_secs(5);
            while pins::pinned() > before && !stands && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(stands || [spoke, heard] == [Ok(()); 2], "{spoke:?}, {heard:?}");
            (!stands).then_some((domain, pair))
        }
    }

    /// Runs transfers to their ends and says what became of each: 0, or the status of its completion.
    ///
    /// # Safety
    /// Regions of which keys are named stay registered until this returns, and no references to their memory exist.
    pub(crate) unsafe fn run(&self, transfers: &[Transfer]) -> Vec<ib::ibv_wc_status::Type> {
        assert!(transfers.len() <= DEPTH);
        let _one = self.one.lock().unwrap_or_else(PoisonError::into_inner);
        // siw stands still, now and then, when both sides have several reads under way (Linux 6.1).
        let at_once = if self.domain.attributes().transport == Transport::Iwarp { 1 } else { DEPTH };
        // SAFETY: `run` requires of its caller all that `run_at_once` does.
        transfers.chunks(at_once).flat_map(|some| unsafe { self.run_at_once(some) }).collect()
    }

    /// # Safety
    /// As [`Loopback::run`], whose lock is held.
    unsafe fn run_at_once(&self, transfers: &[Transfer]) -> Vec<ib::ibv_wc_status::Type> {
        let (mut results, mut left) = (vec![NOT_POSTED; transfers.len()], 0);
        for (number, transfer) in transfers.iter().enumerate() {
            let (address, lkey) = transfer.local;
            let mut part = ib::ibv_sge { addr: address, length: transfer.length, lkey };
            // SAFETY: the structures live through the call, which copies them.
            unsafe {
                let mut request: ib::ibv_send_wr = zeroed();
                request.wr_id = number as u64;
                (request.sg_list, request.num_sge) = (&mut part, 1);
                let [write, read] = [ib::ibv_wr_opcode::IBV_WR_RDMA_WRITE, ib::ibv_wr_opcode::IBV_WR_RDMA_READ];
                request.opcode = if transfer.reads { read } else { write };
                request.send_flags = ib::ibv_send_flags::IBV_SEND_SIGNALED.0;
                (request.wr.rdma.remote_addr, request.wr.rdma.rkey) = transfer.remote;
                let failed = ib::ibv_post_send(self.pairs[transfer.by as usize], &mut request, &mut null_mut());
                left += usize::from(failed == 0);
            }
        }
        let iwarp = self.domain.attributes().transport == Transport::Iwarp;
        let (mut polls, end) = (0_u32, Instant::now() + Duration::from_secs(if iwarp { 5 } else { 60 }));
        while left > 0 {
            // SAFETY: a structure that the call fills.
            let completion = unsafe {
                let mut completion: ib::ibv_wc = zeroed();
                (ib::ibv_poll_cq(self.completions, 1, &mut completion) == 1).then_some(completion)
            };
            match completion {
                Some(completion) => {
                    results[completion.wr_id as usize] = completion.status;
                    left -= 1;
                }
                None => {
                    if Instant::now() >= end {
                        assert!(iwarp, "no completion for a minute: {left} of {} left", transfers.len());
                        println!("{left} of {} transfers stand still", transfers.len());
                        results.iter_mut().filter(|result| **result == NOT_POSTED).for_each(|result| *result = STALLED);
                        break;
                    }
                    // A device in software needs this processor.
                    polls += 1;
                    if polls % 32 == 0 {
                        std::thread::sleep(Duration::from_micros(20))
                    } else {
                        std::thread::yield_now()
                    }
                }
            }
        }
        results
    }

    /// In a forked child, which does not own it: nothing is destroyed.
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }

    /// One transfer between the beginnings of two regions of the test's own.
    pub(crate) fn one(
        &self,
        by: By,
        reads: bool,
        (local, lkey): (&Memory, &MemoryRegion),
        (remote, rkey): (&Memory, &MemoryRegion),
        length: u32,
    ) -> Result<(), ib::ibv_wc_status::Type> {
        let (local, remote) = ((local.address as u64, lkey.lkey()), (remote.address as u64, rkey.rkey()));
        // SAFETY: both regions are borrowed, and so is the memory.
        let said = unsafe { self.run(&[Transfer { by, reads, local, remote, length }]) }[0];
        if !reads && self.domain.attributes().transport == Transport::Iwarp {
            // A write is done when it is sent; an empty read behind it, when it has arrived. SAFETY: a transfer of no
            // bytes accesses no memory.
            unsafe { self.run(&[Transfer { by, reads: true, local, remote, length: 0 }]) };
        }
        if said == 0 { Ok(()) } else { Err(said) }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        // SAFETY: all were made here and are not used any more; the completion queue goes after the queue pairs, and before
        // the ids, of which the last closes the context.
        unsafe {
            for &id in &self.ids {
                if !(*id).qp.is_null() {
                    ib::rdma_disconnect(id);
                    ib::rdma_destroy_qp(id);
                }
            }
            if self.ids.is_empty() {
                self.pairs.iter().for_each(|&pair| _ = ib::ibv_destroy_qp(pair));
            }
            ib::ibv_destroy_cq(self.completions);
            for &id in &self.ids {
                ib::rdma_destroy_id(id);
            }
        }
    }
}

/// # Safety
/// The context is open.
unsafe fn completions(context: *mut ib::ibv_context) -> *mut ib::ibv_cq {
    // SAFETY: the caller promises an open context; null is no channel.
    let made = unsafe { ib::ibv_create_cq(context, 4 * DEPTH as i32, null_mut(), null_mut(), 0) };
    assert!(!made.is_null(), "ibv_create_cq: {}", io::Error::last_os_error());
    made
}

fn wishes(completions: *mut ib::ibv_cq) -> ib::ibv_qp_init_attr {
    // SAFETY: numbers and pointers, which may be null.
    let mut wishes: ib::ibv_qp_init_attr = unsafe { zeroed() };
    (wishes.send_cq, wishes.recv_cq) = (completions, completions);
    wishes.qp_type = ib::ibv_qp_type::IBV_QPT_RC;
    (wishes.cap.max_send_wr, wishes.cap.max_recv_wr) = (DEPTH as u32, 1);
    (wishes.cap.max_send_sge, wishes.cap.max_recv_sge) = (1, 1);
    wishes
}

/// From the beginning to ready to send, to a queue pair of the same port.
///
/// # Safety
/// The context and the queue pair are its own, and open.
unsafe fn connect(context: *mut ib::ibv_context, pair: *mut ib::ibv_qp, peer: u32) {
    use ib::ibv_qp_attr_mask as mask;
    // SAFETY: the caller promises an open device; the structures live across the calls that read and fill them.
    unsafe {
        let mut gid: ib::ibv_gid = zeroed();
        // The one of an IPv4 address, if it has one: other addresses can still be tentative.
        let mapped = (0..16).find(|&index| {
            ib::ibv_query_gid(context, 1, index, &mut gid) == 0
                && gid.raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]
        });
        let index = mapped.unwrap_or(0);
        assert_eq!(ib::ibv_query_gid(context, 1, index, &mut gid), 0, "ibv_query_gid");
        let step = |wishes: &mut ib::ibv_qp_attr, set: ib::ibv_qp_attr_mask, name: &str| {
            let failed = ib::ibv_modify_qp(pair, wishes, set.0 as i32);
            assert_eq!(failed, 0, "ibv_modify_qp to {name}: {}", io::Error::from_raw_os_error(failed));
        };
        let mut wishes: ib::ibv_qp_attr = zeroed();
        (wishes.qp_state, wishes.port_num) = (ib::ibv_qp_state::IBV_QPS_INIT, 1);
        use ib::ibv_access_flags as may;
        let access = may::IBV_ACCESS_LOCAL_WRITE | may::IBV_ACCESS_REMOTE_WRITE | may::IBV_ACCESS_REMOTE_READ;
        wishes.qp_access_flags = access.0 as _;
        let initial = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        step(&mut wishes, initial, "INIT");

        let mut wishes: ib::ibv_qp_attr = zeroed();
        (wishes.qp_state, wishes.path_mtu) = (ib::ibv_qp_state::IBV_QPS_RTR, ib::ibv_mtu::IBV_MTU_1024);
        (wishes.dest_qp_num, wishes.max_dest_rd_atomic, wishes.min_rnr_timer) = (peer, 4, 12);
        (wishes.ah_attr.is_global, wishes.ah_attr.port_num) = (1, 1);
        wishes.ah_attr.grh.dgid = gid;
        (wishes.ah_attr.grh.sgid_index, wishes.ah_attr.grh.hop_limit) = (index as u8, 1);
        let receiving = mask::IBV_QP_STATE | mask::IBV_QP_AV | mask::IBV_QP_PATH_MTU | mask::IBV_QP_DEST_QPN;
        let receiving = receiving | mask::IBV_QP_RQ_PSN | mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
        step(&mut wishes, receiving, "RTR");

        let mut wishes: ib::ibv_qp_attr = zeroed();
        (wishes.qp_state, wishes.timeout) = (ib::ibv_qp_state::IBV_QPS_RTS, PATIENCE);
        // Of retries, rxe takes 7 for any number.
        (wishes.retry_cnt, wishes.rnr_retry, wishes.max_rd_atomic) = (6, 7, 4);
        let sending = mask::IBV_QP_STATE | mask::IBV_QP_TIMEOUT | mask::IBV_QP_RETRY_CNT | mask::IBV_QP_RNR_RETRY;
        step(&mut wishes, sending | mask::IBV_QP_SQ_PSN | mask::IBV_QP_MAX_QP_RD_ATOMIC, "RTS");
    }
}

/// The rights that tests ask for: those of the loopback's transfers, on iWARP too.
pub(crate) const RIGHTS: Access = Access::LOCAL.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

pub(crate) fn register(table: &Verbs, range: PageRange) -> MemoryRegion {
    table.register(range, RIGHTS).unwrap()
}

/// Returns a registration as the cache would hand it back.
pub(crate) fn registered(registration: MemoryRegion) -> Registered<MemoryRegion> {
    Registered { range: registration.range(), access: RIGHTS, registration }
}

#[track_caller]
pub(crate) fn deregister(table: &Verbs, batch: Vec<MemoryRegion>) {
    let mut batch = batch.into_iter().map(registered).collect();
    table.deregister(&mut batch).unwrap();
    assert!(batch.is_empty());
}

/// Pages of this process, small ones: a huge page would count as a whole.
pub(crate) struct Memory {
    pub(crate) address: *mut u8,
    pub(crate) pages: u64,
}

impl Memory {
    pub(crate) fn new(pages: u64) -> Self {
        Self::mapped(null_mut(), pages, libc::PROT_READ | libc::PROT_WRITE, 0)
    }

    pub(crate) fn read_only(pages: u64) -> Self {
        Self::mapped(null_mut(), pages, libc::PROT_READ, 0)
    }

    /// One huge page, if the system has one, at an address of which it is a multiple and where nothing is.
    pub(crate) fn huge_page_at(address: usize) -> Self {
        let fixed = libc::MAP_FIXED_NOREPLACE;
        let memory = Self::mapped(address as *mut u8, 512, libc::PROT_READ | libc::PROT_WRITE, fixed);
        // SAFETY: advice on the mapping just made; it may be unknown to the kernel.
        unsafe { libc::madvise(memory.address.cast(), memory.bytes(), libc::MADV_HUGEPAGE) };
        memory
    }

    fn mapped(address: *mut u8, pages: u64, protection: i32, fixed: i32) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
        let bytes = (pages * PAGE) as usize;
        // SAFETY: a new mapping, where none is or over one that the caller gives up.
        let mapped = unsafe { libc::mmap(address.cast(), bytes, protection, flags, -1, 0) };
        assert_ne!(mapped, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        // SAFETY: advice on the mapping just made; it may be unknown to the kernel.
        unsafe { libc::madvise(mapped, bytes, libc::MADV_NOHUGEPAGE) };
        Self { address: mapped.cast(), pages }
    }

    pub(crate) fn range(&self) -> PageRange {
        PageRange::of_bytes(self.address as u64, self.pages * PAGE).unwrap()
    }

    /// Page `page` alone.
    pub(crate) fn page(&self, page: u64) -> PageRange {
        PageRange::new(self.range().start() + page, 1).unwrap()
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.pages * PAGE) as usize
    }

    pub(crate) fn fill(&mut self, byte: u8) {
        // SAFETY: the mapping is ours alone and writable; no transfer is under way in any caller.
        unsafe { self.address.write_bytes(byte, self.bytes()) };
    }

    pub(crate) fn copy(&self) -> Vec<u8> {
        let mut copy = vec![0; self.bytes()];
        // SAFETY: the mapping is readable, and no transfer is under way in any caller.
        unsafe { self.address.copy_to_nonoverlapping(copy.as_mut_ptr(), copy.len()) };
        copy
    }

    /// Other pages at the same address, in one step: between two, another thread's memory might come there.
    pub(crate) fn renew(self) -> Self {
        let old = std::mem::ManuallyDrop::new(self);
        Self::mapped(old.address, old.pages, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its address is not used any longer.
        unsafe { libc::munmap(self.address.cast(), self.bytes()) };
    }
}
