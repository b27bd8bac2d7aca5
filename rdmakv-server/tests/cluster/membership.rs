//! Servers join, fail, return and stay outside, and etcd fails.

use super::*;

#[test]
fn servers_join_fail_and_return() {
    let Some(mut cluster) = Cluster::start(3, &[], &[]) else { return };
    let (before, id) = (cluster.config(), cluster.config().servers()[1].id);
    let at = cluster.at(id);
    let run = before.server(id).unwrap().incarnation;
    cluster.kill(at);
    soon("that the others remove it", || {
        let config = cluster.config();
        config.servers().len() == 2 && cluster.serve(config.epoch())
    });
    cluster.run(at, &[]);
    cluster.is_up(3);
    let config = cluster.config();
    let back = config.server(id).expect("a server returns under its number");
    assert!(back.incarnation != run && config.epoch() > before.epoch());
}

/// A server that is killed leaves a lease in etcd, and its next run waits for the end of that.
#[test]
fn a_quick_restart_waits_for_the_lease_before() {
    let Some(mut cluster) = Cluster::start(1, &[], &[]) else { return };
    let run = cluster.config().servers()[0].incarnation;
    cluster.kill(0);
    cluster.run(0, &[]);
    cluster.tells(0, "has not ended: this one joins when it does");
    cluster.is_up(1);
    assert_ne!(cluster.config().servers()[0].incarnation, run);
}

#[test]
fn a_cluster_that_is_gone_is_told() {
    let Some(mut cluster) = Cluster::start(1, &[], &[("", Policy::Copies(2))]) else { return };
    cluster.etcd.list[0].kill();
    cluster.etcd.empty(0);
    cluster.etcd.list[0].start();
    cluster.tells(0, "is not in etcd any more (uuid 00000000000000000000000000000007)");
    let etcd_shows = |what| cluster.servers[0].as_ref().unwrap().stats("cluster")["etcd"] == what;
    assert!(etcd_shows("gone"));
    assert!(cluster.store().create(&Config::with_lease(8, 1000).unwrap()).unwrap());
    cluster
        .tells(0, "etcd has another cluster of this name (uuid 00000000000000000000000000000008, this server's is 0");
    assert!(etcd_shows("other"));
    // As it is told to be mended.
    cluster.kill(0);
    cluster.run(0, &[]);
    cluster.is_up(1);
    assert_eq!(cluster.servers[0].as_ref().unwrap().stats("cluster")["etcd"], "same");
}

/// A mistyped port: the server stays outside, and tells why. It made epochs without an end.
#[test]
fn a_server_at_a_wrong_address_stays_outside() {
    let Some(cluster) = Cluster::start(2, &[], &[]) else { return };
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = format!("tcp:{closed}");
    let urls = cluster.etcd.urls();
    let flags = ["-p", "-1", "-l", "127.0.0.1", "--etcd", &urls, "--agent", "no", "--advertise"];
    let start = |at, address: &str| Server::with_log(&[&flags[..], &[address]].concat(), &cluster.log_file(at));
    let epoch = cluster.config().epoch();
    let server = start(2, &address);
    cluster.tells(2, &format!("does not reach itself at {address}: Connection refused"));
    assert_eq!(server.stats("cluster")["part"], "outside");
    // Where another server answers, that is told.
    let other = start(4, &format!("tcp:127.0.0.1:{}", cluster.ports[1]));
    cluster.tells(4, "another server answers there");
    assert_eq!((other.stats("cluster")["part"].as_str(), cluster.config().epoch()), ("outside", epoch));
}

#[test]
fn tags_too_long_for_the_lease_are_told() {
    let Some(cluster) = Cluster::over(Fabric::Shm, 1, &["--tag-lease", "700ms"], &[]) else { return };
    cluster.tells(0, "--tag-lease 700ms is too long for the cluster's lease of 1000 ms");
    cluster.tells(0, "use less than 666 ms");
}

#[test]
fn refuses_addresses_that_lead_nowhere() {
    for address in ["tcp:0.0.0.0:11211", "tcp:[::]:11211", "tcp:127.0.0.1:0"] {
        let flags = ["--etcd", "http://127.0.0.1:1", "--advertise", address];
        let output = Command::new(SERVER).args(flags).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{why}");
        assert!(why.contains(address) && why.contains("give this machine's own address"), "{why}");
    }
}

#[test]
fn an_outage_of_etcd_ends_rights_and_no_epoch() {
    let Some(mut cluster) = Cluster::start(3, &[], &[("", Policy::Copies(3))]) else { return };
    assert!(matches!(cluster.write("key", &set(1, b"value")), Outcome::Known(Verdict::Stored(_))));
    let (epoch, members) = (cluster.config().epoch(), cluster.target("key").members);
    let [primary, backup] = [0, 1].map(|member: usize| cluster.at(members[member]));
    cluster.etcd.list[0].kill();
    let has_right = |server: &Server| server.stats("cluster")["right"] == "1";
    soon("that all rights end", || !cluster.servers.iter().flatten().any(has_right));
    let get = |at: usize, answer: &str| {
        ask(&mut cluster.servers[at].as_ref().unwrap().connect(), b"get key\r\n", answer.as_bytes());
    };
    get(backup, RESILIENT);
    get(primary, "SERVER_ERROR no right to answer for resilient keys now: see etcd\r\n");
    cluster.etcd.list[0].start();
    soon("that rights are back", || cluster.servers.iter().flatten().all(has_right));
    assert_eq!(cluster.config().epoch(), epoch);
    assert_eq!(cluster.read("key").as_deref(), Some(&b"value"[..]));
}
