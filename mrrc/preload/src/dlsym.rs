//! `dlsym` and `dlvsym`, for programs that open libibverbs by themselves and look up its functions.
//!
//! Preloading changes the targets of a program's *references*, and not the answers of libibverbs' own symbol table.
//! Such programs would get no cache, or half of one. libibverbs' `ibv_reg_mr` calls `ibv_reg_mr_iova2` by a
//! reference, which leads here. But the `ibv_dereg_mr` that the program looked up leads to libibverbs. So a program
//! that looks up one of our functions in libibverbs gets ours.
//!
//! All other lookups go on to the C library ([`symbols`](crate::symbols)), by a jump, because the meaning of `RTLD_NEXT`
//! depends on the caller.
//!
//! The jump is written for x86-64. On other processors such programs get no cache. One exception is a hazard: through a domain
//! of librdmacm's they get shadows that libibverbs does not know. `MRRC_PRELOAD=off` is for those.
#![cfg(all(target_arch = "x86_64", not(test)))]
#![expect(unsafe_code, reason = "the dynamic linker's structures and a jump")]

use crate::exports::*;
use crate::symbols::{DLSYM, DLVSYM, ask, find, names_libibverbs};
use std::ffi::{CStr, c_char, c_int, c_void};

/// Returns this library's function in the place of one of libibverbs'; null if the C library is to answer.
unsafe extern "C" fn answer(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: *const c_void,
) -> *mut c_void {
    find();
    // SAFETY: the caller of dlsym passes a text that ends with 0.
    let is_verb = || unsafe { (0..).zip(b"ibv_").all(|(at, &byte)| *name.add(at) == byte as c_char) };
    if name.is_null() || !is_verb() {
        return std::ptr::null_mut();
    }
    // Without a version, the order of loading leads here by itself. The functions here have none, and are passed over
    // if one is asked for.
    let by_order = handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT;
    if by_order && version.is_null() || handle == libc::RTLD_NEXT && !comes_before_us(caller) {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller of dlsym passes a text that ends with 0; it is not null here.
    let ours = match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"ibv_reg_mr" => ibv_reg_mr as *mut c_void,
        b"ibv_reg_mr_iova" => ibv_reg_mr_iova as *mut c_void,
        b"ibv_reg_mr_iova2" => ibv_reg_mr_iova2 as *mut c_void,
        b"ibv_rereg_mr" => ibv_rereg_mr as *mut c_void,
        b"ibv_dereg_mr" => ibv_dereg_mr as *mut c_void,
        b"ibv_alloc_pd" => ibv_alloc_pd as *mut c_void,
        b"ibv_dealloc_pd" => ibv_dealloc_pd as *mut c_void,
        b"ibv_close_device" => ibv_close_device as *mut c_void,
        b"ibv_create_qp" => ibv_create_qp as *mut c_void,
        b"ibv_create_cq" => ibv_create_cq as *mut c_void,
        b"ibv_fork_init" => ibv_fork_init as *mut c_void,
        _ => return std::ptr::null_mut(),
    };
    // SAFETY: the caller of dlvsym passes a version that ends with 0; it is not null here.
    if !version.is_null() && unsafe { CStr::from_ptr(version) } == c"IBVERBS_1.0" {
        return std::ptr::null_mut();
    }
    // SAFETY: `ask` makes the caller's own call to the C library, with the caller's arguments.
    let theirs = unsafe { ask(handle, name, version) };
    if is_of_libibverbs(theirs) { ours } else { std::ptr::null_mut() }
}

/// Returns whether this code was loaded before this library.
fn comes_before_us(code: *const c_void) -> bool {
    /// 1 if the object is the code's, and 2 if it is this library: whichever comes first ends the walk.
    unsafe extern "C" fn whose(object: *mut libc::dl_phdr_info, _: usize, code: *mut c_void) -> c_int {
        // SAFETY: the dynamic linker's, for this call.
        let object = unsafe { &*object };
        // SAFETY: the dynamic linker promises `dlpi_phnum` headers at `dlpi_phdr`.
        let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
        let has = |address: usize| {
            headers.iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
                let start = object.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
                address.wrapping_sub(start) < header.p_memsz as usize
            })
        };
        if has(whose as *const () as usize) { 2 } else { c_int::from(has(code as usize)) }
    }
    // SAFETY: the callback takes what is passed.
    unsafe { libc::dl_iterate_phdr(Some(whose), code.cast_mut()) == 1 }
}

fn is_of_libibverbs(function: *mut c_void) -> bool {
    // SAFETY: all zero is a value of `Dl_info`, which holds pointers and numbers.
    let mut object: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `dladdr` accepts any address, and `object` can be written.
    if function.is_null() || unsafe { libc::dladdr(function, &mut object) } == 0 || object.dli_fname.is_null() {
        return false;
    }
    // SAFETY: `dladdr` fills in a file name that ends with 0; it is not null here.
    names_libibverbs(unsafe { CStr::from_ptr(object.dli_fname) })
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlsym(_: *mut c_void, _: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "xor edx, edx",
        "xor ecx, ecx",
        "call {answer}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp qword ptr [rip + {dlsym}]",
        "2: ret",
        answer = sym answer,
        dlsym = sym DLSYM,
    )
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlvsym(_: *mut c_void, _: *const c_char, _: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rcx, [rsp + 24]",
        "call {answer}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp qword ptr [rip + {dlvsym}]",
        "2: ret",
        answer = sym answer,
        dlvsym = sym DLVSYM,
    )
}
