//! Checkpoints as files: the bytes of each rank, and what the times of a run amount to. No files, no clock.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// Bytes that a rank writes or reads at once.
pub(crate) const BLOCK: usize = 1 << 20;

/// Limits of the figures, as ratios.
const BLOCKED_MOST: f64 = 0.35;
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
}

/// Seconds that parts of a run took, for checkpoints of one size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Figures {
    /// Bytes of one checkpoint.
    pub(crate) bytes: u64,
    /// How long the slowest rank was in open, write and close, for each checkpoint: on the mount, and on the disk with a sync.
    pub(crate) blocked: f64,
    pub(crate) direct: f64,
    /// From the first byte in the backing directory until it showed the last file, and as long as `dd` wrote as many bytes.
    pub(crate) drain: f64,
    pub(crate) dd: f64,
    /// How long ranks read one checkpoint: on the mount, and from the disk without its cache.
    pub(crate) restart: f64,
    pub(crate) cold: f64,
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
        let rate = |seconds: f64| format!("{:.0}", self.bytes as f64 / 1e6 / seconds);
        let seconds = |seconds: f64| format!("{seconds:.2}");
        let ratio = |ratio: f64| format!("{ratio:.2}");
        let rows = [
            ("blocked: write and close", self.blocked, self.direct, self.blocked / self.direct),
            ("drain, against dd", self.drain, self.dd, self.dd / self.drain),
            ("restart, against cold reads", self.restart, self.cold, self.cold / self.restart),
        ];
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(["", "buffer s", "MB/s", "disk s", "MB/s", "ratio"].map(Cell::new));
        for (what, buffer, disk, of) in rows {
            let cells = [what.to_owned(), seconds(buffer), rate(buffer), seconds(disk), rate(disk), ratio(of)];
            table.add_row(cells.map(Cell::new));
        }
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            column.set_cell_alignment(if at == 0 { CellAlignment::Left } else { CellAlignment::Right });
        }
        table.trim_fmt()
    }

    /// Returns each figure that has a limit.
    pub(crate) fn verdicts(&self) -> [Verdict; 3] {
        let verdict = |what: &str, ratio: f64, word: &str, limit: f64, is_met: bool| {
            let end = if is_met { "met" } else { "MISSED" };
            Verdict { text: format!("{what}: {ratio:.2}, {word} {limit:.2}: {end}"), is_met }
        };
        let blocked = self.blocked / self.direct;
        let (drain, restart) = (self.dd / self.drain, self.cold / self.restart);
        [
            verdict("blocked time, of that on the disk", blocked, "at most", BLOCKED_MOST, blocked <= BLOCKED_MOST),
            verdict("drain rate, of dd's", drain, "at least", DRAIN_LEAST, drain >= DRAIN_LEAST),
            verdict("restart rate, of cold reads'", restart, "at least", RESTART_LEAST, restart >= RESTART_LEAST),
        ]
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
        let figures = Figures {
            bytes: 2_000_000_000,
            blocked: 3.0,
            direct: 10.0,
            drain: 11.0,
            dd: 10.0,
            restart: 3.0,
            cold: 10.0,
        };
        assert!(figures.verdicts().iter().all(|verdict| verdict.is_met), "{:?}", figures.verdicts());
        let missed = |figures: Figures| figures.verdicts().map(|verdict| !verdict.is_met);
        assert_eq!(missed(Figures { blocked: 3.6, ..figures }), [true, false, false]);
        assert_eq!(missed(Figures { drain: 11.2, ..figures }), [false, true, false]);
        assert_eq!(missed(Figures { restart: 3.4, ..figures }), [false, false, true]);
        assert!(figures.table().contains("buffer s  MB/s  disk s  MB/s  ratio"), "{}", figures.table());
        assert!(figures.verdicts()[0].text.ends_with("0.30, at most 0.35: met"), "{}", figures.verdicts()[0].text);
    }
}
