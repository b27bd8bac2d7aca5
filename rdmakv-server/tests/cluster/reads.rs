//! Clients read by tags, in fragments, while writes go on.

use super::*;

/// Waits until a client reads without its servers.
fn reads_by_itself(client: &mut Client, key: &str) {
    soon("a read without a server", || {
        let value = client.get(key).unwrap().expect("it was stored");
        value.source() == rdmakv_client::Source::OneSided
    });
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

#[test]
fn values_with_copies_are_read_without_servers() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let more = ["--tag-lease", "300ms"];
        let Some(cluster) = Cluster::over(fabric, 3, &more, &[("", Policy::Copies(3))]) else { return };
        let (mut writer, mut reader) = (cluster.client(), cluster.client());
        let values = values("read");
        store_all(&mut writer, &values);
        for (key, value) in &values {
            assert_eq!(reader.get(key).unwrap().map(|value| value.into_vec()), *value, "{key}");
        }
        // What was stored is found at once, and what was read before is not.
        for key in 0..40 {
            let (key, first) = (format!("key-{key}"), vec![1; 1000 * key]);
            let version = writer.set(&key, &first, Terms { flags: 7, ..Terms::default() }).unwrap();
            reads_by_itself(&mut reader, &key);
            let value = reader.get(&key).unwrap().unwrap();
            assert_eq!((&value[..], value.flags()), (&first[..], 7));
            assert!(matches!(version, rdmakv_client::Stored::Yes(version) if version == value.version()));
            assert!(writer.set(&key, vec![2; 500], ()).unwrap().is_stored());
            assert_eq!(&reader.get(&key).unwrap().unwrap()[..], [2; 500]);
            assert!(writer.delete(&key).unwrap());
            assert!(reader.get(&key).unwrap().is_none());
        }
        assert!(reader.counters().one_sided >= 40);
    }
}

#[test]
fn small_values_of_a_code_are_read_without_servers() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let policies = [("", Policy::Code { data: 2, parity: 1 })];
        let Some(cluster) = Cluster::over(fabric, 3, &["--tag-lease", "300ms"], &policies) else { return };
        let (mut writer, mut reader) = (cluster.client(), cluster.client());
        for key in 0..10 {
            let key = format!("key-{key}");
            // Copies follow fragments, and the other way round: the reader finds what the writer stored.
            for length in [1000, 5000, 4095, 4096, 1, 70_000, 10] {
                let value: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
                assert!(writer.set(&key, &value, ()).unwrap().is_stored());
                for _ in 0..3 {
                    assert_eq!(&reader.get(&key).unwrap().unwrap()[..], value, "{key} of {length} bytes");
                    assert_eq!(&writer.get(&key).unwrap().unwrap()[..], value, "{key} of {length} bytes");
                }
                if length < 4096 {
                    reads_by_itself(&mut reader, &key);
                }
            }
            assert!(writer.delete(&key).unwrap() && reader.get(&key).unwrap().is_none());
        }
        let counters = reader.counters();
        assert!(counters.one_sided >= 40 && counters.errors == 0, "{counters:?}");
    }
}

#[test]
fn ends_of_resilient_values_change() {
    let policies = [("", Policy::Code { data: 2, parity: 1 })];
    let Some(cluster) = Cluster::over(Fabric::Shm, 3, &["--tag-lease", "300ms"], &policies) else { return };
    let (mut client, mut other) = (cluster.client(), cluster.client());
    let past = rdmakv_client::Expire::At(std::time::UNIX_EPOCH + Duration::from_secs(1));
    // Copies, fragments, and fragments that are staged.
    for length in [3, 5000, 200_000] {
        let (key, value) = (format!("key-{length}"), vec![b'v'; length]);
        assert!(!client.touch(&key, PATIENCE).unwrap() && client.gat(&key, PATIENCE).unwrap().is_none());
        assert!(client.set(&key, &value, Terms { flags: 7, expire: PATIENCE.into() }).unwrap().is_stored());
        reads_by_itself(&mut other, &key);
        assert!(client.touch(&key, PATIENCE).unwrap());
        let touched = client.gat(&key, past).unwrap().unwrap();
        assert!(touched[..] == value[..] && touched.flags() == 7, "{length}");
        assert!(client.get(&key).unwrap().is_none() && !client.touch(&key, PATIENCE).unwrap());
        assert!(other.get(&key).unwrap().is_none(), "a value of {length} bytes outlives its end");
        assert!(client.add(&key, "new", ()).unwrap().is_stored());
        let version = client.gat(&key, PATIENCE).unwrap().unwrap().version();
        assert_eq!(other.gets(&key).unwrap().unwrap().version(), version);
    }
    assert_eq!(client.counters().errors + other.counters().errors, 0);
}

#[test]
fn fragments_are_read_without_servers() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let (more, policies) = (["--tag-lease", "300ms"], [("", Policy::Code { data: 2, parity: 2 })]);
        let Some(mut cluster) = Cluster::over(fabric, 4, &more, &policies) else { return };
        let (mut writer, mut reader) = (cluster.client(), cluster.client());
        let value = |length: usize| (0..length).map(|at| (at * 13 + at / 257) as u8).collect::<Vec<u8>>();
        let lengths = [4096, 4097, 20_000, 131_072, 300_001];
        for (number, length) in lengths.into_iter().enumerate() {
            let (key, first) = (format!("key-{number}"), value(length));
            let version = writer.set(&key, &first, Terms { flags: 7, ..Terms::default() }).unwrap();
            reads_by_itself(&mut reader, &key);
            let value = reader.get(&key).unwrap().unwrap();
            assert!(value[..] == first[..] && value.flags() == 7, "{length}");
            assert!(matches!(version, rdmakv_client::Stored::Yes(version) if version == value.version()));
            // What is stored is found at once, in fragments or whole.
            for length in [length - 1, 500, length] {
                assert!(writer.set(&key, vec![2; length], ()).unwrap().is_stored());
                assert!(reader.get(&key).unwrap().unwrap()[..] == vec![2; length], "{length}");
            }
            assert!(writer.delete(&key).unwrap());
            assert!(reader.get(&key).unwrap().is_none());
        }
        // Several at once, of which some are not known.
        let all: Vec<String> = (0..20).map(|number| format!("many-{number}")).collect();
        all.iter().for_each(|key| assert!(writer.set(key, value(9000), ()).unwrap().is_stored()));
        for count in [10, 20] {
            let found = reader.get_many(&all[..count]);
            assert!(found.into_iter().all(|found| found.unwrap().unwrap()[..] == value(9000)));
        }
        // Without one of the data's fragments.
        let lost = cluster.at(cluster.target("many-0").members[1]);
        cluster.kill(lost);
        soon("that it is removed", || cluster.config().servers().len() == 3);
        reads_by_itself(&mut reader, "many-0");
        assert!(reader.get("many-0").unwrap().unwrap()[..] == value(9000));
    }
}

#[test]
fn expected_fragments_are_read_without_servers() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let policies = [("", Policy::Code { data: 2, parity: 2 })];
        let more = ["-m", "64", "--tag-lease", "300ms"];
        let Some(mut cluster) = Cluster::over(fabric, 4, &more, &policies) else { return };
        let (mut writer, mut reader) = (cluster.client(), cluster.client());
        let value = |at: usize| (0..200_000 + at).map(|byte| (byte * 13 + byte / 257 + at) as u8).collect::<Vec<u8>>();
        let key = |at: usize| format!("key-{at}");
        (0..60).for_each(|at| assert!(writer.set(key(at), value(at), ()).unwrap().is_stored()));
        // The fabrics of all servers are in use.
        for at in 0..8 {
            assert!(writer.set(format!("first-{at}"), value(at), ()).unwrap().is_stored());
            reads_by_itself(&mut reader, &format!("first-{at}"));
        }
        // Each is read once: a client that is slow reads some by calls.
        let at_once = (0..60).filter(|&at| {
            reader.expect(key(at), 200_000 + at);
            let found = reader.get(key(at)).unwrap().unwrap();
            assert!(found[..] == value(at), "{at}");
            found.source() == rdmakv_client::Source::OneSided
        });
        assert!(at_once.count() > 0);
        // Expectations may be wrong.
        assert!(writer.set("small", "value", ()).unwrap().is_stored());
        for (key, found) in [("small", Some(&b"value"[..])), ("none", None)] {
            reader.expect(key, 1 << 20);
            assert_eq!(reader.get(key).unwrap().as_deref(), found);
        }
        // The others have enough fragments.
        let lost = cluster.at(cluster.target(&key(59)).members[1]);
        cluster.kill(lost);
        reader.expect(key(59), 200_059);
        assert!(reader.get(key(59)).unwrap().unwrap()[..] == value(59));
        assert_eq!(reader.counters().errors, 0);
    }
}

#[test]
fn no_read_is_older_than_an_acknowledged_write() {
    const KEYS: u64 = 40;
    let (copies, code) = (Policy::Copies(3), Policy::Code { data: 2, parity: 1 });
    let cases = [
        (Fabric::Shm, "pause", "200ms", copies),
        (Fabric::Iwarp, "drain", "200ms", copies),
        // A tag would end after the right, so none is granted.
        (Fabric::Shm, "kill", "4s", copies),
        (Fabric::Shm, "pause", "200ms", code),
        (Fabric::Iwarp, "pause", "200ms", code),
        (Fabric::Iwarp, "drain", "200ms", code),
        (Fabric::Shm, "kill", "4s", code),
    ];
    for (fabric, fault, lease, policy) in cases {
        let more = ["--tag-lease", lease];
        let Some(mut cluster) = Cluster::over(fabric, 4, &more, &[("", policy)]) else { return };
        // Those of a code are in fragments.
        let numbers = if policy == code { 640 } else { 1 };
        let agents = cluster.agents();
        let written: Vec<_> = (0..KEYS).map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
        let key = |at: u64| format!("key-{at}");
        let write = |client: &mut Client, number: u64| {
            let at = number % KEYS;
            assert!(client.set(key(at), number.to_le_bytes().repeat(numbers), ()).unwrap().is_stored());
            written[at as usize].store(number, std::sync::atomic::Ordering::SeqCst);
        };
        let mut writer = cluster.client();
        (KEYS..2 * KEYS).for_each(|number| write(&mut writer, number));
        let victim = cluster.at(cluster.target(&key(0)).members[0]);
        let ends = AtomicBool::new(false);
        let one_sided: u64 = std::thread::scope(|scope| {
            let read = || {
                let (mut client, mut at, mut last) = (cluster.client(), 0, vec![0; KEYS as usize]);
                while !ends.load(Relaxed) {
                    at = (at + 1) % KEYS;
                    let before = written[at as usize].load(std::sync::atomic::Ordering::SeqCst).max(last[at as usize]);
                    // Every other one looks for the fragments first.
                    if at % 2 == 0 {
                        client.expect(key(at), 1 << 20);
                    }
                    let value = client.get(key(at)).unwrap().unwrap_or_else(|| panic!("{fault}: {} is lost", key(at)));
                    last[at as usize] = number(&value);
                    assert!(number(&value) >= before, "{fault}: {} is {}, and was {before}", key(at), number(&value));
                }
                client.counters().one_sided
            };
            let readers = [scope.spawn(read), scope.spawn(read)];
            let mut next = 2 * KEYS;
            let mut write_for = |time: Duration| {
                let until = Instant::now() + time;
                while Instant::now() < until {
                    write(&mut writer, next);
                    next += 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
            };
            write_for(Duration::from_secs(1));
            let process = cluster.servers[victim].as_ref().unwrap().process.id();
            let signal = |name: &str| {
                assert!(
                    std::process::Command::new("kill").args([name, &process.to_string()]).status().unwrap().success()
                )
            };
            match fault {
                "pause" => {
                    signal("-STOP");
                    write_for(Duration::from_secs(3));
                    signal("-CONT");
                    write_for(Duration::from_secs(1));
                }
                "kill" => {
                    signal("-KILL");
                    write_for(Duration::from_secs(3));
                }
                _ => {
                    let name = format!("tcp:127.0.0.1:{}", cluster.ports[victim]);
                    cluster
                        .store()
                        .update(|_, config| {
                            let server = config.servers().iter().find(|server| server.name == name);
                            server.map(|server| config.draining(server.id)).transpose()
                        })
                        .unwrap();
                    write_for(Duration::from_secs(3));
                }
            }
            ends.store(true, Relaxed);
            readers.into_iter().map(|reader| reader.join().unwrap()).sum()
        });
        let is_right = if lease == "4s" { one_sided == 0 } else { one_sided > 50 };
        assert!(is_right, "{policy:?}, {fault}: {one_sided} reads without a server");
        drop(agents);
        if fault != "pause" {
            cluster.servers[victim] = None;
        }
    }
}

#[test]
fn servers_read_large_pieces_out_of_the_client() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let policies = [("copies:", Policy::Copies(3)), ("code:", Policy::Code { data: 2, parity: 1 })];
        let Some(cluster) = Cluster::over(fabric, 3, &["-m", "16"], &policies) else { return };
        let name = if fabric == Fabric::Shm { "shm_sets_pulled" } else { "iwarp_sets_pulled" };
        let pulled = || -> u64 { cluster.servers.iter().flatten().map(|server| server.stat(name)).sum() };
        let mut client = cluster.client();
        // The fabrics of all servers are in use.
        soon("a value over the fabric", || {
            let before = pulled();
            assert!(client.set("copies:first", vec![1; 200_000], ()).unwrap().is_stored());
            pulled() >= before + 3
        });
        let mut before = pulled();
        for (at, length) in [65_537, 200_001, 400_000, 140_000, 131_071].into_iter().enumerate() {
            let value: Vec<u8> = (0..length).map(|byte| (byte * 7 + byte / 253 + at) as u8).collect();
            for prefix in ["copies:", "code:"] {
                let key = format!("{prefix}{at}");
                let mut buffer = client.buffer(length).unwrap();
                buffer.copy_from_slice(&value);
                let ticket = client.iset(&key, buffer, ()).unwrap();
                let (stored, data) = client.wait_for_data(ticket);
                assert!(stored.unwrap().is_stored());
                assert!(matches!(data, rdmakv_client::Data::Buffer(_)), "{key}: the memory comes back");
                assert_eq!(client.get(&key).unwrap().as_deref(), Some(&value[..]), "{key}");
                // A piece that fits into a message travels in it.
                let is_pulled = prefix == "copies:" || length > 131_072;
                let now = pulled();
                // A write that begins again has its pieces read again.
                let is_right = if is_pulled { now >= before + 3 } else { now == before };
                assert!(is_right, "{key} of {length}: {} pieces", now - before);
                before = now;
            }
        }
        // No byte of a value without room is read.
        let refused = (0..100).find_map(|at| client.set(format!("copies:more-{at}"), vec![2; 400_000], ()).err());
        let error = refused.expect("it is full").to_string();
        assert!(error.contains("out of memory storing object"), "{error}");
        assert!(client.delete("copies:0").unwrap() && client.delete("copies:2").unwrap());
        assert!(client.set("copies:last", vec![3; 400_000], ()).unwrap().is_stored());
    }
}

#[test]
fn calls_stay_on_a_fabric_that_takes_no_values() {
    let policies = [("", Policy::Copies(3))];
    let Some(cluster) = Cluster::over(Fabric::Shm, 3, &["--eager", "0"], &policies) else { return };
    let pulled = || -> u64 { cluster.servers.iter().flatten().map(|server| server.stat("shm_sets_pulled")).sum() };
    let mut client = cluster.client();
    soon("a value over the fabric", || {
        let before = pulled();
        assert!(client.set("key", "value", ()).unwrap().is_stored());
        pulled() >= before + 3
    });
    assert_eq!(client.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}
