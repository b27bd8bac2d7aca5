//! Writes with conditions, behind others, without room, and by more than one client.

use super::*;

#[test]
fn a_write_outlives_its_primary() {
    let Some(mut cluster) = Cluster::start(3, &[], &[("r:", Policy::Copies(3))]) else { return };
    let key = "r:key";
    let large = vec![b'x'; 300_000];
    assert!(matches!(cluster.write(key, &set(1, b"first")), Outcome::Known(Verdict::Stored(_))));
    let staged = Order { is_staged: true, flags: 9, ..set(2, &large) };
    assert!(matches!(cluster.write(key, &staged), Outcome::Known(Verdict::Stored(_))));
    assert!(cluster.read(key).as_deref() == Some(&large[..]), "the value is not the large one");

    let primary = cluster.target(key).members[0];
    let expected = [format!("VALUE {key} 9 {}\r\n", large.len()).as_bytes(), &large, b"\r\nEND\r\n"].concat();
    ask(&mut cluster.server(primary).connect(), format!("get {key}\r\n").as_bytes(), &expected);
    let at = cluster.at(primary);
    cluster.kill(at);
    soon("that the others remove it", || cluster.config().server(primary).is_none());
    assert!(cluster.read(key).as_deref() == Some(&large[..]), "the value is not the large one");
    assert!(matches!(cluster.write(key, &set(3, b"third")), Outcome::Known(Verdict::Stored(_))));
    assert_eq!(cluster.read(key).as_deref(), Some(&b"third"[..]));
}

#[test]
fn writes_have_conditions_and_are_computed() {
    let Some(cluster) = Cluster::start(2, &[], &[("", Policy::Copies(2))]) else { return };
    let declined = |refusal| Outcome::Known(Verdict::Declined(refusal));
    let stored = |outcome| matches!(outcome, Outcome::Known(Verdict::Stored(_)));
    let on = |sequence, condition, value| Order { condition, ..set(sequence, value) };
    assert_eq!(cluster.write("k", &on(1, Condition::Present, b"1")), declined(Refusal::NotStored));
    assert!(stored(cluster.write("k", &on(2, Condition::Absent, b"41"))));
    assert_eq!(cluster.write("k", &on(3, Condition::Absent, b"2")), declined(Refusal::NotStored));
    let compute = |sequence, arguments, value| Order { arguments: Some(arguments), ..set(sequence, value) };
    let up = Arguments::Increment { by: 1, initial: None };
    assert!(stored(cluster.write("k", &compute(4, up, b""))));
    assert_eq!(cluster.read("k").as_deref(), Some(&b"42"[..]));
    assert!(stored(cluster.write("k", &compute(5, Arguments::Append, b" is it"))));
    assert!(stored(cluster.write("k", &compute(6, Arguments::Prepend, b"so "))));
    assert_eq!(cluster.read("k").as_deref(), Some(&b"so 42 is it"[..]));
    assert_eq!(cluster.write("k", &compute(7, up, b"")), declined(Refusal::Invalid));
    assert_eq!(cluster.write("none", &compute(8, up, b"")), declined(Refusal::NotStored));
    // All members have it.
    let target = cluster.target("k");
    let version = match cluster.ask(target.members[0], "k", &target, Call::Survey) {
        Answer::Value(Some(stored)) => stored.version,
        other => panic!("{other:?}"),
    };
    let fetched = cluster.ask(target.members[1], "k", &target, Call::Fetch { version });
    assert!(matches!(&fetched, Answer::Value(Some(stored)) if stored.version == version), "{fetched:?}");
    // An expired value counts as absent.
    assert!(stored(cluster.write("k", &Order { expiry: 1, ..set(9, b"over") })));
    assert_eq!(cluster.read("k"), None);
    assert!(stored(cluster.write("k", &on(10, Condition::Absent, b"new"))));
    // No piece is left but those of the one key.
    for server in cluster.servers.iter().flatten() {
        let stats = server.stats("cluster");
        assert_eq!((&*stats["keys"], &*stats["staged_bytes"]), ("1", "0"));
        assert!(stats["pieces"].parse::<u64>().unwrap() <= 2, "{stats:?}");
    }
    // A staged write that is declined leaves no bytes anywhere.
    let large = vec![b'x'; 100_000];
    let add = Order { condition: Condition::Absent, is_staged: true, ..set(20, &large) };
    assert_eq!(cluster.write("k", &add), declined(Refusal::NotStored));
    assert!(cluster.servers.iter().flatten().all(|server| server.stats("cluster")["staged_bytes"] == "0"));
}

#[test]
fn an_order_behind_another_is_told_to_help() {
    let Some(cluster) = Cluster::start(2, &[], &[("", Policy::Copies(2))]) else { return };
    // Fences are over then.
    assert_eq!(cluster.read("k"), None);
    let target = cluster.target("k");
    let order = |sequence| Request {
        cluster: target.cluster,
        epoch: target.epoch,
        call: Call::Order {
            id: WriteId { client: 5, sequence },
            lowest: 1,
            condition: Condition::Always,
            change: rdmakv_cluster::messages::Change::Put(copy(b"value")),
        },
    };
    let answer = |sequence| cluster.call(target.members[0], "k", &RequestFrame::new(order(sequence)), b"value");
    assert!(matches!(answer(1).0.reply.answer, Answer::Ordered { .. }));
    let (help, bytes) = answer(2);
    let Answer::Help(pending) = help.reply.answer else { panic!("{help:?}") };
    assert_eq!((pending.stored.id.sequence, &*bytes), (1, &b"value"[..]));
    assert_eq!(cluster.server(target.members[0]).stats("cluster")["pieces"], "1");
    assert!(matches!(cluster.write("k", &set(3, b"value")), Outcome::Known(Verdict::Stored(_))));
}

#[test]
fn plain_commands_leave_resilient_keys_alone() {
    let Some(cluster) = Cluster::start(2, &[], &[("r:", Policy::Copies(2))]) else { return };
    assert!(matches!(cluster.write("r:k", &set(1, b"value")), Outcome::Known(Verdict::Stored(_))));
    // The primary of another key may wait for its fences yet.
    assert_eq!(cluster.read("r:none"), None);
    let target = cluster.target("r:k");
    let (mut primary, mut backup) =
        (cluster.server(target.members[0]).connect(), cluster.server(target.members[1]).connect());
    ask(&mut primary, b"get r:k\r\n", b"VALUE r:k 0 5\r\nvalue\r\nEND\r\n");
    let other = cluster.target("r:none").members[0];
    ask(&mut cluster.server(other).connect(), b"get r:none\r\n", b"END\r\n");
    ask(&mut backup, b"get r:k\r\n", RESILIENT.as_bytes());
    for command in [
        "set r:k 0 0 3\r\nget\r\n",
        "add r:k 0 0 1\r\nx\r\n",
        "delete r:k\r\n",
        "incr r:k 1\r\n",
        "touch r:k 0\r\n",
        "gat 0 r:k\r\n",
        "mg r:k v\r\n",
        "ms r:k 1\r\nx\r\n",
        "md r:k\r\n",
        "ma r:k\r\n",
        "me r:k\r\n",
        // In base64.
        "mg cjpr b\r\n",
    ] {
        ask(&mut primary, command.as_bytes(), RESILIENT.as_bytes());
    }
    let mixed = b"SERVER_ERROR plain and resilient keys in one command: ask for them apart\r\n";
    ask(&mut primary, b"get r:k plain\r\n", mixed);
    ask(&mut primary, b"set plain 0 0 1\r\nx\r\nget plain\r\n", b"STORED\r\nVALUE plain 0 1\r\nx\r\nEND\r\n");
    // A binary GET of "r:k": status 0x83.
    let mut binary = cluster.server(target.members[0]).connect();
    let mut request = vec![0x80, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 3];
    request.resize(24, 0);
    request.extend(b"r:k");
    binary.write_all(&request).unwrap();
    let mut header = [0; 24];
    binary.read_exact(&mut header).unwrap();
    assert_eq!(header[6..8], [0, 0x83]);
}

#[test]
fn refuses_what_is_no_call() {
    let Some(cluster) = Cluster::start(1, &[], &[("", Policy::Copies(2))]) else { return };
    let server = cluster.servers[0].as_ref().unwrap();
    let address = server.address("tcp");
    let target = cluster.target("k");
    let frame = |call| {
        let mut bytes = Vec::new();
        RequestFrame::new(Request { cluster: target.cluster, epoch: target.epoch, call }).encode(&mut bytes);
        bytes
    };
    let id = WriteId { client: 1, sequence: 1 };
    let stage = frame(Call::Stage { id, piece: copy(b"value") });
    let refused = |call: &[u8], piece: &[u8]| raw(&address, "k", call, piece).unwrap_err();
    assert_eq!(refused(b"", b""), "CLIENT_ERROR bad call\r\n");
    assert_eq!(refused(&[2, 0, 0], b"x"), "CLIENT_ERROR call of another version\r\n");
    assert_eq!(refused(&frame(Call::Read), b"x"), "CLIENT_ERROR bytes without a piece\r\n");
    assert_eq!(refused(&stage, b"other"), "CLIENT_ERROR bytes that are not the piece\r\n");
    assert_eq!(refused(&vec![0; 40_000], b""), "CLIENT_ERROR call too long\r\n");
    assert_eq!(refused(&stage, &vec![0; 2 << 20]), "SERVER_ERROR object too large for cache\r\n");
    assert_eq!(server.stats("cluster")["pieces"], "0");

    let other = Request { cluster: 8, epoch: target.epoch, call: Call::Read };
    let answer = |request| exchange(&address, "k", &RequestFrame::new(request), b"").unwrap().0.reply;
    assert_eq!(answer(other).answer, Answer::NotServing);
    let late = Request { cluster: target.cluster, epoch: Epoch(target.epoch.0 + 1), call: Call::Read };
    let Reply { epoch, answer, .. } = answer(late);
    assert_eq!((epoch, answer), (target.epoch, Answer::OtherEpoch));
    // A server without a cluster knows neither command, and takes no body for commands.
    let plain = Server::on_a_free_port(&[]);
    ask(&mut plain.connect(), b"mx k 8 0\r\nversion\n\r\nmp\r\nmn\r\n", b"ERROR\r\nERROR\r\nMN\r\n");
}

#[test]
fn staged_bytes_without_room_are_declined() {
    let Some(cluster) = Cluster::start(1, &["-m", "8", "-I", "1m"], &[("", Policy::Copies(2))]) else { return };
    let (target, value) = (cluster.target("k"), vec![b'x'; 500_000]);
    let mut staged = 0;
    let refused = (1..100).find_map(|sequence| {
        let call = Call::Stage { id: WriteId { client: 1, sequence }, piece: copy(&value) };
        let request = Request { cluster: target.cluster, epoch: target.epoch, call };
        match cluster.call(target.members[0], "k", &RequestFrame::new(request), &value).0.reply.answer {
            Answer::Staged => {
                staged += 1;
                None
            }
            other => Some(other),
        }
    });
    assert_eq!(refused, Some(Answer::Done(Verdict::Declined(Refusal::NoMemory))));
    assert!(staged > 4, "{staged} pieces of half a megabyte in 8");
}

/// Values of many sizes under keys that begin with a prefix, some of them deleted.
#[test]
fn a_full_cluster_is_emptied_by_deletes() {
    let Some(cluster) = Cluster::start(3, &["-m", "8"], &[("", Policy::Copies(3))]) else { return };
    let (_agents, mut client) = (cluster.agents(), cluster.client());
    // Long keys, so that few chunks are of their class.
    let key = |kind: char, at: usize| format!("{kind}{at:0>240}");
    let mut fill = |kind: char, length: usize| {
        for at in 0.. {
            match client.set(key(kind, at), vec![7; length], ()) {
                Ok(done) => assert!(done.is_stored()),
                Err(error) => {
                    assert!(error.to_string().contains("out of memory storing object"), "{kind}{at}: {error}");
                    return at;
                }
            }
        }
        0
    };
    let (large, small) = (fill('l', 200 << 10), fill('s', 10));
    assert!(large > 10 && small > 1000, "{large} and {small}");
    for at in 0..large {
        assert!(client.delete(key('l', at)).unwrap(), "{at}");
        assert!(client.get(key('l', at)).unwrap().is_none());
    }
    for at in 0..large / 2 {
        assert!(client.set(key('l', at), vec![8; 200 << 10], ()).unwrap().is_stored(), "{at}");
    }
}

#[test]
fn writers_of_one_key_mix_no_fragments() {
    let Some(cluster) = Cluster::start(4, &[], &[("", Policy::Code { data: 2, parity: 2 })]) else { return };
    let write = |byte: u8| {
        let mut client = cluster.client();
        std::thread::spawn(move || {
            for turn in 0..20 {
                // Copies follow fragments, and the other way round.
                let length = if turn % 4 == 3 { 100 } else { 5000 + 1000 * usize::from(byte) };
                assert!(client.set("key", vec![byte; length], ()).unwrap().is_stored());
                let found = client.get("key").unwrap().expect("it is never deleted");
                assert!(found.iter().all(|&other| other == found[0]), "a mix of values");
            }
        })
    };
    let writers = [1, 2, 3].map(write);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

#[test]
#[allow(unsafe_code, reason = "a fork")]
fn a_child_of_a_fork_writes_under_its_own_number() {
    let Some(cluster) = Cluster::start(2, &[], &[("r:", Policy::Copies(2))]) else { return };
    let mut client = cluster.client();
    assert!(client.set("r:key", "before", ()).unwrap().is_stored());
    // SAFETY: the child asks its servers and ends, without a return into the test.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The first operation that it begins is a write, as the parent's next one.
        let is_stored = client.set("r:key", "child", ()).is_ok_and(|stored| stored.is_stored());
        // SAFETY: `_exit` ends this child without destructors.
        unsafe { libc::_exit(i32::from(!is_stored)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a local integer that the call may write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(client.set("r:key", "parent", ()).unwrap().is_stored());
    assert_eq!(client.get("r:key").unwrap().unwrap(), b"parent");
    assert_eq!(status, 0, "the child's write was not stored");
}
