//! Prints what the generators are asked for beside what they give: `figures httpd cello92 zipf:objects=1000`.

use traces::TraceError;
use traces::generate::{Generator, Workload};

fn main() -> Result<(), TraceError> {
    for name in std::env::args().skip(1) {
        let workload: Workload = name.parse()?;
        let started = std::time::Instant::now();
        let mut events = workload.generate()?;
        events.try_for_each(|event| event.map(drop))?;
        println!("{workload}: {:.2} s\n{}", started.elapsed().as_secs_f64(), events.checks());
    }
    Ok(())
}
