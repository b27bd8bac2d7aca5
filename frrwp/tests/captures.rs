//! Frames that Linux's siw sent, decoded and encoded again; and decoders that are given nonsense.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/capture.rs"]
mod capture;

use capture::{Flow, Frame, flows, frames};
use frrwp::fabric::iwarp::ddp::{Header, Operation, ReadRequest};
use frrwp::fabric::iwarp::mpa::{Fpdu, Start, frame};
use frrwp::fabric::iwarp::terminate::{AtFault, Terminate};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;

const SIW: &[u8] = include_bytes!("data/siw.pcap");
const PAIR: &[u8] = include_bytes!("data/siw-pair.pcap");

/// Returns a frame's bytes when it is encoded from the decoded one.
fn encoded(found: &capture::Found<'_>) -> Vec<u8> {
    match &found.frame {
        Frame::Start(start) => {
            let mut bytes = Vec::new();
            start.encode(&mut bytes);
            bytes
        }
        Frame::Segment { header, payload, request, crc } => {
            let (head, used) = header.encode();
            let body = request.map(|request| request.encode().to_vec()).unwrap_or_else(|| payload.to_vec());
            let (length, (tail, end)) = frame(&[&head[..used], &body], crc.is_some());
            let mut bytes = [&length[..], &head[..used], &body, &tail[..end]].concat();
            // The padding is the sender's: siw leaves in it what lies there, where no CRC is asked for.
            let padding = bytes.len() - end..bytes.len() - 4;
            bytes[padding.clone()].copy_from_slice(&found.bytes[padding]);
            bytes
        }
    }
}

fn check(capture: &[u8]) -> (BTreeMap<Operation, u32>, usize, usize) {
    let flows = flows(capture).unwrap();
    let (mut counts, mut starts, mut streams) = (BTreeMap::new(), 0, 0);
    for flow in &flows {
        // The captures also hold the set-up of other programs, over plain TCP.
        if !flow.bytes.starts_with(b"MPA ID ") {
            continue;
        }
        streams += 1;
        let (found, left, odd) = frames(flow);
        assert_eq!(left, 0, "{}: {odd:?}", flow.name);
        for found in &found {
            assert_eq!(encoded(found), found.bytes, "{}: packet {}", flow.name, found.packet);
            match &found.frame {
                Frame::Start(_) => starts += 1,
                Frame::Segment { header, crc, .. } => {
                    assert_ne!(*crc, Some(false));
                    *counts.entry(header.operation).or_default() += 1;
                }
            }
        }
    }
    (counts, starts, streams)
}

/// Sends, read requests, read responses and writes; every stream begins with one start frame.
fn expect(capture: &[u8], counts: [u32; 4]) {
    let operations = [Operation::Send, Operation::ReadRequest, Operation::ReadResponse, Operation::Write];
    let (found, starts, streams) = check(capture);
    assert_eq!(starts, streams);
    assert_eq!(found, operations.into_iter().zip(counts).collect());
}

#[test]
fn siw_frames_round_trip_byte_for_byte() {
    expect(SIW, [75, 16, 16, 27]);
    expect(PAIR, [53, 16, 16, 27]);
}

#[test]
fn so_is_every_frame_of_the_whole_captures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/reference/wire");
    for (name, counts) in [("siw.pcap", [142, 120, 120, 220]), ("siw-pair.pcap", [120, 206, 206, 420])] {
        match std::fs::read(folder.join(name)) {
            Ok(capture) => expect(&capture, counts),
            Err(_) => eprintln!("skipped: there is no ../shared/reference/wire/{name} beside the repository"),
        }
    }
}

#[test]
fn the_last_words_of_siw_are_understood() {
    let hex = "414700000000000000020000000100000000110003000040c140deadbe000000000000001000";
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    let (header, payload) = Header::decode(&bytes).unwrap();
    assert_eq!(header.operation, Operation::Terminate);
    assert_eq!(Terminate::decode(payload), Some(Terminate::DDP_INVALID_TAG));
}

#[test]
fn last_words_of_ours_are_those_of_the_rfc() {
    let header = Header {
        operation: Operation::Write,
        last: true,
        place: frrwp::fabric::iwarp::ddp::Place::Tagged { tag: 7, offset: 9 },
    };
    let bytes = Terminate::DDP_BOUNDS.encode(Some(&AtFault { header, length: 30, request: None }));
    assert_eq!(bytes[..6], [0x11, 0x01, 0xc0, 0, 0, 30]);
    assert_eq!(bytes[6..], header.encode().0[..14]);
    assert_eq!(Terminate::decode(&bytes), Some(Terminate::DDP_BOUNDS));
}

/// Every decoder, on anything.
fn decode(bytes: &[u8]) {
    if let Ok(Some((start, length))) = Start::decode(bytes) {
        assert!(length <= bytes.len() && start.private.len() <= 512);
        let _ = start.to_string();
    }
    if let Some(fpdu) = Fpdu::split(bytes) {
        let _ = fpdu.check();
        if let Ok((header, payload)) = Header::decode(fpdu.ulpdu) {
            let (head, used) = header.encode();
            // A decoded frame is encoded as it was, but for bits that are reserved.
            assert_eq!(Header::decode(&[&head[..used], payload].concat()), Ok((header, payload)));
            if let Some(request) = ReadRequest::decode(payload) {
                assert_eq!(request.encode(), payload);
            }
        }
    }
    let _ = Header::decode(bytes).map(|(header, _)| header.to_owned());
    if let Some(why) = Terminate::decode(bytes) {
        let _ = why.to_string();
    }
}

#[test]
fn decoders_take_any_bytes_without_a_panic() {
    let mut rng = StdRng::seed_from_u64(6);
    let flows: Vec<Flow> = flows(SIW).unwrap();
    let mut seeds: Vec<Vec<u8>> = vec![Vec::new()];
    for flow in &flows {
        seeds.extend(frames(flow).0.iter().map(|found| found.bytes[..found.bytes.len().min(256)].to_vec()));
    }
    let rounds = std::env::var("ROUNDS").ok().map_or(200_000, |text| text.parse().unwrap());
    for _ in 0..rounds {
        let mut bytes = seeds[rng.random_range(0..seeds.len())].clone();
        for _ in 0..rng.random_range(1..8) {
            match rng.random_range(0..4) {
                0 => bytes.truncate(rng.random_range(0..=bytes.len())),
                1 => bytes.push(rng.random()),
                2 if !bytes.is_empty() => {
                    let at = rng.random_range(0..bytes.len());
                    bytes[at] = rng.random();
                }
                _ if !bytes.is_empty() => {
                    let at = rng.random_range(0..bytes.len());
                    bytes[at] ^= 1 << rng.random_range(0..8);
                }
                _ => {}
            }
        }
        decode(&bytes);
    }
}

#[test]
fn cut_captures_are_told_from_other_files() {
    let why = |bytes: &[u8]| flows(bytes).map(drop).unwrap_err().to_string();
    assert!(why(&SIW[..24 + 16 + 10]).starts_with("packet 1: "));
    assert!(why(&SIW[..24 + 16 + 10]).contains("cut short"));
    assert!(why(b"start_page,pages, and no capture").contains("no capture in the pcap format"));
}
