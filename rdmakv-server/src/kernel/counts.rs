//! The programs' counts: a row for each processor, which the programs write and the server reads.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rdmakv_bpf::layout::TALLY;

use crate::metrics::KernelCounts;

/// Words before the counts of classes.
const HEAD: usize = 16;

/// Returns the sums of all rows.
pub(super) fn sum(tally: &[AtomicU64]) -> KernelCounts {
    let mut counts = KernelCounts::default();
    for row in tally.chunks_exact(TALLY / 8) {
        let read = |at: usize| row[at].load(Relaxed);
        counts.gets += read(1);
        counts.bytes_in += read(2);
        counts.bytes_out += read(3);
        counts.passed_unknown += read(4);
        counts.passed_changed += read(5);
        counts.passed_over += read(6);
        counts.passed_room += read(7);
        counts.meta += read(8);
        counts.classes.resize(row.len() - HEAD, 0);
        for (class, count) in counts.classes.iter_mut().zip(&row[HEAD..]) {
            *class += count.load(Relaxed);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_processors_add_up() {
        let words = TALLY / 8;
        let tally: Vec<_> = (0..3 * words).map(|at| AtomicU64::new((at % words) as u64)).collect();
        let counts = sum(&tally);
        assert_eq!((counts.gets, counts.passed_room, counts.classes.len()), (3, 21, 256));
        assert_eq!((counts.classes[0], counts.classes[255]), (3 * 16, 3 * 271));
    }
}
