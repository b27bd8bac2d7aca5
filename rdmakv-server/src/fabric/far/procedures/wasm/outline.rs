//! The sections of a module that are looked at before it is compiled. Pure.

use rdmakv_proto::far::messages::Refusal;

/// Bytes of a page of a module's memory.
pub(super) const PAGE: u64 = 64 << 10;
/// Bytes of a module's memory at most.
pub(super) const MEMORY_MAX: usize = 1 << 20;

/// The first bytes of a module: a mark, and the version.
const HEAD: &[u8; 8] = b"\0asm\x01\0\0\0";
const MEMORY: u8 = 5;
const START: u8 = 8;

/// Returns the bytes of memory with which a module begins.
///
/// # Errors
///
/// It is no module, has a start function, or too much memory.
pub(super) fn check(code: &[u8]) -> Result<u64, Refusal> {
    let mut rest = code.strip_prefix(HEAD).ok_or(Refusal::BadModule)?;
    let mut memory = 0;
    while let Some((&section, after)) = rest.split_first() {
        let (length, after) = number(after).ok_or(Refusal::BadModule)?;
        let (body, after) = after.split_at_checked(length as usize).ok_or(Refusal::BadModule)?;
        match section {
            START => return Err(Refusal::StartFunction),
            MEMORY => memory = memory_bytes(body)?,
            _ => {}
        }
        rest = after;
    }
    Ok(memory)
}

/// Returns the bytes with which the memory of a section begins.
fn memory_bytes(section: &[u8]) -> Result<u64, Refusal> {
    let first = || {
        let (count, rest) = number(section)?;
        let (_, rest) = if count == 0 { return Some(0) } else { rest.split_first()? };
        number(rest).map(|(pages, _)| u64::from(pages))
    };
    let bytes = first().ok_or(Refusal::BadModule)? * PAGE;
    if bytes > MEMORY_MAX as u64 { Err(Refusal::MemorySize) } else { Ok(bytes) }
}

/// Reads a number of 32 bits, seven a byte, the lowest first.
fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut number = 0_u64;
    for (at, &byte) in bytes.iter().enumerate().take(5) {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(number).ok()?, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(sections: &[u8]) -> Vec<u8> {
        [&HEAD[..], sections].concat()
    }

    #[test]
    fn sections_are_looked_at() {
        assert_eq!(check(&code(&[])), Ok(0));
        assert_eq!(check(&code(&[MEMORY, 3, 1, 0, 16])), Ok(1 << 20));
        assert_eq!(check(&code(&[MEMORY, 3, 1, 0, 17])), Err(Refusal::MemorySize));
        assert_eq!(check(&code(&[MEMORY, 5, 1, 1, 0x80, 0x80, 4])), Err(Refusal::MemorySize));
        assert_eq!(check(&code(&[MEMORY, 1, 0])), Ok(0));
        assert_eq!(check(&code(&[0, 2, 1, 7, START, 1, 0])), Err(Refusal::StartFunction));
        for wrong in [&b"(module)"[..], b"\0asm\x02\0\0\0", b"", &code(&[MEMORY]), &code(&[MEMORY, 9, 1])] {
            assert_eq!(check(wrong), Err(Refusal::BadModule));
        }
        assert_eq!(check(&code(&[0, 0xff, 0xff, 0xff, 0xff, 0xff])), Err(Refusal::BadModule), "a number too long");
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at_without_panic(sections in prop::collection::vec(0..9_u8, 0..40)) {
            let _ = check(&code(&sections));
        }
    }
}
