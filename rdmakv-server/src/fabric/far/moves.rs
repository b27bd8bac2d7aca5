//! Regions that move: by which token another server reads one, which pages this server's CPU wrote meanwhile, and where a copy is read.
//!
//! Pure: the caller draws the tokens.

use std::collections::BTreeMap;
use std::time::Duration;

use rdmakv_proto::far::marks::Marks;
use rdmakv_proto::far::messages::{Source, Token};

use super::page_sums::PageSums;

/// A memory and its region.
type Name = (u64, u32);

/// A region that another server may read.
#[derive(Clone, Debug)]
struct Leaving {
    epoch: u32,
    token: Token,
    /// Pages that this server's CPU wrote since.
    marks: Marks,
    /// When writes were paused.
    frozen: Option<Duration>,
}

/// The server that a copy is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct From {
    epoch: u32,
    pub(super) token: Token,
    pub(super) address: String,
    /// Those of the pages as they were read. None until all were.
    sums: Option<PageSums>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Moves {
    leaving: BTreeMap<Name, Leaving>,
    coming: BTreeMap<Name, From>,
}

impl Moves {
    /// Lets a server that has the returned token read a region of this epoch, and has its pages marked. Asked again, it returns the same
    /// token; `fresh` is that of a new move.
    pub(super) fn begin(&mut self, name: Name, epoch: u32, region_bytes: u64, fresh: Token) -> Token {
        let leaving = self.leaving.entry(name);
        let new = || Leaving { epoch, token: fresh, marks: Marks::new(region_bytes), frozen: None };
        let leaving = leaving.or_insert_with(new);
        if leaving.epoch != epoch {
            *leaving = new();
        }
        leaving.token
    }

    /// Returns whether the token opens the region in this epoch.
    pub(super) fn opens(&self, name: Name, epoch: u32, token: &Token) -> bool {
        // All bytes are compared, so that the time tells nothing.
        let is_same = |ours: &Token| ours.iter().zip(token).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0;
        self.leaving.get(&name).is_some_and(|leaving| leaving.epoch == epoch && is_same(&leaving.token))
    }

    /// Returns whether no region leaves.
    pub(super) fn is_empty(&self) -> bool {
        self.leaving.is_empty()
    }

    /// Marks the pages that this server's CPU is about to write.
    pub(super) fn mark(&mut self, name: Name, offset: u64, length: u64) {
        if let Some(leaving) = self.leaving.get_mut(&name) {
            leaving.marks.set(offset, length);
        }
    }

    /// Returns the pages that this server's CPU wrote since the move began.
    pub(super) fn marks(&self, name: Name, epoch: u32) -> Vec<u8> {
        let leaving = self.leaving.get(&name).filter(|leaving| leaving.epoch == epoch);
        leaving.map_or_else(Vec::new, |leaving| leaving.marks.bytes().to_vec())
    }

    /// Notes that writes to a region are paused from now on.
    pub(super) fn freeze(&mut self, name: Name, epoch: u32, now: Duration) {
        if let Some(leaving) = self.leaving.get_mut(&name).filter(|leaving| leaving.epoch == epoch) {
            leaving.frozen.get_or_insert(now);
        }
    }

    /// Ends the move of a region away from here. Returns for how long writes were paused, if they were.
    pub(super) fn thaw(&mut self, name: Name, now: Duration) -> Option<Duration> {
        self.leaving.remove(&name)?.frozen.map(|since| now.saturating_sub(since))
    }

    /// Notes where the copy of this epoch is read.
    pub(super) fn come(&mut self, name: Name, epoch: u32, source: &Source<'_>) {
        let address = String::from_utf8_lossy(source.address).into_owned();
        self.coming.insert(name, From { epoch, token: source.token, address, sums: None });
    }

    /// Returns where the copy of this epoch is read.
    pub(super) fn source(&self, name: Name, epoch: u32) -> Option<From> {
        self.coming.get(&name).filter(|from| from.epoch == epoch).cloned()
    }

    /// Takes the sums of a copy out, before its pages are read again.
    pub(super) fn take_sums(&mut self, name: Name, epoch: u32) -> Option<PageSums> {
        self.coming.get_mut(&name).filter(|from| from.epoch == epoch)?.sums.take()
    }

    /// Keeps the sums of a copy.
    pub(super) fn keep_sums(&mut self, name: Name, epoch: u32, sums: PageSums) {
        if let Some(from) = self.coming.get_mut(&name).filter(|from| from.epoch == epoch) {
            from.sums = Some(sums);
        }
    }

    /// Forgets regions that are not here in this epoch any more.
    pub(super) fn retain(&mut self, is_here: impl Fn(Name, u32) -> bool) {
        self.leaving.retain(|&name, leaving| is_here(name, leaving.epoch));
        self.coming.retain(|&name, from| is_here(name, from.epoch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_open_one_region_in_one_epoch() {
        let mut moves = Moves::default();
        assert_eq!(moves.begin((7, 1), 3, 4096, [1; 16]), [1; 16]);
        assert_eq!(moves.begin((7, 1), 3, 4096, [2; 16]), [1; 16], "asked again, the same");
        assert!(moves.opens((7, 1), 3, &[1; 16]));
        for (name, epoch, token) in
            [((7, 1), 3, [2; 16]), ((7, 1), 4, [1; 16]), ((7, 2), 3, [1; 16]), ((8, 1), 3, [1; 16])]
        {
            assert!(!moves.opens(name, epoch, &token), "{name:?} {epoch}");
        }
        assert_eq!(moves.begin((7, 1), 5, 4096, [3; 16]), [3; 16], "another move");
        assert!(!moves.opens((7, 1), 3, &[1; 16]));
        moves.retain(|_, epoch| epoch != 5);
        assert!(!moves.opens((7, 1), 5, &[3; 16]));
    }

    #[test]
    fn marks_are_of_the_move_that_began() {
        let mut moves = Moves::default();
        moves.mark((7, 1), 0, 1);
        moves.begin((7, 1), 3, 3 * 4096, [1; 16]);
        moves.mark((7, 1), 4096, 4097);
        assert_eq!(moves.marks((7, 1), 3), [0b110]);
        assert!(moves.marks((7, 1), 4).is_empty());
        moves.begin((7, 1), 5, 3 * 4096, [1; 16]);
        assert_eq!(moves.marks((7, 1), 5), [0]);
    }

    #[test]
    fn pauses_last_from_freeze_to_the_end() {
        let (mut moves, second) = (Moves::default(), Duration::from_secs(1));
        moves.begin((7, 1), 3, 4096, [1; 16]);
        assert_eq!(moves.thaw((7, 1), second), None, "it was not frozen");
        moves.begin((7, 1), 3, 4096, [1; 16]);
        moves.freeze((7, 1), 3, second);
        moves.freeze((7, 1), 3, 2 * second);
        assert_eq!(moves.thaw((7, 1), 3 * second), Some(2 * second), "sent again, it counts once");
        assert_eq!(moves.thaw((7, 1), 3 * second), None);
    }
}
