//! Clients that are killed, at each step of what they do: the server is left as if they had never come.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use rdmakv_proto::messages::{Kind, Request};

use super::client::{Client, Iwarp, Shm, Way, cache};
use super::common::soon;
use super::on_both;

on_both! {
    who_is_killed_leaves_nothing_behind(&["--tag-lease", "50ms", "-I", "2m"]) = killed;
}

const ADDRESS: &str = "RDMAKV_TEST_CHILD";
const STEPS: usize = 6;

/// Another process that has come to this step.
fn child(address: &str, step: usize) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::what_the_child_does", "--nocapture", "--include-ignored"])
        .env(ADDRESS, format!("{address}#{step}"))
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let came = lines.map_while(Result::ok).any(|line| line.contains("it is there"));
    assert!(came, "the child has come to step {step}");
    child
}

#[test]
#[ignore = "is run by the test of who is killed"]
fn what_the_child_does() {
    let Ok(order) = std::env::var(ADDRESS) else { return };
    let (address, step) = order.rsplit_once('#').unwrap();
    let step = step.parse().unwrap();
    match address.split(':').next().unwrap() {
        "shm" => act(&Shm::new(), address, step),
        #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
        "verbs" => act(&super::client::Verbs::new(address), address, step),
        _ => act(&Iwarp::new(), address, step),
    }
}

fn act<W: Way>(way: &W, address: &str, step: usize) {
    let cache = cache(way);
    let mut client = Client::silent(way, &cache, address).unwrap();
    let mut bytes = Vec::new();
    let mut kept = Vec::new();
    if step > 0 {
        client.hello();
    }
    match step {
        0 => {}
        1 => _ = client.set("mine", b"value"),
        2 => {
            for n in 0..100 {
                client.get(if n % 2 == 0 { "short" } else { "long" }, true);
            }
        }
        3 => drop(client.open("long", true, 2 << 20)),
        4 => {
            let (leases, segments) = client.lend(&[b'v'; 1_000_000], 100);
            kept = leases;
            let kind = Request::put(&mut bytes, true, b"put", b"set put 0 0 1000000", &segments);
            client.tell(kind, &bytes);
        }
        _ => {
            let kind = Request::run(&mut bytes, false, b"", &[b"get long long long\r\n"]);
            client.tell(kind, &bytes);
        }
    }
    println!("it is there");
    std::io::stdout().flush().unwrap();
    // Until it is killed.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(kept);
}

fn killed<W: Way>(_: &super::common::Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut other = Client::new(way, &cache, address);
    other.set("short", b"value");
    assert_eq!(other.put("long", &vec![b'l'; 1_500_000], 1).1, Kind::Ran);
    let name = address.split(':').next().unwrap();
    for step in 0..STEPS {
        let mut child = child(address, step);
        child.kill().unwrap();
        child.wait().unwrap();
        soon("that it is gone", || other.stat(&format!("{name}_connections")) == 1);
    }
    soon("that nothing is leased", || other.stat("leased_chunks") == 0);
    soon("that every chunk is an item's", || {
        let items = other.stat("curr_items");
        let (slabs, _) = other.run(None, &[b"stats slabs\r\n"]);
        let used = slabs.lines().filter_map(|line| line.split_once(":used_chunks ")?.1.trim().parse::<u64>().ok());
        used.sum::<u64>() == items
    });
    assert_eq!(other.stat(&format!("{name}_faults")), 0);
}
