//! `replay`: one trace through some caches.

use super::choices::{Choices, Chosen, chosen_of};
use super::failure::Failure;
use super::form::Form;
use super::hanging::hanging;
use super::heading::heading;
use super::interrupt;
use super::run::run;
use super::source::{ABOUT_TRACES, Source};
use super::table::{Side, ms, or_dash, percent, table};
use super::widening;
use crate::footprint::Footprint;
use crate::policies::{PolicyEntry, builtin};
use crate::row::{Row, level};
use crate::sizes::Capacity;
use mrrc_core::policy::PolicyKind;
use std::path::PathBuf;

/// Replay a trace through one or more caches
#[derive(clap::Args, Debug)]
#[command(after_help = help(&builtin()))]
pub(crate) struct Replay {
    /// The trace
    trace: PathBuf,
    /// Eviction policies; several with commas, or all
    #[arg(short, long, value_name = "NAME", value_delimiter = ',', default_value = PolicyKind::default().name(), value_parser = chosen_of(builtin()))]
    policy: Vec<Chosen>,
    /// Pages that may be registered at once in each process's cache: 8192p, 32MiB (or 32M; 32MB is 32,000,000 bytes), or 5%
    /// of the footprint; several with commas
    #[arg(short, long, value_name = "SIZE", value_delimiter = ',', allow_hyphen_values = true, default_value = "10%")]
    capacity: Vec<Capacity>,
    /// Replay through the real cache, with real pins at addresses of this process, and compare what comes of it: one policy
    /// and one capacity
    #[arg(long, value_name = "REGISTRAR", conflicts_with_all = ["csv"])]
    real: Option<Pins>,
    /// With --real, how far what is measured may be from what is predicted; further fails
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, requires = "real")]
    tolerance: f64,
    #[command(flatten)]
    choices: Choices,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    form: Form,
}

/// The way of pinning.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Pins {
    /// Fixed buffers of an io_uring, on any Linux since 5.19
    IoUring,
}

const EXAMPLES: &str = "\
Examples:
  tracesim replay requests.csv                                the default at 10 % of the footprint
  tracesim replay -p mrrc,pindown,none -c 32MiB requests.csv  three policies, room for 8,192 pages
  tracesim replay -p all -c 1%,5%,25% --json requests.csv     one JSON object a line
  tracesim replay --cost 0.035,0.27,0.011,0.24 requests.csv   with costs measured elsewhere
  tracesim replay --match exact --dereg-cost region requests.csv
  tracesim replay --real io-uring -c 8MiB recording.reg       predicted, and what the kernel did

A hit is a request whose pages are all registered. Costs are milliseconds by the cost model; the
bound is what no cache of that capacity goes below. A dash stands where it does not hold.";

/// Examples, and the policies that there are.
pub(super) fn help(policies: &[PolicyEntry]) -> String {
    let line = |policy: &PolicyEntry| format!("\n{}", hanging(policy.name(), 16, policy.help()));
    format!("{EXAMPLES}\n\nPolicies:{}\n\n{ABOUT_TRACES}", policies.iter().map(line).collect::<String>())
}

impl Replay {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let sweep = self.choices.sweep(&self.policy, &self.capacity, false)?;
        if self.real.is_some() {
            let is_asked = self.choices.asks_to_widen(&self.policy);
            return super::real::run(&sweep, is_asked, &self.source, &self.trace, &self.form, self.tolerance);
        }
        let mut out = self.form.open(std::slice::from_ref(&self.trace))?;
        let trace = self.source.load_trace(&self.trace)?;
        widening::tell(&sweep, self.choices.asks_to_widen(&self.policy), &trace);
        // It takes a pass over the trace.
        let is_needed = self.form.is_table() || self.capacity.iter().any(Capacity::is_share);
        let footprint = if is_needed { Footprint::of(&trace) } else { Footprint::default() };
        let finished = run(&sweep, &trace, &footprint, &sweep.cells())?;
        let mut rows: Vec<Row> = finished.into_iter().flatten().map(|finished| finished.row).collect();
        level(&mut rows);
        if interrupt::came() {
            out = out.given_up();
        }
        self.form.write(&mut out, &rows, || {
            format!("{}{}\n{}", heading(&trace, &footprint), sweep.base.cost, results(&rows))
        })?;
        out.finish()?;
        if interrupt::came() { Err(Failure::Unfinished(rows.len(), sweep.cells().len())) } else { Ok(()) }
    }
}

/// Returns a line for each result; how many requests were refused only where some were.
fn results(rows: &[Row]) -> String {
    let refusals = rows.iter().any(|row| row.refused.is_some());
    let mut header = vec![
        "policy",
        "pages",
        "hits",
        "page hits",
        "bypass",
        "regs",
        "reg pages",
        "deregs",
        "batches",
        "reg ms",
        "dereg ms",
        "total ms",
        "bound ms",
    ];
    header.extend(refusals.then_some("refused"));
    let line = |row: &Row| {
        let mut line = vec![
            row.policy.clone(),
            row.capacity_pages.to_string(),
            percent(row.hit_ratio),
            percent(row.page_hit_ratio),
            row.bypass.to_string(),
            row.regs.to_string(),
            row.reg_pages.to_string(),
            row.deregs.to_string(),
            row.dereg_batches.to_string(),
            ms(row.reg_us),
            ms(row.dereg_us),
            ms(row.total_us),
            or_dash(row.lower_bound_us.map(ms)),
        ];
        line.extend(refusals.then(|| row.refused.unwrap_or(0).to_string()));
        line
    };
    table(&[Side::Left, Side::Right], &header, rows.iter().map(line))
}
