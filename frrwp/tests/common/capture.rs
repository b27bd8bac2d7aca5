//! Captures of iWARP: from packets to the two streams of each connection, and from those to frames.
#![allow(unreachable_pub, dead_code, reason = "shared by a test and an example")]

use etherparse::{SlicedPacket, TransportSlice};
use frrwp::fabric::iwarp::ddp::{Header, ReadRequest, SegmentError};
use frrwp::fabric::iwarp::mpa::{Fpdu, MpaError, Start};
use std::collections::BTreeMap;
use std::io::Read;

/// One direction of a TCP connection: its bytes in order, and which packet brought them.
#[derive(Default)]
pub struct Flow {
    /// `address:port > address:port`.
    pub name: String,
    /// The sender's bytes.
    pub bytes: Vec<u8>,
    /// The places of each packet's bytes.
    packets: Vec<(usize, usize)>,
    next: u32,
    /// Packets that came before those that they follow.
    early: BTreeMap<u32, (usize, Vec<u8>)>,
}

impl Flow {
    fn take(&mut self, number: usize, sequence: u32, payload: &[u8]) {
        // The rest of it past the known bytes, by TCP's arithmetic.
        let known = self.next.wrapping_sub(sequence) as i32;
        if known < 0 {
            self.early.insert(sequence, (number, payload.to_vec()));
            return;
        }
        let Some(fresh) = payload.get(known as usize..).filter(|fresh| !fresh.is_empty()) else { return };
        self.packets.push((self.bytes.len(), number));
        self.bytes.extend_from_slice(fresh);
        self.next = self.next.wrapping_add(fresh.len() as u32);
        while let Some((sequence, (number, payload))) = self.early.pop_first() {
            let known = self.next.wrapping_sub(sequence) as i32;
            if known < 0 {
                self.early.insert(sequence, (number, payload));
                break;
            }
            self.take(number, sequence, &payload);
        }
    }

    /// Returns the packet that holds the byte before this one.
    fn packet(&self, end: usize) -> usize {
        let after = self.packets.partition_point(|&(start, _)| start < end);
        after.checked_sub(1).map_or(0, |at| self.packets[at].1)
    }
}

/// Returns the flows of a capture, in the order of their first bytes.
pub fn flows(capture: impl Read) -> Result<Vec<Flow>, Box<dyn std::error::Error>> {
    let mut reader = pcap_file::pcap::PcapReader::new(capture).map_err(|error| {
        format!(
            "no capture in the pcap format ({error}): make one with `tcpdump -w`, or of a pcapng with `editcap -F pcap`"
        )
    })?;
    let mut flows: Vec<(Vec<u8>, Flow)> = Vec::new();
    let mut number = 0;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.map_err(|error| {
            format!(
                "packet {}: {error}: the capture is cut short or damaged there: `tcpdump -r FILE -w WHOLE` keeps what comes before",
                number + 1
            )
        })?;
        number += 1;
        let Ok(sliced) = SlicedPacket::from_ethernet(&packet.data) else { continue };
        let (Some(net), Some(TransportSlice::Tcp(tcp))) = (&sliced.net, &sliced.transport) else { continue };
        let Some(ip) = net.ipv4_ref() else { continue };
        let header = ip.header();
        let name = format!(
            "{}:{} > {}:{}",
            header.source_addr(),
            tcp.source_port(),
            header.destination_addr(),
            tcp.destination_port()
        );
        let at = flows.iter().position(|(key, _)| *key == name.as_bytes()).unwrap_or_else(|| {
            flows.push((name.clone().into_bytes(), Flow { name, next: tcp.sequence_number(), ..Flow::default() }));
            flows.len() - 1
        });
        let flow = &mut flows[at].1;
        if tcp.syn() {
            flow.next = tcp.sequence_number().wrapping_add(1);
        } else {
            flow.take(number, tcp.sequence_number(), tcp.payload());
        }
    }
    Ok(flows.into_iter().map(|(_, flow)| flow).filter(|flow| !flow.bytes.is_empty()).collect())
}

/// A frame of a stream.
pub enum Frame<'a> {
    /// The start of the connection.
    Start(Start<'a>),
    /// A segment, what it carries, and whether its CRC is right; `None` where the sender does without.
    Segment { header: Header, payload: &'a [u8], request: Option<ReadRequest>, crc: Option<bool> },
}

/// Why the rest of a stream is no frame.
#[derive(Debug)]
pub enum Odd {
    Mpa(MpaError),
    Segment(SegmentError),
    /// Too few bytes.
    Cut,
}

/// A frame, where it lies in its stream, and the packet that completed it.
pub struct Found<'a> {
    pub frame: Frame<'a>,
    pub bytes: &'a [u8],
    pub packet: usize,
}

/// Takes a stream apart: its frames, and what is left over.
pub fn frames(flow: &Flow) -> (Vec<Found<'_>>, usize, Option<Odd>) {
    let mut found = Vec::new();
    let mut at = 0;
    let odd = loop {
        let rest = &flow.bytes[at..];
        if rest.is_empty() {
            break None;
        }
        let (frame, length) = if at == 0 {
            match Start::decode(rest) {
                Ok(Some((start, length))) => (Frame::Start(start), length),
                Ok(None) => break Some(Odd::Cut),
                Err(error) => break Some(Odd::Mpa(error)),
            }
        } else {
            let Some(fpdu) = Fpdu::split(rest) else { break Some(Odd::Cut) };
            let (header, payload) = match Header::decode(fpdu.ulpdu) {
                Ok(decoded) => decoded,
                Err(error) => break Some(Odd::Segment(error)),
            };
            let crc = (fpdu.crc != 0).then(|| fpdu.check().is_ok());
            let request = ReadRequest::decode(payload).filter(|_| header.operation.queue() == 1);
            (Frame::Segment { header, payload, request, crc }, fpdu.length)
        };
        found.push(Found { frame, bytes: &rest[..length], packet: flow.packet(at + length) });
        at += length;
    };
    (found, flow.bytes.len() - at, odd)
}
