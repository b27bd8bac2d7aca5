//! GETs over UDP, answered in the kernel: programs at the server's interfaces that read the stores' own memory.
//!
//! The stores' memory is that of a map, which the programs read and never write to. The [writer](table) tells them where items are.
//! Without the feature `bpf` there are the options alone, which are refused.

#[cfg(feature = "bpf")]
mod attached;
#[cfg(feature = "bpf")]
mod counts;
#[cfg(feature = "bpf")]
mod interface;
pub(crate) mod options;
#[cfg(feature = "bpf")]
mod table;
#[cfg(not(feature = "bpf"))]
mod without;

#[cfg(feature = "bpf")]
pub(crate) use attached::Kernel;
#[cfg(not(feature = "bpf"))]
pub(crate) use without::Kernel;

/// The parts of the server that the programs have to know.
#[derive(Debug)]
#[cfg_attr(not(feature = "bpf"), expect(dead_code, reason = "nothing is attached"))]
pub(crate) struct Server<'a> {
    /// The stores, and for how many threads they are made.
    pub(crate) store: &'a crate::store::Config,
    pub(crate) threads: usize,
    /// Bytes for items.
    pub(crate) memory: u64,
    /// The sockets for datagrams.
    pub(crate) sockets: Vec<std::net::SocketAddr>,
    /// Whether clients see versions.
    pub(crate) cas: bool,
}
