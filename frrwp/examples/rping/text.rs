//! The text of librdmacm's rping.

/// Returns a name, then characters that go round, and a zero: `size` bytes in all.
pub(crate) fn text(ping: u64, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{ping}: ").into_bytes();
    let first = b'A' + (ping % 58) as u8;
    let mut next = first;
    while text.len() < size - 1 {
        text.push(next);
        next = if next == b'z' { b'A' } else { next + 1 };
    }
    text.truncate(size - 1);
    text.push(0);
    text
}
