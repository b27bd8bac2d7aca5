//! The order of an orderly stop and of a start, in which no crash lets an old value return.
//!
//! The manifest exists from the end of an orderly stop to the begin of the next start, never while a server serves. A crash at any
//! step leaves either a manifest with the log that it was made of, or none.

use crate::superblock::Superblock;

/// A step of a stop or of a start. Each has to have reached the device before the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write what is in buffers: [`Flash::stop`](crate::Flash::stop), its actions, fdatasync of all files.
    WriteOut,
    /// Write clean superblocks with this stop id; fdatasync of all files.
    MarkClean(u64),
    /// Write the manifest to a new file, sync it, rename it, sync the directory.
    WriteManifest(u64),
    /// Read the manifest of this stop, into memory: [`Flash::restore`](crate::Flash::restore).
    ReadManifest(u64),
    /// Remove the manifest, if there is one, and sync the directory.
    RemoveManifest,
    /// Write superblocks in use; fdatasync of all files.
    MarkInUse,
    /// Serve, with what was restored, or empty.
    Serve,
}

/// Returns the steps of an orderly stop, to which `stop` is a number never used before.
#[must_use]
pub fn stop_steps(stop: u64) -> [Step; 3] {
    [Step::WriteOut, Step::MarkClean(stop), Step::WriteManifest(stop)]
}

/// The steps of a start.
#[derive(Clone, Debug)]
pub struct Start {
    stop: Option<u64>,
    at: usize,
}

impl Start {
    /// Begins with what the files say, of which none is foreign. `None` is an empty one.
    #[must_use]
    pub fn new(files: &[Option<Superblock>]) -> Self {
        let first = files.first().copied().flatten();
        let is_whole = |first: &Superblock| {
            files.iter().enumerate().all(|(number, file)| {
                file.is_some_and(|file| {
                    (file.log, file.stop, file.segment, file.unit, file.shards)
                        == (first.log, first.stop, first.segment, first.unit, first.shards)
                        && usize::from(file.file) == number
                        && usize::from(file.files) == files.len()
                })
            })
        };
        Self { stop: first.filter(is_whole).and_then(|first| first.stop), at: 0 }
    }
    /// Returns the next step, if there is one.
    pub fn next_step(&mut self) -> Option<Step> {
        self.at += 1;
        match (self.at, self.stop) {
            (1, Some(stop)) => Some(Step::ReadManifest(stop)),
            (1, None) => self.next_step(),
            (2, _) => Some(Step::RemoveManifest),
            (3, _) => Some(Step::MarkInUse),
            (4, _) => Some(Step::Serve),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(file: u16, stop: Option<u64>) -> Option<Superblock> {
        Some(Superblock { log: 1, size: 1 << 20, stop, segment: 1 << 14, unit: 512, shards: 1, file, files: 2 })
    }
    fn steps(files: &[Option<Superblock>]) -> Vec<Step> {
        let mut start = Start::new(files);
        std::iter::from_fn(|| start.next_step()).collect()
    }

    #[test]
    fn the_manifest_goes_before_anything_is_served() {
        let warm = steps(&[block(0, Some(5)), block(1, Some(5))]);
        assert_eq!(warm, [Step::ReadManifest(5), Step::RemoveManifest, Step::MarkInUse, Step::Serve]);
    }

    #[test]
    fn files_that_do_not_belong_together_start_empty() {
        let cold = [Step::RemoveManifest, Step::MarkInUse, Step::Serve];
        let (clean, used) = (Some(5), None);
        for files in
            [[block(0, used), block(1, used)], [block(0, clean), block(1, used)], [block(0, clean), block(1, Some(6))]]
        {
            assert_eq!(steps(&files), cold);
        }
        assert_eq!(steps(&[block(1, clean), block(0, clean)]), cold);
        assert_eq!(steps(&[block(0, clean), None]), cold);
        assert_eq!(steps(&[block(0, clean)]), cold);
        assert_eq!(steps(&[]), cold);
    }
}
