//! The exchange of librdmacm's `rping`, client and server, over a fabric of this crate.
//!
//! ```text
//! cargo run -p frrwp --example rping -- -s -a 127.0.0.1 -v -V -C 10
//! cargo run -p frrwp --example rping -- -c -a 127.0.0.1 -v -V -C 10
//! ```
//!
//! A ping, as librdmacm has it; every message is 16 bytes, an address, a key and a size, big-endian:
//!
//! ```text
//! client                                        server
//!   SEND  where its text is  ──────────────────►  READs the text
//!   ◄──────────────────────────────────────────  SEND  go ahead
//!   SEND  where the text is to go  ────────────►  WRITEs the text there
//!   ◄──────────────────────────────────────────  SEND  go ahead
//!   compares (-V)
//! ```
#![allow(unsafe_code, reason = "memory is registered and posted by address")]

mod text;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use frrwp::fabric::iwarp::IwarpOptions;
use frrwp::fabric::{
    Completion, Connector, Domain, Endpoint, FabricDomain, FabricEndpoint, FabricKey, FabricOptions, Local,
};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, PAGE, PageRange};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use text::text;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of a message.
const INFO: usize = 16;
/// Receives that are posted.
const RECEIVES: u16 = 2;
/// How long connecting may take.
const WITHIN: Duration = Duration::from_secs(5);

/// RDMA ping: a text goes to the server by read, and comes back by write.
#[derive(Parser)]
#[command(disable_version_flag = true, after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("side").args(["client", "server"]).required(true))]
struct Arguments {
    /// Is the client.
    #[arg(short = 'c')]
    client: bool,
    /// Is the server.
    #[arg(short = 's')]
    server: bool,
    /// The server's address; the server listens on all unless it is given.
    #[arg(short = 'a', default_value = "0.0.0.0")]
    address: String,
    /// The port.
    #[arg(short = 'p', default_value_t = 7174)]
    port: u16,
    /// Pings; without it the client goes on until it is ended.
    #[arg(short = 'C')]
    count: Option<u64>,
    /// Bytes of a ping's text.
    #[arg(short = 'S', default_value_t = 100, value_parser = clap::value_parser!(u32).range(16..=64 << 20))]
    size: u32,
    /// Shows each ping's text.
    #[arg(short = 'v')]
    verbose: bool,
    /// Compares what comes back with what was sent.
    #[arg(short = 'V')]
    validate: bool,
    /// The network.
    #[arg(long, default_value = "iwarp")]
    fabric: Fabric,
    /// Negotiates without CRCs: they are used only if the peer asks for them. Over iwarp.
    #[arg(long)]
    no_crc: bool,
}

const EXAMPLES: &str = "\
Examples:
  rping -s -v                                  serves one client, on all addresses
  rping -c -a 10.0.0.1 -v -V -C 10             ten pings, compared
  rping -c -a 10.0.0.1 -C 1000 --no-crc        without CRCs, if the server agrees

Exit status: 0 done, 1 failed, 2 wrong usage.";

#[derive(Clone, Copy, ValueEnum)]
enum Fabric {
    /// User space, over TCP.
    Iwarp,
    /// An RDMA device: built in with `--features verbs`.
    Verbs,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.no_crc && matches!(arguments.fabric, Fabric::Verbs) {
        let text = "--no-crc --fabric verbs: a device decides about its CRCs by itself: leave --no-crc out";
        Arguments::command().error(ErrorKind::ArgumentConflict, text).exit();
    }
    if let Err(error) = run(&arguments) {
        eprintln!("rping: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Returns the address on this fabric.
fn on(fabric: &str, arguments: &Arguments) -> String {
    let Arguments { address, port, .. } = arguments;
    if address.contains(':') { format!("{fabric}:[{address}]:{port}") } else { format!("{fabric}:{address}:{port}") }
}

fn run(arguments: &Arguments) -> Outcome<()> {
    let fabric = if matches!(arguments.fabric, Fabric::Iwarp) { "iwarp" } else { "verbs" };
    let address = on(fabric, arguments);
    let iwarp = IwarpOptions { checksums: !arguments.no_crc, ..IwarpOptions::default() };
    let domain = FabricDomain::new(&address.parse()?, FabricOptions { iwarp, ..FabricOptions::default() })?;
    if arguments.server {
        let mut listener = domain.listen_at(&address)?;
        // A user of port 0 needs to know.
        println!("listening on {}", listener.address().trim_start_matches(fabric).trim_start_matches(':'));
        Side::new(&domain, agreed(listener.accept(RECEIVES, None)?, arguments), arguments)?.serve()
    } else {
        Side::new(&domain, agreed(domain.connect_to(&address, RECEIVES, WITHIN)?, arguments), arguments)?.ping()
    }
}

/// Prints the outcome of the negotiation, if the user asked for one without CRCs.
fn agreed(endpoint: FabricEndpoint, arguments: &Arguments) -> FabricEndpoint {
    match endpoint.checksums() {
        _ if !arguments.no_crc => {}
        Some(true) => println!("connected with CRCs: the peer asks for them"),
        _ => println!("connected without CRCs"),
    }
    endpoint
}

/// Memory of whole pages, registered.
struct Buffer<'a> {
    domain: &'a FabricDomain,
    pages: Vec<u8>,
    start: usize,
    length: usize,
    registered: Option<Registered<FabricKey>>,
}

impl<'a> Buffer<'a> {
    fn new(domain: &'a FabricDomain, length: usize, access: Access) -> Outcome<Self> {
        let mut pages = vec![0; length + 2 * PAGE as usize];
        let start = pages.as_ptr().align_offset(PAGE as usize);
        let range = PageRange::of_bytes(pages[start..].as_mut_ptr() as u64, length as u64)?;
        let registration = domain.register(range, access)?;
        Ok(Self { domain, pages, start, length, registered: Some(Registered { range, access, registration }) })
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.pages[self.start..self.start + self.length]
    }

    fn local(&mut self, length: usize) -> Option<Local<'_, FabricKey>> {
        let address = self.pages[self.start..].as_mut_ptr();
        self.registered.as_ref().map(|registered| Local { address, length, registration: &registered.registration })
    }

    fn remote(&mut self) -> Option<Segment> {
        let address = self.pages[self.start..].as_ptr();
        self.registered.as_ref().map(|registered| self.domain.remote(&registered.registration, address, self.length))
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let mut batch: Vec<_> = self.registered.take().into_iter().collect();
        if self.domain.deregister(&mut batch).is_err() || !batch.is_empty() {
            // Still registered: peers may reach it.
            std::mem::forget(std::mem::take(&mut self.pages));
        }
    }
}

struct Side<'a> {
    // Dropped before the memory that it uses.
    endpoint: FabricEndpoint,
    domain: &'a FabricDomain,
    arguments: &'a Arguments,
    text: Buffer<'a>,
    message: Box<[u8; MESSAGE]>,
    /// The connection has come to its end, and says nothing more.
    flushed: bool,
}

impl<'a> Side<'a> {
    fn new(domain: &'a FabricDomain, endpoint: FabricEndpoint, arguments: &'a Arguments) -> Outcome<Self> {
        // The server reads into it: over iWARP, most cards want peers to be let write such memory.
        let peers = if arguments.server { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        let access = Access::LOCAL | peers;
        let text = Buffer::new(domain, arguments.size as usize, access)?;
        Ok(Self { endpoint, domain, arguments, text, message: Box::new([0; MESSAGE]), flushed: false })
    }

    /// Returns the next thing that happens; `None` at the end of the connection.
    fn next(&mut self) -> Option<Completion> {
        while !self.flushed {
            match self.endpoint.poll(&mut self.message) {
                Some(Completion::Flushed) => self.flushed = true,
                // Of the connection's end: the flush follows.
                Some(Completion::Lost | Completion::Done { succeeded: false, .. }) => {}
                Some(completion) => return Some(completion),
                None => self.endpoint.wait(None),
            }
        }
        None
    }

    fn lost(&self) -> Box<dyn Error> {
        self.endpoint.why().unwrap_or_else(|| "the connection is gone".to_owned()).into()
    }

    fn tell(&mut self, segment: Segment) -> Outcome<()> {
        let mut info = [0; INFO];
        info[..8].copy_from_slice(&segment.address.to_be_bytes());
        info[8..12].copy_from_slice(&segment.key.to_be_bytes());
        info[12..].copy_from_slice(&(segment.length as u32).to_be_bytes());
        self.endpoint.send(&info).map_err(|_| self.lost())
    }

    /// Returns the peer's next message; `None` at the end of the connection.
    fn told(&mut self) -> Outcome<Option<Segment>> {
        match self.next() {
            None => Ok(None),
            Some(Completion::Message { length: INFO }) => {
                self.endpoint.receive(1)?;
                let word =
                    |at: usize| self.message[at..at + 4].iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
                Ok(Some(Segment { address: word(0) << 32 | word(4), length: word(12), key: word(8) as u32 }))
            }
            Some(other) => {
                Err(format!("the peer does not speak rping: {other:?} where {INFO} bytes were to come").into())
            }
        }
    }

    fn ping(&mut self) -> Outcome<()> {
        let size = self.arguments.size as usize;
        let mut back = Buffer::new(self.domain, size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let result = self.pings(&mut back, size);
        // Before the memory goes.
        self.endpoint.disconnect();
        while self.next().is_some() {}
        result
    }

    fn pings(&mut self, back: &mut Buffer<'a>, size: usize) -> Outcome<()> {
        for ping in 0..self.arguments.count.unwrap_or(u64::MAX) {
            let text = text(ping, size);
            self.text.bytes().copy_from_slice(&text);
            let segment = self.text.remote().ok_or("not registered")?;
            self.tell(segment)?;
            self.told()?.ok_or_else(|| self.lost())?;
            let segment = back.remote().ok_or("not registered")?;
            self.tell(segment)?;
            self.told()?.ok_or_else(|| self.lost())?;
            if self.arguments.validate && back.bytes() != text {
                return Err(format!("ping {ping}: data mismatch").into());
            }
            self.show("ping data", &back.bytes()[..]);
        }
        Ok(())
    }

    fn serve(&mut self) -> Outcome<()> {
        let size = self.arguments.size as usize;
        let mut pings = 0;
        let result = loop {
            match self.serve_one(pings, size) {
                Ok(true) => pings += 1,
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.endpoint.disconnect();
        while self.next().is_some() {}
        println!("served {pings} pings");
        match self.arguments.count {
            Some(count) if result.is_ok() && pings < count => Err(format!("{pings} pings instead of {count}").into()),
            _ => result,
        }
    }

    /// False where the client has gone between two pings.
    fn serve_one(&mut self, ping: u64, size: usize) -> Outcome<bool> {
        let Some(source) = self.told()? else { return Ok(false) };
        if source.length as usize > size || source.length == 0 {
            return Err(format!("the client pings with {} bytes: start the server with -S {0}", source.length).into());
        }
        let length = source.length as usize;
        let local = self.text.local(length).ok_or("not registered")?;
        // SAFETY: the text is this side's, and has no other user until the read is done or the connection is flushed, which
        // is waited for before it goes.
        unsafe { self.endpoint.read(ping, &[local], source) }?;
        self.done()?;
        let text = self.text.bytes()[..length].to_vec();
        if self.arguments.validate && text != self::text(ping, length) {
            return Err(format!("ping {ping}: the client's text is not what rping sends").into());
        }
        self.show("server ping data", &text);
        self.tell(source)?;
        let sink = self.told()?.ok_or_else(|| self.lost())?;
        let sink = Segment { length: sink.length.min(source.length), ..sink };
        let local = self.text.local(sink.length as usize).ok_or("not registered")?;
        // SAFETY: the buffer is registered and has no other user until the ping is done.
        unsafe { self.endpoint.write(ping, &[local], sink, None) }?;
        self.done()?;
        self.tell(sink)?;
        Ok(true)
    }

    fn done(&mut self) -> Outcome<()> {
        match self.next() {
            Some(Completion::Done { .. }) => Ok(()),
            Some(other) => Err(format!("the peer does not speak rping: {other:?}").into()),
            None => Err(self.lost()),
        }
    }

    fn show(&self, what: &str, text: &[u8]) {
        if self.arguments.verbose {
            let text = text.strip_suffix(&[0]).unwrap_or(text);
            println!("{what}: {}", String::from_utf8_lossy(text));
        }
    }
}
