//! Loses datagrams between clients and the server: a relay on this machine.
//!
//! Each client that sends has a socket to the server of its own, and a thread for the way back. Of the
//! datagrams some are lost, some come twice, and some come late, behind up to four others of their client. The second of two may be late, too.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rand::RngExt;

/// Clients at most; later ones get nothing through.
const CLIENTS: usize = 4096;
/// How long a way back waits for a datagram before it looks whether the relay ends.
const LOOK: Duration = Duration::from_millis(20);
/// Silence after which a way back ends, in rounds of [`LOOK`].
const SILENCE: u32 = 1500;
/// Bytes of a datagram at most.
const DATAGRAM: usize = 1 << 16;

/// The relay. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
}

impl Relay {
    /// Starts one to a server's address, which loses this share of the datagrams in each direction.
    pub(crate) fn start(server: SocketAddr, share: f64) -> io::Result<Self> {
        let front = Arc::new(UdpSocket::bind(("127.0.0.1", 0))?);
        let (ends, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let relay = Self { address: front.local_addr()?, ends: ends.clone(), lost: lost.clone() };
        front.set_read_timeout(Some(LOOK))?;
        std::thread::Builder::new().name("loss".to_owned()).spawn(move || {
            let mut ways: HashMap<SocketAddr, (Arc<UdpSocket>, Fate)> = HashMap::new();
            let mut bytes = vec![0; DATAGRAM];
            while !ends.load(Relaxed) {
                let Ok((read, client)) = front.recv_from(&mut bytes) else { continue };
                // A way that has ended by silence is made again.
                ways.retain(|_, (way, _)| Arc::strong_count(way) > 1);
                if !ways.contains_key(&client) {
                    if ways.len() >= CLIENTS {
                        continue;
                    }
                    let Ok(way) = way_back(&front, client, server, (share, &ends, &lost)) else { continue };
                    ways.insert(client, (way, Fate::new(share, lost.clone())));
                }
                // What is late leaves by its own client's way.
                if let Some((way, fate)) = ways.get_mut(&client) {
                    fate.pass(&bytes[..read], |bytes| drop(way.send(bytes)));
                }
            }
        })?;
        Ok(relay)
    }

    /// Returns the address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many datagrams it lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
    }
}

/// Makes a client's socket to the server, and a thread that brings what comes there to the client.
fn way_back(
    front: &Arc<UdpSocket>,
    client: SocketAddr,
    server: SocketAddr,
    (share, ends, lost): (f64, &Arc<AtomicBool>, &Arc<AtomicU64>),
) -> io::Result<Arc<UdpSocket>> {
    let way = Arc::new(UdpSocket::bind(("127.0.0.1", 0))?);
    way.connect(server)?;
    way.set_read_timeout(Some(LOOK))?;
    let (front, ends, own) = (front.clone(), ends.clone(), way.clone());
    let mut fate = Fate::new(share, lost.clone());
    std::thread::Builder::new().name("loss-back".to_owned()).stack_size(128 << 10).spawn(move || {
        let (mut bytes, mut silent) = (vec![0; DATAGRAM], 0);
        while !ends.load(Relaxed) && silent < SILENCE {
            match own.recv(&mut bytes) {
                Ok(read) => {
                    silent = 0;
                    fate.pass(&bytes[..read], |bytes| drop(front.send_to(bytes, client)));
                }
                // Nothing came, or the server is not there now.
                Err(error) => {
                    silent += 1;
                    if error.kind() == io::ErrorKind::ConnectionRefused {
                        std::thread::sleep(LOOK);
                    }
                }
            }
        }
    })?;
    Ok(way)
}

/// Decides what becomes of each datagram of a direction.
struct Fate {
    share: f64,
    lost: Arc<AtomicU64>,
    /// A late datagram, and how many others go before it.
    held: Option<(Vec<u8>, u32)>,
}

impl Fate {
    fn new(share: f64, lost: Arc<AtomicU64>) -> Self {
        Self { share, lost, held: None }
    }

    fn pass(&mut self, datagram: &[u8], send: impl Fn(&[u8])) {
        let mut random = rand::rng();
        if random.random_bool(self.share) {
            self.lost.fetch_add(1, Relaxed);
        } else if self.held.is_none() && random.random_bool(self.share) {
            self.held = Some((datagram.to_vec(), random.random_range(1..=4)));
        } else {
            send(datagram);
            if let Some((_, others)) = &mut self.held {
                *others -= 1;
            }
            if let Some((held, _)) = self.held.take_if(|(_, others)| *others == 0) {
                send(&held);
            }
            if random.random_bool(self.share) {
                match self.held.is_none() && random.random() {
                    true => self.held = Some((datagram.to_vec(), random.random_range(1..=4))),
                    false => send(datagram),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn some_are_lost_some_doubled_and_some_late() {
        const ALL: u32 = 10_000;
        let lost = Arc::new(AtomicU64::new(0));
        let (mut fate, sent) = (Fate::new(0.1, lost.clone()), RefCell::new(Vec::new()));
        for number in 0..ALL {
            fate.pass(&number.to_le_bytes(), |bytes| {
                sent.borrow_mut().push(u32::from_le_bytes(bytes.try_into().unwrap()))
            });
        }
        let (sent, lost) = (sent.into_inner(), lost.load(Relaxed) as usize);
        let mut seen = vec![0; ALL as usize];
        let mut late = [0; 2];
        let mut newest = 0;
        for number in sent {
            seen[number as usize] += 1;
            late[seen[number as usize] - 1] += u32::from(number < newest);
            newest = newest.max(number);
        }
        assert!((700..1300).contains(&lost) && seen.iter().filter(|count| **count == 0).count() - lost <= 1, "{lost}");
        assert!(seen.iter().filter(|count| **count == 2).count() > 400);
        assert!(late.iter().all(|count| *count > 100), "first and second copies: {late:?}");
    }
}
