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
    /// The first point at or after the start of each part of the ring. Parts are of one length, and as many as points, or up to twice that.
    starts: Vec<u32>,
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
        let parts = points.len().next_power_of_two().max(2);
        let mut starts = Vec::with_capacity(parts);
        let mut next = 0;
        for part in 0..parts {
            while points.get(next).is_some_and(|&(place, _)| part_of(place, parts) < part) {
                next += 1;
            }
            starts.push(next as u32);
        }
        Self { points, starts }
    }

    /// Returns how many points it has.
    pub(crate) fn len(&self) -> usize {
        self.points.len()
    }

    /// Returns the first servers clockwise from a key, each once, at most `size`.
    pub fn group(&self, key: &[u8], size: usize) -> Vec<ServerId> {
        let mut group = Vec::with_capacity(size.min(MAX_SERVERS));
        let (mut met, start) = (0_u64, self.next(hash(key)));
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
        self.points.get(self.next(hash(key))).or(self.points.first()).map(|&(_, server)| server)
    }

    /// Returns the first point at or after a place, or the number of points if there is none.
    #[inline]
    fn next(&self, place: u64) -> usize {
        let start = self.starts[part_of(place, self.starts.len())] as usize;
        // A part has a point or two.
        start + self.points[start..].iter().take_while(|&&(point, _)| point < place).count()
    }
}

/// Returns the part of the ring, of at least two, that a place is in.
#[inline]
fn part_of(place: u64, parts: usize) -> usize {
    (place >> (64 - parts.trailing_zeros())) as usize
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_point_is_found_from_anywhere() {
        let names: Vec<String> = (0..7).map(|server| format!("s{server}")).collect();
        let servers = |count| names.iter().zip(0..count).map(|(name, id)| (ServerId(id), name.as_str(), 3));
        for count in [0, 1, 3, 7] {
            let ring = Ring::of(servers(count));
            let points =
                ring.points.iter().flat_map(|&(point, _)| [point.saturating_sub(1), point, point.wrapping_add(1)]);
            let places: Vec<u64> = points.chain((0..2000).map(mix)).chain([0, u64::MAX]).collect();
            for place in places {
                let next = ring.points.partition_point(|&(point, _)| point < place);
                assert_eq!(ring.next(place), next, "{place:x} of {count} servers");
            }
        }
    }
}
