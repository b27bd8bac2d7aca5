//! The files: made, opened, wiped and compared.

use crate::pool::Draw;
use crate::{Options, Result};
use mrrc::PAGE;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file to copy and its copy.
pub(crate) struct Job {
    pub(crate) from: Opened,
    pub(crate) to: Opened,
    pub(crate) length: u64,
    pub(crate) chunk: u64,
    /// Transfers pass by the page cache.
    pub(crate) direct: bool,
    pub(crate) file_system: String,
    /// The file to remove at the end unless the copy succeeded.
    unfinished: Option<PathBuf>,
}

/// A file, opened once for transfers and once for what is not measured.
pub(crate) struct Opened {
    pub(crate) transfers: File,
    plain: File,
}

impl Job {
    pub(crate) fn open(options: &Options, chunk: u64) -> Result<Self> {
        let dir = options.dir.clone().unwrap_or_else(std::env::temp_dir);
        let direct = !options.buffered;
        let (from, file_system) = match &options.from {
            Some(path) => (Opened::existing(path, direct)?, file_system(path)),
            None => {
                let from = Opened::temporary(&dir, "from", direct)?;
                fill(&from.plain, options.size)
                    .map_err(|error| format!("filling a file in {}: {error}", dir.display()))?;
                (from, file_system(&dir))
            }
        };
        let length = from.plain.metadata()?.len();
        let mut unfinished = None;
        let to = match &options.to {
            Some(path) => {
                let to = Opened::create(path, direct)?;
                unfinished = Some(path.clone());
                to
            }
            None => Opened::temporary(&dir, "to", direct)?,
        };
        Ok(Self { from, to, length, chunk, direct, file_system, unfinished })
    }

    /// Direct transfers take whole blocks: the last one reads and writes past the end, and the copy is cut afterwards.
    pub(crate) fn transfer_length(&self, offset: u64) -> u64 {
        let bytes = self.chunk.min(self.length - offset);
        if self.direct { bytes.next_multiple_of(PAGE) } else { bytes }
    }

    pub(crate) fn finish(&self) -> Result<()> {
        Ok(self.to.plain.set_len(self.length)?)
    }

    /// Makes sure that what is compared later was written by the copy that comes now.
    pub(crate) fn wipe_copy(&self) -> Result<()> {
        let zeros = vec![0; 1 << 20];
        for offset in (0..self.length).step_by(zeros.len()) {
            let bytes = zeros.len().min((self.length - offset) as usize);
            self.to.plain.write_all_at(&zeros[..bytes], offset).map_err(|error| format!("wiping the copy: {error}"))?;
        }
        self.to.plain.sync_data()?;
        self.forget();
        Ok(())
    }

    pub(crate) fn compare(&self) -> Result<()> {
        let (mut original, mut copy) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        for offset in (0..self.length).step_by(original.len()) {
            let bytes = original.len().min((self.length - offset) as usize);
            self.from.plain.read_exact_at(&mut original[..bytes], offset)?;
            self.to.plain.read_exact_at(&mut copy[..bytes], offset)?;
            if let Some(at) = (0..bytes).find(|&at| original[at] != copy[at]) {
                return Err(format!("the copy differs from the original at byte {}", offset + at as u64).into());
            }
        }
        if self.to.plain.metadata()?.len() != self.length {
            return Err("the copy is longer than the original".into());
        }
        self.forget();
        Ok(())
    }

    /// Takes the files out of the page cache: direct transfers would have to look after what is there.
    fn forget(&self) {
        if self.direct {
            for file in [&self.from.plain, &self.to.plain] {
                #[expect(unsafe_code, reason = "a system call")]
                // SAFETY: no memory is passed. It is advice: that it is not taken is no matter.
                unsafe {
                    libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
                }
            }
        }
    }

    pub(crate) fn keep(&mut self) {
        self.unfinished = None;
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(path) = &self.unfinished {
            let _ = fs::remove_file(path);
        }
    }
}

impl Opened {
    fn existing(path: &Path, direct: bool) -> Result<Self> {
        let at = |error: io::Error| format!("{}: {error}", path.display());
        let about = fs::metadata(path).map_err(at)?;
        if !about.is_file() || about.len() == 0 {
            return Err(format!("{}: not a regular file with anything in it", path.display()).into());
        }
        Self::open(path, direct, OpenOptions::new().read(true))
    }

    fn create(path: &Path, direct: bool) -> Result<Self> {
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        created.map_err(|error| format!("making {}: {error}", path.display()))?;
        let opened = Self::open(path, direct, OpenOptions::new().read(true).write(true));
        if opened.is_err() {
            let _ = fs::remove_file(path);
        }
        opened
    }

    /// Returns a file without a name, so that it is gone when the program is, however that ends.
    fn temporary(dir: &Path, role: &str, direct: bool) -> Result<Self> {
        let path = dir.join(format!("mrrc-uring-copy-{}-{role}", std::process::id()));
        let opened = Self::create(&path, direct)?;
        fs::remove_file(&path)?;
        Ok(opened)
    }

    fn open(path: &Path, direct: bool, how: &mut OpenOptions) -> Result<Self> {
        let plain = how.open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let transfers = how.custom_flags(flags).open(path).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => format!(
                "{}: its file system ({}) has no direct transfers: choose another by --dir, or --buffered",
                path.display(),
                file_system(path)
            ),
            _ => format!("{}: {error}", path.display()),
        })?;
        Ok(Self { transfers, plain })
    }
}

fn fill(file: &File, length: u64) -> io::Result<()> {
    let mut draw = Draw::new(42);
    let mut bytes = vec![0; 1 << 20];
    for offset in (0..length).step_by(bytes.len()) {
        bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&draw.next().to_ne_bytes()));
        let count = bytes.len().min((length - offset) as usize);
        file.write_all_at(&bytes[..count], offset)?;
    }
    file.sync_data()
}

/// Returns the type of the file system that a file is on: of the innermost mount that holds it.
fn file_system(path: &Path) -> String {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let inside = fields.filter(|(mount, _)| path.starts_with(mount));
    // The last of several mounts on the same place counts, and `max_by_key` gives the last.
    inside.max_by_key(|(mount, _)| mount.len()).map_or("unknown file system", |(_, kind)| kind).to_owned()
}
