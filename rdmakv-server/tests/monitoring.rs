//! The dashboard for Grafana and the alerts for Prometheus, checked against what the server exposes.

mod common;
#[path = "common/monitoring.rs"]
#[allow(dead_code, reason = "the shim's test uses more of it")]
mod monitoring;

use std::path::{Path, PathBuf};

use common::{Server, ask};
use monitoring::{Exposed, is_complete, promtool_accepts};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring")
}

/// Returns the metrics of servers that have all that the dashboard shows, each in its own process.
fn exposed() -> Exposed {
    let flash = tempfile::tempdir().unwrap();
    let flash = format!("{}:64m", flash.path().join("flash").display());
    let fabrics = ["--fabric", "iwarp:127.0.0.1:0", "--fabric", "udp:127.0.0.1:0", "--flash", &flash, "--far", "16m"];
    // No etcd answers there. The metrics are those of a member.
    let cluster = ["--etcd", "http://127.0.0.1:1", "--advertise", "tcp:127.0.0.1:1", "--agent", "no"];
    let mut exposed = Exposed::default();
    for flags in [fabrics.as_slice(), &cluster] {
        let server = Server::on_a_free_port(&[&["--http", "127.0.0.1:0"], flags].concat());
        if flags == fabrics {
            // A size class has metrics once it has an item. A member without etcd takes none.
            ask(&mut server.connect(), b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
        }
        let (status, text) = server.http("/metrics");
        assert_eq!(status, 200);
        exposed.add(&text);
    }
    exposed
}

#[test]
fn panels_and_alerts_name_metrics_that_exist() {
    exposed().check(&folder(), "rdmakv_");
}

#[test]
fn dashboard_and_alert_tests_are_complete() {
    is_complete(&folder());
}

#[test]
fn promtool_accepts_alerts_and_panels() {
    promtool_accepts(&folder());
}
