//! The paper's study, small.

mod common;

use common::{command, complaint, folder, names, path, run};
use insta::assert_snapshot;

/// The rows that depend on the machine, not on the code.
const MEASURED: [&str; 3] = ["Fig. 1 ", "Table 1", "Section 4"];

#[test]
fn every_claim_is_judged_and_every_plot_drawn() {
    let folder = folder();
    let logs = path(&folder, "logs");
    std::fs::create_dir(&logs).unwrap();
    std::fs::write(path(&folder, "logs/some.csv"), "start_page,pages\n1,2\n9,1\n1,2\n20,4\n9,1\n").unwrap();
    std::fs::write(path(&folder, "logs/README.md"), "No trace, but a text that says so.\n").unwrap();
    let output = run(&["reproduce", "--quick", "--json", "--logs", &logs, "--out", &path(&folder, "")]);
    let (printed, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{said}");
    assert!(said.contains("README.md is left out"), "{said}");
    assert_eq!(names(&folder), ["logs", "reproduce.html"]);

    let claims: Vec<serde_json::Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let line = |claim: &serde_json::Value| {
        let field = |name: &str| claim[name].as_str().expect("a text").to_owned();
        [field("place") + " ", field("claim"), field("paper"), field("rule"), field("here"), field("verdict")]
            .join(" | ")
    };
    let lines: Vec<String> = claims.iter().map(line).collect();
    let fixed: Vec<&str> = lines
        .iter()
        .map(String::as_str)
        .filter(|line| !MEASURED.iter().any(|measured| line.starts_with(measured)))
        .collect();
    assert_snapshot!("reproduce-quick", fixed.join("\n"));
    for place in MEASURED {
        assert!(lines.iter().any(|line| line.starts_with(place)), "{place}: {printed}");
    }

    let page = std::fs::read_to_string(path(&folder, "reproduce.html")).unwrap();
    for workload in ["httpd", "cello92"] {
        for plot in ["fig9", "fig10", "fig11-batch", "fig11-region", "fig12-batch", "fig12-region"] {
            assert!(page.contains(&format!("<figure id=\"{plot}-{workload}\"")), "{plot} of {workload}");
        }
    }
    for plot in ["latency-cold", "latency-warm", "logs-cost"] {
        assert!(page.contains(&format!("<figure id=\"{plot}\"")), "{plot}");
    }
    assert!(page.contains("tracesim reproduce --quick --json") && page.contains("some.csv"));
    assert!(!page.contains("NaN") && !page.contains("<script"));
}

/// The claims are printed when Ctrl-C comes with the real traces; the page is not made of half a study.
#[cfg(unix)]
#[test]
fn what_is_finished_is_printed_when_it_is_interrupted() {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::{Command, Stdio};
    let folder = folder();
    let logs = path(&folder, "logs");
    std::fs::create_dir(&logs).unwrap();
    std::fs::write(path(&folder, "logs/a.md"), "No trace, but a text that says so.\n").unwrap();
    let requests: String = (0..400_000).map(|n| format!("{},1\n", n * 7 % 100_003)).collect();
    std::fs::write(path(&folder, "logs/b.csv"), format!("start_page,pages\n{requests}")).unwrap();
    let mut child = command(&["reproduce", "--quick", "--json", "--logs", &logs, "--out", &path(&folder, "")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    // The first of the traces is no trace, which is said before the next one is read.
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("a.md is left out"), "{said}");
    assert!(Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap().success());
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(printed.lines().count(), 31, "{printed}");
    assert!(printed.contains("\"Section 8\""), "{printed}");
    assert_eq!(names(&folder), ["logs"]);
}

#[test]
fn logs_that_are_not_there_are_named() {
    let folder = folder();
    let out = path(&folder, "page.html");
    let said = complaint(&["reproduce", "--quick", "--out", &out, "--logs", &path(&folder, "nowhere")], 1);
    assert!(said.contains("nowhere") && said.contains("directory of traces"), "{said}");
    assert_eq!(names(&folder), [""; 0]);
}
