//! The overview: one page without anything from elsewhere, and the numbers that it asks for every second.

use serde::Serialize;

use super::Scene;
use super::history::Point;
use super::peer::Answer;
use crate::metrics::{Asked, BUCKETS, end_of};
use crate::session::{Snapshot, VERSION, is_accepting};
use rdmakv_proto::clock;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Buckets of a latency that become one bar.
const A_BAR: usize = 2;

/// Returns the page. Its policy lets nothing run but its own script, which an unguessable number marks.
pub(super) fn page() -> Answer {
    let mark = format!("{:032x}", rand::random::<u128>());
    let body = PAGE.replace("/*style*/", STYLE).replace("/*script*/", SCRIPT).replace("{mark}", &mark);
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{mark}'; script-src 'nonce-{mark}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    Answer {
        status: "200 OK",
        headers: format!(
            "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nContent-Security-Policy: {policy}\r\n\
             Referrer-Policy: no-referrer\r\nCross-Origin-Opener-Policy: same-origin\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n"
        ),
        body: body.into_bytes(),
    }
}

#[derive(Serialize)]
struct Data<'a> {
    server: Server<'a>,
    totals: Totals,
    classes: Vec<Class>,
    /// Bars of the distribution of latencies in the last minute: where each ends in seconds, how many gets, sets, others.
    bars: Vec<(f64, u64, u64, u64)>,
    points: Vec<&'a Point>,
}

#[derive(Serialize)]
struct Server<'a> {
    version: &'a str,
    /// The memcached of the protocol.
    protocol: &'a str,
    pid: u32,
    started: u64,
    now: u64,
    accepting: bool,
    threads: usize,
    shards: usize,
    listening: &'a [String],
    limit: u64,
    connections: usize,
    /// By name, once each.
    fabrics: Vec<&'static str>,
    item_max: usize,
    evicts: bool,
}

#[derive(Serialize)]
struct Totals {
    hits: u64,
    misses: u64,
    sets: u64,
    others: u64,
    evictions: u64,
    evicted_unfetched: u64,
    expired: u64,
    refused: u64,
    items: u64,
    /// In memory, and their bytes.
    here: u64,
    bytes: u64,
    paged: u64,
    hash_bytes: u64,
    connections: u64,
    fabric_connections: u64,
    one_sided: u64,
    registered: u64,
    registered_limit: u64,
    accepted: u64,
    rejected: u64,
    kernel: Option<Kernel>,
    flash: Option<Flash>,
    cluster: Option<Cluster>,
}

/// The part of the server in its cluster.
#[derive(Serialize)]
struct Cluster {
    part: &'static str,
    epoch: u32,
    right: bool,
    whole: bool,
    servers: u64,
    keys: u64,
    bytes: u64,
    pending: u64,
}

/// The GETs that the programs in the kernel answered, and those that they passed to the socket.
#[derive(Serialize)]
struct Kernel {
    gets: u64,
    passed: u64,
}

/// The second tier.
#[derive(Serialize)]
struct Flash {
    items: u64,
    /// Of these, items that are not in memory.
    away: u64,
    recalled: u64,
    /// Of segments that have items.
    used: u64,
    limit: u64,
    /// Bytes written, and how many of them came from memory.
    written: u64,
    admitted: u64,
    /// Items that found no place there, but had the size and the time for it, and those of them that came too fast.
    dropped: u64,
    busy: u64,
    evicted: u64,
    failed: u64,
    lost_files: u64,
    /// Of memory, for keys and buffers.
    memory: u64,
}

#[derive(Serialize)]
struct Class {
    class: usize,
    /// Of a chunk.
    size: usize,
    items: u64,
    /// Of items.
    requested: u64,
    /// Of the chunks in use.
    used: u64,
    /// Of the pages.
    paged: u64,
    evicted: u64,
    /// Seconds since the oldest item was asked for.
    age: u64,
}

/// Returns the numbers, with those points that the page does not have yet.
pub(super) fn data(query: &str, scene: &Scene) -> Answer {
    let since = query.split('&').find_map(|pair| pair.strip_prefix("since=")).and_then(|number| number.parse().ok());
    let snapshot = Snapshot::take(&scene.shared, clock::now());
    let (settings, counts) = (&scene.shared.settings, &snapshot.counts);
    let data = Data {
        server: Server {
            version: env!("CARGO_PKG_VERSION"),
            protocol: VERSION,
            pid: std::process::id(),
            started: scene.shared.started,
            now: snapshot.now,
            accepting: is_accepting(&scene.shared),
            threads: settings.threads,
            shards: scene.shared.shards.count(),
            listening: &scene.said,
            limit: snapshot.limit,
            connections: settings.maxconns,
            fabrics: scene.shared.fabrics.get().map_or(Vec::new(), |all| {
                let mut names: Vec<_> = all.iter().map(|fabric| fabric.name()).collect();
                names.dedup();
                names
            }),
            item_max: settings.item_max,
            evicts: settings.evictions,
        },
        totals: Totals {
            hits: counts.get_hits,
            misses: counts.get_misses,
            sets: counts.cmd_set,
            others: snapshot.others(),
            evictions: snapshot.totals.evicted,
            evicted_unfetched: snapshot.totals.evicted_unfetched,
            expired: snapshot.expired(),
            refused: snapshot.whole.no_memory + snapshot.whole.too_large,
            items: snapshot.items,
            here: snapshot.here,
            bytes: snapshot.bytes,
            paged: snapshot.paged,
            hash_bytes: snapshot.hash_bytes,
            connections: snapshot.connections,
            fabric_connections: snapshot.fabric_connections,
            one_sided: snapshot.one_sided,
            registered: snapshot.registered,
            registered_limit: snapshot.registered_limit,
            accepted: snapshot.accepted,
            rejected: snapshot.rejected,
            kernel: snapshot.kernel.as_ref().map(|kernel| Kernel { gets: kernel.gets, passed: kernel.passed() }),
            flash: flash(&snapshot),
            cluster: scene.shared.cluster.as_ref().map(|cluster| {
                let gauges = cluster.gauges(&scene.shared.shards);
                Cluster {
                    part: gauges.part,
                    epoch: gauges.epoch,
                    right: gauges.has_right,
                    whole: gauges.is_whole,
                    servers: gauges.servers,
                    keys: gauges.keys,
                    bytes: gauges.pieces.1,
                    pending: gauges.pending,
                }
            }),
        },
        classes: snapshot
            .classes
            .iter()
            .map(|(&class, report)| Class {
                class,
                size: report.size,
                items: report.small + report.main,
                requested: report.bytes,
                used: report.used * report.size as u64,
                paged: u64::from(report.pages) * u64::from(report.a_page) * report.size as u64,
                evicted: report.counters.evicted,
                age: report.age,
            })
            .collect(),
        bars: bars(scene),
        points: scene.history.since(since.unwrap_or(0)),
    };
    match serde_json::to_vec(&data) {
        Ok(body) => Answer {
            status: "200 OK",
            headers: "Content-Type: application/json\r\nCache-Control: no-store\r\n\
                      Cross-Origin-Resource-Policy: same-origin\r\n"
                .into(),
            body,
        },
        Err(error) => Answer::line("500 Internal Server Error", &error.to_string()),
    }
}

fn flash(snapshot: &Snapshot) -> Option<Flash> {
    let (counts, gauges) = snapshot.flash?;
    let segments = (gauges.free_segments + gauges.used_segments).max(1);
    Some(Flash {
        items: gauges.items,
        away: gauges.away,
        recalled: counts.recalled,
        used: gauges.limit_bytes / segments * gauges.used_segments,
        limit: gauges.limit_bytes,
        written: counts.written_bytes,
        admitted: counts.admitted_bytes,
        dropped: counts.dropped_unread + counts.dropped_busy + counts.dropped_stubs + counts.dropped_lost,
        busy: counts.dropped_busy,
        evicted: counts.evicted,
        failed: counts.read_errors + counts.write_errors + counts.wrong,
        lost_files: gauges.lost_files,
        memory: gauges.stub_bytes + gauges.index_bytes + gauges.buffer_bytes,
    })
}

fn bars(scene: &Scene) -> Vec<(f64, u64, u64, u64)> {
    let kinds = scene.history.distribution();
    let bars = (0..BUCKETS / A_BAR).map(|bar| {
        let sum = |asked: Asked| kinds[asked as usize].buckets[bar * A_BAR..(bar + 1) * A_BAR].iter().sum();
        (end_of((bar + 1) * A_BAR - 1), sum(Asked::Get), sum(Asked::Set), sum(Asked::Other))
    });
    bars.filter(|&(_, gets, sets, others)| gets + sets + others > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overview_page_is_self_contained() {
        let answer = page();
        let body = String::from_utf8(answer.body).unwrap();
        for outside in ["<link", "src=", "href=", "@import", "url(", "https:", " style=", "onclick"] {
            assert!(!body.contains(outside), "{outside}");
        }
        // The name of SVG's namespace is no address.
        assert_eq!(body.matches("http:").count(), body.matches("http://www.w3.org/2000/svg").count());
        let mark = answer.headers.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap();
        assert_eq!(body.matches(&format!("nonce=\"{mark}\"")).count(), 2);
        assert_eq!((body.matches("<script").count(), body.matches("<style").count()), (1, 1));
        assert!(!String::from_utf8(page().body).unwrap().contains(mark), "the next page has another mark");
    }
}
