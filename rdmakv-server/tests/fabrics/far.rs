//! Far memory: which connection reaches a region by a tag, and until when.

use rdmakv_proto::far::batch::{Batch, Operation, Status, Writer};
use rdmakv_proto::far::messages::{Answer, Refusal, Reply, Request, Run, RunStatus, Source, Verb};
use rdmakv_proto::far::procedures::{Cas64, Procedure, Walk};
use rdmakv_proto::messages::{self, Kind, RemoteSegment, Tag};

use super::client::{Client, Way, cache};
use super::common::{Server, soon};
use super::{fabric, on_shm_and_iwarp};

const FLAGS: &[&str] = &["--far", "16m", "--far-region", "2m", "-m", "16"];
const NO_WORKERS: &[&str] = &["--far", "16m", "--far-region", "2m", "-m", "16", "--far-threads", "0"];

// A server lends no far memory over verbs.
on_shm_and_iwarp! {
    tags_open_one_region_to_one_connection(super::FLAGS) = apart;
    tags_end_with_the_memory(super::FLAGS) = ended;
    tags_end_when_the_time_is_over(super::FLAGS) = over;
    unable_verbs_are_refused(super::FLAGS) = unable;
    malformed_requests_end_the_connection(super::FLAGS) = malformed;
    batches_reach_attached_regions_alone(super::FLAGS) = batches;
    batches_with_another_sum_end_the_connection(super::FLAGS) = sums;
    servers_without_workers_refuse_batches(super::NO_WORKERS) = no_workers;
    procedures_reach_attached_regions_alone(super::FLAGS) = procedures;
    procedures_without_sense_end_the_connection(super::FLAGS) = senseless;
    endless_procedures_end_beside_others(super::FLAGS) = endless;
    maps_of_all_numbers_stop_nobody(super::FLAGS) = vast_map;
}

/// Asks for something, and passes the answer on.
fn ask<W: Way, T>(client: &mut Client<'_, W>, request: &Request<'_>, take: impl FnOnce(Answer<'_>) -> T) -> T {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    let (_, kind, answer) = client.ask(Kind::Far, &bytes).expect("an answer");
    let Ok(messages::Reply::Far(answer)) = messages::Reply::decode(kind, &answer) else { panic!("{kind:?}") };
    take(Reply::decode(answer).unwrap().answer)
}

fn take<W: Way>(client: &mut Client<'_, W>, memory: u64, regions: u32, millis: u64) {
    let verb = Verb::Take { regions, of: regions, millis, owner: 7, secret: [3; 16], name: b"", source: None };
    let request = Request { memory, region: 0, epoch: 1, verb };
    ask(client, &request, |answer| assert!(matches!(answer, Answer::Take { secret: [3, ..] }), "{answer:?}"));
}

fn tag<W: Way>(client: &mut Client<'_, W>, memory: u64, region: u32) -> Result<Tag, Refusal> {
    let request = Request { memory, region, epoch: 1, verb: Verb::Tags { moves: false } };
    ask(client, &request, |answer| match answer {
        Answer::Tags { read, write, .. } => {
            assert_eq!(read, write);
            let segment = read.iter().next().unwrap();
            assert_eq!((segment.length, read.iter().len()), (2 << 20, 1));
            Ok(Tag { segment: RemoteSegment { length: 4096, ..segment }, incarnation: 0 })
        }
        Answer::Refused { why, .. } => Err(why),
        other => panic!("{other:?}"),
    })
}

fn apart<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut owner = Client::new(way, &cache, address);
    take(&mut owner, 9, 2, 60_000);
    let first = tag(&mut owner, 9, 0).unwrap();
    assert_eq!(tag(&mut owner, 9, 0), Ok(first), "asked again, the same");
    assert_eq!(owner.read(&first), Some(vec![0; 4096]));
    // The region beside it is another registration.
    let beyond = RemoteSegment { address: first.segment.address + (2 << 20) - 2048, ..first.segment };
    let mut other = Client::new(way, &cache, address);
    assert_eq!(tag(&mut other, 9, 0), Err(Refusal::Unknown), "it is not attached");
    assert_eq!(other.read(&first), None, "a tag is of its connection, or of a file that was passed");
    assert_eq!(owner.read(&first), Some(vec![0; 4096]));
    assert_eq!(owner.read(&Tag { segment: beyond, incarnation: 0 }), None);
}

fn ended<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    take(&mut client, 9, 3, 60_000);
    take(&mut client, 10, 1, 60_000);
    let (gone, kept) = (tag(&mut client, 9, 2).unwrap(), tag(&mut client, 10, 0).unwrap());
    let verb = Verb::List { owner: 7, secret: [3; 16], name: b"" };
    let mut other = Client::new(way, &cache, address);
    let request = Request { memory: 9, region: 0, epoch: 0, verb };
    ask(&mut other, &request, |answer| assert!(matches!(answer, Answer::List { more: false, .. }), "{answer:?}"));
    let end = Request { memory: 9, region: 0, epoch: 0, verb: Verb::End };
    ask(&mut other, &end, |answer| assert_eq!(answer, Answer::End));
    // Its room is there at once, and no tag leads to it.
    take(&mut other, 11, 3, 60_000);
    assert_eq!(tag(&mut client, 9, 2), Err(Refusal::Unknown));
    assert_eq!(client.read(&kept), Some(vec![0; 4096]));
    assert_eq!(client.read(&gone), None);
}

fn over<W: Way>(server: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    take(&mut client, 9, 1, 500);
    // It may be over before it has a tag.
    if let Ok(tag) = tag(&mut client, 9, 0) {
        soon("the end of its time", || client.read(&tag).is_none());
    }
    let mut later = Client::new(way, &cache, address);
    soon("its room", || {
        ask(&mut later, &Request { memory: 0, region: 0, epoch: 0, verb: Verb::Offer }, |answer| {
            matches!(answer, Answer::Offer { region_bytes: 0x20_0000, regions: 4, .. })
        })
    });
    drop(later);
    assert!(fabric(server, address.split(':').next().unwrap()) == address);
}

fn unable<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    take(&mut client, 9, 1, 60_000);
    let (secret, source) = ([3; 16], Some(Source { server: 1, token: [1; 16], address: b"iwarp:127.0.0.1:1" }));
    let copy = Verb::Take { regions: 1, of: 1, millis: 1000, owner: 7, secret, name: b"", source };
    // A copy of no peer's region.
    let code = Verb::Code { length: 1, at: 0, name: b"x", part: b"x" };
    let modules = [code, Verb::Modules, Verb::Forget { name: b"x" }];
    for (verb, why) in [(copy, Refusal::Unable)].into_iter().chain(modules.map(|verb| (verb, Refusal::NoModules))) {
        let request = Request { memory: 9, region: 0, epoch: 1, verb };
        let number = verb.number();
        ask(&mut client, &request, |answer| {
            assert_eq!(answer, Answer::Refused { verb: number, why, room: 0 });
        });
    }
    assert!(tag(&mut client, 9, 0).is_ok(), "it goes on");
    // A server that offers none.
    let none = Server::on_a_free_port(&["--fabric", "iwarp:127.0.0.1:0", "--fabric", "shm:@rdmakv-test-no-far"]);
    let mut client = Client::new(way, &cache, &fabric(&none, address.split(':').next().unwrap()));
    let offer = Request { memory: 0, region: 0, epoch: 0, verb: Verb::Offer };
    ask(&mut client, &offer, |answer| {
        assert_eq!(answer, Answer::Refused { verb: 1, why: Refusal::Unable, room: 0 });
    });
}

fn malformed<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    for bytes in [&b""[..], &[99; 30], &[2; 20]] {
        let mut client = Client::new(way, &cache, address);
        let answer = client.ask(Kind::Far, bytes);
        assert!(matches!(answer, Some((_, Kind::Refused, _)) | None), "{answer:?}");
        assert_eq!(client.hear(), None, "the connection ends");
    }
    let mut silent = Client::silent(way, &cache, address).unwrap();
    let mut offer = Vec::new();
    Request { memory: 0, region: 0, epoch: 0, verb: Verb::Offer }.encode(&mut offer);
    let answer = silent.ask(Kind::Far, &offer);
    assert!(matches!(answer, Some((_, Kind::Refused, _)) | None), "before HELLO: {answer:?}");
}

/// Sends a batch, and returns its replies, or why it was refused.
fn batch<W: Way>(
    client: &mut Client<'_, W>,
    memory: u64,
    operations: &[Operation<'_>],
) -> Result<Vec<(Status, Vec<u8>)>, Refusal> {
    let mut buffer = [0; 8192];
    let mut writer = Writer::new(&mut buffer).unwrap();
    assert!(operations.iter().all(|operation| writer.operation(operation)));
    let verb = Verb::Batch { batch: writer.finish(77) };
    ask(client, &Request { memory, region: 5, epoch: 0, verb }, |answer| match answer {
        Answer::Batch { replies } => {
            let replies = Batch::decode(replies).unwrap();
            assert_eq!(replies.sequence(), 77);
            Ok(replies.replies().map(Result::unwrap).map(|reply| (reply.status, reply.data.to_vec())).collect())
        }
        Answer::Refused { verb: 4, why, .. } => Err(why),
        other => panic!("{other:?}"),
    })
}

const END: u64 = 2 << 20;

fn batches<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut owner = Client::new(way, &cache, address);
    take(&mut owner, 9, 2, 60_000);
    let operations = [
        Operation::Write { region: 1, offset: END - 5, data: b"bytes" },
        Operation::Read { region: 1, offset: END - 6, length: 6 },
        Operation::Write { region: 1, offset: END - 4, data: b"bytes" },
        Operation::Write { region: 0, offset: u64::MAX, data: b"bytes" },
        Operation::Read { region: 2, offset: 0, length: 1 },
        Operation::Read { region: 0, offset: END, length: 0 },
    ];
    let none = |status| (status, Vec::new());
    let (beyond, elsewhere) = (none(Status::OutOfRange), none(Status::Elsewhere));
    let read = (Status::Done, b"\0bytes".to_vec());
    let expected = [none(Status::Done), read, beyond.clone(), beyond, elsewhere, none(Status::Done)];
    assert_eq!(batch(&mut owner, 9, &operations).unwrap(), expected);
    // One-sided reads see the same bytes.
    let RemoteSegment { address: start, .. } = tag(&mut owner, 9, 1).unwrap().segment;
    let segment = RemoteSegment { address: start + END - 4096, ..tag(&mut owner, 9, 1).unwrap().segment };
    assert!(owner.read(&Tag { segment, incarnation: 0 }).unwrap().ends_with(b"\0bytes"));
    let mut other = Client::new(way, &cache, address);
    assert_eq!(batch(&mut other, 9, &operations), Err(Refusal::Unknown), "it is not attached");
    assert_eq!(batch(&mut owner, 10, &operations), Err(Refusal::Unknown));
}

fn sums<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut buffer = [0; 8192];
    let mut writer = Writer::new(&mut buffer).unwrap();
    for _ in 0..2 {
        assert!(writer.operation(&Operation::Read { region: 0, offset: 0, length: u16::MAX / 2 }));
    }
    let too_long = writer.finish(1).to_vec();
    let mut other_sum = too_long.clone();
    other_sum[20] ^= 1;
    for (memory, bytes) in [(9, &too_long[..]), (10, &other_sum), (11, b"")] {
        let mut client = Client::new(way, &cache, address);
        take(&mut client, memory, 1, 60_000);
        let mut request = Vec::new();
        Request { memory, region: 0, epoch: 0, verb: Verb::Batch { batch: bytes } }.encode(&mut request);
        let answer = client.ask(Kind::Far, &request);
        assert!(matches!(answer, Some((_, Kind::Refused, _)) | None), "{answer:?}");
        assert_eq!(client.hear(), None, "the connection ends");
    }
}

fn no_workers<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut owner = Client::new(way, &cache, address);
    take(&mut owner, 9, 1, 60_000);
    assert_eq!(batch(&mut owner, 9, &[]), Err(Refusal::Unable));
    assert_eq!(run(&mut owner, 9, &walk(64, 1)).unwrap_err(), Refusal::Unable);
    assert!(tag(&mut owner, 9, 0).is_ok(), "one-sided access goes on");
}

/// A procedure's end: its status, the address, the arguments by which it goes on, and the reply.
type Ended = (RunStatus, u64, Vec<u8>, Vec<u8>);

/// Runs a procedure, and returns its end, or why it was refused.
fn run<W: Way>(client: &mut Client<'_, W>, memory: u64, of: &Procedure) -> Result<Ended, Refusal> {
    run_of(client, memory, of.number(), of)
}

fn run_of<W: Way>(client: &mut Client<'_, W>, memory: u64, number: u32, of: &Procedure) -> Result<Ended, Refusal> {
    let mut arguments = Vec::new();
    of.encode(&mut arguments);
    let run = Run { request: 5, procedure: number, hops: 0, bytes: 0, micros: 0, replied: 0, arguments: &arguments };
    ask(client, &Request { memory, region: 3, epoch: 0, verb: Verb::Run(run) }, |answer| match answer {
        Answer::Run(ran) => {
            assert_eq!(ran.request, 5);
            Ok((ran.status, ran.at, ran.arguments.to_vec(), ran.reply.to_vec()))
        }
        Answer::Refused { verb: 13, why, .. } => Err(why),
        other => panic!("{other:?}"),
    })
}

/// A walk over nodes whose pointer is first.
fn walk(at: u64, nodes: u32) -> Procedure {
    Procedure::Walk(Walk { at, next: 0, key_at: 0, nodes, length: 13, key: Vec::new() })
}

fn procedures<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut owner = Client::new(way, &cache, address);
    take(&mut owner, 9, 2, 60_000);
    // A chain of two nodes, of which the second one lies across the border of two regions.
    let second = END - 8;
    let operations = [
        Operation::Write { region: 0, offset: 64, data: &second.to_le_bytes() },
        Operation::Write { region: 1, offset: 0, data: b"bytes" },
    ];
    batch(&mut owner, 9, &operations).unwrap();
    let found = [&[0; 8][..], b"bytes"].concat();
    assert_eq!(run(&mut owner, 9, &walk(64, 9)), Ok((RunStatus::Done, second, Vec::new(), found)));
    // A region that is not here: the client goes on elsewhere, with the same arguments.
    let (status, at, arguments, reply) = run(&mut owner, 9, &walk(2 * END + 64, 9)).unwrap();
    assert_eq!((status, at, &reply[..]), (RunStatus::Elsewhere, 2 * END + 64, &b""[..]));
    assert_eq!(Procedure::decode(1, &arguments), Ok(walk(2 * END + 64, 9)));
    assert_eq!(run(&mut owner, 9, &walk(u64::MAX - 20, 1)).unwrap().0, RunStatus::Elsewhere);
    let cas = |old, new| Procedure::Cas64(Cas64 { at: END + 64, old, new });
    for (old, new, was) in [(1, 2, 0_u64), (0, 7, 0), (0, 8, 7)] {
        let reply = was.to_le_bytes().to_vec();
        assert_eq!(run(&mut owner, 9, &cas(old, new)), Ok((RunStatus::Done, END + 64, Vec::new(), reply)));
    }
    let mut other = Client::new(way, &cache, address);
    for memory in [9, 10] {
        assert_eq!(run(&mut other, memory, &walk(64, 1)), Err(Refusal::Unknown), "it is not attached");
        assert_eq!(run(&mut other, memory, &cas(7, 1)), Err(Refusal::Unknown));
    }
    assert_eq!(run_of(&mut owner, 9, 99, &walk(64, 1)), Err(Refusal::Unable), "a newer client's");
    // Nothing keeps the memory from ending.
    ask(&mut owner, &Request { memory: 9, region: 0, epoch: 0, verb: Verb::End }, |answer| {
        assert_eq!(answer, Answer::End);
    });
    assert_eq!(run(&mut owner, 9, &walk(64, 1)), Err(Refusal::Unknown));
}

fn senseless<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    for (memory, nodes, length) in [(9, 0, 1), (10, 1, 5000)] {
        let mut client = Client::new(way, &cache, address);
        take(&mut client, memory, 1, 60_000);
        let of = Procedure::Walk(Walk { at: 64, next: 0, key_at: 0, nodes, length, key: Vec::new() });
        let mut arguments = Vec::new();
        of.encode(&mut arguments);
        let run = Run { request: 5, procedure: 1, hops: 0, bytes: 0, micros: 0, replied: 0, arguments: &arguments };
        let mut request = Vec::new();
        Request { memory, region: 0, epoch: 0, verb: Verb::Run(run) }.encode(&mut request);
        let answer = client.ask(Kind::Far, &request);
        assert!(matches!(answer, Some((_, Kind::Refused, _)) | None), "{answer:?}");
        assert_eq!(client.hear(), None, "the connection ends");
    }
}

fn endless<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut owner = Client::new(way, &cache, address);
    take(&mut owner, 9, 1, 60_000);
    // A node that points to itself.
    batch(&mut owner, 9, &[Operation::Write { region: 0, offset: 64, data: &64_u64.to_le_bytes() }]).unwrap();
    let mut other = Client::new(way, &cache, address);
    let verb = Verb::List { owner: 7, secret: [3; 16], name: b"" };
    let request = Request { memory: 9, region: 0, epoch: 0, verb };
    ask(&mut other, &request, |answer| assert!(matches!(answer, Answer::List { more: false, .. }), "{answer:?}"));
    for _ in 0..20 {
        let (status, at, ..) = run(&mut owner, 9, &walk(64, u32::MAX)).unwrap();
        assert!(matches!(status, RunStatus::Bytes | RunStatus::Time) && at == 64, "{status:?}");
        assert_eq!(run(&mut other, 9, &walk(64, 1)).unwrap().0, RunStatus::Done);
    }
}

fn vast_map<W: Way>(_: &Server, way: &W, address: &str) {
    use rdmakv_proto::far::messages::{RegionRun, Runs, Servers};
    let cache = cache(way);
    let (mut owner, mut other) = (Client::new(way, &cache, address), Client::new(way, &cache, address));
    take(&mut owner, 9, 1, 60_000);
    let offer = Request { memory: 0, region: 0, epoch: 0, verb: Verb::Offer };
    let server = ask(&mut other, &offer, |answer| match answer {
        Answer::Offer { server, .. } => server,
        other => panic!("{other:?}"),
    });
    let run = RegionRun { first: 0, regions: u32::MAX, epoch: 7, server };
    let (mut runs, mut servers, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    let verb =
        Verb::Map { number: 7, runs: Runs::write(&[run; 100], &mut runs), servers: Servers::write(&[], &mut servers) };
    Request { memory: 9, region: 0, epoch: 7, verb }.encode(&mut bytes);
    owner.tell(Kind::Far, &bytes).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    let begun = std::time::Instant::now();
    let mut asked = Vec::new();
    offer.encode(&mut asked);
    let answer = other.ask(Kind::Far, &asked);
    assert!(answer.is_some() && begun.elapsed().as_secs() < 5, "{:?} after {:?}", answer.is_some(), begun.elapsed());
}
