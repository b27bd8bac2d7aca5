//! A trace as requests to a key-value server.
//!
//! The `traces` crate reads ranges of an address space. Where those are whole objects (web logs, object caches, blocks of language
//! models) an object is a key, and a larger one than the server takes is several. Elsewhere (disks, memory) aligned chunks are
//! keys, as of a server that caches blocks. Reads become GETs, writes SETs.

use std::collections::HashMap;
use std::path::Path;

use traces::{Action, Event, Format, ReadOptions};

use crate::sizes::Sizes;

/// A trace, ready to be replayed. Each request takes 16 bytes.
#[derive(Clone, Debug)]
pub struct Recording {
    pub(crate) steps: Vec<Step>,
    lengths: Vec<u32>,
    name: String,
    understood: String,
    passed_over: u64,
    cut: bool,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Nanoseconds since the first.
    pub(crate) time: u64,
    pub(crate) key: u32,
    pub(crate) write: bool,
}

/// Bytes of a value where objects are cut: what a server takes by default, with its key.
const OBJECT: u64 = 1_000_000;
/// Bytes of a value of what has no objects.
const BLOCK: u64 = 4096;

impl Recording {
    /// Reads a trace; at most so many requests of it, and with values of at most `chunk` bytes (else 1,000,000 for objects, 4,096
    /// for blocks).
    ///
    /// # Errors
    ///
    /// It cannot be read, or there is nothing in it.
    pub fn open(path: &Path, options: &ReadOptions, chunk: Option<u64>, most: Option<u64>) -> Result<Self, String> {
        let mut reader = traces::open(path, options).map_err(|error| error.to_string())?;
        // The first word tells the detected format.
        let said = reader.summary().understood.clone();
        let format = said.split(|c: char| !c.is_alphanumeric()).next().and_then(|name| name.parse::<Format>().ok());
        let objects = matches!(
            options.format.or(format),
            Some(Format::Httpd | Format::Mambo | Format::OracleGeneral | Format::Objects | Format::Mooncake)
        );
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let mut cutter = Cutter::new(objects, chunk.unwrap_or(if objects { OBJECT } else { BLOCK }).clamp(1, 1 << 30));
        let most = most.unwrap_or(u64::MAX).min(1 << 32) as usize;
        let mut cut = false;
        for event in reader.by_ref() {
            cutter.take(&event.map_err(|error| error.to_string())?)?;
            if cutter.steps.len() >= most {
                cutter.steps.truncate(most);
                cut = true;
                break;
            }
        }
        let summary = reader.summary();
        let understood = summary.understood.clone();
        let passed_over = summary.skipped.iter().map(|skipped| skipped.count).sum::<u64>() + cutter.passed_over;
        let Cutter { mut steps, lengths, .. } = cutter;
        let Some(first) = steps.iter().map(|step| step.time).min() else {
            return Err(format!("{}: no requests in it, read as {understood}; is it another format?", path.display()));
        };
        steps.iter_mut().for_each(|step| step.time -= first);
        Ok(Self { steps, lengths, name, understood, passed_over, cut })
    }

    /// Requests.
    pub fn requests(&self) -> usize {
        self.steps.len()
    }

    /// Keys.
    pub fn keys(&self) -> u64 {
        self.lengths.len() as u64
    }

    /// How long it took when it was recorded; nothing where the format has no clock.
    pub fn length(&self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.steps.iter().map(|step| step.time).max().unwrap_or(0))
    }

    /// Lengths of the values: for each key the greatest that was asked for.
    pub fn sizes(&self) -> Sizes {
        let (least, most) = (self.lengths.iter().min().unwrap_or(&0), self.lengths.iter().max().unwrap_or(&0));
        let text = if least == most { most.to_string() } else { format!("{least}-{most}") };
        Sizes::each(self.lengths.clone(), text)
    }

    /// Returns its description in a line.
    pub fn about(&self) -> String {
        let cut = if self.cut { ", its beginning" } else { "" };
        let passed = match self.passed_over {
            0 => String::new(),
            many => format!("; {many} of its entries were passed over"),
        };
        format!(
            "{}{cut} ({}): {} requests for {} keys{passed}",
            self.name,
            self.understood,
            self.requests(),
            self.keys()
        )
    }
}

/// Makes keys of ranges.
struct Cutter {
    objects: bool,
    chunk: u64,
    numbers: HashMap<(u32, u64), u32>,
    steps: Vec<Step>,
    lengths: Vec<u32>,
    passed_over: u64,
}

impl Cutter {
    fn new(objects: bool, chunk: u64) -> Self {
        Self { objects, chunk, numbers: HashMap::new(), steps: Vec::new(), lengths: Vec::new(), passed_over: 0 }
    }

    fn take(&mut self, event: &Event) -> Result<(), String> {
        let (Action::Request(spans) | Action::Acquire(spans)) = &event.action else {
            self.passed_over += u64::from(matches!(event.action, Action::Invalidate(_)));
            return Ok(());
        };
        let write = event.access == mrrc::Access::LOCAL_WRITE;
        for span in spans {
            let (mut at, end) = (span.address, span.address.saturating_add(span.length));
            if !self.objects {
                at -= at % self.chunk;
            }
            while at < end {
                let length = if self.objects { self.chunk.min(end - at) } else { self.chunk };
                let next = u32::try_from(self.lengths.len()).map_err(|_| "a trace of more than four billion keys")?;
                let key = *self.numbers.entry((event.process, at)).or_insert(next);
                if key == next {
                    self.lengths.push(0);
                }
                let known = &mut self.lengths[key as usize];
                *known = (*known).max(length as u32);
                self.steps.push(Step { time: event.time, key, write });
                at = at.saturating_add(self.chunk);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(name: &str, text: &str, chunk: Option<u64>, most: Option<u64>) -> Result<Recording, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Recording::open(&path, &ReadOptions::default(), chunk, most)
    }

    fn keys(recording: &Recording) -> Vec<u32> {
        recording.steps.iter().map(|step| step.key).collect()
    }

    #[test]
    fn an_object_is_a_key_and_a_large_one_several() {
        let recording = open("a.txt", "5 77 100\n6 88 2500\n8 77 120\n", Some(1000), None).unwrap();
        assert_eq!(keys(&recording), [0, 1, 2, 3, 0]);
        assert_eq!((0..4).map(|key| recording.sizes().of(key)).collect::<Vec<_>>(), [120, 1000, 1000, 500]);
        assert_eq!(recording.length(), std::time::Duration::from_secs(3));
        assert!(recording.steps.iter().all(|step| !step.write));
    }

    #[test]
    fn blocks_that_overlap_share_keys_and_writes_are_sets() {
        // Sectors of 512 bytes: one request over two blocks, one within the second.
        let recording = open("a.spc", "0,4,8192,r,1.0\n0,16,512,w,1.5\n0,8,512,R,2\n", None, None).unwrap();
        assert_eq!(keys(&recording), [0, 1, 2, 2, 1]);
        assert_eq!(
            recording.steps.iter().map(|step| step.write).collect::<Vec<_>>(),
            [false, false, false, true, false]
        );
        assert_eq!(recording.sizes().to_string(), "4096");
    }

    #[test]
    fn only_the_beginning_is_read_if_that_is_asked_for() {
        let recording = open("a.txt", "5 77 100\n6 88 2500\n8 77 120\n", None, Some(2)).unwrap();
        assert_eq!(keys(&recording), [0, 1]);
        assert!(recording.about().contains("its beginning"), "{}", recording.about());
    }

    #[test]
    fn nothing_to_replay_is_an_error_that_names_the_file() {
        for text in ["", "not a trace\nat all\n"] {
            let wrong = open("empty.objects", text, None, None).unwrap_err();
            assert!(wrong.contains("empty.objects"), "{wrong}");
        }
        assert!(Recording::open(Path::new("/nowhere"), &ReadOptions::default(), None, None).is_err());
    }
}
