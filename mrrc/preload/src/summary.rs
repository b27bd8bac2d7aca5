//! The summary of a cache's benefit, printed at the end.

use crate::eligibility::Passed;
use crate::process::{Process, program_name};
use std::fmt::Write as _;

/// Writes the summary if it was requested.
pub(crate) fn write(process: &Process) {
    if let Some(file) = process.summary {
        // There is no other place to report it.
        let _ = file.write(&text(process));
    }
}

fn text(process: &Process) -> String {
    let stats = process.stats;
    let (served, passed) = (stats.served.calls(), stats.all_passed());
    let asked = served + passed.iter().map(|(_, count)| count).sum::<u64>();
    let mut text = String::new();
    let who = format!("{}[{}]", program_name(), std::process::id());
    let mut line = |line: String| _ = writeln!(text, "mrrc-preload: {who}: {line}");
    if asked == 0 {
        line("the program registered no memory".into());
        return text;
    }
    let for_peers = passed.iter().find(|(why, _)| *why == Passed::Remote).map_or(0, |&(_, times)| times);
    if 2 * for_peers > asked {
        line(
            "most registrations have rights for peers: MRRC_PRELOAD=trusted caches them, for jobs whose processes trust \
             each other; MRRC_PRELOAD_REMOTE=windows does for all, where the device's memory windows hold"
                .into(),
        );
    }
    line(format!("{} asked for, {} served by a cache", count(asked, "registration"), served));
    for (why, times) in passed {
        line(format!("{} passed on {}", count(times, "registration"), why.why()));
    }
    if let (bound @ 1.., failures) = stats.windows() {
        line(format!(
            "{} by memory windows: their rights ended with them; {failures} failed",
            count(bound, "registration")
        ));
    }
    if served > 0 {
        let (did, undid) = (&stats.registered, &stats.deregistered);
        let avoided = served.saturating_sub(did.calls());
        line(format!(
            "{} made for those, {avoided} avoided ({:.1} % hits)",
            count(did.calls(), "registration"),
            100.0 * avoided as f64 / served as f64
        ));
        let returned = &stats.returned;
        let (registering, deregistering) = stats.avoided_micros();
        line(format!(
            "ibv_reg_mr took {:.1} ms, {:.1} of them in libibverbs; without a cache about {:.1}",
            stats.served.micros() / 1e3,
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
    let (made, ended) = (&stats.made, &stats.ended);
    if made.calls() > 0 {
        let end = match ended.calls() {
            0 => String::new(),
            _ => format!(", and {:.1} to end, in ibv_dealloc_pd", ended.micros() / 1e3),
        };
        let caches = count(made.calls(), "cache");
        line(format!("{caches} took {:.1} ms to make{end}", made.micros() / 1e3));
    }
    text
}

fn count(number: u64, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}
