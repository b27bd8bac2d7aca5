//! `ibv_rereg_mr` of a registration that the cache serves.
//!
//! A region of the cache is not the program's to change. So the program gets one of its own, as it had it, and
//! libibverbs is asked to change that one. Its answer is the program's. If all goes well that is what stands behind
//! the `ibv_mr` from then on; if not, all is as it was.
#![expect(unsafe_code, reason = "the calls of libibverbs")]

use crate::abi::{Mr, Pd, rereg};
use crate::process::Process;
use crate::real::Real;
use crate::reentrancy::{errno, set_errno};
use crate::shadow::{self, Backing, Behind};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// The arguments of a change.
pub(crate) struct Change {
    pub(crate) flags: c_int,
    pub(crate) pd: *mut Pd,
    pub(crate) address: *mut c_void,
    pub(crate) length: usize,
    pub(crate) access: c_int,
}

/// libibverbs' answer; none if this is no shadow.
pub(crate) fn shadow(process: &Process, real: &'static Real, mr: *mut Mr, change: &Change) -> Option<c_int> {
    let shadow = shadow::find(mr)?;
    let Some(mut held) = shadow::hold(shadow).filter(|_| process.shadows.owns(shadow)) else {
        set_errno(libc::EINVAL);
        return Some(rereg::ERR_INPUT);
    };
    let rereg_mr = real.rereg_mr?;
    let (seen, access) = (held.mr(), held.behind().access);
    let own = match held.behind().backing {
        Backing::Own(own) => own,
        Backing::Leased(_) => {
            // SAFETY: the program has registered the very same, and has it still.
            let own = unsafe {
                match real.reg_mr_iova2 {
                    Some(register) => register(seen.pd, seen.addr, seen.length, seen.addr as u64, access),
                    None => (real.reg_mr)(seen.pd, seen.addr, seen.length, access as c_int),
                }
            };
            let Some(own) = NonNull::new(own) else { return Some(rereg::ERR_CMD) };
            own
        }
    };
    // SAFETY: a region of libibverbs' own, and the program's other arguments.
    let code = unsafe { rereg_mr(own.as_ptr(), change.flags, change.pd, change.address, change.length, change.access) };
    let changed = code == 0 || code == rereg::ERR_DO_FORK_OLD;
    let owned = matches!(held.behind().backing, Backing::Own(_));
    if changed {
        let access = if change.flags & rereg::CHANGE_ACCESS != 0 { change.access as u32 } else { access };
        // SAFETY: libibverbs has just filled it.
        let now = unsafe { *own.as_ptr() };
        let before = held.change(now, Behind { backing: Backing::Own(own), access });
        // The window and the lease, if there were any, end.
        drop(before);
    } else if !owned {
        let why = errno();
        // SAFETY: it was registered above, and no other code knows it.
        unsafe { (real.dereg_mr)(own.as_ptr()) };
        set_errno(why);
    }
    Some(code)
}
