//! The command `rdmakv`, as a shell uses it.

mod server;

use server::{Server, soon};
use std::io::Write;
use std::process::{Command, Output, Stdio};

fn rdmakv(server: &str, arguments: &[&str], input: &[u8]) -> Output {
    let is_timed = arguments.contains(&"--timeout");
    let patience: &[&str] = if is_timed || arguments.contains(&"--") { &[] } else { &["--timeout", "60000"] };
    let mut child = Command::new(env!("CARGO_BIN_EXE_rdmakv"))
        .args(["-s", server])
        .args(arguments)
        .args(patience)
        .env_remove("RDMAKV_SERVERS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A client that does not read it has ended.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn it_does_what_it_is_told_over_every_way() {
    let lease = ["--tag-lease", "60s"];
    let server = Server::on_a_free_port(&[&lease[..], &["--fabric", "iwarp:127.0.0.1:0"]].concat());
    let other = Server::on_a_free_port(&lease);
    let fabric = |server: &Server, kind: &str| {
        let line =
            server.lines.iter().find_map(|line| line.strip_prefix("listening on ").filter(|at| at.starts_with(kind)));
        line.unwrap().to_owned()
    };
    for server in [server.address("tcp"), fabric(&server, "iwarp:"), fabric(&other, "shm:")] {
        let run = |arguments: &[&str]| said(&rdmakv(&server, arguments, b""));
        assert_eq!(run(&["get", "a"]), (1, String::new(), "rdmakv: there is no \"a\"\n".to_owned()));
        assert_eq!(run(&["set", "a", "one"]), (0, String::new(), String::new()));
        assert_eq!(run(&["get", "a"]), (0, "one".to_owned(), String::new()));
        assert_eq!(run(&["set", "--add", "a", "two"]).0, 1);
        assert_eq!(run(&["set", "--append", "a", "+"]).0, 0);
        assert_eq!(run(&["get", "a", "a"]).1, "one+\none+\n");
        assert_eq!(run(&["set", "n", "41"]).0, 0);
        assert_eq!(run(&["incr", "n"]).1, "42\n");
        assert_eq!(run(&["decr", "n", "2"]).1, "40\n");
        assert_eq!((run(&["touch", "n", "60"]).0, run(&["touch", "m", "60"]).0), (0, 1));
        assert_eq!((run(&["touch", "--ttl", "60", "n"]).0, run(&["touch", "m", "--ttl", "60"]).0), (0, 1));
        assert_eq!((run(&["touch", "n"]).0, run(&["touch", "n", "60", "--ttl", "60"]).0), (2, 2));
        let (code, _, why) = run(&["delete", "n", "m"]);
        assert_eq!((code, why.as_str()), (1, "rdmakv: there is no \"m\"\n"));
        // Any bytes, and many.
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at * 7) as u8).collect();
        assert!(rdmakv(&server, &["set", "large"], &bytes).status.success());
        let got = rdmakv(&server, &["get", "-v", "--times", "20", "large"], b"");
        assert!(got.stdout == bytes);
        let how = said(&got).2;
        if server.contains("shm") || server.contains("iwarp") {
            assert!(how.contains("one-sided read, ") && how.contains("(median of 20, "), "{how}");
            assert!(how.contains(" 19 one-sided") || how.contains(" 20 one-sided"), "{how}");
        } else {
            assert!(how.contains("; socket; ") && how.contains(" 0 one-sided"), "{how}");
        }
        let (code, stats, _) = run(&["stats"]);
        assert!(code == 0 && stats.lines().any(|line| line.starts_with("curr_items ")), "{stats}");
        let (code, table, _) = run(&["watch", "--interval", "0.1", "--count", "2"]);
        assert!(code == 0 && table.matches("one-sided").count() == 3 && table.matches("MiB").count() == 4, "{table}");
        assert!(run(&["version"]).1.contains("1.6."));
        assert_eq!((run(&["flush"]).0, run(&["get", "a"]).0), (0, 1));
    }
}

#[test]
fn what_goes_wrong_is_said_with_a_code() {
    let server = Server::on_a_free_port(&[]);
    let address = server.address("tcp");
    assert_eq!(said(&rdmakv("::1:1", &["get", "a"], b"")).0, 2);
    assert_eq!(said(&rdmakv(&address, &["get"], b"")).0, 2);
    assert_eq!(said(&rdmakv(&address, &["get", &"k".repeat(300)], b"")).0, 2);
    // A file stays as it is where there is nothing to write to it.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert_eq!(said(&rdmakv(&address, &["get", "a", "-o", file.to_str().unwrap()], b"")).0, 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    drop(server);
    let (code, out, why) = said(&rdmakv(&address, &["get", "a"], b""));
    assert!(code == 1 && out.is_empty() && why.contains("no connection"), "{why}");
    // Its outcome is unknown.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (code, _, why) = said(&rdmakv(&address, &["--timeout", "50", "set", "a", "b"], b""));
    assert!(code == 3 && why.contains("unknown"), "{why}");
    let (code, _, why) = said(&rdmakv(&address, &["--timeout", "50", "get", "a"], b""));
    assert!(code == 1 && why.contains("raise --timeout"), "{why}");
}

#[test]
fn what_goes_wrong_is_said_with_what_would_be_right() {
    let server = Server::on_a_free_port(&["-I", "1m"]);
    let (address, folder) = (server.address("tcp"), tempfile::tempdir().unwrap());
    let nowhere = folder.path().join("none").join("file");
    let nowhere = nowhere.to_str().unwrap();
    let why = |arguments: &[&str], input: &[u8]| {
        let (code, out, why) = said(&rdmakv(&address, arguments, input));
        assert!(code != 0 && out.is_empty(), "{arguments:?}: {out}");
        why
    };
    assert!(why(&["stats", "nope"], b"").contains("there are items, slabs"));
    assert!(why(&["set", "large"], &vec![0; 3_000_000]).contains("larger -I"));
    assert_eq!(said(&rdmakv(&address, &["set", "a", "b"], b"")).0, 0);
    assert!(why(&["get", "-o", nowhere, "a"], b"").contains("its folder exists"));
    assert!(why(&["set", "-i", nowhere, "a"], b"").contains("its folder exists"));
    // `get` writes into a device, and does not replace it.
    assert!(why(&["get", "-o", "/dev/full", "a"], b"").contains("write /dev/full: "));
    let huge = "99999999999999999999999";
    for (arguments, allowed) in [
        (&["set", "--ttl", "1x", "a", "b"][..], "0 to 2147483647"),
        (&["set", "--flags", huge, "a", "b"], "0 to 4294967295"),
        (&["set", "--cas", "x", "a", "b"], "0 to 18446744073709551615"),
        (&["touch", "a", huge], "0 to 2147483647"),
        (&["incr", "a", "x"], "0 to 18446744073709551615"),
        (&["get", "--times", huge, "a"], "1 to 4294967295"),
        (&["get", "--timeout", "0", "a"], "1 to 3600000"),
        (&["watch", "--count", huge], "0 to 18446744073709551615"),
        (&["flush", "--after", "x"], "0 to 2147483647"),
    ] {
        let why = why(arguments, b"");
        assert!(why.contains(&format!("a whole number is needed, {allowed}")), "{why}");
    }
}

#[test]
fn printed_addresses_work_and_dead_fabric_is_told() {
    let server = Server::on_a_free_port(&["--fabric", "iwarp:127.0.0.1:0"]);
    let line = server.lines.iter().find_map(|line| line.strip_prefix("clients reach it by -s ")).unwrap();
    let ways = line.replace("HOST", "127.0.0.1");
    assert_eq!(said(&rdmakv(&ways, &["set", "a", "b"], b"")).0, 0);
    // On a busy machine the socket may answer before the fabric stands.
    let reads = || said(&rdmakv(&ways, &["get", "-v", "--times", "20", "a"], b"")).2;
    soon("one-sided reads", || reads().contains("one-sided read, iwarp:"));
    let socket = server.address("tcp");
    let how = said(&rdmakv(&format!("shm:@nobody-is-here,{socket}"), &["get", "-v", "a"], b"")).2;
    assert!(how.contains("socket, as no fabric of that server answers; "), "{how}");
}

#[test]
fn each_server_that_does_not_answer_is_named() {
    let (here, gone) = (Server::on_a_free_port(&[]), [Server::on_a_free_port(&[]), Server::on_a_free_port(&[])]);
    let gone = gone.map(|server| server.address("tcp"));
    let (code, out, why) = said(&rdmakv(&gone[0], &["-s", &here.address("tcp"), "-s", &gone[1], "version"], b""));
    assert!(code == 1 && out.contains("1.6."), "{out}");
    assert!(why.lines().count() == 2 && gone.iter().all(|gone| why.contains(gone)), "{why}");
    let watch = ["-s", &here.address("tcp"), "watch", "--interval", "0.1", "--count", "1"];
    let (code, table, why) = said(&rdmakv(&gone[0], &watch, b""));
    assert!(code == 1 && table.contains(&gone[0]) && why.contains("1 of 2 servers"), "{table}{why}");
}

#[test]
fn connection_limit_is_named() {
    let name = format!("shm:@limit-{}", std::process::id());
    let flags = ["--fabric", "iwarp:127.0.0.1:0", "--fabric", &name, "--fabric-connections", "1"];
    let server = Server::on_a_free_port(&flags);
    let line = server.lines.iter().find_map(|line| line.strip_prefix("listening on iwarp:")).unwrap();
    let iwarp = format!("iwarp:{line}");
    let mut first = rdmakv_client::Client::new([&iwarp]).unwrap();
    assert!(first.get("a").unwrap().is_none());
    for way in [&iwarp, &name] {
        let (code, _, why) = said(&rdmakv(way, &["get", "a"], b""));
        assert!(
            code == 1 && why.contains("closed the connection before it was set up") && why.contains("limit"),
            "{why}"
        );
    }
}

#[test]
fn help_has_examples() {
    let help = Command::new(env!("CARGO_BIN_EXE_rdmakv")).arg("--help").output().unwrap();
    assert!(said(&help).1.contains("rdmakv set greeting hello"));
}

/// A copy of the command in a folder of its own, so that no other program is beside it.
#[test]
fn commands_of_files_start_the_other_program() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (folder.path().join("rdmakv"), folder.path().join("rdmakv-fuse"));
    std::fs::copy(env!("CARGO_BIN_EXE_rdmakv"), &own).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&own);
        command.args(arguments).env("PATH", "/nowhere").env_remove("RDMAKV_SERVERS");
        said(&command.output().unwrap())
    };
    let (code, _, why) = run(&["mount", "/mnt/run7", "--backing", "/lustre"]);
    assert_eq!(code, 1);
    assert!(why.contains("there is no `rdmakv-fuse` beside `rdmakv` or in PATH"), "{why}");
    std::fs::write(&other, "#!/bin/sh\necho \"$@\"\nexit 7\n").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    let passed = |arguments: &[&str], wanted: &str| {
        assert_eq!(run(arguments), (7, format!("{wanted}\n"), String::new()), "{arguments:?}");
    };
    passed(
        &["--etcd", "http://e:2379", "mount", "/mnt", "--backing", "/b", "-d"],
        "mount --etcd http://e:2379 /mnt --backing /b -d",
    );
    passed(&["--cluster", "two", "files", "settle", "--timeout", "600"], "files --cluster two settle --timeout 600");
    passed(&["files", "--help"], "files --help");
    // What the arguments have is not given twice.
    let both = &["--cluster", "two", "--etcd", "http://e", "mount", "/mnt", "--cluster", "three", "--etcd=http://f"];
    passed(both, "mount /mnt --cluster three --etcd=http://f");
    passed(&["--cluster", "two", "files", "settle", "--", "--cluster"], "files --cluster two settle -- --cluster");
    assert_eq!(run(&["-s", "127.0.0.1", "files", "status"]).0, 2);
}
