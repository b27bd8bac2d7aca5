//! memaslap: how it is told what to do, and what it says.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::{KEY, Turn, VALUE};

/// The program, by the name that it has here.
pub(crate) struct Memaslap(&'static str);

impl Memaslap {
    pub(crate) fn find() -> Option<Self> {
        let names = ["memaslap", "memcaslap"];
        names
            .into_iter()
            .find(|name| Command::new(name).arg("--version").stdout(Stdio::null()).status().is_ok())
            .map(Self)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.0
    }

    /// A turn of it. Its CPU is what the system says of all children that have ended.
    pub(crate) fn turn(&self, place: &str, connections: usize, seconds: u64) -> Result<Turn, String> {
        let wrong = |what: String| format!("a turn of {}: {what}", self.0);
        let mut settings = tempfile::NamedTempFile::new().map_err(|error| wrong(error.to_string()))?;
        write!(settings, "key\n{KEY} {KEY} 1\nvalue\n{VALUE} {VALUE} 1\ncmd\n0 0.1\n1 0.9\n")
            .map_err(|error| wrong(error.to_string()))?;
        let before = children();
        let output = Command::new(self.0)
            .args([
                "-s",
                place,
                "-T",
                "1",
                "-c",
                &connections.to_string(),
                "-w",
                "1k",
                "-t",
                &format!("{seconds}s"),
                "-F",
            ])
            .arg(settings.path())
            .output()
            .map_err(|error| wrong(error.to_string()))?;
        let used = children() - before;
        let text = String::from_utf8_lossy(&output.stdout);
        let number = |name: &str| text.split(name).nth(1)?.split_whitespace().next()?.parse::<f64>().ok();
        let (Some(operations), Some(rate)) = (number("Ops:"), number("TPS:")) else {
            let end: String = text.lines().rev().take(5).collect::<Vec<_>>().join("; ");
            return Err(wrong(format!("it ended with {} and said no rate: {end}", output.status)));
        };
        Ok(Turn { rate, cpu: used / operations.max(1.0) })
    }
}

/// Nanoseconds of CPU of the children that have ended.
fn children() -> f64 {
    #[expect(unsafe_code, reason = "getrusage of children, which no safe crate at hand offers")]
    // SAFETY: an all-zero record is a value of the type, and the call overwrites it.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let nanos = |time: libc::timeval| time.tv_sec as f64 * 1e9 + time.tv_usec as f64 * 1e3;
    nanos(usage.ru_utime) + nanos(usage.ru_stime)
}
