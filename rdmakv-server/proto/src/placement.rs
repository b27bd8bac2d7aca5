//! Which server has a key: the ring of libmemcached, point by point.
//!
//! Each server stands at many points of a ring of 2³² places, and a key belongs to the server at the next point. So a server that
//! comes or goes takes its own keys along and no others. Where the points are has to be the same in every client: these are those of
//! libmemcached's `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED` (four points of each of some forty MD5 sums, by weight) and
//! `MEMCACHED_BEHAVIOR_KETAMA` (100 points a server, by Jenkins's one-at-a-time or by MD5; with weights it becomes the other).

use md5::{Digest, Md5};
use std::fmt;

/// The name of a server on the ring. Clients that are to agree call it the same: libmemcached by host, as it was given, and
/// port; by path where it is a socket.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    /// A host, or a socket's path.
    pub host: String,
    /// The port; 0 where there is none.
    pub port: u16,
}

/// The port that is not named.
const DEFAULT_PORT: u16 = 11211;

impl fmt::Display for Name {
    /// As it goes into the sums.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            DEFAULT_PORT => f.write_str(&self.host),
            port => write!(f, "{}:{port}", self.host),
        }
    }
}

/// How the ring is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Continuum {
    /// `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`, which most clients mean by ketama.
    #[default]
    Weighted,
    /// `MEMCACHED_BEHAVIOR_KETAMA` and no more: sums are Jenkins's one-at-a-time. Where a server has a weight, points are as above, and
    /// keys are not.
    Plain,
    /// `MEMCACHED_BEHAVIOR_KETAMA` with `MEMCACHED_BEHAVIOR_HASH` set to MD5. Where a server has a weight, as the first.
    PlainMd5,
}

/// Servers on a ring.
///
/// ```
/// use rdmakv_proto::placement::{Continuum, Name, Ring};
///
/// let servers = [("10.0.0.1", 11211, 1), ("10.0.0.2", 11211, 3)];
/// let servers = servers.map(|(host, port, weight)| (Name { host: host.into(), port }, weight));
/// let ring = Ring::new(Continuum::Weighted, &servers);
/// let to_the_second = (0..1000).filter(|key| ring.server(format!("key-{key}").as_bytes()) == 1).count();
/// assert!((650..850).contains(&to_the_second), "three quarters or so: {to_the_second}");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    continuum: Continuum,
    /// Places and servers, in the order of the places.
    points: Vec<(u32, u32)>,
}

impl Ring {
    /// Returns a ring of these servers, with their weights.
    pub fn new(continuum: Continuum, servers: &[(Name, u32)]) -> Self {
        let total: u32 = servers.iter().fold(0, |sum, (_, weight)| sum.saturating_add(*weight));
        let by_weight = continuum == Continuum::Weighted || servers.iter().any(|(_, weight)| *weight > 1);
        let mut points = Vec::new();
        for (server, (name, weight)) in servers.iter().enumerate() {
            if by_weight {
                for index in 0..sums_of(*weight, total, servers.len()) {
                    let sum = md5(format!("{name}-{index}").as_bytes());
                    points.extend((0..4).map(|part| (place(&sum, part), server as u32)));
                }
            } else {
                let place = |index| hash(continuum, format!("{name}-{index}").as_bytes());
                points.extend((0..100).map(|index| (place(index), server as u32)));
            }
        }
        points.sort_unstable();
        Self { continuum, points }
    }

    /// Returns the place of the server in the list that the ring was made of. 0 where there is one server or none.
    pub fn server(&self, key: &[u8]) -> usize {
        let Some(&(_, first)) = self.points.first() else { return 0 };
        let at = hash(self.continuum, key);
        let next = self.points.partition_point(|&(point, _)| point < at);
        self.points.get(next).map_or(first, |&(_, server)| server) as usize
    }

    /// Points on the ring.
    pub fn points(&self) -> usize {
        self.points.len()
    }
}

/// How many sums a server has; in the precision that libmemcached computes it in.
fn sums_of(weight: u32, total: u32, servers: usize) -> u32 {
    let share = weight as f32 / total as f32;
    let exact = f64::from(share * 160.0 / 4.0 * servers as f32) + 0.000_000_000_1;
    (exact as f32).floor() as u32
}

fn hash(continuum: Continuum, bytes: &[u8]) -> u32 {
    match continuum {
        Continuum::Plain => one_at_a_time(bytes),
        Continuum::Weighted | Continuum::PlainMd5 => place(&md5(bytes), 0),
    }
}

fn md5(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

/// Bob Jenkins's, with bytes taken as signed, as libmemcached does.
fn one_at_a_time(bytes: &[u8]) -> u32 {
    let mut sum = 0_u32;
    for &byte in bytes {
        sum = sum.wrapping_add(i32::from(byte.cast_signed()).cast_unsigned());
        sum = sum.wrapping_add(sum << 10);
        sum ^= sum >> 6;
    }
    sum = sum.wrapping_add(sum << 3);
    sum ^= sum >> 11;
    sum.wrapping_add(sum << 15)
}

fn place(sum: &[u8; 16], part: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&sum[part * 4..part * 4 + 4]);
    u32::from_le_bytes(four)
}
