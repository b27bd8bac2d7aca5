//! Table 2 and Figures 9 to 12: the paper's claims about the two workloads, judged by the replays.

use super::claim::Claim;
use super::workload::Subject;
use crate::footprint::asked_by;
use crate::report::{bytes, grouped, percent};
use crate::row::{DeregCost, Row};
use crate::sweep::INFINITE;
use mrrc_core::cost::Linear;
use traces::Trace;
use traces::generate::{Check, Checks};

/// The replayed policies: the paper's, its rivals there (by regions, and by pages as the paper describes it), its nearest peer, a
/// general one that weighs size and cost, and our own.
pub const POLICIES: [&str; 6] = ["mrrc", "pindown", "pindown-page", "fmrd", "gdsf", "probation"];

/// A workload and everything found on it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Which.
    pub subject: Subject,
    /// Its figures, asked and measured.
    pub checks: Checks,
    /// The sizes.
    pub sizes: Sizes,
    /// [`checksum`](crate::shard::checksum) of its steps.
    pub checksum: String,
    /// Different pages asked for.
    pub footprint_pages: u64,
    /// The replays, charged by the batch.
    pub rows: Vec<Row>,
    /// The cost model.
    pub cost: Linear,
}

/// Requests by size, as the paper's Figure 9 has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Requests.
    pub requests: u64,
    /// Pages of the smallest.
    pub least: u64,
    /// Pages of the largest.
    pub most: u64,
    /// Requests of 1 page, 2 to 3, 4 to 7, …: rounded *down* to powers of two, as in the paper's footnote.
    pub by_power: Vec<u64>,
}

impl Sizes {
    /// Looks at every request.
    pub fn of(trace: &Trace) -> Self {
        let mut sizes = Self { requests: 0, least: u64::MAX, most: 0, by_power: Vec::new() };
        for asked in trace.processes.iter().flat_map(asked_by) {
            let pages = asked.pages();
            let power = pages.ilog2() as usize;
            if sizes.by_power.len() <= power {
                sizes.by_power.resize(power + 1, 0);
            }
            sizes.by_power[power] += 1;
            sizes.requests += 1;
            (sizes.least, sizes.most) = (sizes.least.min(pages), sizes.most.max(pages));
        }
        sizes
    }

    /// Returns the share of a power of two.
    pub fn share(&self, power: usize) -> f64 {
        self.by_power.get(power).copied().unwrap_or(0) as f64 / self.requests.max(1) as f64
    }
}

impl Found {
    /// Returns the result of a policy at a capacity.
    pub fn row(&self, policy: &str, capacity: usize) -> Option<&Row> {
        let pages = self.subject.capacities.get(capacity)?;
        self.rows.iter().find(|row| row.policy == policy && row.capacity_pages == *pages)
    }

    /// No cache.
    pub fn no_cache(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.policy == "none")
    }

    /// Returns a cache in which everything stays.
    pub fn infinite(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.policy == INFINITE)
    }

    /// Returns the total cost of a result, charged so.
    pub fn total_us(&self, row: &Row, by: DeregCost) -> f64 {
        total_us(row, &self.cost, by)
    }

    /// Points of hit ratio that one stands above another at a capacity.
    pub fn points_above(&self, one: &str, other: &str, capacity: usize) -> Option<f64> {
        Some(100.0 * (self.row(one, capacity)?.hit_ratio - self.row(other, capacity)?.hit_ratio))
    }

    /// By what share the cost of one is below another's at a capacity.
    pub fn cheaper(&self, one: &str, other: &str, capacity: usize, by: DeregCost) -> Option<f64> {
        let [one, other] = [self.row(one, capacity)?, self.row(other, capacity)?].map(|row| self.total_us(row, by));
        Some(1.0 - one / other)
    }

    /// By what share a policy's cost is below that of no cache.
    pub fn below_no_cache(&self, policy: &str, capacity: usize, by: DeregCost) -> Option<f64> {
        let [one, none] = [self.row(policy, capacity)?, self.no_cache()?].map(|row| self.total_us(row, by));
        Some(1.0 - one / none)
    }

    /// Returns the capacity at which a figure is largest, with it.
    fn best(&self, figure: impl Fn(usize) -> Option<f64>) -> Option<(u64, f64)> {
        let all = self.subject.capacities.iter().enumerate().filter_map(|(at, &pages)| Some((pages, figure(at)?)));
        all.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Returns the total cost of a result, charged so, whatever the row itself was charged by.
pub fn total_us(row: &Row, cost: &Linear, by: DeregCost) -> f64 {
    let calls = match by {
        DeregCost::Batch => row.dereg_batches,
        DeregCost::Region => row.deregs,
    };
    let register = cost.reg_page * row.reg_pages as f64 + cost.reg_call * row.regs as f64;
    register + cost.dereg_page * row.dereg_pages as f64 + cost.dereg_call * calls as f64
}

/// How a charge is called in claims.
pub fn charged(by: DeregCost) -> &'static str {
    match by {
        DeregCost::Batch => "b' a batch",
        DeregCost::Region => "b' a region",
    }
}

const CHARGES: [DeregCost; 2] = [DeregCost::Batch, DeregCost::Region];

/// All claims about the workloads.
pub fn claims(httpd: &Found, cello: &Found) -> Vec<Claim> {
    let input = table_2(httpd, cello).into_iter().chain(figure_9(httpd, cello));
    let mut claims: Vec<Claim> = input.map(Claim::of_input).collect();
    claims.extend(figure_10(httpd, cello));
    claims.extend(figure_11(httpd, cello));
    claims.extend(figure_12(httpd, cello));
    claims
}

fn table_2(httpd: &Found, cello: &Found) -> Vec<Claim> {
    let requests = |found: &Found, paper: &str, asked: u64| {
        let here = found.sizes.requests;
        let holds = here.abs_diff(asked) <= asked / 100;
        Claim::measured("Table 2", format!("{}: I/Os", found.subject.name), paper, "within 1 %", grouped(here), holds)
    };
    let calibrated = |found: &Found| {
        let (all, met) = (found.checks.0.len(), found.checks.0.iter().filter(|check| check.holds()).count());
        let off: Vec<&str> = found.checks.0.iter().filter(|check| !check.holds()).map(|check| check.figure).collect();
        let claim = format!("{}: published figures that the generated one has", found.subject.name);
        let here = format!("{met} of {all}");
        let claim =
            Claim::measured("Table 2", claim, &format!("{all} figures"), "all of them", here, met == all && all > 0);
        if off.is_empty() { claim } else { claim.with_note(format!("off: {}", off.join("; "))) }
    };
    let asked = |found: &Found| {
        let figure = found.checks.0.iter().find(|check: &&Check| check.figure == "requests");
        figure.map_or(0, |check| check.asked as u64)
    };
    vec![
        requests(httpd, "1.1 million", asked(httpd)),
        requests(cello, "0.5 million a day", asked(cello)),
        calibrated(httpd),
        calibrated(cello),
    ]
}

fn figure_9(httpd: &Found, cello: &Found) -> Vec<Claim> {
    let two_pages = cello.sizes.share(1);
    let Sizes { least, most, .. } = httpd.sizes;
    vec![
        Claim::measured(
            "Fig. 9",
            "Cello92: largest request",
            "2 pages",
            "2 pages",
            format!("{} pages", cello.sizes.most),
            cello.sizes.most == 2,
        ),
        Claim::measured(
            "Fig. 9",
            "Cello92: requests of two pages",
            "almost 80 %",
            "75 to 82 %",
            percent(two_pages),
            (0.75..=0.82).contains(&two_pages),
        ),
        Claim::measured(
            "Fig. 9",
            "HTTPD: sizes of requests",
            "1 to 32 pages",
            "1 to 32 pages",
            format!("{least} to {most} pages"),
            (least, most) == (1, 32),
        ),
    ]
}

fn points(points: f64) -> String {
    format!("{points:+.1} points")
}

/// Returns whether a figure is about another, by a fifth of it.
fn is_about(here: f64, paper: f64) -> bool {
    (here - paper).abs() <= 0.2 * paper
}

fn figure_10(httpd: &Found, cello: &Found) -> Vec<Claim> {
    let above = |found: &Found, other, capacity| found.points_above("mrrc", other, capacity);
    let there = above(httpd, "pindown", httpd.subject.reference);
    let mut claims = Vec::new();
    let mut add = |found: &Found, what: &str, other, paper, rule: &str, holds: &dyn Fn(f64) -> bool| {
        let reference = found.subject.reference;
        let Some(here) = above(found, other, reference) else { return };
        let size = bytes(found.subject.capacities[reference]);
        let claim = format!("{}, {size}: hits of MRRC over {what}", found.subject.name);
        let best = found.best(|capacity| above(found, other, capacity));
        let hits = |policy| found.row(policy, reference).map_or(0.0, |row| row.hit_ratio);
        let [ours, others] = ["mrrc", other].map(hits);
        let note = best.map_or(String::new(), |(pages, most)| {
            let times = if others > 0.0 { format!(", {:.3} times", ours / others) } else { String::new() };
            let most = points(most);
            format!("{} against {}{times}; most at {}: {most}", percent(ours), percent(others), bytes(pages))
        });
        claims.push(Claim::measured("Fig. 10", claim, paper, rule, points(here), holds(here)).with_note(note));
    };
    let (paper, rule) = ("10 %", "8 to 12 points");
    add(httpd, "pin-down", "pindown", paper, rule, &|here| is_about(here, 10.0));
    add(httpd, "pin-down by pages", "pindown-page", paper, rule, &|here| is_about(here, 10.0));
    if let Some(there) = there {
        let rule = format!("nearer to 0 than HTTPD's {}", points(there));
        let holds = |here: f64| here.abs() < there.abs();
        add(cello, "pin-down", "pindown", "less obvious than HTTPD", &rule, &holds);
    }
    claims
}

fn figure_11(httpd: &Found, cello: &Found) -> Vec<Claim> {
    let cheaper = |found: &Found, other, by, capacity| found.cheaper("mrrc", other, capacity, by);
    let named = |found: &Found, size: &str, what: &str, by| {
        format!("{}, {size}: cost of MRRC under {what}, {}", found.subject.name, charged(by))
    };
    let mut claims = Vec::new();
    for (what, other) in [("pin-down", "pindown"), ("pin-down by pages", "pindown-page")] {
        for by in CHARGES {
            let Some((pages, most)) = httpd.best(|capacity| cheaper(httpd, other, by, capacity)) else { continue };
            let reference = httpd.subject.reference;
            let there = cheaper(httpd, other, by, reference).map_or(String::new(), percent);
            let note = format!("at {}; at {}: {there}", bytes(pages), bytes(httpd.subject.capacities[reference]));
            let claim = named(httpd, "best size", what, by);
            let (paper, rule) = ("up to about 10 %", "8 to 12 %");
            let holds = is_about(most, 0.1);
            claims.push(Claim::measured("Fig. 11", claim, paper, rule, percent(most), holds).with_note(note));
        }
    }
    for by in CHARGES {
        let other = "pindown";
        let at_reference = |found: &Found| cheaper(found, other, by, found.subject.reference);
        let (Some(here), Some(there)) = (at_reference(cello), at_reference(httpd)) else { continue };
        let claim = named(cello, &bytes(cello.subject.capacities[cello.subject.reference]), "pin-down", by);
        let figure = percent(here);
        claims.push(Claim::measured("Fig. 11", &*claim, "less, by batching", "over 0", figure.clone(), here > 0.0));
        // A loss is no smaller gain.
        let rule = format!("over 0, under HTTPD's {}", percent(there));
        let holds = here > 0.0 && here < there;
        claims.push(Claim::measured("Fig. 11", claim, "less gain than HTTPD", &rule, figure, holds));
    }
    claims
}

fn figure_12(httpd: &Found, cello: &Found) -> Vec<Claim> {
    let mut claims = Vec::new();
    for by in CHARGES {
        let below = |found: &Found, capacity| found.below_no_cache("mrrc", capacity, by);
        let reference = httpd.subject.reference;
        if let (Some((pages, most)), Some(there)) =
            (httpd.best(|capacity| below(httpd, capacity)), below(httpd, reference))
        {
            let claim = format!("HTTPD, best size: cost of MRRC under no cache, {}", charged(by));
            let note =
                format!("at {}; at {}: {}", bytes(pages), bytes(httpd.subject.capacities[reference]), percent(there));
            let here = percent(most);
            let holds = (most - 0.7).abs() <= 0.05;
            claims.push(Claim::measured("Fig. 12", claim, "up to 70 %", "65 to 75 %", here, holds).with_note(note));
        }
        if let Some((pages, most)) = cello.best(|capacity| below(cello, capacity)) {
            let claim = format!("Cello92, best size: cost of MRRC under no cache, {}", charged(by));
            let here = percent(most);
            let claim = Claim::measured("Fig. 12", claim, "an improvement", "over 0", here, most > 0.0);
            claims.push(claim.with_note(format!("at {}", bytes(pages))));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Label;
    use crate::simulate::Replayed;
    use mrrc_core::{Config, Core, PageRange};

    #[test]
    fn a_row_is_charged_as_its_counters_are() {
        let mut core = Core::new(&Config::new(40)).unwrap();
        for start in 0..60 {
            core.request(PageRange::new(start * 7 % 50 * 4, 1 + start % 4).unwrap()).unwrap();
        }
        let counters = core.counters();
        assert!(counters.deregs > counters.dereg_batches && counters.dereg_batches > 0, "{counters:?}");
        let replayed = Replayed { counters, ..Replayed::default() };
        let label = Label { trace: "t", policy: "mrrc", capacity_pages: 10, resort: 0.5, evict: 0.1 };
        for charged in CHARGES {
            for by in CHARGES {
                let row = Row::new(&label, &replayed, &Linear::PAPER, charged);
                let exact = Row::new(&label, &replayed, &Linear::PAPER, by).total_us;
                assert!((total_us(&row, &Linear::PAPER, by) - exact).abs() < 1e-9);
            }
        }
    }
}
