//! The counters of the process as a Prometheus text file, for node_exporter and its like.
//!
//! `MRRC_METRICS=FILE`: a thread writes a new file beside it every [`PERIOD`] and gives it the name, so that readers find a whole
//! file. The end of the process writes the last one. The thread is started with the first protection domain, so a process
//! without any has neither a thread nor a file.
//!
//! The file replaces a regular file only, never a device or a link. The one beside it is always new: its name can be predicted, and
//! others may be able to write in the folder.

use crate::output::REMEDY;
use crate::process::{Process, program_name};
use crate::reentrancy::Inside;
use mrrc::PAGE;
use std::fmt::{Display, Write as _};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time between two files.
const PERIOD: Duration = Duration::from_secs(10);

/// Begins to write them, if that was asked for. Only the first call in a process has an effect.
pub(crate) fn begin(process: &'static Process) {
    let Some(file) = process.begin_metrics() else { return };
    if let Err(error) = write(process, &file) {
        process.report(&format!("write MRRC_METRICS={}: {error}: {REMEDY} (there will be no metrics)", file.display()));
        return;
    }
    process.keep_metrics();
    let again = move || {
        let _inside = Inside::again();
        loop {
            std::thread::sleep(PERIOD);
            // A file that cannot be written now may be written the next time.
            let _ = write(process, &file);
        }
    };
    if let Err(error) = mrrc::spawn_own_thread("mrrc-metrics", again) {
        process.report(&format!("write MRRC_METRICS: {error}; the file is written at the end only"));
    }
}

/// Writes the last file, if there was one.
pub(crate) fn end(process: &Process) {
    if let Some(file) = process.metrics_file() {
        // There is no other place to report it.
        let _ = write(process, &file);
    }
}

/// Writes a file beside it, and gives it the name.
fn write(process: &Process, file: &Path) -> io::Result<()> {
    let text = text(process);
    let _one = process.writing();
    replace(file, text.as_bytes())
}

/// Replaces a regular file, or makes it. Nothing of it stays where that fails.
fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    match fs::symlink_metadata(file) {
        Ok(there) if !there.is_file() => {
            return Err(io::Error::other("it is there, and no regular file: name another"));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let beside = beside(file);
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut new = File::create_new(&beside)?;
    new.write_all(text).and_then(|()| fs::rename(&beside, file)).inspect_err(|_| _ = fs::remove_file(&beside))
}

/// Returns a name in the same folder that no other process writes, and that no collector of `*.prom` reads.
fn beside(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    file.with_file_name(name)
}

/// Returns the only value of a metric without labels of its own.
fn plain(value: &dyn Display) -> [(String, &dyn Display); 1] {
    [(String::new(), value)]
}

fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE)
}

/// Returns the labels of all samples. Without them a collector takes the same metric of two processes for one that is there twice.
fn process_labels(program: &str, process: u32) -> String {
    let mut escaped = String::with_capacity(program.len());
    for letter in program.chars() {
        match letter {
            '\\' | '"' => escaped.extend(['\\', letter]),
            '\n' => escaped.push_str("\\n"),
            other => escaped.push(other),
        }
    }
    format!("program=\"{escaped}\",pid=\"{process}\"")
}

/// Returns all metrics. The names and their meanings are in README.md.
pub(crate) fn text(process: &Process) -> String {
    let mut text = String::new();
    let of = process_labels(&program_name(), std::process::id());
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, &dyn Display)]| {
        _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (label, value) in values {
            _ = writeln!(text, "{name}{{{of}{label}}} {value}");
        }
    };
    let stats = process.stats;
    let served = stats.served.calls();
    let passed = stats.passed_by_label();
    let totals = process.totals();
    let all: u64 = served + passed.iter().map(|(_, count)| count).sum::<u64>();
    metric("mrrc_requests_total", "counter", "Registrations that the program asked for.", &plain(&all));
    metric("mrrc_requests_served_total", "counter", "Those that a cache served.", &plain(&served));
    let by_reason: Vec<_> =
        passed.iter().map(|(label, count)| (format!(",reason=\"{label}\""), count as &dyn Display)).collect();
    metric("mrrc_requests_passed_total", "counter", "Those that were passed on to libibverbs, by reason.", &by_reason);
    let hits = served.saturating_sub(stats.registered.calls());
    metric("mrrc_hits_total", "counter", "Those that a cache served without a registration.", &plain(&hits));
    let counters: [(&str, &str, u64); 6] = [
        ("mrrc_registrations_total", "Registrations that the caches made.", stats.registered.calls()),
        ("mrrc_deregistrations_total", "Registrations that the caches ended.", stats.deregistered.calls()),
        ("mrrc_evictions_total", "Regions that left to make room.", totals.evicted),
        ("mrrc_invalidations_total", "Regions that left because their memory changed.", totals.invalidated),
        ("mrrc_expired_total", "Regions that left because no registration used them for too long.", totals.expired),
        (
            "mrrc_flushed_total",
            "Regions that left because the program needed the room, or closed their domain.",
            totals.flushed,
        ),
    ];
    for (name, help, value) in counters {
        metric(name, "counter", help, &plain(&value));
    }
    let gauges: [(&str, &str, u64); 4] = [
        ("mrrc_registered_bytes", "Bytes that the caches have registered.", bytes(stats.budget.pages())),
        ("mrrc_unheld_bytes", "Bytes of those that no registration of the program uses.", bytes(totals.unheld_pages)),
        ("mrrc_dead_pin_bytes", "Bytes of regions whose memory changed, to be deregistered.", bytes(totals.dead_pages)),
        ("mrrc_caches", "Caches that there are.", totals.caches),
    ];
    for (name, help, value) in gauges {
        metric(name, "gauge", help, &plain(&value));
    }
    let windows = [(",state=\"bound\"", totals.windows_bound), (",state=\"idle\"", totals.windows_idle)];
    let by_state: Vec<_> = windows.iter().map(|(label, count)| ((*label).into(), count as &dyn Display)).collect();
    metric("mrrc_windows", "gauge", "Memory windows that there are, by their state.", &by_state);
    let (bindings, failures) = stats.windows();
    metric("mrrc_window_bindings_total", "counter", "Memory windows that were bound.", &plain(&bindings));
    let help = "Memory windows that could not be bound or unbound.";
    metric("mrrc_window_failures_total", "counter", help, &plain(&failures));
    // Only caches have a limit.
    if totals.caches > 0 {
        let limit = bytes(stats.budget.limit());
        metric("mrrc_capacity_bytes", "gauge", "The most bytes that the caches may have registered.", &plain(&limit));
    }
    let dead = totals.longest_dead.as_secs_f64();
    metric(
        "mrrc_dead_pin_seconds",
        "gauge",
        "The longest time that a region stayed after its memory changed.",
        &plain(&dead),
    );
    let saved = stats.saved_micros() / 1e6;
    metric("mrrc_saved_seconds", "gauge", "Time that the caches saved the program, estimated.", &plain(&saved));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_beside_its_place() {
        let name = beside(Path::new("/run/metrics/job.prom"));
        assert_eq!(name, PathBuf::from(format!("/run/metrics/job.prom.{}.new", std::process::id())));
        assert_eq!(beside(Path::new("job.prom")).parent(), Some(Path::new("")));
    }

    #[test]
    fn labels_escape_the_programs_name() {
        assert_eq!(process_labels("each", 7), r#"program="each",pid="7""#);
        assert_eq!(process_labels("a\"b\\c\nd", 7), r#"program="a\"b\\c\nd",pid="7""#);
    }

    #[test]
    fn a_link_beside_the_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [file, other] = ["job.prom", "other"].map(|name| folder.path().join(name));
        fs::write(&other, "of another").unwrap();
        std::os::unix::fs::symlink(&other, beside(&file)).unwrap();
        replace(&file, b"metrics").unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"of another");
        assert_eq!(fs::read(&file).unwrap(), b"metrics");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn only_a_regular_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, socket] = ["file", "link", "socket"].map(|name| folder.path().join(name));
        fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for special in [&link, &socket, &folder.path().to_owned()] {
            let before = fs::symlink_metadata(special).unwrap().file_type();
            assert!(replace(special, b"metrics").is_err(), "{special:?}");
            assert_eq!(fs::symlink_metadata(special).unwrap().file_type(), before);
        }
        assert_eq!(fs::read(&file).unwrap(), b"before");
        replace(&file, b"metrics").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"metrics");
    }
}
