//! The backing directory: files that are only there, bytes of persisted generations, and the folder `.rdmakv`.
//!
//! ```text
//! .rdmakv/id             the cluster that this directory belongs to: 32 hexadecimal digits
//! .rdmakv/directory      the directory's own number, which etcd has as that of the cluster's directory: as many
//! .rdmakv/data/INO.GEN   a generation's bytes, while the inode is in memory; hexadecimal
//! .rdmakv/data/INO.GEN.w chunks of a generation that its writer could not store in memory
//! .rdmakv/new/           staging folders of agents
//! ```
//!
//! Directories are opened name by name, and no symbolic link is followed on the way.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdmakv_proto::files::{Generation, Ino, Key, Kind, Time, is_name};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat, StatVfsMountFlags, fsync, linkat, openat, readlinkat, statat,
    unlinkat,
};
use rustix::io::Errno;

use crate::directory::{parse, text};
use crate::error::{Error, Result};
use crate::persist::Space;
use crate::random::random;

/// The folder of the file system's own, which no program sees.
pub(crate) const FOLDER: &[u8] = b".rdmakv";

/// The way to a directory from the backing's root, name by name.
pub(crate) type Names = Vec<Vec<u8>>;

/// A file, directory or link on the backing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) kind: Kind,
    pub(crate) mode: u16,
    pub(crate) owner: u32,
    pub(crate) group: u32,
    pub(crate) size: u64,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    pub(crate) number: u64,
    /// Target of a symbolic link.
    pub(crate) target: Vec<u8>,
}

/// A file in the folder of data files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DataFile {
    pub(crate) ino: Ino,
    pub(crate) generation: Generation,
    /// It is of the generation's writer, and no agent has taken it.
    pub(crate) is_writers: bool,
}

impl DataFile {
    /// Returns the data file that has this name; None for one of others.
    fn of(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        let (number, is_writers) = name.strip_suffix(".w").map_or((name, false), |number| (number, true));
        let (ino, generation) = number.split_once('.')?;
        let of = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let file = Self { ino: Ino(of(ino)?), generation: Generation(of(generation)?), is_writers };
        (file.name() == name).then_some(file)
    }

    fn name(&self) -> OsString {
        if self.is_writers { spill_name(self.ino, self.generation) } else { data_name(self.ino, self.generation) }
    }
}

/// The cluster that a backing directory is to belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    /// Its number.
    pub(crate) cluster: u128,
    /// Servers have files, so they have a directory.
    pub(crate) has_files: bool,
    /// The number of its directory; None if it has had none, or was used by an earlier release only.
    pub(crate) directory: Option<u128>,
    /// The key in etcd that has the number.
    pub(crate) key: &'a str,
}

impl Owner<'_> {
    /// Checks that a directory is the cluster's, or may become it. It has this `.rdmakv/id` and `.rdmakv/directory`.
    fn check(&self, path: &Path, id: Option<&str>, number: Option<u128>) -> Result<()> {
        let (path, cluster) = (path.display(), text(self.cluster));
        if let Some(other) = id.map(str::trim).filter(|&id| id != cluster) {
            let other = other.escape_debug();
            let why = format!(
                "open {path}: it belongs to cluster {other}, not to {cluster}: use the cluster's own directory"
            );
            return Err(Error::new(Errno::EXIST, why));
        }
        match self.directory {
            Some(own) if number != Some(own) => {
                // It may be a mount point without its file system, or a directory of the same path on this machine only.
                let (errno, number) = match number {
                    None => (Errno::NOENT, "it has no .rdmakv/directory".to_owned()),
                    Some(number) => (Errno::EXIST, format!("it is directory {}", text(number))),
                };
                let (own, key) = (text(own), self.key);
                let why = format!(
                    "open {path}: {number}, and cluster {cluster} has directory {own}: mount its file system, or name it; to give it up for another one, drain it, end all mounts, agents and servers, and run `etcdctl del {key}`"
                );
                Err(Error::new(errno, why))
            }
            None if id.is_none() && self.has_files => {
                let why = "it has no .rdmakv/id, and the cluster's files have another directory: mount its file system, or name it";
                Err(Error::new(Errno::NOENT, format!("open {path}: {why}")))
            }
            _ => Ok(()),
        }
    }
}

/// A backing directory.
#[derive(Debug)]
pub(crate) struct Backing {
    path: PathBuf,
    root: OwnedFd,
    data: OwnedFd,
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl Backing {
    /// Opens the directory of a cluster. If the cluster has had none, this one becomes the cluster's own. `claim` notes its number then, unless
    /// another was first. It returns the one that is noted.
    ///
    /// # Errors
    ///
    /// It cannot be opened or written, or it is not the directory of the cluster's files.
    pub(crate) fn open(path: &Path, owner: &Owner<'_>, claim: impl FnOnce(u128) -> Result<u128>) -> Result<Self> {
        let failed = |operation: &str| {
            let path = path.display().to_string();
            let operation = operation.to_owned();
            move |error: std::io::Error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Error::new(errno, format!("{operation} {path}: {error}: choose a directory that this user may write"))
            }
        };
        // A directory that is absent may be that of a file system that is not mounted here.
        std::fs::metadata(path).map_err(failed("open"))?;
        let (folder, id) = (path.join(".rdmakv"), text(owner.cluster));
        let read = |name: &str| match std::fs::read_to_string(folder.join(name)) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read")(error)),
        };
        let number = || {
            let found = read("directory")?;
            let why = || format!("open {}: its .rdmakv/directory has no number: remove that file", path.display());
            found.map(|found| parse(&found).ok_or_else(|| Error::new(Errno::EXIST, why()))).transpose()
        };
        let found = read("id")?;
        owner.check(path, found.as_deref(), number()?)?;
        for name in ["data", "new"] {
            std::fs::create_dir_all(folder.join(name)).map_err(failed("make folder in"))?;
        }
        if owner.directory.is_none() {
            // Made before it is noted: a process that is killed in between goes on with it later.
            let drawn = u128::from(random()) << 64 | u128::from(random());
            make_once(&folder, "directory", &text(drawn)).map_err(failed("write to"))?;
            let drawn = number()?.unwrap_or(drawn);
            let noted = claim(drawn)?;
            Owner { directory: Some(noted), ..*owner }.check(path, found.as_deref(), number()?)?;
        }
        make_once(&folder, "id", &id).map_err(failed("write to"))?;
        owner.check(path, read("id")?.as_deref(), owner.directory)?;
        let open = |path: &Path| {
            let opened = openat(CWD, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            opened.map_err(|errno| Error::of_backing(errno, "open", path.display()))
        };
        let (root, data) = (open(path)?, open(&folder.join("data"))?);
        Ok(Self { path: path.to_owned(), root, data })
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory of data files.
    pub(crate) fn data(&self) -> &OwnedFd {
        &self.data
    }

    /// Opens the directory with the folders of agents.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn staging(&self) -> std::result::Result<OwnedFd, Errno> {
        openat(&self.root, ".rdmakv/new", DIRECTORY, Mode::empty())
    }

    /// Opens the data file of a generation for writing, and makes it if it is absent. Returns whether it did.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn data_file(&self, ino: Ino, generation: Generation) -> std::result::Result<(File, bool), Errno> {
        let name = data_name(ino, generation);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = |flags| openat(&self.data, &name, flags, Mode::RUSR | Mode::WUSR);
        match open(flags) {
            Err(Errno::NOENT) => {
                let file = open(flags | OFlags::CREATE)?;
                fsync(&self.data)?;
                Ok((file.into(), true))
            }
            opened => Ok((opened?.into(), false)),
        }
    }

    /// Opens the data file of a generation's writer, and makes it if it is absent.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn spill_file(&self, ino: Ino, generation: Generation) -> std::result::Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::CREATE;
        let file = openat(&self.data, spill_name(ino, generation), flags, Mode::RUSR | Mode::WUSR)?;
        fsync(&self.data)?;
        Ok(file.into())
    }

    /// Opens a directory; None if the name is absent, or is not a directory.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn directory(&self, names: &[Vec<u8>]) -> Result<Option<OwnedFd>> {
        let failed = |errno| Error::of_backing(errno, "open directory in", self.path.display());
        let mut at = self.root.try_clone().map_err(|_| failed(Errno::MFILE))?;
        for name in names {
            at = match openat(&at, name.as_slice(), DIRECTORY, Mode::empty()) {
                Ok(next) => next,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(errno) => return Err(failed(errno)),
            };
        }
        Ok(Some(at))
    }

    /// Looks a name up; None if it is not there, or of a kind that the file system does not have.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn find(&self, directory: &[Vec<u8>], name: &[u8]) -> Result<Option<Found>> {
        if directory.is_empty() && name == FOLDER || !is_name(name) {
            return Ok(None);
        }
        let Some(folder) = self.directory(directory)? else { return Ok(None) };
        match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let Some(kind) = kind_of(FileType::from_raw_mode(stat.st_mode)) else { return Ok(None) };
                let target = match kind {
                    Kind::Link => match readlinkat(&folder, name, Vec::new()) {
                        Ok(target) => target.into_bytes(),
                        Err(Errno::NOENT | Errno::INVAL) => return Ok(None),
                        Err(errno) => return Err(Error::of_backing(errno, "read link", name.escape_ascii())),
                    },
                    _ => Vec::new(),
                };
                Ok(Some(found(&stat, kind, target)))
            }
            Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(None),
            Err(errno) => Err(Error::of_backing(errno, "look up", name.escape_ascii())),
        }
    }

    /// Returns how much room the file system of the directory has.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn space(&self) -> Result<rustix::fs::StatVfs> {
        let space = rustix::fs::fstatvfs(&self.root);
        space.map_err(|errno| Error::of_backing(errno, "look at room of", self.path.display()))
    }

    /// Returns the room that a generation's data file has, and takes.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn space_for(&self, ino: Ino, generation: Generation) -> Result<Space> {
        let space = self.space()?;
        let taken = match statat(&self.data, data_name(ino, generation), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat.st_blocks as u64 * 512,
            Err(Errno::NOENT) => 0,
            Err(errno) => return Err(Error::of_backing(errno, "look at data file of", Key::Inode(ino))),
        };
        let is_read_only = space.f_flag.contains(StatVfsMountFlags::RDONLY);
        Ok(Space { is_read_only, free: space.f_bavail.saturating_mul(space.f_frsize), taken })
    }

    /// Returns the root directory as it is.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn root(&self) -> Result<Found> {
        let stat = rustix::fs::fstat(&self.root);
        let stat = stat.map_err(|errno| Error::of_backing(errno, "look up", self.path.display()))?;
        Ok(found(&stat, Kind::Directory, Vec::new()))
    }

    /// Returns the names of a directory with their kinds, but for those of kinds that the file system does not have.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn list(&self, directory: &[Vec<u8>]) -> Result<Vec<(Vec<u8>, Kind)>> {
        let Some(folder) = self.directory(directory)? else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        let mut buffer = Vec::with_capacity(32 << 10);
        let mut entries = RawDir::new(&folder, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| Error::of_backing(errno, "list", self.path.display()))?;
            let name = entry.file_name().to_bytes();
            if !is_name(name) || directory.is_empty() && name == FOLDER {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => continue,
                },
                kind => kind,
            };
            names.extend(kind_of(kind).map(|kind| (name.to_vec(), kind)));
        }
        Ok(names)
    }

    /// Links a file's bytes into the folder of data files, as those of generation 0.
    ///
    /// # Errors
    ///
    /// The backing fails, or the file is gone.
    pub(crate) fn keep(&self, directory: &[Vec<u8>], name: &[u8], ino: Ino) -> Result<()> {
        let failed = |errno| Error::of_backing(errno, "keep the bytes of", name.escape_ascii());
        let folder = self.directory(directory)?.ok_or_else(|| failed(Errno::NOENT))?;
        linkat(&folder, name, &self.data, data_name(ino, Generation(0)), AtFlags::empty()).map_err(failed)
    }

    /// Reads bytes of a generation, as many as there are; None if it has no data file.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn read(&self, ino: Ino, generation: Generation, offset: u64, length: u64) -> Result<Option<Vec<u8>>> {
        let name = data_name(ino, generation);
        let failed = |errno| Error::of_backing(errno, "read data file", name.to_string_lossy());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = |name: &OsString| openat(&self.data, name, flags, Mode::empty());
        // The agent may rename the writer's file meanwhile.
        let opened = [name.clone(), spill_name(ino, generation), name.clone()].iter().map(open).find(|opened| {
            let is_absent = opened.as_ref().is_err_and(|&errno| errno == Errno::NOENT);
            !is_absent
        });
        let file = match opened {
            None => return Ok(None),
            Some(opened) => File::from(opened.map_err(failed)?),
        };
        let mut bytes = vec![0; length as usize];
        let mut at = 0;
        while at < bytes.len() {
            match file.read_at(&mut bytes[at..], offset + at as u64) {
                Ok(0) => break,
                Ok(read) => at += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
            }
        }
        bytes.truncate(at);
        Ok(Some(bytes))
    }

    /// Returns the data files that neither changed nor got another name for so long.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn data_files(&self, age: Duration) -> Result<Vec<DataFile>> {
        let failed = |errno| Error::of_backing(errno, "list data files in", self.path.display());
        // A directory of its own, which begins with the first name.
        let folder = openat(&self.data, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (mut files, mut buffer) = (Vec::new(), Vec::with_capacity(32 << 10));
        let mut entries = RawDir::new(&folder, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(failed)?;
            let Some(file) = DataFile::of(entry.file_name().to_bytes()) else { continue };
            let stat = match statat(&self.data, file.name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(failed(errno)),
            };
            let changed = Duration::from_secs(u64::try_from(stat.st_ctime).unwrap_or(0));
            if now.saturating_sub(changed) >= age {
                files.push(file);
            }
        }
        Ok(files)
    }

    /// Removes a data file. That it is not there is no error.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn remove_data(&self, file: &DataFile) -> Result<()> {
        match unlinkat(&self.data, file.name(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::of_backing(errno, "remove data file of", Key::Inode(file.ino))),
        }
    }

    /// Removes the data files of an inode that has had these generations. Those that stay take space, and do no other harm.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn drop_data(&self, ino: Ino, generations: Range<u64>) -> Result<()> {
        for generation in likely(generations) {
            let generation = Generation(generation);
            // The agent may rename the first to the second meanwhile.
            for name in [spill_name(ino, generation), data_name(ino, generation)] {
                match unlinkat(&self.data, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(Error::of_backing(errno, "remove data file of", Key::Inode(ino))),
                }
            }
        }
        Ok(())
    }
}

/// Makes a file with a number, unless it exists. It is linked once it is whole.
fn make_once(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    // No other process uses this name, on another machine either.
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let (id, new) = (folder.join(name), folder.join(format!("{name}.{:x}.{nanos:x}", std::process::id())));
    if id.exists() {
        return Ok(());
    }
    let mut file = File::options().write(true).create_new(true).open(&new)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| match std::fs::hard_link(&new, &id) {
        // Another process was first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    let _ = std::fs::remove_file(&new);
    linked.and_then(|()| File::open(folder)?.sync_all())
}

/// Returns those of some generations that may have data files. Each publication removes earlier ones, so there are few.
fn likely(generations: Range<u64>) -> impl Iterator<Item = u64> {
    let recent = generations.start.max(generations.end.saturating_sub(64))..generations.end;
    // A file that was imported has that one as long as it is not changed.
    let imported = (generations.start == 0 && recent.start > 0).then_some(0);
    recent.chain(imported)
}

/// Returns the name of a data file.
pub(crate) fn data_name(ino: Ino, generation: Generation) -> OsString {
    OsString::from_vec(format!("{:x}.{:x}", ino.0, generation.0).into_bytes())
}

/// Returns the name of the data file of a generation's writer.
pub(crate) fn spill_name(ino: Ino, generation: Generation) -> OsString {
    let mut name = data_name(ino, generation);
    name.push(".w");
    name
}

fn kind_of(kind: FileType) -> Option<Kind> {
    match kind {
        FileType::RegularFile => Some(Kind::File),
        FileType::Directory => Some(Kind::Directory),
        FileType::Symlink => Some(Kind::Link),
        _ => None,
    }
}

fn found(stat: &Stat, kind: Kind, target: Vec<u8>) -> Found {
    let time = |seconds, nanos: u64| Time { seconds, nanos: nanos as u32 };
    Found {
        kind,
        mode: (stat.st_mode & 0o7777) as u16,
        owner: stat.st_uid,
        group: stat.st_gid,
        size: stat.st_size as u64,
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        changed: time(stat.st_ctime, stat.st_ctime_nsec),
        number: stat.st_ino,
        target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_files_are_told_by_their_names() {
        for (ino, generation, is_writers) in [(0x1f, 10, false), (u64::MAX, 0, true)] {
            let file = DataFile { ino: Ino(ino), generation: Generation(generation), is_writers };
            assert_eq!(DataFile::of(file.name().as_encoded_bytes()), Some(file));
        }
        for name in ["1f", "1F.a", "01f.a", "1f.a.x", "1f.", ".w", "+1.a"] {
            assert_eq!(DataFile::of(name.as_bytes()), None, "{name}");
        }
    }

    fn owner(has_files: bool, directory: Option<u128>) -> Owner<'static> {
        Owner { cluster: 7, has_files, directory, key: "/rdmakv/main/directory/7" }
    }

    #[test]
    fn only_the_first_directory_is_the_clusters() {
        let [first, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut noted = None;
        drop(Backing::open(first.path(), &owner(false, None), |number| Ok(*noted.insert(number))).unwrap());
        let own = noted.unwrap();
        // Servers were restarted, and have no files.
        let again = |path: &Path| Backing::open(path, &owner(false, Some(own)), |_| panic!("one is noted")).map(drop);
        again(first.path()).unwrap();
        let why = again(other.path()).unwrap_err();
        assert_eq!((why.errno(), std::fs::read_dir(other.path()).unwrap().count()), (Errno::NOENT, 0));
        let remedy = "end all mounts, agents and servers, and run `etcdctl del /rdmakv/main/directory/7`";
        for part in [&other.path().display().to_string(), &text(own), remedy] {
            assert!(why.to_string().contains(part), "{why}");
        }
        // It is attempted at the same time with two, and one is noted.
        let why = Backing::open(other.path(), &owner(false, None), |_| Ok(own)).unwrap_err();
        assert!(why.errno() == Errno::EXIST && why.to_string().contains(&text(own)), "{why}");
        assert!(!other.path().join(".rdmakv/id").exists());
        // The first one is given up.
        drop(Backing::open(other.path(), &owner(false, None), Ok).unwrap());
    }

    /// All such directories would seem to be one.
    #[test]
    fn a_directory_without_a_number_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(".rdmakv")).unwrap();
        let path = directory.path().join(".rdmakv/directory");
        for other in ["", "7", "a directory"] {
            std::fs::write(&path, other).unwrap();
            for noted in [None, Some(0)] {
                let why = Backing::open(directory.path(), &owner(false, noted), |_| panic!("it is noted")).unwrap_err();
                assert!(why.errno() == Errno::EXIST && why.to_string().ends_with("remove that file"), "{why}");
            }
        }
        std::fs::remove_file(&path).unwrap();
        drop(Backing::open(directory.path(), &owner(false, None), Ok).unwrap());
    }

    #[test]
    fn a_directory_of_an_earlier_release_gets_a_number() {
        let directory = tempfile::tempdir().unwrap();
        let open =
            |noted| Backing::open(directory.path(), &owner(true, noted), Ok).map(drop).map_err(|why| why.errno());
        assert_eq!(open(None), Err(Errno::NOENT));
        std::fs::create_dir(directory.path().join(".rdmakv")).unwrap();
        std::fs::write(directory.path().join(".rdmakv/id"), text(7) + "\n").unwrap();
        assert_eq!(open(None), Ok(()));
        let number = parse(&std::fs::read_to_string(directory.path().join(".rdmakv/directory")).unwrap());
        assert_eq!((open(number), open(Some(1))), (Ok(()), Err(Errno::EXIST)));
        std::fs::write(directory.path().join(".rdmakv/id"), text(8)).unwrap();
        assert_eq!(open(number), Err(Errno::EXIST));
    }

    #[test]
    fn only_generations_of_the_range_are_dropped() {
        let all = |range: Range<u64>| likely(range).collect::<Vec<_>>();
        assert_eq!((all(0..0), all(0..1), all(2..4)), (vec![], vec![0], vec![2, 3]));
        let many = all(0..100);
        assert!(many.len() == 65 && many.contains(&99) && many.contains(&36) && many.contains(&0));
    }
}
