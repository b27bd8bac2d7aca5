//! Address validation: a client shows that it receives at its address before the server keeps anything for it.
//!
//! Both hashes are SipHash-2-4 with a key that is drawn when the server starts. The cookie's covers address, client, nonce
//! and time. The client's id is a hash of the same input with another prefix. It is random to all but the server, and the
//! same for a HELLO that comes twice.

use super::wire::Cookie;
use crate::fabric::traits::Peer;

/// Nanoseconds for which a cookie is valid.
pub(super) const LIFE: u64 = 10_000_000_000;

/// The key of a server's cookies and ids. All threads of a server have the same one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Secret([u64; 2]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Returns the key with these bytes, which have to come from a cryptographic generator.
    pub fn new(bytes: [u8; 16]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        Self([word(0), word(8)])
    }

    /// Returns the cookie for a client at this address.
    pub(super) fn cookie(self, peer: Peer, client: u64, nonce: u64, time: u64) -> Cookie {
        let [low, high] = self.hash(0, peer, client, nonce, time);
        let mut hash = [0; 16];
        hash[..8].copy_from_slice(&low.to_le_bytes());
        hash[8..].copy_from_slice(&high.to_le_bytes());
        Cookie { hash, time }
    }

    /// Returns whether the cookie is this server's, for this address, and not too old.
    pub(super) fn is_valid(self, cookie: Cookie, peer: Peer, client: u64, nonce: u64, now: u64) -> bool {
        let own = self.cookie(peer, client, nonce, cookie.time).hash;
        // All bytes are compared, whichever differ: the time tells nothing.
        let differs = own.iter().zip(cookie.hash).fold(0, |differs, (own, other)| differs | (own ^ other));
        differs == 0 && now.checked_sub(cookie.time).is_some_and(|age| age <= LIFE)
    }

    /// Returns the id of the client with this cookie. Its low 8 bits name the thread.
    pub(super) fn id(self, peer: Peer, nonce: u64, time: u64, thread: u8) -> u64 {
        let [id, _] = self.hash(1, peer, 0, nonce, time);
        (id.max(256) & !0xff) | u64::from(thread)
    }

    /// Returns a number for a host, which no peer can choose.
    pub(super) fn host(self, peer: Peer) -> u64 {
        let host = peer.host();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| host[at + byte]));
        siphash(self.0, &[word(0), word(8)])[0]
    }

    fn hash(self, prefix: u64, peer: Peer, client: u64, nonce: u64, time: u64) -> [u64; 2] {
        let peer = peer.to_bytes();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| peer[at + byte]));
        siphash(self.0, &[prefix, word(0), word(8), word(16), client, nonce, time])
    }
}

/// SipHash-2-4 with 128 bits of output, of whole words.
fn siphash(key: [u64; 2], words: &[u64]) -> [u64; 2] {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let last = (words.len() as u64 * 8) << 56;
    for word in words.iter().copied().chain([last]) {
        v[3] ^= word;
        rounds(&mut v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xee;
    rounds(&mut v, 4);
    let low = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    rounds(&mut v, 4);
    [low, v[0] ^ v[1] ^ v[2] ^ v[3]]
}

fn rounds(v: &mut [u64; 4], count: usize) {
    for _ in 0..count {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn key() -> Secret {
        Secret::new(std::array::from_fn(|byte| byte as u8))
    }

    /// The vectors of the reference implementation for 0 and 8 bytes: 00 01 02 and so on.
    #[test]
    fn siphash_has_the_values_of_the_reference() {
        let bytes = |hash: [u64; 2]| [hash[0].to_le_bytes(), hash[1].to_le_bytes()].concat();
        let none = [0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93];
        assert_eq!(bytes(siphash(key().0, &[])), none);
        let eight = [0x3b, 0x62, 0xa9, 0xba, 0x62, 0x58, 0xf5, 0x61, 0x0f, 0x83, 0xe2, 0x64, 0xf3, 0x14, 0x97, 0xb4];
        assert_eq!(bytes(siphash(key().0, &[0x0706_0504_0302_0100])), eight);
    }

    #[test]
    fn cookies_are_valid_for_their_input_only() {
        let peer = |text: &str| Peer::from(text.parse::<SocketAddr>().unwrap());
        let (here, there) = (peer("10.0.0.1:5"), peer("10.0.0.1:6"));
        let cookie = key().cookie(here, 1, 2, 100);
        assert!(key().is_valid(cookie, here, 1, 2, 100) && key().is_valid(cookie, here, 1, 2, 100 + LIFE));
        assert!(!key().is_valid(cookie, there, 1, 2, 100));
        assert!(!key().is_valid(cookie, here, 0, 2, 100) && !key().is_valid(cookie, here, 1, 3, 100));
        assert!(!key().is_valid(cookie, here, 1, 2, 99) && !key().is_valid(cookie, here, 1, 2, 101 + LIFE));
        assert!(!key().is_valid(Cookie { time: 101, ..cookie }, here, 1, 2, 101));
        assert!(!Secret::new([7; 16]).is_valid(cookie, here, 1, 2, 100));
    }

    #[test]
    fn ids_name_their_thread() {
        let peer = Peer::from("[::1]:9".parse::<SocketAddr>().unwrap());
        let ids = [0, 7, 255].map(|thread| key().id(peer, 1, 2, thread));
        assert!(ids.iter().zip([0, 7, 255]).all(|(id, thread)| id & 0xff == thread && *id > 255));
        assert_ne!(ids[0], key().id(peer, 2, 2, 0));
    }
}
