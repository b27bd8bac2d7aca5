//! `replay --real`: through the real cache, beside what the simulation predicts.

use super::failure::Failure;
use super::form::Form;
use super::source::Source;
use crate::sweep::Sweep;
use std::path::Path;

/// One policy at one capacity, with real pins.
#[cfg(not(all(feature = "mrrc", target_os = "linux")))]
pub(super) fn run(_: &Sweep, _: bool, _: &Source, _: &Path, _: &Form, _: f64) -> Result<(), Failure> {
    Err(Failure::work(
        "replay --real: this build has no io_uring: build it with the feature mrrc and run it on Linux, 5.19 or later",
    ))
}

#[cfg(all(feature = "mrrc", target_os = "linux"))]
pub(super) use on_linux::run;

#[cfg(all(feature = "mrrc", target_os = "linux"))]
mod on_linux {
    use super::*;
    use crate::cli::heading::heading;
    use crate::cli::interrupt;
    use crate::cli::progress::Progress;
    use crate::cli::table::{Side, bytes, ms, pages, percent, table};
    use crate::cli::widening;
    use crate::policies::PolicyEntry;
    use crate::real::{Counted, Outcome, RealError, Spent, run as pin};
    use crate::simulate::{ReplayError, Watch};
    use mrrc_core::{Config, PAGE};
    use serde::Serialize;
    use traces::Trace;

    pub(in crate::cli) fn run(
        sweep: &Sweep,
        is_asked: bool,
        source: &Source,
        file: &Path,
        form: &Form,
        tolerance: f64,
    ) -> Result<(), Failure> {
        let ([policy], [capacity]) = (&sweep.policies[..], &sweep.capacities[..]) else {
            return Err(Failure::usage("--real takes one --policy and one --capacity: name one of each"));
        };
        if !(0.0..=100.0).contains(&tolerance) {
            return Err(Failure::usage("--tolerance: give percent, from 0 to 100"));
        }
        let mut out = form.open(&[file.to_owned()])?;
        let (trace, footprint) = source.load(file)?;
        widening::tell(sweep, is_asked, &trace);
        let capacity = capacity.pages(footprint.largest_process_pages);
        let config = Config { capacity, ..sweep.base.clone() };
        let outcome = {
            let steps: usize = trace.processes.iter().map(|process| process.steps.len()).sum();
            // Predicted, with the cache, and without it.
            let progress = Progress::of(&trace.name, 3 * steps as u64);
            let watch = Watch { stop: &interrupt::STOP, replayed: &|steps| progress.step(steps) };
            pin(&trace, policy, &config, &watch)
        };
        let outcome = outcome.map_err(|error| match error {
            RealError::Replay(ReplayError::Interrupted) => Failure::Interrupted,
            error => Failure::work(format_args!("replay --real io-uring: {error}")),
        })?;
        let json = Json::of(&trace, policy, &config, &outcome);
        form.write(&mut out, &[json], || {
            format!("{}{}", heading(&trace, &footprint), shown(policy, &config, &outcome, trace.processes.len()))
        })?;
        out.finish()?;
        let off = 100.0 * outcome.difference().abs();
        if off > tolerance {
            return Err(Failure::work(format_args!(
                "what was measured is {off:.1} % from what was predicted, more than {tolerance} % (--tolerance)"
            )));
        }
        Ok(())
    }

    fn shown(policy: &PolicyEntry, config: &Config, outcome: &Outcome, processes: usize) -> String {
        let Outcome { requests, predicted, measured, cached, without, pinned_kib } = *outcome;
        let each = if processes == 1 { "" } else { " for each process" };
        let counts = |what: &str, of: Counted| {
            let avoided = of.avoided(requests);
            vec![
                what.into(),
                of.registrations.to_string(),
                avoided.to_string(),
                percent(avoided as f64 / requests.max(1) as f64),
                of.refused.to_string(),
            ]
        };
        let header = ["", "registrations", "avoided", "of requests", "all in use"];
        let rows = [
            vec!["without a cache".into(), requests.to_string(), "0".into(), percent(0.0), "0".into()],
            counts("predicted", predicted),
            counts("measured", measured),
        ];
        let mut text = format!("policy {}, capacity {}{each}\n\n", policy.label(config), pages(config.capacity));
        text += &table(&[Side::Left, Side::Right], &header, rows);
        text += &format!(
            "\ndifference of the avoided: {:+.1} % (measured over predicted)\n\n",
            100.0 * outcome.difference()
        );
        let time = |what: &str, of: &Spent| {
            vec![
                what.into(),
                of.registrations.to_string(),
                ms(of.reg_us),
                of.deregistrations.to_string(),
                of.batches.to_string(),
                ms(of.dereg_us),
                ms(of.total_us()),
            ]
        };
        let header = ["measured by io_uring", "regs", "reg ms", "deregs", "calls", "dereg ms", "total ms"];
        let rows = without.iter().map(|of| time("without a cache", of)).chain([time("with the cache", &cached)]);
        text += &table(&[Side::Left, Side::Right], &header, rows);
        text += &match without {
            Some(without) => {
                let saved = without.total_us() - cached.total_us();
                format!(
                    "\nsaved {} of {} ms of registration ({})\n",
                    ms(saved),
                    ms(without.total_us()),
                    percent(saved / without.total_us().max(1e-9))
                )
            }
            None => "\nwithout a cache not all that is in use at once could be pinned at once\n".into(),
        };
        let most = (pinned_kib << 10).div_ceil(PAGE);
        let besides = if most > config.capacity { ", and what it refused was pinned besides" } else { "" };
        text + &format!(
            "pinned at most {} (VmPin); the cache may hold {}{besides}\n",
            bytes(most),
            bytes(config.capacity)
        )
    }

    /// The object of `--json`.
    #[derive(Serialize)]
    struct Json {
        trace: String,
        policy: String,
        capacity_pages: u64,
        requests: u64,
        predicted_registrations: u64,
        measured_registrations: u64,
        predicted_avoided: i64,
        measured_avoided: i64,
        difference: f64,
        predicted_refused: u64,
        measured_refused: u64,
        cached: Spent,
        without: Option<Spent>,
        pinned_kib: u64,
    }

    impl Json {
        fn of(trace: &Trace, policy: &PolicyEntry, config: &Config, outcome: &Outcome) -> Self {
            let Outcome { requests, predicted, measured, cached, without, pinned_kib } = *outcome;
            Self {
                trace: trace.name.clone(),
                policy: policy.label(config),
                capacity_pages: config.capacity,
                requests,
                predicted_registrations: predicted.registrations,
                measured_registrations: measured.registrations,
                predicted_avoided: predicted.avoided(requests),
                measured_avoided: measured.avoided(requests),
                difference: outcome.difference(),
                predicted_refused: predicted.refused,
                measured_refused: measured.refused,
                cached,
                without,
                pinned_kib,
            }
        }
    }
}
