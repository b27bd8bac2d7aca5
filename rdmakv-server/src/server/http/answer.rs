//! What stands where.

use std::fmt::Write as _;

use super::peer::{Answer, Request};
use super::snapshot::Snapshot;
use super::{Scene, metrics, overview};
use crate::server::{clock, keeper};
use crate::session::{is_accepting, is_stopping};

/// The answer to a request.
pub(super) fn to(request: &Request, scene: &Scene) -> Answer {
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
