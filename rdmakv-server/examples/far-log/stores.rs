//! The stores of a log: memory of this process, a file by io_uring, and far memory, by reads or by walks.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use io_uring::{IoUring, opcode, squeue, types};
use rdmakv_client::far::{Lane, Memory, Procedure, Runner, Walk};

use super::log::{Outcome, PAGE, PREVIOUS, RECORD, Store, follow, number};

/// Memory of this process.
#[derive(Default)]
pub(crate) struct Ram(Vec<u8>);

impl Store for Ram {
    fn append(&mut self, _: u64, bytes: &[u8; PAGE]) -> Outcome<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, at: u64) -> Outcome<[u8; RECORD]> {
        let at = at as usize - PAGE;
        Ok(self.0[at..at + RECORD].try_into()?)
    }
}

/// A file that is read and written by io_uring, one operation after the other.
pub(crate) struct Local {
    /// Dropped first: nothing is under way after that.
    ring: IoUring,
    file: File,
    /// For direct access, which takes whole pages at aligned addresses.
    page: Option<Box<Aligned>>,
}

/// A page at a multiple of its length.
#[repr(align(4096))]
pub(crate) struct Aligned([u8; PAGE]);

impl Local {
    /// Makes a file without a name in a directory. Direct access goes past the system's page cache.
    pub(crate) fn new(directory: &Path, is_direct: bool) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = libc::O_TMPFILE | if is_direct { libc::O_DIRECT } else { 0 };
        let unnamed = File::options().read(true).write(true).custom_flags(flags).open(directory);
        let page = is_direct.then(|| Box::new(Aligned([0; PAGE])));
        Ok(Self { ring: IoUring::new(2)?, file: unnamed?, page })
    }

    /// Carries an operation out.
    #[expect(unsafe_code, reason = "the kernel is lent a buffer")]
    fn carry_out(&mut self, entry: &squeue::Entry, bytes: usize) -> Outcome<()> {
        // SAFETY: `push` requires that the entry's file and buffer are good until the operation ends. The callers' buffers outlive this call,
        // which returns once the operation has ended: nothing else is under way in the ring.
        unsafe { self.ring.submission().push(entry)? };
        self.ring.submit_and_wait(1)?;
        let done = self.ring.completion().next().map_or(0, |completed| completed.result());
        if done < 0 {
            return Err(io::Error::from_raw_os_error(-done).into());
        }
        if done as usize == bytes {
            Ok(())
        } else {
            Err(format!("the file took or gave {done} of {bytes} bytes").into())
        }
    }
}

impl Store for Local {
    fn append(&mut self, page: u64, bytes: &[u8; PAGE]) -> Outcome<()> {
        let file = types::Fd(self.file.as_raw_fd());
        let bytes = match &mut self.page {
            Some(aligned) => {
                aligned.0 = *bytes;
                &aligned.0
            }
            None => bytes,
        };
        let entry = opcode::Write::new(file, bytes.as_ptr(), PAGE as u32).offset(page * PAGE as u64).build();
        self.carry_out(&entry, PAGE)
    }

    fn read(&mut self, at: u64) -> Outcome<[u8; RECORD]> {
        let file = types::Fd(self.file.as_raw_fd());
        if let Some(mut page) = self.page.take() {
            let (within, begin) = (at as usize % PAGE, at / PAGE as u64 * PAGE as u64);
            let entry = opcode::Read::new(file, page.0.as_mut_ptr(), PAGE as u32).offset(begin).build();
            let done = self.carry_out(&entry, PAGE);
            let record = page.0[within..within + RECORD].try_into();
            self.page = Some(page);
            return done.and(Ok(record?));
        }
        let mut record = [0; RECORD];
        let entry = opcode::Read::new(file, record.as_mut_ptr(), RECORD as u32).offset(at).build();
        self.carry_out(&entry, RECORD)?;
        Ok(record)
    }
}

/// Far memory. A chain is followed by one-sided reads, or by a walk at the server.
pub(crate) struct Far {
    lane: Lane,
    runner: Option<Runner>,
}

impl Far {
    /// Returns a store in a memory. It walks if that is wanted.
    pub(crate) fn new(memory: &Memory, walks: bool) -> Outcome<Self> {
        Ok(Self { lane: memory.lane()?, runner: walks.then(|| memory.runner()) })
    }
}

impl Store for Far {
    fn append(&mut self, page: u64, bytes: &[u8; PAGE]) -> Outcome<()> {
        let mut buffer = self.lane.buffer(PAGE)?;
        buffer.copy_from_slice(bytes);
        let ticket = self.lane.write(page * PAGE as u64, buffer)?;
        self.lane.wait(ticket)?;
        Ok(())
    }

    fn read(&mut self, at: u64) -> Outcome<[u8; RECORD]> {
        let ticket = self.lane.read(at, self.lane.buffer(RECORD)?)?;
        Ok(self.lane.wait(ticket)?[..].try_into()?)
    }

    fn find(&mut self, at: u64, key: u64) -> Outcome<Option<u64>> {
        let Some(runner) = &mut self.runner else { return follow(self, at, key) };
        let walk = Walk {
            at,
            next: PREVIOUS as u32,
            key_at: 0,
            nodes: u32::MAX,
            length: RECORD as u32,
            key: key.to_le_bytes().to_vec(),
        };
        let mut next = Procedure::Walk(walk);
        loop {
            let outcome = runner.call(next)?;
            match outcome.rest {
                // It came to a limit.
                Some(rest) => next = rest,
                None if outcome.at == 0 => return Ok(None),
                None => return Ok(Some(number(&outcome.reply, 8))),
            }
        }
    }
}
