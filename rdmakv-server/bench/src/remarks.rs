//! Remarks on runs: what their figures do not show by themselves.

use crate::report::Report;
use crate::sweep::Sweep;

/// Returns the remarks on a sweep, each with its run; those shared by many runs only once.
pub(crate) fn of_sweep(sweep: &Sweep) -> Vec<(String, String)> {
    let servers = sweep.has_servers();
    let mut all = Vec::new();
    let mut shared = Vec::new();
    for stage in &sweep.stages {
        all.extend(of_run(&stage.report).into_iter().map(|note| (stage.label(servers), note)));
        shared.extend(shared_cpu(&stage.report).map(|share| (stage, share)));
    }
    let shares = || shared.iter().map(|(_, share)| 100.0 * share);
    let (least, most) = (shares().fold(f64::MAX, f64::min), shares().fold(0.0, f64::max));
    match &shared[..] {
        [] => {}
        [(stage, share)] => all.push((stage.label(servers), on_one_cpu(&format!("{:.0}", 100.0 * share)))),
        _ if most - least < 0.5 => {
            all.push((of(shared.len(), sweep.stages.len()), on_one_cpu(&format!("{most:.0}"))));
        }
        _ => {
            all.push((of(shared.len(), sweep.stages.len()), on_one_cpu(&format!("{least:.0} to {most:.0}"))));
        }
    }
    all
}

fn of(some: usize, all: usize) -> String {
    if some == all { "all runs".to_owned() } else { format!("{some} of {all} runs") }
}

/// For what share of the time the server computed where the generator did, if that matters.
pub(crate) fn shared_cpu(report: &Report) -> Option<f64> {
    report.server.as_ref().and_then(|server| server.shared).filter(|&shared| shared > 0.05)
}

pub(crate) fn on_one_cpu(percent: &str) -> String {
    format!(
        "{percent} % of the time the server computed on the generator's CPU: give them CPUs of their own (--pin here, \
         taskset there)"
    )
}

/// Returns the remarks on a run's figures; but for [`shared_cpu`], which is often the same of many.
pub(crate) fn of_run(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    let said = report.invalid_because.iter().any(|why| why.contains("GETs missed"));
    if report.misses > 0 && report.penalty.is_none() && !said {
        notes.push(format!("{} of {} GETs missed", report.misses, report.hits + report.misses));
    }
    if let Some(scanned) = &report.scanned {
        notes.push(format!("scans found {} of {} keys", scanned.found, scanned.sought));
    }
    if let Some(blocks) = &report.bursts {
        notes.push(format!(
            "{} blocks of {} bytes, {:.0} MB/s on a connection while one is under way (median), {} begun late since the one before \
             was not done",
            blocks.done, blocks.bytes, blocks.median_megabytes, blocks.overrun
        ));
    }
    if let Some(cost) = &report.penalty {
        notes.push(format!(
            "{:.1} % of the GETs missed; at {:.0} us each ({}) that is {:.3} s, which no request waited for",
            100.0 * cost.miss_share,
            cost.mean,
            cost.about,
            cost.seconds
        ));
    }
    if let Some(sources) = &report.sources {
        let few = sources.one_sided_share() < 0.5 && sources.messages + sources.transfers > sources.sockets;
        notes.push(format!(
            "{:.1} % of the values were read one-sidedly ({}); {} came in messages, {} by transfers, {} over sockets{}",
            100.0 * sources.one_sided_share(),
            sources.one_sided,
            sources.messages,
            sources.transfers,
            sources.sockets,
            if few { "; the server's stats say why (refused_share, refused_churn, ...)" } else { "" }
        ));
    }
    if report.errors > 0 {
        let first = report.first_error.as_deref().unwrap_or_default();
        notes.push(format!("{} requests were refused, the first with: {first}", report.errors));
    }
    if report.lost > 0 {
        notes.push(format!("{} datagrams were not answered", report.lost));
    }
    if report.is_limited_by_generator() {
        notes.push("the generator's threads had no time left: they may be what limits the rate (-t, --pin)".into());
    }
    match report.wrong_values {
        Some(wrong) if wrong > 0 => notes.push(format!("WRONG: {wrong} values were not what was written")),
        _ => {}
    }
    notes.extend(report.invalid_because.iter().map(|why| format!("INVALID: {why}")));
    if let Some(why) = &report.ended_early {
        notes.push(format!("ENDED after {:.2} s that count: {why}", report.seconds));
    }
    notes
}
