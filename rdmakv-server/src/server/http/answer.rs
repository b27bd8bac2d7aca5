//! What stands where.

use std::fmt::Write as _;

use super::peer::{Answer, Request};
use super::snapshot::Snapshot;
use super::{Scene, metrics, overview};
use crate::server::{clock, keeper, trace};
use crate::session::{is_accepting, is_stopping};

/// The answer to a request.
pub(super) fn to(request: &Request, scene: &Scene) -> Answer {
    // Health tells nothing that a stranger could use.
    if let Some(host) = request.host.as_deref().filter(|host| request.path != "/health" && !scene.hosts.allows(host)) {
        trace::warn(&scene.shared, format_args!("--http: refused a request for {host:?}: --http-host allows names"));
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
            body: metrics::text(&Snapshot::take(&scene.shared), &scene.shared).into_bytes(),
        },
        "/health" => health(scene),
        _ => Answer::line("404 Not Found", "here are /, /overview.json, /metrics, /health"),
    }
}

/// Whether clients are served, and if not, why.
fn health(scene: &Scene) -> Answer {
    let mut wrong = String::new();
    if is_stopping(&scene.shared) {
        wrong.push_str("stopping: what is under way is answered");
    } else if !is_accepting(&scene.shared) {
        wrong.push_str("finishing: nobody new is accepted");
    }
    if let Some(worker) = keeper::stuck(&scene.shared, clock::now()) {
        // Writing into a string does not fail.
        let _ = write!(wrong, "{}worker {worker} is stuck", if wrong.is_empty() { "" } else { "; " });
    }
    if wrong.is_empty() { Answer::line("200 OK", "ok") } else { Answer::line("503 Service Unavailable", &wrong) }
}
