//! The dashboard for Grafana and the alerts for Prometheus, checked against the file of `MRRC_METRICS`.

#[allow(dead_code, reason = "other tests use more of it")]
mod common;
#[path = "../../../rdmakv-server/tests/common/monitoring.rs"]
mod monitoring;

use std::path::{Path, PathBuf};

use common::run;
use monitoring::{Exposed, is_complete, promtool_accepts};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring")
}

/// Returns the metrics of a program that ends while it has a cache.
fn exposed() -> Exposed {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics");
    let variables = [("MRRC_PRELOAD", "trusted"), ("MRRC_METRICS", file.to_str().unwrap())];
    run(true, "peers", &["100", "stay"], &variables).well();
    let mut exposed = Exposed::default();
    exposed.add(&std::fs::read_to_string(&file).unwrap());
    exposed
}

#[test]
fn panels_and_alerts_name_metrics_that_exist() {
    exposed().check(&folder(), "mrrc_");
}

#[test]
fn dashboard_shows_each_metric() {
    let missing = exposed().not_shown(&folder(), "mrrc_");
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn dashboard_and_alert_tests_are_complete() {
    is_complete(&folder());
}

#[test]
fn promtool_accepts_alerts_and_panels() {
    promtool_accepts(&folder());
}
