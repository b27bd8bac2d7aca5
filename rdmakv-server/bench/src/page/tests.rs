use super::*;
use crate::plan::Plan;
use crate::traffic::{Mix, Traffic};

/// Returns a sweep of runs against a null server, short as they are.
fn sweep(names: &[(&str, &str)]) -> Sweep {
    let sizes = "100".parse().unwrap();
    let null = crate::null::Null::bind("127.0.0.1:0", &sizes).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut sweep = Sweep::new("run", "A <run> & more", ["run".to_owned(), "it's".to_owned()]);
    std::thread::scope(|scope| {
        scope.spawn(|| null.serve(&stop).unwrap());
        for (group, name) in names {
            let mut plan = Plan::new(null.target().clone());
            (plan.keys, plan.sizes, plan.traffic) = (50, sizes.clone(), Traffic::Mix(Mix::sets(0.5)));
            (plan.warm_up, plan.duration) = (std::time::Duration::ZERO, std::time::Duration::from_millis(60));
            let report = crate::run(&plan).unwrap();
            // Its seconds are made up: tests are short.
            let moment = |at: u32| Moment {
                at: at.into(),
                length: 1.0,
                counts: true,
                rate: 1000.0 * f64::from(at),
                p50: Some(10.0),
                p99: Some(100.0),
                max: Some(1000.0),
                user: Some(0.1),
                system: Some(0.3),
            };
            let moments = (1..6).map(moment).collect();
            let [group, name] = [group, name].map(|text| (*text).to_owned());
            sweep.stages.push(Stage { group, name, short: String::new(), report, moments });
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    sweep
}

#[test]
fn page_has_all_curves_and_no_references() {
    let page = html(&sweep(&[("", "")]));
    for title in [
        "Latency by percentile",
        "Latency over time",
        "Throughput over time",
        "The server's CPUs over time",
        "CPU an operation",
    ] {
        assert!(page.contains(&format!("<h3>{title}</h3>")), "{title}");
    }
    assert!(page.contains("A &lt;run&gt; &amp; more") && page.contains("rdmakv-bench run"), "texts are escaped");
    for outside in ["http:", "https:", "<script", "<link", "<img", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf"), "every coordinate is a number");
    assert!(page.contains(">GET<") && page.contains(">SET<"));
}

#[test]
fn groups_share_plots_among_their_runs() {
    let page = html(&sweep(&[("set", "set 1k"), ("set", "set 8k"), ("get", "get 1k")]));
    assert_eq!(page.matches("<h3>Latency by percentile</h3>").count(), 2);
    assert_eq!(page.matches("<h3>Operations a second</h3>").count(), 1, "of the one that has several");
    for name in ["set 1k", "set 8k", "get 1k"] {
        assert!(page.contains(&format!(r#"<td class="word">{name}</td>"#)), "{name}");
    }
}

#[test]
fn what_went_wrong_is_said_first() {
    let mut sweep = sweep(&[("", "")]);
    sweep.stages[0].report.ended_early = Some("the server <closed> the connection".into());
    let page = html(&sweep);
    let (said, curves) = (page.find("ENDED").unwrap(), page.find("<main>").unwrap());
    assert!(said < curves && page.contains("Not to be used") && page.contains("&lt;closed&gt;"));
    let none = Sweep::new("run", "Nothing", []);
    assert!(html(&none).contains("</html>"));
}

#[test]
fn runs_beyond_the_hues_are_only_in_the_table() {
    let names: Vec<String> = (0..10).map(|number| format!("stage {number}")).collect();
    let names: Vec<(&str, &str)> = names.iter().map(|name| ("", name.as_str())).collect();
    let page = html(&sweep(&names));
    assert!(page.contains("2 more runs are in the table"), "eight of ten are drawn");
}

#[test]
fn what_many_runs_have_in_common_is_said_once() {
    let mut sweep = sweep(&[("", "one"), ("", "two"), ("", "three")]);
    for (stage, shared) in sweep.stages.iter_mut().zip([Some(0.6), Some(1.0), None]) {
        let (user_ns, system_ns) = (1.0, 2.0);
        stage.report.server =
            Some(crate::report::Server { pid: 1, name: "kv".into(), user_ns, system_ns, cpus: 0.5, shared });
    }
    let (page, table) = (html(&sweep), crate::table(&sweep));
    for text in [&page, &table] {
        assert_eq!(text.matches("on the generator's CPU").count(), 1, "{text}");
    }
    assert!(table.contains("2 of 3 runs: 60 to 100 % of the time"), "{table}");
    sweep.stages.truncate(1);
    assert!(crate::table(&sweep).contains("note:      60 % of the time"), "{}", crate::table(&sweep));
}
