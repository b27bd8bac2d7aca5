//! The bytes that transfers move, and their places.

/// Bytes of one transfer. A page has room for [`LANES`], so transfers of one batch never meet in a page.
pub(crate) const LANE: usize = 256;
/// Lanes of a page.
pub(crate) const LANES: usize = 4096 / LANE;

/// The bytes of a transfer: no two are the same in a run.
pub(crate) type Stamp = [u64; LANE / 8];

/// Returns the stamp of this number, by this thread.
pub(crate) fn stamp(thread: usize, number: u64) -> Stamp {
    std::array::from_fn(|word| (thread as u64 + 1) << 56 | number << 8 | word as u64)
}

/// Bytes in which two stamps differ.
pub(crate) fn difference(a: &Stamp, b: &Stamp) -> u64 {
    let bytes = a.iter().zip(b).map(|(a, b)| (a ^ b).to_ne_bytes().iter().filter(|&&byte| byte != 0).count() as u64);
    bytes.sum()
}

/// Puts a stamp at an address, by the processor.
///
/// # Safety
/// [`LANE`] bytes are mapped there for writing, aligned to 8, and no other thread uses them.
pub(crate) unsafe fn put(address: usize, stamp: &Stamp) {
    // SAFETY: the caller promises an aligned and mapped address that may be written.
    unsafe { (address as *mut Stamp).write_volatile(*stamp) }
}

/// Reads the stamp at an address with the processor.
///
/// # Safety
/// As [`put`], for reading.
pub(crate) unsafe fn get(address: usize) -> Stamp {
    // SAFETY: the caller promises an aligned and mapped address.
    unsafe { (address as *const Stamp).read_volatile() }
}
