//! rping's exchange, on either side, with a time limit for the whole of it.
//!
//! Every message is 16 bytes, an address, a key and a size, big-endian. The client says where its text is, the server reads it
//! and says so. The client says where it is to go, the server writes it there and says so. librdmacm's server numbers pings
//! from 0, and so does its client.

use crate::text::text;
use frrwp::fabric::iwarp::{IwarpDomain, IwarpEnd, IwarpEndpoint, IwarpError, IwarpKey};
use frrwp::fabric::{Completion, Domain, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::registrar::Registrar;
use mrrc::{Access, PAGE, PageRange};
use std::io;
use std::time::Duration;

/// Bytes of a message.
const INFO: usize = 16;

/// Why a connection did not work.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// A time limit of this side's ended it.
    Stalled(String),
    /// Anything else.
    Failed(String),
}

impl From<IwarpError> for Trouble {
    fn from(error: IwarpError) -> Self {
        match error {
            IwarpError::TimedOut { .. } => Self::Stalled(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A ping's text, and where it comes back. It lives as long as the process, so that nothing can be posted for too long.
pub(crate) struct Memory<'a> {
    domain: &'a IwarpDomain,
    bytes: &'static mut [u8],
    size: usize,
    registration: IwarpKey,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(domain: &'a IwarpDomain, size: usize) -> io::Result<Self> {
        let pages = vec![0; 2 * size + 2 * PAGE as usize].leak();
        let start = pages.as_ptr().align_offset(PAGE as usize);
        let bytes = &mut pages[start..start + 2 * size];
        let range = PageRange::of_bytes(bytes.as_ptr() as u64, bytes.len() as u64).map_err(io::Error::other)?;
        let access = Access::LOCAL | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        Ok(Self { domain, bytes, size, registration: domain.register(range, access)? })
    }

    /// The exchange over a connection.
    pub(crate) fn over<'m>(&'m mut self, endpoint: IwarpEndpoint, within: Duration) -> Exchange<'a, 'm> {
        let until = endpoint.now() + u64::try_from(within.as_nanos()).unwrap_or(u64::MAX / 2);
        Exchange { memory: self, endpoint, message: Box::new([0; MESSAGE]), until, within, flushed: false }
    }
}

/// A connection and what goes over it.
pub(crate) struct Exchange<'a, 'm> {
    memory: &'m mut Memory<'a>,
    endpoint: IwarpEndpoint,
    message: Box<[u8; MESSAGE]>,
    until: u64,
    within: Duration,
    flushed: bool,
}

impl Exchange<'_, '_> {
    /// Is rping's client.
    pub(crate) fn pings(&mut self, count: u64) -> Result<(), Trouble> {
        for ping in 0..count {
            self.ping(ping)?;
        }
        Ok(())
    }

    /// One ping, of this number.
    pub(crate) fn ping(&mut self, ping: u64) -> Result<(), Trouble> {
        let size = self.memory.size;
        let text = text(ping, size);
        let (out, back) = self.memory.bytes.split_at_mut(size);
        out.copy_from_slice(&text);
        back.fill(0);
        self.tell(self.segment(0))?;
        self.told()?;
        self.tell(self.segment(size))?;
        self.told()?;
        if self.memory.bytes[size..] != text {
            return Err(Trouble::Failed(format!("ping {ping}: the text is another when it comes back")));
        }
        Ok(())
    }

    /// Is rping's server, for a client that pings so often.
    pub(crate) fn serves(mut self, count: u64) -> Result<(), Trouble> {
        let size = self.memory.size;
        for ping in 0..count {
            let source = self.told()?;
            if source.length as usize != size {
                return Err(Trouble::Failed(format!("the client pings with {} bytes, not with {size}", source.length)));
            }
            self.read(source)?;
            self.done()?;
            if self.memory.bytes[..size] != text(ping, size) {
                return Err(Trouble::Failed(format!("ping {ping}: the text is not what rping sends")));
            }
            self.tell(source)?;
            let sink = self.told()?;
            self.write(sink)?;
            self.done()?;
            self.tell(sink)?;
        }
        // The client compares and goes; a connection that ends before would be its failure.
        match self.next()? {
            None => Ok(()),
            Some(other) => Err(Trouble::Failed(format!("{other:?} after the last ping"))),
        }
    }

    /// Returns the place of these bytes, for the peer.
    pub(crate) fn segment(&self, at: usize) -> Segment {
        let memory = &self.memory;
        memory.domain.remote(&memory.registration, memory.bytes[at..].as_ptr(), memory.size)
    }

    pub(crate) fn tell(&mut self, segment: Segment) -> Result<(), Trouble> {
        let mut info = [0; INFO];
        info[..8].copy_from_slice(&segment.address.to_be_bytes());
        info[8..12].copy_from_slice(&segment.key.to_be_bytes());
        info[12..].copy_from_slice(&(segment.length as u32).to_be_bytes());
        self.endpoint.send(&info).map_err(|_| self.lost())
    }

    /// Returns the peer's next message.
    pub(crate) fn told(&mut self) -> Result<Segment, Trouble> {
        match self.next()? {
            Some(Completion::Message { length: INFO }) => {
                self.endpoint.receive(1)?;
                let word =
                    |at: usize| self.message[at..at + 4].iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
                Ok(Segment { address: word(0) << 32 | word(4), length: word(12), key: word(8) as u32 })
            }
            Some(other) => Err(Trouble::Failed(format!("{other:?} where a message was to come"))),
            None => Err(self.lost()),
        }
    }

    /// Posts a read of the peer's memory into the text.
    pub(crate) fn read(&mut self, from: Segment) -> Result<(), Trouble> {
        let length = (from.length as usize).min(self.memory.size);
        let registration = &self.memory.registration;
        let local = Local { address: self.memory.bytes.as_mut_ptr(), length, registration };
        // SAFETY: the bytes live and are registered as long as the process, and are not used until the read is done or the
        // connection is flushed, which dropping this waits for.
        unsafe { self.endpoint.read(0, &[local], from) }.map_err(|_| self.lost())
    }

    /// Posts a write of the text into the peer's memory.
    pub(crate) fn write(&mut self, to: Segment) -> Result<(), Trouble> {
        let length = (to.length as usize).min(self.memory.size);
        let registration = &self.memory.registration;
        let local = Local { address: self.memory.bytes.as_mut_ptr(), length, registration };
        let to = Segment { length: length as u64, ..to };
        // SAFETY: the memory stays registered and has no other user until `done` has returned, as for reads.
        unsafe { self.endpoint.write(0, &[local], to, None) }.map_err(|_| self.lost())
    }

    fn done(&mut self) -> Result<(), Trouble> {
        match self.next()? {
            Some(Completion::Done { .. }) => Ok(()),
            Some(other) => Err(Trouble::Failed(format!("{other:?} where a read or write was to end"))),
            None => Err(self.lost()),
        }
    }

    /// How often the peer had to be probed.
    pub(crate) fn probes_sent(&self) -> u32 {
        self.endpoint.probes_sent()
    }

    /// Why the connection ended, once it has.
    pub(crate) fn end(&mut self) -> Result<Option<IwarpEnd>, Trouble> {
        while self.next()?.is_some() {}
        Ok(self.endpoint.why())
    }

    /// Returns the next thing that happens; `None` at the end of the connection.
    fn next(&mut self) -> Result<Option<Completion>, Trouble> {
        while !self.flushed {
            match self.endpoint.poll(&mut self.message) {
                Some(Completion::Flushed) => self.flushed = true,
                // Of the connection's end: the flush follows.
                Some(Completion::Lost | Completion::Done { succeeded: false, .. }) => {}
                Some(completion) => return Ok(Some(completion)),
                None if self.endpoint.now() >= self.until => {
                    return Err(Trouble::Stalled(format!("not over within {} s", self.within.as_secs())));
                }
                None => self.endpoint.wait(Some(self.until)),
            }
        }
        Ok(None)
    }

    fn lost(&self) -> Trouble {
        match self.endpoint.why() {
            Some(why @ IwarpEnd::Stalled { .. }) => Trouble::Stalled(why.to_string()),
            Some(why) => Trouble::Failed(why.to_string()),
            None => Trouble::Failed("the connection is gone".to_owned()),
        }
    }
}

impl Drop for Exchange<'_, '_> {
    /// Nothing is posted any more when it is over.
    fn drop(&mut self) {
        self.endpoint.disconnect();
        while !self.flushed {
            match self.endpoint.poll(&mut self.message) {
                Some(Completion::Flushed) => self.flushed = true,
                Some(_) => {}
                None => self.endpoint.wait(None),
            }
        }
    }
}
