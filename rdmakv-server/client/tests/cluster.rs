//! `rdmakv cluster`, as a shell uses it, with a real etcd.

#[path = "../../cluster/tests/etcd_server/mod.rs"]
mod etcd_server;

use etcd_server::Members;
use rdmakv_cluster::config::{Config, Incarnation, Policy};
use rdmakv_cluster::facts::Fact;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Starts what answers each request as a server in this epoch does, and returns its address.
fn answer_in(epoch: &Arc<AtomicU32>) -> String {
    let names = ["keys", "left_keys", "bytes", "short_keys", "refused_keys", "millis"];
    let repair: String = names.iter().map(|name| format!("STAT repair_{name} 0\r\n")).collect();
    let epoch = epoch.clone();
    let stats =
        move || format!("STAT epoch {}\r\n{repair}STAT lost 0\r\nSTAT lost_epoch 0\r\nEND\r\n", epoch.load(SeqCst));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            while matches!(stream.read(&mut [0; 1024]), Ok(1..)) && stream.write_all(stats().as_bytes()).is_ok() {}
        }
    });
    address
}

/// Returns the exit code and what was written.
fn rdmakv(etcd: &str, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_rdmakv"))
        .args(["--timeout", "60000"])
        .args(arguments)
        .env("RDMAKV_ETCD", etcd)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_time_out_is_that_of_the_command() {
    let Some(etcd) = Members::start(1) else { return };
    let join = |config: Config, run| {
        // Nothing listens there.
        config.with_server(&format!("s{run}"), vec!["tcp:127.0.0.1:1".to_owned()], 1, Incarnation(run)).unwrap()
    };
    let config = (1..4).fold(Config::new(7), join).whole().unwrap().with_policy(b"user:", Policy::Copies(3)).unwrap();
    assert!(etcd.store("main").create(&config).unwrap());
    for arguments in [["get", "user:1"], ["delete", "user:1"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmakv"));
        let output =
            command.args(["--timeout", "300"]).args(arguments).env("RDMAKV_ETCD", etcd.urls()).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        let is_bounded = why.contains("not served within 300 ms") && why.ends_with("or raise --timeout\n");
        // A write whose order may have arrived has an unknown outcome.
        assert!(is_bounded || arguments[0] == "delete" && output.status.code() == Some(3), "{why}");
    }
}

#[test]
fn a_cluster_is_made_changed_and_shown() {
    let Some(etcd) = Members::start(1) else { return };
    let urls = etcd.urls();
    let cluster = |arguments: &[&str]| rdmakv(&urls, &[&["cluster"], arguments].concat());
    let (code, _, why) = cluster(&["status"]);
    assert!(code == 1 && why.contains("no such cluster: make it by `rdmakv cluster init`"), "{why}");
    assert!(cluster(&["policy", "a", "none"]).2.contains("no such cluster"));

    let (code, said, _) = cluster(&["init", "--lease", "500"]);
    assert!(code == 0 && said.starts_with("made cluster main, ") && said.ends_with("; epoch 1\n"), "{said}");
    let (code, _, why) = cluster(&["init"]);
    assert!(code == 1 && why.contains("exists already"), "{why}");
    // No server has values.
    let policy = |prefix: &str, policy: &str| cluster(&["policy", prefix, policy]).1;
    assert_eq!(policy("user:", "copies:3"), "policy of user: is copies:3; epoch 2\n");
    assert_eq!(policy("user:", "copies:3"), "policy of user: was copies:3 already: nothing changed; epoch 2\n");
    assert_eq!(policy("nosuch:", "none"), "policy of nosuch: was none already: nothing changed; epoch 2\n");
    assert_eq!(policy("", "code:4+2"), "policy of all other keys is code:4+2; epoch 3\n");

    // Servers as they will join.
    let mut store = etcd.store("main");
    for (name, run) in [("a", 1), ("b", 2)] {
        let addresses = vec![format!("tcp:{name}:11211")];
        let join = |_: &_, config: &rdmakv_cluster::config::Config| {
            config.with_server(name, addresses.clone(), 1, Incarnation(run)).map(Some)
        };
        store.update(join).unwrap();
    }
    store.update(|_, config| config.whole().map(Some)).unwrap();
    let server = store.read().unwrap().config().unwrap().servers()[1].clone();
    store.put(&[Fact::Alive(server.id, server.incarnation)], None).unwrap();

    let lacks = |policy: &str, needed: u8| {
        format!(
            "warning: {policy} needs {needed} servers, and the cluster has 1: start more: writes are refused until there are 2\n"
        )
    };
    let lacks = format!("{}{}", lacks("code:4+2", 6), lacks("copies:3", 3));
    assert_eq!(cluster(&["drain", "a"]).1, format!("server a drains; epoch 7\n{lacks}"));
    assert_eq!(cluster(&["drain", "0"]).1, format!("server 0 drains; epoch 7\n{lacks}"));
    let (code, _, why) = cluster(&["drain", "b"]);
    assert!(code == 1 && why.contains("drain server b: no other server could take its keys"), "{why}");
    let (code, _, why) = cluster(&["drain", "c"]);
    assert!(code == 1 && why.contains("has no such server"), "{why}");
    assert_eq!(cluster(&["flush"]).1, "flushed; epoch 8\n");

    let (code, table, _) = cluster(&["status"]);
    assert_eq!(code, 0);
    for line in [
        "cluster main  epoch 8  not whole  lease 500 ms  flushed in epoch 8",
        " 0  a     draining       1  no           –         –  –             tcp:a:11211",
        " 1  b     up             1  yes          –         –  –             tcp:b:11211",
        "(all other keys)  code:4+2",
        "user:             copies:3",
    ] {
        assert!(table.lines().any(|found| found == line), "{line}\n{table}");
    }
    let mut lost = Command::new(env!("CARGO_BIN_EXE_rdmakv"));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let lost = lost.args(["cluster", "status"]).env("RDMAKV_ETCD", &urls).stdout(full).output().unwrap();
    let why = String::from_utf8_lossy(&lost.stderr);
    assert!(lost.status.code() == Some(1) && why.contains("write standard output: No space left"), "{why}");
    let status: serde_json::Value = serde_json::from_str(&cluster(&["status", "--json"]).1).unwrap();
    assert_eq!((&status["epoch"], &status["servers"][1]["alive"]), (&8.into(), &true.into()));
    assert_eq!((&status["policies"][1]["policy"], &status["lease_ms"]), (&"copies:3".into(), &500.into()));
    let gone = "values of these keys that were stored before, if there were any, are gone";
    assert_eq!(policy("user:old:", "none"), format!("policy of user:old: is none; {gone}; epoch 9\n"));
    // Another cluster in the same etcd.
    let other = rdmakv(&urls, &["--cluster", "other", "cluster", "--json", "init"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&other.1).unwrap()["epoch"], 1);
}

#[test]
fn operations_without_servers_end_at_once() {
    let Some(etcd) = Members::start(1) else { return };
    let config = Config::new(7).with_policy(b"user:", Policy::Copies(3)).unwrap();
    assert!(etcd.store("main").create(&config).unwrap());
    for arguments in [&["get", "user:1"][..], &["set", "user:1", "Ada"], &["delete", "user:1"]] {
        let (code, _, why) = rdmakv(&etcd.urls(), arguments);
        assert!(code == 1 && why.contains(" at cluster main: no server is up: start another server"), "{why}");
    }
}

#[test]
fn status_names_the_server_that_others_wait_for() {
    let Some(etcd) = Members::start(1) else { return };
    let join = |config: Config, run| config.with_server(&format!("s{run}"), vec![], 1, Incarnation(run)).unwrap();
    // The one that had the keys is gone.
    let config = join(join(Config::new(7), 1).whole().unwrap(), 2);
    let mut store = etcd.store("main");
    assert!(store.create(&config).unwrap());
    let status = || rdmakv(&etcd.urls(), &["cluster", "status", "--wait", "0", "--up", "2"]).2;
    let why = status();
    assert!(why.contains("s1 has keys that others wait for, and is gone: start it again under this name"), "{why}");
    assert!(why.contains("or give it up by `rdmakv cluster forget s1`"), "{why}");
    store.put(&[Fact::Alive(config.servers()[0].id, Incarnation(1))], None).unwrap();
    let why = status();
    assert!(why.contains("see that they run with --etcd and agents"), "{why}");
}

#[test]
fn only_a_gone_server_is_forgotten() {
    let Some(etcd) = Members::start(1) else { return };
    let join = |config: Config, run| config.with_server(&format!("s{run}"), vec![], 1, Incarnation(run)).unwrap();
    let config = join(join(Config::new(7), 1).whole().unwrap(), 2);
    let mut store = etcd.store("main");
    assert!(store.create(&config).unwrap());
    let forget = |arguments: &[&str]| rdmakv(&etcd.urls(), &[&["cluster", "forget"], arguments].concat());
    assert_eq!(forget(&["s1"]).0, 2, "without --lose-values");
    let alive = Fact::Alive(config.servers()[0].id, Incarnation(1));
    store.put(&[alive], None).unwrap();
    for (id, why) in [("s1", "its lease in etcd has not ended"), ("s2", "others do not wait"), ("s3", "no such server")]
    {
        let (code, _, said) = forget(&[id, "--lose-values"]);
        assert!(
            code == 1 && said.starts_with(&format!("rdmakv: forget server {id}: ")) && said.contains(why),
            "{said}"
        );
    }
    assert_eq!(store.read().unwrap().config(), Some(&config));
}

#[test]
fn status_waits_until_servers_are_up() {
    let Some(etcd) = Members::start(1) else { return };
    let urls = etcd.urls();
    // Two servers join, and the epoch that is whole is the fourth.
    let epochs = [4, 4].map(|epoch| Arc::new(AtomicU32::new(epoch)));
    let config = (1..).zip(&epochs).fold(Config::new(7), |config, (run, epoch)| {
        config.with_server(&format!("s{run}"), vec![answer_in(epoch)], 1, Incarnation(run)).unwrap()
    });
    let wait = |seconds: &str, up: &str| rdmakv(&urls, &["cluster", "status", "--wait", seconds, "--up", up]);
    let mut store = etcd.store("main");
    assert_eq!(wait("0", "1").0, 1);
    assert!(store.create(&config).unwrap());
    let (code, said, why) = wait("0", "2");
    assert!(code == 1 && said.starts_with("cluster main  epoch 3  not whole"), "{said}");
    assert!(why.contains("after 0 s epoch 3 is not whole and 0 of 2 servers are up: "), "{why}");
    // It waits for both servers, and for what they adopted.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| wait("600", "2"));
        let whole = store.update(|_, config| config.whole().map(Some)).unwrap();
        for server in whole.servers() {
            let (id, run) = (server.id, server.incarnation);
            let why = wait("0", "2").2;
            assert!(why.contains("is whole and ") && why.contains(" of 2 servers are up"), "{why}");
            store.put(&[Fact::Alive(id, run), Fact::Adopted(id, run, whole.epoch())], None).unwrap();
        }
        assert_eq!(waiting.join().unwrap().0, 0);
    });
    assert_eq!((wait("0", "2").0, wait("0", "3").0), (0, 1));
    // One starts again: what the run before told is in etcd yet.
    epochs[1].store(0, SeqCst);
    let (code, _, why) = wait("0", "2");
    assert!(code == 1 && why.contains("is whole and 1 of 2 servers are up"), "{why}");
    let (code, _, why) = rdmakv(&urls, &["cluster", "status", "--up", "2"]);
    assert!(code == 2 && why.contains("--wait"), "{why}");
}

#[test]
fn wrong_use_is_told_with_its_remedy() {
    for (etcd, arguments, code, remedy) in [
        ("", &["cluster", "status"][..], 2, "use --etcd URL or the variable RDMAKV_ETCD"),
        ("https://h", &["cluster", "status"], 2, "use http:// in a private network"),
        ("http://127.0.0.1:1", &["cluster", "status"], 1, "connection refused: start etcd or correct --etcd"),
        ("h", &["--cluster", "a/b", "cluster", "status"], 2, "use 1 to 64 letters"),
        ("h", &["cluster", "policy", "a", "copies:1"], 2, "use none, copies:2 to copies:64"),
        ("h", &["cluster", "init", "--lease", "1"], 2, "500 to 60000"),
        ("h", &["get", "--etcd", "h", "-s", "h", "a"], 2, "both -s and --etcd are given"),
        ("h", &["get", "--etcd", "http://127.0.0.1:1", "a"], 1, "connection refused: start etcd or correct --etcd"),
    ] {
        let (got, out, why) = rdmakv(etcd, arguments);
        assert!(got == code && out.is_empty() && why.contains(remedy), "{arguments:?}: {got} {why}");
    }
}
