//! `examples/rping`: its client against its server.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// Returns the example, which `cargo test` builds too, but `cargo test --test rping` does not.
fn rping() -> Option<PathBuf> {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.set_file_name("examples");
    path.push("rping");
    let built = path.exists();
    if !built {
        println!("skipped: build it with cargo build --example rping");
    }
    built.then_some(path)
}

/// A server, ended with the test.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the server's output, and the client's result.
fn run(server: &[&str], client: &[&str]) -> Option<(String, Output)> {
    let rping = rping()?;
    let serving =
        Command::new(&rping).args(["-s", "-a", "127.0.0.1", "-p", "0"]).args(server).stdout(Stdio::piped()).spawn();
    let mut serving = Serving(serving.unwrap());
    let mut lines = BufReader::new(serving.0.stdout.take().unwrap()).lines();
    let port = lines.next().unwrap().unwrap().rsplit(':').next().unwrap().to_owned();
    let pinged = Command::new(&rping).args(["-c", "-a", "127.0.0.1", "-p", &port]).args(client).output().unwrap();
    if pinged.status.code() == Some(2) {
        // It never came, and the server would wait for it.
        serving.0.kill().unwrap();
    }
    let printed = lines.map(Result::unwrap).collect::<Vec<_>>().join("\n");
    serving.0.wait().unwrap();
    Some((printed, pinged))
}

#[test]
fn client_text_returns_from_the_server() {
    let Some((server, client)) = run(&["-v", "-V", "-C", "3", "-S", "40"], &["-v", "-V", "-C", "3", "-S", "40"]) else {
        return;
    };
    assert!(client.status.success(), "{client:?}");
    let text = "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    assert!(String::from_utf8_lossy(&client.stdout).starts_with(&format!("ping data: {text}\n")));
    assert!(
        server.starts_with(&format!("server ping data: {text}\n")) && server.ends_with("served 3 pings"),
        "{server}"
    );
}

#[test]
fn large_pings_are_compared_too() {
    let size = ["-V", "-C", "5", "-S", "3000000"];
    let Some((server, client)) = run(&size, &size) else { return };
    assert!(client.status.success(), "{client:?}");
    assert!(server.ends_with("served 5 pings"));
}

#[test]
fn oversized_ping_reports_why_it_ended() {
    let Some((_, client)) = run(&["-S", "40"], &["-C", "1", "-S", "100"]) else { return };
    assert!(!client.status.success());
    assert!(String::from_utf8_lossy(&client.stderr).contains("the peer closed the connection"));
}

#[test]
fn a_client_without_a_server_says_what_to_do() {
    let Some(rping) = rping() else { return };
    let client = Command::new(rping).args(["-c", "-a", "127.0.0.1", "-p", "1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&client.stderr).contains("start the server"));
}

#[test]
fn both_sides_can_do_without_crcs() {
    let Some((server, client)) = run(&["-V", "--no-crc", "-C", "2"], &["-V", "--no-crc", "-C", "2"]) else { return };
    assert!(client.status.success(), "{client:?}");
    assert_eq!(String::from_utf8_lossy(&client.stdout), "connected without CRCs\n");
    assert_eq!(server, "connected without CRCs\nserved 2 pings");
}

#[test]
fn crcs_are_used_if_either_side_asks() {
    let Some((server, client)) = run(&["-V", "-C", "2"], &["-V", "--no-crc", "-C", "2"]) else { return };
    assert!(client.status.success(), "{client:?}");
    assert_eq!(String::from_utf8_lossy(&client.stdout), "connected with CRCs: the peer asks for them\n");
    assert_eq!(server, "served 2 pings");
}

#[test]
fn no_crc_is_an_option_of_iwarp_alone() {
    let Some(rping) = rping() else { return };
    let client = Command::new(rping).args(["-c", "-a", "127.0.0.1", "--fabric", "verbs", "--no-crc"]).output().unwrap();
    assert_eq!(client.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&client.stderr).contains("leave --no-crc out"));
}
