//! The paths and their answers.

use std::fmt::Write as _;

use super::peer::{Answer, Request};
use super::{Scene, metrics, overview};
use crate::session::{Snapshot, is_accepting, is_stopping, stuck_worker};
use rdmakv_proto::clock;

/// Returns the answer to a request.
pub(super) fn to(request: &Request, scene: &Scene) -> Answer {
    // Health tells nothing that a stranger could use.
    if let Some(host) = request.host.as_deref().filter(|host| request.path != "/health" && !scene.hosts.allows(host)) {
        scene.shared.log.warn(format_args!("--http: refused a request for {host:?}: --http-host allows names"));
        return Answer::line(
            "421 Misdirected Request",
            "this server is not known by that name: use its address, or start it with --http-host NAME",
        );
    }
    match request.path.as_str() {
        "/" => overview::page(),
        "/overview.json" => overview::data(&request.query, scene),
        "/metrics" => Answer {
            status: "200 OK",
            headers: "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\nCache-Control: no-store\r\n".into(),
            body: metrics::text(&Snapshot::take(&scene.shared, clock::now()), &scene.shared).into_bytes(),
        },
        "/health" => health(scene),
        _ => Answer::line("404 Not Found", "here are /, /overview.json, /metrics, /health"),
    }
}

/// Returns whether clients are served, and if not, why.
fn health(scene: &Scene) -> Answer {
    let mut wrong = String::new();
    if is_stopping(&scene.shared) {
        wrong.push_str("stopping: what is under way is answered");
    } else if !is_accepting(&scene.shared) {
        wrong.push_str("finishing: no new client is accepted");
    }
    if let Some(worker) = stuck_worker(&scene.shared, clock::now()) {
        // Writing into a string does not fail.
        let _ = write!(wrong, "{}worker {worker} is stuck", if wrong.is_empty() { "" } else { "; " });
    }
    if wrong.is_empty() { Answer::line("200 OK", "ok") } else { Answer::line("503 Service Unavailable", &wrong) }
}
