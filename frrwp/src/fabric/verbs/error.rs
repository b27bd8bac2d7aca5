//! Errors of devices and connections, and their remedies.

use mrrc::registrar::verbs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Why there is no domain, no listener, or no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The address is none.
    #[error("`{text}` is no verbs address: write verbs:HOST:PORT, such as verbs:10.0.0.1:7471 or verbs:[fe80::1]:7471")]
    Address {
        /// The given text.
        text: String,
    },
    /// Datagrams cannot be sent to the address.
    #[error("`{text}` is no address of datagrams over verbs: write verbs-ud:HOST:PORT, such as verbs-ud:10.0.0.1:7471")]
    DatagramAddress {
        /// The given text.
        text: String,
    },
    /// The device has no datagrams.
    #[error("{address}: the device {device:?} is one of iWARP, which has no datagrams: use udp:HOST:PORT")]
    NoDatagrams {
        /// The address.
        address: String,
        /// The device.
        device: String,
    },
    /// An address that stands for all of a machine's.
    #[error("listen at {address}: replies leave from one address: name the address that clients use")]
    Wildcard {
        /// The address.
        address: String,
    },
    /// A number of threads that ids cannot tell apart.
    #[error("listen at {address}: {threads} threads: use 1 to 256")]
    Threads {
        /// The address.
        address: String,
        /// Threads.
        threads: usize,
    },
    /// The answer about where datagrams go is not in our format.
    #[error(
        "{address}: another program listens at this port: see that the server listens on verbs-ud: there, in this version"
    )]
    NotOurServer {
        /// The address.
        address: String,
    },
    /// The server's datagrams are longer than this side's port takes.
    #[error(
        "{address}: the server sends datagrams of {theirs} bytes, and this machine's port takes {own}: give both ports the \
         same MTU (`ip link set mtu`)"
    )]
    Mtu {
        /// The address.
        address: String,
        /// The bytes of the server's datagrams.
        theirs: usize,
        /// The bytes of this side's.
        own: usize,
    },
    /// The host has no address.
    #[error("look up the host of {address}: {error}: write its IP address")]
    Resolve {
        /// The address.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// The fault of the device.
    #[error(transparent)]
    Device(#[from] verbs::VerbsError),
    /// librdmacm could not be opened.
    #[error("make connections over verbs: no librdmacm.so.1 on this system: install it (Debian: librdmacm1)")]
    NoLibrary,
    /// The kernel's connection manager cannot be reached.
    #[error(
        "make connections over verbs: {}: {source}: the kernel's connection manager (`modprobe rdma_ucm`) is reached by this \
         file: let this process read and write it: udev's rules do (Debian: rdma-core), and a container needs \
         `--device /dev/infiniband`", .file.display()
    )]
    Manager {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No RDMA device leads there.
    #[error(
        "{address}: {what}: no RDMA device leads there: give the interface that `ip route get` names for it a device, which \
         `rdma link show` lists (in software: \
         `rdma link add rxe0 type rxe netdev eth0`)"
    )]
    NoWay {
        /// The address.
        address: String,
        /// The operation that failed.
        what: &'static str,
    },
    /// Another device leads there.
    #[error(
        "{address}: the device {reached:?} leads there, and this domain is of {own:?}: open one for the address \
         (VerbsDomain::reaching)"
    )]
    OtherDevice {
        /// The address.
        address: String,
        /// The device that does.
        reached: String,
        /// The domain's.
        own: String,
    },
    /// Nothing answers there at all.
    #[error(
        "{address}: {what}: {error}; see that the host is up, that it is in the same network or a route leads to it, and \
         that it has an RDMA device of the same kind"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The port is taken.
    #[error("{address}: the port is in use: stop its listener, or choose another port, or 0 for a free one")]
    PortInUse {
        /// The address.
        address: String,
    },
    /// No interface of this machine has the address.
    #[error(
        "{address}: no interface of this machine has that address: `ip address` lists them; 0.0.0.0 is all of them"
    )]
    NotHere {
        /// The address.
        address: String,
    },
    /// There is no listener.
    #[error("{address}: refused: start the server, and see that it listens on this address and port")]
    Refused {
        /// The address.
        address: String,
    },
    /// The peer does not want this connection.
    #[error("{address}: the peer rejects the connection: see its log")]
    Rejected {
        /// The address.
        address: String,
    },
    /// The peer did not answer in time.
    #[error(
        "{doing} {address}: no {what} within {} ms: see that the host is up, that no firewall filters RDMA (RoCE is UDP port \
         4791), and that the server accepts", .after.as_millis()
    )]
    TimedOut {
        /// The operation.
        doing: &'static str,
        /// The address.
        address: String,
        /// The missing part.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The connection ended before it was set up.
    #[error("{address}: the connection ended before it was set up: the peer has gone")]
    Hung {
        /// The address.
        address: String,
    },
    /// This side did not connect: it was connected to.
    #[error("the peer {} had connected, and has to connect again: this side does not know where it can be reached", .peer.map_or_else(String::new, |peer| peer.to_string()))]
    NotOurs {
        /// The peer's address.
        peer: Option<SocketAddr>,
    },
    /// The listener has no descriptors left. It evicts half-open connections, and goes on. Reported once for each time of want.
    #[error(
        "accept at {address}: no descriptors are left: raise the limit on open files (ulimit -n); the listener goes on"
    )]
    Descriptors {
        /// The address.
        address: String,
    },
    /// Anything else.
    #[error("{address}: {what}: {error}{}", remedy(.error))]
    System {
        /// The address.
        address: String,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            ": out of memory, out of the device's table, or over the limit of locked memory (`ulimit -l`, RLIMIT_MEMLOCK)"
        }
        Some(libc::EMFILE | libc::ENFILE) => ": too many open files (`ulimit -n`)",
        Some(libc::EINVAL) => ": the device does not take what was asked for: lower VerbsOptions::depth or ::reads",
        _ => "",
    }
}

/// Why a connection ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsEnd {
    /// This side wanted it.
    #[error("this side disconnected")]
    Disconnected,
    /// The peer closed the connection, or its process ended.
    #[error("the peer closed the connection, or its process ended (or, over iWARP, its device refused a key)")]
    Closed,
    /// The peer's device refused a key.
    #[error(
        "the peer's device refused the {operation} of {length} bytes at {address:#x} by key {key:#x}: the key is none (any \
         more), or does not open these bytes for this: connect again, and ask the peer for a new key"
    )]
    KeyRefused {
        /// The operation that failed.
        operation: &'static str,
        /// The peer's memory.
        address: u64,
        /// Bytes.
        length: u64,
        /// The key.
        key: u32,
    },
    /// The peer's device does not answer any more.
    #[error(
        "the peer's device does not answer the {operation}: the machine is down, the network broken, or the process at the \
         other end gone: connect again when it is back"
    )]
    Silent {
        /// The operation that failed.
        operation: &'static str,
    },
    /// The peer takes no messages.
    #[error("the peer has posted no receive for a {operation}, for longer than was waited: see whether it runs")]
    NotReceiving {
        /// The operation that failed.
        operation: &'static str,
    },
    /// The posts do not come to their end.
    #[error("a {operation} did not come to its end within {} ms: the peer, or the device, stands still", .after.as_millis())]
    Stalled {
        /// The operation that failed.
        operation: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The queue pair broke.
    #[error(
        "the connection broke ({what}): the peer used a key of this side's that is none, or was refused one (over iWARP \
         that is not told apart), or the network broke: connect again"
    )]
    Broken {
        /// The device's report.
        what: &'static str,
    },
    /// This side's device refused something.
    #[error(
        "this side's device refused the {operation}: {what}: see whether the local memory is registered in this domain"
    )]
    Local {
        /// The operation that failed.
        operation: &'static str,
        /// The device's report.
        what: &'static str,
    },
    /// The device went.
    #[error(
        "the device {device:?} is going away (its driver is unloaded, or `rdma link delete`): drop what was made over its \
         domain, and open a device again"
    )]
    DeviceGone {
        /// Its name.
        device: String,
    },
}

/// Returns the meaning of a completion's status, in words.
pub(super) fn status_text(status: u32) -> &'static str {
    use super::ib::ibv_wc_status as s;
    match status {
        s::IBV_WC_SUCCESS => "success",
        s::IBV_WC_LOC_LEN_ERR => "a length that does not fit this side",
        s::IBV_WC_LOC_QP_OP_ERR => "an operation that the queue pair cannot carry out",
        s::IBV_WC_LOC_PROT_ERR => "local memory that its key does not cover",
        s::IBV_WC_WR_FLUSH_ERR => "flushed",
        s::IBV_WC_MW_BIND_ERR => "a memory window that cannot be bound",
        s::IBV_WC_BAD_RESP_ERR => "an answer that makes no sense",
        s::IBV_WC_LOC_ACCESS_ERR => "local memory without the right",
        s::IBV_WC_REM_INV_REQ_ERR => "the peer's device calls the request invalid",
        s::IBV_WC_REM_ACCESS_ERR => "the peer's device refuses the key",
        s::IBV_WC_REM_OP_ERR => "the peer's device could not carry it out",
        s::IBV_WC_RETRY_EXC_ERR => "no answer",
        s::IBV_WC_RNR_RETRY_EXC_ERR => "no receive posted",
        s::IBV_WC_FATAL_ERR => "the device failed",
        _ => "a failure of the device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_says_what_to_do() {
        let (address, refused) = (|| "verbs:10.0.0.1:7".to_owned(), || io::Error::from_raw_os_error(libc::EACCES));
        let full = || io::Error::from_raw_os_error(libc::ENOMEM);
        let after = Duration::from_secs(5);
        for (error, remedy) in [
            (VerbsError::Address { text: "verbs".into() }, "write verbs:HOST:PORT"),
            (VerbsError::DatagramAddress { text: "verbs-ud".into() }, "write verbs-ud:HOST:PORT"),
            (VerbsError::NoDatagrams { address: address(), device: "siw0".into() }, "use udp:HOST:PORT"),
            (VerbsError::Wildcard { address: address() }, "name the address"),
            (VerbsError::Threads { address: address(), threads: 257 }, "use 1 to 256"),
            (VerbsError::NotOurServer { address: address() }, "listens on verbs-ud:"),
            (VerbsError::Mtu { address: address(), theirs: 4096, own: 1024 }, "same MTU"),
            (VerbsError::Resolve { address: address(), error: refused() }, "write its IP address"),
            (VerbsError::Device(verbs::VerbsError::NoDevice), "rdma link add"),
            (VerbsError::NoLibrary, "librdmacm1"),
            (VerbsError::Manager { file: "/dev/infiniband/rdma_cm".into(), source: refused() }, "modprobe rdma_ucm"),
            (VerbsError::NoWay { address: address(), what: "listen" }, "ip route get"),
            (
                VerbsError::OtherDevice { address: address(), reached: "siw0".into(), own: "rxe0".into() },
                "VerbsDomain::reaching",
            ),
            (VerbsError::Unreachable { address: address(), what: "x", error: refused() }, "see that the host is up"),
            (VerbsError::PortInUse { address: address() }, "choose another port"),
            (VerbsError::NotHere { address: address() }, "ip address"),
            (VerbsError::Refused { address: address() }, "start the server"),
            (VerbsError::Rejected { address: address() }, "its log"),
            (VerbsError::TimedOut { doing: "connect to", address: address(), what: "answer", after }, "4791"),
            (VerbsError::Descriptors { address: address() }, "ulimit -n"),
            (VerbsError::NotOurs { peer: None }, "has to connect again"),
            (VerbsError::System { address: address(), what: "register", error: full() }, "ulimit -l"),
        ] {
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}
