//! The paper's section 8, by running both processes over the simulated network.
//!
//! ```text
//! cargo run -p tracesim --example latencies
//! ```

use std::error::Error;
use std::io::{self, Write};

use tracesim::reproduce::handshake::{LATENCIES, PAGES, Row, Warmth, claimed_share, study};

fn name(warmth: Warmth) -> &'static str {
    match warmth {
        Warmth::Cold => "both cold",
        Warmth::WriterWarm => "writer warm",
        Warmth::TargetWarm => "target warm",
        Warmth::Warm => "both warm",
    }
}

fn print(out: &mut impl Write, row: &Row) -> io::Result<()> {
    let micros = |time: u64| time as f64 / 1e3;
    let claimed = match (row.warmth, row.latency) {
        (Warmth::Cold, 0) => format!("{:.1} %", 100.0 * claimed_share(row.pages)),
        (_, 0) => "8.00 µs".to_string(),
        _ => String::new(),
    };
    writeln!(
        out,
        "{:>9}  {:<12} {:>6} {:>14.2} {:>10.2} {:>10.2} {:>8.1} %  {claimed:>9}",
        format!("{} µs", row.latency / 1_000),
        name(row.warmth),
        row.pages,
        micros(row.traditional),
        micros(row.frrwp),
        micros(row.saved()),
        100.0 * row.share(),
    )
}

fn main() -> Result<(), Box<dyn Error>> {
    match run() {
        // The reader has seen enough.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) => {
            Ok(())
        }
        result => result,
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    for (read, opener) in [(false, "a write: the opener has the bytes"), (true, "a read: the opener wants the bytes")] {
        writeln!(out, "{opener}; times in µs")?;
        writeln!(
            out,
            "{:>9}  {:<12} {:>6} {:>14} {:>10} {:>10} {:>10}  {:>9}",
            "latency", "registered", "pages", "traditional", "FRRWP", "saved", "share", "the paper"
        )?;
        for row in study(read, &PAGES, &LATENCIES)? {
            print(&mut out, &row)?;
        }
        writeln!(out)?;
    }
    let limit = 100.0 * claimed_share(0);
    writeln!(out, "The paper's limit, 68 %, is 15.42 / 22.84 = {limit:.1} %: a buffer of no pages.")?;
    Ok(())
}
