//! Every command on an item that is on flash, compared with the same command on an item in memory, and with memcached's on extstore.
//!
//! Each case has items of its own. Versions of items are replaced by whether they are the stored one; times are rounded.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Server, soon, stat, to};

/// Items of a case: a number, and a value that is no number and has an end.
const SHAPES: [(&str, &str); 2] = [("number", "0"), ("text", "1000")];

fn value(shape: usize) -> String {
    if shape == 0 { "100".into() } else { "text ".repeat(600) }
}

/// Commands as text. `{k}` is the key, `{v}` its version, `{m}` a key that is not there, `{b}` the key as base64.
const TEXT: &[(&str, &str)] = &[
    ("get", "get {k}\r\n"),
    ("gets", "gets {k}\r\n"),
    ("get several", "get {m} {k} {m} {k}\r\n"),
    ("gets several", "gets {k} {m}\r\n"),
    ("gat", "gat 500 {k}\r\n"),
    ("gat of two", "gat 0 {m} {k}\r\n"),
    ("gat that ends", "gat -1 {k}\r\n"),
    ("gats", "gats 500 {k}\r\n"),
    ("touch", "touch {k} 500\r\n"),
    ("touch for ever", "touch {k} 0\r\n"),
    ("touch that ends", "touch {k} -1\r\n"),
    ("touch quietly", "touch {k} 500 noreply\r\n"),
    ("touch, then gat", "touch {k} 500\r\ngat 700 {k}\r\n"),
    ("delete", "delete {k}\r\n"),
    ("delete twice", "delete {k}\r\ndelete {k}\r\n"),
    ("delete quietly", "delete {k} noreply\r\n"),
    ("set", "set {k} 3 0 3\r\nnew\r\n"),
    ("set of nothing", "set {k} 3 0 0\r\n\r\n"),
    ("set that ends", "set {k} 3 -1 3\r\nnew\r\n"),
    ("set of bad data", "set {k} 3 0 3\r\nlonger\r\n"),
    ("set too large", "set {k} 3 0 1200000\r\n{big}\r\n"),
    ("set quietly", "set {k} 3 0 3 noreply\r\nnew\r\n"),
    ("add", "add {k} 3 0 3\r\nnew\r\n"),
    ("replace", "replace {k} 3 0 3\r\nnew\r\n"),
    ("append", "append {k} 3 0 3\r\n123\r\n"),
    ("prepend", "prepend {k} 3 0 3\r\n123\r\n"),
    ("append and read", "append {k} 0 0 1\r\n5\r\nget {k}\r\n"),
    ("cas", "cas {k} 3 0 3 {v}\r\nnew\r\n"),
    ("cas of another", "cas {k} 3 0 3 1\r\nnew\r\n"),
    ("cas twice", "cas {k} 3 0 3 {v}\r\nnew\r\ncas {k} 3 0 3 {v}\r\nold\r\n"),
    ("incr", "incr {k} 5\r\n"),
    ("incr quietly", "incr {k} 5 noreply\r\n"),
    ("decr", "decr {k} 5\r\n"),
    ("decr below zero", "decr {k} 500\r\n"),
    ("incr by no number", "incr {k} x\r\n"),
    (
        "commands in a row",
        "get {m}\r\nget {k}\r\ntouch {k} 50\r\nappend {k} 0 0 1\r\n1\r\nincr {k} 1\r\ndelete {k}\r\n",
    ),
];

const META: &[(&str, &str)] = &[
    ("mg", "mg {k}\r\n"),
    ("mg v", "mg {k} v\r\n"),
    ("mg t", "mg {k} t\r\n"),
    ("mg s", "mg {k} s\r\n"),
    ("mg c", "mg {k} c\r\n"),
    ("mg f", "mg {k} f\r\n"),
    ("mg h", "mg {k} h\r\n"),
    ("mg l", "mg {k} l\r\n"),
    ("mg t s c", "mg {k} t s c\r\n"),
    ("mg h l t", "mg {k} h l t\r\n"),
    ("mg all", "mg {k} s v t f c h l k Oabc\r\n"),
    ("mg k O q", "mg {k} k O123 q\r\n"),
    ("mg q of two", "mg {m} q k\r\nmg {k} q k\r\nmn\r\n"),
    ("mg h twice", "mg {k} h\r\nmg {k} h\r\n"),
    ("mg h without a trace", "mg {k} h u\r\nmg {k} h u\r\n"),
    ("mg t, then v", "mg {k} t\r\nmg {k} h v\r\n"),
    ("mg T", "mg {k} T500 t\r\n"),
    ("mg T0", "mg {k} T0 t k\r\n"),
    ("mg T that ends", "mg {k} T-1 t\r\n"),
    ("mg T v", "mg {k} T500 t v\r\n"),
    ("mg N", "mg {k} N30 t\r\n"),
    ("mg N v", "mg {k} N30 t v\r\n"),
    ("mg R", "mg {k} R5000 t\r\nmg {k} R5000 t\r\n"),
    ("mg R not due", "mg {k} R30 t\r\n"),
    ("mg b", "mg {b} b k t\r\n"),
    ("mg E", "mg {k} E900 t\r\n"),
    ("mg of two values", "mg {k} v q\r\nmg {k} v k q\r\nmn\r\n"),
    ("ms", "ms {k} 3\r\nnew\r\n"),
    ("ms k O", "ms {k} 3 k O77\r\nnew\r\n"),
    ("ms c s", "ms {k} 3 c s T90 F9\r\nnew\r\n"),
    ("ms q", "ms {k} 3 q\r\nnew\r\nmn\r\n"),
    ("ms C", "ms {k} 3 C{v}\r\nnew\r\n"),
    ("ms C of another", "ms {k} 3 C1\r\nnew\r\n"),
    ("ms C stale", "ms {k} 3 C1 I\r\nnew\r\nmg {k} v\r\nmg {k} v\r\n"),
    ("ms E", "ms {k} 3 E12345 c\r\nnew\r\n"),
    ("ms add", "ms {k} 3 ME\r\nnew\r\n"),
    ("ms replace", "ms {k} 3 MR\r\nnew\r\n"),
    ("ms append", "ms {k} 3 MA s\r\n123\r\n"),
    ("ms prepend", "ms {k} 3 MP s\r\n123\r\n"),
    ("ms append N", "ms {k} 3 MA N60\r\n123\r\n"),
    ("ms append C", "ms {k} 3 MA C{v}\r\n123\r\n"),
    ("md", "md {k}\r\n"),
    ("md k O", "md {k} k O9\r\n"),
    ("md q", "md {k} q\r\nmn\r\n"),
    ("md C", "md {k} C{v}\r\n"),
    ("md C of another", "md {k} C1\r\n"),
    ("md I", "md {k} I\r\nmg {k} v c\r\nmg {k} v\r\n"),
    ("md I T", "md {k} I T30\r\nmg {k} t v\r\nmg {k} t\r\n"),
    ("md I C of another", "md {k} I C1\r\nmg {k} t\r\n"),
    ("md x", "md {k} x\r\nmg {k} s v f\r\n"),
    ("md x I", "md {k} x I T30\r\nmg {k} s v t\r\n"),
    ("md I, then ms", "md {k} I\r\nmg {k} k\r\nms {k} 3\r\nnew\r\n"),
    ("ma", "ma {k}\r\n"),
    ("ma v", "ma {k} v t c\r\n"),
    ("ma D", "ma {k} D7 v\r\n"),
    ("ma down", "ma {k} MD D7 v\r\n"),
    ("ma q", "ma {k} q\r\nmn\r\n"),
    ("ma N", "ma {k} N60 J5 v t\r\n"),
    ("ma C", "ma {k} C{v} v\r\n"),
    ("ma C of another", "ma {k} C1 v\r\n"),
    ("ma T", "ma {k} T30 t\r\n"),
    ("ma k O", "ma {k} k O3\r\n"),
    ("me", "me {k}\r\n"),
];

/// A binary command: the code, the extras, the value, and whether it is compared with the version (1) or another (2).
type BinaryCase = (&'static str, u8, &'static [u8], &'static [u8], u8);
const BINARY: &[BinaryCase] = &[
    ("get", 0x00, b"", b"", 0),
    ("getq", 0x09, b"", b"", 0),
    ("getk", 0x0c, b"", b"", 0),
    ("getkq", 0x0d, b"", b"", 0),
    ("touch", 0x1c, b"\0\0\x01\xf4", b"", 0),
    ("gat", 0x1d, b"\0\0\x01\xf4", b"", 0),
    ("gatq", 0x1e, b"\0\0\x01\xf4", b"", 0),
    ("gatk", 0x23, b"\0\0\x01\xf4", b"", 0),
    ("set", 0x01, b"\0\0\0\x09\0\0\0\0", b"new", 0),
    ("set cas", 0x01, b"\0\0\0\x09\0\0\0\0", b"new", 1),
    ("set cas of another", 0x01, b"\0\0\0\x09\0\0\0\0", b"new", 2),
    ("setq", 0x11, b"\0\0\0\x09\0\0\0\0", b"new", 0),
    ("add", 0x02, b"\0\0\0\x09\0\0\0\0", b"new", 0),
    ("replace", 0x03, b"\0\0\0\x09\0\0\0\0", b"new", 0),
    ("replace cas of another", 0x03, b"\0\0\0\x09\0\0\0\0", b"new", 2),
    ("delete", 0x04, b"", b"", 0),
    ("delete cas", 0x04, b"", b"", 1),
    ("delete cas of another", 0x04, b"", b"", 2),
    ("deleteq", 0x14, b"", b"", 0),
    ("increment", 0x05, b"\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x07\0\0\0\0", b"", 0),
    ("increment cas of another", 0x05, b"\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x07\0\0\0\0", b"", 2),
    ("decrement", 0x06, b"\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x07\xff\xff\xff\xff", b"", 0),
    ("append", 0x0e, b"", b"123", 0),
    ("append cas", 0x0e, b"", b"123", 1),
    ("append cas of another", 0x0e, b"", b"123", 2),
    ("prepend", 0x0f, b"", b"123", 0),
];

/// A server, and the versions of the items that it was given.
struct Told {
    address: String,
    versions: HashMap<String, u64>,
}

/// A key of a case's item of a shape; it is as long for each.
fn key(case: &str, shape: usize) -> String {
    let mut key = format!("{}-{}-", case.replace([' ', ','], "_"), SHAPES[shape].0);
    while key.len() < 40 {
        key.push('x');
    }
    key
}

fn cases() -> Vec<String> {
    let text = TEXT.iter().chain(META).map(|case| format!("t {}", case.0));
    text.chain(BINARY.iter().map(|case| format!("b {}", case.0))).collect()
}

/// Returns the answer up to that of `version`, which is sent at the end.
fn tell(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(format!("{request}version\r\n").as_bytes()).unwrap();
    let (mut all, end) = (Vec::new(), b"VERSION 1.6.18\r\n");
    let mut bytes = [0; 1 << 16];
    while !all.ends_with(end) {
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "the connection ended: {}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&bytes[..read]);
    }
    all.truncate(all.len() - end.len());
    String::from_utf8(all).unwrap()
}

fn dump(stream: &mut TcpStream) -> BTreeMap<String, HashMap<String, String>> {
    stream.write_all(b"lru_crawler metadump all\r\n").unwrap();
    let (mut all, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    while !all.ends_with(b"END\r\n") {
        let read = stream.read(&mut bytes).unwrap();
        all.extend_from_slice(&bytes[..read]);
    }
    let text = String::from_utf8(all).unwrap();
    let line = |line: &str| {
        let fields: HashMap<String, String> = line
            .split_whitespace()
            .filter_map(|field| field.split_once('='))
            .map(|(n, v)| (n.into(), v.into()))
            .collect();
        (fields.get("key").cloned().unwrap_or_default(), fields)
    };
    text.lines().filter(|line| line.starts_with("key=")).map(line).collect()
}

impl Told {
    /// Stores the items of all cases, and then so many others that those are in memory no more if it is small.
    fn new(address: String, has_fillers: bool) -> Self {
        let mut stream = to(&address);
        for case in cases() {
            for (shape, (_, expiry)) in SHAPES.iter().enumerate() {
                let (key, value) = (key(&case, shape), value(shape));
                assert_eq!(
                    tell(&mut stream, &format!("set {key} 7 {expiry} {}\r\n{value}\r\n", value.len())),
                    "STORED\r\n"
                );
            }
        }
        let fields = dump(&mut stream);
        let mut versions = HashMap::new();
        for key in cases().iter().flat_map(|case| [key(case, 0), key(case, 1)]) {
            versions.insert(key.clone(), fields[&key]["cas"].parse().unwrap());
        }
        // As long as those of the cases: of the same size classes.
        for (shape, count) in if has_fillers { [(1, 4000), (0, 40_000)] } else { [(0, 0); 2] } {
            let value = value(shape);
            for first in (0..count).step_by(64) {
                let set = |number| format!("set filler-{number:033} 0 0 {} noreply\r\n{value}\r\n", value.len());
                assert_eq!(tell(&mut stream, &(first..first + 64).map(set).collect::<String>()), "");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Self { address, versions }
    }

    /// Returns the answers of a case for a shape, and what the item is then.
    fn answers(&self, case: &str, shape: usize) -> String {
        let (face, name) = case.split_once(' ').unwrap();
        let key = key(case, shape);
        let version = self.versions[&key];
        let mut answer = String::new();
        let mut stream = to(&self.address);
        if face == "b" {
            let &(_, op, extras, value, cas) = BINARY.iter().find(|case| case.0 == name).unwrap();
            let cas = [0, version, 1][usize::from(cas)];
            answer = binary(&mut to(&self.address), (op, extras, key.as_bytes(), value, cas), version);
        } else {
            let (_, template) = TEXT.iter().chain(META).find(|case| case.0 == name).unwrap();
            let request = template
                .replace("{k}", &key)
                .replace("{m}", "missing")
                .replace("{v}", &version.to_string())
                .replace("{big}", &"b".repeat(1_200_000));
            let request = request.replace("{b}", &base64(key.as_bytes()));
            answer += &tell(&mut stream, &request);
        }
        let then = tell(&mut stream, &format!("gets {key}\r\nmg {key} t f s v k\r\n"));
        alike(&format!("{answer}then {then}"), version)
    }
}

/// Replaces versions by marks, and rounds times.
fn alike(answer: &str, version: u64) -> String {
    let mut alike = String::new();
    for line in answer.split_inclusive('\n') {
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        let of_version = |number: &str| if number.parse() == Ok(version) { "V" } else { "N" };
        let is_item = words[0] == "VALUE" || words.get(1) == Some(&"VALUE");
        let is_meta = ["HD", "VA", "EN", "NF", "NS", "EX", "ME"].contains(&words[0]) || words[0] == "then";
        if is_item && words.len() >= 5 {
            let at = words.len() - 1;
            let _ = writeln!(alike, "{} {}", words[..at].join(" "), of_version(words[at]));
        } else if is_meta {
            let word = |word: &&str| match word.split_at_checked(1) {
                Some(("c", number)) if number.parse::<u64>().is_ok() => format!("c{}", of_version(number)),
                Some(("t", number)) if number.parse::<u64>().is_ok() => {
                    format!("t{}", (number.parse::<u64>().unwrap() + 20) / 50 * 50)
                }
                Some(("l", number)) if number.parse::<u64>().is_ok() => "l".into(),
                _ => match word.split_once('=') {
                    Some(("cas", number)) => format!("cas={}", of_version(number)),
                    Some(("exp", number)) if number != "-1" => "exp=".into(),
                    Some(("la", _)) => "la=".into(),
                    _ => (*word).to_owned(),
                },
            };
            let _ = writeln!(alike, "{}", words.iter().map(word).collect::<Vec<_>>().join(" "));
        } else {
            alike.push_str(line);
        }
    }
    alike
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            text.push(if at <= three.len() { ALPHABET[(bits >> (18 - 6 * at)) as usize & 63] as char } else { '=' });
        }
    }
    text
}

/// Sends a request and a no-op; returns the answers before that of the no-op.
fn binary(
    stream: &mut TcpStream,
    (op, extras, key, value, cas): (u8, &[u8], &[u8], &[u8], u64),
    version: u64,
) -> String {
    let frame = |op: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64| {
        let mut header = [0; 24];
        (header[0], header[1], header[3], header[4]) = (0x80, op, key.len() as u8, extras.len() as u8);
        header[8..12].copy_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
        header[16..].copy_from_slice(&cas.to_be_bytes());
        [&header, extras, key, value].concat()
    };
    let request = [frame(op, extras, key, value, cas), frame(0x0a, b"", b"", b"", 0)].concat();
    stream.write_all(&request).unwrap();
    let mut answers = String::new();
    loop {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
        let mut body = vec![0; u32::from_be_bytes(header[8..12].try_into().unwrap()) as usize];
        stream.read_exact(&mut body).unwrap();
        if header[1] == 0x0a {
            return answers;
        }
        let shown = match u64::from_be_bytes(header[16..].try_into().unwrap()) {
            0 => "0",
            cas if cas == version => "V",
            _ => "N",
        };
        let _ = writeln!(answers, "{:?} {shown} {}", &header[..8], body.escape_ascii());
    }
}

fn start(more: &[&str]) -> Server {
    let flags = ["-t", "1", "-U", "-1", "--fabric", "none"];
    Server::on_a_free_port(&[&flags, more].concat())
}

/// Ends with the test.
struct Memcached {
    process: Child,
    address: String,
}

impl Memcached {
    /// Starts it with extstore in this file, if it is installed.
    fn start(file: &Path) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let flash = format!("ext_page_size=2,ext_wbuf_size=2,ext_path={}:64m,ext_item_age=0", file.display());
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0", "-t", "1", "-u", "root", "-o", &flash]);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let server = Self { process, address: format!("127.0.0.1:{port}") };
        soon("a server that listens", || TcpStream::connect(&server.address).is_ok());
        Some(server)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Cases that memcached with extstore answers otherwise, and why.
const OTHERWISE: &[(&str, &str)] = &[
    ("t append", "it does not append to what is on flash"),
    ("t prepend", "it does not append to what is on flash"),
    ("t append and read", "it does not append to what is on flash"),
    ("t commands in a row", "it does not append to what is on flash"),
    ("t ms append", "it does not append to what is on flash"),
    ("t ms prepend", "it does not append to what is on flash"),
    ("t ms append N", "it does not append to what is on flash"),
    ("t ms append C", "it does not append to what is on flash"),
    ("b append", "it does not append to what is on flash"),
    ("b append cas", "it does not append to what is on flash"),
    ("b prepend", "it does not append to what is on flash"),
    ("t ma C of another", "on flash it compares no version before it finds no number"),
    ("b increment cas of another", "on flash it compares no version before it finds no number"),
    ("t mg E", "the flag is of a later version"),
    ("t ms E", "the flag is of a later version"),
    ("t ms c s", "the flag is of a later version"),
    ("t md x", "the flag is of a later version"),
    ("t md x I", "the flag is of a later version"),
    ("t mg T that ends", "it shows an end before the first second as a large number"),
    ("t me", "its item on flash is of the class of its stub"),
];

#[test]
fn commands_on_flash_answer_as_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let flash = format!("{}:256m", folder.path().join("log").display());
    let small = start(&["-m", "8", "--flash", &flash, "-o", "ext_item_size=64"]);
    let large = start(&["-m", "256"]);
    let memcached = Memcached::start(&folder.path().join("theirs"));
    if memcached.is_none() {
        eprintln!("commands on flash: not compared with memcached, which is not installed (Debian: memcached)");
    }
    let [on_flash, in_memory] = [&small, &large].map(|server| Told::new(server.address("tcp"), true));
    let theirs = memcached.as_ref().map(|server| Told::new(server.address.clone(), false));
    // Each item of a case is on flash only: a dump does not know its version.
    let fields = dump(&mut small.connect());
    let is_away = |key: &&String| fields.get(*key).is_some_and(|fields| fields["cas"] == "0");
    let here: Vec<_> = on_flash.versions.keys().filter(|key| !is_away(key)).collect();
    assert!(here.is_empty(), "{} in memory or lost: {here:?}", here.len());
    if let Some(memcached) = &memcached {
        let all = cases().len() as u64;
        soon("that all are on flash", || stat(&mut to(&memcached.address), "extstore_objects_used") >= all);
    }
    let (mut different, mut otherwise) = (Vec::new(), Vec::new());
    for case in cases() {
        for (shape, (name, _)) in SHAPES.iter().enumerate() {
            let (answer, other) = (on_flash.answers(&case, shape), in_memory.answers(&case, shape));
            let cut = |text: &str| text.replace(&value(1), "LONG").replace(&key(&case, shape), "KEY");
            if answer != other {
                different.push(format!("{case}, {name}:\n{}--- in memory:\n{}", cut(&answer), cut(&other)));
            }
            // Numbers are too small for their flash.
            let Some(theirs) = theirs.as_ref().filter(|_| shape == 1) else { continue };
            let other = theirs.answers(&case, shape);
            let is_known = OTHERWISE.iter().any(|known| known.0 == case);
            if (answer == other) == is_known {
                otherwise.push(format!("{case}, {name}:\n{}--- memcached:\n{}", cut(&answer), cut(&other)));
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(otherwise.is_empty(), "{}", otherwise.join("\n"));
}

#[test]
fn counts_and_dumps_have_items_on_flash() {
    let folder = tempfile::tempdir().unwrap();
    let flash = format!("{}:256m", folder.path().join("log").display());
    let server = start(&["-m", "8", "--flash", &flash, "--http", "127.0.0.1:0"]);
    let mut stream = server.connect();
    let value = "v".repeat(3000);
    for first in (0..6000).step_by(32) {
        let set = |number| format!("set k{number} {} 0 3000 noreply\r\n{value}\r\n", number % 7);
        assert_eq!(tell(&mut stream, &(first..first + 32).map(set).collect::<String>()), "");
        std::thread::sleep(Duration::from_millis(2));
    }
    let sum = |of: &str, names: &dyn Fn(&str) -> bool| -> u64 {
        let stats = server.stats(of);
        stats.iter().filter(|(name, _)| names(name)).map(|(_, value)| value.parse::<u64>().unwrap()).sum()
    };
    let lost = server.stat("evictions");
    let items = server.stat("curr_items");
    assert_eq!(items, 6016 - lost);
    assert!(server.stat("flash_only_items") > 2000 && lost < 2000);
    assert_eq!(sum("items", &|name| name.ends_with(":number")), items);
    assert_eq!(sum("items", &|name| name.ends_with(":number_cold")), server.stat("flash_only_items"));
    assert_eq!(sum("sizes", &|_| true), items);
    let dumped = dump(&mut stream);
    assert_eq!(dumped.len() as u64, items);
    assert!(dumped.values().all(|fields| fields["exp"] == "-1" && fields["fetch"] == "no"));
    let (status, metrics) = server.http("/metrics");
    assert!(status == 200 && metrics.contains(&format!("\nrdmakv_items {items}\n")), "{metrics}");
    assert!(metrics.contains("\nrdmakv_flash_transfer_duration_seconds_count{kind=\"write\"} "), "{metrics}");

    // Bytes used and unused are those of the segments that are not free.
    let of = |name: &str| server.stat(name);
    let segment = of("extstore_limit_maxbytes") / (of("extstore_pages_free") + of("extstore_pages_used"));
    assert_eq!(of("extstore_bytes_used") + of("extstore_bytes_fragmented"), of("extstore_pages_used") * segment);
    assert_eq!(of("extstore_page_allocs") - of("extstore_page_reclaims"), of("extstore_pages_used"));

    // A dump of a class has those of its size; `cachedump` so many as it is told.
    let away: Vec<_> = dumped.values().filter(|fields| fields["cas"] == "0").collect();
    let class = &away[0]["cls"];
    let shown = tell(&mut stream, &format!("stats cachedump {class} 0\r\n"));
    assert!(away.iter().all(|fields| fields["cls"] != *class || shown.contains(&format!("ITEM {} [", fields["key"]))));

    // What is over goes with the next round of the crawler, though nothing asks for it.
    let ends: String = away.iter().take(100).map(|fields| format!("touch {} 1\r\n", fields["key"])).collect();
    assert_eq!(tell(&mut stream, &ends), "TOUCHED\r\n".repeat(100));
    assert_eq!(tell(&mut stream, "lru_crawler crawl all\r\n"), "OK\r\n");
    soon("that the crawler takes them out", || server.stat("curr_items") == items - 100);
    assert_eq!(server.stat("crawler_reclaimed"), 100);
    assert_eq!(dump(&mut stream).len() as u64, items - 100);
}

#[test]
fn a_question_about_an_item_reads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let flash = format!("{}:256m", folder.path().join("log").display());
    let server = start(&["-m", "8", "--flash", &flash, "-o", "ext_item_size=64"]);
    let told = Told::new(server.address("tcp"), true);
    let mut stream = server.connect();
    let mut watcher = server.connect();
    watcher.write_all(b"watch fetchers deletions\r\n").unwrap();
    let mut ok = [0; 4];
    watcher.read_exact(&mut ok).unwrap();
    let key = |name: &str| key(&format!("t {name}"), 1);
    let before = (server.stat("get_extstore"), server.stat("get_hits"), server.stat("touch_hits"));
    let k = key("mg");
    assert_eq!(
        tell(&mut stream, &format!("mg {k} h k Oo\r\nmg {k} h T0 t\r\nmg {k} t q\r\n")),
        format!("HD h0 k{k} Oo\r\nHD h1 t-1\r\nHD t-1\r\n")
    );
    assert_eq!(
        tell(
            &mut stream,
            &format!("touch {} 0\r\ndelete {}\r\nmg {} t\r\n", key("touch"), key("delete"), key("delete"))
        ),
        "TOUCHED\r\nDELETED\r\nEN\r\n"
    );
    let after = (server.stat("get_extstore"), server.stat("get_hits"), server.stat("touch_hits"));
    assert_eq!(after, (before.0, before.1 + 3, before.2 + 2));
    assert_eq!(told.versions.len(), 2 * cases().len());
    // Those that watch learn that it was found.
    watcher.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let (mut lines, mut bytes) = (String::new(), [0; 1 << 16]);
    while let Ok(read @ 1..) = watcher.read(&mut bytes) {
        lines += std::str::from_utf8(&bytes[..read]).unwrap();
    }
    for line in
        [format!("type=item_get key={k} status=found"), format!("type=deleted key={} cmd=delete", key("delete"))]
    {
        assert!(lines.contains(&line), "{line}: {lines}");
    }
}
