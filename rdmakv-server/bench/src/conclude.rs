//! The conclusion from the counts: the report, and whether its figures can be used.

use std::sync::atomic::Ordering::Relaxed;

use crate::cpu::{Used, Watched};
use crate::plan::Plan;
use crate::report::{self, Kept, Report};
use crate::tally::{Calls, Tally};
use crate::traffic::Traffic;
use crate::window::{Ended, Own};

/// Returns the report of a run that took so many nanoseconds of the time that counts.
pub(crate) fn conclude(
    plan: &Plan,
    total: Tally,
    ends: &[(Own, Result<(), Ended>)],
    measured: u64,
    (server, shared): (Option<(&Watched, Used)>, Option<f64>),
    whole: Option<Used>,
) -> Report {
    let counts = &total.counts;
    let seconds = measured as f64 / 1e9;
    let per_second = |number: u64| number as f64 / seconds.max(1e-9);
    let operations = counts.operations.max(1) as f64;
    let (mut cpu, mut calls) = (Used::default(), Calls::default());
    for (own, _) in ends {
        cpu.add(&own.cpu);
        calls.add(&own.calls);
    }
    let cpu = whole.unwrap_or(cpu);
    let interrupted = plan.interrupt.as_ref().is_some_and(|interrupt| interrupt.load(Relaxed));
    let ended_early =
        ends.iter().find_map(|(_, ended)| ended.clone().err()).or_else(|| interrupted.then(|| "interrupted".into()));
    let mut invalid = Vec::new();
    if counts.operations == 0 {
        invalid.push("no answer came in the time that counts".into());
    }
    let schedule = (plan.is_open() || !total.late.is_empty()).then(|| kept(plan, &total, seconds, &mut invalid));
    if let (Some(kept), Some(wanted), None) = (&schedule, plan.rate, &ended_early) {
        let answered = per_second(counts.operations);
        // Chance alone makes a Poisson schedule miss its rate by a few times the root of the number.
        let chance = 5.0 * (wanted * seconds).sqrt() / seconds.max(1e-9);
        if answered < 0.95 * wanted - chance {
            let started = kept.started;
            invalid.push(format!(
                "the server did not keep up: {answered:.0} of {wanted:.0} requests a second were answered; of those due in this time \
                 {started:.0} a second were begun"
            ));
        }
    }
    if plan.must_hit && counts.misses > 0 {
        invalid.push(format!(
            "{} of {} GETs missed, and all keys were to be there: give the server more memory (-m), or ask for fewer or smaller \
             values",
            counts.misses,
            counts.hits + counts.misses
        ));
    }
    let failed = counts.errors + counts.lost;
    if failed as f64 > 0.01 * (total.answered() + counts.lost) as f64 {
        invalid.push(format!("{failed} requests failed, which is more than one in a hundred"));
    }
    let server = server.map(|(watched, used)| report::Server {
        pid: watched.pid,
        name: watched.name.clone(),
        user_ns: used.user / operations,
        system_ns: used.system / operations,
        cpus: (used.user + used.system) / measured.max(1) as f64,
        shared,
    });
    Report {
        target: plan.target.to_string(),
        protocol: match plan.target.is_through_client() {
            true => "client library".to_owned(),
            false => plan.protocol.to_string(),
        },
        threads: plan.threads,
        connections: plan.connections,
        depth: (!plan.is_open()).then_some(plan.depth),
        traffic: report::traffic(plan),
        keys: match plan.traffic {
            Traffic::Mix(_) => format!("{} of {}", plan.choice, plan.keys),
            Traffic::Load | Traffic::Bursts(_) | Traffic::Replay(_) => plan.keys.to_string(),
        },
        sizes: plan.sizes.to_string(),
        valid: invalid.is_empty(),
        invalid_because: invalid,
        ended_early,
        seconds,
        operations: counts.operations,
        answers: counts.answers,
        rate: per_second(counts.operations),
        hits: counts.hits,
        misses: counts.misses,
        stored: counts.stored,
        scanned: (counts.sought > 0).then_some(report::Scanned { found: counts.found, sought: counts.sought }),
        errors: counts.errors,
        first_error: total.error.clone(),
        wrong_values: plan.verify.then_some(counts.wrong),
        lost: counts.lost,
        latencies: report::summaries(&total.latencies),
        schedule,
        bursts: report::bursts(plan, &total),
        penalty: report::penalty(plan, &total),
        sources: report::sources(plan, &total),
        generator: report::Generator {
            user_ns: cpu.user / operations,
            system_ns: cpu.system / operations,
            busy: (cpu.user + cpu.system) / (measured.max(1) as f64 * plan.threads as f64),
            reads: calls.reads as f64 / operations,
            writes: calls.writes as f64 / operations,
            waits: calls.waits as f64 / operations,
            bytes_read: calls.bytes_read,
            bytes_written: calls.bytes_written,
        },
        server,
        histograms: total.latencies,
    }
}

/// How the schedule was kept; if it was not, that makes the run invalid.
fn kept(plan: &Plan, total: &Tally, seconds: f64, invalid: &mut Vec<String>) -> Kept {
    let late = |quantile| total.late.value_at_quantile(quantile) as f64 / 1e3;
    let unsent = total.counts.unsent;
    let bursts = matches!(plan.traffic, Traffic::Bursts(_));
    let kept = Kept {
        wanted: plan.rate,
        started: total.late.len().saturating_sub(if bursts { 0 } else { unsent }) as f64 / seconds.max(1e-9),
        late_p50: late(0.5),
        late_p99: late(0.99),
        late_max: total.late.max() as f64 / 1e3,
        unsent,
    };
    if late(0.99) * 1e3 > plan.tolerance.as_nanos() as f64 {
        invalid.push(format!(
            "the schedule was not kept: one request in a hundred started {:.0} us late or more; ask for a lower rate, use \
             more threads, or give them CPUs of their own (--pin)",
            kept.late_p99
        ));
    }
    if unsent > 0 && bursts {
        invalid
            .push(format!("{unsent} blocks were due and never began: the server takes longer for one than a period"));
    } else if unsent > 0 {
        invalid.push(format!("{unsent} requests were never sent: more waited than can be borne"));
    }
    kept
}
