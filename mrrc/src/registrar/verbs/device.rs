//! The attributes that a device reports.
#![expect(unsafe_code, reason = "the calls of libibverbs")]

use super::binding as ib;
use super::error::VerbsError;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// A device's capabilities, as reported when it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Registrations of all its users together.
    pub most_regions: u64,
    /// Bytes of one registration.
    pub largest_region: u64,
    /// The smallest page that it can be told of.
    pub page_size: u64,
    /// Parts that one transfer can gather or scatter.
    pub most_segments: u32,
    /// Reads of one peer that may be under way at once.
    pub most_reads: u32,
    /// Memory windows. 0 on devices that have none.
    pub most_windows: u64,
    /// Whether peers can run atomic operations.
    pub atomics: bool,
    /// Whether pages can be registered without being pinned ([`Verbs::on_demand`](super::Verbs::on_demand)).
    pub on_demand: bool,
    /// Its ports, counted from 1.
    pub ports: u8,
    /// The transport that it speaks.
    pub transport: Transport,
}

/// The transport of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand, or InfiniBand over Ethernet (RoCE).
    InfiniBand,
    /// RDMA over TCP. Most such cards bring the bytes of a *read* by a write of the peer. So the memory for them must
    /// have been registered with [`Access::REMOTE_WRITE`](crate::Access::REMOTE_WRITE).
    Iwarp,
    /// Something else.
    Other,
}

pub(super) fn attributes(context: NonNull<ib::ibv_context>, name: &str) -> Result<Attributes, VerbsError> {
    let mut said = MaybeUninit::<ib::ibv_device_attr>::zeroed();
    // SAFETY: the context is open, and the structure is the one that the call fills.
    let failed = unsafe { ib::ibv_query_device(context.as_ptr(), said.as_mut_ptr()) };
    if failed != 0 {
        let source = io::Error::from_raw_os_error(failed);
        return Err(VerbsError::Refused { operation: "ask for the limits", device: name.to_owned(), source });
    }
    // SAFETY: numbers and characters, which may be anything, and were zero before.
    let said = unsafe { said.assume_init() };
    // SAFETY: a context that is open has a device.
    let transport = unsafe { (*(*context.as_ptr()).device).transport_type };
    Ok(Attributes {
        most_regions: said.max_mr.max(0) as u64,
        largest_region: said.max_mr_size,
        page_size: smallest_page(said.page_size_cap),
        most_segments: said.max_sge.max(1) as u32,
        most_reads: said.max_qp_rd_atom.max(0) as u32,
        most_windows: said.max_mw.max(0) as u64,
        atomics: said.atomic_cap != ib::ibv_atomic_cap::IBV_ATOMIC_NONE,
        on_demand: has_on_demand_paging(context),
        ports: said.phys_port_cnt,
        transport: match transport {
            ib::ibv_transport_type::IBV_TRANSPORT_IB => Transport::InfiniBand,
            ib::ibv_transport_type::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            _ => Transport::Other,
        },
    })
}

/// Returns the smallest of a set of page sizes, one bit each.
fn smallest_page(sizes: u64) -> u64 {
    if sizes == 0 { crate::PAGE } else { 1 << sizes.trailing_zeros() }
}

fn has_on_demand_paging(context: NonNull<ib::ibv_context>) -> bool {
    let mut said = MaybeUninit::<ib::ibv_device_attr_ex>::zeroed();
    // SAFETY: the context is open, the structure is the one that the call fills, and no input is allowed.
    let failed = unsafe { ib::ibv_query_device_ex(context.as_ptr(), std::ptr::null(), said.as_mut_ptr()) };
    // SAFETY: numbers and characters, which may be anything, and were zero before.
    failed == 0
        && unsafe { said.assume_init() }.odp_caps.general_caps & ib::ibv_odp_general_caps::IBV_ODP_SUPPORT.0 as u64 != 0
}

pub(super) fn some_port_is_up(context: NonNull<ib::ibv_context>, name: &str, ports: u8) -> Result<(), VerbsError> {
    let mut states = Vec::new();
    for port in 1..=ports {
        let mut said = MaybeUninit::<ib::ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and the structure is the one that the call fills.
        let failed = unsafe { ib::query_port(context.as_ptr(), port, said.as_mut_ptr()) };
        // SAFETY: numbers, which may be anything, and were zero before.
        let state = unsafe { said.assume_init() }.state;
        states.push(match state {
            _ if failed != 0 => format!("port {port}: {}", io::Error::from_raw_os_error(failed)),
            ib::ibv_port_state::IBV_PORT_ACTIVE => return Ok(()),
            ib::ibv_port_state::IBV_PORT_DOWN => format!("port {port} is down"),
            ib::ibv_port_state::IBV_PORT_INIT | ib::ibv_port_state::IBV_PORT_ARMED => {
                format!("port {port} is not yet up: does a subnet manager run?")
            }
            other => format!("port {port} is in state {other}"),
        });
    }
    Err(VerbsError::PortDown { device: name.to_owned(), states })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_are_a_set_of_bits() {
        assert_eq!([0, 0xffff_f000, u64::MAX << 16, 1 << 63].map(smallest_page), [4096, 4096, 65536, 1 << 63]);
    }
}
