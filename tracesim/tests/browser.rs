//! The pages in a real browser, headless, at three widths, light and dark: every plot has an extent, no text runs into another
//! or outgrows its box, every verdict can be seen, and the colours follow the reader's. Where there is no Chromium it says so and is skipped.

mod common;

use common::{folder, golden, path, stdout};
use serde_json::Value;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A telephone held sideways or half of a small screen, a laptop's, a large one.
const WIDTHS: [u32; 3] = [500, 1100, 1900];
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// The findings of the browser, written where `--dump-dom` shows them.
const LOOK: &str = r##"<script>
const box = e => e.getBoundingClientRect();
const seen = e => getComputedStyle(e).visibility !== "hidden";
const plots = [...document.querySelectorAll("figure")].map(figure => {
  const svg = [...figure.querySelectorAll("svg.plot")].find(e => box(e).width > 0), frame = box(svg), card = box(figure);
  const texts = [...svg.querySelectorAll("text")].filter(t => seen(t) && t.textContent.trim());
  const rotated = t => t.hasAttribute("transform");
  const overlaps = [], outside = [];
  texts.forEach((t, i) => {
    const a = box(t);
    if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
      outside.push(t.textContent);
    texts.slice(i + 1).forEach(u => {
      const b = box(u);
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      // What stands in a row needs a gap, too.
      const row = t.matches(".tick") && u.matches(".tick");
      if (!rotated(t) && !rotated(u) && across > (row ? -4 : 1) && down > 4) overlaps.push(t.textContent + " / " + u.textContent);
    });
  });
  const marks = [...svg.querySelectorAll(".series .line, .series .bar")].filter(m => {
    const b = box(m);
    return b.width > 0 || b.height > 0;
  });
  // As large as the text around it, and within the card.
  const heights = texts.filter(t => !rotated(t)).map(t => box(t).height);
  const beyond = texts.filter(t => box(t).left < card.left || box(t).right > card.right).map(t => t.textContent);
  return { id: figure.id, width: frame.width, height: frame.height, marks: marks.length, overlaps, outside, beyond,
           least: Math.min(...heights), most: Math.max(...heights),
           paint: (style => style.stroke + style.fill)(getComputedStyle(svg.querySelector(".series .line, .series .bar"))) };
});
// Text that is not wholly in its card, or in the page where it has none. Beside a table that scrolls its first column stays.
const outgrown = [], sideways = [], pale = [];
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
const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (words.nextNode()) {
  const text = words.currentNode, holder = text.parentElement;
  if (!text.textContent.trim() || holder.closest("script, style, title") || !holder.getClientRects().length || !seen(holder)) continue;
  const inks = getComputedStyle(holder), ink = light(holder.closest("svg") ? inks.fill : inks.color), paper = light(behind(holder));
  const contrast = (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05);
  if (contrast < 4.5) pale.push(contrast.toFixed(1) + " " + text.textContent);
  if (holder.closest("svg")) continue;
  const range = document.createRange();
  range.selectNodeContents(text);
  const scroll = holder.closest(".scroll"), cell = holder.closest("th, td");
  const stays = !scroll || !cell || cell === cell.parentElement.firstElementChild;
  const frame = box(holder.closest("figure, .card, li, header, footer, main"));
  const sight = { left: Math.max(0, frame.left), right: Math.min(innerWidth, frame.right) };
  for (const line of range.getClientRects()) {
    if (stays && (line.left < sight.left - 1 || line.right > sight.right + 1)) { outgrown.push(text.textContent); break; }
  }
}
for (const e of document.querySelectorAll("body *:not(.scroll)")) {
  const hides = getComputedStyle(e).overflowX !== "visible";
  if (hides && !e.closest("svg") && e.scrollWidth > e.clientWidth + 1) sideways.push(e.tagName + "." + e.className);
}
// A name beside its row where the numbers have been scrolled away.
for (const scroll of document.querySelectorAll("main .scroll")) {
  scroll.scrollLeft = 1e6;
  for (const cell of scroll.querySelectorAll(":is(th, td):first-child"))
    if (box(cell).left < box(scroll).left - 1 || box(cell).width > box(scroll).width * .6) outgrown.push("scrolled: " + cell.textContent);
}
const verdicts = [...document.querySelectorAll(".holds, .fails, .open")].filter(e => box(e).left < 0 || box(e).right > innerWidth || !box(e).width).length;
const found = { plots, outgrown, sideways, pale, verdicts, judged: document.querySelectorAll("#claims .holds, #claims .fails, #claims .open").length, paper: getComputedStyle(document.body).backgroundColor,
                ink: getComputedStyle(document.body).color,
                wide: document.documentElement.scrollWidth - innerWidth };
document.body.innerHTML = "<pre id=found>" + JSON.stringify(found).replace(/&/g, "&amp;").replace(/</g, "&lt;") + "</pre>";
</script>"##;

fn browser() -> Option<&'static str> {
    let starts = |name: &&str| {
        let version = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    BROWSERS.into_iter().find(starts)
}

/// Renders a page of the folder in a window of that width, by the scheme's number of Chromium: 0 is dark, 1 light.
fn look(browser: &str, folder: &TempDir, page: &str, scheme: u8, width: u32) -> Value {
    let html = std::fs::read_to_string(path(folder, page)).unwrap();
    let probe = path(folder, "probe.html");
    std::fs::write(&probe, html.replace("</body>", &format!("{LOOK}</body>"))).unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom", "--timeout=20000"])
        .arg(format!("--user-data-dir={}", path(folder, "profile")))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--window-size={width},900"))
        .arg(format!("file://{probe}"))
        .stdin(Stdio::null())
        .output()
        .expect("the browser starts");
    let dom = String::from_utf8_lossy(&output.stdout);
    let (_, found) = dom.split_once("<pre id=\"found\">").unwrap_or_else(|| {
        panic!("the browser rendered nothing: {}", String::from_utf8_lossy(&output.stderr));
    });
    let found = found.split_once("</pre>").expect("its end").0;
    let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&found).unwrap()
}

/// How bright an `rgb(…)` is, of 255.
fn brightness(colour: &Value) -> f64 {
    let numbers = colour.as_str().unwrap().trim_start_matches("rgb(").trim_end_matches(')').split(',');
    numbers.map(|n| n.trim().parse::<f64>().unwrap()).sum::<f64>() / 3.0
}

fn assert_drawn(found: &Value, least: usize) {
    let plots = found["plots"].as_array().unwrap();
    assert!(plots.len() >= least, "{} plots", plots.len());
    for plot in plots {
        let id = &plot["id"];
        assert!(
            plot["width"].as_f64().unwrap() > 300.0 && plot["height"].as_f64().unwrap() > 180.0,
            "{id} is too small"
        );
        assert!(plot["marks"].as_u64().unwrap() > 0, "{id} has no line and no bar");
        assert_eq!(plot["overlaps"], Value::Array(vec![]), "texts of {id} run into each other");
        assert_eq!(plot["outside"], Value::Array(vec![]), "texts of {id} are cut off");
        assert_eq!(plot["beyond"], Value::Array(vec![]), "texts of {id} leave their card");
        let sizes = [&plot["least"], &plot["most"]].map(|size| size.as_f64().unwrap());
        assert!(sizes[0] >= 10.5, "texts of {id} are too small to read: {} px", sizes[0]);
        assert!(sizes[1] <= 19.0, "texts of {id} are larger than those around it: {} px", sizes[1]);
    }
    assert_eq!(found["outgrown"], Value::Array(vec![]), "texts outgrow their boxes");
    assert_eq!(found["sideways"], Value::Array(vec![]), "only tables scroll sideways");
    assert_eq!(found["pale"], Value::Array(vec![]), "texts hardly stand out from what is behind them");
    assert_eq!(found["verdicts"], 0, "verdicts cannot be seen");
    assert!(found["wide"].as_f64().unwrap() <= 0.0, "the page does not scroll sideways");
}

#[test]
#[ignore = "starts a browser eighteen times; `.ci/run browser` has it done"]
fn pages_are_whole_at_three_widths_light_and_dark() {
    let Some(browser) = browser() else {
        eprintln!("the page in a browser: not run: there is no Chromium here");
        return;
    };
    let folder = folder();
    let traces = ["overlaps.csv", "whole-files.csv", "straddles-and-giants.csv"].map(golden);
    let file = path(&folder, "page.html");
    let arguments = ["compare", "--report", &file, &traces[0], &traces[1], &traces[2]];
    stdout(&arguments);
    // As many real traces as there are of ours, and names as long.
    let logs = path(&folder, "logs");
    std::fs::create_dir(&logs).unwrap();
    for number in 0..10 {
        let log = path(&folder, &format!("logs/some_recording_of_{number}.oracleGeneral.csv"));
        std::fs::write(log, "start_page,pages\n1,2\n9,1\n1,2\n20,4\n9,1\n").unwrap();
    }
    stdout(&["reproduce", "--quick", "--logs", &logs, "--out", &path(&folder, "study.html")]);
    // Costs of many digits, and a footprint whose sizes are long to write, at capacities that lie close.
    let costly = path(&folder, "costly.html");
    let large = "zipf:objects=20000,requests=20000,pages=32";
    stdout(&["compare", "-p", "mrrc,pindown,ucx", "--cost", "1000,1000,1000,1", "--report", &costly, large]);
    for width in WIDTHS {
        for (page, plots) in [("page.html", 15), ("costly.html", 5), ("study.html", 14)] {
            let [dark, light] = [0, 1].map(|scheme| look(browser, &folder, page, scheme, width));
            for (found, paper_is_dark) in [(&dark, true), (&light, false)] {
                eprintln!("{page}, {width} pixels, {}", if paper_is_dark { "dark" } else { "light" });
                assert_drawn(found, plots);
                assert_eq!(found["judged"].as_u64().unwrap() > 20, page == "study.html");
                assert_eq!(brightness(&found["paper"]) < 128.0, paper_is_dark, "{}", found["paper"]);
                let contrast = (brightness(&found["paper"]) - brightness(&found["ink"])).abs();
                assert!(contrast > 150.0, "ink stands out from paper");
            }
            assert_ne!(dark["plots"][0]["paint"], light["plots"][0]["paint"], "the marks follow the scheme, too");
        }
    }

    let shot = path(&folder, "page.png");
    let taken = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1280,2000"])
        .arg(format!("--user-data-dir={}", path(&folder, "profile")))
        .arg(format!("--screenshot={shot}"))
        .arg(format!("file://{file}"))
        .stdin(Stdio::null())
        .output()
        .expect("the browser starts");
    assert!(taken.status.success());
    assert!(std::fs::metadata(&shot).unwrap().len() > 50_000, "an empty page takes less");
}
