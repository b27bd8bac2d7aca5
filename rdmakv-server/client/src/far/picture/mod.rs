//! A page of plots of a model: throughput and latency by configuration, with a service level and the choice for it.
//!
//! It is HTML without scripts or other files. Its title says the choice. The first plot has all configurations by throughput and latency.
//! The second has those that are in time, by cost: so it is seen why nothing cheaper is taken. The others follow a few by depth.

mod axis;
mod plot;

use super::configuration::{Configuration, Limits, Prices};
use super::model::{Model, Point};
use super::search::{LATENCY_MARGIN, Near, Prediction, THROUGHPUT_MARGIN, nearest};
use super::slo::Slo;
use axis::Axis;
use plot::{ACROSS, Plot, UP, escaped};
use std::collections::BTreeSet;
use std::fmt::Write as _;

const STYLE: &str = include_str!("style.css");
/// Configurations that plots by depth and the table have.
const ROWS: usize = 5;

/// A level, the choice for it, and all configurations.
#[derive(Clone, Copy)]
struct About<'a> {
    slo: &'a Slo,
    limits: &'a Limits,
    chosen: Option<&'a Prediction>,
    all: &'a [Prediction],
}

/// A row of the table, which is a line of the plots by depth.
struct Row {
    what: &'static str,
    of: Prediction,
}

/// Returns a page of what a model has for a level's records and mix, within the limits: HTML.
///
/// The choice is marked, if there is one.
pub fn picture(model: &Model, slo: &Slo, limits: &Limits, prices: &Prices, chosen: Option<&Prediction>) -> String {
    let all = predictions(model, slo, limits, prices);
    let about = About { slo, limits, chosen, all: &all };
    let near = nearest(model, slo, limits, prices, chosen.map_or(f64::INFINITY, |chosen| chosen.cost));
    let rows = about.rows(&near);
    let title = about.title();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n<header>\n<h1>{title}</h1>\n<p class=\"lead\">{}</p>\n</header>\n<main>\n",
        about.lead()
    );
    page.push_str(KINDS);
    page.push_str("<div class=\"plots\">\n");
    let by = if chosen.is_some() {
        "Nothing cheaper than the choice is in the green part."
    } else {
        "Nothing is in the green part."
    };
    figure(
        &mut page,
        "Throughput and latency of each configuration",
        "Better is to the right, and down. Pale ones miss the level.",
        &about.map(),
    );
    figure(&mut page, "What is in time, by cost", by, &about.costs());
    page.push_str("</div>\n");
    legend(&mut page, &rows);
    page.push_str("<div class=\"plots\">\n");
    let [rates, times] = about.by_depth(model, &rows);
    figure(
        &mut page,
        "Throughput by accesses or batches in flight",
        "More in flight gains little where a line is flat.",
        &rates,
    );
    figure(
        &mut page,
        "Latency by accesses or batches in flight",
        "Each access waits for those in front of it.",
        &times,
    );
    page.push_str("</div>\n");
    about.table(&mut page, &rows);
    page.push_str("</main>\n<footer><p>The numbers are those of the model: what <code>rdmakv far model</code> measured, and values between. The green \
                   part is a tenth better than the level, because measurements differ. A worker costs 1, a lane 0.5, and a MiB of \
                   rings and buffers 0.01.</p></footer>\n</html>\n");
    page
}

/// The legend of the first two plots.
const KINDS: &str = "<ul class=\"legend\">\n\
    <li><svg viewBox=\"0 0 30 14\"><circle class=\"dot h0\" cx=\"15\" cy=\"7\" r=\"5\"/></svg>one-sided</li>\n\
    <li><svg viewBox=\"0 0 30 14\"><rect class=\"dot h1\" x=\"10\" y=\"2\" width=\"10\" height=\"10\"/></svg>in batches, by workers of the server</li>\n\
    <li><svg viewBox=\"0 0 30 14\"><line class=\"level\" x1=\"0\" x2=\"30\" y1=\"7\" y2=\"7\"/></svg>the level</li>\n</ul>\n";

/// Returns all configurations within the limits, as the model has them.
fn predictions(model: &Model, slo: &Slo, limits: &Limits, prices: &Prices) -> Vec<Prediction> {
    let mut all = Vec::new();
    for workers in 0..=limits.workers {
        for lanes in workers.max(1)..=limits.lanes {
            for batch in limits.batches(workers, slo.record()) {
                let shape = Configuration { workers, lanes, batch, depth: 1 };
                let Some(curve) = model.curve(slo.record(), slo.reads(), &shape) else { continue };
                all.extend(limits.depths().map(|depth| {
                    let configuration = Configuration { depth, ..shape };
                    Prediction {
                        configuration,
                        point: curve.at(depth),
                        cost: prices.cost(&configuration, slo.record()),
                    }
                }));
            }
        }
    }
    all
}

impl About<'_> {
    /// The latency of the level, in microseconds.
    fn latency(&self) -> f64 {
        self.slo.latency().as_secs_f64() * 1e6
    }

    fn is_in_time(&self, point: &Point) -> bool {
        point.mean / 1e3 <= self.latency() * LATENCY_MARGIN
    }

    fn meets(&self, point: &Point) -> bool {
        self.is_in_time(point) && point.throughput >= self.slo.throughput() * THROUGHPUT_MARGIN
    }

    fn level(&self) -> String {
        let what = match self.slo.reads() {
            reads if reads >= 1.0 => "reads",
            reads if reads <= 0.0 => "writes",
            _ => "accesses",
        };
        format!("{} {what}/s at a mean of {}", short(self.slo.throughput()), micros(self.latency()))
    }

    /// The answer in a sentence.
    fn title(&self) -> String {
        match self.chosen {
            Some(chosen) => {
                let words = chosen.configuration.to_string();
                let words = words.replacen("one-sided, ", "One-sided access by ", 1);
                format!("{words}: meets {} for a cost of {}", self.level(), rounded(chosen.cost))
            }
            None => format!("Nothing here meets {}", self.level()),
        }
    }

    fn lead(&self) -> String {
        let slo = self.slo;
        let wanted = format!("Far memory, records of {} bytes, {:.0} % reads.", slo.record(), slo.reads() * 100.0);
        match self.chosen {
            Some(Prediction { point, .. }) => format!(
                "{wanted} The model has the choice at {}/s, with a mean of {} and a p99 of {}.",
                short(point.throughput),
                micros(point.mean / 1e3),
                micros(point.p99 / 1e3)
            ),
            None => format!("{wanted} Ask for less, or allow more lanes and workers."),
        }
    }

    /// Draws points, one where several would cover each other: those that meet the level, and one-sided ones, before others.
    fn dots(&self, plot: &mut Plot, points: impl Fn(&Prediction) -> Option<(f64, f64)>) {
        let mut taken = BTreeSet::new();
        let mut all: Vec<&Prediction> = self.all.iter().collect();
        all.sort_by_key(|of| (!self.meets(&of.point), of.configuration));
        all.retain(|of| points(of).is_some_and(|at| taken.insert(plot.place(at))));
        for of in all.into_iter().rev() {
            let Some(at) = points(of) else { continue };
            let is_batch = !of.configuration.is_one_sided();
            let Point { throughput, mean, .. } = of.point;
            let name = format!("{}: {}/s, {}", of.configuration, short(throughput), micros(mean / 1e3));
            plot.dot((usize::from(is_batch), is_batch), self.meets(&of.point), at, &name);
        }
    }

    /// Throughput and latency of all.
    fn map(&self) -> String {
        let (rate, latency) = (self.slo.throughput(), self.latency());
        let rates = self.all.iter().map(|of| of.point.throughput).chain([rate]);
        let times = self.all.iter().map(|of| of.point.mean / 1e3).chain([latency]);
        let across = Axis::logarithmic(rates, ACROSS);
        let up = Axis::logarithmic(times, UP);
        let mut plot = Plot::new((across, "accesses a second", short), (up, "mean latency", micros), &self.title());
        plot.zone("meets the level", Some(rate * THROUGHPUT_MARGIN), (latency * LATENCY_MARGIN, true));
        plot.level(Some(rate), latency);
        let at = |of: &Prediction| (of.point.throughput, of.point.mean / 1e3);
        self.dots(&mut plot, |of| Some(at(of)));
        if let Some(chosen) = self.chosen {
            plot.choice(at(chosen));
        }
        plot.finish()
    }

    /// Cost and throughput of those that are in time.
    fn costs(&self) -> String {
        let in_time = || self.all.iter().filter(|of| self.is_in_time(&of.point));
        let most = self.chosen.map_or(f64::INFINITY, |chosen| (chosen.cost * 2.0).max(chosen.cost + 1.0));
        let shown =
            |of: &Prediction| (self.is_in_time(&of.point) && of.cost <= most).then_some((of.cost, of.point.throughput));
        let across = Axis::linear(in_time().filter_map(shown).map(|(cost, _)| cost), ACROSS);
        let rate = self.slo.throughput();
        let rates = in_time().filter_map(shown).map(|(_, rate)| rate).chain([rate, rate * THROUGHPUT_MARGIN]);
        let up = Axis::logarithmic(rates, UP);
        let mut plot = Plot::new((across, "cost", rounded), (up, "accesses a second", short), "Throughput by cost");
        plot.zone("meets the level", None, (rate * THROUGHPUT_MARGIN, false));
        plot.level(None, rate);
        self.dots(&mut plot, shown);
        if let Some(chosen) = self.chosen {
            plot.choice((chosen.cost, chosen.point.throughput));
        }
        plot.finish()
    }

    /// Returns the choice, and what is of interest beside it. No two are the same but for the depth.
    fn rows(&self, near: &Near) -> Vec<Row> {
        let of_kind = |is_batch: bool| {
            let all = self.all.iter().filter(move |of| of.configuration.is_one_sided() != is_batch);
            all.max_by(|a, b| a.point.throughput.total_cmp(&b.point.throughput)).copied()
        };
        let (few, late) = match self.chosen {
            Some(_) => ("cheaper, but too few", "cheaper, but too late"),
            None => ("in time, but too few", "enough, but too late"),
        };
        let wanted = [
            ("the choice", self.chosen.copied()),
            (few, near.by_throughput),
            (late, near.by_latency),
            ("the most, one-sided", of_kind(false)),
            ("the most, in batches", of_kind(true)),
        ];
        let mut rows: Vec<Row> = Vec::new();
        for (what, of) in wanted.into_iter().filter_map(|(what, of)| Some((what, of?))) {
            let shape = |of: &Prediction| Configuration { depth: 1, ..of.configuration };
            if rows.iter().all(|row| shape(&row.of) != shape(&of)) && rows.len() < ROWS {
                rows.push(Row { what, of });
            }
        }
        rows
    }

    /// Throughput and latency by depth.
    fn by_depth(&self, model: &Model, rows: &[Row]) -> [String; 2] {
        let (rate, latency) = (self.slo.throughput(), self.latency());
        let value = |point: &Point, is_time: bool| if is_time { point.mean / 1e3 } else { point.throughput };
        [false, true].map(|is_time| {
            let curves: Vec<Vec<(f64, f64)>> = rows
                .iter()
                .filter_map(|row| model.curve(self.slo.record(), self.slo.reads(), &row.of.configuration))
                .map(|curve| {
                    self.limits.depths().map(|depth| (f64::from(depth), value(&curve.at(depth), is_time))).collect()
                })
                .collect();
            let level = if is_time { latency } else { rate };
            let margin = level * if is_time { LATENCY_MARGIN } else { THROUGHPUT_MARGIN };
            let up = Axis::logarithmic(curves.iter().flatten().map(|&(_, y)| y).chain([level, margin]), UP);
            let (name, words): (_, fn(f64) -> String) =
                if is_time { ("mean latency", micros) } else { ("accesses a second", short) };
            let across = Axis::powers(self.limits.depth, ACROSS);
            let mut plot = Plot::new((across, "in flight on each lane", rounded), (up, name, words), name);
            plot.zone(if is_time { "in time" } else { "enough" }, None, (margin, is_time));
            plot.level(None, level);
            for (hue, curve) in curves.iter().enumerate() {
                plot.line(hue, curve);
            }
            if let Some(chosen) = self.chosen {
                plot.choice((f64::from(chosen.configuration.depth), value(&chosen.point, is_time)));
            }
            plot.finish()
        })
    }

    fn table(&self, page: &mut String, rows: &[Row]) {
        page.push_str(
            "<div class=\"card scroll\"><table>\n<thead><tr><th>configuration</th><th>cost</th><th>a second</th><th>mean</th><th>p99</th><th></th></tr></thead>\n",
        );
        for Row { what, of } in rows {
            let Point { throughput, mean, p99 } = of.point;
            let class = if self.meets(&of.point) { "good" } else { "bad" };
            let verdict = match (self.is_in_time(&of.point), self.meets(&of.point)) {
                (_, true) => "meets the level",
                (true, false) => "too few",
                (false, _) if throughput >= self.slo.throughput() * THROUGHPUT_MARGIN => "too late",
                _ => "too few, too late",
            };
            let verdict = if what.contains("too ") { String::new() } else { format!(": {verdict}") };
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td data-label=\"cost\">{}</td><td data-label=\"a second\">{}</td><td data-label=\"mean\">{}</td>\
                 <td data-label=\"p99\">{}</td><td class=\"{class}\">{what}{verdict}</td></tr>",
                of.configuration,
                format_args!("{:.2}", of.cost),
                short(throughput),
                micros(mean / 1e3),
                micros(p99 / 1e3)
            );
        }
        page.push_str("</table></div>\n");
    }
}

fn figure(page: &mut String, title: &str, note: &str, svg: &str) {
    let _ = write!(
        page,
        "<figure><figcaption><h2>{}</h2><p>{}</p></figcaption>\n{svg}</figure>\n",
        escaped(title),
        escaped(note)
    );
}

/// The legend of the plots by depth.
fn legend(page: &mut String, rows: &[Row]) {
    page.push_str("<ul class=\"legend\">\n");
    for (hue, Row { what, of }) in rows.iter().enumerate() {
        let name = of.configuration.to_string();
        let name = name.rsplit_once(", ").map_or(&name[..], |(shape, _)| shape);
        let _ = writeln!(
            page,
            "<li class=\"h{hue}\"><svg viewBox=\"0 0 30 14\"><line class=\"line\" x1=\"0\" x2=\"30\" y1=\"7\" y2=\"7\"/></svg>{name} ({what})</li>"
        );
    }
    page.push_str("</ul>\n");
}

/// Returns a number in few letters.
fn short(number: f64) -> String {
    match number {
        number if number >= 1e6 => format!("{}M", rounded(number / 1e6)),
        number if number >= 1e3 => format!("{}k", rounded(number / 1e3)),
        number => rounded(number),
    }
}

/// Returns a time of so many microseconds in few letters.
fn micros(time: f64) -> String {
    match time {
        time if time >= 1e6 => format!("{} s", rounded(time / 1e6)),
        time if time >= 1e3 => format!("{} ms", rounded(time / 1e3)),
        time if time >= 1.0 => format!("{} µs", rounded(time)),
        time => format!("{} ns", rounded(time * 1e3)),
    }
}

fn rounded(number: f64) -> String {
    if number >= 9.95 { format!("{number:.0}") } else { format!("{}", (number * 10.0).round() / 10.0) }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Operation, Sample};
    use super::super::search::cheapest;
    use super::*;
    use std::time::Duration;

    fn model() -> Model {
        let sample = |workers, batch, depth| Sample {
            operation: Operation::Read,
            record: 64,
            configuration: Configuration { workers, lanes: 1, batch, depth },
            point: Point {
                throughput: 1e5 * f64::from(depth * batch),
                mean: 1e4 * f64::from(depth * (1 + workers)),
                p99: 1e5,
            },
        };
        Model::of(&[sample(0, 1, 1), sample(0, 1, 4), sample(1, 16, 1), sample(1, 16, 4)])
    }

    fn page(micros: u64, throughput: f64) -> String {
        let (limits, prices) = (Limits { workers: 1, lanes: 1, depth: 4 }, Prices::default());
        let slo = Slo::new(Duration::from_micros(micros), throughput, 64, 1.0).unwrap();
        let chosen = cheapest(&model(), &slo, &limits, &prices);
        picture(&model(), &slo, &limits, &prices, chosen.as_ref().ok())
    }

    #[test]
    fn title_says_the_choice_and_its_cost() {
        let page = page(30, 5e5);
        let title = "<h1>1 worker, 1 lane, batches of 1, 1 in flight: meets 500k reads/s at a mean of 30 µs for a cost of 1.5</h1>";
        assert!(page.contains(title), "{page}");
        assert_eq!(page.matches("class=\"choice\"").count(), 4, "each plot marks it");
        assert_eq!(page.matches("class=\"zone\"").count(), 4);
        assert!(
            page.contains(">the choice: meets the level</td>") && page.contains(">cheaper, but too few</td>"),
            "{page}"
        );
        assert!(
            !page.contains("<script") && page.matches("http").count() == 4,
            "a name space of each plot, and nothing to load"
        );
    }

    #[test]
    fn page_without_a_choice_says_what_is_close() {
        let page = page(1, 5e9);
        assert!(page.contains("<h1>Nothing here meets 5000M reads/s at a mean of 1 µs</h1>"), "{page}");
        assert!(
            !page.contains("class=\"choice\"") && page.contains(">the most, in batches: too few, too late</td>"),
            "{page}"
        );
    }

    #[test]
    fn dots_tell_what_meets_the_level() {
        let page = page(30, 5e5);
        // Of 24 configurations one-sided access and batches of one have the same throughput; their latencies differ.
        let map = &page[page.find("<svg class=\"plot\"").unwrap()..];
        let map = &map[..map.find("</svg>").unwrap()];
        assert_eq!(map.matches("class=\"dot h0").count(), 3, "{map}");
        assert!(map.contains("<title>one-sided, 1 lane, 4 in flight: 400k/s, 40 µs</title>"), "{map}");
        let pale = map.matches(" misses\"").count();
        assert!(pale > 3 && pale < map.matches("class=\"dot").count(), "{pale} {map}");
    }

    #[test]
    fn numbers_have_few_letters() {
        assert_eq!([7.25, 15.0, 1500.0, 2.5e6].map(short), ["7.3", "15", "1.5k", "2.5M"]);
        assert_eq!([0.25, 7.0, 1500.0, 2e6].map(micros), ["250 ns", "7 µs", "1.5 ms", "2 s"]);
    }
}
