//! The process and its system: a user, limits.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many descriptors as the system lets us have; returns how many that are.
pub(super) fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns how much address space items get: room for a later `cache_memlimit`, as far as limits of this process allow. If memory is
/// locked, address space counts as locked too, so there is less room.
pub(super) fn address_space(memory: usize, is_locked: bool) -> usize {
    const ROOM: usize = 30 << 30;
    let wanted = if is_locked { memory.saturating_mul(4).min(ROOM) } else { memory.saturating_mul(2).max(ROOM) };
    // A quarter of the limit on address space: threads and libraries need some. The arena is a file to the kernel.
    let part = |limit: Option<u64>, parts| limit.map_or(usize::MAX, |limit| (limit / parts) as usize);
    let space = part(getrlimit(Resource::As).current, 4);
    let file = part(getrlimit(Resource::Fsize).current, 2);
    wanted.min(space).min(file).max(memory)
}

/// Writes the process's number to a regular file, which is not waited for and need not be there.
///
/// # Errors
///
/// A path that exists cannot be such a file.
pub(super) fn write_number(path: &str) -> Result<(), String> {
    // The file is removed in the end: a device or a pipe would be, too.
    let special = || format!("-P {path}: it is not a regular file; name another file");
    if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(special());
    }
    let wrong = |error: io::Error| format!("-P {path}: {error}; is its directory there, and ours to write to?");
    let options = File::options().write(true).create(true).custom_flags(libc::O_NONBLOCK).to_owned();
    let mut file = options.open(path).map_err(wrong)?;
    if !file.metadata().map_err(wrong)?.is_file() {
        return Err(special());
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(wrong)
}

pub(super) fn allow_cores() -> io::Result<()> {
    let limit = getrlimit(Resource::Core);
    Ok(setrlimit(Resource::Core, Rlimit { current: limit.maximum, maximum: limit.maximum })?)
}

/// Keeps used memory resident. Unused memory is not brought in: most of the arena is address space for a later
/// `cache_memlimit`.
pub(super) fn lock_memory() -> io::Result<()> {
    use rustix::mm::{MlockAllFlags, mlockall};
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE;
    #[cfg(target_os = "linux")]
    let flags = flags | MlockAllFlags::ONFAULT;
    Ok(mlockall(flags)?)
}

/// A user to become.
#[derive(Clone, Debug)]
pub(super) struct User {
    name: CString,
    uid: libc::uid_t,
    gid: libc::gid_t,
}

/// Returns the user of that name.
///
/// # Errors
///
/// There is none.
pub(super) fn find_user(name: &str) -> Result<User, String> {
    let unknown = || format!("-u {name}: there is no such user; name one that the system knows (getent passwd)");
    let owned = CString::new(name).map_err(|_| unknown())?;
    let mut strings = vec![0; 16 << 10];
    #[expect(unsafe_code, reason = "getpwnam_r")]
    // SAFETY: the name ends with a zero; the entry is plain numbers and pointers, for which zeros are valid; the call keeps
    // to the room that it is told of, and of the entry only the numbers are used.
    let ids = unsafe {
        let (mut entry, mut found): (libc::passwd, _) = (std::mem::zeroed(), std::ptr::null_mut());
        libc::getpwnam_r(owned.as_ptr(), &mut entry, strings.as_mut_ptr(), strings.len(), &mut found);
        (!found.is_null()).then_some((entry.pw_uid, entry.pw_gid))
    };
    let (uid, gid) = ids.ok_or_else(unknown)?;
    Ok(User { name: owned, uid, gid })
}

/// Root is given up for this user and the groups it is in; before any thread is started.
pub(super) fn become_user(user: &User) -> io::Result<()> {
    #[expect(unsafe_code, reason = "initgroups, setgid, setuid")]
    // SAFETY: the name ends with a zero, the rest are numbers.
    let done = unsafe {
        libc::initgroups(user.name.as_ptr(), user.gid) == 0
            && libc::setgid(user.gid) == 0
            && libc::setuid(user.uid) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives up all capabilities that the program's file gave.
#[cfg(feature = "bpf")]
pub(super) fn drop_capabilities() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}
#[cfg(not(feature = "bpf"))]
pub(super) fn drop_capabilities() -> io::Result<()> {
    Ok(())
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
