//! Two processes: one sends messages out of buffers of its own, the other receives them into buffers of its own. Each leases the
//! memory of a work request from a cache, for as long as the request is under way. So a buffer is registered the first time, and no
//! other time. `mrrc/c/examples/pair.c` is the same in C, and the two understand each other.
//!
//! ```text
//! cargo run -p mrrc --features verbs --example pair -- receive 10.0.0.1:7175
//! cargo run -p mrrc --features verbs --example pair -- send 10.0.0.1:7175 1000
//! ```
//!
//! The address is that of an RDMA device's network interface. Any Linux can have such a device in software:
//! `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`.
#![expect(unsafe_code, reason = "queue pairs, and memory that is lent to a device")]

use mrrc::registrar::verbs::{Domain, Verbs, binding as ib};
use mrrc::{Access, Cache, Lease, PAGE};
use std::error::Error;
use std::io;
use std::mem::zeroed;
use std::net::SocketAddrV4;
use std::process::ExitCode;
use std::ptr::{NonNull, null_mut};
use std::time::{Duration, Instant};

const BUFFERS: usize = 8;
const BYTES: usize = 64 << 10;
const SEGMENTS: usize = 4;
/// How long a peer may be silent.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long an address may take to be found, in milliseconds.
const RESOLVE: i32 = 5000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["receive", at] => parsed(at).and_then(receive),
        ["send", to] => parsed(to).and_then(|to| send(to, 1000)),
        ["send", to, messages] => parsed(to).and_then(|to| send(to, parsed(messages)?)),
        _ => Err("usage: pair receive ADDRESS:PORT | send ADDRESS:PORT [MESSAGES]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parsed<T: std::str::FromStr<Err: Error + 'static>>(text: &str) -> Outcome<T> {
    text.parse().map_err(|error: T::Err| format!("{text}: {error}").into())
}

fn receive(at: SocketAddrV4) -> Outcome<()> {
    let mut memory = memory();
    let (mut buffers, answer) = divide(&mut memory);
    let (listener, mut address) = (Id::new()?, raw(at));
    // SAFETY: the id is open, and the address lives through the call.
    done("rdma_bind_addr", unsafe { ib::rdma_bind_addr(listener.0, (&raw mut address).cast()) })?;
    // SAFETY: the id is open, and this thread alone has it.
    done("rdma_listen", unsafe { ib::rdma_listen(listener.0, 1) })?;
    println!("listening on {at}");
    let mut peer = null_mut();
    // SAFETY: the id is open; the call makes another one.
    done("rdma_get_request", unsafe { ib::rdma_get_request(listener.0, &mut peer) })?;
    let mut connection = Connection::over(Id(peer))?;
    // Before the connection: the first message may come with it.
    let mut received = connection.post_receive(buffers[0])?;
    // SAFETY: all of it may be zero, and it lives through the call.
    done("rdma_accept", unsafe { ib::rdma_accept(connection.id.0, &mut zeroed()) })?;
    connection.is_connected = true;
    let (mut number, mut messages) = (0, 1);
    while number < messages {
        let bytes = connection.complete(connection.receives, received)?;
        let buffer = &*buffers[number as usize % BUFFERS];
        let header = [&buffer[..4], &buffer[4..8]].map(|part| u32::from_ne_bytes(part.try_into().expect("four bytes")));
        messages = header[1];
        if bytes != BYTES || header[0] != number || buffer[8..].iter().any(|&byte| byte != number as u8) {
            return Err(format!(
                "message {number}: {bytes} bytes came, of message {}, or not all of its own",
                header[0]
            )
            .into());
        }
        answer.copy_from_slice(&number.to_ne_bytes());
        number += 1;
        // The peer sends the next message when it has the answer.
        let next =
            (number < messages).then(|| connection.post_receive(buffers[number as usize % BUFFERS])).transpose()?;
        let sent = connection.post_send(answer)?;
        connection.complete(connection.sends, sent)?;
        let Some(next) = next else { break };
        received = next;
    }
    connection.print("received", messages);
    Ok(())
}

fn send(to: SocketAddrV4, messages: u32) -> Outcome<()> {
    let mut memory = memory();
    let (mut buffers, answer) = divide(&mut memory);
    let (id, mut address) = (Id::new()?, raw(to));
    // SAFETY: the id is open, and the address lives through the call.
    done("rdma_resolve_addr", unsafe { ib::rdma_resolve_addr(id.0, null_mut(), (&raw mut address).cast(), RESOLVE) })?;
    // SAFETY: the id is open, and this thread alone has it.
    done("rdma_resolve_route", unsafe { ib::rdma_resolve_route(id.0, RESOLVE) })?;
    let mut connection = Connection::over(id)?;
    // SAFETY: numbers and pointers, all of which may be zero.
    let mut parameters: ib::rdma_conn_param = unsafe { zeroed() };
    (parameters.retry_count, parameters.rnr_retry_count) = (7, 7);
    // SAFETY: the id is open, and the parameters live through the call.
    done("rdma_connect: does the other process listen?", unsafe {
        ib::rdma_connect(connection.id.0, &mut parameters)
    })?;
    connection.is_connected = true;
    for number in 0..messages {
        let buffer = &mut *buffers[number as usize % BUFFERS];
        buffer.fill(number as u8);
        buffer[..4].copy_from_slice(&number.to_ne_bytes());
        buffer[4..8].copy_from_slice(&messages.to_ne_bytes());
        let received = connection.post_receive(answer)?;
        let sent = connection.post_send(buffer)?;
        connection.complete(connection.sends, sent)?;
        connection.complete(connection.receives, received)?;
        if answer != number.to_ne_bytes() {
            return Err(format!("message {number}: the answer {answer:?} is to another").into());
        }
    }
    connection.print("sent", messages);
    Ok(())
}

/// Returns memory for all buffers, which lives longer than the connection: a device may write until that is gone.
fn memory() -> Vec<u8> {
    vec![0; (BUFFERS + 1) * BYTES + PAGE as usize]
}

/// Returns the buffers of messages and that of answers. Each begins a page, so no two of them share one.
fn divide(memory: &mut [u8]) -> (Vec<&mut [u8]>, &mut [u8]) {
    let begin = memory.as_ptr().align_offset(PAGE as usize);
    let (answer, rest) = memory[begin..].split_at_mut(BYTES);
    (rest.chunks_exact_mut(BYTES).take(BUFFERS).collect(), &mut answer[..4])
}

/// A queue pair that rdma_cm connects, and a cache over its protection domain.
struct Connection {
    cache: Option<Cache<Verbs>>,
    sends: *mut ib::ibv_cq,
    receives: *mut ib::ibv_cq,
    /// An id that was never connected has nothing to disconnect, and would wait for that.
    is_connected: bool,
    id: Id,
}

impl Connection {
    fn over(id: Id) -> Outcome<Self> {
        // SAFETY: the id is open and has a device; structures live through the calls. The domain is librdmacm's, and is open as
        // long as the id: `drop` ends the cache first.
        unsafe {
            let [sends, receives] = [(); 2].map(|()| ib::ibv_create_cq((*id.0).verbs, 4, null_mut(), null_mut(), 0));
            let mut made = Self { cache: None, sends, receives, is_connected: false, id };
            if sends.is_null() || receives.is_null() {
                return Err(format!("ibv_create_cq: {}", io::Error::last_os_error()).into());
            }
            let mut wishes: ib::ibv_qp_init_attr = zeroed();
            (wishes.send_cq, wishes.recv_cq, wishes.qp_type) = (sends, receives, ib::ibv_qp_type::IBV_QPT_RC);
            (wishes.cap.max_send_wr, wishes.cap.max_recv_wr) = (2, 2);
            (wishes.cap.max_send_sge, wishes.cap.max_recv_sge) = (SEGMENTS as u32, SEGMENTS as u32);
            let domain = NonNull::new((*made.id.0).pd).ok_or("rdma_cm has no protection domain")?;
            done("rdma_create_qp", ib::rdma_create_qp(made.id.0, domain.as_ptr(), &mut wishes))?;
            let domain = Domain::borrow(domain.cast())?;
            made.cache = Some(Cache::builder(Verbs::new(&domain)?).max_segments(SEGMENTS).build()?);
            Ok(made)
        }
    }

    fn cache(&self) -> &Cache<Verbs> {
        self.cache.as_ref().expect("it is there from `over` to `drop`")
    }

    /// Leases a buffer, and lists its segments: one for each region that it is in.
    fn lease(&self, buffer: &[u8], access: Access) -> Outcome<(Lease<Verbs>, Vec<ib::ibv_sge>)> {
        // SAFETY: `send` and `receive` keep their buffers until the lease's work request is done, and use none before.
        let lease = unsafe { self.cache().acquire(buffer.as_ptr(), buffer.len(), access) }?;
        let entry =
            |address: *const u8, length: usize, lkey| ib::ibv_sge { addr: address as u64, length: length as u32, lkey };
        let list = lease.segments().map(|part| entry(part.address(), part.len(), part.registration().lkey())).collect();
        Ok((lease, list))
    }

    fn post_send(&self, buffer: &[u8]) -> Outcome<Lease<Verbs>> {
        let (lease, mut list) = self.lease(buffer, Access::LOCAL_READ)?;
        // SAFETY: the structures live through the call, which copies them. The lease keeps the keys good.
        let failed = unsafe {
            let mut work: ib::ibv_send_wr = zeroed();
            (work.sg_list, work.num_sge) = (list.as_mut_ptr(), list.len() as i32);
            (work.opcode, work.send_flags) = (ib::ibv_wr_opcode::IBV_WR_SEND, ib::ibv_send_flags::IBV_SEND_SIGNALED.0);
            ib::ibv_post_send((*self.id.0).qp, &mut work, &mut null_mut())
        };
        posted("ibv_post_send", failed, lease)
    }

    fn post_receive(&self, buffer: &mut [u8]) -> Outcome<Lease<Verbs>> {
        let (lease, mut list) = self.lease(buffer, Access::LOCAL)?;
        // SAFETY: the structures live through the call, which copies them. The lease keeps the keys good.
        let failed = unsafe {
            let mut work: ib::ibv_recv_wr = zeroed();
            (work.sg_list, work.num_sge) = (list.as_mut_ptr(), list.len() as i32);
            ib::ibv_post_recv((*self.id.0).qp, &mut work, &mut null_mut())
        };
        posted("ibv_post_recv", failed, lease)
    }

    /// Waits until the only work request of a queue is done, and ends the lease of its memory. Returns how many bytes came.
    fn complete(&self, queue: *mut ib::ibv_cq, lease: Lease<Verbs>) -> Outcome<usize> {
        let end = Instant::now() + PATIENCE;
        loop {
            // SAFETY: the queue is open; the call fills the structure.
            let (polled, completion) = unsafe {
                let mut completion: ib::ibv_wc = zeroed();
                (ib::ibv_poll_cq(queue, 1, &mut completion), completion)
            };
            match polled {
                0 if Instant::now() < end => std::thread::yield_now(),
                0 => return Err(format!("no answer in {} s", PATIENCE.as_secs()).into()),
                1 if completion.status == ib::ibv_wc_status::IBV_WC_SUCCESS => {
                    // The memory stays registered, and may be evicted from now on.
                    drop(lease);
                    return Ok(completion.byte_len as usize);
                }
                _ => return Err(format!("the transfer failed: status {}", completion.status).into()),
            }
        }
    }

    fn print(&self, did: &str, messages: u32) {
        let counters = self.cache().counters();
        println!(
            "{did} {messages} messages of {BYTES} bytes: {} registrations, {} hits",
            counters.attempts,
            counters.decisions.hits()
        );
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: all were made in `over`, and nothing uses them any more. The queue pair goes first, so no device has the memory of
        // a request that was not completed; the cache goes before the domain, which goes with the id.
        unsafe {
            if self.is_connected {
                ib::rdma_disconnect(self.id.0);
            }
            if !(*self.id.0).qp.is_null() {
                ib::rdma_destroy_qp(self.id.0);
            }
            self.cache = None;
            for queue in [self.sends, self.receives] {
                if !queue.is_null() {
                    ib::ibv_destroy_cq(queue);
                }
            }
        }
    }
}

/// An id of rdma_cm: a socket, so to say. Its calls wait until they are done.
struct Id(*mut ib::rdma_cm_id);

impl Id {
    fn new() -> Outcome<Self> {
        let mut id = null_mut();
        // SAFETY: the call makes an id, and null is no channel of events.
        let made = unsafe { ib::rdma_create_id(null_mut(), &mut id, null_mut(), ib::rdma_port_space::RDMA_PS_TCP) };
        done("rdma_create_id: is there an RDMA device? `rdma link` lists them", made)?;
        Ok(Self(id))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: it is open, and its queue pair is gone.
        unsafe { ib::rdma_destroy_id(self.0) };
    }
}

fn raw(address: SocketAddrV4) -> libc::sockaddr_in {
    // SAFETY: numbers, all of which may be zero.
    let mut raw: libc::sockaddr_in = unsafe { zeroed() };
    (raw.sin_family, raw.sin_port) = (libc::AF_INET as u16, address.port().to_be());
    raw.sin_addr.s_addr = u32::from(*address.ip()).to_be();
    raw
}

fn done(what: &str, returned: i32) -> Outcome<()> {
    if returned == 0 { Ok(()) } else { Err(format!("{what}: {}", io::Error::last_os_error()).into()) }
}

fn posted(what: &str, failed: i32, lease: Lease<Verbs>) -> Outcome<Lease<Verbs>> {
    if failed == 0 { Ok(lease) } else { Err(format!("{what}: {}", io::Error::from_raw_os_error(failed)).into()) }
}
