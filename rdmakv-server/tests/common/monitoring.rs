//! Checks dashboards and alerts against the metrics that a program exposes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Labels that Prometheus adds by itself.
const ADDED: [&str; 2] = ["instance", "job"];

type Labels = BTreeMap<String, String>;

/// The samples of a page or a file of metrics, by name.
#[derive(Default)]
pub(crate) struct Exposed {
    samples: BTreeMap<String, Vec<Labels>>,
}

/// A part of an expression: a metric, with what it asks of labels.
#[derive(Debug, PartialEq)]
struct Selector {
    name: String,
    /// The label, whether the value is a regular expression, the value.
    matchers: Vec<(String, bool, String)>,
}

/// A panel's query, and how its lines are named.
struct Query {
    panel: String,
    expression: String,
    legend: String,
}

impl Exposed {
    /// Adds the samples of a text in Prometheus's format. A value of a label there has no comma and no quote.
    pub(crate) fn add(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, _) = line.rsplit_once(' ').expect("a sample has a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let pairs = labels.trim_end_matches('}').split(',').filter_map(|pair| pair.split_once('='));
            let labels = pairs.map(|(label, value)| (label.to_owned(), value.trim_matches('"').to_owned())).collect();
            self.samples.entry(name.to_owned()).or_default().push(labels);
        }
    }

    /// Returns what is wrong with a selector.
    fn fault(&self, of: &Selector) -> Option<String> {
        let Some(samples) = self.samples.get(&of.name) else {
            return Some(format!("no metric is named {}", of.name));
        };
        let mut fitting: Vec<&Labels> = samples.iter().collect();
        for (label, is_pattern, value) in &of.matchers {
            if ADDED.contains(&label.as_str()) {
                continue;
            }
            if value.starts_with('$') {
                fitting.retain(|labels| labels.contains_key(label));
            } else {
                let values: Vec<&str> = if *is_pattern { value.split('|').collect() } else { vec![value] };
                if let Some(unknown) =
                    values.iter().find(|value| !fitting.iter().any(|labels| labels[label] == **value))
                {
                    return Some(format!("no {} has {label}={unknown}", of.name));
                }
                fitting.retain(|labels| values.contains(&labels[label].as_str()));
            }
        }
        fitting.is_empty().then(|| format!("no sample fits {of:?}"))
    }

    /// Returns whether all samples of a metric have this label.
    fn has_label(&self, name: &str, label: &str) -> bool {
        ADDED.contains(&label)
            || self.samples.get(name).is_some_and(|samples| samples.iter().all(|labels| labels.contains_key(label)))
    }

    /// Checks the queries of a dashboard and the expressions of alerts; `prefix` is what names of metrics begin with.
    ///
    /// # Panics
    ///
    /// Panics with all that is wrong.
    pub(crate) fn check(&self, folder: &Path, prefix: &str) {
        let mut faults = Vec::new();
        for query in queries(&dashboard(folder)) {
            let found = selectors(&query.expression, prefix);
            let mut note = |fault: String| faults.push(format!("panel {}: {}: {fault}", query.panel, query.expression));
            if found.is_empty() {
                note("it has no metric".into());
            }
            let kept = kept_labels(&query.expression);
            for label in kept.iter().chain(&legend_labels(&query.legend)) {
                if !found.iter().all(|selector| self.has_label(&selector.name, label)) {
                    note(format!("not all of it has the label {label}"));
                }
            }
            if let Some(lost) =
                legend_labels(&query.legend).difference(&kept).find(|_| query.expression.contains(" by ("))
            {
                note(format!("{lost} is in the legend, and not kept"));
            }
            found.iter().filter_map(|selector| self.fault(selector)).for_each(note);
        }
        let rules: String = read(folder, "alerts.yml").lines().filter(|line| !line.starts_with('#')).collect();
        let found = selectors(&rules, prefix);
        assert!(!found.is_empty());
        faults.extend(found.iter().filter_map(|selector| Some(format!("alerts.yml: {}", self.fault(selector)?))));
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    /// Returns the names of metrics that a dashboard does not show.
    pub(crate) fn not_shown(&self, folder: &Path, prefix: &str) -> Vec<String> {
        let shown: BTreeSet<String> = queries(&dashboard(folder))
            .iter()
            .flat_map(|query| selectors(&query.expression, prefix))
            .map(|selector| selector.name)
            .collect();
        self.samples.keys().filter(|name| !shown.contains(*name)).cloned().collect()
    }
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

fn dashboard(folder: &Path) -> Value {
    serde_json::from_str(&read(folder, "dashboard.json")).unwrap()
}

/// Returns the queries of all panels and of the variables.
fn queries(dashboard: &Value) -> Vec<Query> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let (panel, legend) = (text(&panel["title"]), text(&target["legendFormat"]));
            queries.push(Query { panel, expression: text(&target["expr"]), legend });
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if variable["type"] == "query" {
            assert_eq!(variable["definition"], variable["query"]["query"]);
            let panel = format!("variable {}", text(&variable["name"]));
            queries.push(Query { panel, expression: text(&variable["definition"]), legend: String::new() });
        }
    }
    assert!(queries.len() > 10);
    queries
}

/// Returns the metrics in an expression.
fn selectors(expression: &str, prefix: &str) -> Vec<Selector> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find(prefix) {
        let is_inside = rest[..at].ends_with(is_name);
        let (name, after) = rest[at..].split_at(rest[at..].find(|letter| !is_name(letter)).unwrap_or(rest.len() - at));
        rest = after;
        if is_inside {
            continue;
        }
        let mut matchers = Vec::new();
        if let Some((inside, _)) = after.strip_prefix('{').and_then(|after| after.split_once('}')) {
            for matcher in inside.split(',') {
                let (label, value) = matcher.split_once('=').expect("a label and its value");
                let is_pattern = value.starts_with('~');
                matchers.push((label.into(), is_pattern, value.trim_matches(['~', '"']).into()));
            }
        }
        found.push(Selector { name: name.into(), matchers });
    }
    found
}

/// Returns the labels that aggregations keep, but for `le`.
fn kept_labels(expression: &str) -> BTreeSet<String> {
    let groups = expression.split(" by (").skip(1).filter_map(|group| group.split(')').next());
    groups.flat_map(|group| group.split(", ")).filter(|label| *label != "le").map(str::to_owned).collect()
}

/// Returns the labels that the name of a line has.
fn legend_labels(legend: &str) -> BTreeSet<String> {
    legend.split("{{").skip(1).filter_map(|part| part.split("}}").next()).map(str::to_owned).collect()
}

/// Runs Prometheus's own tool over the alerts, their tests and the queries of the dashboard; prints a line where it is missing.
///
/// # Panics
///
/// Panics with what the tool reports.
pub(crate) fn promtool_accepts(folder: &Path) {
    let passes = |arguments: &[&str], file: &Path| {
        let output = match Command::new("promtool").args(arguments).arg(file).output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("skipped: promtool is not installed (Debian: prometheus)");
                return false;
            }
            output => output.unwrap(),
        };
        let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "promtool {arguments:?}: {printed}");
        true
    };
    if !passes(&["check", "rules"], &folder.join("alerts.yml")) {
        return;
    }
    passes(&["test", "rules"], &folder.join("alerts.test.yml"));
    let record = |query: &Query| {
        let expression = query.expression.replace("$__rate_interval", "5m");
        json!({"record": "panel", "expr": expression, "labels": {"panel": query.panel, "legend": query.legend}})
    };
    let panels = queries(&dashboard(folder));
    let rules: Vec<Value> = panels.iter().filter(|query| !query.panel.starts_with("variable ")).map(record).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    // What is JSON is YAML, too.
    std::fs::write(file.path(), json!({"groups": [{"name": "panels", "rules": rules}]}).to_string()).unwrap();
    passes(&["check", "rules"], file.path());
}

/// Checks that the tests of alerts name each of them, and that the dashboard's panels are apart from each other.
pub(crate) fn is_complete(folder: &Path) {
    let (rules, tests) = (read(folder, "alerts.yml"), read(folder, "alerts.test.yml"));
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(
            tests.contains(&format!("alertname=\"{alert}\"")),
            "alerts.test.yml has no case in which {alert} fires"
        );
    }
    let dashboard = dashboard(folder);
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24, "{panel}");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(places.insert(place), "{panel}");
        }
    }
}
