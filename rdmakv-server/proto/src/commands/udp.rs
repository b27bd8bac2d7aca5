//! The frame of a datagram: a request's number, and which of how many datagrams this is.

/// Bytes of the frame.
pub const HEADER: usize = 8;
/// Bytes of an answer's datagram at most, with the frame: what passes an Ethernet unfragmented.
pub const DATAGRAM: usize = 1400;

/// Returns the number of the request, and the request.
///
/// # Errors
///
/// Nothing can be answered: too short, or one of several datagrams.
pub fn parse(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let (frame, rest) = datagram.split_first_chunk::<HEADER>()?;
    let total = u16::from_be_bytes([frame[4], frame[5]]);
    (total <= 1).then_some((u16::from_be_bytes([frame[0], frame[1]]), rest))
}

/// Returns whether a datagram begins with an error, which a server sends and no client. A server that answered it might never end:
/// the answer is an error to another server, and so on.
pub fn is_error(request: &[u8]) -> bool {
    let words = request.strip_prefix(b"CLIENT_").or_else(|| request.strip_prefix(b"SERVER_")).unwrap_or(request);
    words.strip_prefix(b"ERROR").is_some_and(|rest| rest.first().is_none_or(|byte| b" \r\n".contains(byte)))
}

/// Returns a frame.
pub fn frame(request: u16, sequence: u16, total: u16) -> [u8; HEADER] {
    let (request, sequence, total) = (request.to_be_bytes(), sequence.to_be_bytes(), total.to_be_bytes());
    [request[0], request[1], sequence[0], sequence[1], total[0], total[1], 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_requests_are_read() {
        assert_eq!(parse(b"\x12\x34\0\0\0\x01\0\0get a\r\n"), Some((0x1234, &b"get a\r\n"[..])));
        assert_eq!(parse(b"\x12\x34\0\0\0\x02\0\0get a\r\n"), None);
        assert_eq!(parse(b"\x12\x34\0"), None);
        assert_eq!(frame(0x1234, 1, 3), *b"\x12\x34\0\x01\0\x03\0\0");
    }

    #[test]
    fn errors_are_told_from_requests() {
        for error in ["ERROR\r\n", "ERROR", "CLIENT_ERROR bad data chunk\r\n", "SERVER_ERROR out of memory\r\n"] {
            assert!(is_error(error.as_bytes()), "{error}");
        }
        for other in ["", "get ERROR\r\n", "ERRORS\r\n", "error\r\n", "CLIENT_ER", "VALUE k 0 1\r\n"] {
            assert!(!is_error(other.as_bytes()), "{other}");
        }
    }
}
