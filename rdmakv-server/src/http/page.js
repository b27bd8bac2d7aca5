"use strict";
// The page asks for what it does not have yet, once a second, and draws everything anew. What comes from the server is
// written as text, never as markup.
(() => {
const KEPT = 300, EVERY = 1000, PATIENCE = 5000;
const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const make = (name, attributes = {}, ...children) => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const html = (name, className, ...children) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
};

// ---- Numbers as people read them; a unit stays on the line of its number
const NB = "\u00a0";
const digits = n => n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1).replace(/\.0$/, "") : n.toFixed(2).replace(/\.?0+$/, "");
const scaled = (n, step, units) => {
  let at = 0;
  while (Math.abs(n) >= step * .9995 && at < units.length - 1) { n /= step; at++; }
  return [n, units[at]];
};
const count = n => { const [m, unit] = scaled(n, 1000, ["", "k", "M", "G", "T"]); return (unit || m < 10 ? digits(m) : m.toFixed(0)) + unit; };
const whole = n => n < 1e5 ? n.toFixed(0).replace(/\B(?=(\d{3})+$)/, ",") : count(n);
const bytes = n => { const [m, unit] = scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]); return digits(m) + NB + unit; };
const time = s => s == null ? "–" : s < .9995e-3 ? digits(s * 1e6) + NB + "µs" : s < .9995 ? digits(s * 1e3) + NB + "ms" : digits(s) + NB + "s";
const percent = x => x == null ? "–" : (x >= .9995 ? "100" : (x * 100).toFixed(1)) + NB + "%";
const span = s => (s < 90 ? [s, "s"] : s < 5400 ? [Math.round(s / 60), "min"] : s < 129600 ? [digits(s / 3600), "h"] : [digits(s / 86400), "days"]).join(NB);

// ---- Axes
// From nought to at least the top in at most four steps, each a number that is written in full: what differs reads differently.
const climb = (top, step) => Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, n) => n * step);
const linear = (top, may = () => true) => {
  const power = 10 ** Math.floor(Math.log10(top / 4));
  return climb(top, [1, 2, 2.5, 5, 10].map(n => n * power).find(n => n * 4 >= top * (1 - 1e-9) && may(n)));
};
// Little is drawn as little: an idle server does not fill its plots.
const wholes = top => linear(Math.max(4, top), Number.isInteger);
const shares = top => linear(Math.max(.1, top));
const cores = top => linear(Math.max(.2, top));
const powers = (top, most = Math.max(1024, top)) => climb(most, 2 ** Math.ceil(Math.log2(most / 4)));
const decades = (low, high) => {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low) + 1e-9); power <= Math.ceil(Math.log10(high) - 1e-9); power++) ticks.push(10 ** power);
  if (ticks.length < 2) ticks.push(ticks[0] * 10);
  return ticks;
};

// One, two, five of each decade, from below the one to above the other.
const steps = (low, high) => {
  const all = [];
  for (let power = -8; power < 3; power++) all.push(...[1, 2, 5].map(n => n * 10 ** power));
  const from = all.findLastIndex(n => n <= low * 1.001), to = all.findIndex(n => n >= high * .999);
  return all.slice(Math.max(0, from), (to < 0 ? all.length : Math.max(to, from + 1)) + 1);
};

// ---- Plots
let points = [], data = null, pointed = null;
const RIGHT = 10, TOP = 10, BOTTOM = 24;
const newest = () => points[points.length - 1];
// Whole minutes, as many as are known.
const reach = () => Math.min(KEPT, Math.max(60, Math.ceil((newest().at - points[0].at) / 60) * 60));
const shown = () => {
  if (pointed == null) return newest();
  const at = newest().at - pointed;
  return points.reduce((best, point) => Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best, newest());
};

class Plot {
  constructor(id, title, series, { wide = false, height = 200 } = {}) {
    this.title = title; this.series = series; this.height = height;
    this.legend = html("ul", "legend");
    this.values = series.map(({ name, look, filled }) => {
      const value = html("b");
      const swatch = make("svg", { class: look, width: 20, height: 10, "aria-hidden": "true" },
        filled ? make("rect", { class: "bar", width: 12, height: 10, x: 4, rx: 2 }) : make("path", { class: "line", d: "M1 5H19" }));
      this.legend.append(html("li", "", swatch, name, value));
      return value;
    });
    this.svg = make("svg", { class: "plot", role: "img" });
    this.figure = html("figure", wide ? "wide" : "", html("figcaption", "", html("h2", "", title), this.legend), this.svg);
    this.figure.id = id;
    $("plots").append(this.figure);
  }
  frame(ticks, write, up) {
    this.width = Math.max(240, this.svg.clientWidth || 560);
    const { width, height } = this;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren();
    const labels = ticks.map(tick => make("text", { class: "tick value", y: up(tick).toFixed(1), dy: "0.34em", "text-anchor": "end" }, write(tick)));
    this.svg.append(...labels);
    // As much room as the longest takes in the reader's font; plots begin in line where that is not much.
    const longest = Math.max(...labels.map(label => label.getComputedTextLength()));
    const left = this.left = Math.max(58, Math.ceil(longest) + 10);
    for (const label of labels) {
      label.setAttribute("x", left - 8);
      label.before(make("path", { class: "grid", d: `M${left} ${label.getAttribute("y")}H${width - RIGHT}` }));
    }
    this.svg.append(make("path", { class: "axis", d: `M${left} ${height - BOTTOM}H${width - RIGHT}` }));
  }
  tell(values) {
    values.forEach((value, n) => { if (this.values[n].textContent !== value) this.values[n].textContent = value; });
    this.svg.setAttribute("aria-label", this.title + ": " + this.series.map((s, n) => s.name + " " + values[n]).join(", "));
  }
  empty(words) {
    this.svg.append(make("text", { class: "empty", x: (this.left + this.width - RIGHT) / 2, y: this.height / 2, "text-anchor": "middle" }, words));
  }
  // A number in a row of its own is put where it has room.
  along(entries) {
    let free = this.left - 20;
    for (const [x, words] of entries) {
      const half = words.length * 3.4;
      const anchor = x + half > this.width - RIGHT ? "end" : "middle";
      const [from, to] = anchor === "end" ? [x - 2 * half, x] : [x - half, x + half];
      if (from < free) continue;
      this.svg.append(make("text", { class: "tick", x: x.toFixed(1), y: this.height - 7, "text-anchor": anchor }, words));
      free = to + 12;
    }
  }
}

// Values over the last minutes.
class Course extends Plot {
  constructor(id, title, series, write, { top, log = false, stacked = false, filled = !log, scale = wholes, nothing = () => "nothing in the last minutes" } = {}) {
    super(id, title, series.map(s => ({ filled, ...s })));
    Object.assign(this, { write, top, log, stacked, filled, scale, nothing });
    this.svg.addEventListener("pointermove", event => {
      const box = this.svg.getBoundingClientRect();
      const part = (event.clientX - box.left - this.left) / (box.width - this.left - RIGHT);
      pointed = part < 0 || part > 1 ? null : Math.round((1 - part) * reach());
      draw();
    });
    this.svg.addEventListener("pointerleave", () => { pointed = null; draw(); });
  }
  draw() {
    const { height, log, stacked } = this, now = newest().at;
    const of = (point, n) => {
      const value = this.series[n].of(point);
      return stacked ? this.series.slice(0, n).reduce((sum, s) => sum + s.of(point), value) : value;
    };
    const values = points.flatMap(point => this.series.map((_, n) => of(point, n))).filter(value => value != null && (!log || value > 0));
    const high = this.top ?? Math.max(0, ...values);
    const ticks = log ? (values.length ? decades(Math.min(...values), high) : [1e-6, 1e-5, 1e-4, 1e-3]) : this.scale(high);
    const [low, peak] = [ticks[0], ticks[ticks.length - 1]];
    const bottom = height - BOTTOM, room = bottom - TOP;
    const up = log ? v => bottom - Math.log(v / low) / Math.log(peak / low) * room : v => bottom - v / peak * room;
    this.frame(ticks, this.write, up);
    const { left } = this, wide = this.width - left - RIGHT, span = reach(), across = at => left + (1 - (now - at) / span) * wide;
    const parts = span === 60 ? [60, 45, 30, 15, 0] : [300, 240, 180, 120, 60, 0].filter(s => s <= span);
    this.along(parts.map(s => [across(now - s), !s ? "now" : span === 60 ? `−${s}${NB}s` : `−${s / 60}${NB}min`]));
    this.svg.classList.toggle("stacked", stacked);
    this.svg.classList.toggle("filled", this.filled);
    // What is on top of the others' areas is drawn first.
    const order = this.series.map((_, n) => n);
    if (stacked) order.reverse();
    for (const n of order) {
      const runs = [];
      let run = [], before = null;
      for (const point of points) {
        const value = of(point, n);
        const gap = before != null && point.at - before > 3;
        if ((value == null || gap) && run.length) { runs.push(run); run = []; }
        if (value != null) run.push([across(point.at), up(log ? Math.max(value, low) : value)]);
        before = point.at;
      }
      if (run.length) runs.push(run);
      const trace = run => run.map(([x, y]) => x.toFixed(1) + " " + y.toFixed(1)).join("L");
      const group = make("g", { class: "series " + this.series[n].look });
      for (const run of runs) {
        if (run.length === 1) run.push([run[0][0] + 1, run[0][1]]);
        const edge = stacked && n ? points.filter(p => across(p.at) >= run[0][0] - .01 && across(p.at) <= run[run.length - 1][0] + .01)
          .map(p => [across(p.at), up(of(p, n - 1))]).reverse() : [[run[run.length - 1][0], bottom], [run[0][0], bottom]];
        if (this.filled) group.append(make("path", { class: "area", d: `M${trace(run)}L${trace(edge)}Z` }));
        group.append(make("path", { class: "line", d: "M" + trace(run) }));
      }
      this.svg.append(group);
    }
    if (!values.length) this.empty(this.nothing());
    const at = shown();
    this.tell(this.series.map(s => { const value = s.of(at); return value == null ? "–" : (s.write ?? this.write)(value); }));
    if (pointed != null) this.svg.append(make("path", { class: "cross", d: `M${across(at.at).toFixed(1)} ${TOP}V${bottom}` }));
  }
}

// How latencies of the last minute are spread: the share of turns at each, on a scale of decades.
class Spread extends Plot {
  constructor(id, title) {
    super(id, title, [
      { name: "gets", look: "hue0", filled: true }, { name: "sets", look: "hue2", filled: true }, { name: "others, mixed", look: "hue3", filled: true }]);
  }
  draw() {
    const bars = data.bars, bottom = this.height - BOTTOM;
    const sums = [1, 2, 3].map(kind => bars.reduce((sum, bar) => sum + bar[kind], 0));
    const share = (bar, kind) => sums[kind - 1] ? bar[kind] / sums[kind - 1] : 0;
    const ticks = shares(Math.max(0, ...bars.flatMap(bar => [1, 2, 3].map(kind => share(bar, kind))))), peak = ticks[ticks.length - 1];
    const up = v => bottom - v / peak * (bottom - TOP);
    this.frame(ticks, v => Math.round(v * 1000) / 10 + NB + "%", up);
    this.tell(sums.map(sum => count(sum)));
    if (!bars.length) return this.empty(unmeasured(60));
    const cuts = steps(this.before(bars[0][0]), bars[bars.length - 1][0]);
    const [low, end] = [cuts[0], cuts[cuts.length - 1]];
    const across = s => this.left + Math.log(Math.max(s, low) / low) / Math.log(end / low) * (this.width - this.left - RIGHT);
    for (const kind of [1, 2, 3]) {
      const group = make("g", { class: "series " + this.series[kind - 1].look });
      let last = null;
      for (const bar of bars) {
        if (!bar[kind]) continue;
        const from = across(this.before(bar[0])), to = across(bar[0]), y = up(share(bar, kind));
        const joined = last != null && Math.abs(last.to - from) < .5;
        const d = `M${from.toFixed(1)} ${(joined ? last.y : bottom).toFixed(1)}V${y.toFixed(1)}H${to.toFixed(1)}`;
        group.append(make("rect", { class: "area", x: from, y, width: Math.max(to - from, .5), height: Math.max(bottom - y, 0) }),
          make("path", { class: "line", d }));
        last = { to, y };
      }
      this.svg.append(group);
    }
    this.along(cuts.map(cut => [across(cut), time(cut)]));
  }
  // Where the bar that ends there begins: two buckets earlier, of which an octave has eight.
  before(end) {
    const ticks = Math.round(end / 125e-9);
    if (ticks <= 8) return (ticks - 2) * 125e-9;
    const octave = 2 ** Math.floor(Math.log2(ticks - 1));
    return (ticks - octave / 4) * 125e-9;
  }
}

// The pages of each class, and what of them is used.
class Memory extends Plot {
  constructor(id, title) {
    super(id, title, [
      { name: "items", look: "hue0", filled: true }, { name: "rest of their chunks", look: "hue1", filled: true }, { name: "free chunks", look: "muted", filled: true }],
      { wide: true, height: 220 });
  }
  draw() {
    const { classes } = data, bottom = this.height - BOTTOM;
    const ticks = powers(Math.max(0, ...classes.map(c => c.paged))), peak = ticks[ticks.length - 1];
    const up = v => bottom - v / peak * (bottom - TOP);
    this.frame(classes.length ? ticks : [0], bytes, up);
    const sum = of => classes.reduce((sum, c) => sum + of(c), 0);
    this.tell([sum(c => c.requested), sum(c => c.used - c.requested), sum(c => c.paged - c.used)].map(bytes));
    if (!classes.length) return this.empty("no page is taken yet");
    const { left } = this, room = (this.width - left - RIGHT) / classes.length, bar = Math.min(room * .74, 44);
    const groups = this.series.map(s => make("g", { class: "series " + s.look }));
    classes.forEach((c, n) => {
      const x = left + (n + .5) * room - bar / 2;
      let from = 0;
      [c.requested, c.used, c.paged].forEach((to, part) => {
        if (to > from) groups[part].append(make("rect", { class: "bar", x: x.toFixed(1), y: up(to).toFixed(1), width: bar.toFixed(1), height: Math.max(up(from) - up(to), .4).toFixed(1) },
          make("title", {}, `class ${c.class}, chunks of ${bytes(c.size)}: ${count(c.items)} items, ${bytes(c.requested)} in ${bytes(c.paged)}`)));
        from = Math.max(from, to);
      });
    });
    this.svg.append(...groups);
    this.along(classes.map((c, n) => [left + (n + .5) * room, bytes(c.size)]));
  }
}

// Why there are no latencies: where clients read one-sided, the server answers nothing.
const unmeasured = seconds => {
  const of = points.slice(-seconds), sum = value => of.reduce((sum, point) => sum + value(point), 0);
  return sum(p => p.one_sided) && sum(answered) < 64 ? "all gets were one-sided" : "nothing measured yet";
};
// One-sided reads are hits, too; a client may report some a little before or after they are counted as such.
const one_sided = p => Math.min(p.one_sided, p.hits), answered = p => p.hits - one_sided(p);
const ratio = point => point.hits + point.misses > 0 ? point.hits / (point.hits + point.misses) : null;
// Some commands bring items back that are no hits.
const from_flash = p => Math.min(p.flash?.recalled ?? 0, p.hits);
const of_flash = name => p => p.flash?.[name];
const build = (fabrics, flash) => [
  new Course("ratio", "Hit ratio", [{ name: "of gets", look: "hue0", of: ratio, write: percent }], v => Math.round(v * 100) + NB + "%",
    { top: 1, scale: shares, nothing: () => "no gets in the last minutes" }),
  new Course("operations", "Operations per second", [
    ...fabrics ? [{ name: "one-sided hits", look: "hue4", of: one_sided }, { name: "answered hits", look: "hue0", of: answered }]
      : [{ name: "hits", look: "hue0", of: p => p.hits }],
    { name: "misses", look: "hue1", of: p => p.misses },
    { name: "sets", look: "hue2", of: p => p.sets }, { name: "others", look: "hue3", of: p => p.others }], count, { stacked: true }),
  new Course("latency", fabrics ? "Latency of answered gets" : "Latency of gets", [
    { name: "p50", look: "hue0", of: p => p.p50 }, { name: "p99", look: "hue1", of: p => p.p99 }, { name: "p99.9", look: "hue3", of: p => p.p999 }], time,
    { log: true, nothing: () => unmeasured(KEPT) }),
  new Spread("spread", "Latencies, last minute"),
  new Memory("memory", "Memory by chunk size"),
  ...flash ? [
    new Course("tiers", "Hits by tier, per second", [
      { name: "memory", look: "hue0", of: p => p.hits - from_flash(p) }, { name: "flash", look: "hue1", of: from_flash }], count, { stacked: true }),
    new Course("device", "Latency of the device", [
      { name: "reads p50", look: "hue0", of: of_flash("read_p50") }, { name: "reads p99", look: "hue1", of: of_flash("read_p99") },
      { name: "writes p99", look: "hue3", of: of_flash("write_p99") }], time, { log: true, nothing: () => "no transfers in the last minutes" }),
    new Course("flash-bytes", "Bytes of flash, per second", [
      { name: "read", look: "hue0", of: of_flash("read") }, { name: "from memory", look: "hue2", of: of_flash("admitted") },
      { name: "written again", look: "hue1", of: of_flash("rewritten") }], bytes, { scale: powers }),
    new Course("left", "Items that left memory, per second", [
      { name: "written", look: "hue2", of: of_flash("written") }, { name: "unchanged", look: "hue0", of: of_flash("clean") },
      { name: "dropped, too fast", look: "hue1", of: of_flash("busy") }, { name: "not admitted", look: "hue3", of: of_flash("refused") }], count, { stacked: true }),
  ] : [],
  new Course("evictions", flash ? "Items that are gone, per second" : "Items that left, per second", [
    { name: "evicted", look: "hue1", of: p => p.evictions }, { name: "expired", look: "hue2", of: p => p.expired }], count),
  new Course("traffic", fabrics ? "Bytes per second, one-sided reads left out" : "Bytes per second", [
    { name: "received", look: "hue2", of: p => p.received }, { name: "sent", look: "hue0", of: p => p.sent }], bytes, { scale: powers }),
  new Course("connections", "Connections", [
    { name: "over sockets", look: "hue0", of: p => p.connections }, ...fabrics ? [{ name: "over fabrics", look: "hue4", of: p => p.fabric_connections }] : []], whole, { stacked: true }),
  new Course("cpu", "Processor", [{ name: "cores busy", look: "hue2", of: p => p.cpu, write: v => v.toFixed(2) }], digits, { scale: cores }),
];
// Known once the server has told what it has.
let plots = null;

// ---- Tiles, words, the table
const tiles = new Map();
const tile = (name, value, note, part, into = "tiles") => {
  if (!tiles.has(name)) {
    const nodes = { value: html("dd", "value"), note: html("dd", "note") };
    const box = html("div", "", html("dt", "", name), nodes.value, nodes.note);
    if (part != null) {
      nodes.fill = html("i");
      box.append(html("dd", "meter", nodes.fill));
    }
    tiles.set(name, nodes);
    $(into).append(box);
  }
  const nodes = tiles.get(name);
  nodes.value.textContent = value;
  nodes.note.textContent = note;
  if (part != null) nodes.fill.style.width = Math.min(100, part * 100).toFixed(1) + "%";
};
const words = () => {
  const { server, totals } = data, at = shown(), fabrics = server.fabrics.length > 0;
  const recent = points.slice(-10), sum = of => recent.reduce((sum, point) => sum + of(point), 0);
  const gets = sum(p => p.hits + p.misses);
  const all = totals.hits + totals.misses;
  tile("Hit ratio", percent(gets ? sum(p => p.hits) / gets : null), `${percent(all ? totals.hits / all : null)} since start`);
  tile("Operations", count(at.hits + at.misses + at.sets + at.others) + "/s", `${count(all + totals.sets + totals.others)} since start`);
  if (fabrics) tile("One-sided gets", count(one_sided(at)) + "/s", gets ? `${percent(sum(one_sided) / gets)} of gets` : `${count(totals.one_sided)} since start`);
  if (totals.kernel) {
    const of = name => p => p.kernel?.[name] ?? 0, { gets: here, passed } = totals.kernel;
    tile("Gets in the kernel", count(of("gets")(at)) + "/s", gets ? `${percent(Math.min(1, sum(of("gets")) / gets))} of gets` : `${count(here)} since start`);
    tile("Passed to the socket", count(of("passed")(at)) + "/s", `gets over UDP; ${count(passed)} since start`);
  }
  tile("p99 of gets", time(at.p99), at.p50 == null ? unmeasured(10) : `half take ${time(at.p50)}`);
  const { flash, cluster } = totals;
  tile("Items", count(totals.items), flash ? `${count(totals.here)} in memory: ${bytes(totals.bytes)}` : `${bytes(totals.bytes)} with keys`);
  const beyond = totals.paged - server.limit;
  tile("Memory", bytes(totals.paged), `${bytes(server.limit)} limit` + (beyond > 0 ? ` + ${bytes(beyond)} of first pages` : ""), totals.paged / server.limit);
  $("flash-tiles").hidden = !flash;
  if (flash) {
    const into = "flash-tiles", { read_p50, read_p99 } = at.flash ?? {};
    const recalled = sum(from_flash);
    tile("Hits from flash", count(from_flash(at)) + "/s", gets ? `${percent(recalled / gets)} of gets` : `${count(flash.recalled)} since start`, null, into);
    tile("p99 of reads", time(read_p99), read_p50 == null ? "no reads of the device" : `of the device; half take ${time(read_p50)}`, null, into);
    tile("On flash", bytes(flash.used), `${bytes(flash.limit)} limit, ${count(flash.items)} items; ` +
      (flash.lost_files ? `files given up: ${count(flash.lost_files)}` : `${bytes(flash.memory)} of memory`), flash.used / Math.max(1, flash.limit), into);
    // Items that are still in buffers have come and are not written yet.
    tile("Write amplification", flash.written ? digits(Math.max(1, flash.written / flash.admitted)) + "×" : "–",
      `${bytes(flash.written)} written` + (flash.dropped ? `; items dropped: ${count(flash.dropped)}` : "") + (flash.failed ? `; failed: ${count(flash.failed)}` : ""), null, into);
  }
  $("cluster-tiles").hidden = !cluster;
  if (cluster) {
    const into = "cluster-tiles";
    tile("In the cluster", cluster.part, cluster.right ? "may answer for its keys" : "may not answer now", null, into);
    tile("Epoch", whole(cluster.epoch), `${whole(cluster.servers)} server${cluster.servers === 1 ? "" : "s"}` + (cluster.whole ? "" : "; repair is not done"), null, into);
    tile("Resilient keys", count(cluster.keys), bytes(cluster.bytes) + (cluster.pending ? `; pending: ${count(cluster.pending)}` : ""), null, into);
  }
  if (fabrics) tile("Registered", bytes(totals.registered), `${bytes(totals.registered_limit)} limit`, totals.registered / totals.registered_limit);
  tile("Evictions", count(at.evictions) + "/s", server.evicts ? `${count(totals.evictions)} since start` : "off: new items are refused");
  tile("Connections", whole(totals.connections + totals.fabric_connections),
    (fabrics ? `${whole(totals.fabric_connections)} over fabrics, ${whole(totals.connections)} ` : "") + `of ${whole(server.connections)}${NB}sockets` + (totals.rejected ? `, ${count(totals.rejected)} refused` : ""),
    totals.connections / server.connections);
  tile("Processor", digits(at.cpu), `cores, ${server.threads}${NB}thread${server.threads > 1 ? "s" : ""}`);
  const lead = server.listening.filter(line => line.startsWith("listening on ") && !line.includes(" http ")).map(line => line.replace("listening on ", ""));
  $("lead").replaceChildren(...[...lead, `up${NB}${span(Math.max(0, server.now - server.started))}`].map(part => html("span", "", part)));
  $("about").textContent = `Version ${server.version}, protocol of memcached ${server.protocol}; process ${server.pid}, ${server.threads} threads, ${server.shards} shard${server.shards > 1 ? "s" : ""}, items up to ${bytes(server.item_max)}; hash table ${bytes(totals.hash_bytes)}${fabrics ? "; fabrics: " + server.fabrics.join(", ") : ""}.`;
  const rows = data.classes.map(c => [c.class, bytes(c.size), count(c.items), bytes(c.requested), bytes(c.paged), percent(c.paged ? c.requested / c.paged : null), count(c.evicted), span(c.age)]);
  const head = ["Class", "Chunk", "Items", "Bytes", "Pages", "Filled", "Evicted", "Oldest"];
  $("classes").replaceChildren(html("thead", "", html("tr", "", ...head.map(h => html("th", "", h)))),
    html("tbody", "", ...rows.map(row => html("tr", "", ...row.map(cell => html("td", "", String(cell)))))));
};
const draw = () => {
  if (!data || !points.length) return;
  plots ??= build(data.server.fabrics.length > 0, data.totals.flash != null);
  words();
  for (const plot of plots) plot.draw();
};

// ---- Asking
let heard = Date.now();
const say = (state, good) => {
  const node = $("state");
  if (node.textContent !== state) node.textContent = state;
  node.className = "state " + (good ? "good" : "bad");
  document.body.classList.toggle("lost", !good && !data?.server.accepting);
};
const ask = async () => {
  try {
    const since = points.length ? newest().number : 0;
    const answer = await fetch("/overview.json?since=" + since, { signal: AbortSignal.timeout(PATIENCE), cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const fresh = await answer.json();
    // Another life of the server: what was known of the one before is over.
    if (data && (fresh.server.pid !== data.server.pid || fresh.server.started !== data.server.started)) points = [];
    const known = points.length ? newest().number : 0;
    points = points.concat(fresh.points.filter(point => point.number > known || !points.length));
    // Where the server stood still for a while, there are fewer points than seconds.
    points = points.filter(point => newest().at - point.at < KEPT);
    data = fresh;
    heard = Date.now();
    say(data.server.accepting ? "serving" : "ending", data.server.accepting);
  } catch {
    say(`no answer for ${span(Math.round((Date.now() - heard) / 1000))}`, false);
    document.body.classList.add("lost");
  }
  draw();
};
const go = async () => {
  if (!document.hidden) await ask();
  setTimeout(go, EVERY);
};
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
addEventListener("resize", draw);
go();
})();
