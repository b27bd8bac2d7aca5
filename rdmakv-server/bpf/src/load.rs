//! Maps, programs and links: what is in the kernel, and ends with this process.
//!
//! Nothing is pinned. The kernel closes links and frees maps when the process is gone, however it ends.

mod errors;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use libbpf_rs::libbpf_sys;
use libbpf_rs::{MapCore, Object, ObjectBuilder, OpenObject, ProgramInput, ProgramMut};
use memmap2::{MmapOptions, MmapRaw};

use crate::layout::{
    ADDRESSES, Bucket, HEAD, INTERFACE, INTERFACE_HEAD, REACH, SHARDS, Settings, TAIL, TALLY, VALUE_MAX,
};

pub use errors::{Cause, Error, missing_capabilities};

/// The program as this crate was built with it.
pub const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gets.bpf.o"));

/// A program in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// At the driver, before the kernel has made anything of a packet.
    Xdp,
    /// At tcx ingress: what XDP has no room to answer, and interfaces whose drivers have no XDP.
    Tcx,
}

impl Hook {
    fn program(self) -> &'static str {
        match self {
            Self::Xdp => "rdmakv_xdp",
            Self::Tcx => "rdmakv_tcx",
        }
    }
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on to the socket.
    Passed,
    /// It goes back, as the answer.
    Answered,
    /// It is dropped: an answer of which the packet did not take all.
    Dropped,
}

/// Memory of a map, that server and program share.
#[derive(Debug)]
struct Mapping(MmapRaw);

#[expect(unsafe_code, reason = "memory that the kernel's program shares")]
impl Mapping {
    fn new(object: &Object, name: &'static str, bytes: usize) -> Result<Self, Cause> {
        let map = object.maps().find(|map| map.name() == name).ok_or(Cause::Object(name))?;
        let mapped = MmapOptions::new().len(bytes).map_raw(map.as_fd().as_raw_fd());
        mapped.map(Self).map_err(Cause::Map)
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `MmapRaw` maps this many bytes, page-aligned, until it is dropped, and `self` is borrowed. Zeros and all
        // else are valid. `AtomicU64` allows that the program, or a store, changes them meanwhile.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() / 8) }
    }

    /// Writes the map `interface`. Until all is there no address is answered at.
    fn describe(&self, settings: &Settings) -> Result<(), Cause> {
        let bytes = settings.interface().map_err(|_| Cause::TooMany(ADDRESSES))?;
        let words = self.words();
        words[..INTERFACE_HEAD].iter().for_each(|word| word.store(0, Relaxed));
        fence(Release);
        let all = words.iter().zip(bytes.as_chunks::<8>().0).map(|(to, from)| (to, u64::from_le_bytes(*from)));
        // The words with counts are first in the map, and the last to be written.
        all.rev().for_each(|(to, from)| to.store(from, Release));
        Ok(())
    }

    fn buckets(&self) -> &[Bucket] {
        // SAFETY: as for `words`: a bucket is atomics alone, of 64 bytes, and a page holds whole buckets.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() / size_of::<Bucket>()) }
    }
}

/// The maps, as memory: what the server writes, and what it reads of the program's counts.
#[derive(Debug)]
pub struct Maps {
    items: Mapping,
    gets: Mapping,
    head: Mapping,
    tally: Mapping,
}

/// The programs of one interface, and their maps.
#[derive(Debug)]
pub struct Gets {
    object: Object,
    maps: Arc<Maps>,
    interface: Arc<Mapping>,
}

/// Programs at an interface; they are gone once this is dropped.
#[derive(Debug)]
pub struct Links {
    #[expect(dead_code, reason = "the kernel keeps a link as long as its descriptor is open")]
    links: Vec<OwnedFd>,
    interface: Arc<Mapping>,
}

impl Links {
    /// Has the programs follow their interface: its MTU, MAC, addresses and networks are those of these settings from now on.
    ///
    /// # Errors
    ///
    /// [`Cause::TooMany`]; nothing is changed.
    pub fn follow(&self, settings: &Settings) -> Result<(), Cause> {
        self.interface.describe(settings)
    }
}

impl Maps {
    /// Returns the memory for items: where it begins, and its bytes. It is mapped as long as this is not dropped.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.items.0.as_mut_ptr(), self.items.0.len())
    }

    /// Returns the memory for items, as words.
    pub fn items(&self) -> &[AtomicU64] {
        self.items.words()
    }

    /// Returns the buckets of the table.
    pub fn buckets(&self) -> &[Bucket] {
        self.gets.buckets()
    }

    /// Returns the words of the map `head`: the epoch first, two for each shard from the eighth on.
    pub fn head(&self) -> &[AtomicU64] {
        self.head.words()
    }

    /// Returns the words of the map `tally`, a row for each CPU.
    pub fn tally(&self) -> &[AtomicU64] {
        self.tally.words()
    }
}

impl Gets {
    /// Loads the programs of this object, with maps of its own or with those of another interface.
    ///
    /// # Errors
    ///
    /// See [`Cause`].
    pub fn load(object: &[u8], settings: &Settings, shared: Option<&Self>) -> Result<Self, Cause> {
        check(settings)?;
        // What the verifier has against a program is for its authors.
        libbpf_rs::set_print(None);
        let cpus = libbpf_rs::num_possible_cpus().map_err(Cause::bpf)?;
        let values = settings.memory.div_ceil(settings.value_size);
        let mut open = ObjectBuilder::default().open_memory(object).map_err(Cause::bpf)?;
        let constants = settings.constants();
        size(&mut open, "items", Some(settings.value_size as u32), values as u32)?;
        size(&mut open, "gets", None, settings.buckets as u32)?;
        size(&mut open, "tally", None, cpus as u32)?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name.ends_with(".rodata") {
                let place = map.initial_value_mut().filter(|place| place.len() == constants.len());
                place.ok_or(Cause::Object(".rodata"))?.copy_from_slice(&constants);
            }
            let other = shared.and_then(|shared| shared.object.maps().find(|other| other.name() == map.name()));
            if let (Some(other), "items" | "gets" | "head" | "tally") = (other, name.as_str()) {
                map.reuse_fd(other.as_fd()).map_err(Cause::bpf)?;
            }
        }
        let object = open.load().map_err(Cause::bpf)?;
        let maps = match shared {
            Some(shared) => Arc::clone(&shared.maps),
            None => Arc::new(Maps {
                items: Mapping::new(&object, "items", (values * settings.value_size) as usize)?,
                gets: Mapping::new(&object, "gets", settings.buckets as usize * size_of::<Bucket>())?,
                head: Mapping::new(&object, "head", HEAD)?,
                tally: Mapping::new(&object, "tally", cpus * TALLY)?,
            }),
        };
        let interface = Arc::new(Mapping::new(&object, "interface", INTERFACE)?);
        interface.describe(settings)?;
        Ok(Self { object, maps, interface })
    }

    /// Returns the maps.
    pub fn maps(&self) -> &Arc<Maps> {
        &self.maps
    }
    fn program(&self, hook: Hook) -> Result<ProgramMut<'_>, Cause> {
        let mut programs = self.object.progs_mut();
        programs.find(|program| program.name() == hook.program()).ok_or(Cause::Object(hook.program()))
    }

    /// Returns how many instructions the verifier looked at, if this kernel reports it.
    ///
    /// # Errors
    ///
    /// The object has no such program.
    pub fn verified(&self, hook: Hook) -> Result<Option<u64>, Cause> {
        let program = self.program(hook)?;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_fd().as_raw_fd()));
        let line = info
            .ok()
            .and_then(|info| info.lines().find_map(|line| line.strip_prefix("verified_insns:")?.trim().parse().ok()));
        Ok(line)
    }

    /// Runs a program once with this packet; returns what it did and what became of the packet.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn run(&self, hook: Hook, packet: &[u8]) -> Result<(Verdict, Vec<u8>), Cause> {
        let mut out = vec![0; 4096];
        let input = ProgramInput { data_in: Some(packet), data_out: Some(&mut out), ..ProgramInput::default() };
        let output = self.program(hook)?.test_run(input).map_err(Cause::bpf)?;
        let (verdict, length) = (verdict(hook, output.return_value), output.data.map_or(0, |data| data.len()));
        out.truncate(length);
        Ok((verdict, out))
    }

    /// Attaches the programs to an interface: that at tcx, and that at XDP unless it is to do without.
    ///
    /// # Errors
    ///
    /// See [`Cause`].
    pub fn attach(&self, interface: u32, with_xdp: bool) -> Result<Links, Cause> {
        let mut links = Vec::new();
        // That at tcx first: what has no room at XDP is then answered from the first packet on.
        let tcx = link(self.program(Hook::Tcx)?.as_fd(), interface, libbpf_sys::BPF_TCX_INGRESS, 0);
        links.push(tcx.map_err(Cause::Attach)?);
        if with_xdp {
            let xdp =
                link(self.program(Hook::Xdp)?.as_fd(), interface, libbpf_sys::BPF_XDP, libbpf_sys::XDP_FLAGS_DRV_MODE);
            links.push(xdp.map_err(|error| match error.raw_os_error() {
                // Also one that runs without the driver's help.
                Some(errors::EBUSY | errors::EEXIST) => Cause::Busy(program_at(interface)),
                _ => Cause::Driver(error),
            })?);
        }
        Ok(Links { links, interface: self.interface.clone() })
    }
}

/// Settings that the program cannot have.
fn check(settings: &Settings) -> Result<(), Cause> {
    let shards = if settings.shard_size == 0 { u64::MAX } else { settings.memory.div_ceil(settings.shard_size) };
    let good = settings.buckets.is_power_of_two()
        && (TAIL * 2..=VALUE_MAX).contains(&settings.value_size)
        && (1..=REACH).contains(&settings.memory)
        && shards <= SHARDS as u64;
    if good { Ok(()) } else { Err(Cause::Settings) }
}

fn size(open: &mut OpenObject, name: &'static str, value: Option<u32>, entries: u32) -> Result<(), Cause> {
    let mut map = open.maps_mut().find(|map| map.name() == name).ok_or(Cause::Object(name))?;
    value.map_or(Ok(()), |value| map.set_value_size(value)).map_err(Cause::bpf)?;
    map.set_max_entries(entries).map_err(Cause::bpf)
}

fn verdict(hook: Hook, value: u32) -> Verdict {
    match (hook, value.cast_signed()) {
        (Hook::Xdp, 2) | (Hook::Tcx, -1) => Verdict::Passed,
        (Hook::Xdp, 3) | (Hook::Tcx, 7) => Verdict::Answered,
        _ => Verdict::Dropped,
    }
}

#[expect(unsafe_code, reason = "libbpf's calls that libbpf-rs has no functions for")]
fn link(program: BorrowedFd<'_>, interface: u32, kind: libbpf_sys::bpf_attach_type, flags: u32) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags,
        ..Default::default()
    };
    // SAFETY: `bpf_link_create` reads the options, whose size is in `sz`, and keeps nothing of them.
    let link =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), interface.cast_signed(), kind, &raw const options) };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the call returned a descriptor that is open and that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Returns the number of the program at an interface's XDP, or 0 if no program is there.
#[expect(unsafe_code, reason = "libbpf's calls that libbpf-rs has no functions for")]
fn program_at(interface: u32) -> u32 {
    let mut id = 0;
    // SAFETY: `bpf_xdp_query_id` writes one number to where the last argument points.
    let _ = unsafe { libbpf_sys::bpf_xdp_query_id(interface.cast_signed(), 0, &raw mut id) };
    id
}
