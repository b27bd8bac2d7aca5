//! The memory of a thousand connections: the growth of each end's resident memory, after each connection has carried a
//! message each way and a read.
//!
//! Memory that both processes map (`shm`'s outboxes) counts at both. The kernel's memory for sockets belongs to no process;
//! the note has it, for TCP, as `/proc/net/sockstat` reports it.
#![expect(unsafe_code, reason = "posts local memory by address")]

use crate::pin;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::Setting;
use crate::side_by_side::remote::{Far, Outcome, resident, serve};
use crate::side_by_side::report::{Row, Unit};
use frrwp::fabric::iwarp::{self, IwarpDomain, IwarpListener, IwarpOptions};
use frrwp::fabric::shm::{Sharing, ShmAddress, ShmDomain, ShmListener, ShmOptions, connect};
use frrwp::fabric::{Completion, Domain, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::registrar::Registrar;
use mrrc::{Access, PAGE, PageRange};
use std::time::Duration;

/// Above the table.
pub const TITLE: &str = "Connections: what they hold at each end";

/// The fabrics.
pub const KINDS: [&str; 2] = ["shm", "iwarp"];

const WITHIN: Duration = Duration::from_secs(10);
const RECEIVES: u16 = 16;

/// `shm/connections`.
pub fn name(kind: &str) -> String {
    format!("{kind}/connections")
}

/// Makes a thousand connections over this fabric, and measures what they hold.
///
/// # Errors
/// The error of the provider or the other process.
pub fn measure(setting: &Setting, kind: &str) -> Outcome<Vec<Row>> {
    pin::pin(setting.near)?;
    pin::many_files()?;
    let count = if setting.quick { 20 } else { 1000 };
    let place = format!("shm:@side-by-side-crowd-{}", std::process::id());
    let mut far = Far::start(setting.far, &["crowd", kind, &place, &count.to_string()])?;
    let kernel = tcp_pages();
    let before = far.memory()?;
    // The buffer that is read into.
    let mut page = vec![0_u8; PAGE as usize];
    let page = page.as_mut_ptr();
    let near = match kind {
        "shm" => {
            let (domain, address) = (ShmDomain::new(ShmOptions::default())?, place.parse::<ShmAddress>()?);
            crowd(&domain, page, count, || Ok(connect(&domain, &address, RECEIVES, WITHIN)?))?
        }
        _ => {
            let domain = IwarpDomain::new(IwarpOptions::default())?;
            crowd(&domain, page, count, || Ok(iwarp::connect(&domain, &far.address, RECEIVES)?))?
        }
    };
    let far = far.memory()?.saturating_sub(before);
    let kernel = match (kind, kernel.zip(tcp_pages())) {
        ("iwarp", Some((before, after))) => {
            format!("; the kernel {} KiB for TCP", after.saturating_sub(before) * PAGE / 1024)
        }
        _ => String::new(),
    };
    let note = |kib: u64| {
        let met = if kib * 1000 / count as u64 <= 64 << 10 { "met" } else { "missed" };
        format!("goal for 1,000: 64 MiB: {met}; {count} connections{kernel}")
    };
    let row = |end: &str, kib: u64| {
        Row::new(format!("{}/{end}", name(kind)), Figure::once(kib as f64 / 1024.0), None, Unit::Mebibytes)
            .note(note(kib))
    };
    Ok(vec![row("near", near), row("far", far)])
}

/// KiB by which this process grows as it connects.
fn crowd<E: Endpoint>(
    domain: &E::Domain,
    page: *mut u8,
    count: usize,
    mut connect: impl FnMut() -> Outcome<E>,
) -> Outcome<u64> {
    let key = domain.register(PageRange::of_bytes(page as u64, PAGE)?, Access::LOCAL)?;
    let mut message = Box::new([0; MESSAGE]);
    let before = resident()?;
    let mut endpoints = Vec::with_capacity(count);
    for nth in 0..count {
        let mut endpoint = connect().map_err(|error| format!("connection {nth}: {error}"))?;
        let mut next = |endpoint: &mut E| loop {
            if let Some(completion) = endpoint.poll(&mut message) {
                return (completion, message[..12].to_vec());
            }
            endpoint.wait(None);
        };
        endpoint.send(b"where?")?;
        let segment = match next(&mut endpoint) {
            (Completion::Message { length: 12 }, offer) => {
                let address = u64::from_le_bytes(offer[..8].try_into()?);
                Segment { address, length: 1024, key: u32::from_le_bytes(offer[8..].try_into()?) }
            }
            (other, _) => return Err(format!("connection {nth}: {other:?} where an offer was to come").into()),
        };
        let local = [Local { address: page, length: 1024, registration: &key }];
        // SAFETY: the page has no other user, and the read ends before this function does.
        unsafe { endpoint.read(1, &local, segment) }?;
        match next(&mut endpoint) {
            (Completion::Done { succeeded: true, .. }, _) => {}
            (other, _) => return Err(format!("connection {nth}: a read ended with {other:?}").into()),
        }
        endpoints.push(endpoint);
    }
    Ok(resident()?.saturating_sub(before))
}

/// Pages that the kernel has for TCP.
fn tcp_pages() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/net/sockstat").ok()?;
    stat.lines().find(|line| line.starts_with("TCP:"))?.rsplit("mem ").next()?.trim().parse().ok()
}

/// The process that is connected to.
pub(in crate::side_by_side) fn far(arguments: &[&str]) -> Outcome<()> {
    let [kind, place, count] = arguments else { return Err("kind, place and count".into()) };
    let count: usize = count.parse()?;
    pin::many_files()?;
    let rights = Access::LOCAL | Access::REMOTE_READ;
    match *kind {
        "shm" => {
            let domain = ShmDomain::new(ShmOptions::default())?;
            let arena = domain.arena(PAGE as usize, Sharing::Readable)?;
            let listener = ShmListener::bind(&domain, &place.parse()?)?;
            let offer = offer(&domain, arena.as_ptr(), rights)?;
            std::thread::spawn(move || {
                // Held until the process ends.
                std::mem::forget(arena);
                accept(count, offer, || Ok(listener.accept(RECEIVES, WITHIN)?));
            });
            serve("-")
        }
        _ => {
            let domain = IwarpDomain::new(IwarpOptions::default())?;
            let page = vec![1_u8; PAGE as usize].leak();
            let mut listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0")?;
            let address = format!("iwarp:{}", listener.address()?);
            let offer = offer(&domain, page.as_ptr(), rights)?;
            std::thread::spawn(move || accept(count, offer, || Ok(listener.accept(RECEIVES, Some(WITHIN))?)));
            serve(&address)
        }
    }
}

fn offer<D: Domain>(domain: &D, page: *const u8, rights: Access) -> Outcome<[u8; 12]> {
    let key = domain.register(PageRange::of_bytes(page as u64, PAGE)?, rights)?;
    let segment = domain.remote(&key, page, 1024);
    // The registration stays until the process ends.
    std::mem::forget(key);
    let mut offer = [0; 12];
    offer[..8].copy_from_slice(&segment.address.to_le_bytes());
    offer[8..].copy_from_slice(&segment.key.to_le_bytes());
    Ok(offer)
}

fn accept<E: Endpoint>(count: usize, offer: [u8; 12], mut accept: impl FnMut() -> Outcome<E>) {
    let mut message = Box::new([0; MESSAGE]);
    let mut endpoints = Vec::with_capacity(count);
    while endpoints.len() < count {
        let accepted = accept().and_then(|mut endpoint| {
            while endpoint.poll(&mut message).is_none() {
                endpoint.wait(None);
            }
            endpoint.send(&offer)?;
            Ok(endpoint)
        });
        match accepted {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(error) => return eprintln!("the process at the other end: {error}"),
        }
    }
    std::mem::forget(endpoints);
}
