//! Windows: memory that peers may read and write for as long as the window lives.

use crate::buffers::{Buffer, READ, WRITE};
use std::sync::{Mutex, PoisonError};

/// Pieces of memory in windows at once, at most; what is more is not recorded.
const MOST: usize = 1024;

#[derive(Clone, Copy)]
struct Piece {
    window: usize,
    base: usize,
    buffer: Buffer,
}

/// Locked for one operation.
static PIECES: Mutex<Vec<Piece>> = Mutex::new(Vec::new());

/// Peers may read, write and run atomic operations, and so does this side.
const ALL: u8 = READ | WRITE | 4 | 8 | 16;

/// Memory becomes part of a window.
pub(crate) fn add(window: usize, base: usize, bytes: i64) -> Option<Buffer> {
    let mut pieces = PIECES.lock().unwrap_or_else(PoisonError::into_inner);
    if bytes <= 0 || base < 4096 || pieces.len() == MOST {
        return None;
    }
    let buffer = Buffer { address: base as u64, length: bytes as u64, access: ALL };
    pieces.push(Piece { window, base, buffer });
    Some(buffer)
}

/// A piece of memory leaves a window.
pub(crate) fn remove(window: usize, base: usize) -> Option<Buffer> {
    let mut pieces = PIECES.lock().unwrap_or_else(PoisonError::into_inner);
    let at = pieces.iter().rposition(|piece| (piece.window, piece.base) == (window, base))?;
    Some(pieces.remove(at).buffer)
}

/// Takes one of the pieces that a window still has, until there is none.
pub(crate) fn free(window: usize) -> Option<Buffer> {
    let mut pieces = PIECES.lock().unwrap_or_else(PoisonError::into_inner);
    let at = pieces.iter().rposition(|piece| piece.window == window)?;
    Some(pieces.remove(at).buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_keeps_pieces_until_removed_or_freed() {
        assert!(add(7, 0x10000, 100).is_some() && add(7, 0x20000, 200).is_some() && add(8, 0x10000, 300).is_some());
        assert!(add(7, 0, 100).is_none() && add(7, 0x10000, 0).is_none());
        assert_eq!(remove(7, 0x10000).map(|buffer| buffer.length), Some(100));
        assert_eq!(remove(7, 0x10000), None);
        assert_eq!(free(7).map(|buffer| buffer.length), Some(200));
        assert_eq!((free(7), free(8).map(|buffer| buffer.length)), (None, Some(300)));
    }
}
