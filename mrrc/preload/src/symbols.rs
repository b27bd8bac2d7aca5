//! The C library's own `dlsym` and `dlvsym`.
//!
//! This library exports functions of these names ([`dlsym`](crate::dlsym)), so a call of either would lead back here. The C
//! library's are looked up in its table of symbols.
#![expect(unsafe_code, reason = "the dynamic linker's tables")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The C library's `dlsym`, once it was found.
pub(crate) static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// The C library's `dlvsym`, once it was found.
pub(crate) static DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the answer of the C library's `dlsym`, or of `dlvsym` if there is a version.
///
/// # Safety
/// A handle of the dynamic linker's, and texts that end.
pub(crate) unsafe fn ask(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    find();
    // SAFETY: found under these names, which have these types; and the caller's contract.
    unsafe {
        if version.is_null() {
            std::mem::transmute::<*mut c_void, Dlsym>(DLSYM.load(Ordering::Acquire))(handle, name)
        } else {
            std::mem::transmute::<*mut c_void, Dlvsym>(DLVSYM.load(Ordering::Acquire))(handle, name, version)
        }
    }
}

unsafe extern "C" fn nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

unsafe extern "C" fn nothing_versioned(_: *mut c_void, _: *const c_char, _: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

/// Finds both. It may be called before this library is initialised, and allocates nothing.
pub(crate) fn find() {
    if !DLVSYM.load(Ordering::Acquire).is_null() {
        return;
    }
    let mut found = [std::ptr::null_mut::<c_void>(); 2];
    // SAFETY: what is passed lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    let [dlsym, dlvsym] = found;
    let or = |found: *mut c_void, else_: *mut c_void| if found.is_null() { else_ } else { found };
    DLSYM.store(or(dlsym, nothing as Dlsym as *mut c_void), Ordering::Release);
    DLVSYM.store(or(dlvsym, nothing_versioned as Dlvsym as *mut c_void), Ordering::Release);
}

/// Returns a library of those that are loaded.
unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker's, for this call; and what `find` passes.
    let (object, found) = unsafe { (&*object, &mut *found.cast::<[*mut c_void; 2]>()) };
    if object.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the dynamic linker's name of a loaded library is a text that ends with 0.
    let name = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
    let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
    // In one of both, by the age of the C library.
    if !(file.starts_with(b"libc.so.") || file.starts_with(b"libdl.so.") || file.starts_with(b"libc-2.")) {
        return 0;
    }
    // SAFETY: it is loaded, and stays: this library needs it.
    let Some(table) = (unsafe { Table::of(object) }) else { return 0 };
    for (at, name) in [c"dlsym", c"dlvsym"].into_iter().enumerate() {
        if found[at].is_null() {
            // SAFETY: `symbol` requires that the library is loaded; it stays, because this library needs it.
            found[at] = unsafe { table.symbol(name) };
        }
    }
    c_int::from(found.iter().all(|found| !found.is_null()))
}

/// The symbols of a library.
struct Table {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    hash: *const u32,
}

impl Table {
    /// # Safety
    /// The object is loaded.
    unsafe fn of(object: &libc::dl_phdr_info) -> Option<Self> {
        const NULL: i64 = 0;
        const STRTAB: i64 = 5;
        const SYMTAB: i64 = 6;
        const GNU_HASH: i64 = 0x6fff_fef5;
        let base = object.dlpi_addr as usize;
        // SAFETY: the dynamic linker promises `dlpi_phnum` headers at `dlpi_phdr`.
        let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let mut at = (base + dynamic.p_vaddr as usize) as *const [i64; 2];
        let mut places = [0_usize; 3];
        loop {
            // SAFETY: the dynamic section of a loaded library is a list of pairs that ends with DT_NULL, which ends
            // this loop.
            let [tag, value] = unsafe { *at };
            let place = match tag {
                NULL => break,
                STRTAB => 0,
                SYMTAB => 1,
                GNU_HASH => 2,
                _ => usize::MAX,
            };
            if let Some(place) = places.get_mut(place) {
                // glibc has made addresses of them; others leave them relative.
                let value = value as usize;
                *place = if value < base { base + value } else { value };
            }
            // SAFETY: the pair at `at` is not DT_NULL, so another one follows it.
            at = unsafe { at.add(1) };
        }
        let [names, symbols, hash] = places;
        places.iter().all(|&place| place != 0).then_some(Self {
            base,
            symbols: symbols as *const libc::Elf64_Sym,
            names: names as *const c_char,
            hash: hash as *const u32,
        })
    }

    /// Returns the address of a function; null if it is not there.
    ///
    /// # Safety
    /// The library is loaded.
    unsafe fn symbol(&self, name: &CStr) -> *mut c_void {
        let hash = name.to_bytes().iter().fold(5381_u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        // SAFETY: the layout of `DT_GNU_HASH`: four numbers, a filter, buckets, and chains whose last has its lowest bit set.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|at| *self.hash.add(at) as usize);
            if buckets == 0 {
                return std::ptr::null_mut();
            }
            let bucket = self.hash.add(4 + 2 * filter);
            let chains = bucket.add(buckets);
            let mut at = *bucket.add(hash as usize % buckets) as usize;
            while at >= first {
                let entry = *chains.add(at - first);
                let symbol = &*self.symbols.add(at);
                let same = entry | 1 == hash | 1 && CStr::from_ptr(self.names.add(symbol.st_name as usize)) == name;
                if same && symbol.st_shndx != 0 {
                    return (self.base + symbol.st_value as usize) as *mut c_void;
                }
                if entry & 1 == 1 {
                    break;
                }
                at += 1;
            }
        }
        std::ptr::null_mut()
    }
}

/// Returns whether a library's path is that of a libibverbs: the system's, or one that a package has brought along.
pub(crate) fn names_libibverbs(path: &CStr) -> bool {
    let path = path.to_bytes();
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    file.starts_with(b"libibverbs.so.1") || file.starts_with(b"libibverbs-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_symbol_is_found_by_its_symbol_table() {
        // SAFETY: texts that end; the handle of everything.
        let (by_table, by_name) =
            unsafe { (ask(libc::RTLD_DEFAULT, c"getpid".as_ptr(), std::ptr::null()), libc::getpid as *mut c_void) };
        assert!(!by_table.is_null() && !by_name.is_null());
        // SAFETY: `ask` takes a handle that the C library knows and texts that end with 0.
        let versioned = unsafe { ask(libc::RTLD_DEFAULT, c"getpid".as_ptr(), c"GLIBC_2.2.5".as_ptr()) };
        assert_eq!(versioned.is_null(), cfg!(not(target_arch = "x86_64")));
        // SAFETY: `ask` takes a handle that the C library knows and texts that end with 0.
        assert!(unsafe { ask(libc::RTLD_DEFAULT, c"no such function".as_ptr(), std::ptr::null()) }.is_null());
    }
}
