//! Checkpoints as files: the bytes of each rank, and what the times of a run amount to. No files, no clock.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use sha2::{Digest, Sha256};

/// Bytes that a rank writes or reads at once.
pub(crate) const BLOCK: usize = 1 << 20;

/// Limits of the figures, as ratios.
const BLOCKED_MOST: f64 = 0.35;
const LIBRARY_BLOCKED_MOST: f64 = 0.25;
const DRAIN_LEAST: f64 = 0.9;
const RESTART_LEAST: f64 = 3.0;

/// Checkpoints that ranks write, each rank one file of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) ranks: u64,
    /// Blocks of one checkpoint, of all ranks together.
    pub(crate) blocks: u64,
    pub(crate) checkpoints: u64,
}

impl Shape {
    /// Returns how many blocks a rank writes.
    pub(crate) fn share(&self, rank: u64) -> u64 {
        self.blocks / self.ranks + u64::from(rank < self.blocks % self.ranks)
    }

    /// Returns the bytes of one checkpoint.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks * BLOCK as u64
    }

    /// Returns the names and sizes of a checkpoint's files.
    pub(crate) fn files(&self, checkpoint: u64) -> Vec<(String, u64)> {
        (0..self.ranks).map(|rank| (name(checkpoint, rank), self.share(rank) * BLOCK as u64)).collect()
    }
}

/// Returns the name of a rank's file.
pub(crate) fn name(checkpoint: u64, rank: u64) -> String {
    format!("bursts-{checkpoint}.{rank}")
}

/// Bytes that tell which block they are.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(Vec<u8>);

impl Pattern {
    /// Returns the bytes that all blocks share but for each one's beginning, which look random.
    pub(crate) fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let words = (0..BLOCK / 8).flat_map(|_| {
            // Xorshift, after Marsaglia.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        Self(words.collect())
    }

    /// Returns a block of a rank's file.
    pub(crate) fn block(&mut self, checkpoint: u64, rank: u64, block: u64) -> &[u8] {
        for (place, number) in self.0.chunks_exact_mut(8).zip([checkpoint, rank, block]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        &self.0
    }

    /// Returns the hash of a rank's file, of so many blocks.
    pub(crate) fn sum(&mut self, checkpoint: u64, rank: u64, blocks: u64) -> Sum {
        let mut hash = Sha256::new();
        (0..blocks).for_each(|block| hash.update(self.block(checkpoint, rank, block)));
        Sum::of(hash)
    }
}

/// The SHA-256 of a file's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sum([u8; 32]);

impl Sum {
    /// Returns the sum of what was hashed.
    pub(crate) fn of(hash: Sha256) -> Self {
        Self(hash.finalize().into())
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The sums of a rank's file: as it was written, as it is read from the burst buffer, and in the backing directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sums {
    pub(crate) name: String,
    pub(crate) written: Sum,
    pub(crate) buffer: Sum,
    pub(crate) backing: Sum,
}

impl Sums {
    /// Returns whether all three are equal.
    pub(crate) fn are_equal(&self) -> bool {
        self.written == self.buffer && self.written == self.backing
    }
}

impl std::fmt::Display for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, written, buffer, backing } = self;
        if self.are_equal() {
            return write!(f, "{written}  {name}");
        }
        write!(f, "{name} DIFFERS: {written} as written, {buffer} in the buffer, {backing} in the backing directory")
    }
}

/// Returns how many of the commands are due that are to run in a drain, evenly spread over its bytes: one of them at half.
pub(crate) fn due(commands: usize, drained: u64, bytes: u64) -> usize {
    let parts = commands as u64 + 1;
    commands.min((drained * parts / bytes.max(1)) as usize)
}

/// Seconds that a checkpoint took at one place.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Times {
    /// How long the slowest rank was in open, write and close, and in the sync on the disk.
    pub(crate) blocked: f64,
    /// From the first byte in the backing directory until it showed the last file. On the disk, as long as `dd` wrote as many bytes.
    pub(crate) drain: Option<f64>,
    /// How long the slowest rank read one: from the disk without its cache.
    pub(crate) restart: f64,
    /// CPU time of all of the machine's processes while ranks wrote one.
    pub(crate) cpu: f64,
}

/// The times of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Figures {
    /// Bytes of one checkpoint.
    pub(crate) bytes: u64,
    pub(crate) mount: Times,
    pub(crate) library: Option<Times>,
    pub(crate) disk: Times,
    pub(crate) tmpfs: Option<Times>,
}

/// A figure against its limit.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Verdict {
    pub(crate) text: String,
    pub(crate) is_met: bool,
}

impl Figures {
    /// Returns the figures as a table.
    pub(crate) fn table(&self) -> String {
        let places = [Some(self.mount), self.library, Some(self.disk), self.tmpfs];
        let cells = |figure: &dyn Fn(Times) -> Option<String>| {
            places.map(|times| times.and_then(figure).unwrap_or_else(|| "-".to_owned()))
        };
        let seconds = |seconds: f64| format!("{seconds:.2}");
        let rate = |seconds: f64| format!("{:.0}", self.bytes as f64 / 1e6 / seconds);
        let rows = [
            ("blocked: write and close, s", cells(&|times| Some(seconds(times.blocked)))),
            ("  MB/s", cells(&|times| Some(rate(times.blocked)))),
            ("drain, on the disk dd, s", cells(&|times| times.drain.map(seconds))),
            ("  MB/s", cells(&|times| times.drain.map(rate))),
            ("restart, on the disk cold, s", cells(&|times| Some(seconds(times.restart)))),
            ("  MB/s", cells(&|times| Some(rate(times.restart)))),
            ("CPU of all while it is written, s", cells(&|times| Some(seconds(times.cpu)))),
        ];
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(["", "mount", "library", "disk", "tmpfs"].map(Cell::new));
        for (what, cells) in rows {
            table.add_row(std::iter::once(what.to_owned()).chain(cells).map(Cell::new));
        }
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            column.set_cell_alignment(if at == 0 { CellAlignment::Left } else { CellAlignment::Right });
        }
        table.trim_fmt()
    }

    /// Returns each figure that has a limit.
    pub(crate) fn verdicts(&self) -> Vec<Verdict> {
        let verdict = |what: &str, ratio: f64, word: &str, limit: f64, is_met: bool| {
            let end = if is_met { "met" } else { "MISSED" };
            Verdict { text: format!("{what}: {ratio:.2}, {word} {limit:.2}: {end}"), is_met }
        };
        let most = |what: &str, ratio: f64, limit: f64| verdict(what, ratio, "at most", limit, ratio <= limit);
        let least = |what: &str, ratio: f64, limit: f64| verdict(what, ratio, "at least", limit, ratio >= limit);
        let blocked = |times: Times| times.blocked / self.disk.blocked;
        let drain = self.disk.drain.zip(self.mount.drain).map(|(dd, drain)| dd / drain);
        let restart = self.disk.restart / self.mount.restart;
        let library = self.library.map(blocked);
        [
            Some(most("blocked time, of that on the disk", blocked(self.mount), BLOCKED_MOST)),
            library.map(|ratio| most("the library's blocked time, of that on the disk", ratio, LIBRARY_BLOCKED_MOST)),
            drain.map(|ratio| least("drain rate, of dd's", ratio, DRAIN_LEAST)),
            Some(least("restart rate, of cold reads'", restart, RESTART_LEAST)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_all_blocks() {
        let shape = Shape { ranks: 3, blocks: 8, checkpoints: 1 };
        let shares: Vec<u64> = (0..3).map(|rank| shape.share(rank)).collect();
        assert_eq!((shares, shape.bytes()), (vec![3, 3, 2], 8 << 20));
        assert_eq!(shape.files(2)[2], ("bursts-2.2".to_owned(), 2 << 20));
    }

    #[test]
    fn each_block_is_another() {
        let mut pattern = Pattern::new();
        let blocks: Vec<Vec<u8>> =
            [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)].map(|(a, b, c)| pattern.block(a, b, c).to_vec()).into();
        assert!(blocks.iter().all(|block| block.len() == BLOCK));
        for (at, block) in blocks.iter().enumerate() {
            assert!(blocks[..at].iter().all(|other| other != block));
        }
    }

    #[test]
    fn figures_meet_their_limits_or_miss_them() {
        let times = |blocked, drain, restart| Times { blocked, drain, restart, cpu: 1.0 };
        let (mount, disk) = (times(3.0, Some(11.0), 3.0), times(10.0, Some(10.0), 10.0));
        let figures = Figures { bytes: 2_000_000_000, mount, library: None, disk, tmpfs: None };
        assert!(figures.verdicts().iter().all(|verdict| verdict.is_met), "{:?}", figures.verdicts());
        let missed =
            |figures: Figures| -> Vec<bool> { figures.verdicts().into_iter().map(|verdict| !verdict.is_met).collect() };
        let with = |mount: Times| Figures { mount, ..figures };
        assert_eq!(missed(with(Times { blocked: 3.6, ..mount })), [true, false, false]);
        assert_eq!(missed(with(Times { drain: Some(11.2), ..mount })), [false, true, false]);
        assert_eq!(missed(with(Times { restart: 3.4, ..mount })), [false, false, true]);
        let both = Figures { library: Some(mount), tmpfs: Some(times(1.0, None, 0.5)), ..figures };
        assert_eq!(missed(both), [false, true, false, false]);
        assert!(figures.verdicts()[0].text.ends_with("0.30, at most 0.35: met"), "{}", figures.verdicts()[0].text);
        let table = both.table();
        let has = |line: &str| table.lines().any(|row| row.split_whitespace().collect::<Vec<_>>().join(" ") == line);
        assert!(has("mount library disk tmpfs") && has("drain, on the disk dd, s 11.00 11.00 10.00 -"), "{table}");
        assert!(has("MB/s 667 667 200 2000"), "{table}");
    }

    #[test]
    fn sums_name_the_file_that_differs() {
        let mut pattern = Pattern::new();
        let sum = pattern.sum(1, 2, 2);
        let mut hash = Sha256::new();
        let blocks = [pattern.block(1, 2, 0).to_vec(), pattern.block(1, 2, 1).to_vec()].concat();
        blocks.chunks(1000).for_each(|part| hash.update(part));
        assert_eq!(sum, Sum::of(hash));
        assert_eq!(
            Sum::of(Sha256::new()).to_string(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        let sums = Sums { name: name(1, 2), written: sum, buffer: sum, backing: sum };
        assert!(sums.are_equal() && sums.to_string() == format!("{sum}  bursts-1.2"), "{sums}");
        let other = pattern.sum(1, 2, 1);
        for sums in [Sums { buffer: other, ..sums.clone() }, Sums { backing: other, ..sums }] {
            assert!(!sums.are_equal() && sums.to_string().starts_with("bursts-1.2 DIFFERS: "), "{sums}");
        }
    }

    #[test]
    fn commands_are_spread_over_a_drain() {
        let due = |commands| [0, 33, 34, 49, 50, 67, 100, 200].map(|drained| due(commands, drained, 100));
        assert_eq!(due(1), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(due(2), [0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(due(0), [0; 8]);
    }
}
