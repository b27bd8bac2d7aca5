//! Prints a capture of iWARP: a line a frame, or a summary.
//!
//! ```text
//! cargo run -p frrwp --example iwarp-dump -- frrwp/tests/data/siw.pcap
//! cargo run -p frrwp --example iwarp-dump -- --summary frrwp/tests/data/siw.pcap
//! ```

#[path = "../../tests/common/capture.rs"]
mod capture;

use capture::{Frame, flows, frames};
use clap::Parser;
use frrwp::fabric::iwarp::ddp::{Operation, Place};
use frrwp::fabric::iwarp::terminate::Terminate;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Shows the iWARP frames of a packet capture.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Arguments {
    /// A capture in the pcap format, with Ethernet headers.
    file: PathBuf,
    /// Counts instead of lines.
    #[arg(long)]
    summary: bool,
}

const EXAMPLES: &str = "\
Examples:
  iwarp-dump frrwp/tests/data/siw.pcap
  iwarp-dump --summary frrwp/tests/data/siw.pcap
  tcpdump -i eth0 -w FILE port 7174                makes a capture
  editcap -F pcap FILE.pcapng FILE.pcap            turns another format into this one

Exit status: 0 all of it is iWARP and no CRC is wrong, 1 something is left over or wrong, 2 no capture to read.";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(clean) => ExitCode::from(u8::from(!clean)),
        // The reader has had enough.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iwarp-dump: {}: {error}", arguments.file.display());
            ExitCode::from(2)
        }
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// True if nothing was left over.
fn run(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    let file = File::open(&arguments.file).map_err(|error| format!("{error}: name a capture that can be read"))?;
    let flows = flows(BufReader::new(file))?;
    if flows.is_empty() {
        return Err(
            "no TCP over IPv4 in Ethernet frames: capture one interface, not `any`, and the port of iWARP".into()
        );
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut lines = Vec::new();
    let mut counts: BTreeMap<Operation, u64> = BTreeMap::new();
    let (mut starts, mut left, mut strange) = (0, 0, 0);
    let mut crcs = [0_u64; 3];
    for flow in &flows {
        let (found, over, odd) = frames(flow);
        if found.is_empty() {
            strange += 1;
            continue;
        }
        left += over;
        for found in &found {
            let text = match &found.frame {
                Frame::Start(start) => {
                    starts += 1;
                    start.to_string()
                }
                Frame::Segment { header, payload, request, crc } => {
                    *counts.entry(header.operation).or_default() += 1;
                    crcs[crc.map_or(2, usize::from)] += 1;
                    let place = match header.place {
                        Place::Tagged { tag, offset } => format!("tag {tag:#010x} at {offset:#x}"),
                        Place::Untagged { number, offset, invalidate, .. } if invalidate != 0 => {
                            format!("message {number} at {offset}, ends tag {invalidate:#010x}")
                        }
                        Place::Untagged { number, offset, .. } => format!("message {number} at {offset}"),
                    };
                    let more = match (request, header.operation) {
                        (Some(request), _) => format!(
                            ": {} bytes of tag {:#010x} at {:#x} to tag {:#010x} at {:#x}",
                            request.length,
                            request.source_tag,
                            request.source_offset,
                            request.sink_tag,
                            request.sink_offset
                        ),
                        (None, Operation::Terminate) => {
                            Terminate::decode(payload).map_or(String::new(), |why| format!(": {why}"))
                        }
                        _ => format!(", {} bytes", payload.len()),
                    };
                    let last = if header.last { "" } else { ", more follows" };
                    let crc = if *crc == Some(false) { ", WRONG CRC" } else { "" };
                    format!("{:<11} {place}{more}{last}{crc}", header.operation)
                }
            };
            lines.push((found.packet, format!("{:>6}  {}  {text}", found.packet, flow.name)));
        }
        if let Some(odd) = odd {
            lines.push((usize::MAX, format!("{:>6}  {}  {over} bytes left over: {odd:?}", "", flow.name)));
        }
    }
    if arguments.summary {
        writeln!(out, "{starts} start frames")?;
        for (operation, count) in counts {
            writeln!(out, "{count} {operation}")?;
        }
        writeln!(out, "{} valid CRCs, {} wrong, {} frames without", crcs[1], crcs[0], crcs[2])?;
        writeln!(out, "{left} bytes left over; {strange} streams that are not iWARP")?;
    } else {
        lines.sort_by_key(|&(packet, _)| packet);
        for (_, line) in lines {
            writeln!(out, "{line}")?;
        }
    }
    out.flush()?;
    Ok(left == 0 && crcs[0] == 0)
}
