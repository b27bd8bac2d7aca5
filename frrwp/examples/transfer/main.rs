//! A file to another process and back, by FRRWP and by the traditional process, and what they differ by.
//!
//! ```text
//! cargo run --release -p frrwp --example transfer -- server --fabric shm:@example --cost paper
//! cargo run --release -p frrwp --example transfer -- client --fabric shm:@example --cost paper FILE
//! ```
//!
//! The client has two connections, one for each process of the handshake, which take turns. In a round the file goes there,
//! chunk by chunk, each written from the client's memory into the server's. Then it comes back, each chunk read by the client.
//! A chunk is a transfer, and by default its memory is registered anew for each. The server keeps nothing.
//!
//! `greeting.rs` is what is said before the first transfer, `client.rs` and `server.rs` are the two sides. To copy from: nothing
//! depends on the fabric, which the address chooses.
#![allow(unsafe_code, reason = "buffers are lent to engines by address")]

mod client;
mod greeting;
mod priced;
mod server;

use clap::{Args, Parser, Subcommand};
use frrwp::fabric::{FabricAddress, FabricDomain, FabricEndpoint, FabricOptions};
use mrrc::cost::Linear;
use priced::{Priced, PricedEndpoint};
use std::path::PathBuf;
use std::process::ExitCode;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Sends a file to another process and back, by FRRWP and by the traditional process, and says what they differ by
#[derive(Parser)]
#[command(name = "transfer", after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    side: Side,
}

#[derive(Subcommand)]
enum Side {
    /// Takes files into its memory, and gives them back, until it is ended
    #[command(after_help = EXAMPLES)]
    Server(Server),
    /// Sends a file there and back, and compares
    #[command(after_help = EXAMPLES)]
    Client(Client),
}

#[derive(Args)]
struct Common {
    /// shm:PATH or shm:@NAME on one machine, iwarp:HOST:PORT over TCP; verbs:HOST:PORT over RDMA devices, where they are
    /// built in (--features verbs)
    #[arg(long, value_name = "ADDRESS")]
    fabric: FabricAddress,

    /// Cost of registrations: paper (a card), io-uring, fmr, or a,b,a',b' in µs; the side that registers computes that
    /// long. `none` is what the fabric's own registrations take, next to nothing
    #[arg(long, value_name = "COST", default_value = "none", value_parser = cost)]
    cost: Linear,
}

#[derive(Args)]
struct Server {
    #[command(flatten)]
    common: Common,

    /// The largest file, for which there is memory: 64K, 512M, 2G
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    most: u64,

    /// Ends when its first client has
    #[arg(long)]
    once: bool,
}

#[derive(Args)]
struct Client {
    #[command(flatten)]
    common: Common,

    /// Bytes of a transfer: 4K to 256M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = chunk)]
    chunk: u64,

    /// Times there and back, by each process; medians are printed
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,

    /// Keeps what is registered from round to round: all but the first find it in the caches
    #[arg(long)]
    keep: bool,

    /// The file to send
    file: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  transfer server --fabric shm:@example --cost paper
  transfer client --fabric shm:@example --cost paper big.file

  transfer server --fabric iwarp:0.0.0.0:7471           port 0 takes a free one and prints it
  transfer client --fabric iwarp:server.example:7471 --chunk 64K --rounds 99 big.file

Over shm both run as one user on one machine. Over iwarp nothing is encrypted.

Exit status: 0 done, 1 failed, 2 wrong usage.";

/// One end of a connection, with the user's cost of registrations.
type End = PricedEndpoint<FabricEndpoint>;

impl Common {
    /// Returns a domain for the address.
    fn domain(&self) -> Outcome<Priced<FabricDomain>> {
        Ok(Priced::new(FabricDomain::new(&self.fabric, FabricOptions::default())?, self.cost))
    }
}

fn main() -> ExitCode {
    let done = match &Arguments::parse().side {
        Side::Server(server) => server::run(server),
        Side::Client(client) => client::run(client),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transfer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn cost(text: &str) -> Result<Linear, String> {
    if text == "none" {
        return Ok(Linear { reg_page: 0.0, reg_call: 0.0, dereg_page: 0.0, dereg_call: 0.0 });
    }
    text.parse().map_err(|error| format!("{error}, or none"))
}

fn chunk(text: &str) -> Result<u64, String> {
    size(text).ok().filter(|bytes| (4 << 10..=256 << 20).contains(bytes)).ok_or_else(|| "from 4K to 256M".to_owned())
}

/// `4096`, `64K`, `512M`, `2G`.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "a size is a number of bytes, or one with K, M or G behind it")?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes > 0).ok_or_else(|| "from 1 byte to 2^64 − 1".to_owned())
}
