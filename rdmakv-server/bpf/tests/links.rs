//! The programs at a pair of interfaces, in network namespaces that end with the processes of the test.
//!
//! Without the capabilities, or without iproute2 and util-linux, it reports that it is skipped, and why.

#[path = "programs/items.rs"]
#[allow(dead_code, reason = "the programs' tests use all of it")]
mod items;

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use items::{Item, SECRET, Writer};
use rdmakv_bpf::layout::{Network, Settings};
use rdmakv_bpf::load::{Cause, Gets, OBJECT, missing_capabilities};

const MIB: u64 = 1 << 20;
const PORT: u16 = 11211;
const LENGTHS: [usize; 4] = [1, 32, 200, 1024];
const SERVER: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.2";
const SERVER_MAC: &str = "02:00:00:00:00:01";
const CLIENT_MAC: &str = "02:00:00:00:00:02";
/// The variable with the role of a child process of the test.
const ROLE: &str = "RDMAKV_BPF_ROLE";

fn settings(only_tcx: bool) -> Settings {
    Settings {
        value_size: MIB,
        memory: MIB,
        shard_size: MIB,
        buckets: 1024,
        secret: SECRET,
        clock: 0,
        without_cas: false,
        only_tcx,
        mtu: 1500,
        port: PORT,
        mac: [2, 0, 0, 0, 0, 1],
        addresses: vec![SERVER.parse().unwrap()],
        sources: vec![Network { address: SERVER.parse().unwrap(), bits: 24 }],
    }
}

/// Runs a command, which must succeed; returns what it prints.
fn run(line: &str) -> String {
    let words: Vec<_> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn index(interface: &str) -> u32 {
    run(&format!("ip -o link show {interface}")).split(':').next().unwrap().parse().unwrap()
}

/// Starts this test in another process and role.
fn again(before: &[&str], role: &str) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new(before.first().map_or(own.as_os_str(), |first| first.as_ref()));
    command.args(before.get(1..).unwrap_or_default());
    if !before.is_empty() {
        command.arg(own);
    }
    command.args(["--exact", "programs_answer_at_an_interface", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// A process that is gone with this.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a process, and waits until it prints this.
fn start(mut command: Command, until: &str) -> Ends {
    let mut child = Ends(command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(until)), "the process ended before {until:?}");
    child
}

fn put_all(writer: &Writer) {
    for (at, length) in LENGTHS.into_iter().enumerate() {
        let value = vec![b'v'; length];
        writer.put(at as u64 * 4096, &Item::new(&format!("key{length}"), &value));
    }
    writer.answer(true);
}

/// Sends GETs, and checks the answers.
fn client() {
    // The other end of a pair takes what XDP sends back only if there is a program here, too.
    let here = Gets::load(OBJECT, &Settings { port: 1, ..settings(false) }, None).unwrap();
    let _links = here.attach(index("rdmakvb"), true).unwrap();
    let socket = UdpSocket::bind((CLIENT, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    for length in LENGTHS {
        let (rounds, mut lost, begun) = (2_000_u16, 0, Instant::now());
        for round in 0..rounds {
            let mut request = round.to_be_bytes().to_vec();
            request.extend_from_slice(b"\0\0\0\x01\0\0");
            request.extend_from_slice(format!("get key{length}\r\n").as_bytes());
            socket.send_to(&request, (SERVER, PORT)).unwrap();
            let mut answer = [0; 2048];
            let Ok(bytes) = socket.recv(&mut answer) else {
                lost += 1;
                assert!(lost < 5, "answers of {length} bytes are lost");
                continue;
            };
            let wanted = Item::new(&format!("key{length}"), &vec![b'v'; length]).text(false);
            assert_eq!(answer[..2], round.to_be_bytes());
            assert_eq!(&answer[8..bytes], &wanted[..], "{length}");
        }
        println!(
            "values of {length} bytes: {lost} lost, {:.1} us a GET",
            begun.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
        );
    }
}

/// In a namespace of its own: makes the pair and runs the rest.
fn inside() {
    let peer = start(
        {
            let mut command = Command::new("unshare");
            command.args(["-n", "sh", "-c", "echo ready; exec sleep 120"]);
            command
        },
        "ready",
    );
    let pid = peer.0.id().to_string();
    run(&format!(
        "ip link add rdmakva address {SERVER_MAC} type veth peer name rdmakvb address {CLIENT_MAC} netns {pid}"
    ));
    for line in
        [format!("ip addr add {SERVER}/24 dev rdmakva"), "ip link set rdmakva up".into(), "ip link set lo up".into()]
    {
        run(&line);
    }
    for line in [format!("ip addr add {CLIENT}/24 dev rdmakvb"), "ip link set rdmakvb up".into()] {
        run(&format!("nsenter -n -t {pid} {line}"));
    }
    run(&format!("ip neigh replace {CLIENT} lladdr {CLIENT_MAC} dev rdmakva nud permanent"));
    run(&format!("nsenter -n -t {pid} ip neigh replace {SERVER} lladdr {SERVER_MAC} dev rdmakvb nud permanent"));
    let has_program = || run("ip link show rdmakva").contains("xdp");
    let interface = index("rdmakva");

    for with_xdp in [true, false] {
        let gets = Gets::load(OBJECT, &settings(!with_xdp), None).unwrap();
        put_all(&Writer(gets.maps().clone()));
        let links = gets.attach(interface, with_xdp).unwrap();
        assert_eq!(has_program(), with_xdp);
        if with_xdp {
            let second = Gets::load(OBJECT, &settings(false), None).unwrap();
            assert!(matches!(second.attach(interface, true), Err(Cause::Busy(id)) if id > 0));
        }
        let output = again(&["nsenter", "-n", "-t", &pid], "client").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
        printed.lines().filter(|line| line.starts_with("values")).for_each(|line| println!("xdp {with_xdp}: {line}"));
        let sum = |field: usize| {
            gets.maps().tally().chunks(272).filter_map(|row| row.get(field)).map(|count| count.load(Relaxed)).sum()
        };
        let (asked, answered, no_room): (u64, u64, u64) = (sum(0), sum(1), sum(7));
        println!("xdp {with_xdp}: {asked} asked, {answered} answered, {no_room} without room");
        assert!(answered >= 7_900 && answered <= asked, "{asked} asked, {answered} answered");
        drop(links);
        assert!(!has_program());
    }

    // Killed, and nothing is left.
    let mut server = start(again(&[], "server"), "attached");
    assert!(has_program());
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    let begun = Instant::now();
    while has_program() {
        assert!(begun.elapsed() < Duration::from_secs(5), "a killed process left its program");
        std::thread::sleep(Duration::from_millis(20));
    }

    // An interface may go first.
    let gets = Gets::load(OBJECT, &settings(false), None).unwrap();
    let links = gets.attach(interface, true).unwrap();
    run("ip link delete rdmakva");
    drop(links);
    assert!(matches!(gets.attach(interface, true), Err(Cause::Attach(_))));
}

fn server() {
    let gets = Gets::load(OBJECT, &settings(false), None).unwrap();
    let _links = gets.attach(index("rdmakva"), true).unwrap();
    println!("attached");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn programs_answer_at_an_interface() {
    assert!(SERVER.parse::<IpAddr>().is_ok());
    match std::env::var(ROLE).as_deref() {
        Ok("inside") => return inside(),
        Ok("client") => return client(),
        Ok("server") => return server(),
        _ => {}
    }
    let missing = missing_capabilities();
    if !missing.is_empty() {
        return println!("SKIPPED: programs at interfaces: this process lacks {}", missing.join(", "));
    }
    for tool in [&["ip", "-V"][..], &["nsenter", "-V"], &["unshare", "-n", "true"]] {
        if !Command::new(tool[0]).args(&tool[1..]).output().is_ok_and(|output| output.status.success()) {
            return println!("SKIPPED: programs at interfaces: `{}` does not work here", tool.join(" "));
        }
    }
    let output = again(&["unshare", "-n"], "inside").output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
