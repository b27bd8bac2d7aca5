//! A picture of a model: throughput and latency by configuration, with a service level and the choice for it.
//!
//! It is an SVG of two parts, one-sided access and batches, as a person compares them. Each line is a number of threads, or a length of
//! batches; along it the depth rises. Both axes are logarithmic. Points in the shaded part meet the level.

use super::configuration::{Configuration, Limits};
use super::model::{Model, Point};
use super::search::Prediction;
use super::slo::Slo;
use std::fmt::Write as _;

/// Pixels of the picture, of the part for points, and around it.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 72.0;
const BOTTOM: f64 = 60.0;
/// Colours of lines. They differ also without red and green.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7f7f7f"];

/// Dashes of batches' lines, by the number of lanes. One-sided access has none.
const DASHES: [&str; 4] = ["6 3", "2 3", "10 3 2 3", "14 4"];

/// A line: its name, colour and dashes, and its points by depth.
struct Line {
    name: String,
    /// That of the batches' length or, one-sided, of the number of lanes.
    colour: &'static str,
    dashes: &'static str,
    points: Vec<(u32, Point)>,
}

/// A logarithmic axis: its ends, and the pixels there.
struct Axis {
    values: (f64, f64),
    pixels: (f64, f64),
}

impl Axis {
    /// Returns an axis of whole decades that has these values.
    fn of(values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let (least, most) = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
        let (least, most) = if most > 0.0 { (least, most) } else { (1.0, 1.0) };
        let low = least.log10().floor();
        let high = most.log10().ceil().max(low + 1.0);
        Self { values: (low, high), pixels }
    }

    /// Returns the pixel of a value.
    fn at(&self, value: f64) -> f64 {
        let share = (value.max(f64::MIN_POSITIVE).log10() - self.values.0) / (self.values.1 - self.values.0);
        self.pixels.0 + share.clamp(0.0, 1.0) * (self.pixels.1 - self.pixels.0)
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.values.0 as i32..=self.values.1 as i32).map(|power| 10_f64.powi(power))
    }
}

/// Returns the picture of what a model has for a level's records and mix, within the limits: an SVG.
///
/// The choice is marked, if there is one.
pub fn picture(model: &Model, slo: &Slo, limits: &Limits, chosen: Option<&Prediction>) -> String {
    let lines = lines(model, slo, limits);
    let points = || lines.iter().flat_map(|line| line.points.iter().map(|(_, point)| point));
    let latency = slo.latency().as_secs_f64() * 1e6;
    let rates = points().map(|point| point.throughput).chain([slo.throughput()]);
    let across = Axis::of(rates, (LEFT, WIDTH - RIGHT));
    let times = points().map(|point| point.mean / 1e3).chain([latency]);
    let up = Axis::of(times, (HEIGHT - BOTTOM, TOP));
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    );
    let title = format!(
        "Far memory: records of {} bytes, {:.0} % reads; at least {}/s in {} on average",
        slo.record(),
        slo.reads() * 100.0,
        short(slo.throughput()),
        micros(latency)
    );
    text(&mut svg, (LEFT, 24.0), "font-size=\"16\"", &title);
    text(
        &mut svg,
        (LEFT, 44.0),
        "fill=\"#555\"",
        "Points in the shaded part meet the level. Along a line the depth rises. A colour is a length of batches, dashes are lanes.",
    );
    grid(&mut svg, &across, &up);
    let (at_rate, at_time) = (across.at(slo.throughput()), up.at(latency));
    let _ = writeln!(
        svg,
        "<rect x=\"{at_rate:.1}\" y=\"{at_time:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#2ca02c\" fill-opacity=\"0.15\" \
         stroke=\"#2ca02c\"/>",
        (across.pixels.1 - at_rate).max(0.0),
        (up.pixels.0 - at_time).max(0.0)
    );
    for (number, line) in lines.iter().enumerate() {
        draw(&mut svg, line, number, (&across, &up));
    }
    if let Some(Prediction { configuration, point, .. }) = chosen {
        let (x, y) = (across.at(point.throughput), up.at(point.mean / 1e3));
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"9\" fill=\"none\" stroke=\"#c00\" stroke-width=\"3\"/>"
        );
        let name = format!("the choice: {configuration}");
        text(&mut svg, (LEFT + 8.0, TOP + 18.0), "fill=\"#c00\" font-weight=\"bold\"", &name);
    } else {
        text(&mut svg, (LEFT + 8.0, TOP + 18.0), "fill=\"#c00\" font-weight=\"bold\"", "nothing here meets the level");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the lines: one-sided access by lanes, and batches by workers, lanes and length.
fn lines(model: &Model, slo: &Slo, limits: &Limits) -> Vec<Line> {
    let mut lines = Vec::new();
    for workers in 0..=limits.workers {
        for lanes in workers.max(1)..=limits.lanes {
            for batch in limits.batches(workers, slo.record()) {
                let of = Configuration { workers, lanes, batch, depth: 1 };
                let Some(curve) = model.curve(slo.record(), slo.reads(), &of) else { continue };
                let points = limits.depths().map(|depth| (depth, curve.at(depth))).collect();
                let plural = |count: u32| if count == 1 { "" } else { "s" };
                let name = match workers {
                    0 => format!("one-sided, {lanes} lane{}", plural(lanes)),
                    _ => format!(
                        "{workers} worker{}, {lanes} lane{}, batches of {batch}",
                        plural(workers),
                        plural(lanes)
                    ),
                };
                let colour = if workers == 0 { lanes - 1 } else { batch.ilog2() };
                let colour = COLOURS[colour as usize % COLOURS.len()];
                let dashes = if workers == 0 { "" } else { DASHES[(lanes as usize - 1) % DASHES.len()] };
                lines.push(Line { name, colour, dashes, points });
            }
        }
    }
    lines
}

/// Draws a line with its points and, as far as there is room, its name in the legend.
fn draw(svg: &mut String, line: &Line, number: usize, (across, up): (&Axis, &Axis)) {
    let &Line { colour, dashes, .. } = line;
    let dashes = if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashes}\"") };
    let places: Vec<(f64, f64)> =
        line.points.iter().map(|(_, point)| (across.at(point.throughput), up.at(point.mean / 1e3))).collect();
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"{dashes}/>",
        path.join(" ")
    );
    for ((x, y), (depth, point)) in places.iter().zip(&line.points) {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{}, {depth} in flight: {}/s, {}</title></circle>",
            line.name,
            short(point.throughput),
            micros(point.mean / 1e3)
        );
    }
    let y = TOP + 10.0 + number as f64 * 15.0;
    if y < HEIGHT - BOTTOM {
        let x = WIDTH - RIGHT + 14.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
            x + 22.0
        );
        text(svg, (x + 28.0, y + 4.0), "font-size=\"10\"", &line.name);
    }
}

/// Draws the axes with their decades.
fn grid(svg: &mut String, across: &Axis, up: &Axis) {
    for rate in across.decades() {
        let x = across.at(rate);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>",
            HEIGHT - BOTTOM
        );
        text(svg, (x, HEIGHT - BOTTOM + 18.0), "text-anchor=\"middle\"", &short(rate));
    }
    for time in up.decades() {
        let y = up.at(time);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>",
            WIDTH - RIGHT
        );
        text(svg, (LEFT - 6.0, y + 4.0), "text-anchor=\"end\"", &micros(time));
    }
    text(svg, ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16.0), "text-anchor=\"middle\"", "accesses a second");
    text(svg, (14.0, TOP - 10.0), "", "mean latency");
}

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{words}</text>");
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
        time if time >= 1.0 => format!("{} us", rounded(time)),
        time => format!("{} ns", rounded(time * 1e3)),
    }
}

fn rounded(number: f64) -> String {
    if number >= 9.95 { format!("{number:.0}") } else { format!("{}", (number * 10.0).round() / 10.0) }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Operation, Sample};
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

    #[test]
    fn picture_marks_the_level_and_the_choice() {
        let slo = Slo::new(Duration::from_micros(30), 5e5, 64, 1.0).unwrap();
        let limits = Limits { workers: 1, lanes: 1, depth: 4 };
        let configuration = Configuration { workers: 1, lanes: 1, batch: 16, depth: 1 };
        let point = model().at(64, 1.0, &configuration).unwrap();
        let svg = picture(&model(), &slo, &limits, Some(&Prediction { configuration, point, cost: 1.5 }));
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("the choice: 1 worker, 1 lane, batches of 16, 1 in flight"), "{svg}");
        assert!(svg.contains("at least 500k/s in 30 us on average"), "{svg}");
        // One line of one-sided access and seven lengths of batches, with three depths each.
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<title>").count()), (8, 24));
        assert!(svg.contains("<title>one-sided, 1 lane, 4 in flight: 400k/s, 40 us</title>"), "{svg}");
        let dashes = |of: &str| svg.matches(&format!("stroke-width=\"1.5\"{of}/>")).count();
        assert_eq!((dashes(""), dashes(" stroke-dasharray=\"6 3\"")), (1, 7), "{svg}");
        let none = picture(&model(), &slo, &limits, None);
        assert!(none.contains("nothing here meets the level") && !none.contains("the choice"));
    }

    #[test]
    fn points_lie_where_their_values_are() {
        let axis = Axis::of([20.0, 3000.0].into_iter(), (0.0, 300.0));
        assert_eq!(axis.decades().collect::<Vec<_>>(), [10.0, 100.0, 1000.0, 10_000.0]);
        assert!((axis.at(10.0), axis.at(1e4), axis.at(1e9)) == (0.0, 300.0, 300.0));
        assert!((axis.at(100.0) - 100.0).abs() < 1e-9);
        assert!(Axis::of(std::iter::empty(), (0.0, 1.0)).at(f64::NAN).is_finite());
    }

    #[test]
    fn numbers_have_few_letters() {
        assert_eq!([7.25, 15.0, 1500.0, 2.5e6].map(short), ["7.3", "15", "1.5k", "2.5M"]);
        assert_eq!([0.25, 7.0, 1500.0, 2e6].map(micros), ["250 ns", "7 us", "1.5 ms", "2 s"]);
    }
}
