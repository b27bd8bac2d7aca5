//! The server as a service: signals, sockets that others opened, the background, users, and what systemd is told.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{PATIENCE, SERVER, Server, activated, ask, soon, to};

fn run(arguments: &[&str]) -> Output {
    Command::new(SERVER).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn connect_unix(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn drain_refuses_new_and_finishes_old_clients() {
    let mut server = Server::on_a_free_port(&[]);
    let (mut busy, mut idle) = (server.connect(), server.connect());
    ask(&mut idle, b"mn\r\n", b"MN\r\n");
    ask(&mut busy, b"set a 0 0 4\r\nab", b"");
    server.signal("-USR1");
    // A connection that came just before may still be there, but is not served; soon none comes.
    soon("that no client is accepted", || TcpStream::connect(server.address("tcp")).is_err());
    ask(&mut busy, b"cd\r\nget a\r\n", b"STORED\r\nVALUE a 0 4\r\nabcd\r\nEND\r\n");
    // Longer than a client may be silent.
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(50));
        ask(&mut busy, b"mn\r\n", b"MN\r\n");
    }
    assert_eq!(idle.read(&mut [0]).unwrap(), 0, "who is silent is let go");
    assert_eq!(busy.read(&mut [0]).unwrap(), 0, "and in the end who was busy, too");
    assert!(server.process.wait().unwrap().success());
}

/// Returns the bytes of a process's shared memory that the system has given it.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).expect("the line");
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn preallocated_memory_is_there_before_items() {
    let later = Server::on_a_free_port(&["-m", "64"]);
    if later.lines.iter().any(|line| line.contains("HugePages")) {
        eprintln!("skipped: huge pages do not count as shared memory");
        return;
    }
    assert!(resident(&later) < 32 << 20);
    let shared = format!("shm:@rdmakv-preallocates-{}", std::process::id());
    for fabric in ["none", &shared] {
        let server = Server::on_a_free_port(&["-m", "64", "--preallocate", "--fabric", fabric]);
        soon("that all memory is there", || resident(&server) >= 64 << 20);
        ask(&mut server.connect(), b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    }
}

#[test]
fn shutdown_command_needs_its_flag() {
    let server = Server::on_a_free_port(&[]);
    ask(&mut server.connect(), b"shutdown\r\nmn\r\n", b"ERROR: shutdown not enabled\r\nMN\r\n");
    for command in ["shutdown", "shutdown graceful"] {
        let mut server = Server::on_a_free_port(&["-A"]);
        ask(&mut server.connect(), b"shutdown nonsense\r\n", b"CLIENT_ERROR invalid shutdown mode\r\n");
        server.connect().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        assert!(server.process.wait().unwrap().success(), "{command}");
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut server = Server::on_a_free_port(&[]);
    // Half of a command would be waited for, for five seconds.
    let mut busy = server.connect();
    ask(&mut busy, b"mn\r\nset a 0 0 4\r\nab", b"MN\r\n");
    server.signal("-INT");
    soon("that no client is accepted", || TcpStream::connect(server.address("tcp")).is_err());
    server.signal("-INT");
    assert_eq!(server.process.wait().unwrap().code(), Some(130));
}

/// The system sends it for a write beyond `ulimit -f`.
#[test]
fn a_limit_on_file_sizes_does_not_end_it() {
    let mut server = Server::on_a_free_port(&[]);
    server.signal("-XFSZ");
    server.signal("-TERM");
    assert_eq!(server.process.wait().unwrap().code(), Some(0));
}

#[test]
fn passwords_are_required_and_reload_on_signal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    std::fs::write(&file, "me:secret\nyou:pass word\n").unwrap();
    let server = Server::on_a_free_port(&["-Y", file.to_str().unwrap()]);
    let refused = b"CLIENT_ERROR unauthenticated\r\n";
    let login = |name_and_password: &str| {
        let mut stream = server.connect();
        write!(stream, "set x 0 0 {}\r\n{name_and_password}\r\n", name_and_password.len()).unwrap();
        let mut answer = [0; 100];
        let read = stream.read(&mut answer).unwrap();
        (text(&answer[..read]) == "STORED\r\n", stream)
    };
    ask(&mut server.connect(), b"get a\r\n", refused);
    let (let_in, mut mine) = login("me secret");
    assert!(let_in && login("you pass word").0);
    assert!(!login("me wrong").0 && !login("me").0);
    ask(&mut mine, b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    std::fs::write(&file, "me:other\n").unwrap();
    server.signal("-HUP");
    soon("the new password", || login("me other").0);
    assert!(!login("me secret").0 && !login("you pass word").0);
    ask(&mut mine, b"get a\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n");
    // A file that says nothing changes nothing.
    std::fs::write(&file, "").unwrap();
    server.signal("-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert!(login("me other").0);
}

#[test]
fn verbose_log_shows_connections_and_requests() {
    let mut command = Command::new(SERVER);
    let mut server = Server::run(command.args(["-vv", "-p", "-1", "-l", "127.0.0.1"]).stderr(Stdio::piped()));
    ask(&mut server.connect(), b"get a\r\nget b\r\n", b"END\r\nEND\r\n");
    server.signal("-TERM");
    let mut said = String::new();
    server.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    for words in ["connection 0 comes", "< get a\n", "connection 0 goes"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn what_it_shows_of_what_was_said_is_no_password() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "me:secret\n").unwrap();
    let mut command = Command::new(SERVER);
    command.args(["-vv", "-p", "-1", "-l", "127.0.0.1", "-Y", users.to_str().unwrap()]).stderr(Stdio::piped());
    let mut server = Server::run(&mut command);
    let mut stream = server.connect();
    ask(&mut stream, b"set auth 0 0 9\r\n", b"");
    // The line is read before the data comes.
    std::thread::sleep(Duration::from_millis(200));
    ask(&mut stream, b"me secret\r\n", b"STORED\r\n");
    server.signal("-TERM");
    let mut said = String::new();
    server.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("< set auth 0 0 9\n") && !said.contains("secret"), "{said}");
}

#[test]
fn daemon_serves_when_the_command_returns() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, pidfile) = (folder.path().join("kv"), folder.path().join("pid"));
    let flags = ["-d", "-s", socket.to_str().unwrap(), "-P", pidfile.to_str().unwrap()];
    let started = run(&flags);
    assert!(started.status.success(), "{started:?}");
    assert!(text(&started.stdout).contains(&format!("listening on unix {}", socket.display())), "{started:?}");
    ask(&mut connect_unix(&socket), b"mn\r\n", b"MN\r\n");
    // Another one fails because the place is taken, and so does the command that started it.
    let pid = std::fs::read_to_string(&pidfile).unwrap();
    let second = run(&flags);
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert!(text(&second.stderr).contains("another server listens there"), "{second:?}");
    assert_eq!(std::fs::read_to_string(&pidfile).unwrap(), pid, "the file is still the first one's");
    assert!(Command::new("sh").args(["-c", &format!("kill {}", pid.trim())]).status().unwrap().success());
    soon("the end", || !pidfile.exists());
    assert!(!socket.exists());
}

#[test]
fn pidfile_is_a_regular_file() {
    use std::os::unix::fs::FileTypeExt;
    let folder = tempfile::tempdir().unwrap();
    let (pipe, old) = (folder.path().join("pipe"), folder.path().join("old"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let refused = |file: &Path| {
        let ended = run(&["-p", "-1", "-l", "127.0.0.1", "-P", file.to_str().unwrap()]);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        text(&ended.stderr)
    };
    let remedy = "name another file";
    assert!(refused(&pipe).contains(remedy), "without a reader");
    let _reader = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    assert!(refused(&pipe).contains(remedy), "with one");
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert!(refused(folder.path()).contains(remedy));
    assert!(refused(&pipe.join("pid")).contains("is its directory there"));
    // An older file is replaced, whole.
    std::fs::write(&old, "12345678901234567890\n").unwrap();
    let server = Server::on_a_free_port(&["-P", old.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&old).unwrap(), format!("{}\n", server.process.id()));
}

#[test]
fn root_becomes_the_user_that_it_was_told_to_be() {
    if text(&Command::new("id").arg("-u").output().unwrap().stdout).trim() != "0" {
        eprintln!("skipped: only root can become another user");
        return;
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("skipped: setpriv is not installed (Debian: util-linux)");
        return;
    }
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let socket = folder.path().join("kv");
    // Root may be in groups that the user is not in.
    let mut command = Command::new("setpriv");
    command.args(["--groups", "0", SERVER, "-s", socket.to_str().unwrap(), "-u", "nobody"]);
    let server = Server::run(&mut command);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let ids = |of: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(of)).unwrap();
        line.split_whitespace().map(|id| id.parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    let owner = std::fs::metadata(&socket).unwrap().uid();
    assert_ne!(owner, 0);
    assert_eq!(ids("Uid:"), [owner; 4]);
    assert!(!ids("Gid:").contains(&0) && !ids("Groups:").contains(&0), "{status}");
}

#[test]
fn activated_sockets_are_used_and_systemd_notified() {
    let folder = tempfile::tempdir().unwrap();
    let (path, notify) = (folder.path().join("kv"), folder.path().join("notify"));
    let (tcp, unix) = (TcpListener::bind("127.0.0.1:0").unwrap(), UnixListener::bind(&path).unwrap());
    let address = tcp.local_addr().unwrap();
    let listener = UnixDatagram::bind(&notify).unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut message = [0; 500];
        let read = listener.recv(&mut message).expect("systemd is told");
        text(&message[..read])
    };
    // A client that comes before the server is up is served once it is.
    let mut early = TcpStream::connect(address).unwrap();
    let environment = [("NOTIFY_SOCKET", notify.to_str().unwrap()), ("WATCHDOG_USEC", "3000000")];
    // The flags say another place, which is not the server's to choose any more.
    let flags = ["-p", "1", "-l", "192.0.2.1"];
    let mut server = Server::run(&mut activated([tcp.into(), unix.into()], "kv:kv", &environment, &flags));
    assert_eq!(server.address("tcp"), address.to_string());
    ask(&mut early, b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    ask(&mut connect_unix(&path), b"get a\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n");
    let ready = heard();
    assert!(ready.contains("READY=1") && ready.contains(&format!("STATUS=listening on tcp {address}")), "{ready}");
    assert_eq!(heard().trim(), "WATCHDOG=1");
    server.signal("-TERM");
    soon("the news of the end", || heard().trim() == "STOPPING=1");
    assert!(server.process.wait().unwrap().success());
    assert!(path.exists(), "the socket is systemd's");
}

#[test]
fn activated_http_socket_serves_http() {
    let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::run(&mut activated([bind().into(), bind().into()], "kv:http", &[], &["-p", "0"]));
    assert_eq!(server.http("/health"), (200, "ok\n".into()));
    ask(&mut server.connect(), b"mn\r\n", b"MN\r\n");
    let listener = bind();
    let connection = to(&listener.local_addr().unwrap().to_string());
    let refused = activated([connection.into(), bind().into()], "kv:kv", &[], &[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
}

/// Returns what `systemd-analyze` says of the units, with or without the drop-in for items; none where it is not installed.
fn analyzed(arguments: &[&str], with_items: bool) -> Option<Output> {
    let folder = tempfile::tempdir().unwrap();
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
    let service = std::fs::read_to_string(units.join("rdmakv.service")).unwrap();
    let [service_file, socket_file] = ["rdmakv.service", "rdmakv.socket"].map(|name| folder.path().join(name));
    std::fs::write(&service_file, service.replace("/usr/bin/rdmakv-server", SERVER)).unwrap();
    std::fs::copy(units.join("rdmakv.socket"), &socket_file).unwrap();
    if with_items {
        let dropped_in = folder.path().join("rdmakv.service.d");
        std::fs::create_dir(&dropped_in).unwrap();
        std::fs::copy(units.join("rdmakv-items.conf"), dropped_in.join("items.conf")).unwrap();
    }
    match Command::new("systemd-analyze").args(arguments).args([&service_file, &socket_file]).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: systemd-analyze is not installed");
            None
        }
        output => Some(output.unwrap()),
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    for with_items in [false, true] {
        let Some(verified) = analyzed(&["verify"], with_items) else { return };
        let said = text(&verified.stderr) + &text(&verified.stdout);
        assert!(verified.status.success() && !said.contains("rdmakv"), "{with_items}: {said}");
    }
}

#[test]
fn drop_in_for_items_leaves_the_servers_record() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
    let read = |name| std::fs::read_to_string(units.join(name)).unwrap();
    let last = |key: &str| {
        let of = |file: &str| {
            file.lines().rev().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
        };
        of(&read("rdmakv-items.conf")).or_else(|| of(&read("rdmakv.service")))
    };
    // systemd.exec: a dynamic user implies RemoveIPC=yes, "and cannot be turned off".
    for (key, value) in [("DynamicUser", "no"), ("RemoveIPC", "no"), ("ProcSubset", "all"), ("ProtectSystem", "strict")]
    {
        assert_eq!(last(key).as_deref(), Some(value), "{key}");
    }
    let user = last("User").unwrap();
    assert!(read("rdmakv.sysusers").contains(&format!("\nu {user} ")), "{user}");
    // The file that its first lines name lies in the directory that systemd makes.
    let file = format!("-e /var/lib/{}/items", last("StateDirectory").unwrap());
    assert!(read("rdmakv-items.conf").contains(&file), "{file}");
}

#[test]
fn flags_of_the_unit_can_be_replaced() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
    let read = |name| std::fs::read_to_string(units.join(name)).unwrap();
    let (service, example) = (read("rdmakv.service"), read("rdmakv.default"));
    let start = service.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/rdmakv-server ")).unwrap();
    let builtin = service.lines().find_map(|line| line.strip_prefix("Environment=\"OPTIONS=")).unwrap();
    let sample = example.lines().find_map(|line| line.strip_prefix("OPTIONS=")).unwrap();
    for options in [builtin.trim_end_matches('"'), sample, "-p 11300", "-l 127.0.0.1 -p 11300 -m 128"] {
        let line = start.replace("$OPTIONS", options);
        let output = Command::new(SERVER).args(line.split(' ')).arg("-V").output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }
}
