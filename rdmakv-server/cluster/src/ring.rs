//! The ring: points of servers, and the groups of keys.

use crate::ids::{MAX_SERVERS, ServerId};

/// Points on the ring for each unit of a server's weight.
pub const POINTS: u32 = 128;

/// The most points of one server.
const MAX_POINTS: u32 = 1 << 15;

/// Servers on a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    /// Places and servers, in the order of the places.
    points: Vec<(u64, ServerId)>,
}

impl Ring {
    /// Returns a ring of servers: number, name and weight.
    pub fn of<'a>(servers: impl IntoIterator<Item = (ServerId, &'a str, u16)>) -> Self {
        let mut points = Vec::new();
        for (id, name, weight) in servers {
            let name = hash(name.as_bytes());
            let count = (POINTS * u32::from(weight)).min(MAX_POINTS);
            points.extend((1..=count).map(|index| (mix(name ^ mix(u64::from(index))), id)));
        }
        points.sort_unstable();
        Self { points }
    }

    /// Returns how many points it has.
    pub(crate) fn len(&self) -> usize {
        self.points.len()
    }

    /// Returns the first servers clockwise from a key, each once, at most `size`.
    pub fn group(&self, key: &[u8], size: usize) -> Vec<ServerId> {
        let mut group = Vec::with_capacity(size.min(MAX_SERVERS));
        let (mut met, at) = (0_u64, hash(key));
        let start = self.points.partition_point(|&(place, _)| place < at);
        for &(_, server) in self.points[start..].iter().chain(&self.points[..start]) {
            if group.len() >= size {
                break;
            }
            let bit = 1_u64 << (server.0 % 64);
            if met & bit == 0 {
                met |= bit;
                group.push(server);
            }
        }
        group
    }

    /// Returns the server that orders the writes of a key: the first of each of its groups.
    pub fn primary(&self, key: &[u8]) -> Option<ServerId> {
        let at = hash(key);
        let next = self.points.partition_point(|&(place, _)| place < at);
        self.points.get(next).or(self.points.first()).map(|&(_, server)| server)
    }
}

/// FNV-1a, finished by [`mix`].
fn hash(bytes: &[u8]) -> u64 {
    let sum = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    mix(sum)
}

/// The last steps of `splitmix64`.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
