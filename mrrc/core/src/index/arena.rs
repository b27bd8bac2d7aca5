//! Which lines of an array are free.
//!
//! A free line names the next free one, so giving a line back allocates nothing.

/// A line of 64 bytes, of atomics.
pub(super) trait Line {
    fn copy_of(&self) -> Self;
    fn clear(&self);
    /// Returns a word of a free line.
    fn link(&self) -> u32;
    fn set_link(&self, next: u32);
}

/// The free lines of an array: those on a list, and those that were never used.
pub(super) struct Stock {
    first_free: u32,
    used: u32,
}

const NONE: u32 = u32::MAX;

impl Stock {
    pub(super) fn new() -> Self {
        Self { first_free: NONE, used: 0 }
    }

    /// Returns an empty line, if any is free.
    pub(super) fn take<T: Line>(&mut self, lines: &[T]) -> Option<u32> {
        let number = self.first_free;
        if let Some(line) = lines.get(number as usize) {
            self.first_free = line.link();
            line.clear();
            return Some(number);
        }
        let number = self.used;
        ((number as usize) < lines.len()).then(|| {
            self.used += 1;
            number
        })
    }

    /// Gives a line back.
    pub(super) fn give<T: Line>(&mut self, lines: &[T], number: u32) {
        lines[number as usize].set_link(self.first_free);
        self.first_free = number;
    }

    /// Returns the lines in use.
    #[cfg(test)]
    pub(super) fn taken<T: Line>(&self, lines: &[T]) -> usize {
        let next = |&number: &u32| lines.get(number as usize).map(Line::link);
        let list = std::iter::successors(Some(self.first_free), next);
        self.used as usize - list.take_while(|&number| number != NONE).count()
    }
}
