//! The names of rows that are there for each number of threads.

/// `1-thread`, `2-threads`.
pub(super) fn threads_name(threads: usize) -> String {
    if threads == 1 { "1-thread".into() } else { format!("{threads}-threads") }
}

/// Times for each number of threads, ascending from 1, in each setting, and speed-ups for all but one.
pub(super) fn timed(name: &str, settings: &[&str], threads: &[usize]) -> Vec<String> {
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
