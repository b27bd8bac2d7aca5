//! Many connections to another implementation's `rping`, one after the other: how many work, how many stall.
//!
//! ```text
//! rping -s -P                                                   # theirs, on the other machine
//! cargo run -p frrwp --example iwarp-interop -- connect 10.0.0.2:7174 --connections 80
//! cargo run -p frrwp --example iwarp-interop -- serve 0.0.0.0:7174 --connections 80
//! rping -c -a 10.0.0.1 -V -C 3                                  # theirs, 80 times
//! ```
//!
//! A connection works when every ping's text has gone to the server by read and come back by write, and is the same; it stalls
//! when a time limit of this side's ends it; anything else is a failure. The connecting side tries a stalled connection once
//! more. `offend` breaks the rules, or has the peer break them, and says which Terminate ended the connection.
#![allow(unsafe_code, reason = "memory is posted by address")]

mod exchange;
mod offence;
#[path = "../rping/text.rs"]
mod text;

use clap::{Args, Parser, Subcommand, ValueEnum};
use exchange::{Memory, Trouble};
use frrwp::fabric::iwarp::{self, IwarpDomain, IwarpError, IwarpListener, IwarpOptions};
use offence::Offence;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Receives that are posted.
const RECEIVES: u16 = 2;

/// Proves that this crate's iWARP and another implementation's understand each other.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

const EXAMPLES: &str = "\
Examples:
  iwarp-interop serve 0.0.0.0:7174          until somebody's rping has connected as often as is asked for
  iwarp-interop connect server:7174         to an rping -s -P there

Exit status: 0 understood, 1 not, 2 wrong usage.";

#[derive(Subcommand)]
enum Role {
    /// Connects to an rping -s -P, again and again.
    Connect {
        /// HOST:PORT
        address: String,
        #[command(flatten)]
        how: How,
    },
    /// Serves rping -c, until so many connections have worked.
    Serve {
        /// HOST:PORT; port 0 is a free one, and is said
        address: String,
        #[command(flatten)]
        how: How,
        /// Gives up after so many seconds without a connection
        #[arg(long, default_value_t = 30)]
        idle: u64,
    },
    /// Connects, has a rule broken, and says what ended the connection.
    Offend {
        /// HOST:PORT
        address: String,
        /// The offence
        offence: Offence,
        #[command(flatten)]
        how: How,
    },
}

#[derive(Args)]
struct How {
    /// Connections that are to work
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Pings on each
    #[arg(long, default_value_t = 3)]
    pings: u64,
    /// Bytes of a ping's text
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(32..=1 << 20))]
    size: u32,
    /// Whether this side asks for CRCs
    #[arg(long, value_enum, default_value_t = Switch::On)]
    crc: Switch,
    /// Whether this side, when it connects, offers a ready-to-receive message
    #[arg(long, value_enum, default_value_t = Switch::On)]
    ready: Switch,
    /// Seconds that a connection may take
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    within: u64,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl How {
    fn within(&self) -> Duration {
        Duration::from_secs(self.within)
    }

    fn domain(&self) -> Outcome<IwarpDomain> {
        let options = IwarpOptions {
            checksums: self.crc == Switch::On,
            ready_to_receive: self.ready == Switch::On,
            set_up: self.within(),
            stall: self.within(),
            ..IwarpOptions::default()
        };
        Ok(IwarpDomain::new(options)?)
    }
}

/// The outcomes of connections.
#[derive(Default)]
struct Tally {
    worked: u32,
    stalled: u32,
    failed: u32,
}

impl Tally {
    /// Returns whether it worked.
    fn count(&mut self, number: u32, result: Result<(), Trouble>) -> bool {
        match result {
            Ok(()) => self.worked += 1,
            Err(Trouble::Stalled(what)) => {
                self.stalled += 1;
                eprintln!("connection {number} stalled: {what}");
                return false;
            }
            Err(Trouble::Failed(what)) => {
                self.failed += 1;
                eprintln!("connection {number} failed: {what}");
                return false;
            }
        }
        true
    }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().role {
        Role::Connect { address, how } => connect(&address, &how),
        Role::Serve { address, how, idle } => serve(&address, &how, Duration::from_secs(idle)),
        Role::Offend { address, offence, how } => offend(&address, offence, &how),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("iwarp-interop: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every connection worked, or stalled and worked the second time.
fn connect(address: &str, how: &How) -> Outcome<bool> {
    let domain = how.domain()?;
    let mut memory = Memory::new(&domain, how.size as usize)?;
    let (mut first, mut second) = (Tally::default(), Tally::default());
    let address = format!("iwarp:{address}");
    let mut probed = 0;
    for number in 1..=how.connections {
        let mut attempt = || {
            let endpoint = iwarp::connect(&domain, &address, RECEIVES)?;
            let mut exchange = memory.over(endpoint, how.within());
            let result = exchange.pings(how.pings);
            probed += u32::from(exchange.probes_sent() > 0);
            result
        };
        if !first.count(number, attempt()) {
            second.count(number, attempt());
        }
    }
    println!(
        "{} of {} worked at once, {probed} of them probed; {} stalled, {} failed, {} of these worked when tried again",
        first.worked, how.connections, first.stalled, first.failed, second.worked
    );
    Ok(first.failed == 0 && first.worked + second.worked == how.connections)
}

/// Returns whether so many connections worked, and none of the others failed otherwise than by stalling.
fn serve(address: &str, how: &How, idle: Duration) -> Outcome<bool> {
    let domain = how.domain()?;
    let mut memory = Memory::new(&domain, how.size as usize)?;
    let mut listener = IwarpListener::bind(&domain, &format!("iwarp:{address}"))?;
    println!("listening on {}", listener.address()?);
    let mut tally = Tally::default();
    for number in 1.. {
        if tally.worked == how.connections {
            break;
        }
        let endpoint = match listener.accept(RECEIVES, Some(idle)) {
            Ok(endpoint) => endpoint,
            Err(error @ IwarpError::TimedOut { .. }) => {
                eprintln!("{error}");
                break;
            }
            Err(error) => return Err(error.into()),
        };
        if tally.count(number, memory.over(endpoint, how.within()).serves(how.pings)) {
            println!("connection {number} worked");
        }
    }
    if let Some(refused) = listener.last_refused() {
        eprintln!("{} were not set up, the last because: {refused}", listener.refused());
    }
    println!("{} worked, {} stalled, {} failed", tally.worked, tally.stalled, tally.failed);
    Ok(tally.worked == how.connections && tally.failed == 0)
}

fn offend(address: &str, offence: Offence, how: &How) -> Outcome<bool> {
    let domain = how.domain()?;
    let mut memory = Memory::new(&domain, how.size as usize)?;
    let endpoint = iwarp::connect(&domain, &format!("iwarp:{address}"), RECEIVES)?;
    let end = offence.commit(memory.over(endpoint, how.within()));
    println!("{end}");
    Ok(offence.is_answered_by(&end))
}
