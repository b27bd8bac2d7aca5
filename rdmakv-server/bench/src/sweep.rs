//! Several runs of one command.

use std::time::Duration;

use serde::Serialize;

use crate::observe::Second;
use crate::report::Report;
use crate::tally::Kind;

/// A second of a run, kept.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Moment {
    /// When it ended, in seconds since the run began.
    pub at: f64,
    /// How long it was, in seconds: the last one is shorter.
    pub length: f64,
    /// Whether it is in the time that counts.
    pub counts: bool,
    /// Answers a second.
    pub rate: f64,
    /// Latencies in it, in microseconds, of what takes longest to say all: the first kind that there is.
    pub p50: Option<f64>,
    /// One in a hundred.
    pub p99: Option<f64>,
    /// The worst.
    pub max: Option<f64>,
    /// CPUs that the server kept busy in user space.
    pub user: Option<f64>,
    /// And in the kernel.
    pub system: Option<f64>,
}

impl Moment {
    /// Returns the time of a second that began at `before`, in a run that counts from `warm_up` on.
    pub fn of(second: &Second<'_>, before: Duration, warm_up: Duration) -> Self {
        let length = second.at.saturating_sub(before).as_secs_f64().max(1e-9);
        let latencies = Kind::ALL.into_iter().find_map(|kind| second.latencies.of(kind));
        let at = |quantile: f64| latencies.map(|latencies| latencies.value_at_quantile(quantile) as f64 / 1e3);
        Self {
            at: second.at.as_secs_f64(),
            length,
            counts: before >= warm_up,
            rate: second.answers as f64 / length,
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
            user: second.server.map(|(user, _)| user / 1e9 / length),
            system: second.server.map(|(_, system)| system / 1e9 / length),
        }
    }
}

/// One of the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Stage {
    /// Runs of one group are shown together.
    #[serde(skip)]
    pub group: String,
    /// Its label among the others of its group, if that is shorter than its name.
    #[serde(skip)]
    pub short: String,
    /// Its label among the others; empty if there is but one for a server.
    pub name: String,
    /// The report.
    pub report: Report,
    /// Each second of it.
    pub moments: Vec<Moment>,
}

impl Stage {
    /// Returns its name within its group.
    pub(crate) fn short(&self, with_server: bool) -> String {
        match (self.short.is_empty(), with_server) {
            (true, _) => self.label(with_server),
            (false, false) => self.short.clone(),
            (false, true) => format!("{}, {}", self.short, self.report.target),
        }
    }

    /// Returns its name where the servers' names are not beside it.
    pub fn label(&self, with_server: bool) -> String {
        match (self.name.is_empty(), with_server) {
            (true, _) => self.report.target.clone(),
            (false, false) => self.name.clone(),
            (false, true) => format!("{}, {}", self.name, self.report.target),
        }
    }
}

/// All of them.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Sweep {
    /// The command's name.
    pub command: String,
    /// The whole of it, as a shell takes it.
    pub command_line: String,
    /// The subject.
    #[serde(skip)]
    pub title: String,
    /// The runs, in their order.
    pub stages: Vec<Stage>,
    /// Why a run could not begin, after which there were no more.
    pub failed: Option<String>,
}

impl Sweep {
    /// One without runs.
    pub fn new(command: &str, title: &str, arguments: impl IntoIterator<Item = String>) -> Self {
        // A null byte cannot be in an argument.
        let quoted = arguments.into_iter().map(|word| shlex::try_quote(&word).map(Into::into).unwrap_or(word));
        let command_line = std::iter::once("rdmakv-bench".to_owned()).chain(quoted).collect::<Vec<_>>().join(" ");
        Self { command: command.into(), command_line, title: title.into(), stages: Vec::new(), failed: None }
    }

    /// Returns whether runs went to more than one server.
    pub fn has_servers(&self) -> bool {
        self.stages.windows(2).any(|pair| pair[0].report.target != pair[1].report.target)
    }

    /// Why the command is to end as one that failed, if it is.
    pub fn why_not_good(&self) -> Option<String> {
        let bad = self.stages.iter().find(|stage| !stage.report.is_good());
        self.failed.clone().or_else(|| {
            let report = &bad?.report;
            let why = report.ended_early.iter().chain(&report.invalid_because).next().cloned();
            Some(why.unwrap_or_else(|| "values were not what was written".into()))
        })
    }

    /// As JSON, in one line.
    pub fn json(&self) -> String {
        // Numbers, texts and lists of them can always be written.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}
