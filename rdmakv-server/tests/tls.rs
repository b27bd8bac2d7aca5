//! TLS from a client's side: encryption, authentication, slow clients, and certificates that change while the server runs.
#![cfg(feature = "tls")]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{PATIENCE, SERVER, Server, activated, ask, soon, stat, to};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use socket2::{Domain, Socket, Type};

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// The authority that client and server trust.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "the authority");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Certificate and key for a name, in PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    /// Puts a server's certificate and key where it looks for them.
    fn equip(&self, folder: &Path) {
        let (certificate, key) = self.sign("localhost");
        std::fs::write(folder.join("chain.pem"), certificate).unwrap();
        std::fs::write(folder.join("key.pem"), key).unwrap();
        std::fs::write(folder.join("ca.pem"), self.0.pem()).unwrap();
    }

    fn trust(&self) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.0.pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
    }

    fn connect(&self, server: &Server) -> Stream {
        self.connect_as(server, self.trust().with_no_client_auth())
    }

    fn connect_as(&self, server: &Server, config: ClientConfig) -> Stream {
        let session = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
        StreamOwned::new(session, to(&server.address("tls")))
    }
}

fn options(folder: &Path, more: &str) -> String {
    let folder = folder.display();
    format!("ssl_chain_cert={folder}/chain.pem,ssl_key={folder}/key.pem{more}")
}

fn serve(folder: &Path, more: &str, flags: &[&str]) -> Server {
    Server::on_a_free_port(&[&["-Z", "-o", &options(folder, more)], flags].concat())
}

#[test]
fn tls_serves_messages_of_any_size() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.equip(folder.path());
    let server = serve(folder.path(), "", &["-I", "4m", "-t", "2"]);
    assert!(server.lines.iter().all(|line| !line.contains("on tcp")), "nothing goes in the clear: {:?}", server.lines);
    let mut stream = authority.connect(&server);
    ask(&mut stream, b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    let value: Vec<u8> = (0..2_500_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    let set = [format!("set big 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    ask(&mut stream, &set, b"STORED\r\n");
    let got = [format!("VALUE big 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\nEND\r\n"].concat();
    ask(&mut stream, &b"get big\r\n".repeat(5), &got.repeat(5));
    // Thousands in one write, and the requests of a client that has said that nothing more comes.
    let (mut requests, mut answers) = (Vec::new(), Vec::new());
    for n in 0..3000 {
        requests.extend_from_slice(format!("set k{n} 0 0 4\r\n{n:04}\r\nget k{n}\r\n").as_bytes());
        answers.extend_from_slice(format!("STORED\r\nVALUE k{n} 0 4\r\n{n:04}\r\nEND\r\n").as_bytes());
    }
    ask(&mut stream, &requests, &answers);
    // Both in one piece: of the second the socket will not tell again.
    stream.conn.writer().write_all(b"get a\r\n").unwrap();
    stream.conn.send_close_notify();
    stream.conn.write_tls(&mut stream.sock).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the server's end is said, not only done");
    assert_eq!(rest, b"VALUE a 0 1\r\nx\r\nEND\r\n");
    let mut stream = authority.connect(&server);
    assert_eq!(stat(&mut stream, "ssl_handshakes"), 2);
    let mut stream = authority.connect(&server);
    stream.write_all(b"stats settings\r\nquit\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("STAT ssl_enabled yes\r\n") && text.contains("chain.pem\r\n"), "{text}");
}

#[test]
fn openssls_own_client_understands_the_server() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.equip(folder.path());
    let server = serve(folder.path(), "", &[]);
    for version in ["-tls1_2", "-tls1_3"] {
        let client = Command::new("openssl")
            .args(["s_client", "-quiet", "-no_ign_eof", "-verify_return_error", "-servername", "localhost", version])
            .args(["-CAfile", &folder.path().join("ca.pem").display().to_string()])
            .args(["-connect", &server.address("tls")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut client = match client {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("skipped: openssl is not installed");
                return;
            }
            client => client.unwrap(),
        };
        client.stdin.as_mut().unwrap().write_all(b"set o 0 0 2\r\nhi\r\nget o\r\nquit\r\n").unwrap();
        let mut said = String::new();
        client.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
        client.wait().unwrap();
        assert_eq!(said, "STORED\r\nVALUE o 0 2\r\nhi\r\nEND\r\n", "{version}");
    }
}

/// With little room on the way, encrypted answers wait for slow readers, which get them all.
#[test]
fn who_reads_late_gets_everything() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.equip(folder.path());
    // Accepted sockets have the buffer sizes of the listening one.
    let narrow = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_send_buffer_size(4096).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(64).unwrap();
        socket.into()
    };
    let options = options(folder.path(), "");
    let server = Server::run(&mut activated([narrow(), narrow()], "kv:kv", &[], &["-Z", "-o", &options]));
    let value = "v".repeat(4000);
    ask(&mut authority.connect(&server), format!("set k 0 0 4000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    let answer = format!("VALUE k 0 4000\r\n{value}\r\nEND\r\n").into_bytes();
    let config = Arc::new(authority.trust().with_no_client_auth());
    let address: SocketAddr = server.address("tls").parse().unwrap();
    let asks = |times: usize| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.connect(&address.into()).unwrap();
        let session = ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap();
        let mut stream = StreamOwned::new(session, TcpStream::from(socket));
        stream.write_all(&b"get k\r\n".repeat(times)).unwrap();
        (times, stream)
    };
    // Some of these fit, some do not, and some end with what was encrypted and does not fit.
    let late: Vec<_> = (1..20).map(asks).collect();
    std::thread::sleep(Duration::from_millis(200));
    for (times, mut stream) in late {
        ask(&mut stream, b"", &answer.repeat(times));
    }
}

#[test]
fn a_place_may_be_left_unencrypted() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.equip(folder.path());
    let server =
        Server::start(&["-p", "-1", "-l", "127.0.0.1,notls:127.0.0.2:0", "-Z", "-o", &options(folder.path(), "")]);
    ask(&mut server.connect(), b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    ask(&mut authority.connect(&server), b"get a\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn changed_certificates_reach_new_clients() {
    let (old, new, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    old.equip(folder.path());
    let mut server = serve(folder.path(), "", &[]);
    let mut early = old.connect(&server);
    ask(&mut early, b"mn\r\n", b"MN\r\n");
    // Errors are reported, and harm no client.
    std::fs::write(folder.path().join("key.pem"), "nonsense").unwrap();
    early.write_all(b"refresh_certs\r\n").unwrap();
    let mut line = [0; 300];
    let read = early.read(&mut line).unwrap();
    let line = String::from_utf8_lossy(&line[..read]).into_owned();
    assert!(line.starts_with("Error ") && line.contains("key.pem") && line.ends_with("\r\n"), "{line}");
    ask(&mut old.connect(&server), b"mn\r\n", b"MN\r\n");

    new.equip(folder.path());
    ask(&mut early, b"refresh_certs\r\nmn\r\n", b"OK\r\nMN\r\n");
    ask(&mut new.connect(&server), b"mn\r\n", b"MN\r\n");
    assert!(old.connect(&server).write_all(b"mn\r\n").is_err(), "the old authority signed nothing that is shown now");
    ask(&mut early, b"mn\r\n", b"MN\r\n");

    // A signal does the same.
    old.equip(folder.path());
    server.signal("-HUP");
    soon("the old certificate", || old.connect(&server).write_all(b"mn\r\n").is_ok());
    server.signal("-TERM");
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn missing_client_certificate_is_refused() {
    let (authority, stranger, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    authority.equip(folder.path());
    let verify = format!(",ssl_verify_mode=2,ssl_ca_cert={}/ca.pem", folder.path().display());
    let server = serve(folder.path(), &verify, &[]);
    let shown = |by: &Authority| {
        let (certificate, key) = by.sign("client");
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        authority.connect_as(&server, authority.trust().with_client_auth_cert(chain, key).unwrap())
    };
    ask(&mut shown(&authority), b"mn\r\n", b"MN\r\n");
    for mut refused in [authority.connect(&server), shown(&stranger)] {
        let served = refused.write_all(b"mn\r\n").and_then(|()| refused.read_exact(&mut [0; 4]));
        assert!(served.is_err());
    }
    let mut stream = shown(&authority);
    assert!(stat(&mut stream, "ssl_handshake_errors") >= 2);
}

#[test]
fn excluded_tls_versions_and_suites_are_refused() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.equip(folder.path());
    let only = ",ssl_min_version=3,ssl_ciphers=TLS_CHACHA20_POLY1305_SHA256,ssl_session_cache";
    let server = serve(folder.path(), only, &[]);
    let mut stream = authority.connect(&server);
    ask(&mut stream, b"mn\r\n", b"MN\r\n");
    let suite = stream.conn.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(suite, rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
}

#[test]
fn those_who_never_end_their_handshake_do_not_stay() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.equip(folder.path());
    let server = serve(folder.path(), ",idle_timeout=2", &["-c", "4"]);
    let mut silent = to(&server.address("tls"));
    // Noise is answered with an alert, and the end.
    let mut noise = to(&server.address("tls"));
    noise.write_all(b"get a\r\nget a\r\n").unwrap();
    let mut said = Vec::new();
    let _ = noise.read_to_end(&mut said);
    assert!(said.starts_with(b"\x15\x03"), "{said:?}");
    // The beginning of a record; the rest comes in drops.
    let mut slow = to(&server.address("tls"));
    slow.write_all(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc").unwrap();
    let (mut drops, begun) = (0, Instant::now());
    while slow.write_all(b"x").is_ok() {
        drops += 1;
        assert!(begun.elapsed() < PATIENCE, "it is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(drops > 1, "it had its time");
    silent.read_to_end(&mut said).expect("its end, after an alert");
    let mut stream = authority.connect(&server);
    assert_eq!(stat(&mut stream, "ssl_handshake_errors"), 3);
}

#[test]
fn stopping_server_answers_over_tls() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.equip(folder.path());
    let mut server = serve(folder.path(), "", &[]);
    let mut stream = authority.connect(&server);
    ask(&mut stream, b"set a 0 0 10\r\n01234", b"");
    stream.flush().unwrap();
    ask(&mut authority.connect(&server), b"mn\r\n", b"MN\r\n");
    server.signal("-TERM");
    std::thread::sleep(Duration::from_millis(300));
    ask(&mut stream, b"56789\r\n", b"STORED\r\n");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn mismatched_certificate_prevents_start() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.equip(folder.path());
    std::fs::write(folder.path().join("key.pem"), authority.sign("localhost").1).unwrap();
    let run = Command::new(SERVER).args(["-p", "-1", "-Z", "-o", &options(folder.path(), "")]).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(said.contains("chain.pem and its key"), "{said}");
}

#[test]
fn udp_stays_unencrypted_beside_tls() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.equip(folder.path());
    let server = serve(folder.path(), "", &["-U", "-1"]);
    ask(&mut authority.connect(&server), b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(b"\0\x07\0\0\0\x01\0\0get a\r\n", server.address("udp")).unwrap();
    let mut answer = [0; 100];
    let read = socket.recv(&mut answer).unwrap();
    assert_eq!(&answer[..read], b"\0\x07\0\0\0\x01\0\0VALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn address_can_require_client_certificates() {
    let (authority, stranger, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    authority.equip(folder.path());
    let options = options(folder.path(), &format!(",ssl_ca_cert={}/ca.pem", folder.path().display()));
    let server = Server::start(&["-p", "-1", "-l", "mtls:127.0.0.1,127.0.0.2", "-Z", "-o", &options]);
    let place = |at: &str| {
        let start = format!("listening on tls {at}");
        let line = server.lines.iter().find(|line| line.starts_with(&start)).unwrap();
        line.strip_prefix("listening on tls ").unwrap().to_owned()
    };
    let connect = |at: &str, by: Option<&Authority>| {
        let trust = authority.trust();
        let config = match by {
            None => trust.with_no_client_auth(),
            Some(by) => {
                let (certificate, key) = by.sign("client");
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                trust.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
            }
        };
        let session = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
        StreamOwned::new(session, to(&place(at)))
    };
    ask(&mut connect("127.0.0.1", Some(&authority)), b"mn\r\n", b"MN\r\n");
    for by in [None, Some(&stranger)] {
        let mut refused = connect("127.0.0.1", by);
        assert!(refused.write_all(b"mn\r\n").and_then(|()| refused.read_exact(&mut [0; 4])).is_err());
    }
    // The place beside it asks for none; and what is read again asks where it did.
    ask(&mut connect("127.0.0.2", None), b"mn\r\nrefresh_certs\r\n", b"MN\r\nOK\r\n");
    let mut refused = connect("127.0.0.1", None);
    assert!(refused.write_all(b"mn\r\n").and_then(|()| refused.read_exact(&mut [0; 4])).is_err());
    ask(&mut connect("127.0.0.1", Some(&authority)), b"mn\r\n", b"MN\r\n");
}
