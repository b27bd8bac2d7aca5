//! The overview in a real browser, headless, with a server under load behind it, and with one that has almost nothing to
//! do. Every plot has an extent, no text runs into another, no axis has a label twice, the colours follow the reader's,
//! there are no complaints, and the numbers move. Where there is no Chromium it says so and is skipped.

#[path = "../common/mod.rs"]
mod common;
mod devtools;
mod load;

use std::time::{Duration, Instant};

use common::Server;
use devtools::Browser;
use load::Load;
use serde_json::{Value, json};

/// The script that reports the drawing.
const LOOK: &str = r##"(() => {
const box = e => e.getBoundingClientRect();
const plots = [...document.querySelectorAll("figure")].map(figure => {
  const svg = figure.querySelector("svg.plot"), frame = box(svg);
  const texts = [...svg.querySelectorAll("text")].filter(t => t.textContent.trim());
  const overlaps = [], outside = [];
  texts.forEach((t, i) => {
    const a = box(t);
    if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
      outside.push(t.textContent);
    texts.slice(i + 1).forEach(u => {
      const b = box(u);
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > -3 && down > 3) overlaps.push(t.textContent + " / " + u.textContent);
    });
  });
  const captions = [...figure.querySelectorAll("h2, .legend li")].map(box);
  captions.forEach((a, i) => captions.slice(i + 1).forEach(b => {
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1) overlaps.push("caption");
  }));
  // What an axis says twice.
  const values = [...svg.querySelectorAll(".tick.value")].map(t => t.textContent);
  const places = [...svg.querySelectorAll(".tick:not(.value)")].map(t => t.textContent);
  const again = [values, places].flatMap(said => said.filter((label, n) => said.indexOf(label) !== n));
  const marks = [...svg.querySelectorAll(".series .line, .series .bar")].filter(m => box(m).width > 0 || box(m).height > 0);
  return { id: figure.id, width: frame.width, height: frame.height, marks: marks.length, overlaps, outside, values, again,
           small: texts.filter(t => box(t).height < 11).length, label: svg.getAttribute("aria-label"),
           stroke: marks.length ? getComputedStyle(marks[0]).stroke + getComputedStyle(marks[0]).fill : "" };
});
// Tiles of a group are in full rows, all of one width, and say a number and its unit in one line.
const groups = [...document.querySelectorAll(".tiles")].map(of => [...of.children].map(box)).filter(of => of.length && of[0].width);
const rowsOf = boxes => Object.values(Object.groupBy(boxes, b => Math.round(b.top))).map(row => row.length);
const rows = groups.map(rowsOf);
const uneven = groups.some(boxes => new Set(rowsOf(boxes)).size > 1 || Math.max(...boxes.map(b => b.width)) - Math.min(...boxes.map(b => b.width)) > 1);
const up = [...document.querySelectorAll("#lead span")].pop(), upRange = document.createRange();
upRange.selectNodeContents(up);
const outgrown = [...document.querySelectorAll(".tiles dt, .tiles .value, .tiles .note, h2, .legend li")].filter(e => {
  const range = document.createRange(), frame = box(e.closest(".tiles > div, figure"));
  range.selectNodeContents(e);
  return [...range.getClientRects()].some(line => line.left < frame.left || line.right > frame.right + .5);
}).map(e => e.textContent);
const numbers = colour => colour.match(/[\d.]+/g).map(n => n * (colour.startsWith("color(") ? 255 : 1));
const light = colour => {
  const [r, g, b] = numbers(colour).map(n => n / 255).map(n => n <= .03928 ? n / 12.92 : ((n + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const behind = e => {
  for (let at = e; at; at = at.parentElement) {
    const colour = numbers(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return getComputedStyle(at).backgroundColor;
  }
  return "rgb(255, 255, 255)";
};
const pale = [...document.querySelectorAll(".tiles dt, .tiles dd, h2, .legend li, #lead span, svg text, footer p, #state")].filter(e => {
  const style = getComputedStyle(e), [a, b] = [light(e.closest("svg") ? style.fill : style.color), light(behind(e))];
  return (Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5;
}).map(e => e.textContent);
const clipped = [...document.querySelectorAll(".tiles .value, .tiles .note")].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent);
return { plots, clipped, outgrown, pale, rows, uneven, up: up.textContent, upLines: new Set([...upRange.getClientRects()].map(r => Math.round(r.top))).size, tiles: Object.fromEntries([...document.querySelectorAll(".tiles > div")].map(t => [t.querySelector("dt").textContent, t.querySelector("dd").textContent])),
  paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
  wide: document.documentElement.scrollWidth - innerWidth, state: document.getElementById("state").textContent };
})()"##;

const PLOTS: [&str; 9] =
    ["ratio", "operations", "latency", "spread", "memory", "evictions", "traffic", "connections", "cpu"];
/// Those of the second tier, which stand after that of the memory.
const OF_FLASH: [&str; 4] = ["tiers", "device", "flash-bytes", "left"];

/// How bright an `rgb(…)` is, of 255.
fn brightness(colour: &Value) -> f64 {
    let numbers = colour.as_str().unwrap().trim_start_matches("rgb(").trim_end_matches(')').split(',');
    numbers.map(|n| n.trim().parse::<f64>().unwrap()).sum::<f64>() / 3.0
}

/// Checks that the drawing can be read, with few values and with many.
fn assert_readable(found: &Value) {
    let plots = found["plots"].as_array().unwrap();
    let ids: Vec<&str> = plots.iter().map(|plot| plot["id"].as_str().unwrap()).collect();
    let (before, after) = PLOTS.split_at(5);
    let of_flash = if found["tiles"]["On flash"].is_null() { &[][..] } else { &OF_FLASH };
    assert_eq!(ids, [before, of_flash, after].concat());
    for plot in plots {
        let id = &plot["id"];
        assert!(
            plot["width"].as_f64().unwrap() > 250.0 && plot["height"].as_f64().unwrap() > 150.0,
            "{id} is too small"
        );
        assert_eq!(plot["again"], json!([]), "an axis of {id} says the same twice: {}", plot["values"]);
        assert_eq!(plot["overlaps"], json!([]), "texts of {id} run into each other");
        assert_eq!(plot["outside"], json!([]), "texts of {id} are cut off");
        assert_eq!(plot["small"], json!(0), "texts of {id} are too small to read");
        let label = plot["label"].as_str().unwrap();
        assert!(label.contains(": ") && !label.contains("NaN") && !label.contains("undefined"), "{id}: {label}");
    }
    assert_eq!(found["clipped"], json!([]), "tiles are cut off");
    assert_eq!(found["outgrown"], json!([]), "texts outgrow their boxes");
    assert_eq!(found["pale"], json!([]), "texts hardly stand out from what is behind them");
    assert_eq!(found["uneven"], json!(false), "tiles in rows of {}", found["rows"]);
    assert_eq!(found["upLines"], json!(1), "{} is broken", found["up"]);
    assert!(found["wide"].as_f64().unwrap() <= 0.0, "the page scrolls sideways");
    assert_eq!(found["state"], json!("serving"));
}

fn assert_drawn(found: &Value) {
    assert_readable(found);
    for plot in found["plots"].as_array().unwrap() {
        assert!(plot["marks"].as_u64().unwrap() > 0, "{} has no line and no bar", plot["id"]);
    }
}

#[test]
#[ignore = "starts a browser; `.ci/run browser` has it done"]
fn overview_is_live_and_readable_in_all_modes() {
    let Some(mut browser) = Browser::start() else {
        eprintln!("the overview in a browser: not run: there is no Chromium here");
        return;
    };
    let server = Server::on_a_free_port(&["-m", "24", "-t", "2", "--http", "127.0.0.1:0"]);
    let load = Load::start(&server.address("tcp"), 6);
    let url = format!("http://{}/", server.address("http"));
    let readers = Load::over_a_fabric(&server.fabric("shm"), 1);
    browser.window((1280, 900), "light");
    browser.open(&url);
    let evicts = r##"document.querySelector("#evictions svg.plot")?.getAttribute("aria-label")?.match(/evicted [1-9]/) != null"##;
    browser.wait_for(evicts);
    let measured = r##"document.querySelectorAll("#latency svg.plot .line").length > 0 && document.querySelectorAll("#spread svg.plot .line").length > 0"##;
    browser.wait_for(measured);
    browser.wait_for(r##"document.querySelectorAll("#latency svg.plot .line").length === 3"##);

    let light = browser.evaluate(LOOK);
    assert_drawn(&light);
    browser.window((1280, 900), "dark");
    let dark = browser.evaluate(LOOK);
    assert_drawn(&dark);
    for (found, is_dark) in [(&dark, true), (&light, false)] {
        assert_eq!(brightness(&found["paper"]) < 128.0, is_dark, "{}", found["paper"]);
        assert!((brightness(&found["paper"]) - brightness(&found["ink"])).abs() > 150.0, "ink stands out from paper");
    }
    assert_ne!(dark["plots"][0]["stroke"], light["plots"][0]["stroke"], "the marks follow the scheme, too");
    let sizes = [(380, 800), (500, 900), (700, 900), (1100, 900), (1900, 1200)];
    for (size, scheme) in sizes.into_iter().flat_map(|size| [(size, "light"), (size, "dark")]) {
        browser.window(size, scheme);
        // The window's new size is drawn for at once, and every second anew.
        browser.wait_for(r##"[...document.querySelectorAll("svg.plot")].every(s => Math.abs(s.viewBox.baseVal.width - s.clientWidth) < 2)"##);
        let found = browser.evaluate(LOOK);
        assert_drawn(&found);
    }

    // It moves, and what it shows is what the server counts.
    let hits = |browser: &mut Browser| browser.evaluate(LOOK)["tiles"]["Operations"].clone();
    let before = hits(&mut browser);
    assert_ne!(before, json!("0/s"));
    drop(load);
    drop(readers);
    browser.wait_for(
        r##"document.querySelector("#connections svg.plot").getAttribute("aria-label") === "Connections: over sockets 0, over fabrics 0""##,
    );
    browser.wait_for(r##"[...document.querySelectorAll(".tiles dd")][2].textContent === "0/s""##);
    assert!(server.stat("get_hits") > 100);

    // A server that is gone is said to be gone; then one that was started anew begins anew.
    let complaints = browser.complaints.clone();
    assert_eq!(complaints, Vec::<String>::new(), "the page runs without complaint and within its policy");
    server.signal("-TERM");
    browser.wait_for(r##"document.getElementById("state").textContent.startsWith("no answer for")"##);
    let address = server.address("http");
    drop(server);
    let Ok(anew) = std::panic::catch_unwind(|| Server::on_a_free_port(&["--http", &address])) else { return };
    // Another program may have taken the port meanwhile.
    if anew.lines.iter().any(|line| line.contains("on http")) {
        browser.wait_for(r##"document.getElementById("state").textContent === "serving""##);
        browser.wait_for(r##"[...document.querySelectorAll(".tiles .note")][1].textContent === "0 since start""##);
    }
}

#[test]
#[ignore = "starts a browser; `.ci/run browser` has it done"]
fn flash_has_tiles_and_plots() {
    let Some(mut browser) = Browser::start() else {
        eprintln!("the overview in a browser: not run: there is no Chromium here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let flash = format!("{}:256m", folder.path().join("log").display());
    let more: [&[&str]; 2] = [&[], &["--fabric", "none"]];
    for more in more {
        let flags = [&["-m", "16", "-t", "2", "--http", "127.0.0.1:0", "--flash", &flash][..], more].concat();
        let server = Server::on_a_free_port(&flags);
        browser.window((1400, 900), "light");
        browser.open(&format!("http://{}/", server.address("http")));
        browser.wait_for(r##"document.querySelector("#device svg.plot .empty") != null"##);
        assert_readable(&browser.evaluate(LOOK));
        let load = Load::start(&server.address("tcp"), 4);
        browser.wait_for(r##"document.querySelectorAll("#device svg.plot .line").length === 3"##);
        browser.wait_for(r##"document.querySelectorAll("#tiers svg.plot .line").length === 2"##);
        for size in [(360, 800), (800, 900), (1400, 900)] {
            browser.window(size, "light");
            browser.wait_for(r##"[...document.querySelectorAll("svg.plot")].every(s => Math.abs(s.viewBox.baseVal.width - s.clientWidth) < 2)"##);
            let found = browser.evaluate(LOOK);
            assert_drawn(&found);
            assert_eq!(found["tiles"].as_object().unwrap().len(), if more.is_empty() { 14 } else { 12 });
            if let Some(folder) = std::env::var_os("PICTURES") {
                let file = std::path::Path::new(&folder).join(format!("flash-{}-{}.png", more.len(), size.0));
                std::fs::write(file, browser.picture()).unwrap();
            }
        }
        drop(load);
        assert_eq!(browser.complaints, Vec::<String>::new());
        // The page must not ask a server that has ended, before it asks the next one.
        browser.open("about:blank");
    }
}

#[test]
#[ignore = "starts a browser; `.ci/run browser` has it done"]
fn gets_in_the_kernel_have_tiles() {
    let Some(mut browser) = Browser::start() else {
        eprintln!("the overview in a browser: not run: there is no Chromium here");
        return;
    };
    // A server with programs in the kernel takes privileges: the page is told that this one has some.
    let with_programs = r##"(() => {
const fetch = window.fetch;
window.fetch = async (...how) => {
  const answer = await fetch(...how), data = await answer.json();
  const points = data.points.map(point => ({ ...point, hits: 1500, misses: 500, kernel: { gets: 1200, passed: 34 } }));
  return { ok: true, json: async () => ({ ...data, points, totals: { ...data.totals, kernel: { gets: 123456, passed: 7890 } } }) };
};
})()"##;
    for (fabric, tiles) in [("none", 10), ("iwarp:127.0.0.1:0", 12)] {
        let server = Server::on_a_free_port(&["-m", "24", "-t", "2", "--http", "127.0.0.1:0", "--fabric", fabric]);
        browser.window((1280, 900), "light");
        browser.open(&format!("http://{}/", server.address("http")));
        browser.wait_for(r##"document.querySelectorAll("#tiles > div").length > 0"##);
        assert_eq!(browser.evaluate(LOOK)["tiles"]["Gets in the kernel"], Value::Null, "there is no --xdp");
        browser.evaluate(with_programs);
        browser.wait_for(r##"document.querySelector("#tiles").textContent.includes("60.0\u00a0% of gets")"##);
        for width in [400, 1000, 1280] {
            browser.window((width, 900), "light");
            browser.wait_for(r##"[...document.querySelectorAll("svg.plot")].every(s => Math.abs(s.viewBox.baseVal.width - s.clientWidth) < 2)"##);
            let found = browser.evaluate(LOOK);
            assert_readable(&found);
            let of = |name: &str| found["tiles"][name].clone();
            assert_eq!([of("Gets in the kernel"), of("Passed to the socket")], ["1.2k/s", "34/s"]);
            assert_eq!(found["tiles"].as_object().unwrap().len(), tiles);
            if let Some(folder) = std::env::var_os("PICTURES") {
                let file = std::path::Path::new(&folder).join(format!("kernel-{tiles}-{width}.png"));
                std::fs::write(file, browser.picture()).unwrap();
            }
        }
        assert_eq!(browser.complaints, Vec::<String>::new());
        browser.open("about:blank");
    }
}

/// From now on the page is told this in place of what the server says, and what is made of it waits for nothing: `show(n)`
/// is another server whose every number is `n`.
const SHOW: &str = r#"(async () => {
const data = await (await fetch("/overview.json")).json();
const fill = (from, n) => Object.fromEntries(Object.entries(from).map(([key]) => [key, n]));
const point = data.points[data.points.length - 1];
window.show = n => new Promise(shown => {
  const points = [58, 59, 60].map(at => ({ ...fill(point, n), ...fill({ p50: 0, p99: 0, p999: 0 }, Math.min(n * 1e-6, 9)), at, number: at }));
  const classes = [96, 120].map((size, at) => ({ class: at, size, items: 1, requested: n / 3, used: n / 2, paged: n, evicted: 0, age: 1 }));
  const told = { ...data, server: { ...data.server, started: n }, points, classes };
  window.fetch = async () => ({ ok: true, json: async () => (setTimeout(shown), told) });
  document.dispatchEvent(new Event("visibilitychange"));
});
})()"#;

#[test]
#[ignore = "starts a browser; `.ci/run browser` has it done"]
fn axes_are_labelled_for_small_and_large_values() {
    let Some(mut browser) = Browser::start() else {
        eprintln!("the overview in a browser: not run: there is no Chromium here");
        return;
    };
    // Two points at least are known: the server has been there for a while.
    let server = Server::on_a_free_port(&["--http", "127.0.0.1:0"]);
    browser.window((1240, 900), "light");
    browser.open(&format!("http://{}/", server.address("http")));
    let drawn = r##"document.querySelector("#connections svg.plot")?.getAttribute("aria-label") === "Connections: over sockets 0, over fabrics 0""##;
    browser.wait_for(drawn);
    let idle = browser.evaluate(LOOK);
    assert_readable(&idle);
    let values = |found: &Value, id: &str| {
        let plot = found["plots"].as_array().unwrap().iter().find(|plot| plot["id"] == id).unwrap();
        plot["values"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_str().unwrap().replace('\u{a0}', " "))
            .collect::<Vec<_>>()
    };
    assert_eq!(values(&idle, "connections"), ["0", "1", "2", "3", "4"]);
    assert_eq!(values(&idle, "operations"), ["0", "1", "2", "3", "4"]);
    assert_eq!(values(&idle, "cpu"), ["0", "0.05", "0.1", "0.15", "0.2"]);
    // One client and one small item, as a reader of the README has them after the first commands.
    common::ask(&mut server.connect(), b"set greeting 0 0 5\r\nhello\r\n", b"STORED\r\n");
    browser.wait_for(r##"document.querySelectorAll("#memory svg.plot .bar").length > 0"##);
    assert_readable(&browser.evaluate(LOOK));

    browser.evaluate(SHOW);
    let few = (0..=13).map(f64::from);
    let fractions = [0.01, 0.07, 0.3, 1.6, 2.2, 9.4];
    let round = (2..12).flat_map(|power| [1.0, 1.46, 2.4, 3.0, 9.99].map(|n| n * 10_f64.powi(power)));
    for n in few.chain(fractions).chain(round) {
        browser.evaluate(&format!("show({n})"));
        let found = browser.evaluate(LOOK);
        assert_readable(&found);
        for id in ["connections", "operations", "evictions"] {
            let values = values(&found, id);
            assert!((2..=5).contains(&values.len()), "{id} at {n}: {values:?}");
            let plain = values.iter().filter(|value| value.parse::<f64>().is_ok());
            assert!(
                plain.clone().all(|value| value.parse::<u64>().is_ok()),
                "{id} counts in wholes, at {n}: {values:?}"
            );
        }
    }
    // A mebibyte and a half is not in steps of thousands.
    browser.evaluate("show(1.46 * (1 << 20))");
    assert_eq!(values(&browser.evaluate(LOOK), "memory"), ["0 B", "512 KiB", "1 MiB", "1.5 MiB"]);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Makes the README's picture, after the load has run for a while: `rdmakv-server/pictures/make`.
#[test]
#[ignore = "makes a picture, which takes as many seconds as it is told"]
fn picture() {
    let (Some(folder), Some(seconds)) = (std::env::var_os("PICTURES"), std::env::var("PICTURE_SECONDS").ok()) else {
        eprintln!("a picture: not made: PICTURES names the folder, PICTURE_SECONDS how long the load runs");
        return;
    };
    let mut browser = Browser::start().expect("there is a Chromium");
    let server = Server::on_a_free_port(&["-m", "160", "-t", "2", "--http", "127.0.0.1:0"]);
    let end = Instant::now() + Duration::from_secs(seconds.parse().expect("seconds are a number"));
    let mut loads = vec![Load::start(&server.address("tcp"), 8)];
    let port = server.address("tcp").rsplit(':').next().expect("a port").to_owned();
    let _readers = Load::over_a_fabric(&format!("shm:@rdmakv-{port}"), 4);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_secs(1));
        let elapsed = end - Instant::now();
        // More of them come for a while.
        let busy = (60..110).contains(&elapsed.as_secs()) || (180..200).contains(&elapsed.as_secs());
        match (busy, loads.len()) {
            (true, 1) => loads.push(Load::start(&server.address("tcp"), 16)),
            (false, 2) => drop(loads.pop()),
            _ => {}
        }
    }
    for (name, size, scheme) in [
        ("overview-light", (1240, 900), "light"),
        ("overview-dark", (1240, 900), "dark"),
        ("overview-narrow", (390, 844), "light"),
    ] {
        browser.window(size, scheme);
        browser.open(&format!("http://{}/", server.address("http")));
        browser.wait_for(r##"document.querySelectorAll("#latency svg.plot .line").length > 0"##);
        let file = std::path::Path::new(&folder).join(name).with_extension("png");
        std::fs::write(file, browser.picture()).unwrap();
    }
}
