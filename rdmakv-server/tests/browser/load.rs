//! Clients that use the server as a cache is used: what is asked for is uneven, what is missing is stored, sizes and
//! lives differ.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use rdmakv_client::Client;

/// Some clients, until dropped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start(address: &str, clients: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..clients).map(|number| {
            let (address, stop) = (address.to_owned(), stop.clone());
            std::thread::spawn(move || client(&address, number, &stop))
        });
        Self { threads: threads.collect(), stop }
    }

    /// Clients over a fabric, of the same keys: they read what is asked for often by themselves.
    pub(crate) fn over_a_fabric(address: &str, clients: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..clients).map(|number| {
            let (address, stop) = (address.to_owned(), stop.clone());
            std::thread::spawn(move || reader(&address, number, &stop))
        });
        Self { threads: threads.collect(), stop }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn client(address: &str, number: u64, stop: &AtomicBool) {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone().unwrap()), stream);
    let (mut random, begun) = (StdRng::seed_from_u64(number), Instant::now());
    let (mut line, mut value) = (String::new(), vec![0; 1 << 20]);
    while !stop.load(Relaxed) {
        // Some keys are asked for much more often than others.
        let key = (random.random::<f64>().powi(5) * 60_000.0) as u64;
        write!(writer, "get object:{key}\r\n").unwrap();
        line.clear();
        reader.read_line(&mut line).unwrap();
        if let Some(length) = line.strip_prefix("VALUE ").and_then(|line| line.trim().rsplit(' ').next()) {
            let length: usize = length.parse().unwrap();
            reader.read_exact(&mut value[..length + 2]).unwrap();
            line.clear();
            reader.read_line(&mut line).unwrap();
        } else {
            let length = size_of(key);
            let life = [0, 0, 0, 20, 45][random.random_range(0..5)];
            let mut set = format!("set object:{key} 0 {life} {length}\r\n").into_bytes();
            set.resize(set.len() + length, b'x');
            set.extend_from_slice(b"\r\n");
            writer.write_all(&set).unwrap();
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        if random.random_range(0..60) == 0 {
            let command = if random.next_u32().is_multiple_of(2) { "delete" } else { "touch" };
            let life = if command == "touch" { " 60" } else { "" };
            write!(writer, "{command} object:{key}{life}\r\n").unwrap();
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        // They come and go in waves of a minute or so.
        let wave = (begun.elapsed().as_secs_f64() / 9.0 + number as f64 * 0.7).sin();
        std::thread::sleep(Duration::from_micros((900.0 + 700.0 * wave) as u64));
    }
}

fn reader(address: &str, number: u64, stop: &AtomicBool) {
    let (mut client, mut random) = (Client::new([address]).unwrap(), StdRng::seed_from_u64(1000 + number));
    while !stop.load(Relaxed) {
        let key = (random.random::<f64>().powi(5) * 60_000.0) as u64;
        let name = format!("object:{key}");
        // One that is not answered in time is no reason to end.
        if let Ok(None) = client.get(&name) {
            let _ = client.set(&name, vec![b'x'; size_of(key)], ());
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// The same for a key each time: most are small, a few are large.
fn size_of(key: u64) -> usize {
    let spread = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1 << 24) as f64;
    (40.0 * (spread * spread * 8.2).exp()) as usize
}
