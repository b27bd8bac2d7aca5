//! `advise`: which policy and which capacity to run with.

#[cfg(feature = "mrrc")]
use super::calibrate::{Registering, measure};
use super::choices::{Chosen, chosen_of, cost};
use super::failure::{Failure, note};
use super::heading::heading;
use super::interrupt;
use super::output::Output;
use super::progress::Progress;
use super::source::{ABOUT_TRACES, Source};
use super::table::{Side, bytes, ms, percent, table};
use crate::advice::{Advice, LEAST_REQUESTS, POLICIES, Question, Verdict};
use crate::footprint::Footprint;
use crate::policies::PolicyEntry;
use crate::simulate::{ReplayError, Watch};
use mrrc_core::cost::Linear;
use mrrc_core::policy::PolicyKind;
use serde::Serialize;
use std::path::PathBuf;
use traces::Trace;

/// Recommend a policy and a capacity to run with
#[derive(clap::Args, Debug)]
#[command(after_help = help())]
pub(crate) struct Advise {
    /// The trace
    trace: PathBuf,
    /// The policies to choose from, with commas, or all [default: mrrc,pindown,gdsf,s3fifo,sieve,probation]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',', value_parser = chosen_of(of_the_cache()))]
    policy: Vec<Chosen>,
    /// Cost of registrations: paper (a card's, of the paper), fmr, io-uring, a,b,a',b' in microseconds, or measured: by
    /// io_uring on this machine
    #[arg(long, value_name = "MODEL", default_value = "paper", allow_hyphen_values = true, value_parser = costs)]
    cost: Costs,
    /// Saving that a smaller cache may lack compared with the best of all
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = share)]
    within: f64,
    /// Saving that makes a cache worth it
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = share)]
    worth: f64,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Write there instead of to standard output; the file appears when it is whole
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Costs {
    Model(Linear),
    Measured,
}

fn costs(text: &str) -> Result<Costs, String> {
    if text == "measured" { Ok(Costs::Measured) } else { cost(text).map(Costs::Model) }
}

fn share(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').parse().ok().filter(|percent| (0.0..100.0).contains(percent));
    percent.ok_or_else(|| format!("`{text}` is no share: give percent, from 0 to less than 100"))
}

const EXAMPLES: &str = "\
Examples:
  tracesim advise recording.reg                        a table, and variables to run with
  tracesim advise --cost measured recording.reg        with what registrations cost here
  tracesim advise --within 1 -p mrrc recording.reg     larger, for the last percent
  tracesim advise --json recording.reg | jq .variables

Each line of the table is the policy that saves most at that size. The advice is the smallest size
that saves nearly as much as the best of all; there the default, probation, stands if it is within
1 % of the best. Sizes are those of each process's cache. Costs are with the deregistration of
what is left at the end, which compare leaves out. Requests that find all in use are charged what
they cost without a cache, here and there. Measured costs take some seconds. Widening is tried at
the advised size, and MRRC_WIDEN is named if it saves 5 % more of the cost.";

fn help() -> String {
    format!("{EXAMPLES}\n\n{ABOUT_TRACES}")
}

/// Measures what registrations cost on this machine.
#[cfg(feature = "mrrc")]
fn measured() -> Result<Linear, Failure> {
    /// Measurements of each size.
    const ROUNDS: u32 = 300;
    Ok(measure(Registering::IoUring, None, ROUNDS)?.model())
}

#[cfg(not(feature = "mrrc"))]
fn measured() -> Result<Linear, Failure> {
    Err(Failure::work("advise --cost measured: this build has no registrar: build it with the feature mrrc"))
}

/// Returns the policies that can be advised: a program names them in `MRRC_POLICY`.
fn of_the_cache() -> Vec<PolicyEntry> {
    PolicyKind::ALL.iter().map(|&kind| kind.into()).collect()
}

impl Advise {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut out = Output::open(self.output.as_deref(), std::slice::from_ref(&self.trace))?;
        let (trace, footprint) = self.source.load(&self.trace)?;
        let cost = match self.cost {
            Costs::Model(cost) => cost,
            Costs::Measured => measured()?,
        };
        let question =
            Question { policies: self.policies(), cost, within: self.within / 100.0, worth: self.worth / 100.0 };
        let advice = {
            let steps: usize = trace.processes.iter().map(|process| process.steps.len()).sum();
            let replays = Advice::replays(&question, &footprint);
            let progress = Progress::of(&format!("comparing on {}", trace.name), replays * steps as u64);
            let watch = Watch { stop: &interrupt::STOP, replayed: &|steps| progress.step(steps) };
            Advice::of(&question, &trace, &footprint, &watch)
        };
        let advice = advice.map_err(|error| match error {
            ReplayError::Interrupted => Failure::Interrupted,
            error => Failure::work(error),
        })?;
        out.write(|out| {
            if self.json {
                serde_json::to_writer(&mut *out, &Json::of(&trace, &footprint, &cost, &advice))?;
                writeln!(out)
            } else {
                out.write_all(self.shown(&trace, &footprint, &cost, &advice).as_bytes())
            }
        })?;
        out.finish()
    }

    fn policies(&self) -> Vec<PolicyKind> {
        let mut policies = Vec::new();
        for policy in self.policy.iter().flat_map(|chosen| &chosen.policies) {
            // To have no cache is what all are measured by.
            match policy.name().parse() {
                Ok(kind) if kind != PolicyKind::None && !policies.contains(&kind) => policies.push(kind),
                _ => {}
            }
        }
        if policies.is_empty() {
            if !self.policy.is_empty() {
                note("no cache is what all are compared with: the usual policies are taken");
            }
            return POLICIES.to_vec();
        }
        policies
    }

    fn shown(&self, trace: &Trace, footprint: &Footprint, cost: &Linear, advice: &Advice) -> String {
        let heading = heading(trace, footprint);
        let table = lines(advice);
        format!("{heading}{cost}\n\n{table}\n{}", self.verdict(trace, footprint, advice))
    }

    fn verdict(&self, trace: &Trace, footprint: &Footprint, advice: &Advice) -> String {
        let Some((line, policy)) = advice.choice().zip(advice.policy) else {
            return match advice.verdict {
                Verdict::TooShort => format!(
                    "too short to say: {} requests; record a run of {LEAST_REQUESTS} or more\n",
                    footprint.requests
                ),
                _ => format!(
                    "not worth it: no cache saves more than {} of {} ms, and {} would be worth it (--worth). Memory is seldom \
                     registered again before it is unmapped, or is held all the while\n",
                    percent(advice.best),
                    ms(advice.none_us),
                    percent(self.worth / 100.0)
                ),
            };
        };
        let saved = advice.none_us - advice.total_us;
        let mut text = format!(
            "policy {policy}, capacity {}: saves {} of {} ms ({}; the best of all sizes {}); run with these variables:\n\n{}\n",
            bytes(line.capacity_pages),
            ms(saved),
            ms(advice.none_us),
            percent(saved / advice.none_us),
            percent(advice.best),
            variables(policy, line.capacity_pages).map(|(name, value)| format!("{name}={value}")).join(" ")
        );
        if let Some(widened_us) = advice.widened_us.filter(|_| advice.widening_pays()) {
            text += &format!(
                "\nWith MRRC_WIDEN=on it costs {} ms instead of {} ({} less): misses register their neighbours, too. mrrc/README.md has \
                 the limits.\n",
                ms(widened_us),
                ms(advice.total_us),
                percent(1.0 - widened_us / advice.total_us)
            );
        }
        if !advice.is_steady() {
            let [first, second] = advice.halves.map(percent);
            text += &format!(
                "\nBut the trace is not steady: this saves {first} of its first half and {second} of its second. Record a longer run.\n"
            );
        }
        if trace.processes.len() > 1 {
            text += "\nThat is for each process. Under libmrrc_preload.so the protection domains of one process, which a recording tells apart, \
                     have it together: give it once for each.\n";
        }
        if advice.remote_requests > 0 {
            text += &format!(
                "\n{} of the requests give rights to peers; libmrrc_preload.so caches those with MRRC_PRELOAD=trusted only. Its \
                 manual says what that means.\n",
                percent(advice.remote_requests as f64 / footprint.requests.max(1) as f64)
            );
        }
        text
    }
}

/// Returns the variables to run with.
fn variables(policy: &str, pages: u64) -> [(&'static str, String); 2] {
    let kib = pages.saturating_mul(mrrc_core::PAGE) >> 10;
    let size = if kib.is_multiple_of(1024) { format!("{}M", kib >> 10) } else { format!("{kib}K") };
    [("MRRC_POLICY", policy.to_owned()), ("MRRC_CAPACITY", size)]
}

fn lines(advice: &Advice) -> String {
    let line = |(at, line): (usize, &crate::advice::Line)| {
        let mark = match line.refused {
            _ if advice.chosen == Some(at) => "<-".into(),
            0 => String::new(),
            refused => format!("{refused} found all in use"),
        };
        vec![
            bytes(line.capacity_pages),
            line.policy.unwrap_or("-").into(),
            percent(line.hit_ratio),
            ms(line.total_us),
            percent(line.saved),
            mark,
        ]
    };
    let end = |name: &str, us: f64| {
        let saved = if advice.none_us > 0.0 { 1.0 - us / advice.none_us } else { 0.0 };
        vec![name.into(), "-".into(), "-".into(), ms(us), percent(saved), String::new()]
    };
    let rows = std::iter::once(end("none", advice.none_us))
        .chain(advice.lines.iter().enumerate().map(line))
        .chain([end("unlimited", advice.infinite_us)]);
    let sides = [Side::Right, Side::Left, Side::Right, Side::Right, Side::Right, Side::Left];
    table(&sides, &["capacity", "policy", "hits", "cost ms", "saved", ""], rows)
}

/// The object of `--json`.
#[derive(Serialize)]
struct Json<'a> {
    trace: &'a str,
    processes: usize,
    requests: u64,
    footprint_pages: u64,
    /// `a`, `b`, `a'`, `b'`.
    cost_us: [f64; 4],
    capacity_pages: Option<u64>,
    capacity_bytes: Option<u64>,
    saved_us: f64,
    steady: Option<bool>,
    variables: std::collections::BTreeMap<&'static str, String>,
    #[serde(flatten)]
    advice: &'a Advice,
}

impl<'a> Json<'a> {
    fn of(trace: &'a Trace, footprint: &Footprint, cost: &Linear, advice: &'a Advice) -> Self {
        let pages = advice.choice().map(|line| line.capacity_pages);
        let variables = advice.policy.zip(pages).map(|(policy, pages)| variables(policy, pages));
        Self {
            trace: &trace.name,
            processes: trace.processes.len(),
            requests: footprint.requests,
            footprint_pages: footprint.pages,
            cost_us: [cost.reg_page, cost.reg_call, cost.dereg_page, cost.dereg_call],
            capacity_pages: pages,
            capacity_bytes: pages.map(|pages| pages.saturating_mul(mrrc_core::PAGE)),
            saved_us: advice.none_us - advice.total_us,
            steady: pages.map(|_| advice.is_steady()),
            variables: variables.into_iter().flatten().collect(),
            advice,
        }
    }
}
