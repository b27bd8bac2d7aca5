//! The generated workloads have the figures that they are made to, measured on their events.

use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use traces::generate::{Generator, Workload};
use traces::{Event, Span, TraceError};

/// All events, as one range each.
fn events(workload: &str) -> Vec<(Event, Span)> {
    let events = workload.parse::<Workload>().unwrap().generate().unwrap();
    events.map(|event| event.map(|event| (event.clone(), event.action.spans()[0])).unwrap()).collect()
}

fn near(what: &str, measured: f64, asked: f64, within: f64) {
    assert!((measured - asked).abs() <= within, "{what}: {measured:.4}, asked {asked} ± {within}");
}

#[test]
fn every_workload_holds_its_own_checks() {
    for workload in [
        "httpd",
        "cello92",
        "cello92:requests=100000,seed=2,one-page=0.4,sequential=0.1",
        "zipf:objects=20000,requests=300000",
    ] {
        let mut generator = workload.parse::<Workload>().unwrap().generate().unwrap();
        generator.try_for_each(|event| event.map(drop)).unwrap();
        let checks = generator.checks();
        assert!(checks.hold(), "{workload}\n{checks}");
        assert_eq!(checks.0[0].figure, "requests");
    }
}

#[test]
fn checks_see_what_is_missing() {
    let mut generator = "httpd".parse::<Workload>().unwrap().generate().unwrap();
    generator.by_ref().take(1000).for_each(drop);
    let checks = generator.checks();
    assert!(!checks.hold());
    assert!(checks.to_string().contains("off"), "{checks}");
}

#[test]
fn httpd_has_the_published_shares() {
    // Cut, so that an event is a file.
    let events = events("httpd:larger=cut");
    assert_eq!(events.len(), 1_100_000);
    let mut files: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut clients = [0u64; 7];
    for (event, span) in &events {
        files.entry(span.address).or_insert((0, span.length)).0 += 1;
        clients[event.client as usize] += 1;
    }
    assert_eq!(files.len(), 13_457);
    let mut files: Vec<(u64, u64)> = files.into_values().collect();
    files.sort_unstable_by(|a, b| b.cmp(a));
    let all = events.len() as f64;
    let first = |upto: usize| files[..upto].iter().map(|(count, _)| count).sum::<u64>() as f64 / all;
    near("the 10 most popular", first(10), 0.42, 0.01);
    near("the first tenth", first(files.len() / 10), 0.80, 0.01);
    let once = files.iter().filter(|(count, _)| *count == 1).count() as f64;
    near("asked for once", once / files.len() as f64, 0.37, 0.01);
    for (least, most, asked) in
        [(1, 1, 0.51), (2, 2, 0.22), (3, 4, 0.11), (5, 8, 0.06), (9, 16, 0.05), (17, 32, 0.03 + 0.02)]
    {
        let of_size = files.iter().filter(|(_, length)| (least..=most).contains(&length.div_ceil(4096)));
        near("share of a size", of_size.map(|(count, _)| count).sum::<u64>() as f64 / all, asked, 0.01);
    }
    for requests in clients {
        near("a client", requests as f64 / all, 1.0 / 7.0, 0.002);
    }
}

#[test]
fn httpd_files_are_adjacent_and_read_whole() {
    let events = events("httpd");
    assert_eq!(events.len(), 1_100_000);
    let mut seen = HashSet::new();
    let mut end = 0u64;
    let mut split = 0;
    for (before, (event, span)) in std::iter::once(None).chain(events.iter().map(Some)).zip(&events) {
        let pages = span.length.div_ceil(4096);
        assert!((1..=32).contains(&pages));
        assert_eq!(span.address % 4096, 0);
        if seen.insert(span.address) {
            assert_eq!(span.address, end, "new files lie behind all others");
            end += pages * 4096;
        }
        if let Some((other, first)) = before
            && first.length == 32 * 4096
            && first.address + first.length == span.address
            && other.client == event.client
        {
            split += 1;
        }
    }
    // Every file was read, so the memory is that of all files and what is unused of their last pages.
    assert!((524_000_000..524_000_000 + 13_457 * 4096).contains(&end), "{end}");
    assert!(split > 10_000, "{split}");
}

#[test]
fn cello_has_the_published_shares() {
    let events = events("cello92:requests=200000");
    let all = events.len() as f64;
    assert_eq!(all, 200_000.0);
    let share = |of: &dyn Fn(&(Event, Span)) -> bool| events.iter().filter(|event| of(event)).count() as f64 / all;
    let pages = |span: &Span| span.pages().unwrap().pages();
    near("one page", share(&|(_, span)| pages(span) == 1), 0.2, 0.01);
    near("two pages", share(&|(_, span)| pages(span) == 2), 0.8, 0.01);
    let is_write = |event: &Event| event.access.contains(mrrc_core::Access::LOCAL_WRITE);
    near("writes", share(&|(event, _)| is_write(event)), 0.57, 0.01);
    let reads: Vec<Span> = events.iter().filter(|(event, _)| !is_write(event)).map(|&(_, span)| span).collect();
    let follow = reads.windows(2).filter(|pair| pair[0].address + pair[0].length == pair[1].address).count();
    let follow = follow as f64 / reads.len() as f64;
    assert!((0.2..0.3).contains(&follow), "sequential: {follow}");
    assert!(events.iter().all(|(_, span)| span.address + span.length <= 10_400_000_000));
    assert!(events.is_sorted_by_key(|(event, _)| event.time));
    near("days", events.last().unwrap().0.time as f64 / 86_400e9, 0.4, 0.01);
}

#[test]
fn the_first_level_takes_the_short_distances() {
    let soon = |workload| {
        let mut last = HashMap::new();
        let events = events(workload);
        let again = |(at, (_, span)): (usize, &(Event, Span))| {
            last.insert(span.address, at).is_some_and(|before| at - before < 500)
        };
        events.iter().enumerate().map(again).filter(|&again| again).count() as f64 / events.len() as f64
    };
    near("again within 500 requests", soon("cello92:requests=50000"), 0.0, 0.0005);
    let without = soon("cello92:requests=50000,client-cache=0");
    assert!(without > 0.2, "without it: {without}");
}

#[test]
fn zipf_falls_with_its_exponent() {
    for exponent in [0.0, 0.9, 1.0, 1.5] {
        let mut generator = format!("zipf:objects=3000,requests=200000,pages=8,exponent={exponent}")
            .parse::<Workload>()
            .unwrap()
            .generate()
            .unwrap();
        let mut objects: HashMap<u64, (u64, u64)> = HashMap::new();
        for event in generator.by_ref() {
            let span = event.unwrap().action.spans()[0];
            let object = objects.entry(span.address).or_insert((0, span.length));
            assert_eq!(object.1, span.length, "an object has one size");
            object.0 += 1;
        }
        let mut counts: Vec<u64> = objects.values().map(|&(count, _)| count).collect();
        counts.sort_unstable_by_key(|&count| std::cmp::Reverse(count));
        let total: f64 = (1..=3000).map(|rank| f64::from(rank).powf(-exponent)).sum();
        let first: f64 = (1..=300).map(|rank| f64::from(rank).powf(-exponent)).sum::<f64>() / total;
        let measured = counts.iter().take(300).sum::<u64>() as f64 / 200_000.0;
        near(&format!("first tenth at {exponent}"), measured, first, 0.03);
        let mut spans: Vec<(u64, u64)> = objects.iter().map(|(&address, &(_, length))| (address, length)).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "no gaps and no overlaps");
    }
}

#[test]
fn a_seed_is_a_trace() {
    for workload in
        ["httpd:files=500,bytes=20MB,requests=45000", "cello92:requests=3000", "zipf:objects=100,requests=1000"]
    {
        let of =
            |seed: u64| events(&format!("{workload}{}seed={seed}", if workload.contains(':') { "," } else { ":" }));
        assert_eq!(of(5), of(5), "{workload}");
        assert_ne!(of(5), of(6), "{workload}");
    }
}

#[test]
fn a_workload_reads_as_it_is_shown() {
    for workload in Workload::all() {
        assert_eq!(workload.to_string().parse::<Workload>().unwrap(), workload);
    }
    let changed: Workload = "httpd:larger=cut, bytes=500MiB,seed=9".parse().unwrap();
    assert_eq!(changed.to_string().parse::<Workload>().unwrap(), changed);
}

#[test]
fn a_workload_makes_as_many_requests_as_it_says() {
    for workload in ["zipf:objects=50,requests=500", "cello92:requests=700"] {
        let workload: Workload = workload.parse().unwrap();
        assert_eq!(workload.generate().unwrap().count() as u64, workload.requests());
    }
}

#[test]
fn what_cannot_be_is_told_with_a_remedy() {
    for (workload, expected) in [
        ("cello", "workload: `cello` is no workload; give one of httpd, cello92, zipf, buffers"),
        ("zipf:seed=1,seed=2", "workload: `seed` is given twice; give it once"),
        ("zipf:objcts=1", "workload: `objcts` is no option of it; it has objects, pages, exponent, requests, seed"),
        ("zipf:objects", "workload: `objects` has no value; write objects=…"),
        ("zipf:objects=0", "workload: objects=0 is out of its range; give 1 to 268435456"),
        ("zipf:exponent=NaN", "workload: exponent=NaN is out of its range; give 0 to 10"),
        ("httpd:bytes=5XB", "workload: bytes: `5XB` has no such unit; write 524MB or 500MiB"),
        ("httpd:bytes=1MB", "workload: bytes=1000000 are too few for 13457 files; give more than 61 MB"),
        ("cello92:client-cache=5GB", "workload: client-cache=5000000000 is out of its range; give 0 to 2600000000"),
    ] {
        let error = workload.parse::<Workload>().and_then(|workload| workload.generate().map(drop)).unwrap_err();
        assert_eq!(error.to_string(), expected, "{workload}");
    }
    for workload in [
        "httpd:requests=20000",
        "cello92:one-page=0.9",
        "cello92:disks=1GB,client-cache=250MB,writes=1,metadata=1,one-page=0",
    ] {
        let error = workload.parse::<Workload>().and_then(|workload| workload.generate().map(drop)).unwrap_err();
        assert!(matches!(error, TraceError::Option { .. }), "{workload}: {error}");
    }
}

#[test]
fn the_samples_are_what_the_generators_give() {
    let samples = [("httpd", "httpd.csv.zst"), ("cello92", "cello92.csv.zst"), ("zipf:objects=1000", "zipf.csv.zst")];
    for (workload, sample) in samples {
        let file = format!("{}/data/generated/{sample}", env!("CARGO_MANIFEST_DIR"));
        let sample = traces::open(&file, &traces::ReadOptions::default()).unwrap();
        let made = workload.parse::<Workload>().unwrap().generate().unwrap();
        let mut count = 0;
        for (sample, made) in sample.zip(made) {
            let (sample, made) = (sample.unwrap(), made.unwrap());
            let pages = [&sample, &made].map(|event| event.action.spans()[0].pages().unwrap());
            assert_eq!(pages[0], pages[1], "{file}, event {count}");
            if workload != "zipf:objects=1000" {
                // A reader numbers clients as they come.
                assert_eq!(sample, Event { client: sample.client, ..made }, "{file}, event {count}");
            }
            count += 1;
        }
        assert_eq!(count, 5000, "{file}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_options_give_all_requests_or_an_error(
        files in 0u32..2000, bytes in 0u64..200_000_000, requests in 0u64..200_000, pages in 0u32..40, cut in any::<bool>(),
    ) {
        let larger = if cut { "cut" } else { "split" };
        let text = format!("httpd:files={files},bytes={bytes},requests={requests},pages={pages},larger={larger}");
        match text.parse::<Workload>().unwrap().generate() {
            Ok(events) => prop_assert_eq!(events.count() as u64, requests),
            Err(error) => prop_assert!(matches!(error, TraceError::Option { .. }), "{error}"),
        }
    }

    #[test]
    fn any_shares_give_all_requests_or_an_error(
        one_page in 0f64..0.5, writes in 0f64..1.0, metadata in 0f64..1.0, sequential in 0f64..0.6,
    ) {
        let text = format!(
            "cello92:requests=500,one-page={one_page},writes={writes},metadata={metadata},sequential={sequential},client-cache=1MB"
        );
        match text.parse::<Workload>().unwrap().generate() {
            Ok(events) => prop_assert_eq!(events.filter(Result::is_ok).count(), 500),
            Err(error) => prop_assert!(matches!(error, TraceError::Option { .. }), "{error}"),
        }
    }
}
