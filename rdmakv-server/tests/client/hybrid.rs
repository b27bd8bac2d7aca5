//! Connections for the busiest clients, datagrams for the others: `--connections`.

use std::time::Duration;

use rdmakv_client::{Client, Fabric, Options};

use super::common::{Server, soon};
use super::{client, patient};

fn server(connections: &str, more: &[&str]) -> Server {
    let fabrics = ["--fabric", "udp:127.0.0.1:0", "--fabric", "iwarp:127.0.0.1:0", "--connections", connections];
    Server::on_a_free_port(&[&fabrics, more].concat())
}

fn both(server: &Server) -> String {
    format!("{},{}", server.fabric("udp"), server.fabric("iwarp"))
}

fn is_connected(client: &Client) -> bool {
    client.fabric(0).is_some_and(|fabric| matches!(fabric, Fabric::Iwarp(_)))
}

/// A client that counts, and the count that it has to find.
struct Counting {
    client: Client,
    key: &'static str,
    count: u64,
}

impl Counting {
    fn at(address: &str, key: &'static str) -> Self {
        let mut client = client([address]);
        assert!(client.set(key, b"0", ()).unwrap().is_stored());
        Self { client, key, count: 0 }
    }

    #[track_caller]
    fn count(&mut self) {
        self.count += 1;
        assert_eq!(self.client.incr(self.key, 1).unwrap(), Some(self.count));
    }

    #[track_caller]
    fn count_until_connected(&mut self, is_connected: bool) {
        soon("that the client has moved", || {
            // A look every 10 ms: more than once a look, or it is not busy.
            (0..20).for_each(|_| self.count());
            self::is_connected(&self.client) == is_connected
        });
        self.count();
    }
}

#[test]
fn a_busy_client_moves_and_counts_once() {
    let server = server("1", &[]);
    let mut busy = Counting::at(&both(&server), "n");
    assert!(!is_connected(&busy.client), "it begins by datagrams");
    busy.count_until_connected(true);
    assert_eq!((server.stat("iwarp_promoted"), server.stat("udp_datagram_offers")), (1, 1));
    // One-sided reads are the client's activity, too: it is busy without a request.
    for _ in 0..3 {
        let until = std::time::Instant::now() + Duration::from_secs(1);
        while std::time::Instant::now() < until {
            busy.client.get("n").unwrap();
        }
    }
    assert!(is_connected(&busy.client) && busy.client.counters().one_sided > 0);
    assert_eq!(server.stat("udp_datagram_demotions"), 0);
    busy.count();
    soon("that all are counted", || server.stat("incr_hits") >= busy.count);
    assert_eq!(server.stat("incr_hits"), busy.count);
}

#[test]
fn many_operations_under_way_move_together() {
    let server = server("1", &[]);
    let mut client = client([both(&server)]);
    let mut deleted = 0;
    soon("that the client has moved", || {
        let keys: Vec<String> = (0..64).map(|number| format!("k{number}")).collect();
        keys.iter().for_each(|key| assert!(client.set(key, b"1", ()).unwrap().is_stored()));
        let begun: Vec<_> = keys.iter().map(|key| client.idelete(key).unwrap()).collect();
        deleted += begun.len() as u64;
        // One that is carried out twice finds no item.
        assert!(begun.into_iter().all(|begun| client.wait(begun).unwrap()));
        is_connected(&client)
    });
    assert_eq!((server.stat("delete_hits"), server.stat("delete_misses")), (deleted, 0));
}

#[test]
fn a_busier_client_takes_the_place_of_another() {
    let server = server("1", &[]);
    let mut first = Counting::at(&both(&server), "a");
    first.count_until_connected(true);
    let mut second = Counting::at(&both(&server), "b");
    soon("that the second client has the place", || {
        first.count();
        (0..20).for_each(|_| second.count());
        is_connected(&second.client)
    });
    soon("that the first client has left", || {
        first.count();
        !is_connected(&first.client)
    });
    assert_eq!((server.stat("iwarp_promoted"), server.stat("udp_datagram_demotions")), (2, 1));
    (0..100).for_each(|_| second.count());
    first.count();
    assert_eq!(server.stat("incr_hits"), first.count + second.count);
}

#[test]
fn silent_clients_leave_their_place() {
    let server = server("1", &["--fabric-timeout", "1s"]);
    let mut first = Counting::at(&both(&server), "a");
    first.count_until_connected(true);
    let mut second = Counting::at(&both(&server), "b");
    // The first client takes no part in its end.
    second.count_until_connected(true);
    first.count();
    assert!(!is_connected(&first.client));
}

#[test]
fn clients_that_stop_half_way_keep_no_place() {
    // Connections are accepted there, and nothing is answered.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = server("1", &[]);
    let address = format!("{},iwarp:{}", server.fabric("udp"), silent.local_addr().unwrap());
    let mut stopped = Counting::at(&address, "a");
    soon("that the offer is over", || {
        (0..20).for_each(|_| stopped.count());
        server.stat("udp_datagram_offers_unused") == 1
    });
    assert!(!is_connected(&stopped.client));
    let mut second = Counting::at(&both(&server), "b");
    second.count_until_connected(true);
    stopped.count();
    assert_eq!(server.stat("incr_hits"), stopped.count + second.count);
}

#[test]
fn clients_without_an_offer_take_free_places() {
    let server = server("1", &[]);
    let mut plain = client([server.fabric("iwarp")]);
    assert!(plain.set("k", b"1", ()).unwrap().is_stored());
    let quick = Options { timeout: Duration::from_secs(1), ..patient() };
    let mut refused = Client::with_options([server.fabric("iwarp")], quick).unwrap();
    let error = refused.get("k").unwrap_err().to_string();
    assert!(error.contains("use udp: first"), "{error}");
    let mut busy = Counting::at(&both(&server), "n");
    (0..300).for_each(|_| busy.count());
    assert!(!is_connected(&busy.client), "the place is taken, by one that cannot be told to leave");
    drop(plain);
    busy.count_until_connected(true);
}

#[test]
fn without_places_all_go_by_datagrams() {
    let server = server("0", &[]);
    let mut busy = Counting::at(&both(&server), "n");
    (0..500).for_each(|_| busy.count());
    assert!(!is_connected(&busy.client));
    assert_eq!((server.stat("udp_datagram_offers"), server.stat("iwarp_total_connections")), (0, 0));
}
