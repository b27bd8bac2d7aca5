//! The metrics, in Prometheus' text format and by its conventions for names: base units, `_total` for what only grows.

use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering::Relaxed;

use crate::metrics::{Asked, FabricGauges, FarGauges, Measured, Report, Transferred, below_micros, by_name};
use crate::session::{Shared, Snapshot, VERSION, is_accepting, measured};

/// Powers of two of microseconds at which the histogram of latencies is cut: 1 µs to 2 s.
const CUTS: std::ops::RangeInclusive<u32> = 0..=21;

struct Text(String);

impl Text {
    /// Returns a family of metrics: its type and what it is, then its samples.
    fn family(&mut self, kind: &str, name: &str, help: &str) -> Samples<'_> {
        // Writing into a string does not fail.
        let _ = writeln!(self.0, "# HELP rdmakv_{name} {help}\n# TYPE rdmakv_{name} {kind}");
        Samples { text: &mut self.0, name: name.to_owned() }
    }
    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family("counter", name, help).one("", value);
    }
    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family("gauge", name, help).one("", value);
    }
    /// Writes a counter with samples that differ in one label.
    fn counters(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        let mut family = self.family("counter", name, help);
        for (of, value) in values {
            family.one(&format!("{label}=\"{of}\""), value);
        }
    }
}

struct Samples<'a> {
    text: &'a mut String,
    name: String,
}

impl Samples<'_> {
    fn one(&mut self, labels: &str, value: impl Display) {
        self.with("", labels, value);
    }
    fn with(&mut self, suffix: &str, labels: &str, value: impl Display) {
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.text, "rdmakv_{}{suffix}{braced} {value}", self.name);
    }
}

/// All of them.
pub(super) fn text(now: &Snapshot, shared: &Shared) -> String {
    let mut text = Text(String::with_capacity(16 << 10));
    server(&mut text, now, shared);
    commands(&mut text, now);
    connections(&mut text, now, shared);
    memory(&mut text, now);
    classes(&mut text, now);
    flash(&mut text, now);
    kernel(&mut text, now);
    cluster(&mut text, shared);
    transfers(&mut text, now, shared);
    fabrics(&mut text, now, shared);
    far(&mut text, shared);
    latencies(&mut text, shared);
    text.0
}

fn server(text: &mut Text, now: &Snapshot, shared: &Shared) {
    let build = format!("version=\"{}\",protocol=\"{VERSION}\"", env!("CARGO_PKG_VERSION"));
    text.family("gauge", "build_info", "Which server this is, and the memcached whose protocol it speaks.")
        .one(&build, 1);
    text.gauge("start_time_seconds", "When the server started, in Unix seconds.", shared.started);
    text.gauge("accepting", "Whether new connections are accepted.", u8::from(is_accepting(shared)));
    text.gauge("workers", "Threads that serve clients.", shared.settings.threads);
    let mut cpu = text.family("counter", "cpu_seconds_total", "Time of the processor that the server used.");
    cpu.one("", now.cpu);
    if let Some(resident) = resident_bytes() {
        text.gauge("resident_memory_bytes", "Memory of the process that is in RAM, items included.", resident);
    }
}

/// As the kernel counts it.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

fn commands(text: &mut Text, now: &Snapshot) {
    let counts = &now.counts;
    let mut found = |name: &str, help: &str, hits: u64, misses: u64| {
        text.counters(name, help, "result", &[("hit", hits), ("miss", misses)]);
    };
    found("gets_total", "Keys asked for, by whether there was an item.", counts.get_hits, counts.get_misses);
    found("deletes_total", "Deletions, by whether there was an item.", counts.delete_hits, counts.delete_misses);
    found("increments_total", "Increments, by whether there was an item.", counts.incr_hits, counts.incr_misses);
    found("decrements_total", "Decrements, by whether there was an item.", counts.decr_hits, counts.decr_misses);
    found("touches_total", "Touches, by whether there was an item.", counts.touch_hits, counts.touch_misses);
    text.counter("sets_total", "Items sent to be stored, by whatever command.", counts.cmd_set);
    text.counters(
        "compare_and_swaps_total",
        "Items stored on condition of a version, by what became of it.",
        "result",
        &[("stored", counts.cas_hits), ("exists", counts.cas_badval), ("miss", counts.cas_misses)],
    );
    text.counter("flushes_total", "Commands that flushed all items.", counts.cmd_flush);
    text.counter(
        "meta_commands_total",
        "Commands of the meta protocol, which are also counted by what they do.",
        counts.cmd_meta,
    );
    text.counters(
        "authentications_total",
        "Names and passwords shown, by whether they were right.",
        "result",
        &[("granted", counts.auth_cmds.saturating_sub(counts.auth_errors)), ("refused", counts.auth_errors)],
    );
    text.counter("received_bytes_total", "Bytes that clients sent.", counts.bytes_read);
    text.counter("sent_bytes_total", "Bytes sent to clients.", counts.bytes_written);
}

fn connections(text: &mut Text, now: &Snapshot, shared: &Shared) {
    text.gauge("connections", "Clients connected at present.", now.connections);
    text.gauge("connections_max", "Clients that may be connected at a time.", shared.settings.maxconns);
    text.counter("connections_accepted_total", "Connections accepted.", now.accepted);
    text.counter("connections_rejected_total", "Connections refused because there were too many.", now.rejected);
    text.counter("connections_idle_closed_total", "Connections ended because they were silent.", now.counts.idle_kicks);
    text.counter("connection_yields_total", "Times a connection had to let others go first.", now.counts.conn_yields);
    text.counter("accept_pauses_total", "Times that accepting had to wait for descriptors or places.", now.pauses);
    if let Some(tls) = &shared.tls {
        text.counters(
            "tls_handshakes_total",
            "TLS handshakes, by how they ended.",
            "result",
            &[("done", tls.handshakes.load(Relaxed)), ("failed", tls.handshake_errors.load(Relaxed))],
        );
        let help = "When the certificates were last read, in Unix seconds.";
        text.gauge("tls_certificates_read_seconds", help, tls.refreshed.load(Relaxed));
    }
}

fn memory(text: &mut Text, now: &Snapshot) {
    text.gauge("items", "Items in memory and on flash.", now.items);
    text.counter("items_stored_total", "Items ever stored.", now.whole.total_items);
    text.gauge("item_bytes", "Bytes of the items in memory, with keys and headers.", now.bytes);
    text.gauge("memory_limit_bytes", "Bytes for items (-m).", now.limit);
    text.gauge("memory_paged_bytes", "Bytes of the pages that size classes have taken.", now.paged);
    text.gauge(
        "hash_table_bytes",
        "Bytes of the hash table and of what is remembered of items that left.",
        now.hash_bytes,
    );
    text.counter("evictions_total", "Items that left to make room.", now.totals.evicted);
    text.counter(
        "evictions_unfetched_total",
        "Of these, items that were never asked for.",
        now.totals.evicted_unfetched,
    );
    let expired = [("store", now.totals.reclaimed), ("crawler", now.totals.crawler_reclaimed)];
    text.counters(
        "expired_total",
        "Expired items whose memory was taken back, by the part that found them.",
        "by",
        &expired,
    );
    text.counter("expired_unfetched_total", "Of these, items that were never asked for.", now.totals.expired_unfetched);
    text.counters(
        "store_refusals_total",
        "Items that were not stored, by why.",
        "reason",
        &[("too_large", now.whole.too_large), ("no_memory", now.whole.no_memory)],
    );
    text.counter("pages_moved_total", "Pages that changed their size class.", now.whole.slabs_moved);
    text.counter("crawler_items_checked_total", "Items that the crawler looked at.", now.totals.crawler_checked);
}

fn classes(text: &mut Text, now: &Snapshot) {
    type Of = fn(&crate::store::ClassReport) -> u64;
    let families: [(&str, &str, &str, Of); 7] = [
        ("gauge", "class_chunk_bytes", "Bytes of a chunk of the class.", |class| class.size as u64),
        ("gauge", "class_items", "Items of the class.", |class| class.small + class.main),
        ("gauge", "class_item_bytes", "Bytes of the items of the class.", |class| class.bytes),
        ("gauge", "class_used_bytes", "Bytes of the chunks in use.", |class| class.used * class.size as u64),
        ("gauge", "class_paged_bytes", "Bytes of the class's pages.", |class| {
            u64::from(class.pages) * u64::from(class.a_page) * class.size as u64
        }),
        ("counter", "class_evictions_total", "Items of the class that left to make room.", |class| {
            class.counters.evicted
        }),
        ("gauge", "class_oldest_seconds", "Time since the class's oldest item was asked for.", |class| class.age),
    ];
    for (kind, name, help, of) in families {
        let mut family = text.family(kind, name, help);
        for (number, class) in &now.classes {
            family.one(&format!("class=\"{number}\""), of(class));
        }
    }
}

fn kernel(text: &mut Text, now: &Snapshot) {
    let Some(counts) = &now.kernel else { return };
    text.counter("kernel_gets_total", "GETs over UDP that the kernel answered; gets_total has them too.", counts.gets);
    text.counters(
        "kernel_passed_total",
        "GETs over UDP that the kernel passed to the server, by why.",
        "reason",
        &[
            ("unknown", counts.passed_unknown),
            ("changed", counts.passed_changed),
            ("over", counts.passed_over),
            ("room", counts.passed_room),
        ],
    );
    let help = "Items that the kernel forgot for others, until they are asked for again.";
    text.counter("kernel_displaced_total", help, counts.displaced);
}

fn cluster(text: &mut Text, shared: &Shared) {
    let Some(cluster) = &shared.cluster else { return };
    let gauges = cluster.gauges(&shared.shards);
    let mut part = text.family("gauge", "cluster_part", "The part of this server in its cluster.");
    part.one(&format!("part=\"{}\"", gauges.part), 1);
    for (name, help, value) in [
        ("epoch", "The epoch that all keys are in.", u64::from(gauges.epoch)),
        ("right", "Whether this server may answer for its resilient keys.", u64::from(gauges.has_right)),
        ("whole", "Whether all keys are where the epoch wants them.", u64::from(gauges.is_whole)),
        ("servers", "Servers of the cluster.", gauges.servers),
        ("keys", "Resilient keys that this server has a part of.", gauges.keys),
        ("pending", "Writes that are not known to be published.", gauges.pending),
        ("ambiguous", "Keys of a new primary that does not know their last write yet.", gauges.ambiguous),
        ("staged_bytes", "Bytes of writes that were not ordered yet.", gauges.staged_bytes),
        ("pieces", "Pieces of resilient values in memory.", gauges.pieces.0),
        ("piece_bytes", "Bytes of these pieces.", gauges.pieces.1),
        (
            "repair_left_keys",
            "Keys that this server's agent has to look at or works on in this epoch.",
            gauges.repair.left,
        ),
        ("repair_keys", "Keys that have all their pieces in this epoch.", gauges.repair.keys),
        ("repair_bytes", "Bytes that the agent sent for them.", gauges.repair.bytes),
        ("repair_millis", "Milliseconds since the agent learned of this epoch.", gauges.repair.millis),
        (
            "repair_short_keys",
            "Keys with fewer fragments than their policy wants: too few servers.",
            gauges.repair.short,
        ),
        ("repair_refused_keys", "Keys that a server has no room for.", gauges.repair.refused),
        ("lost", "Values that were lost in the last epoch in which some were.", gauges.lost.0),
        ("lost_epoch", "That epoch.", u64::from(gauges.lost.1)),
    ] {
        text.gauge(&format!("cluster_{name}"), help, value);
    }
    let (dirty, clean, limit) = gauges.files;
    text.gauge("files_dirty_bytes", "Memory of chunks of files that the backing directory does not have.", dirty);
    text.gauge("files_clean_bytes", "Memory of chunks of files that it has, which may be evicted.", clean);
    text.gauge("files_dirty_limit_bytes", "Memory that dirty chunks may take; writes beyond it wait.", limit);
    for (name, value) in cluster.file_counts().list() {
        let help = match name {
            "files_evicted" => "Clean chunks of files that were evicted.",
            "files_carried_bytes" => "Bytes of chunks that this server wrote to the backing directory.",
            "files_carry_errors" => "Orders to write chunks there that failed. The agent writes them itself.",
            _ => "Writes of chunks that were refused because of the limit. Their mounts try again.",
        };
        text.counter(&format!("{name}_total"), help, value);
    }
    for (name, value) in cluster.counts().list() {
        let help = format!("As in `stats cluster`: {}.", name.trim_start_matches("cluster_").replace('_', " "));
        text.counter(&format!("{name}_total"), &help, value);
    }
}

fn flash(text: &mut Text, now: &Snapshot) {
    let Some((counts, gauges)) = &now.flash else { return };
    text.gauge("flash_items", "Items on flash, those included that are in memory too.", gauges.items);
    text.gauge("flash_only_items", "Of these, items that are not in memory.", gauges.away);
    text.gauge("flash_used_bytes", "Bytes of flash that items take.", gauges.used_bytes);
    text.gauge("flash_limit_bytes", "Bytes of flash for items.", gauges.limit_bytes);
    text.gauge("flash_free_segments", "Segments of flash that take new items.", gauges.free_segments);
    text.gauge("flash_used_segments", "Segments of flash that have items.", gauges.used_segments);
    text.gauge("flash_reads_in_progress", "Items that are being read.", gauges.loads);
    text.gauge("flash_reads_waiting", "Requests that wait until there is room for their reads.", gauges.waiting);
    text.gauge("flash_lost_files", "Files that were given up after errors.", gauges.lost_files);
    let mut memory = text.family("gauge", "flash_memory_bytes", "Memory that the items on flash take, by its use.");
    for (of, bytes) in [("stubs", gauges.stub_bytes), ("index", gauges.index_bytes), ("buffers", gauges.buffer_bytes)] {
        memory.one(&format!("use=\"{of}\""), bytes);
    }
    text.counter("flash_reads_total", "Reads of items.", counts.reads);
    text.counter("flash_read_bytes_total", "Bytes read for clients.", counts.read_bytes);
    text.counter("flash_written_bytes_total", "Bytes written.", counts.written_bytes);
    text.counter("flash_admitted_bytes_total", "Bytes of items that came from memory.", counts.admitted_bytes);
    let help = "Bytes of items that were written again to free a segment.";
    text.counter("flash_reinserted_bytes_total", help, counts.rewritten_bytes);
    text.counters(
        "flash_left_total",
        "Items that left memory for flash, by whether they had to be written.",
        "how",
        &[("written", counts.admitted), ("clean", counts.left_clean)],
    );
    text.counters(
        "flash_recalls_total",
        "Items on flash that were asked for, by how the first request found them.",
        "how",
        &[("read", counts.reads), ("joined", counts.joined), ("buffered", counts.buffered)],
    );
    text.counters(
        "flash_dropped_total",
        "Items that left memory and are not on flash, by the reason; lost are those that failed writes and files took.",
        "reason",
        &[
            ("size", counts.dropped_size),
            ("expiry", counts.dropped_expiry),
            ("unread", counts.dropped_unread),
            ("busy", counts.dropped_busy),
            ("stubs", counts.dropped_stubs),
            ("lost", counts.dropped_lost),
        ],
    );
    text.counters(
        "flash_failures_total",
        "Transfers and items that failed, by how.",
        "how",
        &[
            ("read", counts.read_errors),
            ("write", counts.write_errors),
            ("checksum", counts.wrong),
            ("silent", counts.silent),
            ("memory", counts.no_memory),
        ],
    );
    text.counter("flash_evictions_total", "Items that left flash to make room.", counts.evicted);
}

fn fabrics(text: &mut Text, now: &Snapshot, shared: &Shared) {
    let Some(fabrics) = shared.fabrics.get().filter(|fabrics| !fabrics.is_empty()) else { return };
    text.counter("leases_total", "Leases granted to clients over fabrics, or made longer.", now.whole.leases);
    let help = "Items that had to go for memory though clients could read them.";
    text.counter("leases_revoked_total", help, now.whole.leases_revoked);
    let help = "Bytes of items that are gone and whose memory clients may still read.";
    text.gauge("leased_dead_bytes", help, now.leased_dead_bytes);
    let fabrics = by_name(fabrics);
    type Of = fn(&FabricGauges) -> u64;
    let families: [(&str, &str, &str, Of); 8] = [
        ("gauge", "connections", "Clients connected over the fabric.", |gauges| gauges.connections),
        ("counter", "swaps", "Tags that went over to the next value of their key.", |gauges| gauges.swaps),
        (
            "gauge",
            "leased_chunks",
            "Items that clients may read by themselves, those included that are gone.",
            |gauges| gauges.leased_chunks,
        ),
        ("gauge", "leased_pages", "Pages of 4 KiB that these are in.", |gauges| gauges.leased_pages),
        ("gauge", "registered_bytes", "Bytes registered with the fabric.", |gauges| gauges.registered_bytes),
        ("gauge", "registered_limit_bytes", "Bytes that may be registered with it.", |gauges| {
            gauges.registered_limit_bytes
        }),
        ("counter", "tag_guesses", "Reads by tags that their connection never had.", |gauges| gauges.tag_guesses),
        ("counter", "tag_throttles", "Times that the guesses of an address began to be limited.", |gauges| {
            gauges.tag_throttles
        }),
    ];
    for (kind, name, help, of) in families {
        let total = if kind == "counter" { "_total" } else { "" };
        let mut family = text.family(kind, &format!("fabric_{name}{total}"), help);
        for fabric in &fabrics {
            family.one(&format!("fabric=\"{}\"", fabric.name), of(&fabric.gauges));
        }
    }
    datagrams(text, &fabrics);
    let help = "What happened on the fabric's connections, by the names of `stats`.";
    let mut family = text.family("counter", "fabric_events_total", help);
    for fabric in &fabrics {
        for (name, value) in &fabric.counts {
            family.one(&format!("fabric=\"{}\",event=\"{name}\"", fabric.name), value);
        }
    }
}

fn far(text: &mut Text, shared: &Shared) {
    let Some(far) = shared.far.get() else { return };
    let FarGauges { region_bytes, memories, used, free, ending, modules } = far.gauges();
    let states = [("used", used), ("free", free), ("ending", ending)];
    let mut family = text.family("gauge", "far_regions", "Regions of far memory, by state.");
    for (state, regions) in states {
        family.one(&format!("state=\"{state}\""), regions);
    }
    let mut family = text.family("gauge", "far_bytes", "Bytes of far memory, by state.");
    for (state, regions) in states {
        family.one(&format!("state=\"{state}\""), regions * region_bytes);
    }
    text.gauge("far_memories", "Far memories that clients own.", memories);
    text.gauge("far_modules", "Modules that clients stored, to run them on far memory.", modules);
    let mut counts = far.counts().list();
    let mut taken = |names: &[&str]| counts.extract_if(.., |(name, _)| names.contains(name)).collect::<Vec<_>>();
    let operations = taken(&["read", "write"]);
    text.counters("far_operations_total", "Reads and writes in batches, by operation.", "op", &operations);
    let sum = |of: &[(&str, u64)]| of.iter().map(|(_, value)| value).sum::<u64>();
    let module = sum(&taken(&["module_nanos"]));
    let (refused, expired, busy) = (sum(&taken(&["refused"])), sum(&taken(&["expired"])), sum(&taken(&["busy_nanos"])));
    let (moved, lost) = (sum(&taken(&["moved_bytes"])), sum(&taken(&["lost"])));
    let (pauses, paused) = (sum(&taken(&["pauses"])), sum(&taken(&["pause_nanos"])));
    text.counters("far_requests_total", "Requests for far memory, by verb.", "verb", &counts);
    text.counter("far_refusals_total", "Requests for far memory that were refused.", refused);
    text.counter("far_expired_total", "Far memories that ended because their time was over.", expired);
    text.counter("far_moved_bytes_total", "Bytes of regions that were read from other servers.", moved);
    let help = "Regions that are lost: their client gave them up after a move failed, or they did not move before the server stopped.";
    text.counter("far_lost_regions_total", help, lost);
    let help = "Regions whose writes were paused for a move to another server.";
    text.counter("far_pauses_total", help, pauses);
    let help = "Seconds from the pause of writes to regions, for moves to other servers, until the move or the pause ended, summed.";
    text.family("counter", "far_pause_seconds_total", help).one("", paused as f64 / 1e9);
    let help = "Procedures that ended at this server, or went on elsewhere, by procedure and end.";
    let mut family = text.family("counter", "far_procedures_total", help);
    for (name, end, count) in far.runs().list() {
        family.one(&format!("name=\"{name}\",end=\"{end}\""), count);
    }
    let help = "Seconds for which workers carried out batches and procedures.";
    text.family("counter", "far_worker_busy_seconds_total", help).one("", busy as f64 / 1e9);
    let help = "Seconds of the processor for which modules of clients were run.";
    text.family("counter", "far_module_busy_seconds_total", help).one("", module as f64 / 1e9);
}

fn datagrams(text: &mut Text, fabrics: &[Report]) {
    if fabrics.iter().all(|fabric| fabric.datagrams.is_empty()) {
        return;
    }
    let families = [
        ("datagrams_total", "direction", "Datagrams of clients that have no connection."),
        (
            "datagram_events_total",
            "event",
            "What became of datagrams, and of requests in them, by the names of `stats`.",
        ),
    ];
    for (family, label, help) in families {
        let mut family = text.family("counter", family, help);
        for fabric in fabrics {
            for (name, value) in &fabric.datagrams {
                let name = name.strip_prefix("datagrams_").or(name.strip_prefix("datagram_")).unwrap_or(name);
                let is_direction = matches!(name, "received" | "sent");
                if is_direction == (label == "direction") {
                    family.one(&format!("fabric=\"{}\",{label}=\"{name}\"", fabric.name), value);
                }
            }
        }
    }
}

fn transfers(text: &mut Text, now: &Snapshot, shared: &Shared) {
    if now.flash.is_none() {
        return;
    }
    let help = "Reads of items into memory that is registered with the kernel.";
    text.counter("flash_fixed_reads_total", help, shared.fixed_reads.load(Relaxed));
    let mut family = text.family(
        "histogram",
        "flash_transfer_duration_seconds",
        "From the moment a transfer is handed to the kernel until a thread takes its end: reads for clients, reads to free a \
         segment, writes.",
    );
    for kind in Transferred::ALL {
        let measured = Measured::of_transfers(&shared.transfers, kind);
        histogram(&mut family, &format!("kind=\"{}\"", kind.name()), &measured);
    }
}

/// Writes the samples of a histogram with these labels.
fn histogram(family: &mut Samples<'_>, label: &str, measured: &Measured) {
    for power in CUTS {
        let below: u64 = measured.buckets[..below_micros(power)].iter().sum();
        family.with("_bucket", &format!("{label},le=\"{}\"", f64::from(1_u32 << power) / 1e6), below);
    }
    family.with("_bucket", &format!("{label},le=\"+Inf\""), measured.count());
    family.with("_sum", label, measured.nanos as f64 / 1e9);
    family.with("_count", label, measured.count());
}

fn latencies(text: &mut Text, shared: &Shared) {
    let measured = measured(shared);
    let mut family = text.family(
        "histogram",
        "sampled_turn_duration_seconds",
        "From the moment the server learns that a client has sent something until the answer has been handed to the kernel \
         or the fabric. About one turn in 64 is measured; one-sided reads are none.",
    );
    let all = measured.iter().flat_map(|(transport, of)| Asked::ALL.map(|asked| (transport, asked, of)));
    for (transport, asked, of) in all {
        let label = format!("transport=\"{transport}\",asked=\"{}\"", asked.name());
        histogram(&mut family, &label, &of[asked as usize]);
    }
}
