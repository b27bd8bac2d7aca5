//! What the process asks of its system: a user, limits, the background.

use std::ffi::CString;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many descriptors as the system lets us have; says how many that are.
pub(super) fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

pub(super) fn allow_cores() -> io::Result<()> {
    let limit = getrlimit(Resource::Core);
    Ok(setrlimit(Resource::Core, Rlimit { current: limit.maximum, maximum: limit.maximum })?)
}

pub(super) fn lock_memory() -> io::Result<()> {
    use rustix::mm::{MlockAllFlags, mlockall};
    Ok(mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?)
}

/// The user gives up root; before any thread is started.
pub(super) fn become_user(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    #[expect(unsafe_code, reason = "getpwnam, setgid, setgroups, setuid")]
    // SAFETY: the name ends with a zero; what getpwnam returns is valid until its next call, and there is one thread.
    unsafe {
        let user = libc::getpwnam(name.as_ptr());
        if user.is_null() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such user"));
        }
        let (uid, gid) = ((*user).pw_uid, (*user).pw_gid);
        if libc::setgroups(1, &gid) != 0 || libc::setgid(gid) != 0 || libc::setuid(uid) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// To the background; before any thread is started.
pub(super) fn daemonize() -> io::Result<()> {
    #[expect(unsafe_code, reason = "daemon")]
    // SAFETY: there is one thread, so the child that goes on has all there is.
    let done = unsafe { libc::daemon(1, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
