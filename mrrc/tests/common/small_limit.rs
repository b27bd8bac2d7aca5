//! A process, made for this, that becomes a user with a small limit on locked memory: the limit is on all that one user
//! has locked.

use crate::pins::status;
use std::io;

/// Limits this process to this many locked bytes, as one of `users`, which runs nothing else. Where that cannot be had here, says
/// why and returns false.
pub(crate) fn becomes_who_may_lock(bytes: u64, users: u32) -> bool {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: a structure that lives through the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } != 0 {
        println!("not run: the process may lock too little already ({})", io::Error::last_os_error());
        return false;
    }
    let user = users + std::process::id();
    // SAFETY: the calls take and return numbers.
    let stays_root = unsafe {
        libc::geteuid() == 0 && (libc::setresgid(user, user, user) != 0 || libc::setresuid(user, user, user) != 0)
    };
    if stays_root {
        println!("not run: root cannot become another user here ({})", io::Error::last_os_error());
        return false;
    }
    // SAFETY: no memory is passed. The /proc files of a process that changed its user are root's until it says this.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    if u64::from_str_radix(&status("CapEff"), 16).unwrap() >> 14 & 1 == 1 {
        println!("not run: the process keeps CAP_IPC_LOCK");
        return false;
    }
    true
}
