//! The page in a real browser, headless: every plot has an extent, no text runs into another, and the colours follow the
//! reader's. Where there is no Chromium it says so and is skipped.

mod common;

use common::{folder, golden, path, stdout};
use serde_json::Value;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// What the browser finds, written where `--dump-dom` shows it.
const LOOK: &str = r#"<script>
const box = e => e.getBoundingClientRect();
const seen = e => getComputedStyle(e).visibility !== "hidden";
const plots = [...document.querySelectorAll("figure")].map(figure => {
  const svg = figure.querySelector("svg.plot"), frame = box(svg);
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
  return { id: figure.id, width: frame.width, height: frame.height, marks: marks.length, overlaps, outside,
           stroke: getComputedStyle(svg.querySelector(".series .line, .series .bar")).stroke };
});
const found = { plots, paper: getComputedStyle(document.body).backgroundColor,
                ink: getComputedStyle(document.body).color,
                wide: document.documentElement.scrollWidth - innerWidth };
document.body.innerHTML = "<pre id=found>" + JSON.stringify(found).replace(/&/g, "&amp;").replace(/</g, "&lt;") + "</pre>";
</script>"#;

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
    }
}

#[test]
#[ignore = "starts a browser six times; `.ci/run browser` has it done"]
fn every_plot_is_there_and_readable_in_light_and_dark_and_on_a_telephone() {
    let Some(browser) = browser() else {
        eprintln!("the page in a browser: not run: there is no Chromium here");
        return;
    };
    let folder = folder();
    let traces = ["overlaps.csv", "whole-files.csv", "straddles-and-giants.csv"].map(golden);
    let file = path(&folder, "page.html");
    let arguments = ["compare", "--report", &file, &traces[0], &traces[1], &traces[2]];
    stdout(&arguments);
    let [dark, light] = [0, 1].map(|scheme| look(browser, &folder, "page.html", scheme, 1280));
    for (found, paper_is_dark) in [(&dark, true), (&light, false)] {
        assert_drawn(found, 15);
        assert_eq!(brightness(&found["paper"]) < 128.0, paper_is_dark, "{}", found["paper"]);
        assert!((brightness(&found["paper"]) - brightness(&found["ink"])).abs() > 150.0, "ink stands out from paper");
    }
    assert_ne!(dark["plots"][0]["stroke"], light["plots"][0]["stroke"], "the marks follow the scheme, too");
    // Costs of many digits, and a footprint whose sizes are long to write, at capacities that lie close.
    let costly = path(&folder, "costly.html");
    let large = "zipf:objects=20000,requests=20000,pages=32";
    stdout(&["compare", "-p", "mrrc,pindown,ucx", "--cost", "1000,1000,1000,1", "--report", &costly, large]);
    assert_drawn(&look(browser, &folder, "costly.html", 1, 1280), 5);
    let narrow = look(browser, &folder, "page.html", 1, 500);
    assert_drawn(&narrow, 15);
    assert!(narrow["wide"].as_f64().unwrap() <= 0.0, "the page does not scroll sideways, only its plots do");

    // As many real traces as there are of ours, and names as long.
    let logs = path(&folder, "logs");
    std::fs::create_dir(&logs).unwrap();
    for number in 0..10 {
        let log = path(&folder, &format!("logs/some_recording_of_{number}.oracleGeneral.csv"));
        std::fs::write(log, "start_page,pages\n1,2\n9,1\n1,2\n20,4\n9,1\n").unwrap();
    }
    stdout(&["reproduce", "--quick", "--logs", &logs, "--out", &path(&folder, "study.html")]);
    assert_drawn(&look(browser, &folder, "study.html", 1, 1280), 14);

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
