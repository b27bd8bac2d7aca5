//! The commands and the versions on the pages about capacity and upgrades, tried and compared.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{SERVER, Server, ask};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// Returns the fenced block that follows a marker.
fn block(page: &str, marker: &str) -> String {
    let (_, rest) = page.split_once(&format!("<!-- test: {marker} -->\n```sh\n")).expect("the page has the block");
    rest.split_once("```\n").unwrap().0.to_owned()
}

fn bash(script: &str, folder: &Path) -> Output {
    // Beside the server are the other programs.
    let path = format!("{}:{}", Path::new(SERVER).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let script = format!("trap 'jobs -p | xargs -r kill' EXIT\n{script}");
    let mut bash = Command::new("timeout");
    bash.args(["60", "bash", "-euc", &script]).env("PATH", path).env("HOME", folder).current_dir(folder);
    bash.output().unwrap()
}

#[test]
fn watched_gets_become_a_trace() {
    let server = Server::on_a_free_port(&[]);
    let mut watcher = server.connect();
    ask(&mut watcher, b"watch fetchers mutations\r\n", b"OK\r\n");
    let mut client = server.connect();
    ask(&mut client, b"get a\r\nset a 0 0 5\r\nhello\r\n", b"END\r\nSTORED\r\n");
    ask(&mut client, b"get b\r\nget a\r\n", b"END\r\nVALUE a 0 5\r\nhello\r\nEND\r\n");
    let folder = tempfile::tempdir().unwrap();
    let mut log = std::fs::File::create(folder.path().join("asked.log")).unwrap();
    for line in BufReader::new(watcher).lines().take(5) {
        writeln!(log, "{}", line.unwrap()).unwrap();
    }
    let made = bash(&block(&page("capacity.md"), "trace of watch"), folder.path());
    assert!(made.status.success(), "{made:?}");
    let trace = std::fs::read_to_string(folder.path().join("asked.trace")).unwrap();
    let lines: Vec<Vec<&str>> = trace.lines().map(|line| line.split(' ').collect()).collect();
    assert!(lines.iter().all(|line| line[0].parse::<f64>().is_ok_and(|seconds| seconds > 1e9)), "{trace}");
    // A miss has no size, and a SET's own lookup does not count. The key that was asked for first is number 1.
    let asked: Vec<&[&str]> = lines.iter().map(|line| &line[1..]).collect();
    assert_eq!(asked, [["1", "6400"], ["2", "6400"], ["1", "6720"]]);
}

#[test]
fn restart_on_the_page_keeps_the_item() {
    let beside = Path::new(SERVER).with_file_name("rdmakv");
    if !beside.exists() {
        eprintln!("skipped: {} is not built (cargo build -p rdmakv-client)", beside.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let script = block(&page("upgrade.md"), "restart").replace("11300", &port.to_string());
    let restarted = bash(&script, folder.path());
    let printed = String::from_utf8_lossy(&restarted.stdout);
    assert!(restarted.status.success() && printed.lines().any(|line| line == "hello"), "{restarted:?}");
}

#[test]
fn upgrade_page_has_versions_and_errors() {
    let page = page("upgrade.md");
    let row = |of: &str| -> Vec<&str> {
        page.lines().find(|line| line.starts_with(&format!("| {of}"))).expect("the page has it").split(" | ").collect()
    };
    assert_eq!(row("client and server over")[1], rdmakv_proto::messages::VERSION.to_string());
    assert_eq!(row("client and servers, and servers")[1], rdmakv_cluster::wire::VERSION.to_string());
    for (of, file) in [
        ("client and server over", "src/fabric/connection.rs"),
        ("client and servers, and servers", "cluster/src/wire.rs"),
        ("FILE of", "src/startup/warm/meta.rs"),
        ("files of", "flash/src/superblock.rs"),
    ] {
        let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let quoted = row(of)[2].split('`').nth(1).expect("the row quotes an error");
        assert!(source.contains(quoted), "{file} has no `{quoted}`");
        if file.ends_with("meta.rs") || file.ends_with("superblock.rs") {
            let version = row(of)[1];
            assert!(source.contains(&format!("const VERSION: u32 = {version};")), "{file} has not version {version}");
        }
    }
}
