//! Steps of cases, one line for each case: what a program does in a directory, and what it gets.

// A case acts as another user on a thread of its own.
#![expect(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::mapped::mapped;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags};

/// Runs a case in a directory, and returns what each step gave. Steps are separated by semicolons.
///
/// A name such as `*255` has as many letters. `as USER` holds for the steps after it, so each case has a thread.
pub(crate) fn run(directory: &Path, case: &str) -> Vec<String> {
    let directory = directory.to_owned();
    let steps: Vec<Vec<String>> =
        case.split(';').map(|step| step.split_whitespace().map(str::to_owned).collect()).collect();
    let thread = std::thread::spawn(move || {
        let mut program = Program { directory, files: BTreeMap::new() };
        let steps = steps.iter().map(|step| step.iter().map(String::as_str).collect::<Vec<_>>());
        steps.map(|step| program.step(&step).unwrap_or_else(|error| shown(&error))).collect()
    });
    thread.join().expect("the case is well formed")
}

fn shown(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |number| format!("E{number}"))
}

struct Program {
    directory: PathBuf,
    files: BTreeMap<String, File>,
}

impl Program {
    fn path(&self, name: &str) -> PathBuf {
        let name = match name.strip_prefix('*') {
            Some(length) => "n".repeat(length.parse().unwrap()),
            None => name.to_owned(),
        };
        self.directory.join(name)
    }

    fn file(&mut self, name: &str) -> &mut File {
        self.files.get_mut(name).expect("the case opened it")
    }

    fn step(&mut self, step: &[&str]) -> io::Result<String> {
        match *step {
            ["open", name, path, flags] => self.open(name, path, flags, 0o644),
            ["open", name, path, flags, mode] => self.open(name, path, flags, octal(mode)),
            ["close", name] => {
                self.files.remove(name).expect("the case opened it");
                Ok("ok".to_owned())
            }
            [operation, name, ref rest @ ..] if self.files.contains_key(name) => self.with_file(operation, name, rest),
            _ => self.with_path(step),
        }
    }

    fn open(&mut self, name: &str, path: &str, flags: &str, mode: u32) -> io::Result<String> {
        let flags = flags.split('|').map(|flag| match flag {
            "RDONLY" => OFlags::RDONLY,
            "WRONLY" => OFlags::WRONLY,
            "RDWR" => OFlags::RDWR,
            "CREAT" => OFlags::CREATE,
            "EXCL" => OFlags::EXCL,
            "TRUNC" => OFlags::TRUNC,
            "APPEND" => OFlags::APPEND,
            "DIRECTORY" => OFlags::DIRECTORY,
            "NOFOLLOW" => OFlags::NOFOLLOW,
            other => panic!("flag {other}"),
        });
        let flags = flags.fold(OFlags::CLOEXEC, OFlags::union);
        let file = rustix::fs::openat(CWD, self.path(path), flags, Mode::from_raw_mode(mode))?;
        self.files.insert(name.to_owned(), file.into());
        Ok("ok".to_owned())
    }

    fn with_file(&mut self, operation: &str, name: &str, rest: &[&str]) -> io::Result<String> {
        let file = self.file(name);
        match (operation, rest) {
            ("write", [text]) => file.write(text.as_bytes()).map(|written| written.to_string()),
            ("fill", [byte, count]) => {
                let bytes = vec![byte.as_bytes()[0]; number(count) as usize];
                file.write_all(&bytes).map(|()| count.to_string())
            }
            ("pwrite", [offset, text]) => file.write_at(text.as_bytes(), number(offset)).map(|count| count.to_string()),
            ("read", [count]) => {
                let mut bytes = vec![0; number(count) as usize];
                let count = file.read(&mut bytes)?;
                Ok(bytes[..count].escape_ascii().to_string())
            }
            ("pread", [offset, count]) => {
                let mut bytes = vec![0; number(count) as usize];
                let count = file.read_at(&mut bytes, number(offset))?;
                Ok(bytes[..count].escape_ascii().to_string())
            }
            ("seek", [whence, offset]) => {
                let offset: i64 = offset.parse().unwrap();
                let to = match *whence {
                    "set" => SeekFrom::Start(offset as u64),
                    "end" => SeekFrom::End(offset),
                    _ => SeekFrom::Current(offset),
                };
                file.seek(to).map(|at| at.to_string())
            }
            ("ftruncate", [size]) => file.set_len(number(size)).map(ok),
            ("fsync", []) => file.sync_all().map(ok),
            ("fdatasync", []) => file.sync_data().map(ok),
            ("fchmod", [mode]) => file.set_permissions(fs::Permissions::from_mode(octal(mode))).map(ok),
            ("fstat", []) => file.metadata().map(|metadata| attributes(&metadata)),
            ("links", []) => file.metadata().map(|metadata| metadata.nlink().to_string()),
            ("fallocate", [mode, offset, length]) => {
                let mode = FallocateFlags::from_bits_retain(number(mode) as u32);
                Ok(rustix::fs::fallocate(&*file, mode, number(offset), number(length)).map(ok)?)
            }
            ("mapped", [length]) => Ok(mapped(file, number(length) as usize, None)?.escape_ascii().to_string()),
            ("map-write", [length, offset, text]) => {
                let write = (number(offset) as usize, text.as_bytes());
                Ok(mapped(file, number(length) as usize, Some(write))?.escape_ascii().to_string())
            }
            _ => panic!("step {operation} {name} {rest:?}"),
        }
    }

    fn with_path(&mut self, step: &[&str]) -> io::Result<String> {
        let path = |name: &str| self.path(name);
        match *step {
            ["as", user] => {
                let user: u32 = user.parse().unwrap();
                // SAFETY: `setfsgid` and `setfsuid` take plain numbers, and change the identity of this thread only, which ends with the case.
                unsafe {
                    libc::setfsgid(user);
                    libc::setfsuid(user);
                }
                Ok("ok".to_owned())
            }
            ["make", name] => fs::write(path(name), b"").map(ok),
            ["put", name, text] => fs::write(path(name), text).map(ok),
            ["cat", name] => fs::read(path(name)).map(|bytes| bytes.escape_ascii().to_string()),
            ["mkdir", name] => fs::create_dir(path(name)).map(ok),
            ["mkdir", name, mode] => {
                Ok(rustix::fs::mkdirat(CWD, path(name), Mode::from_raw_mode(octal(mode))).map(ok)?)
            }
            ["rmdir", name] => fs::remove_dir(path(name)).map(ok),
            ["unlink", name] => Ok(rustix::fs::unlinkat(CWD, path(name), AtFlags::empty()).map(ok)?),
            ["rename", from, to] => fs::rename(path(from), path(to)).map(ok),
            ["rename-new", from, to] => {
                Ok(rustix::fs::renameat_with(CWD, path(from), CWD, path(to), RenameFlags::NOREPLACE).map(ok)?)
            }
            ["exchange", from, to] => {
                Ok(rustix::fs::renameat_with(CWD, path(from), CWD, path(to), RenameFlags::EXCHANGE).map(ok)?)
            }
            ["link", from, to] => fs::hard_link(path(from), path(to)).map(ok),
            ["symlink", target, name] => std::os::unix::fs::symlink(of_length(target), path(name)).map(ok),
            ["readlink", name] => fs::read_link(path(name)).map(|target| target.display().to_string()),
            ["mknod", kind, name] => {
                let kind = match kind {
                    "fifo" => FileType::Fifo,
                    "socket" => FileType::Socket,
                    _ => FileType::RegularFile,
                };
                Ok(rustix::fs::mknodat(CWD, path(name), kind, Mode::from_raw_mode(0o644), 0).map(ok)?)
            }
            ["truncate", name, size] => {
                let file = path(name);
                Ok(rustix::fs::open(file, OFlags::WRONLY, Mode::empty())
                    .and_then(|file| rustix::fs::ftruncate(file, number(size)))
                    .map(ok)?)
            }
            ["chmod", name, mode] => fs::set_permissions(path(name), fs::Permissions::from_mode(octal(mode))).map(ok),
            ["chown", name, owner, group] => {
                let id = |text: &str| text.parse().ok();
                std::os::unix::fs::chown(path(name), id(owner), id(group)).map(ok)
            }
            ["lchown", name, owner, group] => {
                let id = |text: &str| text.parse().ok();
                std::os::unix::fs::lchown(path(name), id(owner), id(group)).map(ok)
            }
            ["touch", name, seconds] => {
                let at = UNIX_EPOCH + Duration::from_secs(number(seconds));
                let file = File::open(path(name))?;
                file.set_modified(at).map(ok)
            }
            ["time", name] => fs::metadata(path(name)).map(|metadata| metadata.mtime().to_string()),
            ["same-time", name, other] => {
                let (one, other) = (fs::metadata(path(name))?, fs::metadata(path(other))?);
                Ok((one.modified()? == other.modified()?).to_string())
            }
            ["stat", name] => fs::metadata(path(name)).map(|metadata| attributes(&metadata)),
            ["lstat", name] => fs::symlink_metadata(path(name)).map(|metadata| attributes(&metadata)),
            ["list", name] => {
                let names = fs::read_dir(path(name))?.map(|entry| Ok(entry?.file_name().into_string().unwrap()));
                let mut names: Vec<String> = names.collect::<io::Result<_>>()?;
                names.sort();
                Ok(names.join(","))
            }
            ["access", name, how] => {
                let how = match how {
                    "r" => rustix::fs::Access::READ_OK,
                    "w" => rustix::fs::Access::WRITE_OK,
                    _ => rustix::fs::Access::EXEC_OK,
                };
                Ok(rustix::fs::accessat(CWD, path(name), how, AtFlags::EACCESS).map(ok)?)
            }
            ["setxattr", name, key, value] => {
                Ok(rustix::fs::setxattr(path(name), key, value.as_bytes(), XattrFlags::empty()).map(ok)?)
            }
            ["getxattr", name, key] => {
                let mut value = [0; 64];
                let length = rustix::fs::getxattr(path(name), key, &mut value[..])?;
                Ok(value[..length].escape_ascii().to_string())
            }
            _ => panic!("step {step:?}"),
        }
    }
}

fn attributes(metadata: &fs::Metadata) -> String {
    let kind = match metadata.file_type() {
        kind if kind.is_dir() => "directory",
        kind if kind.is_symlink() => "link",
        kind if kind.is_file() => "file",
        _ => "other",
    };
    let size = if metadata.is_dir() { 0 } else { metadata.len() };
    format!("{kind} {:o} {} {} {size}", metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
}

fn of_length(text: &str) -> String {
    text.strip_prefix('*').map_or_else(|| text.to_owned(), |length| "n".repeat(length.parse().unwrap()))
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn octal(text: &str) -> u32 {
    u32::from_str_radix(text, 8).expect("an octal number")
}

fn ok((): ()) -> String {
    "ok".to_owned()
}
