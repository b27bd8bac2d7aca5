//! The address chooses the provider: the same program over each of them.
#![allow(unsafe_code, reason = "buffers are lent to engines by address")]
#![allow(clippy::unwrap_used, reason = "tests")]

use frrwp::engine::{Engine, Event};
use frrwp::fabric::{
    Connector, Domain, Endpoint, FabricAddress, FabricDomain, FabricEndpoint, FabricError, FabricOptions, Listener,
    Local, connect, listen,
};
use frrwp::handshake::{Limits, RECEIVES, Side};
use frrwp::wire::Segment;
use mrrc::invalidation::Explicit;
use mrrc::registrar::Registrar;
use mrrc::{Access, Cache, PageRange};
use std::time::Duration;

const LENGTH: usize = 300_000;
const SOON: Duration = Duration::from_secs(60);

fn addresses() -> [String; 2] {
    [format!("shm:@frrwp-addresses-{}", std::process::id()), "iwarp:127.0.0.1:0".to_owned()]
}

fn cache(domain: &FabricDomain) -> Cache<FabricDomain> {
    Cache::builder(domain.clone()).monitor(Explicit).ignore_environment().build().unwrap()
}

/// The writer's end of one transfer.
fn write(domain: &FabricDomain, endpoint: FabricEndpoint) {
    let memory = domain.memory(LENGTH).unwrap();
    assert_eq!(memory.start() as usize % 4096, 0);
    for at in 0..LENGTH {
        // SAFETY: there are so many bytes, and they have no other user yet.
        unsafe { memory.start().add(at).write(at as u8) };
    }
    let cache = cache(domain);
    let mut engine = Engine::new(&cache, endpoint, Side::Connecting, Limits::default());
    // SAFETY: the memory lives longer than the engine, and is used by it alone.
    let tag = unsafe { engine.open_write(memory.start(), LENGTH, b"header") }.unwrap();
    assert_eq!(engine.finish(tag).unwrap(), LENGTH as u64);
}

/// Returns the target's.
fn accept(domain: &FabricDomain, endpoint: FabricEndpoint) -> Vec<u8> {
    let memory = domain.memory(LENGTH).unwrap();
    let cache = cache(domain);
    let mut engine = Engine::new(&cache, endpoint, Side::Accepting, Limits::default());
    loop {
        match engine.run().expect("it ends with the transfer") {
            Event::Requested { tag, length, .. } => {
                assert_eq!(length, LENGTH as u64);
                // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                unsafe { engine.accept_write(tag, memory.start(), LENGTH) }.unwrap();
            }
            Event::Completed { result, .. } => {
                assert_eq!(result.unwrap(), LENGTH as u64);
                // SAFETY: the transfer has ended, so the engine no longer uses the memory.
                return (0..LENGTH).map(|at| unsafe { memory.start().add(at).read() }).collect();
            }
            Event::Closed { why } => panic!("{why:?}"),
            _ => {}
        }
    }
}

#[test]
fn one_program_runs_over_each_provider() {
    for address in addresses() {
        let mut listener = listen(&address).unwrap();
        let there = listener.address();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (domain, endpoint) = connect(&there, RECEIVES, SOON).unwrap();
                assert!(there.starts_with(domain.name()), "{there}");
                write(&domain, endpoint);
            });
            let endpoint = listener.accept(RECEIVES, Some(Duration::from_secs(10))).unwrap();
            let bytes = accept(&listener.domain().clone(), endpoint);
            assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == at as u8));
        });
        assert!(matches!(listener.next(4, Some(Duration::from_millis(1))), Ok(None)));
        let error = listener.accept(4, Some(Duration::from_millis(1))).unwrap_err();
        assert!(
            error.to_string().ends_with("no connection came within 1 ms: start a client, or wait longer"),
            "{error}"
        );
    }
}

#[test]
fn errors_name_the_addresses_there_are() {
    let error = |address: &str| connect(address, 4, SOON).unwrap_err().to_string();
    let known = "no fabric has this name: write shm:PATH, shm:@NAME or iwarp:HOST:PORT, or verbs:HOST:PORT";
    assert_eq!(error("tcp:10.0.0.1:7"), format!("open \"tcp:10.0.0.1:7\": {known}"));
    assert_eq!(error("nothing"), format!("open \"nothing\": {known}"));
    if !cfg!(any(feature = "verbs", feature = "verbs-linked")) {
        let wanted = "open \"verbs:10.0.0.1:7\": this build has no verbs: build with the feature verbs";
        assert_eq!(error("verbs:10.0.0.1:7"), wanted);
        assert!(matches!(listen("verbs:10.0.0.1:7"), Err(FabricError::NotBuilt { fabric: "verbs", .. })));
    }
    // The provider reports the fault of its address.
    assert!(error("iwarp:there").contains("write iwarp:HOST:PORT"));
    assert!(error("shm:").contains("shm:PATH"));
    let address: FabricAddress = "iwarp:127.0.0.1:1".parse().unwrap();
    let domain = FabricDomain::new(&address, FabricOptions::default()).unwrap();
    let error = domain.listen_at("shm:@other").unwrap_err().to_string();
    assert_eq!(error, "open \"shm:@other\": the domain is one of iwarp: make a domain for this address");
}

#[test]
fn registrations_of_another_provider_are_refused() {
    let options = FabricOptions::default();
    let [shm, iwarp] = addresses().map(|address| FabricDomain::new(&address.parse().unwrap(), options).unwrap());
    let memory = shm.memory(4096).unwrap();
    let range = PageRange::of_bytes(memory.start() as u64, 4096).unwrap();
    let foreign = shm.register(range, Access::LOCAL).unwrap();
    assert_eq!(iwarp.remote(&foreign, memory.start(), 4096).length, 0);
    let mut listener = iwarp.listen_at("iwarp:127.0.0.1:0").unwrap();
    let there = listener.address();
    let connecting = std::thread::spawn(move || connect(&there, 4, SOON).unwrap());
    let mut endpoint = listener.accept(4, Some(Duration::from_secs(10))).unwrap();
    let local = Local { address: memory.start(), length: 8, registration: &foreign };
    let to = Segment { address: 0, length: 8, key: 1 };
    // SAFETY: the memory lives longer than the connection.
    let error = unsafe { endpoint.write(1, &[local], to, None) }.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    let mut batch = vec![mrrc::registrar::Registered { range, access: Access::LOCAL, registration: foreign }];
    assert!(iwarp.deregister(&mut batch).is_err() && batch.len() == 1, "it stays registered");
    shm.deregister(&mut batch).unwrap();
    assert!(batch.is_empty());
    drop(connecting.join().unwrap());
}
