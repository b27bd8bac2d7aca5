//! The programs in this kernel, by BPF_PROG_TEST_RUN: nothing is attached to an interface.
//!
//! Without the capabilities, or without clang, a test reports that it is skipped, and why.

mod items;
mod model;
mod packets;
mod races;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

use items::{CLASS, INCARNATION, Item, SECRET, Writer};
use packets::{PORT, Request, SERVER_MAC, Sum, sum_header};
use rdmakv_bpf::layout::{Network, Settings};
use rdmakv_bpf::load::{Gets, Hook, OBJECT, Verdict, missing_capabilities};

const MIB: u64 = 1 << 20;
/// Instructions that the verifier may look at; it gives up at a million.
const BUDGET: u64 = 20_000;

fn settings() -> Settings {
    let network = |address: &str, bits| Network { address: address.parse().unwrap(), bits };
    Settings {
        value_size: MIB,
        memory: 4 * MIB,
        shard_size: 2 * MIB,
        buckets: 1024,
        secret: SECRET,
        // Items' seconds count from when the machine was started.
        clock: 0,
        without_cas: false,
        only_tcx: true,
        mtu: 1500,
        port: PORT,
        mac: SERVER_MAC,
        addresses: vec!["10.77.0.1".parse().unwrap(), "fd77::1".parse().unwrap()],
        sources: vec![network("10.77.0.0", 24), network("fd77::", 64)],
    }
}

/// Programs with a writer of items.
struct Kernel {
    gets: Gets,
    writer: Writer,
}

impl Kernel {
    /// Loads them, unless this machine or this user cannot.
    fn with(object: &[u8], settings: &Settings) -> Option<Self> {
        let missing = missing_capabilities();
        if !missing.is_empty() {
            println!("SKIPPED: programs in the kernel: this process lacks {}", missing.join(", "));
            return None;
        }
        let gets = Gets::load(object, settings, None).unwrap();
        let writer = Writer(gets.maps().clone());
        writer.answer(true);
        Some(Self { gets, writer })
    }

    fn new() -> Option<Self> {
        Self::with(OBJECT, &settings())
    }

    fn run(&self, packet: &[u8]) -> (Verdict, Vec<u8>) {
        let xdp = self.gets.run(Hook::Xdp, packet).unwrap();
        let tcx = self.gets.run(Hook::Tcx, packet).unwrap();
        assert_eq!(xdp.0, tcx.0, "the programs differ");
        xdp
    }

    /// Checks that both programs answer with this text.
    fn answers(&self, request: &Request, text: &[u8]) {
        let packet = request.packet();
        let (verdict, answer) = self.gets.run(Hook::Xdp, &packet).unwrap();
        assert_eq!((verdict, answer), (Verdict::Answered, request.answer(text, Sum::Whole)), "XDP: {request:?}");
        let (verdict, answer) = self.gets.run(Hook::Tcx, &packet).unwrap();
        let sum = if request.sum == Sum::Partial { Sum::Partial } else { Sum::Whole };
        assert_eq!((verdict, answer), (Verdict::Answered, request.answer(text, sum)), "tcx: {request:?}");
    }

    /// Checks that both programs pass a packet on as it is.
    fn passes(&self, packet: &[u8], what: &str) {
        for hook in [Hook::Xdp, Hook::Tcx] {
            let (verdict, after) = self.gets.run(hook, packet).unwrap();
            assert_eq!(verdict, Verdict::Passed, "{hook:?}: {what}");
            assert_eq!(after, packet, "{hook:?}: {what}");
        }
    }

    fn passes_request(&self, request: &Request) {
        self.passes(&request.packet(), &format!("{:?}", String::from_utf8_lossy(&request.text)));
    }

    /// Returns the sum of a field of the tally over all CPUs.
    fn tally(&self, field: usize) -> u64 {
        self.gets.maps().tally().chunks(272).map(|row| row.get(field).map_or(0, |count| count.load(Relaxed))).sum()
    }
}

/// Compiles the program with one of these compilers and these definitions, if it is there.
fn compiled(clang: &str, definitions: &[&str]) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) =
        (PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/gets.bpf.c"), folder.path().join("gets.o"));
    let mut command = Command::new(clang);
    command.args(["-g", "-O2", "-mcpu=v3", "-target", "bpfel"]).args(definitions);
    let Ok(status) = command.arg("-c").arg(source).arg("-o").arg(&out).status() else {
        println!("SKIPPED: {clang} is not there");
        return None;
    };
    assert!(status.success(), "{clang} does not compile the program");
    Some(std::fs::read(out).unwrap())
}

#[test]
fn verifier_looks_at_few_instructions() {
    for (clang, more) in [("clang-14", None), ("clang-19", None), ("clang-14", Some("-DORDER_BY_ADDITION"))] {
        let Some(object) = compiled(clang, more.as_slice()) else { continue };
        let Some(kernel) = Kernel::with(&object, &settings()) else { return };
        for hook in [Hook::Xdp, Hook::Tcx] {
            let Some(verified) = kernel.gets.verified(hook).unwrap() else { continue };
            println!("{clang} {hook:?} {}: {verified} instructions verified", more.unwrap_or_default());
            assert!(verified < BUDGET, "{clang} {hook:?}: {verified}");
        }
        let item = Item::new("key", b"value");
        kernel.writer.put(64, &item);
        kernel.answers(&Request::new("get key\r\n"), &item.text(false));
    }
}

#[test]
fn gets_of_all_lengths_are_answered() {
    let Some(kernel) = Kernel::new() else { return };
    let (mut place, value) = (0, (0..1400).map(|at| b'a' + (at % 23) as u8).collect::<Vec<_>>());
    for (number, key) in [1, 2, 7, 8, 9, 16, 31, 100, 249, 250].into_iter().enumerate() {
        for length in [0, 1, 7, 8, 9, 31, 32, 63, 64, 65, 200, 1000, 1024] {
            let name = format!("{number}{}", "x".repeat(key))[..key].to_owned();
            let name =
                if key < 3 { name } else { format!("{}{length:04}", &name[..key - key.min(4)])[..key].to_owned() };
            let item = Item {
                flags: u32::MAX / (length as u32 + 1),
                version: 1 + place,
                ..Item::new(&name, &value[..length])
            };
            kernel.writer.put(place, &item);
            for request in [Request::new, Request::v6] {
                kernel.answers(&request(format!("get {name}\r\n")), &item.text(false));
                kernel.answers(&request(format!("gets {name}\r\n")), &item.text(true));
            }
            kernel.writer.remove(place, item.key);
            kernel.passes_request(&Request::new(format!("get {name}\r\n")));
            place += 2048;
        }
    }
    let text = kernel.tally(1);
    assert_eq!(text, 10 * 13 * 8);
}

#[test]
fn longest_answer_is_one_datagram() {
    let Some(kernel) = Kernel::new() else { return };
    let value = vec![b'v'; 1400];
    // With the frame 1,400 bytes.
    let most = 1400 - 8 - "VALUE key 0 1367\r\n".len() - "\r\nEND\r\n".len();
    let item = Item::new("key", &value[..most]);
    kernel.writer.put(64, &item);
    for sum in [Sum::Whole, Sum::Absent, Sum::Partial] {
        let request = Request { sum, ..Request::new("get key\r\n") };
        assert_eq!(item.text(false).len() + 8, 1400);
        kernel.answers(&request, &item.text(false));
    }
    kernel.answers(&Request { sum: Sum::Partial, ..Request::v6("get key\r\n") }, &item.text(false));
    // Its version makes it too long; so does one more byte.
    kernel.passes_request(&Request::new("gets key\r\n"));
    kernel.writer.replace(64, 4096, &Item::new("key", &value[..most + 1]));
    kernel.passes_request(&Request::new("get key\r\n"));
    kernel.writer.replace(4096, 8192, &Item::new("key", &value));
    kernel.passes_request(&Request::new("get key\r\n"));
}

#[test]
fn answer_fits_the_interface() {
    let Some(kernel) = Kernel::with(OBJECT, &Settings { mtu: 576, ..settings() }) else { return };
    let (value, key) = (vec![b'v'; 600], "key");
    let most = 576 - 28 - 8 - "VALUE key 0 515\r\n".len() - "\r\nEND\r\n".len();
    kernel.writer.put(64, &Item::new(key, &value[..most]));
    kernel.answers(&Request::new("get key\r\n"), &Item::new(key, &value[..most]).text(false));
    kernel.passes_request(&Request::v6("get key\r\n"));
    kernel.writer.replace(64, 4096, &Item::new(key, &value[..most + 1]));
    kernel.passes_request(&Request::new("get key\r\n"));
}

#[test]
fn other_requests_pass() {
    let Some(kernel) = Kernel::new() else { return };
    let long = "k".repeat(251);
    for (place, key) in [(64, "key"), (2048, "k\x7fy"), (4096, &long[..250])] {
        kernel.writer.put(place, &Item::new(key, b"value"));
    }
    kernel.answers(&Request::new(format!("get {}\r\n", &long[..250])), &Item::new(&long[..250], b"value").text(false));
    let texts: [&[u8]; 25] = [
        b"get other\r\n",
        b"get key other\r\n",
        b"get key key\r\n",
        b"get  key\r\n",
        b"get key \r\n",
        b"get key\n",
        b"get key\r",
        b"get key",
        b"get \r\n",
        b"get\r\n",
        b"get key\r\n\r\n",
        b"get key\r\nget key\r\n",
        b"GET key\r\n",
        b"get k\x7fy\r\n",
        b"get k\tey\r\n",
        b"get k\0y\r\n",
        b"gat 9 key\r\n",
        b"mg key h v\r\n",
        b"set key 0 0 1\r\nx\r\n",
        b"delete key\r\n",
        b"stats\r\n",
        b"version\r\n",
        b"gete key\r\n",
        b"gets\r\n",
        b"\x80\0\0\x03\0\0\0\0\0\0\0\x03\0\0\0\0",
    ];
    for text in texts {
        kernel.passes_request(&Request::new(text));
        kernel.passes_request(&Request::v6(text));
    }
    kernel.passes_request(&Request::new(format!("get {long}\r\n")));
    kernel.passes_request(&Request::new(vec![b'g'; 1400]));
    kernel.passes_request(&Request { port: PORT + 1, ..Request::new("get key\r\n") });
}

#[test]
fn meta_gets_are_answered() {
    let Some(kernel) = Kernel::new() else { return };
    let item = Item { flags: 77, version: u64::MAX - 5, ..Item::new("a-key", b"some value") };
    kernel.writer.put(64, &item);
    let opaque = format!("O{}", "x".repeat(31));
    let long = "l".repeat(250);
    kernel.writer.put(4096, &Item::new(&long, b"value"));
    for (flags, line) in [
        ("v", "VA 10"),
        ("s", "HD s10"),
        ("t", "HD t-1"),
        ("q", "HD"),
        ("O", "HD O"),
        ("O1 v q", "VA 10 O1"),
        (&opaque, &format!("HD {opaque}")),
        ("k f c t s O123 q v", "VA 10 ka-key f77 c18446744073709551610 t-1 s10 O123"),
        ("v q Okf s t c f k", "VA 10 Okf s10 t-1 c18446744073709551610 f77 ka-key"),
    ] {
        let value = if flags.split(' ').any(|flag| flag == "v") { "some value\r\n" } else { "" };
        for request in [Request::new, Request::v6] {
            let request = request(format!("mg a-key {flags}\r\n"));
            kernel.answers(&request, format!("{line}\r\n{value}").as_bytes());
        }
    }
    assert_eq!(kernel.tally(8), 9 * 2 * 2);
    kernel.answers(&Request::new(format!("mg {long} v\r\n")), b"VA 5\r\nvalue\r\n");
    let most = format!("v k f c t s q {opaque}");
    let line = format!("VA 5 k{long} f0 c1 t-1 s5 {opaque}\r\nvalue\r\n");
    kernel.answers(&Request::v6(format!("mg {long} {most}\r\n")), line.as_bytes());
    for text in [
        "mg a-key",
        "mg a-key ",
        "mg a-key  v",
        "mg a-key v ",
        "mg a-key v  k",
        "mg  a-key v",
        "mg a-key v v",
        "mg a-key O1 O2",
        "mg a-key vk",
        "mg a-key k1",
        "mg a-key v b",
        "mg a-key v h",
        "mg a-key v l",
        "mg a-key v u",
        "mg a-key v T30",
        "mg a-key v N30",
        "mg a-key v R30",
        "mg a-key v E1",
        "mg a-key v\tk",
        "mg a-key v O1\nmn",
        "mg a-key v O1\r",
        "mg other v",
        "mg",
        "mg ",
        "mn",
        "ms a-key 1",
        &format!("mg a-key {opaque}x"),
        &format!("mg {long}v"),
        &format!("mg {long}xv"),
        &format!("mg {long}x v"),
    ] {
        kernel.passes_request(&Request::new(format!("{text}\r\n")));
    }
    // The server's answer has flags that these call for.
    for marks in [4, 16, 2] {
        kernel.writer.set_state_and_marks(64, 2, marks);
        kernel.passes_request(&Request::new("mg a-key v\r\n"));
        if marks != 2 {
            kernel.answers(&Request::new("get a-key\r\n"), &item.text(false));
        }
    }
    let Some(kernel) = Kernel::with(OBJECT, &Settings { without_cas: true, ..settings() }) else { return };
    kernel.writer.put(64, &item);
    kernel.answers(&Request::new("mg a-key c\r\n"), b"HD c0\r\n");
}

#[test]
fn changed_packets_are_read_as_by_the_model() {
    let Some(kernel) = Kernel::new() else { return };
    let items: Vec<_> = ["k", "key", "a-longer-key-of-29-characters"].map(|key| Item::new(key, b"value")).to_vec();
    for (item, place) in items.iter().zip([64, 2048, 4096]) {
        kernel.writer.put(place, item);
    }
    let mut random = 1_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let (mut answered, mut left_out) = (0, 0);
    for _ in 0..20_000 {
        let request = model::request(&mut next);
        let packet = model::changed(&request, &mut next);
        let wanted = model::answer(&packet, &items);
        for hook in [Hook::Xdp, Hook::Tcx] {
            // Packets that end within a header never get to a program at tcx.
            let Ok((verdict, after)) = kernel.gets.run(hook, &packet) else {
                left_out += 1;
                continue;
            };
            match &wanted {
                None => assert_eq!((verdict, &after), (Verdict::Passed, &packet), "{hook:?}: {packet:02x?}"),
                Some(text) => {
                    assert_eq!(verdict, Verdict::Answered, "{hook:?}: {packet:02x?}");
                    let at = if packet[12] == 8 { 50 } else { 70 };
                    assert_eq!(after[at..at + text.len()], text[..], "{hook:?}: {packet:02x?}");
                    assert!(after.len() >= 60 && after[at + text.len()..].iter().all(|&byte| byte == 0));
                    // It goes to the sender.
                    assert_eq!((&after[..6], &after[6..12]), (&packet[6..12], &packet[..6]));
                    let sum = if hook == Hook::Tcx && model::is_partial(&packet) { 0 } else { model::sum(&after) };
                    assert!(matches!(sum, 0 | 0xffff), "{hook:?}: {after:02x?}");
                }
            }
        }
        answered += u64::from(wanted.is_some());
    }
    println!("{answered} of 20000 packets are answered, {left_out} were left out");
    assert!((2_000..18_000).contains(&answered) && left_out < 1_000);
}

#[test]
fn only_whole_and_first_datagrams_are_answered() {
    let Some(kernel) = Kernel::new() else { return };
    let item = Item::new("key", b"value");
    kernel.writer.put(64, &item);
    let request = Request::new("get key\r\n");
    for frame in [[9, 9, 0, 0, 0, 0, 0, 0], [9, 9, 0, 0, 0, 1, 0, 0], [9, 9, 0, 0, 0, 1, 7, 7]] {
        kernel.answers(&Request { frame, ..request.clone() }, &item.text(false));
    }
    for frame in
        [[9, 9, 0, 0, 0, 2, 0, 0], [9, 9, 0, 1, 0, 2, 0, 0], [9, 9, 0, 0, 1, 1, 0, 0], [9, 9, 0, 1, 0, 1, 0, 0]]
    {
        kernel.passes_request(&Request { frame, ..request.clone() });
    }
}

#[test]
fn packets_of_other_shapes_pass() {
    let Some(kernel) = Kernel::new() else { return };
    let item = Item::new("key", b"value");
    kernel.writer.put(64, &item);
    let request = Request::new("get key\r\n");
    let whole = request.packet();
    // Short frames arrive padded.
    let padded = [&whole[..], &[0xee; 9]].concat();
    assert_eq!(kernel.run(&padded), (Verdict::Answered, request.answer(&item.text(false), Sum::Whole)));
    for length in 34..whole.len() {
        kernel.passes(&whole[..length], &format!("{length} bytes"));
    }
    let change = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = whole.clone();
        change(&mut packet);
        sum_header(&mut packet);
        kernel.passes(&packet, what);
    };
    change("more fragments", &|packet| packet[20] = 0x20);
    change("a later fragment", &|packet| packet[21] = 1);
    change("reserved flag", &|packet| packet[20] = 0x80);
    change("TCP", &|packet| packet[23] = 6);
    change("version 5", &|packet| packet[14] = 0x55);
    change("short header", &|packet| packet[14] = 0x44);
    change("longer than the frame", &|packet| packet[17] += 1);
    change("total below the header", &|packet| packet[16..18].fill(0));
    change("UDP longer than IP", &|packet| packet[39] += 1);
    change("UDP shorter than IP", &|packet| packet[39] -= 1);
    change("source port 0", &|packet| packet[34..36].fill(0));
    change("another's address", &|packet| packet[33] = 9);
    change("another MAC", &|packet| packet[5] ^= 1);
    change("broadcast", &|packet| packet[..6].fill(0xff));
    change("multicast sender", &|packet| packet[6] |= 1);
    change("options", &|packet| {
        packet[14] = 0x46;
        packet[17] += 4;
        packet.splice(34..34, [1, 1, 1, 0]);
    });
    change("VLAN", &|packet| {
        packet.splice(12..12, [0x81, 0, 0, 5]);
    });
    let mut unsummed = whole.clone();
    unsummed[24] ^= 1;
    kernel.passes(&unsummed, "wrong header sum");
    let six = Request::v6("get key\r\n").packet();
    for (at, value, what) in
        [(20, 44, "a fragment header"), (20, 0, "hop-by-hop"), (19, 99, "length"), (14, 0x50, "version")]
    {
        let mut packet = six.clone();
        packet[at] = value;
        kernel.passes(&packet, what);
    }
}

#[test]
fn checksums_are_checked() {
    let Some(kernel) = Kernel::new() else { return };
    for key in ["key", "keys", "a-key"] {
        let item = Item::new(key, b"value");
        kernel.writer.put(key.len() as u64 * 512, &item);
        let (four, six) = (Request::new(format!("get {key}\r\n")), Request::v6(format!("get {key}\r\n")));
        kernel.answers(&four, &item.text(false));
        kernel.answers(&Request { sum: Sum::Absent, ..four.clone() }, &item.text(false));
        kernel.answers(&Request { sum: Sum::Partial, ..four.clone() }, &item.text(false));
        kernel.answers(&Request { sum: Sum::Partial, ..six.clone() }, &item.text(false));
        kernel.passes_request(&Request { sum: Sum::Wrong, ..four.clone() });
        kernel.passes_request(&Request { sum: Sum::Wrong, ..six.clone() });
        kernel.passes_request(&Request { sum: Sum::Absent, ..six.clone() });
        for at in 42..four.packet().len() {
            let mut packet = four.packet();
            packet[at] ^= 4;
            kernel.passes(&packet, "a changed byte");
        }
    }
}

#[test]
fn sources_outside_are_not_answered() {
    let Some(kernel) = Kernel::new() else { return };
    kernel.writer.put(64, &Item::new("key", b"value"));
    let outside = [
        "10.77.1.2",
        "192.0.2.1",
        "10.77.0.1",
        "10.77.0.0",
        "10.77.0.255",
        "127.0.0.1",
        "224.0.0.1",
        "0.0.0.0",
        "fd77:0:0:1::2",
        "fd77::1",
        "ff02::1",
        "::1",
        "::",
        "fe80::1",
    ];
    for from in outside {
        let base = if from.contains(':') { Request::v6("get key\r\n") } else { Request::new("get key\r\n") };
        kernel.passes_request(&Request { from: from.parse().unwrap(), ..base });
    }
    let everyone = |address: &str| Network { address: address.parse().unwrap(), bits: 0 };
    let open = Settings { sources: vec![everyone("0.0.0.0"), everyone("::")], ..settings() };
    let Some(kernel) = Kernel::with(OBJECT, &open) else { return };
    let item = Item::new("key", b"value");
    kernel.writer.put(64, &item);
    for from in ["127.0.0.1", "224.0.0.1", "255.255.255.255", "0.0.0.7", "10.77.0.1", "ff02::1", "::1", "fd77::1"] {
        let base = if from.contains(':') { Request::v6("get key\r\n") } else { Request::new("get key\r\n") };
        kernel.passes_request(&Request { from: from.parse().unwrap(), ..base });
    }
    for from in ["192.0.2.1", "10.77.0.255", "2001:db8::1"] {
        let base = if from.contains(':') { Request::v6("get key\r\n") } else { Request::new("get key\r\n") };
        kernel.answers(&Request { from: from.parse().unwrap(), ..base }, &item.text(false));
    }
}

#[test]
fn items_that_may_be_over_pass() {
    let Some(kernel) = Kernel::new() else { return };
    let request = Request::new("get key\r\n");
    let item = Item { version: 7, ..Item::new("key", b"value") };
    kernel.writer.put(64, &item);
    kernel.answers(&request, &item.text(false));
    for (state, marks) in [(0, 0), (1, 0), (3, 0), (2, 2), (4, 0)] {
        kernel.writer.set_state_and_marks(64, state, marks);
        kernel.passes_request(&request);
    }
    // Marks other than stale do not matter.
    kernel.writer.set_state_and_marks(64, 2, 0xfd);
    kernel.answers(&request, &item.text(false));
    // Seconds count from the machine's start.
    for (expiry, answered) in [(1, false), (u64::MAX, true), (u64::from(u32::MAX), true)] {
        let item = Item { expiry, ..item };
        kernel.writer.remove(64, b"key");
        kernel.writer.put(64, &item);
        if answered { kernel.answers(&request, &item.text(false)) } else { kernel.passes_request(&request) }
    }
    // Of this shard, not of the other.
    for (shard, flushed, at, answered) in
        [(0, 6, 0, true), (0, 7, 0, false), (0, 0, 1, false), (0, 0, u64::MAX, true), (1, 99, 1, true)]
    {
        kernel.writer.flush(shard, flushed, at);
        let item = Item { expiry: u64::from(u32::MAX), ..item };
        if answered { kernel.answers(&request, &item.text(false)) } else { kernel.passes_request(&request) }
    }
    kernel.writer.answer(false);
    kernel.passes_request(&request);
}

#[test]
fn items_of_another_incarnation_pass() {
    let Some(kernel) = Kernel::new() else { return };
    kernel.writer.0.head()[1].store(u64::from(INCARNATION) + 1, Relaxed);
    kernel.writer.put(64, &Item::new("key", b"value"));
    kernel.passes_request(&Request::new("get key\r\n"));
}

#[test]
fn places_are_in_all_values_but_not_at_their_ends() {
    let Some(kernel) = Kernel::new() else { return };
    let request = Request::new("get key\r\n");
    let places = [0, 8, MIB - 2048, MIB, 3 * MIB + 64, 4 * MIB - 2048].map(|place| (place, true));
    for (place, answered) in places.into_iter().chain([MIB - 2040, 4 * MIB - 2040].map(|place| (place, false))) {
        let item = Item::new("key", b"value");
        kernel.writer.put(place, &item);
        if answered {
            kernel.answers(&request, &item.text(false))
        } else {
            kernel.passes_request(&request)
        }
        kernel.writer.remove(place, b"key");
    }
    // An entry that is beyond all memory reads nothing.
    kernel.writer.table().enter(b"key", 5 * MIB);
    kernel.passes_request(&request);
}

#[test]
fn without_cas_the_version_is_zero() {
    let Some(kernel) = Kernel::with(OBJECT, &Settings { without_cas: true, ..settings() }) else { return };
    let item = Item { version: 77, ..Item::new("key", b"value") };
    kernel.writer.put(64, &item);
    kernel.answers(&Request::new("gets key\r\n"), &Item { version: 0, ..item }.text(true));
}

#[test]
fn keys_with_one_tag_are_told_apart() {
    let Some(kernel) = Kernel::with(OBJECT, &Settings { buckets: 1, ..settings() }) else { return };
    let hasher = rdmakv_bpf::layout::Hasher::new(SECRET);
    let names: Vec<_> = (0..7).map(|number| format!("key{number}")).collect();
    // The tags of all are made that of the first.
    for (at, name) in names.iter().enumerate() {
        let place = 64 + 2048 * at as u64;
        kernel.writer.put(place, &Item::new(name, name.as_bytes()));
    }
    let tag = rdmakv_bpf::layout::slot(hasher.hash(names[0].as_bytes()), 0);
    for slot in &kernel.gets.maps().buckets()[0].slots {
        slot.store(tag | slot.load(Relaxed) & 0xffff_ffff, Relaxed);
    }
    kernel.answers(&Request::new("get key0\r\n"), &Item::new("key0", b"key0").text(false));
    kernel.writer.die(64);
    kernel.passes_request(&Request::new("get key0\r\n"));
}

#[test]
fn counts_are_by_outcome() {
    let Some(kernel) = Kernel::new() else { return };
    let item = Item::new("key", b"value");
    kernel.writer.put(64, &item);
    let request = Request::new("get key\r\n");
    kernel.answers(&request, &item.text(false));
    kernel.passes_request(&Request::new("get other\r\n"));
    kernel.passes_request(&Request::new("stats\r\n"));
    kernel.writer.set_state_and_marks(64, 3, 0);
    kernel.passes_request(&request);
    // Each was run by both programs.
    let counts = [0, 1, 4, 5].map(|field| kernel.tally(field));
    assert_eq!(counts, [6, 2, 2, 2]);
    let (asked, answered) = (8 + "get key\r\n".len() as u64, 8 + item.text(false).len() as u64);
    assert_eq!([kernel.tally(2), kernel.tally(3)], [2 * asked, 2 * answered]);
    assert_eq!(kernel.tally(16 + usize::from(CLASS)), 2);
    assert_eq!(kernel.writer.table().take_hits(b"key", 64), 2);
    assert_eq!(kernel.writer.table().take_hits(b"key", 64), 0);
}

#[test]
fn tcx_looks_only_at_what_xdp_had_no_room_for() {
    let Some(kernel) = Kernel::with(OBJECT, &Settings { only_tcx: false, ..settings() }) else { return };
    kernel.writer.put(64, &Item::new("key", b"value"));
    let packet = Request::new("get key\r\n").packet();
    assert_eq!(kernel.gets.run(Hook::Xdp, &packet).unwrap().0, Verdict::Answered);
    assert_eq!(kernel.gets.run(Hook::Tcx, &packet).unwrap(), (Verdict::Passed, packet));
}

#[test]
fn interfaces_share_maps() {
    let Some(kernel) = Kernel::new() else { return };
    let other = Settings { addresses: vec!["10.77.0.9".parse().unwrap()], ..settings() };
    let second = Gets::load(OBJECT, &other, Some(&kernel.gets)).unwrap();
    let item = Item::new("key", b"value");
    kernel.writer.put(64, &item);
    let request = Request { to: "10.77.0.9".parse().unwrap(), ..Request::new("get key\r\n") };
    let (verdict, answer) = second.run(Hook::Xdp, &request.packet()).unwrap();
    assert_eq!((verdict, answer), (Verdict::Answered, request.answer(&item.text(false), Sum::Whole)));
    assert_eq!(kernel.tally(1), 1);
}

#[test]
fn settings_that_do_not_suit_are_refused() {
    let bad = [
        Settings { value_size: 1 << 30, ..settings() },
        Settings { buckets: 1000, ..settings() },
        Settings { shard_size: 0, ..settings() },
        Settings { shard_size: 8, ..settings() },
        Settings { memory: 33 << 30, shard_size: 33 << 30, ..settings() },
        Settings { addresses: vec!["10.0.0.1".parse().unwrap(); 17], ..settings() },
    ];
    for settings in bad {
        assert!(Gets::load(OBJECT, &settings, None).is_err(), "{settings:?}");
    }
}
