//! The summary of a cache's benefit, printed at the end.

use crate::process::Process;
use crate::settings::Target;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;

/// The destination of a summary. Opened at the start, because many programs close what they have before they end, and so
/// that a file that cannot be written is told early.
pub(crate) struct Paper {
    file: File,
    /// Device and inode. A program that closes all its files closes this one as well, and may have opened another by this number.
    identity: (u64, u64),
}

impl Paper {
    /// # Errors
    /// A line that says what is wrong.
    pub(crate) fn open(target: &Target) -> Result<Self, String> {
        match target {
            Target::Stderr => io::stderr().as_fd().try_clone_to_owned().map(File::from),
            // Processes of one program may end at once: each adds its own in one piece.
            Target::File(path) => File::options().create(true).append(true).open(path),
        }
        .and_then(|file| Ok(Self { identity: identity(&file)?, file }))
        .map_err(|error| match target {
            Target::Stderr => format!("MRRC_PRELOAD_SUMMARY: no standard error: {error}"),
            Target::File(path) => format!("MRRC_PRELOAD_SUMMARY={}: {error}", path.display()),
        })
    }

    fn write(&self, text: &str) -> io::Result<()> {
        if identity(&self.file)? != self.identity {
            return Err(io::ErrorKind::NotFound.into());
        }
        (&self.file).write_all(text.as_bytes())
    }
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let known = file.metadata()?;
    Ok((known.dev(), known.ino()))
}

/// Writes the summary if it was requested.
pub(crate) fn write(process: &Process) {
    if let Some(paper) = process.summary {
        // There is no other place to report it.
        let _ = paper.write(&text(process));
    }
}

/// Returns the program's name, as the kernel has it.
fn name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    if name.trim().is_empty() { "?".into() } else { name.trim().into() }
}

fn text(process: &Process) -> String {
    let tally = process.tally;
    let (served, passed) = (tally.served.calls(), tally.all_passed());
    let asked = served + passed.iter().map(|(_, count)| count).sum::<u64>();
    let mut text = String::new();
    let who = format!("{}[{}]", name(), std::process::id());
    let mut line = |line: String| _ = writeln!(text, "mrrc-preload: {who}: {line}");
    if asked == 0 {
        line("the program registered no memory".into());
        return text;
    }
    line(format!("{} asked for, {} served by a cache", count(asked, "registration"), served));
    for (why, times) in passed {
        line(format!("{} passed on {}", count(times, "registration"), why.why()));
    }
    if served > 0 {
        let (did, undid) = (&tally.registered, &tally.deregistered);
        let avoided = served.saturating_sub(did.calls());
        line(format!(
            "{} made for those, {avoided} avoided ({:.1} % hits)",
            count(did.calls(), "registration"),
            100.0 * avoided as f64 / served as f64
        ));
        // The cost of the rest, by the cost of these.
        let costs = tally.costs();
        let cost = |calls: u64, pages: u64, call: f64, page: f64| call * calls as f64 + page * pages as f64;
        let spared = |all: u64, some: u64| all.saturating_sub(some);
        let (served, returned) = (&tally.served, &tally.returned);
        let registering = cost(avoided, spared(served.pages(), did.pages()), costs.reg_call, costs.reg_page);
        let ended = spared(returned.calls(), undid.calls());
        let pages = spared(returned.pages(), undid.pages());
        let deregistering =
            if undid.calls() > 0 { cost(ended, pages, costs.dereg_call, costs.dereg_page) } else { 0.0 };
        line(format!(
            "ibv_reg_mr took {:.1} ms, {:.1} of them in libibverbs; without a cache about {:.1}",
            served.micros() / 1e3,
            did.micros() / 1e3,
            (did.micros() + registering) / 1e3,
        ));
        line(format!(
            "ibv_dereg_mr took {:.1} ms, and the caches {:.1} in libibverbs; without a cache about {:.1}",
            returned.micros() / 1e3,
            undid.micros() / 1e3,
            (undid.micros() + deregistering) / 1e3,
        ));
    }
    // The program waited for these too, and not in the calls above.
    let (made, ended) = (&tally.made, &tally.ended);
    if made.calls() > 0 {
        let end = match ended.calls() {
            0 => String::new(),
            _ => format!(", and {:.1} to end, in ibv_dealloc_pd", ended.micros() / 1e3),
        };
        let caches = count(made.calls(), "cache");
        line(format!("{caches} took {:.1} ms to make, in ibv_dereg_mr{end}", made.micros() / 1e3));
    }
    text
}

fn count(number: u64, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}
