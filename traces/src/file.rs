//! Reads a source in any format: walks its members, cuts them into pieces, has them parsed and keeps the account.

use crate::archive::Members;
use crate::compress::TrailingGarbage;
use crate::formats;
use crate::frames::{Frame, Frames};
use crate::parser::{Outcome, Parser};
use crate::reader::Steps;
use crate::source::Source;
use crate::step::Step;
use crate::{Event, Format, ReadOptions, Summary, TraceError};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

/// Pieces passed over before a source is given up that has fewer events: noise of any length ends soon.
const PATIENCE: u64 = 10_000;

/// A member is a process with a cache of its own, so there cannot be any number of them.
pub(crate) const MOST_MEMBERS: u32 = 1 << 16;

/// The stream of events of one source.
pub(crate) struct FileReader {
    name: PathBuf,
    format: Format,
    options: ReadOptions,
    /// How the format was found out.
    reason: String,
    members: Members,
    member: Option<Current>,
    /// Parsers that have seen their member once, in order, for the second reading.
    laid_out: VecDeque<Box<dyn Parser>>,
    /// Parsers of the members that are behind, in order, at the first reading.
    noted: VecDeque<Box<dyn Parser>>,
    /// Whether this is the first reading of two.
    is_first: bool,
    next_process: u32,
    queue: VecDeque<Event>,
    summary: Summary,
}

/// The member that is being read.
struct Current {
    name: Option<String>,
    process: u32,
    frames: Frames,
    parser: Box<dyn Parser>,
    /// The counts of the summary before it: events, left out, passed over.
    before: [u64; 3],
}

impl FileReader {
    /// Reads the source once if the format needs it, and stands before its first event then.
    pub(crate) fn new(
        mut source: Source,
        format: Format,
        reason: String,
        options: ReadOptions,
    ) -> Result<Self, TraceError> {
        let name = source.name().to_path_buf();
        let io = |doing| move |error, name: &Path| TraceError::Io { file: name.into(), doing, error };
        if format.is_read_twice() {
            source.keep().map_err(|error| io("keep for a second reading")(error, &name))?;
        }
        let mut laid_out = VecDeque::new();
        if format.is_read_twice() {
            let mut first = Self::stand_before(&mut source, format, String::new(), options.clone(), VecDeque::new())?;
            first.is_first = true;
            while first.read_on()?.is_some() {}
            laid_out = first.noted;
        }
        Self::stand_before(&mut source, format, reason, options, laid_out)
    }

    fn stand_before(
        source: &mut Source,
        format: Format,
        reason: String,
        options: ReadOptions,
        laid_out: VecDeque<Box<dyn Parser>>,
    ) -> Result<Self, TraceError> {
        let name = source.name().to_path_buf();
        let opened = source.read().map_err(|error| TraceError::Io { file: name.clone(), doing: "open", error })?;
        let members = Members::of(opened).map_err(|error| unreadable(&name, "its beginning".into(), error))?;
        let summary = Summary { is_laid_out: format.is_laid_out(), ..Summary::new(format.name()) };
        let queue = VecDeque::new();
        Ok(Self {
            name,
            format,
            options,
            reason,
            members,
            member: None,
            laid_out,
            noted: VecDeque::new(),
            is_first: false,
            next_process: 0,
            queue,
            summary,
        })
    }

    /// Goes to the next member. `false` at the end.
    fn enter(&mut self) -> Result<bool, TraceError> {
        loop {
            let at = || format!("after {} members", self.next_process);
            let member = self.members.next().map_err(|error| unreadable(&self.name, at(), error))?;
            let Some(member) = member else { return Ok(false) };
            if member.name.as_deref().is_some_and(is_documentation) {
                let name = member.name.unwrap_or_default();
                self.summary.leave_out("the member of the archive is documentation", 0, &name);
                continue;
            }
            if self.next_process == MOST_MEMBERS {
                let what = format!("the archive has more than {MOST_MEMBERS} members");
                return Err(self.content(at(), what, "each is a process of its own: join them"));
            }
            let known = self.laid_out.pop_front();
            let file_name = member.name.clone().unwrap_or_else(|| self.name.to_string_lossy().into_owned());
            let made = || formats::of(self.format, &self.options, &file_name);
            let Some(parser) = known.or_else(made) else {
                let what = format!("{} cannot be read like this", self.format);
                return Err(self.content(at(), what, "name another --format"));
            };
            let frames = Frames::new(member.bytes, parser.framing());
            let before = self.account();
            self.member = Some(Current { name: member.name, process: self.next_process, frames, parser, before });
            self.next_process += 1;
            return Ok(true);
        }
    }

    fn account(&self) -> [u64; 3] {
        [self.summary.events, self.summary.left_out(), self.summary.skipped()]
    }

    /// Ends a member: what was mostly unreadable is an error.
    fn leave(&mut self, mut member: Current) -> Result<(), TraceError> {
        self.judge(&member)?;
        if let Err(what) = member.parser.judge() {
            return Err(self.content(member.place("its end".into()), what, "name the right --format"));
        }
        let [events, left_out, skipped] = self.account();
        let nothing = [events, left_out, skipped] == member.before;
        self.understand(&*member.parser);
        self.summary.untimed += member.parser.untimed();
        if nothing && member.frames.offset() == 0 && member.name.is_none() {
            return Err(self.content("its beginning".into(), "it is empty".into(), "was it cut short?"));
        }
        if self.format.is_read_twice() {
            if self.is_first {
                member.parser.lay_out(member.frames.number());
            }
            // Needed again after the first reading, and never after the second.
            self.noted.push_back(member.parser);
        }
        Ok(())
    }

    fn understand(&mut self, parser: &dyn Parser) {
        let reason = if self.reason.is_empty() { String::new() } else { format!(" ({})", self.reason) };
        self.summary.understood = format!("{}{reason}: {}", self.format, parser.understood());
    }

    /// Refuses a member of which less is understood than not.
    fn judge(&self, member: &Current) -> Result<(), TraceError> {
        let [events, left_out, skipped] = self.account();
        let [events_before, left_out_before, skipped_before] = member.before;
        let bad = skipped - skipped_before;
        let good = (events - events_before) + (left_out - left_out_before);
        if bad <= good {
            return Ok(());
        }
        let last = self.summary.skipped.iter().max_by_key(|skipped| skipped.count);
        let first = last.and_then(|skipped| skipped.first.first().map(|(number, text)| (skipped.reason, number, text)));
        let (reason, number, text) = first.unwrap_or(("it is not understood", &0, &self.reason));
        let unit = match member.frames.framing() {
            crate::frames::Framing::Lines => "line",
            _ => "record",
        };
        let at = member.place(format!("{unit} {number}"));
        let plural = if bad == 1 { "" } else { "s" };
        let what = format!("{reason} (`{text}`): {bad} {unit}{plural} cannot be read as {}, {good} can", self.format);
        Err(self.content(at, what, "name the right --format (and --columns, for csv)"))
    }

    /// Refuses a source of which everything was left out.
    fn is_not_in_vain(&self) -> Result<(), TraceError> {
        let most = self.summary.left_out.iter().max_by_key(|left_out| left_out.count);
        let Some(most) = most.filter(|_| self.summary.events == 0) else { return Ok(()) };
        let at = format!("line {}", most.first.first().map_or(0, |&(number, _)| number));
        let what = format!("no request in it: {} ({} times)", most.reason, most.count);
        Err(self.content(
            at,
            what,
            "nothing can be replayed: record what is asked for, too, or name the right --format",
        ))
    }

    fn content(&self, at: String, what: String, remedy: &str) -> TraceError {
        TraceError::Content { file: self.name.clone(), at, what, remedy: remedy.into() }
    }

    /// Reads on up to the next event.
    fn read_on(&mut self) -> Result<Option<Event>, TraceError> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                self.count(&event);
                return Ok(Some(event));
            }
            if self.member.is_none() && !self.enter()? {
                self.is_not_in_vain()?;
                return Ok(None);
            }
            let Some(member) = &mut self.member else { return Ok(None) };
            if self.is_first {
                let noted = member.parser.note(member.frames.whole());
                member.frames.pass(noted);
                self.summary.events += noted.pieces as u64;
            }
            let frame = member.frames.next().map_err(|error| {
                let at = member.place(format!("after {}", member.frames.place()));
                unreadable(&self.name, at, error)
            })?;
            let outcome = match frame {
                Frame::Of(range) => member.parser.parse(member.frames.bytes(range), &mut self.queue),
                Frame::TooLong => Outcome::Bad("the line is longer than 4 MiB"),
                Frame::Header => Outcome::Other,
                Frame::Broken(what) => Outcome::Broken(what),
                Frame::End => {
                    if let Some(member) = self.member.take() {
                        self.leave(member)?;
                    }
                    continue;
                }
            };
            match outcome {
                Outcome::Event(mut event) => {
                    // A table may name the process itself; in an archive it is the member.
                    if member.name.is_some() {
                        event.process = member.process;
                    }
                    self.count(&event);
                    return Ok(Some(event));
                }
                Outcome::Queued => self.queue.iter_mut().for_each(|event| event.process = member.process),
                Outcome::Noted => self.summary.events += 1,
                Outcome::Other => self.summary.other += 1,
                Outcome::LeftOut(reason) => {
                    self.summary.leave_out_with(reason, member.frames.number(), || member.last());
                }
                Outcome::Bad(reason) => {
                    self.summary.skip_with(reason, member.frames.number(), || member.last());
                    if self.summary.skipped().is_multiple_of(PATIENCE)
                        && let Some(member) = &self.member
                    {
                        self.judge(member)?;
                    }
                }
                Outcome::Broken(what) => {
                    let at = member.place(member.frames.place());
                    let remedy = "was it cut short, or is it of another --format?";
                    return Err(self.content(at, what, remedy));
                }
            }
        }
    }

    fn count(&mut self, event: &Event) {
        self.summary.read(event);
        if self.summary.events == 1
            && let Some(member) = self.member.take()
        {
            self.understand(&*member.parser);
            self.member = Some(member);
        }
    }
}

impl Current {
    /// Names the member before a place in it.
    fn place(&self, at: String) -> String {
        match &self.name {
            Some(name) => format!("member {name}, {at}"),
            None => at,
        }
    }

    /// Returns the text of the last piece.
    fn last(&self) -> String {
        let text = self.frames.last_text();
        match &self.name {
            Some(name) => format!("{name}: {text}"),
            None => text,
        }
    }
}

impl Steps for FileReader {
    fn step(&mut self) -> Result<Option<Event>, TraceError> {
        self.read_on()
    }

    fn read_steps(&mut self, steps: &mut Vec<Step>) -> Option<u32> {
        if !self.queue.is_empty() || !self.summary.has_first() {
            return None;
        }
        let member = self.member.as_mut()?;
        let before = steps.len();
        let is_more = member.parser.recall(steps);
        let recalled = steps.len() - before;
        if recalled > 0 {
            member.frames.owe(recalled);
            if !is_more {
                member.frames.end();
            }
        } else {
            let taken = member.parser.requests(member.frames.whole(), steps);
            if taken.pieces == 0 {
                return None;
            }
            member.frames.pass(taken);
        }
        self.summary.events += (steps.len() - before) as u64;
        Some(if member.name.is_some() { member.process } else { 0 })
    }

    fn summary(&self) -> &Summary {
        &self.summary
    }
}

/// Returns the error of a failed read.
pub(crate) fn unreadable(file: &Path, at: String, error: io::Error) -> TraceError {
    let file = file.to_path_buf();
    if let Some(garbage) = error.get_ref().and_then(|inner| inner.downcast_ref::<TrailingGarbage>()) {
        let what = garbage.to_string();
        let remedy = "what comes before is whole: cut the rest off, or pipe in what the tool decompresses".into();
        return TraceError::Content { file, at, what, remedy };
    }
    let content = |remedy: &str| TraceError::Content {
        file: file.clone(),
        at: at.clone(),
        what: error.to_string(),
        remedy: remedy.into(),
    };
    // Both decoders say so in their own words.
    let text = error.to_string();
    if ["memory", "window"].iter().any(|word| text.contains(word)) {
        return content("its compression needs more memory than is given: decompress it first, and pipe it in");
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => content("the archive is cut short: fetch it again"),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other => {
            content("the archive is damaged: fetch it again")
        }
        _ => TraceError::Io { file, doing: "read", error },
    }
}

/// Members that archives have beside their traces.
pub(crate) fn is_documentation(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let begins = ["readme", "license", "copying", "md5", "sha256", "."];
    let ends = [".md", ".pdf", ".html", ".md5", ".sha256"];
    begins.iter().any(|begin| file.starts_with(begin)) || ends.iter().any(|end| file.ends_with(end))
}
