//! The command line.

use crate::Expire;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  rdmakv set greeting hello
  rdmakv get greeting
  rdmakv -s 10.0.0.1:11211 set page < page.html         the value from standard input, byte by byte
  rdmakv -s iwarp:10.0.0.1:7471,tcp:10.0.0.1:11211 get -v --times 1000 page > copy.html
  rdmakv -s 10.0.0.1 -s 10.0.0.2,weight=2 stats slabs
  rdmakv watch

Servers:
  ADDRESS[,ADDRESS...][,weight=N][,name=HOST:PORT]      every way to one server, the best one first
  shm:@NAME, shm:PATH, iwarp:HOST:PORT, verbs:HOST:PORT over a fabric, with one-sided reads
  udp:HOST:PORT, verbs-ud:HOST:PORT                     over datagrams, without a connection
  tcp:HOST:PORT, HOST[:PORT], unix:PATH                 over a socket; what reads fall back to
  Keys are spread over several servers as libmemcached does it. Without -s, the variable
  RDMAKV_SERVERS names servers, with spaces between them. Without that, the servers are those
  of the cluster in the etcd of --etcd or RDMAKV_ETCD, or the one on this machine at
  memcached's port. RDMAKV_LOGIN=NAME:PASSWORD for servers that ask for it (-Y).

Exit codes:
  0 done; 1 failed, or there is no such key, or it was not stored; 2 wrong usage;
  3 outcome unknown: it may have been done";

/// The name of a cluster by default.
pub(super) const CLUSTER: &str = "main";

/// Reads and writes keys of memcached servers, over RDMA or TCP
#[derive(Parser, Debug)]
#[command(name = "rdmakv", version, after_help = EXAMPLES)]
pub(super) struct Flags {
    /// A server; may be repeated
    #[arg(short, long = "server", value_name = "SERVER", global = true)]
    pub(super) servers: Vec<String>,
    /// How long an operation may take, in milliseconds: 1000; 30000 for keys with copies, which wait for others to take a lost server's place
    #[arg(long, value_name = "MS", global = true, value_parser = within::<u64, 1, 3_600_000>)]
    pub(super) timeout: Option<u64>,
    /// Do not read one-sidedly
    #[arg(long, global = true)]
    pub(super) ask: bool,
    /// Report on standard error what was done
    #[arg(short, long, global = true)]
    pub(super) verbose: bool,
    /// The etcd of a cluster, in place of -s: http://HOST[:PORT], with commas between several. With users, better in RDMAKV_ETCD: http://USER:PASSWORD@HOST
    #[arg(long, value_name = "URL,...", global = true)]
    pub(super) etcd: Option<String>,
    /// The name of the cluster in etcd
    #[arg(long, value_name = "NAME", default_value = CLUSTER, global = true)]
    pub(super) cluster: String,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// A command about a cluster.
#[derive(Args, Debug)]
pub(super) struct ClusterFlags {
    /// Print JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
    #[command(subcommand)]
    pub(super) command: ClusterCommand,
}

#[derive(Subcommand, Debug)]
pub(super) enum ClusterCommand {
    /// Makes a cluster without servers
    #[command(
        after_help = "Examples:\n  rdmakv cluster --etcd http://10.0.0.1:2379 init\n  rdmakv cluster init --lease 5000"
    )]
    Init {
        /// How long a server may answer after it read the configuration, in milliseconds; it never changes
        #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = within::<u32, 500, 60_000>)]
        lease: u32,
    },
    /// Shows epoch, servers and policies
    #[command(
        after_help = "Examples:\n  rdmakv cluster status\n  rdmakv cluster status --json | jq .servers\n  rdmakv cluster status --wait 30 --up 3          in scripts that start servers"
    )]
    Status {
        /// Wait so long until the epoch is whole and servers are up; the exit code is 1 where that does not come
        #[arg(long, value_name = "SECONDS", value_parser = within::<u64, 0, 86_400>)]
        wait: Option<u64>,
        /// How many servers it waits for
        #[arg(long, value_name = "N", default_value_t = 1, requires = "wait", value_parser = within::<usize, 1, 64>)]
        up: usize,
    },
    /// Sets how keys with a prefix are stored
    #[command(
        after_help = "Policies:\n  none          once\n  copies:N      whole, on N servers\n  code:K+M      in K+M fragments, any K of which make the value\nWith ,evict=clean servers evict chunks of files (prefix c/) that the backing directory has.\n\nExamples:\n  rdmakv cluster policy user: copies:3\n  rdmakv cluster policy c/ copies:2,evict=clean\n  rdmakv cluster policy '' code:4+2               all keys without a longer prefix"
    )]
    Policy {
        /// The beginning of the keys; empty for all keys
        prefix: String,
        /// none, copies:N or code:K+M; for c/ also with ,evict=clean
        policy: String,
    },
    /// Moves the keys of a server to others
    #[command(after_help = "Examples:\n  rdmakv cluster drain 3\n  rdmakv cluster drain rack2-host7")]
    Drain {
        /// The server's number or name
        id: String,
    },
    /// Gives up the last server that was up, which ended and does not return, and all values of the cluster with it
    #[command(
        after_help = "Servers that join wait for it, as it may be the only one with values. See `rdmakv cluster status`.\n\nExamples:\n  rdmakv cluster forget rack2-host7 --lose-values"
    )]
    Forget {
        /// The server's number or name
        id: String,
        /// Confirms that all values under policies may be lost
        #[arg(long, required = true)]
        lose_values: bool,
    },
    /// Makes all values void that were stored before; waits until no server returns one
    #[command(after_help = "Examples:\n  rdmakv cluster flush")]
    Flush,
}

#[derive(Subcommand, Debug)]
pub(super) enum FarCommand {
    /// Makes a memory, and prints its name, its secret and for how long it is reserved
    #[command(
        after_help = "Examples:\n  rdmakv far create scratch --size 1g --for 600   prints the secret by which programs open it\n  rdmakv far create scratch --latency 100 --throughput 50000   and the cheapest configuration for that level"
    )]
    Create {
        /// A name that no other memory of this user has
        name: String,
        /// Bytes; k, m and g are understood
        #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = size)]
        size: u64,
        /// For how many seconds it is reserved; the server's --far-longest at most
        #[arg(long = "for", value_name = "SECONDS", default_value_t = 3600, value_parser = within::<u64, 1, SECONDS>)]
        seconds: u64,
        #[command(flatten)]
        wanted: Wanted,
    },
    /// Deletes the memory whose secret is in the variable RDMAKV_FAR_SECRET
    #[command(after_help = "Examples:\n  export RDMAKV_FAR_SECRET=SECRET\n  rdmakv far delete scratch")]
    Delete {
        /// Its name
        name: String,
    },
    /// Moves the memory whose secret is in the variable RDMAKV_FAR_SECRET from one server to another, or its part there
    #[command(
        after_help = "The servers are among those of -s, and the other one has the first in its --far-peers. A program that has the memory open\nmoves it by itself: with --far-notice, when the server gets SIGTERM.\n\nExamples:\n  export RDMAKV_FAR_SECRET=SECRET\n  rdmakv far migrate scratch -s iwarp:10.0.0.1:7471 -s iwarp:10.0.0.2:7471 --from iwarp:10.0.0.1:7471"
    )]
    Migrate {
        /// Its name
        name: String,
        /// The server that has it
        #[arg(long, value_name = "SERVER")]
        from: String,
        /// The server that gets it [default: that with most room, then others]
        #[arg(long, value_name = "SERVER")]
        to: Option<String>,
    },
    /// Makes a memory, reads and writes random records, prints how fast that was, and deletes it
    #[command(
        after_help = "Examples:\n  rdmakv far bench\n  rdmakv far bench --chain 8\n  rdmakv far bench -s iwarp:10.0.0.1:7471 --record 512 --reads 0.5 --lanes 2 --depth 16\n  rdmakv far bench -s iwarp:10.0.0.1:7471 --workers 1 --batch 32"
    )]
    Bench(Load),
    /// Runs a procedure where the memory is whose secret is in the variable RDMAKV_FAR_SECRET, and prints its reply as it is
    #[command(
        after_help = "Tells on standard error how it ended.\n\nExamples:\n  export RDMAKV_FAR_SECRET=SECRET\n  rdmakv far run walk scratch --at 4096 --nodes 8 --length 64\n  rdmakv far run cas64 scratch --at 4096 --old 0 --new 1"
    )]
    Run {
        #[command(subcommand)]
        procedure: RunCommand,
    },
    /// Stores, lists and removes modules: procedures of your own, as WebAssembly
    #[command(
        after_help = "Servers run them that were built with the feature wasm and started with --far-wasm. A user has 16 at each.\n\nExamples:\n  rdmakv far module add walk walk.wasm\n  rdmakv far run module scratch walk --at 4096"
    )]
    Module {
        #[command(subcommand)]
        command: ModuleCommand,
    },
    /// Measures the configurations that are worth it, over the fabric of the server, and keeps the model in a file
    #[command(
        after_help = "Examples:\n  rdmakv far model                                takes minutes\n  rdmakv far model -s iwarp:10.0.0.1:7471 --lanes 4"
    )]
    Model(Survey),
    /// Prints the cheapest configuration that meets a service level, by the model, and why nothing cheaper does
    #[command(
        after_help = "Examples:\n  rdmakv far plan --latency 40 --throughput 200000\n  rdmakv far plan --latency 100 --throughput 50000 --record 512 --reads 0.5 --fabric iwarp\n  rdmakv far plan --latency 40 --throughput 200000 --check   and measures whether that is so"
    )]
    Plan(Level),
}

/// The service level of a new memory, if it is to have one.
#[derive(Args, Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// The mean latency at most, in microseconds. The configuration comes from the model. Without one it is measured
    #[arg(long, value_name = "US", value_parser = positive, requires = "throughput")]
    pub(super) latency: Option<f64>,
    /// Accesses a second at least
    #[arg(long, value_name = "N", value_parser = positive, requires = "latency")]
    pub(super) throughput: Option<f64>,
    /// Bytes of a record of that level
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = within::<u32, 1, { 1 << 20 }>)]
    pub(super) record: u32,
    /// The share of reads, 0 to 1; the others are writes
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    pub(super) reads: f64,
}

/// The file of a model.
#[derive(Args, Debug, Clone)]
pub(super) struct ModelFile {
    /// The file of the model [default: rdmakv/far/model.csv in XDG_DATA_HOME or ~/.local/share]
    #[arg(long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Take a model of another machine
    #[arg(long)]
    pub(super) any_machine: bool,
}

/// The measurement of a model.
#[derive(Args, Debug, Clone)]
pub(super) struct Survey {
    /// Bytes of the memory; k, m and g are understood
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = size)]
    pub(super) size: u64,
    /// Lanes at most [default: as many as processors]
    #[arg(long, value_name = "N", value_parser = within::<u32, 1, 256>)]
    pub(super) lanes: Option<u32>,
    /// Workers of the server at most; 0 measures one-sided access only [default: those of the server]
    #[arg(long, value_name = "N", value_parser = within::<u32, 0, 256>)]
    pub(super) workers: Option<u32>,
    /// Accesses or batches of a lane that are under way at a time, at most
    #[arg(long, value_name = "N", default_value_t = crate::far::DEPTH_MAX, value_parser = within::<u32, 1, { crate::far::DEPTH_MAX as u64 }>)]
    pub(super) depth: u32,
    /// How long each of the three runs of a point is measured, in milliseconds
    #[arg(long = "time", value_name = "MS", default_value_t = 200, value_parser = within::<u64, 1, 60_000>)]
    pub(super) millis: u64,
    #[command(flatten)]
    pub(super) file: ModelFile,
}

/// A service level.
#[derive(Args, Debug, Clone)]
pub(super) struct Level {
    /// The mean latency at most, in microseconds
    #[arg(long, value_name = "US", value_parser = positive)]
    pub(super) latency: f64,
    /// Accesses a second at least
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(super) throughput: f64,
    /// Bytes of a record
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = within::<u32, 1, { 1 << 20 }>)]
    pub(super) record: u32,
    /// The share of reads, 0 to 1; the others are writes
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    pub(super) reads: f64,
    /// The fabric: shm or iwarp
    #[arg(long, value_name = "NAME", default_value = "shm", value_parser = ["shm", "iwarp"])]
    pub(super) fabric: String,
    /// Lanes at most [default: as many as processors]
    #[arg(long, value_name = "N", value_parser = within::<u32, 1, 256>)]
    pub(super) lanes: Option<u32>,
    /// Workers of the server at most; 0 plans one-sided access only [default: as many as were measured]
    #[arg(long, value_name = "N", value_parser = within::<u32, 0, 256>)]
    pub(super) workers: Option<u32>,
    /// Measures the choice at the server, over the fabric by which that is reached, and fails if it misses the level
    #[arg(long)]
    pub(super) check: bool,
    /// Draw throughput and latency by configuration, with the level and the choice, into this file: a page of HTML
    #[arg(long, value_name = "FILE")]
    pub(super) picture: Option<PathBuf>,
    /// Bytes of the memory that --check makes; k, m and g are understood
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = size)]
    pub(super) size: u64,
    #[command(flatten)]
    pub(super) file: ModelFile,
}

/// The load of a measurement of far memory.
#[derive(Args, Debug, Clone, Copy)]
pub(super) struct Load {
    /// Bytes of the memory; k, m and g are understood
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = size)]
    pub(super) size: u64,
    /// Bytes of a record
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = within::<u32, 1, { 1 << 20 }>)]
    pub(super) record: u32,
    /// The share of reads, 0 to 1; the others are writes
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    pub(super) reads: f64,
    /// Threads, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within::<u32, 1, 256>)]
    pub(super) lanes: u32,
    /// Accesses of a lane that are under way at a time; with workers, batches of accesses
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = within::<u32, 1, { crate::far::DEPTH_MAX as u64 }>)]
    pub(super) depth: u32,
    /// Workers of the server that carry out batches; with none, access is one-sided. The server's --far-threads at most
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = within::<u32, 0, 256>)]
    pub(super) workers: u32,
    /// Accesses of a batch
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = within::<u32, 1, { crate::far::BATCH_MAX as u64 }>)]
    pub(super) batch: u32,
    /// Follow a chain of so many records instead, by one lane: reads one after the other, beside a walk at the server
    #[arg(long, value_name = "N", conflicts_with_all = ["reads", "lanes", "depth", "workers", "batch"], value_parser = within::<u32, 1, 4096>)]
    pub(super) chain: Option<u32>,
    /// How long it is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub(super) seconds: f64,
}

/// A command about modules.
#[derive(Subcommand, Debug)]
pub(super) enum ModuleCommand {
    /// Stores a module at the servers, or replaces it
    #[command(after_help = "Examples:\n  rdmakv far module add walk walk.wasm")]
    Add {
        /// The name by which it is run
        name: String,
        /// The file, of up to 256 KiB
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Lists the modules of this user, with the server and the bytes of each
    #[command(after_help = "Examples:\n  rdmakv far module list")]
    List,
    /// Removes a module from the servers
    #[command(after_help = "Examples:\n  rdmakv far module remove walk")]
    Remove {
        /// Its name
        name: String,
    },
}

/// A procedure on a memory.
#[derive(Subcommand, Debug)]
pub(super) enum RunCommand {
    /// Follows a chain of nodes, to a key or so many nodes far
    #[command(
        after_help = "Examples:\n  rdmakv far run walk scratch --at 4096 --nodes 8 --length 64\n  rdmakv far run walk scratch --at 4096 --key greeting --key-at 8 --length 64"
    )]
    Walk {
        /// The name of the memory
        name: String,
        /// The address of the first node
        #[arg(long, value_name = "ADDRESS")]
        at: u64,
        /// The first byte of a node's pointer to the next one; address 0 ends the chain
        #[arg(long, value_name = "BYTE", default_value_t = 0)]
        next: u32,
        /// Nodes that are read at most
        #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = within::<u32, 1, { u32::MAX as u64 }>)]
        nodes: u32,
        #[command(flatten)]
        item: Item,
    },
    /// Looks a key up in a bucket of a hash table, whose entries are a hash and an address, of 8 bytes each
    #[command(
        after_help = "Examples:\n  rdmakv far run bucket scratch --at 8192 --entries 4 --hash 7 --key greeting --length 64"
    )]
    Bucket {
        /// The name of the memory
        name: String,
        /// The address of the bucket
        #[arg(long, value_name = "ADDRESS")]
        at: u64,
        /// Its entries
        #[arg(long, value_name = "N", value_parser = within::<u32, 1, 256>)]
        entries: u32,
        /// The hash of the key
        #[arg(long, value_name = "N")]
        hash: u64,
        #[command(flatten)]
        item: Item,
    },
    /// Finds records by a number in them, and prints bytes of each, or of what it points to
    #[command(
        after_help = "Examples:\n  rdmakv far run filter scratch --at 4096 --records 1000 --stride 32 --least 10 --greatest 20 --length 32"
    )]
    Filter {
        /// The name of the memory
        name: String,
        /// The address of the first record
        #[arg(long, value_name = "ADDRESS")]
        at: u64,
        /// How many there are
        #[arg(long, value_name = "N")]
        records: u64,
        /// Bytes of one
        #[arg(long, value_name = "BYTES", value_parser = within::<u32, 1, 4096>)]
        stride: u32,
        /// The first byte of a record's number, which has 8
        #[arg(long, value_name = "BYTE", default_value_t = 0)]
        field: u32,
        /// The least number
        #[arg(long, value_name = "N", default_value_t = 0)]
        least: u64,
        /// The greatest number
        #[arg(long, value_name = "N", default_value_t = u64::MAX)]
        greatest: u64,
        /// The first byte of a record's pointer to what is printed; without one the record is
        #[arg(long, value_name = "BYTE")]
        pointer: Option<u32>,
        /// The first byte that is printed of each
        #[arg(long, value_name = "BYTE", default_value_t = 0)]
        from: u32,
        /// Bytes that are printed of each
        #[arg(long, value_name = "BYTES", value_parser = within::<u32, 1, 4096>)]
        length: u32,
    },
    /// Replaces an aligned number of 8 bytes if it is as expected, and prints what was there, in 8 bytes
    #[command(after_help = "Examples:\n  rdmakv far run cas64 scratch --at 4096 --old 0 --new 1")]
    Cas64 {
        /// The name of the memory
        name: String,
        /// Its address, a multiple of 8
        #[arg(long, value_name = "ADDRESS")]
        at: u64,
        /// The expected number
        #[arg(long, value_name = "N")]
        old: u64,
        /// The new number
        #[arg(long, value_name = "N")]
        new: u64,
    },
    /// Takes the steps of a module that this user stored at the servers, and prints its reply
    #[command(after_help = "Examples:\n  rdmakv far run module scratch walk --at 4096 --state greeting")]
    Module {
        /// The name of the memory
        name: String,
        /// The name of the module
        module: String,
        /// The address of its first step
        #[arg(long, value_name = "ADDRESS")]
        at: u64,
        /// Its state: up to 128 bytes
        #[arg(long, value_name = "TEXT", default_value = "")]
        state: String,
    },
}

/// The key of a node or an item, and what is printed of it.
#[derive(Args, Debug, Clone)]
pub(super) struct Item {
    /// The key; without one the last node, or the first item of the hash
    #[arg(long, value_name = "KEY", default_value = "")]
    pub(super) key: String,
    /// The first byte of the key in a node or an item
    #[arg(long, value_name = "BYTE", default_value_t = 0)]
    pub(super) key_at: u32,
    /// Bytes that are printed of the one that was found
    #[arg(long, value_name = "BYTES", value_parser = within::<u32, 0, 4096>)]
    pub(super) length: u32,
}

#[derive(Subcommand, Debug)]
pub(super) enum Command {
    /// Writes the values of keys to standard output, as they are
    #[command(
        after_help = "Examples:\n  rdmakv get greeting\n  rdmakv get -v --times 1000 page -o copy.html    with how many were one-sided reads"
    )]
    Get {
        /// Keys; the values of several follow each other, each with a line's end
        #[arg(required = true)]
        keys: Vec<String>,
        /// Times that each key is read; -v reports how many were one-sided reads, and the median time
        #[arg(long, default_value_t = 1, value_parser = within::<u32, 1, { u32::MAX as u64 }>)]
        times: u32,
        /// Write the value to this file, which is left alone where there is none
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Stores a value; prints its version with -v
    #[command(
        after_help = "Examples:\n  rdmakv set greeting hello\n  rdmakv set --ttl 60 page < page.html            from standard input, for a minute\n  rdmakv set --add -i page.html page              only where there is none"
    )]
    Set {
        /// The key
        key: String,
        /// The value; without it, standard input up to its end
        value: Option<String>,
        /// Read the value from this file
        #[arg(short, long, value_name = "FILE", conflicts_with = "value")]
        input: Option<PathBuf>,
        /// When it expires, in seconds from now; 0 is never
        #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = within::<u64, 0, SECONDS>)]
        ttl: u64,
        /// A number that is stored with it
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = within::<u32, 0, { u32::MAX as u64 }>)]
        flags: u32,
        #[command(flatten)]
        how: How,
    },
    /// Deletes keys
    #[command(after_help = "Examples:\n  rdmakv delete greeting page")]
    Delete {
        /// Keys
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Changes when a value expires
    #[command(
        after_help = "Examples:\n  rdmakv touch page 3600                          another hour from now\n  rdmakv touch page --ttl 3600                    the same, as with set"
    )]
    Touch {
        /// The key
        key: String,
        /// Seconds from now; 0 is never
        #[arg(value_parser = within::<u64, 0, SECONDS>, required_unless_present = "ttl")]
        seconds: Option<u64>,
        /// The same, as set has it
        #[arg(long, value_name = "SECONDS", value_parser = within::<u64, 0, SECONDS>, conflicts_with = "seconds")]
        ttl: Option<u64>,
    },
    /// Adds to a number; prints the sum
    #[command(after_help = "Examples:\n  rdmakv incr visits\n  rdmakv incr visits 10")]
    Incr {
        /// The key
        key: String,
        /// How much
        #[arg(default_value_t = 1, value_parser = within::<u64, 0, { u64::MAX }>)]
        by: u64,
    },
    /// Subtracts from a number; prints the difference
    #[command(after_help = "Examples:\n  rdmakv decr stock 2")]
    Decr {
        /// The key
        key: String,
        /// How much
        #[arg(default_value_t = 1, value_parser = within::<u64, 0, { u64::MAX }>)]
        by: u64,
    },
    /// Prints servers' statistics
    #[command(after_help = "Examples:\n  rdmakv stats\n  rdmakv -s 10.0.0.1 -s 10.0.0.2 stats items")]
    Stats {
        /// Which: items, slabs, settings, sizes, reset; without it, the general ones
        #[arg(default_value = "")]
        kind: String,
    },
    /// Shows a live table of what servers do
    #[command(after_help = "Examples:\n  rdmakv watch\n  rdmakv watch -i 5 -c 12                         a minute")]
    Watch {
        /// Seconds between two readings
        #[arg(short, long, default_value_t = 1.0, value_parser = seconds)]
        interval: f64,
        /// Readings until it ends; without it, Ctrl-C ends it
        #[arg(short, long, value_name = "N", value_parser = within::<u64, 0, { u64::MAX }>)]
        count: Option<u64>,
    },
    /// Shows and changes the configuration of a cluster in etcd
    #[command(
        after_help = "Examples:\n  rdmakv --etcd http://10.0.0.1:2379,http://10.0.0.2:2379 cluster init\n  rdmakv cluster policy user: copies:3            etcd's addresses are in RDMAKV_ETCD\n  rdmakv cluster status --json"
    )]
    Cluster(ClusterFlags),
    /// Repairs the keys of a server of a cluster, and ends what clients left behind; the server starts it by itself
    #[command(
        after_help = "Examples:\n  rdmakv --etcd http://10.0.0.1:2379 agent tcp:10.0.0.2:11211\n  rdmakv agent tcp:10.0.0.2:11211 --repair-rate 100   etcd's addresses are in RDMAKV_ETCD"
    )]
    Agent {
        /// The server's name: the first address that it advertises
        name: String,
        /// Megabytes a second that repair sends at most
        #[arg(long, value_name = "MB", default_value_t = 400, value_parser = within::<u64, 1, 1_000_000>)]
        repair_rate: u64,
        /// End when standard input ends, as the server does that started it
        #[arg(long)]
        until_input_ends: bool,
    },
    /// Makes, moves, deletes and measures far memory: memory of servers that one process reads and writes by itself
    #[command(
        after_help = "Examples:\n  rdmakv far create scratch --size 1g --for 3600  prints the secret by which programs open it\n  RDMAKV_FAR_SECRET=SECRET rdmakv far delete scratch\n  rdmakv -s iwarp:10.0.0.1:7471 far bench --record 64 --lanes 2 --depth 16\n  rdmakv far model                                minutes; then, by what was measured:\n  rdmakv far plan --latency 40 --throughput 200000 --record 64"
    )]
    Far {
        #[command(subcommand)]
        command: FarCommand,
    },
    /// Mounts the files of a cluster at a directory; `rdmakv-fuse mount`
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  rdmakv mount /mnt/run7 --backing /lustre/run7\n  rdmakv mount --help"
    )]
    Mount {
        /// As `rdmakv-fuse mount` has them
        #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Tells of files of a cluster that its directory does not have yet, and waits for them; `rdmakv-fuse files`
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  rdmakv files status\n  rdmakv files settle --timeout 600"
    )]
    Files {
        /// As `rdmakv-fuse files` has them
        #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Prints servers' versions
    #[command(after_help = "Examples:\n  rdmakv version")]
    Version,
    /// Empties servers
    #[command(after_help = "Examples:\n  rdmakv flush\n  rdmakv flush --after 30")]
    Flush {
        /// In so many seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = within::<u64, 0, SECONDS>)]
        after: u64,
    },
}

/// How a value is stored.
#[derive(Args, Debug, Clone, Copy)]
#[group(multiple = false)]
pub(super) struct How {
    /// Only where there is none
    #[arg(long)]
    pub(super) add: bool,
    /// Only where there is one
    #[arg(long)]
    pub(super) replace: bool,
    /// At the end of what is there
    #[arg(long)]
    pub(super) append: bool,
    /// At the start of what is there
    #[arg(long)]
    pub(super) prepend: bool,
    /// Only where this version is there
    #[arg(long, value_name = "VERSION", value_parser = within::<u64, 0, { u64::MAX }>)]
    pub(super) cas: Option<u64>,
}

/// The protocol's limit on the time at which an item ends.
const SECONDS: u64 = i32::MAX as u64;

/// Returns a whole number within these bounds, whatever is wrong with another.
fn within<T: TryFrom<u64>, const LOW: u64, const HIGH: u64>(text: &str) -> Result<T, String> {
    let number =
        text.parse().ok().filter(|number| (LOW..=HIGH).contains(number)).and_then(|number| number.try_into().ok());
    number.ok_or_else(|| format!("a whole number is needed, {LOW} to {HIGH}"))
}

/// As the flags say it.
pub(super) fn ends(seconds: u64) -> Expire {
    if seconds == 0 { Expire::Never } else { Expire::In(Duration::from_secs(seconds)) }
}

/// Returns a number of bytes.
fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| "a number of bytes is needed, above 0: 4096, 64m, 1g".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && (1e-3..=1e12).contains(number));
    number.ok_or_else(|| "a number above 0 is needed".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share is needed, 0 to 1".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.05..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "a number of seconds is needed, 0.05 to 3600".to_owned())
}
