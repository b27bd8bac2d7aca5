//! The trace as a file that both sides read.

use mrrc::PAGE;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use traces::generate::zipf::{self, Zipf};
use traces::{Action, Format, ReadOptions, Trace};

/// Writes the workload into the folder, unless it lies there from before. The file appears when it is whole.
pub(super) fn made(folder: &Path, workload: &zipf::Options) -> Result<PathBuf, String> {
    let name: String = workload.to_string().replace('=', "-").replace(',', "_");
    let file = folder.join(format!("zipf_{name}.oracleGeneral.bin"));
    if file.exists() {
        return Ok(file);
    }
    let part = folder.join(format!("zipf.{}.part", std::process::id()));
    let written =
        fs::create_dir_all(folder).and_then(|()| write(&part, workload)).and_then(|()| fs::rename(&part, &file));
    written.map_err(|error| {
        let _ = fs::remove_file(&part);
        format!("{}: cannot be written: {error}", file.display())
    })?;
    Ok(file)
}

/// Time, object, bytes, and the next request for it, which is not used here.
fn write(file: &Path, workload: &zipf::Options) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
    let events = Zipf::new(workload.clone()).map_err(std::io::Error::other)?;
    for (time, event) in events.enumerate() {
        let Action::Request(spans) = event.map_err(std::io::Error::other)?.action else { continue };
        for span in &spans {
            out.write_all(&(time as u32).to_le_bytes())?;
            // Objects lie apart, so where one begins is its number.
            out.write_all(&(span.address / PAGE + 1).to_le_bytes())?;
            out.write_all(&u32::try_from(span.length).unwrap_or(u32::MAX).to_le_bytes())?;
            out.write_all(&(-1_i64).to_le_bytes())?;
        }
    }
    out.into_inner()?.sync_all()
}

/// Reads it.
pub(super) fn load(file: &Path) -> Result<Trace, String> {
    let wrong = |error: traces::TraceError| error.to_string();
    let reader = traces::open(file, &ReadOptions::of(Format::OracleGeneral)).map_err(wrong)?;
    Trace::load("zipf", reader, false).map_err(wrong)
}
