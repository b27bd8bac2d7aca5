//! The miss-penalty study of the survey (sections 5.2 and 6.1), on servers with and without a second tier.
//!
//! Each server is started for each pattern, with the same memory and bytes of flash, filled, and read. What a miss costs is computed
//! afterwards, so that one measurement serves for all penalties.

mod process;
mod table;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

use crate::keys::Choice;
use crate::plan::Plan;
use crate::report::{Report, Summary};
use crate::run::run;
use crate::schedule::Arrivals;
use crate::sizes::Sizes;
use crate::tally::Kind;
use crate::traffic::{Mix, Traffic};

use process::Server;
pub(crate) use process::{Amounts, Contender, Part, Programs, beside_us};
pub(crate) use table::render;

/// Values that are written a second before the measurement. More would overtake what the servers write to flash.
const LOAD_BYTES: f64 = 96e6;
/// Values that are written a second where flash is 80 % full.
const FULL_BYTES: f64 = 64e6;
/// After the load, for what is on its way to flash.
const SETTLE: Duration = Duration::from_millis(500);
/// MiB of flash at most where it is 80 % full: it is written several times over.
const FULL_FLASH: u64 = 256;

/// The parameters of a study.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    pub(crate) contenders: Vec<Contender>,
    pub(crate) programs: Programs,
    pub(crate) parts: Vec<Part>,
    /// Values of ext_max_frag with which ours is measured, too, where flash is 80 % full.
    pub(crate) max_frags: Vec<f64>,
    pub(crate) amounts: Amounts,
    pub(crate) patterns: Vec<Choice>,
    /// Milliseconds of a miss.
    pub(crate) penalties: Vec<f64>,
    /// Bytes of a value.
    pub(crate) size: usize,
    /// Bytes of all values, in times of the memory.
    pub(crate) times: f64,
    pub(crate) connections: usize,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
    pub(crate) interrupt: Arc<AtomicBool>,
}

impl Parameters {
    fn keys_of(&self, bytes: f64) -> u64 {
        ((bytes / self.size as f64) as u64).max(16)
    }
    fn keys(&self) -> u64 {
        self.keys_of(self.times * (self.amounts.memory << 20) as f64)
    }
    /// Keys whose values fit well into memory.
    fn few(&self) -> u64 {
        self.keys_of((self.amounts.memory << 20) as f64 / 8.0)
    }
}

/// The figures of one server in one part of the study.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// GETs and SETs a second.
    pub(crate) rate: f64,
    /// GETs that found a value, of all.
    pub(crate) hit_ratio: f64,
    /// GETs whose value was read from flash, of all.
    pub(crate) flash_share: Option<f64>,
    /// Microseconds of a GET, without penalties.
    pub(crate) mean: f64,
    /// Microseconds of a GET with its share of misses, for each penalty.
    pub(crate) with_penalty: Vec<f64>,
    /// Microseconds.
    pub(crate) p50: f64,
    /// Microseconds.
    pub(crate) p99: f64,
    /// Microseconds of the server's CPU for an operation.
    pub(crate) cpu: Option<f64>,
    /// Bytes of memory that were resident in the end.
    pub(crate) resident: u64,
    /// Bytes written to flash for one admitted.
    pub(crate) write_amplification: Option<f64>,
}

/// A row: one server in one part.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) part: String,
    pub(crate) contender: Contender,
    pub(crate) figures: Figures,
}

/// A goal, and whether it is met.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Goal {
    pub(crate) name: String,
    pub(crate) ours: f64,
    pub(crate) limit: f64,
    pub(crate) met: bool,
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Study {
    pub(crate) amounts: Amounts,
    pub(crate) keys: u64,
    pub(crate) size: usize,
    pub(crate) connections: usize,
    pub(crate) penalties: Vec<f64>,
    pub(crate) rounds: usize,
    pub(crate) rows: Vec<Row>,
    pub(crate) goals: Vec<Goal>,
    pub(crate) ended_early: bool,
}

/// Parts that are no patterns.
pub(crate) const RAM: &str = "ram only";
pub(crate) const FULL: &str = "80 % full";
pub(crate) const BESIDE: &str = "ram, busy flash";
pub(crate) const WITHOUT: &str = "ram, no flash";

/// Runs a study. `tell` gets a line for each step.
///
/// # Errors
///
/// A server that is missing, or ended, or refuses.
pub(crate) fn study(parameters: &Parameters, tell: &dyn Fn(&str)) -> Result<Study, String> {
    let mut all: Vec<Row> = Vec::new();
    for round in 1..=parameters.rounds {
        let patterns = parameters.patterns.iter().filter(|_| parameters.parts.contains(&Part::Patterns));
        for &pattern in patterns {
            for &contender in &parameters.contenders {
                tell(&format!("round {round}, {pattern}, {}", contender.name()));
                all.extend(of_pattern(parameters, contender, pattern)?);
            }
        }
        let with_flash = || parameters.contenders.iter().filter(|contender| contender.has_flash());
        for &contender in with_flash().filter(|_| parameters.parts.contains(&Part::Tiers)) {
            tell(&format!("round {round}, flash and memory alone, {}", contender.name()));
            all.extend(of_tiers(parameters, contender)?);
        }
        for &contender in with_flash().filter(|_| parameters.parts.contains(&Part::Full)) {
            let shares = parameters.max_frags.iter().filter(|_| contender == Contender::Ours);
            for share in [None].into_iter().chain(shares.map(|&share| Some(share))) {
                let part = share.map_or(FULL.to_owned(), |share| format!("{FULL}, {share}"));
                tell(&format!("round {round}, {part}, {}", contender.name()));
                all.extend(of_full(parameters, contender, &part, share)?);
            }
        }
    }
    let rows = medians(&all);
    let goals = goals(&rows, parameters);
    Ok(Study {
        amounts: parameters.amounts,
        keys: parameters.keys(),
        size: parameters.size,
        connections: parameters.connections,
        penalties: parameters.penalties.clone(),
        rounds: parameters.rounds,
        rows,
        goals,
        ended_early: parameters.interrupt.load(Relaxed),
    })
}

/// A server with its keys written.
struct Filled<'a> {
    parameters: &'a Parameters,
    server: Server,
    contender: Contender,
    plan: Plan,
}

impl<'a> Filled<'a> {
    /// Starts one and writes the keys; None if the study is interrupted.
    fn new(
        parameters: &'a Parameters,
        contender: Contender,
        amounts: Amounts,
        keys: u64,
        max_frag: Option<f64>,
    ) -> Result<Option<Self>, String> {
        if parameters.interrupt.load(Relaxed) {
            return Ok(None);
        }
        let server = Server::start(contender, &parameters.programs, amounts, max_frag)?;
        let mut plan = Plan::new(server.target());
        plan.keys = keys;
        plan.sizes = sizes(parameters.size)?;
        plan.connections = parameters.connections;
        plan.load = false;
        plan.server_pid = Some(server.pid());
        plan.timeout = Duration::from_secs(20);
        plan.interrupt = Some(Arc::clone(&parameters.interrupt));
        let mut loading = plan.clone();
        loading.traffic = Traffic::Load;
        loading.connections = 2;
        loading.rate = Some(LOAD_BYTES / parameters.size as f64);
        loading.arrivals = Arrivals::Constant;
        (loading.warm_up, loading.duration) = (Duration::ZERO, Duration::from_secs(86_400));
        run(&loading)?;
        (plan.warm_up, plan.duration) = (Duration::ZERO, parameters.duration);
        std::thread::sleep(SETTLE);
        let is_over = parameters.interrupt.load(Relaxed);
        Ok((!is_over).then_some(Self { parameters, server, contender, plan }))
    }

    /// Runs without counting, then counts.
    fn measure(&self, part: &str, plan: &Plan) -> Result<Row, String> {
        let warm = Plan { duration: self.parameters.warm_up.max(Duration::from_millis(10)), ..plan.clone() };
        run(&warm)?;
        let before = self.server.stats()?;
        let report = run(plan)?;
        self.row(part, &report, &before)
    }

    fn row(&self, part: &str, report: &Report, before: &HashMap<String, u64>) -> Result<Row, String> {
        let after = self.server.stats()?;
        let figures = figures(report, before, &after, self);
        Ok(Row { part: part.to_owned(), contender: self.contender, figures })
    }
}

fn sizes(size: usize) -> Result<Sizes, String> {
    size.to_string().parse()
}

fn figures(
    report: &Report,
    before: &HashMap<String, u64>,
    after: &HashMap<String, u64>,
    filled: &Filled<'_>,
) -> Figures {
    let more = |name: &str| {
        let (before, after) = (before.get(name), after.get(name));
        after.map(|after| after.saturating_sub(*before.unwrap_or(&0)) as f64)
    };
    let gets = (report.hits + report.misses) as f64;
    let hit_ratio = if gets > 0.0 { report.hits as f64 / gets } else { 0.0 };
    let get = report.latencies.get(&Kind::Get).or(report.latencies.get(&Kind::Set));
    let [mean, p50, p99] = get.map_or([0.0; 3], |&Summary { mean, p50, p99, .. }| [mean, p50, p99]);
    let has_flash = filled.contender.has_flash();
    let admitted = match filled.contender {
        Contender::Ours => more("flash_admitted_bytes"),
        Contender::Memcached => None,
        // It counts bytes of what it moves, too.
        Contender::Extstore => {
            let (all, moved) = (more("extstore_objects_written"), more("extstore_compact_rescues"));
            let share = all.zip(moved).filter(|(all, _)| *all > 0.0).map(|(all, moved)| 1.0 - moved / all);
            share.zip(more("extstore_bytes_written")).map(|(share, bytes)| share * bytes)
        }
    };
    let written = more("extstore_bytes_written").zip(admitted).filter(|(_, admitted)| *admitted > 0.0);
    let penalties = &filled.parameters.penalties;
    Figures {
        rate: report.rate,
        hit_ratio,
        flash_share: more("get_extstore").filter(|_| has_flash && gets > 0.0).map(|reads| reads / gets),
        mean,
        with_penalty: penalties.iter().map(|penalty| mean + (1.0 - hit_ratio) * penalty * 1e3).collect(),
        p50,
        p99,
        cpu: report.server.as_ref().map(|server| server.ns() / 1e3),
        resident: filled.server.resident(),
        write_amplification: written.map(|(written, admitted)| written / admitted),
    }
}

/// GETs by a law; what is missed is written.
fn of_pattern(parameters: &Parameters, contender: Contender, pattern: Choice) -> Result<Option<Row>, String> {
    let Some(filled) = Filled::new(parameters, contender, parameters.amounts, parameters.keys(), None)? else {
        return Ok(None);
    };
    let traffic = Traffic::Mix(Mix { reads: 1.0, fill: true, ..Mix::default() });
    let plan = Plan { choice: pattern, traffic, ..filled.plan.clone() };
    filled.measure(&pattern.to_string(), &plan).map(Some)
}

/// GETs of memory alone, and of memory while others read flash.
fn of_tiers(parameters: &Parameters, contender: Contender) -> Result<Vec<Row>, String> {
    let Some(filled) = Filled::new(parameters, contender, parameters.amounts, parameters.keys(), None)? else {
        return Ok(Vec::new());
    };
    let gets = Traffic::Mix(Mix { reads: 1.0, fill: true, ..Mix::default() });
    // Written last, and asked for all the time: they stay in memory.
    let few = Plan { keys: parameters.few(), key_prefix: "few".into(), traffic: gets.clone(), ..filled.plan.clone() };
    run(&Plan { load: true, duration: Duration::from_millis(100), ..few.clone() })?;
    let mut rows = vec![filled.measure(RAM, &few)?];
    let flash = Plan { choice: Choice::Uniform, traffic: gets.clone(), ..filled.plan.clone() };
    // Small values that are asked for all the time, one at a time.
    let mut hot = Plan { keys: 200, key_prefix: "hot".into(), connections: 1, traffic: gets, ..filled.plan.clone() };
    hot.sizes = sizes(1024)?;
    hot.load = true;
    let before = filled.server.stats()?;
    let (beside, busy) = at_once(&hot, &flash)?;
    rows.push(filled.row(BESIDE, &beside, &before)?);
    // As much traffic, from memory.
    hot.load = false;
    run(&Plan { load: true, duration: Duration::from_millis(100), ..few.clone() })?;
    let before = filled.server.stats()?;
    let (without, _) = at_once(&hot, &Plan { rate: Some(busy.rate.max(1.0)), ..few })?;
    rows.push(filled.row(WITHOUT, &without, &before)?);
    Ok(rows)
}

/// Runs both, the second from before the first begins to its end.
fn at_once(plan: &Plan, other: &Plan) -> Result<(Report, Report), String> {
    let lead = Duration::from_millis(300);
    let other = Plan { duration: plan.duration + lead * 2, ..other.clone() };
    std::thread::scope(|scope| {
        let other = scope.spawn(move || run(&other));
        std::thread::sleep(lead);
        let report = run(plan);
        let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((report?, other?))
    })
}

/// GETs and SETs of keys that fill 80 % of flash.
fn of_full(
    parameters: &Parameters,
    contender: Contender,
    part: &str,
    max_frag: Option<f64>,
) -> Result<Option<Row>, String> {
    let amounts = Amounts { flash: parameters.amounts.flash.min(FULL_FLASH), ..parameters.amounts };
    let keys = parameters.keys_of(0.8 * (amounts.flash << 20) as f64);
    let Some(filled) = Filled::new(parameters, contender, amounts, keys, max_frag)? else { return Ok(None) };
    let traffic = Traffic::Mix(Mix { reads: 0.5, updates: 0.5, fill: true, ..Mix::default() });
    // At one rate: the faster server would write more, and then lose what its device cannot take.
    let rate = Some(2.0 * FULL_BYTES / parameters.size as f64);
    // Longer than the others: flash is to be written anew before.
    let duration = parameters.duration * 2;
    let plan = Plan { choice: Choice::Uniform, traffic, rate, duration, ..filled.plan.clone() };
    filled.measure(part, &plan).map(Some)
}

/// Returns each row once, with the medians of its rounds.
fn medians(all: &[Row]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for row in all {
        if rows.iter().any(|done| done.part == row.part && done.contender == row.contender) {
            continue;
        }
        let same: Vec<&Figures> = all
            .iter()
            .filter(|other| other.part == row.part && other.contender == row.contender)
            .map(|other| &other.figures)
            .collect();
        let of = |field: &dyn Fn(&Figures) -> f64| median(same.iter().map(|figures| field(figures)).collect());
        let optional = |field: &dyn Fn(&Figures) -> Option<f64>| {
            let values: Vec<f64> = same.iter().filter_map(|figures| field(figures)).collect();
            (!values.is_empty()).then(|| median(values))
        };
        let figures = Figures {
            rate: of(&|figures| figures.rate),
            hit_ratio: of(&|figures| figures.hit_ratio),
            flash_share: optional(&|figures| figures.flash_share),
            mean: of(&|figures| figures.mean),
            with_penalty: (0..row.figures.with_penalty.len())
                .map(|at| of(&|figures| figures.with_penalty[at]))
                .collect(),
            p50: of(&|figures| figures.p50),
            p99: of(&|figures| figures.p99),
            cpu: optional(&|figures| figures.cpu),
            resident: of(&|figures| figures.resident as f64) as u64,
            write_amplification: optional(&|figures| figures.write_amplification),
        };
        rows.push(Row { figures, ..row.clone() });
    }
    rows
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Compares ours with extstore, and with limits.
fn goals(rows: &[Row], parameters: &Parameters) -> Vec<Goal> {
    let find = |part: &str, contender| {
        rows.iter().find(|row| row.part == part && row.contender == contender).map(|row| &row.figures)
    };
    let mut goals = Vec::new();
    let mut goal = |name: String, ours: f64, limit: f64, met: bool| goals.push(Goal { name, ours, limit, met });
    let five = parameters.penalties.iter().position(|&penalty| penalty == 5.0);
    let memory = (parameters.amounts.memory << 20) as f64;
    for pattern in &parameters.patterns {
        let part = pattern.to_string();
        let Some(ours) = find(&part, Contender::Ours) else { continue };
        let resident = ours.resident as f64 / memory;
        goal(format!("{part}: resident bytes, in times of -m"), resident, 1.05, resident <= 1.05);
        let Some(theirs) = find(&part, Contender::Extstore) else { continue };
        let (mine, other) = (ours.hit_ratio, theirs.hit_ratio);
        goal(format!("{part}: hit ratio, extstore's at least"), mine, other, mine >= other);
        if let Some(at) = five {
            let (mine, limit) = (ours.with_penalty[at], 0.9 * theirs.with_penalty[at]);
            goal(format!("{part}: us of a GET at 5 ms, 0.9 x extstore's at most"), mine, limit, mine <= limit);
        }
    }
    let cpu = |contender| of_flash(find(&Choice::Uniform.to_string(), contender)?, find(RAM, contender)?.cpu?);
    if let (Some(mine), Some(theirs)) = (cpu(Contender::Ours), cpu(Contender::Extstore)) {
        let limit = 0.8 * theirs;
        goal("us of CPU of a GET from flash, 0.8 x extstore's at most".into(), mine, limit, mine <= limit);
    }
    if let (Some(beside), Some(without)) = (find(BESIDE, Contender::Ours), find(WITHOUT, Contender::Ours)) {
        let limit = 1.2 * without.p99;
        let name = "us p99 of GETs from memory beside busy flash, 1.2 x without at most";
        goal(name.into(), beside.p99, limit, beside.p99 <= limit);
    }
    if let Some(amplification) = find(FULL, Contender::Ours).and_then(|figures| figures.write_amplification) {
        goal("bytes written for one admitted, 80 % full".into(), amplification, 1.3, amplification <= 1.3);
    }
    goals
}

/// Returns the microseconds of CPU of a GET from flash, if one from memory takes so many.
fn of_flash(mixed: &Figures, ram: f64) -> Option<f64> {
    let share = mixed.flash_share.filter(|share| *share > 0.0)?;
    Some((mixed.cpu? - (1.0 - share) * ram) / share)
}

/// Returns the folder that is used if none is named.
pub(crate) fn usual_folder() -> PathBuf {
    std::env::temp_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_rounds() {
        assert_eq!((median(vec![]), median(vec![3.0, 1.0, 2.0]), median(vec![4.0, 1.0])), (0.0, 2.0, 2.5));
    }

    fn row(part: &str, contender: Contender, hit_ratio: f64, mean: f64) -> Row {
        let with_penalty = vec![mean + (1.0 - hit_ratio) * 5e3];
        let figures = Figures { hit_ratio, mean, with_penalty, resident: 64 << 20, ..Figures::default() };
        Row { part: part.into(), contender, figures }
    }

    fn parameters() -> Parameters {
        let programs = Programs { ours: "a".into(), memcached: "b".into(), folder: "/".into() };
        Parameters {
            parts: vec![Part::Patterns, Part::Tiers, Part::Full],
            max_frags: Vec::new(),
            contenders: vec![Contender::Ours, Contender::Extstore],
            programs,
            amounts: Amounts { memory: 64, flash: 256, threads: 1, page_cache: true },
            patterns: vec![Choice::Uniform],
            penalties: vec![5.0],
            size: 1024,
            times: 4.0,
            connections: 1,
            rounds: 2,
            warm_up: Duration::ZERO,
            duration: Duration::ZERO,
            interrupt: Arc::default(),
        }
    }

    #[test]
    fn goals_compare_ours_with_extstore() {
        let rows = [row("uniform", Contender::Ours, 1.0, 100.0), row("uniform", Contender::Extstore, 0.9, 100.0)];
        assert!(goals(&rows, &parameters()).iter().all(|goal| goal.met), "{rows:?}");
        let rows = [row("uniform", Contender::Ours, 0.8, 100.0), row("uniform", Contender::Extstore, 0.9, 100.0)];
        let missed = goals(&rows, &parameters()).iter().filter(|goal| !goal.met).count();
        assert_eq!(missed, 2, "hit ratio and time");
    }

    #[test]
    fn cpu_of_flash_is_told_from_that_of_memory() {
        let mixed = Figures { cpu: Some(17.0), flash_share: Some(0.75), ..Figures::default() };
        assert_eq!(of_flash(&mixed, 8.0), Some(20.0));
        assert_eq!(of_flash(&Figures { cpu: Some(17.0), ..Figures::default() }, 8.0), None);
    }

    #[test]
    fn rounds_become_one_row() {
        let rows = [
            row("uniform", Contender::Ours, 1.0, 100.0),
            row("uniform", Contender::Extstore, 1.0, 1.0),
            row("uniform", Contender::Ours, 0.5, 200.0),
        ];
        let rows = medians(&rows);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].figures.hit_ratio, rows[0].figures.mean), (0.75, 150.0));
        let study = Study {
            amounts: parameters().amounts,
            keys: 1,
            size: 1,
            connections: 1,
            penalties: vec![5.0],
            rounds: 2,
            goals: goals(&rows, &parameters()),
            rows,
            ended_early: false,
        };
        let text = render(&study);
        assert!(text.contains("rdmakv-server") && text.contains("at 5 ms"), "{text}");
    }
}
