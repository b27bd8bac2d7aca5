//! Shows what a generator is asked for beside what it gives, or writes the first of its events.
//!
//! ```text
//! cargo run --release -p traces --example workload -- httpd
//! cargo run --release -p traces --example workload -- zipf:objects=1000 pages out.csv.zst 5000
//! ```

use std::error::Error;
use std::path::Path;
use traces::generate::{Generator, Workload};
use traces::write;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [workload, rest @ ..] = &arguments[..] else { return Err("give a workload: httpd, cello92, zipf".into()) };
    let workload: Workload = workload.parse()?;
    let mut events = workload.generate()?;
    match rest {
        [] => {
            events.try_for_each(|event| event.map(drop))?;
            println!("{workload}\n{}", events.checks());
        }
        [form, file, count] => {
            let mut writer = write::create(Path::new(file), form.parse()?)?;
            for event in events.take(count.parse()?) {
                writer.write(&event?)?;
            }
            println!("{file}: {:?}", writer.finish()?);
        }
        _ => return Err("give a form, a file and a number of events".into()),
    }
    Ok(())
}
