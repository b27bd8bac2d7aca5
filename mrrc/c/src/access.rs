//! Rights, as C passes them: a sum of numbers.

use crate::gate::Failure;
use mrrc::Access;

/// A set of rights: a sum of MRRC_LOCAL_READ and its like.
///
/// Every registration can be read by the card on behalf of this process, so MRRC_LOCAL_READ is in every set, asked for or not.
/// Memory with rights for peers and memory without are kept apart: nothing is opened to peers because its neighbour was.
pub type mrrc_access_t = u32;

/// The card reads the memory for this process: what a send needs.
pub const MRRC_LOCAL_READ: u32 = 1;
/// The card writes the memory for this process: what a receive needs.
pub const MRRC_LOCAL_WRITE: u32 = 2;
/// Both local rights.
pub const MRRC_LOCAL: u32 = 3;
/// A peer reads the memory.
pub const MRRC_REMOTE_READ: u32 = 4;
/// A peer writes the memory. Verbs ask for MRRC_LOCAL_WRITE besides.
pub const MRRC_REMOTE_WRITE: u32 = 8;
/// A peer runs atomic operations on the memory. Verbs ask for MRRC_LOCAL_WRITE besides.
pub const MRRC_REMOTE_ATOMIC: u32 = 16;

const _: () = assert!(MRRC_LOCAL == Access::LOCAL.bits() as u32);
const _: () = assert!(
    MRRC_REMOTE_READ | MRRC_REMOTE_WRITE | MRRC_REMOTE_ATOMIC == Access::REMOTE.bits() as u32
        && MRRC_REMOTE_READ == Access::REMOTE_READ.bits() as u32
        && MRRC_REMOTE_WRITE == Access::REMOTE_WRITE.bits() as u32
        && MRRC_LOCAL_WRITE == Access::LOCAL_WRITE.bits() as u32
);

/// The set, if all of it is known.
#[inline]
pub(crate) fn rights(access: mrrc_access_t, name: &str) -> Result<Access, Box<Failure>> {
    match u8::try_from(access).ok().and_then(Access::from_bits) {
        Some(rights) => Ok(rights),
        None => Err(unknown(access, name)),
    }
}

#[cold]
fn unknown(access: mrrc_access_t, name: &str) -> Box<Failure> {
    let strange = access & !u32::from(Access::all().bits());
    Failure::argument(format!(
        "{name} is {access:#x}: {strange:#x} of it is no right: add up MRRC_LOCAL_READ (1) to MRRC_REMOTE_ATOMIC (16)"
    ))
}
