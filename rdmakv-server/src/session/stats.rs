//! `stats` and what may stand after it, by the names that memcached gives.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use super::snapshot::{Snapshot, classes, of_workers};
use super::{Context, Out, ProtocolMode, READ_BUFFER, RESERVED, VERSION};
use crate::metrics::{KernelCounts, Measured, Transferred, by_name};
use crate::store::{Entry, Report, Walk};
use rdmakv_proto::commands::{number32, words};

/// Takes a name and a value.
type Emit<'a> = dyn FnMut(&str, &str) + 'a;

/// As text.
pub(super) fn text(what: &[u8], cx: &mut Context<'_>, out: &mut Out) {
    match words(what).next() {
        Some(b"cachedump") => return cachedump(what, cx, out),
        Some(b"detail") if words(what).nth(1) == Some(b"dump") => {
            cx.shared.prefixes.dump(&mut out.bytes);
            return out.bytes.extend_from_slice(b"END\r\n");
        }
        _ => {}
    }
    let bytes = &mut out.bytes;
    let done = run(what, cx, &mut |name, value| bytes.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes()));
    bytes.extend_from_slice(done.unwrap_or_else(|line| line).as_bytes());
    bytes.extend_from_slice(b"\r\n");
}

/// Each name and value; then the last line, or the error line.
pub(super) fn run(what: &[u8], cx: &mut Context<'_>, emit: &mut Emit<'_>) -> Result<&'static str, &'static str> {
    cx.publish();
    let mut words = words(what);
    match words.next() {
        None => general(cx, emit),
        Some(b"items") => items(cx, emit),
        Some(b"slabs") => slabs(cx, emit),
        Some(b"settings") => settings(cx, emit),
        Some(b"sizes") => sizes(cx, emit),
        Some(b"cluster") if cx.shared.cluster.is_some() => cluster(cx, emit),
        // They are counted when asked for, at no cost before.
        Some(b"sizes_enable" | b"sizes_disable") => emit("sizes_status", "enabled"),
        Some(b"conns") => cx.shared.peers.list(cx.peer, cx.now, emit),
        Some(b"reset") => {
            let now = of_workers(cx.shared);
            if let Ok(mut baseline) = cx.shared.baseline.lock() {
                baseline.add(&now);
            }
            cx.shared.prefixes.clear();
            cx.shared.listen_disabled_micros.store(0, Relaxed);
            cx.shared.total_connections.store(0, Relaxed);
            cx.shared.rejected_connections.store(0, Relaxed);
            cx.shared.listen_disabled.store(0, Relaxed);
            cx.shared.fabrics.get().into_iter().flatten().for_each(|fabric| {
                fabric.counts().reset();
                fabric.datagrams().inspect(|counts| counts.reset());
            });
            cx.shared.kernel.get().into_iter().for_each(|kernel| kernel.reset());
            cx.shared.shards.each(crate::store::Store::reset_counters);
            return Ok("RESET");
        }
        Some(b"detail") => {
            return match words.next() {
                Some(turn @ (b"on" | b"off")) => {
                    cx.shared.prefixes.turn(turn == b"on");
                    Ok("OK")
                }
                // As text it is dumped line by line; in the binary protocol it is one value.
                Some(b"dump") => {
                    let mut text = Vec::new();
                    cx.shared.prefixes.dump(&mut text);
                    emit("detailed", &String::from_utf8_lossy(&text));
                    Ok("END")
                }
                _ => Err("CLIENT_ERROR usage: stats detail on|off|dump"),
            };
        }
        Some(_) => return Err("ERROR"),
    }
    Ok("END")
}

fn kernel(cx: &Context<'_>) -> Option<KernelCounts> {
    cx.shared.kernel.get().map(|kernel| kernel.counts())
}

fn reports(cx: &Context<'_>) -> Vec<Report> {
    let mut reports = Vec::new();
    cx.shared.shards.each(|store| reports.push(store.report(cx.now)));
    reports
}

fn general(cx: &Context<'_>, emit: &mut Emit<'_>) {
    let shared = cx.shared;
    let now = Snapshot::take(shared, cx.now);
    let mut put = |name: &str, value: u64| emit(name, &value.to_string());
    put("pid", u64::from(std::process::id()));
    put("uptime", cx.now.saturating_sub(shared.started));
    put("time", cx.now);
    emit("version", VERSION);
    // Programs that watch memcached know these two values as text, and may take every other one for a number.
    emit("libevent", "none");
    emit("pointer_size", &usize::BITS.to_string());
    let (user, system) = usage();
    emit("rusage_user", &user);
    emit("rusage_system", &system);
    let mut put = |name: &str, value: u64| emit(name, &value.to_string());
    put("max_connections", shared.settings.maxconns as u64);
    put("curr_connections", now.connections);
    put("total_connections", now.accepted);
    put("rejected_connections", now.rejected);
    put("connection_structures", now.connections);
    // Answers are written where they are sent from: there is no pool of objects or of buffers that could be used up. A worker
    // has one buffer for reading.
    let buffers = shared.settings.threads as u64;
    for (name, value) in [
        ("response_obj_oom", 0),
        ("response_obj_count", 0),
        ("response_obj_bytes", 0),
        ("read_buf_count", buffers),
        ("read_buf_bytes", buffers * READ_BUFFER as u64),
        ("read_buf_bytes_free", buffers * READ_BUFFER as u64),
        ("read_buf_oom", 0),
        ("reserved_fds", RESERVED),
    ] {
        put(name, value);
    }
    for (name, value) in now.counts.list() {
        // As memcached: it is counted only where connections end for that.
        if name != "idle_kicks" || shared.settings.idle_timeout > 0 {
            put(name, value);
        }
    }
    let (whole, totals) = (&now.whole, &now.totals);
    put("get_expired", whole.get_expired);
    put("get_flushed", whole.get_flushed);
    put("store_too_large", whole.too_large);
    put("store_no_memory", whole.no_memory);
    put("limit_maxbytes", now.limit);
    put("accepting_conns", u64::from(super::is_accepting(shared)));
    put("listen_disabled_num", now.pauses);
    put("time_in_listen_disabled_us", shared.listen_disabled_micros.load(Relaxed));
    put("threads", shared.settings.threads as u64);
    put("hash_power_level", u64::from(now.hash_power));
    put("hash_bytes", now.hash_bytes);
    put("hash_is_expanding", u64::from(now.is_growing));
    put("slab_reassign_rescues", whole.rescues);
    // Items are not in chunks of chunks, and a page is emptied at once.
    put("slab_reassign_chunk_rescues", 0);
    put("slab_reassign_evictions_nomem", whole.move_evictions);
    for name in ["inline_reclaim", "busy_items", "busy_deletes", "running"] {
        put(&format!("slab_reassign_{name}"), 0);
    }
    put("slabs_moved", whole.slabs_moved);
    if shared.crawler.load(Relaxed) {
        put("lru_crawler_running", u64::from(shared.crawling.load(Relaxed)));
        put("lru_crawler_starts", shared.crawler_starts.load(Relaxed));
    }
    if shared.settings.moves {
        put("lru_maintainer_juggles", 0);
    }
    put("malloc_fails", 0);
    put("log_worker_dropped", 0);
    put("log_worker_written", shared.watchers.sent.load(Relaxed));
    put("log_watcher_skipped", shared.watchers.skipped.load(Relaxed));
    put("log_watcher_sent", shared.watchers.sent.load(Relaxed));
    put("log_watchers", shared.watchers.count() as u64);
    put("bytes", now.bytes);
    put("curr_items", now.items);
    put("total_items", whole.total_items);
    put("slab_global_page_pool", now.pool);
    put("expired_unfetched", totals.expired_unfetched);
    put("evicted_unfetched", totals.evicted_unfetched);
    put("evictions", totals.evicted);
    put("reclaimed", totals.reclaimed);
    put("crawler_reclaimed", totals.crawler_reclaimed);
    put("crawler_items_checked", totals.crawler_checked);
    put("lrutail_reflocked", 0);
    if shared.settings.moves {
        put("evicted_active", 0);
        put("moves_to_cold", 0);
        put("moves_to_warm", totals.promoted);
        put("moves_within_lru", totals.rotated);
        put("direct_reclaims", 0);
        put("lru_bumps_dropped", 0);
    }
    put("unexpected_napi_ids", 0);
    put("round_robin_fallback", 0);
    if let Some(fabrics) = shared.fabrics.get().filter(|fabrics| !fabrics.is_empty()) {
        put("get_one_sided", whole.one_sided);
        put("tag_leases", whole.leases);
        put("tag_leases_refused", whole.leases_refused);
        put("tag_leases_revoked", whole.leases_revoked);
        put("leased_chunks", now.leased);
        put("leased_dead_chunks", now.leased_dead);
        put("leased_dead_bytes", now.leased_dead_bytes);
        for fabric in by_name(fabrics) {
            for (name, value) in fabric.gauges.list().into_iter().chain(fabric.counts).chain(fabric.datagrams) {
                put(&format!("{}_{name}", fabric.name), value);
            }
        }
    }
    if let Some((counts, gauges)) = &now.flash {
        for (name, value) in counts.list().into_iter().chain(gauges.list()) {
            put(name, value);
        }
        put("flash_reads_fixed", shared.fixed_reads.load(Relaxed));
        for kind in Transferred::ALL {
            let measured = Measured::of_transfers(&shared.transfers, kind);
            for (name, part) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
                let micros = measured.quantile(part).map_or(0.0, |seconds| (seconds * 1e6).ceil());
                put(&format!("flash_{}_us_{name}", kind.name()), micros as u64);
            }
        }
    }
    for (name, value) in now.kernel.iter().flat_map(KernelCounts::list) {
        put(name, value);
    }
    if let Some(tls) = &shared.tls {
        put("ssl_handshake_errors", tls.handshake_errors.load(Relaxed));
        put("ssl_handshakes", tls.handshakes.load(Relaxed));
        put("time_since_server_cert_refresh", cx.now.saturating_sub(tls.refreshed.load(Relaxed)));
    }
}

/// Seconds and microseconds, of the program and of the system for it.
fn usage() -> (String, String) {
    #[expect(unsafe_code, reason = "getrusage")]
    // SAFETY: the structure is plain numbers, for which zeros are valid; the call fills it and keeps nothing.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let text = |time: libc::timeval| format!("{}.{:06}", time.tv_sec, time.tv_usec);
    (text(usage.ru_utime), text(usage.ru_stime))
}

fn items(cx: &Context<'_>, emit: &mut Emit<'_>) {
    for (number, class) in classes(&reports(cx), kernel(cx).as_ref()) {
        let counted = &class.counters;
        for (name, value) in [
            ("number", class.small + class.main + class.away),
            // The queues by memcached's names: what is new is hot, what has proven itself is warm, what is on flash only is cold.
            ("number_hot", class.small),
            ("number_warm", class.main),
            ("number_cold", class.away),
            ("age_hot", class.ages[0]),
            ("age_warm", class.ages[1]),
            ("age", class.age),
            ("mem_requested", class.bytes),
            ("evicted", counted.evicted),
            ("evicted_nonzero", counted.evicted_nonzero),
            ("evicted_time", counted.evicted_time),
            ("outofmemory", counted.outofmemory),
            ("tailrepairs", 0),
            ("reclaimed", counted.reclaimed),
            ("expired_unfetched", counted.expired_unfetched),
            ("evicted_unfetched", counted.evicted_unfetched),
            ("evicted_active", 0),
            ("crawler_reclaimed", counted.crawler_reclaimed),
            ("crawler_items_checked", counted.crawler_checked),
            ("lrutail_reflocked", 0),
            ("moves_to_cold", 0),
            ("moves_to_warm", counted.promoted),
            ("moves_within_lru", counted.rotated),
            ("direct_reclaims", 0),
            ("hits_to_hot", counted.hits_small),
            ("hits_to_warm", counted.get_hits.saturating_sub(counted.hits_small)),
            ("hits_to_cold", 0),
            ("hits_to_temp", 0),
        ] {
            if class.small + class.main > 0 {
                emit(&format!("items:{number}:{name}"), &value.to_string());
            }
        }
    }
}

fn slabs(cx: &Context<'_>, emit: &mut Emit<'_>) {
    let reports = reports(cx);
    let classes: Vec<_> =
        classes(&reports, kernel(cx).as_ref()).into_iter().filter(|(_, class)| class.pages > 0).collect();
    for (number, class) in &classes {
        let (counted, chunks) = (&class.counters, u64::from(class.pages) * u64::from(class.a_page));
        for (name, value) in [
            ("chunk_size", class.size as u64),
            ("chunks_per_page", u64::from(class.a_page)),
            ("total_pages", u64::from(class.pages)),
            ("total_chunks", chunks),
            ("used_chunks", class.used),
            ("free_chunks", chunks - class.used),
            ("free_chunks_end", 0),
            ("mem_requested", class.bytes),
            ("get_hits", counted.get_hits),
            ("cmd_set", counted.sets),
            ("delete_hits", counted.deletes),
            ("incr_hits", counted.incrs),
            ("decr_hits", counted.decrs),
            ("cas_hits", counted.cas_hits),
            ("cas_badval", counted.cas_badval),
            ("touch_hits", counted.touches),
        ] {
            emit(&format!("{number}:{name}"), &value.to_string());
        }
    }
    emit("active_slabs", &classes.len().to_string());
    emit("total_malloced", &reports.iter().map(|report| report.malloced).sum::<u64>().to_string());
}

/// The part of this server in its cluster.
fn cluster(cx: &Context<'_>, emit: &mut Emit<'_>) {
    let Some(cluster) = &cx.shared.cluster else { return };
    let gauges = cluster.gauges(&cx.shared.shards);
    emit("part", gauges.part);
    emit("etcd", gauges.etcd);
    for (name, value) in [
        ("epoch", u64::from(gauges.epoch)),
        ("right", u64::from(gauges.has_right)),
        ("whole", u64::from(gauges.is_whole)),
        ("servers", gauges.servers),
        ("keys", gauges.keys),
        ("pending", gauges.pending),
        ("ambiguous", gauges.ambiguous),
        ("staged_bytes", gauges.staged_bytes),
        ("pieces", gauges.pieces.0),
        ("piece_bytes", gauges.pieces.1),
        ("files_dirty_bytes", gauges.files.0),
        ("files_clean_bytes", gauges.files.1),
        ("files_dirty_limit_bytes", gauges.files.2),
        ("repair_left_keys", gauges.repair.left),
        ("repair_keys", gauges.repair.keys),
        ("repair_bytes", gauges.repair.bytes),
        ("repair_millis", gauges.repair.millis),
        ("repair_short_keys", gauges.repair.short),
        ("repair_refused_keys", gauges.repair.refused),
        ("lost", gauges.lost.0),
        ("lost_epoch", u64::from(gauges.lost.1)),
    ] {
        emit(name, &value.to_string());
    }
    for (name, value) in cluster.file_counts().list() {
        emit(name, &value.to_string());
    }
    for (name, value) in cluster.counts().list() {
        emit(name.trim_start_matches("cluster_"), &value.to_string());
    }
}

fn settings(cx: &Context<'_>, emit: &mut Emit<'_>) {
    let settings = &cx.shared.settings;
    let yes = |is: bool| if is { "yes" } else { "no" };
    let limit = cx.shared.limit.load(Relaxed).to_string();
    let protocol = match settings.protocol {
        ProtocolMode::Auto => "auto-negotiate",
        ProtocolMode::Ascii => "ascii",
        ProtocolMode::Binary => "binary",
    };
    for (name, value) in [
        ("maxbytes", limit.as_str()),
        ("maxconns", &settings.maxconns.to_string()),
        ("tcpport", &settings.tcp_port.to_string()),
        ("udpport", &settings.udp_port.to_string()),
        ("inter", settings.inter.as_deref().unwrap_or("NULL")),
        ("verbosity", &cx.shared.log.level().to_string()),
        ("oldest", "0"),
        ("evictions", if settings.evictions { "on" } else { "off" }),
        ("domain_socket", settings.socket.as_deref().unwrap_or("NULL")),
        ("umask", &format!("{:o}", settings.socket_mode)),
        ("shutdown_command", yes(settings.shutdown)),
        ("growth_factor", &format!("{:.2}", settings.factor)),
        ("chunk_size", &settings.chunk_size.to_string()),
        ("num_threads", &settings.threads.to_string()),
        ("num_threads_per_udp", "1"),
        ("stat_key_prefix", &cx.shared.prefixes.delimiter().to_string()),
        ("detail_enabled", yes(cx.shared.prefixes.is_on())),
        ("reqs_per_event", &settings.reqs_per_event.to_string()),
        ("cas_enabled", yes(settings.cas)),
        ("tcp_backlog", &settings.backlog.to_string()),
        ("binding_protocol", protocol),
        ("auth_enabled_sasl", yes(settings.sasl)),
        ("auth_enabled_ascii", yes(settings.users.is_some())),
        ("item_size_max", &settings.item_max.to_string()),
        ("maxconns_fast", yes(settings.maxconns_fast)),
        ("hashpower_init", &settings.hashpower.to_string()),
        ("slab_reassign", "yes"),
        ("slab_automove", &cx.shared.automove.load(Relaxed).to_string()),
        // Pages move by what they would answer elsewhere, and not by ratio and window.
        ("slab_automove_ratio", "0.00"),
        ("slab_automove_window", "0"),
        ("slab_automove_freeratio", "0.000"),
        ("slab_chunk_max", &settings.item_max.to_string()),
        ("lru_crawler", yes(cx.shared.crawler.load(Relaxed))),
        ("lru_crawler_sleep", "0"),
        ("lru_crawler_tocrawl", "0"),
        ("tail_repair_time", "0"),
        ("flush_enabled", yes(settings.flush)),
        ("dump_enabled", yes(settings.dump)),
        ("hash_algorithm", "foldhash"),
        ("lru_policy", "s3fifo"),
        // The small queue is hot and a tenth, the main queue is warm and the rest; no thread moves items between them.
        ("lru_maintainer_thread", "no"),
        ("lru_segmented", "yes"),
        ("hot_lru_pct", "10"),
        ("warm_lru_pct", "90"),
        ("hot_max_factor", "0.00"),
        ("warm_max_factor", "0.00"),
        ("temp_lru", "no"),
        ("temporary_ttl", "0"),
        ("idle_timeout", &settings.idle_timeout.to_string()),
        ("watcher_logbuf_size", &settings.watcher_buffer.to_string()),
        ("worker_logbuf_size", "0"),
        ("read_buf_mem_limit", "0"),
        ("track_sizes", "yes"),
        ("inline_ascii_response", "no"),
        ("num_napi_ids", "(null)"),
        ("memory_file", settings.memory_file.as_deref().unwrap_or("(null)")),
        ("ssl_enabled", yes(cx.shared.tls.is_some())),
        ("rdmakv_version", env!("CARGO_PKG_VERSION")),
    ] {
        emit(name, value);
    }
    if let Some(kernel) = cx.shared.kernel.get() {
        emit("xdp", &kernel.interfaces());
    }
    for (name, value) in settings.tls.iter().chain(&settings.fabrics) {
        emit(name, value);
    }
}

/// How many items there are of each size, in steps of 32 bytes. It looks at every item in memory, a shard at a time.
fn sizes(cx: &Context<'_>, emit: &mut Emit<'_>) {
    let mut sizes = BTreeMap::new();
    cx.shared.shards.each(|store| {
        store.walk(None, cx.now, |item| {
            *sizes.entry(item.size.next_multiple_of(32)).or_insert(0_u64) += 1;
            true
        });
        for (size, _, items) in store.sizes_on_flash() {
            *sizes.entry(size.next_multiple_of(32)).or_insert(0) += items;
        }
    });
    for (size, count) in sizes {
        emit(&size.to_string(), &count.to_string());
    }
}

/// `stats cachedump CLASS LIMIT`. A class that memcached could have is empty where it is not there; class 0 has no items.
fn cachedump(what: &[u8], cx: &Context<'_>, out: &mut Out) {
    const MOST: usize = 2 << 20;
    const MEMCACHEDS_CLASSES: usize = 64;
    /// Items on flash that it looks at in a shard at most, and at a time.
    const STUBS: usize = 100_000;
    const PIECE: usize = 2000;
    if !cx.shared.settings.dump {
        return out.bytes.extend_from_slice(b"CLIENT_ERROR stats cachedump not allowed\r\n");
    }
    let mut words = words(what).skip(1);
    let (class, limit) = (words.next(), words.next());
    let (Some(class), Some(limit)) = (class, limit) else {
        return out.bytes.extend_from_slice(b"CLIENT_ERROR bad command line\r\n");
    };
    let (Some(class), Some(limit)) = (number32(class).map(|class| class as usize), number32(limit)) else {
        return out.bytes.extend_from_slice(b"CLIENT_ERROR bad command line format\r\n");
    };
    if class >= MEMCACHEDS_CLASSES && class > cx.shared.shards.at(0).sizes().len() {
        return out.bytes.extend_from_slice(b"CLIENT_ERROR Illegal slab id\r\n");
    }
    let (mut shown, bytes) = (0, &mut out.bytes);
    let Some(class) = class.checked_sub(1) else { return bytes.extend_from_slice(b"END\r\n") };
    let mut show = |item: Entry<'_>| {
        if (limit > 0 && shown == limit) || bytes.len() > MOST {
            return false;
        }
        shown += 1;
        bytes.extend_from_slice(b"ITEM ");
        bytes.extend_from_slice(item.key);
        bytes.extend_from_slice(format!(" [{} b; {} s]\r\n", item.value, item.expiry).as_bytes());
        true
    };
    cx.shared.shards.each(|store| store.walk(Some(class), cx.now, &mut show));
    for shard in 0..cx.shared.shards.count() {
        let (mut walk, mut has_room) = (Walk::of_flash(), true);
        for _ in 0..STUBS / PIECE {
            let ended = cx.shared.shards.at(shard).walk_on(&mut walk, PIECE, cx.now, |item| {
                has_room = has_room && (item.class != class || show(item));
            });
            if ended || !has_room {
                break;
            }
        }
    }
    bytes.extend_from_slice(b"END\r\n");
}
