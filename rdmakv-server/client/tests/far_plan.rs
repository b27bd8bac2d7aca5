//! The search for a configuration of far memory, against a look at all of them.
//!
//! `FAR_LEVELS=10000` tries as many service levels; 300 by default.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rdmakv_client::far::configuration::{Configuration, Limits, Prices};
use rdmakv_client::far::model::{Model, Operation, Point, Sample};
use rdmakv_client::far::samples::{Samples, SamplesError, sample};
use rdmakv_client::far::search::{LATENCY_MARGIN, THROUGHPUT_MARGIN, cheapest, nearest};
use rdmakv_client::far::simulated::Costs;
use rdmakv_client::far::slo::Slo;
use std::time::Duration;

const RECORDS: [u32; 4] = [8, 64, 512, 4096];

fn costs(random: &mut StdRng) -> Costs {
    let mut near = |of: f64| of * 2_f64.powf(random.random_range(-1.5..1.5));
    Costs {
        round_trip: near(3_000.0),
        byte: near(0.08),
        lane: (near(250.0), near(20.0)),
        worker: (near(250.0), near(30.0)),
        card: near(30.0),
        contention: near(0.01),
    }
}

fn samples(read: &Costs, write: &Costs, limits: &Limits) -> Vec<Sample> {
    let of = |operation, costs: &Costs| {
        let costs = *costs;
        RECORDS.into_iter().flat_map(move |record| sample(limits, operation, record, move |at| costs.at(at, record)))
    };
    let limits_of = [of(Operation::Read, read).collect::<Vec<_>>(), of(Operation::Write, write).collect()];
    limits_of.concat()
}

fn level(random: &mut StdRng) -> Slo {
    let latency = Duration::from_nanos(2_f64.powf(random.random_range(11.0..18.0)) as u64);
    let throughput = 2_f64.powf(random.random_range(14.0..26.0));
    let record = 1 << random.random_range(2..14);
    let reads = [0.0, 1.0, random.random_range(0.0..1.0)][random.random_range(0..3)];
    Slo::new(latency, throughput, record + random.random_range(0..record), reads).unwrap()
}

/// Looks at all configurations, and returns the least cost of those that meet the level.
fn brute_force(model: &Model, slo: &Slo, limits: &Limits, prices: &Prices) -> Option<f64> {
    let mut least: Option<f64> = None;
    for workers in 0..=limits.workers {
        for lanes in workers.max(1)..=limits.lanes {
            for batch in limits.batches(workers, slo.record()) {
                for depth in limits.depths() {
                    let of = Configuration { workers, lanes, batch, depth };
                    let Some(point) = model.at(slo.record(), slo.reads(), &of) else { continue };
                    let meets = point.throughput >= slo.throughput() * THROUGHPUT_MARGIN
                        && point.mean <= slo.latency().as_secs_f64() * 1e9 * LATENCY_MARGIN;
                    let cost = prices.cost(&of, slo.record());
                    if meets && least.is_none_or(|least| cost < least) {
                        least = Some(cost);
                    }
                }
            }
        }
    }
    least
}

#[test]
fn search_finds_the_least_cost_of_all() {
    let levels = std::env::var("FAR_LEVELS").map_or(300, |levels| levels.parse().expect("FAR_LEVELS is a number"));
    let (mut met, mut one_sided) = (0, 0);
    let prices = Prices::default();
    let mut random = StdRng::seed_from_u64(27);
    let mut fabric = None;
    for number in 0..levels {
        let (model, limits) = match &fabric {
            Some(fabric) if number % 100 != 0 => fabric,
            _ => {
                let limits = Limits {
                    workers: random.random_range(0..9),
                    lanes: random.random_range(1..13),
                    depth: 1 << random.random_range(0..6),
                };
                let (read, write) = (costs(&mut random), costs(&mut random));
                fabric.insert((Model::of(&samples(&read, &write, &limits)), limits))
            }
        };
        let slo = level(&mut random);
        let found = cheapest(model, &slo, limits, &prices);
        let least = brute_force(model, &slo, limits, &prices);
        assert_eq!(found.as_ref().ok().map(|found| found.cost), least, "level {number}: {slo:?}, {found:?}");
        if let Ok(found) = found {
            met += 1;
            one_sided += u32::from(found.configuration.is_one_sided());
            let below = nearest(model, &slo, limits, &prices, found.cost);
            let is_cheaper = |near: rdmakv_client::far::search::Prediction| near.cost < found.cost;
            assert!(below.by_throughput.is_none_or(is_cheaper) && below.by_latency.is_none_or(is_cheaper));
        }
    }
    // Levels that nothing meets, or everything, would show little.
    assert!(met * 5 > levels && met * 10 < levels * 9, "{met} of {levels} levels were met");
    assert!(one_sided * 10 > met && one_sided * 10 < met * 9, "{one_sided} of {met} are one-sided");
}

#[test]
fn infeasible_levels_name_what_is_close() {
    let (limits, prices) = (Limits { workers: 4, lanes: 4, depth: 16 }, Prices::default());
    let model = Model::of(&samples(&Costs::default(), &Costs::default(), &limits));
    let hopeless = Slo::new(Duration::from_micros(5), 1e12, 64, 1.0).unwrap();
    let error = cheapest(&model, &hopeless, &limits, &prices).unwrap_err();
    let by_throughput = error.near.by_throughput.unwrap();
    assert!(by_throughput.point.mean <= 4_500.0, "{by_throughput:?}");
    assert_eq!(error.near.by_latency, None, "nothing is fast enough");
    let text = error.to_string();
    assert!(
        text.starts_with("plan far memory: nothing here makes 1000000000000 operations/s in 5µs with a tenth to spare: closest in time is"),
        "{text}"
    );
    let early = Slo::new(Duration::from_nanos(1), 1e3, 64, 1.0).unwrap();
    let near = cheapest(&model, &early, &limits, &prices).unwrap_err().near;
    assert!(near.by_throughput.is_none() && near.by_latency.is_some());
}

#[test]
fn an_axis_ends_after_two_dull_steps() {
    let limits = Limits { workers: 0, lanes: 64, depth: 1 };
    // 1, 2, 4 gain; 8 and 16 do not.
    let rate = |lanes: u32| f64::from(lanes.min(4)) * 1e6;
    let mut tried = Vec::new();
    sample(&limits, Operation::Read, 64, |of| {
        tried.push(of.lanes);
        Point { throughput: rate(of.lanes), mean: 1e3, p99: 1e3 }
    });
    assert_eq!(tried, [1, 2, 4, 8, 16]);
}

#[test]
fn samples_survive_their_file() {
    let limits = Limits { workers: 1, lanes: 2, depth: 4 };
    let mut before =
        Samples { machine: "a machine, 2 CPUs".into(), versions: "rdmakv 0.1.0".into(), ..Samples::default() };
    before.fabrics.insert("shm".into(), samples(&Costs::default(), &Costs::default(), &limits));
    let text = before.to_text();
    let after = Samples::from_text(&text).unwrap();
    assert_eq!(before, after);
    assert!(after.model("shm", Some("a machine, 2 CPUs")).unwrap().is_some());
    assert!(after.model("iwarp", None).unwrap().is_none());
    assert_eq!(after.model("shm", Some("another")), Err(SamplesError::OtherMachine("a machine, 2 CPUs".into())));
}

#[test]
fn files_that_make_no_sense_are_refused() {
    let head = "# rdmakv far model 1\n# machine m\n# versions v\n\
                fabric,operation,record,workers,lanes,batch,depth,throughput,mean_ns,p99_ns\n";
    let read = |line: &str| Samples::from_text(&format!("{head}{line}\n"));
    assert!(read("shm,read,8,0,1,1,1,1e6,900,1000").is_ok());
    for (line, field) in [
        ("", "fabric"),
        ("../x,read,8,0,1,1,1,1,1,1", "fabric"),
        ("shm,erase,8,0,1,1,1,1,1,1", "operation"),
        ("shm,read,0,0,1,1,1,1,1,1", "record"),
        ("shm,read,8,-1,1,1,1,1,1,1", "workers"),
        ("shm,read,8,0,99999999999,1,1,1,1,1", "lanes"),
        ("shm,read,8,0,1,0,1,1,1,1", "batch"),
        ("shm,read,8,0,1,1", "depth"),
        ("shm,read,8,0,1,1,1,NaN,1,1", "throughput"),
        ("shm,read,8,0,1,1,1,1,inf,1", "mean_ns"),
        ("shm,read,8,0,1,1,1,1,1,-1", "p99_ns"),
        ("shm,read,8,0,1,1,1,1,1,1,1", "the end of the line"),
    ] {
        assert_eq!(read(line), Err(SamplesError::Line { line: 5, field }), "{line}");
    }
    for text in ["", "x", &head[..head.len() - 2], &format!("# rdmakv far model 12\n{}", &head[21..])] {
        assert_eq!(Samples::from_text(text), Err(SamplesError::Title), "{text:?}");
    }
}
