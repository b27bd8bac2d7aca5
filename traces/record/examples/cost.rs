//! The cost of recording: a number of events by one thread, then by several. Run it by itself for nanoseconds, under `perf
//! stat -e instructions:u` or `valgrind --tool=callgrind` for instructions, and under `strace -cf` for system calls.
//!
//! ```text
//! cargo run --release -p traces-record --example cost -- [EVENTS [THREADS]]
//! ```

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::time::Instant;
    use traces_record::layout::{Operation, RECORD};
    use traces_record::{Recorder, Source};

    let mut arguments = std::env::args().skip(1);
    let events: u64 = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let threads: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let file = std::env::temp_dir().join(format!("cost-{}.reg", std::process::id()));
    let recorder = Recorder::open(&file, (events + 1) * RECORD as u64 + 4096, Source::Verbs)?;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let recorder = &recorder;
            scope.spawn(move || {
                for n in 0..events / threads {
                    recorder.record(Operation::Acquire, 3, (thread << 40) + (n << 12), 4096);
                }
            });
        }
    });
    let taken = begun.elapsed();
    let state = recorder.state();
    println!(
        "{} events by {threads} threads: {:.1} ns an event; {} left out",
        state.claimed,
        taken.as_nanos() as f64 / state.claimed as f64,
        state.left_out()
    );
    std::fs::remove_file(&file)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("nothing is recorded here: run it on Linux");
}
