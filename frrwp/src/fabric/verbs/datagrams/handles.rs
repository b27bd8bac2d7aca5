//! Address handles by the host that they lead to: clients of one host share one. Pure.

use rustc_hash::FxHashMap;

/// Handles at most.
pub(super) const MOST: usize = 1024;

/// The handles of a port. The one that was used longest ago makes room.
#[derive(Debug)]
pub(super) struct Handles<H> {
    by_host: FxHashMap<[u8; 16], (H, u64)>,
    uses: u64,
    most: usize,
}

impl<H: Copy> Handles<H> {
    pub(super) fn new(most: usize) -> Self {
        Self { by_host: FxHashMap::default(), uses: 0, most: most.max(1) }
    }

    /// Returns the handle of a host.
    pub(super) fn get(&mut self, host: &[u8; 16]) -> Option<H> {
        self.uses += 1;
        let (handle, used) = self.by_host.get_mut(host)?;
        *used = self.uses;
        Some(*handle)
    }

    /// Adds a host's handle. Returns the one that is to go.
    pub(super) fn insert(&mut self, host: [u8; 16], handle: H) -> Option<H> {
        let mut evicted = None;
        if self.by_host.len() >= self.most && !self.by_host.contains_key(&host) {
            let oldest = self.by_host.iter().min_by_key(|(_, (_, used))| *used).map(|(host, _)| *host);
            evicted = oldest.and_then(|oldest| self.by_host.remove(&oldest)).map(|(handle, _)| handle);
        }
        self.uses += 1;
        let before = self.by_host.insert(host, (handle, self.uses)).map(|(handle, _)| handle);
        before.or(evicted)
    }

    /// Takes all.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = H> + '_ {
        self.by_host.drain().map(|(_, (handle, _))| handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8) -> [u8; 16] {
        [number; 16]
    }

    #[test]
    fn the_handle_used_longest_ago_makes_room() {
        let mut handles = Handles::new(3);
        for number in 0..3 {
            assert_eq!(handles.insert(host(number), number), None);
        }
        assert_eq!(handles.get(&host(0)), Some(0));
        assert_eq!(handles.insert(host(3), 3), Some(1));
        assert_eq!(handles.get(&host(1)), None);
        assert_eq!(handles.insert(host(0), 9), Some(0), "another of the same host");
        let mut left: Vec<_> = handles.drain().collect();
        left.sort_unstable();
        assert_eq!(left, [2, 3, 9]);
    }
}
