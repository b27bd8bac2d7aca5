//! The files whose chunks are in memory although the backing has them, in the order in which they were shown.

use std::collections::{HashMap, VecDeque};

use rdmakv_proto::files::{Generation, Ino};

/// Files with chunks that may go, and their bytes together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Clean {
    order: VecDeque<(Ino, Generation)>,
    bytes_of: HashMap<Ino, (Generation, u64)>,
    bytes: u64,
}

impl Clean {
    /// Adds a file that was shown. An earlier generation of it is no longer counted.
    pub(crate) fn add(&mut self, ino: Ino, generation: Generation, bytes: u64) {
        match self.bytes_of.insert(ino, (generation, bytes)) {
            Some((before, counted)) => {
                self.bytes -= counted;
                if before != generation {
                    self.order.push_back((ino, generation));
                }
            }
            None => self.order.push_back((ino, generation)),
        }
        self.bytes += bytes;
    }

    /// Takes the file that was shown first, if all together have more bytes than are to be kept.
    pub(crate) fn take(&mut self, kept: u64) -> Option<(Ino, Generation)> {
        while self.bytes > kept {
            let (ino, generation) = self.order.pop_front()?;
            match self.bytes_of.get(&ino) {
                Some(&(latest, bytes)) if latest == generation => {
                    self.bytes_of.remove(&ino);
                    self.bytes -= bytes;
                    return Some((ino, generation));
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_was_shown_first_goes_first() {
        let mut clean = Clean::default();
        for (ino, generation, bytes) in [(4, 1, 10), (5, 1, 20), (4, 2, 30), (5, 1, 20), (6, 1, 5)] {
            clean.add(Ino(ino), Generation(generation), bytes);
        }
        assert_eq!(clean.take(55), None);
        assert_eq!(clean.take(54), Some((Ino(5), Generation(1))));
        assert_eq!(clean.take(35), None);
        assert_eq!(clean.take(0), Some((Ino(4), Generation(2))));
        assert_eq!((clean.take(0), clean.take(0)), (Some((Ino(6), Generation(1))), None));
        assert_eq!((clean.bytes, clean.order.len(), clean.bytes_of.len()), (0, 0, 0));
    }
}
