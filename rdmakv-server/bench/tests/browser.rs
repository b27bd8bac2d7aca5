//! The page of a run in a headless Chromium at three widths: names of lines and axes lie in their cards, as large as the text around
//! them. Where there is no Chromium the test reports that and is skipped.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rdmakv-bench");
const WIDTHS: [u32; 3] = [500, 1100, 1900];
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Lists the plots that scroll, and those whose texts leave their cards, or are too small or too large.
const LOOK: &str = r#"<script>
const box = e => e.getBoundingClientRect();
const wrong = [];
for (const figure of document.querySelectorAll("figure")) {
  const texts = [...figure.querySelectorAll("svg.plot text")].filter(text => text.getClientRects().length);
  const scroll = figure.querySelector(".scroll");
  if (!texts.length) wrong.push("a plot is not shown");
  if (scroll.scrollWidth > scroll.clientWidth) wrong.push(figure.querySelector("h3").textContent + " scrolls");
  for (const text of texts) {
    const a = box(text), card = box(figure);
    if (a.left < card.left || a.right > card.right) wrong.push(text.textContent + " leaves its card");
    if (a.height < 10.5 || a.height > 24) wrong.push(text.textContent + " is " + a.height + " px high");
  }
}
if (document.documentElement.scrollWidth > innerWidth) wrong.push("the page scrolls sideways");
const plots = document.querySelectorAll("svg.plot").length;
document.body.innerHTML = "<pre id=found>" + plots + " plots; wrong: " + wrong.join("; ") + ".</pre>";
</script>"#;

#[test]
#[ignore = "needs Chromium"]
fn run_page_fits_windows() {
    let starts = |name: &&str| {
        let version = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    let Some(browser) = BROWSERS.into_iter().find(starts) else {
        eprintln!("the page of a run: not run: there is no Chromium (Debian: chromium)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mut server = Command::new(PROGRAM).arg("null-server").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap();
    let run = Command::new(PROGRAM)
        .args(["run", address, "-q", "-k", "50", "-T", "2", "-w", "0", "--html", &path("page.html")])
        .output()
        .unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let html = std::fs::read_to_string(path("page.html")).unwrap_or_else(|_| panic!("{run:?}"));
    std::fs::write(path("probe.html"), html.replace("</body>", &format!("{LOOK}</body>"))).unwrap();
    for width in WIDTHS {
        let output = Command::new(browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom", "--timeout=20000"])
            .arg(format!("--user-data-dir={}", path("profile")))
            .arg(format!("--window-size={width},900"))
            .arg(format!("file://{}", path("probe.html")))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let dom = String::from_utf8_lossy(&output.stdout);
        let (_, found) = dom.split_once("<pre id=\"found\">").unwrap_or_else(|| panic!("{output:?}"));
        let found = found.split_once("</pre>").unwrap().0;
        assert!(found.ends_with("wrong: .") && !found.starts_with("0 plots"), "{width} px: {found}");
    }
}
