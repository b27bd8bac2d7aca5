//! The names of the rows of each measurement, before it is made: what `--only` can be asked for.

use super::{Subtest, threads_name};

/// The rows of a measurement with these numbers of threads, ascending from 1, in no useful order.
pub(super) fn of(test: &Subtest, threads: &[usize]) -> Vec<String> {
    let name = &test.name;
    let list = |rows: &[&str]| rows.iter().map(|row| format!("{name}/{row}")).collect::<Vec<_>>();
    match name.as_str() {
        "machine" => {
            let kinds = ["arithmetic", "locked-add/own-line", "locked-add/shared-line"];
            kinds.iter().flat_map(|kind| timed(&format!("machine/{kind}"), &[""], threads)).collect()
        }
        "churn" => list(&["1000-of-2000", "1000-of-2000/request", "1000-of-2000/watched"]),
        "stall" => {
            let quantiles = ["p50", "p99", "p99.99", "p99.999"];
            let endings = ["", "/alone", "/beside-a-sleeper"];
            let times = quantiles.iter().flat_map(|q| endings.iter().map(move |ending| format!("stall/{q}{ending}")));
            times.chain(list(&["p99.99/added", "throughput"])).collect()
        }
        "bad-address" => list(&["attempts", "evictions", "full/attempts", "full/evictions"]),
        _ => timed(name, &["", "/evicting"], threads),
    }
}

/// Times for each number of threads, and speed-ups for all but one.
fn timed(name: &str, settings: &[&str], threads: &[usize]) -> Vec<String> {
    let speedup = |name: String| format!("speedup/{}", name.strip_prefix("hit/").unwrap_or(&name));
    let row = |threads, setting| format!("{name}/{}{setting}", threads_name(threads));
    let mut rows = Vec::new();
    for (nth, &threads) in threads.iter().enumerate() {
        for setting in settings {
            rows.push(row(threads, setting));
            rows.extend((nth > 0).then(|| speedup(row(threads, setting))));
        }
    }
    rows
}
