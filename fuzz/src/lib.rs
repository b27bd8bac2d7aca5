//! A fuzz target for every decoder of bytes and text that come from outside.
//!
//! [`TARGETS`] lists them. Each is a function that decodes an input, checks what must hold of the result, and returns whether
//! the input was understood. Two drivers run them:
//!
//! * `cargo test -p fuzz` gives every target the inputs of its corpus (`corpus/NAME/`), mutations of them and random bytes.
//!   It runs on stable Rust; `NOISE=1000` runs a thousand times as many inputs, `NOISE_SEED` starts elsewhere.
//! * `cargo +nightly fuzz run --features libfuzzer NAME` searches for inputs by coverage ([cargo-fuzz]).
//!
//! To add a decoder, add a function here, a line to [`TARGETS`], a program in `fuzz_targets` and a folder in `corpus`. A test
//! compares the four lists. [`ABSENT`] names targets of features that were not asked for.
//!
//! [cargo-fuzz]: https://rust-fuzz.github.io/book/cargo-fuzz.html

mod cluster;
mod flash;
mod frrwp;
mod mrrc;
pub mod mutate;
mod rdmakv;
mod traces;
mod warm;

use std::path::PathBuf;

/// A decoder, and what must hold of it for every input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the program in `fuzz_targets` and of the folder in `corpus`.
    pub name: &'static str,
    /// The decoder.
    pub about: &'static str,
    run: fn(&[u8]) -> bool,
}

impl Target {
    /// Decodes an input. Returns whether it was understood.
    ///
    /// # Panics
    /// If the decoder has a fault.
    pub fn decode(&self, input: &[u8]) -> bool {
        (self.run)(input)
    }

    /// Returns the inputs of the corpus, sorted by file name.
    ///
    /// # Panics
    /// If the corpus cannot be read.
    pub fn corpus(&self) -> Vec<(String, Vec<u8>)> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name);
        let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut inputs: Vec<_> = files
            .map(|file| file.expect("the folder can be read"))
            .map(|file| (file.file_name().to_string_lossy().into_owned(), std::fs::read(file.path()).expect("a file")))
            .collect();
        inputs.sort();
        inputs
    }
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "trace", about: "traces and recordings, packed or not, of any format", run: traces::trace },
    Target { name: "trace_as", about: "traces that are read as a named format", run: traces::trace_as },
    Target { name: "trace_option", about: "columns, block sizes, time units, formats, workloads", run: traces::option },
    Target { name: "recording", about: "the head and the records of a recording", run: traces::recording },
    Target { name: "shard", about: "results of `tracesim compare --shard`", run: traces::shard },
    Target { name: "cost_model", about: "cost models and names of policies", run: mrrc::cost_model },
    Target { name: "size", about: "sizes in bytes, pages and shares", run: mrrc::size },
    Target { name: "setting", about: "settings of the cache, as text", run: mrrc::setting },
    Target { name: "frrwp_message", about: "messages of the handshake", run: frrwp::message },
    Target { name: "frrwp_iwarp", about: "the stream of an iWARP connection", run: frrwp::iwarp },
    Target { name: "frrwp_datagram", about: "requests and replies over datagrams", run: frrwp::datagram },
    Target { name: "frrwp_address", about: "addresses of fabrics", run: frrwp::address },
    Target { name: "memcached_text", about: "command lines of memcached's text and meta protocols", run: rdmakv::text },
    Target { name: "memcached_binary", about: "headers of memcached's binary protocol", run: rdmakv::binary },
    Target { name: "memcached_udp", about: "frames of datagrams", run: rdmakv::udp },
    Target { name: "rdmakv_flags", about: "command lines of the server", run: rdmakv::flags },
    Target { name: "rdmakv_request", about: "requests over a fabric", run: rdmakv::request },
    Target { name: "rdmakv_reply", about: "replies over a fabric", run: rdmakv::reply },
    Target { name: "rdmakv_fragments", about: "fragments of messages over a fabric", run: rdmakv::fragments },
    Target { name: "rdmakv_datagrams", about: "requests over datagrams, carried out", run: rdmakv::datagrams },
    Target { name: "rdmakv_far_request", about: "requests for far memory", run: rdmakv::far_request },
    Target { name: "rdmakv_far_reply", about: "answers about far memory", run: rdmakv::far_reply },
    Target { name: "rdmakv_far_batch", about: "batches of far memory", run: rdmakv::far_batch },
    Target { name: "rdmakv_far_run", about: "arguments of procedures of far memory", run: rdmakv::far_run },
    #[cfg(feature = "wasm")]
    Target { name: "rdmakv_far_module", about: "modules of far memory, stored and run", run: rdmakv::far_module },
    Target { name: "rdmakv_item", about: "items that one-sided readers find in memory", run: rdmakv::item },
    Target { name: "cluster_config", about: "configurations of a cluster, as JSON", run: cluster::config },
    Target { name: "cluster_fact", about: "what servers of a cluster write into etcd", run: cluster::fact },
    Target { name: "cluster_call", about: "calls to servers of a cluster", run: cluster::call },
    Target { name: "cluster_reply", about: "replies of servers of a cluster", run: cluster::reply },
    Target { name: "files", about: "keys and values of the burst buffer", run: rdmakv::files },
    Target { name: "etcd_answer", about: "answers of etcd's JSON gateway, over HTTP", run: cluster::answer },
    Target { name: "flash_record", about: "records of the flash tier", run: flash::record },
    Target { name: "flash_segment", about: "directories of the flash tier's segments", run: flash::segment },
    Target { name: "flash_superblock", about: "superblocks of the flash tier's files", run: flash::superblock },
    Target { name: "flash_manifest", about: "manifests of the flash tier", run: flash::manifest },
    Target { name: "warm_meta", about: "the description of what outlives the server", run: warm::meta },
    Target { name: "warm_items", about: "items that outlive the server", run: warm::items },
];

/// The names of targets that need a feature of this crate, and were built without it.
pub const ABSENT: &[&str] = if cfg!(feature = "wasm") { &[] } else { &["rdmakv_far_module"] };

/// Returns the target of that name.
///
/// # Panics
/// If there is none.
pub fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).expect("a name in TARGETS")
}

/// Runs a decoder of text; what is not UTF-8 is not understood.
fn text(input: &[u8], decode: impl FnOnce(&str) -> bool) -> bool {
    std::str::from_utf8(input).is_ok_and(decode)
}
