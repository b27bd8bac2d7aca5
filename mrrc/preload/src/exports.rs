//! The functions that programs call in the place of libibverbs'.
//!
//! Each checks whether the call comes from the shim itself, and asks the [process](crate::process) whether the cache
//! has an answer. Otherwise it calls libibverbs' function with the very arguments that it was given. A program gets
//! the same answers as without the shim: results, `errno`, and the side effects of a failed call.
#![expect(unsafe_code, reason = "functions of C's, by the names of libibverbs'")]

use crate::abi::{Context, Mr, Opaque, Pd, rereg};
use crate::eligibility::Request;
use crate::metrics;
use crate::process::{self, Process};
use crate::real::{Real, real};
use crate::recording::{self, Span};
use crate::reentrancy::{Inside, errno, set_errno};
use crate::reregister;
use crate::shadow;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::time::{Duration, Instant};

/// No libibverbs: the caller found only this library.
const NONE: i32 = libc::EOPNOTSUPP;

fn missing<T>(answer: T) -> T {
    set_errno(NONE);
    answer
}

/// Returns a registration, served or passed on.
fn register(request: Request, pass: impl Fn(&'static Real) -> *mut Mr) -> *mut Mr {
    let Some(real) = real() else { return missing(null_mut()) };
    let Some(inside) = Inside::enter() else { return pass(real) };
    let process = process::current();
    let begun = process.times_calls().then(|| (Instant::now(), process.stats.made.time()));
    let mr = match process.serve(real, &request) {
        Ok(mr) => {
            // Caches that were made meanwhile are counted apart.
            let took = begun.map_or(Duration::ZERO, |(begun, made)| {
                begun.elapsed().saturating_sub(process.stats.made.time().saturating_sub(made))
            });
            process.stats.served.add(request.pages(), took);
            inside.keep_errno();
            mr
        }
        Err(why) => {
            process.stats.passed(why);
            inside.keep_errno();
            with_room(process, &inside, || pass(real))
        }
    };
    if !mr.is_null() {
        aside(|| recording::acquired(Span::of(&request)));
    }
    mr
}

/// Makes a call of libibverbs', and once more where it finds no room. What is cached may take it, also after caching ended.
fn with_room<T>(process: &Process, inside: &Inside, call: impl Fn() -> *mut T) -> *mut T {
    let made = call();
    let is_full = made.is_null() && matches!(errno(), libc::ENOMEM | libc::ENOSPC | libc::EAGAIN);
    if !is_full || !process.make_room() {
        return made;
    }
    inside.keep_errno();
    call()
}

/// Makes a queue: pages of queues count against the same limit as those of registrations.
fn create(pass: impl Fn() -> *mut Opaque) -> *mut Opaque {
    let Some(inside) = Inside::enter() else { return pass() };
    match process::existing() {
        Some(process) => with_room(process, &inside, pass),
        None => pass(),
    }
}

/// Runs code that the program must not notice, not even by `errno`.
fn aside(run: impl FnOnce()) {
    let errno = errno();
    run();
    set_errno(errno);
}

/// Returns the program's registration for the recording, if one is being made. It is asked before the registration ends; libibverbs
/// reads as much of it.
fn recorded(mr: *const Mr) -> Option<Span> {
    let mut span = None;
    let of = |mr: *const Mr| {
        // SAFETY: a registration that is about to be ended or changed.
        unsafe { Span::new((*mr).pd as usize, (*mr).addr as usize, (*mr).length, shadow::access(mr)) }
    };
    aside(|| span = (!mr.is_null() && recording::is_on()).then(|| of(mr)));
    span
}

/// # Safety
/// As libibverbs' own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    let request = Request { pd: pd as usize, address: addr as usize, length, iova: addr as u64, access: access as u32 };
    // SAFETY: libibverbs' function gets the program's own arguments; the program keeps that function's contract.
    register(request, |real| unsafe { (real.reg_mr)(pd, addr, length, access) })
}

/// # Safety
/// As libibverbs' own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    let request = Request { pd: pd as usize, address: addr as usize, length, iova, access: access as u32 };
    register(request, |real| match real.reg_mr_iova {
        // SAFETY: libibverbs' function gets the program's own arguments; the program keeps that function's contract.
        Some(register) => unsafe { register(pd, addr, length, iova, access) },
        None => missing(null_mut()),
    })
}

/// # Safety
/// As libibverbs' own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    let request = Request { pd: pd as usize, address: addr as usize, length, iova, access };
    register(request, |real| match real.reg_mr_iova2 {
        // SAFETY: libibverbs' function gets the program's own arguments; the program keeps that function's contract.
        Some(register) => unsafe { register(pd, addr, length, iova, access) },
        None => missing(null_mut()),
    })
}

/// # Safety
/// As libibverbs' own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut Mr,
    flags: c_int,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let Some((real, rereg_mr)) = real().and_then(|real| Some((real, real.rereg_mr?))) else {
        return missing(rereg::ERR_CMD);
    };
    // SAFETY: libibverbs' function gets the program's own arguments; the program keeps that function's contract.
    let pass = || unsafe { rereg_mr(mr, flags, pd, addr, length, access) };
    let Some(inside) = Inside::enter() else { return pass() };
    let process = process::current();
    let before = recorded(mr);
    let change = reregister::Change { flags, pd, address: addr, length, access };
    let code = reregister::shadow(process, real, mr, &change).unwrap_or_else(pass);
    if let (Some(before), 0) = (before, code) {
        recording::released(before);
        recorded(mr).into_iter().for_each(recording::acquired);
    }
    if code == 0 {
        inside.keep_errno();
    }
    code
}

/// # Safety
/// As libibverbs' own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    let Some(real) = real() else { return missing(NONE) };
    // SAFETY: libibverbs' function gets the program's own arguments; the program keeps that function's contract.
    let pass = || unsafe { (real.dereg_mr)(mr) };
    let Some(inside) = Inside::enter() else { return pass() };
    let process = process::current();
    let span = recorded(mr);
    let code = match process.dereg(real, mr) {
        None => {
            // SAFETY: a registration that is about to be ended. libibverbs reads this too.
            let (pd, length) = if mr.is_null() { (0, 0) } else { unsafe { ((*mr).pd as usize, (*mr).length) } };
            let code = pass();
            if code == 0 {
                aside(|| process.note_deregistration(real, pd, length));
            }
            code
        }
        Some(Ok(())) => {
            inside.keep_errno();
            0
        }
        Some(Err(code)) => {
            set_errno(code);
            code
        }
    };
    if let (Some(span), 0) = (span, code) {
        aside(|| recording::released(span));
    }
    code
}

/// # Safety
/// As libibverbs' own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    let Some(real) = real() else { return missing(null_mut()) };
    // SAFETY: libibverbs' function gets the program's own arguments; the program keeps that function's contract.
    let pass = || unsafe { (real.alloc_pd)(context) };
    let Some(_inside) = Inside::enter() else { return pass() };
    let pd = pass();
    if let Some(new) = NonNull::new(pd) {
        // SAFETY: `opened` requires a domain that libibverbs has just made: `alloc_pd` has returned it.
        aside(|| unsafe { process::current().domain_opened(real, new) });
        aside(|| metrics::begin(process::current()));
    }
    pd
}

/// # Safety
/// As libibverbs' own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    let Some(real) = real() else { return missing(NONE) };
    // SAFETY: libibverbs' function gets the program's own arguments; the program keeps that function's contract.
    let pass = || unsafe { (real.dealloc_pd)(pd) };
    let Some(inside) = Inside::enter() else { return pass() };
    let process = process::current();
    let domain = process.domain_closing(pd);
    inside.keep_errno();
    let code = pass();
    if let (0, Some(domain)) = (code, domain) {
        aside(|| process.domain_closed(pd, domain));
    }
    code
}

/// # Safety
/// As libibverbs' own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    let Some(real) = real() else { return missing(-1) };
    // SAFETY: libibverbs' function gets the program's own arguments; the program keeps that function's contract.
    let pass = || unsafe { (real.close_device)(context) };
    let Some(inside) = Inside::enter() else { return pass() };
    let process = process::current();
    let domains = process.device_closing(context);
    inside.keep_errno();
    let code = pass();
    if code == 0 {
        aside(|| process.device_closed(domains));
    }
    code
}

/// # Safety
/// As libibverbs' own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, attributes: *mut Opaque) -> *mut Opaque {
    let Some(create_qp) = real().and_then(|real| real.create_qp) else { return missing(null_mut()) };
    // SAFETY: libibverbs' function gets the program's own arguments, and changes them only where it succeeds; the program keeps
    // that function's contract.
    create(|| unsafe { create_qp(pd, attributes) })
}

/// # Safety
/// As libibverbs' own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    of_program: *mut c_void,
    channel: *mut Opaque,
    vector: c_int,
) -> *mut Opaque {
    let Some(create_cq) = real().and_then(|real| real.create_cq) else { return missing(null_mut()) };
    // SAFETY: libibverbs' function gets the program's own arguments; the program keeps that function's contract.
    create(|| unsafe { create_cq(context, entries, of_program, channel, vector) })
}

/// # Safety
/// As libibverbs' own.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ibv_fork_init() -> c_int {
    let Some((real, fork_init)) = real().and_then(|real| Some((real, real.fork_init?))) else {
        return missing(NONE);
    };
    // SAFETY: `ibv_fork_init` takes no arguments and passes no memory.
    let code = unsafe { fork_init() };
    if real.is_fork_initialized.is_none()
        && code == 0
        && let Some(inside) = Inside::enter()
    {
        // It cannot be asked later.
        process::current().turn_off("registered memory is hidden from forked children (ibv_fork_init)");
        inside.keep_errno();
    }
    code
}

/// The program ends, or the library is unloaded at last.
extern "C" fn at_exit() {
    let _inside = Inside::again();
    if let Some(process) = process::existing() {
        crate::summary::write(process);
        metrics::end(process);
    }
}

extern "C" fn at_load() {
    process::at_load();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
