//! Recordings out of files, compression and archives: each member is a process of its own, as in every other format.

use crate::archive::Members;
use crate::file::{MOST_MEMBERS, is_documentation, unreadable};
use crate::reader::{Stepped, Steps};
use crate::registrations::{self, CutShort};
use crate::source::Source;
use crate::{Event, ReadOptions, Reader, Summary, TraceError};
use std::io::BufReader;
use std::path::PathBuf;

/// Reads a recording, or an archive of them.
pub(crate) fn open(mut source: Source, options: &ReadOptions) -> Result<Box<dyn Reader + Send>, TraceError> {
    let file = source.name().to_path_buf();
    let opened = source.read().map_err(|error| TraceError::Io { file: file.clone(), doing: "open", error })?;
    let mut members = Members::of(opened).map_err(|error| unreadable(&file, "its beginning".into(), error))?;
    let cut = if options.accept_cut { CutShort::Accepted } else { CutShort::Refused };
    if members.is_archive() {
        let summary = Summary::new("registrations: a recording for each member of the archive");
        return Ok(Box::new(Stepped::new(Recordings { file, members, cut, member: None, processes: 0, summary })));
    }
    let member = members.next().map_err(|error| unreadable(&file, "its beginning".into(), error))?;
    let bytes =
        member.map_or_else(|| Box::new(std::io::empty()) as Box<dyn std::io::Read + Send>, |member| member.bytes);
    registrations::read(&file, BufReader::new(bytes), cut)
}

/// The recordings of an archive, one after the other.
struct Recordings {
    file: PathBuf,
    members: Members,
    cut: CutShort,
    member: Option<Box<dyn Reader + Send>>,
    /// Members begun.
    processes: u32,
    summary: Summary,
}

impl Steps for Recordings {
    fn step(&mut self) -> Result<Option<Event>, TraceError> {
        loop {
            let Some(member) = &mut self.member else {
                let at = || format!("after {} members", self.processes);
                let next = self.members.next().map_err(|error| unreadable(&self.file, at(), error))?;
                let Some(next) = next else { return Ok(None) };
                let name = next.name.unwrap_or_default();
                if is_documentation(&name) {
                    continue;
                }
                if self.processes == MOST_MEMBERS {
                    let what = format!("the archive has more than {MOST_MEMBERS} members");
                    let remedy = "each is a process of its own: join them".into();
                    return Err(TraceError::Content { file: self.file.clone(), at: at(), what, remedy });
                }
                // Messages name the member, as a file in the archive.
                let file = self.file.join(name);
                self.member = Some(registrations::read(&file, BufReader::new(next.bytes), self.cut)?);
                self.processes += 1;
                continue;
            };
            match member.next() {
                Some(event) => {
                    let mut event = event?;
                    event.process = self.processes - 1;
                    self.summary.read(&event);
                    return Ok(Some(event));
                }
                None => {
                    if let Some(member) = self.member.take() {
                        self.summary.add_passed_over(member.summary());
                    }
                }
            }
        }
    }

    fn summary(&self) -> &Summary {
        &self.summary
    }
}
