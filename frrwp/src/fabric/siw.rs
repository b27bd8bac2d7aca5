//! A defect of Linux's `siw`, and how this side avoids it.

/// `siw` copies so many bytes at most into the header that it sends.
pub(super) const COPIED: u64 = 32;
/// Boundaries of larger pages are boundaries of these.
const PAGE: u64 = 4096;

/// Returns how many of the bytes at `source`, in the memory of the side that sends them, one request may have.
///
/// If a write or an answer of at most 32 bytes lies on two pages, `siw` confuses the two parts (`siw_try_1seg`, since 5.3).
/// Wrong bytes arrive, without an error. As two requests they arrive right. An end cannot ask whether its peer is `siw`.
#[inline]
pub(super) fn one_request(source: u64, length: u64) -> u64 {
    let to_boundary = PAGE - source % PAGE;
    if length <= COPIED && length > to_boundary { to_boundary } else { length }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_on_two_pages_are_two_requests() {
        assert_eq!([one_request(4094, 19), one_request(4096, 17), one_request(4095, 32)], [2, 17, 1]);
        assert_eq!([one_request(4094, 2), one_request(4095, 33), one_request(u64::MAX, 2)], [2, 33, 1]);
    }
}
