//! The operator's view: events, connections, statistics by prefix.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use common::{PATIENCE, Server, ask, soon};

/// Returns a connection that watches these.
fn watch(server: &Server, what: &str) -> BufReader<TcpStream> {
    let mut stream = server.connect();
    ask(&mut stream, format!("watch {what}\r\n").as_bytes(), b"OK\r\n");
    BufReader::new(stream)
}

/// Returns the next event, without time and number.
fn event(watcher: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    watcher.read_line(&mut line).unwrap();
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let ts = words[0].strip_prefix("ts=").unwrap_or_else(|| panic!("{line}"));
    assert!(ts.parse::<f64>().unwrap() > 1e9 && words[1].starts_with("gid="), "{line}");
    words[2..].join(" ")
}

/// Returns the lines of this kind of `stats`, without what is before names.
fn stats(stream: &mut (impl Read + Write), what: &str) -> Vec<(String, String)> {
    write!(stream, "stats {what}\r\n").unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"END\r\n") {
        let mut some = [0; 4096];
        let read = stream.read(&mut some).unwrap();
        assert!(read > 0);
        text.extend_from_slice(&some[..read]);
    }
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn watchers_read_what_is_asked_and_stored() {
    let server = Server::on_a_free_port(&[]);
    let mut client = server.connect();
    ask(&mut client, b"mn\r\n", b"MN\r\n");
    let conns = stats(&mut client, "conns");
    let number = conns.iter().find(|(_, value)| value == "conn_parse_cmd").unwrap().0.strip_suffix(":state").unwrap();
    let mut watcher = watch(&server, "fetchers mutations deletions");
    ask(&mut client, b"set a#b 0 100 4\r\nabcd\r\nget a#b\r\n", b"STORED\r\nVALUE a#b 0 4\r\nabcd\r\nEND\r\n");
    ask(&mut client, b"cas c 0 0 1 7\r\nx\r\nadd a#b 0 0 1\r\nx\r\n", b"NOT_FOUND\r\nNOT_STORED\r\n");
    ask(&mut client, b"md a#b\r\ndelete a#b\r\n", b"HD\r\nNOT_FOUND\r\n");
    let mut large = format!("set big 0 0 {}\r\n", 3 << 20).into_bytes();
    large.resize(large.len() + (3 << 20), b'x');
    large.extend_from_slice(b"\r\n");
    ask(&mut client, &large, b"SERVER_ERROR object too large for cache\r\n");
    let mut events = Vec::new();
    for _ in 0..11 {
        let event = event(&mut watcher);
        let kept = event.split(' ').filter(|word| !word.starts_with("clsid="));
        events.push(kept.collect::<Vec<_>>().join(" ").replace(&format!("cfd={number}"), "cfd=N"));
    }
    let ttl = events[1].split(' ').find_map(|word| word.strip_prefix("ttl=")).unwrap();
    assert!(matches!(ttl.parse().unwrap(), 30..=100), "{events:?}");
    events[1] = events[1].replace(&format!("ttl={ttl}"), "ttl=100");
    assert_eq!(
        events,
        [
            "type=item_get key=a%23b status=not_found cfd=N size=0",
            "type=item_store key=a%23b status=stored cmd=set ttl=100 cfd=N size=4",
            "type=item_get key=a%23b status=found cfd=N size=4",
            "type=item_get key=c status=not_found cfd=N size=0",
            "type=item_store key=c status=not_found cmd=cas ttl=0 cfd=N size=1",
            "type=item_get key=a%23b status=found cfd=N size=4",
            "type=item_store key=a%23b status=not_stored cmd=add ttl=0 cfd=N size=1",
            "type=item_get key=a%23b status=found cfd=N size=4",
            "type=deleted key=a%23b cmd=md size=4",
            "type=item_get key=a%23b status=not_found cfd=N size=0",
            "type=item_store key=big status=too_large cmd=set ttl=0 cfd=N size=3145728",
        ]
    );
}

#[test]
fn watchers_read_what_is_evicted() {
    let server = Server::on_a_free_port(&["-m", "2"]);
    let mut watcher = watch(&server, "evictions");
    let mut client = server.connect();
    for at in 0..100 {
        let mut set = format!("set key{at} 0 0 60000\r\n").into_bytes();
        set.resize(set.len() + 60_000, b'x');
        set.extend_from_slice(b"\r\n");
        ask(&mut client, &set, b"STORED\r\n");
    }
    let first = event(&mut watcher);
    assert!(first.starts_with("type=eviction key=key") && first.contains(" fetch=no ttl=-1 la="), "{first}");
    assert!(first.ends_with(" size=60000"), "{first}");
}

#[test]
fn watchers_read_who_comes_and_why_connections_end() {
    let server = Server::on_a_free_port(&["-o", "idle_timeout=3"]);
    let mut watcher = watch(&server, "connevents");
    let came =
        |line: &str| line.starts_with("type=conn_new rip=127.0.0.1 rport=") && line.contains("transport=tcp cfd=");
    for (said, reason) in [("quit\r\n", "normal"), ("", "normal"), ("GET / HTTP/1.1\r\n", "error")] {
        let mut client = server.connect();
        client.write_all(said.as_bytes()).unwrap();
        let new = event(&mut watcher);
        assert!(came(&new), "{new}");
        let number = new.rsplit('=').next().unwrap();
        if said.is_empty() {
            drop(client);
        }
        let end = event(&mut watcher);
        assert!(end.ends_with(&format!("transport=tcp reason={reason} cfd={number}")), "{said}: {end}");
    }
    // The watcher is silent for as long, and stays.
    let _silent = server.connect();
    assert!(came(&event(&mut watcher)));
    let end = event(&mut watcher);
    assert!(end.contains("type=conn_close") && end.contains("reason=idle_timeout"), "{end}");
}

#[test]
fn slow_watcher_is_told_its_losses() {
    let server = Server::on_a_free_port(&["-o", "watcher_logbuf_size=8"]);
    let mut watcher = watch(&server, "");
    let mut client = server.connect();
    // More than what the sockets between hold.
    let key = "k".repeat(240);
    let many = format!("get {key}\r\n").repeat(1000);
    let answers = "END\r\n".repeat(1000);
    let mut rounds = 0;
    while server.stat("log_watcher_skipped") < 1000 {
        ask(&mut client, many.as_bytes(), answers.as_bytes());
        rounds += 1;
        assert!(rounds < 1000, "nothing is skipped");
    }
    let (mut read, mut skipped, mut line) = (0, 0, String::new());
    while read + skipped < rounds * 1000 {
        line.clear();
        watcher.read_line(&mut line).unwrap();
        match line.strip_prefix("skipped=") {
            Some(count) => skipped += count.trim_end().parse::<u64>().unwrap(),
            None => read += u64::from(line.contains("type=item_get key=kkk")),
        }
    }
    assert!(read + skipped == rounds * 1000 && skipped > 1000, "{read} {skipped} {rounds}");
    ask(&mut client, b"get again\r\n", b"END\r\n");
    assert!(event(&mut watcher).starts_with("type=item_get key=again"));
}

#[test]
fn who_may_watch_and_what_is_said_to_others() {
    let server = Server::on_a_free_port(&[]);
    ask(&mut server.connect(), b"watch nonsense\r\nmn\r\n", b"ERROR\r\nMN\r\n");
    let first = watch(&server, "fetchers");
    let second = watch(&server, "mutations");
    assert_eq!(server.stat("log_watchers"), 2);
    drop((first, second));
    soon("the end of the watchers", || server.stat("log_watchers") == 0);
    let refuses = Server::on_a_free_port(&["-W"]);
    ask(&mut refuses.connect(), b"watch\r\nmn\r\n", b"CLIENT_ERROR watch commands not allowed\r\nMN\r\n");
}

#[test]
fn watchers_do_not_keep_a_server_that_finishes() {
    let mut server = Server::on_a_free_port(&[]);
    let (_reads, mut asks) = (watch(&server, "fetchers"), server.connect());
    server.signal("-USR1");
    soon("that nobody is accepted", || TcpStream::connect(server.address("tcp")).is_err());
    // The one that is heard keeps its connection; of the other's end it is told when it is alone.
    soon("the end of the watcher", || {
        ask(&mut asks, b"get a\r\n", b"END\r\n");
        stats(&mut asks, "").contains(&("log_watchers".into(), "0".into()))
    });
    drop(asks);
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn connections_are_listed_with_what_they_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv");
    let path = path.to_str().unwrap();
    let _server = Server::start(&["-s", path]);
    let connect = || {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let (mut half, mut watcher, mut asks) = (connect(), connect(), connect());
    ask(&mut half, b"mn\r\nset a 0 0 6\r\n", b"MN\r\n");
    ask(&mut watcher, b"watch\r\n", b"OK\r\n");
    let states = |listed: &[(String, String)]| {
        let mut states: Vec<_> =
            listed.iter().filter(|(name, _)| name.ends_with(":state")).map(|(_, state)| state.clone()).collect();
        states.sort();
        states
    };
    let wanted = ["conn_listening", "conn_nread", "conn_parse_cmd", "conn_watch"];
    soon("all states", || states(&stats(&mut asks, "conns")) == wanted);
    let listed = stats(&mut asks, "conns");
    assert!(listed.iter().any(|(name, value)| name.ends_with(":addr") && *value == format!("unix:{path}")));
    let listeners = listed.iter().filter(|(name, value)| name.ends_with(":listen_addr") && value.ends_with(path));
    assert_eq!(listeners.count(), 3);
    soon("a second", || {
        let listed = stats(&mut asks, "conns");
        listed.iter().any(|(name, value)| name.ends_with(":secs_since_last_cmd") && value != "0")
    });
    drop((half, watcher));
    soon("that they go", || states(&stats(&mut asks, "conns")) == ["conn_listening", "conn_parse_cmd"]);
    let server = Server::on_a_free_port(&["-U", "-1"]);
    let listed = stats(&mut server.connect(), "conns");
    for kind in ["tcp", "udp"] {
        let address = format!("{kind}:{}", server.address(kind));
        assert!(listed.iter().any(|(name, value)| name.ends_with(":addr") && *value == address), "{address}");
    }
}

#[test]
fn keys_are_counted_by_prefix() {
    let server = Server::on_a_free_port(&[]);
    let mut client = server.connect();
    ask(&mut client, b"set a:1 0 0 1\r\nx\r\nstats detail dump\r\n", b"STORED\r\nEND\r\n");
    ask(&mut client, b"stats detail on\r\nset b:1 0 0 1\r\nx\r\n", b"OK\r\nSTORED\r\n");
    ask(&mut client, b"get b:1 b:2 none\r\nmg b:1\r\n", b"VALUE b:1 0 1\r\nx\r\nEND\r\nHD\r\n");
    ask(&mut client, b"delete b:1\r\nmd a:2\r\n", b"DELETED\r\nNF\r\n");
    let counted = "PREFIX a get 0 hit 0 set 0 del 1\r\nPREFIX b get 3 hit 2 set 1 del 1\r\n";
    ask(&mut client, b"stats detail dump\r\n", format!("{counted}END\r\n").as_bytes());
    ask(&mut client, b"stats detail off\r\nget b:1\r\n", b"OK\r\nEND\r\n");
    ask(&mut client, b"stats detail dump\r\n", format!("{counted}END\r\n").as_bytes());
    ask(&mut client, b"stats detail\r\n", b"CLIENT_ERROR usage: stats detail on|off|dump\r\n");
    // The binary protocol has it as one value.
    let mut binary = server.connect();
    binary.write_all(&request(0x10, b"detail dump", b"")).unwrap();
    let mut answer = vec![0; 24 + 8 + counted.len()];
    binary.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[24..], [b"detailed", counted.as_bytes()].concat());
    ask(&mut client, b"stats reset\r\nstats detail dump\r\n", b"RESET\r\nEND\r\n");
    let server = Server::on_a_free_port(&["-D", "/"]);
    let dump = b"PREFIX a get 0 hit 0 set 1 del 0\r\nEND\r\n";
    ask(&mut server.connect(), b"set a/b:c 0 0 1\r\nx\r\nstats detail dump\r\n", &[b"STORED\r\n", &dump[..]].concat());
}

/// The names of memcached 1.6.18, without those of its flash storage.
#[test]
fn stats_have_memcacheds_names() {
    let server = Server::on_a_free_port(&["-o", "idle_timeout=100"]);
    let mut client = server.connect();
    ask(&mut client, b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    let has = |stats: &[(String, String)], names: &str| {
        for name in names.split_whitespace() {
            assert_eq!(stats.iter().filter(|(known, _)| known == name).count(), 1, "{name}");
        }
    };
    let general = stats(&mut client, "");
    has(
        &general,
        "pid uptime time version libevent pointer_size rusage_user rusage_system max_connections curr_connections total_connections
         rejected_connections connection_structures response_obj_oom response_obj_count response_obj_bytes read_buf_count
         read_buf_bytes read_buf_bytes_free read_buf_oom reserved_fds cmd_get cmd_set cmd_flush cmd_touch cmd_meta get_hits
         get_misses get_expired get_flushed delete_misses delete_hits incr_misses incr_hits decr_misses decr_hits cas_misses
         cas_hits cas_badval touch_hits touch_misses store_too_large store_no_memory auth_cmds auth_errors idle_kicks bytes_read
         bytes_written limit_maxbytes accepting_conns listen_disabled_num time_in_listen_disabled_us threads conn_yields
         hash_power_level hash_bytes hash_is_expanding slab_reassign_rescues slab_reassign_chunk_rescues
         slab_reassign_evictions_nomem slab_reassign_inline_reclaim slab_reassign_busy_items slab_reassign_busy_deletes
         slab_reassign_running slabs_moved lru_crawler_running lru_crawler_starts lru_maintainer_juggles malloc_fails
         log_worker_dropped log_worker_written log_watcher_skipped log_watcher_sent log_watchers unexpected_napi_ids
         round_robin_fallback bytes curr_items total_items slab_global_page_pool expired_unfetched evicted_unfetched
         evicted_active evictions reclaimed crawler_reclaimed crawler_items_checked lrutail_reflocked moves_to_cold
         moves_to_warm moves_within_lru direct_reclaims lru_bumps_dropped",
    );
    // Some programs take every other value for a number.
    for (name, value) in &general {
        assert!(["version", "libevent"].contains(&name.as_str()) || value.parse::<f64>().is_ok(), "{name} {value}");
    }
    let items = stats(&mut client, "items");
    let class = items[0].0.split(':').nth(1).unwrap();
    let names = "number number_hot number_warm number_cold age_hot age_warm age mem_requested evicted evicted_nonzero evicted_time
         outofmemory tailrepairs reclaimed expired_unfetched evicted_unfetched evicted_active crawler_reclaimed
         crawler_items_checked lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru direct_reclaims hits_to_hot
         hits_to_warm hits_to_cold hits_to_temp";
    let names: String = names.split_whitespace().map(|name| format!("items:{class}:{name} ")).collect();
    has(&items, &names);
    assert!(items.contains(&(format!("items:{class}:hits_to_hot"), "1".into())), "{items:?}");
    has(
        &stats(&mut client, "settings"),
        "maxbytes maxconns tcpport udpport inter verbosity oldest evictions domain_socket umask shutdown_command growth_factor
         chunk_size num_threads num_threads_per_udp stat_key_prefix detail_enabled reqs_per_event cas_enabled tcp_backlog
         binding_protocol auth_enabled_sasl auth_enabled_ascii item_size_max maxconns_fast hashpower_init slab_reassign
         slab_automove slab_automove_ratio slab_automove_window slab_chunk_max lru_crawler lru_crawler_sleep lru_crawler_tocrawl
         tail_repair_time flush_enabled dump_enabled hash_algorithm lru_maintainer_thread lru_segmented hot_lru_pct
         warm_lru_pct hot_max_factor warm_max_factor temp_lru temporary_ttl idle_timeout watcher_logbuf_size
         worker_logbuf_size read_buf_mem_limit track_sizes inline_ascii_response slab_automove_freeratio ssl_enabled
         num_napi_ids memory_file rdmakv_version",
    );
}

#[test]
fn knobs_that_turn_nothing_are_refused() {
    let server = Server::on_a_free_port(&[]);
    let mut client = BufReader::new(server.connect());
    for command in
        ["lru mode flat", "lru mode segmented", "lru tune 10 25 0.1 2.0", "lru temp_ttl 60", "slabs automove ratio 0.5"]
    {
        write!(client.get_mut(), "{command}\r\n").unwrap();
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        assert!(line.starts_with("CLIENT_ERROR "), "{command}: {line}");
    }
}

#[test]
fn ports_are_written_to_the_named_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ports");
    let start = |flags: &[&str]| {
        let mut command = std::process::Command::new(common::SERVER);
        Server::run(command.args(flags).env("MEMCACHED_PORT_FILENAME", &file))
    };
    let server = start(&["-p", "-1", "-U", "-1", "-l", "127.0.0.1"]);
    let port = |kind| server.address(kind).rsplit(':').next().unwrap().to_owned();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text, format!("TCP INET: {}\nUDP INET: {}\n", port("tcp"), port("udp")));
    std::fs::remove_file(&file).unwrap();
    let server = start(&["-p", "-1", "-l", "127.0.0.1,127.0.0.2"]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains(&server.address("tcp").rsplit(':').next().unwrap().to_owned()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    let refused = std::process::Command::new(common::SERVER)
        .args(["-p", "-1", "-l", "127.0.0.1"])
        .env("MEMCACHED_PORT_FILENAME", "/does/not/exist/ports")
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("MEMCACHED_PORT_FILENAME=/does/not/exist/ports"));
}

#[test]
fn port_file_keeps_pipes_and_directories() {
    use std::os::unix::fs::FileTypeExt;
    let folder = tempfile::tempdir().unwrap();
    let [pipe, directory] = ["pipe", "directory"].map(|name| folder.path().join(name));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Opened for both, so that neither end waits for the other.
    let mut reader = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let mut command = std::process::Command::new(common::SERVER);
    let server = Server::run(command.args(["-p", "-1", "-l", "127.0.0.1"]).env("MEMCACHED_PORT_FILENAME", &pipe));
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    let port = server.address("tcp").rsplit(':').next().unwrap().to_owned();
    let expected = format!("TCP INET: {port}\n");
    let mut text = vec![0; expected.len()];
    reader.read_exact(&mut text).unwrap();
    assert_eq!(String::from_utf8(text).unwrap(), expected);
    std::fs::create_dir(&directory).unwrap();
    // A pipe that no process reads would hold the server up.
    drop((server, reader));
    for unusable in [&directory, &pipe] {
        let refused = std::process::Command::new(common::SERVER)
            .args(["-p", "-1", "-l", "127.0.0.1"])
            .env("MEMCACHED_PORT_FILENAME", unusable)
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(1), "{unusable:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
}

/// Returns a request of the binary protocol.
fn request(code: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut request = [0_u8; 24];
    (request[0], request[1], request[3]) = (0x80, code, key.len() as u8);
    request[8..12].copy_from_slice(&((key.len() + value.len()) as u32).to_be_bytes());
    [&request[..], key, value].concat()
}

/// Status and body of its answer.
fn answer(stream: &mut TcpStream) -> (u16, Vec<u8>) {
    let mut header = [0; 24];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; u32::from_be_bytes(header[8..12].try_into().unwrap()) as usize];
    stream.read_exact(&mut body).unwrap();
    (u16::from_be_bytes([header[6], header[7]]), body)
}

const MECHANISMS: u8 = 0x20;
const AUTH: u8 = 0x21;
const STEP: u8 = 0x22;
const AUTH_ERROR: u16 = 0x20;
const AUTH_CONTINUE: u16 = 0x21;

#[test]
fn users_are_asked_for_by_sasl() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    std::fs::write(&file, "you:other\nme:secret\n").unwrap();
    let server = Server::on_a_free_port(&["-S", "-Y", file.to_str().unwrap()]);
    let exchange = |stream: &mut TcpStream, code, key: &[u8], value: &[u8]| {
        stream.write_all(&request(code, key, value)).unwrap();
        answer(stream)
    };
    let mut stream = server.connect();
    assert_eq!(exchange(&mut stream, MECHANISMS, b"", b""), (0, b"PLAIN".to_vec()));
    for wrong in
        ["\0me\0wrong", "\0me\0secre", "\0me\0secret ", "\0nobody\0secret", "you\0me\0secret", "me secret", "x"]
    {
        let refused = exchange(&mut stream, AUTH, b"PLAIN", wrong.as_bytes());
        assert_eq!(refused, (AUTH_ERROR, b"Auth failure.".to_vec()), "{wrong}");
    }
    assert_eq!(exchange(&mut stream, AUTH, b"CRAM-MD5", b"").0, AUTH_ERROR);
    assert_eq!(exchange(&mut stream, AUTH, &[b'X'; 40], b"abc").0, 4);
    // Longer than any message is: it is not kept.
    assert_eq!(exchange(&mut stream, AUTH, b"PLAIN", &[b'x'; 5000]).0, 4);
    assert_eq!(exchange(&mut stream, STEP, b"PLAIN", b"\0me\0secret").0, AUTH_ERROR, "a step of nothing");
    assert_eq!(exchange(&mut stream, AUTH, b"PLAIN", b"").0, AUTH_CONTINUE);
    let done = (0, b"Authenticated".to_vec());
    assert_eq!(exchange(&mut stream, STEP, b"PLAIN", b"\0me\0secret"), done);
    let mut at_once = server.connect();
    assert_eq!(exchange(&mut at_once, AUTH, b"PLAIN", b"\0me\0secret"), done);
    assert_eq!(exchange(&mut at_once, 0x00, b"key", b"").0, 1, "a GET finds nothing, and is answered");
    // A client without a certificate is told so, and disconnected.
    let mut stranger = server.connect();
    assert_eq!(exchange(&mut stranger, 0x00, b"key", b"").0, AUTH_ERROR);
    assert_eq!(stranger.read(&mut [0]).unwrap(), 0);
    // As text the name and the password come with a set.
    ask(&mut server.connect(), b"get a\r\n", b"CLIENT_ERROR unauthenticated\r\n");
    ask(&mut server.connect(), b"set x 0 0 9\r\nme secret\r\nget a\r\n", b"STORED\r\nEND\r\n");
    let mut text = server.connect();
    ask(&mut text, b"set x 0 0 9\r\nme secret\r\n", b"STORED\r\n");
    let counted = stats(&mut text, "");
    let count = |name: &str| counted.iter().find(|(known, _)| known == name).unwrap().1.clone();
    assert_eq!((count("auth_cmds"), count("auth_errors")), ("13".into(), "9".into()));
    // Without -S there is no SASL.
    let plain = Server::on_a_free_port(&[]);
    assert_eq!(exchange(&mut plain.connect(), AUTH, b"PLAIN", b"\0me\0secret").0, 0x81);
}
