//! Draining to the backing directory, against real servers and etcd. The tests are skipped, with a line, on machines without etcd.

#![cfg(feature = "library")]

mod common;

use std::time::Duration;

use common::{Cluster, Dice, soon};
use rdmakv_client::{Client, Error, Frozen, Options};
use rdmakv_fuse::{Files, How, Settings};
use rdmakv_proto::files::{Generation, Inode, Key, State};

fn write(files: &Files, path: &str, bytes: &[u8]) {
    let mut file = files.open(path, How::new().write().create().truncate()).unwrap();
    file.write_at(0, bytes).unwrap();
    file.close().unwrap();
}

/// Mounts with small chunks, and freezes files as soon as they are closed.
fn mount(cluster: &Cluster) -> Files {
    cluster.mount_with(Settings { settle: Duration::ZERO, chunk: 64 << 10, ..Settings::default() })
}

fn frozen(files: &Files, path: &str) -> (u64, Inode) {
    soon("that the file is frozen", || files.look_up(path).unwrap().1.state == State::Frozen);
    let (ino, inode) = files.look_up(path).unwrap();
    (ino.0, inode)
}

#[test]
fn all_servers_refuse_changes_of_a_frozen_file() {
    let Some(mut cluster) = Cluster::start(3) else { return };
    let files = mount(&cluster);
    write(&files, "a", &Dice(1).bytes(150_000));
    let (ino, inode) = frozen(&files, "a");
    let Inode { size, chunk_bits, generation, .. } = inode;
    let runs = inode.map.iter().map(|run| (run.first, run.count)).collect();
    let frozen = Frozen { ino, generation: generation.0, size, chunk_bits, runs };
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    // One of them is gone: the others answer in the next epoch.
    cluster.kill(1);
    let epoch = client.freeze(&frozen).unwrap();
    assert_eq!(client.freeze(&frozen).unwrap(), epoch);
    for index in 0..3 {
        let key = Key::Chunk(rdmakv_proto::files::Ino(ino), Generation(1), index).to_string();
        let why = client.set(&key, b"other", ()).unwrap_err();
        assert!(matches!(&why, Error::Refused { said, .. } if said.contains("chunk is final")), "{why}");
    }
    client.persisted(&frozen).unwrap();
    let mut alone = cluster.address();
    alone.give_up_after = Duration::from_millis(300);
    let mut client = Client::of_cluster(&alone, Options::default()).unwrap();
    cluster.kill(0);
    cluster.kill(2);
    let why = client.freeze(&frozen).unwrap_err();
    assert!(matches!(&why, Error::NotEverywhere { servers, .. } if servers.contains(&cluster.name(2))), "{why}");
}
