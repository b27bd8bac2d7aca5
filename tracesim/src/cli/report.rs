//! Pages as files: opened before the work, written when it is done.

use super::failure::Failure;
use super::output::Output;
use super::source::workload;
use crate::info::Info;
use crate::report::Page;
use crate::report::provenance::{Origin, Provenance, Source};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A page that is to be written, and what is known for it so far.
pub(super) struct ReportFile {
    pub(super) file: PathBuf,
    out: Output,
    infos: BTreeMap<usize, Info>,
    origins: Vec<Origin>,
}

impl ReportFile {
    /// Begins a file, so that what cannot be written fails at once. `output` is where else something is written.
    pub(super) fn open(file: &Path, output: Option<&Path>, inputs: &[PathBuf]) -> Result<Self, Failure> {
        if file.as_os_str() == "-" {
            return Err(Failure::usage(
                "a report is a file, as the tables go to standard output: give --report page.html",
            ));
        }
        if output == Some(file) {
            let file = file.display();
            return Err(Failure::usage(format_args!("{file}: the report and the output are two files: name another")));
        }
        let (infos, origins) = (BTreeMap::new(), Vec::new());
        Ok(Self { file: file.to_owned(), out: Output::open(Some(file), inputs)?, infos, origins })
    }

    /// A trace more, at its place.
    pub(super) fn add(
        &mut self,
        at: usize,
        info: Info,
        origin: impl FnOnce(&Info) -> Result<Origin, Failure>,
    ) -> Result<(), Failure> {
        self.origins.push(origin(&info)?);
        self.infos.insert(at, info);
        Ok(())
    }

    /// Writes the page; the file appears.
    pub(super) fn write(self, page: impl FnOnce(&BTreeMap<usize, Info>, Provenance) -> Page) -> Result<(), Failure> {
        let Self { mut out, infos, origins, .. } = self;
        let arguments = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        let html = page(&infos, Provenance::of_command(arguments, origins)).render();
        out.write(|out| out.write_all(html.as_bytes()))?;
        out.finish()
    }
}

/// Returns the origin of the trace of that path.
pub(super) fn origin(path: &Path, info: &Info) -> Result<Origin, Failure> {
    origin_of(path, &info.trace, info.checksum.clone())
}

/// Returns the origin of a trace of that name and checksum.
pub(super) fn origin_of(path: &Path, trace: &str, steps: String) -> Result<Origin, Failure> {
    let source = match workload(path) {
        Some(Ok(workload)) => Source::of_workload(&workload),
        _ => Source::of_file(path).map_err(|error| Failure::work(format_args!("{}: read: {error}", path.display())))?,
    };
    Ok(Origin { trace: trace.to_owned(), source, steps })
}
